# SPDX-License-Identifier: Apache-2.0
"""Every merge engine and aggregate against the row-by-row model, on random versions of random tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import product
from random import Random
from typing import Any

import engine_model as model
import numpy as np
import pyarrow as pa
import pytest

from shoal.errors import ShoalError
from shoal.format.schema import Schema
from shoal.format.types import Field, parse, to_arrow
from shoal.lsm.engines import engine_of
from shoal.lsm.versions import Versions
from shoal.options import Options

KINDS = ["+I", "-U", "+U", "-D"]


Draw = Callable[[Random], Any]


@dataclass(frozen=True)
class Column:
    type: Any  # as in a schema file
    values: Draw
    functions: Sequence[str]
    options: Sequence[dict[str, str]] = ({},)

    @property
    def text(self) -> str:
        if isinstance(self.type, str):
            return self.type
        of_rows = isinstance(self.type.get("element"), dict)
        return self.type["type"] + ("<ROW>" if of_rows else "")

    def value(self, r: Random) -> Any:
        return None if r.random() < 0.25 else self.values(r)


def one(*values: Any) -> Draw:
    return lambda r: r.choice(values)


def mostly(low: int, high: int, *rare: int) -> Draw:
    return lambda r: r.choice(rare) if rare and r.random() < 0.1 else r.randint(low, high)


def decimals(low: int, high: int, scale: int, *rare: int) -> Draw:
    whole = mostly(low, high, *rare)
    return lambda r: Decimal(whole(r)).scaleb(-scale, Context(prec=60))


def floats(r: Random) -> float:
    plain = [0.1, 0.2, 0.3, 1e20, -1e20, 2.5, -0.0, 0.0]
    return float(np.float32(r.choice([*plain, *plain, math.inf, -math.inf, math.nan, r.uniform(-9, 9)])))


def members(**draws: Draw) -> Draw:
    return lambda r: {n: None if r.random() < 0.25 else d(r) for n, d in draws.items()}


def arrays(element: Draw) -> Draw:
    return lambda r: [None if r.random() < 0.2 else element(r) for _ in range(r.randint(0, 3))]


def maps(keys: str, value: Draw) -> Draw:
    return lambda r: [(k, None if r.random() < 0.2 else value(r)) for k in r.sample(keys, r.randint(0, 2))]


ANY = ["last_value", "last_non_null_value", "first_value", "first_non_null_value", "first_not_null_value"]
INTS = ["sum", "product", "max", "min", *ANY]
ROW = {
    "type": "ROW",
    "fields": [
        {"id": 90, "name": "k", "type": "INT"},
        {"id": 91, "name": "v", "type": "STRING"},
        {"id": 92, "name": "w", "type": "INT"},
    ],
}
rows = members(k=mostly(0, 3), v=one("p", "q", "r"), w=mostly(0, 2))
COLUMNS = [
    Column("TINYINT", mostly(-3, 4, 60, 100, 127, -128), INTS),
    Column("INT", mostly(-5, 20, 2**31 - 1, -(2**31), 65536), INTS),
    Column("BIGINT", mostly(-5, 20, 2**63 - 1, -(2**63), 2**62, 2**33, -1), INTS),
    Column("FLOAT", floats, INTS),
    Column("DOUBLE", lambda r: floats(r) if r.random() < 0.5 else r.choice([0.1, 0.2, 0.3, 1e-9]), INTS),
    Column("DECIMAL(10, 2)", decimals(-999, 999, 2, 9999999999, -9999999999), INTS),
    Column("DECIMAL(3, 1)", decimals(-30, 30, 1, 999, -999), INTS),
    Column("DECIMAL(18, 0)", decimals(-9, 9, 0, 10**18 - 1, 1 - 10**18), INTS),
    Column("DECIMAL(38, 3)", decimals(-(10**17), 10**17, 3, 10**38 - 1, 10**22, -5 * 10**37), INTS),
    Column("STRING", one("a", "b", "a,b", "c", "a-b", ",a", "b,", "", " ", "\u3000", "\u00a0", "zz,a,c", "é"),
           ["listagg", "max", "min", *ANY], [{}, {"distinct": "true"}, {"list-agg-delimiter": "-"}]),
    Column("BOOLEAN", one(True, False), ["bool_and", "bool_or", *ANY]),
    Column("TIMESTAMP(9)", mostly(-2, 2, 10**18 + 7), ["max", "min", *ANY]),
    Column({"type": "ARRAY", "element": "INT"}, arrays(mostly(0, 4)), ["collect", *ANY], [{}, {"distinct": "true"}]),
    Column({"type": "ARRAY", "element": ROW}, arrays(rows), ["nested_update", "collect"],
           [{}, {"nested-key": "k"}, {"nested-key": "k,w", "count-limit": "2"}, {"count-limit": "2"},
            {"nested-key": "k", "nested-sequence-field": "w"}, {"nested-key": "k", "nested-key-null-strategy": "ignore"},
            {"nested-key": "k", "nested-key-null-strategy": "error"}, {"distinct": "true"}]),
    Column({"type": "ARRAY", "element": ROW}, arrays(rows), ["nested_partial_update"],
           [{"nested-key": "k"}, {"nested-key": "k", "nested-key-null-strategy": "ignore"}]),
    Column({"type": "MAP", "key": "STRING", "value": "INT"}, maps("abc", mostly(0, 9)), ["merge_map", *ANY]),
    Column({"type": "MAP", "key": "STRING", "value": {"type": "ROW", "fields": [
                {"id": 95, "name": "x", "type": "INT"}, {"id": 96, "name": "t", "type": "STRING"}]}},
           maps("ab", members(x=mostly(0, 5), t=one("1", "2", "10"))), ["merge_map_with_keytime"],
           [{}, {"ts-field": "t"}]),
]  # fmt: skip


@dataclass
class Case:
    columns: list[tuple[str, Column]]
    options: dict[str, str]
    keys: list[list[tuple[str, dict[str, Any]]]]  # the versions of each key
    read: list[str] | None
    required: list[str]


def aggregation_case(r: Random) -> Case:
    columns = [(f"c{i}", r.choice(COLUMNS)) for i in range(r.randint(1, 3))]
    options = {"merge-engine": "aggregation"}
    removes = r.random() < 0.5
    if removes:
        options["aggregation.remove-record-on-delete"] = "true"
    for name, column in columns:
        options |= function_options(r, name, column, may_ignore=not removes)
    return filled(r, columns, options)


def partial_case(r: Random) -> Case:
    options = {"merge-engine": "partial-update"}
    groups = r.randint(0, 3)
    columns: list[tuple[str, Column]] = []
    sequences = []
    for g in range(groups):
        inside = [(f"g{g}c{i}", r.choice(COLUMNS)) for i in range(r.randint(1, 2))]
        for name, column in inside:
            if r.random() < 0.7:
                options |= function_options(r, name, column)
                if f"fields.{name}.nested-key" in options:
                    # which rows a late version finds at the limit hangs on Java's order, which the model has not
                    options.pop(f"fields.{name}.count-limit", None)
        values = r.choice([mostly(0, 4), one(-(2**40), 0, 2**62)])
        sequence = [(f"g{g}s{i}", Column("BIGINT", values, ())) for i in range(r.randint(1, 2))]
        names = ",".join(n for n, _ in inside)
        options[f"fields.{','.join(n for n, _ in sequence)}.sequence-group"] = names
        sequences.append([n for n, _ in sequence])
        columns += r.sample([*inside, *sequence], len(inside) + len(sequence))
    columns += [(f"p{i}", r.choice(COLUMNS)) for i in range(r.randint(0 if groups else 1, 2))]
    if r.random() < 0.5:
        r.shuffle(columns)
    mode = r.choice(["ignore", "group", "plain"] if groups else ["ignore", "delete", "plain"])
    if mode == "ignore":
        options["ignore-delete"] = "true"
    elif mode == "delete":
        options["partial-update.remove-record-on-delete"] = "true"
    elif mode == "group":
        options["partial-update.remove-record-on-sequence-group"] = r.choice(r.choice(sequences))
    return filled(r, columns, options)


def first_row_case(r: Random) -> Case:
    options = {"merge-engine": "first-row"} | ({"ignore-delete": "true"} if r.random() < 0.7 else {})
    return filled(r, [("a", COLUMNS[1])], options)


def function_options(r: Random, name: str, column: Column, *, may_ignore: bool = True) -> dict[str, str]:
    function, extra = r.choice(column.functions), r.choice(column.options)
    options = {f"fields.{name}.aggregate-function": function} | extra_options(name, function, extra)
    if may_ignore and r.random() < 0.7:
        options[f"fields.{name}.ignore-retract"] = "true"
    return options


def extra_options(name: str, function: str, extra: dict[str, str]) -> dict[str, str]:
    if function in ("collect", *ANY):
        extra = {k: v for k, v in extra.items() if k == "distinct"}
    return {f"fields.{name}.{k}": v for k, v in extra.items()}


def filled(r: Random, columns: list[tuple[str, Column]], options: dict[str, str]) -> Case:
    """Random versions, in some cases with retractions."""
    back = r.choice([0, 0, 0.2, 0.5])
    keys = []
    for _ in range(r.randint(1, 5)):
        versions = []
        for _ in range(r.randint(1, 5)):
            kind = r.choice(["-D", "-U"]) if r.random() < back else r.choice(["+I", "+U"])
            versions.append((kind, {n: c.value(r) for n, c in columns}))
        keys.append(versions)
    names = [n for n, _ in columns]
    required = [n for n in names if r.random() < 0.03]
    read = r.sample(names, r.randint(0, len(names))) if r.random() < 0.25 else None
    return Case(columns, options, keys, read, required)


def block(case: Case, seed: int) -> tuple[Schema, Versions]:
    """The versions as rows in random places of a table, with the order that leads through them."""
    fields = [Field(0, "k", parse("INT NOT NULL"))]
    fields += [
        Field(i + 1, n, parse(c.type).with_nullable(n not in case.required)) for i, (n, c) in enumerate(case.columns)
    ]
    schema = Schema(0, tuple(fields), 99, (), ("k",), case.options)
    flat = [(k, kind, row) for k, versions in enumerate(case.keys) for kind, row in versions]
    places = np.random.default_rng(seed).permutation(len(flat))
    laid: list[Any] = [None] * len(flat)
    for place, version in zip(places, flat):
        laid[place] = version
    arrays = [pa.array([k for k, _, _ in laid], pa.int32())]
    for (name, _), f in zip(case.columns, fields[1:]):
        arrays.append(pa.array([row[name] for _, _, row in laid], plain(to_arrow(f.type))).cast(to_arrow(f.type)))
    keys = np.array([k for k, _, _ in flat])
    first = np.append(True, keys[1:] != keys[:-1])
    kinds = np.array([KINDS.index(kind) for _, kind, _ in laid], np.int8)
    table = pa.table(arrays, [f.name for f in fields])
    return schema, Versions(table, places.astype(np.int64), first, kinds if kinds.any() else None)


def plain(t: pa.DataType) -> pa.DataType:
    """Nanoseconds do not fit Python's datetime: the model has them as numbers."""
    return pa.int64() if pa.types.is_timestamp(t) else t


