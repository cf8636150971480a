# SPDX-License-Identifier: Apache-2.0
"""A Java writer and a shoal writer on one table at the same time, one compactor beside them: nothing is lost.

Java commits in a loop of its own process; a second Java process only reads at the end. What two Java writers would not
run into, these do not run into either: append commits never conflict, and only the compactor compacts.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.table.table import Table

pytestmark = pytest.mark.java

SCHEMA = pa.schema([("k", pa.int64()), ("who", pa.string()), ("n", pa.int32())])
JAVA_COMMITS, ROWS = 25, 4


def java_inserts(table: str, first: int) -> list[str]:
    """One commit each, of keys that only Java writes and one that both write."""
    out = []
    for c in range(JAVA_COMMITS):
        rows = [f"(CAST({first + c * ROWS + i} AS BIGINT), 'java', {c})" for i in range(ROWS)]
        out.append(f"INSERT INTO {table} VALUES {', '.join(rows)}")
    return out


class ShoalWriter(threading.Thread):
    """Commits until told to stop, at least as often as Java."""

    def __init__(self, table: Table) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.enough = threading.Event()
        self.rows: list[dict[str, object]] = []
        self.commits = 0
        self.failure: BaseException | None = None
        self.last: int | None = None

    def run(self) -> None:
        try:
            with self.table.write(commit_user="shoal-beside-java") as w:
                while not self.enough.is_set() or self.commits < JAVA_COMMITS:
                    c = self.commits
                    rows = [{"k": 1_000_000 + c * ROWS + i, "who": "shoal", "n": c} for i in range(ROWS)]
                    w.append(pa.Table.from_pylist(rows, schema=SCHEMA))
                    self.last = w.commit(checkpoint=c).snapshots[-1]
                    self.rows += rows
                    self.commits += 1
                    self.enough.wait(0.3)  # room for Java: a compactor that loses every race never ends
        except BaseException as err:  # noqa: BLE001 - told by the test
            self.failure = err


@pytest.mark.parametrize("kind", ["append", "keyed"])
@pytest.mark.parametrize("compactor", ["shoal", "java"])
def test_both_write_and_one_compacts(java, tmp_path: Path, kind: str, compactor: str) -> None:
    # Java's LocalFileIO.rename looks whether a snapshot is there, then moves its own to that name, which replaces one
    # that came in between: two Java processes on one disk lose commits so. shoal's writer notices and stops.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if both_write(java, folder, kind, compactor):
            return
    raise AssertionError("Java replaced a snapshot of shoal's in each of three runs")


def replaced(table: Table, known: int) -> bool:
    """Whether Java's snapshot stands where shoal had committed one."""
    return table.metadata.snapshot(known).commit_user != "shoal-beside-java"


def both_write(java, tmp_path: Path, kind: str, compactor: str) -> bool:
    """False when Java replaced a snapshot."""
    lake = shoal.open(f"file:{tmp_path}")
    options = {"write-only": "true", "bucket": "2" if kind == "keyed" else "-1", "commit.max-retries": "100"}
    table = lake.create_table("d.t", SCHEMA, primary_key=["k"] if kind == "keyed" else [], options=options)
    writer = ShoalWriter(table)
    writer.start()
    compactions = 0
    statements = java_inserts("d.t", 0)
    if compactor == "java":
        for at in (20, 14, 8):
            statements.insert(at, "CALL sys.compact(`table` => 'd.t')")
    else:
        stop = threading.Event()
        compacting = threading.Thread(target=lambda: count(stop), daemon=True)

        def count(until: threading.Event) -> None:
            nonlocal compactions
            while not until.wait(0.7):
                compactions += table.maintain.compact(full=True).snapshot is not None

        compacting.start()
    java(tmp_path, statements)
    writer.enough.set()
    writer.join(60)
    if compactor == "shoal":
        stop.set()
        compacting.join(60)
        assert compactions > 0
    if isinstance(writer.failure, shoal.Fenced) and writer.last is not None and replaced(table, writer.last):
        return False
    assert writer.failure is None, writer.failure

    wanted = [*writer.rows]
    wanted += [{"k": c * ROWS + i, "who": "java", "n": c} for c in range(JAVA_COMMITS) for i in range(ROWS)]
    expected = Counter(tuple(r.values()) for r in wanted)
    table = shoal.open(f"file:{tmp_path}").table("d.t")
    assert Counter(tuple(r.values()) for r in table.scan().to_arrow().to_pylist()) == expected
    (read,) = java(tmp_path, ["SELECT * FROM d.t"])
    assert Counter((r["k"], r["who"], r["n"]) for r in read.rows) == expected
    kinds = Counter(s["commit_kind"] for s in table.inspect.snapshots().to_pylist())
    assert kinds["COMPACT"] > 0
    assert kinds["APPEND"] == JAVA_COMMITS + writer.commits
    return True
