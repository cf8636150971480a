# SPDX-License-Identifier: Apache-2.0
"""What the commands print, as text and as JSON, and the exit codes they end with."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest

import shoal


def in_json(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


# ---- table


def test_table_list_prints_one_name_a_line(run, warehouse):
    assert run("table", "list", "-w", warehouse).out == "hr.staff\nshop.items\nshop.orders\n"
    assert run("table", "list", "shop", "-w", warehouse).out == "shop.items\nshop.orders\n"


def test_table_list_as_json_has_database_and_table(run, warehouse):
    found = in_json(run("table", "list", "hr", "-w", warehouse, "-o", "json"))
    assert found == [{"database": "hr", "table": "staff"}]


def test_options_may_stand_anywhere_on_the_line(run, warehouse):
    expected = run("table", "list", "shop", "-w", warehouse, "-o", "json").out
    assert run("-w", warehouse, "-o", "json", "table", "list", "shop").out == expected
    assert run("table", f"--warehouse={warehouse}", "list", "--output=json", "shop").out == expected


def test_the_warehouse_may_come_from_the_environment(run, warehouse, monkeypatch):
    monkeypatch.setenv("SHOAL_WAREHOUSE", warehouse)
    assert "shop.orders" in run("table", "list").out


def test_an_empty_warehouse_is_said_on_stderr_only(run, tmp_path):
    ran = run("table", "list", "-w", str(tmp_path))
    assert (ran.code, ran.out, ran.err) == (0, "", f"no tables in file:{tmp_path}\n")


def test_table_show_says_columns_keys_options_and_size(run, warehouse):
    ran = run("table", "show", "shop.orders", "-w", warehouse)
    assert ran.code == 0
    words = [line.split() for line in ran.out.splitlines()]
    assert ["primary", "key", "dt,", "id"] in words
    assert ["rows", "6,000", "before", "merging"] in words
    assert ["id", "BIGINT", "NOT", "NULL"] in words
    assert ["write-only", "true"] in words


def test_table_show_as_json_has_raw_numbers(run, warehouse):
    found = in_json(run("table", "show", "shop.orders", "-w", warehouse, "-o", "json"))
    assert (found["files"], found["rows"]) == (6, 6000)
    assert found["primary_key"] == ["dt", "id"]
    assert found["columns"][0] == {"name": "id", "type": "BIGINT NOT NULL", "description": None}
    assert found["snapshot"]["id"] == 3 and found["snapshot"]["commit_user"] == "ingest"
    scan = shoal.open(warehouse).table("shop.orders").scan().explain()
    assert (found["files"], found["rows"], found["bytes"]) == (scan.files, scan.rows, scan.bytes)


def test_table_show_of_an_empty_table_has_no_snapshot(run, warehouse):
    assert in_json(run("table", "show", "hr.staff", "-w", warehouse, "-o", "json"))["snapshot"] is None
    ran = run("table", "show", "hr.staff", "-w", warehouse)
    assert "none yet" in ran.out and "who works here" in ran.out


def test_table_files_lists_every_live_file_uncut(run, warehouse):
    raw = in_json(run("table", "files", "shop.orders", "-w", warehouse, "-o", "json"))
    ran = run("table", "files", "shop.orders", "-w", warehouse)
    heads, *lines = [line.split() for line in ran.out.splitlines()]
    assert heads == ["partition", "bucket", "level", "file", "rows", "bytes"]
    assert {line[3] for line in lines} == {f["file_path"].rpartition("/")[2] for f in raw}
    assert [line[4] for line in lines] == ["1,000"] * 6
    assert ran.err == f"6 live files, {sum(f['file_size_in_bytes'] for f in raw):,} bytes\n"


def test_table_snapshots_lists_them_oldest_first(run, warehouse):
    found = in_json(run("table", "snapshots", "shop.orders", "-w", warehouse, "-o", "json"))
    assert [s["snapshot_id"] for s in found] == [1, 2, 3]
    heads, *lines = [
        line.split() for line in run("table", "snapshots", "shop.orders", "-w", warehouse).out.splitlines()
    ]
    assert heads == ["snapshot", "kind", "time", "rows", "change", "user"]
    assert [line[0] for line in lines] == ["1", "2", "3"] and lines[2][4] == "6,000"


# ---- compact


@pytest.fixture
def own(warehouse, tmp_path):
    """A copy of the warehouse to change."""
    return shutil.copytree(warehouse, tmp_path / "own")


def test_compact_dry_run_says_what_and_why_and_writes_nothing(run, own):
    before = sorted(own.rglob("*"))
    ran = run("compact", "run", "shop.orders", "--full", "--dry-run", "-w", str(own))
    assert ran.code == 0
    heads, first, second, _, last = ran.out.splitlines()
    assert heads.split() == ["partition", "bucket", "files", "bytes", "to", "level", "why"]
    assert [first.split()[0], second.split()[0]] == ["dt=2026-11-01", "dt=2026-11-02"]
    assert last.startswith("shop.orders: would compact 6 files (") and last.endswith("in 2 buckets")
    found = in_json(run("compact", "run", "shop.orders", "--full", "--dry-run", "-w", str(own), "-o", "json"))
    assert found["dry_run"] is True and [p["files"] for p in found["planned"]] == [3, 3]
    assert sorted(own.rglob("*")) == before


def test_compact_run_merges_and_counts_files_and_bytes(run, own):
    rows = (
        shoal.open(str(own)).table("shop.orders").scan().to_arrow().sort_by([("dt", "ascending"), ("id", "ascending")])
    )
    found = in_json(run("compact", "run", "shop.orders", "--full", "-w", str(own), "-o", "json"))
    assert (found["dry_run"], found["files_before"], found["files_after"], found["snapshot"]) == (False, 6, 2, 4)
    assert found["bytes_read"] > found["bytes_written"] > 0
    after = (
        shoal.open(str(own)).table("shop.orders").scan().to_arrow().sort_by([("dt", "ascending"), ("id", "ascending")])
    )
    assert after == rows
    assert run("compact", "run", "shop.orders", "--full", "-w", str(own)).out == "shop.orders: nothing to compact\n"


def test_an_append_table_is_compacted_and_said_why(run, own):
    assert run("compact", "run", "shop.items", "-w", str(own)).out == "shop.items: nothing to compact\n"
    items = shoal.open(str(own)).table("shop.items")
    columns = {f.name: pa.nulls(1, f.type) for f in items.arrow_schema}
    for _ in range(6):
        with items.write() as writer:
            writer.append(pa.table(columns))
            writer.commit()
    ran = run("compact", "run", "shop.items", "--dry-run", "-w", str(own))
    assert "6 small files" in ran.out and "would compact 6 files" in ran.out
    found = in_json(run("compact", "run", "shop.items", "-w", str(own), "-o", "json"))
    assert (found["files_before"], found["files_after"]) == (6, 1)
    line = ("compact", "run", "shop.items", "--order-strategy", "zorder", "--order-by", ",".join(columns), "--dry-run")
    assert f"sorted by zorder of {', '.join(columns)}" in run(*line, "-w", str(own)).out


def test_a_table_with_dynamic_buckets_is_sorted_and_others_are_told_what_to_do(run, own):
    columns = pa.schema([pa.field("id", pa.int32(), nullable=False), ("a", pa.int32())])
    t = shoal.open(own).create_table("shop.keys", columns, primary_key=["id"], options={"bucket": -1})
    with t.write() as w:
        w.upsert([{"id": i, "a": -i} for i in range(5)])
        w.commit()
    sort = ("--order-strategy", "order", "--order-by", "a", "-w", str(own))
    dry = run("compact", "run", "shop.keys", *sort, "--dry-run")
    assert "sorted: sorted by order of a" in dry.out and "would compact 1 files" in dry.out
    found = in_json(run("compact", "run", "shop.keys", *sort, "-o", "json"))
    assert (found["snapshot"], found["files_after"]) == (2, 1)
    assert [(c["bucket"], c["inputs"], c["outputs"]) for c in found["compactions"]] == [(None, 1, 1)]
    wrong = run("compact", "run", "shop.orders", *sort)
    assert wrong.code == 2 and "copy the rows to a table with 'bucket' = '-1'" in wrong.err
    assert "hint: 'shoal compact run shop.orders --full'" in wrong.err


def test_compact_takes_chosen_partitions(run, own):
    def planned(*more):
        ran = run(
            "compact", "run", "shop.orders", "--strategy", "full", "--dry-run", "-w", str(own), "-o", "json", *more
        )
        return [p["partition"] for p in in_json(ran)["planned"]]

    assert planned("--partition", "dt=2026-11-02") == ["dt=2026-11-02"]
    assert planned("--partition", "dt=2026-11-02", "--partition", "dt=2026-11-01") == ["dt=2026-11-01", "dt=2026-11-02"]
    assert planned("--where", "dt < '2026-11-02'") == ["dt=2026-11-01"]
    assert planned("--partition-idle-time", "1 d") == []
    wrong = run("compact", "run", "shop.orders", "--where", "id = 1", "-w", str(own))
    assert (wrong.code, wrong.out) == (2, "") and "'id' is no partition column" in wrong.err


def test_compact_takes_all_tables_of_a_pattern_and_goes_on_after_a_failure(run, own):
    lines = run("compact", "run", "shop.*", "--full", "-w", str(own), "--threads", "2").out.splitlines()
    assert lines[0] == "shop.items: nothing to compact" and lines[1].startswith("shop.orders: snapshot 4, 6 files")
    found = in_json(
        run("compact", "run", "*", "--exclude", "*.items", "--include", "shop.*", "-w", str(own), "-o", "json")
    )
    assert [t["table"] for t in found["tables"]] == ["shop.orders"]
    (own / "shop.db/items/schema/schema-0").write_text("{")
    ran = run("compact", "run", "shop.*", "--full", "-w", str(own))
    assert (ran.code, ran.out) == (4, "shop.orders: nothing to compact\n") and "schema-0" in ran.err
    nothing = run("compact", "run", "shop.x*", "-w", str(own))
    assert nothing.code == 2 and "no table in" in nothing.err


def test_rescale_writes_partitions_into_other_buckets(run, own):
    line = ("compact", "rescale", "shop.orders", "--buckets", "3", "-w", str(own))
    before = run("sql", "SELECT * FROM shop.orders ORDER BY ALL", "-w", str(own)).out
    assert "would write 6 files" in run(*line, "--dry-run").out
    found = in_json(run(*line, "-o", "json"))
    assert (found["buckets"], found["snapshot"], found["schema"], found["others"]) == (3, 4, 1, 0)
    assert run("sql", "SELECT * FROM shop.orders ORDER BY ALL", "-w", str(own)).out == before
    assert run(*line).out == "shop.orders: nothing to rescale, there are 3 buckets\n"
    wrong = run("compact", "rescale", "shop.items", "--buckets", "3", "-w", str(own))
    assert wrong.code == 2 and "there is no number of them to change" in wrong.err


def test_manifests_are_merged(run, own):
    assert run("compact", "manifests", "shop.orders", "-w", str(own)).out == (
        "shop.orders: snapshot 4, its manifests are merged\n"
    )
    assert in_json(run("compact", "manifests", "shop.orders", "-w", str(own), "-o", "json"))["snapshot"] is None
    assert run("compact", "manifests", "shop.orders", "-w", str(own)).out == "shop.orders: nothing to merge\n"


def test_compact_goes_on_until_ctrl_c(run, own, monkeypatch):
    slept = []

    def sleep(_, seconds):
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt
        if len(slept) == 1:
            with shoal.open(str(own)).table("shop.orders").write() as writer:
                writer.upsert(pa.table({"id": [1], "total": [2.0], "dt": ["2026-11-01"]}))
                writer.commit()

    monkeypatch.setattr("shoal.clock.SystemClock.sleep", sleep)
    ran = run("compact", "run", "shop.orders", "--full", "--continuous", "--interval", "1 min", "-w", str(own))
    assert (ran.code, slept) == (130, [60.0, 60.0, 60.0])
    first, second = ran.out.splitlines()
    assert "snapshot 4, 6 files became 2" in first and "snapshot 6, 2 files became 1" in second


@pytest.mark.parametrize(
    "line",
    [
        ("--full", "--strategy", "minor"),
        ("--continuous", "--dry-run"),
        ("--include", "a"),
        ("--threads", "0"),
        ("--strategy", "some"),
        ("--order-strategy", "zorder"),
        ("--order-by", "id"),
        ("--order-strategy", "order", "--order-by", "id", "--continuous"),
        ("--partition", "dt"),
    ],
)
def test_compact_refuses_what_does_not_go_together(run, own, line):
    ran = run("compact", "run", "shop.orders", "-w", str(own), *line)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("shoal: error: ")


# ---- job and demo


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"id": 1, "op": "+I", "v": "a"}\n{"id": 2, "op": "+I", "v": "b"}\n{"id": 1, "op": "-D", "v": "a"}\n'
    )
    return path


def test_job_run_streams_files_into_a_table_and_goes_on_where_it_stood(run, tmp_path, events):
    lake = str(tmp_path / "new-lake")
    line = ["job", "run", "--from", str(events), "--into", "shop.t", "--primary-key", "id", "--kind-column", "op"]
    line += ["--checkpoint", "100ms", "--option", "bucket=1", "-w", lake, "-o", "json"]
    first = in_json(run(*line))
    assert (first["rows"], first["snapshots"], first["position"], first["ended"]) == (3, 1, 3, True)
    assert shoal.open(lake).table("shop.t").scan().to_arrow().to_pylist() == [{"id": 2, "v": "b"}]
    assert in_json(run(*line))["rows"] == 0


def test_job_run_and_compact_say_when_upkeep_failed_and_end_well(run, tmp_path, events):
    lake = str(tmp_path / "new-lake")
    line = ["job", "run", "--from", str(events), "--into", "shop.t", "--primary-key", "id", "--kind-column", "op"]
    line += ["--checkpoint", "100ms", "-w", lake, "--option", "bucket=1"]
    line += ["--option", "snapshot.num-retained.min=1", "--option", "snapshot.num-retained.max=1"]
    assert "upkeep" not in run(*line).err
    tag = tmp_path / "new-lake" / "shop.db" / "t" / "tag" / "tag-odd"
    tag.parent.mkdir()
    tag.write_text("{")
    ran = run(*line, "--name", "again")
    assert ran.code == 0 and "upkeep failed after 1 of 1 checkpoints, last: " in ran.out and "tag-odd" in ran.out
    assert ran.err.startswith("shoal: upkeep failed, the job goes on: ") and ran.err.count("\n") == 1
    again = run("compact", "run", "shop.t", "--full", "-w", lake)
    assert again.code == 0 and "shoal: upkeep failed after the commit, which stands: " in again.err


def test_job_run_without_create_refuses_a_missing_warehouse_and_table(run, tmp_path, events, warehouse):
    line = ["job", "run", "--from", str(events), "--into", "shop.t", "--no-create"]
    assert "[SH-NOT-FOUND]" in run(*line, "-w", str(tmp_path / "none")).err
    assert "no table 'shop.t'" in run(*line, "-w", warehouse).err


def test_job_run_refuses_an_interval_without_a_unit(run, tmp_path, events):
    ran = run("job", "run", "--from", str(events), "--into", "a.b", "--checkpoint", "10", "-w", str(tmp_path))
    assert ran.code == 2 and "hint: write 10s for seconds" in ran.err


def test_the_demo_takes_a_folder_and_days(run, tmp_path):
    line = [
        "demo",
        str(tmp_path / "d"),
        "--start",
        "2013-01-01",
        "--end",
        "2013-01-02",
        "--hours",
        "0.05",
        "-o",
        "json",
    ]
    ran = run(*line)
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["same_answer"] is True and found["end"] == "2013-01-02"
    again = run(*line)
    assert again.code == 2 and "--force replaces it" in again.err
