"""What a snapshot holds: delta, changelog, index files, and their counts, as Java's FileStoreCommitImpl makes them."""

from __future__ import annotations

import pytest

from shoal.errors import Conflict
from shoal.format.datafile import ADD, DELETE
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.table.commit import Commit
from shoal.table.index_entries import combined
from tests.table.commits import (
    file,
    globally,
    hashes,
    indexes,
    metadata_files,
    named_files,
    names,
    part,
    plain,
    snapshots,
    staged,
    table,
    vectors,
)  # fmt: skip

A, B = part("a"), part("b")


def test_append_and_compaction_make_two_snapshots_with_their_own_changelogs_and_indexes() -> None:
    t = table()
    made = Commit(t, "job").commit(
        staged(
            A,
            new_files=[file("data-1", 0, 4, rows=5)], changelog_files=[file("changelog-1", 0, 4, rows=7)],
            new_indexes=[hashes("index-1", A)],
            compact_before=[file("data-1", 0, 4, rows=5)], compact_after=[file("data-2", 0, 4, level=5, rows=3)],
            compact_changelog=[file("changelog-2", 0, 4, rows=2)], compact_new_indexes=[vectors("index-2", A, ["x"])],
        ),
        3,
    )  # fmt: skip
    assert made.snapshots == (1, 2)
    assert made.rows == 5
    first, second = snapshots(t)
    assert [(s.commit_kind, s.commit_identifier, s.commit_user) for s in (first, second)] == [
        ("APPEND", 3, "job"), ("COMPACT", 3, "job"),
    ]  # fmt: skip
    assert [(s.total_record_count, s.delta_record_count, s.changelog_record_count) for s in (first, second)] == [
        (5, 5, 7), (3, -2, 2),
    ]  # fmt: skip
    for s, name in ((first, "changelog-1"), (second, "changelog-2")):
        assert s.changelog_manifest_list is not None
        assert s.changelog_manifest_list_size == t.store.size(f"manifest/{s.changelog_manifest_list}")
        (meta,) = t.metadata.changelog(s)
        assert [(e.kind, e.file.file_name) for e in entries_of(t.metadata.entries(meta))] == [(ADD, name)]
    assert first.index_manifest != second.index_manifest
    assert indexes(t) == ["index-1", "index-2"]
    assert names(t) == ["data-2@5"]
    assert metadata_files(t) == named_files(t)


def test_without_changes_the_index_manifest_is_the_same_file() -> None:
    t = table()
    c = Commit(t, "job")
    c.commit(staged(A, new_files=[file("data-1")], new_indexes=[hashes("index-1", A)]), 1)
    c.commit(staged(A, new_files=[file("data-2")]), 2)
    first, second = snapshots(t)
    assert first.index_manifest == second.index_manifest
    assert second.changelog_manifest_list is None
    assert second.changelog_record_count is None


@pytest.mark.parametrize("form", ["avro", "orc", "parquet"])
def test_manifests_of_every_format(form: str) -> None:
    t = table(manifest__format=form, manifest__merge_min_count=2)
    c = Commit(t, "job")
    for i in range(3):
        c.commit(staged(A, new_files=[file(f"data-{i}")], new_indexes=[hashes(f"index-{i}", A)]), i)
    start = {"avro": b"Obj", "orc": b"ORC", "parquet": b"PAR1"}[form]
    assert {t.store.read(f"manifest/{n}")[: len(start)] for n in named_files(t)} == {start}
    assert (names(t), indexes(t)) == (["data-0@0", "data-1@0", "data-2@0"], ["index-2"])
    t.rollback(snapshot=2)
    assert names(t) == ["data-0@0", "data-1@0"]


def test_a_changelog_or_an_index_alone_is_a_commit() -> None:
    t = table()
    assert Commit(t, "job").commit(staged(A, changelog_files=[file("changelog-1", rows=4)]), 1).snapshots == (1,)
    assert Commit(t, "job").commit(staged(A, new_indexes=[hashes("index-1", A)]), 2).snapshots == (2,)
    assert [(s.commit_kind, s.delta_record_count, s.changelog_record_count) for s in snapshots(t)] == [
        ("APPEND", 0, 4), ("APPEND", 0, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"deleted_files": [plain("data-1", 5)], "new_files": [plain("data-2", 4)]},
     {"new_indexes": [vectors("index-1", A, ["data-1"])]}],
)  # fmt: skip
def test_what_takes_rows_away_is_an_overwrite(change: dict[str, object]) -> None:
    t = table(keyed=False, deletion_vectors__enabled="true")
    c = Commit(t, "job")
    c.commit(staged(A, total=-1, new_files=[plain("data-1", 5)]), 1)
    c.commit(staged(A, total=-1, base=1, **change), 2)
    assert [s.commit_kind for s in snapshots(t)] == ["APPEND", "OVERWRITE"]


