# SPDX-License-Identifier: Apache-2.0
"""Range bitmaps: a sorted dictionary gives each value a number, and bit slices hold the number of each row.

Agrees with: RangeBitmapFileIndex, RangeBitmap, ChunkedDictionary, FixedLengthChunk, VariableLengthChunk,
BitSliceIndexBitmap (2.0.0). Numbers ascend with the values, so a comparison of values is one of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Unsupported
from shoal.format import roaring
from shoal.format.bsi_index import Slices, slices
from shoal.format.index_values import LAYOUT, Question, Reader, ordered
from shoal.format.indexed_column import Distinct
from shoal.format.types import DataType

if TYPE_CHECKING:
    from pyroaring import BitMap

_VERSION = 1


def rows(q: Question, index: Reader) -> BitMap | None:
    """The rows that answer the question."""
    from pyroaring import BitMap

    if not (q.type.root in LAYOUT or q.type.root in ("CHAR", "VARCHAR")):
        return None
    body = index.at + 4 + index.number(">i")
    _check(index)
    count, values = index.number(">i"), index.number(">i")
    if index.row_count >= 0 and count != index.row_count:
        raise ValueError(f"{count} rows in the index of a file of {index.row_count}")
    everything = BitMap(range(count))
    if values <= 0:  # all rows are null
        return everything if q.op == "null" else BitMap()
    for _ in range(2):
        index.value(q.type)  # the least and the greatest value, which the dictionary has too
    dictionary_size = index.count()
    slices = _slices(index.goto(body + dictionary_size), values)
    if q.op in ("null", "valid"):
        return everything - slices.present if q.op == "null" else slices.present
    numbers = [_find(q.type, v, index.goto(body)) for v in q.values]
    if q.op in ("=", "<>"):
        found = BitMap()
        for n, exact in numbers:
            if exact:
                found |= slices.compare(n)[1]
        return found if q.op == "=" else slices.present - found
    n, exact = numbers[0]
    below, same, above = slices.compare(n)
    if not exact:  # the value with that number is the first above the one asked for
        return below if q.op[0] == "<" else same | above
    found = below if q.op[0] == "<" else above
    return found | same if q.op.endswith("=") else found


def _check(index: Reader) -> None:
    version = index.number(">b")
    if version != _VERSION:
        raise Unsupported(f"{index.path} has version {version} where {_VERSION} is read", hint="upgrade shoal")


def _slices(at: Reader, values: int) -> Slices:
    body = at.at + 4 + at.number(">i")
    _check(at)
    n, present_size = at.number(">b"), at.count()
    at.number(">i")  # length of the table that follows
    starts = []
    for _ in range(n):
        starts.append(at.number(">i"))
        at.number(">i")
    present = roaring.read(at.data, body, at.path)[0]
    bits = [roaring.read(at.data, body + present_size + s, at.path)[0] for s in starts]
    return Slices(0, values - 1, present, bits)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A run of values: the first one and its number, then `size` more that lie at `keys`."""

    first: Any
    number: int
    size: int
    keys: int
    offsets_size: int
    width: int


def _find(t: DataType, value: Any, at: Reader) -> tuple[int, bool]:
    """(the number of a value, True), or (that of the first value above it, False)."""
    head = at.number(">i")
    body = at.at + head
    _check(at)
    n, offsets_size, chunks_size = at.count(), at.count(), at.count()
    chunks, keys = body + offsets_size, body + offsets_size + chunks_size
    wanted = ordered(t, value)
    low, high = 0, n  # chunks before `low` start at or below the value, from `high` on above it
    while low < high:
        middle = (low + high) // 2
        chunk = _chunk(t, at.goto(body + 4 * middle), chunks, keys, at)
        if ordered(t, chunk.first) <= wanted:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0, False
    chunk = _chunk(t, at.goto(body + 4 * (low - 1)), chunks, keys, at)
    if ordered(t, chunk.first) == wanted:
        return chunk.number, True
    low, high = 0, chunk.size
    while low < high:
        middle = (low + high) // 2
        if ordered(t, _key(t, chunk, middle, at)) < wanted:
            low = middle + 1
        else:
            high = middle
    exact = low < chunk.size and ordered(t, _key(t, chunk, low, at)) == wanted
    return chunk.number + 1 + low, exact


