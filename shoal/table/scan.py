# SPDX-License-Identifier: Apache-2.0
"""From a snapshot to the files a query must open, and from there to Arrow.

Agrees with: KeyValueFileStoreScan, AppendOnlyFileStoreScan, MergeTreeSplitGenerator (2.0.0). Invariant: partition and
key bounds may drop files of a primary-key table, value bounds only files of append tables; the filter itself is
applied exactly, on merged rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, MissingExtra, near
from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.format.stats import file_bounds
from shoal.format.types import Field, arrow_schema
from shoal.lsm.sections import Section, sections
from shoal.table.prune import keep_files, keep_partitions

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table


_FILE_BYTES = 1_500  # of a decoded file, about


@dataclass(frozen=True)
class Split:
    """The files of one bucket, read together. Decoded when somebody asks: a plan of many splits costs little."""

    table: Table
    partition: bytes
    bucket: int
    entries: pa.Table

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """Append tables: in order of arrival."""
        files = [e.file for e in entries_of(self.entries)]
        if not self.table.primary_key:
            files.sort(key=lambda f: (f.min_sequence, f.file_name))
        return tuple(files)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Sections that do not overlap, each as its sorted runs."""
        return tuple(sections(self.files, self.table.bounds)) if self.table.primary_key else ((self.files,),)

    @property
    def runs(self) -> int:
        """The most files that a row's key can be in."""
        return max((len(s) for s in self.sections), default=0)


@dataclass(frozen=True)
class Plan:
    """What a scan will open: live entries that survived pruning, and how many were dropped for which reason."""

    table: Table
    snapshot: Snapshot | None
    entries: pa.Table
    dropped: dict[str, int] = field(default_factory=dict)

    @cached_property
    def splits(self) -> list[Split]:
        """One split a bucket, buckets in order."""
        if self.dropped or self.snapshot is None:
            return list(self._splits())

        def load() -> tuple[list[Split], int]:
            # with the file objects that splits make when they are read
            return list(self._splits()), _FILE_BYTES * self.entries.num_rows

        # a dashboard asks the same snapshot again and again
        meta, snap = self.table.metadata, self.snapshot
        state = f"splits {snap.base_manifest_list} {snap.delta_manifest_list} {self.table.schema.id}"
        return meta.cache.get((meta.store.uri, state), load)

    @property
    def rows(self) -> int:
        """Rows of the files before merging."""
        import pyarrow.compute as pc

        return pc.sum(self.entries.column("row_count")).as_py() or 0

    def _splits(self) -> Iterator[Split]:
        import numpy as np
        import pyarrow as pa

        n = self.entries.num_rows
        if not n:
            return
        encoded = self.entries.column("partition").combine_chunks().dictionary_encode()
        buckets = self.entries.column("bucket").to_numpy()
        code = encoded.indices.to_numpy().astype(np.int64) * (int(buckets.max()) + 3) + buckets + 2
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(code[order]) != 0))
        partitions = encoded.dictionary.to_pylist()
        sorted_entries = self.entries.take(pa.array(order))
        for a, b in zip(starts.tolist(), [*starts[1:].tolist(), n]):
            first = int(order[a])
            partition = partitions[encoded.indices[first].as_py()]
            yield Split(self.table, partition, int(buckets[first]), sorted_entries.slice(a, b - a))


