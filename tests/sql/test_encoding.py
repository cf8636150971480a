"""Results as text: the rows that Java's dumps hold, and what a terminal, a script and a spreadsheet need."""

from __future__ import annotations

import csv as standard_csv
import io
import json
from collections.abc import Iterator
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import BadRequest, Unsupported
from shoal.sql import encoding


def reader(**columns: Any) -> pa.RecordBatchReader:
    return pa.table(columns).to_reader()


def lines(table: pa.Table) -> list[str]:
    return "".join(encoding.jsonl(table.to_reader())).splitlines()


# Rows of types.append_parquet as Java 2.0.0 dumps them, less columns that repeat a type; the last row is all null.
JAVA = (Path(__file__).parent / "java_rows.jsonl").read_text().splitlines()


def decimals(values: list[str | None], precision: int, scale: int) -> pa.Array:
    return pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(precision, scale))


def java_rows() -> pa.Table:
    """The same rows as Arrow."""
    ns = 1_709_210_096_123_456_789  # 2024-02-29T12:34:56.123456789
    late = 7_289_654_399_999_999_999  # 2200-12-31T23:59:59.999999999
    last = 253_402_300_799  # 9999-12-31T23:59:59
    first_of_2024 = 1_704_067_200_000_001
    return pa.table(
        {
            "id": pa.array([1, 3, 5, None], pa.int32()),
            "c_bigint": pa.array([4, 2**63 - 1, 0, None], pa.int64()),
            "c_float": pa.array([1.5, 3.402823e38, float("nan"), None], pa.float32()),
            "c_double": pa.array([2.25, float("inf"), 5e-324, None]),
            "c_dec_small": decimals(["12345.67", "9999999.99", "0", None], 9, 2),
            "c_dec_big": decimals(
                ["1234567890123456789012345678.0123456789", "9" * 28 + "." + "9" * 10, "0", None], 38, 10
            ),
            "c_bool": pa.array([True, True, False, None]),
            "c_string": pa.array(["hello", 'it\'s "quoted" \\\\ /path=1&x', "", None]),
            "c_binary": pa.array([b"\x00\x01\x02\x03", b"\xff" * 4, b"\x7f\x80\xff\x00", None]),
            "c_date": pa.array([date(2024, 2, 29), date(9999, 12, 31), date(1970, 1, 1), None]),
            "c_time": pa.array([time(12, 34, 56), time(23, 59, 59), time(1, 2, 3), None], pa.time32("ms")),
            "c_ts0": pa.array([ns // 10**9, last, 0, None], pa.timestamp("s")),
            "c_ts3": pa.array([ns // 10**6, last * 1000 + 999, -1, None], pa.timestamp("ms")),
            "c_ts9": pa.array([ns, late, -1, None], pa.timestamp("ns")),
            "c_ltz3": pa.array([ns // 10**6, last * 1000 + 999, -1, None], pa.timestamp("ms", "UTC")),
            "c_ltz9": pa.array([ns, late, -1, None], pa.timestamp("ns", "UTC")),
            "c_arr": pa.array([[1, 2, None], [2147483647], [None], None], pa.list_(pa.int32())),
            "c_arr_dec": pa.array([[Decimal("1.25")], [None], [Decimal(0)], None], pa.list_(pa.decimal128(20, 2))),
            "c_arr_ts": pa.array([[first_of_2024], [None], [0], None], pa.list_(pa.timestamp("us"))),
            "c_arr_arr": pa.array([[[1, 2], [3]], [None], [[None]], None], pa.list_(pa.list_(pa.int64()))),
            "c_map": pa.array(
                [[("k2", 2), ("k1", 1)], [("k", None)], [("a", 0)], None], pa.map_(pa.string(), pa.int32())
            ),
            "c_map_row": pa.array(
                [[(1, {"x": 1.5, "y": "y"})], [(9, None)], [(0, {"x": None, "y": None})], None],
                pa.map_(pa.int32(), pa.struct([("x", pa.float64()), ("y", pa.string())])),
            ),
            "c_row": pa.array(
                [
                    {"a": 1, "b": "r", "c": Decimal("1.125")},
                    {"a": 2147483647, "b": "z", "c": Decimal("9999999.999")},
                    {},
                    None,
                ],
                pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.decimal128(10, 3))]),
            ),
        }
    )  # fmt: skip


def test_rows_read_as_java_dumps_them() -> None:
    assert [json.loads(line) for line in lines(java_rows())] == [json.loads(line) for line in JAVA]


def test_columns_keep_their_order_and_every_value_its_spelling() -> None:
    ours, theirs = lines(java_rows()), JAVA
    # numbers with an exponent are the one difference: 3.402823e+38 here, 3.402823E38 in Java
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1].replace("3.402823E38", "3.402823e+38")
    assert ours[2] == theirs[2].replace("4.9E-324", "5e-324")
    assert ours[3] == theirs[3]


def test_a_slice_is_written_like_the_whole() -> None:
    whole = lines(java_rows())
    for at in range(4):
        assert lines(java_rows().slice(at)) == whole[at:]
        assert lines(java_rows().slice(at, 1)) == whole[at : at + 1]


def test_instants_cut_zeros_by_threes_and_local_times_one_by_one() -> None:
    value = 1_709_210_096_120_000
    table = pa.table(
        {"local": pa.array([value], pa.timestamp("us")), "instant": pa.array([value], pa.timestamp("us", "UTC"))}
    )
    assert lines(table) == ['{"local":"2024-02-29T12:34:56.12","instant":"2024-02-29T12:34:56.120Z"}']


def test_an_instant_is_shown_in_utc_whatever_zone_its_type_names() -> None:
    assert lines(pa.table({"z": pa.array([0], pa.timestamp("ms", "Asia/Tokyo"))})) == ['{"z":"1970-01-01T00:00:00Z"}']


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (pa.array([0.1, 33.0, -0.0], pa.float32()), ["0.1", "33.0", "-0.0"]),
        (pa.array([0.1, 1e-7, 1e22]), ["0.1", "1e-7", "1e+22"]),
        (decimals(["-0.0000000001", "-12"], 20, 10), ['"-0.0000000001"', '"-12.0000000000"']),
        (pa.array([Decimal(5)], pa.decimal128(38, 0)), ['"5"']),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([2932897, -800000], pa.date32()), ['"+10000-01-01"', '"-0221-09-04"']),
        (pa.array([1, 36_000_100_000_000], pa.time64("ns")), ['"00:00:00.000000001"', '"10:00:00.1"']),
        (pa.array(["\x01\x7f\u2028", "a\tb\n"]), ['"\\u0001\\u007f\\u2028"', '"a\\tb\\n"']),
        (pa.array(["é中文🐋"]), ['"é中文🐋"']),
        (pa.array([b"\xab"], pa.binary(1)), ['"ab"']),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ['"a"', '"b"', '"a"']),
        (pa.array(["a"], pa.large_string()), ['"a"']),
        (pa.array(["a"], pa.string_view()), ['"a"']),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), ["[1,2]"]),
        (pa.nulls(1), ["null"]),
        (pa.array([{}], pa.struct([])), ["{}"]),
        (pa.array([pa.MonthDayNano((0, 2, 1_500_000_000))]), ['"2 days 1.5 seconds"']),
    ],
)  # fmt: skip
def test_each_arrow_type_has_one_text(array: pa.Array, shown: list[str]) -> None:
    assert lines(pa.table({"v": array})) == [f'{{"v":{v}}}' for v in shown]


