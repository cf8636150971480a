# SPDX-License-Identifier: Apache-2.0
"""Avro data files to Arrow batches, block by block.

A block is decoded by straight-line Python generated from the file's schema and the asked columns (see `avro_columns`);
what it collects becomes Arrow columns in bulk. Agrees with: AvroBulkFormat, FieldReaderFactory, AvroSchemaConverter
(2.0.0): columns and members are found by name, the schema in the file says how bytes are read, and the column's type
what they mean. Invariant: a batch and the block it ends in are all that is in memory; damage is `Corrupt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.errors import Corrupt, Unsupported
from shoal.format.avro import CODECS, MAGIC, decompress
from shoal.format.avro_columns import Columns, Found, Misfit, decoder, names_of
from shoal.format.avro_values import Damaged
from shoal.format.types import Field
from shoal.format.varint import read_long

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes of a read; Java's blocks have 64 kB.
_READ = 1 << 20
_SYNC = 16
# Bytes of blocks that are put together into a batch.
_MOST_WAITING = 1 << 28


class AvroReader:
    """One open Avro file of the columns `fields`. Not for several threads. Avro has no row groups."""

    def __init__(self, file: pa.NativeFile, fields: Sequence[Field], path: str) -> None:
        self._fields = {f.name: f for f in fields}
        self._path = path
        self._file = _Container(file, path)
        try:
            self.names: tuple[str, ...] = names_of(self._file.schema)
        except Misfit as err:
            raise err.of(path) from err

    @cached_property
    def rows(self) -> int:
        """Row count of the file. Nothing in it says so: the heads of its blocks are read."""
        return self._file.count()

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of a record, as in the first block."""
        for count, raw in self._file.blocks():
            return len(raw) / count
        return 0.0

    def batches(
        self, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows of these columns; `groups` other than all of the file does not exist."""
        if groups is not None and list(groups) != [0]:
            raise Unsupported(f"{self._path}: Avro files have no row groups", hint="read the whole file")
        fields = tuple(self._fields[n] for n in columns)
        try:
            decode = decoder(self._file.schema, fields)
        except Misfit as err:
            raise err.of(self._path) from err
        waiting, size, found = 0, 0, decode.empty()
        for count, raw in self._file.blocks():
            if waiting and (waiting + count > rows or size + len(raw) > _MOST_WAITING):
                yield from self._cut(decode.batch(found, self._path), rows)
                waiting, size, found = 0, 0, decode.empty()
            self._decode(decode, raw, count, found)
            waiting, size = waiting + count, size + len(raw)
        if waiting:
            yield from self._cut(decode.batch(found, self._path), rows)

    def _decode(self, decode: Columns, raw: bytes, count: int, found: Found) -> None:
        try:
            end = decode.block(raw, count, found)
        except (Damaged, IndexError) as err:
            raise Corrupt(f"{self._path}: a record does not fit the file's schema", hint="the file is damaged") from err
        if end != len(raw):
            raise Corrupt(f"{self._path}: a block of {len(raw)} bytes ends at {end}", hint="the file is damaged")

    @staticmethod
    def _cut(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def close(self) -> None:
        self._file.close()


class _Container:
    """The container: a header with schema and codec, then blocks between sync markers."""

    def __init__(self, file: pa.NativeFile, path: str) -> None:
        self._file, self._path = file, path
        self._size: int = file.size()
        # a window of the file: where it begins, its bytes, and the position in it
        self._at, self._buffer, self._p = 0, b"", 0
        if self._take(4) != MAGIC:
            raise Corrupt(f"{path}: not an Avro file")
        meta: dict[bytes, bytes] = {}
        while n := self._long():
            if n < 0:
                n = -n
                self._long()
            if n > self._size:
                raise self._short()
            for _ in range(n):
                key = self._take(self._long())
                meta[key] = self._take(self._long())
        self._sync = self._take(_SYNC)
        self._start = self._at + self._p
        if b"avro.schema" not in meta:
            raise Corrupt(f"{path}: the Avro header has no schema", hint="the file is damaged")
        self.schema: str = meta[b"avro.schema"].decode("utf-8", "replace")
        codec: str = meta.get(b"avro.codec", b"null").decode("ascii", "replace")
        if codec != "null" and codec not in CODECS:
            raise Unsupported(f"{path}: Avro codec '{codec}' is not known", hint=f"known: null, {', '.join(CODECS)}")
        self._codec = codec

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """(record count, decompressed bytes) of each block."""
        self._seek(self._start)
        while self._at + self._p < self._size:
            count = self._long()
            raw = self._take(self._long())
            self._end_of_block()
            raw = decompress(raw, self._codec, self._path)
            if not 0 <= count <= len(raw):
                raise Corrupt(f"{self._path}: a block claims {count} records in {len(raw)} bytes")
            if count:
                yield count, raw

    def count(self) -> int:
        """Records of all blocks, from their heads."""
        total, at = 0, self._start
        self._seek(at)
        while at < self._size:
            count, length = self._long(), self._long()
            if count < 0 or length < 0:
                raise self._short()
            total += count
            at = self._at + self._p + length + _SYNC
            if at <= self._at + len(self._buffer):
                self._p = at - self._at
            else:
                self._seek(at, 64)
        if at > self._size:
            raise self._short()
        return total

    def close(self) -> None:
        self._file.close()

    def _end_of_block(self) -> None:
        if self._take(_SYNC) != self._sync:
            raise Corrupt(
                f"{self._path}: the block marker before byte {self._at + self._p} does not match",
                hint="the file is damaged",
            )

    def _seek(self, at: int, read: int = _READ) -> None:
        self._file.seek(at)
        self._at, self._p, self._buffer = at, 0, self._file.read(read)

    def _take(self, n: int) -> bytes:
        if n < 0 or self._at + self._p + n > self._size:
            raise self._short()
        self._fill(n)
        self._p += n
        return self._buffer[self._p - n : self._p]

    def _long(self) -> int:
        self._fill(10)
        try:
            value, self._p = read_long(self._buffer, self._p)
        except IndexError as err:
            raise self._short() from err
        return value

    def _fill(self, n: int) -> None:
        """Brings `n` bytes into the window, or as many as the file has."""
        if self._p + n > len(self._buffer):
            rest = self._buffer[self._p :]
            self._at += self._p
            self._file.seek(self._at + len(rest))
            self._buffer, self._p = rest + self._file.read(max(n, _READ)), 0

    def _short(self) -> Corrupt:
        return Corrupt(
            f"{self._path}: the file ends in the middle of a block ({self._size} bytes)",
            hint="it is cut off or damaged",
        )
