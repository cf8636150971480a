# SPDX-License-Identifier: Apache-2.0
"""BinaryRows of many files as columns of text, the way Java prints the values: `[1, a]`, `2024-01-01T00:00`, `null`.

System tables show keys and column bounds of every file, so whole columns are decoded at once. Agrees with:
RowDataToObjectArrayConverter, InternalRowUtils.get with toString (2.0.0), but for binary values: Java prints the
identity of an array object, this prints hexadecimal digits. Invariant: a row of another arity, or one that ends before
its fields do, is `Corrupt`.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt
from shoal.format.float_text import java_text
from shoal.format.paths import decimal_text, timestamp_text
from shoal.format.row import bitset_width, is_wide
from shoal.format.types import DataType, to_arrow, unit

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_INTS = {"TINYINT": "<i1", "SMALLINT": "<i2", "INT": "<i4", "DATE": "<i4", "TIME": "<i4", "BIGINT": "<i8"}
_FLOATS = {"FLOAT": "<f4", "DOUBLE": "<f8"}
_ARITY = 4  # bytes of the arity in front of a row
_EXACT = decimal.Context(prec=64)


def text_columns(types: Sequence[DataType], rows: pa.Array, what: str) -> list[pa.Array]:
    """One string column a field; null where the field is. `what` names the rows in errors."""
    if not len(rows):
        import pyarrow as pa

        return [pa.array([], pa.string()) for _ in types]
    at = _Rows(types, rows, what)
    return [at.texts(i, t) for i, t in enumerate(types)]


def typed_column(types: Sequence[DataType], rows: pa.Array, i: int, as_type: DataType, what: str) -> pa.Array:
    """The values of field `i`, in the Arrow type of `as_type`: the field's own type, or the same one widened."""
    import pyarrow as pa

    return _Rows(types, rows, what).values(i, as_type) if len(rows) else pa.array([], to_arrow(as_type))


def value_text(t: DataType, a: pa.Array) -> pa.Array:
    """Arrow values of a type as Java prints its internal form: days of a DATE, `2024-01-01T00:00` of a TIMESTAMP."""
    import pyarrow as pa

    match t.root:
        case "BOOLEAN" | "CHAR" | "VARCHAR" | "TINYINT" | "SMALLINT" | "INT" | "BIGINT":
            return a.cast(pa.string())
        case "DATE" | "TIME":
            return a.view(pa.int32()).cast(pa.string())
        case "FLOAT" | "DOUBLE":
            filled = java_text(a.fill_null(0).to_numpy())
            return pa.compute.if_else(a.is_valid(), filled, pa.scalar(None, pa.string()))
        case "DECIMAL":
            return pa.array([None if v is None else format(v, "f") for v in a.to_pylist()], pa.string())
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            return pa.array([None if v is None else timestamp_text(v, "T", None) for v in _nanos(a)], pa.string())
    return pa.array([None if v is None else v.hex() for v in a.to_pylist()], pa.string())


def _nanos(a: pa.Array) -> list[int | None]:
    import pyarrow as pa

    if pa.types.is_decimal(a.type):
        return [None if v is None else int(v.scaleb(9)) for v in a.to_pylist()]
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[a.type.unit]
    return [None if v is None else v * scale for v in a.view(pa.int64()).to_pylist()]


