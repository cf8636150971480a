# SPDX-License-Identifier: Apache-2.0
"""Splits to Arrow batches: merged where runs overlap, plain where they do not, filtered exactly at the end.

Agrees with: MergeFileSplitRead, RawFileSplitRead (2.0.0). Invariant: batches are bounded by the budget however large
the table is; the filter sees merged rows only.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Full, Queue
from threading import Event
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.errors import BadRequest
from shoal.format.datafile import DataFile
from shoal.format.schema import VALUE_KIND
from shoal.format.types import Field
from shoal.lsm.merge import INSERT, KIND, UPDATE_AFTER, merge_runs
from shoal.lsm.row_ranges import anchor
from shoal.lsm.sections import Section
from shoal.table.data_evolution import Files, wide_rows
from shoal.table.data_evolution import batches as wide_batches
from shoal.table.inline_blobs import inline_blobs, with_blobs
from shoal.table.postponed import merged as merged_postponed
from shoal.table.runs import BucketFiles, merged_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.scan import Scan
    from shoal.table.split import Plan, Split

# Below this many rows, threads cost more than they give.
_PARALLEL_ROWS = 200_000
# Batches that a split may be ahead of its reader.
_AHEAD = 4


def read(scan: Scan, plan: Plan) -> Iterator[pa.RecordBatch]:
    """The rows of a plan with the scan's columns, split after split."""
    left = scan.limit
    if left == 0:
        return
    splits = plan.pieces
    workers = min(len(splits), os.cpu_count() or 1)
    many = workers > 1 and plan.rows > _PARALLEL_ROWS
    batches = _side_by_side(scan, splits, workers) if many else _one_by_one(scan, splits)
    try:
        for batch in batches:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
            if left == 0:
                return
    finally:
        batches.close()


def _one_by_one(scan: Scan, splits: Sequence[Split]) -> Generator[pa.RecordBatch, None, None]:
    for split in splits:
        yield from _rows(scan, split, scan.table.budget())


def _rows(scan: Scan, split: Split, budget: Budget) -> Iterator[pa.RecordBatch]:
    """The rows of one split as the scan wants them."""
    import pyarrow as pa

    schema = scan.schema
    names = schema.names
    table, read = scan.table, {f.name for f in scan.read_fields}
    blobs = [n for n in inline_blobs(table.schema) if n in read]
    for batch in _named(table.name, _split(scan, split, budget)):
        if blobs and batch.num_rows:
            batch = with_blobs(batch, blobs, table.schema, table.places)
        if scan.where is not None:
            batch = _filter(batch, scan.where)
        if batch.num_rows:
            out = batch.select(names)
            # a batch without columns still has a number of rows, which arrays would not tell
            yield pa.RecordBatch.from_arrays(out.columns, schema=schema) if names else out


