# SPDX-License-Identifier: Apache-2.0
"""Sorted or arriving batches into data files of a target size, with the metadata a manifest keeps of each.

Agrees with: RollingFileWriter, KeyValueDataFileWriter, RowDataFileWriter (2.0.0). Invariant: the files are whole and
in the order of the rows; on failure every file of this writer is deleted again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.format.data_writer import FileForm, Written
from shoal.format.datafile import APPEND, EMPTY_ROW, DataFile, Stats
from shoal.format.row import encode, stored_values
from shoal.format.schema import KEY_PREFIX, Schema
from shoal.format.stats import key_stats, value_stats
from shoal.lsm.merge import KIND, SEQUENCE
from shoal.store.base import add_file

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.store.base import Store

# Files expected to stay below this are built in memory and written with one call.
_IN_MEMORY = 4 << 20
# Rows between two looks at the size of a file.
_CHECK_ROWS = 1_000
_INDEX = ".index"


class RecentFiles:
    """The rows of small files that this process wrote last, so that compacting them reads nothing back.

    Bounded by `max_bytes`; the oldest go first. Files never change, so what is here equals what the store holds.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._files: OrderedDict[str, tuple[list[pa.RecordBatch], int]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, file_name: str, rows: list[pa.RecordBatch]) -> None:
        size = sum(b.nbytes for b in rows)
        if size > self._max // 4:
            return
        with self._lock:
            self._files[file_name] = rows, size
            self._bytes += size
            while self._bytes > self._max:
                self._bytes -= self._files.popitem(last=False)[1][1]

    def get(self, file_name: str) -> list[pa.RecordBatch] | None:
        with self._lock:
            found = self._files.get(file_name)
        return None if found is None else found[0]


Place = tuple["Store", str, "str | None"]
"""Where a new file lies: the store, the path in it, and its external path where it has one."""


