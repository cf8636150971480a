# SPDX-License-Identifier: Apache-2.0
"""Compaction of postponed rows: what a dict holds after the same writes is what the table holds afterwards."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict, StorageFailed
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

COLUMNS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
Key = tuple[str, int]
INSERT, DELETE = 0, 3


def table(store: Any = None, clock: ManualClock | None = None, **options: object) -> Table:
    clock = clock or ManualClock()
    lake = Lake(store or MemoryStore(), clock=clock, scheduler=ManualScheduler, rng=random.Random(1))
    named = {"bucket": -2} | {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    return lake.create_table("d.t", COLUMNS, primary_key=["p", "k"], partition_by=["p"], options=named)


def stream(t: Table, rows: list[tuple[str, int, int | None]], checkpoint: int, user: str = "job") -> None:
    """One checkpoint; a row without a value is a delete."""
    with t.write(commit_user=user) as w:
        data = pa.Table.from_pylist([{"p": p, "k": k, "v": v} for p, k, v in rows], schema=COLUMNS)
        w.write(data, [DELETE if v is None else INSERT for _, _, v in rows])
        w.commit(checkpoint=checkpoint)
    t.clock.sleep(1)  # files of one writer are told apart by their time


def held(t: Table) -> dict[Key, int]:
    return {(r["p"], r["k"]): r["v"] for r in t.scan().to_arrow().to_pylist()}


def buckets(t: Table) -> dict[str, frozenset[int]]:
    """The buckets that have files, by partition."""
    out: dict[str, frozenset[int]] = {}
    for r in t.inspect.buckets().to_pylist():
        if r["file_count"]:
            out[r["partition"]] = out.get(r["partition"], frozenset()) | {r["bucket"]}
    return out


@pytest.mark.parametrize("options", [{}, {"postpone__default_bucket_num": 3}, {"deletion_vectors__enabled": True}])
def test_rows_are_what_a_dict_holds_after_the_same_writes(options: dict[str, Any]) -> None:
    t, model, rng = table(**options), {}, random.Random(5)
    for checkpoint in range(1, 13):
        rows = [(rng.choice("ab"), rng.randrange(15), rng.choice([None, *range(9)])) for _ in range(12)]
        stream(t, rows, checkpoint)
        for p, k, v in rows:
            model.pop((p, k), None)
            if v is not None:
                model[p, k] = v
        if checkpoint % 3 == 0:
            report = t.maintain.compact(full=checkpoint % 2 == 0)
            assert report.snapshot is not None
            assert held(t) == model
            assert t.inspect.snapshots()["commit_kind"].to_pylist()[-1] == "COMPACT"
    most = int(options.get("postpone__default_bucket_num", 1))
    assert set(buckets(t).values()) == {frozenset(range(most))}


def test_a_partition_gets_as_many_buckets_as_its_rows_ask_for_and_keeps_them() -> None:
    t = table(postpone__target_row_num_per_bucket=4)
    stream(t, [("a", k, k) for k in range(10)], 1)
    t.maintain.compact()
    totals = {e["total_buckets"] for e in t.metadata.live(t.metadata.latest()).to_pylist()}
    assert totals == {3}
    stream(t, [("a", k, -k) for k in range(100)], 2)
    t.maintain.compact()
    assert {e["total_buckets"] for e in t.metadata.live(t.metadata.latest()).to_pylist()} == {3}
    assert held(t) == {("a", k): -k for k in range(100)}


def test_a_dry_run_names_the_postponed_files_and_writes_nothing() -> None:
    t = table()
    stream(t, [("a", 1, 1), ("b", 1, 1)], 1)
    report = t.maintain.compact(dry_run=True)
    assert [(p.partition, p.bucket, p.files) for p in report.planned] == [("p=a", -2, 1), ("p=b", -2, 1)]
    assert held(t) == {} and t.inspect.snapshots().num_rows == 1
    t.maintain.compact()
    assert t.maintain.compact().snapshot is None


def test_the_changelog_of_a_compaction_tells_what_became_visible() -> None:
    t = table(changelog_producer="lookup")
    stream(t, [("a", 1, 1), ("a", 2, 2)], 1)
    t.maintain.compact()
    stream(t, [("a", 1, 5), ("a", 2, None), ("a", 1, 6)], 2)
    t.maintain.compact()
    told = [(c.snapshot, *r.values()) for c in t.follow(start=1, until="latest") for r in c.to_batch().to_pylist()]
    assert sorted(told) == [
        (2, "+I", "a", 1, 1), (2, "+I", "a", 2, 2),
        (4, "+U", "a", 1, 6), (4, "-D", "a", 2, 2), (4, "-U", "a", 1, 1),
    ]  # fmt: skip


def test_another_compaction_of_the_partition_meanwhile_is_a_conflict_that_leaves_nothing() -> None:
    store = MemoryStore()
    t = table(store)
    stream(t, [("a", 1, 1)], 1)
    names = lambda: {f.path for f in store.list("")}  # noqa: E731
    from shoal.table import maintain

    original, done = maintain.Commit.commit, []

    def late(self: Any, *args: Any, **more: Any) -> Any:
        if not done:
            done.append(True)
            t.maintain.compact()
            done.append(names())
        return original(self, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintain.Commit, "commit", late)
        with pytest.raises(Conflict):
            t.maintain.compact()
    assert held(t) == {("a", 1): 1}
    live = set(t.inspect.files()["file_path"].to_pylist())
    there = {n for n in names() if "/bucket-0/" in n}
    assert {n.rsplit("/", 1)[1] for n in there} == {n.rsplit("/", 1)[1] for n in live}


@pytest.mark.parametrize("action", ["fail", "die", "die_after"])
def test_a_store_that_fails_at_any_call_leaves_the_rows_to_the_next_try(action: Any) -> None:
    for after in range(1, 60):
        store = MemoryStore()
        t = table(store)
        stream(t, [("a", k, k) for k in range(4)], 1)
        stream(t, [("a", 0, None), ("b", 7, 7)], 2)
        wanted = {("a", 1): 1, ("a", 2): 2, ("a", 3): 3, ("b", 7): 7}
        broken = FaultyStore(t.store, Fault(action, after))
        other = Table("d.t", broken, t.schema, clock=t.clock, scheduler=ManualScheduler, rng=random.Random(2))
        try:
            other.maintain.compact()
        except (StorageFailed, Died):
            again = Table("d.t", t.store, t.schema, clock=t.clock, scheduler=ManualScheduler, rng=random.Random(3))
            again.maintain.compact()
            assert held(again) == wanted
        else:
            break
    assert held(Table("d.t", t.store, t.schema, clock=t.clock, scheduler=ManualScheduler)) == wanted
    assert after > 5


def test_a_number_of_buckets_that_is_none_is_refused() -> None:
    t = table()
    stream(t, [("a", 1, 1)], 1)
    bad = t.with_options({"postpone.default-bucket-num": "0"})
    with pytest.raises(BadRequest, match="default-bucket-num"):
        bad.maintain.compact()
