# SPDX-License-Identifier: Apache-2.0
"""Every table that Java wrote is read as Java reads it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyroaring
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal import NotFound, ShoalError
from shoal.catalog.filesystem import Lake
from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.table.scan import Scan
from shoal.table.table import Table

# What the make scripts insert into the tables that were never dumped.
NOT_DUMPED = {
    "engines.ag_max_no_retract": [],
    "maint.auto_tagged": [{"id": 1, "v": "a"}],
    "maint.consumed": [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}],
    "tracking.de_src": [{"id": 2, "w": 222}, {"id": 4, "w": 444}],
}

# Dumps taken in the middle of a make script, and the snapshot that was the newest then.
EARLIER = {
    "dv.ap_dv.before_deletes": 2,
    "bucket_modes.pk_postpone.before_compact": 1,
    "bucket_modes.pk_postpone.after_first_compact": 2,
    "maint.part_expire.before_truncate": 2,
    "maint.wo_pk.before": 3,
}

POSTPONED = "bucket_modes.pk_postpone"

HERE = Path(__file__).parent
TABLES = (HERE / "tables.txt").read_text().split()
DUMPS = (HERE / "dumps.txt").read_text().split()
# Java fails when it reads them; so does shoal, with an error that says what is wrong.
FAILS = {
    "engines.ag_overflow": "outgrows TINYINT",
    "engines.ag_map_keytime_bigint": "compares times as text",
}
READ = [t for t in TABLES if t not in FAILS]
TRAVELS = {d: int(d.rsplit("_", 1)[1]) for d in DUMPS if ".at_snapshot_" in d}
FILTERS = [
    # dump, table, filter, columns
    ("types.part_multi.filter_null", "types.part_multi", "dt IS NULL", None),
    *(
        (f"evo.{t}.filter", f"evo.{t}", "a2 > 10", ["id", "a2", "c"])
        for t in ("ap_evo", "avro_evo", "orc_evo", "pk_evo", "pk_evo_avro")
    ),
    ("formats.query.bloom_id42", "formats.append_index_bloom_filter_embedded", "id = 42", ["id", "s"]),
    ("formats.query.range_20_25", "formats.append_index_range_bitmap_separate", "id >= 20 AND id < 25", ["id", "s"]),
]


def scan(golden, table: str, **wanted: Any) -> Scan:
    return shoal.open(str(golden(table.split(".")[0]))).table(table).scan(**wanted)


def check(expected, dump: str, got: pa.Table) -> None:
    columns, rows = expected(dump)
    assert got.column_names == [name for name, _ in columns]
    assert multiset(rows_of(got), got.schema) == multiset(rows, got.schema)


@pytest.mark.parametrize("table", READ)
def test_rows_equal_what_java_reads(table: str, golden, expected) -> None:
    got = scan(golden, table).to_arrow()
    if table in NOT_DUMPED:
        assert multiset(rows_of(got), got.schema) == multiset(NOT_DUMPED[table], got.schema)
    else:
        check(expected, table, got)


@pytest.mark.parametrize("table", FAILS)
def test_what_java_fails_to_read_is_an_error_that_says_why(table: str, golden, expected) -> None:
    with pytest.raises(ShoalError) as error:
        scan(golden, table).to_arrow()
    assert FAILS[table] in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("dump", sorted(TRAVELS.keys() - {"maint.expired.at_snapshot_1"}))
def test_an_older_snapshot_has_the_rows_and_columns_of_its_time(dump: str, golden, expected) -> None:
    table, _ = dump.rsplit(".", 1)
    check(expected, dump, scan(golden, table, snapshot=TRAVELS[dump]).to_arrow())


def test_an_expired_snapshot_is_not_found_and_the_hint_says_which_there_are(golden) -> None:
    with pytest.raises(NotFound) as error:
        scan(golden, "maint.expired", snapshot=1).to_arrow()
    assert error.value.hint == "snapshots 5 to 6 are there"


@pytest.mark.parametrize("dump", EARLIER)
def test_rows_java_saw_before_the_last_commits_are_those_of_that_snapshot(dump: str, golden, expected) -> None:
    check(expected, dump, scan(golden, dump.rsplit(".", 1)[0], snapshot=EARLIER[dump]).to_arrow())


@pytest.mark.parametrize(("dump", "table", "where", "columns"), FILTERS)
def test_filtered_rows_equal_what_java_finds(dump: str, table: str, where: str, columns, golden, expected) -> None:
    check(expected, dump, scan(golden, table, where=where, columns=columns).to_arrow())


def test_sums_over_an_indexed_filter_equal_javas(golden, expected) -> None:
    _, rows = expected("formats.query.bitmap_g1")
    found = scan(golden, "formats.append_index_bitmap_separate", where="g = 1", columns=["id"]).to_arrow()
    assert [{"c": found.num_rows, "s": pc.sum(found.column("id")).as_py()}] == rows


def test_sketches_and_bitmaps_count_what_java_counts(golden, expected) -> None:
    import datasketches

    _, rows = expected("engines.ag_complex.counts")
    found = scan(golden, "engines.ag_complex").to_arrow().to_pylist()
    counts = [
        {
            "id": r["id"],
            "hll": round(datasketches.hll_sketch.deserialize(r["hll"]).get_estimate()),
            "theta": round(datasketches.compact_theta_sketch.deserialize(r["theta"]).get_estimate()),
            "rbm32": len(pyroaring.BitMap.deserialize(r["rbm32"])),
        }
        for r in found
    ]
    # a 64-bit bitmap has Java's own form: its bytes are compared with Java's among the rows
    assert counts == [{k: v for k, v in r.items() if k != "rbm64"} for r in rows]


def test_files_of_each_snapshot_are_those_that_were_counted(golden, unpacked) -> None:
    dump = "debt.layout"
    lines = (unpacked("expected") / "expected" / f"{dump}.jsonl").read_text().splitlines()[1:]
    for line in map(json.loads, lines):
        meta = shoal.open(str(golden("debt"))).table(f"debt.{line['table']}").metadata
        snap = meta.snapshot(line["snapshot"])
        delta = [e for m in meta.delta(snap) for e in entries_of(meta.entries(m))]
        added = [e.file for e in delta if e.kind == 0]
        logged = [e.file for m in meta.changelog(snap) for e in entries_of(meta.entries(m))]
        assert {
            "data_added": len(added),
            "data_bytes": sum(f.file_size for f in added),
            "data_deleted": len(delta) - len(added),
            "added_by_level": {str(k): v for k, v in sorted(Counter(f.level for f in added).items())},
            "changelog_added": len(logged),
            "changelog_bytes": sum(f.file_size for f in logged),
            "live_data_files": meta.live(snap).num_rows,
            "base_manifests": len(meta.base(snap)),
        }.items() <= line.items()


@pytest.mark.parametrize("table", [t for t in TABLES if t.startswith("types.key_")])
def test_a_compaction_sorts_keys_in_javas_order(table: str, golden, expected) -> None:
    """Java's dumps of these tables keep the order of the merged files."""
    compacted = own_copy(golden, table)
    compacted.maintain.compact(full=True)
    _, rows = expected(table)
    assert [json.dumps(r) for r in rows_of(compacted.scan().to_arrow())] == [json.dumps(r) for r in rows]


@pytest.mark.parametrize("table", [t for t in READ if t not in NOT_DUMPED])
def test_a_full_compaction_of_javas_files_keeps_the_rows(table: str, golden, expected) -> None:
    own = own_copy(golden, table)
    postponed = own.with_options({"postpone.merge-on-read": "true"}).scan().to_arrow() if table == POSTPONED else None
    own.maintain.compact(full=True)
    if own.primary_key:
        assert all(s.runs == 1 for s in own.scan().plan().splits)
    if postponed is not None:
        # the rows that waited in bucket-postpone have come to their buckets
        assert multiset(rows_of(own.scan().to_arrow()), postponed.schema) == multiset(rows_of(postponed), postponed.schema)
        assert own.scan().to_arrow().num_rows > 0
        return
    check(expected, table, own.scan().to_arrow())


def own_copy(golden, table: str) -> Table:
    """A copy in memory that a test may change."""
    database, name = table.split(".")
    folder, store = golden(database), MemoryStore()
    for path in (folder / f"{database}.db" / name).rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return Lake(store).table(table)


def test_there_are_as_many_tables_as_java_wrote() -> None:
    assert len(TABLES) == 212
