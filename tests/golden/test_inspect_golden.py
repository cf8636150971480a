# SPDX-License-Identifier: Apache-2.0
"""System tables equal Java's: those about metadata, and those that show rows in another form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal import ManualClock
from shoal.table.inspect import NAMES
from shoal.table.table import Table

HERE = Path(__file__).parent
DUMPS = [d for d in (HERE / "dumps.txt").read_text().split() if d.count(".") == 2]
ROWS = ("audit_log", "binlog", "ro", "row_tracking")
METADATA = [d for d in DUMPS if d.rsplit(".", 1)[1] in NAMES and d.rsplit(".", 1)[1] not in ROWS]
# Their times come from files that were unpacked, or are printed with more digits than the column has.
APART = ("branches", "tags")
JAVA_FAILS = {"evo.cast_all.files"}
# Dumps of `$files` in the middle of a make script, and the snapshot that was the newest then.
EARLIER = {
    "bucket_modes.pk_postpone.files_before_compact": 1,
    "maint.wo_pk.files_after_p0": 4,
    "maint.wo_pk.files_before": 3,
}
TEXT = "VARCHAR(2147483647)"
RANGE = pa.struct([
    pa.field("f0", pa.string(), False), pa.field("f1", pa.int32(), False), pa.field("f2", pa.int32(), False),
    pa.field("_CARDINALITY", pa.int64()),
])  # fmt: skip
TYPES = {
    TEXT: pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP(3)": pa.timestamp("ms"),
    "BOOLEAN": pa.bool_(), f"ARRAY<{TEXT}>": pa.list_(pa.string()),
    f"ARRAY<ROW<`f0` {TEXT} NOT NULL, `f1` INT NOT NULL, `f2` INT NOT NULL, `_CARDINALITY` BIGINT>>": pa.list_(RANGE),
}  # fmt: skip
ARRAY, ANY_BYTES = re.compile(r"\[B@[0-9a-f]+"), "[0-9a-f]*"


def opened(golden, name: str) -> Table:
    top = golden(name.split(".")[0])
    return shoal.open(f"file:{top}", clock=ManualClock()).table(".".join(name.split(".")[:2]))


def check(golden, expected, dump: str, got: pa.Table) -> None:
    columns, rows = expected(dump)
    assert got.schema.equals(pa.schema([
        pa.field(n, TYPES[t.removesuffix(" NOT NULL")], not t.endswith(" NOT NULL")) for n, t in columns
    ]))  # fmt: skip
    warehouse = f"file:{golden(dump.split('.')[0])}"
    ours = sorted(json.dumps(r, ensure_ascii=False) for r in rows_of(got))
    java = sorted(json.dumps(r, ensure_ascii=False).replace("${WAREHOUSE}", warehouse) for r in rows)
    assert len(ours) == len(java)
    for a, b in zip(ours, java):
        # Java prints the identity of a byte array, we print its bytes
        assert a == b or re.fullmatch(ANY_BYTES.join(map(re.escape, ARRAY.split(b))), a)


@pytest.mark.parametrize("dump", [d for d in METADATA if d not in JAVA_FAILS and d.rsplit(".", 1)[1] not in APART])
def test_a_system_table_equals_javas(dump: str, golden, expected) -> None:
    check(golden, expected, dump, opened(golden, dump).system(dump.rsplit(".", 1)[1]))


@pytest.mark.parametrize("dump", EARLIER)
def test_the_files_of_an_older_snapshot_equal_what_java_saw_then(dump: str, golden, expected) -> None:
    check(golden, expected, dump, opened(golden, dump).system("files", snapshot=EARLIER[dump]))


def test_bounds_that_were_cut_and_changed_type_are_null_where_java_fails(golden) -> None:
    got = opened(golden, "evo.cast_all").inspect.files()
    assert got.num_rows == 1
    assert "c_s_ts=null" in got["min_value_stats"][0].as_py()


def test_bounds_are_cast_to_the_types_of_today(golden, expected) -> None:
    """The file holds one row that is not null, so its bounds are the values that Java reads."""
    (text,) = opened(golden, "evo.cast_all").inspect.files()["min_value_stats"].to_pylist()
    bounds = dict(part.split("=", 1) for part in text[1:-1].split(", "))
    _, rows = expected("evo.cast_all")
    java = next(r for r in rows if r["c_i_b"] is not None)
    # dates and times have another text in bounds, and the one of c_s_ts was cut
    dates = {"c_d_ts", "c_ts3_ts6", "c_ts_d", "c_ts_ltz", "c_s_dt", "c_s_ts", "id"}
    for name in java.keys() - dates:
        value = java[name]
        text = bounds[name]
        assert float(text) == value if isinstance(value, float) else text == json.dumps(value).strip('"'), name
    assert (bounds["c_ts_d"], bounds["c_d_ts"], bounds["c_ts3_ts6"]) == (
        "19782", "2024-02-29T00:00", "2024-02-29T12:34:56.120",
    )  # fmt: skip


def test_tags_show_when_they_were_made_and_how_long_they_stay(golden, expected) -> None:
    for name in (d for d in METADATA if d.endswith(".tags")):
        got, (_, rows) = rows_of(opened(golden, name).inspect.tags()), expected(name)
        for r in rows:  # Java prints nanoseconds in a column of milliseconds
            r["create_time"] = r["create_time"] and r["create_time"][:23]
        assert got == sorted(rows, key=lambda r: r["tag_name"])


def test_branches_are_listed_by_name(golden, expected) -> None:
    """The time is a file's, which unpacking does not keep."""
    got, (_, rows) = opened(golden, "maint.branched").inspect.branches(), expected("maint.branched.branches")
    assert got["branch_name"].to_pylist() == sorted(r["branch_name"] for r in rows)


