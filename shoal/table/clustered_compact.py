# SPDX-License-Identifier: Apache-2.0
"""Compaction of primary-key tables whose files are sorted by `clustering.columns` (`pk-clustering-override`).

New files are sorted, the oldest first, and each of their keys is looked for in the sorted files: the old row is marked
as deleted, or with first-row the new one is left out. Then neighbouring sorted files of before are merged, without the
rows that are marked. Deletes stay as rows, nothing else hides what they deleted. Agrees with: ClusteringCompactManager,
ClusteringFileRewriter, ClusteringKeyIndex, KeyValueClusteringFileWriter (2.0.0), but that Java keeps one index of a
bucket's keys for as long as a writer lives, and here each file has its own, which outlives writers and failures.
Invariant: of a key one row in the sorted files is not marked; nothing is visible until a commit says so, and a failure
deletes what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.budget import Budget
from shoal.errors import Unsupported
from shoal.format.datafile import COMPACT, DataFile
from shoal.format.row import decode, order_key
from shoal.format.types import DataType
from shoal.lsm.clustered_pick import SORTED, ClusteredFiles, ClusteredPlan, Span, sorted_runs
from shoal.lsm.curves import ORDER
from shoal.lsm.keys import Array
from shoal.lsm.levels import Key
from shoal.lsm.rolling import RollingWriter
from shoal.lsm.sort import SortOrder, merged_rows, sortable, sorted_rows
from shoal.lsm.spill import spill_codec
from shoal.table.compact import Bucket, Compacted, Files, Vectors
from shoal.table.deletion_writer import BucketVectors
from shoal.table.key_index import ABSENT, KeyFile, fingerprints
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lsm.merge import RunInput
    from shoal.table.table import Table

# Part of the memory that keys may take before they are put on disk.
_KEYS_SHARE = 8


def clustered_order(table: Table) -> SortOrder:
    """The order of sorted files, whatever `clustering.strategy` says. `Unsupported` where a column has none here."""
    for f in table.clustered_fields:
        if not sortable(f.type):
            raise Unsupported(
                f"{table.name}: files cannot be sorted by 'clustering.columns' '{f.name}' ({f.type})",
                hint="compact the table with Flink or Spark, and write it 'write-only' here",
            )
    spill = spill_codec(table.options.spill_compression, table.options.spill_zstd_level)
    order = SortOrder(ORDER, tuple(f.name for f in table.clustered_fields), spill=spill)
    order.check(table.name, table.schema.fields)
    return order


def span_of(table: Table) -> Span:
    """Tells the least and greatest clustering columns of sorted files, nulls first."""
    today = table.clustered_fields

    @lru_cache
    def types(schema_id: int) -> tuple[DataType, ...] | None:
        by_id = {f.id: f.type for f in table.file_schema(schema_id).fields}
        then = tuple(by_id[f.id] for f in today)
        return then if all(_same_order(a, f.type) for a, f in zip(then, today)) else None

    @lru_cache(maxsize=65_536)
    def key(schema_id: int, data: bytes) -> Key:
        there = types(schema_id)
        assert there is not None
        return tuple((0,) if v is None else (1, order_key(t, v)) for t, v in zip(there, decode(there, data)))

    def span(file: DataFile) -> tuple[Key, Key] | None:
        if types(file.schema_id) is None:
            return None
        return key(file.schema_id, file.min_key), key(file.schema_id, file.max_key)

    return span


def recluster(
    at: Bucket, plan: ClusteredPlan, files: ClusteredFiles, budget: Budget, vectors: Vectors | None
) -> Compacted:
    """Carry out `plan`. `vectors` are the bucket's deletion vectors, None where its table has none."""
    started = at.table.clock.monotonic()
    work = _Work(at, files.sorted, budget, vectors)
    try:
        for f in plan.fresh:
            work.sort(f)
        for group in plan.groups:
            work.merge(group)
    except BaseException:
        work.abort()
        raise
    return replace(work.result(plan), seconds=at.table.clock.monotonic() - started)


