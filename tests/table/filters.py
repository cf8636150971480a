# SPDX-License-Identifier: Apache-2.0
"""Random filters over the rows of a table, as Arrow expressions and as SQL text, and rows that can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_OPS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def rows(table: pa.Table) -> list[str]:
    """The rows as sorted text: floats by what they are, nanoseconds as numbers."""
    columns = [c.cast(pa.int64()) if c.type in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")) else c for c in table]
    return sorted(map(repr, zip(*(c.to_pylist() for c in columns)))) if columns else ["()"] * table.num_rows


def expression(rng: random.Random, table: pa.Table, columns: Sequence[str], depth: int | None = None) -> pc.Expression:
    """A filter over some columns whose literals are values of the table, or near them."""
    depth = rng.choice([0, 0, 1, 1, 2, 3]) if depth is None else depth
    if depth == 0:
        return _leaf(rng, table, columns)
    parts = [expression(rng, table, columns, depth - 1) for _ in range(3)]
    return rng.choice([
        parts[0] & parts[1], parts[0] & parts[1], parts[0] | parts[1], parts[0] | parts[1], ~parts[0],
        pc.coalesce(parts[0], pa.scalar(rng.random() < 0.5)), pc.if_else(parts[0], parts[1], parts[2]),
    ])  # fmt: skip


def _leaf(rng: random.Random, table: pa.Table, columns: Sequence[str]) -> pc.Expression:
    p = pa.types
    name = rng.choice(columns)
    kind, f, values = table.schema.field(name).type, pc.field(name), table.column(name).to_pylist()
    if p.is_struct(kind) and kind.num_fields and rng.random() < 0.8:
        member = rng.choice(list(kind))
        kind, f = member.type, pc.field(name, member.name)
        values = [None if v is None else v[member.name] for v in values]
    values = [v for v in values if v is not None]
    if rng.random() < 0.15 or p.is_nested(kind) or not values:
        return rng.choice([f.is_null(), f.is_valid()])
    if p.is_boolean(kind):
        return rng.choice([f, ~f, f == True, f != True, f.is_null() | f])  # noqa: E712 - makes an expression
    op = _OPS[rng.choice(list(_OPS))]
    value = pa.scalar(_near(rng, rng.choice(values), kind), kind)
    other = rng.choice([c for c in columns if table.schema.field(c).type == kind] or [name])
    choices = [op(f, value)] * 4 + [op(value, f), _in(rng, f, values, kind)]
    if table.schema.field(other).type == kind:
        choices.append(op(f, pc.field(other)))
    if p.is_string(kind):
        choices += [_text(rng, f, rng.choice(values)) for _ in range(3)]
    if p.is_integer(kind):
        number = float(value.as_py()) + rng.choice([0, 0.5])
        choices += [op(f.cast(pa.int64()), value.cast(pa.int64())), op(f, number), op(f.cast(pa.float64()), number)]
    if p.is_floating(kind):
        choices += [pc.is_nan(f), f.is_null(nan_is_null=True), op(f.cast(pa.float64()), value.cast(pa.float64()))]
    if p.is_timestamp(kind) and kind.tz is None:
        choices.append(op(f.cast(pa.date32()), value.cast(pa.date32(), safe=False)))
    return rng.choice(choices)


def _near(rng: random.Random, value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        high = (1 << (kind.bit_width - 1)) - 1
        return max(-high - 1, min(high, value + rng.choice([-10, -1, 0, 0, 1])))
    if pa.types.is_floating(kind):
        return rng.choice([value, value, value, -value, 0.0, -0.0, float("nan"), float("inf")])
    if pa.types.is_string(kind):
        return rng.choice([value, value, value[:-1], value[:3], value + "a", value + " ", value.rstrip(), ""])
    if pa.types.is_binary(kind):
        return rng.choice([value, value[:1], value + b"\0"])
    return value


def _in(rng: random.Random, f: pc.Expression, values: Sequence[Any], kind: pa.DataType) -> pc.Expression:
    some = [_near(rng, rng.choice(values), kind) for _ in range(rng.choice([1, 2, 3, 40]))]
    found = f.isin(pa.array([*some, *([None] if rng.random() < 0.3 else [])], kind))
    found = ~found if rng.random() < 0.4 else found
    return pc.if_else(f.is_valid(), found, pa.scalar(None, pa.bool_())) if rng.random() < 0.2 else found


def _text(rng: random.Random, f: pc.Expression, value: str) -> pc.Expression:
    at = rng.randrange(len(value) + 1)
    plain = value[:at].replace("%", "").replace("_", "").replace("\\", "")
    found = rng.choice([
        pc.starts_with(f, value[:at]), pc.ends_with(f, value[at:]), pc.match_substring(f, value[at : at + 3]),
        pc.match_like(f, plain + rng.choice(["%", "_", "_%", ""])),
    ])  # fmt: skip
    return ~found if rng.random() < 0.4 else found


def sql(rng: random.Random, table: pa.Table, columns: Sequence[str], depth: int | None = None) -> str:
    """The same kind of filter as SQL that DuckDB reads as well."""
    depth = rng.choice([0, 0, 1, 2]) if depth is None else depth
    if depth == 0:
        return _condition(rng, table, columns)
    a, b = (sql(rng, table, columns, depth - 1) for _ in range(2))
    return rng.choice([f"({a} AND {b})", f"({a} AND {b})", f"({a} OR {b})", f"({a} OR {b})", f"NOT ({a})"])


def _condition(rng: random.Random, table: pa.Table, columns: Sequence[str]) -> str:
    name = rng.choice(columns)
    kind, values = table.schema.field(name).type, [v for v in table.column(name).to_pylist() if v is not None]
    c = f'"{name}"'
    if rng.random() < 0.15 or pa.types.is_nested(kind) or not values:
        return c + rng.choice([" IS NULL", " IS NOT NULL"])
    if pa.types.is_boolean(kind):
        return rng.choice([c, f"NOT {c}", f"{c} IS TRUE", f"{c} IS NOT FALSE"])

    def one() -> str:
        return _literal(rng, rng.choice(values), kind)

    no = rng.choice(["", "NOT "])
    other = rng.choice([n for n in columns if table.schema.field(n).type == kind])
    choices = [f"{c} {rng.choice(list(_OPS))} {one()}"] * 3 + [
        f"{c} {no}IN ({', '.join([one() for _ in range(rng.choice([1, 2, 12]))] + rng.choice([[], ['NULL']]))})",
        f"{c} {no}BETWEEN {one()} AND {one()}", f"{c} IS {no}DISTINCT FROM {one()}",
        f'{c} {rng.choice(list(_OPS))} "{other}"',
    ]  # fmt: skip
    if pa.types.is_string(kind):
        v = rng.choice(values).replace("'", "").replace("%", "").replace("_", "")
        at = rng.randrange(len(v) + 1)
        choices += [f"{c} {no}LIKE '{p}'" for p in (v[:at] + "%", "%" + v[at:], v[:at] + "_%", v)]
    return rng.choice(choices)


def _literal(rng: random.Random, value: Any, kind: pa.DataType) -> str:
    p = pa.types
    if p.is_integer(kind):
        return str(value + rng.choice([0, 0, 1, -1])) + rng.choice(["", "", ".5"])
    if p.is_floating(kind):
        return repr(value) if abs(value) < float("inf") else f"'{value}'"
    if p.is_decimal(kind):
        return str(value)
    if p.is_binary(kind):
        return f"x'{value.hex()}'"
    if p.is_string(kind):
        value = rng.choice([value, value, value[:2], value + " "]).replace("'", "''")
    return f"'{value}'"
