# SPDX-License-Identifier: Apache-2.0
"""Streams, incremental reads, time travel and branches of Java's tables give what Java's reader gives, row kinds included."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracle_values import canonical, multiset, rows_of

import shoal
from shoal import NotFound
from shoal.table.incremental import changes, from_options
from shoal.table.refs import branch, branch_names, tags
from shoal.table.stream import Changes, Follow
from shoal.table.table import Table
from shoal.table.travel import scan

Unpacked = Callable[[str], Path]
Row = tuple[str, str]  # kind, row as text

DUMPS = (Path(__file__).parent / "dumps.txt").read_text().split()
KINDS = ("+I", "-U", "+U", "-D")
STREAMS = {
    "stream_from_1": {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"},
    "changelog": {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"},
    "stream_full_from_2": {"scan.mode": "from-snapshot-full", "scan.snapshot-id": "2"},
    "stream_default": {},
    "stream_compacted_full": {"scan.mode": "compacted-full"},
    "stream_earliest": {"scan.mode": "from-timestamp", "scan.timestamp-millis": "0"},
}


def named(*patterns: str) -> list[str]:
    return [d for d in DUMPS if any(re.fullmatch(r"\w+\.\w+\." + p, d) for p in patterns)]


def table_of(golden: Unpacked, dump: str, options: dict[str, str] | None = None) -> Table:
    database, name = dump.split(".")[:2]
    table = shoal.open(golden(database)).table(f"{database}.{name}")
    return table.with_options(options) if options else table


def dumped(unpacked: Unpacked, dump: str) -> list[dict[str, Any]]:
    lines = (unpacked("expected") / "expected" / f"{dump}.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def text(row: dict[str, Any], schema: pa.Schema) -> str:
    return json.dumps({n: canonical(v, schema.field(n).type) for n, v in row.items()})


def kinded(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Kind and text of rows whose first column is the kind."""
    out = []
    for b in batches:
        rows = pa.Table.from_batches([b.select(b.schema.names[1:])])
        out += [(KINDS[k], text(r, rows.schema)) for k, r in zip(b.column(0).to_pylist(), rows_of(rows))]
    return out


def streamed(stream: Iterable[Changes]) -> dict[tuple[int, bool], list[Row]]:
    """Rows by snapshot, the first state apart."""
    out: dict[tuple[int, bool], list[Row]] = {}
    for c in stream:
        batch = c.rows.add_column(0, "kind", c.kinds)
        out.setdefault((c.snapshot, c.full), []).extend(kinded([batch]))
    return out


@pytest.mark.parametrize("dump", named(*STREAMS))
def test_a_stream_gives_javas_rows_in_javas_order(golden: Unpacked, unpacked: Unpacked, dump: str) -> None:
    table = table_of(golden, dump, STREAMS[dump.split(".")[2]])
    expected: dict[int, list[Row]] = {}
    for r in dumped(unpacked, dump):
        expected.setdefault(r["snapshot"], []).append((r["op"], text(r["row"], table.arrow_schema)))
    found = streamed(Follow(table, until="latest"))
    assert [s for s, _ in found] == list(expected)
    for (snapshot, full), rows in found.items():
        if full:
            # the state: Java sorts a merged one by key
            assert sorted(rows) == sorted(expected[snapshot])
        else:
            assert rows == expected[snapshot]


def test_a_consumer_goes_on_where_its_file_says(golden: Unpacked, unpacked: Unpacked) -> None:
    table = table_of(golden, "maint.consumed")
    found = streamed(Follow(table, start=2, until="latest"))
    expected = [
        (r["op"], text(r["row"], table.arrow_schema)) for r in dumped(unpacked, "maint.consumed.stream_consumer_c1")
    ]
    assert [r for rows in found.values() for r in rows] == expected


@pytest.mark.parametrize("dump", named("flink_stream_from_1"))
def test_flinks_stream_ends_in_the_same_state(golden: Unpacked, unpacked: Unpacked, dump: str) -> None:
    """Flink puts a normalize step behind the reader of a table without a changelog, so kinds differ; states do not."""
    table = table_of(golden, dump)
    assert table.primary_key == ("id",)
    here = state(r for rows in streamed(Follow(table, start=1, until="latest")).values() for r in rows)
    flink = state((r["op"], text(r["row"], table.arrow_schema)) for r in dumped(unpacked, dump))
    newest = {json.dumps(r["id"]): text(r, table.arrow_schema) for r in rows_of(scan(table).to_arrow())}
    assert here == flink == newest


