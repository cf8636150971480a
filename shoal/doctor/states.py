# SPDX-License-Identifier: Apache-2.0
"""What every bucket looked like after each snapshot: its files by level, its sorted runs, its level-0 files.

A replay of `Window.start` and the flows, kept as changes: a bucket takes room where it changes, not at every snapshot,
and sums over all buckets are running sums of those changes. A level above 0 is one run while it holds a file; a level-0
file is a run of its own.

Invariants: whole columns, never a loop over flows; positions count the steps of the window. Flows of the class
`unseen` move the state like all others, but count as nothing that was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.window import CHANGELOG, FLUSH, REMOVAL, REWRITE, UPGRADE, SnapshotFacts, Window

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

HELD = ("files", "bytes", "rows", "small", "extras")  # what a cell holds, and a change changes
DONE = ("flush", "rewrite", "removal", "upgrade", "to_top")  # files by class, and those that came to the highest level
DONE_BYTES = ("flush_bytes", "rewrite_bytes", "removal_bytes")
BUCKET = ("files", "bytes", "level0", "runs", "top_bytes")  # what is told of a bucket after each of its changes


@dataclass(frozen=True, slots=True)
class Moves:
    """The changes of buckets, by bucket, then by position; one a bucket and position.

    `after` has the columns of BUCKET as they are then, `done` those of DONE and DONE_BYTES as they happened there.
    """

    bucket: Ints
    at: Ints
    after: Mapping[str, Ints]
    before: Mapping[str, Ints]
    done: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.bucket)


@dataclass(frozen=True, slots=True)
class States:
    """The states of all buckets after each of `steps`."""

    steps: tuple[SnapshotFacts, ...]
    times_ms: Ints  # made monotonic: clocks of several committers differ
    partitions: tuple[str, ...]
    partition_of: Ints  # by bucket
    number: Ints  # by bucket: its number in the partition
    cell_bucket: Ints  # a cell is one level of one bucket
    cell_level: Ints
    cell_end: Mapping[str, Ints]  # columns of HELD after the last step
    start: Mapping[str, Ints]  # columns of BUCKET before the first step
    moves: Moves

    @property
    def count(self) -> int:
        """How many buckets were ever seen."""
        return len(self.number)

    @property
    def end(self) -> Mapping[str, Ints]:
        """Columns of BUCKET after the last step."""
        return {name: self._last(name) for name in BUCKET}

    def _last(self, name: str) -> Ints:
        import numpy as np

        out = self.start[name].copy()
        if len(self.moves):
            last = np.flatnonzero(np.r_[self.moves.bucket[1:] != self.moves.bucket[:-1], True])
            out[self.moves.bucket[last]] = self.moves.after[name][last]
        return out

    def held(self, name: str) -> Ints:
        """A column of HELD by bucket, after the last step."""
        return _sum_by(self.cell_bucket, self.cell_end[name], self.count)

    def span(self, bucket: int) -> slice:
        """The moves of one bucket."""
        import numpy as np

        first, last = np.searchsorted(self.moves.bucket, [bucket, bucket + 1])
        return slice(int(first), int(last))

    def series(self, bucket: int, name: str) -> Ints:
        """A column of BUCKET after each step."""
        import numpy as np

        span = self.span(bucket)
        values = np.r_[self.start[name][bucket], self.moves.after[name][span]]
        return np.repeat(values, np.diff(np.r_[0, self.moves.at[span], len(self.steps)]))

    def total(self, before: Ints, after: Ints, start: int) -> Ints:
        """The sum over all buckets after each step of what goes from `before` to `after` at each move."""
        import numpy as np

        return start + np.cumsum(_sum_by(self.moves.at, after - before, len(self.steps)))

    def sum_of(self, name: str) -> Ints:
        """A column of BUCKET summed over all buckets, after each step."""
        return self.total(self.moves.before[name], self.moves.after[name], int(self.start[name].sum()))

    def over_time(self, name: str) -> tuple[Floats, Ints]:
        """Mean and maximum of a column of BUCKET over the steps, by bucket."""
        import numpy as np

        n, moves, start = max(len(self.steps), 1), self.moves, self.start[name]
        if not len(moves):
            return start.astype(np.float64), start.copy()
        after, before = moves.after[name], moves.before[name]
        first = np.r_[True, moves.bucket[1:] != moves.bucket[:-1]]
        until = np.r_[np.where(first[1:], n, moves.at[1:]), n]
        sums = start * np.float64(n)
        sums[moves.bucket[first]] = before[first] * moves.at[first]
        np.add.at(sums, moves.bucket, after * (until - moves.at))
        # A bucket that changed at the very first step never showed what it started from.
        most = np.where(_sum_by(moves.bucket[first], moves.at[first] == 0, self.count) > 0, -1, start)
        np.maximum.at(most, moves.bucket, after)
        return sums / n, most


def states(window: Window, *, top: int) -> States | None:
    """Replay a window; `top` is the highest level (num-levels - 1). None when its start state is unknown."""
    import numpy as np
    import pyarrow.compute as pc

    if window.start is None:
        return None
    steps = window.steps
    flows = window.flows.filter(pc.not_equal(window.flows.column("class"), CHANGELOG))
    at = np.searchsorted(np.array([s.id for s in steps], np.int64), ints(flows, "snapshot"))
    names, partition, number = _buckets(window.start, flows)
    numbers, number_code = np.unique(number, return_inverse=True)
    keys, bucket = np.unique(partition * max(len(numbers), 1) + number_code, return_inverse=True)
    levels, level_code = np.unique(
        np.concatenate([ints(window.start, "level"), ints(flows, "level")]), return_inverse=True
    )
    cells, cell = np.unique(bucket * max(len(levels), 1) + level_code, return_inverse=True)
    cell_bucket, cell_level = cells // max(len(levels), 1), levels[cells % max(len(levels), 1)]
    stood = window.start.num_rows
    cell_start = {n: _sum_by(cell[:stood], ints(window.start, n), len(cells)) for n in HELD}

    moved = _grouped(cell[stood:], at, _columns(flows, top), len(steps))
    key, position, columns = moved
    after = {n: _running(key, columns[n], cell_start[n]) for n in HELD}
    cell_end = {n: cell_start[n] + _sum_by(key, columns[n], len(cells)) for n in HELD}
    facts = _bucket_facts(cell_level[key], after, top)
    was = _bucket_facts(cell_level[key], {n: after[n] - columns[n] for n in HELD}, top)
    changes = {n: facts[n] - was[n] for n in BUCKET} | {n: columns[n] for n in (*DONE, *DONE_BYTES)}
    start = {n: _sum_by(cell_bucket, v, len(keys)) for n, v in _bucket_facts(cell_level, cell_start, top).items()}
    bucket_key, bucket_at, change = _grouped(cell_bucket[key], position, changes, len(steps))
    then = {n: _running(bucket_key, change[n], start[n]) for n in BUCKET}
    moves = Moves(
        bucket_key, bucket_at, then, {n: then[n] - change[n] for n in BUCKET},
        {n: change[n] for n in (*DONE, *DONE_BYTES)},
    )  # fmt: skip
    return States(
        steps, monotonic([s.time_ms for s in steps]), names, keys // max(len(numbers), 1),
        numbers[keys % max(len(numbers), 1)], cell_bucket, cell_level, cell_end, start, moves,
    )  # fmt: skip


def monotonic(times: list[int]) -> Ints:
    """Times as they must have been: a snapshot is not older than the one before it."""
    import numpy as np

    return np.maximum.accumulate(np.array(times, np.int64))


def ints(table: pa.Table, column: str) -> Ints:
    """A column as 64-bit integers; nulls are 0."""
    import numpy as np
    import pyarrow.compute as pc

    values = table.column(column)
    return np.asarray((pc.fill_null(values, 0) if values.null_count else values).to_numpy(), np.int64)


def class_is(flows: pa.Table, *classes: str) -> Bools:
    """Which rows of a flow table are of these classes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_in(flows.column("class"), pa.array(classes, pa.string()))
    return np.asarray(found.to_numpy(), np.bool_)


