# SPDX-License-Identifier: Apache-2.0
"""Expiry on stores that die, fail or lie: what a snapshot that stays, a tag or a branch needs is never deleted."""

from __future__ import annotations

import builtins
import random
import sys
from pathlib import Path

import pytest

import shoal
from shoal.errors import StorageFailed
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table import refs
from shoal.table.expire_run import Expired, expire
from shoal.table.staged import Committed
from shoal.table.upkeep import Keeper
from tests.faults.lying import Lying

sys.path.insert(0, str(Path(__file__).parent.parent / "table"))
from expire_model import (
    HOUR,
    START,
    build,
    copy,
    files,
    lake,
    needed,
    needed_of,
    open_table,
    roots,
    rows,
    rows_at,
    tag,
)  # fmt: skip

OPTIONS: dict[str, object] = {
    "write-only": False, "snapshot.num-retained.min": 2, "snapshot.num-retained.max": 3,
    "snapshot.time-retained": "1 ms",
}  # fmt: skip
DECOUPLED = OPTIONS | {"changelog.num-retained.min": 6, "changelog.num-retained.max": 6}


@pytest.fixture(scope="module")
def built() -> MemoryStore:
    return build()


def run(store: object, options: dict[str, object]) -> None:
    done = Keeper(open_table(store, options)).after(Committed((13,)), 1).upkeep
    assert done is not None
    if done.failure is not None:
        raise done.failure


def mutations(built: MemoryStore, options: dict[str, object]) -> int:
    counted = FaultyStore(copy(built))
    run(counted, options)
    return counted.mutations


# ---- deaths ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [OPTIONS, DECOUPLED], ids=["plain", "decoupled"])
@pytest.mark.parametrize(
    "action", ["die_after", "fail", *(pytest.param(a, marks=pytest.mark.slow) for a in ("die", "fail_after"))]
)
def test_a_death_at_any_call_leaves_what_stays_and_the_next_run_finishes(
    built: MemoryStore, action: str, options: dict[str, object]
) -> None:
    whole = copy(built)
    run(whole, options)
    done, wanted, needs = files(whole), rows(whole), set().union(*needed_of(whole).values())
    total = mutations(built, options)
    assert total > 40
    # the slow `die` strikes before each call, which is after the one before
    step = 1 if action == "die" or (action == "die_after" and options is OPTIONS) else 4
    for at in (*range(1, total, step), total):
        store = copy(built)
        with pytest.raises((Died, StorageFailed)):
            run(FaultyStore(store, Fault(action, at=at)), options)  # type: ignore[arg-type]
        assert needs <= set(files(store)), f"{action} at call {at}"
        assert rows_of(store, list(wanted)) == wanted, f"{action} at call {at}"
        run(store, options)
        left = files(store)
        if at >= total - 1:  # as in Java, nothing but the next expiry of changelogs writes their first hint
            left.setdefault("d.db/t/changelog/EARLIEST", b"8") if options is DECOUPLED else None
        assert left == done, f"{action} at call {at}: {sorted(left.items() ^ done.items())[:5]}"


def rows_of(store: MemoryStore, wanted: builtins.list[str]) -> dict[str, builtins.list[str]]:
    """What these snapshots and tags read as; the others may be half gone."""
    out = {}
    for what in wanted:
        at, name = what.rsplit(" ", 1)
        tags = refs.tag_names(lake(store).table(at).metadata)
        out[what] = rows_at(store, at, **({"tag": name} if name in tags else {"snapshot": int(name)}))
    return out


def test_two_expiries_at_once_end_as_one(built: MemoryStore) -> None:
    """The second starts from what it read before the first was done."""
    whole = copy(built)
    run(whole, OPTIONS)

    class Slow(FaultyStore):
        def delete(self, path: str) -> None:
            if not self.calls["delete"]:
                run(store, OPTIONS)  # another process overtakes before the first deletion
            super().delete(path)

    store = copy(built)
    run(Slow(store), OPTIONS)
    assert files(store) == files(whole)


# ---- lies ------------------------------------------------------------------------------------------------


FOLDERS = ["d.db/t/snapshot", "d.db/t/tag", "d.db/t/branch", "branch-b/snapshot", "branch-b/tag", "d.db/t/consumer"]


def check(
    store: MemoryStore, before: dict[str, frozenset[str]], was: dict[str, bytes], failure: BaseException | None
) -> None:
    """Whatever is still named is whole; after an error nothing has changed at all."""
    now = files(store)
    if failure is not None:
        assert now == was
    still = roots(store)
    assert all(name in still for name in before if not name.startswith("snapshot-"))
    for name in still:
        assert before[name] <= set(now), name


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("how", ["empty", "first", "last", "stale", "fail"])
def test_listings_that_lie_delete_nothing_that_is_needed(built: MemoryStore, how: str, warm: bool) -> None:
    """A process that has looked before sees through any listing; one that has not, when not all of its looks agree."""
    refused = 0
    for about in FOLDERS:
        store = copy(built)
        store.put("d.db/t/consumer/consumer-a", b'{\n  "nextSnapshot" : 9\n}')
        old = copy(store)
        tag(store, "newest", 4)  # what a stale listing does not know
        before, was = needed_of(store), files(store)
        lying = Lying(store, how, about, old, once=not warm)
        table = open_table(store, OPTIONS)
        if warm:
            expire(table, dry_run=True)
        table = relocated(table, lying)
        failure: shoal.ShoalError | None = None
        try:
            expire(table)
        except shoal.ShoalError as err:
            failure = err
            refused += 1
            assert "nothing was expired" in err.message
        check(store, before, was, failure)
    # one wrong look is often seen through: a single look-up, or the other listing, tells
    assert refused >= (0 if how == "stale" else 1) or not warm


