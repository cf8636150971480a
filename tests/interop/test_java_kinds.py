# SPDX-License-Identifier: Apache-2.0
"""Tables of every kind that shoal writes, in Java's hands: read, streamed, compacted, written to; then shoal again.

Three JVM runs for all of them: Java reads what shoal wrote and compacts it; Java inserts; and after shoal has written
and compacted on top of that, Java reads once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from kinds import Kind, kinds
from oracle_values import multiset, rows_of

import shoal
from shoal.table.table import Table

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

KINDS = {k.name: k for k in kinds()}
STREAMS = [n for n, k in KINDS.items() if k.stream]
COMPACTED = [n for n, k in KINDS.items() if k.compacts]
# filters of tables with file indexes: Java plans with the indexes that shoal wrote
FILTERS = ["s = 'x' AND n = 3", "n = 8 OR n IS NULL", "t > 3 AND k < 500", "k = 777"]
INDEXED = ["indexed", "indexed_beside"]
# rows that Java inserts: of keys that are there and of new ones
JAVA_ROWS = "('a',1,4,'java',3),('b',2,CAST(NULL AS BIGINT),CAST(NULL AS STRING),4),('c',77,1,'java',2)"
STREAMING, BATCH = "SET 'execution.runtime-mode' = 'streaming'", "SET 'execution.runtime-mode' = 'batch'"
FROM_FIRST = "/*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '1') */"


def read(name: str) -> str:
    return f"SELECT * FROM kinds.`{name}`"


def counted(rows: list[dict[str, Any]], schema: pa.Schema) -> Counter[str]:
    return multiset(rows, schema)


def batch_rows(table: Table) -> Counter[str]:
    found = table.scan().to_arrow()
    return counted(rows_of(found), found.schema)


def stream_rows(table: Table) -> Counter[tuple[int, str, str]]:
    """(snapshot, kind, row) of everything since the first snapshot."""
    out: Counter[tuple[int, str, str]] = Counter()
    for c in table.follow(start=1, until="latest"):
        rows = pa.Table.from_batches([c.rows])
        for kind, row in zip(c.to_batch().column("rowkind").to_pylist(), rows_of(rows)):
            out[c.snapshot, kind, next(iter(counted([row], rows.schema)))] += 1
    return out


@dataclass
class Seen:
    """By stage and table, what shoal and what Java read."""

    shoal: dict[tuple[str, str], Any] = field(default_factory=dict)
    java: dict[tuple[str, str], Any] = field(default_factory=dict)

    def look(self, stage: str, lake: shoal.Lake) -> None:
        for name in KINDS:
            self.shoal[stage, name] = batch_rows(lake.table(f"kinds.{name}"))
            if name in STREAMS:
                self.shoal[f"{stage}, streamed", name] = stream_rows(lake.table(f"kinds.{name}"))

    def take(self, stage: str, kind: Kind, result: Any) -> None:
        self.java[stage, kind.name] = counted(result.rows, kind.columns)

    def take_stream(self, stage: str, kind: Kind, result: Any) -> None:
        changes = [(s, op, next(iter(counted([row], kind.columns)))) for s, op, row in result.changes]
        self.java[f"{stage}, streamed", kind.name] = Counter(changes)


@pytest.fixture(scope="module")
def seen(java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    lake = shoal.open(f"file:{warehouse}")
    for k in KINDS.values():
        k.write(k.create(lake), range(1, k.commits + 1))
    out = Seen()
    reads = [read(n) for n in KINDS]
    streams = [STREAMING, *(f"{read(n)} {FROM_FIRST}" for n in STREAMS), BATCH]

    def take(stage: str, results: list[Any], *, streamed: bool) -> None:
        for k, r in zip(KINDS.values(), results):
            out.take(stage, k, r)
        if streamed:
            for n, r in zip(STREAMS, results[len(KINDS) + 1 :]):
                out.take_stream(stage, KINDS[n], r)

    out.look("written", lake)
    compacts = [f"CALL sys.compact(`table` => 'kinds.{n}')" for n in COMPACTED]
    filtered = [f"{read(n)} WHERE {f}" for n in INDEXED for f in FILTERS]
    results = java(warehouse, [*filtered, *reads, *streams, *compacts, *reads])
    for r, (n, f) in zip(results, [(n, f) for n in INDEXED for f in FILTERS]):
        out.take(f, KINDS[n], r)
        found = lake.table(f"kinds.{n}").scan(f).to_arrow()
        out.shoal[f, n] = counted(rows_of(found), found.schema)
    results = results[len(filtered) :]
    take("written", results, streamed=True)
    take("compacted", results[-len(reads) :], streamed=False)
    out.look("compacted", lake)

    names = list(KINDS)
    sets = []
    for at in range(0, len(names), 6):
        inserts = [f"INSERT INTO kinds.`{n}` VALUES {JAVA_ROWS}" for n in names[at : at + 6]]
        sets.append("EXECUTE STATEMENT SET BEGIN " + "; ".join(inserts) + "; END")
    results = java(warehouse, [*sets, *reads])
    take("inserted", results[-len(reads) :], streamed=False)
    out.look("inserted", lake)

    for k in KINDS.values():
        table = lake.table(f"kinds.{k.name}")
        k.write(table, range(k.commits + 1, k.commits + 3))
        table.maintain.compact(full=True)
    out.look("on top", lake)
    take("on top", java(warehouse, [*reads, *streams]), streamed=True)
    yield out


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("stage", ["written", "compacted", "inserted", "on top"])
def test_java_and_shoal_see_the_same_rows(seen: Seen, name: str, stage: str) -> None:
    assert seen.java[stage, name] == seen.shoal[stage, name]
    assert seen.java["on top", name], "nothing to compare"


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("filtered", FILTERS)
def test_java_finds_the_same_rows_through_the_indexes(seen: Seen, name: str, filtered: str) -> None:
    assert seen.java[filtered, name] == seen.shoal[filtered, name]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("stage", ["written, streamed", "on top, streamed"])
def test_java_and_shoal_see_the_same_stream(seen: Seen, name: str, stage: str) -> None:
    assert seen.java[stage, name] == seen.shoal[stage, name]
    assert seen.java[stage, name], "nothing to compare"


@pytest.mark.parametrize("name", [n for n in COMPACTED if n != "postponed"])
def test_a_compaction_by_java_changes_no_row(seen: Seen, name: str) -> None:
    if KINDS[name].options.get("merge-engine") != "first-row" and "vectors" not in name:
        assert seen.java["compacted", name] == seen.java["written", name]
