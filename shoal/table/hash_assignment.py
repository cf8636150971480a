# SPDX-License-Identifier: Apache-2.0
"""Buckets for the key hashes of one partition: a hash keeps its bucket, new ones fill buckets in order of arrival.

Agrees with: PartitionIndex, SimpleHashBucketAssigner (2.0.0), for the one assigner that a writer is. Invariant: what a
batch gets is what Java gives the same hashes one after another; only past `dynamic-bucket.max-buckets` is it a random
choice, in Java too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.errors import BadRequest

Array = np.ndarray[Any, np.dtype[Any]]

# Java keeps buckets of an index as shorts.
_MOST_BUCKETS = 32_767
_U32 = np.uint32
_U64 = np.uint64


@dataclass(frozen=True, slots=True)
class Limits:
    """`rows` a bucket is filled to, and how many buckets a partition may have (-1: no limit)."""

    rows: int
    max_buckets: int

    @property
    def last(self) -> int:
        """The highest bucket there may be."""
        return (_MOST_BUCKETS if self.max_buckets == -1 else self.max_buckets) - 1


@dataclass(frozen=True, slots=True)
class Open:
    """Buckets that took rows and were not found full yet, in the order of a java.util.HashMap, which Java fills by."""

    counts: tuple[tuple[int, int], ...] = ()  # (bucket, rows), in order of insertion
    capacity: int = 16

    @classmethod
    def of(cls, counts: Iterable[tuple[int, int]]) -> Open:
        out = cls()
        for bucket, rows in counts:
            out = out.put(bucket, rows)
        return out

    def put(self, bucket: int, rows: int) -> Open:
        counts = (*self.counts, (bucket, rows))
        return Open(counts, self.capacity * 2 if len(counts) > self.capacity * 3 // 4 else self.capacity)

    def ordered(self) -> list[tuple[int, int]]:
        return sorted(self.counts, key=lambda c: c[0] & (self.capacity - 1))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The buckets of a partition. A value: assigning gives another one, so trying costs nothing.

    `hashes` are sorted and distinct, `buckets` stand beside them; `fresh_hashes` likewise, for those that came last:
    small next to the first, so that a batch costs what it brings and not what is known.
    """

    hashes: Array  # uint32
    buckets: Array  # int16
    fresh_hashes: Array
    fresh_buckets: Array
    open: Open
    there: tuple[int, ...]  # every bucket, in Java's order

    @classmethod
    def empty(cls) -> Assignment:
        none, nowhere = np.empty(0, _U32), np.empty(0, np.int16)
        return cls(none, nowhere, none, nowhere, Open(), ())

    @classmethod
    def of(cls, files: Iterable[tuple[int, Array]]) -> Assignment:
        """From (bucket, signed hashes) of index files. A hash in two files belongs to the later one."""
        loaded = list(files)
        out = cls.empty()
        if not loaded:
            return out
        counts: dict[int, int] = {}
        for bucket, hashes in loaded:
            if len(hashes):
                counts[bucket] = counts.get(bucket, 0) + len(hashes)
        every = np.concatenate([h.astype(np.int32).view(_U32) for _, h in loaded])
        where = np.repeat(np.array([b for b, _ in loaded], np.int16), [len(h) for _, h in loaded])
        order = np.argsort(every, kind="stable")
        every, where = every[order], where[order]
        last = np.append(every[1:] != every[:-1], True)[: len(every)]
        opened = Open.of(counts.items())
        there = tuple(b for b, _ in opened.ordered())
        return replace(out, hashes=every[last], buckets=where[last], open=opened, there=there)

    @property
    def nbytes(self) -> int:
        return 6 * (len(self.hashes) + len(self.fresh_hashes))

    def in_bucket(self, bucket: int) -> Array:
        """The hashes of one bucket, signed."""
        parts = (self.hashes[self.buckets == bucket], self.fresh_hashes[self.fresh_buckets == bucket])
        return np.concatenate(parts).view(np.int32)

    def assign(self, hashes: Array, limits: Limits, highest: int, rng: random.Random) -> Assigned:
        """Buckets of signed `hashes` in order of arrival. `highest` is the highest bucket this writer gave so far."""
        n = len(hashes)
        packed = hashes.view(_U32).astype(_U64) << _U64(32)
        packed |= np.arange(n, dtype=_U64)
        packed.sort()
        order = (packed & _U64(0xFFFFFFFF)).astype(np.int64)
        keys = (packed >> _U64(32)).astype(_U32)
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[:n])
        keys = keys[starts]
        bucket = np.full(len(keys), -1, np.int16)
        for known, where in ((self.hashes, self.buckets), (self.fresh_hashes, self.fresh_buckets)):
            if len(known):
                at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
                bucket = np.where(known[at] == keys, where[at], bucket)
        new = np.flatnonzero(bucket < 0)
        after, changed = self, frozenset[int]()
        if len(new):
            arrived = np.argsort(order[starts[new]])
            given, after = self._place(len(new), limits, highest, rng)
            bucket[new[arrived]] = given
            after = after._remember(keys[new], bucket[new])
            changed = frozenset(np.unique(given).tolist())
        out = np.empty(n, np.int32)
        out[order] = np.repeat(bucket, np.diff(np.append(starts, n)))
        return Assigned(out, after, changed)

    def _place(self, count: int, limits: Limits, highest: int, rng: random.Random) -> tuple[Array, Assignment]:
        """Buckets of `count` hashes never seen, in order of arrival."""
        pieces: list[tuple[int, int]] = []
        state = self
        while count:
            found = state.open.ordered()
            if found:
                bucket, rows = found[0]
                take = min(count, limits.rows - rows)
                if take <= 0:
                    left = tuple(c for c in state.open.counts if c[0] != bucket)
                    state = replace(state, open=replace(state.open, counts=left))
                    continue
                counts = tuple((b, r + take if b == bucket else r) for b, r in state.open.counts)
                state = replace(state, open=replace(state.open, counts=counts))
            else:
                unused = None
                if not state.there or highest < limits.last:
                    taken = set(state.there)
                    unused = next((i for i in range(limits.last + 1) if i not in taken), None)
                    if unused is None and limits.max_buckets == -1:
                        raise BadRequest(
                            f"a partition has {len(taken)} buckets and all are full",
                            hint="raise 'dynamic-bucket.target-row-num'",
                        )
                if unused is None:
                    chosen = np.random.default_rng(rng.getrandbits(64)).integers(0, len(state.there), count)
                    anywhere = np.array(state.there, np.int16)[chosen]
                    return np.concatenate([_spread(pieces), anywhere]), state
                bucket, take = unused, max(1, min(count, limits.rows))
                state = replace(state, open=state.open.put(bucket, take), there=(*state.there, bucket))
            highest = max(highest, bucket)
            pieces.append((bucket, take))
            count -= take
        return _spread(pieces), state

    def _remember(self, keys: Array, buckets: Array) -> Assignment:
        hashes, where = _merged(self.fresh_hashes, self.fresh_buckets, keys, buckets)
        if len(hashes) < len(self.hashes) // 8:
            return replace(self, fresh_hashes=hashes, fresh_buckets=where)
        every, where = _merged(self.hashes, self.buckets, hashes, where)
        return replace(self, hashes=every, buckets=where, fresh_hashes=every[:0], fresh_buckets=where[:0])


