# SPDX-License-Identifier: Apache-2.0
"""Staged files become a snapshot, exactly once.

One commit makes up to two snapshots, APPEND then COMPACT, each created by `Store.create`, which only one writer can
win. A loser reads what the winners did and tries again on top; a create whose outcome is unclear is read back and
compared, never guessed. Agrees with: FileStoreCommitImpl, ConflictDetection, RenamingSnapshotCommit (2.0.0).
Invariant: before the create nothing is visible, after it everything is; files of an attempt that failed for good are
deleted. The committer keeps what it learned of the table, so a commit costs the same after a thousand others.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from shoal.errors import CommitUnknown, Conflict, Fenced, NotFound, ShoalError, StorageFailed
from shoal.format import manifest, paths
from shoal.format.datafile import ADD, DELETE, Entry
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import BATCH_IDENTIFIER, NO_WATERMARK, Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.store.base import add_file
from shoal.table.manifest_merge import Coded, MergeOptions, coded, merge_manifests, meta_of
from shoal.table.staged import Committed, Staged

if TYPE_CHECKING:
    from shoal.store.base import Store
    from shoal.table.table import Table

# Encoded entries of small manifests that this committer wrote, kept so that merging them decodes nothing.
_KEPT_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one attempt has written so far, to be deleted or used again."""

    delta: tuple[ManifestMeta, ...]
    delta_list: str
    delta_list_size: int


