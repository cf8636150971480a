# SPDX-License-Identifier: Apache-2.0
"""Writing tables whose bucket number is decided later: rows as they come into `bucket-postpone`, or into real buckets.

A stream writes Avro files in order of arrival, without sequence numbers; a compaction gives the rows their buckets.
A batch goes to real buckets at once (`postpone.batch-write-fixed-bucket`): as many as its partition has, or as many as
the first rows of a new partition ask for. Agrees with: PostponeBucketFileStoreWrite, PostponeBucketWriter,
PostponeBatchWriteOperator, PaimonSparkWriter.preparePostponeBucketAssignment (2.0.0). Invariant: rows of one writer
keep their order, which its files' names and times tell; a partition has one number of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.lsm.merge import DELETE, KIND, SEQUENCE, UPDATE_BEFORE, merge_unsorted
from shoal.options import Options
from shoal.table.buckets import Group, Memoryless, Newest, fixed_buckets, groups_of, partitions_of
from shoal.table.new_files import NewFiles
from shoal.table.postponed import POSTPONED

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

# Java: KeyValue.UNKNOWN_SEQUENCE
_NO_SEQUENCE = -1
_BATCH_ROWS = 65_536


def into_real_buckets(table: Table, *, batch: bool) -> bool:
    """Whether a write of this table goes past the postponed bucket."""
    return table.options.bucket == POSTPONED and batch and bool(table.options.get("postpone.batch-write-fixed-bucket"))


def writing(table: Table) -> Table:
    """The table as its bucket writers see it: compaction of a postponed table is a job of its own."""
    return table.with_options({"write-only": True}) if table.options.bucket == POSTPONED else table


def postponed_files(table: Table, commit_user: str) -> NewFiles:
    """Names and form of the files in `bucket-postpone`: Avro without statistics, the writer in their names."""
    o = table.options
    changed = {"data-file.prefix": f"{o.data_file_prefix}-u-{commit_user}-s-0-w-"}
    if _avro_holds(table):
        changed |= {"file.format": "avro", "metadata.stats-mode": "none"}
    return NewFiles(table, Options({**o.raw, **changed}, strict=False))


def _avro_holds(table: Table) -> bool:
    """Whether every column has an Avro type; otherwise Java, too, stays with the table's format."""
    from shoal.format.avro_encode import avro_schema

    try:
        avro_schema(table.schema.fields)
    except Unsupported:
        return False
    return True


def postponed_batches(table: Table, rows: pa.Table, group: Group) -> Iterator[pa.RecordBatch]:
    """The rows of a group as they are written: in order of arrival, no two of them merged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    part = rows if len(group.rows) == rows.num_rows else rows.take(pa.array(group.rows))
    part = part.append_column(SEQUENCE, pa.array(np.full(part.num_rows, _NO_SEQUENCE, np.int64)))
    retracts = pc.is_in(part.column(KIND), pa.array([UPDATE_BEFORE, DELETE], pa.int8()))
    first = pc.index(retracts, True).as_py()
    if first >= 0:
        # the merge comes later, but what it would refuse is refused now, as in Java; a key with one version meets no
        # merge engine, so it is tried with two
        twice = part.take(pa.array([first, first]))
        twice = twice.drop_columns([SEQUENCE]).append_column(SEQUENCE, pa.array([0, 1], pa.int64()))
        list(merge_unsorted(twice, table.rules))
    yield from part.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


class PostponeRouter(Memoryless):
    """Every row to the postponed bucket of its partition."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        partitions, codes = partitions_of(self._table, rows)
        bucket = np.full(rows.num_rows, POSTPONED, np.int32)
        return rows, groups_of(partitions, codes, bucket, [POSTPONED] * len(partitions))


class CountedRouter(Memoryless):
    """Rows to real buckets, whose number each partition has been given."""

    def __init__(self, table: Table, counts: Mapping[bytes, int]) -> None:
        self._table = table
        self._counts = counts

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        partitions, codes = partitions_of(self._table, rows)
        totals = [self._counts[p] for p in partitions]
        bucket = fixed_buckets(self._table, rows, np.array(totals, np.int64)[codes])
        return rows, groups_of(partitions, codes, bucket, totals)


class RealBucketRouter(Memoryless):
    """Rows to real buckets, by the number that their partition has or gets.

    `overwrite`: postponed rows are about to go, and do not count.
    """

    def __init__(self, table: Table, newest: Newest, *, overwrite: bool = False) -> None:
        self._table = table
        self._newest = newest
        self._overwrite = overwrite
        self._known: dict[bytes, int] | None = None
        self._postponed: dict[bytes, int] = {}

    def forget(self) -> None:
        self._known = None

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        if self._known is None:
            self._known, self._postponed = self._look()
        partitions, codes = partitions_of(self._table, rows)
        counts = np.bincount(codes, minlength=len(partitions)).tolist()
        bytes_a_row = max(1, rows.nbytes // max(1, rows.num_rows))
        for p, n in zip(partitions, counts):
            if p not in self._known:
                self._known[p] = self._number(n + self._postponed.get(p, 0), bytes_a_row)
        totals = [self._known[p] for p in partitions]
        bucket = fixed_buckets(self._table, rows, np.array(totals, np.int64)[codes])
        return rows, groups_of(partitions, codes, bucket, totals)

    def _number(self, rows: int, bytes_a_row: int) -> int:
        """Buckets of a partition without any, by the rows that have come for it."""
        get: Any = self._table.options.get
        most: int = get("postpone.batch-write-fixed-bucket.max-parallelism")
        target: int | None = get("postpone.target-row-num-per-bucket")
        size: int = get("postpone.target-size-per-bucket")
        for key, value in (("target-row-num", target), ("target-size", size)):
            if value is not None and value <= 0:
                raise BadRequest(f"{self._table.name}: 'postpone.{key}-per-bucket' = {value} is not positive")
        wanted = -(-rows * bytes_a_row // size) if target is None else -(-rows // target)
        return max(1, min(wanted, most))

    def _look(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """(number of buckets, postponed rows) of every partition."""
        live = self._table.metadata.live(self._newest.refresh())
        known = bucket_counts(self._table.name, live)
        return known, {} if self._overwrite else postponed_rows(live)


def bucket_counts(name: str, live: pa.Table) -> dict[bytes, int]:
    """The number of real buckets of each partition that has some, by the live entries of a snapshot."""
    if not live.num_rows:
        return {}
    encoded = live.column("partition").combine_chunks().dictionary_encode()
    at, partitions = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    bucket, total = live.column("bucket").to_numpy(), live.column("total_buckets").to_numpy()
    known: dict[bytes, int] = {}
    real = (bucket >= 0) & (total >= 0)
    for i, number in np.unique(np.stack([at[real], total[real]], 1), axis=0).tolist():
        if known.setdefault(partitions[i], number) != number:
            raise BadRequest(
                f"{name}: a partition has files of {known[partitions[i]]} and of {number} buckets",
                hint="overwrite the partition, or rescale it: 'shoal compact rescale', t.maintain.rescale()",
            )
    return known


def postponed_rows(live: pa.Table) -> dict[bytes, int]:
    """How many postponed rows each partition has, where it has any."""
    if not live.num_rows:
        return {}
    encoded = live.column("partition").combine_chunks().dictionary_encode()
    late = live.column("bucket").to_numpy() == POSTPONED
    at, partitions = encoded.indices.to_numpy()[late], encoded.dictionary.to_pylist()
    rows = np.bincount(at, live.column("row_count").to_numpy()[late], len(partitions))
    return {p: int(n) for p, n in zip(partitions, rows) if n}
