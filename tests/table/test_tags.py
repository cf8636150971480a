# SPDX-License-Identifier: Apache-2.0
"""Making and deleting tags: as Java does it, file by file; crashes; files that must stay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import crashes
import pyarrow as pa
import pytest
import refs_truth as truth

from shoal import BadRequest, Corrupt, NotFound, ShoalError
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.snapshot import Snapshot
from shoal.store.base import Store
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.store.prefix import PrefixStore
from shoal.table import branches, consumers, refs, rollback, tags
from shoal.table.table import Table


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return truth.unpack(tmp_path_factory.mktemp("refs"))


@pytest.mark.parametrize("name", ["t1", "t2", "t5", "t8", "t9", "c0", "u6"])
def test_every_file_is_as_java_leaves_it(warehouse: Path, tmp_path: Path, name: str) -> None:
    theirs, ours = truth.replay(warehouse, name, tmp_path)
    assert ours == theirs


# ---- crashes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history() -> MemoryStore:
    """Six snapshots with compactions between, tags a to c; of the first five snapshots only the tags are left."""
    store = MemoryStore(clock=ManualClock(crashes.NOW))
    lake = Lake(store, clock=ManualClock(crashes.NOW), scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1})
    for i in range(1, 4):
        write(table, i)
        table.maintain.compact(full=True)
        tags.create_tag(table, "abc"[i - 1])
    assert [t.snapshot.id for t in refs.tags(table.metadata)] == [2, 4, 6]
    write(table, 4)
    table.maintain.compact(full=True)
    for i in range(1, 8):
        forget(table, i)
    return store


def write(table: Table, key: int) -> None:
    with table.write() as w:
        w.upsert([{"k": key, "v": f"v{key}"}])
        w.commit()


def forget(table: Table, snapshot: int) -> None:
    """What expiry does to a snapshot whose files tags hold."""
    table.store.delete(f"snapshot/snapshot-{snapshot}")
    table.store.put("snapshot/EARLIEST", str(snapshot + 1).encode())


def rename(table: Table) -> None:
    try:
        tags.rename_tag(table, "a", "z")
    except NotFound:
        assert refs.find_tag(table.metadata, "z") is not None  # it was done


CUT: list[tuple[str, Callable[[Table], object]]] = [
    ("create", lambda t: tags.create_tag(t, "new", ignore_if_exists=True)),
    ("create with retention", lambda t: tags.create_tag(t, "new", retain_ms=5, ignore_if_exists=True)),
    ("replace", lambda t: tags.replace_tag(t, "a")),
    ("rename", rename),
    ("delete", lambda t: tags.delete_tag(t, "b")),
    ("expire", lambda t: tags.expire_tags(t, older_than=datetime(2100, 1, 1))),
]


@pytest.mark.parametrize(("name", "call"), CUT, ids=[n for n, _ in CUT])
def test_a_cut_off_call_leaves_the_old_or_the_new_and_can_be_done_again(
    history: MemoryStore, name: str, call: Callable[[Table], object]
) -> None:
    before = crashes.view(history)
    whole = crashes.clone(history)
    call(crashes.open_table(whole))
    after = crashes.view(whole)
    assert (before == after) is False
    seen = 0
    for what, store in crashes.cut_off(history, call, ("die", "fail_after") if name == "expire" else None):
        found = crashes.view(store)
        if name == "rename" and found != before:
            # a store has no rename: for one call both names are there
            assert found in (after, before | after), what
        elif name == "expire":
            assert before.items() >= found.items() >= after.items(), what
        else:
            assert found in (before, after), what
        call(crashes.open_table(store))
        assert crashes.view(store) == after, what
        # what a cut-off deletion leaves is named by nobody; else the files are the same
        left, wanted = crashes.files(store), crashes.files(whole)
        assert left.items() >= wanted.items(), what
        assert left == wanted or name in ("delete", "expire"), what
        seen += 1
    assert seen >= 4


def test_a_tag_whose_creation_was_not_acknowledged_is_made(history: MemoryStore) -> None:
    store = crashes.clone(history)
    faulty = FaultyStore(store, Fault("fail_after"))
    assert tags.create_tag(crashes.open_table(faulty), "new").snapshot.id == 8
    assert refs.tag(crashes.open_table(store).metadata, "new").snapshot.id == 8


# ---- files that stay -------------------------------------------------------------------------------------


def deleted_files(table: Table, name: str) -> set[str]:
    before = {i.path for i in table.store.list("")}
    assert tags.delete_tag(table, name)
    return before - {i.path for i in table.store.list("")} - {f"tag/tag-{name}"}


def test_a_tags_own_files_go_with_it(history: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(history))
    gone = deleted_files(table, "b")
    assert {p.split("/")[0] for p in gone} == {"bucket-0", "manifest"}
    assert rows_of(table, "a") == [1]
    assert rows_of(table, "c") == [1, 2, 3]
    assert not tags.delete_tag(table, "b")


def rows_of(table: Table, tag: str) -> list[int]:
    return sorted(table.scan(tag=tag).to_arrow().column("k").to_pylist())


def test_another_tag_of_the_snapshot_keeps_the_files(history: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(history))
    tags.create_tag(table, "twin", snapshot=4)
    assert deleted_files(table, "b") == set()
    assert rows_of(table, "twin") == [1, 2]
    assert deleted_files(table, "twin") != set()


def test_a_branch_keeps_the_files_where_java_deletes_them(history: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(history))
    side = branches.create_branch(table, "side", tag="b")
    assert deleted_files(table, "b") == set()
    assert sorted(side.scan().to_arrow().column("k").to_pylist()) == [1, 2]
    # and main's files stay when the branch's tag goes
    write(side, 9)
    forget(side, 4)
    assert not [p for p in deleted_files(side, "b") if not p.startswith("manifest/manifest-list-")]
    assert sorted(side.scan().to_arrow().column("k").to_pylist()) == [1, 2, 9]
    assert (rows_of(table, "a"), rows_of(table, "c")) == ([1], [1, 2, 3])


def test_files_that_a_rollback_brought_back_stay(history: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(history))
    rollback.rollback_as_latest(table, tag="b")
    write(table, 7)  # the newest snapshot is not the one that brought them back
    # what Java would delete here, data files among it, snapshot 9 still reads
    assert not [p for p in deleted_files(table, "b") if not p.startswith("manifest/manifest-list-")]
    assert sorted(table.scan(snapshot=9).to_arrow().column("k").to_pylist()) == [1, 2]


def test_nothing_goes_on_a_doubt(history: MemoryStore) -> None:
    def damaged(spoil: Callable[[Store], None], error: type[ShoalError]) -> None:
        store = crashes.clone(history)
        table = crashes.open_table(store)
        spoil(table.store)
        before = crashes.files(store)
        with pytest.raises(error):
            tags.delete_tag(crashes.open_table(store), "b")
        assert crashes.files(store) == before
        assert tags.delete_tag(crashes.open_table(store), "b", keep_files=True)
        assert before.keys() - crashes.files(store).keys() == {"d.db/t/tag/tag-b"}

    newest = crashes.open_table(history).metadata.latest()
    assert newest is not None
    damaged(lambda s: s.put("tag/tag-a", b"{"), Corrupt)
    damaged(lambda s: s.put("tag/tag-c", b"{}"), Corrupt)
    damaged(lambda s: s.put(f"manifest/{newest.base_manifest_list}", b"Obj"), Corrupt)
    damaged(lambda s: s.delete(f"manifest/{newest.base_manifest_list}"), Corrupt)
    damaged(lambda s: s.delete("snapshot/snapshot-8"), Corrupt)
    damaged(lambda s: s.put("snapshot/snapshot-8", b"no json"), Corrupt)
    damaged(lambda s: s.put("branch/branch-x/snapshot/snapshot-1", b"no json"), Corrupt)


class Stale(PrefixStore):
    """A store whose folder listings leave out some names."""

    hidden: tuple[str, ...] = ()

    def list_dir(self, prefix: str) -> tuple[list[str], list[str]]:
        folders, names = super().list_dir(prefix)
        return [f for f in folders if f not in self.hidden], [n for n in names if n not in self.hidden]


@pytest.mark.parametrize("name", ["tag-a", "tag-c", "branch-side"])
def test_a_listing_that_leaves_out_a_neighbour_stops_the_deletion(history: MemoryStore, name: str) -> None:
    store = crashes.clone(history)
    table = crashes.open_table(store)
    branches.create_branch(table, "side", tag="a")
    stale = Stale(store, "d.db/t")
    stale.hidden = (name,)
    before = crashes.files(store)
    with pytest.raises(ShoalError):
        tags.delete_tag(Table("d.t", stale, table.schema), "b")
    assert crashes.files(store) == before


# ---- guards and small things -----------------------------------------------------------------------------


@pytest.fixture
def table(history: MemoryStore) -> Table:
    return crashes.open_table(crashes.clone(history))


def test_names_and_arguments_are_checked(table: Table) -> None:
    for name in ("", "  ", "a/b", "a\\b"):
        for call in (tags.create_tag, tags.delete_tag, tags.replace_tag):
            with pytest.raises(BadRequest):
                call(table, name)
    with pytest.raises(BadRequest, match="already exists, of snapshot 2"):
        tags.create_tag(table, "a")
    assert tags.create_tag(table, "a", ignore_if_exists=True).snapshot.id == 2
    with pytest.raises(NotFound, match="snapshot 3 does not exist"):
        tags.create_tag(table, "x", snapshot=3)
    with pytest.raises(BadRequest, match="one snapshot"):
        tags.create_tag(table, "x", snapshot=2, watermark=3)
    with pytest.raises(BadRequest, match="-1 ms"):
        tags.create_tag(table, "x", retain_ms=-1)
    with pytest.raises(NotFound, match="no tag 'bb'"):
        tags.rename_tag(table, "bb", "x")
    assert tags.create_tag(table, "old", snapshot=2).snapshot == refs.tag(table.metadata, "a").snapshot


def test_an_empty_table_has_nothing_to_tag() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    with pytest.raises(NotFound, match="no snapshot"):
        tags.create_tag(lake.create_table("d.t", pa.schema([("k", pa.int32())])), "x")


def test_the_file_of_a_tag_with_a_retention_is_java_byte_for_byte() -> None:
    snap = Snapshot(4, 0, "b", "d", "u", 1, "APPEND", 5)
    made = datetime(2026, 11, 29, 22, 6, 52, 95000)
    ms = (made - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    text = tags.encode_tag(snap, ms, 31_536_000_000).decode()
    assert text == snap.encode().decode()[:-2] + (
        ',\n  "tagCreateTime" : [ 2026, 11, 29, 22, 6, 52, 95000000 ],\n  "tagTimeRetained" : 31536000.000000000\n}'
    )
    for time, parts in (
        (0, "[ 1970, 1, 1, 0, 0 ]"),
        (7000, "[ 1970, 1, 1, 0, 0, 7 ]"),
        (1, "[ 1970, 1, 1, 0, 0, 0, 1000000 ]"),
    ):
        assert f'"tagCreateTime" : {parts}' in tags.encode_tag(snap, time, 0).decode()
    assert tags.encode_tag(snap, 0, 0).endswith(b'"tagTimeRetained" : 0.0\n}')
    assert tags.encode_tag(snap, 0, 1500).endswith(b'"tagTimeRetained" : 1.500000000\n}')
    again = refs.decode_tag("x", text.encode(), "x")
    assert (again.created, again.retained_ms) == (made, 31_536_000_000)


def test_tags_expire_on_the_local_clock(table: Table) -> None:
    tags.create_tag(table, "short", retain_ms=1000)
    tags.create_tag(table, "long", retain_ms=3_600_000)
    tags.create_tag(table, "ever", retain_ms=None)
    table.clock.sleep(1)
    assert tags.expire_tags(table) == []
    table.clock.sleep(0.001)
    assert tags.expire_tags(table) == ["short"]
    # a, b and c have no time of their own: the time of their files counts
    now = datetime.fromtimestamp(table.clock.now_ms() / 1000, UTC)
    assert tags.expire_tags(table, older_than=now - timedelta(days=1)) == []
    assert tags.expire_tags(table, older_than=now - timedelta(seconds=0.5)) == ["a", "b", "c", "ever", "long"]


def test_success_files_tell_when_a_tag_was_made() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(5000), scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1, "tag.create-success-file": True})
    write(table, 1)
    tags.create_tag(table, "x")
    path = "tag/tag-success-file/x_SUCCESS"
    assert table.store.read(path) == b'{\n  "creationTime" : 5000,\n  "modificationTime" : 5000\n}'
    assert refs.tag_names(table.metadata) == ["x"]
    tags.delete_tag(table, "x")
    with pytest.raises(NotFound):
        table.store.read(path)


def test_a_name_like_an_automatic_tags_is_refused_where_there_is_one() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    table = lake.create_table(
        "d.t", schema, primary_key=["k"], options={"bucket": 1, "tag.automatic-creation": "process-time"}
    )
    write(table.with_options({"write-only": True}), 1)
    tags.create_tag(table, "2025-01-01")
    with pytest.raises(BadRequest, match="already auto-tagged with 2025-01-01"):
        tags.create_tag(table, "2025-01-02")
    assert tags.create_tag(table, "mine").snapshot.id == 1


# ---- consumers -------------------------------------------------------------------------------------------


def test_consumers_are_reset_to_what_is_there_and_cleared_by_name(table: Table) -> None:
    store = table.store
    consumers.reset(store, "bi-1", 8)
    consumers.save(store, "bi-2", 3)
    consumers.save(store, "etl", 9)
    with pytest.raises(NotFound, match="snapshot 3 does not exist"):
        consumers.reset(store, "bi-1", 3)
    assert consumers.all_progress(store) == {"bi-1": 8, "bi-2": 3, "etl": 9}
    with pytest.raises(BadRequest, match="regular expression"):
        consumers.clear(store, "bi-(")
    assert consumers.clear(store, "bi") == []  # the whole name must match
    assert consumers.clear(store, "bi-.*", ".*2") == ["bi-1"]
    assert consumers.clear(store, " ", "etl") == ["bi-2"]
    assert consumers.clear(store) == ["etl"]
    assert consumers.names(store) == []
