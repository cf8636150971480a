# SPDX-License-Identifier: Apache-2.0
"""BinaryRow: the bytes of partitions, keys and column bounds in manifests.

Agrees with: BinaryRow, BinaryRowWriter, SerializationUtils (2.0.0). Values cross this module in their
stored form: strings and binaries as bytes, dates as days, times as milliseconds, timestamps as nanoseconds
since the epoch, decimals as unscaled integers. Invariant: `decode(types, encode(types, v)) == v`, and the bytes
equal Java's, including the space that a null decimal or timestamp still reserves.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt, Unsupported
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

Value = None | bool | int | float | bytes
_PACK = {
    "TINYINT": "<b",
    "SMALLINT": "<h",
    "INT": "<i",
    "DATE": "<i",
    "TIME": "<i",
    "BIGINT": "<q",
    "FLOAT": "<f",
    "DOUBLE": "<d",
}
_EXACT = Context(prec=80)  # the default context rounds to 28 digits
UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def bitset_width(arity: int) -> int:
    """Bytes of row kind and null bits: 8 up to 56 fields."""
    return (arity + 63 + 8) // 64 * 8


def is_wide(t: DataType) -> bool:
    """Decimals above 18 digits and timestamps above 3: their value lies in the variable part, null or not."""
    if t.root == "DECIMAL":
        return (t.precision or 10) > 18
    return t.is_timestamp and (t.precision or 0) > 3


def encode(types: Sequence[DataType], values: Sequence[Value]) -> bytes:
    """The row with its 4-byte big-endian arity in front."""
    width = bitset_width(len(types))
    head = bytearray(width + 8 * len(types))
    tail = bytearray()
    for i, (t, v) in enumerate(zip(types, values)):
        at = width + 8 * i
        if v is None:
            head[(i + 8) // 8] |= 1 << ((i + 8) % 8)
            if is_wide(t):
                struct.pack_into("<q", head, at, (len(head) + len(tail)) << 32)
                tail += bytes(16 if t.root == "DECIMAL" else 8)
        elif t.root == "BOOLEAN":
            head[at] = 1 if v else 0
        elif t.root in _PACK:
            struct.pack_into(_PACK[t.root], head, at, v)
        elif t.root == "DECIMAL":
            assert isinstance(v, int)
            if is_wide(t):
                raw = v.to_bytes((v + (v < 0)).bit_length() // 8 + 1, "big", signed=True)
                struct.pack_into("<q", head, at, (len(head) + len(tail)) << 32 | len(raw))
                tail += raw.ljust(16, b"\0")
            else:
                struct.pack_into("<q", head, at, v)
        elif t.is_timestamp:
            assert isinstance(v, int)
            ms, rest = divmod(v, 1_000_000)
            if is_wide(t):
                struct.pack_into("<q", head, at, (len(head) + len(tail)) << 32 | rest)
                tail += struct.pack("<q", ms)
            else:
                struct.pack_into("<q", head, at, ms)
        elif t.is_bytes:
            assert isinstance(v, bytes)
            if len(v) <= 7:
                head[at : at + len(v)] = v
                head[at + 7] = 0x80 | len(v)
            else:
                struct.pack_into("<q", head, at, (len(head) + len(tail)) << 32 | len(v))
                tail += v.ljust((len(v) + 7) // 8 * 8, b"\0")
        else:
            raise Unsupported(f"a {t} cannot be part of a key, partition or column bound here")
    return len(types).to_bytes(4, "big") + bytes(head) + bytes(tail)


def decode(types: Sequence[DataType], data: bytes, path: str = "row") -> list[Value]:
    """Values of a row with arity prefix. `Corrupt` (naming `path`) when the bytes do not fit the types."""
    try:
        arity = int.from_bytes(data[:4], "big")
        if arity != len(types):
            raise Corrupt(f"{path}: a row of {arity} fields where {len(types)} were expected")
        return [_decode_one(t, data, i, bitset_width(arity)) for i, t in enumerate(types)]
    except (struct.error, IndexError) as err:
        raise Corrupt(f"{path}: a row of {len(data)} bytes is too short for its fields") from err


def _decode_one(t: DataType, data: bytes, i: int, width: int) -> Value:
    if data[4 + (i + 8) // 8] >> ((i + 8) % 8) & 1:
        return None
    at = 4 + width + 8 * i
    if t.root == "BOOLEAN":
        return data[at] != 0
    if t.root in _PACK:
        value: Value = struct.unpack_from(_PACK[t.root], data, at)[0]
        return value
    (slot,) = struct.unpack_from("<q", data, at)
    assert isinstance(slot, int)
    if t.root == "DECIMAL":
        if not is_wide(t):
            return slot
        return int.from_bytes(_part(data, slot >> 32, slot & 0xFFFFFFFF), "big", signed=True)
    if t.is_timestamp:
        if not is_wide(t):
            return slot * 1_000_000
        (ms,) = struct.unpack_from("<q", data, 4 + (slot >> 32))
        return int(ms) * 1_000_000 + (slot & 0xFFFFFFFF)
    if t.is_bytes:
        mark = data[at + 7]
        if mark & 0x80:
            return data[at : at + (mark & 0x7F)]
        return _part(data, slot >> 32, slot & 0xFFFFFFFF)
    raise Unsupported(f"a {t} cannot be read from a key, partition or column bound here")


def _part(data: bytes, offset: int, length: int) -> bytes:
    part = data[4 + offset : 4 + offset + length]
    if len(part) != length:
        raise IndexError
    return part


def order_key(t: DataType, v: Value) -> Any:
    """A value that compares the way Java compares `v` (not null): doubles in total order, bytes unsigned."""
    if isinstance(v, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", math.nan if v != v else v))
        return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF) - 1
    return v


def key_tuple(types: tuple[DataType, ...], data: bytes) -> tuple[Any, ...]:
    """A key row as a tuple that compares in Paimon's key order."""
    return tuple(order_key(t, v) for t, v in zip(types, decode(types, data)))


