# SPDX-License-Identifier: Apache-2.0
"""Staged files become snapshots, exactly once.

One commit makes up to two: what rows became (APPEND, or OVERWRITE when that takes rows away), then what compactions did
(COMPACT). Agrees with: FileStoreCommitImpl, TableCommitImpl (2.0.0). Invariant: files of a commit that failed for good
are deleted; a commit whose outcome is unclear is settled by committing the same value again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, CommitUnknown, Conflict, NotFound, ShoalError
from shoal.format.datafile import ADD
from shoal.format.snapshot import BATCH_IDENTIFIER, NO_WATERMARK, Snapshot
from shoal.format.statistics import FOLDER, Statistics
from shoal.store.base import add_file, delete_each
from shoal.table.commit_checks import Checks
from shoal.table.conflicts import AlreadyThere
from shoal.table.overwrite import Chosen, Exactly, Partitions, Spec, lifted, replaced
from shoal.table.precommit import Ready, ready
from shoal.table.publish import Order, Publisher, RollBack
from shoal.table.staged import Committed, Content, Staged, places_of
from shoal.table.table_metrics import CommitStats

if TYPE_CHECKING:
    from shoal.table.table import Table


class Commit:
    """Commits for one commit user. Not for several threads."""

    def __init__(
        self, table: Table, commit_user: str, rng: random.Random | None = None, roll_back: RollBack | None = None
    ) -> None:
        """`roll_back` undoes a compaction snapshot that is in the way of new rows, where the catalog can do that."""
        self.table = table
        self.user = commit_user
        self._meta = table.metadata
        self._publisher = Publisher(table, commit_user, rng or random.Random(), roll_back)
        self._checks = Checks(table, commit_user, self._publisher.mine)
        # how far the value being committed has come, so that committing it again after an unclear answer goes on there
        self._staged: Staged | None = None
        self._made: dict[str, int] = {}
        self._ready: Ready | None = None
        self._snapshots, self._newest = 0, -1  # made by this one: how many, the last

    # ---- what is there

    def refresh(self) -> Snapshot | None:
        """The newest snapshot: one look at the next id when nothing has changed."""
        return self._publisher.refresh()

    @property
    def foreign_snapshot(self) -> int:
        """The last snapshot of another writer that was seen, so that this one knows when its view is old."""
        return self._publisher.foreign_snapshot

    def last_identifier(self) -> int | None:
        """The newest commit identifier of this user, walking back from the newest snapshot."""
        newest = self.refresh()
        if newest is None:
            return None
        strict = self._checks.strict
        earliest = self._meta.earliest_id() or newest.id
        if strict is not None:
            earliest = max(earliest, strict.last_safe + 1)
        for i in range(newest.id, earliest - 1, -1):
            try:
                snap = newest if i == newest.id else self._meta.snapshot(i)
            except NotFound:
                break
            if snap.commit_user == self.user:
                return snap.commit_identifier
        return None

    # ---- commit

    def commit(
        self, staged: Staged, identifier: int, *, force_snapshot: bool = False, check: bool = False,
        rows_from: int | None = None, operation: str | None = None, keep_files: bool = False,
    ) -> Committed:  # fmt: skip
        """Commit what rows became, then the compactions.

        A compaction that met a conflict is dropped and reported; a conflict of new files is raised after their
        deletion (unless `keep_files`). `StorageFailed` from here leaves nothing visible; `CommitUnknown` says to commit
        the same again. `check`: new files too are held against what is there, as after a restart. `rows_from` is the
        snapshot whose rows an update has read. `operation` goes into the snapshot (`DELETE`, `UPDATE`, `MERGE`, ...).
        """
        self._go_on(staged)
        plain = operation is None and rows_from is None
        with self._with_fewer_files(staged, rows=plain, keep_files=keep_files) as staged:
            appended, compacted = staged.appended(), staged.compacted()
            with self._measured(appended, compacted):
                return self._committed(
                    staged, appended, compacted, identifier, force_snapshot=force_snapshot, check=check,
                    rows_from=rows_from, operation=operation, keep_files=keep_files,
                )  # fmt: skip

    def _committed(
        self, staged: Staged, appended: Content, compacted: Content, identifier: int, *, force_snapshot: bool,
        check: bool, rows_from: int | None, operation: str | None, keep_files: bool,
    ) -> Committed:  # fmt: skip
        if (force_snapshot or not appended.empty) and "append" not in self._made:
            takes = appended.kind == "OVERWRITE" or rows_from is not None
            checked = check or takes or any(i.kind == ADD and i.global_index is not None for i in appended.indexes)
            order = Order(
                lambda _: appended,
                self._checks.of(appended, staged.base_snapshot, checked=checked, rows_from=rows_from,
                                placed=staged.placed),
                identifier, _watermark(staged), staged.properties, operation, may_roll_back=takes,
            )  # fmt: skip
            self._make("append", order, staged, keep_files=keep_files)
        dropped = self._compaction(
            staged, compacted, identifier, operation, alone=appended.empty and not force_snapshot, keep_files=keep_files
        )
        rows = sum(e.file.row_count for e in appended.entries if e.kind == ADD)
        return self._done(rows, dropped)

    def overwrite(
        self, staged: Staged, identifier: int, partition: Spec | None = None, *, dynamic: bool | None = None,
        chosen: Exactly | None = None, operation: str | None = None,
    ) -> Committed:  # fmt: skip
        """Commit new files in place of what their partitions hold, then the compactions.

        With `dynamic` (the table's `dynamic-partition-overwrite` when None, and only where there are partitions) the
        partitions of the new files are replaced and without new files nothing happens; else all partitions that
        `partition` fits, or those `chosen`. Changelog files are not committed, as in Java: they are deleted.
        """
        self._go_on(staged)
        with self._with_fewer_files(staged, rows=True, changelog=False) as staged:
            return self._overwrite(staged, identifier, partition, dynamic, chosen, operation)

    def _overwrite(
        self, staged: Staged, identifier: int, partition: Spec | None, dynamic: bool | None, chosen: Exactly | None,
        operation: str | None,
    ) -> Committed:  # fmt: skip
        table = self.table
        new, spec = staged.appended(), Partitions(table, None if partition is None else [partition])
        for e in new.entries:
            if e.partition not in spec:
                self.abort(staged)
                raise BadRequest(
                    f"{table.name}: rows of {table.partition_path(e.partition)} do not belong to the partition "
                    f"{partition} that is overwritten"
                )
        if dynamic is None:
            dynamic = bool(table.options.get("dynamic-partition-overwrite"))
        dynamic = dynamic and bool(table.schema.partition_fields) and chosen is None
        gone: Chosen = chosen or (Exactly({e.partition for e in new.entries}) if dynamic else spec)
        compacts = any(c.compact_before or c.compact_after for c in staged.changes)
        if not compacts:
            new = Content(new.kind, lifted(table, new.entries), (), new.indexes)
        compacted = replace(staged.compacted(), changelog=())
        with self._measured(replace(new, changelog=()), compacted):
            if "append" not in self._made and not (dynamic and not new.entries):
                self._make("append", self._replacing(gone, new, identifier, staged, operation), staged)
            # compactions of an overwrite work on its own new files
            dropped = self._compaction(
                staged, compacted, identifier, operation, alone=False, since=self._made.get("append")
            )
        told = ((c, f) for c in staged.changes for f in (*c.changelog_files, *c.compact_changelog))
        delete_each(table.file_at(c.partition, c.bucket, f) for c, f in told)
        return self._done(sum(e.file.row_count for e in new.entries if e.kind == ADD), dropped)

    def truncate(
        self, partitions: Sequence[Spec] | Exactly | None = None, identifier: int = BATCH_IDENTIFIER, *,
        operation: str | None = "TRUNCATE",
    ) -> Committed:  # fmt: skip
        """Take away every row, or those of the partitions that the specs fit; always one snapshot."""
        if not isinstance(partitions, Exactly) and partitions is not None and not partitions:
            raise BadRequest(
                f"{self.table.name}: no partition is named", hint="give at least one, or None for all rows"
            )
        staged = Staged()
        self._go_on(staged)
        chosen = partitions if isinstance(partitions, Exactly) else Partitions(self.table, partitions)
        order = self._replacing(chosen, Content("OVERWRITE"), identifier, None, operation)
        self._make("append", order, staged)
        return self._done(0, None)

    def drop_partitions(self, partitions: Sequence[Spec] | Exactly, identifier: int = BATCH_IDENTIFIER) -> Committed:
        """Take away partitions, as their expiry does."""
        return self.truncate(partitions, identifier, operation=None)

    def compact_manifest(self) -> int | None:
        """Merge manifests as far as that goes; the snapshot, None when there was nothing to merge."""
        return self._publisher.compact_manifests()

    def statistics(self, found: Statistics, identifier: int = BATCH_IDENTIFIER) -> Committed:
        """Commit what ANALYZE found."""
        staged = Staged()
        self._go_on(staged)
        name = f"stat-{self._publisher.new_uuid()}-0"
        add_file(self.table.store, f"{FOLDER}/{name}", found.encode())
        content = Content("ANALYZE")
        try:
            self._publish(
                "append", Order(lambda _: content, self._checks.of(content, None, checked=False), identifier,
                                statistics=name)
            )  # fmt: skip
        except CommitUnknown:
            raise
        except ShoalError:
            self.table.store.delete(f"{FOLDER}/{name}")
            raise
        return self._done(0, None)

    # ---- after a restart

    def filter_and_commit(
        self, staged: Sequence[tuple[int, Staged]], *, force_snapshot: bool = False
    ) -> tuple[Committed, ...]:
        """Commit checkpoints that may have been committed before; what became of each, by ascending identifier.

        Those up to the newest identifier of this user are `replayed`. The files of the others must still be there, and
        are held against what the table holds now. They are never deleted here: a checkpoint may be tried again.
        """
        ordered = sorted(staged, key=lambda s: s[0])
        last = self.last_identifier() if ordered else None
        new = [s for s in ordered if last is None or s[0] > last]
        self._need_files([s for _, s in new])
        replayed = [Committed(replayed=True)] * (len(ordered) - len(new))
        return (
            *replayed,
            *(self.commit(s, i, force_snapshot=force_snapshot, check=True, keep_files=True) for i, s in new),
        )

    def _need_files(self, staged: Sequence[Staged]) -> None:
        gone = []
        for s in staged:
            for store, path in places_of(self.table, s, upgrades=True):
                try:
                    store.size(path)
                except NotFound:
                    gone.append(path)
        if gone:
            more = f" and {len(gone) - 1} others" if len(gone) > 1 else ""
            raise NotFound(
                f"{self.table.name}: cannot recover, file {gone[0]}{more} of an uncommitted checkpoint is gone",
                hint="the checkpoint is too old: its files were cleaned away; restore a newer one",
            )

    # ---- giving up

    def abort(self, staged: Staged) -> None:
        """Delete every file that exists only because of `staged`."""
        delete_each(places_of(self.table, staged))

    def _drop_compaction(self, staged: Staged) -> None:
        """Delete what compactions wrote; what rows became is committed."""
        self.abort(Staged(tuple(c.compaction for c in staged.changes)))

    # ---- steps

    @contextmanager
    def _with_fewer_files(
        self, staged: Staged, *, rows: bool, changelog: bool = True, keep_files: bool = False
    ) -> Iterator[Staged]:
        """The value as it is committed: its small files as fewer where the table asks for it."""
        try:
            if self._ready is None:
                self._ready = ready(self.table, staged, rows=rows, changelog=changelog, done=tuple(self._made))
        except ShoalError:
            if not keep_files:
                self.abort(staged)
            raise
        found = self._ready
        try:
            yield found.staged
        except (CommitUnknown, AlreadyThere):
            raise
        except ShoalError:
            self._ready = None
            found.failed(tuple(self._made), keep_files=keep_files)
            raise
        self._ready = None
        found.committed()

    def _go_on(self, staged: Staged) -> None:
        """Committing the value again that was unclear goes on where it was; another one starts anew."""
        if staged is not self._staged:
            self._staged, self._made, self._ready = staged, {}, None
            self._publisher.start()

    def _done(self, rows: int, dropped: str | None) -> Committed:
        made = tuple(self._made.values())
        changed: dict[bytes, bool] = {}
        for c in () if self._staged is None else self._staged.changes:
            rows_too = c.new_files or c.deleted_files or c.changelog_files or c.new_indexes or c.deleted_indexes
            changed[c.partition] = changed.get(c.partition, False) or bool(rows_too)
        self._staged, self._made = None, {}
        return Committed(made, rows=rows, compaction_conflict=dropped, partitions=changed)

    def _publish(self, part: str, order: Order) -> None:
        self._made[part] = self._newest = self._publisher.publish(order)
        self._snapshots += 1

    @contextmanager
    def _measured(self, appended: Content, compacted: Content) -> Iterator[None]:
        """Report a commit of these, however it ends."""
        monotonic, publisher = self.table.clock.monotonic, self._publisher
        started, attempts, snapshots = monotonic(), publisher.attempts, self._snapshots
        try:
            yield
        finally:
            stats = CommitStats(
                int((monotonic() - started) * 1000), publisher.attempts - attempts, self._snapshots - snapshots,
                self._newest,
            )  # fmt: skip
            self.table.metrics.commit.report(stats.of(appended, compacted))

    def _make(self, part: str, order: Order, staged: Staged, *, keep_files: bool = False) -> None:
        """Make the snapshot of new files; they are deleted when it fails for good."""
        try:
            self._publish(part, order)
        except (CommitUnknown, AlreadyThere):
            raise
        except ShoalError:
            if not keep_files:
                self.abort(staged)
            raise

    def _replacing(
        self, chosen: Chosen, new: Content, identifier: int, staged: Staged | None, operation: str | None
    ) -> Order:
        # what is deleted comes from the very snapshot that it is committed on: only strict mode has a say
        return Order(
            lambda latest: replaced(self.table, latest, chosen, new),
            self._checks.of(Content("OVERWRITE"), None, checked=False),
            identifier,
            None if staged is None else _watermark(staged),
            staged.properties if staged is not None else None,
            operation,
        )

    def _compaction(
        self, staged: Staged, compacted: Content, identifier: int, operation: str | None, *, alone: bool,
        keep_files: bool = False, since: int | None = None,
    ) -> str | None:  # fmt: skip
        """Make the snapshot of the compactions; why they were dropped, if they were."""
        if compacted.empty or "compact" in self._made:
            return None
        order = Order(
            lambda _: compacted, self._checks.of(compacted, since or staged.base_snapshot, checked=True), identifier,
            _watermark(staged), staged.properties, operation,
        )  # fmt: skip
        try:
            self._publish("compact", order)
        except AlreadyThere:
            raise
        except Conflict as err:
            self._drop_compaction(staged)  # it will never fit, not even after a restart
            if alone:
                raise
            return err.message
        except CommitUnknown:
            raise
        except ShoalError:
            if not keep_files:
                self._drop_compaction(staged)
            raise
        return None


def _watermark(staged: Staged) -> int:
    return NO_WATERMARK if staged.watermark is None else staged.watermark
