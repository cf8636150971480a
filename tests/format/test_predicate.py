# SPDX-License-Identifier: Apache-2.0
"""The predicate tree against Arrow's own evaluation of the same filters, and against plain Python.

Invariants: every row that Arrow keeps meets the tree, and the other way round when no part is Opaque; no file with
such a row is dropped by its bounds; many files at once give what each gives alone.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.format import bounds, predicate
from shoal.format.data_writer import ColumnBounds
from shoal.format.predicate import (
    Always,
    And,
    Compare,
    Contains,
    EndsWith,
    In,
    IsNull,
    IsValid,
    Like,
    Node,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from shoal.format.row import order_key, stored_values
from shoal.format.types import from_arrow
from shoal.table.where import parse

NAN = math.nan
SCHEMA = pa.schema([
    ("k", pa.int32()), ("g", pa.int8()), ("b", pa.bool_()), ("x", pa.float64()), ("f", pa.float32()),
    ("s", pa.string()), ("y", pa.binary()), ("d", pa.decimal128(9, 2)), ("dt", pa.date32()), ("tm", pa.time32("ms")),
    ("t", pa.timestamp("ms")), ("n", pa.timestamp("ns")), ("z", pa.timestamp("us", "UTC")),
    ("o", pa.struct([("a", pa.int32())])),
])  # fmt: skip
F = pc.field


def show(node: Node) -> str:
    """A tree as text."""
    match node:
        case And(parts):
            return "(" + " AND ".join(map(show, parts)) + ")"
        case Or(parts):
            return "(" + " OR ".join(map(show, parts)) + ")"
        case Not(part):
            return f"NOT {show(part)}"
        case Compare(op, column, value):
            return f"{column} {op} {value.as_py()}"
        case In(column, values):
            return f"{column} IN {values.to_pylist()}"
        case IsNull(column):
            return f"{column} NULL"
        case IsValid(column):
            return f"{column} VALID"
        case StartsWith(column, text) | EndsWith(column, text) | Contains(column, text) | Like(column, text):
            return f"{column} {type(node).__name__} '{text}'"
        case Always(value):
            return str(value)
        case Opaque(names):
            return "?" + ",".join(sorted(names))
    raise AssertionError(node)


WHERE = [
    ("k = 1", "k = 1"), ("k = 1.5", "False"), ("k > 1.5", "k > 1"), ("k < 1.5", "k < 2"), ("NOT k > 1", "k <= 1"),
    ("k = 99999999999", "False"), ("k <> 99999999999", "k VALID"), ("k < 99999999999", "k VALID"),
    ("NOT k = 99999999999", "k VALID"), ("k = NULL", "False"), ("1 = 1", "True"), ("NULL", "False"),
    ("k IN (1, 2, NULL)", "(k = 1 OR k = 2)"), ("NOT (k IN (1, NULL))", "False"),
    ("k IN (1,2,3,4,5,6,7,8,9,9)", "k IN [1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    ("NOT (k IN (1,2,3,4,5,6,7,8,9))", "NOT k IN [1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    ("k BETWEEN 2 AND 4", "(k >= 2 AND k <= 4)"), ("k IS NULL", "k NULL"), ("k IS NOT NULL", "k VALID"),
    ("b", "b = True"), ("NOT b", "b = False"), ("b IS NOT TRUE", "(b = False OR b NULL)"),
    ("(k = 1) IS FALSE", "k <> 1"), ("k IS NOT DISTINCT FROM 3", "k = 3"), ("k = k", "k VALID"),
    ("x = 1.5", "x = 1.5"), ("x < 5", "x < 5.0"), ("x = 'NaN'", "x = nan"), ("NOT x = 'NaN'", "x <> nan"),
    ("x > 5", "((x > 5.0 AND x <> nan) OR x = nan)"), ("d = 1.25", "d = 1.25"), ("d > 1.255", "d > 1.25"),
    ("s = 'a'", "s = a"), ("s LIKE 'ab%'", "(s >= ab AND s < ac AND s StartsWith 'ab')"),
    ("s LIKE '%ab'", "(s VALID AND ?s)"), ("s LIKE 'ab'", "s = ab"), ("NOT s LIKE '%ab'", "(s VALID AND ?s)"),
    ("y = x'00ff'", "y = b'\\x00\\xff'"), ("dt >= '2020-02-03'", "dt >= 2020-02-03"),
    ("t > '2020-01-01 00:00:00.0005'", "t > 2020-01-01 00:00:00"), ("tm = '12:00:00'", "tm = 12:00:00"),
    ("n = '2020-01-01 00:00:00.000000001'", "n = 2020-01-01 00:00:00.000000001"),
    ("o.a = 1", "?o"), ("k = 1 AND o.a = 1", "(k = 1 AND ?o)"), ("k = g", "(k VALID AND g VALID AND ?g,k)"),
    ("s LIKE '%a' AND n > '2020-01-01'", "(s VALID AND ?s AND n > 2020-01-01 00:00:00)"),
]  # fmt: skip


@pytest.mark.parametrize("text, tree", WHERE)
def test_filters_in_sql(text: str, tree: str) -> None:
    assert show(predicate.of(parse(text, SCHEMA), SCHEMA)) == tree


ARROW: list[tuple[pc.Expression, str]] = [
    (F("k") > 1.5, "k > 1"), (F("k") == 7.0, "k = 7"), (pc.scalar(1) < F("k"), "k > 1"), (F("k").cast(pa.int64()) == 1, "k = 1"),
    (F("g") == pa.scalar(300), "False"), (F("k") < math.inf, "k VALID"), (~(F("k") < NAN), "k VALID"),
    (F("k") != NAN, "k VALID"), (F("k").isin([1, 2**40]), "k = 1"), (F("k").isin(pa.array([], pa.int32())), "False"),
    (~F("k").isin([1]), "(k <> 1 OR k NULL)"), (~F("k").isin([1, None]), "k <> 1"), (F("k").isin([1, None]), "(k = 1 OR k NULL)"),
    (F("x") > 5, "(x > 5.0 AND x <> nan)"), (~(F("x") > 5), "(x <= 5.0 OR x = nan)"), (F("x") != F("x"), "x = nan"),
    (F("x") == NAN, "False"), (F("x") != NAN, "x VALID"), (F("f") == 0.1, "(f VALID AND ?f)"), (F("f") == 0.5, "f = 0.5"),
    (F("x").is_null(nan_is_null=True), "(x NULL OR x = nan)"), (F("x") == 2**53 + 1, "(x VALID AND ?x)"),
    (F("dt") == dt.datetime(2020, 1, 1, 12), "False"), (F("dt") < dt.datetime(2020, 1, 1, 12), "dt < 2020-01-02"),
    (F("t") == pa.scalar(1500, pa.timestamp("us")), "False"), (F("d") < Decimal("1.005"), "d < 1.01"),
    (pc.match_like(F("s"), "a%"), "s Like 'a%'"), (pc.ends_with(F("s"), "a"), "s EndsWith 'a'"),
    (~pc.match_substring(F("s"), "a"), "NOT s Contains 'a'"), (pc.starts_with(F("s"), ""), "s VALID"),
    (pc.starts_with(F("s"), "a", ignore_case=True), "(s VALID AND ?s)"), (pc.utf8_length(F("s")) > 3, "?s"),
    (F("k") + 1 == 2, "?k"), (pc.field(0) == 1, "?" + ",".join(sorted(SCHEMA.names))), (pc.scalar(False), "False"),
    (pc.if_else(F("b"), F("k") == 1, F("k") == 2), "((b = True AND k = 1) OR (b = False AND k = 2))"),
    (pc.coalesce(F("k") == 1, pc.scalar(True)), "(k = 1 OR k NULL)"), ((F("k") == 1).is_null(), "k NULL"),
    (reduce(lambda a, b: a & b, [F("k") > i for i in range(3)]), "(k > 0 AND k > 1 AND k > 2)"),
]  # fmt: skip


@pytest.mark.parametrize("expression, tree", ARROW, ids=[t for _, t in ARROW])
def test_filters_in_arrow(expression: pc.Expression, tree: str) -> None:
    assert show(predicate.of(expression, SCHEMA)) == tree


DUCKDB = [
    ("k = 1", "k = 1"), ("k IN (1, 2)", "k IN [1, 2]"), ("NOT (k IN (1, 2))", "NOT k IN [1, 2]"), ("k <> 1", "k <> 1"),
    ("s = 'a' OR s = 'b'", "(s = a OR s = b)"), ("k = 1 OR k IS NULL", "(k = 1 OR k NULL)"), ("o.a = 1", "?o"),
    ("d = 1.00", "d = 1.00"), ("t > '1970-01-01'", "t > 1970-01-01 00:00:00"), ("k BETWEEN 1 AND 2", "(k >= 1 AND k <= 2)"),
    ("dt >= DATE '1970-01-02'", "dt >= 1970-01-02"), ("k IS NOT NULL", "k VALID"),
]  # fmt: skip


@pytest.mark.parametrize("text, tree", DUCKDB)
def test_filters_that_duckdb_pushes_down(text: str, tree: str) -> None:
    import duckdb
    import pyarrow.dataset as ds

    pushed: list[pc.Expression] = []

    class Spy(ds.InMemoryDataset):  # type: ignore[misc]
        def scanner(self, *args: Any, **options: Any) -> Any:
            pushed.append(options["filter"])
            return super().scanner(*args, **options)

    with duckdb.connect() as con:
        con.register("t", Spy(SCHEMA.empty_table()))
        con.execute(f"SELECT * FROM t WHERE {text}").fetchall()
    parts = [predicate.of(e, SCHEMA) for e in pushed]
    assert show(predicate.all_of(parts)) == tree


def test_deep_chains_are_read() -> None:
    chain = reduce(lambda a, b: a | b, [F("k") == i for i in range(1500)])
    node = predicate.of(chain, SCHEMA)
    assert isinstance(node, Or) and len(node.parts) == 1500
    mixed = reduce(lambda a, b: (a & b) | (F("g") > 1), [F("k") == i for i in range(700)])
    assert isinstance(predicate.of(mixed, SCHEMA), Or | Opaque)


# ---- against a model -------------------------------------------------------------------------------------

COLUMNS = ("k", "b", "x", "s", "d", "t")
VALUES: dict[str, list[Any]] = {
    "k": [-3, -1, 0, 1, 2, 5, 9],
    "b": [True, False],
    "x": [-math.inf, -1.5, -0.0, 0.0, 0.5, 2.0, 7.25, math.inf, NAN],
    "s": ["", "a", "ab", "ab ", "abc", "b", "Łódź", "😀", "zz"],
    "d": [Decimal("-1.25"), Decimal("0.00"), Decimal("0.01"), Decimal("3.50")],
    "t": [dt.datetime(1969, 12, 31, 23, 59, 59, 999000), dt.datetime(1970, 1, 1), dt.datetime(2020, 2, 29, 12)],
}


def table_of(rng: random.Random, rows: int, few: bool = False) -> pa.Table:
    columns = {}
    for name in COLUMNS:
        some = rng.sample(VALUES[name], min(2, len(VALUES[name]))) if few else VALUES[name]
        hole = rng.choice([0.0, 0.2, 0.2, 1.0]) if few else 0.2
        columns[name] = [None if rng.random() < hole else rng.choice(some) for _ in range(rows)]
    return pa.table(columns, schema=pa.schema([SCHEMA.field(c) for c in COLUMNS]))


def condition(rng: random.Random) -> pc.Expression:
    name = rng.choice(COLUMNS)
    c, kind = F(name), SCHEMA.field(name).type

    def value() -> pa.Scalar:
        return pa.scalar(rng.choice(VALUES[name]), kind)

    ops: list[Callable[[], pc.Expression]] = [
        lambda: c == value(), lambda: c != value(), lambda: c.is_null(), lambda: c.is_valid(),
    ]  # fmt: skip
    if name != "b":
        ops += [lambda: c < value(), lambda: c <= value(), lambda: c > value(), lambda: c >= value(), lambda: c != c]
        if name != "x":
            many = pa.array([rng.choice(VALUES[name]) for _ in range(3)] + [None] * rng.randrange(2), kind)
            ops += [
                lambda: c.isin(many),
                lambda: pc.is_in(c, many, skip_nulls=True),
                lambda: pc.if_else(c.is_valid(), c.isin(many), pa.scalar(None, pa.bool_())),
            ]
    if name == "x":
        ops += [lambda: pc.is_nan(c), lambda: c.is_null(nan_is_null=True)]
    if name == "b":
        ops.append(lambda: c)
    if name == "s":
        text = rng.choice(["a", "ab", "b", "Ł", "zz"])
        ops += [
            lambda: pc.starts_with(c, text), lambda: pc.ends_with(c, text), lambda: pc.match_substring(c, text),
            lambda: pc.match_like(c, rng.choice(["a%", "%b", "a_", "_b%"])),
            lambda: pc.match_substring_regex(c, "^a|z$"), lambda: pc.utf8_length(c) > 1,
        ]  # fmt: skip
    return rng.choice(ops)()


def filter_of(rng: random.Random, depth: int) -> pc.Expression:
    if depth == 0:
        return condition(rng)
    a, b = filter_of(rng, depth - 1), filter_of(rng, rng.randrange(depth))
    return rng.choice([
        lambda: a & b, lambda: a & b, lambda: a | b, lambda: a | b, lambda: ~a, lambda: ~(a & b), lambda: ~(a | b),
        lambda: pc.coalesce(a, b), lambda: pc.coalesce(a, pc.scalar(False)), lambda: pc.if_else(a, b, ~b),
        lambda: a.is_null(), lambda: ~a.is_valid() | b,
    ])()  # fmt: skip


def holds(node: Node, row: dict[str, Any]) -> bool:
    """What the tree says of one row, by its documentation."""
    match node:
        case And(parts):
            return all(holds(p, row) for p in parts)
        case Or(parts):
            return any(holds(p, row) for p in parts)
        case Always(value):
            return value
        case Opaque():
            return True
        case IsNull(column):
            return row[column] is None
        case Not(part):
            return row[part.column] is not None and not holds(part, row)
    v = row[node.column]
    if v is None:
        return False
    match node:
        case Compare(op, _, value):
            a, b = rank(v), rank(value.as_py())
            return {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
        case In(_, values):
            return v in values.to_pylist()
        case StartsWith(_, text):
            return bool(v.startswith(text))
        case EndsWith(_, text):
            return bool(v.endswith(text))
        case Contains(_, text):
            return text in v
        case Like(_, text):
            return bool(pc.match_like(pa.scalar(v), text).as_py())
    return True


def rank(v: Any) -> Any:
    if isinstance(v, float):
        return (1, 0.0) if v != v else (0, v)
    return v.encode() if isinstance(v, str) else v


def opaque(node: Node) -> bool:
    return isinstance(node, Opaque) or any(opaque(p) for p in getattr(node, "parts", ()))


def test_the_tree_holds_for_the_rows_that_arrow_keeps() -> None:
    rng = random.Random(5)
    table = table_of(rng, 200).append_column("row", pa.array(range(200)))
    rows = table.to_pylist()
    exact = weaker = 0
    for i in range(400):
        expression = filter_of(rng, i % 4)
        node = predicate.of(expression, table.schema)
        kept = set(table.filter(expression)["row"].to_pylist())
        met = {r["row"] for r in rows if holds(node, r)}
        assert kept <= met, f"{expression}\n{show(node)}"
        if opaque(node) or re.search(r"coalesce|is_(null|valid)\((?![a-z]+[,)])", str(expression)):
            weaker += kept != met
        else:
            assert kept == met, f"{expression}\n{show(node)}"
            exact += 1
    assert exact > 150 and weaker > 5


def test_equalities_and_projections_hold_for_the_rows_kept() -> None:
    rng = random.Random(6)
    table = table_of(rng, 120)
    pinned = projected = 0
    for i in range(300):
        expression = filter_of(rng, i % 3)
        node = predicate.of(expression, table.schema)
        kept = table.filter(expression)
        for column, values in predicate.equalities(node).items():
            allowed = {order_key(from_arrow(v.type), v.as_py()) for v in values}
            found = {order_key(from_arrow(table[column].type), v) for v in kept[column].to_pylist()}
            assert found <= allowed, f"{expression}: {column}"
            pinned += 1
        for names in (("k",), ("k", "x", "s"), ()):
            part = predicate.project(node, names)
            assert predicate.columns(part) <= set(names)
            assert all(holds(part, r) for r in kept.to_pylist()), f"{expression} on {names}: {show(part)}"
            projected += part != Always(True)
    assert pinned > 30 and projected > 30


def test_equalities() -> None:
    def of(text: str) -> dict[str, list[Any]]:
        found = predicate.equalities(predicate.of(parse(text, SCHEMA), SCHEMA))
        return {c: [v.as_py() for v in values] for c, values in found.items()}

    assert of("k = 1 AND s = 'a' AND g > 2") == {"k": [1], "s": ["a"]}
    assert of("k IN (1, 2) AND k IN (2, 3)") == {"k": [2]}
    assert of("(k = 1 AND s = 'a') OR (k = 2 AND s > 'b')") == {"k": [1, 2]}
    assert of("k = 1 OR s = 'a'") == {} and of("k = 1 OR k IS NULL") == {}
    assert of("x = 'NaN'") == {} and of("x = 1 OR x = 'NaN'") == {}
    assert [math.copysign(1, v) for v in of("x = 0")["x"]] == [1, -1]  # both zeros, which hash apart
    assert of("x = 0.0 AND x = -0.0")["x"] == [0.0, -0.0]


def test_rename() -> None:
    node = predicate.of(parse("k = 1 AND (s LIKE 'a%' OR NOT s LIKE '%b') AND g IS NULL", SCHEMA), SCHEMA)
    other = predicate.rename(node, {"k": "key", "s": "text"})
    assert predicate.columns(other) == {"key", "text", "g"}
    assert predicate.rename(other, {"key": "k", "text": "s"}) == node


# ---- bounds ----------------------------------------------------------------------------------------------


def bounds_of(rng: random.Random, table: pa.Table) -> dict[str, ColumnBounds]:
    """Bounds of a file as some writer may state them: without NaN, not at all, cut, or without null counts."""
    out = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        t = from_arrow(column.type)
        values = [v for v in stored_values(column, t) if v is not None]
        if rng.random() < 0.5:
            values = [v for v in values if v == v]
        values.sort(key=lambda v: order_key(t, v))
        low, high = (values[0], values[-1]) if values and rng.random() < 0.9 else (None, None)
        if isinstance(low, bytes) and isinstance(high, bytes) and rng.random() < 0.5:
            low, high = low[:1], high + b"\x01"
        out[name] = ColumnBounds(low, high, column.null_count if rng.random() < 0.8 else None)
        if rng.random() < 0.1:
            del out[name]
    return out


def as_arrays(
    files: list[dict[str, ColumnBounds]],
) -> tuple[dict[str, pa.Array], dict[str, pa.Array], dict[str, pa.Array]]:
    """Bounds as columns; text as binary, for cut bounds may end inside of a character."""

    def column(name: str, values: list[Any]) -> pa.Array:
        kind = SCHEMA.field(name).type
        if pa.types.is_timestamp(kind):
            return pa.array([None if v is None else v // 1_000_000 for v in values], pa.int64()).view(kind)
        if pa.types.is_decimal(kind):
            return pa.array([None if v is None else Decimal(v).scaleb(-kind.scale) for v in values], kind)
        return pa.array(values, pa.binary() if pa.types.is_string(kind) else kind, from_pandas=False)

    unknown = ColumnBounds(None, None, None)
    each = {c: [f.get(c, unknown) for f in files] for c in COLUMNS}
    return (
        {c: column(c, [b.low for b in bs]) for c, bs in each.items()},
        {c: column(c, [b.high for b in bs]) for c, bs in each.items()},
        {c: pa.array([b.nulls for b in bs], pa.int64()) for c, bs in each.items()},
    )


def test_no_file_with_a_match_is_dropped_by_its_bounds() -> None:
    rng = random.Random(9)
    tables = [table_of(rng, rng.randrange(1, 5), few=True) for _ in range(60)]
    files = [bounds_of(rng, t) for t in tables]
    every = pa.concat_tables([t.append_column("file", pa.array([i] * t.num_rows)) for i, t in enumerate(tables)])
    lows, highs, nulls = as_arrays(files)
    rows = np.array([t.num_rows for t in tables])
    dropped = 0
    for i in range(300):
        expression = filter_of(rng, i % 3)
        node = predicate.of(expression, tables[0].schema)
        wanted = set(every.filter(expression)["file"].to_pylist())
        one = [bounds.keep_bounds(node, b, n) for b, n in zip(files, rows)]
        many = bounds.keep_many(node, lows, highs, nulls, rows)
        assert many.tolist() == one, f"{expression}\n{show(node)}"
        missed = [n for n in wanted if not one[n]]
        assert not missed, f"{expression}: {files[missed[0]]}"
        dropped += one.count(False)
    assert dropped > 3000


def keeps(text: str, b: ColumnBounds, rows: int = 10, padded: tuple[str, ...] = ()) -> bool:
    """What the bounds of the only column in the filter say, alone and among many."""
    node = predicate.of(parse(text, SCHEMA), SCHEMA)
    (name,) = predicate.columns(node)
    one = bounds.keep_bounds(node, {name: b}, rows, padded)
    kind = pa.binary() if pa.types.is_string(SCHEMA.field(name).type) else SCHEMA.field(name).type
    low, high = ({name: pa.array([v], kind, from_pandas=False)} for v in (b.low, b.high))
    many = bounds.keep_many(node, low, high, {name: pa.array([b.nulls], pa.int64())}, np.array([rows]), padded)
    assert many.tolist() == [one]
    return one


@pytest.mark.parametrize("text, low, high, nulls, keep", [
    ("k = 5", 1, 4, 0, False), ("k = 5", 1, 5, 0, True), ("k = 5", None, None, None, True), ("k = 5", 1, 9, 10, False),
    ("k <> 5", 5, 5, 3, False), ("k <> 5", 5, 6, 0, True), ("k < 1", 1, 4, 0, False), ("k >= 4", 1, 4, 0, True),
    ("k IS NULL", 1, 4, 0, False), ("k IS NULL", 1, 4, None, True), ("k IS NOT NULL", None, None, 10, False),
    ("k IN (1,2,3,7,8,9,10,11,12)", 4, 6, 0, False), ("k IN (1,2,3,7,8,9,10,11,12)", 4, 7, 0, True),
    ("NOT (k IN (1,2,3,7,8,9,10,11,12))", 7, 7, 0, False), ("NOT (k IN (1,2,3,7,8,9,10,11,12))", 7, 8, 0, True),
    # NaN is above all and may be left out of bounds
    ("x > 5", 1.0, 3.0, 0, True), ("x > 5 AND NOT x = 'NaN'", 1.0, 3.0, 0, False), ("x < 5", 7.0, 9.0, 0, False),
    ("x = 0", -0.0, -0.0, 0, True), ("x > 5 AND x < 7", 1.0, 3.0, 0, False), ("x <> 1", 1.0, 1.0, 0, True),
    ("x < 5", NAN, NAN, 0, False), ("x = 1", 0.5, NAN, 0, True),
    # bytes, not collation; cut bounds
    ("s LIKE 'ab%'", b"ac", b"zz", 0, False), ("s LIKE 'ab%'", b"a", b"aa", 0, False), ("s LIKE 'ab%'", b"a", b"b", 0, True),
    ("NOT s LIKE 'ab%'", b"ab", b"abz", 0, False), ("s = 'Łódź'", b"\xc5", b"\xc6", 0, True), ("s > 'z'", b"a", b"y", 0, False),
])  # fmt: skip
def test_bounds(text: str, low: Any, high: Any, nulls: int | None, keep: bool) -> None:
    assert keeps(text, ColumnBounds(low, high, nulls)) is keep


def test_bounds_of_char_columns_may_carry_blanks() -> None:
    """ORC keeps the bounds of a CHAR with its blanks and reads the values without."""
    b = ColumnBounds(b"a    ", b"b    ", 0)
    assert not keeps("s = 'a'", b) and keeps("s = 'a'", b, padded=("s",))
    assert keeps("s <> 'a'", ColumnBounds(b"a", b"a", 0), padded=("s",))
    assert not keeps("s = 'c'", b, padded=("s",)) and not keeps("s < 'a'", b, padded=("s",))


def test_long_lists_over_many_files() -> None:
    """Lists above 32 values are searched, not compared one by one."""
    rng = random.Random(2)
    lows = [rng.randrange(0, 5000) for _ in range(300)]
    highs = [v + rng.randrange(0, 40) for v in lows]
    values = rng.sample(range(5000), 100)
    for kind in (pa.int32(), pa.timestamp("ms"), pa.decimal128(9, 2), pa.string()):

        def cast(numbers: list[int], kind: pa.DataType = kind) -> pa.Array:
            if pa.types.is_string(kind):
                return pa.array([f"{n:05}" for n in numbers])
            if pa.types.is_decimal(kind):
                return pa.array([Decimal(n) / 4 for n in numbers], kind)
            return pa.array(numbers, pa.int64()).cast(kind)

        node = predicate.of(F("c").isin(cast(values)), pa.schema([("c", kind)]))
        found = bounds.keep_many(node, {"c": cast(lows)}, {"c": cast(highs)}, {}, np.full(300, 9))
        assert found.tolist() == [any(a <= v <= b for v in values) for a, b in zip(lows, highs)]
        assert 0 < found.sum() < 300
