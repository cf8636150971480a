# SPDX-License-Identifier: Apache-2.0
"""Commits of a table with tags, branches, consumers and expiry on stores that lie: nothing that is needed goes.

The writer's own upkeep runs at each commit. Whatever a listing leaves out, whatever is not found and however wrong the
clock is: each snapshot, tag and branch that is still named afterwards is whole, and only those are gone that an upkeep
without lies removes. The next commit without lies finishes what was left.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.base import FileInfo
from shoal.store.memory import MemoryStore
from shoal.table.expire_run import expire

sys.path.insert(0, str(Path(__file__).parent.parent / "table"))
from expire_model import HOUR, START, build, files, needed_of, roots, tag
from test_expire_faults import FOLDERS, Lying

NAMES = random.Random(23)
NOW = START + 24 * HOUR
# two automatic tags of earlier days are there, each commit makes one; the short one and the surplus go
OPTIONS: dict[str, object] = {
    "write-only": False, "snapshot.num-retained.min": 2, "snapshot.num-retained.max": 3,
    "snapshot.time-retained": "1 ms", "tag.automatic-creation": "process-time", "tag.num-retained-max": 2,
    "tag.creation-period": "hourly", "consumer.expiration-time": "2 d", "partition.expiration-time": "3 d",
    "partition.expiration-check-interval": "0 s", "num-sorted-run.compaction-trigger": 3,
}  # fmt: skip
CONSUMED = 9


def short_lived(store: MemoryStore, name: str, of_tag: str) -> None:
    """As Java writes a tag that was retained for a minute, half a day ago."""
    text = store.read(f"d.db/t/tag/tag-{of_tag}").decode().rstrip().removesuffix("}").rstrip()
    text += ',\n  "tagCreateTime" : [ 2026, 1, 1, 12, 0 ],\n  "tagTimeRetained" : 60.000000000\n}'
    store.create(f"d.db/t/tag/tag-{name}", text.encode())


def aged(store: MemoryStore, now: int = START) -> MemoryStore:
    """A copy whose files were all written at `now`."""
    out = MemoryStore(clock=ManualClock(now))
    for path, data in files(store).items():
        out.put(path, data)
    return out


@pytest.fixture(scope="module")
def built() -> MemoryStore:
    store = build()
    for name, snapshot in (("2026-01-01 01", 3), ("2026-01-01 02", 8)):
        tag(store, name, snapshot)
    short_lived(store, "short", "early")
    store.put("d.db/t/consumer/consumer-a", f'{{\n  "nextSnapshot" : {CONSUMED}\n}}'.encode())
    # tags hold what has expired already: deleting one has to find out what only that one holds
    done = expire(lake(store, NOW).table("d.t").with_options(OPTIONS))
    assert done.snapshots == tuple(range(1, CONSUMED))
    return store


def lake(store: object, now: int) -> Lake:
    return Lake(store, clock=ManualClock(now), scheduler=ManualScheduler, rng=NAMES)  # type: ignore[arg-type]


class Liar(Lying):
    """Tells the truth until `on` is set; lies at the looks whose numbers are in `only`, without it at all of them."""

    on = True
    only: frozenset[int] = frozenset()

    def _lies(self, path: str) -> bool:
        if not self.on or not f"/{path}/".endswith(f"/{self.about}/"):
            return False
        self.looks += 1
        return not self.only or self.looks in self.only

    def read(self, path: str) -> bytes:
        return super().read(path) if self.on else self.inner.read(path)

    def size(self, path: str) -> int:
        return super().size(path) if self.on else self.inner.size(path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return super().list(prefix)


def rows(number: int) -> list[dict[str, Any]]:
    """Rows of each partition, and of a day that is over."""
    return [{"dt": d, "k": number % 6, "v": number} for d in ("a", "b", "2025-01-01")]


def commit(w: shoal.Write, number: int) -> shoal.ShoalError | None:
    """One commit; why it, or the upkeep after it, was not done."""
    try:
        w.upsert(rows(number))
        done = w.commit(checkpoint=number)
    except shoal.ShoalError as err:
        return err
    return None if done.upkeep is None else done.upkeep.failure


def writer(store: object, now: int, user: str = "job") -> shoal.Write:
    return lake(store, now).table("d.t").with_options(OPTIONS).write(commit_user=user)


@cache  # the store is made once a module; what is named is the same in every run
def honest(built: MemoryStore, commits: int, now: int = NOW) -> frozenset[str]:
    """What is named after commits on a store that tells the truth."""
    store = aged(built)
    with writer(store, now) as w:
        for number in range(1, commits + 1):
            w.table.clock.sleep(3600)
            assert commit(w, number) is None
    return frozenset(roots(store))


def check(store: MemoryStore, before: dict[str, frozenset[str]], allowed: Set[str], told: object) -> None:
    """What is named is whole, and nothing is gone that had to stay."""
    there = set(files(store))
    for name, wanted in needed_of(store).items():
        assert wanted <= there, (told, name)
    gone = set(before) - set(roots(store))
    assert gone <= allowed, (told, gone - allowed)


def test_what_an_upkeep_without_lies_does(built: MemoryStore) -> None:
    """So that the tests below have something to get wrong."""
    before, after = set(roots(built)), honest(built, 2)
    assert {"tag-short", "tag-2026-01-01 01", "tag-2026-01-01 02"} <= before - after
    assert {"tag-early", "tag-late", "b:tag-early", f"snapshot-{CONSUMED}"} <= after
    assert not [n for n in before - after if n.startswith("b:")]


SOME = ("first", "fail")
ALL_BUT = [pytest.param(how, marks=[] if how in SOME else pytest.mark.slow) for how in ("empty", "last", *SOME)]


@pytest.mark.parametrize("how", [*ALL_BUT, pytest.param("stale", marks=pytest.mark.slow)])
def test_a_writer_that_has_looked_before_sees_through_any_listing(built: MemoryStore, how: str) -> None:
    told = 0
    for about in FOLDERS:
        store, old = aged(built), aged(built)
        liar = Liar(store, how, about, old)
        liar.on = False
        with writer(liar, NOW) as w:
            w.table.clock.sleep(3600)
            assert commit(w, 1) is None
            tag(store, "newest", CONSUMED + 3)  # what a stale listing does not know
            before = needed_of(store)
            liar.on = True
            w.table.clock.sleep(3600)
            told += commit(w, 2) is not None
        check(store, before, set(before) - honest(built, 2) - {"tag-newest"}, (how, about))
        finish(store, about)
    assert told or how == "stale"


def finish(store: MemoryStore, told: object) -> None:
    """Commits without lies do all that is due."""
    before = needed_of(store)
    with writer(store, NOW + 4 * HOUR, "later") as w:
        for number in (1, 2):
            assert commit(w, number) is None, told
    check(store, before, {n for n in before if n.startswith(("snapshot-", "tag-2026", "tag-short"))}, told)
    assert "tag-short" not in roots(store) and f"snapshot-{CONSUMED}" in roots(store), told


@pytest.mark.parametrize("how", ALL_BUT)
def test_a_writer_that_looks_for_the_first_time_sees_through_one_wrong_look(built: MemoryStore, how: str) -> None:
    allowed = set(roots(built)) - honest(built, 1)
    for about in FOLDERS:
        for look in (1, 2, 3, 4):
            store = aged(built)
            before = needed_of(store)
            liar = Liar(store, how, about)
            liar.only = frozenset({look})
            with writer(liar, NOW) as w:
                w.table.clock.sleep(3600)
                commit(w, 1)
            check(store, before, allowed, (how, about, look))


@pytest.mark.parametrize(
    "about", ["snapshot/snapshot-1", "tag/tag-", "manifest/manifest-", "manifest/index", "schema/schema-", "branch-b/"]
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_files_that_are_not_found_delete_nothing_that_is_needed(built: MemoryStore, about: str, warm: bool) -> None:
    store = aged(built)
    liar = Liar(store, "vanish", about)
    liar.on = not warm
    allowed = set(roots(built)) - honest(built, 2)
    try:
        with writer(liar, NOW) as w:
            w.table.clock.sleep(3600)
            failed = commit(w, 1)
            assert failed is None or not warm
            before = needed_of(store)
            liar.on = True
            w.table.clock.sleep(3600)
            commit(w, 2)
    except shoal.ShoalError:
        before = needed_of(store)  # it could not be opened
    check(store, before, allowed, about)
    assert set(needed_of(built)) - set(roots(store)) <= allowed
    finish(store, about)


@pytest.mark.parametrize("hours", [-24 * 365, -24, 24, 24 * 365])
def test_a_clock_that_is_off_deletes_nothing_that_is_needed(built: MemoryStore, hours: int) -> None:
    """Tags and partitions live by the clock; what no time limits stays, and a consumer is as old as the store says."""
    store = aged(built, NOW)
    before = needed_of(store)
    with writer(store, NOW + hours * HOUR) as w:
        for number in (1, 2):
            w.table.clock.sleep(3600)
            assert commit(w, number) is None
    check(store, before, {n for n in before if n.startswith(("snapshot-", "tag-2026", "tag-short"))}, hours)
    assert f"snapshot-{CONSUMED}" in roots(store)
    assert store.read("d.db/t/consumer/consumer-a")


def test_any_mix_of_lies(built: MemoryStore) -> None:
    rnd = random.Random(9)
    failed = 0
    for run in range(12):
        store = aged(built)
        for i in rnd.sample(range(CONSUMED, 14), rnd.randint(0, 2)):
            tag(store, f"t{i}", i)
        first = needed_of(store)
        told = []
        allowed = {n for n in first if n.startswith(("snapshot-", "tag-2026", "tag-short"))}
        liar = Liar(store, "fail", "nothing")
        with writer(liar, NOW + rnd.choice([-24, 0, 24]) * HOUR) as w:
            for number in range(1, 5):
                liar.how = rnd.choice(["empty", "first", "last", "fail", "vanish"]) if number > 1 else "none"
                vanish = liar.how == "vanish"
                about = (
                    ["snapshot/snapshot-1", "tag/tag-", "manifest/manifest-", "manifest/index"] if vanish else FOLDERS
                )
                liar.about = rnd.choice(about)
                told.append((liar.how, liar.about))
                w.table.clock.sleep(3600)
                failed += commit(w, number) is not None
                check(store, first, allowed, (run, told))
        assert f"snapshot-{CONSUMED}" in roots(store), (run, told)
        finish(store, (run, told))
    assert failed > 5
