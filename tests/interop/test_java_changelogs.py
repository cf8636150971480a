# SPDX-License-Identifier: Apache-2.0
"""Java reads, streams and compacts tables whose changelogs and deletion vectors shoal's compactions made; and back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import shoal

pytestmark = pytest.mark.java

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string()), ("n", pa.int64())])
KINDS = ("+I", "-U", "+U", "-D")
Row = tuple[Any, ...]
TABLES: dict[str, dict[str, str]] = {
    "lookup": {"changelog-producer": "lookup"},
    "lookup_vectors": {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
    "vectors": {"deletion-vectors.enabled": "true", "num-sorted-run.compaction-trigger": "3"},
    "vectors_64": {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": "true"},
    "first_row": {"merge-engine": "first-row", "changelog-producer": "lookup"},
    "full": {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "3"},
    "partial": {"merge-engine": "partial-update", "changelog-producer": "lookup", "ignore-delete": "true"},
    "summed": {
        "merge-engine": "aggregation", "fields.n.aggregate-function": "sum", "changelog-producer": "lookup",
        "fields.v.aggregate-function": "last_non_null_value", "ignore-delete": "true",
    },
    "deduplicated": {"changelog-producer": "lookup", "changelog-producer.row-deduplicate": "true"},
    "levels": {"changelog-producer": "lookup", "num-levels": "3", "num-sorted-run.compaction-trigger": "2"},
}  # fmt: skip


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)


def write(table: Any, seed: int, commits: range) -> None:
    rng = random.Random(seed)
    deletes = table.options.merge_engine == "deduplicate"
    with table.write("w") as w:
        for i in commits:
            chosen = rng.sample(range(80), 12)
            gone = chosen[: rng.randrange(5)] if deletes else []
            rows = [(k, rng.choice(["a", "b", None]), rng.choice([None, 1, 2])) for k in chosen[len(gone) :]]
            (w.append if table.options.merge_engine == "first-row" else w.upsert)(batch(rows))
            if gone:
                w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            w.commit(checkpoint=i)


def rows_of(table: Any) -> list[dict[str, Any]]:
    return by_key(table.scan().to_arrow().to_pylist())


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda r: r["k"])


def stream_of(table: Any) -> list[tuple[int, str, dict[str, Any]]]:
    out = []
    for c in table.follow(start=1, until="latest"):
        out += [(c.snapshot, KINDS[k], r) for k, r in zip(c.kinds.to_pylist(), c.rows.to_pylist())]
    return out


@dataclass
class Seen:
    shoal: dict[tuple[str, str], Any] = field(default_factory=dict)
    java: dict[tuple[str, str], Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    lake = shoal.open(f"file:{warehouse}")
    out = Seen()
    names = list(TABLES)
    for i, (name, options) in enumerate(TABLES.items()):
        table = lake.create_table(f"d.{name}", SCHEMA, primary_key=["k"], options={"bucket": "1", **options})
        write(table, i, range(1, 11))
        out.shoal["rows", name], out.shoal["stream", name] = rows_of(table), stream_of(table)
    batch_reads = [f"SELECT * FROM d.`{n}`" for n in names]
    hint = "/*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '1') */"
    streams = [f"SELECT * FROM d.`{n}` {hint}" for n in names]
    streaming, back = "SET 'execution.runtime-mode' = 'streaming'", "SET 'execution.runtime-mode' = 'batch'"
    compacts = [f"CALL sys.compact(`table` => 'd.{n}')" for n in names]
    results = java(warehouse, [*batch_reads, streaming, *streams, back, *compacts, *batch_reads])
    n = len(names)
    for i, name in enumerate(names):
        out.java["rows", name] = by_key(results[i].rows)
        out.java["stream", name] = results[n + 1 + i].changes
        out.java["compacted", name] = by_key(results[3 * n + 2 + i].rows)
        out.shoal["compacted", name] = rows_of(lake.table(f"d.{name}"))
    # shoal on top of Java's compactions, and Java again
    for i, name in enumerate(names):
        table = lake.table(f"d.{name}")
        write(table, 100 + i, range(11, 15))
        table.maintain.compact(full=True)
        out.shoal["on top", name], out.shoal["stream on top", name] = rows_of(table), stream_of(table)
    results = java(warehouse, [*batch_reads, streaming, *streams])
    for i, name in enumerate(names):
        out.java["on top", name] = by_key(results[i].rows)
        out.java["stream on top", name] = results[n + 1 + i].changes
    yield out


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("stage", ["rows", "stream", "compacted", "on top", "stream on top"])
def test_java_sees_the_same(seen: Seen, name: str, stage: str) -> None:
    assert seen.shoal[stage, name], "nothing to compare"
    assert seen.java[stage, name] == seen.shoal[stage, name]
