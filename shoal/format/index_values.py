# SPDX-License-Identifier: Apache-2.0
"""What file indexes share: the question a filter asks of one column, in the values that an index stores.

Agrees with: BitmapFileIndex.getValueMapper, KeyFactory, FastHash (2.0.0). Indexes store timestamps as milliseconds (up
to 3 digits) or microseconds, decimals as whole numbers, text as bytes. Invariant: a question may ask for more rows
than the filter wants, never for fewer; one that cannot be put like that is None.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt
from shoal.format.bounds import stored
from shoal.format.predicate import Compare, In, IsNull, IsValid, Leaf, Not
from shoal.format.row import order_key
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

# A CHAR may have been written with any number of blanks behind; more forms than this are not looked up.
_FORMS = 64

# Big-endian layout of a value of each type; text has its length in front.
LAYOUT = {
    "BOOLEAN": ">B", "TINYINT": ">b", "SMALLINT": ">h", "INT": ">i", "DATE": ">i", "TIME": ">i", "BIGINT": ">q",
    "FLOAT": ">f", "DOUBLE": ">d", "TIMESTAMP": ">q", "TIMESTAMP_LTZ": ">q", "DECIMAL": ">q",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """`op` is = (one of the values), <> (none of them), < <= > >= (one value), null or valid."""

    op: str
    column: str
    type: DataType
    values: tuple[Any, ...] = ()


def question(leaf: Leaf | Not, fields: Mapping[str, DataType]) -> Question | None:
    """What a leaf of a filter asks; None when no index can answer."""
    column = leaf.part.column if isinstance(leaf, Not) else leaf.column
    t = fields.get(column)
    if t is None or t.is_nested:
        return None
    match leaf:
        case IsNull():
            return Question("null", column, t)
        case IsValid():
            return Question("valid", column, t)
        case Compare(op, _, value):
            return _asked(op, column, t, [value], value.type)
        case In(_, values):
            return _asked("=", column, t, list(values), values.type)
        case Not(In(_, values)):
            return _asked("<>", column, t, list(values), values.type)
    return None


def _asked(op: str, column: str, t: DataType, given: list[pa.Scalar], kind: pa.DataType) -> Question | None:
    if kind != to_arrow(t):
        return None
    values = [stored(v) for v in given]
    if t.is_timestamp:
        return _of_instants(op, column, t, values)
    if t.root in ("FLOAT", "DOUBLE"):
        return _of_floats(op, column, t, values)
    if t.root == "CHAR":
        forms = _forms(values, t.length or 1) if op == "=" else None
        return None if forms is None else Question(op, column, t, forms)
    return Question(op, column, t, tuple(values))


def _of_instants(op: str, column: str, t: DataType, values: list[Any]) -> Question:
    """In the index's unit. One that is coarser than the type cannot tell values apart inside of its step."""
    precision = t.precision or 0
    unit = 1_000_000 if precision <= 3 else 1_000
    if precision > 6:
        if op == "<>":
            return Question("valid", column, t)
        op = {"<": "<=", ">": ">="}.get(op, op)
    return Question(op, column, t, tuple(v // unit for v in values))


def _of_floats(op: str, column: str, t: DataType, values: list[Any]) -> Question:
    """Both zeros are asked for; an index keeps them apart, as Java's order does."""
    if op in ("=", "<>"):
        zeros = [-v for v in values if v == 0]
        return Question(op, column, t, (*values, *zeros))
    (v,) = values
    if v == 0:
        v = 0.0 if op in ("<=", ">") else -0.0
    return Question(op, column, t, (v,))


def _forms(values: list[Any], length: int) -> tuple[bytes, ...] | None:
    """Every text that may have been written where one of `values` is read: with blanks behind, up to the length."""
    out: list[bytes] = []
    for v in values:
        bare = v.rstrip(b" ")
        blanks = length - len(bare.decode("utf-8", "replace"))
        if blanks > _FORMS:
            return None
        out += [bare + b" " * n for n in range(max(blanks, len(v) - len(bare)) + 1)]
    return tuple(out)


def ordered(t: DataType, value: Any) -> Any:
    """A stored value as something that compares in the index's order; all NaN are one."""
    return order_key(t, value) if isinstance(value, float) else value


class Reader:
    """Reads an index from its start. `path` says in errors what it is, `row_count` is that of the data file."""

    def __init__(self, data: memoryview, path: str, row_count: int = -1, at: int = 0) -> None:
        self.data, self.path, self.row_count, self.at = data, path, row_count, at

    def goto(self, at: int) -> Reader:
        """Another reader over the same bytes."""
        if not 0 <= at <= len(self.data):
            raise IndexError
        return Reader(self.data, self.path, self.row_count, at)

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return int(value)

    def count(self, layout: str = ">i") -> int:
        """A number of things that follow, each at least one byte."""
        n = self.number(layout)
        if not 0 <= n <= len(self.data):
            raise ValueError(f"{n} items")
        return n

    def raw(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def utf(self) -> str:
        """Java's writeUTF; names outside of plain Unicode come apart into surrogates there."""
        try:
            text = self.raw(self.number(">H")).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except (UnicodeDecodeError, IndexError, struct.error) as err:
            raise Corrupt(f"{self.path}: a name is cut off or not text", hint="the file is damaged") from err

    def value(self, t: DataType) -> Any:
        """One value of a column of this type."""
        if t.is_bytes:
            return self.raw(self.number(">i"))
        (value,) = struct.unpack_from(LAYOUT[t.root], self.data, self.at)
        self.at += struct.calcsize(LAYOUT[t.root])
        return bool(value) if t.root == "BOOLEAN" else value

    def table(self, t: DataType, n: int, extra: int) -> np.ndarray[Any, Any] | None:
        """`n` values with `extra` int32 behind each, as a numpy table; None for text, which has no fixed width."""
        if t.is_bytes:
            return None
        fields = [("value", LAYOUT[t.root])] + [(f"n{i}", ">i4") for i in range(extra)]
        kind = np.dtype(fields)
        return np.frombuffer(self.raw(kind.itemsize * n), kind)
