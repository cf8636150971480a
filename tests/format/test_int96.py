# SPDX-License-Identifier: Apache-2.0
"""INT96 columns of Parquet files, from the year 1 to 9999, nested ones too, as Java and pyarrow write them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from instants_model import DATA, dumped, read

from shoal import Corrupt, ShoalError, Unsupported
from shoal.format import int96, schema
from shoal.format.types import DataType, to_arrow, widened

JAVA = DATA / "int96.parquet"
FIELDS = schema.decode((DATA / "schema-0").read_bytes(), "schema-0").fields
TS = {p: DataType("TIMESTAMP", precision=p) for p in (0, 3, 6, 9)}
EPOCH = datetime(1970, 1, 1)


def decoded(data: bytes, types: dict[str, DataType], rows: int = 5) -> list[pa.RecordBatch]:
    file = pa.BufferReader(data)
    whole = pq.ParquetFile(file, metadata=int96.raw_footer(file, "a.parquet"))
    out = []
    for batch in whole.iter_batches(rows):
        arrays = [int96.decode(batch.column(n), t, "a.parquet", n) for n, t in types.items()]
        assert [a.type for a in arrays] == [to_arrow(t) for t in types.values()]
        out.append(pa.RecordBatch.from_arrays(arrays, names=list(types)))
    return out


def written(column: pa.Array, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"t": column}), sink, use_deprecated_int96_timestamps=True, **options)
    return bytes(sink.getvalue())


def raw(days: list[int], nanos: list[int]) -> bytes:
    """A file whose INT96 column holds these days since 1970 and signed nanoseconds of the day."""
    data = bytearray(written(pa.array([0] * len(days), pa.timestamp("ns")), use_dictionary=False, compression="none"))
    at = data.find((0).to_bytes(8, "little") + (2_440_588).to_bytes(4, "little"))
    for i, (day, nano) in enumerate(zip(days, nanos)):
        value = nano.to_bytes(8, "little", signed=True) + (day + 2_440_588).to_bytes(4, "little")
        data[at + 12 * i : at + 12 * i + 12] = value
    return bytes(data)


def test_java_wrote_every_year_also_in_lists_maps_and_rows() -> None:
    got = read(decoded(JAVA.read_bytes(), {f.name: widened(f.type) for f in FIELDS}))
    assert got == dumped("inserted.jsonl")


def test_only_files_with_such_columns_need_another_footer() -> None:
    assert int96.holds(pq.read_metadata(JAVA))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us"))}), sink)
    assert not int96.holds(pq.read_metadata(pa.BufferReader(sink.getvalue())))


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("precision", [0, 3, 6, 9])
def test_pyarrow_writes_all_precisions_as_int96(precision: int, dictionary: bool) -> None:
    rng = np.random.default_rng(precision)
    unit = {0: "s", 3: "ms", 6: "us", 9: "ns"}[precision]
    ends = {0: (-62_135_596_800, 253_402_300_799), 9: (-(2**63) + 1, 2**63 - 1)}
    low, high = ends.get(precision, (-62_135_596_800 * 10**precision, 253_402_300_799 * 10**precision))
    values = [low, high, -1, 0, 1, *rng.integers(low // 2, high // 2, 400).tolist()]
    column = pa.array([None, *values], pa.timestamp(unit))
    if precision == 0:  # pyarrow multiplies seconds past 64 bits on its own way to INT96
        column = pa.array([None, *(v for v in values if abs(v) < 2**33)], pa.timestamp(unit))
    got = pa.Table.from_batches(decoded(written(column, use_dictionary=dictionary), {"t": TS[precision]}, 64))
    assert got.column("t").to_pylist() == column.to_pylist()


def test_a_negative_nanosecond_of_the_day_is_before_that_day_and_not_584_years_later() -> None:
    days, nanos = [0, -1, 106_751, -719_162 + 365], [-1, -86_399_999_999_999, 85_636_854_775_808, -1]
    got = pa.Table.from_batches(decoded(raw(days, nanos), {"t": widened(TS[9])})).column("t").to_pylist()
    exact = [Decimal(d * 86_400) + Decimal(n).scaleb(-9) for d, n in zip(days, nanos)]
    assert got == exact
    # the third one is the first nanosecond count that 64 bits do not hold
    with pytest.raises(Unsupported, match="column 't' holds a time outside the years 1677 to 2262"):
        decoded(raw(days[2:3], nanos[2:3]), {"t": TS[9]})
    assert decoded(raw([106_751], [85_636_854_775_807]), {"t": TS[9]})[0].column(0).view(pa.int64()).to_pylist() == [
        2**63 - 1
    ]


def test_digits_beyond_the_precision_are_cut_downwards() -> None:
    got = decoded(raw([-1, 0], [999_999_999, 1_999_999_999]), {"t": TS[0]})[0].column(0)
    assert got.view(pa.int64()).to_pylist() == [-86_400, 1]


def test_damaged_footers_are_corrupt() -> None:
    data = JAVA.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    rng = np.random.default_rng(3)
    wrong = 0
    for at in rng.integers(len(data) - 8 - length, len(data), 300).tolist():
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        try:
            int96.raw_footer(pa.BufferReader(bytes(bad)), "some/a.parquet")
        except ShoalError as err:
            assert isinstance(err, Corrupt) and "some/a.parquet" in err.message
            wrong += 1
    assert wrong > 20
    for cut in (0, 3, 11, length):
        with pytest.raises(Corrupt, match=r"some/a\.parquet"):
            int96.raw_footer(pa.BufferReader(data[:cut]), "some/a.parquet")


def test_fields_that_hold_something_else_are_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"holds .* where the schema says INT"):
        decoded(written(pa.array([1], pa.timestamp("us"))), {"t": DataType("INT")})
