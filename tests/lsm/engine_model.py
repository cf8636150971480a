# SPDX-License-Identifier: Apache-2.0
"""Merge engines one row at a time, written from what Java Paimon does and without any of shoal.

`merge` takes the versions of one key in order and gives the row that is left, or raises `Refused`. It knows no Arrow:
values are Python's. Checked against golden tables in test_engines_golden.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

Row = dict[str, Any]
Version = tuple[str, Row]  # "+I", "-U", "+U" or "-D", and the values

RANGES = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}


class Refused(Exception):
    """Java throws."""


class Table:
    """Columns (name, type text), keys, options. `type` is a plain SQL type; nested ones only matter as "ARRAY" etc."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        keys: Sequence[str],
        options: Mapping[str, str],
        required: Sequence[str] = (),
    ) -> None:
        self.types = dict(columns)
        self.keys = list(keys)
        self.options = dict(options)
        self.required = set(required) | set(keys)
        self.ignore_delete = options.get("ignore-delete") == "true"
        self.groups: list[tuple[list[str], list[str]]] = []
        for key, text in options.items():
            if key.startswith("fields.") and key.endswith(".sequence-group"):
                self.groups.append((key[7:-15].split(","), text.split(",")))

    def opt(self, column: str, name: str, default: Any = None) -> Any:
        return self.options.get(f"fields.{column}.{name}", default)

    def function(self, column: str) -> str | None:
        return self.opt(column, "aggregate-function", self.options.get("fields.default-aggregate-function"))


def merge(table: Table, versions: Sequence[Version], columns: Sequence[str] | None = None) -> Version | None:
    """The row that is left (deletions included), or None. `columns`: what is read, all by default."""
    read = list(table.types) if columns is None else list(columns)
    if len(versions) == 1:
        kind, row = versions[0]
        return kind, {c: row[c] for c in read}
    engine = table.options.get("merge-engine", "deduplicate")
    if engine == "first-row":
        return _first_row(table, versions, read)
    if engine == "aggregation":
        return _aggregation(table, versions, read)
    return _partial_update(table, versions, read)


def _first_row(table: Table, versions: Sequence[Version], read: list[str]) -> Version | None:
    first = None
    for kind, row in versions:
        if kind in ("-U", "-D"):
            if not table.ignore_delete:
                raise Refused("first-row takes no deletes")
        elif first is None:
            first = kind, {c: row[c] for c in read}
    return first


def _check_required(table: Table, row: Row, read: list[str]) -> None:
    for c in read:
        if c in table.required and row[c] is None:
            raise Refused(f"{c} is null")


def _aggregation(table: Table, versions: Sequence[Version], read: list[str]) -> Version:
    sequence = table.options.get("sequence.field", "").split(",")
    removes = table.options.get("aggregation.remove-record-on-delete") == "true"
    functions = {}
    for c in read:
        if c in sequence:
            name: str | None = "last_value"
        elif c in table.keys:
            name = "primary-key"
        else:
            name = table.function(c) or "last_non_null_value"
        functions[c] = aggregate(table, c, name or "")
    acc: Row = dict.fromkeys(read)
    gone = False
    for kind, row in versions:
        gone = removes and kind == "-D"
        if gone:
            _check_required(table, row, read)
            acc = {c: row[c] for c in read}
            continue
        for c in read:
            f = functions[c]
            acc[c] = f.retract(acc[c], row[c]) if kind in ("-U", "-D") else f.agg(acc[c], row[c])
    return ("-D" if gone else "+I"), acc