def test_a_branch_has_system_tables_of_its_own(golden, expected) -> None:
    columns, rows = expected("maint.branched.branch_snapshots")
    got = opened(golden, "maint.branched").branch("from_tag").inspect.snapshots()
    rows_equal(got, columns, rows)


def test_a_table_without_snapshots_has_empty_system_tables(golden) -> None:
    table = opened(golden, "engines.ag_max_no_retract")
    filled = {"schemas", "options", "aggregation_fields"}
    for name in NAMES.keys() - filled - {"row_tracking"}:
        assert table.system(name).num_rows == 0
    assert table.system("schemas").num_rows == 1


# ---- rows in another form


def rows_equal(got: pa.Table, columns: list[tuple[str, str]], rows: list[dict]) -> None:
    assert got.column_names == [n for n, _ in columns]
    assert multiset(rows_of(got), got.schema) == multiset(rows, got.schema)


@pytest.mark.parametrize("dump", [d for d in DUMPS if d.rsplit(".", 1)[1] in (*ROWS, "read_optimized")])
def test_rows_in_another_form_equal_javas(dump: str, golden, expected) -> None:
    view = dump.rsplit(".", 1)[1]
    got = opened(golden, dump).system("ro" if view == "read_optimized" else view)
    rows_equal(got, *expected(dump))


@pytest.mark.parametrize("dump", [d for d in DUMPS if ".audit_incremental_" in d])
def test_the_audit_log_of_a_range_equals_javas(dump: str, golden, expected) -> None:
    mode = dump.split("_")[-3]
    options = {"incremental-between": "1,4", "incremental-between-scan-mode": mode}
    rows_equal(opened(golden, dump).with_options(options).system("audit_log"), *expected(dump))


@pytest.mark.parametrize("dump", [d for d in DUMPS if d.endswith((".stream_audit_log", ".stream_binlog"))])
def test_the_stream_of_changes_in_another_form_equals_javas(dump: str, golden, unpacked) -> None:
    table = opened(golden, dump).with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": 1})
    log = table.inspect.audit_log() if dump.endswith("audit_log") else table.inspect.binlog()
    head, *lines = (unpacked("expected") / "expected" / f"{dump}.jsonl").read_text().splitlines()
    java: dict[int, list[dict]] = {}
    for line in lines:
        row = json.loads(line)
        java.setdefault(row["snapshot"], []).append(row["row"])
    ours: dict[int, list[pa.RecordBatch]] = {}
    for changes in log.follow(until="latest"):
        assert changes.kinds.to_pylist() == [0] * len(changes)
        ours.setdefault(changes.snapshot, []).append(changes.rows)
    assert list(ours) == list(java)
    for snapshot, batches in ours.items():
        rows_equal(pa.Table.from_batches(batches), json.loads(head)["columns"], java[snapshot])
