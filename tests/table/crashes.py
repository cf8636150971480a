# SPDX-License-Identifier: Apache-2.0
"""One call, cut off at every change it makes to the store in every way a store can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import get_args

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import ShoalError
from shoal.store.base import Store
from shoal.store.faults import Action, Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.branches import unfinished
from shoal.table.refs import branch, branch_names, tags
from shoal.table.table import Table
from tests.table.answers import Asked, once_for_equal_stores

NOW = 1_700_000_000_000
View = dict[str, object]


def clone(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore(clock=ManualClock(NOW))
    for info in store.list(""):
        copy.put(info.path, store.read(info.path))
    return copy


def open_table(store: Store) -> Table:
    return Lake(store, clock=ManualClock(NOW), scheduler=ManualScheduler).table("d.t")


def files(store: MemoryStore) -> dict[str, bytes]:
    return {i.path: store.read(i.path) for i in store.list("")}


def rows(table: Table) -> list[tuple[object, ...]]:
    newest = table.metadata.latest()
    if newest is None:
        return []
    return [(newest.id,), *sorted(tuple(r.values()) for r in table.scan().to_arrow().to_pylist())]


def view(store: MemoryStore) -> View:
    """What a reader finds: newest rows, tags with their rows, whole branches with their rows."""
    table = open_table(store)
    out: View = {"main": _newest(store)}
    out |= {f"tag {t.name}": _tagged(store, t.name) for t in tags(table.metadata)}
    names = [n for n in branch_names(table.store) if not unfinished(table.store, n)]
    return out | {f"branch {name}": _newest(store, name) for name in names}


@once_for_equal_stores
def _newest(store: Asked, of: str = "") -> list[tuple[object, ...]]:
    table = open_table(store)
    return rows(branch(table, of) if of else table)


@once_for_equal_stores
def _tagged(store: Asked, name: str) -> tuple[int, list[str]]:
    table = open_table(store)
    (snapshot,) = [t.snapshot.id for t in tags(table.metadata) if t.name == name]
    return snapshot, sorted(map(str, table.scan(tag=name).to_arrow().to_pylist()))


def cut_off(
    start: MemoryStore, call: Callable[[Table], object], actions: Sequence[Action] | None = None
) -> Iterator[tuple[str, MemoryStore]]:
    """(what happened, the store afterwards) for every change of `call` and every way to fail there."""
    for action in actions or [a for a in get_args(Action) if a != "stall"]:
        for at in count(1):
            inner = clone(start)
            store = FaultyStore(inner, Fault(action, at))
            try:
                call(open_table(store))
            except (ShoalError, Died):
                yield f"{action} at change {at}", inner
                continue
            if store.mutations < at:
                break
            yield f"{action} at change {at}, unnoticed", inner
