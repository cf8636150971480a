# SPDX-License-Identifier: Apache-2.0
"""INT96 written: against Python's own arithmetic, and read back by pyarrow and shoal."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, localcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.format.instants import parts
from shoal.format.int96_writer import encode

BOUND = 300_000_000_000 * 10**9


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-BOUND, BOUND), max_size=20), st.integers(0, 3))
def test_decimal_seconds_become_julian_days_and_nanoseconds(nanos: list[int | None], skip: int) -> None:
    with localcontext(prec=40):
        values = [None if n is None else Decimal(n).scaleb(-9) for n in nanos]
    a = pa.array(values, pa.decimal128(21, 9)).slice(skip)
    found = encode(a).to_pylist()
    for n, raw in zip(nanos[skip:], found):
        if n is None:
            assert raw is None
            continue
        day, of_day = divmod(n, 86_400 * 10**9)
        assert raw == of_day.to_bytes(8, "little") + (day + 2_440_588).to_bytes(4, "little", signed=True)


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20), st.sampled_from(["s", "ms", "us", "ns"]))
def test_seconds_and_nanoseconds_of_timestamps(values: list[int | None], unit: str) -> None:
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    a = pa.array(values, pa.int64()).view(pa.timestamp(unit))
    seconds, nanos = parts(a)
    for v, s, n in zip(values, seconds.tolist(), nanos.tolist()):
        if v is not None:
            assert (s, n) == (v // per, v % per * (10**9 // per))


def test_pyarrow_reads_the_same_time() -> None:
    a = pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 11, 30, 1, 2, 3)], pa.timestamp("ns"))
    assert [len(b) for b in encode(a).to_pylist()] == [12, 12]
    assert encode(a).to_pylist()[1][8:] == (2_461_375).to_bytes(4, "little")


def test_a_table_keeps_nanoseconds_of_any_year(tmp_path: Path) -> None:
    """At every depth, in files whose footer says what Java's says."""
    seconds = pa.decimal128(21, 9)
    names, types = ["k", "t", "a", "m", "r", "u"], [
        pa.int32(), seconds, pa.list_(seconds), pa.map_(pa.string(), seconds),
        pa.struct([("x", seconds), ("y", pa.int32())]), pa.timestamp("us"),
    ]  # fmt: skip
    first, last = Decimal("-62135596800.000000001"), Decimal("253402300799.999999999")
    rows = [
        [1, first, [last, None], [("a", first)], {"x": last, "y": 1}, datetime(1, 1, 1)],
        [2, None, None, None, None, None],
        [3, last, [], [("b", None)], {"x": None, "y": 2}, datetime(9999, 12, 31)],
    ]
    data = pa.table([pa.array(c, t) for c, t in zip(zip(*rows), types)], names)
    nanos = [pa.timestamp("ns"), pa.list_(pa.timestamp("ns")), pa.map_(pa.string(), pa.timestamp("ns"))]
    declared = pa.schema(zip(names, [pa.int32(), *nanos, pa.struct([("x", nanos[0]), ("y", pa.int32())]), types[5]]))
    lake = shoal.open(str(tmp_path), wide_timestamps=True)
    table = lake.create_table("d.t", declared, primary_key=["k"], options={"bucket": 1})
    with table.write() as w:
        w.upsert(data)
        w.commit()
    assert lake.table("d.t").scan().to_arrow().to_pylist() == data.to_pylist()
    (file,) = tmp_path.glob("d.db/t/bucket-0/*.parquet")
    columns = pq.ParquetFile(file).schema
    physical = {columns.column(i).path: columns.column(i).physical_type for i in range(len(columns))}
    assert [p for p, t in physical.items() if t == "INT96"] == [
        "t", "a.list.element", "m.key_value.value", "r.x",
    ]  # fmt: skip
    assert physical["u"] == "INT64"
    assert table.inspect.files().column("null_value_counts").to_pylist() == ["{a=null, k=0, m=null, r=null, t=1, u=1}"]
