# SPDX-License-Identifier: Apache-2.0
"""BLOB columns written: what files they make, beside which rows, and that they are read as they were given."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from commits import lake

from shoal.errors import StorageFailed, Unsupported
from shoal.format.blob import Descriptor
from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.table.merge_into import Clause, Clauses, merge_clauses
from shoal.table.table import Table

COLUMNS = pa.schema([("id", pa.int32()), ("a", pa.binary()), ("b", pa.binary()), ("n", pa.string())])


def table(store: Any = None, **options: str) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    wide = {"row-tracking.enabled": "true", "data-evolution.enabled": "true", "blob-field": "a,b"}
    return lake(store or MemoryStore()).create_table("d.t", COLUMNS, options={"bucket": "-1", **wide, **named})


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "a": None if i % 3 == 2 else b"a" * i, "b": b"" if i % 2 else b"blob %d" % i, "n": f"n{i}"}
        for i in range(start, stop)
    ]


def write(t: Table, *batches: list[dict[str, Any]]) -> None:
    with t.write() as w:
        for b in batches:
            w.append(b)
        w.commit()


def files(t: Table) -> list[tuple[Any, ...]]:
    found = [e.file for e in entries_of(t.metadata.live(t.metadata.latest()))]
    return [(f.first_row_id, f.row_count, f.max_sequence, f.write_cols, f.file_name[-5:]) for f in found]


def held(t: Table, **what: Any) -> list[dict[str, Any]]:
    return sorted(t.scan(**what).to_arrow().to_pylist(), key=lambda r: r["id"])


def test_the_files_are_those_that_java_makes() -> None:
    """The table kinds.blob_two of the golden tables: nulls and small values in blob files of 40 bytes."""
    t = table(blob__target_file_size="40 b")
    value = {"a": [b"1", None, None, b"4444", None], "b": [None, b"x", None, b"yy", None]}
    write(t, [{"id": i, "n": "v", "a": value["a"][i], "b": value["b"][i]} for i in range(5)])
    assert files(t) == [
        (0, 5, 1, ("id", "n"), "rquet"), (0, 5, 1, ("a",), ".blob"), (0, 5, 1, ("b",), ".blob"),
    ]  # fmt: skip
    t = table(blob__target_file_size="20 b")
    write(t, [{"id": i, "n": "v", "a": value["a"][i], "b": value["b"][i]} for i in range(5)])
    assert [f[:4] for f in files(t)] == [
        (0, 5, 1, ("id", "n")), (0, 4, 1, ("a",)), (4, 1, 1, ("a",)), (0, 4, 1, ("b",)), (4, 1, 1, ("b",)),
    ]  # fmt: skip
    assert [r["b"] for r in held(t)] == value["b"]


def test_blobs_end_with_the_file_whose_rows_they_belong_to() -> None:
    t = table(target_file_row_num="4", blob__target_file_size="60 b")
    write(t, rows(0, 7), rows(7, 10))
    write(t, rows(10, 12))
    plain = [f[:2] for f in files(t) if f[3] == ("id", "n")]
    assert plain == [(0, 4), (4, 4), (8, 2), (10, 2)]
    for name in ("a", "b"):
        spans = [(f[0], f[0] + f[1]) for f in files(t) if f[3] == (name,)]
        assert (spans[0][0], spans[-1][1]) == (0, 12)
        assert all(a[1] == b[0] for a, b in pairwise(spans))
        assert {0, 4, 8, 10} <= {a for a, _ in spans}
    assert held(t) == rows(0, 12)
    assert held(t, where="id IN (3, 11)", columns=["id", "a"]) == [
        {k: r[k] for k in ("id", "a")} for r in rows(0, 12) if r["id"] in (3, 11)
    ]  # fmt: skip


def test_other_columns_change_beside_the_blobs() -> None:
    t = table(deletion_vectors__enabled="true")
    write(t, rows(0, 8))
    t.update({"n": "new"}, where="id IN (2, 5)")
    t.delete("id = 3")
    t.merge(rows(7, 9), on="id", when_matched_update={"n": "met"}, when_not_matched_insert=True)
    expected = [r | {"n": {2: "new", 5: "new", 7: "met"}.get(r["id"], r["n"])} for r in rows(0, 9) if r["id"] != 3]
    assert held(t) == expected


def test_a_changed_blob_lies_beside_placeholders() -> None:
    t = table(deletion_vectors__enabled="true", blob__target_file_size="60 b", target_file_row_num="8")
    write(t, rows(0, 12))
    before = len(files(t))
    t.delete("id = 4")
    t.update({"a": b"new", "n": "x"}, where="id IN (2, 5)")
    assert [f[:4] for f in files(t)[before:]] == [(0, 8, 3, ("id", "n")[1:]), (0, 8, 3, ("a",))]
    t.update({"b": None}, where="id > 9")
    assert [f[:4] for f in files(t)[before + 2 :]] == [(8, 4, 4, ("b",))]
    model = {r["id"]: r for r in rows(0, 12) if r["id"] != 4}
    for i in (2, 5):
        model[i] |= {"a": b"new", "n": "x"}
    for i in (10, 11):
        model[i] |= {"b": None}
    assert held(t) == list(model.values())
    # one clause sets a, the other one b; bytes of both sides, many of them
    source = [{"k": i, "v": b"m" * 50} for i in (0, 1, 2, 3, 9)]
    clauses = Clauses((
        Clause({"a": pc.field("source.v")}, pc.field("id") < 3),
        Clause({"b": pc.binary_join_element_wise(pc.field("a"), pc.field("source.v"), b"-")}),
    ))  # fmt: skip
    merge_clauses(t, source, {"id": "k"}, clauses)
    for i in (0, 1, 2):
        model[i]["a"] = b"m" * 50
    for i in (3, 9):
        model[i]["b"] = model[i]["a"] + b"-" + b"m" * 50
    assert held(t) == list(model.values())
    data = [f.path for f in t.store.list("") if "bucket-" in f.path]
    assert len(data) == len(files(t))


def test_a_reference_is_no_value() -> None:
    t = table()
    with t.write() as w, pytest.raises(Unsupported, match="column 'a': a value is a reference"):
        w.append([{"id": 1, "a": Descriptor("file:/tmp/x", 0, 3).encode(), "b": None, "n": ""}])
        w.commit()
    assert not [f.path for f in t.store.list("") if "bucket-" in f.path]


def test_blobs_of_tables_with_a_key_are_refused() -> None:
    columns = pa.schema([pa.field("id", pa.int32(), False), ("a", pa.binary())])
    t = lake(MemoryStore()).create_table("d.k", columns, primary_key=["id"], options={"bucket": "1", "blob-field": "a"})
    with pytest.raises(Unsupported, match="BLOB column 'a' of a primary-key table"):
        t.write()


def test_a_failure_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table(blob__target_file_size="30 b")
    from shoal.table import blob_writer

    calls = 0

    def fails(lengths: list[int]) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StorageFailed("full")
        return b""

    monkeypatch.setattr(blob_writer, "file_end", fails)
    with t.write() as w, pytest.raises(StorageFailed):
        w.append(rows(0, 30))
        w.commit()
    assert not [f.path for f in t.store.list("") if "bucket-" in f.path]
