# SPDX-License-Identifier: Apache-2.0
"""Lookup files kept in the table's storage: Java writes the same bytes, reads shoal's, and both clean up behind both."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.format.manifest import entries_of
from tests.faults.walk import left_over, missing
from tests.table.lookup_tables import KINDS, PAIR, STORED, entries, rows_of
from tests.table.test_stored_lookups import COUNT, JAVA

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]


def named(kind: str) -> str:
    return kind.replace(" ", "_")


def stored(table: Path) -> list[Path]:
    return sorted(table.rglob("*.lookup"))


def test_java_writes_the_same_bytes(java: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "shoal", tmp_path / "java"
    lake = shoal.open(here)
    for kind, (schema, key, parts, options) in KINDS.items():
        late = {**STORED, **options, "write-only": True}
        t = lake.create_table(f"d.{named(kind)}", schema, primary_key=key, partition_by=parts, options=late)
        with t.write() as w:
            w.upsert(rows_of(schema, COUNT))
            w.commit()
    shutil.copytree(here, there)
    java(there, [f"CALL sys.compact(`table` => 'd.{named(k)}')" for k in KINDS])
    for kind in KINDS:
        lake.table(f"d.{named(kind)}").maintain.compact(full=True)
        (mine,), (theirs,) = (stored(w / "d.db" / named(kind)) for w in (here, there))
        assert theirs.name.split(".")[-4:] == mine.name.split(".")[-4:], kind
        assert theirs.read_bytes() == mine.read_bytes(), kind
        assert hashlib.sha256(theirs.read_bytes()).hexdigest() == JAVA[kind], kind


def rows(t: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in t.scan().to_arrow().to_pylist())


def followed(t: Any) -> list[tuple[Any, ...]]:
    """What whoever follows the changelog holds; every old row must be the one that was told."""
    held: dict[Any, Any] = {}
    with t.follow(start=1, until="latest") as stream:
        for changes in stream:
            for r, kind in zip(changes.rows.to_pylist(), changes.kinds.to_pylist()):
                row = tuple(r.values())
                if kind in (1, 3):
                    assert held.pop(r["k"]) == row
                else:
                    assert r["k"] not in held
                    held[r["k"]] = row
    return sorted(held.values())


def write(t: Any, start: int, stop: int, v: str) -> None:
    with t.write() as w:
        w.upsert([{"p": "x", "t": f"t{k % 7}", "k": k, "v": v} for k in range(start, stop)])
        w.commit()


USES = {
    "plain": {"changelog-producer": "lookup"},
    "packed": {"changelog-producer": "lookup", "lookup.cache-spill-compression": "zstd"},
    "lz": {"changelog-producer": "lookup", "lookup.cache-spill-compression": "lz4"},
    "marked": {"changelog-producer": "lookup", "deletion-vectors.enabled": True},
    "many": {"changelog-producer": "lookup", "target-file-size": "16 kb"},
}


def test_java_reads_ours_and_goes_on_and_the_reverse(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    for name, options in USES.items():
        t = lake.create_table(f"d.{name}", PAIR, primary_key=["k"], options={**STORED, **options})
        write(t, 0, 3000, "old" * 9)
        t.maintain.compact(full=True)
        assert stored(tmp_path / "d.db" / name) != []
    inserts = [f"INSERT INTO d.{n} VALUES ('x', 't', {k}, 'java {i}')" for n in USES for i, k in enumerate((5, 700, 5))]
    java(tmp_path, inserts)
    for name in USES:
        t = lake.table(f"d.{name}")
        assert followed(t) == rows(t), name
        write(t, 4, 6, "again")
        assert followed(t) == rows(t), name
        for e in entries_of(t.metadata.live(t.metadata.latest())):
            assert len(e.file.extra_files) == 1, name
            store, path = t.beside(e.partition, e.bucket, e.file, e.file.extra_files[0])
            assert len(list(entries(store.read(path)))) == e.file.row_count, name
    found = java(tmp_path, [f"SELECT * FROM d.{n}" for n in USES])
    for name, result in zip(USES, found):
        assert sorted(tuple(r.values()) for r in result.rows) == rows(lake.table(f"d.{name}")), name
    java(tmp_path, [f"CALL sys.compact(`table` => 'd.{n}')" for n in USES])
    for name in USES:
        t = lake.table(f"d.{name}")
        t.maintain.compact(full=True)
        assert followed(t) == rows(t), name
        t.maintain.expire(retain_min=1, retain_max=1, older_than=t.clock.now_ms() + 1)
        assert list(missing(t)) == [], name
        assert left_over(t) == [], name
        live = [n for e in entries_of(t.metadata.live(t.metadata.latest())) for n in e.file.extra_files]
        assert [p.name for p in stored(tmp_path / "d.db" / name)] == sorted(live), name
    write(lake.table("d.plain"), 0, 3000, "last")
    expire = "CALL sys.expire_snapshots(`table` => 'd.plain', retain_max => 1, retain_min => 1, older_than => '2100-01-01 00:00:00')"
    java(tmp_path, ["CALL sys.compact(`table` => 'd.plain')", expire])
    assert left_over(lake.table("d.plain")) == []


def test_java_takes_the_file_for_the_rows(java: Any, tmp_path: Path) -> None:
    """The lookup file of other rows in the place of the right one: what Java tells as the old row is of that."""
    lake = shoal.open(tmp_path)
    for name, v in (("table_of_right", "right"), ("table_of_wrong", "wrong")):
        t = lake.create_table(f"d.{name}", PAIR, primary_key=["k"], options={**STORED, "changelog-producer": "lookup"})
        write(t, 0, 3000, v)
        t.maintain.compact(full=True)
    (right,), (wrong,) = (stored(tmp_path / "d.db" / n) for n in ("table_of_right", "table_of_wrong"))
    shutil.copy(wrong, right)
    java(tmp_path, ["INSERT INTO d.table_of_right VALUES ('x', 't', 5, 'new')"])
    t = lake.table("d.table_of_right")
    newest = t.metadata.latest_id() or 0
    told = t.changes(newest - 1, newest, mode="changelog").to_arrow().to_pylist()
    assert [(r["_VALUE_KIND"], r["v"]) for r in told] == [(1, "wrong"), (2, "new")]
