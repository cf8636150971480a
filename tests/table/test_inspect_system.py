# SPDX-License-Identifier: Apache-2.0
"""System tables that no golden dump shows: at an older snapshot, at a tag, on a branch, and those of the whole lake.

The truth is Java's: `data/system_tables.jsonl` holds what the oracle read from copies of the golden tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal import BadRequest, Corrupt, ManualClock, NotFound
from shoal.catalog.system import system as lake_table
from shoal.format import statistics
from shoal.table.inspect import NAMES
from shoal.table.system_columns import hash_order
from shoal.table.table import Table

TYPES = {
    "VARCHAR(2147483647)": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP(3)": pa.timestamp("ms"),
    "BOOLEAN": pa.bool_(), "ARRAY<VARCHAR(2147483647)>": pa.list_(pa.string()),
}  # fmt: skip


@cache
def dumps() -> dict[str, tuple[list[list[str]], list[dict[str, Any]]]]:
    """(columns, lines) of each dump by its name."""
    found: dict[str, tuple[list[list[str]], list[dict[str, Any]]]] = {}
    for line in (Path(__file__).parent / "data" / "system_tables.jsonl").read_text().splitlines():
        value = json.loads(line)
        if "dump" in value:
            lines: list[dict[str, Any]] = []
            found[value["dump"]] = (value["columns"], lines)
        else:
            lines.append(value)
    return found


def lake(golden: Callable[[str], Path], dump: str) -> Any:
    return shoal.open(f"file:{golden(dump.split('.')[0])}", clock=ManualClock())


def opened(golden: Callable[[str], Path], dump: str) -> Table:
    return lake(golden, dump).table(".".join(dump.split(".")[:2]))


def check(golden: Callable[[str], Path], dump: str, got: pa.Table, ignore: tuple[str, ...] = ()) -> None:
    columns, lines = dumps()[dump]
    assert got.column_names == [n for n, _ in columns]
    for (name, kind), field in zip(columns, got.schema):
        if kind.removesuffix(" NOT NULL") in TYPES:
            assert field.type == TYPES[kind.removesuffix(" NOT NULL")], name
    warehouse = f"file:{golden(dump.split('.')[0])}"
    ours = [{k: v if v is None else iso(v) for k, v in r.items() if k not in ignore} for r in got.to_pylist()]
    java = [{k: v for k, v in line["row"].items() if k not in ignore} for line in lines]
    # Java prints the identity of a byte array, we print its bytes
    theirs = [re.split(r"\[B@[0-9a-f]+", t.replace("${WAREHOUSE}", warehouse)) for t in texts(java)]
    assert len(ours) == len(theirs)
    for a, parts in zip(texts(ours), theirs):
        assert a == "".join(parts) or re.fullmatch("[0-9a-f]*".join(map(re.escape, parts)), a)


def iso(v: Any) -> Any:
    """Times as the dumps have them: ISO text without trailing zeros of the fraction."""
    if not hasattr(v, "isoformat"):
        return v
    text = v.isoformat()
    return text.rstrip("0") if "." in text else text


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(r, ensure_ascii=False) for r in rows)


PLAIN = [
    "maint.wo_pk.file_key_ranges", "tracking.rt.file_key_ranges", "types.pk_wide.file_key_ranges",
    "evo.pk_evo.file_key_ranges", "evo.pk_evo.files", "evo.ap_evo.files", "evo.nested_evo.files", "tracking.de.schemas",
    "maint.part_expire.schemas", "maint.auto_tagged.schemas", "maint.auto_tagged.options",
    "engines.pu_agg.aggregation_fields", "engines.ag_retract.aggregation_fields",
    "engines.ag_complex.aggregation_fields", "dv.ap_dv_part.partitions", "dv.pk_dv_part.partitions",
    "bucket_modes.pk_postpone_part.partitions", "bucket_modes.pk_postpone_part.buckets",
]  # fmt: skip


@pytest.mark.parametrize("dump", PLAIN)
def test_a_system_table_equals_javas(dump: str, golden: Callable[[str], Path]) -> None:
    check(golden, dump, opened(golden, dump).system(dump.rsplit(".", 1)[1]))


EARLIER: dict[str, dict[str, Any]] = {
    "evo.pk_evo.files_1": {"snapshot": 1},
    "maint.analyzed.statistics_1": {"snapshot": 1},
    "maint.analyzed.statistics_2": {"version": "2"},
    "maint.tagged.files_keep_1": {"tag": "keep-1"},
    "maint.tagged.manifests_keep_1": {"tag": "keep-1"},
    "maint.part_drop.partitions_1": {"snapshot": 1},
    "dv.pk_dv_part.partitions_1": {"snapshot": 1},
    "dv.pk_dv.table_indexes_2": {"snapshot": 2},
}


@pytest.mark.parametrize("dump", EARLIER)
def test_time_travel_shows_what_java_shows(dump: str, golden: Callable[[str], Path]) -> None:
    view = next(n for n in sorted(NAMES, key=len, reverse=True) if dump.rsplit(".", 1)[1].startswith(n))
    check(golden, dump, opened(golden, dump).system(view, **EARLIER[dump]))


def test_buckets_travel_too_where_java_shows_the_newest(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.tagged")
    check(golden, "maint.tagged.buckets_keep_1", table.system("buckets"))
    assert table.system("buckets", tag="keep-1").column("record_count").to_pylist() == [2]
    assert dumps()["maint.tagged.buckets_keep_1"][1][0]["row"]["record_count"] == 3


def test_time_travel_comes_from_options_too(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.tagged").with_options({"scan.tag-name": "keep-1"})
    check(golden, "maint.tagged.files_keep_1", table.system("files"))


@pytest.mark.parametrize("view", ["files", "tags", "schemas"])
def test_a_branch_has_system_tables_of_its_own(view: str, golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.branched").branch("from_tag")
    check(golden, f"maint.branched.branch_from_tag.{view}", table.system(view))


def test_a_branch_lists_the_branches_of_its_table(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.branched")
    assert table.branch("from_tag").system("branches").equals(table.system("branches"))


@pytest.mark.parametrize("dump", [f"{db}.sys.{t}" for db in ("maint", "types") for t in ("tables", "partitions")])
def test_tables_of_the_whole_lake_equal_javas(dump: str, golden: Callable[[str], Path]) -> None:
    check(golden, dump, lake_table(lake(golden, dump), dump.rsplit(".", 1)[1]))


@pytest.mark.parametrize("database", ["maint", "types"])
def test_options_of_the_whole_lake_equal_javas(database: str, golden: Callable[[str], Path]) -> None:
    dump = f"{database}.sys.all_table_options"
    check(golden, dump, lake_table(lake(golden, dump), "all_table_options"))


def test_unknown_system_tables_are_told_with_near_names(golden: Callable[[str], Path]) -> None:
    with pytest.raises(NotFound) as err:
        opened(golden, "maint.wo_pk").system("file")
    assert "files" in str(err.value.hint)
    with pytest.raises(NotFound) as err:
        lake_table(lake(golden, "maint"), "table")
    assert "tables" in str(err.value.hint)


def test_an_unknown_argument_is_refused(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.wo_pk")
    for name in ("files", "audit_log", "snapshots"):
        with pytest.raises(BadRequest, match="snapshto"):
            table.system(name, snapshto=1)


def test_a_state_that_is_gone_is_refused_by_every_system_table(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.wo_pk")
    for name in NAMES.keys() - {"row_tracking"}:
        with pytest.raises(NotFound):
            table.system(name, snapshot=999)


def test_rows_and_columns_of_a_system_table_can_be_chosen(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "maint.wo_pk")
    got = table.system("files", where="level = 0", columns=["bucket", "level"], limit=1)
    assert got.column_names == ["bucket", "level"]
    assert got.num_rows == min(1, table.system("files", where="level = 0").num_rows)
    with pytest.raises(BadRequest, match="levle"):
        table.system("files", columns=["levle"])


def test_every_column_of_the_golden_manifests_is_read_whatever_their_format(golden: Callable[[str], Path]) -> None:
    for name in ("formats.manifest_orc", "formats.manifest_parquet"):
        table = opened(golden, name)
        rows = table.scan().to_arrow().num_rows
        assert sum(table.system("files").column("record_count").to_pylist()) >= rows > 0
        assert table.system("partitions").column("record_count").to_pylist() == [rows]
        assert table.system("manifests").num_rows > 0


def test_options_are_walked_in_the_order_of_javas_hash_map() -> None:
    """Java printed the options of tracking.de and maint.auto_tagged so, while their schema files have another order."""
    for dump in ("tracking.de.schemas", "maint.auto_tagged.schemas", "maint.part_expire.schemas"):
        printed = [list(json.loads(line["row"]["options"])) for line in dumps()[dump][1]]
        assert printed == [hash_order(sorted(keys)) for keys in printed]


def test_statistics_files_come_back_byte_for_byte(golden: Callable[[str], Path]) -> None:
    files = list((golden("maint") / "maint.db" / "analyzed" / "statistics").iterdir())
    assert len(files) == 2
    for f in files:
        assert statistics.decode(f.read_bytes(), f.name).encode() == f.read_bytes()


def test_damaged_statistics_name_their_file() -> None:
    for text in ('{"colStats": []}', '{"snapshotId": "1"}', '{"colStats": {"a": {"min": 1}}}', "{"):
        with pytest.raises(Corrupt, match="stat-7"):
            statistics.decode(text.encode(), "stat-7")
