# SPDX-License-Identifier: Apache-2.0
"""Parquet data files as batches of their own columns, and what their footers know.

Agrees with: ParquetReaderFactory, ParquetSchemaConverter (2.0.0). Invariant: a column comes out in the Arrow type of
the Paimon field it was written as; INT96 timestamps are exact or an error, never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from shoal.format import int96
from shoal.format.data import READ_BUFFER, footer_bounds
from shoal.format.data_writer import ColumnBounds
from shoal.format.shared_maps import layouts
from shoal.format.types import Field, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class ParquetReader:
    """One open file of columns `fields`, the file's own."""

    def __init__(self, file: pa.NativeFile, fields: Sequence[Field], path: str, *, threads: bool = False) -> None:
        self._fields = {f.name: f for f in fields}
        self._path = path
        self._threads = threads
        self._file = _opened(file)
        # INT96 columns are read as the bytes they are: pyarrow would make 64-bit counts of them, which wrap
        self._int96 = int96.holds(self._file.metadata)
        if self._int96:
            self._file = _opened(file, int96.raw_footer(file, path))
        self._shared = layouts(self._file.schema_arrow, fields, path)
        footer = self._file.metadata
        self.names = tuple(self._file.schema_arrow.names)
        self.rows: int = footer.num_rows
        sizes = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
        self.group_starts = list(accumulate(sizes, initial=0))

    @property
    def groups(self) -> int:
        return len(self.group_starts) - 1

    @property
    def footer(self) -> pq.FileMetaData:
        return self._file.metadata

    def group_bounds(self, group: int, names: Sequence[str]) -> dict[str, ColumnBounds]:
        """Bounds of some columns in one row group, in stored form."""
        fields = [self._fields[n] for n in names if n in self._fields]
        return footer_bounds(_OneGroup(self._file.metadata, group), fields, set())

    def batches(
        self, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows with these columns of the file."""
        import pyarrow as pa

        names = list(columns)
        schema = pa.schema([pa.field(n, to_arrow(self._fields[n].type), True) for n in names])
        for batch in self._file.iter_batches(rows, row_groups=groups, columns=names, use_threads=self._threads):
            yield self._shape(batch, schema)

    def _shape(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        found = batch.schema
        if found.types == schema.types and found.names == schema.names:
            return batch  # callers put their own schema on it
        by_name = dict(zip(found.names, batch.columns))
        arrays = []
        for f in schema:
            a = by_name[f.name]
            if f.name in self._shared:
                shared = self._shared[f.name]
                arrays.append(shared.restored(int96.decode(a, shared.stored, self._path, f.name)))
                continue
            arrays.append(a if a.type == f.type else self._restored(a, self._fields[f.name]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _restored(self, a: pa.Array, f: Field) -> pa.Array:
        """The stored form to the field's type: milliseconds to seconds, list and map member names, variants."""
        if f.type.root == "VARIANT":
            from shoal.format.variant import unshredded

            return unshredded(a)
        return int96.decode(a, f.type, self._path, f.name)

    def close(self) -> None:
        self._file.close(force=True)


class _OneGroup:
    """A footer that knows one row group only."""

    def __init__(self, footer: pq.FileMetaData, group: int) -> None:
        self._footer, self._group = footer, group
        self.num_columns, self.schema, self.num_row_groups = footer.num_columns, footer.schema, 1

    def row_group(self, _: int) -> pq.RowGroupMetaData:
        return self._footer.row_group(self._group)


def _opened(file: pa.NativeFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        file, metadata=metadata, pre_buffer=False, buffer_size=READ_BUFFER, page_checksum_verification=True
    )
