# SPDX-License-Identifier: Apache-2.0
"""Lists, maps and rows within them as Java's BinaryArray, BinaryMap and BinaryRow, a whole column at a time.

Both layouts are a header with a bit for each null, slots of fixed width, and a part for what does not fit a slot, which
then holds offset and size. Agrees with: BinaryArrayWriter, BinaryRowWriter, AbstractBinaryWriter (2.0.0). Invariant:
bytes equal those of Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Unsupported
from shoal.format.byte_columns import Array, Pieces, fixed, minimal_decimals, runs_of, side_by_side, texts
from shoal.format.instants import parts as instant_parts
from shoal.format.row import bitset_width, is_wide
from shoal.format.shape import list_parts, map_parts
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_WIDTHS = {"BOOLEAN": 1, "TINYINT": 1, "SMALLINT": 2, "INT": 4, "DATE": 4, "TIME": 4, "FLOAT": 4}
_LISTS, _MAPS = ("ARRAY",), ("MAP", "MULTISET")
_SLOT = 8
_INLINE = 7  # bytes that a slot holds itself


def can_nest(t: DataType) -> bool:
    """Whether values of this type are written here."""
    match t.root:
        case "ARRAY":
            return t.element is not None and can_nest(t.element)
        case "MAP" | "MULTISET":
            return all(can_nest(part) for part in map_parts(t))
        case "ROW":
            return all(can_nest(f.type) for f in t.fields)
    return t.root in (*_WIDTHS, "BIGINT", "DOUBLE", "DECIMAL") or t.is_timestamp or (t.is_bytes and t.root != "BLOB")


def arrays(a: pa.Array, element: DataType) -> Pieces:
    """A BinaryArray for each list of an array without nulls."""
    counts, (values,) = list_parts(a)
    return _arrays(np.asarray(counts, np.int64), values, element)


def maps(a: pa.Array, t: DataType) -> Pieces:
    """A BinaryMap for each map of an array without nulls: the size of the keys, keys, values."""
    counts, (keys, values) = list_parts(a)
    key, value = map_parts(t)
    many = np.asarray(counts, np.int64)
    first, second = _arrays(many, keys, key), _arrays(many, values, value)
    return side_by_side([fixed(first[1].astype(np.int32), 4), first, second], len(many))


def rows(a: pa.Array, t: DataType) -> Pieces:
    """A BinaryRow for each value of a struct array without nulls."""
    count, width = len(a), bitset_width(len(t.fields))
    header = np.zeros((count, width), np.uint8)
    at = np.full(count, width + _SLOT * len(t.fields), np.int64)
    parts: list[Pieces] = []
    variable: list[Pieces] = []
    for i, f in enumerate(t.fields):
        column = a.field(i)
        slots = _slots(column, f.type, _SLOT, reserves=is_wide(f.type))
        if column.null_count:
            header[:, (i + 8) // 8] |= (~np.asarray(column.is_valid())).view(np.uint8) << (i % 8)
        parts.append(_flat(slots.placed(at)))
        if slots.variable is not None:
            variable.append(slots.variable)
            at = at + slots.variable[1]
    return side_by_side([_flat(header), *parts, *variable], count)


def _flat(m: Array) -> Pieces:
    """The rows of a matrix of bytes."""
    return np.ascontiguousarray(m).reshape(-1), np.full(len(m), m.shape[1], np.int64)


def _arrays(counts: Array, values: pa.Array, t: DataType) -> Pieces:
    lists, width = len(counts), _WIDTHS.get(t.root, _SLOT)
    slots = _slots(values, t, width, reserves=False)
    words = 4 * ((counts + 31) // 32)
    filled = 4 + words + width * counts
    padding = -filled % 8
    owner = np.repeat(np.arange(lists), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    nulls = np.zeros(int(words.sum()), np.uint8)
    if values.null_count:
        some = np.flatnonzero(~np.asarray(values.is_valid()))
        bit = within[some]
        at = (np.cumsum(words) - words)[owner[some]] + bit // 8
        np.bitwise_or.at(nulls, at, np.left_shift(1, bit % 8).astype(np.uint8))
    variable: Pieces = (np.empty(0, np.uint8), np.zeros(lists, np.int64))
    offsets = np.zeros(len(owner), np.int64)
    if slots.variable is not None:
        lengths = slots.variable[1]
        before = np.concatenate(([0], np.cumsum(lengths)))[:-1]
        variable = runs_of(*slots.variable, counts)
        offsets = (filled + padding)[owner] + before - np.repeat(np.cumsum(variable[1]) - variable[1], counts)
    parts: list[Pieces] = [
        fixed(counts.astype(np.int32), 4),
        (nulls, words),
        (np.ascontiguousarray(slots.placed(offsets)).reshape(-1), width * counts),
        (np.zeros(int(padding.sum()), np.uint8), padding),
        variable,
    ]
    return side_by_side(parts, lists)


# ---- slots


@dataclass(frozen=True, slots=True)
class _Slots:
    """Bytes of each slot, what lies behind the slots, and which slots point there, with what size."""

    bytes: Array
    variable: Pieces | None = None
    points: Array | None = None
    sizes: Array | None = None

    def placed(self, at: Array) -> Array:
        """The slots, where what each points to begins at `at`."""
        if self.points is None or self.sizes is None:
            return self.bytes
        pointers = np.ascontiguousarray((at << 32) | self.sizes).view(np.uint8).reshape(-1, _SLOT)
        return np.where(self.points[:, None], pointers, self.bytes)


def _slots(a: pa.Array, t: DataType, width: int, *, reserves: bool) -> _Slots:
    """`reserves`: a null keeps room for a value, and a pointer to it."""
    count = len(a)
    out = np.zeros((count, width), np.uint8)
    valid = np.asarray(a.is_valid()) if a.null_count else np.ones(count, bool)
    dense = a.drop_null() if a.null_count else a
    if t.is_bytes or t.is_nested:
        flat, lengths = _bytes_of(dense, t)
        inline = (lengths <= _INLINE) if t.is_bytes else np.zeros(len(lengths), bool)
        starts = np.cumsum(lengths) - lengths
        where = np.flatnonzero(valid)
        if inline.any():
            short, size = where[inline], lengths[inline]
            place = (
                np.repeat(short * width, size) + np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            )
            source = (
                np.repeat(starts[inline], size) + np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            )
            out.reshape(-1)[place] = flat[source]
            out[short, _INLINE] = 0x80 | size.astype(np.uint8)
        long = ~inline
        kept = np.repeat(long, lengths)
        padded = _padded((flat[kept], lengths[long]))
        points, sizes = np.zeros(count, bool), np.zeros(count, np.int64)
        points[where[long]], sizes[where[long]] = True, lengths[long]
        spread = np.zeros(count, np.int64)
        spread[where[long]] = padded[1]
        return _Slots(out, (padded[0], spread), points, sizes)
    if is_wide(t):
        return _wide(dense, t, valid, out, reserves=reserves)
    values = _numbers(dense, t)
    out[valid, : values.shape[1]] = values
    return _Slots(out)


def _bytes_of(a: pa.Array, t: DataType) -> Pieces:
    if t.root in _LISTS:
        assert t.element is not None
        return arrays(a, t.element)
    if t.root in _MAPS:
        return maps(a, t)
    if t.root == "ROW":
        return rows(a, t)
    if t.is_nested:
        raise Unsupported(f"lookup files take no {t} within another type")
    return texts(a)


def _padded(p: Pieces) -> Pieces:
    """The same bytes, zeros behind them up to the next word."""
    padding = -p[1] % _SLOT
    return side_by_side([p, (np.zeros(int(padding.sum()), np.uint8), padding)], len(padding))


def _wide(a: pa.Array, t: DataType, valid: Array, out: Array, *, reserves: bool) -> _Slots:
    """Decimals and timestamps that do not fit a slot."""
    count = len(valid)
    sizes, points = np.zeros(count, np.int64), valid | reserves
    if t.root == "DECIMAL":
        flat, lengths = minimal_decimals(a)
        room = 16
        block = np.zeros((count, room), np.uint8)
        mask = np.zeros((count, room), bool)
        mask[valid] = np.arange(room) < lengths[:, None]
        block[mask] = flat
        sizes[valid] = lengths
    else:
        seconds, nanos = instant_parts(a)
        room = 8
        block = np.zeros((count, room), np.uint8)
        block[valid] = np.ascontiguousarray(seconds * 1000 + nanos // 1_000_000).view(np.uint8).reshape(-1, room)
        sizes[valid] = nanos % 1_000_000
    return _Slots(out, (block[points].reshape(-1), room * points.astype(np.int64)), points, sizes)


def _numbers(a: pa.Array, t: DataType) -> Array:
    """The bytes of each number."""
    import pyarrow as pa

    if t.is_timestamp:
        seconds, nanos = instant_parts(a)
        values: Array = seconds * 1000 + nanos // 1_000_000
    elif t.root == "DECIMAL":
        values = np.frombuffer(a.buffers()[1] or b"", np.int64)[2 * a.offset : 2 * (a.offset + len(a)) : 2]
    elif t.root == "BOOLEAN":
        values = a.cast(pa.uint8()).to_numpy()
    elif t.root in ("DATE", "TIME"):
        values = a.view(pa.int32()).to_numpy()
    else:
        values = a.to_numpy()
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(a), -1)
