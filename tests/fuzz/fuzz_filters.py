# SPDX-License-Identifier: Apache-2.0
"""Filters of fuzz histories, `[[column, op, value], ...]`, as Arrow expressions and as SQL text.

NaN is a value in Paimon (equal to itself, above every number), never in Arrow: expressions over floats say so. And -0.0
is below 0.0 for Paimon's predicates, though not for SQL: `expression` says that too, `condition` where it is asked.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fuzz_values import scalar

from shoal.format.types import DataType, Field, to_arrow

Filter = Sequence[Sequence[Any]]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def expression(wanted: Filter, fields: Sequence[Field]) -> pc.Expression:
    """All conditions joined by AND."""
    by_name = {f.name: f for f in fields}
    return functools.reduce(operator.and_, [condition(by_name[c[0]].type, *c, zeros=True) for c in wanted])


def condition(t: DataType, name: str, op: str, value: Any = None, *, zeros: bool = False) -> pc.Expression:
    arrow, column = to_arrow(t), pc.field(name)
    if op in ("is_null", "is_not_null"):
        return column.is_null() if op == "is_null" else column.is_valid()
    if op in ("starts_with", "ends_with", "contains"):
        call = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}[op]
        return call(column, value)
    if t.root in ("FLOAT", "DOUBLE"):
        return _float_condition(column, op, value, functools.partial(scalar, t=t, arrow=arrow), zeros)
    if op in _COMPARE:
        return _COMPARE[op](column, scalar(value, t, arrow))
    values = [scalar(v, t, arrow) for v in value]
    if op == "between":
        return (column >= values[0]) & (column <= values[1])
    # not isin(): that says false of a null, where SQL's IN is neither true nor false
    found = functools.reduce(operator.or_, [column == v for v in values])
    return found if op == "in" else ~found


def _float_condition(
    column: pc.Expression, op: str, value: Any, make: Callable[[Any], pa.Scalar], zeros: bool
) -> pc.Expression:
    """The same where NaN equals itself and is the greatest, and with `zeros` -0.0 is below 0.0."""

    def one(op: str, v: Any) -> pc.Expression:
        nan = pc.is_nan(column)
        if v == "NaN":
            never, always = nan & ~nan, nan | ~nan  # but null for a null
            return {"=": nan, "<>": ~nan, "<": ~nan, "<=": always, ">": never, ">=": nan}[op]
        at = make(v)
        got = _COMPARE[op](column, at)
        if zeros and at.as_py() == 0:
            # one over a zero is infinite with the zero's sign
            minus = (column == at) & (pc.divide(pc.scalar(make(1.0)), column) < make(0.0))
            lower = (column < at) | minus if math.copysign(1, at.as_py()) > 0 else column < at
            same = (column == at) & ~lower if math.copysign(1, at.as_py()) > 0 else minus
            got = {"=": same, "<>": ~same, "<": lower, "<=": lower | same, ">": ~(lower | same), ">=": ~lower}[op]
        return got | nan if op in (">", ">=", "<>") else got & ~nan

    if op in _COMPARE:
        return one(op, value)
    if op == "between":
        return one(">=", value[0]) & one("<=", value[1])
    if op == "in":
        return functools.reduce(operator.or_, [one("=", v) for v in value])
    return functools.reduce(operator.and_, [one("<>", v) for v in value])


# ---- SQL text


def sql(wanted: Filter, fields: Sequence[Field]) -> str:
    """The same filter as the text after WHERE."""
    by_name = {f.name: f for f in fields}
    return " AND ".join(sql_condition(by_name[c[0]].type, *c) for c in wanted)


def sql_condition(t: DataType, name: str, op: str, value: Any = None) -> str:
    column = "`" + name.replace("`", "``") + "`"
    if op in ("is_null", "is_not_null"):
        return f"{column} IS {'NULL' if op == 'is_null' else 'NOT NULL'}"
    if op in _COMPARE:
        return f"{column} {op} {_literal(value, t)}"
    if op == "between":
        return f"{column} BETWEEN {_literal(value[0], t)} AND {_literal(value[1], t)}"
    if op in ("in", "not_in"):
        return f"{column} {'IN' if op == 'in' else 'NOT IN'} ({', '.join(_literal(v, t) for v in value)})"
    pattern = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    pattern = {"starts_with": f"{pattern}%", "ends_with": f"%{pattern}", "contains": f"%{pattern}%"}[op]
    return f"{column} LIKE {_quoted(pattern)} ESCAPE '\\'"


def _literal(value: Any, t: DataType) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if t.root in ("BINARY", "VARBINARY"):
        return f"X'{value}'"
    if t.root in ("FLOAT", "DOUBLE"):
        return f"CAST('{value}' AS DOUBLE)" if isinstance(value, str) else repr(float(value))
    if isinstance(value, int) or t.root == "DECIMAL":
        return str(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
