# SPDX-License-Identifier: Apache-2.0
"""Bloom filters over a column: a value that was never added is in no row.

Agrees with: BloomFilterFileIndex, BloomFilter64, FastHash (2.0.0). Nulls are not added, so only equality is answered.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest
from shoal.format.index_values import Question, Reader
from shoal.format.indexed_column import Values, canonical
from shoal.format.types import DataType

if TYPE_CHECKING:
    from pyroaring import BitMap

_MASK = (1 << 64) - 1
_MOST_BITS = 2**31 - 1
HASHED = (
    "CHAR", "VARCHAR", "BINARY", "VARBINARY", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE",
    "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
)  # fmt: skip


def rows(q: Question, index: Reader) -> BitMap | None:
    """No row, or None: some row may have one of the values."""
    from pyroaring import BitMap

    if q.op != "=" or q.type.root not in HASHED:
        return None
    hashes = index.number(">i")
    bits = index.data[index.at :]
    if hashes < 1 or not len(bits):
        raise ValueError(f"a bloom filter of {hashes} hashes in {len(bits)} bytes")
    return None if any(_may_hold(hash64(q.type, v), hashes, bits) for v in q.values) else BitMap()


def _may_hold(value: int, hashes: int, bits: memoryview) -> bool:
    first, second, size = _int32(value), _int32(value >> 32), len(bits) * 8
    for i in range(1, hashes + 1):
        at = _int32(first + i * second)
        at = (~at if at < 0 else at) % size
        if not bits[at >> 3] >> (at & 7) & 1:
            return False
    return True


def hash64(t: DataType, value: Any) -> int:
    """The hash of a value as the index stores values, unsigned."""
    import xxhash

    if isinstance(value, bytes):
        return int(xxhash.xxh64_intdigest(value))
    if isinstance(value, float):
        return _mix(_float_bits(t, value))
    return _mix(value)


def _float_bits(t: DataType, value: float) -> int:
    """Java's floatToIntBits: a NaN has one pattern."""
    if value != value:
        return 0x7FC00000 if t.root == "FLOAT" else 0x7FF8000000000000
    narrow = t.root == "FLOAT"
    (bits,) = struct.unpack(">i" if narrow else ">q", struct.pack(">f" if narrow else ">d", value))
    return int(bits)


def _mix(k: int) -> int:
    """Thomas Wang's hash of 64 bits, with the sign carried in its right shifts."""
    k = _int64(~k + (k << 21))
    k ^= k >> 24
    k = _int64(k * 265)
    k ^= k >> 14
    k = _int64(k * 21)
    k ^= k >> 28
    return (k + (k << 31)) & _MASK


def _int64(k: int) -> int:
    k &= _MASK
    return k - (1 << 64) if k >> 63 else k


def _int32(k: int) -> int:
    k &= 0xFFFFFFFF
    return k - (1 << 32) if k >> 31 else k


# ---- writing ---------------------------------------------------------------------------------------------


class Filter:
    """A filter that takes values batch by batch; its size is fixed by how many values it is made for."""

    def __init__(self, t: DataType, items: int, fpp: float) -> None:
        bits = min(int(-items * math.log(fpp) / (math.log(2) * math.log(2))), _MOST_BITS)
        self._size = bits + 8 - bits % 8
        if self._size > _MOST_BITS:
            raise BadRequest(f"a bloom filter of {items} items is too large", hint="lower its 'items' or raise 'fpp'")
        self._hashes = max(1, math.floor(self._size / items * math.log(2) + 0.5))
        self._bits = np.zeros(self._size // 8, np.uint8)
        self._type = t

    def add(self, values: Values) -> None:
        h = _hashes(values, self._type)
        first = h.astype(np.uint32).view(np.int32)
        second = (h >> np.uint64(32)).astype(np.uint32).view(np.int32)
        for i in range(1, self._hashes + 1):
            at = first + second * np.int32(i)  # both wrap around, as Java's ints do
            at = np.where(at < 0, ~at, at) % self._size
            np.bitwise_or.at(self._bits, at >> 3, (1 << (at & 7)).astype(np.uint8))

    def encode(self) -> bytes:
        return self._hashes.to_bytes(4, "big") + self._bits.tobytes()


def _hashes(values: Values, t: DataType) -> np.ndarray[Any, np.dtype[np.uint64]]:
    if values.numbers is None:
        import xxhash

        assert values.text is not None
        # the hash library takes one text at a time: each different one is hashed once
        different = values.text.unique().to_pylist()
        return np.fromiter((xxhash.xxh64_intdigest(v) for v in different), np.uint64, len(different))
    v = values.numbers
    if v.dtype.kind == "f":
        v = canonical(v).view(f"i{v.dtype.itemsize}")
    k = np.unique(v).astype(np.int64)
    k = ~k + (k << 21)
    k ^= k >> 24
    k = k * 265
    k ^= k >> 14
    k = k * 21
    k ^= k >> 28
    return (k + (k << 31)).view(np.uint64)
