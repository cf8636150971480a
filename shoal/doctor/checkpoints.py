# SPDX-License-Identifier: Apache-2.0
"""Snapshots and checkpoints joined: a streaming Flink sink's commit identifier is the checkpoint's id.

What was flushed for a checkpoint that failed is committed with the next one that completes, one snapshot for each id,
in a burst. So a snapshot is late by its time since the last answer to the first COMPLETED checkpoint at or after its
id, and the rhythm of a job is told by identifiers, never by the times of snapshots. Pure. Agrees with:
CommitterOperator (2.0.0), and with what Flink 2.0.1 showed. Invariant: what identifiers alone tell needs no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from shoal.doctor.flink import Checkpoint, Job
from shoal.doctor.window import SnapshotFacts

# Java commits what is no checkpoint under this identifier.
BATCH = 2**63 - 1
# Snapshots of one user nearer to each other than this share of the usual distance were committed in one go, if a commit
# takes that long at all: as many times what it takes from an APPEND to the COMPACT of the same checkpoint, which are
# committed in one go always, and this long where no table tells. A job that stood for hours has a slow usual distance.
_DENSE = 0.25
_COMMITS, _COMMIT_MS = 3.0, 1000
_LEAST_MS = 1000


@dataclass(frozen=True, slots=True)
class Joined:
    """One checkpoint of a writer with what it committed. `checkpoint` is None where Flink was not asked or forgot."""

    identifier: int
    snapshots: tuple[int, ...]
    time_ms: int  # of its first snapshot
    checkpoint: Checkpoint | None
    completed: Checkpoint | None  # the one that it was committed with
    late_ms: int | None  # first snapshot - last answer to `completed`

    @property
    def of_failed(self) -> bool | None:
        """Whether the checkpoint itself had failed; None when that is not known."""
        return None if self.checkpoint is None else self.checkpoint.status == "FAILED"


@dataclass(frozen=True, slots=True)
class Burst:
    """Checkpoints that one writer committed in one go: all but the last had failed, or waited for a restart."""

    user: str
    first: int  # identifiers
    last: int
    snapshots: tuple[int, ...]
    time_ms: int
    span_ms: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A writer that began anew: identifiers that fell back, or that leave some out."""

    user: str
    snapshot: int
    time_ms: int
    before: int
    after: int


def writers_of(steps: Sequence[SnapshotFacts]) -> dict[str, list[SnapshotFacts]]:
    """The snapshots of each user that commits checkpoints, in order."""
    found: dict[str, list[SnapshotFacts]] = {}
    for s in steps:
        if 0 <= s.identifier < BATCH and s.kind in ("APPEND", "COMPACT", "OVERWRITE"):
            found.setdefault(s.user, []).append(s)
    return {u: v for u, v in found.items() if any(s.kind == "APPEND" for s in v)}


def join(steps: Sequence[SnapshotFacts], job: Job) -> tuple[Joined, ...]:
    """The checkpoints of the writer that the job is, with their snapshots; empty when no writer fits the job."""
    writers = writers_of(steps)
    user = writer_of_job(writers, job)
    if user is None:
        return ()
    by_id = {c.id: c for c in job.checkpoints}
    completed_by = _completed_by(job.checkpoints)
    out: dict[int, list[SnapshotFacts]] = {}
    for s in writers[user]:
        out.setdefault(s.identifier, []).append(s)
    joined = []
    for identifier in sorted(out):
        first = out[identifier][0]
        completed = completed_by.get(identifier)
        late = None if completed is None or completed.ack_ms is None else first.time_ms - completed.ack_ms
        snapshots = tuple(s.id for s in out[identifier])
        joined.append(Joined(identifier, snapshots, first.time_ms, by_id.get(identifier), completed, late))
    return tuple(joined)


def _completed_by(checkpoints: Sequence[Checkpoint]) -> dict[int, Checkpoint]:
    """The first completed checkpoint from each id on. None across one that nobody saw: it may have completed."""
    found: dict[int, Checkpoint] = {}
    nearest: Checkpoint | None = None
    after: int | None = None
    for c in reversed(checkpoints):
        if c.status == "COMPLETED":
            nearest = c
        elif after != c.id + 1:
            nearest = None
        if nearest is not None:
            found[c.id] = nearest
        after = c.id
    return found


def writer_of_job(writers: dict[str, list[SnapshotFacts]], job: Job) -> str | None:
    """The user whose snapshots follow the job's completed checkpoints: the one with the most that come right after."""
    best, most = None, 0
    for user, steps in writers.items():
        times = {s.identifier: s.time_ms for s in reversed(steps)}
        fits = sum(
            1 for c in job.checkpoints
            if c.status == "COMPLETED" and c.id in times and c.ack_ms is not None
            and -_LEAST_MS <= times[c.id] - c.ack_ms < max(10 * _LEAST_MS, job.config.timeout_ms or 0)
        )  # fmt: skip
        if fits > most:
            best, most = user, fits
    return best


def bursts(steps: Sequence[SnapshotFacts]) -> tuple[Burst, ...]:
    """Where a writer committed several checkpoints in one go. Seen without Flink: consecutive ids, dense in time."""
    found = []
    for user, own in writers_of(steps).items():
        firsts: dict[int, SnapshotFacts] = {}
        for s in own:
            firsts.setdefault(s.identifier, s)
        order = list(firsts.values())
        if len(order) < 3:
            continue
        pace = rhythm_ms(order)
        if pace is None:
            continue
        near = max(_LEAST_MS // 4, min(pace * _DENSE, _one_go_ms(own)))
        groups = [[order[0]]]
        for before, s in pairwise(order):
            if s.time_ms - before.time_ms < near and s.identifier == before.identifier + 1:
                groups[-1].append(s)
            else:
                groups.append([s])
        for group in groups:
            if len(group) > 1:
                ids = tuple(s.id for s in group)
                span = group[-1].time_ms - group[0].time_ms
                found.append(Burst(user, group[0].identifier, group[-1].identifier, ids, group[0].time_ms, span))
    return tuple(sorted(found, key=lambda b: b.time_ms))


def _one_go_ms(own: Sequence[SnapshotFacts]) -> float:
    """Milliseconds at most between two snapshots that one writer commits in one go."""
    took = [b.time_ms - a.time_ms for a, b in pairwise(own) if b.identifier == a.identifier and b.kind == "COMPACT"]
    return max(_COMMITS * median(took), _COMMIT_MS) if took else _COMMIT_MS


def rhythm_ms(order: Sequence[SnapshotFacts]) -> float | None:
    """Milliseconds for each identifier, over all of one writer's checkpoints: bursts don't shorten it."""
    if len(order) < 2 or order[-1].identifier <= order[0].identifier:
        return None
    return (order[-1].time_ms - order[0].time_ms) / (order[-1].identifier - order[0].identifier)


def restarts(steps: Sequence[SnapshotFacts]) -> tuple[Restart, ...]:
    """Where identifiers of one user fell back or left some out.

    A checkpoint without rows makes no snapshot by itself, so gaps are told only for writers that commit every one.
    """
    found = []
    for user, own in writers_of(steps).items():
        jumps = [(a, b) for a, b in pairwise(own) if b.identifier != a.identifier]
        steady = sum(b.identifier == a.identifier + 1 for a, b in jumps)
        for a, b in jumps:
            back = b.identifier < a.identifier
            if back or (b.identifier > a.identifier + 1 and steady >= 0.8 * len(jumps)):
                found.append(Restart(user, b.id, b.time_ms, a.identifier, b.identifier))
    return tuple(sorted(found, key=lambda r: r.snapshot))
