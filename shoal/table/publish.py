# SPDX-License-Identifier: Apache-2.0
"""One snapshot, created once on top of the newest, or tried again on top of the winner.

A create whose outcome is unclear is read back and compared, never guessed. Agrees with: FileStoreCommitImpl.tryCommit,
RenamingSnapshotCommit (2.0.0). Invariant: before the create nothing is visible, after it everything is; metadata files
of a commit that failed for good are deleted. The publisher keeps what it learned of the table, so a commit costs the
same after a thousand others.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.errors import CommitUnknown, Conflict, Fenced, NotFound, ShoalError, StorageFailed
from shoal.format import paths
from shoal.format.datafile import ADD, Entry
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import BATCH_IDENTIFIER, VERSION, Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.table import row_ids
from shoal.table.attempt import Attempt, Listed, ManifestFiles
from shoal.table.manifest_merge import MergeOptions
from shoal.table.staged import Content

if TYPE_CHECKING:
    from shoal.table.table import Table

_REPLACES = ("REPLACE_TABLE_AS_SELECT", "CREATE_OR_REPLACE_TABLE_AS_SELECT")
RollBack = Callable[[Snapshot], bool]
# (attempt, newest snapshot, whether an earlier try lost) -> the snapshot made, None when another writer was faster
_Try = Callable[[Attempt, Snapshot | None, bool], int | None]


@dataclass(frozen=True, slots=True)
class Order:
    """One snapshot to be made.

    `content` says what it holds on top of a snapshot, asked anew in every try; `check` returns it as it may be
    committed there, or raises `Conflict`. `may_roll_back`: a compaction in the way may be undone.
    """

    content: Callable[[Snapshot | None], Content]
    check: Callable[[Content, Snapshot | None], Content]
    identifier: int
    watermark: int | None = None
    properties: Mapping[str, str] | None = None
    operation: str | None = None
    statistics: str | None = None
    may_roll_back: bool = False


class Publisher:
    """Makes snapshots for one commit user. Not for several threads."""

    def __init__(self, table: Table, commit_user: str, rng: random.Random, roll_back: RollBack | None) -> None:
        self.table = table
        self.user = commit_user
        self._meta = table.metadata
        self._store = table.store
        self._rng = rng
        self._roll_back = roll_back
        self.files = ManifestFiles(table, self.new_uuid())
        self._latest: Snapshot | None = None
        self._known = False
        self._metas: tuple[ManifestMeta, ...] = ()
        self._schema_id = table.schema.id
        # the last snapshot of another writer that was seen, so that this one knows when its view is old
        self.foreign_snapshot = 0
        self.mine: set[int] = set()  # snapshots that this one made
        self._seen: list[Snapshot] = []
        self._tried: set[str | None] = set()
        self._unclear = False
        self.attempts = 0  # that the snapshots of this one took

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

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
                    self._catch_up(self._latest.id)
                return self._latest
            self._move_to(newer)
            self._seen.append(newer)
            self.foreign_snapshot = newer.id

    def _catch_up(self, known: int) -> None:
        """The newest snapshot that this writer knew is gone: expired while it rested, or rolled back."""
        later = [i for i in self._meta.snapshot_ids() if i > known]
        # what became of an unclear commit nobody can tell any more; a file at the old place is another history
        if not later or self._unclear or self._meta.exists(paths.snapshot(known)):
            raise Fenced(
                f"{self.table.name}: snapshot {known} is gone, the table was rolled back",
                hint="open a new writer: what this one knows of the table is no longer true",
            )
        for i in later:
            try:
                snap = self._meta.snapshot(i)
            except NotFound:
                continue  # this one expired just now
            self._move_to(snap)
            self._seen.append(snap)
            self.foreign_snapshot = snap.id

    def _still_there(self, snap: Snapshot) -> bool:
        try:
            return self._meta.snapshot(snap.id).uuid == snap.uuid
        except NotFound:
            return False

    def _move_to(self, snap: Snapshot | None) -> None:
        self._latest = snap
        self._metas = self._meta.manifests(snap) if snap else ()
        if snap is not None:
            self._schema_id = max(self._schema_id, snap.schema_id)

    # ---- one snapshot

    def start(self) -> None:
        """Another value is committed now: what was tried before belongs to the last one."""
        self._tried, self._unclear = set(), False

    def publish(self, order: Order) -> int:
        """Create one snapshot; its id."""
        return self._settled(order.identifier, lambda attempt, latest, again: self._try(order, attempt, latest, again))

    def _settled(self, identifier: int, one_try: _Try) -> int:
        """Once a try was unclear, a store that still fails leaves it unclear."""
        try:
            made = self._publish(identifier, one_try)
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

    def _publish(self, identifier: int, one_try: _Try) -> int:
        attempt = Attempt(self.files)
        try:
            return self._until_won(identifier, attempt, one_try)
        except CommitUnknown:
            raise  # it may be there, and then it needs its files
        except ShoalError:
            attempt.discard()
            raise

    def _until_won(self, identifier: int, attempt: Attempt, one_try: _Try) -> int:
        options, clock = self.table.options, self.table.clock
        started = clock.monotonic()
        self._seen.clear()
        tries = 0
        for tries in range(options.commit_max_retries + 1):
            latest = self.refresh()
            landed = self._landed()
            if landed is not None:
                self.attempts += tries + 1
                return landed
            self._fence(identifier)
            won = one_try(attempt, latest, tries > 0)
            if won is not None:
                self.attempts += tries + 1
                return won
            attempt.drop_base()
            limit = options.commit_timeout_ms
            if limit is not None and (clock.monotonic() - started) * 1000 > limit:
                break
            low, high = options.commit_min_retry_wait_ms, options.commit_max_retry_wait_ms
            wait = min(high, low * 2 ** min(tries, 16))
            clock.sleep(wait * (0.5 + self._rng.random() / 2) / 1000)
        raise Conflict(
            f"{self.table.name}: {tries + 1} attempts lost against other writers",
            hint="raise commit.max-retries or commit.timeout, or commit less often from so many writers",
        )

    def _landed(self) -> int | None:
        """The id of a snapshot that an earlier, unclear attempt at this very commit did create."""
        for snap in self._seen:
            if snap.uuid in self._tried:
                self.mine.add(snap.id)
                return snap.id
        return None

    def _fence(self, identifier: int) -> None:
        """Stop when somebody else commits checkpoints under this user: one of the two is a zombie."""
        if identifier == BATCH_IDENTIFIER:
            return
        for snap in self._seen:
            if snap.commit_user == self.user:
                raise Fenced(
                    f"{self.table.name}: another writer committed snapshot {snap.id} as '{self.user}'",
                    hint="one writer per commit user: stop the other one, then restart this one",
                )

    def _try(self, order: Order, attempt: Attempt, latest: Snapshot | None, again: bool) -> int | None:
        """One try: the snapshot's id, or None when another writer was faster."""
        content = order.content(latest)
        try:
            content = order.check(content, latest)
        except Conflict:
            if order.may_roll_back and self._rolled_back(latest):
                return None
            raise
        snap, base, delta = self._snapshot(order, content, latest, attempt, again=again)
        return self._make(snap, base, delta)

    def _make(self, snap: Snapshot, base: Listed, delta: Listed) -> int | None:
        self._tried.add(snap.uuid)
        if not self._create(snap):
            return None
        self._won(snap, base, delta)
        return snap.id

    def _rolled_back(self, latest: Snapshot | None) -> bool:
        """Whether a compaction that is in the way could be undone, as some catalogs can."""
        if self._roll_back is None or latest is None or latest.commit_kind != "COMPACT" or not self._roll_back(latest):
            return False
        self._known = False
        return True

    def _merge(self) -> MergeOptions:
        o = self.table.options
        return MergeOptions(o.manifest_target_size, o.manifest_full_threshold, o.manifest_merge_min_count)

    def _snapshot(
        self, order: Order, content: Content, latest: Snapshot | None, attempt: Attempt, *, again: bool
    ) -> tuple[Snapshot, Listed, Listed]:
        """Write everything the snapshot names; the snapshot, its base and its delta."""
        new_id = latest.id + 1 if latest else 1
        metas, indexes_before, statistics = self._metas, latest.index_manifest if latest else None, order.statistics
        schema_id = self._newest_schema()
        if latest is not None and latest.operation == "TRUNCATE" and order.operation in _REPLACES:
            metas, indexes_before = (), None  # nothing is left of the table that is replaced
        elif statistics is None and latest is not None and latest.schema_id == schema_id:
            statistics = latest.statistics
        # a retry skips the merge: it must be quick to win
        base = attempt.base(metas, None if again else self._merge())
        first_row = latest.next_row_id or 0 if latest else 0
        entries, next_row = self._numbered(content, new_id, first_row)
        delta = attempt.delta(entries)
        changelog = attempt.changelog(content.changelog)
        indexes = attempt.indexes(indexes_before, content.indexes, by_file=self._vectors_by_file)
        rows = sum(e.file.row_count if e.kind == ADD else -e.file.row_count for e in entries)
        watermark = order.watermark
        if latest is not None and latest.watermark is not None:
            watermark = latest.watermark if watermark is None else max(watermark, latest.watermark)
        snap = Snapshot(
            id=new_id,
            uuid=self.new_uuid(),
            schema_id=schema_id,
            base_manifest_list=base.name,
            base_manifest_list_size=base.size,
            delta_manifest_list=delta.name,
            delta_manifest_list_size=delta.size,
            changelog_manifest_list=changelog.name if changelog else None,
            changelog_manifest_list_size=changelog.size if changelog else None,
            index_manifest=indexes,
            commit_user=self.user,
            commit_identifier=order.identifier,
            commit_kind=content.kind,
            time_ms=self.table.clock.now_ms(),
            total_record_count=(latest.total_record_count if latest else 0) + rows,
            delta_record_count=rows,
            changelog_record_count=sum(e.file.row_count for e in content.changelog) if content.changelog else None,
            watermark=watermark,
            statistics=statistics,
            properties=self._properties(order, content, entries, latest) or None,
            next_row_id=next_row,
            operation=order.operation,
        )
        return snap, base, delta

    def _newest_schema(self) -> int:
        """The id of the newest schema, which a snapshot names whatever its files were written with."""
        while self._meta.exists(paths.schema(self._schema_id + 1)):
            self._schema_id += 1
        return self._schema_id

    @property
    def _vectors_by_file(self) -> bool:
        return not self.table.primary_key and self.table.options.bucket == -1

    def _numbered(self, content: Content, new_id: int, first_row: int) -> tuple[tuple[Entry, ...], int]:
        """The entries with the row ids and sequence numbers that only a commit can give, and the next row id."""
        options = self.table.options
        entries, next_row = content.entries, first_row
        if options.row_tracking:
            if options.get("row-tracking.partition-group-on-commit"):
                entries = tuple(row_ids.by_partition(entries))
            numbered, next_row = row_ids.tracked(entries, new_id, first_row)
            entries = tuple(numbered)
        if options.get("sequence.snapshot-ordering") and content.kind != "COMPACT":
            entries = tuple(row_ids.stamped(entries, new_id))
        return entries, next_row

    def _properties(
        self, order: Order, content: Content, entries: tuple[Entry, ...], latest: Snapshot | None
    ) -> dict[str, str]:
        given = dict(order.properties or {})
        if self.table.options.get("write.sequence-number-init-mode") != "snapshot":
            return given
        known = (latest.properties or {}).get(row_ids.MAX_SEQUENCE) if latest else None
        newest = int(known) if known is not None else self._max_sequence() if latest else None
        return row_ids.max_sequence(given, entries, newest)

    def _max_sequence(self) -> int | None:
        """The greatest sequence number in any manifest: the last snapshot does not say it."""
        import pyarrow.compute as pc

        found = []
        for m in self._metas:
            entries = self._meta.entries(m)
            added = entries.filter(pc.equal(entries.column("kind"), ADD))
            found.append(pc.max(added.column("max_sequence")).as_py())
        return max((n for n in found if n is not None), default=None)

    def _create(self, snap: Snapshot) -> bool:
        """Whether this snapshot is there now; an unclear answer is settled by reading the file back.

        `StorageFailed` from here means that the store said for certain that nothing was created.
        """
        path, data = paths.snapshot(snap.id), snap.encode()
        failure: StorageFailed | None = None
        for _ in range(3):
            try:
                if self._store.create(path, data):
                    return True
            except StorageFailed as err:
                if err.definite and failure is None:
                    raise
                failure = err
            try:
                there = decode_snapshot(self._store.read(path), path)
            except NotFound:
                if failure is None:
                    return False  # it was there and is gone: expired or rolled back meanwhile
            except StorageFailed as err:
                failure = err
            else:
                return there.uuid == snap.uuid
        assert failure is not None
        raise CommitUnknown(
            f"{self.table.name}: snapshot {snap.id} may or may not have been created ({failure.message})",
            hint="commit the same checkpoint again: it is a no-op if it was",
        ) from failure

    def _won(self, snap: Snapshot, base: Listed, delta: Listed) -> None:
        try:
            self._store.put(paths.LATEST, str(snap.id).encode())
        except StorageFailed:
            pass  # the hint only saves a listing: readers find the snapshot without it
        self.mine.add(snap.id)
        self._latest = snap
        self._metas = (*base.metas, *delta.metas)
        self.files.keep_only(m.file_name for m in self._metas)

    # ---- manifests alone

    def compact_manifests(self) -> int | None:
        """Merge the manifests as far as that goes, in a snapshot of its own; its id, None when nothing changed."""
        self.start()
        merge = MergeOptions(self.table.options.manifest_target_size, full_threshold=1, min_count=1)

        def one_try(attempt: Attempt, latest: Snapshot | None, _: bool) -> int | None:
            base = attempt.base(self._metas, merge)
            if latest is None or set(base.metas) == set(self._metas):
                attempt.discard()
                return 0
            delta = attempt.delta(())
            snap = replace(
                latest, id=latest.id + 1, uuid=self.new_uuid(), version=VERSION, commit_user=self.user,
                commit_identifier=BATCH_IDENTIFIER, commit_kind="COMPACT", time_ms=self.table.clock.now_ms(),
                base_manifest_list=base.name, base_manifest_list_size=base.size, delta_manifest_list=delta.name,
                delta_manifest_list_size=delta.size, changelog_manifest_list=None, changelog_manifest_list_size=None,
                delta_record_count=0, changelog_record_count=None, operation=None,
            )  # fmt: skip
            return self._make(snap, base, delta)

        return self._settled(BATCH_IDENTIFIER, one_try) or None
