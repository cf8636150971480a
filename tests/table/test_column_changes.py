# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows lie in several files: what a change adds to them, and which other changes it may meet."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from commits import globally, lake

from shoal.errors import Conflict, Unsupported
from shoal.format.manifest import entries_of
from shoal.format.row import encode
from shoal.format.types import parse
from shoal.store.memory import MemoryStore
from shoal.table import row_changes
from shoal.table.commit import Commit
from shoal.table.staged import BucketChanges, Staged
from shoal.table.table import Table

COLUMNS = pa.schema([("p", pa.string()), ("id", pa.int32()), ("v", pa.string()), ("n", pa.int64())])
WIDE = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
MARKS = {"deletion-vectors.enabled": "true"}


def table(store: MemoryStore | None = None, *, parts: bool = False, **options: str) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    t = lake(store or MemoryStore()).create_table(
        "d.t", COLUMNS, partition_by=["p"] if parts else [], options={"bucket": "-1", **WIDE, **named}
    )
    for start in (0, 10):
        with t.write() as w:
            w.append([{"p": "ab"[i % 2], "id": i, "v": f"v{i}", "n": i} for i in range(start, start + 10)])
            w.commit()
    return t


def files(t: Table, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    live = t.metadata.live(t.metadata.snapshot(snapshot) if snapshot else t.metadata.latest())
    found = [e.file for e in entries_of(live)]
    return sorted((f.first_row_id, f.row_count, f.max_sequence, f.write_cols) for f in found)


def held(t: Table, *columns: str) -> list[dict[str, Any]]:
    names = list(columns) or COLUMNS.names
    return sorted(t.scan(columns=names).to_arrow().to_pylist(), key=lambda r: r.get("id", r.get("_ROW_ID", 0)))


def test_a_change_adds_one_file_for_each_range_that_it_touches() -> None:
    t = table()
    assert files(t) == [(0, 10, 1, None), (10, 10, 2, None)]
    done = t.update({"n": pc.add(pc.field("n"), 100)}, where="id = 3")
    assert (done.updated, done.snapshot) == (1, 3)
    assert files(t) == [(0, 10, 1, None), (0, 10, 3, ("n",)), (10, 10, 2, None)]
    t.update({"n": 7, "v": "x"}, where="id IN (4, 15)")
    assert files(t)[2:] == [(0, 10, 4, ("v", "n")), (10, 10, 2, None), (10, 10, 4, ("v", "n"))]
    t.update({c: None if c == "v" else pc.field(c) for c in COLUMNS.names}, where="id = 9")
    assert (0, 10, 5, None) in files(t)  # all columns are no choice of columns
    rows = {r["id"]: r for r in held(t)}
    assert (rows[3]["n"], rows[4]["n"], rows[15]["v"], rows[9]["v"], rows[8]["v"]) == (103, 7, "x", None, "v8")
    assert [r["_ROW_ID"] for r in held(t, "id", "_ROW_ID")] == list(range(20))
    assert t.metadata.latest().operation == "UPDATE"
    assert t.metadata.latest().next_row_id == 20


def test_rows_marked_as_deleted_keep_their_places() -> None:
    t = table(deletion_vectors__enabled="true")
    t.delete("id IN (0, 4, 5)")
    assert files(t) == [(0, 10, 1, None), (10, 10, 2, None)]
    t.update({"v": "y"}, where="id < 12")
    assert files(t) == [(0, 10, 1, None), (0, 10, 4, ("v",)), (10, 10, 2, None), (10, 10, 4, ("v",))]
    t.delete("v = 'y' AND id > 8")  # in a range with two files: the oldest one has the vector
    rows = held(t, "id", "v", "_ROW_ID")
    assert [r["id"] for r in rows] == [1, 2, 3, 6, 7, 8, *range(12, 20)]
    assert all(r["id"] == r["_ROW_ID"] for r in rows)
    assert {r["v"] for r in rows if r["id"] < 12} == {"y"}


def test_a_merge_by_row_id_writes_named_columns_and_new_rows() -> None:
    t = table(deletion_vectors__enabled="true")
    source = pa.table({"r": pa.array([2, 13, 90], pa.int64()), "v": ["m2", "m13", "m90"], "id": [-1, -1, 90]})
    done = t.merge(
        source, on={"_ROW_ID": "r"}, when_matched_update={"v": pc.field("source.v")},
        when_not_matched_insert={"id": pc.field("source.id"), "v": pc.field("source.v")},
    )  # fmt: skip
    assert (done.updated, done.inserted) == (2, 1)
    assert files(t) == [
        (0, 10, 1, None), (0, 10, 3, ("v",)), (10, 10, 2, None), (10, 10, 3, ("v",)), (20, 1, 3, None),
    ]  # fmt: skip
    assert {r["id"]: r["v"] for r in held(t) if r["v"].startswith("m")} == {2: "m2", 13: "m13", 90: "m90"}
    gone = t.merge(source, on={"_ROW_ID": "r"}, when_matched_delete=True)
    assert gone.deleted == 2
    assert len(held(t)) == 19


def test_what_java_refuses() -> None:
    t = table(parts=True)
    with pytest.raises(Unsupported, match="deletion vectors"):
        t.delete("id = 1")
    with pytest.raises(Unsupported, match="deletion vectors"):
        t.merge([{"id": 1}], on="id", when_matched_delete=True)
    with pytest.raises(Unsupported, match="partition column 'p'"):
        t.update({"p": "z"}, where="id = 1")
    assert len(files(t)) == 4


def other(t: Table, monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Have `what` happen after a change has read its rows and before it commits."""
    change = row_changes.change_columns

    def meanwhile(*args: Any) -> None:
        change(*args)
        monkeypatch.setattr(row_changes, "change_columns", change)
        what(t.with_schema(t.schema))

    monkeypatch.setattr(row_changes, "change_columns", meanwhile)


@pytest.mark.parametrize(
    ("values", "where", "fits"),
    [({"v": "z"}, "id = 1", True), ({"n": 5}, "id = 15", True), ({"n": 5}, "id = 2", False)],
)
def test_changes_of_other_columns_or_other_rows_do_not_meet(
    values: dict[str, Any], where: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = table()
    other(t, monkeypatch, lambda o: o.update(values, where=where))
    data = {f.path for f in t.store.list("") if "bucket-" in f.path}
    if fits:
        t.update({"n": -1}, where="id = 1")
        rows = {r["id"]: r for r in held(t)}
        assert rows[1]["n"] == -1
        assert all(rows[int(where[5:])][c] == v for c, v in values.items())
    else:
        with pytest.raises(Conflict, match="same columns of the same rows"):
            t.update({"n": -1}, where="id = 1")
        left = {f.path for f in t.store.list("") if "bucket-" in f.path}
        assert len(left - data) == 1  # the other's file
        assert {r["id"]: r["n"] for r in held(t)}[2] == 5


@pytest.mark.parametrize("action", ["THROW_ERROR", "DROP_PARTITION_INDEX", "IGNORE"])
def test_indexes_of_changed_columns(action: str) -> None:
    t = table(parts=True, global_index__column_update_action=action)
    a = encode([parse("STRING")], [b"a"])
    live = entries_of(t.metadata.live(t.metadata.latest()))
    first = min(e.file.first_row_id for e in live if e.partition == a)  # rows of partition a in the first commit
    index = globally("index-a", first, first + 4, 2)._replace(partition=a)
    Commit(t, "indexer", t.rng).commit(Staged((BucketChanges(a, 0, -1, new_indexes=(index,)),)), 1)
    t.update({"n": 1}, where="id = 2")
    t.update({"v": "b"}, where="p = 'b' AND id = 1")
    if action == "THROW_ERROR":
        with pytest.raises(Unsupported, match="'v' has a global index"):
            t.update({"v": "a"}, where="id = 2")
    else:
        t.update({"v": "a"}, where="id = 2")
    name = t.metadata.latest().index_manifest
    there = t.metadata.index_entries(name) if name else []
    assert len(there) == (0 if action == "DROP_PARTITION_INDEX" else 1)