@dataclass(frozen=True, slots=True)
class Explained:
    """What a scan does, for people (`str`) and scripts (`to_dict`)."""

    table: str
    snapshot: int | None
    files: int
    bytes: int
    rows: int
    dropped: dict[str, int]
    buckets: int
    runs_max: int
    merged_buckets: int
    columns: tuple[str, ...]
    where: str | None

    def __str__(self) -> str:
        lines = [f"{self.table}: " + (f"snapshot {self.snapshot}" if self.snapshot else "no snapshot yet")]
        lines.append(f"  columns  {', '.join(self.columns)}")
        if self.where:
            lines.append(f"  where    {self.where}")
        lines.append(f"  files    {self.files:,} in {self.buckets:,} buckets, {self.bytes:,} bytes, {self.rows:,} rows")
        for reason, n in self.dropped.items():
            lines.append(f"  dropped  {n:,} files by {reason}")
        lines.append(f"  merge    {self.merged_buckets:,} buckets have overlapping runs, at most {self.runs_max}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Scan:
    """A query over one snapshot. Nothing is read before one of the `to_` methods is called."""

    def __init__(
        self,
        table: Table,
        *,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
    ) -> None:
        self.table = table
        names = table.schema.names
        self.columns = tuple(names if columns is None else columns)
        for c in self.columns:
            if c not in names:
                raise BadRequest(
                    f"{table.name} has no column '{c}'", hint=near(c, names) or f"it has {', '.join(names)}"
                )
        if limit is not None and limit < 0:
            raise BadRequest(f"limit {limit} is negative")
        self.limit = limit
        self._snapshot_id = snapshot if snapshot is not None else table.options.scan_snapshot_id
        self.where = self._expression(where)
        self.where_columns = self._where_columns()

    def _expression(self, where: str | pc.Expression | None) -> pc.Expression | None:
        if isinstance(where, str):
            from shoal.table.where import parse

            return parse(where, self.table.arrow_schema)
        return where

    def _where_columns(self) -> list[str]:
        if self.where is None:
            return []
        from shoal.table.where import columns_of

        return columns_of(self.where, self.table.arrow_schema)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        return arrow_schema([self.table.schema.field(c) for c in self.columns])

    # ---- plan

    @cached_property
    def snapshot(self) -> Snapshot | None:
        meta = self.table.metadata
        return meta.latest() if self._snapshot_id is None else meta.snapshot(self._snapshot_id)

    def plan(self) -> Plan:
        """The files to open."""
        entries = self.table.metadata.live(self.snapshot)
        dropped: dict[str, int] = {}
        if entries.num_rows:
            import pyarrow.compute as pc

            # rows of the postponed bucket (-2) become readable when a compaction moves them into real ones
            if pc.min(entries.column("bucket")).as_py() < 0:
                real = entries.filter(pc.greater_equal(entries.column("bucket"), 0))
                dropped["postponed bucket"] = entries.num_rows - real.num_rows
                entries = real
        if self.where is not None and entries.num_rows:
            entries = self._by_partition(entries, dropped)
            entries = self._by_bounds(entries, dropped)
        return Plan(self.table, self.snapshot, entries, dropped)

    def _by_partition(self, entries: pa.Table, dropped: dict[str, int]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = self.table.schema
        if not any(k in self.where_columns for k in schema.partition_keys):
            return entries
        encoded = entries.column("partition").combine_chunks().dictionary_encode()
        keep = keep_partitions(schema.partition_fields, encoded.dictionary.to_pylist(), self.where, schema.fields)
        if all(keep):
            return entries
        kept = entries.filter(pc.take(pa.array(keep), encoded.indices))
        dropped["partition"] = entries.num_rows - kept.num_rows
        return kept

    def _by_bounds(self, entries: pa.Table, dropped: dict[str, int]) -> pa.Table:
        import pyarrow as pa

        schema = self.table.schema
        legal = schema.key_fields if schema.primary_keys else schema.fields
        fields = [f for f in legal if f.name in self.where_columns and not f.type.is_nested]
        if not fields or not entries.num_rows:
            return entries
        prefix = "key" if schema.primary_keys else "value"
        bounds = self._key_bounds(entries) if prefix == "key" else self._value_bounds(entries)
        keep = keep_files(fields, bounds, entries.column("row_count").to_pylist(), self.where, schema.fields)
        if all(keep):
            return entries
        kept = entries.filter(pa.array(keep))
        dropped[f"{prefix} bounds"] = entries.num_rows - kept.num_rows
        return kept

    def _key_bounds(self, entries: pa.Table) -> list[dict[str, Any]]:
        """Bounds from the first and last key of each file. Only the first key column bounds: keys sort by it first."""
        from shoal.format.data import ColumnBounds
        from shoal.format.row import decode

        schema = self.table.schema
        types, single = schema.key_types, len(schema.key_types) == 1
        out: list[dict[str, Any]] = []
        columns = [entries.column(n).to_pylist() for n in ("min_key", "max_key", "key_min", "key_max", "bucket")]
        for low, high, stat_low, stat_high, bucket in zip(*columns):
            if bucket < 0:
                out.append({})
            elif single:
                a, b = decode(types, low, "key"), decode(types, high, "key")
                out.append({schema.trimmed_keys[0]: ColumnBounds(a[0], b[0], 0)})
            else:
                a, b = decode(types, stat_low, "key bounds"), decode(types, stat_high, "key bounds")
                out.append({k: ColumnBounds(x, y, 0) for k, x, y in zip(schema.trimmed_keys, a, b)})
        return out

    def _value_bounds(self, entries: pa.Table) -> list[dict[str, Any]]:
        """Bounds by today's column names; a column whose type has changed since has none."""
        today = {f.id: f for f in self.table.schema.fields}
        out = []
        for e in entries_of(entries):
            fields = self.table.metadata.schema(e.file.schema_id).fields
            found = file_bounds(fields, e.file.value_stats, e.file.value_stats_cols, e.file.file_name)
            same = {f.name: today[f.id] for f in fields if f.id in today and today[f.id].type.same_as(f.type)}
            out.append({same[n].name: b for n, b in found.items() if n in same})
        return out

    def explain(self) -> Explained:
        """Which files are kept and dropped, and how much there is to merge."""
        plan = self.plan()
        files = [f for s in plan.splits for f in s.files]
        keyed = bool(self.table.primary_key)
        return Explained(
            table=self.table.name,
            snapshot=plan.snapshot.id if plan.snapshot else None,
            files=len(files),
            bytes=sum(f.file_size for f in files),
            rows=sum(f.row_count for f in files),
            dropped=plan.dropped,
            buckets=len(plan.splits),
            runs_max=max((s.runs for s in plan.splits), default=0) if keyed else min(1, len(files)),
            merged_buckets=sum(s.runs > 1 for s in plan.splits) if keyed else 0,
            columns=self.columns,
            where=None if self.where is None else str(self.where),
        )

    # ---- rows

    @property
    def read_fields(self) -> list[Field]:
        """Columns to read: the wanted ones, and those the filter needs."""
        names = dict.fromkeys((*self.columns, *self.where_columns))
        return [self.table.schema.field(n) for n in names]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, streamed. Memory follows the table's budget, not its size."""
        from shoal.table.read import read

        return read(self, self.plan())

    def to_reader(self) -> pa.RecordBatchReader:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """The whole result in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> pd.DataFrame:
        try:
            import pandas  # noqa: F401
        except ImportError as err:
            raise MissingExtra("to_pandas needs pandas", hint="pip install 'shoal[pandas]'") from err
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        try:
            import polars
        except ImportError as err:
            raise MissingExtra("to_polars needs polars", hint="pip install 'shoal[polars]'") from err
        return polars.from_arrow(self.to_arrow())

    def to_duckdb(self, name: str = "t") -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the result, on a connection of its own."""
        import duckdb

        connection = duckdb.connect()
        connection.register(name, self.to_arrow())
        return connection.table(name)
