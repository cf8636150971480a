# SPDX-License-Identifier: Apache-2.0
"""Which files must be merged with each other, and in how few sorted runs.

Agrees with: IntervalPartition (2.0.0), the read path of every split and the compaction task alike. Invariant: keys of
different sections never meet, so sections can be merged one by one, rewritten alone, or read in parallel; the runs of
a section are as many as the files that hold one common key, and no fewer would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from shoal.format.datafile import DataFile
from shoal.lsm.levels import Bounds, Files, Key

# Files that overlap, as sorted runs. Such a run mixes levels, so it is not a `Run`.
Section = tuple[Files, ...]

_Span = tuple[Key, Key, DataFile]
_End = tuple[Key, list[DataFile]]


def sections(files: Iterable[DataFile], bounds: Bounds) -> list[Section]:
    """Split files into sections that ascend by key, each as the least possible number of sorted runs.

    Two files that share only a boundary key overlap. The runs of a section come in the order of their first keys.
    """
    spans = [(*bounds(f), f) for f in files]
    spans.sort(key=itemgetter(0, 1))
    return [_runs(group) if len(group) > 1 else ((group[0][2],),) for group in _overlapping(spans)]


def _overlapping(spans: Sequence[_Span]) -> Iterator[Sequence[_Span]]:
    """Cut sorted spans wherever one starts behind the end of all before it."""
    if not spans:
        return
    start, bound = 0, spans[0][1]
    for i, (low, high, _) in enumerate(spans):
        if low > bound:
            yield spans[start:i]
            start, bound = i, high
        elif high > bound:
            bound = high
    yield spans[start:]


def _runs(section: Sequence[_Span]) -> Section:
    """A file goes behind the run that ends first, or opens a run of its own where it overlaps even that one."""
    runs: list[list[DataFile]] = []
    ends: list[_End] = []
    for low, high, file in section:
        first = _pop(ends) if ends else None
        if first is not None and low > first[0]:
            run = first[1]
        else:
            run = []
            runs.append(run)
        run.append(file)
        _push(ends, (high, run))
        if first is not None and run is not first[1]:
            _push(ends, first)
    return tuple(tuple(run) for run in runs)


# A binary heap of run ends. `heapq` would do, but where several runs end on one key it chooses another run than
# Java's queue does, and which files share a run is visible in what a compaction reads. The queue's habits: an equal
# end stays below the one that was there before, and of two equal children the left one rises.


def _push(heap: list[_End], end: _End) -> None:
    at = len(heap)
    heap.append(end)
    while at and end[0] < heap[above := (at - 1) >> 1][0]:
        heap[at] = heap[above]
        at = above
    heap[at] = end


def _pop(heap: list[_End]) -> _End:
    top, last = heap[0], heap.pop()
    size, at = len(heap), 0
    while (child := 2 * at + 1) < size:
        if child + 1 < size and heap[child + 1][0] < heap[child][0]:
            child += 1
        if not heap[child][0] < last[0]:
            break
        heap[at] = heap[child]
        at = child
    if size:
        heap[at] = last
    return top
