# SPDX-License-Identifier: Apache-2.0
"""A filter or a projection never changes which version of a key wins.

Random filters (keys, values, partitions, nulls; AND, OR, NOT; as expressions and as SQL text) and random projections:
what the scan gives must be what Arrow gives that filters the table's whole contents afterwards. Values come from the
table, old versions included, so that filters hit the rows that lost.
"""

from __future__ import annotations

import functools
import json
import operator
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fuzz_filters import condition, sql_condition
from oracle_values import encode

import shoal
from shoal.format.types import Field

COMPARE = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Done:
    """One query, and what was wrong with its answer."""

    where: str
    columns: tuple[str, ...] | None
    snapshot: int | None
    text: bool
    problem: str | None

    def __str__(self) -> str:
        form = "SQL" if self.text else "expression"
        return f"where {self.where} ({form}) columns {self.columns} snapshot {self.snapshot}: {self.problem or 'equal'}"


def check_table(table: Any, seed: int, count: int) -> Iterator[Done]:
    """`count` random queries. A table that cannot be read at all gives none."""
    rnd = random.Random(f"{seed} {table.name}")
    ids = table.inspect.snapshots().column("snapshot_id").to_pylist()
    states: dict[int | None, tuple[pa.Table, tuple[Field, ...], dict[str, list[Any]]]] = {}
    past: dict[str, list[Any]] = {}
    for snapshot in (*rnd.sample(ids, min(2, len(ids))), None):
        try:
            scan = table.scan(snapshot=snapshot)
            rows = scan.to_arrow()
        except shoal.ShoalError:
            return
        fields = scan.table.schema.fields
        values = {f.name: [v for v in encode(rows.column(f.name), f.type) if v is not None] for f in fields}
        for f in fields:
            past.setdefault(f"{f.name} {f.type}", []).extend(values[f.name])
        states[snapshot] = rows, fields, values
    for n in range(count):
        snapshot = rnd.choice(list(states)) if n % 3 == 0 else None
        rows, fields, _ = states[snapshot]
        yield _one(table, rnd, rows, fields, past, snapshot)


def _one(
    table: Any,
    rnd: random.Random,
    rows: pa.Table,
    fields: Sequence[Field],
    past: dict[str, list[Any]],
    snapshot: int | None,
) -> Done:
    expression, text = random_filter(rnd, _filtered(table, fields), past, depth=2)
    names = [f.name for f in fields]
    columns = rnd.sample(names, rnd.randint(1, len(names))) if rnd.random() < 0.7 else None
    as_text = rnd.random() < 0.5
    problem = None
    try:
        got = table.scan(text if as_text else expression, columns, snapshot=snapshot).to_arrow()
    except shoal.ShoalError as err:
        problem = f"{type(err).__name__}: {err.message}"
    except Exception as err:  # noqa: BLE001 - a crash of shoal is a finding, not ours
        problem = f"CRASH {type(err).__name__}: {err}"
    else:
        want = rows.filter(expression).select(columns or names)
        problem = difference(want, got, {f.name: f for f in fields})
    return Done(text, columns and tuple(columns), snapshot, as_text, problem)


def _filtered(table: Any, fields: Sequence[Field]) -> list[Field]:
    """Columns to filter by. Aggregations whose key moves between partitions lose the partition's value with a retraction
    (in Java too): a filter by partition then finds the partition, not the value that is shown."""
    schema = table.schema
    moving = bool(schema.primary_keys) and not set(schema.partition_keys) <= set(schema.primary_keys)
    aggregated = schema.options.get("merge-engine") in ("aggregation", "partial-update")
    return [f for f in fields if not (moving and aggregated and f.name in schema.partition_keys)]


def difference(want: pa.Table, got: pa.Table, fields: dict[str, Field]) -> str | None:
    if got.schema != want.schema:
        return f"columns {got.schema.names}, not {want.schema.names}"
    a, b = (_bag(t, fields) for t in (want, got))
    if a == b:
        return None
    return f"{sum((a - b).values())} missing {list(a - b)[:2]}, {sum((b - a).values())} too many {list(b - a)[:2]}"


def _bag(t: pa.Table, fields: dict[str, Field]) -> Counter[str]:
    values = [encode(t.column(n), fields[n].type) for n in t.column_names]
    return Counter(json.dumps(r, ensure_ascii=False) for r in zip(*values))


def random_filter(
    rnd: random.Random, fields: Sequence[Field], past: dict[str, list[Any]], depth: int
) -> tuple[pc.Expression, str]:
    """The same predicate as an expression and as SQL."""
    kind = rnd.choice(("one", "one", "and", "or", "not")) if depth else "one"
    if kind == "one":
        f = rnd.choice(fields)
        c = random_condition(rnd, f, past[f"{f.name} {f.type}"])
        return condition(f.type, *c), sql_condition(f.type, *c)
    parts = [random_filter(rnd, fields, past, depth - 1) for _ in range(1 if kind == "not" else 2)]
    if kind == "not":
        return ~parts[0][0], f"NOT ({parts[0][1]})"
    join = operator.and_ if kind == "and" else operator.or_
    return functools.reduce(join, [e for e, _ in parts]), f" {kind.upper()} ".join(f"({t})" for _, t in parts)


def random_condition(rnd: random.Random, f: Field, values: list[Any]) -> list[Any]:
    root = f.type.root
    if f.type.is_nested or not values or rnd.random() < 0.15:
        return [f.name, rnd.choice(("is_null", "is_not_null")), None]
    one, other = rnd.choice(values), rnd.choice(values)
    if root in ("CHAR", "VARCHAR") and rnd.random() < 0.3:
        at = rnd.randint(0, len(one))
        op, part = rnd.choice((("starts_with", one[:at]), ("ends_with", one[at:]), ("contains", one[at : at + 2])))
        return [f.name, op, part]
    ops = ("=", "<>", "in", "not_in") if root == "BOOLEAN" else (*COMPARE, "in", "not_in", "between")
    op = rnd.choice(ops)
    if op in ("in", "not_in"):
        return [f.name, op, [one, other]]
    if op == "between":
        return [f.name, op, [one, other]]
    return [f.name, op, one]
