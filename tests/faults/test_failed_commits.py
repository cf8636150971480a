# SPDX-License-Identifier: Apache-2.0
"""A commit that fails says whether its rows are still there, and trying again neither loses nor doubles them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
KINDS = pytest.mark.parametrize("key", [[], ["k"]], ids=["append", "keyed"])


def table(store: Any, key: list[str] | None = None) -> Any:
    lake = Lake(store, clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    if key is None:
        return lake.table("d.t")
    return lake.create_table("d.t", SCHEMA, primary_key=key, options={"bucket": 2, "bucket-key": "k"})


def rows(*keys: int) -> pa.Table:
    return pa.table([list(keys), [f"v{k}" for k in keys]], schema=SCHEMA)


def keys(store: MemoryStore) -> list[int]:
    return sorted(table(store).scan().to_arrow().column("k").to_pylist())


def add(w: Any, *which: int) -> None:
    (w.upsert if w.table.primary_key else w.append)(rows(*which))


@KINDS
@pytest.mark.parametrize("action", ["fail", "fail_after"])
def test_rows_of_a_failed_data_file_stay_and_are_committed_once(key: list[str], action: Any) -> None:
    inner = MemoryStore()
    table(inner, key)
    store = FaultyStore(inner, Fault(action, 2, "sink", "bucket-"))
    with table(store).write(commit_user="u") as w:
        add(w, *range(8))
        with pytest.raises(shoal.StorageFailed) as told:
            w.commit(checkpoint=1)
        assert told.value.hint in ("a test asked for it", "the rows are still with this writer: commit again")
        w.commit(checkpoint=1)
    assert keys(inner) == list(range(8))


@KINDS
def test_rows_of_a_failed_snapshot_are_gone_and_a_commit_without_them_is_refused(key: list[str]) -> None:
    inner = MemoryStore()
    table(inner, key)
    store = FaultyStore(inner, Fault("fail", 1, "sink", "manifest-list"))
    with table(store).write(commit_user="u") as w:
        add(w, *range(4))
        with pytest.raises(shoal.StorageFailed):
            w.commit(checkpoint=1)
        for _ in range(2):  # a loop that only commits again would lose them in silence
            with pytest.raises(shoal.BadRequest, match="rows are gone") as told:
                w.commit(checkpoint=1)
        assert "write everything since the last good commit again" in (told.value.hint or "")
        add(w, *range(4))
        w.commit(checkpoint=1)
        w.commit(checkpoint=2)  # nothing new, nothing lost
    assert keys(inner) == list(range(4))


@KINDS
def test_a_writer_without_rows_may_fail_and_go_on(key: list[str]) -> None:
    inner = MemoryStore()
    table(inner, key)
    store = FaultyStore(inner, Fault("fail", 1, "sink", "manifest-list"))
    with table(store).write(commit_user="u") as w:
        with pytest.raises(shoal.StorageFailed):
            w.commit(checkpoint=1, force_snapshot=True)
        w.commit(checkpoint=1, force_snapshot=True)
        add(w, 1)
        w.commit(checkpoint=2)
    assert keys(inner) == [1]
