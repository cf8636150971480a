# SPDX-License-Identifier: Apache-2.0
"""A table as a `pyarrow.dataset.Dataset`, for anyone who takes one: DuckDB, Polars, pandas, Arrow itself.

Columns and filters reach `Table.scan`, rows are streamed. Invariant: the rows that come out satisfy the filter
exactly, because DuckDB does not apply a filter again that it has pushed down.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds

from shoal.errors import Unsupported

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from shoal.table.scan import Scan
    from shoal.table.table import Table


class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no stubs
    """Looks like an Arrow dataset and reads through `Table.scan`. It has no fragments: the merge is ours.

    `when` names the past as `Table.scan` does (`snapshot=`, `tag=`, ...); without it each scan reads the newest rows.
    """

    def __init__(self, table: Table, **when: Any) -> None:
        self._table = table
        self._when = when
        self._rows_schema: pa.Schema = self.scan().schema

    @property
    def schema(self) -> pa.Schema:
        return self._rows_schema

    @property
    def partition_expression(self) -> pc.Expression:
        import pyarrow.compute as pc

        return pc.scalar(True)

    def scan(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Scan:
        """The scan that reads these columns and rows."""
        return self._table.scan(where=where, columns=None if columns is None else list(columns), **self._when)

    def batches(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        return iter(self.scan(columns, where).to_batches())

    def rows(self, columns: Sequence[str] | None, where: pc.Expression | None) -> pa.RecordBatchReader:
        """The same rows as a reader."""
        names = self.schema.names if columns is None else columns
        schema = pa.schema([self.schema.field(n) for n in names])
        return pa.RecordBatchReader.from_batches(schema, self.batches(columns, where))

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - the name that callers use
        **options: Any,  # batch_size, use_threads and their like: advice that a merge has no use for
    ) -> Any:
        if isinstance(columns, Mapping):
            reader = self.rows(self._read_by(columns.values()), filter)
            return ds.Scanner.from_batches(reader, columns=dict(columns))
        return ds.Scanner.from_batches(self.rows(columns, filter))

    # A Scanner reads ahead on threads of its own, and one that is left half-read may hang or abort the process when it
    # ends. Polars and users who want the first rows go round it.

    def to_batches(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **options: Any,
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows, read as they are asked for."""
        if isinstance(columns, Mapping):
            yield from self.scanner(columns, filter).to_batches()
        else:
            with closing(self.rows(columns, filter)) as rows:
                yield from rows

    def head(
        self,
        num_rows: int,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **options: Any,
    ) -> pa.Table:
        """The first rows, and no more read than they need."""
        out, left = [], num_rows
        with closing(self.to_batches(columns, filter)) as batches:
            for batch in batches:
                out.append(batch.slice(0, left))
                left -= batch.num_rows
                if left <= 0:
                    break
        return pa.Table.from_batches(out) if out else self.to_table(columns=columns, filter=filter)

    def _read_by(self, expressions: Any) -> list[str]:
        from shoal.table.where import columns_of

        used = {n for e in expressions for n in columns_of(e.is_valid(), self.schema)}
        return [n for n in self.schema.names if n in used] or self.schema.names[:1]

    def filter(self, expression: pc.Expression) -> ds.Dataset:
        """The rows that an expression keeps, as a dataset of their own."""
        return _Filtered(self, expression)

    # What Arrow would do below Python on a dataset that has no C++ part: it would crash, so it is refused.

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:  # noqa: A002
        _refuse("get_fragments")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        _refuse("replace_schema")

    def sort_by(self, sorting: Any, **_: Any) -> NoReturn:
        _refuse("sort_by")

    def join(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("join")

    def join_asof(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("join_asof")


def _refuse(what: str) -> NoReturn:
    raise Unsupported(f"{what} is not possible on a table's dataset", hint="use dataset.to_table() first, or SQL")


class _Filtered(TableDataset):
    """A dataset less the rows that an expression drops."""

    def __init__(self, inner: TableDataset, where: pc.Expression) -> None:
        super().__init__(inner._table, **inner._when)
        self._inner, self._where = inner, where

    def batches(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        return self._inner.batches(columns, self._where if where is None else self._where & where)
