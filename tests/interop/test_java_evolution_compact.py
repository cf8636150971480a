# SPDX-License-Identifier: Apache-2.0
"""Java and shoal compact the same tables of columns that lie apart: the same files, the same rows under the same ids."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import shoal
from shoal.format.manifest import entries_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

COLUMNS = pa.schema([("id", pa.int32()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int64())])
BLOBS = pa.schema([("id", pa.int32()), ("a", pa.binary()), ("b", pa.binary()), ("n", pa.string())])
WIDE = {"bucket": -1, "row-tracking.enabled": True, "data-evolution.enabled": True}
MARKS = {"deletion-vectors.enabled": True}
NEW_IDS = {"data-evolution.compaction.rewrite-row-ids": True}
TABLES: dict[str, dict[str, Any]] = {
    "plain": {"compaction.min.file-num": 2},
    "five": {},
    "parts": {"parts": ["p"], "compaction.min.file-num": 2},
    "marks": {**MARKS, "compaction.min.file-num": 2},
    "marks64": {**MARKS, "deletion-vectors.bitmap64": True, "parts": ["p"]},
    "packed": {**MARKS, "compaction.min.file-num": 2, "target-file-size": "9 mb"},
    "ids": {**MARKS, **NEW_IDS},
    "ids_parts": {**MARKS, **NEW_IDS, "parts": ["p"], "compaction.min.file-num": 2},
}
BLOB_TABLES: dict[str, dict[str, Any]] = {
    "blobs": {"compaction.min.file-num": 2},
    "blobs_too": {"blob-compaction.enabled": True, "compaction.min.file-num": 2},
    "blobs_alone": {"blob-compaction.enabled": True, "compaction.min.file-num": 9, "blob.target-file-size": "80 b"},
    "blobs_ids": {**MARKS, **NEW_IDS},
}


def make(lake: Any, name: str, options: dict[str, Any]) -> Any:
    o = {**WIDE, **options}
    t = lake.create_table(f"d.{name}", COLUMNS, partition_by=o.pop("parts", []), options=o)
    for start in (0, 10, 20, 30):
        with t.write() as w:
            w.append([{"id": i, "p": "ab"[i // 2 % 2], "v": f"v{i}", "n": i} for i in range(start, start + 10)])
            w.commit()
    t.update({"n": pc.multiply(pc.field("n"), 10), "v": "new"}, where="id >= 8 AND id < 12")
    t = t.alter(add={"extra": "STRING"})
    t.update({"extra": "more"}, where="id IN (1, 21)")
    if t.options.deletion_vectors:
        t.delete("id IN (2, 3, 9, 29, 39)")
    return t


def make_blobs(lake: Any, name: str, options: dict[str, Any]) -> Any:
    t = lake.create_table(f"d.{name}", BLOBS, options={**WIDE, "blob-field": "a,b", **options})
    for start in (0, 7):
        with t.write() as w:
            w.append([
                {"id": i, "a": None if i % 3 == 2 else b"a" * i, "b": b"" if i % 2 else b"blob %d" % i, "n": f"n{i}"}
                for i in range(start, start + 7)
            ])  # fmt: skip
            w.commit()
    t.update({"a": pa.scalar(b"changed")}, where="id = 6")
    t.update({"a": pa.scalar(None, pa.binary()), "n": "x"}, where="id IN (1, 8)")
    if t.options.deletion_vectors:
        t.delete("id IN (0, 6, 12)")
    return t


def files(t: Any) -> list[Any]:
    """What a file is, but its name, size and bounds, which are of the encoder."""
    found = []
    for e in entries_of(t.metadata.live(t.metadata.latest())):
        f = e.file
        columns = None if f.write_cols is None else tuple(f.write_cols)
        end = f.file_name.rsplit(".", 1)[-1]
        found.append(
            (e.partition, e.bucket, e.total_buckets, f.first_row_id, f.row_count, f.min_sequence, f.max_sequence,
             f.level, f.file_source, f.schema_id, columns, end, f.delete_row_count)
        )  # fmt: skip
    return sorted(found, key=repr)


def marks(t: Any) -> list[Any]:
    """The rows that are marked as deleted: by range of rows and how many, in which kind of vector, files together."""
    newest = t.metadata.latest()
    if newest.index_manifest is None:
        return []
    first = {e.file.file_name: e.file.first_row_id for e in entries_of(t.metadata.live(newest))}
    entries = t.metadata.index_entries(newest.index_manifest)
    return sorted(
        (e.partition, e.bucket, e.index_type, sorted((first[r.file_name], r.cardinality) for r in e.dv_ranges or ()))
        for e in entries
    )


def rows(t: Any) -> list[str]:
    return sorted(str(sorted(r.items())) for r in t.scan(columns=[*t.schema.names, "_ROW_ID"]).to_arrow().to_pylist())


def theirs(found: list[dict[str, Any]]) -> list[str]:
    def value(k: str, v: Any) -> Any:
        return bytes.fromhex(v) if k in ("a", "b") and v is not None else v

    return sorted(str(sorted((k, value(k, v)) for k, v in r.items() if k != "_SEQUENCE_NUMBER")) for r in found)


def test_the_same_files_and_rows(java: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "shoal", tmp_path / "java"
    lake = shoal.open(here)
    made = {n: make(lake, n, o) for n, o in TABLES.items()} | {
        n: make_blobs(lake, n, o) for n, o in BLOB_TABLES.items()
    }
    before = {n: rows(t) for n, t in made.items()}
    shutil.copytree(here, there)
    names = list(made)
    for n in names:
        lake.table(f"d.{n}").maintain.compact()
    compactions = [f"CALL sys.compact(`table` => 'd.{n}')" for n in names]
    java(there, compactions)
    other = shoal.open(there)
    for n in names:
        mine, his = lake.table(f"d.{n}"), other.table(f"d.{n}")
        assert files(mine) == files(his), n
        assert marks(mine) == marks(his), n
        ids = not mine.schema.options.get("data-evolution.compaction.rewrite-row-ids")
        assert rows(mine) == (before[n] if ids else rows(his)), n
        newest, his_newest = mine.metadata.latest(), his.metadata.latest()
        for what in ("id", "commit_kind", "next_row_id", "total_record_count", "delta_record_count", "operation"):
            assert getattr(newest, what) == getattr(his_newest, what), (n, what)
    # Java reads what shoal compacted, finds nothing to do, and both go on
    read = {n: f"SELECT * FROM d.`{n}$row_tracking`" for n in TABLES}
    blobs = {n: f"SELECT * FROM d.{n}" for n in BLOB_TABLES}
    for n in names:
        t = lake.table(f"d.{n}")
        t.update({"n": "late" if n in BLOB_TABLES else 7}, where="id = 5")
        t.update({"n": "later" if n in BLOB_TABLES else 8}, where="id = 13")
    due = {n: bool(lake.table(f"d.{n}").maintain.compact(dry_run=True).planned) for n in names}
    assert set(due.values()) == {False, True}
    found = java(here, [*read.values(), *(f"-- @flink\n{s}" for s in blobs.values()), *compactions, *read.values()])
    for at, n in enumerate(TABLES):
        t = lake.table(f"d.{n}")
        newest = t.metadata.latest()
        assert theirs(found[at].rows) == theirs(found[len(found) - len(TABLES) + at].rows) == rows(t), n
        assert (newest.commit_kind == "COMPACT") == due[n], n
    for at, n in enumerate(BLOB_TABLES, len(TABLES)):
        plain = lake.table(f"d.{n}").scan().to_arrow().to_pylist()
        assert theirs(found[at].rows) == sorted(str(sorted(r.items())) for r in plain), n
