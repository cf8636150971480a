# SPDX-License-Identifier: Apache-2.0
"""Lookup files kept beside data files (`lookup.remote-file.enabled`), for Java's writers and lookup joins.

Every file that a compaction of a table with lookups writes, or moves up from level 0 while it looks rows up, gets one:
its keys with what a lookup wants of them, sorted for point queries, so that a reader fetches it instead of decoding the
data file. Shoal writes them and looks up in the data files, whose columns it reads one by one. Agrees with:
RemoteLookupFileManager, LookupLevels, LookupMergeTreeCompactRewriter (2.0.0). Invariant: the file is named in the
metadata of its data file, lies beside it, and goes with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from shoal.errors import ShoalError, StorageFailed, Unsupported
from shoal.format.byte_columns import Pieces, fixed, side_by_side, varints
from shoal.format.compact_rows import can_compact, compact_rows
from shoal.format.datafile import DataFile
from shoal.format.lookup_store import LookupStoreWriter, check_codec
from shoal.lsm.merge import KIND, SEQUENCE
from shoal.store.base import delete_each
from shoal.table.new_files import new_uuid
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.lsm.rolling import FileSpec
    from shoal.store.base import Store
    from shoal.table.table import Table

OPTION = "lookup.remote-file.enabled"
SUFFIX = ".lookup"
_VERSION = "v1"
# Bytes of rows that are laid out at once, which takes several times as much, and those of a copy to the store.
_AT_ONCE, _COPY = 1 << 20, 8 << 20


def stores_lookups(table: Table) -> bool:
    """Whether compactions of this table store lookup files."""
    o = table.options
    if not table.primary_key or table.clustered or not o.get(OPTION):
        return False
    return o.needs_lookup and o.changelog_producer != "full-compaction"


def check_lookups(table: Table) -> None:
    """`Unsupported` where a table wants lookup files that shoal cannot write: told before there are rows."""
    if not stores_lookups(table):
        return
    check_codec(str(table.options.get("lookup.cache-spill-compression")))
    if _content(table) in ("value", "position-and-value"):
        for f in table.schema.fields:
            if not can_compact(f.type):
                raise Unsupported(
                    f"{table.name}: '{OPTION}' takes no column of type {f.type} ('{f.name}')",
                    hint=f"set '{OPTION}' to false; readers then look rows up in the data files",
                )


def _content(table: Table) -> str:
    """What a lookup file has of each key, as its name says it."""
    o = table.options
    if o.merge_engine == "first-row":
        return "empty"
    if not o.deletion_vectors:
        return "value"
    newest = o.merge_engine == "deduplicate" and not o.is_set("sequence.field")
    return "position" if newest and o.changelog_producer != "lookup" else "position-and-value"


class StoredLookups:
    """The lookup files that one compaction of a bucket makes."""

    def __init__(self, table: Table, partition: bytes, bucket: int, spec: FileSpec) -> None:
        self._table = table
        self._place = partition, bucket
        self._content = _content(table)
        o = table.options
        self._least = cast("int", o.get("lookup.remote-file.level-threshold"))
        values = table.schema.fields if "value" in self._content else ()
        keys = tuple(f for f in (table.schema.field(n) for n in table.schema.trimmed_keys) if f not in values)
        fields: tuple[Field, ...] = (*values, *keys, *(SYSTEM_FIELDS if values else ()))
        self._files = BucketFiles(table, partition, bucket, fields, recent=spec.recent)
        self._made: list[tuple[Store, str]] = []

    def beside(self, file: DataFile, *, moved: bool = False) -> DataFile:
        """The data file with its lookup file, if it is to have one.

        A `moved` file was there before: two compactions may move it at once, and the one that loses deletes what it
        made, so the name is one that nobody else uses. Java's readers look at the end of a name alone.
        """
        mine = f".{self._content}.{_VERSION}{SUFFIX}"
        if file.level < self._least or any(name.endswith(mine) for name in file.extra_files):
            return file
        if "value" in self._content and file.schema_id != self._table.schema.id:
            return file  # readers would take the values for those of the file's own schema
        try:
            with tempfile.TemporaryFile(prefix="shoal-lookup-stored-") as local:
                size = self._write(file, local)
                unique = f".{new_uuid(self._table)}" if moved else ""
                name = f"{file.file_name}{unique}.{size}{mine}"
                self._copy(file, name, local)
        except OSError as err:
            raise StorageFailed(
                f"cannot make a lookup file in {tempfile.gettempdir()}: {err}",
                hint="it is put together there; set TMPDIR to a larger disk",
            ) from err
        return file._replace(extra_files=(*file.extra_files, name))

    def abort(self) -> None:
        """Delete what was made; nothing refers to it yet."""
        made, self._made = self._made, []
        delete_each(made)

    # ---- one file

    def _write(self, file: DataFile, local: IO[bytes]) -> int:
        o = self._table.options
        fpp = o.get("lookup.cache.bloom.filter.fpp") if o.get("lookup.cache.bloom.filter.enabled") else None
        writer = LookupStoreWriter(
            local, file.row_count, block_size=cast("int", o.get("cache-page-size")),
            codec=check_codec(str(o.get("lookup.cache-spill-compression"))),
            level=cast("int", o.get("spill-compression.zstd-level")), fpp=cast("float | None", fpp),
        )  # fmt: skip
        for keys, values in self._entries(file):
            writer.add(keys, values)
        return writer.close()

    def _entries(self, file: DataFile) -> Iterator[tuple[Pieces, Pieces]]:
        schema, at = self._table.schema, 0
        for read in self._files.batches((file,)):
            step = max(1, _AT_ONCE * read.num_rows // max(1, read.nbytes))
            for start in range(0, read.num_rows, step):
                batch = read.slice(start, step)
                keys = [batch.column(n) for n in schema.trimmed_keys]
                yield compact_rows(keys, schema.key_types, batch.num_rows), self._values(batch, at)
                at += batch.num_rows

    def _values(self, batch: pa.RecordBatch, first: int) -> Pieces:
        rows, parts = batch.num_rows, list[Pieces]()
        if "value" in self._content:
            fields = self._table.schema.fields
            parts.append(compact_rows([batch.column(f.name) for f in fields], [f.type for f in fields], rows))
        if "position" in self._content:
            at = np.arange(first, first + rows, dtype=np.int64)
            parts.append(varints(at.astype(np.uint64)) if self._content == "position" else fixed(at, 8))
        if "value" in self._content:
            parts += fixed(batch.column(SEQUENCE).to_numpy(), 8), fixed(batch.column(KIND).to_numpy(), 1)
        return side_by_side(parts, rows) if parts else (np.empty(0, np.uint8), np.zeros(rows, np.int64))

    def _copy(self, file: DataFile, name: str, local: IO[bytes]) -> None:
        store, path = self._table.beside(*self._place, file, name)
        local.seek(0)
        self._made.append((store, path))
        sink = store.sink(path)
        try:
            while data := local.read(_COPY):
                sink.write(data)
            sink.close()
        except ShoalError:
            sink.abort()
            raise
