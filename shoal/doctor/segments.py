# SPDX-License-Identifier: Apache-2.0
"""Where the rhythm of a table changed: its commits cut into stretches that are alike.

A cut is an exact minimum of the sum of absolute deviations from each stretch's median (L1) plus a penalty of
3 ln n a cut: what PELT finds. PELT cannot prune where nothing changes, so the minimum is found by functional pruning:
the cheapest open stretch for every level that a median can have, one vector operation a commit.

Four signals are cut: commit interval, flushed files a minute, files a commit, bytes a file. The interval comes from
commit identifiers where a streaming job counts checkpoints: snapshots of failed checkpoints are committed in a burst
with the next one, and their times say nothing about the cadence.

Of the cuts, those between medians that differ by less than a tenth are dropped.

Invariants: every stretch has at least `SHORTEST` commits; times never go back; the sum of costs is the least possible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shoal.doctor.states import class_is, ints, monotonic
from shoal.doctor.window import FLUSH, SnapshotFacts, Window

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.states import Floats, Ints

SHORTEST = 20  # commits
SIGNALS = ("commit_interval_s", "flush_per_minute", "files_per_commit", "bytes_per_file")
BATCH = (1 << 63) - 1  # the identifier of every batch commit
_FELT = 1.1  # times as much, or as little
_AROUND = 20  # commits on each side that say what an interval is usually
_BURST, _PAUSE = 0.2, 2.0  # of the usual interval: shorter is a burst, when a longer pause came before it


@dataclass(frozen=True, slots=True)
class Change:
    """One signal moved from one level to another, first seen at a snapshot."""

    signal: str
    snapshot: int
    time_ms: int
    before: float  # medians of the stretches on both sides
    after: float

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "signal": self.signal, "snapshot": self.snapshot, "time_ms": self.time_ms, "before": self.before,
            "after": self.after, "ratio": self.ratio,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """Commits between two changes, with the median of each signal."""

    first: int  # snapshot ids
    last: int
    first_ms: int
    last_ms: int
    commits: int
    medians: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "first": self.first, "last": self.last, "first_ms": self.first_ms, "last_ms": self.last_ms,
            "commits": self.commits, "medians": dict(self.medians),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segments:
    """The stretches of one user's commits, the one with the most, and what changed between them."""

    user: str | None
    streaming: bool  # the user's identifiers count checkpoints
    segments: tuple[Segment, ...]
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "user": self.user, "streaming": self.streaming, "segments": [s.to_dict() for s in self.segments],
            "changes": [c.to_dict() for c in self.changes],
        }  # fmt: skip


def segments(window: Window, *, shortest: int = SHORTEST) -> Segments:
    """Cut the commits of the busiest user."""
    import numpy as np

    commits = [s for s in window.steps if s.kind not in ("COMPACT", "ANALYZE")]
    if not commits:
        return Segments(None, False, (), ())
    user = Counter(s.user for s in commits).most_common(1)[0][0]
    mine = [s for s in commits if s.user == user]
    signals = signals_of(window.flows, mine)
    changes: list[Change] = []
    cuts: set[int] = set()
    for name, values in signals.items():
        known = np.flatnonzero(np.isfinite(values))
        found = felt(values[known], change_points(np.log1p(values[known]), shortest=shortest))
        edges = [0, *found, len(known)]
        medians = [float(np.median(values[known[a:b]])) if b > a else 0.0 for a, b in pairwise(edges)]
        for k, cut in enumerate(found):
            step = mine[int(known[cut])]
            changes.append(Change(name, step.id, step.time_ms, medians[k], medians[k + 1]))
            cuts.add(int(known[cut]))
    changes.sort(key=lambda c: (c.snapshot, SIGNALS.index(c.signal)))
    edges = [0, *_apart(sorted(cuts), len(mine), shortest), len(mine)]
    cut_up = tuple(_segment(mine[a:b], {n: v[a:b] for n, v in signals.items()}) for a, b in pairwise(edges))
    return Segments(user, is_streaming(mine), cut_up, tuple(changes))