class _Work:
    """One compaction under way: what it wrote and marked so far."""

    def __init__(self, at: Bucket, known: Files, budget: Budget, vectors: Vectors | None) -> None:
        table = at.table
        self._at = at
        self._budget = budget
        self._order = clustered_order(table)
        self._clustered = table.clustered_fields
        self._fields = (*table.schema.fields, *SYSTEM_FIELDS)
        self._keys = table.schema.trimmed_keys
        self._first_row = table.options.merge_engine == "first-row"
        self._known = list(known)
        self._vectors = None if vectors is None else BucketVectors(table, at.partition, at.bucket, vectors)
        self._writers: list[RollingWriter] = []
        self._after: list[DataFile] = []

    # ---- new files

    def sort(self, file: DataFile) -> None:
        """Write the rows of a new file in the order of the clustering columns; old rows of its keys are marked."""

        def read(_: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            return self._opened().batches((file,), threads=True)

        writer = self._writer((file,))
        marks: dict[str, list[Array]] = {}
        for batch in sorted_rows(read, self._order, self._budget):
            writer.write(self._looked_up(batch, marks))
        written = writer.close()
        if marks:
            assert self._vectors is not None, "rows are replaced where there are deletion vectors"
            self._vectors = self._vectors.delete_all({name: np.concatenate(p) for name, p in marks.items()})
        # a file holds a key once: its own rows need not be looked for
        self._known += written
        self._after += written

    def _looked_up(self, batch: pa.RecordBatch, marks: dict[str, list[Array]]) -> pa.RecordBatch:
        """The rows to be written. Rows that they replace are added to `marks`, by file."""
        import pyarrow as pa

        keys = fingerprints([batch.column(k) for k in self._keys])
        order = keys.order()
        keys = keys.take(order)
        left = np.arange(len(order))
        for file in reversed(self._known):
            if not len(left):
                break
            positions = self._key_file(file).find(keys.take(left))
            there = positions != ABSENT
            vector = None if self._vectors is None else self._vectors.get(file.file_name)
            if vector is not None:
                there[there] = ~vector.contains(positions[there])
            if there.any() and not self._first_row:
                marks.setdefault(file.file_name, []).append(positions[there])
            left = left[~there]
        if not self._first_row or len(left) == len(order):
            return batch
        new = np.zeros(len(order), bool)
        new[order[left]] = True
        return batch.filter(pa.array(new))

    def _key_file(self, file: DataFile) -> KeyFile:
        at, table = self._at, self._at.table

        def keys() -> Iterator[tuple[Any, Array]]:
            opened = BucketFiles(table, at.partition, at.bucket, table.schema.key_fields, recent=at.spec.recent)
            start = 0
            for batch in opened.batches((file,)):
                yield fingerprints(batch.columns), np.arange(start, start + batch.num_rows)
                start += batch.num_rows

        limit = self._budget.total // _KEYS_SHARE
        return table.key_files.get(file.file_name, lambda: KeyFile(keys(), self._budget, limit, file.file_name))

    # ---- sorted files

    def merge(self, group: Files) -> None:
        """Write the rows of sorted files as one sorted run; what is marked goes, and its marks."""
        opened, runs = self._opened(), sorted_runs(group, span_of(self._at.table))

        def read(_: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            return opened.batches(group, threads=True)

        def inputs(runs: Sequence[Files]) -> list[RunInput]:
            return [opened.run(run) for run in runs]

        writer = self._writer(group)
        # what was sorted when a column had another type is in no order of today
        rows = (
            sorted_rows(read, self._order, self._budget) if runs is None
            else merged_rows(inputs(runs), self._order, self._budget)
        )  # fmt: skip
        for batch in rows:
            writer.write(batch)
        self._after += writer.close()
        if self._vectors is not None:
            self._vectors = self._vectors.remove(f.file_name for f in group)

    # ---- files

    def _opened(self) -> BucketFiles:
        at = self._at
        vectors = None if self._vectors is None else self._vectors.vectors
        return BucketFiles(
            at.table, at.partition, at.bucket, self._fields, recent=at.spec.recent, deletions=vectors, meter=at.meter
        )

    def _writer(self, files: Sequence[DataFile]) -> RollingWriter:
        size = sum(f.file_size for f in files)
        writer = RollingWriter(
            self._at.spec, level=SORTED, source=COMPACT, expected_bytes=size, clustered=self._clustered
        )
        self._writers.append(writer)
        return writer

    def abort(self) -> None:
        for w in self._writers:
            w.abort()

    def result(self, plan: ClusteredPlan) -> Compacted:
        before, after = plan.files, tuple(self._after)
        held = self._vectors
        return Compacted(
            before, after, SORTED, plan.reason, sum(f.file_size for f in before), sum(f.file_size for f in after),
            vectors=held.vectors if held is not None and held.changed else None,
        )  # fmt: skip


def _same_order(a: DataType, b: DataType) -> bool:
    """Whether values of one type are in the order of the other: the same type, or texts of another length."""
    return a.same_as(b) or (a.is_bytes and b.is_bytes)
