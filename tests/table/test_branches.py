# SPDX-License-Identifier: Apache-2.0
"""Making, moving and deleting branches: as Java does it, file by file; crashes; writes on a branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import crashes
import pyarrow as pa
import pytest
import refs_truth as truth

from shoal import BadRequest, NotFound, ShoalError
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.store.memory import MemoryStore
from shoal.table import branches, refs, rollback, tags
from shoal.table.table import Table


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return truth.unpack(tmp_path_factory.mktemp("refs"))


@pytest.mark.parametrize("name", ["t4", "u1", "u2", "u3"])
def test_every_file_is_as_java_leaves_it(warehouse: Path, tmp_path: Path, name: str) -> None:
    theirs, ours = truth.replay(warehouse, name, tmp_path)
    assert ours == theirs


# ---- crashes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forked() -> MemoryStore:
    """Main with snapshots 1 to 4 and a tag on 2 and on 4; branch `short` with 2 and 3, `long` with 2 to 6."""
    store = MemoryStore(clock=ManualClock(crashes.NOW))
    lake = Lake(store, clock=ManualClock(crashes.NOW), scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1})
    for i in range(1, 5):
        write(table, i, "main")
    tags.create_tag(table, "base", snapshot=2)
    tags.create_tag(table, "late")
    for name, commits in (("short", 1), ("long", 4)):
        side = branches.create_branch(table, name, tag="base")
        for i in range(commits):
            write(side, 10 + i, name)
        tags.create_tag(side, f"on-{name}")
    return store


def write(table: Table, key: int, value: str) -> None:
    with table.write() as w:
        w.upsert([{"k": key, "v": value}])
        w.commit()


def again(call: Callable[[Table], object], table: Table, done: type[ShoalError]) -> None:
    """Do it again; when it was done already it is refused."""
    try:
        call(table)
    except done:
        pass


CUT: list[tuple[str, Callable[[Table], object], type[ShoalError]]] = [
    ("create", lambda t: branches.create_branch(t, "new"), BadRequest),
    ("create from tag", lambda t: branches.create_branch(t, "new", tag="late"), BadRequest),
    ("delete", lambda t: branches.delete_branch(t, "short"), NotFound),
    ("rename", lambda t: branches.rename_branch(t, "long", "longer"), NotFound),
]


@pytest.mark.parametrize(("name", "call", "done"), CUT, ids=[n for n, _, _ in CUT])
def test_a_cut_off_call_leaves_the_old_or_the_new_and_can_be_done_again(
    forked: MemoryStore, name: str, call: Callable[[Table], object], done: type[ShoalError]
) -> None:
    before = crashes.view(forked)
    whole = crashes.clone(forked)
    call(crashes.open_table(whole))
    after = crashes.view(whole)
    assert before != after
    seen = 0
    # nothing here catches a failure, so a failure before a change is as good as a death
    for what, store in crashes.cut_off(forked, call, ["die"] if name == "rename" else ["die", "fail_after"]):
        assert crashes.view(store) in (before, after), what
        again(call, crashes.open_table(store), done)
        assert crashes.view(store) == after, what
        left = crashes.files(store)
        leftover = left.keys() - crashes.files(whole).keys()
        assert not leftover or {p.rpartition("/")[2] for p in leftover} == {branches.UNFINISHED}, what
        seen += 1
    assert seen >= 6


@pytest.mark.parametrize("name", ["short", "long"])
def test_a_cut_off_fast_forward_reads_as_main_or_as_the_branch(forked: MemoryStore, name: str) -> None:
    def call(t: Table) -> None:
        branches.fast_forward(t, name)

    before = crashes.view(forked)
    whole = crashes.clone(forked)
    call(crashes.open_table(whole))
    after = crashes.view(whole)
    assert after["main"] == before[f"branch {name}"]
    assert "tag late" not in after and f"tag on-{name}" in after
    for what, store in crashes.cut_off(forked, call, ["die", "fail_after"] if name == "short" else ["die"]):
        found = crashes.view(store)
        assert found["main"] in (before["main"], after["main"]), what
        assert {k: v for k, v in found.items() if k.startswith("branch")} == {
            k: v for k, v in before.items() if k.startswith("branch")
        }
        call(crashes.open_table(store))
        assert crashes.view(store) == after, what
        assert crashes.files(store) == crashes.files(whole), what


def test_half_a_branch_can_be_deleted_and_made_again(forked: MemoryStore) -> None:
    for _, store in crashes.cut_off(forked, lambda t: branches.create_branch(t, "new", tag="late"), ["die"]):
        table = crashes.open_table(store)
        if crashes.files(store) != crashes.files(forked):
            branches.delete_branch(table, "new")
        assert crashes.files(store) == crashes.files(forked)
        side = branches.create_branch(table, "new", tag="base")
        assert crashes.rows(side) == [(2,), (1, "main"), (2, "main")]


def test_a_name_that_was_renamed_away_can_be_used_again(forked: MemoryStore) -> None:
    """The mark of an unfinished rename must not hide the renamed branch once its old name is taken again."""

    def rename(t: Table) -> object:
        return branches.rename_branch(t, "long", "longer")

    wanted = crashes.view(forked)["branch long"]
    for what, store in crashes.cut_off(forked, rename, ["die"]):
        table = crashes.open_table(store)
        if branches.unfinished(table.store, "long") or "long" not in refs.branch_names(table.store):
            branches.create_branch(table, "long")
            assert not branches.unfinished(table.store, "longer"), what
            assert crashes.rows(table.branch("longer")) == wanted, what
            assert crashes.rows(table.branch("long")) == [], what


# ---- writing on a branch ---------------------------------------------------------------------------------


def test_a_branch_is_written_compacted_and_tagged_beside_main(forked: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(forked))
    main = crashes.rows(table)
    side = table.branch("short")
    for i in range(4):
        write(side, 20 + i, "more")
    side.maintain.compact(full=True)
    write(side, 1, "changed")
    assert crashes.rows(side)[1:] == [
        (1, "changed"), (2, "main"), (10, "short"), (20, "more"), (21, "more"), (22, "more"), (23, "more"),
    ]  # fmt: skip
    assert crashes.rows(table) == main
    tags.create_tag(side, "here")
    assert refs.tag_names(side.metadata) == ["base", "here", "on-short"]
    assert refs.tag_names(table.metadata) == ["base", "late"]
    files = {p for p in crashes.files(table.store) if p.startswith("branch/branch-short/")}  # type: ignore[arg-type]
    assert {p.split("/")[2] for p in files} == {"schema", "snapshot", "tag"}
    rollback.rollback(side, tag="base")
    assert crashes.rows(side) == [(2,), (1, "main"), (2, "main")]
    assert crashes.rows(table) == main


def test_a_branch_of_a_branch_is_made_from_its_tag(forked: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(forked))
    deep = branches.create_branch(table.branch("long"), "deep", tag="on-long")
    assert crashes.rows(deep) == crashes.rows(table.branch("long"))
    branches.fast_forward(table.branch("short"), "deep")
    assert crashes.rows(table.branch("short")) == crashes.rows(deep)
    assert crashes.rows(table) == [(4,), (1, "main"), (2, "main"), (3, "main"), (4, "main")]


def test_a_fast_forward_forgets_schemas_that_were_cached(forked: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(forked))
    side = table.branch("long")
    wider = replace(table.schema, id=1, fields=(*table.schema.fields, replace(table.schema.fields[1], id=2, name="w")))
    other = replace(table.schema, id=1, fields=(*table.schema.fields, replace(table.schema.fields[1], id=2, name="x")))
    side.store.put(paths.schema(1), wider.encode())
    write(table.branch("long"), 30, "wide")
    table.store.put(paths.schema(1), other.encode())
    assert table.metadata.schema(1).names[-1] == "x"
    branches.fast_forward(table, "long")
    assert table.metadata.schema(1).names[-1] == "w"


# ---- guards ----------------------------------------------------------------------------------------------


def test_what_is_refused(forked: MemoryStore) -> None:
    table = crashes.open_table(crashes.clone(forked))
    before = crashes.files(table.store)  # type: ignore[arg-type]
    for name in ("main", "", " ", "12", "a/b", ".x", "long/schema"):
        with pytest.raises(BadRequest):
            branches.create_branch(table, name)
        with pytest.raises((BadRequest, NotFound)):
            branches.rename_branch(table, "long", name)
        with pytest.raises((BadRequest, NotFound)):
            branches.delete_branch(table, name)
    with pytest.raises(NotFound, match="no tag 'nowhere'"):
        branches.create_branch(table, "new", tag="nowhere")
    with pytest.raises(BadRequest, match="'long' already exists"):
        branches.rename_branch(table, "short", "long")
    with pytest.raises(NotFound) as err:
        branches.delete_branch(table, "lond")
    assert err.value.hint == "did you mean 'long'?"
    for name in ("main", "short", " "):
        with pytest.raises(BadRequest, match="cannot fast-forward"):
            branches.fast_forward(table.branch("short"), name)
    assert branches.create_branch(table, "long", ignore_if_exists=True).name == "d.t$branch_long"
    assert crashes.files(table.store) == before  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["scan.fallback-branch", "scan.primary-branch"])
def test_a_branch_that_reads_depend_on_is_not_deleted(forked: MemoryStore, key: str) -> None:
    table = crashes.open_table(crashes.clone(forked))
    bound = table.with_schema(replace(table.schema, options={**table.schema.options, key: "long"}))
    with pytest.raises(BadRequest, match=f"in use by option {key}"):
        branches.delete_branch(bound, "long")
    branches.delete_branch(bound, "short")


def test_the_folder_goes_with_the_branch(tmp_path: Path, warehouse: Path) -> None:
    table = truth.open_copy(warehouse, "u", tmp_path)
    for name in refs.branch_names(table.store):
        branches.delete_branch(table, name)
    assert list((tmp_path / "d.db" / "t" / "branch").iterdir()) == []
