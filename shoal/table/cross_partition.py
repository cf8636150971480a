# SPDX-License-Identifier: Apache-2.0
"""Keys that may change their partition: an index of where every key is, and what becomes of a row whose key moved.

The index is built from the table's rows when the first batch comes. deduplicate deletes the old row and inserts the new
one where it belongs, partial-update and aggregation send the row to the key's old partition, first-row drops it.
Agrees with: GlobalIndexAssigner, IndexBootstrap, ExistingProcessor (2.0.0). Invariant: rows of a batch that move a key
several times act in order of arrival; a key lives in one partition. One writer at a time, as in Java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.budget import Budget
from shoal.errors import BadRequest, NotFound
from shoal.lsm.merge import DELETE, INSERT, KIND, UPDATE_AFTER
from shoal.table.buckets import UNAWARE, Group, Indexes, Newest, Place, Rows, groups_of, partitions_of
from shoal.table.key_index import KeyIndex, Keys, fingerprints
from shoal.table.partition_counts import Leaving, PartitionCounts
from shoal.table.placed_keys import PlacedKeys
from shoal.table.read import read
from shoal.table.scan import Plan, Scan, Split

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.snapshot import Snapshot
    from shoal.table.table import Table

# Part of the budget that the index may keep in memory.
_SHARE = 0.25
_BUCKET_BITS = 32
_NOBODY = np.empty(0, np.int64)


class CrossPartitionRouter:
    """Places rows by where their key is. `overwrite` begins with no keys whatever the table holds."""

    def __init__(self, table: Table, newest: Newest, budget: Budget, *, overwrite: bool = False) -> None:
        self._table = table
        self._newest = newest
        self._budget = budget
        self._overwrite = overwrite
        self._keep = table.options.merge_engine  # what a key that is elsewhere means
        self._index: KeyIndex | None = None
        self._partitions: dict[bytes, int] = {}
        self._values: list[pa.Table] = []  # the partition columns of each, one row
        self._counts: list[PartitionCounts] = []
        self._seen = 0  # the newest snapshot that the index holds
        self._placed: PlacedKeys | None = None
        self._dirty = self._staged_dirty = self._routed = False
        self._read_again = False

    # ---- the state

    def _ids(self, partitions: list[bytes], values: list[pa.Table]) -> Rows:
        """The numbers of partitions in this index."""
        for p, v in zip(partitions, values):
            if p not in self._partitions:
                self._partitions[p] = len(self._partitions)
                self._values.append(v)
                self._counts.append(PartitionCounts(self._table.options.dynamic_bucket_rows))
        return np.array([self._partitions[p] for p in partitions], np.int64)

    def _columns(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """The partition columns of the first row."""
        import pyarrow as pa

        names = self._table.schema.partition_keys
        return pa.table({n: rows.column(n).slice(0, 1) for n in names})

    def _ready(self) -> KeyIndex:
        if self._index is None:
            self._index = KeyIndex(self._budget, int(self._budget.total * _SHARE))
            snapshot = self._newest.refresh()
            self._seen = snapshot.id if snapshot else 0
            if snapshot is not None and not self._overwrite:
                try:
                    self._bootstrap(self._index, snapshot)
                except BaseException:
                    self.close()
                    raise
        return self._index

    def _bootstrap(self, index: KeyIndex, snapshot: Snapshot) -> None:
        """Every key of the table, those too that readers do not see before a compaction."""
        table = self._table.with_options({"batch-scan-mode": "compact"})
        keys = table.schema.primary_keys
        scan = Scan(table, snapshot=snapshot, columns=list(dict.fromkeys((*keys, *table.schema.partition_keys))))
        plan = scan.plan()

        def places() -> Iterator[tuple[Keys, Rows]]:
            for split in filter(self._remembered, plan.splits):
                one = Plan(table, snapshot, split.entries, {}, {(split.partition, split.bucket): split.deletions})
                for batch in read(scan, one):
                    at = int(self._ids([split.partition], [self._columns(batch)])[0])
                    self._counts[at].add(split.bucket, batch.num_rows)
                    found = fingerprints([batch.column(k) for k in keys])
                    yield found, np.full(len(found), _places(at, split.bucket), np.int64)

        twice = index.load(places())
        if twice:
            raise BadRequest(
                f"{self._table.name}: {twice} keys are in two partitions or buckets",
                hint="several jobs have written this table at once; overwrite it with one row a key",
            )

    def _remembered(self, split: Split) -> bool:
        """`cross-partition-upsert.index-ttl`: a bucket without a file younger than this is forgotten."""
        ttl: Any = self._table.options.get("cross-partition-upsert.index-ttl")
        now = self._table.local_now_ms()
        return ttl is None or any(f.creation_ms is not None and now <= f.creation_ms + ttl for f in split.files)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None
        self._partitions, self._values, self._counts = {}, [], []
        self._dirty = self._staged_dirty = self._routed = False

    # ---- rows

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        if not self._routed:
            self._look_again()
        index = self._ready()
        self._routed |= bool(rows.num_rows)
        partitions, codes = partitions_of(self._table, rows)
        firsts = np.unique(codes, return_index=True)[1].tolist()
        ids = self._ids(partitions, [self._columns(rows.slice(at, 1)) for at in firsts])
        keys = fingerprints([rows.column(k).combine_chunks() for k in self._table.schema.primary_keys])
        order = keys.order()
        keys = keys.take(order)
        runs = _Runs(order, ids[codes][order], keys.starts())
        there = index.find(keys.take(runs.heads))
        if self._keep == "deduplicate":
            return self._moving(index, rows, keys, runs, there)
        return self._staying(index, rows, keys, runs, there)

    def _staying(
        self, index: KeyIndex, rows: pa.Table, keys: Keys, runs: _Runs, there: Rows
    ) -> tuple[pa.Table, list[Group]]:
        """A key stays in the partition it first came to."""
        new = np.flatnonzero(there < 0)
        partition = np.where(there < 0, runs.partition[runs.heads], there >> _BUCKET_BITS)
        bucket = (there & ((1 << _BUCKET_BITS) - 1)).astype(np.int32)
        when = runs.order[runs.heads[new]]
        bucket[new] = self._place(partition[new], when, _NOBODY, _NOBODY, _NOBODY, _NOBODY)
        index.put(keys.take(runs.heads[new]), _places(partition[new], bucket[new]))
        self._dirty |= bool(len(new))
        n = rows.num_rows
        target, into = np.empty(n, np.int64), np.empty(n, np.int32)
        target[runs.order], into[runs.order] = partition[runs.of_row], bucket[runs.of_row]
        own = np.empty(n, np.int64)
        own[runs.order] = runs.partition
        elsewhere = own != target
        if self._keep == "first-row":
            if elsewhere.any():
                kept = np.flatnonzero(~elsewhere)
                rows, target, into = rows.take(kept), target[kept], into[kept]
        elif elsewhere.any():
            rows = _inserted(self._moved(rows, elsewhere, target), elsewhere)
        return rows, self._groups(target, into)

    def _moving(
        self, index: KeyIndex, rows: pa.Table, keys: Keys, runs: _Runs, there: Rows
    ) -> tuple[pa.Table, list[Group]]:
        """A key follows its newest row; where it was, it is deleted."""
        order, partition = runs.order, runs.partition
        before = np.empty(len(order), np.int64)  # the partition that the row's key is in when it comes
        before[1:] = partition[:-1]
        before[runs.heads] = np.where(there < 0, -1, there >> _BUCKET_BITS)
        comes = before != partition
        # rows of a key between two moves share a bucket: a stay
        begins = comes.copy()
        begins[runs.heads] = True
        stay = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        is_head = np.zeros(len(order), bool)
        is_head[runs.heads] = True
        known = np.full(len(order), -1, np.int64)
        known[runs.heads] = np.where(there < 0, -1, there & ((1 << _BUCKET_BITS) - 1))
        bucket = known[first].astype(np.int32)  # of each stay, where the key was there before
        coming = np.flatnonzero(comes)
        leaving = np.flatnonzero(comes & (before >= 0))
        # the bucket a key leaves: the index says, or it is the one of the stay before
        old = np.where(is_head[leaving], known[leaving], -1)
        since = np.where(is_head[leaving], -1, stay[leaving] - 1)
        unclear = np.flatnonzero(since >= 0)
        settled = ~comes[first[since[unclear]]]
        old[unclear[settled]] = bucket[since[unclear[settled]]]
        since[unclear[settled]] = -1
        arrival = np.full(len(first), -1, np.int64)
        arrival[stay[coming]] = np.arange(len(coming))
        came = np.where(since >= 0, arrival[since], -1)
        bucket[stay[coming]] = self._place(partition[coming], order[coming], before[leaving], order[leaving], old, came)
        old = np.where(since >= 0, bucket[since], old)
        ends = np.append(runs.heads[1:], len(order)) - 1  # the last row of each key
        last = _places(partition[ends], bucket[stay[ends]])
        changed = np.flatnonzero(last != there)
        index.put(keys.take(ends[changed]), last[changed])
        self._dirty |= bool(len(changed))
        n = rows.num_rows
        target, into = np.empty(n, np.int64), np.empty(n, np.int32)
        target[order], into[order] = partition, bucket[stay]
        if not len(leaving) or self._table.options.ignore_delete:
            # `ignore-delete` leaves out these deletes as it does all: the row stays where it was
            return rows, self._groups(target, into)
        # each row that moves its key comes after a delete of the key where it was
        extra = np.zeros(n, np.int64)
        extra[order[leaving]] = 1
        at = np.repeat(np.arange(n), 1 + extra)
        delete = np.zeros(len(at), bool)
        delete[np.flatnonzero(extra) + np.cumsum(extra)[extra > 0] - 1] = True
        was, was_in = np.zeros(n, np.int64), np.zeros(n, np.int32)
        was[order[leaving]], was_in[order[leaving]] = before[leaving], old
        target = np.where(delete, was[at], target[at])
        into = np.where(delete, was_in[at], into[at])
        return self._moved(rows.take(at), delete, target, retract=True), self._groups(target, into)

    def _place(self, to: Rows, when: Rows, leaves: Rows, left: Rows, old: Rows, came: Rows) -> Rows:
        """Buckets of keys that come to the partitions `to`, others leaving the partitions `leaves` meanwhile."""
        out = np.empty(len(to), np.int32)
        rank = np.empty(len(to), np.int64)
        for p in np.unique(np.concatenate([to, leaves])).tolist():
            here = np.flatnonzero(to == p)
            here = here[np.argsort(when[here])]
            rank[here] = np.arange(len(here))
            gone = np.flatnonzero(leaves == p)
            since = np.where(old[gone] < 0, rank[came[gone]], 0)
            out[here] = self._counts[p].place(when[here], Leaving(left[gone], old[gone], since))
        return out

    def _moved(self, rows: pa.Table, which: Rows, partition: Rows, *, retract: bool = False) -> pa.Table:
        """The rows with other partition columns in some of them; with `retract`, these become deletes."""
        import pyarrow as pa

        n = rows.num_rows
        at = np.where(which, n + partition, np.arange(n))
        every = pa.concat_tables(self._values)
        for name in self._table.schema.partition_keys:
            i = rows.schema.get_field_index(name)
            both = pa.chunked_array([*rows.column(name).chunks, *every.column(name).chunks]).combine_chunks()
            rows = rows.set_column(i, rows.schema.field(i), both.take(pa.array(at)))
        if retract:
            i = rows.schema.get_field_index(KIND)
            kinds = np.where(which, np.int8(DELETE), rows.column(KIND).to_numpy().astype(np.int8))
            rows = rows.set_column(i, rows.schema.field(i), pa.array(kinds))
        return rows

    def _groups(self, partition: Rows, bucket: Rows) -> list[Group]:
        return groups_of(list(self._partitions), partition, bucket, [UNAWARE] * len(self._partitions))

    # ---- checkpoints

    def staged(self) -> Mapping[Place, tuple[Indexes, Indexes]]:
        self._placed = PlacedKeys(keys_until=self._seen) if self._routed and not self._overwrite else None
        self._staged_dirty |= self._dirty
        self._dirty = self._routed = False
        return {}

    def placed(self) -> PlacedKeys | None:
        return self._placed

    def committed(self) -> None:
        self._staged_dirty = False

    def forget(self) -> None:
        """Built again only when it is wrong: after a failed commit, or when others changed more than compactions do."""
        if self._index is None:
            return
        newest = self._newest.refresh()
        last = newest.id if newest else 0
        if self._dirty or self._staged_dirty or last < self._seen or self._changed(last):
            self.close()
        else:
            self._seen = last

    def _look_again(self) -> None:
        """Before the first rows of a checkpoint: others may have placed keys since the last one."""
        newest = None if self._index is None else self._newest.refresh()
        if newest is not None and newest.id > self._seen:
            if self._changed(newest.id):
                self.close()
                self._read_again = True
            else:
                self._seen = newest.id

    def moved(self) -> bool:
        found, self._read_again = self._read_again, False
        return found

    def _changed(self, last: int) -> bool:
        metadata = self._table.metadata
        for i in range(self._seen + 1, last + 1):
            try:
                snapshot = metadata.snapshot(i)
            except NotFound:
                return True
            if snapshot.commit_kind != "COMPACT" and snapshot.commit_user != self._newest.user:
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Runs:
    """Rows sorted by key, equal keys in order of arrival: `order` their numbers, `starts` where another key begins."""

    order: Rows
    partition: Rows
    starts: Rows

    @property
    def heads(self) -> Rows:
        return np.flatnonzero(self.starts)

    @property
    def of_row(self) -> Rows:
        return np.cumsum(self.starts) - 1


def _places(partition: Any, bucket: Any) -> Any:
    return (partition << _BUCKET_BITS) | bucket


def _inserted(rows: pa.Table, which: Rows) -> pa.Table:
    """+U as +I in these rows, as Java's rows come out of ProjectToRowFunction.

    There a -D becomes +I as well, and what was to be taken back is added; that is not done here.
    """
    import pyarrow as pa

    i = rows.schema.get_field_index(KIND)
    kinds = rows.column(KIND).to_numpy().astype(np.int8)
    kinds = np.where(which & (kinds == UPDATE_AFTER), np.int8(INSERT), kinds)
    return rows.set_column(i, rows.schema.field(i), pa.array(kinds))
