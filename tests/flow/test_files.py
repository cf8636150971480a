# SPDX-License-Identifier: Apache-2.0
"""Files as a change stream: the same rows from any position, kinds, pace, and errors that name the place."""

from __future__ import annotations

import itertools
import json
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import BadRequest, Corrupt, NotFound
from shoal.flow.sources import files
from shoal.flow.sources.files import FilesSource, decode_kinds

ALL = {"until_s": None, "max_rows": 10**9}


def write(path, rows: list[dict[str, object]], **parquet):
    """Write rows in the format of the ending of `path`."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, **parquet)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join("" if v is None else str(v) for v in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    return path


def rows_of(count: int, first: int = 0) -> list[dict[str, object]]:
    return [{"id": first + i, "op": "+I-U+U-D"[i % 4 * 2 :][:2], "name": f"row {first + i}"} for i in range(count)]


@pytest.fixture(params=[".parquet", ".csv", ".jsonl"])
def ending(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(files, "TEXT_BYTES", 256)
    monkeypatch.setattr(files, "PARQUET_ROWS", 7)


def three_files(tmp_path, ending):
    write(tmp_path / f"a{ending}", rows_of(50), row_group_size=16)
    write(tmp_path / f"b{ending}", rows_of(1, 50))
    write(tmp_path / f"c{ending}", rows_of(33, 51), row_group_size=5)
    return str(tmp_path / f"*{ending}")


@pytest.fixture
def paths(tmp_path, ending):
    return three_files(tmp_path, ending)


def test_rows_come_in_the_order_of_the_files_without_the_kind_column(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending), kind_column="op", primary_key=["id"])
    taken = source.take(0, **ALL)
    assert taken.rows.schema == source.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert taken.rows["id"].to_pylist() == list(range(84))
    assert taken.kinds.to_pylist() == [i % 4 for i in range(50)] + [0] + [i % 4 for i in range(33)]
    assert taken.ended and source.total == taken.position == 84
    assert source.primary_key == ("id",) and source.partition_by == ()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 9), st.booleans()), max_size=8))
def test_takes_at_any_cuts_join_to_one_take(paths, small_blocks, cuts):
    def opened():
        return FilesSource(paths, kind_column="op", rows_per_second=10)

    whole, source, position, parts = opened().take(0, **ALL), opened(), 0, []
    for max_rows, until, restart in [*cuts, (10**9, None, False)]:
        source = opened() if restart else source
        part = source.take(position, until_s=until, max_rows=max_rows)
        assert part.position == position + len(part)
        assert part.at_s == max(0, part.position - 1) / 10
        assert part.next_s == (part.position / 10 if part.position < 84 else None)
        position = part.position
        parts.append(part)
    assert pa.Table.from_batches([p.rows for p in parts]).combine_chunks() == pa.Table.from_batches([whole.rows])
    assert list(itertools.chain(*(p.kinds.to_pylist() for p in parts))) == whole.kinds.to_pylist()


@pytest.mark.parametrize("position", range(0, 85, 6))
def test_a_position_kept_by_another_process_goes_on_at_the_same_row(tmp_path, ending, small_blocks, position):
    source = FilesSource(three_files(tmp_path, ending))
    assert source.take(position, until_s=None, max_rows=5).rows["id"].to_pylist() == list(range(84))[position:][:5]


def test_a_take_may_go_back(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending))
    source.take(0, until_s=None, max_rows=70)
    assert source.take(3, until_s=None, max_rows=2).rows["id"].to_pylist() == [3, 4]


def test_a_position_behind_the_end_is_refused(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending))
    with pytest.raises(BadRequest, match="position 85 is not in this source"):
        source.take(85, **ALL)


def test_a_list_of_files_keeps_its_order(tmp_path):
    one = write(tmp_path / "one.csv", [{"id": 1}])
    two = write(tmp_path / "two.parquet", [{"id": 2}])
    three = write(tmp_path / "three.jsonl", [{"id": 3}])
    assert FilesSource([three, one, two]).take(0, **ALL).rows["id"].to_pylist() == [3, 1, 2]


def test_columns_may_stand_in_another_order(tmp_path, ending):
    write(tmp_path / f"a{ending}", [{"x": 1, "y": "a"}])
    write(tmp_path / f"b{ending}", [{"y": "b", "x": 2}])
    taken = FilesSource(str(tmp_path / f"*{ending}")).take(0, **ALL)
    assert taken.rows.to_pylist() == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


def test_empty_files_give_no_rows(tmp_path, ending):
    if ending == ".parquet":
        pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    else:
        (tmp_path / f"a{ending}").write_text("id\n" if ending == ".csv" else "")
    write(tmp_path / f"b{ending}", [{"id": 7}])
    source = FilesSource(str(tmp_path / f"*{ending}"), schema=pa.schema([("id", pa.int64())]))
    assert source.take(0, **ALL).rows["id"].to_pylist() == [7]


def test_an_empty_take_has_the_columns_of_the_source(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending), kind_column="op")
    looked = source.take(0, until_s=-1.0, max_rows=1)
    assert len(looked) == 0 and looked.rows.schema == source.schema and looked.next_s == 0.0


def test_a_key_that_a_json_line_leaves_out_is_null(tmp_path):
    write(tmp_path / "a.jsonl", [{"id": 1, "name": "x"}, {"id": 2}])
    write(tmp_path / "b.jsonl", [{"id": 3}])
    rows = FilesSource(str(tmp_path / "*.jsonl")).take(0, **ALL).rows
    assert rows["name"].to_pylist() == ["x", None, None]


def test_nothing_between_commas_is_null_and_quotes_are_an_empty_text(tmp_path):
    (tmp_path / "a.csv").write_text('id,name\n1,\n2,""\n3,NA\n')
    rows = FilesSource(tmp_path / "a.csv").take(0, **ALL).rows
    assert rows["name"].to_pylist() == [None, "", "NA"]


# -- kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, kinds",
    [
        (["+I", "-U", "+U", "-D"], [0, 1, 2, 3]),
        (["I", "U", "D"], [0, 2, 3]),
        (["c", "u", "d", "r"], [0, 2, 3, 0]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([-1, 4, None], [None, None, None]),
        (["+i", "", "insert", None], [None, None, None, None]),
        ([1.0], [None]),
    ],
)
def test_kinds_are_words_or_numbers(values, kinds):
    assert decode_kinds(pa.array(values)).to_pylist() == kinds
    assert decode_kinds(pa.array(values).dictionary_encode()).to_pylist() == kinds


def test_without_a_kind_column_every_row_is_an_insert(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending))
    assert set(source.take(0, **ALL).kinds.to_pylist()) == {0} and "op" in source.schema.names


@pytest.mark.parametrize("bad", ["?", None])
def test_an_unknown_kind_names_file_row_and_value(tmp_path, ending, small_blocks, bad):
    write(tmp_path / f"a{ending}", rows_of(3))
    rows = rows_of(40)
    rows[28]["op"] = bad
    path = write(tmp_path / f"b{ending}", rows)
    source = FilesSource(str(tmp_path / f"*{ending}"), kind_column="op")
    good = source.take(0, until_s=None, max_rows=31)
    assert good.position == 31
    for _ in range(2):
        with pytest.raises(BadRequest) as err:
            source.take(31, until_s=None, max_rows=5)
        assert err.value.message == f"{path} row 29: {bad!r} in column 'op' is not a row kind"


# -- pace --------------------------------------------------------------------------------------------------------


def test_without_a_pace_all_rows_are_due_at_once(tmp_path, ending):
    assert len(FilesSource(three_files(tmp_path, ending)).take(0, until_s=0.0, max_rows=1000)) == 84


def test_rows_per_second_makes_a_row_due_at_its_number_over_the_rate(tmp_path, ending):
    source = FilesSource(three_files(tmp_path, ending), rows_per_second=4)
    assert [len(source.take(0, until_s=s, max_rows=1000)) for s in (-1.0, 0.0, 0.24, 0.25, 10.0, 20.75)] == [
        0, 1, 1, 2, 41, 84,
    ]  # fmt: skip


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(1_600_000_000 + seconds)


def timed(tmp_path, ending, as_time=at):
    seconds = [None, 10, 12, 11, None, 20], [15, 30]
    for name, part in zip("ab", seconds, strict=True):
        write(tmp_path / f"{name}{ending}", [{"id": i, "at": as_time(s)} for i, s in enumerate(part)])
    return str(tmp_path / f"*{ending}")


# Counted from the first time of the stream; a late or missing time is due with the row before it.
DUE = [0.0, 0.0, 1.0, 1.0, 1.0, 5.0, 5.0, 10.0]


@pytest.mark.parametrize("as_time", [at, lambda s: None if s is None else int(s * 1000)], ids=["timestamp", "epoch ms"])
def test_a_time_column_makes_rows_due_by_their_time(tmp_path, ending, as_time):
    paths = timed(tmp_path, ending, as_time)
    source = FilesSource(paths, time_column="at", speed=2.0)
    for position in range(8):
        one = source.take(position, until_s=None, max_rows=1)
        cold = FilesSource(paths, time_column="at", speed=2.0).take(position, until_s=-1.0, max_rows=1)
        assert (one.at_s, cold.next_s) == (DUE[position], DUE[position])
        assert cold.at_s == DUE[max(0, position - 1)]
    assert len(source.take(0, until_s=4.9, max_rows=100)) == 5
    assert FilesSource(paths, time_column="at", speed=2.0).take(8, **ALL).ended


def test_a_pace_that_means_nothing_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", [{"id": 1, "at": at(0), "text": "x"}])
    for wrong in (
        {"time_column": "at"},
        {"speed": 2.0},
        {"time_column": "at", "speed": 1.0, "rows_per_second": 5},
        {"rows_per_second": 0},
        {"time_column": "at", "speed": -1.0},
        {"time_column": "text", "speed": 1.0},
    ):
        with pytest.raises(BadRequest):
            FilesSource(path, **wrong)


# -- identity ----------------------------------------------------------------------------------------------------


def test_the_fingerprint_names_the_rows_and_not_their_pace(tmp_path, ending):
    paths = three_files(tmp_path, ending)
    plain = FilesSource(paths).fingerprint
    assert FilesSource(paths, rows_per_second=3).fingerprint == plain
    assert FilesSource(paths, kind_column="op").fingerprint != plain
    write(tmp_path / f"b{ending}", rows_of(1, 51))
    assert FilesSource(paths).fingerprint != plain


def test_a_file_that_changes_while_it_is_streamed_is_refused(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", rows_of(5))
    source = FilesSource(path)
    write(path, rows_of(9))
    with pytest.raises(BadRequest, match="changed after the source was opened"):
        source.take(0, **ALL)


# -- errors ------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_not_found_and_near_names_are_shown(tmp_path):
    write(tmp_path / "orders.csv", [{"id": 1}])
    with pytest.raises(NotFound, match=r"there is no file .*order\.csv") as err:
        FilesSource(tmp_path / "order.csv")
    assert err.value.hint == "did you mean 'orders.csv'?"


def test_a_glob_without_files_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no file matches"):
        FilesSource(str(tmp_path / "*.csv"))


def test_a_file_that_goes_away_is_not_found(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", rows_of(5))
    source = FilesSource(path)
    path.unlink()
    with pytest.raises(NotFound, match="there is no file"):
        source.take(0, **ALL)


@pytest.mark.parametrize("name", ["data.txt", "folder"])
def test_what_is_no_data_file_is_refused(tmp_path, name):
    (tmp_path / "data.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadRequest, match=name):
        FilesSource(tmp_path / name)


@pytest.mark.parametrize(
    "name, content", [("a.parquet", b"PAR1 not parquet"), ("a.csv", b"a,b\n1,2\n3\n"), ("a.jsonl", b'{"a": 1}\n{"a": ')]
)
def test_an_unreadable_file_is_corrupt_and_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Corrupt, match=name):
        FilesSource(tmp_path / name).take(0, **ALL)


def test_damage_in_the_middle_of_a_parquet_file_is_corrupt(tmp_path):
    path = write(tmp_path / "a.parquet", rows_of(5000))
    bytes_ = bytearray(path.read_bytes())
    bytes_[2000:9000] = b"\xff" * 7000
    path.write_bytes(bytes_)
    with pytest.raises(Corrupt, match=r"a\.parquet"):
        FilesSource(path).take(0, **ALL)


def test_a_column_that_is_missing_in_a_later_file_is_named(tmp_path, ending):
    if ending == ".jsonl":
        pytest.skip("a key may be left out of JSON lines")
    write(tmp_path / f"a{ending}", [{"id": 1, "name": "x"}])
    write(tmp_path / f"b{ending}", [{"id": 1}])
    with pytest.raises(BadRequest, match=r"b\.\w+ has no column 'name', as in .*a\."):
        FilesSource(str(tmp_path / f"*{ending}"))


def test_a_column_that_is_new_in_a_later_file_is_named(tmp_path, ending):
    write(tmp_path / f"a{ending}", [{"id": 1}])
    write(tmp_path / f"b{ending}", [{"id": 1, "name": "x"}])
    with pytest.raises(BadRequest, match=r"b\.\w+ has a column 'name' that is not expected"):
        FilesSource(str(tmp_path / f"*{ending}"))


@pytest.mark.parametrize("value", ["x", 1.5])
def test_a_column_of_another_type_in_a_later_file_is_named(tmp_path, ending, value):
    write(tmp_path / f"a{ending}", [{"name": "n", "id": 1}])
    write(tmp_path / f"b{ending}", [{"name": "n", "id": value}])
    with pytest.raises(BadRequest, match=r"b\.\w+ column 'id'"):
        FilesSource(str(tmp_path / f"*{ending}"))


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_type_that_changes_late_in_a_text_file_is_named_and_a_schema_helps(tmp_path, ending, small_blocks):
    path = write(tmp_path / f"a{ending}", [{"name": "n", "id": i} for i in range(100)] + [{"name": "n", "id": 1.5}])
    with pytest.raises(BadRequest, match=r"a\.\w+ column 'id'"):
        FilesSource(path).take(0, **ALL)
    source = FilesSource(path, schema=pa.schema([("name", pa.string()), ("id", pa.float64())]))
    assert source.take(100, **ALL).rows.to_pylist() == [{"name": "n", "id": 1.5}]


def test_a_key_that_is_new_late_in_a_json_file_is_named(tmp_path, small_blocks):
    path = write(tmp_path / "a.jsonl", [{"id": i} for i in range(100)] + [{"id": 100, "extra": 1}])
    with pytest.raises(BadRequest, match=r"a\.jsonl column 'extra'"):
        FilesSource(path).take(0, **ALL)


def test_a_column_that_was_named_and_is_not_there_is_refused_with_the_near_name(tmp_path, ending):
    paths = three_files(tmp_path, ending)
    for wrong in ({"kind_column": "opp"}, {"primary_key": ["opp"]}, {"partition_by": ["opp"]}):
        with pytest.raises(BadRequest, match="has no column 'opp'") as err:
            FilesSource(paths, **wrong)
        assert err.value.hint == "did you mean 'op'?"
