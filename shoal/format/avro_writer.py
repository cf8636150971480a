# SPDX-License-Identifier: Apache-2.0
"""Avro data files: blocks of whole records, as they come.

Agrees with: AvroFileFormat, AvroBulkWriter (2.0.0). Invariant: a block ends with the record that fills it, where
Java's would; at most one block of records waits here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Unsupported
from shoal.format.avro import CODECS, MAGIC
from shoal.format.avro_encode import avro_schema, records
from shoal.format.byte_columns import Array
from shoal.format.codecs import packed
from shoal.format.data_writer import Written
from shoal.format.running_bounds import RunningBounds
from shoal.format.varint import varint

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.store.base import Sink

# Bytes that make a block whole.
_BLOCK = 64_000
# Rows encoded at once, and bytes of them: an index of four bytes for each of these is what laying columns side by side
# takes, several times.
_ROWS, _PART = 16_384, 1 << 20


class AvroWriter:
    """Writes batches of `fields` into `sink`. Not for several threads."""

    def __init__(
        self,
        sink: Sink | pa.NativeFile,
        fields: Sequence[Field],
        *,
        compression: str,
        level: int,
        limits: Mapping[str, int | None],
    ) -> None:
        self._sink = sink
        self._fields = fields
        self._codec, self._level = avro_codec(compression), level
        self._bounds = RunningBounds(fields, limits, "avro")
        self._rows = 0
        self._waiting = b""
        self._waiting_rows = 0
        self._sync = os.urandom(16)
        schema = json.dumps(avro_schema(fields), separators=(",", ":"), ensure_ascii=False).encode()
        meta = {b"avro.schema": schema, b"avro.codec": self._codec.encode()}
        pairs = b"".join(varint(len(x)) + x for pair in meta.items() for x in pair)
        sink.write(MAGIC + varint(len(meta)) + pairs + b"\0" + self._sync)

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        self._bounds.add(batch)
        self._rows += batch.num_rows
        rows = max(1, min(_ROWS, _PART * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            flat, lengths = records(part.columns, self._fields, part.num_rows)
            self._add(flat.data, np.cumsum(lengths))

    def _add(self, raw: memoryview, ends: Array) -> None:
        """Records that end at these bytes of `raw`."""
        at = first = 0
        while True:
            whole = int(np.searchsorted(ends, at + _BLOCK - len(self._waiting)))
            if whole >= len(ends):
                break
            end = int(ends[whole])
            self._flush(self._waiting + raw[at:end], self._waiting_rows + whole + 1 - first)
            at, first = end, whole + 1
        self._waiting += raw[at:]
        self._waiting_rows += len(ends) - first

    def _flush(self, block: bytes, rows: int) -> None:
        out = packed(CODECS.get(self._codec, "none"), block, self._level, checked=True)
        self._sink.write(b"".join((varint(rows), varint(len(out)), out, self._sync)))
        self._waiting, self._waiting_rows = b"", 0

    def settle(self) -> None:
        """What waits is less than a block."""

    def close(self) -> Written:
        if self._waiting_rows:
            self._flush(self._waiting, self._waiting_rows)
        return Written(self._rows, self.size, self._bounds.found())


def avro_codec(compression: str) -> str:
    """Avro's name of a codec; Java takes these names as they are, and zstd in any case."""
    codec = "zstandard" if compression.lower() == "zstd" else compression
    if codec != "null" and codec not in CODECS:
        raise Unsupported(
            f"file.compression '{compression}' is not a codec of Avro files",
            hint=f"use zstd, null, {', '.join(CODECS)}",
        )
    return codec
