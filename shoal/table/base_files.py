# SPDX-License-Identifier: Apache-2.0
"""The live files that a commit is checked against, read once and carried on from try to try.

Agrees with: CommitScanner (2.0.0). Java reads every live file of the changed partitions; where a commit says which
snapshot it was planned on, the files that it removes were seen there, and what others did since is enough. So a
compaction costs the same in a large table. Invariant: entries are of kind ADD, and none of the changed partitions that
could matter is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from shoal.errors import NotFound
from shoal.format.datafile import ADD, DELETE, Entry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.table.manifest_merge import may_hold
from shoal.table.metadata import Metadata, PartitionFilter
from shoal.table.partition_choice import only
from shoal.table.staged import Content

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

# Snapshots of others since the planned one, beyond which all files are read instead.
MOST_SNAPSHOTS = 100
# Partitions beyond which asking every manifest for every one of them costs more than reading the manifests.
_MANY_PARTITIONS = 100
_Identity = tuple[object, ...]


class BaseFiles:
    """Base entries of one commit. `since` is the snapshot it was planned on, None when nobody looked."""

    def __init__(self, table: Table, content: Content, since: int | None) -> None:
        self._table = table
        self._meta = table.metadata
        self._partitions = content.partitions
        self._removed = {e.identity: e._replace(kind=ADD) for e in content.entries if e.kind == DELETE}
        self._since = since
        self._at: Snapshot | None = None
        self._whole: dict[_Identity, Entry] | None = None

    def upon(self, latest: Snapshot, mine: Collection[int]) -> Collection[Entry]:
        """Entries that the content is checked against when it goes on top of `latest`. `mine`: snapshots to trust."""
        if self._since is not None and self._whole is None:
            found = self._others(self._since, latest, mine)
            if found is not None:
                return found
        self._whole = self._carried(latest) if self._whole is not None else self._read(latest)
        self._at = latest
        return self._whole.values()

    def checked(self, latest: Snapshot) -> None:
        """The content fits on top of `latest`: what comes later is all that the next try must look at."""
        if self._since is not None:
            self._since = latest.id

    def _others(self, since: int, latest: Snapshot, mine: Collection[int]) -> Collection[Entry] | None:
        """The removed files and what others added, as the snapshots after `since` left them; None: read everything."""
        ids = [i for i in range(since + 1, latest.id + 1) if i not in mine]
        if len(ids) > MOST_SNAPSHOTS:
            return None
        found = dict(self._removed)
        try:
            for i in ids:
                snap = latest if i == latest.id else self._meta.snapshot(i)
                _apply(found, changes_of(self._meta, snap, self._partitions))
        except NotFound:
            return None
        return found.values()

    def _carried(self, latest: Snapshot) -> dict[_Identity, Entry]:
        """The entries of the last try with the changes since. An overwrite may have replaced the base as a whole."""
        assert self._at is not None and self._whole is not None
        if latest.id <= self._at.id:  # a snapshot was rolled back
            return self._read(latest)
        found = dict(self._whole)
        try:
            for i in range(self._at.id + 1, latest.id + 1):
                snap = latest if i == latest.id else self._meta.snapshot(i)
                if snap.commit_kind == "OVERWRITE":
                    return self._read(latest)
                _apply(found, changes_of(self._meta, snap, self._partitions))
        except NotFound:
            return self._read(latest)
        return found

    def _read(self, latest: Snapshot) -> dict[_Identity, Entry]:
        return {e.identity: e for e in entries_of(live_in(self._table, latest, self._partitions))}


def _apply(found: dict[_Identity, Entry], entries: Iterator[Entry]) -> None:
    for e in entries:
        if e.kind == ADD:
            found[e.identity] = e
        else:
            found.pop(e.identity, None)


def changes_of(meta: Metadata, snap: Snapshot, partitions: Collection[bytes]) -> Iterator[Entry]:
    """What a snapshot added and removed in some partitions."""
    import pyarrow as pa

    for m in meta.delta(snap):
        yield from entries_of(only(pa.Table.from_batches([meta.entries(m)]), frozenset(partitions)))


def bucket_counts(entries: pa.Table) -> dict[bytes, int]:
    """How many buckets each partition has, where that is fixed."""
    import pyarrow.compute as pc

    fixed = entries.filter(pc.greater(entries.column("total_buckets"), 0))
    counts = fixed.group_by(["partition", "total_buckets"]).aggregate([])
    return dict(zip(counts.column("partition").to_pylist(), counts.column("total_buckets").to_pylist()))


def live_in(table: Table, snap: Snapshot, partitions: Collection[bytes]) -> pa.Table:
    """The live entries of some partitions; manifests without one of them are not read."""
    wanted = frozenset(partitions)
    types = table.schema.partition_types
    if not types:
        return table.metadata.live(snap)
    if len(wanted) > _MANY_PARTITIONS:
        return only(table.metadata.live(snap), wanted)
    keep = PartitionFilter(None, lambda metas: [may_hold(m, wanted, types) for m in metas], _In(wanted))
    return only(table.metadata.live(snap, keep), wanted)


class _In(dict[bytes, bool]):
    def __init__(self, wanted: Collection[bytes]) -> None:
        super().__init__(dict.fromkeys(wanted, True))

    def __missing__(self, key: bytes) -> bool:
        return False
