"""What may be committed on top of what, as Java's ConflictDetection decides it: pure cases, then whole commits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.errors import Conflict, NotFound
from shoal.format.datafile import ADD, COMPACT, DELETE, DataFile, Entry
from shoal.format.index_manifest import IndexEntry
from shoal.store.memory import MemoryStore
from shoal.table.commit import Commit
from shoal.table.conflicts import AlreadyThere, Base, Facts, Spans, WrittenColumns, check
from shoal.table.staged import Content
from tests.table.commits import (
    file,
    globally,
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
KEYED = table()


def add(f: DataFile, partition: bytes = A, bucket: int = 0, total: int = 1) -> Entry:
    return Entry(ADD, partition, bucket, total, f)


def gone(f: DataFile, partition: bytes = A, bucket: int = 0, total: int = 1) -> Entry:
    return Entry(DELETE, partition, bucket, total, f)


def rows(name: str, first: int, count: int, **more: Any) -> DataFile:
    return plain(name, count, first_row_id=first, **more)


KEYS = Facts("t", KEYED.bounds)
FILES = Facts("t", vectors_by_file=True)
EVOLVING = Facts("t", evolution=True)
V, W = vectors("v", A, ["f"]), vectors("w", A, ["f"])
NO_V = V._replace(kind=DELETE)
Delta = tuple[str, list[Entry], list[IndexEntry]]

# (facts, base, base indexes, (kind, delta, delta indexes), part of the message or None)
CASES: dict[str, tuple[Facts, list[Entry], list[IndexEntry], Delta, str | None]] = {
    "new file": (KEYS, [add(file("f", 0, 9))], [], ("APPEND", [add(file("g", 0, 9))], []), None),
    "other bucket count": (KEYS, [add(file("f"))], [], ("APPEND", [add(file("g"), total=2)], []), "has 1 buckets"),
    "other partition": (KEYS, [add(file("f"), B)], [], ("APPEND", [add(file("g"), total=2)], []), None),
    "count in the delta": (
        KEYS, [], [], ("COMPACT", [add(file("f")), add(file("g"), bucket=1, total=2)], []), "has 1 buckets",
    ),
    "overwrite rescales": (KEYS, [add(file("f"))], [], ("OVERWRITE", [gone(file("f")), add(file("g"), total=2)], []), None),
    "added again": (KEYS, [add(file("f"))], [], ("APPEND", [add(file("f"))], []), "there already"),
    "deleted twice": (KEYS, [add(file("f"))], [], ("COMPACT", [gone(file("f")), gone(file("f"))], []), "deleted twice"),
    "not there": (KEYS, [], [], ("COMPACT", [gone(file("f")), add(file("g", level=1))], []), "f is not there any more"),
    "upgrade": (KEYS, [add(file("f", 0, 9))], [], ("COMPACT", [gone(file("f", 0, 9)), add(file("f", 0, 9, level=5))], []), None),
    "upgraded meanwhile": (
        KEYS, [add(file("f", level=5))], [], ("COMPACT", [gone(file("f")), add(file("f", level=5))], []), "there already",
    ),
    "keys meet": (
        KEYS, [add(file("f", 0, 9, level=5))], [], ("COMPACT", [add(file("g", 9, 12, level=5))], []), "level 5 of bucket 0",
    ),
    "keys follow": (KEYS, [add(file("f", 0, 9, level=5))], [], ("COMPACT", [add(file("g", 10, 12, level=5))], []), None),
    "keys of other levels": (KEYS, [add(file("f", 0, 9, level=4))], [], ("COMPACT", [add(file("g", 9, 12, level=5))], []), None),
    "keys of other buckets": (
        KEYS, [add(file("f", 0, 9, level=5))], [], ("COMPACT", [add(file("g", 9, 12, level=5), bucket=1)], []), None,
    ),
    "keys of level 0": (KEYS, [add(file("f", 0, 9))], [], ("APPEND", [add(file("g", 0, 9))], []), None),
    "no key ranges": (
        Facts("t"), [add(file("f", 0, 9, level=5))], [], ("COMPACT", [add(file("g", 9, 12, level=5))], []), None,
    ),
    "first vector": (FILES, [add(plain("f"))], [], ("OVERWRITE", [], [V]), None),
    "first vector, meanwhile another": (FILES, [add(plain("f"))], [V], ("OVERWRITE", [], [W]), "another one"),
    "next vector": (FILES, [add(plain("f"))], [V], ("OVERWRITE", [], [NO_V, W]), None),
    "next vector, meanwhile another": (
        FILES, [add(plain("f"))], [vectors("x", A, ["f"])], ("OVERWRITE", [], [NO_V, W]), "another one",
    ),
    "vector of a file that is gone": (FILES, [], [], ("OVERWRITE", [], [V]), "f, which gets a deletion vector"),
    "file with its vector": (FILES, [add(plain("f"))], [V], ("COMPACT", [gone(plain("f")), add(plain("g"))], [NO_V]), None),
    "file without its vector": (
        FILES, [add(plain("f"))], [V], ("COMPACT", [gone(plain("f")), add(plain("g"))], []), "f is not there any more",
    ),
    "two vectors": (FILES, [add(plain("f"))], [V], ("COMPACT", [gone(plain("f"))], [NO_V, W]), "two deletion vectors"),
    "columns of rows": (EVOLVING, [add(rows("f", 0, 10))], [], ("APPEND", [add(rows("g", 0, 10))], []), None),
    "columns of some rows": (
        EVOLVING, [add(rows("f", 0, 10))], [], ("APPEND", [add(rows("g", 0, 5))], []), "about rows 0 to 4",
    ),
    "blob of some rows": (EVOLVING, [add(rows("f", 0, 10))], [], ("APPEND", [add(rows("g.blob", 0, 5))], []), None),
    "rows not given yet": (EVOLVING, [], [], ("APPEND", [add(rows("g", 30, 5))], []), None),
    "compacted rows": (
        EVOLVING, [add(rows("f", 0, 5)), add(rows("g", 5, 5))], [],
        ("COMPACT", [gone(rows("f", 0, 5)), gone(rows("g", 5, 5)), add(rows("h", 0, 10))], []), None,
    ),
    "compacted rows that moved": (
        EVOLVING, [add(rows("f", 10, 5))], [],
        ("COMPACT", [gone(rows("f", 10, 5)), add(rows("h", 0, 5))], []), "about rows 0 to 4",
    ),
    "compaction meets an update": (
        EVOLVING, [add(rows("f", 0, 5)), add(rows("g", 5, 5)), add(rows("u", 0, 5))], [],
        ("COMPACT", [gone(rows("f", 0, 5)), gone(rows("g", 5, 5)), add(rows("h", 0, 10))], []), "an update and a compaction",
    ),
    "index of rows": (EVOLVING, [add(rows("f", 0, 10), b"\0" * 12)], [], ("APPEND", [], [globally("i", 0, 9)]), None),
    "index of rows that are gone": (
        EVOLVING, [add(rows("f", 0, 5), b"\0" * 12)], [], ("APPEND", [], [globally("i", 0, 9)]), "covers rows 0 to 9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str) -> None:
    facts, base, indexes, (kind, delta, delta_indexes), message = CASES[name]
    content = Content(kind, tuple(delta), (), tuple(delta_indexes))
    if message is None:
        check(facts, Base(base, indexes, 20), content)
    else:
        with pytest.raises(Conflict, match=message):
            check(facts, Base(base, indexes, 20), content)


def test_spans() -> None:
    joined, apart = Spans([(5, 9), (0, 4), (20, 29)], join=True), Spans([(5, 9), (0, 4), (20, 29)], join=False)
    assert joined.hold((0, 9))
    assert not apart.hold((0, 9))
    assert apart.hold((6, 8))
    assert apart.equal((5, 9))
    assert not apart.equal((5, 8))
    assert not joined.hold((25, 30))


def test_written_columns() -> None:
    ids = {0: {"a": 1, "b": 2}, 1: {"z": 1, "b": 2}}
    mine = WrittenColumns([rows("f", 0, 10, write_cols=("a", "_ROW_ID")), rows("g", 20, 5)], ids.__getitem__)
    hits = {
        "same": rows("x", 0, 10, write_cols=("a",)), "some rows": rows("x", 9, 5, write_cols=("a",)),
        "renamed": rows("x", 0, 10, write_cols=("z",))._replace(schema_id=1), "all columns": rows("x", 5, 1),
        "of all columns": rows("x", 24, 9, write_cols=("b",)),
    }  # fmt: skip
    misses = {
        "other column": rows("x", 0, 10, write_cols=("b",)), "other rows": rows("x", 10, 10, write_cols=("a",)),
        "system column": rows("x", 0, 10, write_cols=("_ROW_ID",)), "no rows": plain("x"),
    }  # fmt: skip
    assert {n for n, f in hits.items() if not mine.meet(f)} == set()
    assert {n for n, f in misses.items() if mine.meet(f)} == set()
    assert not WrittenColumns([plain("x")], ids.__getitem__)


# ---- whole commits ---------------------------------------------------------------------------------------


def two() -> tuple[Commit, Commit]:
    store = MemoryStore()
    t = table(store)
    Commit(t, "setup").commit(staged(A, new_files=[file("data-0", 0, 9)]), 1)
    return Commit(t, "x"), Commit(t, "y")


def test_two_streams_append_to_one_bucket_without_a_check() -> None:
    x, y = two()
    x.commit(staged(A, base=1, new_files=[file("data-1", 0, 9)]), 1)
    y.commit(staged(A, base=1, new_files=[file("data-2", 0, 9)]), 1)
    assert names(x.table) == ["data-0@0", "data-1@0", "data-2@0"]


def test_the_slower_of_two_compactions_keeps_its_rows_and_loses_its_compaction() -> None:
    x, y = two()
    old = [file("data-0", 0, 9)]
    x.commit(staged(A, base=1, compact_before=old, compact_after=[file("data-x", 0, 9, level=5)]), 1)
    made = y.commit(
        staged(
            A, base=1, new_files=[file("data-1", 0, 9)], compact_before=old,
            compact_after=[file("data-y", 0, 9, level=5)],
        ),
        1,
    )  # fmt: skip
    assert made.snapshots == (3,)
    assert made.compaction_conflict is not None
    assert "file data-0 is not there any more" in made.compaction_conflict
    assert "the newest snapshot is 3, by y" in made.compaction_conflict
    assert names(x.table) == ["data-1@0", "data-x@5"]
    assert metadata_files(x.table) == named_files(x.table)


def test_a_compaction_into_keys_that_another_one_wrote_is_refused() -> None:
    x, y = two()
    x.commit(staged(A, base=1, new_files=[file("data-1", 5, 12)]), 1)
    x.commit(
        staged(A, base=2, compact_before=[file("data-1", 5, 12)], compact_after=[file("data-x", 5, 12, level=5)]), 2
    )
    with pytest.raises(Conflict, match="level 5 of bucket 0 was rewritten"):
        y.commit(
            staged(A, base=1, compact_before=[file("data-0", 0, 9)], compact_after=[file("data-y", 0, 9, level=5)]), 1
        )


@pytest.mark.parametrize("base", [0, 1])
def test_a_stream_with_an_old_bucket_count_is_refused(base: int) -> None:
    """The partition was rescaled after the stream looked: its keys would be split over two layouts."""
    x, y = two()
    x.overwrite(staged(A, total=4, new_files=[file("data-1", 0, 9)]), 1)
    with pytest.raises(Conflict, match="has 4 buckets and these files were written for 1"):
        y.commit(staged(A, base=base, new_files=[file("data-2")]), 1)
    y.commit(staged(B, base=base, new_files=[file("data-3")]), 2)
    assert names(x.table) == ["data-1@5", "data-3@0"]


def test_a_checked_commit_refuses_files_that_are_there_and_leaves_them_alone() -> None:
    x, _ = two()
    x.table.store.put("p=a/bucket-0/data-0", b"rows")
    with pytest.raises(AlreadyThere):
        x.commit(staged(A, new_files=[file("data-0", 0, 9)]), 1, check=True)
    assert x.table.store.read("p=a/bucket-0/data-0") == b"rows"


def test_duplicates_are_left_out_where_the_table_says_so() -> None:
    t = table(commit__discard_duplicate_files="true")
    c = Commit(t, "job")
    c.commit(staged(A, new_files=[file("data-0")]), 1)
    c.commit(staged(A, new_files=[file("data-0"), file("data-1")]), 2)
    assert [s.delta_record_count for s in snapshots(t)] == [1, 1]
    assert names(t) == ["data-0@0", "data-1@0"]


def test_an_update_meets_another_of_the_same_columns() -> None:
    t = table(keyed=False, parts=False, row_tracking__enabled="true", data_evolution__enabled="true")
    x, y = Commit(t, "x"), Commit(t, "y")
    empty = b"\0" * 12
    x.commit(staged(total=-1, new_files=[plain("data-0", 10)]), 1)
    assert t.metadata.live(t.metadata.latest()).column("first_row_id").to_pylist() == [0]

    def update(name: str, column: str) -> Any:
        return staged(empty, total=-1, new_files=[rows(name, 0, 10, write_cols=(column,))], base=1)

    x.commit(update("data-1", "v"), 2, rows_from=1, operation="UPDATE")
    y.commit(update("data-2", "k"), 2, rows_from=1, operation="UPDATE")
    with pytest.raises(Conflict, match="changed the same columns"):
        y.commit(update("data-3", "v"), 3, rows_from=1)
    assert [(s.commit_kind, s.next_row_id, s.operation) for s in snapshots(t)] == [
        ("APPEND", 10, None), ("APPEND", 10, "UPDATE"), ("APPEND", 10, "UPDATE"),
    ]  # fmt: skip


def test_a_compaction_in_the_way_is_undone_where_the_catalog_can() -> None:
    undone = []
    t = table(keyed=False, deletion_vectors__enabled="true")
    x = Commit(t, "x")
    x.commit(staged(A, total=-1, new_files=[plain("data-0", 4)]), 1)
    x.commit(staged(A, total=-1, base=1, compact_before=[plain("data-0", 4)], compact_after=[plain("data-1", 4)]), 2)

    def roll_back(latest: Any) -> bool:
        undone.append(latest.id)
        t.rollback(snapshot=latest.id - 1)
        return True

    deletes = staged(A, total=-1, base=1, new_indexes=[vectors("v", A, ["data-0"])])
    with pytest.raises(Conflict, match="data-0, which gets a deletion vector"):
        Commit(t, "y").commit(deletes, 1)
    Commit(t, "y", roll_back=roll_back).commit(deletes, 1)
    assert undone == [2]
    assert [s.commit_kind for s in snapshots(t)] == ["APPEND", "OVERWRITE"]


STRICT: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "append, append": ({"new_files": [file("data-1")]}, {"new_files": [file("data-2")]}, True),
    "append, overwrite": ({"new_files": [file("data-1")]}, {"deleted_files": [file("data-0", 0, 9)]}, False),
    "compaction, append": (
        {"compact_before": [file("data-0", 0, 9)], "compact_after": [file("data-0", 0, 9, level=5)]},
        {"new_files": [file("data-2")]}, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRICT)
@pytest.mark.parametrize("partition", [A, B])
def test_strict_mode(name: str, partition: bytes) -> None:
    theirs, mine, allowed = STRICT[name]
    x, _ = two()
    options = {**x.table.schema.options, "commit.strict-mode.last-safe-snapshot": "1"}
    strict = Commit(x.table.with_schema(replace(x.table.schema, options=options)), "y")
    x.commit(staged(A, base=1, **theirs), 1)
    change = staged(partition, base=1, **mine)
    if allowed or (partition == B and "deleted_files" not in mine):
        strict.commit(change, 1)
        return
    with pytest.raises(Conflict, match="changed the same partition" if partition == A else "not there any more"):
        strict.commit(change, 1)


# ---- recovery --------------------------------------------------------------------------------------------


def test_recovery_commits_what_is_new_and_leaves_out_the_rest() -> None:
    x, _ = two()
    first, second = staged(A, new_files=[file("data-1")]), staged(A, base=1, new_files=[file("data-2")])
    for name in ("data-1", "data-2"):
        x.table.store.put(f"p=a/bucket-0/{name}", b"")
    x.commit(first, 5)
    made = Commit(x.table, "x").filter_and_commit([(6, second), (5, first)])
    assert [(m.replayed, m.snapshots) for m in made] == [(True, ()), (False, (3,))]
    again = Commit(x.table, "x").filter_and_commit([(5, first), (6, second)])
    assert [m.replayed for m in again] == [True, True]
    assert names(x.table) == ["data-0@0", "data-1@0", "data-2@0"]


def test_recovery_needs_its_files_and_keeps_them() -> None:
    x, _ = two()
    x.table.store.put("p=a/bucket-0/data-1", b"")
    with pytest.raises(NotFound, match="cannot recover, file p=a/bucket-0/data-2 of an uncommitted checkpoint is gone"):
        x.filter_and_commit([(1, staged(A, new_files=[file("data-1"), file("data-2")]))])
    assert x.table.store.size("p=a/bucket-0/data-1") == 0
    assert len(snapshots(x.table)) == 1


def test_recovery_of_a_compaction_that_another_job_beat_drops_it() -> None:
    x, y = two()
    for name in ("data-0", "data-y"):
        x.table.store.put(f"p=a/bucket-0/{name}", b"")
    old, new = [file("data-0", 0, 9)], [file("data-y", 0, 9, level=5, file_source=COMPACT)]
    x.commit(staged(A, base=1, compact_before=old, compact_after=[file("data-x", 0, 9, level=5)]), 1)
    with pytest.raises(Conflict, match="is not there any more"):
        y.filter_and_commit([(1, staged(A, base=1, compact_before=old, compact_after=new))])
    left = {i.path for i in x.table.store.list("p=a")}
    assert left == {"p=a/bucket-0/data-0"}