def _named(table: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; values that cannot be merged or cast say which table they are in."""
    try:
        yield from batches
    except BadRequest as err:
        raise BadRequest(f"{table}: {err.message}", hint=err.hint) from err


def _side_by_side(scan: Scan, splits: Sequence[Split], workers: int) -> Generator[pa.RecordBatch, None, None]:
    """Splits decoded and merged by several threads, each within its part of the budget; rows come in split order."""
    stop = Event()
    waiting: list[Queue[pa.RecordBatch | BaseException | None]] = [Queue(_AHEAD) for _ in splits]
    budget = scan.table.budget()

    def put(at: int, item: pa.RecordBatch | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                waiting[at].put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def work(at: int) -> None:
        try:
            for batch in _rows(scan, splits[at], budget.share(workers)):
                if not put(at, batch):
                    return
            put(at, None)
        except BaseException as err:  # noqa: BLE001  the reader's thread raises it
            put(at, err)

    pool = ThreadPoolExecutor(workers, "shoal-read")
    try:
        for i in range(len(splits)):
            pool.submit(work, i)
        for queue in waiting:
            while (item := queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _filter(batch: pa.RecordBatch, where: object) -> pa.RecordBatch:
    import pyarrow as pa

    table = pa.Table.from_batches([batch]).filter(where)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else batch.slice(0, 0)


def _split(scan: Scan, split: Split, budget: Budget) -> Iterator[pa.RecordBatch]:
    """Rows of a split with the columns to read, and in front the row kind where the scan wants it."""
    if not scan.table.primary_key:
        yield from _appended(scan, split)
        return
    if split.postponed:
        yield from merged_postponed(scan, split, budget)
        return
    for section in split.sections:
        if len(section) == 1 or not split.merge:
            for run in section:
                yield from _unmerged(scan, split, run)
        else:
            yield from _merged(scan, split, section, budget)


def _appended(scan: Scan, split: Split) -> Iterator[pa.RecordBatch]:
    """Rows of an append table: every row is an insert."""
    import pyarrow as pa

    for batch in _wide_rows(scan, split) if scan.table.data_evolution else _rows_of_files(scan, split):
        if scan.kinds:
            batch = batch.add_column(0, pa.field(KIND, pa.int8(), False), _inserts(batch.num_rows))
        yield batch


def _inserts(rows: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.zeros(rows, np.int8))


def _rows_of_files(scan: Scan, split: Split) -> Iterator[pa.RecordBatch]:
    pruning = scan.file_pruning(merged=False)
    files = BucketFiles(
        scan.table, split.partition, split.bucket, scan.read_fields, deletions=split.deletions, pruning=pruning,
        meter=scan.meter,
    )  # fmt: skip
    return files.batches(split.files, threads=True)


def _wide_rows(scan: Scan, split: Split) -> Iterator[pa.RecordBatch]:
    """Rows whose columns lie in several files."""
    table, partition, bucket = scan.table, split.partition, split.bucket
    opened = BucketFiles(table, partition, bucket, (), deletions=split.deletions)

    def rows_of(file: DataFile, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        return BucketFiles(table, partition, bucket, fields).batches((file,), threads=True)

    files = Files(
        rows_of, lambda f: table.file_at(partition, bucket, f), table.file_schema, table.options.blob_as_descriptor
    )
    for section in split.sections:
        group = section[0]
        holder = anchor(group)
        deletion = split.deletions.get(holder.file_name) if holder else None
        vector = None if deletion is None else opened.vector(deletion)
        yield from wide_batches(group, scan.read_fields, files, rows=wide_rows(group, table.memory), deleted=vector)


def _unmerged(scan: Scan, split: Split, run: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Files that hold each key once, or whose versions are all wanted; deletes go where a file may hold some."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = scan.read_fields
    names = [f.name for f in fields]
    # Java reads such files without the kinds they store
    one = len(split.files) == 1 and split.files[0].delete_row_count in (0, None)
    plain = split.merge and not scan.deletes and (split.raw or one)
    for f in run:
        drops = not scan.deletes and f.delete_row_count != 0
        files = BucketFiles(
            scan.table, split.partition, split.bucket, [VALUE_KIND, *fields] if drops or scan.kinds else fields,
            deletions=split.deletions, pruning=scan.file_pruning(merged=False), meter=scan.meter,
        )  # fmt: skip
        for batch in files.batches((f,), threads=True):
            if plain and scan.kinds:
                batch = batch.set_column(0, batch.schema.field(0), _inserts(batch.num_rows))
            if drops:
                alive = pc.is_in(batch.column(KIND), pa.array([INSERT, UPDATE_AFTER], pa.int8()))
                batch = batch.filter(alive)
            yield batch if scan.kinds or not drops else batch.select(names)


def _merged(scan: Scan, split: Split, section: Section, budget: Budget) -> Iterator[pa.RecordBatch]:
    table, fields = scan.table, scan.read_fields
    needed = merged_fields(table, fields, section, kinds=scan.kinds)
    files = BucketFiles(
        table, split.partition, split.bucket, needed, deletions=split.deletions,
        pruning=scan.file_pruning(merged=True), meter=scan.meter,
    )  # fmt: skip
    runs = [files.run(run) for run in section]
    names = [f.name for f in ([VALUE_KIND, *fields] if scan.kinds else fields)]
    yield from merge_runs(runs, table.rules, names, budget, drop_deletes=not scan.deletes, ordered=False)
