# SPDX-License-Identifier: Apache-2.0
"""Rows by position against Arrow's own `take`, and the last row of each key against a dict."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from shoal.lsm.keys import _SPREAD, last_rows, stable_order
from shoal.lsm.picking import kept, picked

N = 300


def _column(t: pa.DataType, rng: np.random.Generator, nulls: bool) -> pa.Array:
    v = rng.integers(0, 99, N)
    out = {
        "bool": lambda: pa.array(v > 50),
        "string": lambda: pa.array(["x" * int(k % 9) for k in v]),
        "binary": lambda: pa.array([b"x" * int(k % 9) for k in v]),
        "decimal128(20, 2)": lambda: pa.array([Decimal(int(k)) for k in v], t),
        "list<item: int32>": lambda: pa.array([[int(k)] * (int(k) % 3) for k in v], t),
        "fixed_size_binary[3]": lambda: pa.array([bytes([int(k)] * 3) for k in v], t),
    }.get(str(t), lambda: pa.array(v.astype("i4" if t.bit_width == 32 else "i8")).cast(t))()
    return out.filter(pa.array(np.ones(N, bool))) if not nulls else pa.array(
        [None if gone else x for gone, x in zip(rng.random(N) < 0.3, out.to_pylist())], t
    )  # fmt: skip


@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize(
    "t",
    [
        pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.string(),
        pa.binary(), pa.decimal128(20, 2), pa.binary(3), pa.list_(pa.int32()),
    ],
    ids=str,
)  # fmt: skip
def test_picked_rows_are_those_of_take(t: pa.DataType, nulls: bool) -> None:
    rng = np.random.default_rng(5)
    whole = _column(t, rng, nulls)
    for offset, length in ((0, N), (3, N - 3), (8, 100), (13, 1), (5, 0)):
        column = whole.slice(offset, length)
        rows = rng.integers(0, length, 70) if length else np.zeros(0, np.int64)
        got = picked(column, rows)
        got.validate(full=True)
        assert got.equals(column.take(pa.array(rows)))
        rows = rng.integers(-1, length, 70)
        got = picked(column, rows, missing=rows < 0)
        got.validate(full=True)
        assert got.equals(column.take(pa.array(rows, mask=rows < 0)))
        keep = rng.random(length) < 0.9
        batch = pa.RecordBatch.from_arrays([column], ["c"])
        assert kept(batch, keep).equals(batch.filter(pa.array(keep)))


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("span", [1, 7, 5_000, 2**62])
def test_last_rows_are_the_last_of_their_key(words: int, span: int) -> None:
    rng = np.random.default_rng(span % 1000 + words)
    for n in (0, 1, 2, 3, 64, 6_000):
        columns = [rng.integers(0, span, n).astype(np.uint64) for _ in range(words)]
        last = {key: i for i, key in enumerate(zip(*(c.tolist() for c in columns)))}
        assert np.flatnonzero(last_rows(columns)).tolist() == sorted(last.values())


def test_keys_that_all_meet_in_one_slot_are_told_apart() -> None:
    # what the factor of the first round makes small numbers of, so that all of them fall into slot 0
    back = pow(int(_SPREAD[0]), -1, 2**64)
    columns = [np.tile(np.arange(4_000, dtype=np.uint64) * np.uint64(back), 2)]
    last = {int(k): i for i, k in enumerate(columns[0])}
    assert np.flatnonzero(last_rows(columns)).tolist() == sorted(last.values())


@pytest.mark.parametrize("runs", [2, 5, 40])
@pytest.mark.parametrize("span", [3, 60_000, 2**40, 2**64 - 1])
def test_the_order_of_many_runs_is_stable(runs: int, span: int) -> None:
    rng = np.random.default_rng(runs)
    word = np.concatenate([np.sort(rng.integers(0, span, 3_000, dtype=np.uint64)) for _ in range(runs)])
    order, first = stable_order([word])
    expected = sorted(range(len(word)), key=lambda i: (int(word[i]), i))
    assert order.tolist() == expected
    assert int(first.sum()) == len(set(word.tolist()))
