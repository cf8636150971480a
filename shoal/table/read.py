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
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field
from shoal.lsm.merge import KIND, merge_runs, needs_sequence
from shoal.lsm.sections import Section
from shoal.table.runs import BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.scan import Plan, Scan, Split

# Below this many rows, threads cost more than they give.
_PARALLEL_ROWS = 200_000
# Batches that a split may be ahead of its reader.
_AHEAD = 4
# Rows of a batch where nothing is merged.
_PLAIN_ROWS = 65_536


def read(scan: Scan, plan: Plan) -> Iterator[pa.RecordBatch]:
    """The rows of a plan with the scan's columns, split after split."""
    left = scan.limit
    if left == 0:
        return
    splits = plan.splits
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

    names, schema = list(scan.columns), scan.schema
    for batch in _split(scan, split, budget):
        if scan.where is not None:
            batch = _filter(batch, scan.where)
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.select(names).columns, schema=schema)


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
    table = scan.table
    fields = scan.read_fields
    if not table.primary_key:
        files = BucketFiles(table, split.partition, split.bucket, fields)
        for section in split.sections:
            for run in section:
                yield from files.batches(run, _PLAIN_ROWS, threads=True)
        return
    for section in split.sections:
        if len(section) == 1:
            yield from _one_run(scan, split, section, fields)
        else:
            yield from _merged(scan, split, section, fields, budget)


def _one_run(scan: Scan, split: Split, section: Section, fields: list[Field]) -> Iterator[pa.RecordBatch]:
    """A section without overlap: no merge; deletes are dropped where a file may hold some."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f.name for f in fields]
    for f in section[0]:
        if f.delete_row_count == 0:
            yield from BucketFiles(scan.table, split.partition, split.bucket, fields).batches(
                (f,), _PLAIN_ROWS, threads=True
            )
            continue
        files = BucketFiles(scan.table, split.partition, split.bucket, (*fields, VALUE_KIND))
        for batch in files.batches((f,), _PLAIN_ROWS, threads=True):
            alive = pc.is_in(batch.column(KIND), pa.array([0, 2], pa.int8()))
            yield batch.select(names).filter(alive)


def _merged(
    scan: Scan, split: Split, section: Section, fields: list[Field], budget: Budget
) -> Iterator[pa.RecordBatch]:
    table, rules = scan.table, scan.table.rules
    extra = [table.schema.field(n) for n in (*rules.keys, *rules.sequence_fields)]
    needed = list(dict.fromkeys((*fields, *extra)))
    ranges = [(min(f.min_sequence for f in run), max(f.max_sequence for f in run)) for run in section]
    if needs_sequence(ranges, rules):
        needed.append(SEQUENCE_NUMBER)
    if any(f.delete_row_count != 0 for run in section for f in run):
        needed.append(VALUE_KIND)
    files = BucketFiles(table, split.partition, split.bucket, needed)
    runs = [files.run(run) for run in section]
    names = [f.name for f in fields]
    yield from merge_runs(runs, rules, names, budget, drop_deletes=True, ordered=False)
