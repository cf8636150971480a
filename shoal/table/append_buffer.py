# SPDX-License-Identifier: Apache-2.0
"""Rows of append tables on their way into files: no order to wait for, so a full buffer goes on into open files.

A bucket's file stays open until the checkpoint, so that a checkpoint of any size makes files of the target size. No
more than `write-max-writers-to-spill` files are open at once: rows of further buckets, and those of all buckets with
`write-buffer-for-append`, are put aside on disk and written at the end, bucket by bucket. Agrees with:
AppendOnlyWriter, SinkWriter, AbstractFileStoreWrite (2.0.0). Invariant: the rows of a bucket stay in order of arrival,
all of a checkpoint's in one file or in the files that follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.errors import BadRequest
from shoal.format.datafile import DataFile
from shoal.lsm.sort import SortOrder, sorted_rows
from shoal.lsm.spill import Kept
from shoal.table.append_bucket_writer import AppendBucketWriter
from shoal.table.blob_writer import AppendFiles, append_writer
from shoal.table.bucket_writer import AnyBucketWriter
from shoal.table.buckets import Group, Place, Router
from shoal.table.cluster import write_order
from shoal.table.rows import BATCH_ROWS
from shoal.table.write_buffer import Buckets, Waiting, cores, delete_files, each, shelf_of

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_SHARE = 0.25
_PARALLEL_ROWS = 100_000
# A file that grows while rows come in is not built in memory.
_LARGE = 1 << 40


class AppendBuffer:
    """Rows of a table without a primary key."""

    def __init__(self, table: Table, router: Router, budget: Budget, buckets: Buckets) -> None:
        o = table.options
        self._waiting = Waiting(table, router, budget, _SHARE)
        self._buckets = buckets
        self._order = write_order(table)
        self._buffers = o.write_buffer_for_append or self._order is not None
        self._spills = o.write_buffer_spillable
        self._disk = o.write_buffer_spill_disk
        self._most_open = 0 if self._buffers else o.write_max_writers_to_spill
        self._budget = budget
        self._shelf = shelf_of(table)
        self._open: dict[Place, tuple[AnyBucketWriter, AppendFiles]] = {}
        self._aside: dict[Place, tuple[Group, list[Kept]]] = {}
        self._table = table
        self._name = table.name
        self._lost = False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._open or self._aside)

    @property
    def waiting(self) -> Waiting:
        """The rows in memory."""
        return self._waiting

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.add(rows)
        if not self._waiting.full:
            return
        self._table.metrics.writer_buffer.preempted.inc()
        if self._shelf.size >= self._disk or (self._buffers and not self._spills):
            self.flush()
        else:
            self._go_on()

    def flush(self) -> None:
        """Write everything to files and close them."""
        if self._lost:
            raise BadRequest(
                f"{self._name}: an earlier write of this checkpoint failed, and rows of it are lost",
                hint="close this writer, open a new one and write everything since the last commit again",
            )
        if not self._waiting and not self._open and not self._aside:
            return
        self._look()
        rows, groups = self._waiting.placed() if self._waiting else (None, [])
        last = {(g.partition, g.bucket): g for g in groups}
        places = dict.fromkeys((*self._open, *self._aside, *last))
        workers = min(len(places), cores()) if rows is not None and rows.num_rows >= _PARALLEL_ROWS else 1
        # what is sorted lies beside what waits
        sorting = None if self._order is None else (self._order, self._budget.share(2 * workers))
        jobs = [self._job(place, rows, last.get(place), sorting) for place in places]
        self._lost = bool(self._open)  # what is in an open file is nowhere else
        done = each(_Job.run, jobs, workers, _Job.undo)
        self._lost = False
        for job, files in zip(jobs, done):
            job.writer.add(files)
        self._open, self._aside = {}, {}
        self._waiting.done()
        self._shelf.close()
        if self._waiting:
            self.flush()  # what came after a failure

    def clear(self) -> None:
        """Forget all rows, and the files that were begun."""
        for _, out in self._open.values():
            out.abort()
        self._open, self._aside = {}, {}
        self._waiting.clear()
        self._shelf.close()
        self._lost = False

    def _look(self) -> None:
        if not (self._open or self._aside or self._waiting.is_placed):
            self._buckets.look()

    # ---- a full buffer

    def _go_on(self) -> None:
        if self._lost:
            return self.flush()
        self._look()
        rows, groups = self._waiting.placed()
        self._lost = True
        for group in groups:
            place = (group.partition, group.bucket)
            batches = of_group(rows, group)
            if place not in self._open and place not in self._aside and len(self._open) < self._most_open:
                writer = self._buckets.writer(group)
                self._buckets.brake(writer)
                out = append_writer(self._table, writer.at.spec, writer.next_sequence, _LARGE)
                self._open[place] = writer, out
            if place in self._open:
                writer, out = self._open[place]
                writer.take_sequences(len(group.rows))
                for batch in batches:
                    out.write(batch)
            else:
                self._aside.setdefault(place, (group, []))[1].append(self._shelf.put(batches))
        self._waiting.done()
        self._lost = False

    # ---- the end

    def _job(
        self, place: Place, rows: pa.Table | None, group: Group | None, sorting: tuple[SortOrder, Budget] | None
    ) -> _Job:
        kept = self._aside[place][1] if place in self._aside else []
        if place in self._open:
            writer, out = self._open[place]
        else:
            some = group or self._aside[place][0]
            writer, out = self._buckets.writer(some), None
            self._buckets.brake(writer)
        before = sum(k.rows for k in kept)
        first = writer.take_sequences(before + (0 if group is None else len(group.rows)))
        size = sum(k.bytes for k in kept)
        if rows is not None and group is not None:
            size += int(self._waiting.bytes / max(1, rows.num_rows) * len(group.rows))
        return _Job(writer, out, first, size, kept, rows, group, sorting)


class _Job:
    """What is left of one bucket: rows put aside, then rows in memory, into the open file or new ones."""

    def __init__(
        self,
        writer: AnyBucketWriter,
        out: AppendFiles | None,
        first: int,
        size: int,
        kept: Sequence[Kept],
        rows: pa.Table | None,
        group: Group | None,
        sorting: tuple[SortOrder, Budget] | None,
    ) -> None:
        self.writer, self._out, self._first, self._size = writer, out, first, size
        self._kept, self._rows, self._group = kept, rows, group
        self._sorting = sorting

    def run(self) -> list[DataFile]:
        if self._out is None:
            batches = self._batches() if self._sorting is None else sorted_rows(self._read, *self._sorting)
            return self.writer.flush(batches, self._first, self._size)
        for batch in self._batches():
            self._out.write(batch)
        files = self._out.close()
        return self.writer.numbered(files) if isinstance(self.writer, AppendBucketWriter) else files

    def undo(self, files: list[DataFile]) -> None:
        delete_files(self.writer.at.spec, files)

    def _read(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return self._batches() if columns is None else (b.select(list(columns)) for b in self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for kept in self._kept:
            yield from kept.open(BATCH_ROWS)
        if self._rows is not None and self._group is not None:
            yield from of_group(self._rows, self._group)


def of_group(rows: pa.Table, group: Group) -> Iterator[pa.RecordBatch]:
    """The rows of a group, in batches."""
    import pyarrow as pa

    whole = len(group.rows) == rows.num_rows
    if whole:
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)
        return
    for at in range(0, len(group.rows), BATCH_ROWS):
        part = rows.take(pa.array(group.rows[at : at + BATCH_ROWS]))
        yield from part.combine_chunks().to_batches()
