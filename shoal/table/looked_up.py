# SPDX-License-Identifier: Apache-2.0
"""Buckets whose older rows a change has looked up: nobody may have moved those rows since.

A compaction that looks up tells changes and marks rows in files that it does not replace, so its list of files does not
show that another job has rewritten them: its marks would fall on files that are gone, a key would be there twice. The
same holds for deletes by mark in a bucket. Java checks it for append tables without buckets alone and asks for a single
compactor; here the slower of two gets a `Conflict`. Invariant: level-0 files that others add are no reason, so writers
beside one compactor never meet this.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from shoal.errors import Conflict, NotFound
from shoal.format.datafile import ADD
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.table.partition_choice import only
from shoal.table.staged import VECTORS, Content

if TYPE_CHECKING:
    from shoal.table.table import Table

_Place = tuple[bytes, int]
_HINT = "one compactor per bucket: set write-only on the other writers, or plan the change again"


class LookedUp:
    """The check of one commit through all its tries. `since` is the snapshot in which rows were looked up."""

    def __init__(self, table: Table, content: Content, since: int, user: str) -> None:
        self._table = table
        self._meta = table.metadata
        self._since = since
        self._user = user
        self._buckets: set[_Place] = {
            (i.partition, i.bucket) for i in content.indexes if i.index_type == VECTORS and i.kind == ADD
        }
        if content.kind == "COMPACT" and table.primary_key and table.options.needs_lookup:
            self._buckets |= {(e.partition, e.bucket) for e in content.entries}

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def check(self, latest: Snapshot, mine: Collection[int]) -> None:
        """Raise when another writer changed more of these buckets than their level 0."""
        for i in range(self._since + 1, latest.id + 1):
            if i in mine:
                continue
            try:
                snap = latest if i == latest.id else self._meta.snapshot(i)
                if snap.commit_user != self._user:
                    self._changed(snap)
            except NotFound as err:
                raise Conflict(
                    f"{self._table.name}: rows were looked up in snapshot {self._since} and what others did since has "
                    f"expired ({err.message})",
                    hint="keep snapshots for longer than a compaction takes",
                ) from err
        self._since = latest.id

    def _changed(self, snap: Snapshot) -> None:
        import pyarrow as pa

        partitions = frozenset(p for p, _ in self._buckets)
        for m in self._meta.delta(snap):
            for e in entries_of(only(pa.Table.from_batches([self._meta.entries(m)]), partitions)):
                if (e.partition, e.bucket) in self._buckets and not (e.kind == ADD and e.file.level == 0):
                    raise self._conflict(snap, f"file {e.file.file_name}")
        if snap.index_manifest is not None and self._table.options.deletion_vectors:
            before = self._meta.snapshot(snap.id - 1).index_manifest if snap.id > 1 else None
            if before != snap.index_manifest and self._marks(before) != self._marks(snap.index_manifest):
                raise self._conflict(snap, "the deletion vectors")

    def _marks(self, index_manifest: str | None) -> set[tuple[_Place, str]]:
        entries = () if index_manifest is None else self._meta.index_entries(index_manifest)
        places = (((e.partition, e.bucket), e.file_name) for e in entries if e.index_type == VECTORS)
        return {(place, name) for place, name in places if place in self._buckets}

    def _conflict(self, snap: Snapshot, what: str) -> Conflict:
        return Conflict(
            f"{self._table.name}: {what} was changed by {snap.commit_user} in snapshot {snap.id}, after rows of that "
            "bucket had been looked up",
            hint=_HINT,
        )
