# SPDX-License-Identifier: Apache-2.0
"""Literals against columns, exactly: what a filter's comparisons become as Arrow expressions.

Most types are whole numbers in steps (days, milliseconds, hundredths), so a literal has a place among them, on one or
between two, and the comparison moves to the nearest. Invariant: no literal is rounded to fit, and null stays null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest
from shoal.format.types import from_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

DAY = 86_400_000_000_000  # nanoseconds, like all times here
_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `kind` is null, bool, number, text, date, instant, time or bytes; times are nanoseconds, in UTC."""

    kind: str
    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column, a member of a ROW column, or a condition used as a value."""

    name: str
    type: pa.DataType
    e: pc.Expression
    wide: bool = False
    """A timestamp of any year, which Arrow holds as a decimal: seconds since 1970 with nine digits behind the point."""


# ---- text to values


def to_number(literal: Literal) -> Decimal | float:
    text = literal.value.strip()
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return Decimal(text)
    special = re.fullmatch(r"([+-]?)(nan|inf|infinity)", text, re.IGNORECASE)
    if special:
        return float(text)
    raise BadRequest(f"{literal.text} is not a number")


def to_boolean(literal: Literal) -> bool:
    text = literal.value.strip().lower()
    if text not in ("true", "false"):
        raise BadRequest(f"{literal.text} is not TRUE or FALSE")
    return bool(text == "true")


_CLOCK = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?"
_INSTANT = re.compile(rf"(\d{{4}})-(\d{{1,2}})-(\d{{1,2}})(?:[ T]{_CLOCK}\s*(Z|UTC|[+-]\d{{2}}(?::?\d{{2}})?)?)?", re.I)


def to_instant(literal: Literal) -> int:
    """Nanoseconds since 1970 of a date or time stamp; one without a zone is read as UTC."""
    m = _INSTANT.fullmatch(literal.value.strip())
    if not m:
        raise BadRequest(
            f"{literal.text} is not a date or timestamp", hint="write 2026-11-01 or 2026-11-01 12:34:56.789"
        )
    try:
        days = date(int(m[1]), int(m[2]), int(m[3])).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError as err:
        raise BadRequest(f"{literal.text} is not a date: {err}") from err
    ns = days * DAY + (_clock(m.groups()[3:7], literal.text) if m[4] else 0)
    zone = (m[8] or "Z").upper()
    if zone not in ("Z", "UTC"):
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 60 + int(digits[2:])) * 60 * _UNIT["s"]
        ns += -offset if zone[0] == "+" else offset
    return ns


def to_time(literal: Literal) -> int:
    m = re.fullmatch(_CLOCK, literal.value.strip())
    if not m:
        raise BadRequest(f"{literal.text} is not a time of day", hint="write 12:34:56 or 12:34:56.789")
    return _clock(m.groups(), literal.text)


def _clock(parts: Sequence[str | None], text: str) -> int:
    hour, minute, second = (int(p or 0) for p in parts[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise BadRequest(f"{text} is not a time of day")
    return (hour * 3600 + minute * 60 + second) * _UNIT["s"] + int((parts[3] or "0").ljust(9, "0"))


# ---- comparisons


def sql_type(t: pa.DataType) -> str:
    try:
        return str(from_arrow(t))
    except BadRequest:
        return str(t)


def _type_of(column: Column) -> str:
    return "TIMESTAMP(9)" if column.wide else sql_type(column.type)


def null() -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.scalar(pa.scalar(None, pa.bool_()))


def balanced(
    parts: list[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]
) -> pc.Expression:
    """Joins in a tree of small depth: Arrow walks expressions by recursion."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(balanced(parts[:half], join), balanced(parts[half:], join))


def _apply(op: str, a: pc.Expression, b: pc.Expression) -> pc.Expression:
    match op:
        case "=":
            return a == b
        case "<>":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
    return a >= b


def compare(op: str, left: Column | Literal, right: Column | Literal) -> pc.Expression:
    import pyarrow as pa

    if isinstance(left, Column) and isinstance(right, Column):
        return _two_columns(op, left, right)
    if isinstance(left, Column):
        assert isinstance(right, Literal)
        return _with_literal(op, left, right)
    if isinstance(right, Column):
        return _with_literal(_FLIPPED[op], right, left)
    return _with_literal(op, _constant(left, pa), right)


def _constant(literal: Literal, pa: Any) -> Column:
    """A literal in the role of a column, for `1 = 1`."""
    import pyarrow.compute as pc

    if literal.kind == "number" and isinstance(literal.value, Decimal):
        value = pa.scalar(literal.value)
    elif literal.kind in ("date", "instant"):
        value = pa.scalar(literal.value, pa.timestamp("ns"))
    elif literal.kind == "time":
        value = pa.scalar(literal.value, pa.time64("ns"))
    else:
        value = pa.scalar(literal.value, pa.bool_() if literal.kind == "null" else None)
    return Column(literal.text, value.type, pc.scalar(value))


