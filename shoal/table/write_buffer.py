# SPDX-License-Identifier: Apache-2.0
"""The write buffer: rows of all buckets wait here, whole columns at a time, until they become files.

`Waiting` holds rows as they came, in one budget. When it is full a keyed buffer sorts them by bucket and key and puts
them aside on disk, so that a checkpoint of any size becomes one sorted run a bucket; where spilling is off, or the
disk may not hold more, it writes level-0 files at once. Append rows have no order to wait for: see `append_buffer`.
Agrees with: MergeTreeWriter, SortBufferWriteBuffer, BinaryExternalSortBuffer, MemoryPoolFactory (2.0.0). Invariant:
rows stay here until all of their files are written, so a flush that failed can be tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from shoal.budget import Budget
from shoal.errors import ShoalError
from shoal.format.datafile import DataFile
from shoal.lsm.keys import column_words, last_by_key
from shoal.lsm.merge import (
    SEQUENCE,
    Rules,
    RunInput,
    merge_ordered,
    merge_runs,
    merge_unsorted,
    order_runs,
    sort_unsorted,
)
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.lsm.spill import Shelf, held, spill_codec
from shoal.table.bucket_writer import AnyBucketWriter
from shoal.table.buckets import Group, Place, Router
from shoal.table.postpone_write import postponed_batches
from shoal.table.postponed import POSTPONED
from shoal.table.rows import BATCH_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

Words = list[np.ndarray[Any, np.dtype[Any]]]
Result = TypeVar("Result")

# Rows that wait may take this part of the budget: sorting copies them, and files are encoded beside them.
_SHARE = 0.36
_SHARE_ALL = 0.4
# Columns of a full buffer are put together: strings of an Arrow array hold 2 GB at most.
_MOST = 3 << 29
# Below this many rows, threads cost more than they give.
_PARALLEL_ROWS = 100_000
# Rows of a batch that is put aside. A merge holds one batch of each run: as wide as rows are, as many as it may have
# runs, these are a small part of the budget.
_SPILLED_ROWS = (64, 8_192)
_SPILLED_SHARE = 0.1 / 50


class Buckets(Protocol):
    """Where a buffer finds the writers of its buckets."""

    def writer(self, group: Group) -> AnyBucketWriter: ...

    def brake(self, writer: AnyBucketWriter) -> None: ...

    def look(self) -> None: ...

    def look_again(self) -> None: ...


class Waiting:
    """Rows that are in no file yet and know no bucket; `placed` routes them, once."""

    def __init__(self, table: Table, router: Router, budget: Budget, share: float) -> None:
        self._router = router
        self._budget = budget
        self.limit = min(table.options.write_buffer_size, int(budget.total * share), _MOST)
        self._batches: list[pa.RecordBatch] = []
        self._placed: tuple[pa.Table, list[Group]] | None = None
        self._placed_bytes = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches) or self._placed is not None

    @property
    def is_placed(self) -> bool:
        """Whether rows were routed that are in no file yet, since a write failed."""
        return self._placed is not None

    @property
    def full(self) -> bool:
        return self.bytes >= self.limit

    def add(self, rows: pa.RecordBatch) -> None:
        size = rows.nbytes
        self._batches.append(rows)
        self.bytes += size
        self._budget.reserve(size)

    def placed(self) -> tuple[pa.Table, list[Group]]:
        """The rows and their groups, the same ones until `done`."""
        if self._placed is None:
            self._placed, self._placed_bytes = self._router.route(self._together()), self.bytes
            self._batches = []
        return self._placed

    def _together(self) -> pa.Table:
        """One chunk a column. What is put together is let go column by column, or there would be two of all."""
        import pyarrow as pa

        schema = self._batches[0].schema
        columns = [[b.column(i) for b in self._batches] for i in range(len(schema))]
        self._batches = []
        arrays: list[pa.Array] = []
        for chunks in columns:
            arrays.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))
            chunks.clear()
        # a router that fails finds the rows here again
        self._batches = [pa.RecordBatch.from_arrays(arrays, schema=schema)]
        return pa.Table.from_batches(self._batches)

    def done(self) -> None:
        """The placed rows are safe elsewhere. What came after them, since a failure, is not placed yet."""
        self._placed = None
        self._budget.release(self._placed_bytes)
        self.bytes -= self._placed_bytes
        self._placed_bytes = 0

    def clear(self) -> None:
        self._placed, self._batches = None, []
        self._budget.release(self.bytes)
        self.bytes = self._placed_bytes = 0


def shelf_of(table: Table) -> Shelf:
    """Room on disk for rows of a full buffer."""
    o = table.options
    return Shelf(*spill_codec(o.spill_compression, o.spill_zstd_level))


class KeyedBuffer:
    """Rows of a table with a primary key."""

    def __init__(self, table: Table, router: Router, budget: Budget, buckets: Buckets) -> None:
        o = table.options
        self._table = table
        self._rules: Rules = replace(table.rules, lookup=False)
        self._raw = o.changelog_producer == "input"
        self._folds_early = not self._raw and self._rules.engine is None
        self._spills = o.write_buffer_spillable
        self._disk = o.write_buffer_spill_disk
        self._router = router
        self._waiting = Waiting(table, router, budget, _SHARE if self._spills else _SHARE_ALL)
        self._budget = budget
        self._buckets = buckets
        self._shelf = shelf_of(table)
        self._aside: dict[Place, tuple[Group, list[RunInput]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._aside)

    @property
    def waiting(self) -> Waiting:
        """The rows in memory."""
        return self._waiting

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.add(rows)
        if not self._waiting.full:
            return
        self._table.metrics.writer_buffer.preempted.inc()
        if self._spills and self._shelf.size < self._disk:
            self._spill()
        else:
            self.flush()

    def flush(self) -> None:
        """Write everything to level-0 files, and raw rows to changelog files where the table asks for them."""
        while self._waiting:
            self._spill(last=True) if self._aside else self._flush_waiting()
        if self._aside:
            self._flush_aside()

    def clear(self) -> None:
        """Forget all rows."""
        self._waiting.clear()
        self._aside = {}
        self._shelf.close()

    def _placed(self) -> tuple[pa.Table, list[Group]]:
        if not self._waiting.is_placed:
            self._buckets.look()
        placed = self._waiting.placed()
        if self._router.moved():
            self._buckets.look_again()
        return placed

    # ---- to disk

    def _spill(self, *, last: bool = False) -> None:
        """Sort what waits and put it aside: on disk, or in memory where it is the `last` before all is written."""
        rows, groups = self._placed()
        words = self._words(rows)
        share = self._budget.total * _SPILLED_SHARE / max(1.0, self._waiting.bytes / max(1, rows.num_rows))
        most = int(min(_SPILLED_ROWS[1], max(_SPILLED_ROWS[0], share)))
        aside = []
        for group in groups:
            first = self._buckets.writer(group).take_sequences(len(group.rows))
            unique = self._folds_early and group.bucket != POSTPONED
            batches = self._sorted(rows, group, first, words, most)
            # the versions of a key stay in one batch
            small = _small(batches, most) if unique else batches
            kept = held(small) if last else self._shelf.put(small)
            numbers = (first, first + len(group.rows) - 1)
            run = RunInput(kept.open, kept.bytes / max(1, kept.rows), numbers, kept.rows, unique)
            aside.append((group, run))
        del rows, words
        self._waiting.done()
        for group, run in aside:
            place = (group.partition, group.bucket)
            self._aside.setdefault(place, (group, []))[1].append(run)

    def _sorted(
        self, rows: pa.Table, group: Group, first: int, words: Words | None, most: int
    ) -> Iterator[pa.RecordBatch]:
        if group.bucket == POSTPONED or self._folds_early:
            return self._merged(rows, group, first, words)
        return sort_unsorted(numbered(rows, group, first), self._rules, most)

    # ---- to files

    def _flush_waiting(self) -> None:
        rows, groups = self._placed()
        words = self._words(rows)
        bytes_a_row = max(1.0, self._waiting.bytes / max(1, rows.num_rows))

        def job(group: Group) -> _Job:
            def batches(_: Budget) -> Iterator[pa.RecordBatch]:
                if self._raw:
                    return sort_unsorted(numbered(rows, group, first), self._rules)
                return self._merged(rows, group, first, words)

            writer = self._buckets.writer(group)
            first = writer.take_sequences(len(group.rows))
            return _Job(writer, group, batches, first, int(bytes_a_row * len(group.rows)))

        for g in groups:
            self._buckets.brake(self._buckets.writer(g))
        self._write([job(g) for g in groups], rows.num_rows)
        self._waiting.done()

    def _flush_aside(self) -> None:
        def job(group: Group, runs: Sequence[RunInput]) -> _Job:
            def batches(budget: Budget) -> Iterator[pa.RecordBatch]:
                if group.bucket == POSTPONED:
                    return (b for run in runs for b in run.open(BATCH_ROWS))
                if self._raw:
                    return order_runs(runs, self._rules, budget)
                columns = [*self._table.schema.names, SEQUENCE, "_VALUE_KIND"]
                return merge_runs(runs, self._rules, columns, budget, drop_deletes=False, ordered=True)

            size = int(sum(r.bytes for r in runs))
            return _Job(self._buckets.writer(group), group, batches, runs[0].sequences[0], size)

        jobs = [job(*found) for found in self._aside.values()]
        for j in jobs:
            self._buckets.brake(j.writer)
        self._write(jobs, sum(r.rows for _, runs in self._aside.values() for r in runs))
        self._aside = {}
        self._shelf.close()

    def _write(self, jobs: Sequence[_Job], rows: int) -> None:
        workers = min(len(jobs), cores()) if rows >= _PARALLEL_ROWS else 1
        budget = self._budget.share(workers)

        def one(job: _Job) -> tuple[list[DataFile], list[DataFile]]:
            batches = job.batches(budget)
            if not self._raw or job.group.bucket == POSTPONED:
                return job.writer.flush(batches, job.first, job.bytes), []
            log = RollingWriter(job.writer.at.spec, changelog=True, expected_bytes=job.bytes)
            try:
                files = job.writer.flush(self._logged(batches, log), job.first, job.bytes)
            except BaseException:
                log.abort()
                raise
            try:
                return files, log.close()
            except BaseException:
                delete_files(job.writer.at.spec, files)
                raise

        def undo(job: _Job, done: tuple[list[DataFile], list[DataFile]]) -> None:
            delete_files(job.writer.at.spec, (*done[0], *done[1]))

        for job, (files, changelog) in zip(jobs, each(one, jobs, workers, undo)):
            job.writer.add(files, changelog)

    def _logged(self, batches: Iterable[pa.RecordBatch], log: RollingWriter) -> Iterator[pa.RecordBatch]:
        """Every row goes to the changelog, what becomes of them to the data file."""
        for batch in batches:
            log.write(batch)
            yield merge_ordered(batch, self._rules)

    # ---- the rows of one bucket

    def _merged(self, rows: pa.Table, group: Group, first: int, words: Words | None) -> Iterator[pa.RecordBatch]:
        """Sorted, the versions of a key merged; postponed rows as they came."""
        import pyarrow as pa

        if group.bucket == POSTPONED:
            yield from postponed_batches(self._table, rows, group)
        elif words is None:
            yield from merge_unsorted(numbered(rows, group, first), self._rules)
        else:
            whole = len(group.rows) == rows.num_rows
            local = last_by_key(words if whole else [w[group.rows] for w in words])
            for at in range(0, len(local), BATCH_ROWS):
                some = local[at : at + BATCH_ROWS]
                part = rows.take(pa.array(some if whole else group.rows[some]))
                part = part.append_column(SEQUENCE, pa.array(first + some))
                yield from part.combine_chunks().to_batches()

    def _words(self, rows: pa.Table) -> Words | None:
        """Key words of all rows at once, where nothing else decides which version stays."""
        rules = self._rules
        if self._raw or rules.engine is not None or rules.sequence_fields or rules.ignore_delete:
            return None
        return [w for k in rules.keys for w in column_words(rows.column(k).combine_chunks())]


class _Job:
    """The rows of one bucket, to be written."""

    __slots__ = ("batches", "bytes", "first", "group", "writer")

    def __init__(
        self,
        writer: AnyBucketWriter,
        group: Group,
        batches: Callable[[Budget], Iterable[pa.RecordBatch]],
        first: int,
        size: int,
    ) -> None:
        self.writer, self.group, self.batches, self.first, self.bytes = writer, group, batches, first, size


def numbered(rows: pa.Table, group: Group, first: int) -> pa.Table:
    """The rows of a group with their sequence numbers."""
    import pyarrow as pa

    part = rows if len(group.rows) == rows.num_rows else rows.take(pa.array(group.rows))
    return part.append_column(SEQUENCE, pa.array(np.arange(first, first + len(group.rows))))


def _small(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that a merge of many runs can hold one of each."""
    for batch in batches:
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


def each(
    one: Callable[[Any], Result], jobs: Sequence[Any], workers: int, undo: Callable[[Any, Result], None]
) -> list[Result]:
    """`one` of every job, in threads; when one fails, what the others made is undone."""
    done: dict[int, Result] = {}

    def go(i: int) -> None:
        done[i] = one(jobs[i])

    try:
        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(go, range(len(jobs))))
        else:
            for i in range(len(jobs)):
                go(i)
    except ShoalError:
        for i, made in done.items():
            undo(jobs[i], made)
        raise
    return [done[i] for i in range(len(jobs))]


def delete_files(spec: FileSpec, files: Iterable[DataFile]) -> None:
    """Delete files that no snapshot knows, and what lies beside them."""
    for f in files:
        spec.remove(f)


def cores() -> int:
    import os

    return os.cpu_count() or 1