class Commit:
    """Commits for one commit user. Not for several threads."""

    def __init__(self, table: Table, commit_user: str, rng: random.Random | None = None) -> None:
        manifest.check(table.options.manifest_compression, table.options.manifest_format)
        self.table = table
        self.user = commit_user
        self._meta = table.metadata
        self._store = table.store
        self._rng = rng or random.Random()
        self._uuid = str(self._new_uuid())
        self._manifests = count()
        self._lists = count()
        self._latest: Snapshot | None = None
        self._known = False
        self._metas: tuple[ManifestMeta, ...] = ()
        self._kept: dict[str, list[Coded]] = {}
        self._kept_count = 0
        self._schema_id = table.schema.id
        # the last snapshot of another writer that was seen, so that this one knows when its view is old
        self.foreign_snapshot = 0
        self._seen: list[Snapshot] = []
        # how far the value being committed has come, so that committing it again after an unclear answer goes on there
        self._staged: Staged | None = None
        self._made: dict[str, int] = {}
        self._tried: set[str | None] = set()
        self._unclear = False
        self._mine: set[int] = set()  # snapshots that this committer made

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    # ---- what is there

    def refresh(self) -> Snapshot | None:
        """The newest snapshot: one look at the next id when nothing has changed."""
        if not self._known:
            self._move_to(self._meta.latest())
            self._known = True
            return self._latest
        while True:
            next_id = self._latest.id + 1 if self._latest else 1
            try:
                newer = self._meta.snapshot(next_id) if self._meta.exists(paths.snapshot(next_id)) else None
            except NotFound:
                newer = None
            if newer is None:
                if self._latest is None and self._meta.latest_id() is not None:
                    self._move_to(self._meta.latest())  # the first snapshots have expired already
                elif self._latest is not None and not self._still_there(self._latest):
                    raise Fenced(
                        f"{self.table.name}: snapshot {self._latest.id} is gone, the table was rolled back",
                        hint="open a new writer: what this one knows of the table is no longer true",
                    )
                return self._latest
            self._move_to(newer)
            self._seen.append(newer)
            self.foreign_snapshot = newer.id

    def _still_there(self, snap: Snapshot) -> bool:
        try:
            return self._meta.snapshot(snap.id).uuid == snap.uuid
        except NotFound:
            return False

    def _move_to(self, snap: Snapshot | None) -> None:
        self._latest = snap
        self._metas = self._meta.manifests(snap) if snap else ()
        if snap is not None and snap.schema_id != self._schema_id:
            self._schema_id = max(self._schema_id, snap.schema_id)

    def last_identifier(self) -> int | None:
        """The newest commit identifier of this user, walking back from the newest snapshot."""
        newest = self.refresh()
        if newest is None:
            return None
        earliest = self._meta.earliest_id() or newest.id
        for i in range(newest.id, earliest - 1, -1):
            try:
                snap = newest if i == newest.id else self._meta.snapshot(i)
            except NotFound:
                break
            if snap.commit_user == self.user:
                return snap.commit_identifier
        return None

    # ---- commit

    def commit(self, staged: Staged, identifier: int, *, force_snapshot: bool = False) -> Committed:
        """Commit the new files, then the compactions.

        A compaction that met a conflict is dropped and reported; a conflict of new files is raised after their
        deletion. `StorageFailed` from here leaves nothing visible; `CommitUnknown` says to commit the same again.
        """
        if staged is not self._staged:
            self._staged, self._made, self._tried, self._unclear = staged, {}, set(), False
        made = self._made
        appended, compacted = staged.appended(), staged.compacted()
        rows = sum(e.file.row_count for e in appended)
        if (appended or force_snapshot) and "APPEND" not in made:
            try:
                made["APPEND"] = self._settle("APPEND", appended, identifier, staged)
            except CommitUnknown:
                raise
            except ShoalError:
                self.abort(staged)
                raise
        dropped: str | None = None
        if compacted and "COMPACT" not in made:
            try:
                made["COMPACT"] = self._settle("COMPACT", compacted, identifier, staged)
            except Conflict as err:
                self._drop_compaction(staged)
                if not appended:
                    raise
                dropped = err.message
            except CommitUnknown:
                raise
            except ShoalError:
                self._drop_compaction(staged)
                raise
        self._staged = None
        return Committed(tuple(made.values()), rows=rows, compaction_conflict=dropped)

    def abort(self, staged: Staged) -> None:
        """Delete every file that exists only because of `staged`."""
        for c, f in staged.written():
            _delete(self.table.file_at(c.partition, c.bucket, f))

    def _drop_compaction(self, staged: Staged) -> None:
        for c, f in staged.written():
            if f not in c.new_files:
                _delete(self.table.file_at(c.partition, c.bucket, f))

    def _settle(self, kind: str, entries: Sequence[Entry], identifier: int, staged: Staged) -> int:
        """Create one snapshot. Once an attempt was unclear, a store that still fails leaves it unclear."""
        try:
            made = self._commit_one(kind, entries, identifier, staged)
        except CommitUnknown:
            self._unclear = True
            raise
        except StorageFailed as err:
            if not self._unclear:
                raise
            raise CommitUnknown(
                f"{self.table.name}: an earlier attempt may have created the snapshot ({err.message})",
                hint="commit the same checkpoint again: it is a no-op if it was",
            ) from err
        self._unclear = False
        return made

    def _commit_one(self, kind: str, entries: Sequence[Entry], identifier: int, staged: Staged) -> int:
        """Create one snapshot; returns its id."""
        options, clock = self.table.options, self.table.clock
        started = clock.monotonic()
        attempt: _Attempt | None = None
        checked = staged.base_snapshot
        encoded = coded(entries)
        self._seen.clear()
        for tries in range(options.commit_max_retries + 1):
            latest = self.refresh()
            landed = self._landed()
            if landed is not None:
                return landed
            self._fence(identifier, attempt)
            if kind == "COMPACT":
                try:
                    checked = self._check(entries, checked, latest)
                except ShoalError:
                    self._discard(attempt, ())
                    raise
            base: list[ManifestMeta] = []
            base_list = ""
            try:
                base = self._merged_base(reuse=tries > 0)
                base_list, base_size = self._write_list(base)
                attempt = attempt or self._write_delta(encoded)
                snap = self._snapshot(kind, entries, identifier, staged, latest, attempt, base_list, base_size)
            except ShoalError:
                self._discard(attempt, [m for m in base if m not in self._metas], base_list)
                raise
            self._tried.add(snap.uuid)
            try:
                outcome = self._create(snap)
            except StorageFailed:
                self._discard(attempt, [m for m in base if m not in self._metas], base_list)
                raise
            if outcome == "won":
                self._won(snap, base, attempt, encoded)
                return snap.id
            self._store.delete(paths.manifest(base_list))
            for m in base:
                if m not in self._metas:
                    self._store.delete(paths.manifest(m.file_name))
            limit = options.commit_timeout_ms
            if limit is not None and (clock.monotonic() - started) * 1000 > limit:
                break
            low, high = options.commit_min_retry_wait_ms, options.commit_max_retry_wait_ms
            wait = min(high, low * 2 ** min(tries, 16))
            clock.sleep(wait * (0.5 + self._rng.random() / 2) / 1000)
        self._discard(attempt, ())
        raise Conflict(
            f"{self.table.name}: {options.commit_max_retries + 1} attempts lost against other writers",
            hint="raise commit.max-retries, or commit less often from so many writers",
        )

    def _landed(self) -> int | None:
        """The id of a snapshot that an earlier, unclear attempt at this very commit did create."""
        for snap in self._seen:
            if snap.uuid in self._tried:
                self._mine.add(snap.id)
                return snap.id
        return None

    def _fence(self, identifier: int, attempt: _Attempt | None) -> None:
        """Stop when somebody else commits checkpoints under this user: one of the two is a zombie."""
        if identifier == BATCH_IDENTIFIER:
            return
        for snap in self._seen:
            if snap.commit_user == self.user:
                self._discard(attempt, ())
                raise Fenced(
                    f"{self.table.name}: another writer committed snapshot {snap.id} as '{self.user}'",
                    hint="one writer per commit user: stop the other one, then restart this one",
                )

    def _check(self, entries: Sequence[Entry], since: int, latest: Snapshot | None) -> int:
        """Raise `Conflict` when another writer's snapshots after `since` clash with these entries."""
        if latest is None:
            return since
        mine = {e.identity for e in entries if e.kind == DELETE}
        theirs: dict[tuple[object, ...], tuple[Entry, Snapshot]] = {}
        for i in range(since + 1, latest.id + 1):
            if i in self._mine:
                continue
            try:
                snap = self._meta.snapshot(i)
            except NotFound:
                self._check_fully(entries, latest)
                return latest.id
            for meta in self._meta.delta(snap):
                for e in manifest.entries_of(self._meta.entries(meta)):
                    if e.kind == ADD:
                        theirs[e.identity] = e, snap
                        continue
                    if theirs.pop(e.identity, None) is None and e.identity in mine:
                        raise self._lost_to(snap, f"file {e.file.file_name} was compacted or deleted")
        for e, snap in theirs.values():
            if e.file.level > 0 and e.identity not in mine and any(self._overlap(a, e) for a in entries):
                raise self._lost_to(snap, f"level {e.file.level} of bucket {e.bucket} was rewritten")
        return latest.id

    def _lost_to(self, snap: Snapshot, what: str) -> Conflict:
        return Conflict(
            f"{self.table.name}: {what} by snapshot {snap.id} of {snap.commit_user}",
            hint="one compactor per bucket: set write-only on the other writers",
        )

    def _overlap(self, a: Entry, b: Entry) -> bool:
        """Whether an added file meets the keys of `b` in its bucket and level."""
        if a.kind != ADD or (a.partition, a.bucket, a.file.level) != (b.partition, b.bucket, b.file.level):
            return False
        (a0, a1), (b0, b1) = self.table.bounds(a.file), self.table.bounds(b.file)
        return not (a1 < b0 or b1 < a0)

    def _check_fully(self, entries: Sequence[Entry], latest: Snapshot) -> None:
        """The snapshots in between have expired: every file to be replaced must still be live."""
        live = self._meta.live(latest)
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pa.array([e.file.file_name for e in entries if e.kind == DELETE])
        there = {e.identity for e in manifest.entries_of(live.filter(pc.is_in(live.column("file_name"), names)))}
        for e in entries:
            if e.kind == DELETE and e.identity not in there:
                raise Conflict(
                    f"{self.table.name}: file {e.file.file_name} is not live any more", hint="plan the compaction again"
                )

    # ---- files of an attempt

    def _merged_base(self, reuse: bool) -> list[ManifestMeta]:
        """Manifests of the newest snapshot, merged. A retry skips the merge: it must be quick to win."""
        if reuse:
            return list(self._metas)
        o = self.table.options
        options = MergeOptions(o.manifest_target_size, o.manifest_full_threshold, o.manifest_merge_min_count)
        return merge_manifests(
            self._metas, options, self.table.schema.partition_types, self._load, self._write_manifests
        )

    def _load(self, meta: ManifestMeta) -> Sequence[Coded]:
        kept = self._kept.get(meta.file_name)
        if kept is not None:
            return kept
        return coded(manifest.entries_of(self._meta.entries(meta)))

    def _write_manifests(self, entries: Sequence[Coded]) -> list[ManifestMeta]:
        """Entries as one manifest, or several of about the target size."""
        metas = []
        # 3 is what zstd makes of entries at least; a manifest that comes out small is merged again later
        limit = 3 * self.table.options.manifest_target_size
        start = size = 0
        for i, e in enumerate(entries):
            size += len(e.data)
            if size >= limit or i == len(entries) - 1:
                metas.append(self._write_manifest(entries[start : i + 1]))
                start, size = i + 1, 0
        return metas

    def _write_manifest(self, entries: Sequence[Coded]) -> ManifestMeta:
        name = f"manifest-{self._uuid}-{next(self._manifests)}"
        o = self.table.options
        data = manifest.write_entries([e.data for e in entries], o.manifest_compression, o.manifest_format)
        add_file(self._store, paths.manifest(name), data)
        if self._kept_count + len(entries) <= _KEPT_ENTRIES:
            self._kept[name] = list(entries)
            self._kept_count += len(entries)
        return meta_of(name, len(data), entries, self.table.schema.partition_types)

    def _write_list(self, metas: Sequence[ManifestMeta]) -> tuple[str, int]:
        name = f"manifest-list-{self._uuid}-{next(self._lists)}"
        o = self.table.options
        data = manifest.encode_list(metas, o.manifest_compression, o.manifest_format)
        add_file(self._store, paths.manifest(name), data)
        return name, len(data)

    def _write_delta(self, encoded: Sequence[Coded]) -> _Attempt:
        delta = tuple(self._write_manifests(encoded))
        try:
            name, size = self._write_list(delta)
        except ShoalError:
            for m in delta:
                self._store.delete(paths.manifest(m.file_name))
            raise
        return _Attempt(delta, name, size)

    def _discard(self, attempt: _Attempt | None, metas: Sequence[ManifestMeta], base_list: str = "") -> None:
        names = [m.file_name for m in metas] + ([base_list] if base_list else [])
        if attempt is not None:
            names += [m.file_name for m in attempt.delta] + [attempt.delta_list]
        for name in names:
            self._store.delete(paths.manifest(name))

    # ---- the snapshot

    def _snapshot(
        self, kind: str, entries: Sequence[Entry], identifier: int, staged: Staged, latest: Snapshot | None,
        attempt: _Attempt, base_list: str, base_size: int,
    ) -> Snapshot:  # fmt: skip
        delta_rows = sum(e.file.row_count if e.kind == ADD else -e.file.row_count for e in entries)
        watermark = staged.watermark if staged.watermark is not None else NO_WATERMARK
        if latest is not None and latest.watermark is not None:
            watermark = max(watermark, latest.watermark)
        same_schema = latest is not None and latest.schema_id == self._schema_id
        return Snapshot(
            id=latest.id + 1 if latest else 1,
            uuid=str(self._new_uuid()),
            schema_id=self._schema_id,
            base_manifest_list=base_list,
            base_manifest_list_size=base_size,
            delta_manifest_list=attempt.delta_list,
            delta_manifest_list_size=attempt.delta_list_size,
            index_manifest=latest.index_manifest if latest else None,
            commit_user=self.user,
            commit_identifier=identifier,
            commit_kind=kind,
            time_ms=self.table.clock.now_ms(),
            total_record_count=(latest.total_record_count if latest else 0) + delta_rows,
            delta_record_count=delta_rows,
            watermark=watermark,
            statistics=latest.statistics if latest and same_schema else None,
            properties=dict(staged.properties) or None,
            next_row_id=(latest.next_row_id if latest and latest.next_row_id is not None else 0),
        )

    def _create(self, snap: Snapshot) -> str:
        """`won` or `lost`; an unclear answer is settled by reading the file back.

        `StorageFailed` from here means that the store said for certain that nothing was created.
        """
        path, data = paths.snapshot(snap.id), snap.encode()
        failure: StorageFailed | None = None
        for _ in range(3):
            try:
                if self._store.create(path, data):
                    return "won"
            except StorageFailed as err:
                if err.definite and failure is None:
                    raise
                failure = err
            try:
                there = decode_snapshot(self._store.read(path), path)
            except NotFound:
                if failure is None:
                    return "lost"  # it was there and is gone: expired or rolled back meanwhile
            except StorageFailed as err:
                failure = err
            else:
                return "won" if there.uuid == snap.uuid else "lost"
        assert failure is not None
        raise CommitUnknown(
            f"{self.table.name}: snapshot {snap.id} may or may not have been created ({failure.message})",
            hint="commit the same checkpoint again: it is a no-op if it was",
        ) from failure

    def _won(self, snap: Snapshot, base: Sequence[ManifestMeta], attempt: _Attempt, encoded: Sequence[Coded]) -> None:
        try:
            self._store.put(paths.LATEST, str(snap.id).encode())
        except StorageFailed:
            pass  # the hint only saves a listing: readers find the snapshot without it
        self._mine.add(snap.id)
        self._latest = snap
        self._metas = (*base, *attempt.delta)
        names = {m.file_name for m in self._metas}
        for gone in [n for n in self._kept if n not in names]:
            self._kept_count -= len(self._kept.pop(gone))


def _delete(at: tuple[Store, str]) -> None:
    store, path = at
    store.delete(path)
