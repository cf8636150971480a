# SPDX-License-Identifier: Apache-2.0
"""Tags and branches: names for what a table was, and tables beside the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pytest

from shoal import BadRequest, Corrupt, NotFound
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.store.branch import BranchStore
from shoal.store.memory import MemoryStore
from shoal.table.incremental import changes
from shoal.table.refs import MAIN, Tag, branch, branch_names, branch_of, decode_tag, find_tag, split_name, tag, tags
from shoal.table.stream import Follow
from shoal.table.table import Table
from shoal.table.travel import scan

ROWS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.string())])


@pytest.fixture
def table() -> Table:
    clock = ManualClock(1_700_000_000_000)
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    return lake.create_table("d.t", ROWS, primary_key=["p", "k"], partition_by=["p"], options={"bucket": 1})


def put(t: Table, *rows: tuple[str, int, str]) -> None:
    with t.write() as w:
        w.upsert([{"p": p, "k": k, "v": v} for p, k, v in rows])
        w.commit()
    t.clock.sleep(10)


def read(t: Table, where: str | None = None, **place: object) -> list[tuple[str, int, str]]:
    found = scan(t, where, **place).to_arrow().to_pylist()  # type: ignore[arg-type]
    return sorted((r["p"], r["k"], r["v"]) for r in found)


def make_branch(t: Table, name: str, snapshot: int | None = None, options: Mapping[str, str] | None = None) -> Table:
    """A branch as Java makes one: the schema, and of a tagged snapshot a copy of it."""
    schema = t.schema if options is None else replace(t.schema, options={**t.schema.options, **options})
    t.store.put(f"branch/branch-{name}/{paths.schema(0)}", schema.encode())
    if snapshot is not None:
        t.store.put(f"branch/branch-{name}/{paths.snapshot(snapshot)}", t.store.read(paths.snapshot(snapshot)))
    return branch(t, name)


# ---- branches --------------------------------------------------------------------------------------------


def test_a_branch_is_written_and_read_beside_main(table: Table) -> None:
    put(table, ("a", 1, "main"))
    put(table, ("a", 2, "main"))
    side = make_branch(table, "side", 1)
    assert read(side) == [("a", 1, "main")]
    put(side, ("a", 1, "side"))
    assert read(side) == [("a", 1, "side")]
    assert read(table) == [("a", 1, "main"), ("a", 2, "main")]
    assert read(side, snapshot=1) == [("a", 1, "main")]
    assert side.metadata.snapshot_ids() == [1, 2]
    files = {f.path for f in table.store.list("")}
    assert {p for p in files if p.startswith("branch/")} == {
        "branch/branch-side/schema/schema-0", "branch/branch-side/snapshot/snapshot-1",
        "branch/branch-side/snapshot/snapshot-2", "branch/branch-side/snapshot/LATEST",
        "branch/branch-side/snapshot/EARLIEST",
    }  # fmt: skip
    # data and manifests lie under the main root
    assert sum("/data-" in p for p in files) == 3


def test_the_branch_option_reads_the_branch(table: Table) -> None:
    put(table, ("a", 1, "main"))
    side = make_branch(table, "side")
    put(side, ("a", 1, "one"))
    put(side, ("a", 2, "two"))
    hinted = table.with_options({"branch": "side"})
    assert read(hinted) == [("a", 1, "one"), ("a", 2, "two")]
    assert read(hinted, snapshot=1) == [("a", 1, "one")]
    assert read(hinted.with_options({"scan.snapshot-id": 1})) == [("a", 1, "one")]
    assert [c.snapshot for c in Follow(hinted, start=2, until="latest")] == [2]
    assert changes(hinted, 1, 2).to_arrow().column("v").to_pylist() == ["two"]
    assert read(hinted.with_options({"branch": MAIN})) == [("a", 1, "main")]
    with pytest.raises(NotFound, match="has no branch 'nowhere'"):
        scan(table.with_options({"branch": "nowhere"}))


def test_a_branch_has_a_schema_of_its_own(table: Table) -> None:
    wider = replace(table.schema, fields=(*table.schema.fields, replace(table.schema.fields[2], id=3, name="w")))
    table.store.put(f"branch/branch-side/{paths.schema(0)}", wider.encode())
    assert branch(table, "side").arrow_schema.names == ["p", "k", "v", "w"]
    assert table.arrow_schema.names == ["p", "k", "v"]


def test_branches_are_streamed_and_keep_their_own_consumers(table: Table) -> None:
    side = make_branch(table, "side")
    put(side, ("a", 1, "x"))
    assert [c.rows.to_pylist() for c in Follow(side, start=1, consumer="bi", until="latest")] == [
        [{"p": "a", "k": 1, "v": "x"}]
    ]
    assert [f.path for f in table.store.list("branch/branch-side/consumer")] == [
        "branch/branch-side/consumer/consumer-bi"
    ]
    assert list(table.store.list("consumer")) == []


def test_branches_are_found_by_name(table: Table) -> None:
    side = make_branch(table, "side")
    other = make_branch(table, "other")
    assert branch_names(table.store) == branch_names(side.store) == ["other", "side"]
    assert (side.name, branch_of(side), branch_of(table)) == ("d.t$branch_side", "side", MAIN)
    assert branch(side, MAIN).store is table.store
    assert branch(side, "other").store.uri == other.store.uri
    assert branch(side, "side") is side
    with pytest.raises(NotFound, match=r"d\.t has no branch 'sidd'") as err:
        branch(side, "sidd")
    assert "did you mean 'side'" in str(err.value.hint)
    with pytest.raises(BadRequest, match="cannot be a branch name"):
        branch(table, "a/b")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("d.t", ("d.t", None, None)),
        ("d.t$files", ("d.t", None, "files")),
        ("d.t$branch_b", ("d.t", "b", None)),
        ("d.t$branch_b$files", ("d.t", "b", "files")),
        ("`d.t$branch_b`", ("d.t", "b", None)),
        ("d.t$branch_main", ("d.t", None, None)),
    ],
)
def test_names_with_a_branch(name: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_name(name) == parts


@pytest.mark.parametrize("name", ["d.t$a$b", "$files", "d.t$branch_", "d.t$branch_b$files$x"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(BadRequest):
        split_name(name)


def test_a_branch_store_maps_its_own_folders_and_shares_the_rest() -> None:
    root = MemoryStore()
    for path in ("schema/schema-0", "snapshot/snapshot-1", "manifest/m", "bucket-0/data-1", "tag/tag-a"):
        root.put(path, b"main " + path.encode())
    store = BranchStore(root, "b")
    assert store.read("manifest/m") == b"main manifest/m"
    with pytest.raises(NotFound):
        store.read("snapshot/snapshot-1")
    assert store.create("snapshot/snapshot-1", b"own") is True
    assert store.create("snapshot/snapshot-1", b"again") is False
    store.put("manifest/n", b"n")
    with store.open("snapshot/snapshot-1") as f:
        assert f.read() == b"own"
    assert (store.size("snapshot/snapshot-1"), store.read_range("manifest/m", 5, 3)) == (3, b"man")
    assert root.read("branch/branch-b/snapshot/snapshot-1") == b"own"
    assert root.read("snapshot/snapshot-1") == b"main snapshot/snapshot-1"
    assert sorted(f.path for f in store.list("")) == [
        "bucket-0/data-1",
        "manifest/m",
        "manifest/n",
        "snapshot/snapshot-1",
    ]
    assert [f.path for f in store.list("snapshot")] == ["snapshot/snapshot-1"]
    assert store.list_dir("snapshot") == ([], ["snapshot-1"])
    assert store.list_dir("")[0] == ["branch", "bucket-0", "manifest", "snapshot"]
    store.delete("snapshot/snapshot-1")
    assert root.read("snapshot/snapshot-1") == b"main snapshot/snapshot-1"
    assert store.list_dir("snapshot") == ([], [])
    assert store.uri == root.uri + "/branch/branch-b"


# ---- fallback --------------------------------------------------------------------------------------------


@pytest.fixture
def pair(table: Table) -> tuple[Table, Table]:
    """Main with the partitions a and b, a branch with b and c."""
    side = make_branch(table, "side")
    put(table, ("a", 1, "main"), ("b", 1, "main"))
    put(side, ("b", 1, "side"), ("b", 2, "side"), ("c", 1, "side"))
    return table, side


def test_a_fallback_branch_fills_in_whole_partitions(pair: tuple[Table, Table]) -> None:
    main = pair[0].with_options({"scan.fallback-branch": "side"})
    assert read(main) == [("a", 1, "main"), ("b", 1, "main"), ("c", 1, "side")]
    # what main has of a partition hides it, whatever the filter leaves of it
    assert read(main, "k = 2") == []
    assert read(main, "v = 'side'") == [("c", 1, "side")]
    assert read(main, "p = 'b'") == [("b", 1, "main")]
    assert read(main, "p = 'c'") == [("c", 1, "side")]
    assert scan(main, columns=["v"], limit=2).to_arrow().num_rows == 2
    assert scan(main, limit=0).to_arrow().num_rows == 0
    explained = scan(main).explain()
    assert (explained.files, explained.buckets, explained.rows) == (3, 3, 3)


def test_a_primary_branch_wins(pair: tuple[Table, Table]) -> None:
    main = pair[0].with_options({"scan.primary-branch": "side"})
    assert read(main) == [("a", 1, "main"), ("b", 1, "side"), ("b", 2, "side"), ("c", 1, "side")]


def test_a_fallback_is_read_at_the_same_time(pair: tuple[Table, Table]) -> None:
    main, side = pair[0].with_options({"scan.fallback-branch": "side"}), pair[1]
    put(main, ("a", 2, "later"))
    put(side, ("d", 1, "later still"))
    assert read(main, snapshot=2) == [("a", 1, "main"), ("a", 2, "later"), ("b", 1, "main"), ("c", 1, "side")]
    then = main.metadata.snapshot(2).time_ms
    assert read(main, timestamp=then) == read(main, snapshot=2)
    # nothing was there yet: the oldest that the branch has, as in Java
    assert read(main, snapshot=1) == [("a", 1, "main"), ("b", 1, "main"), ("c", 1, "side")]


def test_a_fallback_that_cannot_stand_in_is_refused(pair: tuple[Table, Table]) -> None:
    main = pair[0]
    with pytest.raises(NotFound, match=r"'scan\.fallback-branch' names a branch 'nowhere'"):
        scan(main.with_options({"scan.fallback-branch": "nowhere"}))
    wider = replace(main.schema, id=1, fields=(*main.schema.fields, replace(main.schema.fields[2], id=3, name="w")))
    main.store.put(f"branch/branch-side/{paths.schema(1)}", wider.encode())
    with pytest.raises(BadRequest, match="have different columns"):
        scan(main.with_options({"scan.fallback-branch": "side"}))


# ---- tags ------------------------------------------------------------------------------------------------


def test_tags_are_listed_by_snapshot(table: Table) -> None:
    for i in range(1, 4):
        put(table, ("a", i, "x"))
    for name, i in (("z", 1), ("b", 3), ("a", 3)):
        table.store.put(f"tag/tag-{name}", table.store.read(paths.snapshot(i)))
    assert [(t.name, t.snapshot.id) for t in tags(table.metadata)] == [("z", 1), ("a", 3), ("b", 3)]
    assert tag(table.metadata, "z").snapshot == table.metadata.snapshot(1)
    assert find_tag(table.metadata, "y") is find_tag(table.metadata, " ") is find_tag(table.metadata, "a/b") is None
    with pytest.raises(NotFound, match="no tag 'y'"):
        tag(table.metadata, "y")


def test_the_times_of_a_tag(table: Table) -> None:
    put(table, ("a", 1, "x"))
    body = table.store.read(paths.snapshot(1)).decode().rstrip("}\n")

    def decoded(more: str) -> Tag:
        return decode_tag("t", f"{body},\n{more}\n}}".encode(), "tag/tag-t")

    made = decoded('"tagCreateTime" : [ 2026, 11, 29, 22, 6, 52, 95930240 ], "tagTimeRetained" : 86400.500000000')
    assert (made.created, made.retained_ms) == (datetime(2026, 11, 29, 22, 6, 52, 95_930), 86_400_500)
    # Jackson leaves out seconds and nanoseconds that are 0
    assert decoded('"tagCreateTime" : [ 2026, 11, 29, 22, 6 ]').created == datetime(2026, 11, 29, 22, 6)
    for wrong in ("[ 2026, 11 ]", "[ 2026, 13, 1, 0, 0 ]", '"now"'):
        with pytest.raises(Corrupt, match="tagCreateTime"):
            decoded(f'"tagCreateTime" : {wrong}')
    with pytest.raises(Corrupt, match="tagTimeRetained"):
        decoded('"tagTimeRetained" : "PT1H"')
