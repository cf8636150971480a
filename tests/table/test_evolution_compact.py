# SPDX-License-Identifier: Apache-2.0
"""Tables whose columns lie in several files are compacted: rows and row ids stay, files and deletion vectors move."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from commits import globally, lake

from shoal.errors import Conflict, Unsupported
from shoal.format.blob import Descriptor
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.table import maintain
from shoal.table.blob_writer import BlobFiles
from shoal.table.commit import Commit
from shoal.table.staged import BucketChanges, Staged
from shoal.table.table import Table
from tests.faults.walk import left_over

COLUMNS = pa.schema([("p", pa.string()), ("id", pa.int32()), ("v", pa.string()), ("n", pa.int64())])
BLOBS = pa.schema([("id", pa.int32()), ("a", pa.binary()), ("b", pa.binary()), ("n", pa.string())])
WIDE = {
    "bucket": "-1",
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "compaction.min.file-num": "2",
}
TRACKED = ["_ROW_ID", "_SEQUENCE_NUMBER"]


def table(store: Any = None, *, parts: bool = False, schema: pa.Schema = COLUMNS, **options: str) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    made = lake(store or MemoryStore()).create_table(
        "d.t", schema, partition_by=["p"] if parts else [], options={**WIDE, **named}
    )
    return made


def add(t: Table, start: int, stop: int) -> None:
    with t.write() as w:
        w.append([{"p": "ab"[i % 2], "id": i, "v": f"v{i}", "n": i} for i in range(start, stop)])
        w.commit()


def put(t: Table, rows: list[dict[str, Any]]) -> None:
    with t.write() as w:
        w.append(rows)
        w.commit()


def files(t: Table) -> list[tuple[Any, ...]]:
    """(first row id, rows, least and greatest sequence number, columns) of each live file."""
    found = [e.file for e in entries_of(t.metadata.live(t.metadata.latest()))]
    return sorted(
        ((f.first_row_id, f.row_count, f.min_sequence, f.max_sequence, f.write_cols) for f in found), key=repr
    )


def held(t: Table, *columns: str) -> list[dict[str, Any]]:
    names = [*t.schema.names, "_ROW_ID"] if not columns else list(columns)
    return sorted(t.scan(columns=names).to_arrow().to_pylist(), key=lambda r: r["_ROW_ID"])


def vectors(t: Table) -> list[IndexEntry]:
    newest = t.metadata.latest()
    return [] if newest.index_manifest is None else list(t.metadata.index_entries(newest.index_manifest))


def test_changed_columns_and_neighbours_become_one_file() -> None:
    t = table()
    add(t, 0, 10)
    add(t, 10, 15)
    t.update({"n": pc.add(pc.field("n"), 100)}, where="id IN (3, 12)")
    t.update({"v": "x"}, where="id = 4")
    before = held(t)
    planned = t.maintain.compact(dry_run=True)
    assert [(p.files, p.reason) for p in planned.planned] == [(5, "5 files of rows that follow each other")]
    done = t.maintain.compact()
    assert (done.snapshot, done.files_before, done.files_after) == (5, 5, 1)
    assert files(t) == [(0, 15, 1, 4, None)]
    assert held(t) == before
    assert {r["_SEQUENCE_NUMBER"] for r in held(t, *TRACKED)} == {4}
    newest = t.metadata.latest()
    assert (newest.commit_kind, newest.next_row_id, newest.total_record_count) == ("COMPACT", 15, 15)
    assert t.maintain.compact().planned == ()
    # the file takes part in what follows
    t.update({"n": 1}, where="id = 14")
    add(t, 15, 20)
    before = held(t)
    t.maintain.compact()
    assert files(t) == [(0, 20, 1, 7, None)]
    assert held(t) == before
    assert before[14]["n"] == 1


def test_fewer_files_than_asked_and_gaps_are_left_alone() -> None:
    t = table(compaction__min__file_num="3")
    add(t, 0, 10)
    add(t, 10, 20)
    assert t.maintain.compact(full=True).planned == ()
    parted = table(parts=True)
    add(parted, 0, 10)
    add(parted, 10, 20)  # the ids of a partition do not follow each other
    assert parted.maintain.compact().planned == ()


def test_partitions_are_chosen() -> None:
    t = table(parts=True)
    add(t, 0, 10)
    t.update({"v": "y"}, where="id < 4")
    before = held(t)
    done = t.maintain.compact(where="p = 'a'")
    assert [p.partition for p in done.planned] == ["p=a"]
    assert files(t) == [(0, 5, 1, 1, None), (0, 5, 2, 2, ("v",)), (5, 5, 1, 2, None)]  # b comes first, as in Java
    assert held(t) == before


def test_columns_that_came_and_went() -> None:
    t = table()
    add(t, 0, 5)
    t = t.alter(add={"extra": "INT"}, rename={"v": "w"})
    with t.write() as w:
        w.append([{"p": "a", "id": i, "w": "new", "n": i, "extra": i} for i in range(5, 9)])
        w.commit()
    t.update({"extra": 7}, where="id = 2")
    t = t.alter(drop=["n"])
    before = held(t)
    t.maintain.compact()
    assert [f[:2] for f in files(t)] == [(0, 9)]
    assert held(t) == before
    assert [r["extra"] for r in before] == [None, None, 7, None, None, 5, 6, 7, 8]


@pytest.mark.parametrize("bits64", ["false", "true"])
def test_deleted_rows_stay_and_their_marks_move(bits64: str) -> None:
    t = table(deletion_vectors__enabled="true", deletion_vectors__bitmap64=bits64)
    for start in (0, 10, 20):
        add(t, start, start + 10)
    t.delete("id IN (0, 13, 29)")
    t.update({"v": "y"}, where="id IN (1, 14)")
    before = held(t)
    (marks,) = vectors(t)
    t.maintain.compact()
    assert files(t) == [(0, 30, 1, 5, None)]
    (moved,) = vectors(t)
    assert moved.file_name != marks.file_name
    assert [r.cardinality for r in moved.dv_ranges or ()] == [3]
    assert held(t) == before
    assert len(before) == 27
    t.delete("id = 2")
    assert [r["id"] for r in held(t)] == [r["id"] for r in before if r["id"] != 2]


def test_marks_of_files_that_stay_are_kept() -> None:
    t = table(parts=True, deletion_vectors__enabled="true")
    add(t, 0, 20)
    add(t, 20, 40)
    t.delete("id IN (1, 2, 21, 22, 30)")
    t.update({"v": "y"}, where="id IN (4, 24)")
    before = held(t)
    t.maintain.compact(partitions=[{"p": "a"}])
    assert [f[0] for f in files(t)] == [0, 10, 20, 30]
    assert held(t) == before
    t.update({"v": "z"}, where="id = 5")
    before = held(t)
    t.maintain.compact()
    assert held(t) == before
    assert {r["v"] for r in before if r["id"] in (4, 24)} == {"y"}


def test_rows_may_get_new_ids_when_deleted_ones_go() -> None:
    t = table(
        deletion_vectors__enabled="true",
        data_evolution__compaction__rewrite_row_ids="true",
        compaction__min__file_num="9",
    )
    add(t, 0, 10)
    add(t, 10, 20)
    t.delete("id IN (0, 11)")
    t.update({"v": "y"}, where="id IN (1, 12)")
    index = globally("index-1", 0, 9)
    Commit(t, "indexer", t.rng).commit(Staged((BucketChanges(index.partition, 0, -1, new_indexes=(index,)),)), 1)
    before = [{k: v for k, v in r.items() if k != "_ROW_ID"} for r in held(t)]
    done = t.maintain.compact()
    assert (done.files_before, done.files_after) == (4, 1)
    assert files(t) == [(20, 18, done.snapshot, done.snapshot, None)]
    assert vectors(t) == []
    after = held(t)
    assert [r.pop("_ROW_ID") for r in after] == list(range(20, 38))
    assert after == before
    assert t.metadata.latest().next_row_id == 38
    assert t.maintain.compact().planned == ()


def test_a_range_without_rows_left_vanishes() -> None:
    t = table(deletion_vectors__enabled="true", data_evolution__compaction__rewrite_row_ids="true")
    add(t, 0, 4)
    t.delete("id >= 0")
    t.maintain.compact()
    assert (files(t), vectors(t), held(t)) == ([], [], [])
    add(t, 4, 6)
    assert [r["_ROW_ID"] for r in held(t)] == [4, 5]


# ---- blobs


def blob_rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "a": None if i % 3 == 2 else b"a" * i, "b": b"" if i % 2 else b"blob %d" % i, "n": f"n{i}"}
        for i in range(start, stop)
    ]


def blob_table(**options: str) -> Table:
    return table(schema=BLOBS, blob_field="a,b", **options)


def test_blobs_are_not_touched_unless_asked() -> None:
    t = blob_table()
    put(t, blob_rows(0, 5))
    put(t, blob_rows(5, 8))
    before = held(t)
    t.maintain.compact()
    assert [f for f in files(t) if f[4] == ("id", "n")] == [(0, 8, 1, 2, ("id", "n"))]
    assert sum(f[4] in (("a",), ("b",)) for f in files(t)) == 4
    assert held(t) == before
    assert t.maintain.compact().planned == ()


def test_blobs_of_each_column_become_one_file() -> None:
    t = blob_table(blob_compaction__enabled="true", deletion_vectors__enabled="true")
    put(t, blob_rows(0, 5))
    put(t, blob_rows(5, 8))
    t.update({"a": pa.scalar(b"changed")}, where="id = 6")
    t.update({"a": pa.scalar(None, pa.binary())}, where="id IN (1, 3)")
    t.delete("id = 2")
    before = held(t)
    assert len(files(t)) == 8
    t.maintain.compact()
    # versions of the same rows become one file, within their range of rows
    assert files(t) == [
        (0, 5, 1, 4, ("a",)), (0, 8, 1, 2, ("b",)), (0, 8, 1, 2, ("id", "n")), (5, 3, 2, 3, ("a",)),
    ]  # fmt: skip
    assert held(t) == before
    assert [r["a"] for r in before if r["id"] in (1, 3, 6)] == [None, None, b"changed"]
    t.maintain.compact()  # now they are neighbours
    assert files(t) == [(0, 8, 1, 2, ("b",)), (0, 8, 1, 2, ("id", "n")), (0, 8, 1, 4, ("a",))]
    assert held(t) == before
    assert t.maintain.compact().planned == ()


def test_blobs_alone_when_their_rows_stay() -> None:
    t = blob_table(blob_compaction__enabled="true", compaction__min__file_num="5", blob__target_file_size="60 b")
    put(t, blob_rows(0, 9))
    pieces = len(files(t))
    t.update({"b": pa.scalar(b"changed")}, where="id IN (0, 8)")
    before = held(t)
    t.maintain.compact()
    assert len(files(t)) < pieces
    assert [f for f in files(t) if f[4] == ("id", "n")] == [(0, 9, 1, 1, ("id", "n"))]
    assert held(t) == before


def test_values_that_look_like_references_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a blob file holds is copied as it is: such a value is bytes to Java as well."""
    t = blob_table(blob_compaction__enabled="true")
    with monkeypatch.context() as patched:
        patched.setattr(BlobFiles, "_check", lambda *_: None)
        put(t, [{"id": 0, "a": Descriptor("file:/x", 0, 9).encode(), "b": b"", "n": "n"}])
        put(t, blob_rows(1, 3))
    before = held(t)
    t.maintain.compact()
    assert [f[:2] for f in files(t)] == [(0, 3)] * 3
    assert held(t) == before


