# SPDX-License-Identifier: Apache-2.0
"""What is said of an incident: numbers, scope, cure and effect; and what happens where several causes are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from incidents import Life, Phase, by_day, live

from shoal.doctor.diagnose.case import Case, case
from shoal.doctor.diagnose.pace import pace
from shoal.doctor.diagnose.rules import RULES, Diagnosis, diagnose
from shoal.doctor.finding import Confidence, Finding, Severity

LONG = {"snapshot.time-retained": "1 d"}


def of(life: Life, slo_ms: int | None = None) -> Finding:
    """The first finding."""
    return diagnose(case(live(life), slo_ms=slo_ms))[0]


def rule(
    name: str, severity: Severity, sure: Confidence, *, yields: tuple[str, ...] = (), doubted: tuple[str, ...] = ()
):
    found = Finding(name, name, severity, sure, {}, {}, "It is so.")
    return Diagnosis(name, name, lambda _: [found], yields, doubted)


def order(*rules: Diagnosis) -> list[tuple[str, str]]:
    known: Case = case(live(Life((Phase(3, 60),))))
    return [(f.id, f.severity) for f in diagnose(known, rules)]


def test_worse_then_surer_then_the_order_of_the_rules() -> None:
    rules = [
        rule("a", "info", "supported"), rule("b", "warn", "consistent with"), rule("c", "warn", "supported"),
        rule("d", "error", "consistent with"), rule("e", "warn", "supported"),
    ]  # fmt: skip
    assert [i for i, _ in order(*rules)] == ["d", "c", "e", "b", "a"]


def test_what_a_supported_cause_explains_is_told_as_info() -> None:
    effect = rule("effect", "error", "supported", yields=("cause",))
    assert order(effect, rule("cause", "warn", "supported")) == [("cause", "warn"), ("effect", "info")]
    assert order(effect, rule("cause", "warn", "consistent with")) == [("effect", "error"), ("cause", "warn")]
    assert order(effect, rule("cause", "info", "supported"))[0] == ("effect", "error")


def test_a_doubted_cause_steps_back_only_before_a_surer_one() -> None:
    weak, sure = (rule("x", "warn", c, doubted=("y",)) for c in ("consistent with", "supported"))  # type: ignore[arg-type]
    other = rule("y", "warn", "supported")
    assert order(weak, other) == [("y", "warn"), ("x", "info")]
    assert order(sure, other) == [("x", "warn"), ("y", "warn")]


def test_every_finding_has_numbers_a_cure_and_an_effect() -> None:
    alone, soon = {"write-only": "true"}, {"snapshot.time-retained": "10 min"}
    lives = {
        "D1": Life((Phase(40, 60), Phase(60, 10)), options=LONG), "D2": Life((Phase(30, 60),), 64),
        "D3": Life((Phase(30, 60),), options={"changelog-producer": "input"}), "D4": Life((Phase(40, 60),), hot=0.8),
        "D5": Life((Phase(200, 60),), slowness=15, options={"num-sorted-run.stop-trigger": "90"}),
        "D6": Life((Phase(60, 60),), options=soon, consumer_at=9), "D7": Life((Phase(60, 60),), options=alone),
        "D8": Life((Phase(40, 60),), 2, partitions=by_day, late=0.05),
    }  # fmt: skip
    names = {d.id: d.name for d in RULES}
    for name, life in lives.items():
        found = of(life)
        assert (found.id, found.name, found.confidence) == (name, names[name], "supported")
        assert found.says.endswith(".") and found.change and any(c.isdigit() for c in found.effect), found
        assert found.snapshots and found.scope and len(found.evidence) >= 8
        assert all(not isinstance(v, float) or v == v for v in found.evidence.values())


def test_d1_says_how_long_the_interval_may_be_and_who_says_so() -> None:
    ten = Life((Phase(60, 10),))
    asked = of(ten, 60_000)
    assert asked.id == "D1" and asked.evidence["slack"] == "slo" and asked.evidence["longest_interval_s"] == 60
    assert asked.confidence == "supported" and "execution.checkpointing.interval to 60 s" in " ".join(asked.change)
    guessed = of(ten)
    assert guessed.confidence == "consistent with" and "60 s is assumed" in str(guessed.evidence["assumption"])
    # A reader of the stream looks every 10 s by default: that much of the freshness is spent.
    window = live(replace(ten, consumer="bi"))
    read = diagnose(case(window, slo_ms=60_000))[0]
    assert read.evidence["longest_interval_s"] == 50
    assert not diagnose(case(window, slo_ms=20_000))


def test_d1_names_the_snapshot_at_which_the_clock_changed_and_what_that_did() -> None:
    found = of(Life((Phase(40, 60), Phase(90, 10)), options=LONG))
    window = live(Life((Phase(40, 60), Phase(90, 10)), options=LONG))
    since = found.evidence["since_snapshot"]
    step = next(s for s in window.steps if s.id == since)
    assert abs(step.identifier - 41) <= 2 and found.evidence["commits_share"] == pytest.approx(1, abs=0.05)
    now, before = found.evidence["files_per_minute"], found.evidence["files_per_minute_before"]
    assert isinstance(now, float) and isinstance(before, float) and now / before == pytest.approx(6, rel=0.05)


def test_d2_counts_what_fewer_buckets_would_save() -> None:
    life = Life((Phase(30, 60),), 64, 500)
    found, seen = of(life), pace(live(life), case(live(life)).model.segments)
    assert seen is not None and found.evidence["active_buckets"] == 64 and found.evidence["needed_buckets"] == 1
    made = seen.flushed + seen.rewritten
    assert found.evidence["avoidable_share"] == pytest.approx(made * (1 - 1 / 64) / seen.objects, abs=1e-3)
    assert "'bucket' = '1'" in found.change[0]


def test_d3_is_silent_where_somebody_reads() -> None:
    options = {"changelog-producer": "input"}
    silent = Life((Phase(30, 60),), options=options, consumer="bi")
    assert not diagnose(case(live(silent)))
    for sign in ({"consumer-id": "x"}, {"scan.mode": "from-snapshot"}, {"changelog.time-retained": "1 d"}):
        assert not diagnose(case(live(replace(silent, consumer=None, options=options | sign)))), sign
    found = of(replace(silent, consumer=None))
    assert found.evidence["changelog_files_per_new_file"] == 1
    assert int(found.effect.split()[0].replace(",", "")) == pytest.approx(4 * 1440, rel=0.01)


def test_d4_tells_the_bucket_its_share_and_what_even_would_be() -> None:
    found = of(Life((Phase(40, 60),), 4, 100, hot=0.8))
    assert found.scope["bucket"] == 1 and found.evidence["share"] == pytest.approx(0.85, abs=0.01)
    assert found.evidence["by_sequence_numbers"] is True and found.evidence["times_the_others"] == pytest.approx(
        17, rel=0.1
    )


def test_d6_names_the_holder() -> None:
    soon = {"snapshot.time-retained": "10 min"}
    base = Life((Phase(80, 60),), 2, options=soon)
    stuck = of(replace(base, consumer_at=10))
    assert stuck.scope["consumer"] == "stuck" and stuck.evidence["consumer_next_snapshot"] == stuck.scope["snapshot"]
    assert "consumer_id => 'stuck'" in stuck.change[0]
    for option, value in (("snapshot.expire.limit", "1"), ("snapshot.num-retained.min", "150")):
        found = of(replace(base, options=soon | {option: value}))
        assert (found.id, found.scope["option"]) == ("D6", option)
    asynchronous = of(replace(base, expires=False, options=soon | {"snapshot.expire.execution-mode": "async"}))
    assert asynchronous.scope["option"] == "snapshot.expire.execution-mode"
    shared = of(replace(base, expires=False, options=soon | {"write-only": "true"}, compactor_every=10))
    assert (shared.id, shared.evidence["holder"]) == ("D6", "write-only")


def test_d7_explains_the_snapshots_that_nobody_expires() -> None:
    found = diagnose(case(live(Life((Phase(200, 60),), options={"write-only": "true"}))))
    assert [(f.id, f.severity) for f in found] == [("D7", "error"), ("D6", "info")]
    assert found[1].evidence["explained_by"] == "D7" and found[0].evidence["unmerged_files_of_worst_bucket"] == 200


def test_a_table_without_snapshots_or_state_is_not_judged() -> None:
    window = live(Life((Phase(40, 10),), 64))
    assert not diagnose(case(replace(window, steps=(), flows=window.flows.slice(0, 0))))
    assert {f.id for f in diagnose(case(replace(window, start=None)))} <= {"D1"}
