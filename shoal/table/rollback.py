# SPDX-License-Identifier: Apache-2.0
"""Going back to an earlier snapshot: by forgetting the newer ones, or by a new snapshot that equals the old one.

Agrees with: RollbackHelper, AbstractFileStoreTable.rollbackTo, FileStoreCommitImpl.rollbackToAsLatest (2.0.0).
Invariant: at every call the newest snapshot is the old newest or the target, never one between; files of forgotten
snapshots stay for orphan cleaning.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, CommitUnknown, Conflict, NotFound, ShoalError, StorageFailed
from shoal.format import manifest, paths
from shoal.format.datafile import ADD, DELETE, Entry
from shoal.format.manifest import ManifestMeta, entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER, NO_WATERMARK, Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.store.base import Store, add_file
from shoal.table.expire_guard import hint
from shoal.table.history import History, changelog_ids, changelog_path
from shoal.table.manifest_merge import coded, meta_of
from shoal.table.metadata import Metadata
from shoal.table.refs import tag as find_tag
from shoal.table.refs import tag_path, tags
from shoal.table.tag_files import AS_LATEST
from shoal.table.tags import encode_tag, find_snapshot

if TYPE_CHECKING:
    from shoal.table.table import Table

_CHANGELOG_LATEST = f"{paths.CHANGELOG}/LATEST"


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The newest snapshot before, the one gone back to, and the newest now."""

    table: str
    before: int
    target: int
    now: int

    def __str__(self) -> str:
        return f"{self.table}: rolled back from snapshot {self.before} to {self.target}" + (
            "" if self.now == self.target else f", as snapshot {self.now}"
        )

    def to_dict(self) -> dict[str, object]:
        return {"table": self.table, "before": self.before, "target": self.target, "now": self.now}


def rollback(
    table: Table, *, snapshot: int | None = None, tag: str | None = None, timestamp_ms: int | None = None,
    watermark: int | None = None,
) -> RolledBack:  # fmt: skip
    """Forget every snapshot, changelog and tag after the target.

    The target is a snapshot id (a tag knows expired ones too), a tag, the newest snapshot committed at `timestamp_ms`
    or before, or the newest whose watermark is at most `watermark`. Writers that run must be started again.
    """
    newest = _newest(table)
    target = _target(table, snapshot, tag, timestamp_ms, watermark)
    if target.id > newest.id:
        raise NotFound(f"{table.name}: snapshot {target.id} is later than the newest, {newest.id}")
    _forget_snapshots(table, target, newest)
    _forget_changelogs(table.metadata, target.id)
    for t in reversed(tags(table.metadata)):
        if t.snapshot.id > target.id:
            table.store.delete(tag_path(t.name))
    return RolledBack(table.name, newest.id, target.id, target.id)


def _newest(table: Table) -> Snapshot:
    newest = table.metadata.latest()
    if newest is None:
        raise BadRequest(f"{table.name}: there is no snapshot, so there is nothing to roll back")
    return newest


def _target(
    table: Table, snapshot: int | None, tag: str | None, timestamp_ms: int | None, watermark: int | None
) -> Snapshot:
    if sum(v is not None for v in (snapshot, tag, timestamp_ms, watermark)) != 1:
        raise BadRequest("a rollback has one target", hint="give one of snapshot, tag, timestamp_ms and watermark")
    meta = table.metadata
    if tag is not None:
        return find_tag(meta, tag).snapshot
    if snapshot is not None:
        found = find_snapshot(table, snapshot)
        what = f"snapshot {snapshot} to roll back to does not exist"
    elif timestamp_ms is not None:
        found = History(meta).not_after(timestamp_ms)
        what = f"no snapshot was committed at {timestamp_ms} or before"
    else:
        assert watermark is not None
        found = up_to_watermark(meta, watermark)
        what = f"no snapshot has a watermark up to {watermark}"
    if found is None:
        raise NotFound(f"{table.name}: {what}", hint=History(meta).range_text())
    return found


