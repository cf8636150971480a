# SPDX-License-Identifier: Apache-2.0
"""A writer or a table handle that was there first: what others did since counts, for every kind of table."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.store.wrappers import CountingStore

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYED: dict[str, dict[str, object]] = {
    "deduplicate": {},
    "written only": {"write-only": True},
    "duplicate files dropped": {"commit.discard-duplicate-files": True},
    "input changelog": {"changelog-producer": "input"},
    "lookup changelog": {"changelog-producer": "lookup"},
    "full-compaction changelog": {"changelog-producer": "full-compaction"},
    "deletion vectors": {"deletion-vectors.enabled": True},
    "partial-update": {"merge-engine": "partial-update"},
    "last value": {"merge-engine": "aggregation", "fields.v.aggregate-function": "last_value"},
    "lookup aggregation": {
        "merge-engine": "aggregation", "fields.v.aggregate-function": "last_value", "changelog-producer": "lookup",
    },
    "clustered": {
        "pk-clustering-override": True, "clustering.columns": "v", "deletion-vectors.enabled": True,
        "deletion-vectors.merge-on-read": False,
    },
    "numbers from snapshots": {"write-only": True, "write.sequence-number-init-mode": "snapshot"},
    "dynamic buckets": {"bucket": -1},
}  # fmt: skip
APPENDED: dict[str, dict[str, object]] = {
    "bucketed": {"bucket": 1, "bucket-key": "k", "compaction.min.file-num": 2},
    "bucketed, vectors": {
        "bucket": 1, "bucket-key": "k", "compaction.min.file-num": 2, "deletion-vectors.enabled": True,
    },
    "bucketed, clustered": {
        "bucket": 1, "bucket-key": "k", "bucket-append-ordered": False, "clustering.columns": "v",
        "clustering.incremental": True, "num-sorted-run.compaction-trigger": 2,
    },
}  # fmt: skip
EVERY_KEYED = pytest.mark.parametrize("options", KEYED.values(), ids=KEYED)


def lake() -> Lake:
    return Lake(MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)


def keyed(options: dict[str, object], at: Lake | None = None) -> Any:
    return (at or lake()).create_table("d.t", SCHEMA, primary_key=["k"], options={"bucket": 1, **options})


def rows(keys: range, v: int) -> pa.Table:
    return pa.table([list(keys), [v] * len(keys)], schema=SCHEMA)


def read(t: Any, **more: Any) -> dict[int, Any]:
    found = t.scan(**more).to_arrow().to_pylist()
    assert len({r["k"] for r in found}) == len(found)
    return {r["k"]: r["v"] for r in found}


def settled(t: Any) -> Any:
    """The table once whoever compacts it has done so."""
    if not t.options.write_only:
        t.maintain.compact(full=True)
    return t


# ---- rows of others


@pytest.mark.parametrize("how", ["overwrites", "writes"])
@EVERY_KEYED
def test_rows_after_those_of_another_are_newer(options: dict[str, object], how: str) -> None:
    t = keyed(options)
    with t.write(commit_user="stays") as w:
        w.upsert(rows(range(3), 1))
        w.commit(checkpoint=1)
        if how == "overwrites":
            t.overwrite(rows(range(100), 2))
        else:
            with t.write() as other:
                other.upsert(rows(range(100), 2))
                other.commit()
        w.upsert(rows(range(50, 60), 3))
        w.commit(checkpoint=2)
    assert read(settled(t)) == {k: 3 if 50 <= k < 60 else 2 for k in range(100)}


@EVERY_KEYED
def test_an_overwrite_between_rows_and_their_commit_is_a_conflict(options: dict[str, object]) -> None:
    t = keyed(options)
    with t.write(commit_user="stays") as w:
        w.upsert(rows(range(3), 1))
        w.commit(checkpoint=1)
        w.upsert(rows(range(50, 60), 3))
        w.flush()
        t.overwrite(rows(range(100), 2))
        with pytest.raises(shoal.Conflict, match=r"d\.t: ") as told:
            w.commit(checkpoint=2)
        assert "write" in str(told.value.hint)
        assert read(settled(t)) == dict.fromkeys(range(100), 2)
        w.upsert(rows(range(50, 60), 3))
        w.commit(checkpoint=2)
    assert read(settled(t)) == {k: 3 if 50 <= k < 60 else 2 for k in range(100)}


def test_an_overwrite_with_lower_numbers_is_no_conflict() -> None:
    t = keyed({})
    with t.write(commit_user="stays") as w:
        w.upsert(rows(range(100), 1))
        w.commit(checkpoint=1)
        w.upsert(rows(range(2, 4), 3))
        w.flush()
        t.overwrite(rows(range(3), 2))
        w.commit(checkpoint=2)
    assert read(t) == {0: 2, 1: 2, 2: 3, 3: 3}


def test_a_sequence_field_decides_whatever_the_numbers_are() -> None:
    t = keyed({"sequence.field": "v"})
    with t.write(commit_user="stays") as w:
        w.upsert(rows(range(3), 1))
        w.commit(checkpoint=1)
        w.upsert(rows(range(2), 9))
        w.flush()
        t.overwrite(rows(range(100), 5))
        w.commit(checkpoint=2)
    assert read(t) == {k: 9 if k < 2 else 5 for k in range(100)}


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "lookup"}], ids=["none", "lookup"])
def test_a_writer_whose_files_others_commit_numbers_its_rows_above_an_overwrite(options: dict[str, object]) -> None:
    t = keyed(options)
    with t.write(commit_user="job") as w:
        committer = t.committer("job")
        for n in (1, 2):
            w.upsert(rows(range(3), n))
            committer.commit(n, w.prepare(n))
        t.overwrite(rows(range(100), 7))
        w.upsert(rows(range(50, 60), 8))
        committer.commit(3, w.prepare(3))
    assert read(settled(t)) == {k: 8 if 50 <= k < 60 else 7 for k in range(100)}


def test_the_first_row_of_a_key_stays_the_first_after_an_overwrite() -> None:
    t = keyed({"merge-engine": "first-row"})
    with t.write(commit_user="stays") as w:
        w.upsert(rows(range(3), 1))
        w.commit(checkpoint=1)
        t.overwrite(rows(range(100), 2))
        w.upsert(rows(range(50, 120), 3))
        w.commit(checkpoint=2)
    assert read(settled(t)) == {k: 2 if k < 100 else 3 for k in range(120)}


class SnapshotReads(CountingStore):
    """Counts the snapshot files that are read."""

    def read(self, path: str) -> bytes:
        if path.rpartition("snapshot/")[2].startswith("snapshot-"):
            self.calls["snapshot"] += 1
        return super().read(path)


@pytest.mark.parametrize("others", ["compacts", "writes"])
@pytest.mark.parametrize("write_only", [True, False], ids=["written only", "compacting"])
def test_what_a_job_reads_of_others_does_not_grow(write_only: bool, others: str) -> None:
    inner = MemoryStore()
    first = Lake(inner, clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    t = keyed({"write-only": write_only, "num-sorted-run.compaction-trigger": 99}, first)
    store = SnapshotReads(inner)
    mine = Lake(store, clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    mine.cache.max_bytes = 0  # nobody remembers for it
    job = mine.table("d.t")
    reads = []
    with job.write(commit_user="job") as w, job.committer("job") as committer:
        for n in range(1, 41):
            w.upsert(rows(range(n, n + 3), n))
            committer.commit(n, w.prepare(n))
            if others == "compacts":
                t.maintain.compact(full=n % 5 == 0)
            else:
                with t.with_options({"write-only": True}).write() as other:
                    other.upsert(rows(range(200, 203), n))
                    other.commit()
            reads.append(store.calls["snapshot"])
    one = [b - a for a, b in pairwise(reads)]
    assert max(one[30:]) <= max(one[5:15])


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "lookup"}], ids=["none", "lookup"])
def test_a_job_that_lost_a_compaction_compacts_again(options: dict[str, object]) -> None:
    t = keyed({"num-sorted-run.compaction-trigger": 3, **options})
    lost = []
    with t.write(commit_user="job") as w, t.committer("job") as committer:
        for n in range(1, 21):
            w.upsert(rows(range(n, n + 3), n))
            staged = w.prepare(n, wait=True)
            if n == 5:
                t.maintain.compact(full=True)
            lost.append(committer.commit(n, staged).compaction_conflict is not None)
    assert sum(lost) <= 1 and not any(lost[6:])
    assert t.inspect.files().num_rows <= 4
    assert read(settled(t)) == {n: min(n, 20) for n in range(1, 23)}


# ---- columns of others


@pytest.mark.parametrize("how", ["asked", "by itself", "on demand"])
@EVERY_KEYED
def test_a_compaction_by_a_writer_from_before_a_column_keeps_its_values(options: dict[str, object], how: str) -> None:
    at = lake()
    t = keyed({"num-sorted-run.compaction-trigger": 2, **options}, at)
    with t.write(commit_user="old") as old:
        old.upsert(rows(range(3), 1))
        old.commit(checkpoint=1)
        new = t.alter(add={"w": "BIGINT"})
        with new.write() as other:
            other.upsert(pa.table({"k": [1, 2, 3], "v": [2, 2, 2], "w": [7, 8, 9]}))
            other.commit()
        for n in range(2, 6):
            old.upsert(rows(range(10 * n, 10 * n + 3), n))
            old.commit(checkpoint=n, compact="full" if how == "asked" else None, wait=how == "by itself")
    if how == "on demand":
        t.maintain.compact(full=True)
    found = {r["k"]: (r["v"], r["w"]) for r in settled(at.table("d.t")).scan().to_arrow().to_pylist()}
    mine = {10 * n + i: (n, None) for n in range(2, 6) for i in range(3)}
    assert found == {0: (1, None), 1: (2, 7), 2: (2, 8), 3: (2, 9)} | mine


@pytest.mark.parametrize("options", APPENDED.values(), ids=APPENDED)
def test_so_does_a_compaction_of_rows_without_keys(options: dict[str, object]) -> None:
    at = lake()
    t = at.create_table("d.t", SCHEMA, options=options)
    with t.write(commit_user="old") as old:
        old.append(rows(range(3), 1))
        old.commit(checkpoint=1)
        with t.alter(add={"w": "BIGINT"}).write() as other:
            other.append(pa.table({"k": [4, 5], "v": [2, 2], "w": [7, 8]}))
            other.commit()
        for n in range(2, 6):
            old.append(rows(range(10 * n, 10 * n + 2), n))
            old.commit(checkpoint=n, compact="full", wait=True)
    kinds = set(at.table("d.t").inspect.snapshots().column("commit_kind").to_pylist())
    assert "COMPACT" in kinds
    found = {r["k"]: (r["v"], r["w"]) for r in at.table("d.t").scan().to_arrow().to_pylist()}
    mine = {10 * n + i: (n, None) for n in range(2, 6) for i in range(2)}
    assert found == {0: (1, None), 1: (1, None), 2: (1, None), 4: (2, 7), 5: (2, 8)} | mine


def test_values_that_became_wider_stay_whole() -> None:
    at = lake()
    t = at.create_table(
        "d.t", pa.schema([("k", pa.int64()), ("v", pa.int32())]), primary_key=["k"], options={"bucket": 1}
    )
    with t.write(commit_user="old") as old:
        old.upsert(pa.table({"k": [1, 2], "v": pa.array([1, 1], pa.int32())}))
        old.commit(checkpoint=1)
        with t.alter(types={"v": "BIGINT"}).write() as other:
            other.upsert(pa.table({"k": [2, 3], "v": [1 << 40, 1 << 41]}))
            other.commit()
        for n in (2, 3):
            old.upsert(pa.table({"k": [10 + n], "v": pa.array([n], pa.int32())}))
            old.commit(checkpoint=n, compact="full")
    assert read(at.table("d.t")) == {1: 1, 2: 1 << 40, 3: 1 << 41, 12: 2, 13: 3}


def test_a_column_that_is_summed_from_today_on_is_summed_by_older_writers() -> None:
    at = lake()
    t = keyed({"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}, at)
    with t.write(commit_user="old") as old:
        old.upsert(rows(range(2), 1))
        old.commit(checkpoint=1)
        new = t.alter(add={"w": "BIGINT"}, options={"fields.w.aggregate-function": "sum"})
        for _ in range(3):
            with new.with_options({"write-only": True}).write() as other:
                other.upsert(pa.table({"k": [1], "v": [1], "w": [5]}))
                other.commit()
        for n in (2, 3):
            old.upsert(rows(range(2), 1))
            old.commit(checkpoint=n, compact="full")
    found = {r["k"]: (r["v"], r["w"]) for r in at.table("d.t").scan().to_arrow().to_pylist()}
    assert found == {0: (3, None), 1: (6, 15)}


CHANGED: dict[str, tuple[list[str], dict[str, object]]] = {
    "by key": (["k"], {"bucket": 1}),
    "files written again": ([], {}),
    "marks": ([], {"deletion-vectors.enabled": True}),
    "row ids": ([], {"row-tracking.enabled": True}),
    "row ids, marks": ([], {"row-tracking.enabled": True, "deletion-vectors.enabled": True}),
    "columns apart": ([], {"row-tracking.enabled": True, "data-evolution.enabled": True}),
}


# rows of a table whose columns lie apart are not deleted one by one
VERBS = [(k, v) for k in CHANGED for v in ("update", "merge", "delete") if (k, v) != ("columns apart", "delete")]


@pytest.mark.parametrize(("kind", "verb"), VERBS)
def test_a_change_through_a_handle_from_before_a_column_keeps_its_values(kind: str, verb: str) -> None:
    at = lake()
    key, options = CHANGED[kind]
    t = at.create_table("d.t", SCHEMA, primary_key=key, options=options)
    with t.write() as w:
        w.append(rows(range(2), 1))
        w.commit()
    with t.alter(add={"w": "BIGINT"}).write() as other:
        other.append(pa.table({"k": [4, 5, 6], "v": [2, 2, 2], "w": [7, 8, 9]}))
        other.commit()
    wanted = {0: (1, None), 1: (1, None), 4: (2, 7), 5: (2, 8), 6: (2, 9)}
    if verb == "update":
        t.update({"v": pc.field("v") + 10}, where="k >= 5")
        wanted |= {5: (12, 8), 6: (12, 9)}
    elif verb == "merge":
        t.merge(rows(range(5, 8), 3), on="k", when_matched_update=True, when_not_matched_insert=True)
        wanted |= {5: (3, 8), 6: (3, 9), 7: (3, None)}
    else:
        t.delete("k = 5")
        del wanted[5]
    found = {r["k"]: (r["v"], r["w"]) for r in at.table("d.t").scan().to_arrow().to_pylist()}
    assert found == wanted
