# SPDX-License-Identifier: Apache-2.0
"""Changelog files that share one file, and append files written together: Java's read by shoal, shoal's by Java."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), pa.field("p", pa.int32(), False), ("v", pa.string())])
KINDS = ("+I", "-U", "+U", "-D")
TABLES: dict[str, dict[str, str]] = {
    "lookup": {"changelog-producer": "lookup"},
    "input": {"changelog-producer": "input"},
    "full": {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "1"},
    "orc": {"changelog-producer": "lookup", "file.format": "orc"},
    "avro": {"changelog-producer": "input", "changelog-file.format": "avro"},
}
APPENDS: dict[str, dict[str, str]] = {"append": {}, "tracked": {"row-tracking.enabled": "true"}}
Change = tuple[int, str, str]


def rows(seed: int, count: int = 30) -> list[tuple[int, int, str]]:
    rng = random.Random(seed)
    return [(k, k % 2, rng.choice("abc")) for k in rng.sample(range(60), count)]


def batch(seed: int) -> pa.RecordBatch:
    columns = zip(*rows(seed))
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)


def stream_of(table: Any) -> list[Change]:
    out = []
    for c in table.follow(start=1, until="latest"):
        out += [(c.snapshot, KINDS[k], repr(r)) for k, r in zip(c.kinds.to_pylist(), c.rows.to_pylist())]
    return out


def told(changes: list[tuple[int, str, dict[str, Any]]]) -> list[Change]:
    return [(s, op, repr(row)) for s, op, row in changes]


def by_key(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda r: (r["k"], r["v"]))


def shared_files(warehouse: Path, name: str) -> list[Path]:
    return [f for f in (warehouse / "d.db" / name).glob("p=*/bucket-*/*") if f.name.startswith("compacted-changelog-")]


def create(name: str, key: str, options: dict[str, str], bucket: str) -> str:
    given = {"bucket": bucket, "precommit-compact": "true", **options}
    said = ", ".join(f"'{k}' = '{v}'" for k, v in given.items())
    return f"CREATE TABLE d.`{name}` (k INT NOT NULL, p INT NOT NULL, v STRING{key}) PARTITIONED BY (p) WITH ({said})"


@dataclass
class Seen:
    warehouse: Path
    shoal: dict[tuple[str, str], Any] = field(default_factory=dict)
    java: dict[tuple[str, str], Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    out = Seen(warehouse)
    lake = shoal.open(f"file:{warehouse}")
    for name, options in TABLES.items():
        given = {"bucket": "3", "precommit-compact": "true", **options}
        t = lake.create_table(f"d.s_{name}", SCHEMA, primary_key=["p", "k"], partition_by=["p"], options=given)
        with t.write("w") as w:
            for i in range(1, 5):
                w.upsert(batch(i))
                w.delete(batch(i + 10).slice(0, 3).select(["k", "p"]))
                w.commit(checkpoint=i)
    for name, options in APPENDS.items():
        given = {"precommit-compact": "true", **options}
        t = lake.create_table(f"d.s_{name}", SCHEMA, partition_by=["p"], options=given)
        with t.write("w") as w:
            for i in range(1, 4):
                for n in range(3):
                    w.append(batch(10 * i + n))
                    w.flush()
                w.commit(checkpoint=i)
    keyed, appends = [f"{w}_{n}" for w in "sj" for n in TABLES], [f"{w}_{n}" for w in "sj" for n in APPENDS]
    makes = [create(f"j_{n}", ", PRIMARY KEY (p, k) NOT ENFORCED", o, "3") for n, o in TABLES.items()]
    makes += [create(f"j_{n}", "", o, "-1") for n, o in APPENDS.items()]
    fills = [
        f"INSERT INTO d.`j_{n}` VALUES " + ", ".join(f"({k}, {p}, '{v}')" for k, p, v in rows(i))
        for n in (*TABLES, *APPENDS) for i in (1, 2)
    ]  # fmt: skip
    names = [*keyed, *appends]
    hint = "/*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '1') */"
    reads = [f"SELECT * FROM d.`{n}`" for n in names]
    streams = [f"SELECT * FROM d.`{n}` {hint}" for n in names]
    streaming = "SET 'execution.runtime-mode' = 'streaming'"
    found = java(warehouse, [*makes, *fills, *reads, streaming, *streams])
    at = len(makes) + len(fills)
    for i, name in enumerate(names):
        out.java["rows", name] = by_key(found[at + i].rows)
        out.java["stream", name] = told(found[at + len(names) + 1 + i].changes)
        table = lake.table(f"d.{name}")
        out.shoal["rows", name] = by_key(table.scan().to_arrow().to_pylist())
        out.shoal["stream", name] = stream_of(table)
    yield out


NAMES = [f"{who}_{n}" for who in "sj" for n in (*TABLES, *APPENDS)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["rows", "stream"])
def test_both_see_the_same(seen: Seen, name: str, what: str) -> None:
    ours, javas = seen.shoal[what, name], seen.java[what, name]
    assert ours, "nothing to compare"
    # the order of buckets within a snapshot is the reader's
    assert sorted(javas, key=repr) == sorted(ours, key=repr)


@pytest.mark.parametrize("name", [f"{who}_{n}" for who in "sj" for n in TABLES])
def test_both_share_files(seen: Seen, name: str) -> None:
    table = shoal.open(f"file:{seen.warehouse}").table(f"d.{name}")
    with_changes = [i for i in table.metadata.snapshot_ids() if table.metadata.snapshot(i).changelog_record_count]
    # one a checkpoint and partition, but where a partition had one changelog file only
    assert len(with_changes) < len(shared_files(seen.warehouse, name)) <= 2 * len(with_changes)


def test_expiry_of_either_takes_the_shared_files(seen: Seen, java) -> None:
    """Java expires what shoal wrote, shoal what Java wrote."""
    lake = shoal.open(f"file:{seen.warehouse}")
    calls = [f"CALL sys.expire_snapshots(`table` => 'd.s_{n}', retain_max => 1, retain_min => 1)" for n in TABLES]
    for name in TABLES:
        lake.table(f"d.j_{name}").maintain.expire(retain_min=1, retain_max=1, older_than="2999-01-01 00:00:00")
    java(seen.warehouse, calls)
    for name in (f"{who}_{n}" for who in "sj" for n in TABLES):
        table = shoal.open(f"file:{seen.warehouse}").table(f"d.{name}")
        (left,) = table.metadata.snapshot_ids()
        told_here = bool(table.metadata.snapshot(left).changelog_record_count)
        assert bool(shared_files(seen.warehouse, name)) is told_here
        assert len(shared_files(seen.warehouse, name)) <= 2