class RowIndexes(Protocol):
    """Indexes over the rows of one file; `finish` gives their bytes."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class FileSpec:
    """What every file of a writer has in common. `folder` ends with a slash, `next_name` gives unused names."""

    store: Store
    folder: str
    next_name: Callable[[FileForm], str]
    place: Callable[[str], Place]
    """Where a file of this name comes to lie."""
    find: Callable[[str, str | None], tuple[Store, str]]
    """Where a file lies, by its name and the external path of the data file it belongs to."""
    schema: Schema
    form: Callable[[int, bool, Sequence[Field] | None], FileForm]
    """How files of a level (or changelog files, or files of some columns) are written."""
    target_size: int
    target_rows: int | None
    stats_dense: bool
    now: Callable[[], int]  # local wall clock, milliseconds
    recent: RecentFiles | None = None
    indexes: Callable[[Sequence[Field]], RowIndexes] | None = None
    """Makes the indexes of a file with these columns; None where the table has none."""
    index_in_manifest: int = 0
    """Bytes up to which indexes lie in the manifest."""

    @property
    def keyed(self) -> bool:
        return bool(self.schema.primary_keys)

    def remove(self, file: DataFile) -> None:
        """Delete a data file and what lies beside it."""
        for name in (file.file_name, *file.extra_files):
            external = file.external_path
            if external is not None and name != file.file_name:
                external = f"{external.rpartition('/')[0]}/{name}"
            store, path = self.find(name, external)
            store.delete(path)


class RollingWriter:
    """Write batches of value columns (and, for keyed tables, sequence number and row kind); `close` gives the files.

    Append tables pass `first_sequence`: their files count rows from there. A `changelog` holds rows of all kinds, a
    key more than once. `columns` are those of files that hold a part of the table's columns. Rows that are sorted by
    other columns than the key are `clustered` by those: a file's least and greatest row are told by them.
    """

    def __init__(
        self,
        spec: FileSpec,
        *,
        level: int = 0,
        source: int = APPEND,
        first_sequence: int = 0,
        expected_bytes: int = 0,
        changelog: bool = False,
        columns: Sequence[Field] | None = None,
        clustered: Sequence[Field] = (),
    ) -> None:
        self._spec = spec
        self._clustered = tuple(clustered)
        self._form = spec.form(level, changelog, columns)
        self._changelog = changelog
        self._write_cols = None if columns is None else tuple(f.name for f in columns)
        self._level = level
        self._source = source
        self._sequence = first_sequence
        self._expected = expected_bytes
        # rows limit what writers write; compactions and changelogs go by size alone
        self._most_rows = None if changelog or source != APPEND else spec.target_rows
        self._open: _OpenFile | None = None
        self.files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        at = 0
        try:
            while at < batch.num_rows:
                if self._open is None:
                    self._open = _OpenFile(
                        self._spec,
                        self._form,
                        in_memory=self._expected < _IN_MEMORY,
                        recent=None if self._changelog else self._spec.recent,
                        indexed=not self._changelog,
                        clustered=self._clustered,
                    )
                rows = self._step(batch, batch.num_rows - at)
                self._open.write(batch if rows == batch.num_rows else batch.slice(at, rows))
                at += rows
                if self._open.rows == self._most_rows or self._open.reached(self._spec.target_size):
                    self._roll()
        except BaseException:
            self.abort()
            raise

    def _step(self, batch: pa.RecordBatch, left: int) -> int:
        """Rows to write before the size is looked at again."""
        assert self._open is not None
        target = self._spec.target_size
        rows = left
        if self._open.size + batch.nbytes > target:
            # as Java, which looks every thousand rows; but not more often than eight times a file
            rows = min(rows, max(_CHECK_ROWS, target // 8 * batch.num_rows // max(1, batch.nbytes)))
        return rows if self._most_rows is None else min(rows, self._most_rows - self._open.rows)

    def _roll(self) -> None:
        if self._open is not None:
            file = self._open.close(self._level, self._source, self._sequence, self._write_cols)
            self._open = None
            self.files.append(file)
            if not self._spec.keyed:
                self._sequence += file.row_count

    def close(self) -> list[DataFile]:
        try:
            self._roll()
        except BaseException:
            self.abort()
            raise
        return self.files

    def abort(self) -> None:
        """Delete what was written; nothing refers to it yet."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        for f in self.files:
            self._spec.remove(f)
        self.files = []