def _partial_update(table: Table, versions: Sequence[Version], read: list[str]) -> Version:
    on_delete = table.options.get("partial-update.remove-record-on-delete") == "true"
    on_group = table.options.get("partial-update.remove-record-on-sequence-group", "").split(",")
    group_of = {c: (seq, cols) for seq, cols in table.groups for c in (*seq, *cols)}
    wanted = list(read)
    for c in table.options.get("sequence.field", "").split(","):
        if c and c not in wanted:
            wanted.append(c)
    for c in list(wanted):
        for s in group_of.get(c, ([], []))[0]:
            if s not in wanted:
                wanted.append(s)
    order = [c for c in table.types if c in wanted]
    functions = {}
    for c in order:
        if c in table.keys or c in group_of.get(c, ([], []))[0]:
            continue
        name = table.function(c)
        if name is not None:
            functions[c] = aggregate(table, c, name)
    active = [g for g in table.groups if any(c in order for c in (*g[0], *g[1]))]

    acc: Row = dict.fromkeys(order)
    touched = inserted = gone = False
    for kind, row in versions:
        gone = False
        back = kind in ("-U", "-D")
        if back and not touched:
            _check_required(table, row, order)
            acc = {c: row[c] for c in order}
            touched = True
        if back and table.ignore_delete:
            continue
        if back and not table.groups:
            if not on_delete:
                raise Refused("partial-update takes no deletes")
            if kind == "-D":
                gone = True
                _check_required(table, row, order)
                acc = {c: row[c] for c in order}
            continue
        if not back:
            inserted = touched = True
            if not active:
                _check_required(table, row, order)
            for c in order:
                if c in group_of:
                    continue
                if row[c] is not None:
                    acc[c] = row[c]
        for seq, _ in active:
            if all(row[s] is None for s in seq):
                continue
            newer = not _less([row[s] for s in seq], [acc[s] for s in seq])
            if newer and kind == "-D" and any(s in on_group for s in seq):
                gone = True
                break
        if gone:
            _check_required(table, row, order)
            acc = {c: row[c] for c in order}
            continue
        for seq, cols in active:
            if all(row[s] is None for s in seq):
                continue
            newer = not _less([row[s] for s in seq], [acc[s] for s in seq])
            for c in cols:
                if c not in order or c in seq:
                    continue
                f = functions.get(c)
                if back:
                    if f is not None:
                        acc[c] = f.retract(acc[c], row[c])
                    elif newer:
                        acc[c] = None
                elif f is None:
                    if newer:
                        acc[c] = row[c]
                else:
                    acc[c] = f.agg(acc[c], row[c]) if newer else f.reversed(acc[c], row[c])
            if newer:
                for s in seq:
                    acc[s] = row[s]
    return ("-D" if gone or not inserted else "+I"), {c: acc[c] for c in read}


def _less(a: list[Any], b: list[Any]) -> bool:
    """Whether one sequence is below another; null is lowest."""
    for x, y in zip(a, b):
        if x is None or y is None:
            if (x is None) != (y is None):
                return x is None
            continue
        if x != y:
            return bool(x < y)
    return False


# ---- aggregate functions ---------------------------------------------------------------------------------


class Aggregate:
    """`agg` as Java's; `reversed` turns the arguments round; `retract` refuses."""

    def __init__(self, agg: Callable[[Any, Any], Any], back: Callable[[Any, Any], Any] | None = None) -> None:
        self.agg = agg
        self.reversed: Callable[[Any, Any], Any] = lambda acc, value: agg(value, acc)
        self._back = back

    def retract(self, acc: Any, value: Any) -> Any:
        if self._back is None:
            raise Refused("no retraction")
        return self._back(acc, value)


def aggregate(table: Table, column: str, name: str) -> Aggregate:
    made = _make(table, column, name)
    if table.opt(column, "ignore-retract") == "true":
        made._back = lambda acc, value: acc
        made.reversed = lambda acc, value: made.agg(value, acc)
    return made