def state(changes: Iterable[Row]) -> dict[str, str]:
    out: dict[str, str] = {}
    for kind, row in changes:
        key = json.dumps(json.loads(row)["id"])
        if kind in ("+I", "+U"):
            out[key] = row
        elif kind == "-D":
            out.pop(key, None)
    return out


@pytest.mark.parametrize("dump", named("incremental_(auto|delta|changelog|diff)_1_4", "audit_incremental_.*"))
def test_changes_between_snapshots_are_javas(golden: Unpacked, unpacked: Unpacked, dump: str) -> None:
    table, view = table_of(golden, dump), dump.split(".")[2]
    audit, mode = view.startswith("audit_"), view.split("_")[-3]
    read = changes(table, 1, 4, mode=mode, deletes=audit)
    expected = Counter()
    for r in dumped(unpacked, dump):
        row = dict(r["row"])
        expected[(row.pop("rowkind") if audit else r["op"], text(row, table.arrow_schema))] += 1
    assert Counter(kinded(read.to_batches())) == expected


def test_changes_between_tags_are_javas_diff(golden: Unpacked, unpacked: Unpacked) -> None:
    dump = "changelog.dd_none.incremental_tags_t2_t4"
    table = table_of(golden, dump, {"incremental-between": "t2,t4"})
    expected = Counter((r["op"], text(r["row"], table.arrow_schema)) for r in dumped(unpacked, dump))
    assert Counter(kinded(from_options(table, deletes=False).to_batches())) == expected


def place(table: Table, view: str) -> dict[str, Any]:
    """The arguments that a time-travel dump was made with."""
    if m := re.fullmatch(r"at_snapshot_(\d+)", view):
        return {"snapshot": int(m[1])}
    if view.endswith("time_of_3"):
        return {"timestamp": table.metadata.snapshot(3).time_ms}
    return {"at_tag_t2": {"tag": "t2"}, "at_tag_keep_1": {"tag": "keep-1"}, "at_version_t4": {"version": "t4"}}[view]


@pytest.mark.parametrize("dump", named("at_.*"))
def test_time_travel_reads_javas_rows(golden: Unpacked, unpacked: Unpacked, dump: str) -> None:
    table, view = table_of(golden, dump), dump.split(".")[2]
    expected = dumped(unpacked, dump)
    head = (unpacked("expected") / "expected" / f"{dump}.jsonl").read_text().splitlines()[0]
    if "error" in json.loads(head):
        with pytest.raises(NotFound, match=r"snapshot 1 .* does not exist"):
            scan(table, **place(table, view))
        return
    found = scan(table, **place(table, view)).to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset([r["row"] for r in expected], found.schema)


@pytest.mark.parametrize("dump", [d for d in named("branch_.*") if not d.endswith("snapshots")])
def test_branches_read_javas_rows(golden: Unpacked, unpacked: Unpacked, dump: str) -> None:
    name = "empty_branch" if dump.endswith("empty_branch") else "from_tag"
    found = scan(branch(table_of(golden, dump), name)).to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset([r["row"] for r in dumped(unpacked, dump)], found.schema)


def test_a_fallback_branch_gives_the_partitions_main_lacks(golden: Unpacked, unpacked: Unpacked) -> None:
    table = table_of(golden, "maint.fallback")
    found = scan(table).to_arrow()
    expected = [r["row"] for r in dumped(unpacked, "maint.fallback")]
    assert multiset(rows_of(found), found.schema) == multiset(expected, found.schema)
    # row 2 lies in a partition that main has: no filter may bring it out
    assert scan(table, "id = 2").to_arrow().num_rows == 0
    assert scan(table, "dt = '20240102'", ["id"]).to_arrow().to_pylist() == [{"id": 3}]


def test_tags_say_what_javas_tag_files_say(golden: Unpacked, unpacked: Unpacked) -> None:
    found = {t.name: t for t in tags(table_of(golden, "changelog.dd_none").metadata)}
    expected = {r["row"]["tag_name"]: r["row"] for r in dumped(unpacked, "changelog.dd_none.tags")}
    assert {n: t.snapshot.id for n, t in found.items()} == {n: r["snapshot_id"] for n, r in expected.items()}
    created = found["t4"].created
    assert created is not None
    assert created.isoformat(timespec="milliseconds") == expected["t4"]["create_time"][:23]
    assert found["t4"].retained_ms == 365 * 86_400_000
    assert found["t2"].created is found["t2"].retained_ms is None


def test_branches_are_listed(golden: Unpacked, unpacked: Unpacked) -> None:
    expected = sorted(r["row"]["branch_name"] for r in dumped(unpacked, "maint.branched.branches"))
    assert branch_names(table_of(golden, "maint.branched").store) == expected
