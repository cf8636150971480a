# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors: which rows of a data file are gone, by position.

Agrees with: DeletionVector, BitmapDeletionVector, Bitmap64DeletionVector, DeletionFileWriter (2.0.0). Invariant: the
magic number says which of the two layouts a vector has, never an option: one index file may hold both. The checksum
is checked, which Java leaves out: a damaged vector would give wrong rows without a word.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from struct import error as struct_error
from struct import pack, unpack_from
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from shoal.errors import Corrupt
from shoal.format import roaring

INDEX_TYPE = "DELETION_VECTORS"

_VERSION = 1  # first byte of an index file
_MAGIC_32 = pack(">i", 1581511376)
_MAGIC_64 = pack("<i", 1681511377)
_EDGES = 8  # a length field in front and a checksum behind


class DvRange(NamedTuple):
    """Where the vector of one data file lies in an index file. What `length` counts depends on the layout."""

    file_name: str
    offset: int
    length: int
    cardinality: int | None = None


class DeletionVector:
    """Positions of deleted rows in one data file. `positions` ascend; a vector never changes."""

    def __init__(self, positions: NDArray[np.int64], bits64: bool = False) -> None:
        self.positions = positions
        self.bits64 = bits64

    @classmethod
    def of(cls, positions: Iterable[int] | NDArray[Any], bits64: bool = False) -> DeletionVector:
        """A vector of positions in any order."""
        at = positions if isinstance(positions, np.ndarray) else np.fromiter(positions, np.int64)
        return cls(np.unique(at.astype(np.int64)), bits64)

    @property
    def cardinality(self) -> int:
        return len(self.positions)

    def keep(self, start: int, count: int) -> NDArray[np.bool_]:
        """A mask of the rows `start` to `start + count`: true for those that are not deleted."""
        mask = np.ones(count, np.bool_)
        a, b = np.searchsorted(self.positions, (start, start + count))
        mask[self.positions[a:b] - start] = False
        return mask

    def contains(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """For each position whether its row is deleted."""
        if not len(self.positions):
            return np.zeros(len(rows), np.bool_)
        at = np.searchsorted(self.positions, rows)
        at[at == len(self.positions)] = 0
        return self.positions[at] == rows

    @cached_property
    def last(self) -> int:
        """The highest deleted position, -1 when there is none."""
        return int(self.positions[-1]) if len(self.positions) else -1


def span(r: DvRange, file_size: int) -> tuple[int, int]:
    """(offset, length) of bytes that hold the whole vector of a range, whichever layout it has."""
    return r.offset, max(0, min(r.length + _EDGES, file_size - r.offset))


def decode_vector(data: bytes, path: str, length: int | None = None) -> DeletionVector:
    """The vector at the start of `data`; bytes behind it are left alone. `length` is the range's, when it is known."""
    try:
        (size,) = unpack_from(">i", data)
        body = data[4 : 4 + size]
        (crc,) = unpack_from(">I", data, 4 + size)
    except struct_error as err:
        raise Corrupt(f"{path}: the deletion vector is cut off at {len(data)} bytes") from err
    if size < 4:
        raise Corrupt(f"{path}: a deletion vector of {size} bytes")
    magic = body[:4]
    if magic not in (_MAGIC_32, _MAGIC_64):
        raise Corrupt(f"{path}: a deletion vector starts with {magic.hex()}", hint="the file is damaged")
    if length is not None and length != (size if magic == _MAGIC_32 else size + _EDGES):
        raise Corrupt(f"{path}: a deletion vector of {size} bytes where the manifest says {length}")
    if zlib.crc32(body) != crc:
        raise Corrupt(f"{path}: the checksum of a deletion vector does not match", hint="the file is damaged")
    if magic == _MAGIC_64:
        return DeletionVector(_positions_64(body, path), bits64=True)
    bitmap, end = roaring.read(body, 4, path)
    if end != len(body):
        raise Corrupt(f"{path}: a deletion vector of {len(body)} bytes ends at {end}")
    return DeletionVector(_array(bitmap))


def _array(bitmap: BitMap) -> NDArray[np.int64]:
    return np.frombuffer(bitmap.to_array(), np.uint32).astype(np.int64)


def _positions_64(body: bytes, path: str) -> NDArray[np.int64]:
    """A count, then a bitmap for each value of the upper 32 bits; missing ones are empty."""
    try:
        (count,) = unpack_from("<q", body, 4)
        at, last = 12, -1
        parts = [np.empty(0, np.int64)]
        for _ in range(count):
            (key,) = unpack_from("<i", body, at)
            if key <= last:
                raise Corrupt(f"{path}: the bitmaps of a deletion vector are out of order", hint="the file is damaged")
            bitmap, at = roaring.read(body, at + 4, path)
            parts.append(_array(bitmap) + (key << 32))
            last = key
    except struct_error as err:
        raise Corrupt(f"{path}: the deletion vector is cut off", hint="the file is damaged") from err
    if count < 0 or at != len(body):
        raise Corrupt(f"{path}: a deletion vector of {len(body)} bytes ends at {at}")
    return np.concatenate(parts)


def encode_vector(vector: DeletionVector) -> bytes:
    """The bytes of a vector in the layout it has, with its length in front and its checksum behind."""
    at = vector.positions
    if vector.bits64:
        parts = [_MAGIC_64, pack("<q", (vector.last >> 32) + 1)]
        for key in range((vector.last >> 32) + 1):  # Java has one for every key up to the last
            a, b = np.searchsorted(at, (key << 32, (key + 1) << 32))
            parts += [pack("<i", key), roaring.encode(at[a:b] - (key << 32))]
        body = b"".join(parts)
    else:
        body = _MAGIC_32 + roaring.encode(at)
    return pack(">i", len(body)) + body + pack(">I", zlib.crc32(body))


def encode_file(vectors: Mapping[str, DeletionVector]) -> tuple[bytes, tuple[DvRange, ...]]:
    """(an index file, its ranges), vectors in the order given. One without vectors is a file of one byte."""
    out = bytearray([_VERSION])
    ranges = []
    for name, vector in vectors.items():
        raw = encode_vector(vector)
        length = len(raw) if vector.bits64 else len(raw) - _EDGES
        ranges.append(DvRange(name, len(out), length, vector.cardinality))
        out += raw
    return bytes(out), tuple(ranges)


def decode_file(data: bytes, ranges: Iterable[DvRange], path: str) -> dict[str, DeletionVector]:
    """The vectors of a whole index file, by the name of their data file."""
    if data[:1] != bytes([_VERSION]):
        raise Corrupt(f"{path}: a deletion vector file of version {data[:1].hex() or 'nothing'}", hint="upgrade shoal")
    out = {}
    for r in ranges:
        at, size = span(r, len(data))
        vector = decode_vector(data[at : at + size], path, r.length)
        if r.cardinality is not None and r.cardinality != vector.cardinality:
            raise Corrupt(
                f"{path}: the vector of {r.file_name} deletes {vector.cardinality} rows"
                f" where the manifest says {r.cardinality}"
            )
        out[r.file_name] = vector
    return out