def up_to_watermark(meta: Metadata, watermark: int) -> Snapshot | None:
    """The newest snapshot whose watermark is at most `watermark`; the first with one when all are later, as in Java."""
    history = History(meta)
    first, high = history.first(), meta.latest_id()
    if first is None or high is None or meta.snapshot(high).watermark in (None, NO_WATERMARK):
        return None
    while first.watermark is None and first.id < high:
        first = meta.snapshot(first.id + 1)
    if first.watermark is None or first.watermark >= watermark:
        return first
    low, best = first.id, first
    while low <= high:
        middle = low + (high - low) // 2
        here = known = meta.snapshot(middle)
        while known.watermark is None and middle > low:
            middle -= 1
            known = meta.snapshot(middle)
        if known.watermark is not None and known.watermark > watermark:
            high = middle - 1
            continue
        best = here
        if known.watermark == watermark:
            break
        low = here.id + 1
    return best


def _forget_snapshots(table: Table, target: Snapshot, newest: Snapshot) -> None:
    """Delete the snapshots after the target so that the newest one goes last: that call is the switch."""
    store, meta = table.store, table.metadata
    expired = not meta.exists(paths.snapshot(target.id))
    if expired:
        store.create(paths.snapshot(target.id), target.encode())
    later = [i for i in meta.snapshot_ids() if i > target.id]
    if later:
        store.delete(paths.LATEST)  # the folder alone tells from here on
        for i in later:
            store.delete(paths.snapshot(i))
        now = max(meta.snapshot_ids())
        if now > target.id:  # without a hint it is the newest, and stands on what it was committed on
            raise Conflict(
                f"{table.name}: snapshot {now} was committed while the table was rolled back to {target.id}",
                hint="stop the writers and roll back again",
            )
    store.put(paths.LATEST, str(target.id).encode())
    if expired or (hint(meta, paths.EARLIEST) or 0) > target.id:  # the latter after a call that was cut off
        store.put(paths.EARLIEST, str(target.id).encode())


def _forget_changelogs(meta: Metadata, target: int) -> None:
    ids = changelog_ids(meta)
    later = [i for i in ids if i > target]
    if not later:
        return
    # -1: Java cannot tell the newest id when all are gone
    last = -1 if len(later) == len(ids) else later[0] - 1
    meta.store.put(_CHANGELOG_LATEST, str(last).encode())
    for i in reversed(later):
        meta.store.delete(changelog_path(i))


# ---- as the latest ---------------------------------------------------------------------------------------


def rollback_as_latest(table: Table, *, snapshot: int | None = None, tag: str | None = None) -> RolledBack:
    """Commit a snapshot whose rows are those of an earlier one; nothing is forgotten.

    Files that later snapshots deleted come back, so they must outlive the expiry of those snapshots: without a `tag`
    one is made on the target, and stays.
    """
    latest = _newest(table)
    if (snapshot is None) == (tag is None):
        raise BadRequest("a rollback as latest has one target", hint="give one of snapshot and tag")
    target = _target(table, snapshot, tag, None, None)
    guard = None if tag is not None else f"{AS_LATEST}{target.id}-{_uuid(table)}"
    attempt = _Attempt(table, f"{AS_LATEST}{_uuid(table)}")
    try:
        if guard is not None:
            table.store.put(tag_path(guard), encode_tag(target))
        snap = attempt.build(latest, target)
        attempt.create(snap)
    except CommitUnknown:
        raise  # it may be there, and then it needs its files and its tag
    except ShoalError:
        attempt.discard()
        if guard is not None:
            table.store.delete(tag_path(guard))
        raise
    try:
        table.store.put(paths.LATEST, str(snap.id).encode())
    except StorageFailed:
        pass  # the hint only saves a listing
    return RolledBack(table.name, latest.id, target.id, snap.id)


def _uuid(table: Table) -> str:
    return str(uuid.UUID(int=table.rng.getrandbits(128), version=4))