def felt(values: Floats, cuts: list[int], *, least: float = _FELT) -> list[int]:
    """The cuts between medians that differ by a tenth or by `least`: a drift is not yet another rhythm."""
    import numpy as np

    while cuts:
        edges = [0, *cuts, len(values)]
        medians = np.log1p(np.array([np.median(values[a:b]) for a, b in pairwise(edges)]))
        steps = np.abs(np.diff(medians))
        weakest = int(np.argmin(steps))
        if steps[weakest] >= math.log(least):
            break
        cuts = cuts[:weakest] + cuts[weakest + 1 :]
    return cuts


def _apart(cuts: list[int], n: int, shortest: int) -> list[int]:
    """Cuts of several signals at nearly one place are one cut: the earliest of each cluster."""
    kept: list[int] = []
    for cut in cuts:
        if (not kept or cut - kept[-1] >= shortest) and shortest <= cut <= n - shortest:
            kept.append(cut)
    return kept


def _segment(steps: Sequence[SnapshotFacts], signals: Mapping[str, Floats]) -> Segment:
    import numpy as np

    medians = {n: float(np.median(v[np.isfinite(v)])) for n, v in signals.items() if np.isfinite(v).any()}
    return Segment(steps[0].id, steps[-1].id, steps[0].time_ms, steps[-1].time_ms, len(steps), medians)


def signals_of(flows: pa.Table, commits: Sequence[SnapshotFacts]) -> dict[str, Floats]:
    """The signals at each commit of one user; not a number where a commit has none."""
    import numpy as np

    ids = np.array([s.id for s in commits], np.int64)
    mine = class_is(flows, FLUSH)
    snapshot = ints(flows, "snapshot")[mine]
    at = np.minimum(np.searchsorted(ids, snapshot), max(len(ids) - 1, 0))
    of_user = ids[at] == snapshot if len(ids) else np.zeros(0, np.bool_)
    files = np.bincount(at[of_user], ints(flows, "files")[mine][of_user], len(ids))
    size = np.bincount(at[of_user], ints(flows, "bytes")[mine][of_user], len(ids))
    seconds = intervals_s(commits)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(seconds > 0, files * 60 / seconds, np.nan)
        each = np.where(files > 0, size / files, np.nan)
    return dict(zip(SIGNALS, (seconds, rate, files, each)))


def is_streaming(commits: Sequence[SnapshotFacts]) -> bool:
    """Whether the identifiers of one user count checkpoints: most go up, and are no batch's."""
    found = [s.identifier for s in commits]
    ups = sum(a < b < BATCH for a, b in pairwise(found))
    return len(found) > 1 and 2 * ups > len(found) - 1


def intervals_s(commits: Sequence[SnapshotFacts]) -> Floats:
    """Seconds of checkpoint clock before each commit of one user; not a number where none can be told."""
    import numpy as np

    times = monotonic([s.time_ms for s in commits])
    if len(commits) < 2:
        return np.full(len(commits), np.nan)
    if not is_streaming(commits):
        return np.r_[np.nan, np.diff(times) / 1000]
    # A job that ends commits once more with a batch's identifier, one that starts anew counts from the start again:
    # such a commit is taken for the next checkpoint. Snapshots that share an identifier are parts of one.
    given = np.array([s.identifier for s in commits], np.int64)
    steps = np.where((given[1:] < given[:-1]) | (given[1:] == BATCH), 1, given[1:] - given[:-1])
    steps = np.where(given[:-1] == BATCH, 1, steps)
    gaps = np.diff(_spread(times, np.r_[0, np.cumsum(steps)])) / 1000
    return np.r_[np.nan, np.where(steps > 0, gaps / np.maximum(steps, 1), np.nan)]