def _make(table: Table, column: str, name: str) -> Aggregate:
    t = table.types[column]
    if name in ("first_value", "first_non_null_value", "first_not_null_value"):
        return _first(name != "first_value")
    if name == "collect":
        return _collect(table.opt(column, "distinct") == "true", t == "ARRAY<ROW>")
    if name in ("nested_update", "nested_partial_update"):
        return _nested(table, column, name)
    simple: dict[str, Callable[[], Aggregate]] = {
        "sum": lambda: Aggregate(_present(lambda a, b: _number(t, a, b, "+")), lambda a, b: _minus(t, a, b)),
        "product": lambda: Aggregate(
            _present(lambda a, b: _number(t, a, b, "*")),
            lambda a, b: a if a is None or b is None else _number(t, a, b, "/"),
        ),
        "max": lambda: Aggregate(_present(lambda a, b: b if _order(a) < _order(b) else a)),
        "min": lambda: Aggregate(_present(lambda a, b: a if _order(a) < _order(b) else b)),
        "bool_and": lambda: Aggregate(_present(lambda a, b: a and b)),
        "bool_or": lambda: Aggregate(_present(lambda a, b: a or b)),
        "last_value": lambda: Aggregate(lambda a, b: b, lambda a, b: None),
        "last_non_null_value": lambda: Aggregate(
            lambda a, b: a if b is None else b, lambda a, b: a if b is None else None
        ),
        "primary-key": lambda: Aggregate(lambda a, b: b, lambda a, b: b),
        "listagg": lambda: _listagg(
            table.opt(column, "list-agg-delimiter", ","), table.opt(column, "distinct") == "true"
        ),
        "merge_map": lambda: Aggregate(
            _present(lambda a, b: list({**dict(a), **dict(b)}.items())),
            lambda a, b: a if not a or not b else [(k, v) for k, v in a if k not in dict(b)],
        ),
        "merge_map_with_keytime": lambda: Aggregate(
            _present(lambda a, b: _keytime(a, b, table.opt(column, "ts-field")))
        ),
    }
    return simple[name]()