def stored_values(column: pa.Array, t: DataType) -> list[Value]:
    """An Arrow column of this type as stored values (see the module). For a handful of rows, not for data."""
    import pyarrow as pa

    if t.root == "DATE":
        column = column.cast(pa.date32()).view(pa.int32())
    elif t.root == "TIME":
        column = column.cast(pa.time32("ms")).view(pa.int32())
    elif t.is_timestamp and t.wide and pa.types.is_decimal(column.type):
        return [None if v is None else int(v.scaleb(9, _EXACT)) for v in column.to_pylist()]
    elif t.is_timestamp:
        scale = UNIT_NS[column.type.unit]
        return [None if v is None else v * scale for v in column.view(pa.int64()).to_pylist()]
    elif t.root == "DECIMAL":
        return [None if v is None else int(v.scaleb(t.scale or 0, _EXACT)) for v in column.to_pylist()]
    elif t.is_bytes and not pa.types.is_binary(column.type):
        column = column.cast(pa.string()).cast(pa.binary())
    values: list[Value] = column.to_pylist()
    return values


def arrow_column(values: Sequence[Value], t: DataType) -> pa.Array:
    """Stored values as an Arrow column of this type. Nanoseconds that a column's unit cannot hold are cut."""
    import pyarrow as pa

    target = to_arrow(t)
    if t.root in ("DATE", "TIME"):
        return pa.array(values, pa.int32()).view(target)
    if t.is_timestamp and pa.types.is_decimal(target):
        return pa.array([None if v is None else Decimal(int(v)).scaleb(-9, _EXACT) for v in values], target)
    if t.is_timestamp:
        scale = UNIT_NS[target.unit]
        return pa.array([None if v is None else int(v) // scale for v in values], pa.int64()).view(target)
    if t.root == "DECIMAL":
        return pa.array(
            [None if v is None else Decimal(int(v)).scaleb(-(t.scale or 0), _EXACT) for v in values], target
        )
    if t.is_bytes and pa.types.is_string(target):
        return pa.array(values, pa.binary()).cast(pa.string())
    return pa.array(values, target)
