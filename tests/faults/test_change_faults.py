# SPDX-License-Identifier: Apache-2.0
"""The store dies or fails at every mutating call of a change: rows are those of before or those of after, never between.

Compaction of postponed rows, columns and blobs of data-evolution tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore

NAMES = random.Random(11)
COLUMNS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64()), ("b", pa.binary())])
WIDE = {
    "bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true", "blob-field": "b",
    "deletion-vectors.enabled": "true", "blob.target-file-size": "40 b",
}  # fmt: skip
Rows = list[dict[str, Any]]


def lake(store: object) -> Lake:
    # one source of names for all runs: a restarted process must not give a name away again
    return Lake(store, clock=ManualClock(), scheduler=ManualScheduler, rng=NAMES)  # type: ignore[arg-type]


def rows() -> Rows:
    return [{"p": "xy"[k % 2], "k": k, "v": k, "b": b"blob %d" % k} for k in range(8)]


def wide() -> MemoryStore:
    store = MemoryStore()
    t = lake(store).create_table("d.t", COLUMNS, partition_by=["p"], options=WIDE)
    with t.write() as w:
        w.append(rows())
        w.commit()
    return store


def late() -> MemoryStore:
    store = MemoryStore()
    options = {"bucket": "-2", "postpone.default-bucket-num": "2", "num-sorted-run.compaction-trigger": "2"}
    columns = COLUMNS.remove(3)
    t = lake(store).create_table("d.t", columns, primary_key=["p", "k"], partition_by=["p"], options=options)
    for at in range(3):
        with t.write(commit_user="stream") as w:
            w.upsert([{"p": "xy"[k % 2], "k": k, "v": at} for k in range(at, 8, at + 1)])
            w.commit(at)
        if at == 0:
            t.maintain.compact()
    return store


def merged(store: object) -> object:
    source = [{"p": "z", "k": k, "v": 9, "b": None} for k in (1, 2, 9)]
    return lake(store).table("d.t").merge(
        source, on="k", when_matched_delete=pc.field("k") == 1, when_matched_update={"v": 0},
        when_not_matched_insert=True,
    )  # fmt: skip


CHANGES: dict[str, tuple[Callable[[], MemoryStore], Callable[[object], object]]] = {
    "postponed": (late, lambda s: lake(s).table("d.t").maintain.compact()),
    "postponed, in full": (late, lambda s: lake(s).table("d.t").maintain.compact(full=True)),
    "columns": (wide, lambda s: lake(s).table("d.t").update({"v": -1, "b": b"new"}, where="k < 5")),
    "merge": (wide, merged),
}


def held(store: object) -> list[str]:
    return sorted(map(str, lake(store).table("d.t").scan().to_arrow().to_pylist()))


def unnamed(store: MemoryStore) -> set[str]:
    """Data and index files that no snapshot names."""
    meta = lake(store).table("d.t").metadata
    named = set()
    for i in meta.snapshot_ids():
        snap = meta.snapshot(i)
        for m in (*meta.manifests(snap), *meta.delta(snap)):
            named |= set(meta.entries(m).column("file_name").to_pylist())
        if snap.index_manifest:
            named |= {e.file_name for e in meta.index_entries(snap.index_manifest)}
    files = {f.path.rsplit("/", 1)[-1] for f in store.list("d.db/t") if "/bucket-" in f.path or "/index/" in f.path}
    return files - named


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("action", ["die_after", "fail"])
def test_a_change_happens_as_a_whole_or_not_at_all(name: str, action: str) -> None:
    cuts(name, action, every=9)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("action", ["die", "die_after", "fail", "fail_after"])
def test_a_change_at_every_cut(name: str, action: str) -> None:
    cuts(name, action, every=1)


def cuts(name: str, action: str, every: int) -> None:
    make, change = CHANGES[name]
    store = make()
    before = held(store)
    counted = FaultyStore(store, [])
    change(counted)
    after = held(store)
    assert after != before
    for at in range(1 + list(CHANGES).index(name) % every, counted.mutations + 1, every):
        store = make()
        try:
            change(FaultyStore(store, [Fault(action, at=at)]))
            assert held(store) == after
        except (Died, shoal.ShoalError) as err:
            assert held(store) in (before, after)
            if action == "fail" and not isinstance(err, shoal.CommitUnknown):
                assert held(store) == before
                assert not unnamed(store)
            if held(store) == before:
                change(store)
                assert held(store) == after
