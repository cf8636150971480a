# SPDX-License-Identifier: Apache-2.0
"""D16: the job that writes the table starts again and again.

Identifiers that fall back or are left out tell a restart, but a checkpoint without rows leaves one out as well. Then
the clock goes on at the job's pace and the next commit brings the usual rows; after a restart time is lost, or the rows
of the time that was lost come at once. Flink calls a job stable that ran an hour without failing
(`restart-strategy.exponential-delay.reset-backoff-threshold`): restarts nearer to each other are a loop. Agrees with:
CommitterOperator (2.0.0), Flink 2.0.1. Invariant: one restart, and a writer that leaves empty checkpoints out, is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from shoal.doctor.checkpoints import bursts, writer_of_job, writers_of
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding
from shoal.doctor.report import brief
from shoal.doctor.window import SnapshotFacts, Window

NAME = "restart loops"
_LOOP = 3  # restarts
_STABLE_MS = 3_600_000
_STABLE_CHECKPOINTS = 20
_LATE = 0.5  # of an interval: time lost beyond what the missing identifiers take
_DRIFT = 0.02  # by which a pace is not known better over a long pause
_BACKLOG = 0.6  # of the rows of the time without commits
_MORE = 1.8  # times the usual rows


@dataclass(frozen=True, slots=True)
class _Break:
    """A place where a job began anew."""

    snapshot: int
    time_ms: int
    lost_ms: int  # beyond the usual interval
    what: str  # gap, fallback, new user, burst
    user: str


def restart_loop(case: Case) -> Iterator[Finding]:
    """Restarts that follow each other sooner than a job that runs well restarts at all."""
    window = case.window
    pace = _pace(window.steps)
    found = _breaks(case)
    near = max(_STABLE_MS, _STABLE_CHECKPOINTS * (pace or 0))
    loop = _chain(found, near)
    restored = None if case.job is None else case.job.counts.get("restored")
    told = _told_by_flink(case, near)
    if len(loop) < _LOOP and not told:
        if found or restored:
            last = found[-1] if found else None
            times = max(len(found), restored or 0)
            yield Finding(
                "D16", NAME, "info", "consistent with",
                {"table": window.name or window.table, **({"user": last.user} if last else {})},
                {"restarts": len(found), "restored": restored},
                f"the job began anew {times} time{'s' if times > 1 else ''}, which is no loop",
                (), "", tuple(b.snapshot for b in found[-3:]),
            )  # fmt: skip
        return
    span = loop[-1].time_ms - loop[0].time_ms if loop else 0
    lost = sum(b.lost_ms for b in loop)
    every = span / (len(loop) - 1) if len(loop) > 1 else None
    kinds = sorted({b.what for b in loop})
    failed = None if case.job is None else case.job.counts.get("failed")
    count = max(len(loop), restored or 0)
    pace_text = "" if every is None else f", one every {brief(every / 60_000)} min"
    seen = f" (seen as: {', '.join(kinds)})" if kinds else ""
    by_flink = "" if not told else f"; Flink counts {restored} restores"
    users = sorted({b.user for b in loop})
    who = {"user": users[0] if len(users) == 1 else f"{len(users)} users"} if users else {}
    minutes = None if every is None else round(every / 60_000, 2)
    yield Finding(
        "D16", NAME, "error" if told or len(loop) >= 2 * _LOOP else "warn",
        "supported" if told or any(b.what != "burst" for b in loop) else "consistent with",
        {"table": window.name or window.table, **who},
        {"restarts": len(loop), "restored": restored, "failed_checkpoints": failed,
         "lost_minutes": round(lost / 60_000, 2), "minutes_between": minutes, "seen_as": tuple(kinds)},
        f"the job began anew {count} times{pace_text}{seen}{by_flink}"
        + (f"; {brief(lost / 60_000)} min without commits" if lost else ""),
        ("find the failure first: the job's exceptions (GET /jobs/:id/exceptions), memory, checkpoint timeouts",
         "then look at the table again: numbers of its debt are those of a job that does not run"),
        f"commits come every {brief(pace / 1000)} s without breaks" if pace else "commits come without breaks",
        tuple(b.snapshot for b in loop[-5:]),
    )  # fmt: skip


def _told_by_flink(case: Case, near: float) -> bool:
    job = case.job
    if job is None or job.counts.get("restored", 0) < _LOOP:
        return False
    if job.started_ms is None:
        return True
    ran = max((c.trigger_ms for c in job.checkpoints), default=case.now_ms) - job.started_ms
    return ran / job.counts["restored"] < near


def _chain(found: Sequence[_Break], near: float) -> list[_Break]:
    """The longest run of breaks that are near to each other; of two equally long ones the later."""
    best: list[_Break] = []
    run: list[_Break] = []
    for b in found:
        # how long it ran in between: the time that was lost before it ran again is none of it
        run = [*run, b] if run and b.time_ms - b.lost_ms - run[-1].time_ms < near else [b]
        if len(run) >= len(best):
            best = run
    return best


def _pace(steps: Sequence[SnapshotFacts]) -> float | None:
    """Milliseconds from one checkpoint to the next, of the writer with the most."""
    own = max(writers_of(steps).values(), key=len, default=[])
    gaps = [(b.time_ms - a.time_ms) / (b.identifier - a.identifier)
            for a, b in pairwise(_firsts(own)) if b.identifier > a.identifier]  # fmt: skip
    return median(gaps) if gaps else None


def _firsts(own: Sequence[SnapshotFacts]) -> list[SnapshotFacts]:
    """The first snapshot of each run of one identifier."""
    return [s for i, s in enumerate(own) if i == 0 or s.identifier != own[i - 1].identifier]


def _breaks(case: Case) -> list[_Break]:
    window = case.window
    calm = None  # a writer of which Flink says that it was never restored
    if case.job is not None and case.job.counts.get("restored") == 0:
        calm = writer_of_job(writers_of(window.steps), case.job)
    found = [b for user, own in writers_of(window.steps).items() if user != calm for b in _of_writer(user, own, window)]
    found += _of_successors(window.steps)
    taken = {b.snapshot for b in found}
    for b in bursts(window.steps):
        if len(b.snapshots) > 2 and not taken.intersection(b.snapshots) and b.user != calm:
            found.append(_Break(b.snapshots[0], b.time_ms, 0, "burst", b.user))
    return sorted(found, key=lambda b: b.snapshot)


def _of_writer(user: str, own: Sequence[SnapshotFacts], window: Window) -> Iterator[_Break]:
    """Where one writer's identifiers fall back, or are left out in a way that empty checkpoints don't explain."""
    firsts = _firsts(own)
    pairs = list(pairwise(firsts))
    paces = [(b.time_ms - a.time_ms) / (b.identifier - a.identifier) for a, b in pairs if b.identifier > a.identifier]
    if not paces:
        return
    pace = median(paces)
    rows = [s.delta_records for s in firsts if s.delta_records]
    usual = median(rows) if rows else 0
    backlogs: list[_Break] = []
    gaps = 0
    for a, b in pairs:
        passed, step = b.time_ms - a.time_ms, b.identifier - a.identifier
        if step < 0:
            yield _Break(b.id, b.time_ms, round(max(passed - pace, 0)), "fallback", user)
        elif step > 1:
            gaps += 1
            came = b.delta_records or 0
            found = _Break(b.id, b.time_ms, round(max(passed - pace, 0)), "gap", user)
            if passed - step * pace > max(_LATE * pace, _DRIFT * passed, 1000):
                yield found
            elif usual > 0 and came >= _MORE * usual and came >= _BACKLOG * usual * passed / max(pace, 1):
                backlogs.append(found)
    # A table that is quiet at times has more rows after a gap now and then; after restarts they always come.
    if 2 * len(backlogs) > gaps:
        yield from backlogs


def _of_successors(steps: Sequence[SnapshotFacts]) -> Iterator[_Break]:
    """Writers that follow each other, each from low identifiers on: a job that is started anew without its state."""
    spans = []
    for user, own in writers_of(steps).items():
        firsts = [s for s in _firsts(own) if s.kind == "APPEND"]
        if len(firsts) > 1:  # one commit alone is a job of one go
            spans.append((own[0], own[-1], len(firsts), user))
    spans.sort(key=lambda s: s[0].id)
    for (_, end, *_), (begin, *_, user) in pairwise(spans):
        if begin.id > end.id and begin.identifier <= end.identifier:
            yield _Break(begin.id, begin.time_ms, begin.time_ms - end.time_ms, "new user", user)
