# SPDX-License-Identifier: Apache-2.0
"""Java and shoal sort tables with dynamic buckets: each reads, streams, upserts, compacts and sorts what the other made."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

COLUMNS = pa.schema([("p", pa.string()), ("id", pa.int32()), ("a", pa.int64()), ("b", pa.string())])
DYNAMIC = {"bucket": "-1", "dynamic-bucket.target-row-num": "50"}
TABLES: dict[str, dict[str, str]] = {
    "plain": {},
    "fields": {"sequence.field": "a"},
    "sums": {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"},
    "parts": {"merge-engine": "partial-update"},
    "firsts": {"merge-engine": "first-row"},
    "marks": {"deletion-vectors.enabled": "true"},
    "looks": {"changelog-producer": "lookup"},
    "inputs": {"changelog-producer": "input"},
    "orcs": {"file.format": "orc"},
}
ORDERS = [("order", "a"), ("zorder", "a,b"), ("hilbert", "a,id")]
HIDE = ("firsts", "marks")  # where rows show once they are compacted


def make(lake: Any, name: str) -> Any:
    options = {**DYNAMIC, **TABLES[name]}
    t = lake.create_table(f"d.{name}", COLUMNS, primary_key=["p", "id"], partition_by=["p"], options=options)
    rng = random.Random(name)
    for _ in range(3):
        with t.write() as w:
            w.upsert(some(rng))
            w.commit()
    return t


def some(rng: random.Random) -> list[dict[str, Any]]:
    ids = rng.sample(range(400), 150)
    return [{"p": "xy"[i % 2], "id": i, "a": rng.randint(-500, 500), "b": f"b{rng.randint(0, 99)}"} for i in ids]


def rows(answer: Any) -> list[str]:
    return sorted(str(sorted(r.items())) for r in answer)


def held(t: Any) -> list[str]:
    return rows(t.scan().to_arrow().to_pylist())


def spans(t: Any, column: str = "a") -> list[list[tuple[int, int]]]:
    """Least and greatest value of every bucket of each partition."""
    out = []
    for p in "xy":
        places = {f["bucket"] for f in t.inspect.files().to_pylist() if f["partition"] == f"{{{p}}}"}
        found = [
            t.with_options({"scan.bucket": b}).scan(f"p = '{p}'").to_arrow().column(column).to_pylist()
            for b in sorted(places)
        ]
        out.append([(min(v), max(v)) for v in found])
    return out


def follow(of: list[tuple[int, int]]) -> bool:
    return all(high <= low for (_, high), (low, _) in pairwise(of))


def test_java_goes_on_from_what_shoal_sorted(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    for i, name in enumerate(TABLES):
        t = make(lake, name)
        before = held(t)
        strategy, columns = ORDERS[0] if i % 2 == 0 else ORDERS[i // 2 % 3]
        t.maintain.compact(order_strategy=strategy, order_by=columns)
        assert held(t) == before, name
        if columns == "a":
            assert all(len(of) > 2 and follow(of) for of in spans(t)), name
    mine = {n: held(lake.table(f"d.{n}")) for n in TABLES}
    counts = {n: len(lake.table(f"d.{n}").scan().to_arrow()) for n in TABLES}
    last = {n: lake.table(f"d.{n}").metadata.latest_id() for n in TABLES}

    selects = [f"SELECT * FROM d.{n}" for n in TABLES]
    # every key that there is, and one more: each must find its bucket, with several assigners too
    ups = [
        f"INSERT INTO d.{n} /*+ OPTIONS('dynamic-bucket.assigner-parallelism' = '2', 'sink.parallelism' = '2') */ "
        f"SELECT p, id, CAST(1000 AS BIGINT), 'java' FROM d.{n} UNION ALL SELECT 'x', 9000, CAST(1 AS BIGINT), 'new'"
        for n in TABLES
    ]
    compacts = [f"CALL sys.compact(`table` => 'd.{n}', compact_strategy => 'full')" for n in TABLES]
    stream = [
        "SET 'execution.runtime-mode' = 'streaming'",
        f"SELECT * FROM d.looks /*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '{last['looks']}') */",
        "SET 'execution.runtime-mode' = 'batch'",
    ]
    found = java(tmp_path, [*selects, *ups, *selects, *compacts, *selects, *stream])
    by_sql: dict[str, list[Any]] = {}
    for r in found:
        by_sql.setdefault(r.sql, []).append(r)
    for n in TABLES:
        t = lake.table(f"d.{n}")
        first, second, third = (rows(r.rows) for r in by_sql[f"SELECT * FROM d.{n}"])
        assert first == mine[n], n
        assert third == held(t) and len(third) == counts[n] + 1, n
        if n not in HIDE:
            assert second == third, n
    [told] = [r for s, rs in by_sql.items() if "from-snapshot" in s for r in rs]
    # the snapshot of the sort tells nothing, those of Java what it changed: -U and +U of each key, +I of the new one
    assert len(told.changes) == 2 * counts["looks"] + 1
    assert {s for s, _, _ in told.changes if s <= last["looks"]} == set()
    for n in TABLES:  # and on from there
        t = lake.table(f"d.{n}")
        before = held(t)
        t.maintain.compact(full=True)
        t.maintain.compact(order_strategy="order", order_by="id")
        assert held(t) == before and all(follow(of) for of in spans(t, "id")), n


def test_shoal_goes_on_from_what_java_sorted(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    for name in TABLES:
        make(lake, name)
    mine = {n: held(lake.table(f"d.{n}")) for n in TABLES}
    late, untold, static = (
        lake.create_table(
            f"d.{n}", COLUMNS, primary_key=["p", "id"], partition_by=["p"],
            options=DYNAMIC | {"write-only": "true"} | more,
        )
        for n, more in (("late", TABLES["marks"]), ("untold", TABLES["looks"]),
                        ("static", {"dynamic-partition-overwrite": "false"}))
    )  # fmt: skip
    for t in (late, untold, static):
        for i in (0, 1):  # the second row is not compacted
            with t.with_options({"write-only": bool(i)}).write() as w:
                w.upsert([{"p": "xy"[i] if t is static else "x", "id": i, "a": 1, "b": "b"}])
                w.commit()
    sorts = [
        f"CALL sys.compact(`table` => 'd.{n}', order_strategy => 'order', order_by => 'a', "
        "options => 'sink.parallelism=1,scan.parallelism=1')"
        for n in (*TABLES, "late", "untold")
    ]
    sorts.append(
        "CALL sys.compact(`table` => 'd.static', `partitions` => 'p=x', order_strategy => 'order', order_by => 'a')"
    )
    java(tmp_path, sorts)
    # what is not copied: rows that no compaction had shown, changes that none had told, partitions that were not chosen
    for t in (late, untold, static):
        t.maintain.compact(full=True)
    assert [t.scan().to_arrow().column("id").to_pylist() for t in (late, untold, static)] == [[0], [0, 1], [0]]
    told = untold.changes(2, untold.metadata.latest_id(), mode="changelog").to_arrow()
    assert told.num_rows == 0
    for n in TABLES:
        t = lake.table(f"d.{n}")
        assert held(t) == mine[n], n
        newest = t.metadata.latest()
        assert newest is not None and newest.commit_kind == "OVERWRITE"
        theirs = spans(t)
        assert all(len(of) > 2 and follow(of) for of in theirs), n
        t.maintain.compact(full=True)
        t.maintain.compact(order_strategy="order", order_by="a")
        assert held(t) == mine[n], n
        assert [len(of) for of in spans(t)] == [len(of) for of in theirs], n
        with t.write() as w:
            w.upsert(t.scan().to_arrow().to_pylist())
            w.commit()
        t.maintain.compact(full=True)
        assert len(held(t)) == len(mine[n]), n
    answers = java(tmp_path, [f"SELECT * FROM d.{n}" for n in TABLES])
    for n, answer in zip(TABLES, answers):
        assert rows(answer.rows) == held(lake.table(f"d.{n}")), n
