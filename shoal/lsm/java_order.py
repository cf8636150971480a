# SPDX-License-Identifier: Apache-2.0
"""Where Java's hash tables leave their entries, for results that are a walk over one.

`collect` with `distinct`, `nested_update` and `nested_partial_update` give the entries of a HashSet or HashMap as an
array, so its order shows; `merge_map` and `merge_map_with_keytime` give the HashMap itself, and Java tells changed rows
by their bytes. Agrees with: java.util.HashMap, Decimal.hashCode, Timestamp.hashCode, BinaryString.hashCode.
Invariant: the walk is by slot of the table's size, and within a slot in order of arrival. (A slot of eight entries
becomes a tree in Java; that needs eight equal hashes of many and is not followed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.format.types import DataType
from shoal.lsm.aggregates import numbers
from shoal.lsm.versions import Array

if TYPE_CHECKING:
    import pyarrow as pa

_MASK = 0xFFFFFFFF
_ARITY = 4
"""Bytes before a serialized row."""


def walk(entries: Sequence[int], hashes: Sequence[int] | None, size: int) -> list[int]:
    """`entries` (indices into `hashes`) in the order of a table that they were put into and that held up to `size`."""
    slots = 16
    while size * 4 > slots * 3:
        slots *= 2
    return walk_slots(entries, hashes, slots)


def walk_slots(entries: Sequence[int], hashes: Sequence[int] | None, slots: int) -> list[int]:
    """The same for a table of so many slots; entries of one slot stay in the order given."""
    if hashes is None or len(entries) < 2:
        return list(entries)
    return sorted(entries, key=lambda e: ((h := hashes[e] & _MASK) ^ (h >> 16)) & (slots - 1))


def of_rows(rows: Sequence[bytes]) -> list[bytes]:
    """Different serialized rows, such as partitions, in the order of a table that they are the keys of."""
    order = walk(range(len(rows)), [_murmur(r[_ARITY:]) for r in rows], len(rows))
    return [rows[i] for i in order]


def hashes(values: pa.Array, t: DataType) -> list[int] | None:
    """hashCode of each value, 0 for null; None for types whose hash is not of the value (byte arrays)."""
    import pyarrow as pa

    v: Array
    match t.root:
        case "TINYINT" | "SMALLINT" | "INT" | "DATE" | "TIME":
            v = numbers(values).astype(np.int64)
        case "BIGINT":
            v = _folded(numbers(values))
        case "BOOLEAN":
            v = np.where(numbers(values), 1231, 1237)
        case "FLOAT" | "DOUBLE":
            v = numbers(values)
            bits = np.where(np.isnan(v), np.array(np.nan, v.dtype), v).view(f"i{v.dtype.itemsize}")
            v = bits.astype(np.int64) if t.root == "FLOAT" else _folded(bits)
        case "CHAR" | "VARCHAR":
            return _by_value(values.cast(pa.binary()), _murmur)
        case "DECIMAL":
            scale = t.scale or 0
            return _by_value(values, lambda d: 31 * _integer(int(d.scaleb(scale))) + scale)
        case "TIMESTAMP" | "TIMESTAMP_LTZ" if pa.types.is_timestamp(values.type):
            per_milli = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}[values.type.unit]
            raw = numbers(values)
            millis = raw * 1000 if per_milli < 0 else raw // per_milli
            nanos = np.zeros_like(raw) if per_milli < 0 else (raw % per_milli) * (1_000_000 // per_milli)
            v = 31 * _folded(millis) + nanos
        case _:
            return None
    if values.null_count:
        v = np.where(values.is_valid().to_numpy(zero_copy_only=False), v, 0)
    out: list[int] = (v & _MASK).tolist()
    return out


def _folded(v: Array) -> Array:
    return (v & _MASK) ^ ((v >> 32) & _MASK)


def _by_value(values: pa.Array, hash_of: object) -> list[int]:
    """Hashes by a function of one Python value: called once for each distinct value."""
    coded = values.dictionary_encode()
    assert callable(hash_of)
    known = [hash_of(v) & _MASK for v in coded.dictionary.to_pylist()]
    return [0 if i is None else known[i] for i in coded.indices.to_pylist()]


def _integer(n: int) -> int:
    """BigInteger.hashCode."""
    h, m = 0, abs(n)
    for i in reversed(range((m.bit_length() + 31) // 32)):
        h = (31 * h + ((m >> 32 * i) & _MASK)) & _MASK
    return -h if n < 0 else h


def _murmur(data: bytes) -> int:
    """MurmurHashUtils.hashBytes: whole words, then the bytes that are left one by one, signed."""
    h, even = 42, len(data) & ~3
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, even, 4)]
    for k in (*words, *(b - 256 if b > 127 else b for b in data[even:])):
        k = k * 0xCC9E2D51 & _MASK
        k = (k << 15 | k >> 17) & _MASK
        h ^= k * 0x1B873593 & _MASK
        h = (h << 13 | h >> 19) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16
