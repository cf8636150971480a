# SPDX-License-Identifier: Apache-2.0
"""Two compactors that did the same work, and a writer that commits meanwhile: one wins, one gets a conflict."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict
from shoal.store.memory import MemoryStore
from shoal.table.progress import Progress
from tests.faults.walk import left_over, missing

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])
ROUNDS = 4
WRITES = {"write-only": True, "compaction.min.file-num": 2, "snapshot.num-retained.min": 999,
          "snapshot.num-retained.max": 999}  # fmt: skip
KINDS: dict[str, tuple[bool, dict[str, object]]] = {
    "keys": (True, {"bucket": 2}),
    "lookup": (True, {"bucket": 1, "changelog-producer": "lookup"}),
    "full-compaction": (True, {"bucket": 1, "changelog-producer": "full-compaction"}),
    "vectors": (True, {"bucket": 1, "deletion-vectors.enabled": True}),
    "vectors and lookup": (True, {"bucket": 1, "deletion-vectors.enabled": True, "changelog-producer": "lookup"}),
    "first-row": (True, {"bucket": 1, "merge-engine": "first-row", "changelog-producer": "lookup"}),
    "dynamic buckets": (True, {"bucket": -1}),
    "append": (False, {"bucket": -1}),
    "append, buckets": (False, {"bucket": 1, "bucket-key": "k"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_of_two_compactors_wins_beside_a_writer(name: str) -> None:
    keyed, options = KINDS[name]
    store, clock = MemoryStore(), ManualClock()

    def lake(seed: int) -> Lake:
        return Lake(store, clock=clock, scheduler=ManualScheduler, rng=random.Random(seed))

    lake(0).create_table("d.t", SCHEMA, primary_key=["k"] if keyed else [], options=WRITES | options)
    written = [0]
    model: dict[int, int] = {}
    lost, won = [], []
    with lake(1).table("d.t").write("writer") as writer, ThreadPoolExecutor(2) as threads:

        def write() -> None:
            n = written[0] = written[0] + 1
            rows = [{"k": k, "v": n} for k in ((n, n + 1, n + 2) if keyed else (3 * n, 3 * n + 1, 3 * n + 2))]
            writer.upsert(rows) if keyed else writer.append(rows)
            writer.commit(checkpoint=n)
            for r in rows:
                if name != "first-row" or r["k"] not in model:
                    model[r["k"]] = r["v"]

        # both have written their files, the writer commits, then both commit
        meet = threading.Barrier(2, action=write)

        def compact(seed: int) -> None:
            def done(p: Progress) -> None:
                if p.tasks_done == p.tasks:
                    meet.wait(60)

            try:
                report = lake(seed).table("d.t").maintain.compact(full=True, progress=done)
                won.append(report.snapshot)
            except Conflict:
                lost.append(seed)

        for r in range(ROUNDS):
            for _ in range(3):
                write()
            list(threads.map(compact, (10 * r + 10, 10 * r + 11)))
    table = lake(2).table("d.t")
    assert (len(won), len(lost)) == (ROUNDS, ROUNDS), (won, lost)
    assert None not in won
    table.maintain.compact(full=True)
    rows = [(r["k"], r["v"]) for r in table.scan().to_arrow().to_pylist()]
    assert sorted(rows) == sorted(model.items())
    assert (list(missing(table)), left_over(table)) == ([], [])
    newest = table.metadata.latest_id()
    assert newest is not None
    if keyed and table.options.changelog_producer != "none":
        told: dict[int, int] = {}
        for c in table.changes(0, newest, mode="changelog").to_arrow().to_pylist():
            if c["_VALUE_KIND"] in (1, 3):
                assert told.pop(c["k"]) == c["v"]
            else:
                assert told.setdefault(c["k"], c["v"]) == c["v"]
        assert told == model
