# SPDX-License-Identifier: Apache-2.0
"""Java reads what DELETE, UPDATE and MERGE left, before and after it compacts the tables itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import shoal

pytestmark = pytest.mark.java

COLUMNS = pa.schema([("id", pa.int32()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int64())])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"bucket": -1},
    "parts": {"bucket": -1, "parts": ["p"]},
    "buckets": {"bucket": 2, "bucket-key": "id"},
    "marks": {"bucket": -1, "deletion-vectors.enabled": True},
    "marked_buckets": {"bucket": 2, "bucket-key": "id", "deletion-vectors.enabled": True},
    "ids": {"bucket": -1, "row-tracking.enabled": True},
    "wide": {
        "bucket": -1,
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "wide_parts": {
        "bucket": -1,
        "parts": ["p"],
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "keyed": {"bucket": 2, "key": ["id"]},
}


def changed(lake: Any, name: str, options: dict[str, Any]) -> Any:
    o = dict(options)
    key, parts = o.pop("key", []), o.pop("parts", [])
    t = lake.create_table(f"d.{name}", COLUMNS, primary_key=key, partition_by=parts, options=o)
    for start in (0, 10, 20):
        rows = [{"id": i, "p": "ab"[i % 2], "v": f"v{i}", "n": i} for i in range(start, start + 10)]
        with t.write() as w:
            w.append(rows)
            w.commit()
    t.delete("v > 'v2' AND n < 25")
    t.update({"n": pc.multiply(pc.field("n"), 10), "v": "new"}, where="id >= 8 AND id < 12")
    source = [{"id": i, "p": "ab"[i % 2], "v": f"m{i}", "n": -i} for i in (1, 10, 50)]
    new = {"v": pc.field("source.v")}
    t.merge(source, on="id", when_matched_update=new, when_not_matched_insert=True,
            when_not_matched_by_source_delete=pc.field("id") == 15)  # fmt: skip
    return t


def test_java_reads_changed_tables_and_compacts_them(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    tables = {name: changed(lake, name, options) for name, options in KINDS.items()}
    tracked = ["SELECT * FROM d.`ids$row_tracking`"]
    reads = [f"SELECT * FROM d.{name}" for name in tables]
    compactions = [f"CALL sys.compact(`table` => 'd.{name}')" for name in tables]
    answers = java(tmp_path, [*reads, *tracked, *compactions, *reads, *tracked])
    ids = ["_ROW_ID", "_SEQUENCE_NUMBER"]
    expected = [t.scan().to_arrow().to_pylist() for t in tables.values()]
    expected.append(tables["ids"].scan(columns=[*COLUMNS.names, *ids]).to_arrow().to_pylist())
    n = len(expected)
    for at in (*range(n), *range(len(answers) - n, len(answers))):
        mine = expected[at % n if at < n else at - len(answers) + n]
        found = answers[at].rows
        assert sorted((sorted(r.items()) for r in found), key=str) == sorted((sorted(r.items()) for r in mine), key=str)


def test_java_and_shoal_change_columns_in_turn(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    wide = {"bucket": -1, "row-tracking.enabled": True, "data-evolution.enabled": True}
    marked = {**wide, "deletion-vectors.enabled": True}
    for name, options, parts in (("w", wide, []), ("m", marked, []), ("x", marked, ["p"])):
        t = lake.create_table(f"d.{name}", COLUMNS, partition_by=parts, options=options)
        for start in (0, 10):
            with t.write() as w:
                w.append([{"p": "ab"[i % 2], "id": i, "v": f"v{i}", "n": i} for i in range(start, start + 10)])
                w.commit()
        t.update({"n": pc.multiply(pc.field("n"), 3)}, where="id IN (2, 11)")
        if name != "w":
            t.delete("id IN (4, 12)")
            t.update({"v": "late"}, where="id IN (5, 13)")
    # a row-tracking table whose rows change their partition
    moved = lake.create_table(
        "d.moved", COLUMNS, partition_by=["p"], options={"bucket": -1, "row-tracking.enabled": True}
    )
    with moved.write() as w:
        w.append([{"p": "ab"[i % 2], "id": i, "v": f"v{i}", "n": i} for i in range(8)])
        w.commit()
    moved.update({"p": "c", "v": "moved"}, where="id > 5")
    merges = [
        f"""CALL sys.data_evolution_merge_into('d.{n}', 'T', '', 'd.news', 'T._ROW_ID = news.r',
            'v = news.v', 2)""" for n in ("w", "m")
    ]  # fmt: skip
    news = lake.create_table("d.news", pa.schema([("r", pa.int64()), ("v", pa.string())]), options={"bucket": -1})
    with news.write() as w:
        w.append([{"r": 1, "v": "java 1"}, {"r": 15, "v": "java 15"}])
        w.commit()
    reads = [f"SELECT * FROM d.`{n}$row_tracking`" for n in ("w", "m", "x", "moved")]
    answers = java(tmp_path, [*reads, *merges, *reads])
    names = [*COLUMNS.names, "_ROW_ID", "_SEQUENCE_NUMBER"]

    def mine(name: str, snapshot: int | None = None) -> list[str]:
        found = lake.table(f"d.{name}").scan(columns=names, snapshot=snapshot).to_arrow().to_pylist()
        return sorted(str(sorted(r.items())) for r in found)

    def theirs(at: int) -> list[str]:
        return sorted(str(sorted(r.items())) for r in answers[at].rows)

    before = {"w": 3, "m": 5, "x": 5, "moved": 2}
    for i, (name, snapshot) in enumerate(before.items()):
        assert theirs(i) == mine(name, snapshot), name
        assert theirs(6 + i) == mine(name), name
    assert sum("java 15" in r for r in theirs(6)) == sum("java 1'" in r for r in theirs(7)) == 1
    # Java's update and ours of other columns and of the same one
    lake.table("d.m").update({"v": "shoal", "n": 0}, where="id IN (1, 2)")
    (again,) = java(tmp_path, ["SELECT * FROM d.`m$row_tracking`"])
    assert sorted(str(sorted(r.items())) for r in again.rows) == mine("m")


def test_java_reads_blobs_and_updates_beside_them(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    columns = pa.schema([("id", pa.int32()), ("a", pa.binary()), ("b", pa.binary()), ("n", pa.string())])
    options = {
        "bucket": -1, "row-tracking.enabled": True, "data-evolution.enabled": True, "deletion-vectors.enabled": True,
        "blob-field": "a,b", "blob.target-file-size": "100 b", "target-file-row-num": 6,
    }  # fmt: skip
    t = lake.create_table("d.blobs", columns, options=options)
    for start in (0, 15):
        with t.write() as w:
            w.append([
                {"id": i, "a": None if i % 4 == 3 else b"a" * i, "b": b"blob %d" % i, "n": f"n{i}"}
                for i in range(start, start + 15)
            ])  # fmt: skip
            w.commit()
    t.update({"n": "new"}, where="id IN (2, 20)")
    t.delete("id IN (5, 6)")
    t.update({"a": b"changed", "n": "too"}, where="id IN (1, 8, 22)")
    read = "SELECT id, a, b, n FROM d.blobs"
    add = "INSERT INTO d.blobs VALUES (100, X'0102', X'', 'java')"
    first, _, second = java(tmp_path, [read, add, read])
    mine = [{k: v.hex() if isinstance(v, bytes) else v for k, v in r.items()} for r in t.scan().to_arrow().to_pylist()]
    assert sorted(map(str, second.rows)) == sorted(map(str, mine))
    assert sorted(map(str, first.rows)) == sorted(str(r) for r in mine if r["id"] != 100)
    assert len(first.rows) == 28