def _buckets(start: pa.Table, flows: pa.Table) -> tuple[tuple[str, ...], Ints, Ints]:
    """Texts of the partitions, and for each row of both tables the code of its partition and its bucket's number."""
    import numpy as np
    import pyarrow as pa

    chunks = [*start.column("partition").chunks, *flows.column("partition").chunks]
    coded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
    return tuple(coded.dictionary.to_pylist()), codes, np.concatenate([ints(start, "bucket"), ints(flows, "bucket")])


def _columns(flows: pa.Table, top: int) -> dict[str, Ints]:
    """The changes of HELD, and what was done by class."""
    import numpy as np

    change, files, size = ints(flows, "change"), ints(flows, "files"), ints(flows, "bytes")
    out = {name: ints(flows, name) * change for name in HELD}
    new = change > 0
    for name in (FLUSH, REWRITE, REMOVAL):
        mine = class_is(flows, name)
        out[name], out[f"{name}_bytes"] = np.where(mine, files, 0), np.where(mine, size, 0)
    out[UPGRADE] = np.where(class_is(flows, UPGRADE) & new, files, 0)
    out["to_top"] = np.where(class_is(flows, REWRITE, UPGRADE) & new & (ints(flows, "level") == top), files, 0)
    return out


def _bucket_facts(level: Ints, held: Mapping[str, Ints], top: int) -> dict[str, Ints]:
    """What a cell adds to its bucket's columns of BUCKET."""
    import numpy as np

    files = held["files"]
    return {
        "files": files,
        "bytes": held["bytes"],
        "level0": np.where(level == 0, files, 0),
        "runs": np.where(level > 0, files > 0, files).astype(np.int64),
        "top_bytes": np.where(level == top, held["bytes"], 0),
    }


def _grouped(key: Ints, at: Ints, columns: Mapping[str, Ints], n: int) -> tuple[Ints, Ints, dict[str, Ints]]:
    """Sums by key and position, ordered by both."""
    import numpy as np

    if not len(key):
        return key.astype(np.int64), at.astype(np.int64), {name: v.astype(np.int64) for name, v in columns.items()}
    both = key * max(n, 1) + at
    order = np.argsort(both, kind="stable")
    both = both[order]
    starts = np.flatnonzero(np.r_[True, both[1:] != both[:-1]])
    sums = {name: np.add.reduceat(v[order], starts) for name, v in columns.items()}
    return both[starts] // max(n, 1), both[starts] % max(n, 1), sums


def _running(key: Ints, change: Ints, start: Ints) -> Ints:
    """What each key holds after each of its changes; keys are in order."""
    import numpy as np

    if not len(key):
        return change
    so_far = np.cumsum(change)
    first = np.r_[True, key[1:] != key[:-1]]
    before = (so_far - change)[first]
    return start[key] + so_far - np.repeat(before, np.diff(np.r_[np.flatnonzero(first), len(key)]))


def _sum_by(key: Any, values: Any, n: int) -> Ints:
    """Exact sums of integers (or truths) by key."""
    import numpy as np

    out = np.zeros(n, np.int64)
    np.add.at(out, key, values.astype(np.int64))
    return out
