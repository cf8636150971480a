# SPDX-License-Identifier: Apache-2.0
"""A job that writes and compacts, and another one beside it that compacts, deletes, expires or rolls back."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict, Fenced, StorageFailed
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.walk import left_over, missing

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.int64())])


NAMES = random.Random(5)


def make(store: MemoryStore, keyed: bool = True, **options: object) -> Table:
    o = {n.replace("__", ".").replace("_", "-"): v for n, v in options.items()}
    return lake(store).create_table("d.t", SCHEMA, primary_key=["k"] if keyed else [], options={"bucket": 1, **o})


def lake(store: Any) -> Lake:
    return Lake(store, clock=ManualClock(), scheduler=ManualScheduler, rng=NAMES)


def rows(t: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in t.scan().to_arrow().to_pylist())


def upsert(w: Any, checkpoint: int | None = None, **values: int) -> Any:
    w.upsert([{"k": int(k[1:]), "v": v} for k, v in values.items()])
    return w.commit(checkpoint=checkpoint)


LOOKS = [
    {"deletion_vectors__enabled": True}, {"changelog_producer": "lookup"},
    {"deletion_vectors__enabled": True, "changelog_producer": "lookup"},
]  # fmt: skip


@pytest.mark.parametrize("options", LOOKS, ids=["vectors", "lookup", "both"])
def test_rows_that_another_compaction_moved_are_looked_up_again(options: dict[str, object]) -> None:
    """The files that the writer's compaction replaces are all there; those that it looked into are not."""
    t = make(MemoryStore(), **options)
    with t.write("job") as w:
        upsert(w, 1, k1=1, k2=1)
        upsert(w, 2, k2=2)
        t.maintain.compact(full=True)
        done = upsert(w, 3, k1=3)
        assert len(done.snapshots) == 2 and done.compaction_conflict is None
        assert rows(t) == [(1, 3), (2, 2)]
        upsert(w, 4, k1=4, k3=4)
    assert rows(t) == [(1, 4), (2, 2), (3, 4)]
    assert list(missing(t)) == [] == left_over(t)
    if "changelog_producer" in options:
        told = t.changes(0, t.metadata.latest_id(), mode="changelog").to_arrow().to_pylist()
        assert [(r["_VALUE_KIND"], r["k"], r["v"]) for r in told] == [
            (0, 1, 1), (0, 2, 1), (1, 2, 1), (2, 2, 2), (1, 1, 1), (2, 1, 3), (1, 1, 3), (2, 1, 4), (0, 3, 4),
        ]  # fmt: skip


def test_a_delete_in_a_bucket_meets_the_compaction_of_its_files() -> None:
    store = MemoryStore()
    t = make(store, False, bucket_key="k", deletion_vectors__enabled=True, write_only=True, compaction__min__file_num=2)
    for v in range(3):
        with t.write() as w:
            w.append([{"k": 1, "v": v}])
            w.commit()

    class Meanwhile(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            if self.calls["create"] == 0:
                t.maintain.compact(full=True)
            return super().create(path, data)

    with pytest.raises(Conflict, match="after rows of that bucket had been looked up"):
        lake(Meanwhile(store)).table("d.t").delete("v = 1")
    assert rows(t) == [(1, 0), (1, 1), (1, 2)]
    assert left_over(t) == []
    t.delete("v = 1")
    assert rows(t) == [(1, 0), (1, 2)]


def test_a_writer_that_rests_while_its_last_snapshot_expires_goes_on() -> None:
    t = make(MemoryStore(), snapshot__num_retained__min=1, snapshot__num_retained__max=1)
    with t.write("job") as w:
        upsert(w, 1, k1=1)
        for v in range(4):
            with t.write() as other:
                upsert(other, k2=v)
        assert 1 not in t.metadata.snapshot_ids()
        upsert(w, 2, k1=2)
    assert rows(t) == [(1, 2), (2, 3)]


def test_a_writer_whose_last_snapshot_was_rolled_back_stops() -> None:
    t = make(
        MemoryStore(),
    )
    with t.write("job") as w:
        upsert(w, 1, k1=1)
        t.tags.create("then")
        upsert(w, 2, k1=2)
        t.rollback(tag="then")
        with pytest.raises(Fenced, match="rolled back"):
            upsert(w, 3, k1=3)
    assert rows(t) == [(1, 1)]


def test_a_compaction_that_failed_is_told_once_and_tried_again() -> None:
    store = MemoryStore()
    t = make(store, num_sorted_run__compaction_trigger=2, changelog_producer="lookup")
    broken = lake(FaultyStore(store, Fault("fail", 1, path="changelog-")))
    with broken.table("d.t").write("job") as w:
        with pytest.raises(StorageFailed, match="planned failure"):
            upsert(w, 1, k1=1)
        w.commit(checkpoint=1)
        upsert(w, 2, k1=2)
    assert rows(t) == [(1, 2)]
    assert left_over(t) == []
