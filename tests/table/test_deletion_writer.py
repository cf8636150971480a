# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors written: Java's index files again to the byte, and what a change rewrites and leaves alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal import BadRequest, StorageFailed
from shoal.catalog.filesystem import Lake
from shoal.format.deletion_vectors import DeletionVector
from shoal.format.index_manifest import ADD, DELETE, IndexEntry
from shoal.store.base import Store
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.deletion_writer import (
    AppendVectors,
    BucketVectors,
    IndexNames,
    read_vectors,
    vectors_of,
    write_vectors,
)  # fmt: skip
from shoal.table.table import Table

Golden = Callable[[str], Path]
TABLES = [
    "ap_dv",
    "ap_dv_bucket",
    "ap_dv_part",
    "pk_dv",
    "pk_dv_4",
    "pk_dv_ag",
    "pk_dv_bitmap64",
    "pk_dv_lookup",
    "pk_dv_part",
    "pk_dv_pu",
]


def copied(golden: Golden, to: Path, name: str) -> Table:
    shutil.copytree(golden("dv") / "dv.db" / name, to / "dv.db" / name)
    return shoal.open(str(to)).table(f"dv.{name}")


def entries(table: Table) -> list[IndexEntry]:
    """The deletion vectors that any snapshot names."""
    found = {}
    for i in table.metadata.snapshot_ids():
        snapshot = table.metadata.snapshot(i)
        if snapshot.index_manifest:
            for e in table.metadata.index_entries(snapshot.index_manifest):
                found[e.file_name] = e
    return [e for e in found.values() if e.index_type == "DELETION_VECTORS"]


def data(table: Table, e: IndexEntry) -> bytes:
    store, path = table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
    return store.read(path)


@pytest.mark.parametrize("name", TABLES)
def test_javas_index_files_come_out_again(golden: Golden, tmp_path: Path, name: str) -> None:
    table = copied(golden, tmp_path, name)
    seen = entries(table)
    assert seen
    for e in seen:
        vectors = read_vectors(table, e.partition, e.bucket, [e])
        (again,) = write_vectors(table, e.partition, e.bucket, vectors)
        assert data(table, again) == data(table, e)
        assert again == e._replace(file_name=again.file_name)


def test_a_bucket_has_one_file_with_all_its_vectors(golden: Golden, tmp_path: Path) -> None:
    table = copied(golden, tmp_path, "ap_dv_bucket")
    e = entries(table)[-1]
    before = BucketVectors.restore(table, e.partition, e.bucket, entries(table)[-1:])
    assert before.write() == ([], [])
    known = dict(before.vectors)
    first = next(iter(known))
    same = before.delete(first, known[first].positions)
    assert same is before and same.write() == ([], [])

    after = before.delete_all({first: [70_000], "new.parquet": [5, 3, 5]}).remove(["not there"])
    new, deleted = after.write()
    assert deleted == [] and len(new) == 1 and new[0].kind == ADD
    got = read_vectors(table, e.partition, e.bucket, new)
    assert got.keys() == {*known, "new.parquet"}
    assert got["new.parquet"].positions.tolist() == [3, 5]
    assert got[first].positions.tolist() == [*known[first].positions.tolist(), 70_000]
    assert {r.file_name: r.cardinality for r in new[0].dv_ranges or ()} == {n: v.cardinality for n, v in got.items()}

    empty = after.remove(got)
    new, _ = empty.write()
    assert data(table, new[0]) == b"\1" and new[0].row_count == 0 and new[0].dv_ranges == ()
    assert empty.written().write() == ([], [])


def unaware(store: Store, **options: str) -> Table:
    """A table without buckets, whose schema file is all there is of it."""
    made = {"bucket": "-1", "deletion-vectors.enabled": "true", **options}
    schema = {
        "version": 3, "id": 0, "fields": [{"id": 0, "name": "k", "type": "INT"}], "highestFieldId": 0,
        "partitionKeys": [], "primaryKeys": [], "options": made, "timeMillis": 0,
    }  # fmt: skip
    store.put("d.db/t/schema/schema-0", json.dumps(schema).encode())
    return Lake(store).table("d.t")


NO_PARTITION = bytes(4) + bytes(8)


