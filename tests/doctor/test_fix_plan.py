# SPDX-License-Identifier: Apache-2.0
"""From findings to steps: order, blocks, numbers of the table itself, undo; and that a plan survives JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from incidents import live
from planted import Case as Planted
from planted import planted
from toy import File, Toy, steady_table

from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.checkup_text import plan_lines
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding
from shoal.doctor.fix import BLOCKS, Plan, Step
from shoal.doctor.fix_plan import plan
from shoal.doctor.fix_text import Sql
from shoal.doctor.readings import READINGS, readings
from shoal.doctor.window import Holder
from shoal.errors import Corrupt
from shoal.options import Options

EVERY = [f"D{n}" for n in range(1, 18)]


def finding(name: str, **evidence: object) -> Finding:
    return Finding(name, "a name", "warn", "supported", {}, evidence, "says")  # type: ignore[arg-type]


def changed_clock(slo_ms: int | None = None, *, buckets: int = 4, **options: str) -> Case:
    """An hour at 60 s, then ten minutes at 10 s, in buckets of a few kilobytes."""
    toy = Toy({"bucket": str(buckets), **options})
    for n in range(1, 121):
        at = n * 60_000 if n <= 60 else 60 * 60_000 + (n - 60) * 10_000
        toy.commit(*[("flush", File(b, 9000)) for b in range(buckets)], at=at, identifier=n)
    window = replace(toy.window(taken_ms=at), name="shop.orders")
    return checkup(window, slo_ms=slo_ms).case


def steps_of(case: Case, *ids: str) -> dict[str, Step]:
    return {s.id: s for s in plan(case, [finding(i) for i in ids]).steps}


def test_every_diagnosis_but_a_healthy_table_has_steps() -> None:
    case = changed_clock(30_000, **{"changelog-producer": "input", "target-file-size": "1 mb"})
    for name in EVERY:
        if name not in ("D6",):  # nothing is retained for too long here: see below
            assert plan(case, [finding(name)]).steps, name
    assert plan(case, []).steps == ()
    assert plan(case, [replace(finding("D1"), severity="info")]).steps == ()


def test_a_changelog_forecast_starts_from_the_rate_of_today() -> None:
    """An hour at 60 s, then at 10 s: today 4 changelog files come every 10 s, whatever came before."""
    toy = Toy({"bucket": "4", "changelog-producer": "input"})
    for n in range(1, 121):
        at = n * 60_000 if n <= 60 else 60 * 60_000 + (n - 60) * 10_000
        files = [("flush", File(b, 9000)) for b in range(4)] + [("changelog", File(b, 9000)) for b in range(4)]
        toy.commit(*files, at=at, identifier=n)
    case = checkup(replace(toy.window(taken_ms=at), name="shop.orders")).case
    assert case.model.flows.per_minute("changelog") == pytest.approx(480 / 70, rel=0.02)  # the mean of both
    found = readings(case)
    assert found["changelog_per_minute"] == pytest.approx(24, rel=0.02) == found["flush_per_minute"]
    assert found["metadata_per_minute"] == pytest.approx(4 * 6, rel=0.02)  # four files a commit
    forecast = steps_of(case, "D3")["no-changelog"].forecasts[0]
    assert forecast.reading == "changelog_per_minute" and forecast.before == found["changelog_per_minute"]


def test_every_step_says_how_to_undo_and_confirm_it() -> None:
    case = changed_clock(30_000, **{"changelog-producer": "input", "write-only": "true"})
    found = plan(case, [finding(i) for i in EVERY])
    assert len({s.id for s in found.steps}) == len(found.steps) > 12
    for s in found.steps:
        assert s.undo and s.effect and s.probe and (s.sql or s.job or s.notes), s.id
        assert all(f.reading in READINGS for f in s.forecasts)
    assert [s.block for s in found.steps] == sorted((s.block for s in found.steps), key=BLOCKS.index)
    irreversible = {s.id for s in found.steps if s.typed_name}
    assert irreversible == {"fewer-buckets"} and not irreversible & {s.id for s in found.block("first aid")}


def test_the_order_is_job_clock_buckets_producer_compaction() -> None:
    case = changed_clock(30_000, **{"changelog-producer": "input", "write-only": "true"})
    found = plan(case, [finding(i) for i in reversed(EVERY)])
    aid, root = ([s.id for s in found.block(b)] for b in BLOCKS)
    assert aid[:3] == ["stop-restarts", "restore-interval", "compact-now"]
    order = [
        "longer-interval",
        "skip-idle-commits",
        "fewer-buckets",
        "merge-locally",
        "no-changelog",
        "writers-compact",
    ]
    assert [s for s in root if s in order] == order


def test_first_aid_is_the_interval_before_and_says_what_it_loses() -> None:
    step = steps_of(changed_clock(30_000), "D1")["restore-interval"]
    assert step.block == "first aid" and step.job == {"execution.checkpointing.interval": "1 min"}
    assert step.loses == (
        "rows become visible up to 1 min after they came, instead of 10 s; that breaks the 30 s that were asked for"
    )
    assert step.undo == ("SET 'execution.checkpointing.interval' = '10 s';",)
    interval, flush = step.forecasts
    assert (interval.reading, interval.low, interval.high) == ("commit_interval_s", 54.0, 66.0)
    assert flush.low == pytest.approx(0.8 * 4) and flush.high == pytest.approx(1.2 * 4)


def test_the_root_fix_is_the_longest_interval_of_the_slo() -> None:
    assert "longer-interval" in steps_of(changed_clock(30_000), "D1")
    assert steps_of(changed_clock(30_000), "D1")["longer-interval"].job["execution.checkpointing.interval"] == "29 s"
    told = plan(changed_clock(30_000), [finding("D1", longest_interval_s=22.4, slack="slo")]).steps
    assert told[-1].job == {"execution.checkpointing.interval": "22 s"}
    assert "longer-interval" not in steps_of(changed_clock(10_000), "D1")
    unsaid = steps_of(changed_clock(), "D1")
    assert "say-slo" in unsaid and "longer-interval" not in unsaid
    assumed = plan(changed_clock(), [finding("D1", longest_interval_s=60.0, slack="assumed")]).steps[-1]
    assert assumed.id == "longer-interval" and "nobody said how fresh" in assumed.notes[-1]


def test_buckets_come_from_the_largest_partition() -> None:
    step = steps_of(changed_clock(), "D2")["fewer-buckets"]
    assert step.sql == (
        "CALL sys.rescale(`table` => 'shop.orders', bucket_num => 1);",
        "ALTER TABLE `shop`.`orders` SET ('bucket' = '1');",
    )
    assert step.undo[-1].endswith("('bucket' = '4');") and step.action is not None and step.typed_name
    hidden = steps_of(changed_clock(**{"deletion-vectors.enabled": "true"}), "D2")["fewer-buckets"]
    full = "CALL sys.compact(`table` => 'shop.orders', compact_strategy => 'full');"
    assert hidden.sql == (full, *step.sql) and hidden.undo == (full, *step.undo)  # else rows of level 0 would be lost
    toy = Toy({"bucket": "4"})
    for n in range(6):
        toy.commit(*[("flush", File(b, 100 << 20)) for b in range(4)], at=n * 1000)
    assert "fewer-buckets" not in steps_of(checkup(toy.window()).case, "D2")  # 2.4 GB need more than 4


def test_a_changelog_that_consumers_read_stays() -> None:
    toy = Toy({"changelog-producer": "input"})
    for n in range(6):
        toy.commit(("flush", File(0, 100)), ("changelog", File(0, 100)), at=n * 1000)
    read = checkup(toy.window(holders=(Holder("consumer", "bi", 6, None),))).case
    assert set(steps_of(read, "D3")) == {"merge-changelogs"}
    assert set(steps_of(checkup(toy.window()).case, "D3")) == {"no-changelog"}


def test_expiry_names_its_holders() -> None:
    toy = Toy({"snapshot.time-retained": "1 min", "snapshot.num-retained.min": "2"})
    for n in range(40):
        toy.commit(("flush", File(0, 100)), at=n * 10_000)
    held = (Holder("consumer", "bi", 5, None), Holder("tag", "spring", 3, None))
    case = checkup(replace(toy.window(holders=held, taken_ms=390_000), name="d.t")).case
    steps = steps_of(case, "D6", "D15")
    move = steps["move-consumer-bi"]
    assert move.sql == ("CALL sys.reset_consumer(`table` => 'd.t', consumer_id => 'bi', next_snapshot_id => 40);",)
    assert move.typed_name and "snapshots 5 to 39" in move.loses and "next_snapshot_id => 5" in move.undo[0]
    assert steps["expire-now"].block == "root fix" and "cannot be undone" in steps["expire-now"].undo[0]
    assert steps["bound-tags"].undo == ("ALTER TABLE `d`.`t` RESET ('tag.default-time-retained');",)


def test_readers_get_vectors_where_paimon_allows_them() -> None:
    """SchemaManager.checkAlterTableOption wants 'modifiable' in the schema before; SchemaValidation refuses the last two."""
    step = steps_of(changed_clock(), "D17")["deletion-vectors"]
    assert step.sql == (
        "CALL sys.compact(`table` => 'shop.orders', compact_strategy => 'full');",
        "ALTER TABLE `shop`.`orders` SET ('deletion-vectors.modifiable' = 'true');",
        "ALTER TABLE `shop`.`orders` SET ('deletion-vectors.enabled' = 'true');",
    )
    for key, value in (
        ("deletion-vectors.enabled", "true"), ("merge-engine", "first-row"), ("changelog-producer", "full-compaction"),
    ):  # fmt: skip
        assert not steps_of(changed_clock(**{key: value}), "D17"), key
    high = steps_of(changed_clock(**{"num-sorted-run.compaction-trigger": "30"}), "D17")
    assert list(high) == ["usual-trigger", "deletion-vectors"]
    assert "usual-trigger" not in steps_of(changed_clock(**{"num-sorted-run.compaction-trigger": "3"}), "D17")


def test_a_plan_in_flink_is_a_batch() -> None:
    """sql-client streams by default: there CALL sys.compact goes on for ever, and statements do not wait."""
    batch = ["SET 'execution.runtime-mode' = 'batch';", "SET 'table.dml-sync' = 'true';"]
    assert plan_lines(plan(changed_clock(), [finding("D7")]))[2:4] == batch
    assert not set(batch) & set(plan_lines(plan(changed_clock(), [finding("D4")])))
    assert plan_lines(plan(changed_clock(), [finding("D10")]))[1] == ""  # no SQL at all


def test_names_and_values_are_quoted() -> None:
    sql = Sql("a`b.c", Options({}, strict=False), {"k'": "old'"})
    step = sql.alter("x", "root fix", "t", ("D1",), {"k'": "v'"}, effect="e", probe="p")
    assert step.sql == ("ALTER TABLE `a``b`.`c` SET ('k''' = 'v''');",)
    assert step.undo == ("ALTER TABLE `a``b`.`c` SET ('k''' = 'old''');",)
    assert sql.call("compact") == "CALL sys.compact(`table` => 'a`b.c');"


def test_a_plan_survives_json() -> None:
    case = changed_clock(30_000, **{"changelog-producer": "input", "write-only": "true"})
    found = plan(case, [finding(i) for i in EVERY])
    again = Plan.of(json.loads(json.dumps(found.to_dict(), allow_nan=False)), "x")
    assert again == found
    with pytest.raises(Corrupt):
        Plan.of({"schema": "else"}, "x")
    for broken in ([], {}, {**found.to_dict(), "steps": [{"id": "x"}]}, None):
        with pytest.raises(Corrupt, match="not a plan"):
            Plan.of(broken, "x")


def test_the_text_is_sql_with_comments() -> None:
    case = changed_clock(30_000, **{"changelog-producer": "input", "write-only": "true"})
    lines = plan_lines(plan(case, [finding(i) for i in EVERY]))
    statements = [line for line in lines if line and not line.startswith("--")]
    assert statements and all(line.partition(" --")[0].endswith(";") for line in statements)
    assert "-- ==== FIRST AID: reversible; says what freshness it loses ====" in lines
    assert plan_lines(plan(case, [])) == ["-- shop.orders: nothing to mend"]


def test_readings_are_the_models() -> None:
    case = checkup(steady_table(50).window()).case
    found = readings(case)
    assert list(found) == list(READINGS)
    assert found["live_files"] == case.model.debt.live.data.files if case.model.debt.live else None
    assert found["commit_interval_s"] == 10 and found["flush_per_minute"] == case.model.flows.per_minute("flush")
    assert Checkup(case, ()).plan.readings == found


@pytest.mark.parametrize("case", {c.cause: c for c in planted()}.values(), ids=lambda c: str(c.cause))
def test_a_planted_cause_has_steps_against_it(case: Planted) -> None:
    found = checkup(replace(live(case.life), name="d.t"), slo_ms=case.slo_ms)
    assert found.verdict.code == 1 and case.cause in found.verdict.text
    assert found.plan.steps and all(case.cause in s.findings for s in found.plan.steps)
    assert all(f.before is None or not f.holds(f.before) for s in found.plan.steps for f in s.forecasts)
