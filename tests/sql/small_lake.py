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
    table: SmallTable
    rows: pa.Table
    where: pc.Expression | None = None
    columns: list[str] | None = None

    @property
    def schema(self) -> pa.Schema:
        names = self.rows.schema.names if self.columns is None else self.columns
        return pa.schema([self.rows.schema.field(n) for n in names])

    def again(self, where: pc.Expression | None, columns: list[str] | None = None) -> SmallScan:
        return SmallScan(self.table, self.rows, where, columns)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return self.table.given_rows(self.rows, self.where, self.schema.names)


@dataclass
class SmallTable:
    """`versions` are its snapshots, from 1; a scan reads the last one unless told."""

    versions: list[pa.Table]
    batch_rows: int = 2
    calls: list[dict[str, Any]] = field(default_factory=list)
    given: int = 0
    fails: BaseException | None = None

    def system(self, name: str) -> pa.Table:
        assert name == "files"
        return pa.table({"file_path": ["a.parquet", "b.parquet"], "level": pa.array([0, 5], pa.int32())})

    def scan(
        self,
        where: pc.Expression | None = None,
        columns: list[str] | None = None,
        *,
        snapshot: int | None = None,
    ) -> SmallScan:
        return SmallScan(self, self.versions[-1 if snapshot is None else snapshot - 1], where, columns)

    def given_rows(self, rows: pa.Table, where: pc.Expression | None, names: list[str]) -> Iterator[pa.RecordBatch]:
        self.calls.append({"columns": names, "where": None if where is None else str(where)})
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

    def system(self, name: str) -> pa.Table:
        return pa.table({"table_name": sorted(self.held)})
