# SPDX-License-Identifier: Apache-2.0
"""The data files of a bucket as sorted runs that can be merged, shared by reads and compactions.

Invariant: a run yields value columns of today's schema (matched by field id), and sequence number and row kind where
they are asked for; files are opened one after the other, so a run holds one file open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shoal.format.data import Column, DataReader, columns_for
from shoal.format.datafile import DataFile
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field, arrow_field
from shoal.lsm.merge import RunInput

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lsm.rolling import RecentFiles
    from shoal.table.table import Table

# A run this small fits whole in any block: its footer need not be read to guess the width of a row.
_SMALL_RUN = 1 << 18
_SMALL_ROW = 128.0


class BucketFiles:
    """Opens files of one bucket of a table, with the columns of `fields` (value columns and system columns)."""

    def __init__(
        self,
        table: Table,
        partition: bytes,
        bucket: int,
        fields: Sequence[Field],
        *,
        recent: RecentFiles | None = None,
    ) -> None:
        self._table = table
        self._partition = partition
        self._bucket = bucket
        self._fields = tuple(fields)
        self._recent = recent
        self._columns: dict[int, list[Column]] = {}  # by schema id

    def reader(self, file: DataFile, *, threads: bool = False) -> DataReader:
        columns = self._columns.get(file.schema_id)
        if columns is None:
            schema = self._table.metadata.schema(file.schema_id)
            columns = self._columns[file.schema_id] = columns_for(self._fields, schema.file_fields, file.file_name)
        path = self._table.file_path(self._partition, self._bucket, file)
        return DataReader(self._table.store, path, columns, threads=threads)

    def batches(self, files: Sequence[DataFile], rows: int, *, threads: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows of the files, one file after the other. `threads` decode the columns of a batch side by side."""
        for f in files:
            here = self._recent.get(f.file_name) if self._recent else None
            if here is not None:
                yield from (self._shape(b) for b in here)
            else:
                yield from self.reader(f, threads=threads).batches(rows)

    def _shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.RecordBatch.from_arrays(
            [batch.column(f.name) for f in self._fields], schema=pa.schema([arrow_field(f) for f in self._fields])
        )

    def run(self, files: Sequence[DataFile]) -> RunInput:
        """The files, disjoint and ascending, as one run."""
        row_bytes = _SMALL_ROW
        if sum(f.file_size for f in files) > _SMALL_RUN:
            first = self.reader(files[0])
            row_bytes = row_bytes_of(first, self._fields)
            first.close()
        sequences = (min(f.min_sequence for f in files), max(f.max_sequence for f in files))
        return RunInput(lambda rows: self.batches(files, rows), row_bytes, sequences)


def row_bytes_of(reader: DataReader, fields: Sequence[Field]) -> float:
    """Bytes of a decoded row: the fixed widths, and for strings what the footer says of their column."""
    footer = reader.open().metadata
    rows = max(1, footer.num_rows)
    sizes: dict[str, int] = {}
    for g in range(footer.num_row_groups):
        group = footer.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            name = column.path_in_schema.split(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
    total = 0.0
    for f in fields:
        arrow = arrow_field(f).type
        try:
            total += max(1, arrow.bit_width / 8)
        except ValueError:
            # dictionary pages understate strings that repeat: count a few bytes at least
            total += max(12.0, sizes.get(f.name, 0) / rows + 4)
    return total


SYSTEM_FIELDS = (SEQUENCE_NUMBER, VALUE_KIND)
