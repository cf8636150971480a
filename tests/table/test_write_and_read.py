"""What a user does with a table: rows go in, the last version of each comes out."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore

KV = pa.schema([("k", pa.int32()), ("v", pa.string())])


def memory_lake(**kwargs: object) -> Lake:
    return Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
def lake() -> Iterator[Lake]:
    yield memory_lake()


def by_key(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda r: str(r))


def test_an_upsert_replaces_and_a_delete_removes(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    with t.write() as w:
        w.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 1, "v": "c"}])
        w.commit()
        w.delete([{"k": 2}])
        w.upsert([{"k": 3, "v": "d"}])
        w.commit()
    assert by_key(t.scan().to_arrow().to_pylist()) == [{"k": 1, "v": "c"}, {"k": 3, "v": "d"}]


def test_nothing_is_visible_before_commit_and_nothing_stays_after_a_failed_block(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 2})
    with pytest.raises(ZeroDivisionError), t.write() as w:
        w.upsert([{"k": i, "v": "x"} for i in range(50)])
        w.flush()
        assert t.scan().to_arrow().num_rows == 0
        raise ZeroDivisionError
    assert t.scan().to_arrow().num_rows == 0
    assert [f.path for f in lake.store.list("d.db/t") if "data-" in f.path] == []


def test_an_append_table_keeps_every_row_and_its_order(lake: Lake) -> None:
    t = lake.create_table("d.log", KV)
    with t.write() as w:
        for c in range(4):
            w.append([{"k": c, "v": str(i)} for i in range(5)])
            w.commit(checkpoint=c)
    expected = [{"k": c, "v": str(i)} for c in range(4) for i in range(5)]
    assert by_key(t.scan().to_arrow().to_pylist()) == by_key(expected)  # type: ignore[arg-type]


def test_a_bucketed_append_table_reads_each_bucket_in_order_of_arrival(lake: Lake) -> None:
    t = lake.create_table("d.log", KV, options={"bucket": 3, "bucket-key": "k"})
    with t.write() as w:
        for c in range(5):
            w.append([{"k": k, "v": f"{c:02d}"} for k in range(10)])
            w.commit(checkpoint=c)
    seen: dict[int, list[str]] = {}
    for r in t.scan().to_arrow().to_pylist():
        seen.setdefault(r["k"], []).append(r["v"])
    assert seen == {k: ["00", "01", "02", "03", "04"] for k in range(10)}


def test_rows_of_other_kinds_of_frames_are_taken(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    with t.write() as w:
        w.upsert(pa.table({"v": ["arrow"], "k": pa.array([1], pa.int64())}))
        w.upsert(pl.DataFrame({"k": [2], "v": ["polars"]}))
        w.upsert(pd.DataFrame({"k": [3], "v": ["pandas"]}))
        w.upsert(duckdb.sql("select 4 as k, 'duckdb' as v"))
        w.upsert(
            pa.RecordBatchReader.from_batches(
                KV, iter([pa.record_batch([pa.array([5], pa.int32()), ["reader"]], schema=KV)])
            )
        )
        w.commit()
    assert [r["v"] for r in by_key(t.scan().to_arrow().to_pylist())] == [
        "arrow",
        "polars",
        "pandas",
        "duckdb",
        "reader",
    ]
    assert t.scan(columns=["v"]).to_pandas().shape == (5, 1)
    assert t.scan().to_polars().height == 5
    assert t.scan().to_duckdb().aggregate("count(*)").fetchall() == [(5,)]


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"k": 1, "vv": "x"}], "no column 'vv'"),
        ([{"v": "x"}], "'k' is missing"),
        ([{"k": None, "v": "x"}], "'k' holds a null"),
        ([{"k": 2**40, "v": "x"}], "column 'k'"),
        ([{"k": "one", "v": "x"}], "column 'k'"),
        ([1, 2], "rows must be dicts"),
        ("text", "cannot write a str"),
    ],
)
def test_wrong_rows_are_refused_before_anything_is_written(lake: Lake, rows: object, message: str) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    with t.write() as w, pytest.raises(shoal.BadRequest, match=message):
        w.upsert(rows)
    assert t.metadata.latest_id() is None


def test_a_value_too_long_for_its_column_is_refused(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    narrow = t.schema.field("v").type
    assert narrow.length == 2147483647
    from dataclasses import replace

    schema = replace(t.schema, fields=(t.schema.fields[0], replace(t.schema.fields[1], type=replace(narrow, length=3))))
    with t.with_schema(schema).write() as w, pytest.raises(shoal.BadRequest, match=r"VARCHAR\(3\)"):
        w.upsert([{"k": 1, "v": "four"}])


def test_deletes_need_a_key_and_append_tables_take_no_retractions(lake: Lake) -> None:
    t = lake.create_table("d.log", KV)
    with t.write() as w:
        with pytest.raises(shoal.BadRequest, match="no primary key") as refused:
            w.delete([{"k": 1}])
        assert refused.value.hint == "table.delete(where) finds the rows by a condition"
        with pytest.raises(shoal.BadRequest, match="no primary key"):
            w.upsert([{"k": 1, "v": "a"}])
        with pytest.raises(shoal.BadRequest, match="takes no -U or -D rows"):
            w.write([{"k": 1, "v": "a"}], [3])


def test_kinds_come_one_a_row(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    with t.write() as w:
        w.write(
            [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 1, "v": "a"}, {"k": 1, "v": "c"}, {"k": 2, "v": "b"}],
            [0, 0, 1, 2, 3],
        )
        with pytest.raises(shoal.BadRequest, match="row kind"):
            w.write([{"k": 1, "v": "a"}], [7])
        w.commit()
    assert t.scan().to_arrow().to_pylist() == [{"k": 1, "v": "c"}]


def test_filters_act_after_the_merge(lake: Lake) -> None:
    """The newer version does not match: the older one must not come back."""
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1, "write-only": True})
    with t.write() as w:
        w.upsert([{"k": 1, "v": "old"}, {"k": 2, "v": "old"}])
        w.commit()
        w.upsert([{"k": 1, "v": "new"}])
        w.commit()
    assert t.scan(where="v = 'old'").to_arrow().to_pylist() == [{"k": 2, "v": "old"}]
    assert t.scan(where=pc.field("v") == "new", columns=["k"]).to_arrow().to_pylist() == [{"k": 1}]


def test_columns_keep_their_order_and_limit_stops_early(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 4})
    with t.write() as w:
        w.upsert([{"k": i, "v": str(i)} for i in range(100)])
        w.commit()
    assert t.scan(columns=["v", "k"]).to_arrow().column_names == ["v", "k"]
    assert t.scan(limit=7).to_arrow().num_rows == 7
    assert t.scan(limit=0).to_arrow().num_rows == 0
    assert t.scan(limit=1000).to_arrow().num_rows == 100
    with pytest.raises(shoal.BadRequest, match="no column 'w'"):
        t.scan(columns=["w"])


def test_an_older_snapshot_can_be_read_and_a_missing_one_says_which_there_are(lake: Lake) -> None:
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    with t.write() as w:
        for c in range(3):
            w.upsert([{"k": c, "v": "x"}])
            w.commit(checkpoint=c)
    assert t.scan(snapshot=2).to_arrow().num_rows == 2
    with pytest.raises(shoal.NotFound, match="snapshot 9") as caught:
        t.scan(snapshot=9).to_arrow()
    assert "1 to 3" in str(caught.value.hint)


def test_partitions_are_pruned_and_explained(lake: Lake) -> None:
    schema = pa.schema([("dt", pa.date32()), ("k", pa.int32()), ("v", pa.string())])
    t = lake.create_table("d.t", schema, primary_key=["dt", "k"], partition_by=["dt"], options={"bucket": 2})
    days = [datetime.date(2026, 11, d) for d in range(1, 6)]
    with t.write() as w:
        w.upsert([{"dt": d, "k": k, "v": "x"} for d in days for k in range(20)])
        w.commit()
    scan = t.scan(where="dt = DATE '2026-11-03'")
    explained = scan.explain()
    assert explained.files == 2 and explained.dropped == {"partition": 8}
    assert scan.to_arrow().num_rows == 20
    assert t.scan(where="dt > DATE '2026-11-03' AND k < 5").to_arrow().num_rows == 10
    assert "dropped" in str(explained)


def test_null_blank_and_odd_partition_values_stay_apart(lake: Lake) -> None:
    schema = pa.schema([("p", pa.string()), ("v", pa.int32())])
    t = lake.create_table("d.t", schema, partition_by=["p"])
    values = [None, "", "  ", "a/b=c", "x%y", "ü", "__DEFAULT_PARTITION__"]
    with t.write() as w:
        w.append([{"p": p, "v": i} for i, p in enumerate(values)])
        w.commit()
    assert [r["p"] for r in sorted(t.scan().to_arrow().to_pylist(), key=lambda r: r["v"])] == values
    assert t.scan(where="p IS NULL").to_arrow().to_pylist() == [{"p": None, "v": 0}]
    assert t.scan(where="p = ''").to_arrow().to_pylist() == [{"p": "", "v": 1}]


def test_a_changed_bucket_number_cannot_split_keys(lake: Lake) -> None:
    from dataclasses import replace

    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 2})
    with t.write() as w:
        w.upsert([{"k": i, "v": "x"} for i in range(8)])
        w.commit()
    wider = t.with_schema(replace(t.schema, options={"bucket": "4"}))
    with wider.write() as w, pytest.raises(shoal.BadRequest, match="2 buckets"):
        w.upsert([{"k": 1, "v": "y"}])
        w.commit()
    assert t.metadata.latest_id() == 1


def test_sequence_field_decides_before_arrival(lake: Lake) -> None:
    schema = pa.schema([("k", pa.int32()), ("ts", pa.int32()), ("v", pa.string())])
    t = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1, "sequence.field": "ts"})
    with t.write() as w:
        w.upsert([{"k": 1, "ts": 5, "v": "first"}, {"k": 1, "ts": 3, "v": "late"}, {"k": 2, "ts": None, "v": "null"}])
        w.commit()
        w.upsert([{"k": 1, "ts": 5, "v": "tie"}, {"k": 2, "ts": 1, "v": "one"}])
        w.commit()
        w.delete([{"k": 1, "ts": 4}])
        w.commit()
    assert by_key(t.scan().to_arrow().to_pylist()) == [{"k": 1, "ts": 5, "v": "tie"}, {"k": 2, "ts": 1, "v": "one"}]


def test_every_scalar_type_survives(tmp_path: Path) -> None:
    schema = pa.schema([
        ("k", pa.int64()), ("b", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("f", pa.float32()),
        ("d", pa.float64()), ("dec", pa.decimal128(9, 2)), ("big", pa.decimal128(38, 10)), ("s", pa.string()), ("x", pa.binary()),
        ("day", pa.date32()), ("t", pa.time32("ms")), ("ts0", pa.timestamp("s")), ("ts3", pa.timestamp("ms")),
        ("ts6", pa.timestamp("us")), ("ltz", pa.timestamp("us", "UTC")),
    ])  # fmt: skip
    row = {
        "k": -(2**63), "b": True, "i8": -128, "i16": 32767, "i32": -(2**31), "f": 1.5, "d": float("inf"), "dec": Decimal("-1234567.89"),
        "big": Decimal("1234567890123456789012345678.0123456789"), "s": "grüße\0", "x": b"\0\xff", "day": datetime.date(1, 1, 1),
        "t": datetime.time(23, 59, 59, 999000), "ts0": datetime.datetime(1969, 12, 31, 23, 59, 59),
        "ts3": datetime.datetime(9999, 12, 31, 23, 59, 59, 999000), "ts6": datetime.datetime(1900, 1, 1, 0, 0, 0, 1),
        "ltz": datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
    }  # fmt: skip
    nulls: dict[str, object] = dict.fromkeys(schema.names)
    nulls["k"] = 0
    lake = shoal.open(str(tmp_path))
    for name, key, options in (("pk", ["k"], {"bucket": 2}), ("log", [], {})):
        t = lake.create_table(f"d.{name}", schema, primary_key=key, options=options)
        with t.write() as w:
            w.append(pa.Table.from_pylist([row, nulls], schema=schema))
            w.commit()
        assert sorted(t.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == [row, nulls]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc"), st.booleans()), max_size=12),
        min_size=1,
        max_size=14,
    ),
    st.integers(2, 5),
    st.booleans(),
)
def test_any_history_reads_as_the_fold_of_its_changes(
    history: list[list[tuple[int, str, bool]]], trigger: int, between: bool
) -> None:
    lake = memory_lake()
    t = lake.create_table(
        "d.t", KV, primary_key=["k"], options={"bucket": 2, "num-sorted-run.compaction-trigger": trigger}
    )
    model: dict[int, str] = {}
    with t.write(commit_user="u") as w:
        for c, changes in enumerate(history):
            for k, v, gone in changes:
                w.write([{"k": k, "v": v}], [3 if gone else 2])
                model.pop(k, None)
                if not gone:
                    model[k] = v
            if between:
                w._scheduler.run_pending()  # type: ignore[attr-defined]
            w.commit(checkpoint=c)
            got = t.scan().to_arrow()
            assert sorted(zip(got["k"].to_pylist(), got["v"].to_pylist())) == sorted(model.items())
    t.maintain.compact(full=True)
    got = t.scan().to_arrow()
    assert sorted(zip(got["k"].to_pylist(), got["v"].to_pylist())) == sorted(model.items())
    newest = t.metadata.latest()
    if newest is not None and newest.commit_kind == "COMPACT":
        assert newest.total_record_count == len(model)


def test_a_full_buffer_goes_to_files_and_the_memory_is_counted() -> None:
    lake = memory_lake(memory=2 << 20)
    t = lake.create_table(
        "d.t", pa.schema([("k", pa.int64()), ("s", pa.string())]), primary_key=["k"], options={"bucket": 2}
    )
    rnd = random.Random(3)
    model: dict[int, str] = {}
    with t.write() as w:
        for _ in range(40):
            rows = [{"k": rnd.randrange(5000), "s": "x" * rnd.randrange(100)} for _ in range(1000)]
            w.upsert(rows)
            model.update((r["k"], r["s"]) for r in rows)  # type: ignore[misc]
            assert w._budget.used <= w._budget.total
        w.commit()
        assert w._budget.used == 0 and w._budget.peak > 0
    got = t.scan().to_arrow()
    assert dict(zip(got["k"].to_pylist(), got["s"].to_pylist())) == model
    assert got.num_rows == len(model)


def test_an_empty_commit_makes_a_snapshot_only_where_the_table_asks_for_it(lake: Lake) -> None:
    made = {}
    for name, options in (("quiet", {}), ("every", {"snapshot.ignore-empty-commit": "false"})):
        t = lake.create_table(f"d.{name}", KV, primary_key=["k"], options={"bucket": 1, **options})
        with t.write(commit_user="u") as w:
            w.upsert([{"k": 1, "v": "a"}])
            w.commit(checkpoint=1)
            w.commit(checkpoint=2)
        made[name] = [t.metadata.snapshot(i).commit_identifier for i in t.metadata.snapshot_ids()]
    assert made == {"quiet": [1], "every": [1, 2]}


def test_block_size_bounds_the_row_groups_of_a_file(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    t = lake.create_table("d.t", KV, options={"file.block-size": "64 kb"})
    with t.write() as w:
        w.append(pa.table({"k": pa.array(range(40_000), pa.int32()), "v": ["x" * 10] * 40_000}))
        w.commit()
    (file,) = tmp_path.glob("d.db/t/bucket-0/*.parquet")
    groups = pq.ParquetFile(file).metadata
    assert groups.num_rows == 40_000 and groups.num_row_groups >= 10
    assert t.scan().to_arrow()["k"].to_pylist() == list(range(40_000))
