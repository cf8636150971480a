"""A lake in memory with the few calls that SQL needs; it remembers what each scan was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import NotFound


@dataclass
class SmallScan:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    snapshot: Any = None

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return self.batches


@dataclass
class SmallInspect:
    table: SmallTable

    def files(self) -> pa.Table:
        return pa.table({"file_path": ["a.parquet", "b.parquet"], "level": pa.array([0, 5], pa.int32())})

    def tags(self) -> pa.Table:
        return pa.table({"tag_name": ["spring"], "snapshot_id": pa.array([1], pa.int64())})

    def snapshots(self) -> pa.Table:
        times = pa.array([1_000, 2_000], pa.timestamp("ms"))  # 1970-01-01 00:00:01 and :02
        return pa.table({"snapshot_id": pa.array([1, 2], pa.int64()), "commit_time": times})


@dataclass
class SmallTable:
    """`versions` are its snapshots, from 1; a scan reads the last one unless told."""

    versions: list[pa.Table]
    batch_rows: int = 2
    calls: list[dict[str, Any]] = field(default_factory=list)
    given: int = 0
    fails: BaseException | None = None

    @property
    def arrow_schema(self) -> pa.Schema:
        return self.versions[-1].schema

    @property
    def inspect(self) -> SmallInspect:
        return SmallInspect(self)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return ("id",)

    def system(self, name: str, **asked: Any) -> pa.Table:
        rows: pa.Table = getattr(self.inspect, name)()
        return rows.slice(0, asked["snapshot"]) if asked else rows

    def scan(
        self,
        where: pc.Expression | None = None,
        columns: list[str] | None = None,
        limit: int | None = None,
        *,
        snapshot: int | None = None,
    ) -> SmallScan:
        rows = self.versions[-1 if snapshot is None else snapshot - 1]
        names = rows.schema.names if columns is None else columns
        return SmallScan(pa.schema([rows.schema.field(n) for n in names]), self._rows(rows, where, names, snapshot))

    def _rows(
        self, rows: pa.Table, where: pc.Expression | None, names: list[str], snapshot: int | None
    ) -> Iterator[pa.RecordBatch]:
        text = None if where is None else str(where)
        self.calls.append({"columns": names, "where": text, "snapshot": snapshot})
        for batch in (rows if where is None else rows.filter(where)).select(names).to_batches(self.batch_rows):
            self.given += 1
            yield batch
            if self.fails is not None:
                raise self.fails


@dataclass
class SmallLake:
    held: dict[str, SmallTable]

    def databases(self) -> list[str]:
        return sorted({n.partition(".")[0] for n in self.held})

    def tables(self, database: str) -> list[str]:
        return sorted(n.partition(".")[2] for n in self.held if n.startswith(f"{database}."))

    def table(self, name: str) -> Any:
        if name not in self.held:
            raise NotFound(f"no table {name}")
        return self.held[name]
