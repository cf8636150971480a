# SPDX-License-Identifier: Apache-2.0
"""The rhythm in which buckets pay their debt: drains, full compactions, and when the next full one is due.

A drain is a COMPACT commit that takes level-0 files out of a bucket (in a table without a primary key: one that wrote
files of the bucket together). A pick takes all level-0 files there are; what the writer flushed until the result was
collected, at least one file where compaction runs beside the writer, is all that stays. A full cycle ends with a file
that comes to the highest level and leaves no other run but such flushes. Full cycles grow with the bucket: by size
amplification the next one needs as much new data as that percentage of the oldest run. They are steady when the last
two differ by less than half in time and a fifth in bytes.

Invariants: where no steady full cycles were seen, unsteady ones or drains stand for them and the result says so
(`provisional`); series at equal phase hold values just after (troughs) and just before (crests) drains, never what lies
between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.debt import Limits, in_tree
from shoal.doctor.report import brief, size_text
from shoal.doctor.states import States

if TYPE_CHECKING:
    from shoal.doctor.states import Bools, Floats, Ints

_SAME_TIME, _SAME_BYTES = 0.5, 0.2
_ENOUGH = 0.9  # of the buckets must have steady full cycles before the table's cycle is one of them


@dataclass(frozen=True, slots=True)
class NextFull:
    """When a bucket is compacted in full again, at the rate that data comes now. From and to: old keys, new keys."""

    gigabytes: float  # of new data, by what its last cycle made of new data
    least_gigabytes: float  # if none of it replaces what came since the last one
    hours: float | None  # None while no data comes

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"gigabytes": self.gigabytes, "least_gigabytes": self.least_gigabytes, "hours": self.hours}

    def __str__(self) -> str:
        when = ""
        if self.hours is not None:
            when = f" / {brief(self.hours)} h" if self.hours >= 2 else f" / {brief(60 * self.hours)} min"
        return f"next full compaction after about {size_text(1e9 * self.gigabytes)}{when}"


@dataclass(frozen=True, slots=True)
class BucketCycles:
    """One bucket's drains and full cycles, as positions of steps."""

    bucket: int  # index in the states
    partition: str
    number: int
    drains: tuple[int, ...]
    fulls: tuple[int, ...]
    steady: bool
    next_full: NextFull | None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "partition": self.partition, "bucket": self.number, "drains": len(self.drains), "fulls": len(self.fulls),
            "steady": self.steady, "next_full": None if self.next_full is None else self.next_full.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cycles:
    """The cycles of all buckets. `drain` and `full` are moves of the states; arrays stay out of JSON."""

    drain: Bools
    full: Bools
    drains: int
    fulls: int
    drained_buckets: int  # that drained at least twice
    steady_buckets: int
    active_buckets: int  # that got a new file
    minutes: float | None  # of a cycle: median of the last full cycles, else of the times between drains
    provisional: bool
    next_full: NextFull | None  # of the bucket that waits longest: until then the window holds no whole set of cycles

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "drains": self.drains, "fulls": self.fulls, "drained_buckets": self.drained_buckets,
            "steady_buckets": self.steady_buckets, "active_buckets": self.active_buckets,
            "cycle_minutes": self.minutes, "provisional": self.provisional,
            "next_full": None if self.next_full is None else self.next_full.to_dict(),
        }  # fmt: skip


def cycles(states: States, limits: Limits) -> Cycles:
    """Find the drains and full cycles of every bucket."""
    import numpy as np

    moves, treed = states.moves, in_tree(states, limits)
    compact = np.array([s.kind == "COMPACT" for s in states.steps], np.bool_)
    by_compact = compact[moves.at] if len(moves) else np.zeros(0, np.bool_)
    in_a_tree = treed[moves.bucket]
    taken = (moves.done["removal"] > 0) | (moves.done["upgrade"] > 0)
    emptied = taken & (moves.before["level0"] > moves.after["level0"])
    drain = by_compact & np.where(in_a_tree, emptied, moves.done["rewrite"] > 0)
    full = in_a_tree & (moves.done["to_top"] > 0) & (moves.after["runs"] - moves.after["level0"] == 1)
    steady, full_minutes = _steady(states, full)
    active = np.unique(moves.bucket[moves.done["flush"] > 0])
    drained = np.bincount(moves.bucket[drain], minlength=states.count) >= 2
    enough = len(active) > 0 and int(steady[active].sum()) >= _ENOUGH * len(active)
    lengths = full_minutes if enough else _gaps(states, full)
    lengths = lengths if len(lengths) else _gaps(states, drain)
    return Cycles(
        drain, full, int(drain.sum()), int(full.sum()), int(drained.sum()), int(steady.sum()), len(active),
        float(np.median(lengths)) if len(lengths) else None, not enough, _latest(states, limits, full, active),
    )  # fmt: skip


