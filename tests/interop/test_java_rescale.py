# SPDX-License-Identifier: Apache-2.0
"""Java reads and writes what shoal rescaled, and goes on; and what Java's own procedure makes of the same tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.format.manifest import entries_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

COLUMNS = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
TABLES: dict[str, dict[str, Any]] = {
    "keyed": {},
    "lookup": {"changelog-producer": "lookup"},
    "appended": {"bucket-key": "k"},
    "marked": {"deletion-vectors.enabled": True},
    "firsts": {"merge-engine": "first-row"},
    "late": {"bucket": -2},
}
HIDE = ("marked", "firsts")


def make(lake: Any, name: str) -> Any:
    key = [] if name == "appended" else ["dt", "k"]
    options = {"bucket": 2, **TABLES[name]}
    t = lake.create_table(f"d.{name}", COLUMNS, primary_key=key, partition_by=["dt"], options=options)
    for start in (0, 10):
        # the second part of these is at level 0, where reads do not see it
        now = t.with_options({"write-only": True}) if start and name in HIDE else t
        with now.write() as w:
            rows = [{"dt": "ab"[i % 2], "k": i, "v": start} for i in range(start, start + 15)]
            w.upsert(rows) if key else w.append(rows)
            w.commit()
    if name == "late":
        t.maintain.compact()
    return t


def files(t: Any) -> set[tuple[str, int, int]]:
    live = entries_of(t.metadata.live(t.metadata.latest()))
    return {(t.partition_path(e.partition).rstrip("/"), e.bucket, e.total_buckets) for e in live}


def rows(t: Any) -> list[str]:
    return sorted(str(sorted(r.items())) for r in t.scan().to_arrow().to_pylist())


def test_java_goes_on(java: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "shoal", tmp_path / "java"
    lake = shoal.open(here)
    for name in TABLES:
        make(lake, name)
    shutil.copytree(here, there)
    seen = {n: rows(lake.table(f"d.{n}")) for n in TABLES}
    for n in TABLES:
        lake.table(f"d.{n}").maintain.rescale(3)
    mine = {n: rows(lake.table(f"d.{n}")) for n in TABLES}
    assert [n for n in TABLES if mine[n] != seen[n]] == list(HIDE)

    selects = [f"SELECT * FROM d.{n}" for n in TABLES]
    inserts = [f"INSERT INTO d.{n} VALUES ('a', 2, 77), ('b', 101, 77)" for n in TABLES]
    compact = ["CALL sys.compact(`table` => 'd.late')"]
    found = java(here, [*selects, *inserts, *compact, *selects])
    for i, n in enumerate(TABLES):
        assert sorted(str(sorted(r.items())) for r in found[i].rows) == mine[n], n
        after = rows(lake.table(f"d.{n}"))
        assert sorted(str(sorted(r.items())) for r in found[len(found) - len(TABLES) + i].rows) == after, n
        assert len(after) == len(mine[n]) + (2 if n == "appended" else 1), n
        assert {total for _, _, total in files(lake.table(f"d.{n}"))} == {3}, n

    parts = [f"CALL sys.rescale(`table` => 'd.{n}', `bucket_num` => 3, `partition` => 'dt={p}')"
             for n in TABLES for p in "ab"]  # fmt: skip
    java(there, parts)
    other = shoal.open(there)
    for n in TABLES:
        t = other.table(f"d.{n}")
        assert {total for _, _, total in files(t)} == {3}, n
        assert t.options.bucket == TABLES[n].get("bucket", 2), n
        # Java reads compacted rows alone, and overwrites all: the others are lost
        assert rows(t) == seen[n], n
        t.maintain.compact(full=True)
        assert rows(t) == seen[n], n