def _with_literal(op: str, column: Column, literal: Literal) -> pc.Expression:
    import pyarrow as pa

    t = column.type
    if literal.kind == "null":
        return null()
    if pa.types.is_floating(t):
        return _float(op, column, literal)
    grid = _grid(t, wide=column.wide)
    if grid is not None:
        return _on_grid(op, column, literal, grid)
    if pa.types.is_boolean(t) and literal.kind in ("bool", "text") and op in ("=", "<>"):
        value = literal.value if literal.kind == "bool" else to_boolean(literal)
        return column.e if value == (op == "=") else ~column.e
    if pa.types.is_string(t) and literal.kind == "text":
        return _apply(op, column.e, pa.scalar(literal.value, pa.string()))
    if (pa.types.is_binary(t) or pa.types.is_fixed_size_binary(t)) and literal.kind == "bytes":
        e = column.e.cast(pa.binary()) if pa.types.is_fixed_size_binary(t) else column.e
        return _apply(op, e, pa.scalar(literal.value, pa.binary()))
    raise _misfit(column, literal)


def _misfit(column: Column, literal: Literal, why: str | None = None) -> BadRequest:
    import pyarrow as pa

    hint = None
    if pa.types.is_string(column.type):
        hint = (
            f"write it in quotes: '{literal.text}'" if literal.kind == "number" else "compare it with a text in quotes"
        )
    elif pa.types.is_binary(column.type):
        hint = "write the bytes in hexadecimal: x'0aff'"
    elif pa.types.is_nested(column.type):
        hint = "only IS NULL, IS NOT NULL and members of a ROW can be filtered"
    kind = "column" if column.name != literal.text else "value"
    return BadRequest(
        f"{literal.text} does not fit {kind} '{column.name}' of type {_type_of(column)}", hint=why or hint
    )


def _float(op: str, column: Column, literal: Literal) -> pc.Expression:
    """NaN is equal to itself and above all numbers, as in Java's compareTo, Flink and DuckDB."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if literal.kind not in ("number", "text"):
        raise _misfit(column, literal)
    number = float(to_number(literal) if literal.kind == "text" else literal.value)
    nan = pc.is_nan(column.e)
    if math.isnan(number):
        valid = nan | ~nan  # true, and null where the column is
        return {"=": nan, ">=": nan, "<>": ~nan, "<": ~nan, "<=": valid, ">": ~valid}[op]
    e = _apply(op, column.e, pa.scalar(number, pa.float64()).cast(column.type, safe=False))
    return e | nan if op in (">", ">=") else e


@dataclass(frozen=True, slots=True)
class _Grid:
    """A type whose values are the whole numbers `low` to `high`, in steps; `place` puts a literal among them."""

    low: int
    high: int
    place: Callable[[Literal], Fraction | float | None]
    scalar: Callable[[int], pa.Scalar]


def _grid(t: pa.DataType, *, wide: bool = False) -> _Grid | None:
    import pyarrow as pa

    p = pa.types
    if wide:
        high = 10**t.precision - 1
        return _Grid(-high, high, _timely("instant", 1), lambda i: pa.scalar(_decimal(i, t.scale), t))
    if p.is_integer(t):
        signed = p.is_signed_integer(t)
        low, high = (-(1 << (t.bit_width - 1)), (1 << (t.bit_width - 1)) - 1) if signed else (0, (1 << t.bit_width) - 1)
        return _Grid(low, high, _numeric(0), lambda i: pa.scalar(i, t))
    if p.is_decimal(t):
        high = 10**t.precision - 1
        return _Grid(-high, high, _numeric(t.scale), lambda i: pa.scalar(_decimal(i, t.scale), t))
    if not p.is_temporal(t) or p.is_duration(t) or p.is_interval(t):
        return None
    storage = pa.int32() if t.bit_width == 32 else pa.int64()
    high = (1 << (t.bit_width - 1)) - 1
    step = DAY if p.is_date32(t) else _UNIT["ms"] if p.is_date64(t) else _UNIT[t.unit]
    place = _timely("time" if p.is_time(t) else "date" if p.is_date(t) else "instant", step)
    return _Grid(-high - 1, high, place, lambda i: pa.array([i], storage).view(t)[0])


def _decimal(unscaled: int, scale: int) -> Decimal:
    # from a tuple: scaleb would round to the 28 digits of the default context
    return Decimal((int(unscaled < 0), tuple(int(c) for c in str(abs(unscaled))), -scale))


def _numeric(scale: int) -> Callable[[Literal], Fraction | float | None]:
    def place(literal: Literal) -> Fraction | float | None:
        if literal.kind not in ("number", "text"):
            return None
        value = to_number(literal) if literal.kind == "text" else literal.value
        if isinstance(value, float):
            return None if math.isnan(value) else value
        if abs(value.adjusted()) > 400:  # 1e999999999 would be a number of a gigabyte
            tiny = Fraction(1 if value > 0 else -1, 2) if value else Fraction(0)
            return tiny if value.adjusted() < 0 or not value else math.copysign(math.inf, value)
        return Fraction(value) * 10**scale

    return place


def _timely(kind: str, step: int) -> Callable[[Literal], Fraction | None]:
    def place(literal: Literal) -> Fraction | None:
        if kind == "time":
            ns = to_time(literal) if literal.kind == "text" else literal.value if literal.kind == "time" else None
        elif literal.kind == "text":
            ns = to_instant(literal)
            if kind == "date" and ns % DAY:
                return None
        else:
            ns = literal.value if literal.kind in ("date", "instant") else None
        return None if ns is None else Fraction(ns, step)

    return place


def _place(column: Column, literal: Literal, grid: _Grid) -> Fraction | float:
    try:
        at = grid.place(literal)
    except BadRequest as err:
        raise _misfit(column, literal, err.hint) from err
    if at is None:
        raise _misfit(column, literal)
    return at


def _on_grid(op: str, column: Column, literal: Literal, grid: _Grid) -> pc.Expression:
    """Compares exactly with a literal that may lie between two values of the type, or outside of all."""
    at = _place(column, literal, grid)
    never = column.e != column.e  # false, and null where the column is
    if isinstance(at, float):  # an infinity
        return ~never if ((at > 0) == (op in ("<", "<=")) and op != "=") or op == "<>" else never
    down, up = math.floor(at), math.ceil(at)
    if op in ("=", "<>") and not (down == up and grid.low <= down <= grid.high):
        return never if op == "=" else ~never
    bound = up if op in ("<", ">=") else down
    if bound > grid.high:
        return ~never if op in ("<", "<=") else never
    if bound < grid.low:
        return never if op in ("<", "<=") else ~never
    return _apply(op, column.e, grid.scalar(bound))


def in_set(column: Column, literals: Sequence[Literal]) -> pc.Expression | None:
    """IN over many literals, in the form that DuckDB pushes down; None for types that have no such form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    grid = _grid(column.type, wide=column.wide)
    if grid is not None:
        places = {_place(column, i, grid) for i in literals}
        whole = sorted(int(p) for p in places if isinstance(p, Fraction) and p.denominator == 1)
        values = pa.array([grid.scalar(i) for i in whole if grid.low <= i <= grid.high], column.type)
    elif pa.types.is_string(column.type) and all(i.kind == "text" for i in literals):
        values = pa.array([i.value for i in literals], column.type)
    else:
        return None
    return pc.if_else(column.e.is_valid(), column.e.isin(values), pa.scalar(None, pa.bool_()))


