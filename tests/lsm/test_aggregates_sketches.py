# SPDX-License-Identifier: Apache-2.0
"""Bitmaps and sketches: bytes equal to what Java's aggregates make of the same bytes.

data/sketches.jsonl.xz was made by Java 2.0.0 (FieldRoaringBitmap32Agg, FieldRoaringBitmap64Agg, HllSketchUtil.union,
ThetaSketch.union): each line a function, the values in order, and the result, in hex.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shoal.errors import BadRequest
from shoal.format.schema import Schema
from shoal.format.types import Field, parse
from shoal.lsm.engines import engine_of
from shoal.lsm.versions import Versions
from shoal.options import Options

DATA = Path(__file__).parent / "data" / "sketches.jsonl.xz"
LINES = [json.loads(line) for line in lzma.decompress(DATA.read_bytes()).splitlines()]


def merged(function: str, keys: Sequence[Sequence[bytes | None]]) -> list[bytes | None]:
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": function}
    schema = Schema(0, (Field(0, "k", parse("INT NOT NULL")), Field(1, "v", parse("BYTES"))), 1, (), ("k",), options)
    engine = engine_of(schema, Options(options, strict=False))
    assert engine is not None
    flat = [(k, v) for k, values in enumerate(keys) for v in values]
    owners = np.array([k for k, _ in flat])
    table = pa.table({"k": pa.array(owners, pa.int32()), "v": pa.array([v for _, v in flat], pa.binary())})
    first = np.append(True, owners[1:] != owners[:-1])
    folded = engine.fold(Versions(table, np.arange(len(flat)), first, None), ["v"])
    values: list[bytes | None] = folded.columns[0].to_pylist()
    return values


@pytest.mark.parametrize("function", ["rbm32", "rbm64", "hll_sketch", "theta_sketch"])
def test_unions_are_javas_byte_for_byte(function: str) -> None:
    cases = [[bytes.fromhex(v) for v in values] for f, *values in LINES if f == function]
    assert len(cases) >= 9
    assert merged(function, [values for *values, _ in cases]) == [result for *_, result in cases]


def test_nulls_and_single_values_pass_as_they_are() -> None:
    assert merged("rbm32", [[b"not a bitmap"], [None, b"neither", None], [None, None]]) == [
        b"not a bitmap",
        b"neither",
        None,
    ]


@pytest.mark.parametrize("function", ["rbm32", "rbm64", "hll_sketch", "theta_sketch"])
def test_foreign_bytes_are_refused_with_the_column(function: str) -> None:
    with pytest.raises(BadRequest, match=f"column 'v': a value is no {function}"):
        merged(function, [[b"\x07foreign bytes, of no sketch", b"\x07foreign bytes, of no sketch"]])
