# SPDX-License-Identifier: Apache-2.0
"""What a commit does besides, on stores whose listings lie: automatic tags, tag expiry, partition expiry, overwrites.

Whatever the store says, no file is deleted that the newest snapshot, a tag or a branch needs, and no tag goes that
would not have gone anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.lying import Lying
from tests.faults.test_upkeep_faults import NAMES, SCHEMA, at_ms, batch, open_table, start
from tests.faults.walk import missing
from tests.table.crashes import clone

FOLDERS = ["d.db/t/snapshot", "d.db/t/tag", "d.db/t/branch", "branch-b/snapshot", "branch-b/tag"]


def wait(w: Any, n: int) -> None:
    """Checkpoints are an hour apart."""
    clock = w.table.clock
    clock.sleep((at_ms(n) - clock.now_ms()) / 1000)


def checkpoint(w: Any, n: int) -> Any:
    wait(w, n)
    w.upsert(batch(n))
    return w.commit(checkpoint=n)


def overwrite(w: Any, n: int) -> Any:
    wait(w, n)
    rows = pa.Table.from_pylist([{"dt": "2026-01-01", "k": n, "v": n}], schema=SCHEMA)
    return w.table.overwrite(rows, {"dt": "2026-01-01"}, dynamic=False)


def drop(w: Any, n: int) -> Any:
    wait(w, n)
    w.table.maintain.expire_partitions(older_than="2026-01-01 00:00:00")
    return w.table.maintain.expire(retain_min=1, retain_max=1)


CALLS: dict[str, Callable[[Any, int], Any]] = {"checkpoint": checkpoint, "overwrite": overwrite, "partitions": drop}


@pytest.fixture(scope="module")
def built() -> tuple[MemoryStore, MemoryStore]:
    """The table after three checkpoints, and after five with a branch."""
    store = start()
    old = MemoryStore()
    with open_table(store, 0).write(commit_user="job") as w:
        for n in range(1, 6):
            checkpoint(w, n)
            if n == 3:
                old = clone(store)
    table = open_table(store, 5)
    table.tags.create("mine")
    table.branches.create("b", tag="mine")
    return old, store


def needed(store: MemoryStore) -> tuple[Table, set[str]]:
    table = open_table(store, 9)
    return table, set(table.tags)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "how", ["empty", "last", *(pytest.param(h, marks=pytest.mark.slow) for h in ("first", "stale", "fail"))]
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_upkeep_deletes_nothing_that_is_needed(
    built: tuple[MemoryStore, MemoryStore], how: str, call: str, warm: bool
) -> None:
    old, before = built
    honest = clone(before)
    with open_table(honest, 5).write(commit_user="job") as w:
        checkpoint(w, 6)
        CALLS[call](w, 7)
    _, stay = needed(honest)
    for about in FOLDERS:
        store = clone(before)
        # a process that has looked before sees through any listing; one that has not, when its looks do not agree
        lying = Lying(store, how, about, old, once=not warm)
        lying.honest = True
        lake = Lake(lying, clock=open_table(store, 5).clock, scheduler=ManualScheduler, rng=NAMES)
        with lake.table("d.t").write(commit_user="job") as w:
            if warm:
                checkpoint(w, 6)
                lying.honest = False
                attempt(CALLS[call], w, 7)
            else:
                lying.honest = False
                attempt(checkpoint, w, 6)
                lying.looks = 0
                attempt(CALLS[call], w, 7)
        table, tags = needed(store)
        assert stay - tags <= {"2026-01-01 05", "2026-01-01 06"}, about  # one that was not made yet
        assert {"mine"} <= tags, about
        assert list(missing(table, 1)) == [], about


def attempt(call: Callable[[Any, int], Any], w: Any, n: int) -> None:
    try:
        call(w, n)
    except shoal.ShoalError:
        pass