class _OpenFile:
    """One file being written, with running key, sequence and delete counts."""

    def __init__(
        self, spec: FileSpec, form: FileForm, *, in_memory: bool, recent: RecentFiles | None, indexed: bool,
        clustered: tuple[Field, ...],
    ) -> None:  # fmt: skip
        import pyarrow as pa

        self._spec = spec
        self._clustered = clustered
        key = clustered or tuple(spec.schema.field(n) for n in spec.schema.trimmed_keys)
        self._bounded, self._bound_types = [f.name for f in key], tuple(f.type for f in key)
        self._form = form
        self.name = spec.next_name(form)
        self.rows = 0
        self._store, self._path, self._external = spec.place(self.name)
        self._memory = pa.BufferOutputStream() if in_memory else None
        self._sink = None if in_memory else self._store.sink(self._path)
        self._writer = form.open(self._memory or self._sink)
        self._indexes = spec.indexes(self._value_fields) if spec.indexes is not None and indexed else None
        self._closing = False
        self._recent = recent if spec.keyed and in_memory else None
        self._batches: list[pa.RecordBatch] = []
        self._first: pa.RecordBatch | None = None
        self._last: pa.RecordBatch | None = None
        self._low = self._high = -1
        self._deletes = 0

    @property
    def _value_fields(self) -> Sequence[Field]:
        return self._spec.schema.fields if self._spec.keyed else self._form.fields

    @property
    def size(self) -> int:
        return self._writer.size

    def reached(self, size: int) -> bool:
        """Whether the file is this large, if it must be by writing out what waits."""
        if self._writer.size < size:
            return False
        self._writer.settle()
        return self._writer.size >= size

    def write(self, batch: pa.RecordBatch) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        spec = self._spec
        self.rows += batch.num_rows
        if self._indexes is not None:
            self._indexes.write(batch)
        if not spec.keyed:
            self._writer.write(batch)
            return
        if self._recent is not None:
            self._batches.append(batch)
        sequence, kind = batch.column(SEQUENCE), batch.column(KIND)
        bounds = pc.min_max(sequence)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self._low = low if self._first is None else min(self._low, low)
        self._high = high if self._first is None else max(self._high, high)
        kinds = kind.to_numpy(zero_copy_only=False)
        self._deletes += int(np.count_nonzero((kinds == 1) | (kinds == 3)))  # -U and -D
        bounded = batch.select(self._bounded)
        if self._first is None:
            self._first = bounded.slice(0, 1)
        self._last = bounded.slice(batch.num_rows - 1, 1)
        values = [batch.column(n) for n in spec.schema.names]
        keys = () if self._form.thin else batch.select(list(spec.schema.trimmed_keys)).columns
        arrays = [*keys, sequence, kind, *values]
        fields = [pa.field(f.name, a.type, f.type.nullable) for f, a in zip(self._form.fields, arrays)]
        self._writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))

    def close(self, level: int, source: int, first_sequence: int, write_cols: tuple[str, ...] | None) -> DataFile:
        written = self._writer.close()
        self._closing = True
        index = self._indexes.finish() if self._indexes is not None else None
        extra: tuple[str, ...] = ()
        if index is not None and len(index) > self._spec.index_in_manifest:
            extra = (self.name + _INDEX,)
            add_file(self._store, self._path + _INDEX, index)
            index = None
        if self._memory is not None:
            add_file(self._store, self._path, memoryview(self._memory.getvalue()).cast("B"))
            if self._recent is not None:
                self._recent.put(self.name, self._as_read())
        elif self._sink is not None:
            self._sink.close()
        file = self._meta(written, level, source, first_sequence)
        return file._replace(
            extra_files=extra, embedded_index=index, external_path=self._external, write_cols=write_cols
        )

    def _as_read(self) -> list[pa.RecordBatch]:
        """The rows as a reader of the file gets them: what compactions merge must not hang on what was kept here."""
        if self._form.format != "orc":
            return self._batches
        from shoal.format.orc import as_read

        return [as_read(b, self._spec.schema.fields) for b in self._batches]

    def _meta(self, written: Written, level: int, source: int, first_sequence: int) -> DataFile:
        spec, schema, limits = self._spec, self._spec.schema, self._form.limits
        stats, covered = value_stats(self._value_fields, written.bounds, limits, spec.stats_dense)
        if not spec.keyed:
            return DataFile(
                self.name, written.size, written.rows, EMPTY_ROW, EMPTY_ROW, Stats(), stats, first_sequence,
                first_sequence + written.rows - 1, schema.id, level, creation_ms=spec.now(), delete_row_count=0,
                file_source=source, value_stats_cols=covered,
            )  # fmt: skip
        assert self._first is not None and self._last is not None
        # Java takes the statistics of keys from the value columns where files are clustered
        prefix = "" if self._form.thin or self._clustered else KEY_PREFIX
        return DataFile(
            self.name, written.size, written.rows, self._key(self._first), self._key(self._last),
            key_stats(schema.key_fields, written.bounds, limits, prefix), stats, self._low, self._high, schema.id,
            level, creation_ms=spec.now(), delete_row_count=self._deletes, file_source=source,
            value_stats_cols=covered,
        )  # fmt: skip

    def _key(self, row: pa.RecordBatch) -> bytes:
        types = self._bound_types
        return encode(types, [stored_values(row.column(i), t)[0] for i, t in enumerate(types)])

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()
        if self._closing:
            for path in (self._path + _INDEX, self._path):
                self._store.delete(path)
