# SPDX-License-Identifier: Apache-2.0
"""Splits to Arrow batches: merged where runs overlap, plain where they do not, filtered exactly at the end.

Agrees with: MergeFileSplitRead, RawFileSplitRead (2.0.0). Invariant: batches are bounded by the budget however large
the table is; the filter sees merged rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field
from shoal.lsm.merge import KIND, merge_runs, needs_sequence
from shoal.lsm.sections import Section
from shoal.table.runs import BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.scan import Plan, Scan, Split

# Rows of a batch where nothing is merged.
_PLAIN_ROWS = 65_536


def read(scan: Scan, plan: Plan) -> Iterator[pa.RecordBatch]:
    """The rows of a plan with the scan's columns."""
    left = scan.limit
    if left == 0:
        return
    names = list(scan.columns)
    for split in plan.splits:
        for batch in _split(scan, split):
            if scan.where is not None:
                batch = _filter(batch, scan.where)
            if not batch.num_rows:
                continue
            batch = batch.select(names)
            if batch.schema != scan.schema:
                import pyarrow as pa

                batch = pa.RecordBatch.from_arrays(batch.columns, schema=scan.schema)
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
            if left == 0:
                return


def _filter(batch: pa.RecordBatch, where: object) -> pa.RecordBatch:
    import pyarrow as pa

    table = pa.Table.from_batches([batch]).filter(where)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else batch.slice(0, 0)


def _split(scan: Scan, split: Split) -> Iterator[pa.RecordBatch]:
    table = scan.table
    fields = scan.read_fields
    if not table.primary_key:
        files = BucketFiles(table, split.partition, split.bucket, fields)
        for section in split.sections:
            for run in section:
                yield from files.batches(run, _PLAIN_ROWS)
        return
    for section in split.sections:
        if len(section) == 1:
            yield from _one_run(scan, split, section, fields)
        else:
            yield from _merged(scan, split, section, fields)


def _one_run(scan: Scan, split: Split, section: Section, fields: list[Field]) -> Iterator[pa.RecordBatch]:
    """A section without overlap: no merge; deletes are dropped where a file may hold some."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f.name for f in fields]
    for f in section[0]:
        if f.delete_row_count == 0:
            yield from BucketFiles(scan.table, split.partition, split.bucket, fields).batches((f,), _PLAIN_ROWS)
            continue
        files = BucketFiles(scan.table, split.partition, split.bucket, (*fields, VALUE_KIND))
        for batch in files.batches((f,), _PLAIN_ROWS):
            alive = pc.is_in(batch.column(KIND), pa.array([0, 2], pa.int8()))
            yield batch.select(names).filter(alive)


def _merged(scan: Scan, split: Split, section: Section, fields: list[Field]) -> Iterator[pa.RecordBatch]:
    table, rules = scan.table, scan.table.rules
    extra = [table.schema.field(n) for n in (*rules.keys, *rules.sequence_fields)]
    needed = list(dict.fromkeys((*fields, *extra)))
    ranges = [(min(f.min_sequence for f in run), max(f.max_sequence for f in run)) for run in section]
    if needs_sequence(ranges, rules):
        needed.append(SEQUENCE_NUMBER)
    files = BucketFiles(table, split.partition, split.bucket, (*needed, VALUE_KIND))
    runs = [files.run(run) for run in section]
    names = [f.name for f in fields]
    yield from merge_runs(runs, rules, names, table.budget(), drop_deletes=True, ordered=False)
