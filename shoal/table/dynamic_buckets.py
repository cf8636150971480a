# SPDX-License-Identifier: Apache-2.0
"""Dynamic buckets: the index files of a partition say where each key hash lives, new hashes fill bucket after bucket.

Agrees with: HashBucketAssigner, DynamicBucketIndexMaintainer, HashIndexFile (2.0.0). Invariant: one HASH file for each
bucket holds all its hashes; a bucket that gets a new one is written whole and replaces the old file in the commit that
holds the rows. One writer at a time: `placed` tells the commit what was known, and the later of two gets a `Conflict`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import ShoalError
from shoal.format import hash_index
from shoal.format.hashing import row_hashes
from shoal.format.index_manifest import ADD, IndexEntry
from shoal.store.base import add_file, delete_each
from shoal.table.buckets import UNAWARE, Group, Indexes, Newest, Place, Rows, groups_of, partitions_of
from shoal.table.hash_assignment import Assignment, Limits, assign_together
from shoal.table.new_files import new_uuid
from shoal.table.placed_keys import PlacedKeys

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class DynamicRouter:
    """Places rows by the hash of their key. `overwrite` begins with empty partitions whatever the table holds."""

    def __init__(self, table: Table, newest: Newest, *, overwrite: bool = False) -> None:
        o = table.options
        self._table = table
        self._newest = newest
        self._overwrite = overwrite
        self._limits = Limits(o.dynamic_bucket_rows, o.dynamic_bucket_max)
        self._highest = 0
        self._partitions: dict[bytes, Assignment] = {}
        self._known: dict[bytes, set[str]] = {}  # index files read or written
        self._looked_at: str | None = None  # the index manifest that nothing was unknown in
        self._read_again = False
        self._placed: PlacedKeys | None = None
        self._changed: dict[Place, None] = {}  # in order
        self._used: set[bytes] = set()  # since the last checkpoint
        self._recent: set[bytes] = set()  # in it
        self._uncommitted = 0  # checkpoints
        self._uuid = new_uuid(table)
        self._counter = itertools.count()

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        if self._partitions and not self._used and not self._overwrite:
            self._look_again()
        partitions, codes = partitions_of(self._table, rows)
        fields = [self._table.schema.field(k) for k in self._table.schema.trimmed_keys]
        hashes = row_hashes([rows.column(f.name).combine_chunks() for f in fields], [f.type for f in fields])
        numbers = _rows_by_code(codes, len(partitions))
        states = [self._partition(p) for p in partitions]
        parts = [(s, at, hashes[at]) for s, at in zip(states, numbers)]
        steps, self._highest = assign_together(parts, self._limits, self._highest, self._table.rng)
        bucket = np.empty(rows.num_rows, np.int32)
        for partition, at, done in zip(partitions, numbers, steps):
            bucket[at] = np.concatenate([s.buckets for s in done])
            self._partitions[partition] = done[-1].after
            self._used.add(partition)
            self._changed |= dict.fromkeys((partition, b) for s in done for b in sorted(s.changed))
        return rows, groups_of(partitions, codes, bucket, [UNAWARE] * len(partitions))

    def _look_again(self) -> None:
        """Before the first rows of a checkpoint: forget the partitions where others have placed keys."""
        snapshot = self._newest.refresh()
        name = None if snapshot is None else snapshot.index_manifest
        if name is None or name == self._looked_at:
            return
        for e in self._table.metadata.index_entries(name):
            known = self._known.get(e.partition)
            if e.index_type == hash_index.INDEX_TYPE and known is not None and e.file_name not in known:
                del self._partitions[e.partition], self._known[e.partition]
                self._read_again = True
        self._looked_at = name

    def moved(self) -> bool:
        found, self._read_again = self._read_again, False
        return found

    def _partition(self, partition: bytes) -> Assignment:
        found = self._partitions.get(partition)
        if found is None:
            found = self._load(partition)
        return found

    def _load(self, partition: bytes) -> Assignment:
        known = self._known[partition] = set()
        self._looked_at = None
        snapshot = None if self._overwrite else self._newest.refresh()
        if snapshot is None or snapshot.index_manifest is None:
            return Assignment.empty()
        files = []
        for e in self._table.metadata.index_entries(snapshot.index_manifest):
            if e.index_type == hash_index.INDEX_TYPE and e.partition == partition:
                store, path = self._table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
                known.add(e.file_name)
                files.append((e.bucket, hash_index.decode(store.read(path), path)))
        return Assignment.of(files)

    def staged(self) -> Mapping[Place, tuple[Indexes, Indexes]]:
        made: dict[Place, tuple[Indexes, Indexes]] = {}
        try:
            for place in self._changed:
                made[place] = ((self._write(place),), ())
        except ShoalError:
            at = ((place, new) for place, (news, _) in made.items() for new in news)
            delete_each(self._table.index_at(*place, new.file_name, new.external_path) for place, new in at)
            raise
        self._placed = self._placed_by()
        self._changed = {}
        self._uncommitted += 1
        self._recent, self._used = self._used, set()
        return made

    def _placed_by(self) -> PlacedKeys | None:
        if self._overwrite or not self._used:
            return None
        used = frozenset(self._used)
        return PlacedKeys(used, frozenset(n for p in used for n in self._known[p]))

    def placed(self) -> PlacedKeys | None:
        return self._placed

    def _write(self, place: Place) -> IndexEntry:
        partition, bucket = place
        name = f"index-{self._uuid}-{next(self._counter)}"
        hashes = self._partitions[partition].in_bucket(bucket)
        data = hash_index.encode(hashes)
        store, path = self._table.index_at(partition, bucket, name, None)
        add_file(store, path, data)
        self._known[partition].add(name)
        return IndexEntry(ADD, partition, bucket, hash_index.INDEX_TYPE, name, len(data), len(hashes))

    def committed(self) -> None:
        self._uncommitted = max(0, self._uncommitted - 1)
        if not self._uncommitted:
            # yesterday's partition need not be remembered
            for partition in self._partitions.keys() - self._used - self._recent:
                del self._partitions[partition], self._known[partition]

    def forget(self) -> None:
        self._uncommitted = 0
        self._partitions, self._known = {}, {}
        self._changed, self._placed = {}, None
        self._used = set()

    def close(self) -> None:
        self.forget()


def _rows_by_code(codes: Rows, count: int) -> list[Rows]:
    """Row numbers of each code, ascending."""
    if count == 1:
        return [np.arange(len(codes))]
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=count))[:-1])
