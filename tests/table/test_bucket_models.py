# SPDX-License-Identifier: Apache-2.0
"""Placing rows by the batch against the same done one row after another, as Java's assigners are written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shoal.table.key_index as key_index_module
from shoal.budget import Budget
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.index_manifest import IndexEntry
from shoal.lsm.merge import KIND
from shoal.store.memory import MemoryStore
from shoal.table.buckets import router_of
from shoal.table.commit import Commit
from shoal.table.hash_assignment import Assignment, Limits, assign_together
from shoal.table.key_index import KeyIndex, Keys, fingerprints

SEEDS = range(5)


class JavaHashMap:
    """Integers as keys of a java.util.HashMap: iterated by slot, slots doubled at three quarters full."""

    def __init__(self) -> None:
        self.capacity = 16
        self.items: dict[int, int] = {}

    def put(self, key: int, value: int) -> None:
        self.items[key] = value
        if len(self.items) > self.capacity * 0.75:
            self.capacity *= 2

    @property
    def order(self) -> list[int]:
        return sorted(self.items, key=lambda k: k % self.capacity)


class OneByOne:
    """The rules for dynamic buckets, for several partitions and one hash after another."""

    def __init__(self, target: int, most: int) -> None:
        self.target, self.most, self.highest = target, most, 0
        self.known: dict[int, dict[int, int]] = {}
        self.open: dict[int, JavaHashMap] = {}
        self.there: dict[int, list[int]] = {}

    def load(self, partition: int, files: list[tuple[int, list[int]]]) -> None:
        self.known[partition], self.open[partition] = {}, JavaHashMap()
        for bucket, hashes in files:
            for h in hashes:
                self.known[partition][h] = bucket
                counts = self.open[partition]
                counts.put(bucket, counts.items.get(bucket, 0) + 1)
        self.there[partition] = self.open[partition].order

    def assign(self, partition: int, h: int) -> int | None:
        """None for any bucket of the partition."""
        bucket = self._assign(partition, h)
        if bucket is not None:
            self.known[partition][h] = bucket
            self.highest = max(self.highest, bucket)
        return bucket

    def _assign(self, partition: int, h: int) -> int | None:
        known, counts, there = self.known[partition], self.open[partition], self.there[partition]
        if h in known:
            return known[h]
        for bucket in counts.order:
            if counts.items[bucket] < self.target:
                counts.items[bucket] += 1
                return bucket
            del counts.items[bucket]
        last = (32767 if self.most == -1 else self.most) - 1
        if not there or self.highest < last:
            for i in range(last + 1):
                if i not in there:
                    counts.put(i, 1)
                    there.append(i)
                    return i
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_hashes_fill_buckets_as_single_ones_do(seed: int) -> None:
    rng = random.Random(seed)
    target, most = rng.randrange(1, 6), rng.choice([-1, -1, 1, 2, 3, 5])
    model, limits = OneByOne(target, most), Limits(target, most)
    states: dict[int, Assignment] = {}
    for p in range(3):
        held = rng.sample(range(30), rng.randrange(4)) if most == -1 else []
        files = [(b, [rng.randrange(-200, 200) for _ in range(rng.randrange(1, 2 * target + 1))]) for b in held]
        # a hash lies in one bucket
        seen: set[int] = set()
        files = [(b, [h for h in hs if not (h in seen or seen.add(h))]) for b, hs in files]  # type: ignore[func-returns-value]
        model.load(p, files)
        states[p] = Assignment.of([(b, np.array(hs, np.int32)) for b, hs in files])
    highest = 0
    for _ in range(6):
        n = rng.randrange(1, 40)
        partition = np.array([rng.randrange(3) for _ in range(n)])
        hashes = np.array([rng.randrange(-150, 150) for _ in range(n)], np.int32)
        present = sorted(set(partition.tolist()))
        at = [np.flatnonzero(partition == p) for p in present]
        steps, highest = assign_together(
            [(states[p], rows, hashes[rows]) for p, rows in zip(present, at)], limits, highest, random.Random(0)
        )
        got = np.empty(n, int)
        for p, rows, done in zip(present, at, steps):
            got[rows] = np.concatenate([d.buckets for d in done])
            states[p] = done[-1].after
        for p, h, bucket in zip(partition.tolist(), hashes.tolist(), got.tolist()):
            wanted = model.assign(p, h)
            if wanted is None:  # a random choice: any bucket of the partition, and the same for ever
                assert bucket in model.there[p]
                model.known[p][h] = bucket
                model.highest = max(model.highest, bucket)
            else:
                assert bucket == wanted
        assert highest == model.highest
    for p, state in states.items():
        kept = {h: b for b in set(model.known[p].values()) for h in state.in_bucket(b).tolist()}
        assert kept == model.known[p]


# ---- the index of keys


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_key_index_remembers_what_was_put_last(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index_module, "_SLICE", 700)
    rng = np.random.default_rng(3)
    budget = Budget(1 << 30)
    index, model = KeyIndex(budget, limit), dict[int, int]()
    spilled = 0
    for i in range(60):
        some = np.unique(rng.integers(0, 5000, 300))
        keys = fingerprints([pa.array(some)])
        order = keys.order()
        assert index.find(keys.take(order)).tolist() == [model.get(k, -1) for k in some[order].tolist()]
        put = order[rng.random(len(order)) < 0.5]
        index.put(keys.take(put), np.full(len(put), i))
        model |= dict.fromkeys(some[put].tolist(), i)
        spilled = max(spilled, index.runs)
        assert budget.used == index.nbytes
    assert (spilled > 0) == (limit == 0)
    index.close()
    assert budget.used == 0


def test_keys_with_the_same_first_hash_are_told_apart() -> None:
    high = np.array([1, 5, 5, 5, 9], np.uint64)
    low = np.array([0, 1, 2, 4, 0], np.uint64)
    index = KeyIndex(Budget(1 << 20), 1 << 20)
    index.put(Keys(high, low), np.arange(5))
    asked = Keys(np.array([5, 5, 5, 5, 6, 9, 10], np.uint64), np.array([0, 1, 3, 4, 0, 0, 0], np.uint64))
    assert index.find(asked).tolist() == [-1, 1, -1, 3, -1, 4, -1]


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_loading_counts_keys_that_come_twice(limit: int) -> None:
    def batches(values: list[range]) -> Iterator[tuple[Keys, Any]]:
        for r in values:
            yield fingerprints([pa.array(list(r), pa.int64())]), np.full(len(r), r.start)

    index = KeyIndex(Budget(1 << 30), limit)
    assert index.load(batches([range(700), range(700, 1500), range(1500, 2000)])) == 0
    index.close()
    index = KeyIndex(Budget(1 << 30), limit)
    assert index.load(batches([range(1000), range(1000, 2000), range(995, 1005), range(5000, 5001)])) == 10
    index.close()


def test_fingerprints_do_not_depend_on_the_batch() -> None:
    texts = ["", "a", "a\0", "abcdefgh", "abcdefgh\0", "b" * 300, "b" * 301, "é", "\0", "\0\0"]
    whole = fingerprints([pa.array(texts), pa.array(range(10), pa.int32())])
    for i, text in enumerate(texts):
        one = fingerprints([pa.array([text]), pa.array([i], pa.int32())])
        assert (one.high[0], one.low[0]) == (whole.high[i], whole.low[i])
    alone = fingerprints([pa.array(texts)])
    assert len({*zip(alone.high.tolist(), alone.low.tolist())}) == len(texts)


# ---- keys that change their partition

ENGINES = ["deduplicate", "partial-update", "aggregation", "first-row"]


class Global:
    """The rules for keys without a partition, one row after another."""

    def __init__(self, engine: str, target: int) -> None:
        self.engine, self.target = engine, target
        self.where: dict[int, tuple[int, int]] = {}
        self.counts: dict[int, dict[int, int]] = {}

    def _new(self, partition: int) -> int:
        counts = self.counts.setdefault(partition, {})
        for bucket in sorted(counts):
            if counts[bucket] < self.target:
                counts[bucket] += 1
                return bucket
        bucket = next(i for i in range(10**6) if i not in counts)
        counts[bucket] = 1
        return bucket

    def put(self, p: int, k: int, v: int, kind: int) -> Iterator[tuple[int, int, tuple[int, int, int, int]]]:
        old = self.where.get(k)
        if old is not None and old[0] == p:
            yield *old, (p, k, v, kind)
            return
        if old is not None:
            if self.engine != "deduplicate":
                if self.engine != "first-row":
                    yield *old, (old[0], k, v, 0 if kind == 2 else kind)  # a row that is moved comes as +I
                return
            yield *old, (old[0], k, v, 3)
            self.counts[old[0]][old[1]] -= 1
        self.where[k] = (p, self._new(p))
        yield *self.where[k], (p, k, v, kind)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_move_keys_as_single_rows_do(engine: str, seed: int) -> None:
    rng = random.Random(seed)
    target = rng.choice([1, 2, 3, 7, 1000])
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": str(target)}
    schema = pa.schema([("p", pa.int32()), ("k", pa.int64()), ("v", pa.int32())])
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    table = lake.create_table("d.t", schema, primary_key=["k"], partition_by=["p"], options=options)
    table = table.with_options({"merge-engine": engine})
    router = router_of(table, Commit(table, "u", random.Random(0)), Budget(1 << 24))
    model = Global(engine, target)
    for step in range(6):
        rows = [
            (rng.randrange(4), rng.randrange(30), step * 100 + i, rng.choice([0, 0, 2, 3]))
            for i in range(rng.randrange(1, 60))
        ]
        wanted: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for row in rows:
            for p, b, r in model.put(*row):
                wanted.setdefault((p, b), []).append(r)
        columns = list(zip(*rows))
        data = pa.table([pa.array(c, t.type) for c, t in zip(columns, schema)], ["p", "k", "v"])
        routed, groups = router.route(data.append_column(KIND, pa.array(columns[3], pa.int8())))
        got: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for g in groups:
            part = [tuple(r.values()) for r in routed.take(pa.array(g.rows)).to_pylist()]
            assert g.total_buckets == -1
            assert len({r[0] for r in part}) == 1
            got[part[0][0], g.bucket] = part  # type: ignore[assignment]
        assert got == wanted
        assert router.staged() == dict[tuple[bytes, int], tuple[tuple[IndexEntry, ...], tuple[IndexEntry, ...]]]()