def test_rows_with_blobs_get_new_ids() -> None:
    t = blob_table(deletion_vectors__enabled="true", data_evolution__compaction__rewrite_row_ids="true")
    put(t, blob_rows(0, 5))
    put(t, blob_rows(5, 8))
    t.delete("id IN (0, 6)")
    before = [{k: v for k, v in r.items() if k != "_ROW_ID"} for r in held(t)]
    t.maintain.compact()
    assert sorted(f[:2] for f in files(t)) == [(8, 6)] * 3
    after = held(t)
    assert [r.pop("_ROW_ID") for r in after] == list(range(8, 14))
    assert after == before


# ---- others


def meanwhile(t: Table, monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Have `what` happen after a compaction has done its work and before it commits."""
    run = maintain.run_all

    def ran(*args: Any, **more: Any) -> Any:
        out = run(*args, **more)
        monkeypatch.setattr(maintain, "run_all", run)
        what(t.with_schema(t.schema))
        return out

    monkeypatch.setattr(maintain, "run_all", ran)


def test_who_changes_the_same_rows_meanwhile_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"deletion_vectors__enabled": "true"}
    changes: list[tuple[Any, dict[str, str]]] = [
        (lambda o: o.update({"v": "other"}, where="id = 1"), {}),
        (lambda o: o.delete("id = 1"), {}),
        (lambda o: o.maintain.compact(), {}),
        (lambda o: o.update({"v": "other"}, where="id = 1"), {"data_evolution__compaction__rewrite_row_ids": "true"}),
        (lambda o: o.delete("id = 1"), {"data_evolution__compaction__rewrite_row_ids": "true"}),
        (lambda o: o.truncate(), {}),
    ]
    for what, more in changes:
        t = table(**options, **more)
        add(t, 0, 5)
        add(t, 5, 10)
        t.delete("id = 7")
        with monkeypatch.context() as patched:
            meanwhile(t, patched, what)
            with pytest.raises(Conflict):
                t.maintain.compact()
        rows = held(t)
        assert left_over(t) == []
        t.maintain.compact()
        assert [r["id"] for r in held(t)] == [r["id"] for r in rows]


def test_an_update_of_the_same_range_goes_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction within one range of rows leaves the range as it is: newer columns still count."""
    t = table()
    add(t, 0, 5)
    t.update({"v": "old"}, where="id = 0")
    with monkeypatch.context() as patched:
        meanwhile(t, patched, lambda o: o.update({"v": "newer"}, where="id = 1"))
        t.maintain.compact()
    assert files(t) == [(0, 5, 1, 2, None), (0, 5, 3, 3, ("v",))]
    assert [r["v"] for r in held(t)][:3] == ["old", "newer", "v2"]


def test_vector_files_are_refused() -> None:
    t = table()
    add(t, 0, 5)
    add(t, 5, 9)
    live = entries_of(t.metadata.live(t.metadata.latest()))
    from shoal.table.evolution_compact import tasks_of

    named = [e._replace(file=e.file._replace(file_name=f"{i}.vector.lance")) for i, e in enumerate(live)]
    with pytest.raises(Unsupported, match="vectors apart"):
        list(tasks_of(t, t.metadata.latest(), named))