def _form(table: Table) -> tuple[str, str]:
    """Compression and format of manifests."""
    return table.options.manifest_compression, table.options.manifest_format


class _Attempt:
    """The files of one new snapshot, and the snapshot."""

    def __init__(self, table: Table, user: str) -> None:
        self.table = table
        self.user = user
        self._written: list[str] = []
        self._id = _uuid(table)

    def build(self, latest: Snapshot, target: Snapshot) -> Snapshot:
        meta = self.table.metadata
        now, then = entries_of(meta.live(latest)), entries_of(meta.live(target))
        has_now, had_then = {e.identity for e in now}, {e.identity for e in then}
        delta = [e._replace(kind=DELETE) for e in now if e.identity not in had_then]
        delta += [e for e in then if e.identity not in has_now]
        base_list, base_size = self._list(self._manifests(now))
        delta_list, delta_size = self._list(self._manifests(delta))
        row_ids = [i for i in (latest.next_row_id, target.next_row_id) if i is not None]
        return Snapshot(
            id=latest.id + 1,
            uuid=_uuid(self.table),
            schema_id=target.schema_id,
            base_manifest_list=base_list,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_list,
            delta_manifest_list_size=delta_size,
            index_manifest=target.index_manifest,
            commit_user=self.user,
            commit_identifier=BATCH_IDENTIFIER,
            commit_kind="OVERWRITE",
            time_ms=self.table.clock.now_ms(),
            total_record_count=target.total_record_count,
            delta_record_count=sum(e.file.row_count if e.kind == ADD else -e.file.row_count for e in delta),
            watermark=target.watermark,
            statistics=target.statistics,
            properties=target.properties,
            next_row_id=max(row_ids, default=None),  # row ids given out since the target are never given again
        )

    def create(self, snap: Snapshot) -> None:
        """Create the snapshot's file; an answer that did not come is settled by reading it back."""
        store, path = self.table.store, paths.snapshot(snap.id)
        try:
            if store.create(path, snap.encode()):
                return
        except StorageFailed as err:
            if err.definite:
                raise
            if self._landed(store, path, snap, err):
                return
            raise
        raise Conflict(f"{self.table.name}: another writer committed snapshot {snap.id} first", hint="roll back again")

    def _landed(self, store: Store, path: str, snap: Snapshot, failure: StorageFailed) -> bool:
        try:
            return decode_snapshot(store.read(path), path).uuid == snap.uuid
        except NotFound:
            return False
        except StorageFailed as err:
            raise CommitUnknown(
                f"{self.table.name}: snapshot {snap.id} may or may not have been created ({failure.message})",
                hint=f"look at snapshot {snap.id}: its commit user would be {self.user}",
            ) from err

    def discard(self) -> None:
        for name in self._written:
            self.table.store.delete(paths.manifest(name))

    def _manifests(self, entries: Sequence[Entry]) -> list[ManifestMeta]:
        """Entries as manifests of about the target size."""
        options, types = self.table.options, self.table.schema.partition_types
        limit = 3 * options.manifest_target_size  # encoded bytes; zstd makes a third of them at most
        out, group, size = [], [], 0
        encoded = coded(entries)
        for i, e in enumerate(encoded):
            group.append(e)
            size += len(e.data)
            if size >= limit or i == len(encoded) - 1:
                data = manifest.write_entries([g.data for g in group], *_form(self.table))
                out.append(meta_of(self._add("manifest", data), len(data), group, types))
                group, size = [], 0
        return out

    def _list(self, metas: Sequence[ManifestMeta]) -> tuple[str, int]:
        data = manifest.encode_list(metas, *_form(self.table))
        return self._add("manifest-list", data), len(data)

    def _add(self, kind: str, data: bytes) -> str:
        name = f"{kind}-{self._id}-{sum(n.startswith(f'{kind}-{self._id}') for n in self._written)}"
        self._written.append(name)
        add_file(self.table.store, paths.manifest(name), data)
        return name
