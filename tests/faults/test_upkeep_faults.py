# SPDX-License-Identifier: Apache-2.0
"""Commits with automatic tags, tag expiry, partition expiry and snapshot expiry, cut off at every change they make.

After every cut the writer starts again and goes on to the end; then the table equals the model, each checkpoint is
there once, every tag and every snapshot reads, and nothing that is needed is gone.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.refs import tags
from shoal.table.table import Table

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
START = 1_767_225_600_000  # 2026-01-01T00:00Z
CHECKPOINTS = 7
NAMES = random.Random(7)
OPTIONS: dict[str, object] = {
    "bucket": 1, "num-sorted-run.compaction-trigger": 3, "manifest.merge-min-count": 4,
    "snapshot.num-retained.min": 1, "snapshot.num-retained.max": 2, "snapshot.time-retained": "1 min",
    "tag.automatic-creation": "process-time", "tag.creation-period": "hourly", "tag.default-time-retained": "150 min",
    "tag.num-retained-max": 3, "partition.expiration-time": "3 d", "partition.expiration-check-interval": "0 s",
}  # fmt: skip


def at_ms(checkpoint: int) -> int:
    """Checkpoints are an hour apart."""
    return START + checkpoint * 3_600_000


def batch(checkpoint: int) -> list[dict[str, Any]]:
    """Rows of today, and at the third checkpoint of a day that is over."""
    rnd = random.Random(checkpoint)
    days = ["2026-01-01", "2025-12-31"] + ["2025-12-01"] * (checkpoint in (1, 3))
    return [{"dt": d, "k": rnd.randint(0, 4), "v": checkpoint * 100 + i} for i, d in enumerate(days * 2)]


def model() -> dict[tuple[str, int], int]:
    rows = [r for c in range(1, CHECKPOINTS + 1) for r in batch(c)]
    return {(r["dt"], r["k"]): r["v"] for r in rows if r["dt"] != "2025-12-01"}


def open_table(store: object, checkpoint: int) -> Table:
    lake = Lake(store, clock=ManualClock(at_ms(checkpoint)), scheduler=ManualScheduler, rng=NAMES)  # type: ignore[arg-type]
    return lake.table("d.t")


def run(store: object) -> list[shoal.ShoalError]:
    """Every checkpoint in order, those that were committed before as no-ops; what upkeep could not do."""
    failures = []
    table = open_table(store, 0)
    clock = table.clock
    with table.write(commit_user="job") as w:
        for c in range(1, CHECKPOINTS + 1):
            clock.sleep((at_ms(c) - clock.now_ms()) / 1000)
            w.upsert(batch(c))
            w._scheduler.run_pending()  # type: ignore[attr-defined]
            done = w.commit(checkpoint=c)
            if done.upkeep is not None and done.upkeep.failure is not None:
                failures.append(done.upkeep.failure)
    return failures


def settle(store: object, what: str) -> None:
    """One checkpoint more without rows: what the upkeep of the last one was cut off from."""
    table = open_table(store, CHECKPOINTS)
    with table.write(commit_user="job") as w:
        done = w.commit(checkpoint=CHECKPOINTS + 1)
    assert done.upkeep is not None and done.upkeep.failure is None, what


def start() -> MemoryStore:
    store = MemoryStore()
    lake = Lake(store, clock=ManualClock(START), scheduler=ManualScheduler, rng=NAMES)
    lake.create_table("d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"], options=OPTIONS)
    return store


@cache
def whole() -> tuple[MemoryStore, int]:
    store = start()
    counted = FaultyStore(store, [])
    assert run(counted) == []
    return store, counted.mutations


def read(store: object, **when: Any) -> dict[tuple[str, int], int]:
    rows = open_table(store, CHECKPOINTS).scan(**when).to_arrow().to_pylist()
    out = {(r["dt"], r["k"]): r["v"] for r in rows}
    assert len(out) == len(rows), "a key came twice"
    return out


def state(store: object) -> tuple[dict[str, dict[tuple[str, int], int]], list[int]]:
    """What each tag reads as, and the checkpoints in the snapshots that are left."""
    meta = open_table(store, CHECKPOINTS).metadata
    snapshots = [meta.snapshot(i) for i in meta.snapshot_ids()]
    mine = [(s.commit_identifier, s.commit_kind) for s in snapshots if s.commit_user == "job"]
    assert len(set(mine)) == len(mine), "a checkpoint was committed twice"
    for s in snapshots:
        read(store, snapshot=s.id)
    return {t.name: read(store, tag=t.name) for t in tags(meta)}, sorted({i for i, _ in mine})


@cache
def wanted_tags() -> dict[str, dict[tuple[str, int], int]]:
    """What the tags read as when nothing is cut off."""
    return state(whole()[0])[0]


def test_the_scenario_has_everything_in_it() -> None:
    assert whole()[1] > 120
    assert read(whole()[0]) == model()
    there, checkpoints = state(whole()[0])
    # made by the first snapshot of the next hour; the older ones were retained long enough, or were too many
    assert sorted(there) == ["2026-01-01 04", "2026-01-01 05", "2026-01-01 06"]
    assert checkpoints[-1] == CHECKPOINTS and len(open_table(whole()[0], CHECKPOINTS).metadata.snapshot_ids()) == 2


ACTIONS = ["die", "die_after", "fail", "fail_after"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_cut_loses_and_doubles_nothing(action: str) -> None:
    """Some of the cuts; all of them are the slow test below."""
    for at in range(1 + ACTIONS.index(action) * 7, whole()[1] + 1, 29):
        cut(action, at)


def test_a_tag_that_needs_an_expiry_finished_first_does_not_hold_it_up() -> None:
    """Death between the lists of a snapshot: what the next tag to go shares with it cannot be told any more."""

    class Lists(FaultyStore):
        def delete(self, path: str) -> None:
            super().delete(path)
            if "/manifest-list-" in path:
                found.append(self.mutations)

    found: list[int] = []
    run(Lists(start(), []))
    for at in found[1:6:2]:
        cut("die", at)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_cut_at_any_change_loses_and_doubles_nothing(action: str) -> None:
    for at in range(1, whole()[1] + 1):
        cut(action, at)


def cut(action: str, at: int) -> None:
    wanted = wanted_tags()
    store, what = start(), f"{action} at change {at}"
    try:
        run(FaultyStore(store, Fault(action, at=at)))  # type: ignore[arg-type]
    except (Died, shoal.ShoalError):
        pass
    run(store)  # from the start: what was committed is not committed again
    settle(store, what)
    assert read(store) == model(), what
    there, checkpoints = state(store)
    assert checkpoints[-1] in (CHECKPOINTS, CHECKPOINTS + 1), what  # the last makes a snapshot when a tag is due
    # what an upkeep was cut off from is done by a later one; a tag that stays holds what it held
    assert {n: r for n, r in there.items() if n in wanted} == wanted, what
