# SPDX-License-Identifier: Apache-2.0
"""System tables equal Java's, on tables whose rows shoal cannot read yet too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from encoding_model import rows_of

import shoal
from shoal import ManualClock, Unsupported
from shoal.table.inspect import Inspect

HERE = Path(__file__).parent
DUMPS = (HERE / "dumps.txt").read_text().split()
VIEWS = ("files", "snapshots", "manifests", "partitions", "buckets", "schemas", "consumers")
WHOLE = [d for d in DUMPS if d.count(".") == 2 and d.rsplit(".", 1)[1] in VIEWS]
JAVA_FAILS = {"evo.cast_all.files"}
# Dumps of `$files` in the middle of a make script, and the snapshot that was the newest then.
EARLIER = {
    "bucket_modes.pk_postpone.files_before_compact": 1,
    "maint.wo_pk.files_after_p0": 4,
    "maint.wo_pk.files_before": 3,
}
TYPES = {
    "VARCHAR(2147483647)": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP(3)": pa.timestamp("ms"),
    "BOOLEAN": pa.bool_(), "ARRAY<VARCHAR(2147483647)>": pa.list_(pa.string()),
}  # fmt: skip
ARRAY, ANY_BYTES = re.compile(r"\[B@[0-9a-f]+"), "[0-9a-f]*"


def inspect(golden, name: str) -> Inspect:
    top = golden(name.split(".")[0])
    return shoal.open(f"file:{top}", clock=ManualClock()).table(".".join(name.split(".")[:2])).inspect


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


@pytest.mark.parametrize("dump", [d for d in WHOLE if d not in JAVA_FAILS])
def test_a_system_table_equals_javas(dump: str, golden, expected) -> None:
    check(golden, expected, dump, getattr(inspect(golden, dump), dump.rsplit(".", 1)[1])())


@pytest.mark.parametrize("dump", EARLIER)
def test_the_files_of_an_older_snapshot_equal_what_java_saw_then(dump: str, golden, expected) -> None:
    check(golden, expected, dump, inspect(golden, dump).files(snapshot=EARLIER[dump]))


def test_bounds_that_were_cut_and_changed_type_are_null_where_java_fails(golden) -> None:
    got = inspect(golden, "evo.cast_all").files()
    assert got.num_rows == 1
    assert "c_s_ts=null" in got["min_value_stats"][0].as_py()
    assert "c_ti_si=-5," in got["min_value_stats"][0].as_py()


def test_tags_show_when_they_were_made_and_how_long_they_stay(golden, expected) -> None:
    for name in ("changelog.dd_none.tags", "maint.auto_tagged.tags", "maint.rolled_back.tags", "maint.tagged.tags"):
        got, (_, rows) = rows_of(inspect(golden, name).tags()), expected(name)
        for r in rows:  # Java prints nanoseconds in a column of milliseconds
            r["create_time"] = r["create_time"] and r["create_time"][:23]
        assert got == sorted(rows, key=lambda r: r["tag_name"])


def test_branches_are_listed_by_name(golden, expected) -> None:
    """The time is a file's, which unpacking does not keep."""
    got, (_, rows) = inspect(golden, "maint.branched").branches(), expected("maint.branched.branches")
    assert got["branch_name"].to_pylist() == sorted(r["branch_name"] for r in rows)


def test_options_are_those_of_the_newest_schema(golden) -> None:
    got = inspect(golden, "maint.wo_pk").options()
    assert dict(zip(*got.to_pydict().values())) == {"bucket": "2", "write-only": "true"}


def test_a_table_without_snapshots_has_empty_system_tables(golden) -> None:
    of = inspect(golden, "engines.ag_max_no_retract")
    for view in (of.files, of.snapshots, of.manifests, of.partitions, of.buckets, of.tags, of.branches, of.consumers):
        assert view().num_rows == 0
    assert of.schemas().num_rows == 1


def test_manifests_that_are_not_avro_are_refused(golden) -> None:
    for name in ("formats.manifest_orc", "formats.manifest_parquet"):
        of = inspect(golden, name)
        for view in (of.files, of.manifests, of.partitions, of.buckets):
            with pytest.raises(Unsupported, match=r"manifests in (orc|parquet)"):
                view()
        assert of.snapshots().num_rows == 1