def test_map_entries_are_sorted_within_their_row() -> None:
    table = pa.table({"m": pa.array([[("b", 1), ("a", 2)], [("d", 3), ("c", None)]], pa.map_(pa.string(), pa.int32()))})
    assert lines(table) == ['{"m":[["a",2],["b",1]]}', '{"m":[["c",null],["d",3]]}']


def test_json_is_one_array_also_when_it_is_empty() -> None:
    assert json.loads("".join(encoding.json(reader(a=[1, 2])))) == [{"a": 1}, {"a": 2}]
    assert json.loads("".join(encoding.json(reader(a=pa.array([], pa.int32()))))) == []


def test_csv_reads_back_and_tells_null_from_empty() -> None:
    text = "".join(encoding.csv(reader(**{"a,b": [None, "", 'x"y', "l\nm"], "m": [[1], None, [], [2, 3]]})))
    assert text == '"a,b",m\n,[1]\n"",\n"x""y",[]\n"l\nm","[2,3]"\n'
    assert [row[1] for row in standard_csv.reader(io.StringIO(text))] == ["m", "[1]", "", "[]", "[2,3]"]


def test_a_drawn_table_aligns_numbers_right_and_marks_null() -> None:
    text = "".join(encoding.table(reader(name=["whale", None, "中文"], n=pa.array([1, 200, None], pa.int32()))))
    assert text.splitlines() == [
        "name      n",
        "───────────",
        "whale     1",
        "NULL    200",
        "中文   NULL",
        "3 rows",
    ]


def test_a_drawn_table_stops_at_its_row_cap_and_says_how_many_there_are() -> None:
    text = "".join(encoding.table(reader(n=list(range(1234))), rows=2))
    assert [line.strip() for line in text.splitlines()][2:] == ["0", "1", "first 2 of 1,234 rows"]


def test_a_drawn_table_can_show_types_and_keeps_to_the_width() -> None:
    rows = reader(a=["x" * 200], d=pa.array([Decimal("1.50")], pa.decimal128(9, 2)))
    shown = "".join(encoding.table(rows, types=True, width=40)).splitlines()
    assert "STRING" in shown[1] and "DECIMAL(9, 2)" in shown[1]
    assert max(len(line) for line in shown) <= 40
    assert "…" in shown[3]


def test_a_value_cannot_move_the_cursor() -> None:
    text = "".join(encoding.table(reader(a=["\x1b[31mred\n"])))
    assert "\x1b" not in text and "\\u001b[31mred\\n" in text


@pytest.mark.parametrize("form", encoding.FORMATS)
def test_every_format_writes_to_a_file(form: str) -> None:
    out = io.BytesIO()
    encoding.write(java_rows().to_reader(), out, form)
    written = out.getvalue()
    if form == "arrow":
        assert lines(pa.ipc.open_stream(written).read_all()) == lines(java_rows())
    elif form == "parquet":
        assert pq.read_table(io.BytesIO(written)).column("c_dec_big").equals(java_rows().column("c_dec_big"))
    else:
        assert b"2024-02-29T12:34:56.123456789" in written


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(BadRequest) as caught:
        encoding.write(reader(a=[1]), io.BytesIO(), "jsonn")
    assert caught.value.hint is not None and "'json'" in caught.value.hint


def test_parquet_says_which_type_it_cannot_hold() -> None:
    with pytest.raises(Unsupported, match="interval"):
        encoding.write(reader(i=pa.array([pa.MonthDayNano((0, 1, 0))])), io.BytesIO(), "parquet")


def test_rows_are_written_before_the_last_ones_are_read() -> None:
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for _ in range(10):
            read += 1
            yield pa.record_batch({"a": [1, 2]})

    chunks = encoding.jsonl(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()))
    assert next(chunks) == '{"a":1}\n{"a":2}\n'
    assert read == 1
