# SPDX-License-Identifier: Apache-2.0
"""A table's past in order: its snapshots, the changelogs that outlive them, and the searches by time and watermark.

Agrees with: SnapshotManager, ChangelogManager, TimeTravelUtil.earlierThanTimeMills, ManifestsReader (2.0.0). Invariant:
ids ascend without gaps and times with them; of snapshots that share a time, the one Java's search meets is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from shoal.errors import NotFound
from shoal.format import paths
from shoal.format.datafile import ADD
from shoal.format.snapshot import NO_WATERMARK, Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.options import Options
from shoal.table.metadata import Metadata, live_entries

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_CHANGELOG = re.compile(r"^changelog-(\d+)$")


class History:
    """Snapshots by id; with `decoupled`, also the changelogs of snapshots that have expired."""

    def __init__(self, metadata: Metadata, decoupled: bool = False) -> None:
        self.metadata = metadata
        self.decoupled = decoupled

    def find(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot, or what is kept of it as a changelog; None when neither is there."""
        meta = self.metadata
        for path in (paths.snapshot(snapshot_id), *([changelog_path(snapshot_id)] if self.decoupled else [])):
            try:
                data = meta.store.read(path)
            except NotFound:
                continue
            return decode_snapshot(data, f"{meta.store.uri}/{path}")
        return None

    def earliest(self) -> int | None:
        """The oldest id that `find` can give."""
        kept = changelog_ids(self.metadata) if self.decoupled else []
        return kept[0] if kept else self.metadata.earliest_id()

    def range_text(self) -> str:
        """What is there, for messages."""
        earliest, ids = self.earliest(), self.metadata.snapshot_ids()
        if earliest is None or not ids:
            return "the table has no snapshot"
        changelogs = f", changelogs from {earliest}" if earliest < ids[0] else ""
        return f"snapshots {ids[0]} to {ids[-1]} are there{changelogs}"

    def first(self) -> Snapshot | None:
        """The oldest that is there. Expiry may run meanwhile, so the next ids are tried too."""
        at, latest = self.earliest(), self.metadata.latest_id()
        while at is not None and latest is not None and at <= latest:
            if (found := self.find(at)) is not None:
                return found
            at += 1
        return None

    def _get(self, snapshot_id: int) -> Snapshot:
        found = self.find(snapshot_id)
        return self.metadata.snapshot(snapshot_id) if found is None else found

    # ---- by time

    def not_after(self, time_ms: int) -> Snapshot | None:
        """The newest snapshot whose time is at most `time_ms`."""
        first, high = self.first(), self.metadata.latest_id()
        if first is None or high is None or first.time_ms > time_ms:
            return None
        low, best = first.id, first
        while low <= high:
            middle = low + (high - low) // 2
            here = self._get(middle)
            if here.time_ms > time_ms:
                high = middle - 1
                continue
            best = here
            if here.time_ms == time_ms:
                break
            low = middle + 1
        return best

    def before(self, time_ms: int) -> int | None:
        """The id of the newest snapshot earlier than `time_ms`; one less than the oldest id when all are later.

        None only when there is no snapshot at all.
        """
        first, high = self.first(), self.metadata.latest_id()
        if first is None or high is None:
            return None
        if first.time_ms >= time_ms:
            return first.id - 1
        low = first.id
        while low < high:
            middle = (low + high + 1) // 2
            if self._get(middle).time_ms < time_ms:
                low = middle
            else:
                high = middle - 1
        return low

    # ---- by watermark

    def reaching(self, watermark: int) -> Snapshot | None:
        """The first snapshot whose watermark is at least `watermark`. One without counts as its predecessor does."""
        first, high = self.first(), self.metadata.latest_id()
        if first is None or high is None or self._get(high).watermark in (None, NO_WATERMARK):
            return None
        while first.watermark is None and first.id < high:
            first = self._get(first.id + 1)
        if first.watermark is None:
            return None
        if first.watermark >= watermark:
            return first
        low, best = first.id, None
        while low <= high:
            middle = low + (high - low) // 2
            here = known = self._get(middle)
            while known.watermark is None and middle > low:
                middle -= 1
                known = self._get(middle)
            if known.watermark is None or known.watermark < watermark:
                low = here.id + 1
            else:
                best = here
                if known.watermark == watermark:
                    break
                high = middle - 1
        return best

    # ---- by kind

    def newest(self, wanted: Callable[[Snapshot], bool]) -> Snapshot | None:
        """The newest snapshot that is `wanted`, else the newest of all."""
        ids = self.metadata.snapshot_ids()
        for i in reversed(ids):
            found = self.find(i)
            if found is not None and wanted(found):
                return found
        return self.metadata.latest()


def decoupled(options: Options) -> bool:
    """Whether changelogs live longer than their snapshots, so that `changelog/` must be looked at."""

    def pair(key: str) -> tuple[int, int]:
        own, shared = options.get(f"changelog.{key}"), options.get(f"snapshot.{key}")
        least = cast(int, shared)
        return (least if own is None else cast(int, own)), least

    return any(own > shared for own, shared in map(pair, ("num-retained.max", "time-retained", "num-retained.min")))


def changelog_path(snapshot_id: int) -> str:
    return f"{paths.CHANGELOG}/changelog-{snapshot_id}"


def changelog_ids(metadata: Metadata) -> list[int]:
    """Ids of the decoupled changelogs, ascending."""
    names = metadata.store.list_dir(paths.CHANGELOG)[1]
    return sorted(int(m[1]) for n in names if (m := _CHANGELOG.match(n)))


# ---- entries of one commit -------------------------------------------------------------------------------


def delta_entries(metadata: Metadata, snap: Snapshot) -> pa.Table:
    """Entries that the commit itself wrote, ADD and DELETE, in manifest order."""
    return live_entries([metadata.entries(m) for m in metadata.delta(snap)], may_delete=False)


def changelog_entries(metadata: Metadata, snap: Snapshot) -> pa.Table:
    """Changelog files of the commit; none where it has no changelog."""
    return live_entries([metadata.entries(m) for m in metadata.changelog(snap)], may_delete=False)


def in_file_order(table: Table, entries: pa.Table) -> pa.Table:
    """Entries as a stream reads them: as they come, in an append table without buckets by their first sequence number.

    The order of buckets among each other means nothing, in Java it depends on what is cached.
    """
    import pyarrow.compute as pc

    if table.primary_key or table.options.bucket != -1:
        return entries
    return entries.take(pc.sort_indices(entries, [("min_sequence", "ascending")]))


def of_kind(entries: pa.Table, kind: int = ADD) -> pa.Table:
    """Only the ADD (or DELETE) entries."""
    import pyarrow.compute as pc

    return entries.filter(pc.equal(entries.column("kind"), kind))
