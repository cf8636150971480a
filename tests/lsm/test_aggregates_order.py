# SPDX-License-Identifier: Apache-2.0
"""Arrays that Java walks out of a hash table come in Java's order.

data/hash-order.jsonl was made by Java 2.0.0 (FieldCollectAgg with distinct, FieldNestedUpdateAgg,
FieldNestedPartialUpdateAgg): each line a function, the element type or the nested key (and the limit after it), the
arrays in order, and the result. Timestamps are microseconds, nested rows are (k INT, s STRING, v BIGINT).
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.format.schema import Schema
from shoal.format.types import DataType, Field, parse, to_arrow
from shoal.lsm.engines import engine_of
from shoal.lsm.versions import Versions
from shoal.options import Options

LINES = [json.loads(line) for line in (Path(__file__).parent / "data" / "hash-order.jsonl").read_text().splitlines()]
NESTED = {
    "type": "ROW",
    "fields": [
        {"id": 2, "name": "k", "type": "INT"},
        {"id": 3, "name": "s", "type": "STRING"},
        {"id": 4, "name": "v", "type": "BIGINT"},
    ],
}


def value(v: Any, t: DataType) -> Any:
    if v is None:
        return None
    if t.root == "ROW":
        return dict(zip(("k", "s", "v"), v))
    if t.root == "DECIMAL":
        return Decimal(v)
    return math.nan if v == "NaN" else v


def column(arrays: list[list[Any]], t: DataType) -> pa.Array:
    """The arrays as a column; timestamps by their number of microseconds."""
    flat = [value(v, t) for a in arrays for v in a]
    if t.is_timestamp:
        elements = pa.array(flat, pa.int64()).cast(pa.timestamp("us")).cast(to_arrow(t))
    else:
        elements = pa.array(flat, to_arrow(t))
    ends = np.cumsum([0, *map(len, arrays)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), elements)


@pytest.mark.parametrize("line", range(len(LINES)), ids=lambda i: f"{LINES[i][0]}-{LINES[i][1]}-{i}")
def test_order_is_that_of_javas_table(line: int) -> None:
    function, what, arrays, result = LINES[line]
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": function}
    if function == "collect":
        element = parse(what)
        options["fields.v.distinct"] = "true"
    else:
        element = parse(NESTED)
        key, _, limit = what.partition(";")
        options["fields.v.nested-key"] = key
        if limit:
            options["fields.v.count-limit"] = limit
    array = DataType("ARRAY", element=element)
    schema = Schema(0, (Field(0, "id", parse("INT NOT NULL")), Field(1, "v", array)), 4, (), ("id",), options)
    engine = engine_of(schema, Options(options, strict=False))
    assert engine is not None
    n = len(arrays)
    table = pa.table({"id": pa.array([1] * n, pa.int32()), "v": column(arrays, element).cast(to_arrow(array))})
    first = np.arange(n) == 0
    folded = engine.fold(Versions(table, np.arange(n), first, None), ["v"])
    assert repr(folded.columns[0].to_pylist()) == repr(column([result], element).to_pylist())


def test_maps_that_are_laid_over_each_other_come_in_javas_order() -> None:
    """As Java 2.0.0 wrote it: t0094 of the oracle's fuzz, seed s12."""
    kind = parse({"type": "MAP", "key": "STRING NOT NULL", "value": {
        "type": "ROW", "fields": [{"id": 2, "name": "v", "type": "INT"}, {"id": 3, "name": "ts", "type": "STRING"}],
    }})  # fmt: skip
    maps = [
        [("a", {"v": 5, "ts": "b"}), ("b", {"v": 5, "ts": "c"})],
        [("b", {"v": -2, "ts": "k2"}), ("k1", {"v": 3, "ts": None}), ("q", {"v": -1, "ts": "c"})],
    ]
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "merge_map_with_keytime"}
    schema = Schema(0, (Field(0, "id", parse("INT NOT NULL")), Field(1, "v", kind)), 3, (), ("id",), options)
    engine = engine_of(schema, Options(options, strict=False))
    assert engine is not None
    table = pa.table({"id": pa.array([1, 1], pa.int32()), "v": pa.array(maps, to_arrow(kind))})
    folded = engine.fold(Versions(table, np.arange(2), np.array([True, False]), None), ["v"])
    assert folded.columns[0].to_pylist() == [
        [("a", {"v": 5, "ts": "b"}), ("q", {"v": -1, "ts": "c"}), ("b", {"v": -2, "ts": "k2"})]
    ]
