# SPDX-License-Identifier: Apache-2.0
"""What happened to a table, file by file: the retained snapshots walked once.

`take` (take.py) gives the same by partition, bucket and level; a `Sample` names the files, for what must know them.

Invariants: nothing is ever written (the store is wrapped read-only); a file that vanished while it was read is a
`Gap`, not an error; the live files that the manifest lists add up to are checked at each snapshot against the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.doctor.lists import vanished
from shoal.doctor.walk import Step as Step
from shoal.doctor.walk import Walk
from shoal.doctor.window import CHANGELOG as CHANGELOG
from shoal.doctor.window import FLUSH as FLUSH
from shoal.doctor.window import MANIFEST_LISTS as MANIFEST_LISTS
from shoal.doctor.window import MANIFESTS as MANIFESTS
from shoal.doctor.window import METADATA as METADATA
from shoal.doctor.window import NOTHING as NOTHING
from shoal.doctor.window import REMOVAL as REMOVAL
from shoal.doctor.window import REWRITE as REWRITE
from shoal.doctor.window import UPGRADE as UPGRADE
from shoal.doctor.window import Count as Count
from shoal.doctor.window import Gap as Gap
from shoal.errors import ShoalError
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.store.wrappers import CountingStore, ReadOnlyStore
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Sample:
    """Consecutive snapshots of one table, oldest first, and every file entry of their deltas and changelogs.

    `entries` has one row per entry, columns of `walk.entry_fields`. An upgrade has two rows, one per level.
    """

    uri: str
    schema: Schema | None  # the newest one: its options are what the next writer uses
    since: int | None
    earliest: int | None
    steps: tuple[Step, ...]
    entries: pa.Table
    gaps: tuple[Gap, ...]
    inherited: Mapping[str, Count]  # manifests that the steps name but that were written before them
    requests: int
    bytes_read: int

    @property
    def newest(self) -> Snapshot | None:
        return self.steps[-1].snapshot if self.steps else None

    @property
    def complete(self) -> bool:
        """Whether every retained snapshot is here."""
        first = self.steps[0].snapshot.id if self.steps else None
        return first == self.earliest and not self.gaps

    @property
    def broken(self) -> tuple[Step, ...]:
        """Steps whose manifest lists and entries disagree on the live files."""
        return tuple(step for step in self.steps if not step.holds)

    def flows(self) -> pa.Table:
        """Files, bytes and rows by snapshot, class, partition, bucket, level. An upgrade counts at its new level."""
        import pyarrow.compute as pc

        left = pc.and_(pc.equal(self.entries.column("class"), UPGRADE), pc.equal(self.entries.column("change"), -1))
        keys = ["snapshot", "class", "partition", "bucket", "level"]
        table = self.entries.filter(pc.invert(left)).group_by(keys, use_threads=False)
        sums = table.aggregate([("files", "sum"), ("file_size", "sum"), ("row_count", "sum")])
        return sums.rename_columns([*keys, "files", "bytes", "rows"])


def sample(metadata: Metadata, *, since: int | None = None) -> Sample:
    """Read the snapshots after `since`, or all retained ones."""
    counted = CountingStore(ReadOnlyStore(metadata.store))
    reader = Metadata(counted, metadata.cache)
    earliest, latest = reader.earliest_id(), reader.latest_id()
    walk = Walk(reader)
    if earliest is not None and latest is not None:
        first = earliest if since is None else max(since + 1, earliest)
        if since is not None and since + 1 < earliest:
            walk.lost.append((since + 1, earliest - 1, "expired before it was sampled"))
        if first > earliest and (before := walk.read(first - 1)) is not None:
            walk.stand_on(before[0])
        for snapshot_id in range(first, latest + 1):
            if not walk.visit(snapshot_id):
                walk.lost.append((snapshot_id, snapshot_id, f"snapshot {snapshot_id} does not exist"))
    steps, entries = walk.finish()
    now = reader.earliest_id() if walk.lost else earliest
    gaps = tuple(Gap(a, b, "expired" if now is None or b < now else "missing", why) for a, b, why in walk.lost)
    return Sample(
        metadata.store.uri, _newest_schema(reader), since, earliest, steps, entries, gaps, walk.inherited,
        counted.calls.total(), counted.bytes_read,
    )  # fmt: skip


def live_entries(metadata: Metadata, taken: Sample) -> pa.Table | None:
    """The live entries of the newest sampled snapshot; None when a manifest of it is gone. Costs O(live files)."""
    try:
        return Metadata(ReadOnlyStore(metadata.store), metadata.cache).live(taken.newest)
    except ShoalError as err:
        if not vanished(err):
            raise
        return None


def _newest_schema(reader: Metadata) -> Schema | None:
    newest = reader.latest_schema_id()
    return None if newest is None else reader.schema(newest)
