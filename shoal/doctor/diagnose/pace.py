# SPDX-License-Identifier: Apache-2.0
"""The rhythm that a table has now, and what one of its commits makes.

Now is the newest stretch in which the busiest writer's checkpoint clock stayed as it is. Files of this stretch are
counted by class, so that a diagnosis can say which share of them another rhythm, another number of buckets, or no
changelog would not make. Invariants: a pace is counted from the window alone; the clock is told by commit identifiers
where these count checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.debt import data_commits
from shoal.doctor.segments import Segment, Segments
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import CHANGELOG, FLUSH, METADATA, NOTHING, REWRITE, Window

if TYPE_CHECKING:
    from shoal.doctor.states import Bools, Ints

# Stretches whose intervals differ by less are of one clock: checkpoints are seldom on the dot.
_SAME_CLOCK = 1.25
# Commits from which on a rhythm is one: as many as a stretch needs. A table that lived as long, but keeps fewer, shows
# enough with the second: the ten snapshots that Paimon keeps at least are five commits with their compactions.
ENOUGH, _OF_MANY = 20, 5


@dataclass(frozen=True, slots=True)
class Pace:
    """One stretch of commits. Means are per commit of data, with the COMPACT snapshots after it."""

    first: int  # snapshot ids
    last: int
    commits: int
    interval_s: float  # checkpoint clock of the busiest writer
    streaming: bool  # its identifiers count checkpoints
    flush_bytes: float  # median size of a new file
    flush_rows: float  # median rows of a new file
    flushed: float  # new files a commit
    rewritten: float
    changelog: float
    metadata: float  # with one LATEST hint a snapshot
    commits_per_day: float  # of all writers, at this clock
    lived: float  # commits of the table's whole life, these among them
    partitions: float  # that get a new file
    buckets: float  # that get a new file, in the partition where these are most; median

    @property
    def objects(self) -> float:
        """All that a commit writes."""
        return self.flushed + self.rewritten + self.changelog + self.metadata

    @property
    def telling(self) -> bool:
        """Whether it is long enough for what each commit shows alike: a table just made is not judged."""
        return enough(self.commits, self.lived)

    def objects_with(self, *, buckets: float) -> float:
        """Objects a commit of one partition, as it is (`buckets` = 1) or with its files divided by `buckets`."""
        return (self.objects - self.metadata) / max(self.partitions, 1.0) / buckets + self.metadata


def enough(commits: float, lived: float) -> bool:
    """Whether so many commits, of a table that lived through `lived` of them, tell what each commit shows alike."""
    return commits >= ENOUGH or (commits >= _OF_MANY and lived >= ENOUGH)


def interval_of(segment: Segment) -> float | None:
    """Seconds of checkpoint clock of a stretch."""
    return segment.medians.get("commit_interval_s")


def of_one_clock(cut: Segments) -> tuple[Segment, ...]:
    """The newest stretches that share the clock of the last one."""
    mine: list[Segment] = []
    now = interval_of(cut.segments[-1]) if cut.segments else None
    for segment in reversed(cut.segments):
        its = interval_of(segment)
        if now is None or its is None or not 1 / _SAME_CLOCK <= its / max(now, 1e-9) <= _SAME_CLOCK:
            break
        mine.append(segment)
    return tuple(reversed(mine))


def slower_before(cut: Segments) -> tuple[Segment, ...]:
    """The stretches right before the present clock, if theirs was slower."""
    mine = of_one_clock(cut)
    rest = cut.segments[: len(cut.segments) - len(mine)]
    if not mine or not rest:
        return ()
    now, before = interval_of(mine[-1]), interval_of(rest[-1])
    if now is None or before is None or before <= now:
        return ()
    return of_one_clock(Segments(cut.user, cut.streaming, rest, ()))


def pace(window: Window, cut: Segments) -> Pace | None:
    """The pace of now; None where no interval can be told or nothing was flushed."""
    import numpy as np

    mine = of_one_clock(cut)
    if not mine:
        return None
    interval = float(np.median(np.repeat([interval_of(s) or 0.0 for s in mine], [s.commits for s in mine])))
    first, last = mine[0].first, max(mine[-1].last, window.steps[-1].id)
    steps = [s for s in window.steps if first <= s.id <= last]
    brings = data_commits(steps)
    commits, own = len(brings), sum(s.user == cut.user for s in brings)
    flows = window.flows
    ids = ints(flows, "snapshot")
    inside = (ids >= first) & (ids <= last) & (ints(flows, "change") > 0)
    flushes = inside & class_is(flows, FLUSH)
    files = ints(flows, "files")
    if not commits or not files[flushes].sum():
        return None

    def a_commit(name: str) -> float:
        return float(files[inside & class_is(flows, name)].sum()) / commits

    metadata = sum(s.wrote.get(k, NOTHING).files for s in steps for k in METADATA) + len(steps)
    partitions, buckets = _active(flows, flushes)
    return Pace(
        first, last, commits, interval, cut.streaming, median_each(ints(flows, "bytes"), files, flushes),
        median_each(ints(flows, "rows"), files, flushes), a_commit(FLUSH), a_commit(REWRITE), a_commit(CHANGELOG),
        metadata / commits, 86_400 / interval * commits / max(own, 1) if interval > 0 else 0.0,
        steps[-1].id * commits / len(steps), partitions, buckets,
    )  # fmt: skip


def median_each(values: Ints, files: Ints, chosen: Bools) -> float:
    """Median of a value over files that are known in groups, each at its group's mean."""
    import numpy as np

    n = files[chosen]
    return float(np.median(np.repeat(values[chosen] / np.maximum(n, 1), n))) if n.sum() else 0.0


def partition_codes(flows: Any) -> tuple[list[str], Ints]:  # an Arrow table with a column `partition`
    """Partitions by name, and the place of each row's in them."""
    import numpy as np

    coded = flows.column("partition").combine_chunks().dictionary_encode()
    names = coded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: names[i])
    place = np.zeros(max(len(names), 1), np.int64)
    place[order] = np.arange(len(names))
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
    return [names[i] for i in order], place[codes] if len(names) else codes


def _active(flows: Any, flushes: Bools) -> tuple[float, float]:  # an Arrow table
    """Mean partitions a commit that get new files; median over commits of the most buckets in one of them."""
    import numpy as np

    names, partition = partition_codes(flows)
    snapshots, at = np.unique(ints(flows, "snapshot")[flushes], return_inverse=True)
    numbers, number = np.unique(ints(flows, "bucket")[flushes], return_inverse=True)
    place = at * len(names) + partition[flushes]
    active = np.unique(place * len(numbers) + number)  # one for each bucket and snapshot
    pairs, buckets = np.unique(active // len(numbers), return_counts=True)
    starts = np.flatnonzero(np.r_[True, np.diff(pairs // len(names)) > 0])
    most = np.maximum.reduceat(buckets, starts)
    return float(len(pairs) / len(snapshots)), float(np.median(most))