def _chunk(t: DataType, offset: Reader, chunks: int, keys: int, at: Reader) -> _Chunk:
    c = at.goto(chunks + offset.number(">i"))
    _check(c)
    first, number, start, size = c.value(t), c.number(">i"), c.number(">i"), c.number(">i")
    if t.is_bytes:
        return _Chunk(first, number, size, keys + start, c.number(">i"), 0)
    c.number(">i")  # length of the keys
    return _Chunk(first, number, size, keys + start, 0, c.number(">i"))


def _key(t: DataType, chunk: _Chunk, i: int, at: Reader) -> Any:
    if not t.is_bytes:
        return at.goto(chunk.keys + i * chunk.width).value(t)
    offset = at.goto(chunk.keys + 4 * i).number(">i")
    return at.goto(chunk.keys + chunk.offsets_size + offset).value(t)


# ---- writing ---------------------------------------------------------------------------------------------


def encode(found: Distinct, chunk_size: int) -> bytes:
    """The index of a column."""
    n = len(found)
    dictionary = _encode_dictionary(found, chunk_size)
    header = _VERSION.to_bytes(1, "big") + found.rows.to_bytes(4, "big") + n.to_bytes(4, "big")
    header += (found.encoded(0, 1) + found.encoded(n - 1, n) if n else b"") + len(dictionary).to_bytes(4, "big")
    return len(header).to_bytes(4, "big") + header + dictionary + _encode_slices(found)


def _encode_slices(found: Distinct) -> bytes:
    # a column of nulls has -1 as its highest number, and with it slices for all 64 bits
    count = max(1, (len(found) - 1).bit_length()) if len(found) else 64
    bits = slices(found.at, found.codes, count)
    present = roaring.encode(found.at)
    table, at = b"", 0
    for b in bits:
        table += at.to_bytes(4, "big") + len(b).to_bytes(4, "big")
        at += len(b)
    header = b"".join((
        _VERSION.to_bytes(1, "big"), count.to_bytes(1, "big"), len(present).to_bytes(4, "big"),
        len(table).to_bytes(4, "big"), table,
    ))  # fmt: skip
    return b"".join((len(header).to_bytes(4, "big"), header, present, *bits))


def _encode_dictionary(found: Distinct, chunk_size: int) -> bytes:
    """Chunks: a first value in the head of each, behind it as many as fit the size."""
    widths = found.widths
    ends = np.cumsum(widths)
    offsets, chunks, keys = [], [], []
    start = chunks_size = keys_size = 0
    while start < len(found):
        end = max(start + 1, int(np.searchsorted(ends, int(ends[start]) + chunk_size, side="right")))
        inner = found.encoded(start + 1, end)
        if found.numbers is None:
            places = (ends[start + 1 : end] - widths[start + 1 : end] - ends[start]).astype(">i4").tobytes()
            sizes = len(places).to_bytes(4, "big") + len(inner).to_bytes(4, "big")
            inner = places + inner
        else:
            sizes = len(inner).to_bytes(4, "big") + int(widths[start]).to_bytes(4, "big")
        head = b"".join((
            _VERSION.to_bytes(1, "big"), found.encoded(start, start + 1), start.to_bytes(4, "big"),
            keys_size.to_bytes(4, "big"), (end - start - 1).to_bytes(4, "big"), sizes,
        ))  # fmt: skip
        offsets.append(chunks_size.to_bytes(4, "big"))
        chunks.append(head)
        keys.append(inner)
        chunks_size += len(head)
        keys_size += len(inner)
        start = end
    header = b"".join((
        _VERSION.to_bytes(1, "big"), len(offsets).to_bytes(4, "big"), (4 * len(offsets)).to_bytes(4, "big"),
        chunks_size.to_bytes(4, "big"),
    ))  # fmt: skip
    return b"".join((len(header).to_bytes(4, "big"), header, *offsets, *chunks, *keys))