def relocated(table: shoal.Table, store: object) -> shoal.Table:
    """The same table and memory, on another store."""
    from shoal.store.prefix import PrefixStore
    from shoal.table.table import Table

    inner = PrefixStore(store, "d.db/t")  # type: ignore[arg-type]
    return Table("d.t", inner, table.schema, cache=table.metadata.cache, clock=table.clock)


@pytest.mark.parametrize(
    "path",
    [
        "t/snapshot/snapshot-12", "t/snapshot/snapshot-13", "t/snapshot/snapshot-5", "t/tag/tag-early",
        "t/tag/tag-late", "branch-b/snapshot/snapshot-3", "branch-b/snapshot/snapshot-2", "branch-b/tag/tag-early",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["vanish", "damage"])
def test_a_file_that_cannot_be_read_stops_it(built: MemoryStore, path: str, how: str) -> None:
    store = copy(built)
    before, was = needed_of(store), files(store)
    if how == "damage":
        store.put(f"d.db/{path}" if path.startswith("t/") else f"d.db/t/branch/{path}", b"{ not json")
        was = files(store)
    shown: object = Lying(store, "vanish", path) if how == "vanish" else store
    with pytest.raises(shoal.ShoalError, match="nothing was expired") as raised:
        expire(open_table(shown, OPTIONS))
    assert raised.value.hint is not None or how == "damage"
    assert files(store) == was
    assert all(wanted <= set(was) for wanted in before.values())


def test_a_manifest_that_a_tag_or_the_end_needs_and_is_gone_stops_it(built: MemoryStore) -> None:
    for name in ("tag-early", "tag-late", "branch-b:snapshot-3", "snapshot-12", "b:snapshot-3"):
        root = roots(built).get(name)
        if root is None:
            continue
        store = copy(built)
        store.delete(f"d.db/t/manifest/{root.delta_manifest_list}")
        was = files(store)
        with pytest.raises(shoal.Corrupt, match="nothing was expired"):
            expire(open_table(store, OPTIONS))
        assert files(store) == was, name


@pytest.mark.parametrize("hours", [-24, 0, 24, 24 * 365])
def test_a_clock_that_is_off_deletes_nothing_that_is_needed(built: MemoryStore, hours: int) -> None:
    store = copy(built)
    before, was = needed_of(store), files(store)
    options = OPTIONS | {"snapshot.num-retained.max": 2**31 - 1, "snapshot.time-retained": "1 h"}
    report = expire(open_table(store, options, now=START + 600_000 + hours * HOUR))
    assert (len(report.snapshots) > 0) == (hours > 0)
    check(store, before, was, None)


def test_a_newest_snapshot_that_moves_stops_it(built: MemoryStore) -> None:
    """A rollback, or an overwrite that may use old files again, while expiry decides."""

    class Rolls(FaultyStore):
        def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
            found = super().list_dir(prefix)
            if prefix.endswith("/tag"):
                store.delete("d.db/t/snapshot/snapshot-13")
                store.put("d.db/t/snapshot/LATEST", b"12")
            return found

    store = copy(built)
    was = files(store)
    expired: Expired | None = None
    try:
        expired = expire(open_table(Rolls(store), OPTIONS))
    except shoal.Conflict:
        pass
    left = set(was) - set(files(store))
    # either nothing but the rollback happened, or it was decided again on what is there now
    assert left == {"d.db/t/snapshot/snapshot-13"} or (expired is not None and expired.snapshots[-1] == 10)
    for name, root in roots(store).items():
        assert set(needed(store, root)) <= set(files(store)), name


def test_a_tag_made_while_expiry_decides_is_kept(built: MemoryStore) -> None:
    class Tags(FaultyStore):
        def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
            if prefix.endswith("/branch") and self.calls["list_dir"] < 9:
                tag(store, "quick", 8)
            return super().list_dir(prefix)

    store = copy(built)
    before = rows(store)["d.t 8"]
    expire(open_table(Tags(store), OPTIONS))
    after = rows(store)
    assert after["d.t quick"] == before and "d.t 8" not in after


def test_random_lies(built: MemoryStore) -> None:
    """Any mix of the above at any point of several expiries in a row."""
    rnd = random.Random(5)
    refused = 0
    for _ in range(25):
        store = copy(built)
        for i in rnd.sample(range(1, 14), rnd.randint(0, 3)):
            tag(store, f"t{i}", i)
        before = needed_of(store)
        table = open_table(store, OPTIONS)
        expire(table, dry_run=True)
        for least in (8, 4, 1):
            how = rnd.choice(["empty", "first", "last", "fail", "vanish"])
            about = rnd.choice(["snapshot-1", "tag-", "manifest/manifest-", "index"] if how == "vanish" else FOLDERS)
            shown = Lying(store, how, about, once=rnd.random() < 0.5)
            was = files(store)
            failure: shoal.ShoalError | None = None
            try:
                expire(relocated(table, shown), retain_min=least, retain_max=least)
            except shoal.ShoalError as err:
                failure, refused = err, refused + 1
            check(store, before, was, failure)
    assert refused > 15
