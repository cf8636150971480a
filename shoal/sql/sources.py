# SPDX-License-Identifier: Apache-2.0
"""Tables as DuckDB scans them: columns and filters reach `Table.scan`, rows are streamed as far as they are wanted.

Invariant: DuckDB knows names without their case, so no two columns of a feed differ in case only; what went wrong in a
read is kept, since DuckDB passes on a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shoal.table.dataset import TableDataset

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from shoal.table.scan import Scan
    from shoal.table.table import Table


class Feed(TableDataset):
    """A table as DuckDB scans it: no read-ahead, unique column names, and the error of a failed read is kept.

    All scans of a query see the snapshot that the first one found, whoever commits meanwhile. DuckDB knows columns by
    name whatever the case: columns `a` and `A` of one table are given to it as `a` and `A_1`.
    """

    def __init__(self, table: Table, **when: Any) -> None:
        self._held = table.scan(**when)
        super().__init__(table, **when)
        self._own_names = self._rows_schema.names
        self._names = unique(self._own_names)
        self._rows_schema = pa.schema([f.with_name(n) for f, n in zip(self._rows_schema, self._names)])
        self.error: BaseException | None = None

    def scan(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Scan:
        return self._held.again(where, columns)

    def scanner(
        self,
        columns: Any = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **options: Any,
    ) -> _Rows:
        return _Rows(self.rows(columns, filter))

    def batches(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            if self._names == self._own_names:
                yield from super().batches(columns, where)
            else:
                yield from self._renamed(self._names if columns is None else columns, where)
        except GeneratorExit:
            raise  # DuckDB has enough rows
        except BaseException as err:
            self.error = err  # DuckDB passes on a text only
            raise

    def _renamed(self, columns: Sequence[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        from shoal.table.where import columns_of

        wanted = dict.fromkeys((*columns, *([] if where is None else columns_of(where, self.schema))))
        own = dict(zip(self._names, self._own_names))
        for batch in super().batches([own[n] for n in wanted], None):
            renamed = batch.rename_columns(list(wanted))
            yield (renamed if where is None else renamed.filter(where)).select(list(columns))


class _Rows:
    """The part of a Scanner that DuckDB uses. A real one reads 16 batches ahead, which LIMIT would pay for."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self.projected_schema = reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


def unique(names: Sequence[str]) -> list[str]:
    """Names that differ even when their case is ignored."""
    out: list[str] = []
    taken: set[str] = set()
    known = {n.lower() for n in names}
    for name in names:
        new, i = name, 1
        while new.lower() in taken or (new != name and new.lower() in known):
            new, i = f"{name}_{i}", i + 1
        taken.add(new.lower())
        out.append(new)
    return out