def test_only_touched_files_of_an_append_table_are_written_anew() -> None:
    table = unaware(MemoryStore())
    names = IndexNames(table)
    vectors = {f"data-{i}": DeletionVector.of([i, 10]) for i in range(6)}
    files = [
        write_vectors(table, NO_PARTITION, 0, {n: vectors[n] for n in group}, names)[0]
        for group in (("data-0", "data-1"), ("data-2", "data-3"), ("data-4", "data-5"))
    ]
    assert [f.file_name.rpartition("-")[2] for f in files] == ["0", "1", "2"]
    value = vectors_of(table, NO_PARTITION, 0, files)
    assert isinstance(value, AppendVectors)
    assert value.write() == ([], [])

    changed = value.delete_all({"data-0": [3], "fresh": [9]}).remove(["data-4", "unknown"])
    assert changed.get("data-4") is None
    found = changed.get("data-0")
    assert found is not None and found.positions.tolist() == [0, 3, 10]
    new, deleted = changed.write(names)
    assert {e.file_name for e in deleted} == {files[0].file_name, files[2].file_name}
    assert {e.kind for e in deleted} == {DELETE} and {e.kind for e in new} == {ADD}
    live = [files[1], *new]
    got = AppendVectors.restore(table, NO_PARTITION, 0, live)
    want = {"data-0": [0, 3, 10], "data-1": [1, 10], "data-2": [2, 10], "data-3": [3, 10], "data-5": [5, 10],
            "fresh": [9]}  # fmt: skip
    assert {n: v.positions.tolist() for n, v in read_vectors(table, NO_PARTITION, 0, got.entries).items()} == want
    # vectors that stay lie apart from those that changed
    assert sorted(sorted(r.file_name for r in e.dv_ranges or ()) for e in new) == [
        ["data-0", "fresh"], ["data-1"], ["data-5"],
    ]  # fmt: skip


def test_index_files_of_an_append_table_have_about_the_target_size() -> None:
    table = unaware(MemoryStore(), **{"deletion-vector.index-file.target-size": "100 b"})
    vectors = {f"data-{i}": DeletionVector.of(range(0, 20, 2)) for i in range(10)}
    made = write_vectors(table, NO_PARTITION, 0, vectors)
    assert [e.row_count for e in made] == [3, 3, 3, 1]  # 48 bytes each: full when beyond 100
    assert all(e.file_size == 1 + sum(r.length + 8 for r in e.dv_ranges or ()) for e in made)
    assert write_vectors(table, NO_PARTITION, 0, {}) == []


def test_layouts_stay_and_new_vectors_have_the_tables() -> None:
    narrow = unaware(MemoryStore())
    (old,) = write_vectors(narrow, NO_PARTITION, 0, {"a": DeletionVector.of([1]), "b": DeletionVector.of([2], True)})
    got = AppendVectors.restore(narrow, NO_PARTITION, 0, [old]).delete_all({"a": [5], "b": [2**33], "c": [1]})
    new, _ = got.write()
    layouts = {n: v.bits64 for n, v in read_vectors(narrow, NO_PARTITION, 0, new).items()}
    assert layouts == {"a": False, "b": True, "c": False}
    with pytest.raises(BadRequest, match="row 2147483648 of a"):
        got.delete("a", [2**31]).write()
    with pytest.raises(BadRequest, match="row -1 of a"):
        got.delete("a", np.array([-1])).write()


def test_index_files_lie_beside_the_data_where_the_table_says_so(tmp_path: Path) -> None:
    vectors = {"a": DeletionVector.of([1])}
    store = MemoryStore()
    table = unaware(store, **{"index-file-in-data-file-dir": "true"})
    (e,) = write_vectors(table, NO_PARTITION, 0, vectors)
    assert [f.path for f in store.list("d.db/t/bucket-0/")] == [f"d.db/t/bucket-0/{e.file_name}"]
    options = {"data-file.external-paths": f"file:{tmp_path}/x", "data-file.external-paths.strategy": "round-robin"}
    outside = unaware(MemoryStore(), **{"index-file-in-data-file-dir": "true", **options})
    (e,) = write_vectors(outside, NO_PARTITION, 0, vectors)
    assert e.external_path == f"file:{tmp_path}/x/bucket-0/{e.file_name}"
    assert (tmp_path / "x/bucket-0" / e.file_name).stat().st_size == e.file_size
    assert read_vectors(outside, NO_PARTITION, 0, [e])["a"].positions.tolist() == [1]
    plain = unaware(MemoryStore(), **options)
    assert write_vectors(plain, NO_PARTITION, 0, vectors)[0].external_path is None


def test_a_failed_write_leaves_no_index_files() -> None:
    small = {"deletion-vector.index-file.target-size": "1 b"}
    store = MemoryStore()
    plain = unaware(store, **small)
    vectors = {f"data-{i}": DeletionVector.of([i]) for i in range(4)}
    made = write_vectors(plain, NO_PARTITION, 0, vectors)
    assert len(made) == 4
    before = {f.path for f in store.list("d.db/t/index/")}
    for at in range(1, 5):
        table = Lake(FaultyStore(store, Fault("fail", at=at, kind="sink"))).table("d.t")
        value = AppendVectors.restore(table, NO_PARTITION, 0, made).delete_all({n: [99] for n in vectors})
        with pytest.raises(StorageFailed):
            value.write()
        assert {f.path for f in store.list("d.db/t/index/")} == before
