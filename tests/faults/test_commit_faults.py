"""Commits with changelogs and index files, overwrites and truncation, cut off at every change they make to the store.

The table is in one of the states that the commit passes through, and recovery brings it to the last one exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import NotFound
from shoal.format.datafile import DELETE
from shoal.store.faults import FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.commit import Commit
from shoal.table.staged import Staged
from shoal.table.table import Table
from tests.table.commits import (
    file,
    hashes,
    indexes,
    metadata_files,
    named_files,
    names,
    part,
    snapshots,
    staged,
    table,
)  # fmt: skip
from tests.table.crashes import clone, cut_off, open_table

A = part("a")
OLD = [file("data-0", 0, 9, rows=4), file("data-1", 0, 9, rows=4)]


def start() -> MemoryStore:
    """A bucket of two files with a hash index, its manifests about to be merged."""
    store = MemoryStore()
    t = table(store)
    t.alter(options={"manifest.merge-min-count": "2"})
    t = open_table(store)
    Commit(t, "setup").commit(staged(A, new_files=OLD, new_indexes=[hashes("index-0", A)]), 1)
    Commit(t, "setup").commit(
        staged(part("b"), new_files=[file("data-9")], new_indexes=[hashes("index-9", part("b"))]), 2
    )
    for name in ("data-0", "data-1", "data-2", "data-3", "changelog-2", "changelog-3"):
        t.store.put(f"p=a/bucket-0/{name}", b"")
    for name in ("index-0", "index-2"):
        t.store.put(f"index/{name}", b"")
    return store


NEW: dict[str, Any] = {
    "new_files": [file("data-2", 0, 9, rows=3)], "changelog_files": [file("changelog-2", 0, 9, rows=5)],
    "new_indexes": [hashes("index-2", A)], "deleted_indexes": [hashes("index-0", A, kind=DELETE)],
}  # fmt: skip
COMPACTED: dict[str, Any] = {
    "compact_before": OLD, "compact_after": [file("data-3", 0, 9, level=5, rows=4)],
    "compact_changelog": [file("changelog-3", 0, 9, rows=1)],
}  # fmt: skip
BOTH = staged(A, base=2, **NEW, **COMPACTED)
FIRST = staged(A, base=2, **NEW)
OWN = staged(
    A, base=2, **NEW, compact_before=[file("data-2", 0, 9, rows=3)],
    compact_after=[file("data-3", 0, 9, level=5, rows=3)],
)  # fmt: skip
CALLS: dict[str, Callable[[Table], object]] = {
    "commit": lambda t: Commit(t, "job").commit(BOTH, 7),
    "overwrite": lambda t: Commit(t, "job").overwrite(FIRST, 7),
    "overwrite, compacted": lambda t: Commit(t, "job").overwrite(OWN, 7),
    "truncate": lambda t: Commit(t, "job").truncate([{"p": "a"}], 7),
    "compact manifests": lambda t: Commit(t, "job").compact_manifest(),
}


def state(store: MemoryStore) -> tuple[Any, ...]:
    t = open_table(store)
    made = [(s.commit_kind, s.commit_identifier, s.total_record_count, s.changelog_record_count) for s in snapshots(t)]
    return tuple(made), tuple(names(t)), tuple(indexes(t))


def states(name: str) -> list[tuple[Any, ...]]:
    """What the table looks like before the call and after each snapshot that it makes."""
    store = start()
    found = [state(store)]
    CALLS[name](open_table(store))
    t = open_table(store)
    for i in t.metadata.snapshot_ids()[2:-1]:
        back = clone(store)
        open_table(back).rollback(snapshot=i)
        found.append(state(back))
    return [*found, state(store)]


@pytest.mark.parametrize("name", CALLS)
def test_the_table_is_always_in_one_of_the_states_of_the_commit(name: str) -> None:
    allowed = states(name)
    assert len(set(allowed)) == len(allowed) == (3 if name in ("commit", "overwrite, compacted") else 2)
    seen = set()
    for what, after in cut_off(start(), CALLS[name]):
        now = state(after)
        assert now in allowed, f"{name}: {what}"
        seen.add(now)
        if "die" not in what:
            t = open_table(after)
            lost = metadata_files(t) - named_files(t)
            # a delete that fails leaves its file, no other call may
            assert len(lost) <= 1, f"{name}: {what}"
        # whatever is live is still there
        live = {n.split("@")[0] for n in now[1] if n != "data-9@0"}
        there = {i.path.rsplit("/", 1)[-1] for i in after.list("")}
        assert live <= there, f"{name}: {what}"
        assert {i for i in now[2] if i != "index-9"} <= there, f"{name}: {what}"
    assert seen == set(allowed)


def test_recovery_after_a_death_commits_exactly_once() -> None:
    """A job that died comes back with what it had staged. A compaction whose rows are committed is dropped, as in
    Java: the checkpoint counts as done."""
    before, appended, both = states("commit")
    for what, after in cut_off(start(), CALLS["commit"], ["die", "die_after"]):
        was = state(after)
        (made,) = Commit(open_table(after), "job").filter_and_commit([(7, BOTH)])
        assert made.replayed == (was != before), what
        assert state(after) == (both if was in (before, both) else appended), what
        (again,) = Commit(open_table(after), "job").filter_and_commit([(7, BOTH)])
        assert again.replayed


@pytest.mark.parametrize("action", ["fail", "fail_after"])
def test_a_commit_that_failed_for_good_leaves_no_file(action: Any) -> None:
    before = states("commit")[0]
    for what, after in cut_off(start(), CALLS["commit"], [action]):
        if state(after) != before or "delete" in what:
            continue
        t = open_table(after)
        left = {i.path.rsplit("/", 1)[-1] for folder in ("p=a", "index") for i in t.store.list(folder)}
        assert left == {"data-0", "data-1", "index-0"}, what
        with pytest.raises(NotFound, match="cannot recover"):
            Commit(open_table(after), "job").filter_and_commit([(7, BOTH)])


def test_an_unclear_commit_is_settled_by_committing_the_same_again() -> None:
    """The store loses the answer of a create and does not answer the questions after it either."""
    from shoal.errors import CommitUnknown
    from shoal.store.faults import Fault

    for at, expected in ((1, "append"), (2, "compact")):
        for action in ("fail", "fail_after"):
            inner = start()
            plan = [
                Fault(action, at, "create"), Fault("fail", at + 1, "create", times=2),
                Fault("fail", 1, "read", f"snapshot-{2 + at}", times=3),
            ]  # fmt: skip
            t = open_table(FaultyStore(inner, plan))
            c = Commit(t, "job")
            with pytest.raises(CommitUnknown):
                c.commit(BOTH, 7)
            made = c.commit(BOTH, 7)
            assert made.snapshots == (3, 4), (action, expected)
            assert state(inner) == states("commit")[-1]


def test_staged_files_travel_as_a_value() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(BOTH)) == BOTH
    assert isinstance(BOTH, Staged)