class _Rows:
    """Rows of one arity: their bytes, and where each starts and ends."""

    def __init__(self, types: Sequence[DataType], rows: pa.Array, what: str) -> None:
        import pyarrow as pa

        rows = rows.cast(pa.large_binary())
        _, offsets, data = rows.buffers()
        ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
        self.data: Bytes = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self.starts, self.ends = ends[:-1] + _ARITY, ends[1:]
        self.what = what
        self.width = bitset_width(len(types))
        head = self.width + 8 * len(types)
        if rows.null_count or (self.starts + head > self.ends).any():
            raise Corrupt(f"{what}: a row is too short for its {len(types)} fields", hint="the manifest is damaged")
        arity = self.data[self.starts[:, None] + np.arange(-_ARITY, 0)].copy().view(">u4")[:, 0]
        if (arity != len(types)).any():
            raise Corrupt(f"{what}: a row of {arity[arity != len(types)][0]} fields where {len(types)} were expected")
        self.head: Bytes = self.data[self.starts[:, None] + np.arange(head)]

    def texts(self, i: int, t: DataType) -> pa.Array:
        """The texts of field `i`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        null, at, slot = self._slot(i)
        if null.all() or t.is_nested:
            return pa.nulls(len(null), pa.string())
        return pc.if_else(pa.array(~null), self._texts(at, slot, t), pa.scalar(None, pa.string()))

    def values(self, i: int, t: DataType) -> pa.Array:
        """The values of field `i`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        null, at, slot = self._slot(i)
        kind = to_arrow(t)
        if null.all() or t.is_nested:
            return pa.nulls(len(null), kind)
        return pc.if_else(pa.array(~null), self._values(at, slot, t).cast(kind), pa.scalar(None, kind))

    def _slot(self, i: int) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int, Bytes]:
        """(where field `i` is null, where its slot lies in a row, the eight bytes of it in each row)."""
        null = (self.head[:, (i + 8) // 8] >> ((i + 8) % 8) & 1).astype(bool)
        at = self.width + 8 * i
        return null, at, np.where(null[:, None], 0, self.head[:, at : at + 8]).astype(np.uint8)

    def _values(self, at: int, slot: Bytes, t: DataType) -> pa.Array:
        """The values of a slot, in a type that casts to the field's; what stands for a null does not matter."""
        import pyarrow as pa

        if t.root == "BOOLEAN":
            return pa.array(slot[:, 0] != 0)
        if t.root in _INTS:
            values = pa.array(slot.view(_INTS[t.root])[:, 0])
            return values.view(to_arrow(t)) if t.root in ("DATE", "TIME") else values
        if t.root in _FLOATS:
            return pa.array(slot.view(_FLOATS[t.root])[:, 0])
        words: Ints = slot.view("<i8")[:, 0]
        if t.is_bytes:
            return self._bytes(at, slot, words, t)
        if t.root == "DECIMAL":
            whole = self._unscaled(words, t)
            return pa.array([decimal.Decimal(v).scaleb(-(t.scale or 0), _EXACT) for v in whole], to_arrow(t))
        nanos = self._stamps(words, t)
        if t.wide:
            return pa.array([decimal.Decimal(v).scaleb(-9, _EXACT) for v in nanos], to_arrow(t))
        scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit(t.precision or 0)]
        return pa.array([v // scale for v in nanos], pa.int64()).cast(to_arrow(t))

    def _texts(self, at: int, slot: Bytes, t: DataType) -> pa.Array:
        import pyarrow as pa

        if t.root == "BOOLEAN":
            return pa.array(slot[:, 0] != 0).cast(pa.string())
        if t.root in _INTS:
            values = slot.view(_INTS[t.root])[:, 0]
            return pa.array(values.astype(np.int64)).cast(pa.string())
        if t.root in _FLOATS:
            return java_text(slot.view(_FLOATS[t.root])[:, 0])
        words: Ints = slot.view("<i8")[:, 0]
        if t.is_bytes:
            values = self._bytes(at, slot, words, t)
            return values if t.root in ("CHAR", "VARCHAR") else pa.array([v.hex() for v in values.to_pylist()])
        if t.root == "DECIMAL":
            scale = t.scale or 0
            if not is_wide(t):
                return _each(words, lambda v: decimal_text(v, scale))
            return pa.array([decimal_text(v, scale) for v in self._unscaled(words, t)])
        if not is_wide(t):
            return _each(words, lambda v: timestamp_text(v * 1_000_000, "T", None))
        return pa.array([timestamp_text(v, "T", None) for v in self._stamps(words, t)])

    def _unscaled(self, words: Ints, t: DataType) -> list[int]:
        """The whole numbers of a DECIMAL."""
        if not is_wide(t):
            return words.tolist()
        raw = self._slices(words >> 32, words & 0xFFFFFFFF).to_pylist()
        return [int.from_bytes(b, "big", signed=True) for b in raw]

    def _stamps(self, words: Ints, t: DataType) -> list[int]:
        """Nanoseconds since 1970 of a TIMESTAMP."""
        if not is_wide(t):
            return [v * 1_000_000 for v in words.tolist()]
        eight = np.full(len(words), 8)
        ms = np.frombuffer(b"".join(self._slices(words >> 32, eight).to_pylist()), "<i8")
        return [a * 1_000_000 + b for a, b in zip(ms.tolist(), (words & 0xFFFFFFFF).tolist())]

    def _bytes(self, at: int, slot: Bytes, words: Ints, t: DataType) -> pa.Array:
        """Strings and binaries: up to 7 bytes lie in the slot, longer ones behind the fixed part."""
        import pyarrow as pa

        mark = slot[:, 7].astype(np.int64)
        inline = mark & 0x80 != 0
        values = self._slices(np.where(inline, at, words >> 32), np.where(inline, mark & 0x7F, words & 0xFFFFFFFF))
        if t.root not in ("CHAR", "VARCHAR"):
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:  # a bound that was cut inside a character
            return pa.array([v.decode("utf-8", "replace") for v in values.to_pylist()])

    def _slices(self, offsets: Ints, lengths: Ints) -> pa.Array:
        """`lengths` bytes at `offsets` of each row."""
        import pyarrow as pa

        first = self.starts + offsets
        if (offsets < 0).any() or (lengths < 0).any() or (first + lengths > self.ends).any():
            raise Corrupt(f"{self.what}: a field lies outside its row", hint="the manifest is damaged")
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        index = np.repeat(first - ends[:-1], lengths) + np.arange(int(ends[-1]))
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self.data[index])]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _each(values: np.ndarray[Any, Any], text: Callable[[Any], str]) -> pa.Array:
    """Texts of values, made once for each distinct one."""
    import pyarrow as pa

    distinct, index = np.unique(values, return_inverse=True)
    return pa.array([text(v) for v in distinct.tolist()], pa.string()).take(pa.array(index))


def list_text(columns: Sequence[pa.Array]) -> pa.Array:
    """`[a, b]` a row, as Java's Arrays.toString prints it."""
    return _joined("[", ["" if i == 0 else ", " for i in range(len(columns))], columns, "]")


def map_text(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """`{a=1, b=null}` a row, sorted by name, as Java's TreeMap prints it."""
    order = sorted(range(len(names)), key=lambda i: names[i].encode("utf-16-be"))
    heads = [("" if n == 0 else ", ") + names[i] + "=" for n, i in enumerate(order)]
    return _joined("{", heads, [columns[i] for i in order], "}")


def _joined(start: str, heads: Sequence[str], columns: Sequence[pa.Array], end: str) -> pa.Array:
    import pyarrow.compute as pc

    parts: list[Any] = [start]
    for head, column in zip(heads, columns):
        parts += [head, column]
    return pc.binary_join_element_wise(*parts, end, "", null_handling="replace", null_replacement="null")
