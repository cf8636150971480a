# SPDX-License-Identifier: Apache-2.0
"""A table's checkup: its case, the findings, the verdict with its exit code, and the plan that mends it.

Every output (terminal, JSON, HTML, Prometheus, fleet) is a function of this one value. Invariants: only findings and
the amount of data decide the verdict; a table whose metadata doesn't add up is never called well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from shoal.doctor.beside import NOTHING_BESIDE, Beside
from shoal.doctor.debt import Debt, Limits
from shoal.doctor.diagnose.case import Case, case
from shoal.doctor.diagnose.compaction import overdue
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.finding import SEVERITIES, Finding, Severity, at_least, exit_code, worst_first
from shoal.doctor.fix import Plan
from shoal.doctor.fix_plan import plan
from shoal.doctor.flink import Job
from shoal.doctor.slope import FEWEST
from shoal.doctor.timeline import Timeline, timeline
from shoal.doctor.window import Window

SCHEMA = "shoal.doctor.check/1"
WELL, SICK, CANNOT_READ, TOO_LITTLE = 0, 1, 3, 4
# From good to bad: what a fleet gives for all of its tables.
BADNESS = (WELL, TOO_LITTLE, SICK, CANNOT_READ)
FEWEST_COMMITS = FEWEST  # of data: no slope from fewer
_ROUNDS = 4  # compactions that the small files of one append bucket would fill: nobody compacts


@dataclass(frozen=True, slots=True)
class Verdict:
    """Exit code of section "Exit codes" of docs/doctor.md, and the line that says why."""

    code: int
    word: Literal["well", "sick", "too little data"]
    text: str

    @property
    def ok(self) -> bool:
        return self.code == WELL

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"ok": self.ok, "code": self.code, "word": self.word, "text": self.text}


@dataclass(frozen=True)
class Checkup:
    """One look at one table, judged. `findings`: worst first."""

    case: Case
    findings: tuple[Finding, ...]
    fail_on: Severity = "warn"

    @property
    def name(self) -> str:
        return self.case.window.name or self.case.window.table

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(f.severity for f in self.findings)
        return {s: found[s] for s in SEVERITIES}

    @cached_property
    def timeline(self) -> Timeline | None:
        """What happened and when; None where there are not two snapshots to hold against each other."""
        c = self.case
        return timeline(c.window, c.model, c.job, c.beside.queries) if len(c.window.steps) > 1 else None

    @cached_property
    def plan(self) -> Plan:
        return plan(self.case, self.findings)

    @cached_property
    def verdict(self) -> Verdict:
        """A finding that reaches the bar counts before too little data: what is known is bad enough."""
        d = self.case.model.debt
        if exit_code(self.findings, self.fail_on):
            first = self.findings[0]
            return Verdict(SICK, "sick", f"sick: {first.id} {first.name} ({self._counted()})")
        if d.commits < FEWEST_COMMITS:
            what = "the table has no snapshot yet" if d.first is None else f"{_n(d.commits, 'commit')} of data"
            return Verdict(TOO_LITTLE, "too little data", f"too little data: {what}, {FEWEST_COMMITS} make a rhythm")
        others = f"; {self._counted()}" if any(f.severity != "info" for f in self.findings) else ""
        return Verdict(WELL, "well", f"well: {headline(d)}{others}")

    def _counted(self) -> str:
        """`1 error, 2 warnings`."""
        counts = self.counts
        words = {"error": "error", "warn": "warning", "info": "note"}
        return ", ".join(_n(counts[s], words[s]) for s in SEVERITIES if counts[s])

    def to_dict(self) -> dict[str, Any]:  # JSON
        w, d = self.case.window, self.case.model.debt
        return {
            "schema": SCHEMA,
            "table": w.name,
            "address": w.table,
            "taken_ms": w.stock.taken_ms,
            "slo_ms": self.case.slo_ms,
            "verdict": {**self.verdict.to_dict(), "fail_on": self.fail_on},
            "counts": self.counts,
            "window": {
                "first": d.first, "last": d.last, "first_ms": d.first_ms, "last_ms": d.last_ms, "commits": d.commits,
                "minutes": d.covered_minutes, "complete": d.complete, "partial": w.stock.partial,
                "gaps": len(d.gaps), "requests": w.stock.requests, "bytes_read": w.stock.bytes_read,
            },
            "findings": [f.to_dict() for f in self.findings],
            "fix": self.plan.to_dict(),
            "model": self.case.model.to_dict(),
        }  # fmt: skip


def checkup(
    window: Window, *, job: Job | None = None, slo_ms: int | None = None, fail_on: Severity = "warn",
    beside: Beside = NOTHING_BESIDE,
) -> Checkup:  # fmt: skip
    """Diagnose a window, with what a history knows beside it: earlier looks, measured freshness, timed queries."""
    found = case(window, job=job, slo_ms=slo_ms, beside=beside)
    findings = diagnose(found)
    return Checkup(
        found, tuple(worst_first([*unsound(found.model.debt), *findings, *unexplained(found, findings)])), fail_on
    )


def headline(d: Debt) -> str:
    """The size of the debt in a few words."""
    if d.live is None or d.buckets is None or d.limits is None:
        return f"{_n(d.identity.listed, 'live file')}, and the manifests add up"
    text = f"{_n(d.live.data.files, 'live file')} in {_n(d.buckets.count, 'bucket')}"
    if d.limits.primary_key:
        top = max((b.runs for b in d.buckets.top if b.bucket >= 0), default=0)
        return f"{text}, at most {_n(top, 'sorted run')} in one; writers wait above {d.limits.stop_trigger}"
    return text


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# ---- what needs no diagnosis ------------------------------------------------------------------------------


def unsound(d: Debt) -> list[Finding]:
    """X1: the metadata itself is damaged, so that other numbers may be wrong."""
    out: list[tuple[str, dict[str, Any], tuple[int, ...]]] = []  # evidence is of JSON values
    if broken := d.identity.broken:
        says = f"the manifest lists of {_n(len(broken), 'snapshot')} do not add up to their files"
        out.append((says, {"broken": len(broken)}, broken[:20]))
    if d.identity.counted not in (None, d.identity.listed):
        says = f"the manifest lists say {_n(d.identity.listed, 'live file')}, the manifests hold {d.identity.counted:,}"
        out.append((says, {"listed": d.identity.listed, "counted": d.identity.counted}, ()))
    missing = [g for g in d.gaps if g.kind == "missing"]
    if missing:
        first = missing[0]
        says = f"{_n(len(missing), 'snapshot')} did not expire, but cannot be read: {first.what}"
        out.append((says, {"missing": len(missing)}, tuple(g.first for g in missing[:20])))
    elif d.live is None and d.first is not None:
        says = f"the live files of snapshot {d.last} cannot be read: a manifest is missing"
        out.append((says, {"live": None}, (d.last or 0,)))
    change = ("roll back to the last snapshot that can be read, or bring the named files back",)
    return [
        Finding(
            "X1", "metadata does not add up", "error", "proven", {"table": d.table}, evidence, says, change, "", ids
        )
        for says, evidence, ids in out
    ]


def unexplained(found: Case, findings: list[Finding]) -> list[Finding]:
    """X2: buckets beyond every limit although no diagnosis gives a warning."""
    d, limits = found.model.debt, found.limits
    if d.buckets is None or limits is None or any(at_least(f.severity, "warn") for f in findings):
        return []
    if limits.write_only and not overdue(found.window):
        return []  # a compacting job between two of its runs: how often it runs is its owner's choice
    scope = {"table": d.table}
    ids = () if d.last is None else (d.last,)
    if d.buckets.at_stop:
        worst = max(t.runs for t in d.buckets.top)
        says = (
            f"{_n(d.buckets.at_stop, 'bucket')} over {limits.stop_trigger} sorted runs, where writers wait "
            f"(the worst has {worst:,}), and no diagnosis says why"
        )
        evidence = {"buckets_over_stop": d.buckets.at_stop, "most_runs": worst, "stop_trigger": limits.stop_trigger}
        return [_backlog(scope, evidence, says, limits, ids)]
    if not limits.primary_key and d.buckets.max_small >= _ROUNDS * limits.min_file_num:
        says = f"{d.buckets.max_small:,} small files in one bucket, where {limits.min_file_num} are enough to compact"
        evidence = {"small_files": d.buckets.max_small, "min_file_num": limits.min_file_num}
        return [_backlog(scope, evidence, says, limits, ids)]
    return []


def _backlog(
    scope: Mapping[str, str | int], evidence: dict[str, Any], says: str, limits: Limits, ids: tuple[int, ...]
) -> Finding:
    who = "a dedicated compaction" if limits.write_only else "compaction"
    return Finding(
        "X2", "backlog without a known cause", "error", "consistent with", scope, evidence, says,
        (f"run {who} now, then look why none came",), "reads open fewer files", ids,
    )  # fmt: skip