def of_bucket(states: States, limits: Limits, found: Cycles, bucket: int) -> BucketCycles:
    """One bucket's part of the cycles."""
    span = states.span(bucket)
    at = states.moves.at[span]
    fulls = tuple(at[found.full[span]].tolist())
    return BucketCycles(
        bucket, states.partitions[int(states.partition_of[bucket])].rstrip("/"), int(states.number[bucket]),
        tuple(at[found.drain[span]].tolist()), fulls, _is_steady(states, bucket, fulls),
        next_full(states, limits, bucket, fulls),
    )  # fmt: skip


def _gaps(states: States, chosen: Bools) -> Floats:
    """Minutes between two chosen moves of one bucket, over all buckets."""
    import numpy as np

    bucket, time = states.moves.bucket[chosen], states.times_ms[states.moves.at[chosen]]
    same = bucket[1:] == bucket[:-1]
    return (np.diff(time)[same] / 60_000).astype(np.float64)


def _steady(states: States, full: Bools) -> tuple[Bools, Floats]:
    """Which buckets have steady full cycles, and the minutes of the last cycle of each that has."""
    import numpy as np

    moves = states.moves
    steady = np.zeros(states.count, np.bool_)
    where = np.flatnonzero(full)
    bucket = moves.bucket[where]
    if len(where) < 3:
        return steady, np.zeros(0)
    last = np.flatnonzero(np.r_[bucket[1:] != bucket[:-1], True])
    last = last[last >= 2]
    last = last[bucket[last] == bucket[last - 2]]  # three ends make two cycles
    time, size = states.times_ms[moves.at[where]], moves.after["bytes"][where]
    newer, older = time[last] - time[last - 1], time[last - 1] - time[last - 2]
    alike = np.abs(newer - older) < _SAME_TIME * np.maximum(newer, older)
    alike &= np.abs(size[last] - size[last - 1]) < _SAME_BYTES * np.maximum(size[last], size[last - 1])
    steady[bucket[last[alike]]] = True
    return steady, (newer[alike] / 60_000).astype(np.float64)


def _is_steady(states: States, bucket: int, fulls: tuple[int, ...]) -> bool:
    if len(fulls) < 3:
        return False
    a, b, c = (int(states.times_ms[i]) for i in fulls[-3:])
    series = states.series(bucket, "bytes")
    before, after = int(series[fulls[-2]]), int(series[fulls[-1]])
    alike = abs((c - b) - (b - a)) < _SAME_TIME * max(c - b, b - a)
    return alike and abs(after - before) < _SAME_BYTES * max(after, before)


def _latest(states: States, limits: Limits, full: Bools, active: Ints) -> NextFull | None:
    """The longest wait among the active buckets."""
    moves = states.moves
    found: NextFull | None = None
    for bucket in active.tolist()[:_ASKED]:
        span = states.span(bucket)
        one = next_full(states, limits, bucket, tuple(moves.at[span][full[span]].tolist()))
        if one is not None and (found is None or one.gigabytes > found.gigabytes):
            found = one
    return found


_ASKED = 100  # buckets that are asked one by one