def _two_columns(op: str, a: Column, b: Column) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    p = pa.types

    def family(c: Column) -> str:
        t = c.type
        if c.wide or p.is_timestamp(t) or p.is_date(t):
            return "instant"
        if p.is_integer(t) or p.is_floating(t) or p.is_decimal(t):
            return "number"
        return "time" if p.is_time(t) else str(t)

    if family(a) != family(b) or p.is_nested(a.type):
        raise BadRequest(
            f"cannot compare '{a.name}' of type {_type_of(a)} with '{b.name}' of type {_type_of(b)}",
            hint="a query can CAST one of them",
        )
    if a.wide or b.wide:
        return _apply(op, *(c.e if c.wide else _seconds(c) for c in (a, b)))
    if not (p.is_floating(a.type) or p.is_floating(b.type)):
        if p.is_timestamp(a.type) and p.is_timestamp(b.type) and a.type.tz != b.type.tz:
            a, b = (Column(c.name, c.type, c.e.cast(pa.timestamp(c.type.unit))) for c in (a, b))
        return _apply(op, a.e, b.e)
    x, y = (c.e.cast(pa.float64()) for c in (a, b))
    nx, ny = pc.is_nan(x), pc.is_nan(y)
    match op:  # each arm is null where one side is: nan tests carry the nulls
        case "=":
            return (x == y) | (nx & ny)
        case "<>":
            return ~((x == y) | (nx & ny))
        case ">":
            return (x > y) | (nx & ~ny)
        case "<":
            return (x < y) | (ny & ~nx)
        case ">=":
            return (x >= y) | (nx & (ny | ~ny))
    return (x <= y) | (ny & (nx | ~nx))


def _seconds(column: Column) -> pc.Expression:
    """A date or timestamp as the decimal that a wide timestamp is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t = column.type
    if pa.types.is_date(t):
        whole = column.e.cast(pa.date32()).cast(pa.int32()).cast(pa.decimal128(10, 0))
        return pc.multiply(whole, pa.scalar(Decimal(DAY // _UNIT["s"]), pa.decimal128(5, 0)))
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[t.unit]
    whole = column.e.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return pc.multiply(whole, pa.scalar(Decimal(1).scaleb(-digits), pa.decimal128(digits + 1, digits)))