def shown(value: Any, column: Column, function: str | None) -> str:
    """A value in a form that compares as Java's values do; sets and maps without order."""
    if isinstance(value, list):
        parts = [repr(v) for v in value]
        unordered = function in ("nested_update", "nested_partial_update", "collect") or column.text == "MAP"
        return repr(sorted(parts) if unordered else parts)
    if isinstance(value, Decimal):
        return str(value.normalize(Context(prec=60)) + 0)
    return repr(value)


def check(case: Case, seed: int = 0) -> None:
    schema, versions = block(case, seed)
    table = model.Table([("k", "INT"), *((n, c.text) for n, c in case.columns)], ["k"], case.options, case.required)
    read = ["k", *(n for n, _ in case.columns)] if case.read is None else case.read
    try:
        expected = [
            model.merge(table, [(kind, {"k": k, **row}) for kind, row in vs], read) for k, vs in enumerate(case.keys)
        ]
    except model.Refused:
        with pytest.raises(ShoalError):
            engine = engine_of(schema, Options(case.options, strict=False))
            assert engine is not None
            engine.fold(versions, read)
        return
    engine = engine_of(schema, Options(case.options, strict=False))
    assert engine is not None
    needed = engine.needs(read)
    assert set(read) <= set(needed)
    only = Versions(versions.table.select(list(needed)), versions.order, versions.first, versions.kinds)
    folded = engine.fold(only, read)
    columns = dict(case.columns)
    made = [c.cast(plain(c.type)).to_pylist() for c in folded.columns]
    for array, name in zip(folded.columns, read):
        array.validate(full=not pa.types.is_decimal(array.type))
        assert array.type == to_arrow(schema.field(name).type)
    got = [
        (KINDS[kind], {n: shown(v, columns.get(n, COLUMNS[1]), table.function(n)) for n, v in zip(read, values)})
        for kind, *values in zip(folded.kinds, *made)
    ]
    want = [
        (e[0], {n: shown(v, columns.get(n, COLUMNS[1]), table.function(n)) for n, v in e[1].items()})
        for e in expected
        if e is not None
    ]
    assert [k for k, _ in got] == [k for k, _ in want]
    assert got == want
    left = [k for k, e in enumerate(expected) if e is not None]
    assert [versions.table.column("k")[int(r)].as_py() for r in folded.rows] == left


@pytest.mark.parametrize("make", [aggregation_case, partial_case, first_row_case])
def test_engine_is_the_model(make: Callable[[Random], Case]) -> None:
    for seed in range(500):
        case = make(Random(seed))
        try:
            check(case, seed)
        except (AssertionError, pa.ArrowInvalid) as err:
            raise AssertionError(f"seed {seed}: {case}") from err


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.text)
def test_each_function_of_a_type_is_the_model(column: Column) -> None:
    extras: tuple[dict[str, str], ...] = (
        {},
        {"fields.c.ignore-retract": "true"},
        {"aggregation.remove-record-on-delete": "true"},
    )
    for seed, (function, own, extra) in enumerate(product(column.functions, column.options, extras)):
        options = {"merge-engine": "aggregation", "fields.c.aggregate-function": function}
        for again in range(6):
            r = Random(1000 * seed + again)
            case = filled(r, [("c", column)], options | extra | extra_options("c", function, own))
            try:
                check(case)
            except (AssertionError, pa.ArrowInvalid) as err:
                raise AssertionError(f"{function}, seed {seed}.{again}: {case}") from err
