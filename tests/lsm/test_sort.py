# SPDX-License-Identifier: Apache-2.0
"""Rows sorted by columns or along a curve: the same rows, in an order that a reader can skip by."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.budget import Budget
from shoal.errors import BadRequest
from shoal.format.types import DataType, Field
from shoal.lsm.curves import HILBERT, ORDER, STRATEGIES, ZORDER, Axis, Curve, hilbert, interleaved, measured, strategy
from shoal.lsm.picking import picked_across
from shoal.lsm.sort import Read, SortOrder, sorted_rows

ROWS = 6_000


def read_of(table: pa.Table, rows: int = 500) -> Read:
    def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return iter((table if columns is None else table.select(list(columns))).to_batches(max_chunksize=rows))

    return read


def mixed(seed: int = 1, rows: int = ROWS) -> pa.Table:
    rng = random.Random(seed)
    texts = [None, "", "a\0", "a", "a\0b", "ä"]

    def text() -> str | None:
        return rng.choice([*texts, f"user-{rng.randint(0, 999)}", "x" * 300 + str(rng.randint(0, 9))])

    return pa.table(
        {
            "i": pa.array([rng.choice([None, rng.randint(-1000, 1000)]) for _ in range(rows)], pa.int32()),
            "s": pa.array([text() for _ in range(rows)]),
            "d": pa.array([rng.choice([rng.uniform(-1, 1), float("inf"), 0.0, -0.0]) for _ in range(rows)]),
            "n": pa.array(range(rows)),
        }
    )


# ---- the sort


@pytest.mark.parametrize("memory", [1 << 30, 1 << 20], ids=["in memory", "on disk"])
def test_rows_come_out_in_the_order_of_their_columns_nulls_first(memory: int) -> None:
    table = mixed()
    got = pa.Table.from_batches(list(sorted_rows(read_of(table), SortOrder(ORDER, ("s", "i")), Budget(memory))))

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["s"] is not None, (row["s"] or "").encode(), row["i"] is not None, row["i"] or 0

    assert got.to_pylist() == sorted(table.to_pylist(), key=key)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_small_budget_gives_the_same_order(name: str) -> None:
    table, order = mixed(2), SortOrder(name, ("i", "s", "d"))
    whole = list(sorted_rows(read_of(table), order, Budget(1 << 30)))
    budget = Budget(1 << 20)
    cut = list(sorted_rows(read_of(table), order, budget))
    assert pa.Table.from_batches(whole).equals(pa.Table.from_batches(cut))
    assert sorted(pa.Table.from_batches(cut).column("n").to_pylist()) == list(range(ROWS))
    assert budget.used == 0 and budget.peak <= budget.total


def test_rows_that_are_all_equal_need_no_more_memory_than_others() -> None:
    table = pa.table({"a": pa.array([7] * 50_000), "n": pa.array(range(50_000))})
    budget = Budget(1 << 20)
    got = pa.Table.from_batches(list(sorted_rows(read_of(table), SortOrder(ZORDER, ("a",)), budget)))
    assert got.column("n").to_pylist() == list(range(50_000))
    assert budget.peak <= budget.total


def test_no_rows_are_no_batches() -> None:
    assert list(sorted_rows(lambda _: iter(()), SortOrder(ZORDER, ("a",)), Budget())) == []


FIELDS = [Field(0, "a", DataType("INT")), Field(1, "b", DataType("ARRAY", element=DataType("INT")))]


@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [
        (ORDER, (), "no columns"),
        (HILBERT, ("a",), "two columns"),
        (ZORDER, ("a", "c"), "no column 'c'"),
        (ORDER, ("b",), "no order to sort by"),
        (ORDER, ("a", "a"), "twice"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(name: str, columns: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        SortOrder(name, columns).check("d.t", FIELDS)


# ---- the curves


@pytest.mark.parametrize(("dimensions", "bits"), [(2, 4), (3, 3), (4, 2), (5, 2)])
def test_hilberts_curve_passes_every_point_once_by_steps_to_neighbours(dimensions: int, bits: int) -> None:
    points = list(product(range(1 << bits), repeat=dimensions))
    columns = [np.array([p[i] for p in points], np.uint64) for i in range(dimensions)]
    turned = hilbert(columns, bits)
    keys = [bytes(k) for k in interleaved([[w] for w in turned], [(bits,)] * dimensions)]
    assert len(set(keys)) == len(points)
    way = [points[i] for i in sorted(range(len(points)), key=lambda i: keys[i])]
    assert all(sum(abs(x - y) for x, y in zip(a, b)) == 1 for a, b in pairwise(way))


def test_a_z_order_takes_bits_in_turn_and_passes_over_columns_that_have_no_more() -> None:
    a, b = np.array([0b101, 0b010], np.uint64), np.array([0b1, 0b0], np.uint64)
    assert [f"{k[0]:08b}" for k in interleaved([[a], [b]], [(3,), (1,)])] == ["11010000", "00100000"]


_STAMP = datetime(2026, 1, 1)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "short decimal": (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "long decimal": (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
    "date": (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    "timestamp": (pa.timestamp("us"), st.integers(-(2**45), 2**45).map(lambda n: _STAMP + timedelta(microseconds=n))),
    "string": (pa.string(), st.text(max_size=12)),
    "bytes": (pa.binary(), st.binary(max_size=12)),
}


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_number_of_a_column_never_falls_where_its_value_grows(name: str, data: st.DataObject) -> None:
    arrow_type, values = VALUES[name]
    drawn = data.draw(st.lists(values | st.none(), min_size=1, max_size=20))
    width = data.draw(st.sampled_from([3, 8, 14]))
    batch = pa.record_batch({"v": pa.array(drawn, arrow_type)})
    [bounds] = measured([batch], ["v"])
    axis = Axis.of(bounds, width)
    words = [tuple(int(w) for w in row) for row in zip(*axis.words(batch.column(0), width))]
    for row in words:
        assert all(w < 1 << b for w, b in zip(row, axis.bits))

    def ordered(v: Any) -> Any:
        return v.encode() if isinstance(v, str) else v

    there = [(ordered(v), w) for v, w in zip(drawn, words) if v is not None]
    there.sort(key=lambda x: x[0])
    assert all(a[1] <= b[1] for a, b in pairwise(there) if a[0] != b[0])
    assert all(w == (0,) * len(axis.bits) for v, w in zip(drawn, words) if v is None)


@pytest.mark.parametrize("name", [ZORDER, HILBERT])
def test_a_part_of_the_curve_is_narrow_in_every_column_whatever_their_scale(name: str) -> None:
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "small": pa.array(rng.integers(0, 1_000, 20_000), pa.int32()),
            "large": pa.array(rng.integers(0, 10**12, 20_000)),
            "text": pa.array([f"user-{n:05}" for n in rng.integers(0, 100_000, 20_000)]),
        }
    )
    got = pa.Table.from_batches(
        list(sorted_rows(read_of(table), SortOrder(name, ("small", "large", "text")), Budget(1 << 30)))
    )
    parts = [got.slice(at, 20_000 // 64) for at in range(0, 19_968, 20_000 // 64)]
    for column in ("small", "large", "text"):
        values = table.column(column).to_pylist()
        wanted = rng.choice(values, 40)
        kept = sum(
            min(p) <= v <= max(p) for v in wanted.tolist() for p in (part.column(column).to_pylist() for part in parts)
        )
        # 4 x 4 x 4 boxes: a point query needs about a quarter of the parts, here a third
        assert kept < 0.5 * 40 * len(parts), column


def test_values_beyond_the_bounds_take_the_nearest_number() -> None:
    axis = Axis.of(measured([pa.record_batch({"v": pa.array([10, 20])})], ["v"])[0], 8)
    words = axis.words(pa.array([-5, 10, 20, 10**15]), 8)[0].tolist()
    assert 0 < words[0] == words[1] < words[2] == words[3]


def test_columns_of_nulls_alone_have_a_place_on_a_curve() -> None:
    batch = pa.record_batch({"v": pa.array([None, None], pa.int32()), "w": pa.array([2, 1])})
    curve = Curve.through(HILBERT, measured([batch], ["v", "w"]), 8)
    assert bytes(curve.keys([batch.column(0), batch.column(1)])[0]) > bytes(curve.keys(batch.columns)[1])


def test_the_strategy_goes_by_the_number_of_columns_unless_it_is_named() -> None:
    assert [strategy("auto", n) for n in (1, 2, 4, 5)] == [ORDER, ZORDER, ZORDER, HILBERT]
    assert strategy("HILBERT", 2) == HILBERT
    with pytest.raises(BadRequest, match="no order 'none'"):
        strategy("none", 2)


# ---- what it costs


def test_a_sort_copies_its_rows_a_few_times_however_many_batches_it_makes() -> None:
    texts = pa.array(["x" * 400 + str(i) for i in range(20_000)])
    table = pa.table({"n": pa.array(np.random.default_rng(1).permutation(20_000)), "s": texts})
    pool = pa.default_memory_pool()
    for budget in (Budget(64 << 20), Budget(4 << 20)):  # one run in memory; eleven on disk
        before = pool.total_bytes_allocated()
        rows = sum(b.num_rows for b in sorted_rows(read_of(table), SortOrder(ORDER, ("n",)), budget))
        assert rows == 20_000
        assert pool.total_bytes_allocated() - before < 12 * table.nbytes


def test_keys_and_places_of_narrow_rows_count_too() -> None:
    rng, count = np.random.default_rng(1), 30_000
    table = pa.table({"n": rng.integers(0, 1 << 40, count), "a": rng.integers(0, 9, count)})
    order, budget = SortOrder(ORDER, ("n", "a")), Budget(2 << 20)
    list(sorted_rows(read_of(table.slice(0, 3_000)), order, Budget(1 << 16)))  # what is imported or set once
    tracemalloc.start()  # sees what numpy holds: words and places, not the rows
    try:
        assert sum(b.num_rows for b in sorted_rows(read_of(table), order, budget)) == count
        assert tracemalloc.get_traced_memory()[1] < budget.total
    finally:
        tracemalloc.stop()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.randoms())
def test_rows_picked_across_batches_are_those_of_all_of_them(sizes: list[int], rng: random.Random) -> None:
    total = sum(sizes)
    whole = mixed(3, max(1, total)).slice(0, total).combine_chunks()
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    empty = whole.schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=whole.schema)]
    parts = [whole.slice(a, n).combine_chunks().to_batches()[0] if n else empty[0] for a, n in zip(starts, sizes)]
    rows = np.array([rng.randrange(total) for _ in range(rng.randint(0, 12))] if total else [], np.int64)
    got = picked_across(parts, rows)
    assert got.to_pylist() == [whole.slice(r, 1).to_pylist()[0] for r in rows.tolist()]
    assert got.schema == whole.schema
