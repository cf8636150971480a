# SPDX-License-Identifier: Apache-2.0
"""The data files of a bucket as sorted runs that can be merged, shared by reads and compactions.

Invariant: a run yields value columns of today's schema (matched by field id), and sequence number and row kind where
they are asked for; rows that a deletion vector marks never come out; files are opened one after the other, so a run
holds one file open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.errors import Corrupt, NotFound
from shoal.format.compacted_changelog import slice_of
from shoal.format.data_reader import Column, DataReader, columns_for
from shoal.format.datafile import APPEND, DataFile
from shoal.format.row import arrow_column, decode
from shoal.format.schema import LEVEL, SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field, arrow_field
from shoal.lsm.merge import RunInput, needs_sequence
from shoal.lsm.picking import kept
from shoal.lsm.sections import Section
from shoal.table.deletions import Deletion
from shoal.table.row_tracking import STORED, TRACKED, as_stored, fill

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.deletion_vectors import DeletionVector
    from shoal.lsm.lookup import LookupFile, LookupFiles
    from shoal.lsm.rolling import RecentFiles
    from shoal.table.file_pruning import FilePruning
    from shoal.table.progress import Meter
    from shoal.table.table import Table

# A run this small fits whole in any block: its footer need not be read to guess the width of a row.
_SMALL_RUN = 1 << 18
_SMALL_ROW = 128.0
# Rows of a batch where nothing is merged, and the part of the memory that they may take.
BATCH_ROWS = 65_536
_BATCH_SHARE = 16
# How much larger rows are in memory than in a file that does not say it.
UNPACKED = 4.0
# A vector's length field and checksum, which the recorded length leaves out in one of the two layouts.
_AROUND = 8


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
        laid_down: LookupFiles[LookupFile] | None = None,
        deletions: Mapping[str, Deletion | DeletionVector] | None = None,
        pruning: FilePruning | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._table = table
        self._partition = partition
        self._bucket = bucket
        self._fields = tuple(fields)
        # columns that follow from a row's place where the file does not store them
        self._tracked = not table.primary_key and any(f in TRACKED for f in fields)
        self._recent = recent
        self._laid_down = laid_down
        self._deletions: Mapping[str, Deletion | DeletionVector] = deletions or {}
        self._pruning = pruning
        self._meter = meter
        self._columns: dict[tuple[int, int], tuple[list[Column], Sequence[Field]]] = {}  # by schema id and level

    @cached_property
    def _constants(self) -> dict[int, pa.Scalar]:
        """Values of the partition columns. Files repeat them, but a retraction may leave them null there."""
        return partition_constants(self._table, self._partition)

    def reader(self, file: DataFile, *, threads: bool = False) -> DataReader:
        import pyarrow as pa

        # a level is a constant of a file, so it counts where it is asked for
        key = (file.schema_id, file.level if LEVEL in self._fields else 0)
        found = self._columns.get(key)
        if found is None:
            fields = self._table.file_schema(file.schema_id).file_fields
            wanted: Sequence[Field] = self._fields
            if self._tracked:
                fields, wanted = (*fields, *STORED), as_stored(wanted)
            constants = self._constants | {LEVEL.id: pa.scalar(file.level, pa.int32())}
            found = self._columns[key] = (columns_for(wanted, fields, constants), fields)
        store, path = self._table.file_at(self._partition, self._bucket, file)
        groups = self._pruning.groups(file) if self._pruning else None
        legacy = self._table.options.orc_legacy_ltz
        return DataReader(
            store, path, *found, threads=threads, groups=groups, legacy_ltz=legacy, row_count=file.row_count,
            part=slice_of(file.file_name),
        )  # fmt: skip

    def batches(
        self, files: Sequence[DataFile], rows: int | None = None, *, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the files, one file after the other, `rows` at a time or what fits the table's memory.

        `threads` decode the columns of a batch side by side.
        """
        most = rows
        for f in files:
            here = self._decoded(f, most or BATCH_ROWS)
            if here is None and self._pruning is not None and self._pruning.skips(self._partition, self._bucket, f):
                continue
            deletion = self._deletions.get(f.file_name)
            stamped = self._stamped(f)
            if here is None:
                reader = self.reader(f, threads=threads)
                rows = most or self._fitting(reader, f)
                if deletion is None and not self._tracked and not stamped:
                    yield from reader.batches(rows) if self._meter is None else self._metered(f, reader.batches(rows))
                    continue
                positioned = reader.positioned(rows)
            else:
                positioned = self._remembered(f, here)
            vector = None if deletion is None else self.vector(deletion)
            for start, batch in positioned:
                if self._meter is not None:
                    self._meter.read(f, batch.num_rows)
                batch = fill(batch, f, start) if self._tracked else batch
                batch = _stamp(batch, f.min_sequence) if stamped else batch
                yield batch if vector is None else kept(batch, vector.keep(start, batch.num_rows))

    def _decoded(self, file: DataFile, rows: int) -> Iterable[pa.RecordBatch] | None:
        """The rows of a file that need not be decoded: this process wrote it lately, or laid it down for lookups."""
        recent = self._recent.get(file.file_name) if self._recent else None
        if recent is not None or self._laid_down is None:
            return recent
        laid = self._laid_down.there(file.file_name)
        if laid is None or not {f.name for f in self._fields if f is not LEVEL} <= set(laid.columns):
            return None
        return laid.batches(rows)

    def _fitting(self, reader: DataReader, file: DataFile) -> int:
        """Rows of a batch whose width follows the memory."""
        if file.file_size < _SMALL_RUN:
            return BATCH_ROWS
        return fitting(self._table.memory, row_bytes_of(reader, self._fields, file))

    def _metered(self, file: DataFile, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self._meter is not None
        for batch in batches:
            self._meter.read(file, batch.num_rows)
            yield batch

    def _stamped(self, file: DataFile) -> bool:
        """Whether rows take the snapshot that added their file as sequence number (`sequence.snapshot-ordering`).

        The commit writes it into the file's metadata; compactions write it into the rows.
        """
        if SEQUENCE_NUMBER not in self._fields or not self._table.options.get("sequence.snapshot-ordering"):
            return False
        if file.file_source is None:
            raise Corrupt(
                f"{self._table.name}: file {file.file_name} does not say whether a compaction wrote it",
                hint="'sequence.snapshot-ordering' is for tables that had it from their first file on",
            )
        return file.file_source == APPEND

    def vector(self, deletion: Deletion | DeletionVector) -> DeletionVector:
        """The deletion vector at that place."""
        from shoal.format.deletion_vectors import DeletionVector, decode_vector

        if isinstance(deletion, DeletionVector):
            return deletion

        store, path = self._table.index_at(self._partition, self._bucket, deletion.index_file, deletion.external_path)
        try:
            data = store.read_range(path, deletion.offset, deletion.length + _AROUND)
        except NotFound as err:
            raise Corrupt(
                f"{path} is missing although a snapshot refers to it",
                hint="without its deletion vectors, deleted rows would come back: read another snapshot",
            ) from err
        return decode_vector(data, path, deletion.length)

    def _remembered(self, file: DataFile, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of a file as they were decoded before, each batch with the position of its first row."""
        import pyarrow as pa

        schema = pa.schema([arrow_field(f) for f in self._fields])
        level, start = pa.scalar(file.level, pa.int32()), 0
        for b in batches:
            columns = [pa.repeat(level, b.num_rows) if f is LEVEL else b.column(f.name) for f in self._fields]
            yield start, pa.RecordBatch.from_arrays(columns, schema=schema)
            start += b.num_rows

    def run(self, files: Sequence[DataFile]) -> RunInput:
        """The files, disjoint and ascending, as one run."""
        row_bytes = _SMALL_ROW
        if sum(f.file_size for f in files) > _SMALL_RUN:
            first = self.reader(files[0])
            row_bytes = row_bytes_of(first, self._fields, files[0])
            first.close()
        sequences = (min(f.min_sequence for f in files), max(f.max_sequence for f in files))
        return RunInput(lambda rows: self.batches(files, rows), row_bytes, sequences, sum(f.row_count for f in files))


def merged_fields(table: Table, columns: Sequence[Field], section: Section, *, kinds: bool) -> list[Field]:
    """The columns that the runs of a section must have, so that `columns` of the merged rows can be told."""
    rules = table.rules
    names = [f.name for f in columns if f.id != SEQUENCE_NUMBER.id]
    needed = [table.schema.field(n) for n in rules.needs(names)]
    ranges = [(min(f.min_sequence for f in run), max(f.max_sequence for f in run)) for run in section]
    if len(names) < len(columns) or needs_sequence(ranges, rules):
        needed.append(SEQUENCE_NUMBER)
    if kinds or any(f.delete_row_count != 0 for run in section for f in run):
        needed.append(VALUE_KIND)
    if rules.lookup:
        needed.append(LEVEL)
    return needed


def partition_constants(table: Table, partition: bytes) -> dict[int, pa.Scalar]:
    """The values of the partition columns, by field id."""
    fields = table.schema.partition_fields
    if not fields:
        return {}
    values = decode([f.type for f in fields], partition, "partition")
    return {f.id: arrow_column([v], f.type)[0] for f, v in zip(fields, values)}


def _stamp(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The rows with this sequence number."""
    import pyarrow as pa

    i = batch.schema.get_field_index(SEQUENCE_NUMBER.name)
    return batch.set_column(i, batch.schema.field(i), pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows))


def fitting(memory: int, row_bytes: float) -> int:
    """Rows of this width for a batch."""
    return int(max(1, min(BATCH_ROWS, memory / _BATCH_SHARE / max(1.0, row_bytes))))


def row_bytes_of(reader: DataReader, fields: Sequence[Field], file: DataFile) -> float:
    """Bytes of a decoded row: the fixed widths, and for strings what the file says of their column."""
    from shoal.format.avro_data import AvroReader
    from shoal.format.parquet_reader import ParquetReader

    opened = reader.open()
    sizes: dict[str, int] = {}
    rows = max(1, file.row_count)
    row = UNPACKED * file.file_size / rows
    if isinstance(opened, ParquetReader):
        footer = opened.footer
        for g in range(footer.num_row_groups):
            group = footer.row_group(g)
            for c in range(group.num_columns):
                column = group.column(c)
                name = column.path_in_schema.split(".")[0]
                sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
    elif isinstance(opened, AvroReader):
        row = opened.row_bytes
    widths = [_width(f) for f in fields]
    guess = row / max(1, widths.count(None))  # of a string whose footer says nothing
    # dictionary pages understate strings that repeat: count a few bytes at least
    strings = (max(12.0, sizes[f.name] / rows + 4 if f.name in sizes else guess) for f in fields)
    return sum(other if width is None else width for width, other in zip(widths, strings))


def _width(f: Field) -> float | None:
    """Bytes of a value in Arrow; None where they vary."""
    try:
        return max(1, arrow_field(f).type.bit_width / 8)
    except ValueError:
        return None


SYSTEM_FIELDS = (SEQUENCE_NUMBER, VALUE_KIND)