def next_full(states: States, limits: Limits, bucket: int, fulls: tuple[int, ...]) -> NextFull | None:
    """What must come before the newer runs are `size-amplification` percent of the oldest one.

    Newer data that replaces itself counts once: the share that counted since the last full compaction is taken on.
    None for a bucket without a run above level 0, for one that is no merge tree, and where nobody compacts.
    """
    mine = states.cell_bucket == bucket
    held = mine & (states.cell_level > 0) & (states.cell_end["files"] > 0)
    if not held.any() or not in_tree(states, limits)[bucket] or limits.write_only:
        return None
    oldest_level = int(states.cell_level[held].max())
    size = int(states.cell_end["bytes"][mine].sum())
    oldest = int(states.cell_end["bytes"][mine & (states.cell_level == oldest_level)].sum())
    newer = size - oldest
    missing = max(limits.size_amplification / 100 * oldest - newer, 0.0)
    span = states.span(bucket)
    at, flushed = states.moves.at[span], states.moves.done["flush_bytes"][span]
    since = int(flushed[at > fulls[-1]].sum() if fulls else flushed.sum())
    counted = min(newer / since, 1.0) if since and newer and fulls else 1.0
    minutes = (int(states.times_ms[-1]) - int(states.times_ms[0])) / 60_000
    rate = int(flushed.sum()) / minutes if minutes > 0 else 0.0
    needed = missing / counted
    return NextFull(needed / 1e9, missing / 1e9, needed / rate / 60 if rate else None)


# ---- series at equal phase -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """Values over minutes, taken at one phase of a cycle."""

    minutes: Floats
    values: Floats
    basis: str  # "troughs", "crests", or "checkpoint ends" where no bucket drained often enough


def checkpoint_ends(states: States) -> Ints:
    """Positions of the last snapshot of each commit of data: what is there when a compaction had its turn."""
    import numpy as np

    brings = np.array([s.kind not in ("COMPACT", "ANALYZE") for s in states.steps], np.bool_)
    return np.flatnonzero(np.r_[brings[1:], True] if len(brings) else brings)


def bucket_phase(states: States, found: Cycles, bucket: int, name: str, *, crests: bool = False) -> Phase:
    """A column of one bucket just after its drains, or just before them."""
    import numpy as np

    span = states.span(bucket)
    chosen = found.drain[span]
    if int(chosen.sum()) < 2:
        ends = checkpoint_ends(states)
        return Phase(_minutes(states, ends), states.series(bucket, name)[ends].astype(np.float64), "checkpoint ends")
    values = (states.moves.before if crests else states.moves.after)[name][span][chosen]
    at = states.moves.at[span][chosen]
    return Phase(_minutes(states, at), values.astype(np.float64), "crests" if crests else "troughs")


def table_phase(
    states: States, found: Cycles, before: Ints, after: Ints, start: Ints, *, crests: bool = False
) -> Phase:
    """A sum over buckets at equal phase: of each bucket what it had at its last drain.

    `before` and `after` are the value of its bucket at each move, `start` that of each bucket before the first. Buckets
    that never drain count as they are; the series begins when all that were there at the start and drain have drained.
    """
    import numpy as np

    moves, n = states.moves, len(states.steps)
    ends = checkpoint_ends(states)
    if found.drains < 2 or found.drained_buckets == 0:
        whole = states.total(before, after, int(start.sum()))
        return Phase(_minutes(states, ends), whole[ends].astype(np.float64), "checkpoint ends")
    drains = np.bincount(moves.bucket[found.drain], minlength=states.count) > 0
    counts = np.where(drains[moves.bucket], found.drain, True)
    key, at, values = moves.bucket[counts], moves.at[counts], (before if crests else after)[counts]
    # Buckets that never drain count as they are, from the start; the others from their first drain on.
    first = np.r_[True, key[1:] != key[:-1]]
    since = np.where(drains, 0, start)
    steps = values - np.where(first, since[key], np.r_[0, values[:-1]])
    change = np.zeros(n, np.int64)
    np.add.at(change, at, steps)
    series = int(since.sum()) + np.cumsum(change)
    born = np.full(states.count, n)
    np.minimum.at(born, moves.bucket, moves.at)
    early = (born[key] < n // 4) & drains[key] & first
    begin = int(at[early].max()) if early.any() else 0
    chosen = np.unique(at[drains[key] & (at >= min(begin, n // 2))])
    return Phase(_minutes(states, chosen), series[chosen].astype(np.float64), "crests" if crests else "troughs")


def _minutes(states: States, at: Any) -> Floats:  # an array of positions
    import numpy as np

    if not len(at):
        return np.zeros(0)
    return ((states.times_ms[at] - states.times_ms[0]) / 60_000).astype(np.float64)