def _present(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: b if a is None else a if b is None else f(a, b)


def _order(v: Any) -> Any:
    """Java's order: NaN above all, -0.0 below 0.0."""
    if isinstance(v, float | np.floating):
        return (1, 0.0, 0) if math.isnan(v) else (0, float(v), 0 if math.copysign(1, v) < 0 else 1)
    return v.encode() if isinstance(v, str) else v


def _minus(t: str, a: Any, b: Any) -> Any:
    if a is None:
        return None if b is None else _number(t, None, b, "-")
    return a if b is None else _number(t, a, b, "-")


def _number(t: str, a: Any, b: Any, op: str) -> Any:
    root = t.split("(")[0]
    if root in RANGES:
        if op == "/":
            if b == 0:
                raise Refused("/ by zero")
            r = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        else:
            r = {"+": lambda: a + b, "-": lambda: (a or 0) - b, "*": lambda: a * b}[op]()
        if not -RANGES[root] <= r < RANGES[root]:
            raise Refused("overflow")
        return r
    if root in ("FLOAT", "DOUBLE"):
        f = np.float32 if root == "FLOAT" else np.float64
        with np.errstate(all="ignore"):
            x = f(b) if a is None else f(a)
            if op == "-" and a is None:
                return float(-f(b))
            y = f(b)
            return float({"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "/": lambda: x / y}[op]())
    precision, scale = (int(n) for n in t[8:-1].split(","))
    with localcontext(prec=200):
        if op == "/":
            if b == 0:
                raise Refused("/ by zero")
            rest = Fraction(a) / Fraction(b)
            if (10**200) % rest.denominator:
                raise Refused("no end")
            r = a / b
        else:
            r = {"+": lambda: a + b, "-": lambda: (a or 0) - b, "*": lambda: a * b}[op]()
        r = r.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        unscaled = abs(int(r.scaleb(scale)))
    if op in "+-" and a is not None and precision <= 18:
        return r if unscaled < 2**63 else None
    return r if unscaled < 10**precision else None


def _first(skip_null: bool) -> Aggregate:
    seen: list[bool] = []

    def agg(acc: Any, value: Any) -> Any:
        if not seen and not (skip_null and value is None):
            seen.append(True)
            return value
        return acc

    return Aggregate(agg)


def _blank(text: str) -> bool:
    return not text.strip(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\u2003\u3000")


def _listagg(delimiter: str, distinct: bool) -> Aggregate:
    def tokens(text: str) -> list[str]:
        parts = text.split(delimiter or " ")
        return parts if parts[-1] else parts[:-1]

    def agg(acc: str | None, value: str | None) -> str | None:
        if value is None or _blank(value):
            return acc
        if acc is None or _blank(acc):
            return value
        if not distinct:
            return acc + delimiter + value
        known, out = set(tokens(acc)), acc
        for token in tokens(value):
            if not _blank(token) and token not in known:
                known.add(token)
                out += delimiter + token
        return out

    return Aggregate(agg)


def _collect(distinct: bool, of_rows: bool) -> Aggregate:
    def unique(known: list[Any], values: list[Any]) -> list[Any]:
        out = list(known)
        for v in values:
            if v not in out:
                out.append(v)
        return out

    def agg(acc: Any, value: Any) -> Any:
        if acc is None and value is None:
            return None
        if not distinct:
            return (acc or []) + (value or [])
        # rows so far are believed to be distinct, other elements go through a set
        return unique(acc or [], value or []) if of_rows else unique([], (acc or []) + (value or []))

    def back(acc: Any, value: Any) -> Any:
        if not acc or not value:
            return acc
        gone, out = list(value), []
        for v in acc:
            if v in gone:
                gone.remove(v)
            else:
                out.append(v)
        return out

    made = Aggregate(agg, back)
    made.reversed = agg
    return made


def _keytime(a: list[tuple[Any, Any]], b: list[tuple[Any, Any]], field: str | None) -> list[tuple[Any, Any]]:
    out = dict(a)
    for k, v in b:
        if v is None:
            out.pop(k, None)
            continue
        time = field or list(v)[-1]
        if v[time] is None:
            continue
        known = out.get(k)
        if known is None or known[time] is None or v[time].encode("utf-16-be") > known[time].encode("utf-16-be"):
            out[k] = v
    return list(out.items())


def _nested(table: Table, column: str, name: str) -> Aggregate:
    key = [k.strip() for k in table.opt(column, "nested-key", "").split(",") if k]
    sequence = [k.strip() for k in table.opt(column, "nested-sequence-field", "").split(",") if k]
    limit = int(table.opt(column, "count-limit", 2**31 - 1))
    nulls = table.opt(column, "nested-key-null-strategy", "merge")

    def rows(values: Any) -> list[Row]:
        return [v for v in values or [] if v is not None]

    def keyed(values: Any) -> list[tuple[tuple[Any, ...], Row]]:
        out = []
        for row in rows(values):
            k = tuple(row[n] for n in key)
            if None in k and nulls == "error":
                raise Refused("null in nested key")
            if None not in k or nulls == "merge":
                out.append((k, row))
        return out

    def update(acc: Any, value: Any) -> Any:
        if value is None:
            return acc
        if not key:
            if acc is None:
                return rows(value)[:limit]
            return acc if len(acc) >= limit else rows(acc) + rows(value)[: limit - len(acc)]
        held: dict[Any, Row] = {}
        for values, limited in ((acc, False), (value, True)):
            for k, row in keyed(values):
                if k not in held:
                    if not limited or len(held) < limit:
                        held[k] = row
                elif not sequence or not _less([row[s] for s in sequence], [held[k][s] for s in sequence]):
                    held[k] = row
        return list(held.values())

    def partial(acc: Any, value: Any) -> Any:
        if value is None:
            return acc
        held: dict[Any, Row] = {}
        for k, row in keyed((acc or []) + value):
            into = held.setdefault(k, dict.fromkeys(row))
            into.update({n: v for n, v in row.items() if v is not None})
        return list(held.values())

    def back(acc: Any, value: Any) -> Any:
        if acc is None or value is None:
            return acc
        if not key:
            return [r for r in rows(acc) if r not in rows(value)]
        held = dict(keyed(acc))
        for k, _ in keyed(value):
            held.pop(k, None)
        return list(held.values())

    return Aggregate(update, back) if name == "nested_update" else Aggregate(partial)
