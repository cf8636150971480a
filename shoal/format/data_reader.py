# SPDX-License-Identifier: Apache-2.0
"""One data file to Arrow batches with the columns that are asked for, whatever its format and schema version.

Agrees with: FormatReaderMapping, SchemaEvolutionUtil, DataFileRecordReader (2.0.0). Invariant: a file is matched to
the table by the field ids of the schema it was written with, never by today's names; what comes out has exactly the
columns asked for, in Arrow types of the table, and every batch knows the position of its first row in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from shoal.errors import Corrupt, NotFound, Unsupported
from shoal.format.compacted_changelog import Slice, window
from shoal.format.data import format_of
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field, arrow_field

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.parquet_reader import ParquetReader
    from shoal.store.base import Store

# Without these the versions of a key cannot be told apart, nor deletes from rows.
_ALWAYS_STORED = (SEQUENCE_NUMBER.id, VALUE_KIND.id)
_FORMATS = ("parquet", "orc", "avro")


class FileReader(Protocol):
    """An open file of one format."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int: ...

    def batches(
        self, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Column:
    """One output column: its Arrow field, the file's column it comes from (None = absent, all null), and how.

    With a `constant` nothing is read: every row has this value.
    """

    field: pa.Field
    source: Field | None
    convert: Callable[[pa.Array], pa.Array] | None = None
    constant: pa.Scalar | None = None


def columns_for(
    wanted: Sequence[Field], file_fields: Sequence[Field], constants: Mapping[int, pa.Scalar] | None = None
) -> list[Column]:
    """Match output columns to a file's columns by field id. `constants` are values of whole columns, by field id."""
    by_id = {f.id: f for f in file_fields}
    constants = constants or {}
    out = []
    for f in wanted:
        if f.id in constants:
            out.append(Column(arrow_field(f), None, None, constants[f.id]))
            continue
        source = by_id.get(f.id)
        convert = None
        if source is not None and source.type is not f.type and source.type != f.type:
            from shoal.format.evolve import converter

            convert = converter(source.type, f.type, f.name)
        out.append(Column(arrow_field(f), source, convert))
    return out


# Chooses the row groups of a Parquet file that may hold what a filter wants; None keeps all.
Groups = Callable[["ParquetReader"], "Sequence[int] | None"]


class DataReader:
    """Batches of one data file. Opens lazily; `close` frees the file before its end is reached."""

    def __init__(
        self,
        store: Store,
        path: str,
        columns: Sequence[Column],
        file_fields: Sequence[Field],
        *,
        threads: bool = False,
        groups: Groups | None = None,
        legacy_ltz: bool = True,
        row_count: int | None = None,
        part: Slice | None = None,
    ) -> None:
        """`part`: the data file is this stretch of the file at `path`."""
        import pyarrow as pa

        self.path = path
        self._part = part
        self._store = store
        self._columns = columns
        self._file_fields = file_fields
        self._threads = threads
        self._groups = groups
        self._legacy_ltz = legacy_ltz
        self._row_count = row_count
        self._schema = pa.schema([c.field for c in columns])
        self._file: FileReader | None = None

    def open(self) -> FileReader:
        """The open file in its own format."""
        if self._file is None:
            try:
                self._file = self._opened()
            except NotFound as err:
                raise Corrupt(
                    f"{self.path} is missing although a snapshot refers to it",
                    hint="expiry may have removed it while this read ran (read again), or it was deleted by hand",
                ) from err
            except _damage() as err:
                raise self._damaged(err) from err
        return self._file

    def _bytes(self) -> pa.NativeFile:
        file = self._store.open(self.path)
        return file if self._part is None else window(file, self._part.offset, self._part.length)

    @property
    def _kind(self) -> str:
        return format_of(self.path).removeprefix("cc-")

    def _opened(self) -> FileReader:
        kind = self._kind
        if kind == "parquet":
            from shoal.format.parquet_reader import ParquetReader

            return ParquetReader(self._bytes(), self._file_fields, self.path, threads=self._threads)
        if kind == "orc":
            from shoal.format.orc import OrcReader

            return OrcReader(self._bytes(), self._file_fields, self.path, legacy_ltz=self._legacy_ltz)
        if kind == "avro":
            from shoal.format.avro_data import AvroReader

            return AvroReader(self._bytes(), self._file_fields, self.path)
        raise Unsupported(
            f"{self.path}: data files in '{kind or 'no'}' format cannot be read",
            hint=f"Paimon tables have {', '.join(_FORMATS)} files",
        )

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows, columns as asked for."""
        return (batch for _, batch in self.positioned(rows))

    def positioned(self, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The same, each with the position of its first row in the file."""
        file = self.open()
        for c in self._columns:
            s = c.source
            if s is not None and s.id in _ALWAYS_STORED and not s.type.nullable and s.name not in file.names:
                raise Corrupt(
                    f"{self.path} has no column {s.name}, which every file of a primary-key table has",
                    hint="it was written by a tool that leaves it out; the table cannot be merged without it",
                )
        wanted = list(dict.fromkeys(c.source.name for c in self._columns if c.source and c.source.name in file.names))
        try:
            for start, groups in self._spans(file) if wanted else [(0, None)]:
                at = start
                for batch in file.batches(wanted, rows, groups) if wanted else self._without_columns(file, rows):
                    yield at, self._shape(batch)
                    at += batch.num_rows
                if groups is None and self._row_count is not None and at != self._row_count:
                    # an Avro file that is cut between two blocks looks like a whole one
                    raise Corrupt(
                        f"{self.path} holds {at:,} rows where its manifest says {self._row_count:,}",
                        hint="it is cut off; restore it or roll back to a snapshot without it",
                    )
        except _damage() as err:
            raise self._damaged(err) from err
        finally:
            self.close()

    def _spans(self, file: FileReader) -> Iterator[tuple[int, Sequence[int] | None]]:
        """Stretches of neighbouring row groups to read, each with the position it starts at."""
        from shoal.format.parquet_reader import ParquetReader

        if self._groups is None or not isinstance(file, ParquetReader) or file.groups < 2:
            yield 0, None
            return
        kept = self._groups(file)
        if kept is None:
            yield 0, None
            return
        cuts = [i for i, (a, b) in enumerate(pairwise(kept), 1) if b != a + 1]
        for a, b in pairwise([0, *cuts, len(kept)]):
            if b > a:
                yield file.group_starts[kept[a]], kept[a:b]

    def _without_columns(self, file: FileReader, rows: int) -> Iterator[pa.RecordBatch]:
        """Rows of which no column lies in the file: only their number counts."""
        import pyarrow as pa

        for at in range(0, file.rows, rows):
            n = min(rows, file.rows - at)
            yield pa.RecordBatch.from_arrays([pa.nulls(n)], ["-"])

    def _shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        found = batch.schema
        if found.types == self._schema.types and found.names == self._schema.names and not self._converts:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        names, arrays = found.names, []
        for c in self._columns:
            if c.constant is not None:
                arrays.append(pa.repeat(c.constant, batch.num_rows))
            elif c.source is None or c.source.name not in names:
                arrays.append(pa.nulls(batch.num_rows, c.field.type))
            else:
                a = batch.column(names.index(c.source.name))
                arrays.append(a if c.convert is None else c.convert(a))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    @property
    def _converts(self) -> bool:
        return any(c.convert is not None for c in self._columns)

    def _damaged(self, err: BaseException) -> Corrupt:
        text = str(err).split("\n")[0][:200]
        return Corrupt(
            f"{self.path}: the {self._kind.capitalize()} file cannot be read ({text})",
            hint="it is damaged or cut off; restore it or roll back to a snapshot without it",
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _damage() -> tuple[type[BaseException], ...]:
    """What Arrow raises on bytes that are not what they should be."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError)
