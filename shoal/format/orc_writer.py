# SPDX-License-Identifier: Apache-2.0
"""ORC data files: stripes of columns, and the tail that says where they lie.

Written here and not by pyarrow, which stores times before 1970 in a way that Java cannot read, and knows neither CHAR
nor levels of compression. There are no row indexes: readers take whole stripes. Agrees with: OrcFileFormat,
OrcWriterFactory, OrcTypeUtil (2.0.0). Invariant: one stripe of rows waits in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.errors import Unsupported
from shoal.format.codecs import packed
from shoal.format.data import GROUP_BYTES, ROW_GROUP_ROWS
from shoal.format.data_writer import Written, pieces
from shoal.format.orc_columns import Node, Stripe, tree
from shoal.format.orc_tail import MAGIC, message
from shoal.format.running_bounds import RunningBounds
from shoal.format.types import MAX_LENGTH

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.store.base import Sink

# Codecs: ORC's number, and the name in `codecs`.
ORC_CODECS = {
    "none": (0, "none"), "zlib": (1, "deflate"), "snappy": (2, "snappy"), "lz4": (4, "lz4"), "zstd": (5, "zstd")
}  # fmt: skip
_CHUNK = 1 << 18
_VERSION = (0, 12)
# No known writer: readers then expect a correct file, and no calendar but the one that values are in.
_WRITER, _WRITER_VERSION = 100, 6
_ATTRIBUTE = b"paimon.id"
_TEXTS = ("CHAR", "VARCHAR")


class OrcWriter:
    """Writes batches of `fields` into `sink`. Not for several threads."""

    def __init__(
        self,
        sink: Sink | pa.NativeFile,
        fields: Sequence[Field],
        *,
        compression: str,
        level: int,
        limits: Mapping[str, int | None],
        stripe_bytes: int | None = None,
    ) -> None:
        self._sink = sink
        self._kind, self._codec = ORC_CODECS[orc_codec(compression)]
        self._level = level
        self._root = tree(fields)
        self._bounds = RunningBounds(fields, limits, "orc")
        self._stripe_rows, self._stripe_bytes = ROW_GROUP_ROWS, min(stripe_bytes or GROUP_BYTES, GROUP_BYTES)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._share = 1.0
        """Bytes in the file for a byte in memory, as of the last stripe."""
        self._stripes: list[bytes] = []
        self._counts: dict[int, tuple[int, bool]] = {}
        sink.write(MAGIC)

    @property
    def size(self) -> int:
        return int(self._sink.tell() + self._waiting_bytes * self._share)

    def write(self, batch: pa.RecordBatch) -> None:
        for part in pieces(batch, self._stripe_bytes, self._waiting_bytes):
            self._bounds.add(part)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            full = self._waiting_bytes >= self._stripe_bytes
            if full or self._waiting_rows >= self._stripe_rows:
                self._flush()

    def settle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        batch = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()[0]
        self._waiting = []
        stripe = Stripe()
        for node, column in zip(self._root.below, batch.columns):
            stripe.add(node, column)
        stripe.encodings[0], stripe.counts[0] = (0, 0), (batch.num_rows, False)
        start = int(self._sink.tell())
        for at, (column_id, kind, raw) in enumerate(stripe.streams):
            out = self._compressed(raw)
            self._sink.write(out)
            stripe.streams[at] = column_id, kind, len(out).to_bytes(8, "big")
        data = int(self._sink.tell()) - start
        footer = self._compressed(_stripe_footer(stripe))
        self._sink.write(footer)
        self._share = (data + len(footer)) / max(1, self._waiting_bytes)
        self._stripes.append(message((1, start), (2, 0), (3, data), (4, len(footer)), (5, batch.num_rows)))
        for column_id, (count, nulls) in stripe.counts.items():
            before = self._counts.get(column_id, (0, False))
            self._counts[column_id] = before[0] + count, before[1] or nulls
        self._rows += batch.num_rows
        self._waiting_rows = self._waiting_bytes = 0

    def _compressed(self, raw: bytes) -> bytes:
        if self._codec == "none":
            return raw
        out: list[bytes | memoryview] = []
        view = memoryview(raw)
        for at in range(0, len(raw), _CHUNK):
            part = view[at : at + _CHUNK]
            small = packed(self._codec, part, self._level)
            plain = len(small) >= len(part)
            body = part if plain else small
            out += ((len(body) << 1 | plain).to_bytes(3, "little"), body)
        return b"".join(out)

    def close(self) -> Written:
        self._flush()
        length = int(self._sink.tell())
        nodes = list(self._root.all())
        statistics = (message((1, n), (10, nulls)) for n, nulls in (self._counts.get(c.id, (0, False)) for c in nodes))
        footer = self._compressed(
            message(
                (1, len(MAGIC)), (2, length - len(MAGIC)), *((3, s) for s in self._stripes),
                *((4, _type(node)) for node in nodes), (6, self._rows), *((7, s) for s in statistics), (8, 0),
                (9, _WRITER),
            )
        )  # fmt: skip
        script = message(
            (1, len(footer)), (2, self._kind), (3, _CHUNK), (4, bytes(_VERSION)), (5, 0), (6, _WRITER_VERSION),
            (8000, MAGIC),
        )  # fmt: skip
        self._sink.write(footer + script + bytes([len(script)]))
        return Written(self._rows, int(self._sink.tell()), self._bounds.found())


def orc_codec(compression: str) -> str:
    codec = compression.lower()
    if codec not in ORC_CODECS:
        raise Unsupported(
            f"file.compression '{compression}' is not a codec that ORC files are written with here",
            hint=f"use {', '.join(ORC_CODECS)}",
        )
    return codec


def _stripe_footer(stripe: Stripe) -> bytes:
    parts: list[tuple[int, int | bytes]] = [
        (1, message((1, kind), (2, column), (3, int.from_bytes(size, "big")))) for column, kind, size in stripe.streams
    ]
    for column in sorted(stripe.encodings):
        kind, size = stripe.encodings[column]
        parts.append((2, message((1, kind), (2, size)) if size else message((1, kind))))
    return message(*parts, (3, b"UTC"))


def _type(node: Node) -> bytes:
    t = node.type
    parts: list[tuple[int, int | bytes]] = [(1, node.kind), *((2, below.id) for below in node.below)]
    parts += ((3, name.encode()) for name in node.names)
    if t.root in _TEXTS and t.length != MAX_LENGTH:
        parts.append((4, t.length or 0))
    if t.root == "DECIMAL":
        parts += [(5, t.precision or 0), (6, t.scale or 0)]
    if node.attribute is not None:
        parts.append((7, message((1, _ATTRIBUTE), (2, str(node.attribute).encode()))))
    return message(*parts)