@dataclass(frozen=True, slots=True)
class Assigned:
    """The bucket of each row, what is known afterwards, and the buckets that got a hash they did not have."""

    buckets: Array
    after: Assignment
    changed: frozenset[int]


def _spread(pieces: list[tuple[int, int]]) -> Array:
    return np.repeat(np.array([b for b, _ in pieces], np.int16), np.array([n for _, n in pieces], np.int64))


def _merged(keys: Array, values: Array, more: Array, their: Array) -> tuple[Array, Array]:
    """Two sorted lists without a key in common as one."""
    if not len(keys):
        return more, their
    at = np.searchsorted(keys, more) + np.arange(len(more))
    rest = np.ones(len(keys) + len(more), bool)
    rest[at] = False
    out, where = np.empty(len(rest), keys.dtype), np.empty(len(rest), values.dtype)
    out[at], where[at] = more, their
    out[rest], where[rest] = keys, values
    return out, where


def assign_together(
    parts: list[tuple[Assignment, Array, Array]], limits: Limits, highest: int, rng: random.Random
) -> tuple[list[list[Assigned]], int]:
    """Assign the rows of several partitions: (state, row numbers, hashes) each. The steps of each, and the highest.

    Java looks at the highest bucket that a writer gave in any partition before it makes one more. So where a limit is
    set, the rows up to the one that reached it are assigned first, and the others after it.
    """
    row = _reaching(parts, limits, highest, rng)
    steps: list[list[Assigned]] = [[] for _ in parts]
    for cut in _cuts(row):
        for i, (state, rows, hashes) in enumerate(parts):
            some = hashes[cut(rows)]
            if len(some):
                now = steps[i][-1].after if steps[i] else state
                steps[i].append(now.assign(some, limits, highest, rng))
        reached = (int(s.buckets.max()) for each in steps for s in each)
        highest = max(highest, *reached)
    return steps, highest


def _reaching(
    parts: list[tuple[Assignment, Array, Array]], limits: Limits, highest: int, rng: random.Random
) -> int | None:
    """The row that gets the last bucket there may be, when rows after it must know of it."""
    if limits.max_buckets == -1 or highest >= limits.last:
        return None
    first = []
    state = rng.getstate()
    for before, rows, hashes in parts:
        at = np.flatnonzero(before.assign(hashes, limits, highest, rng).buckets >= limits.last)
        if len(at):
            first.append(int(rows[at[0]]))
    rng.setstate(state)
    return min(first, default=None)


def _cuts(row: int | None) -> Iterator[Callable[[Array], Any]]:
    if row is None:
        yield lambda rows: slice(None)
    else:
        yield lambda rows: rows <= row
        yield lambda rows: rows > row
