# SPDX-License-Identifier: Apache-2.0
"""A rescale cut off at the calls that change its store: the rows stay, nobody writes into two layouts, and once more
completes it."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.manifest import entries_of
from shoal.store.faults import Action, Died, Fault
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.histories import SCHEMA, START, Struck, as_table
from tests.faults.walk import left_over, missing

ACTIONS = [a for a in get_args(Action) if a != "stall"]
KINDS: dict[str, dict[str, object]] = {
    "keys": {},
    "first row": {"merge-engine": "first-row"},
    "deletion vectors": {"deletion-vectors.enabled": True},
    "append": {"bucket-key": "k"},
    "lookup changelog": {"changelog-producer": "lookup", "write-only": True},
    "full-compaction changelog": {"changelog-producer": "full-compaction", "write-only": True},
}
# The changes between two cuts; all of them are the slow test below.
STRIDE = 13
COUNT = 3


def opened(store: Any, seed: int = 1) -> Table:
    return Lake(store, clock=ManualClock(START), scheduler=ManualScheduler, rng=random.Random(seed)).table("d.t")


def table(name: str) -> MemoryStore:
    store = MemoryStore()
    lake = Lake(store, clock=ManualClock(START), scheduler=ManualScheduler, rng=random.Random(2))
    key = [] if name == "append" else ["dt", "k"]
    options = {"bucket": 2, "num-sorted-run.compaction-trigger": 2, **KINDS[name]}
    t = lake.create_table("d.t", SCHEMA, primary_key=key, partition_by=["dt"], options=options)
    for start in (0, 4):
        with t.write() as w:
            rows = as_table([("ab"[i % 2], i, i, start) for i in range(start, start + 8)])
            w.upsert(rows) if key else w.append(rows)
            w.commit()
    return store


def rows(t: Table) -> list[str]:
    return sorted(str(r) for r in t.scan().to_arrow().to_pylist())


def totals(t: Table) -> set[int]:
    return {e.total_buckets for e in entries_of(t.metadata.live(t.metadata.latest()))}


def cut(name: str, action: Action, at: int) -> bool:
    """Whether a rescale has a change number `at`."""
    what = f"{name}: {action} at change {at}"
    inner = table(name)
    before = rows(opened(inner))
    store: Any = Struck(inner, [Fault(action, at)])
    try:
        opened(store, 3).maintain.rescale(COUNT)
    except (Died, shoal.ShoalError):
        pass
    if store.struck is None:
        return False
    t = opened(inner, 4)
    assert rows(t) == before, what
    assert list(missing(t)) == [], what
    (count,) = totals(t)  # in every partition, or in none
    new = as_table([("a", 100, 1, 1)])
    written = 0
    try:
        with t.write() as w:
            w.upsert(new) if t.primary_key else w.append(new)
            w.commit()
        written = 1
        assert count == t.options.bucket, what
    except shoal.BadRequest as err:
        assert count == COUNT and t.options.bucket == 2 and "rescale" in (err.hint or ""), what
    opened(inner, 5).maintain.rescale(COUNT)
    t = opened(inner, 6)
    assert (t.options.bucket, totals(t)) == (COUNT, {COUNT}), what
    assert len(rows(t)) == len(before) + written, what
    assert set(before) <= set(rows(t)), what
    with t.write() as w:
        w.upsert(new) if t.primary_key else w.append(new)
        w.commit()
    if not action.startswith("die") and store.struck[0] != "delete":
        assert left_over(t) == [], what  # who lives cleans up behind himself
    return True


@pytest.mark.parametrize("name", KINDS)
def test_some_cuts(name: str) -> None:
    n = list(KINDS).index(name)
    at = 1 + n
    while cut(name, ACTIONS[n % len(ACTIONS)], at):
        at, n = at + STRIDE, n + 1
    assert at > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_every_cut(name: str, action: Action) -> None:
    at = 1
    while cut(name, action, at):
        at += 1
    assert at > 10
