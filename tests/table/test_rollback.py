# SPDX-License-Identifier: Apache-2.0
"""Going back: as Java does it, file by file; crashes; rows afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import crashes
import pyarrow as pa
import pytest
import refs_truth as truth

from shoal import BadRequest, Conflict, NotFound, ShoalError
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.store.prefix import PrefixStore
from shoal.table import refs, rollback, tags
from shoal.table.table import Table

_UUID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}(-[0-9]+)?")


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return truth.unpack(tmp_path_factory.mktemp("refs"))


FORGOTTEN = ["t3", "t7", "u4", "u5", "w1", "w2", *(f"c{i}" for i in range(1, 6)), *(f"d{i}" for i in range(1, 9))]


@pytest.mark.parametrize("name", FORGOTTEN)
def test_every_file_is_as_java_leaves_it(warehouse: Path, tmp_path: Path, name: str) -> None:
    theirs, ours = truth.replay(warehouse, name, tmp_path)
    assert ours == theirs


def meaning(path: str, text: str | None) -> dict[str, object]:
    """A snapshot without what is new with every commit."""
    assert text is not None, path
    snap = json.loads(text)
    return {k: v for k, v in snap.items() if k not in ("uuid", "commitUser", "timeMillis") and "anifestList" not in k}


@pytest.mark.parametrize(("name", "made"), [("t6", 16), ("u7", 6)])
def test_a_snapshot_that_goes_back_is_javas(warehouse: Path, tmp_path: Path, name: str, made: int) -> None:
    theirs, ours = truth.replay(warehouse, name, tmp_path)
    path = f"snapshot/snapshot-{made}"
    assert meaning(path, ours[path]) == meaning(path, theirs[path])
    assert json.loads(ours[path] or "")["commitUser"].startswith("rollback-to-as-latest-")

    def named(files: truth.Files) -> list[str]:
        return sorted(_UUID.sub("U", p) for p in files)

    assert named(ours) == named(theirs)
    assert {p: t for p, t in ours.items() if "rollback" not in p and p != path and "manifest" not in p} == {
        p: t for p, t in theirs.items() if "rollback" not in p and p != path and "manifest" not in p
    }
    table = truth.lake_of(tmp_path).table("d.t")
    target = refs.tag(table.metadata, "c").snapshot.id if name == "t6" else 2
    how = {"tag": "c"} if name == "t6" else {"snapshot": target}
    then = table.scan(**how).to_arrow()  # type: ignore[arg-type]
    now = table.scan(columns=then.column_names).to_arrow()  # the newest schema stays: u7 has one column more
    assert sorted(map(str, now.to_pylist())) == sorted(map(str, then.to_pylist()))
    delta = [
        (e.kind, e.file.file_name)
        for m in table.metadata.delta(table.metadata.snapshot(made))
        for e in entries_of(table.metadata.entries(m))
    ]
    before = {e.file.file_name for e in entries_of(table.metadata.live(table.metadata.snapshot(made - 1)))}
    after = {e.file.file_name for e in entries_of(table.metadata.live(table.metadata.snapshot(made)))}
    assert sorted(delta) == sorted([(1, n) for n in before - after] + [(0, n) for n in after - before])


# ---- crashes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history() -> MemoryStore:
    """Snapshots 3 to 7, tags on the expired 1 and on 4 and 6, watermarks of 10 for each snapshot."""
    store = MemoryStore(clock=ManualClock(crashes.NOW))
    clock = ManualClock(crashes.NOW)
    lake = Lake(store, clock=clock, scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1, "write-only": True})
    for i in range(1, 8):
        write(table, i)
        clock.sleep(1)
        if i in (1, 4, 6):
            tags.create_tag(table, f"t{i}")
    for i in range(1, 8):
        snap = table.metadata.snapshot(i)
        table.store.put(paths.snapshot(i), replace(snap, watermark=None if i == 5 else 10 * i).encode())
    for i in (1, 2):
        table.store.delete(paths.snapshot(i))
    table.store.put(paths.EARLIEST, b"3")
    return store


def write(table: Table, key: int) -> None:
    with table.write() as w:
        w.upsert([{"k": key, "v": f"v{key}"}])
        w.commit()


CUT: list[tuple[str, Callable[[Table], object]]] = [
    ("to a snapshot", lambda t: rollback.rollback(t, snapshot=4)),
    ("to an expired tag", lambda t: rollback.rollback(t, tag="t1")),
    ("to the newest", lambda t: rollback.rollback(t, snapshot=7)),
]


@pytest.mark.parametrize(("name", "call"), CUT, ids=[n for n, _ in CUT])
def test_a_cut_off_rollback_reads_as_before_or_after_and_can_be_done_again(
    history: MemoryStore, name: str, call: Callable[[Table], object]
) -> None:
    whole = crashes.clone(history)
    before = crashes.view(history)
    call(crashes.open_table(whole))
    after = crashes.view(whole)
    assert (before["main"] == after["main"]) is (name == "to the newest")
    for what, store in crashes.cut_off(history, call):
        found = crashes.view(store)
        assert found["main"] in (before["main"], after["main"]), what
        call(crashes.open_table(store))
        assert crashes.view(store) == after, what
        assert crashes.files(store) == crashes.files(whole), what


def test_a_table_that_was_cut_off_in_a_rollback_takes_commits(history: MemoryStore) -> None:
    """Nothing that was forgotten comes back under a new snapshot."""
    for what, store in crashes.cut_off(history, lambda t: rollback.rollback(t, snapshot=4), ["die", "die_after"]):
        table = crashes.open_table(store)
        there = crashes.rows(table)
        for i in range(20, 24):
            write(table, i)
        assert crashes.rows(table)[1:] == sorted([*there[1:], *((i, f"v{i}") for i in range(20, 24))]), what


def test_a_cut_off_rollback_as_latest_is_there_or_leaves_nothing(history: MemoryStore) -> None:
    before = crashes.view(history)
    for what, store in crashes.cut_off(history, lambda t: rollback.rollback_as_latest(t, snapshot=4)):
        found = crashes.view(store)
        made = [k for k in found if k.startswith("tag rollback-to-as-latest-4-")]
        if found["main"] == before["main"]:
            assert what.startswith("die") or not made, what
            if what.startswith("fail at"):
                assert crashes.files(store) == crashes.files(history), what
        else:
            assert found["main"] == [(8,), *((i, f"v{i}") for i in range(1, 5))], what
            assert len(made) == 1, what
        assert all(found[k] == before[k] for k in before if k != "main")


# ---- targets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ({"watermark": 45}, 5), ({"watermark": 40}, 5), ({"watermark": 39}, 3), ({"watermark": 59}, 5), ({"watermark": 60}, 6),
        ({"watermark": 99}, 7), ({"watermark": 5}, 3), ({"timestamp_ms": crashes.NOW + 4500}, 5),
        ({"timestamp_ms": crashes.NOW + 4000}, 5), ({"tag": "t4"}, 4), ({"snapshot": 1}, 1),
    ],
)  # fmt: skip
def test_the_target(history: MemoryStore, target: dict[str, int], wanted: int) -> None:
    table = crashes.open_table(crashes.clone(history))
    done = rollback.rollback(table, **target)  # type: ignore[arg-type]
    assert (done.before, done.target, done.now) == (7, wanted, wanted)
    assert crashes.rows(table)[0] == (wanted,)
    assert all(t.snapshot.id <= wanted for t in refs.tags(table.metadata))
    assert table.metadata.earliest_id() == min(wanted, 3)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ({}, BadRequest), ({"snapshot": 3, "tag": "t4"}, BadRequest), ({"snapshot": 2}, NotFound),
        ({"snapshot": 8}, NotFound), ({"tag": "t9"}, NotFound), ({"timestamp_ms": crashes.NOW}, NotFound),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(
    history: MemoryStore, target: dict[str, object], error: type[ShoalError]
) -> None:
    store = crashes.clone(history)
    with pytest.raises(error):
        rollback.rollback(crashes.open_table(store), **target)  # type: ignore[arg-type]
    if "timestamp_ms" not in target:
        with pytest.raises(error):
            rollback.rollback_as_latest(crashes.open_table(store), **target)  # type: ignore[arg-type]
    assert crashes.files(store) == crashes.files(history)


def test_an_empty_table_cannot_go_back() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    table = lake.create_table("d.t", pa.schema([("k", pa.int32())]))
    with pytest.raises(BadRequest, match="nothing to roll back"):
        rollback.rollback(table, snapshot=1)


def test_a_commit_in_between_is_told(history: MemoryStore) -> None:
    store = crashes.clone(history)

    class Busy(PrefixStore):
        def delete(self, path: str) -> None:
            if path == paths.snapshot(7):
                super().put(paths.snapshot(8), store.read(f"d.db/t/{path}").replace(b'"id" : 7', b'"id" : 8'))
            super().delete(path)

    table = Table("d.t", Busy(store, "d.db/t"), crashes.open_table(store).schema)
    with pytest.raises(Conflict, match="snapshot 8 was committed"):
        rollback.rollback(table, snapshot=4)


def test_row_ids_are_never_given_out_twice(history: MemoryStore) -> None:
    store = crashes.clone(history)
    table = crashes.open_table(store)
    for i, rows in ((4, 40), (7, 70)):
        table.store.put(paths.snapshot(i), replace(table.metadata.snapshot(i), next_row_id=rows).encode())
    rollback.rollback_as_latest(table, snapshot=4)
    newest = table.metadata.latest()
    assert newest is not None
    assert (newest.id, newest.next_row_id, newest.commit_kind) == (8, 70, "OVERWRITE")


def test_a_writer_that_was_open_does_not_bring_back_what_was_forgotten(history: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(history))
    with table.write(commit_user="w") as w:
        w.upsert([{"k": 8, "v": "v8"}])
        w.commit()
        rollback.rollback(table, snapshot=4)
        w.upsert([{"k": 9, "v": "v9"}])
        with pytest.raises(ShoalError):
            w.commit()
    assert crashes.rows(table) == [(4,), *((i, f"v{i}") for i in range(1, 5))]
