# SPDX-License-Identifier: Apache-2.0
"""A checkup: its verdict and exit code, the findings that need no diagnosis, its text, and that JSON holds the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toy import File, Toy, steady_table

from shoal.doctor.checkup import Checkup, checkup, unexplained, unsound
from shoal.doctor.checkup_text import checkup_view
from shoal.doctor.debt import Identity
from shoal.doctor.finding import Finding, Severity
from shoal.doctor.report import plain_text
from shoal.doctor.take import take
from shoal.doctor.window import Gap, Window
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata


def finding(severity: Severity, name: str = "D1") -> Finding:
    return Finding(name, "a name", severity, "supported", {"table": "t"}, {"n": 7}, "it is 7")


@pytest.fixture
def fast(debt_db: Path) -> Checkup:
    return checkup(take(Metadata(LocalStore(debt_db / "ckpt_1s"), Cache()), name="debt.ckpt_1s"))


def backlog(buckets: int, level0: int, options: dict[str, str] | None = None) -> Window:
    toy = Toy(options)
    for i in range(level0):
        toy.commit(*[("flush", File(b, 1000)) for b in range(buckets)], at=10_000 * i)
    return toy.window()


def test_the_bar_and_the_data_decide_the_exit_code() -> None:
    c = checkup(steady_table(20).window()).case
    assert Checkup(c, ()).verdict.code == 0 and Checkup(c, ()).verdict.text.startswith("well: ")
    assert Checkup(c, (finding("info"),)).verdict.code == 0
    assert Checkup(c, (finding("warn"),)).verdict.code == 1
    high = Checkup(c, (finding("warn"),), "error").verdict
    assert high.code == 0 and high.text.endswith("; 1 warning")
    sick = Checkup(c, (finding("error"), finding("warn"), finding("warn")), "error").verdict
    assert (sick.code, sick.text) == (1, "sick: D1 a name (1 error, 2 warnings)")


@pytest.mark.parametrize("commits", [0, 1, 4])
def test_too_few_commits_are_4_unless_something_is_found(commits: int) -> None:
    toy = Toy()
    for n in range(commits):
        toy.commit(("flush", File(0, 100)), at=n * 1000)
    c = checkup(toy.window())
    assert c.verdict.code == 4 and c.verdict.text.startswith("too little data: ")
    assert Checkup(c.case, (finding("error"),)).verdict.code == 1


def test_a_table_without_a_snapshot_has_a_checkup() -> None:
    c = checkup(take(Metadata(MemoryStore("empty"), Cache())))
    assert c.verdict.text == "too little data: the table has no snapshot yet, 5 make a rhythm"
    assert plain_text(checkup_view(c), 80).splitlines()[0] == c.verdict.text
    json.dumps(c.to_dict(), allow_nan=False)


def test_metadata_that_does_not_add_up_is_an_error(fast: Checkup) -> None:
    d = fast.case.model.debt
    assert unsound(d) == []
    (found,) = unsound(replace(d, identity=Identity(81, (7,), 9, 9)))
    assert (found.id, found.severity, found.snapshots) == ("X1", "error", (7,))
    (found,) = unsound(replace(d, identity=Identity(81, (), 10, 9)))
    assert found.says == "the manifest lists say 10 live files, the manifests hold 9"
    missing = replace(d, gaps=(Gap(8, 8, "missing", "manifest-1 is missing"),), live=None, buckets=None)
    assert [f.says for f in unsound(missing)] == [
        "1 snapshot did not expire, but cannot be read: manifest-1 is missing"
    ]
    assert unsound(replace(d, gaps=(Gap(1, 4, "expired", "gone"),))) == []


def test_a_backlog_that_nothing_explains_is_an_error() -> None:
    c = checkup(backlog(3, 9)).case
    (found,) = unexplained(c, [])
    assert found.id == "X2" and found.evidence["buckets_over_stop"] == 3 and found.evidence["most_runs"] == 9
    assert unexplained(c, [finding("warn", "D5")]) == []
    assert unexplained(checkup(backlog(3, 9, {"num-sorted-run.stop-trigger": "20"})).case, []) == []
    assert unexplained(checkup(backlog(1, 7)).case, []) == []


def test_nobody_calls_runs_over_the_stop_trigger_well() -> None:
    for options in ({}, {"write-only": "true"}):
        c = checkup(backlog(3, 40, options))
        assert any(f.severity != "info" for f in c.findings), options


def test_the_text_fits_and_begins_with_the_verdict(metadata: Metadata) -> None:
    c = checkup(take(metadata, name="d.t"), slo_ms=5000)
    lines = plain_text(checkup_view(c), 80).splitlines()
    assert " ".join(lines[:2]).startswith(c.verdict.text[:79]) and max(map(len, lines)) <= 80


def test_the_text_names_stocks_findings_and_the_fix(fast: Checkup) -> None:
    many = (finding("error"), *(finding("warn", f"D{n}") for n in range(2, 9)))
    text = plain_text(checkup_view(Checkup(fast.case, many)), 80)
    for part in (
        "snapshots 1 to 81 (41 APPEND + 40 COMPACT), 41 commits, one every 1 s", "merge debt", "excess files",
        "retained files", "manifests", "error D1 a name (supported)", "  it is 7", "3 more findings",
        "what would mend it ('shoal doctor fix debt.ckpt_1s' says how):", "root fix: write no changelog",
    ):  # fmt: skip
        assert part in text, part


def test_json_has_a_schema_and_the_verdict(fast: Checkup) -> None:
    out = json.loads(json.dumps(fast.to_dict(), allow_nan=False))
    assert out["schema"] == "shoal.doctor.check/1" and out["table"] == "debt.ckpt_1s"
    assert out["verdict"] == {
        "ok": False, "code": 1, "word": "sick", "text": fast.verdict.text, "fail_on": "warn"
    }  # fmt: skip
    assert [f["id"] for f in out["findings"]] == [f.id for f in fast.findings]
    assert out["counts"] == {"error": 0, "warn": sum(f.severity == "warn" for f in fast.findings), "info": sum(
        f.severity == "info" for f in fast.findings
    )}  # fmt: skip
    assert out["model"]["debt"]["made"]["level0"]["files"] == 160