def test_abort_deletes_data_changelog_and_index_files_but_not_what_was_there() -> None:
    t = table()
    kept = {"data-old", "data-up"}
    s = staged(
        A,
        new_files=[file("data-1", extra_files=("data-1.index",))], changelog_files=[file("changelog-1")],
        new_indexes=[hashes("index-1", A)],
        compact_before=[file("data-old"), file("data-up")],
        compact_after=[file("data-up", level=5), file("data-2", level=5)], compact_changelog=[file("changelog-2")],
        compact_new_indexes=[hashes("index-2", A)], compact_deleted_indexes=[hashes("index-0", A, kind=DELETE)],
    )  # fmt: skip
    data = ["data-old", "data-up", "data-1", "data-1.index", "data-2", "changelog-1", "changelog-2"]
    for name in data:
        t.store.put(f"p=a/bucket-0/{name}", b"")
    for name in ("index-0", "index-1", "index-2"):
        t.store.put(f"index/{name}", b"")
    Commit(t, "job").abort(s)
    left = {i.path.rsplit("/", 1)[-1] for i in t.store.list("") if "schema" not in i.path}
    assert left == kept | {"index-0"}


# ---- index entries ---------------------------------------------------------------------------------------

CASES: dict[str, tuple[list[IndexEntry], list[IndexEntry], bool, list[str] | str]] = {
    "hash: one a bucket": ([hashes("a", A), hashes("b", B)], [hashes("c", A)], True, ["b", "c"]),
    "hash: deletes first": ([hashes("a", A)], [hashes("c", A), hashes("a", A, kind=DELETE)], False, ["c"]),
    "hash and vectors of a bucket": ([hashes("a", A)], [vectors("v", A, ["x"])], False, ["a", "v"]),
    "vectors: one a bucket": ([vectors("v", A, ["x"])], [vectors("w", A, ["y"])], False, ["w"]),
    "vectors by file: several": ([vectors("v", A, ["x"])], [vectors("w", A, ["y"])], True, ["v", "w"]),
    "vectors by file: replaced": (
        [vectors("v", A, ["x"])], [vectors("v", A, ["x"], kind=DELETE), vectors("w", A, ["x", "y"])], True, ["w"],
    ),
    "vectors by file: twice the file": ([vectors("v", A, ["x"])], [vectors("w", A, ["x"])], True, "already has a"),
    "vectors by file: twice the index": ([vectors("v", A, ["x"])], [vectors("v", A, ["y"])], True, "added twice"),
    "vectors by file: not there": ([], [vectors("v", A, ["x"], kind=DELETE)], True, "not there any more"),
    "vectors by file: another": (
        [vectors("v", A, ["x"])], [vectors("v", A, ["y"], kind=DELETE)], True, "of data file y is not there",
    ),
    "global: beside": ([globally("g", 0, 9)], [globally("h", 10, 19)], True, ["g", "h"]),
    "global: other field": ([globally("g", 0, 9)], [globally("h", 5, 19, field=2)], True, ["g", "h"]),
    "global: overlap": ([globally("g", 0, 9)], [globally("h", 5, 19)], True, "meets index file g of rows 0 to 9"),
    "global: other extra fields": (
        [globally("g", 0, 9)], [globally("h", 10, 19, extra_field_ids=(3,))], True, "meets index file g",
    ),
    "global: overlap with sources": (
        [globally("g", 0, 9, source_meta=b"1")], [globally("h", 5, 19, source_meta=b"2")], True, ["g", "h"],
    ),
    "global: replaced": ([globally("g", 0, 9)], [globally("h", 0, 9), globally("g", 0, 9, kind=DELETE)], True, ["h"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_index_entries_after_a_commit(name: str) -> None:
    before, changes, by_file, result = CASES[name]
    if isinstance(result, str):
        with pytest.raises(Conflict, match=result):
            combined(before, changes, by_file=by_file)
    else:
        after = combined(before, changes, by_file=by_file)
        assert sorted(e.file_name for e in after) == result
        assert {e.kind for e in after} == {ADD}