def _spread(times: Ints, counted: Ints) -> Floats:
    """Times at which commits would have come without failed checkpoints: a burst fills the pause before it."""
    import numpy as np

    n = len(times)
    out = times.astype(np.float64)
    low, high = np.maximum(np.arange(n) - _AROUND, 0), np.minimum(np.arange(n) + _AROUND, n - 1)
    usual = (out[high] - out[low]) / np.maximum(counted[high] - counted[low], 1)
    step = np.maximum(np.diff(counted), 1)
    gap = np.diff(out)
    dense = gap < _BURST * usual[1:] * step
    # A burst is a run of dense gaps that ends, behind a pause that its checkpoints filled.
    edge = np.flatnonzero(np.diff(np.r_[False, dense, False].astype(np.int8)))
    for first, last in zip(edge[::2].tolist(), edge[1::2].tolist()):
        pause = first - 1  # the gap before the run
        if pause < 0 or last - first >= SHORTEST or gap[pause] <= _PAUSE * usual[first]:
            continue
        inside = slice(pause, last + 1)  # commits from the one before the pause to the burst's last
        share = (counted[inside] - counted[pause]) / max(int(counted[last] - counted[pause]), 1)
        out[inside] = times[pause] + share * (times[last] - times[pause])
    return np.maximum.accumulate(out)


# ---- the exact minimum -----------------------------------------------------------------------------------


def change_points(values: Any, *, shortest: int = SHORTEST, penalty: float | None = None) -> list[int]:
    """Where new stretches begin, for values in units of their own noise; penalty 3 ln n unless given."""
    import numpy as np

    y = np.asarray(values, np.float64)
    if len(y) < 2 * shortest:
        return []
    scale = noise(y)
    if scale == 0:
        return []  # all values are one
    return cheapest_cuts(y / scale, shortest, 3 * math.log(len(y)) if penalty is None else penalty)


def noise(y: Floats) -> float:
    """The mean absolute deviation within stretches, told from the differences of neighbours."""
    import numpy as np

    steps = np.abs(np.diff(y))
    # Of two values with Laplace noise b the difference has median 1.1461932 b; more than half may be equal.
    middle = float(np.median(steps)) / 1.1461932
    least = 1e-9 * float(np.max(np.abs(y)))
    return middle if middle > least else float(steps.mean()) / 1.5 if steps.max() > least else 0.0


def cheapest_cuts(y: Floats, shortest: int, penalty: float) -> list[int]:
    """The cuts with the least sum of L1 costs and penalties; a stretch has at least `shortest` values."""
    import numpy as np

    n = len(y)
    levels = np.unique(y)  # a median can always be a value
    best = np.full(n + 1, np.inf)  # of the first t values
    best[0] = -penalty
    opened = np.zeros(n + 1, np.int64)  # where the last stretch of the best begins
    open_cost = np.full(len(levels), np.inf)  # of the cheapest stretch that may end here, by level
    open_since = np.zeros(len(levels), np.int64)
    young = np.zeros(len(levels))  # cost of the last `shortest` values, by level
    away, fresh, better = np.empty(len(levels)), np.empty(len(levels)), np.empty(len(levels), np.bool_)
    for t in range(1, n + 1):
        np.abs(np.subtract(levels, y[t - 1], out=away), out=away)
        young += away
        open_cost += away
        if t > shortest:
            young -= np.abs(np.subtract(levels, y[t - 1 - shortest], out=away), out=away)
        if t < shortest:
            continue
        since = t - shortest  # a stretch that began here is now long enough
        if best[since] < np.inf:
            np.add(young, best[since] + penalty, out=fresh)
            if np.less(fresh, open_cost, out=better).any():
                np.copyto(open_since, since, where=better)
                np.copyto(open_cost, fresh, where=better)
        at = int(np.argmin(open_cost))
        best[t], opened[t] = open_cost[at], open_since[at]
    cuts, t = [], n
    while (t := int(opened[t])) > 0:
        cuts.append(t)
    return cuts[::-1]
