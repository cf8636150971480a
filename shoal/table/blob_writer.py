# SPDX-License-Identifier: Apache-2.0
"""Rows with BLOB columns into files: the other columns as ever, each blob column into files of its own beside them.

A `.blob` file is closed at `blob.target-file-size`, and with the file whose rows it belongs to; what follows a file in
the list are its blobs, column by column, so that a commit can give them the same row ids. Agrees with:
DedicatedFormatRollingFileWriter, MultipleBlobFileWriter, BlobFormatWriter (2.0.0). Invariant: the blob files of a
column hold one value for each row of the file before them; on failure every file of this writer is deleted again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.errors import Unsupported
from shoal.format.blob import FRAME, MAGIC, NULL, PLACEHOLDER, file_end, is_descriptor, is_view, record_end
from shoal.format.datafile import APPEND, EMPTY_ROW, DataFile, Stats
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.table.schema_type_checks import is_blob_file

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.table.table import Table


def check_blobs(table: Table) -> None:
    """`Unsupported` for tables whose blobs are not written here."""
    for f in table.schema.fields:
        if not is_blob_file(f.type):
            continue
        if table.primary_key:
            raise Unsupported(
                f"{table.name}: BLOB column '{f.name}' of a primary-key table is read, not written",
                hint="Flink and Spark write it",
            )
        if f.type.root != "BLOB":
            raise Unsupported(
                f"{table.name}: column '{f.name}' ({f.type}) is read, not written", hint="BLOB columns are written"
            )


def append_writer(table: Table, spec: FileSpec, first_sequence: int, expected_bytes: int) -> AppendFiles:
    """What writes the rows of an append table."""
    blobs = [f for f in table.schema.fields if is_blob_file(f.type)]
    if not blobs:
        return RollingWriter(spec, first_sequence=first_sequence, expected_bytes=expected_bytes)
    return BlobWriter(table.name, spec, blobs, blob_size(table), first_sequence, expected_bytes)


def blob_size(table: Table) -> int:
    """The size at which a blob file is closed."""
    target: Any = table.options.get("blob.target-file-size")
    return table.options.target_file_size(False) if target is None else int(target)


class BlobWriter:
    """Takes batches of all columns; `close` gives the files."""

    def __init__(
        self, table: str, spec: FileSpec, blobs: Sequence[Field], target: int, first_sequence: int, expected: int
    ) -> None:
        names = {f.name for f in blobs}
        plain = [f for f in spec.schema.fields if f.name not in names]
        self._plain = [f.name for f in plain]
        self._rows = RollingWriter(spec, first_sequence=first_sequence, expected_bytes=expected, columns=plain)
        self._columns = [BlobFiles(table, spec, f.name, target) for f in blobs]
        self._seen = 0  # files of plain columns that are closed
        self._open = 0  # rows in the open one
        self.files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            self._rows.write(batch.select(self._plain))
            at = 0
            for f in self._rows.files[self._seen :]:
                end = at + f.row_count - self._open
                self._blobs(batch.slice(at, end - at))
                self._finish(f)
                at = end
            self._blobs(batch.slice(at))
            self._open += batch.num_rows - at
        except BaseException:
            self.abort()
            raise

    def _blobs(self, batch: pa.RecordBatch) -> None:
        for c in self._columns:
            c.write(batch.column(c.name))

    def _finish(self, file: DataFile) -> None:
        """A file of plain columns is closed: so are its blobs."""
        self._seen += 1
        self._open = 0
        self.files.append(file)
        for c in self._columns:
            self.files += c.close()

    def close(self) -> list[DataFile]:
        try:
            for f in self._rows.close()[self._seen :]:
                self._finish(f)
        except BaseException:
            self.abort()
            raise
        return self.files

    def abort(self) -> None:
        """Delete what was written; nothing refers to it yet."""
        self._rows.abort()
        for c in self._columns:
            c.abort()
        self.files = []


class BlobFiles:
    """The blob files of one column."""

    def __init__(self, table: str, spec: FileSpec, name: str, target: int, *, source: int = APPEND) -> None:
        self._table = table
        self._spec = spec
        self.name = name
        self._target = target
        self._source = source
        self._form = replace(spec.form(0, False, None), suffix=".blob")
        self._sink: Any = None
        self._file: tuple[str, str | None] = "", None
        self._lengths: list[int] = []
        self._size = 0
        self._done: list[DataFile] = []
        self._all: list[DataFile] = []

    def write(self, values: pa.Array) -> None:
        """A value is a record with a checksum of its own, and ends a file that is large enough: one by one."""
        for v in values:
            self._put(v)

    def write_at(self, values: pa.Array, places: Sequence[int], count: int) -> None:
        """Of `count` rows those at `places`; the others are as older files say."""
        at = 0
        for v, place in zip(values, places):
            self._pass(place - at)
            self._put(v)
            at = place + 1
        self._pass(count - at)

    def _pass(self, count: int) -> None:
        if count and self._sink is None:
            self._begin()
        self._lengths += [PLACEHOLDER] * count

    def copy(self, records: Iterable[bytes | None]) -> None:
        """What blob files hold of rows, as it is; None is null."""
        for r in records:
            self._record(None if r is None else memoryview(r))

    def _put(self, v: pa.Scalar) -> None:
        data = memoryview(v.as_buffer()) if v.is_valid else None
        if data is not None:
            self._check(data)
        self._record(data)

    def _record(self, data: memoryview | None) -> None:
        if self._sink is None:
            self._begin()
        if data is None:
            self._lengths.append(NULL)
            return
        tail = record_end(len(data), zlib.crc32(data, zlib.crc32(MAGIC)))
        for part in (MAGIC, data, tail):
            self._sink.write(part)
        self._lengths.append(FRAME + len(data))
        self._size += FRAME + len(data)
        if self._size >= self._target:
            self._end()

    def _check(self, data: memoryview) -> None:
        start = bytes(data[:64])
        if is_descriptor(start) or is_view(start):
            raise Unsupported(
                f"{self._table}: column '{self.name}': a value is a reference to a blob, which is not resolved here",
                hint="give the bytes themselves",
            )

    def _begin(self) -> None:
        name = self._spec.next_name(self._form)
        store, path, external = self._spec.place(name)
        self._sink = store.sink(path)
        self._file = name, external
        self._lengths, self._size = [], 0

    def _end(self) -> None:
        end = file_end(self._lengths)
        self._sink.write(end)
        self._sink.close()
        self._sink = None
        name, external = self._file
        rows = len(self._lengths)
        self._done.append(
            DataFile(
                name, self._size + len(end), rows, EMPTY_ROW, EMPTY_ROW, Stats(), Stats(), 0, rows - 1,
                self._spec.schema.id, 0, creation_ms=self._spec.now(), delete_row_count=0, file_source=self._source,
                value_stats_cols=(), external_path=external, write_cols=(self.name,),
            )
        )  # fmt: skip

    def close(self) -> list[DataFile]:
        if self._sink is not None:
            self._end()
        done, self._done = self._done, []
        self._all += done
        return done

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()
            self._sink = None
        for f in (*self._all, *self._done):
            self._spec.remove(f)
        self._all, self._done = [], []


AppendFiles = RollingWriter | BlobWriter
