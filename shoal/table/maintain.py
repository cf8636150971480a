# SPDX-License-Identifier: Apache-2.0
"""Verbs that change files without changing rows: `table.maintain.compact()` and `expire()`.

Invariant: what a reader sees is the same before and after; a conflict with another writer leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.clock import ManualScheduler
from shoal.format.datafile import Entry
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.lsm.pick import Plan
from shoal.options import check
from shoal.table.bucket_writer import BucketWriter, bucket_writer_of
from shoal.table.commit import Commit
from shoal.table.compact import Compacted
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.postponed import POSTPONED
from shoal.table.staged import BucketChanges, Staged
from shoal.table.upkeep import Keeper

if TYPE_CHECKING:
    from datetime import datetime

    from shoal.table.expire_run import Expired
    from shoal.table.partition_expiry import ExpiredPartitions
    from shoal.table.table import Table
    from shoal.table.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket that a compaction would work on, and why."""

    partition: str
    bucket: int
    files: int
    bytes: int
    output_level: int
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction did, or (`snapshot` None) would do."""

    table: str
    planned: tuple[PlannedBucket, ...]
    files_before: int = 0
    files_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    snapshot: int | None = None
    upkeep: Upkeep | None = None

    def __str__(self) -> str:
        if not self.planned:
            return f"{self.table}: nothing to compact"
        files, size = sum(p.files for p in self.planned), sum(p.bytes for p in self.planned)
        if self.snapshot is None:
            return f"{self.table}: would compact {files:,} files ({size:,} bytes) in {len(self.planned):,} buckets"
        return (
            f"{self.table}: snapshot {self.snapshot}, {self.files_before:,} files became {self.files_after:,} in "
            f"{len(self.planned):,} buckets, {self.bytes_read:,} bytes read, {self.bytes_written:,} written"
        )

    def to_dict(self) -> dict[str, object]:
        out = {n: getattr(self, n) for n in self.__slots__ if n not in ("planned", "upkeep")}
        out["planned"] = [{n: getattr(p, n) for n in p.__slots__} for p in self.planned]
        out["upkeep"] = None if self.upkeep is None else self.upkeep.to_dict()
        return out


class Maintain:
    """`table.maintain`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def compact(
        self,
        *,
        full: bool = False,
        dry_run: bool = False,
        commit_user: str | None = None,
        checkpoint: int | None = None,
    ) -> CompactionReport:
        """Compact every bucket that needs it; with `full` everything goes to the highest level.

        Tables without a primary key: small files become larger ones; without buckets `full` makes no difference.
        Postponed rows get their buckets. With `dry_run` nothing is written. `Conflict` when another writer compacted
        the same files meanwhile. A job that compacts again and again gives its `commit_user` and the `checkpoint`.
        """
        table = self.table
        check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
        if not table.primary_key:
            from shoal.table.append_compact import compact_append

            return compact_append(table, full=full, dry_run=dry_run, commit_user=commit_user, checkpoint=checkpoint)
        if table.options.bucket == POSTPONED:
            from shoal.table.postpone_compact import compact_postponed

            return compact_postponed(table, full=full, dry_run=dry_run)
        # compaction is what this is for, whatever the table's own writers do
        table = table.with_schema(replace(table.schema, options={**table.schema.options, "write-only": "false"}))
        identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
        commit = Commit(table, commit_user or new_uuid(table), table.rng)
        newest = commit.refresh()
        buckets = _buckets(table, newest) if newest else ()
        if newest is None or dry_run:
            plans = [(w, plan) for w in buckets if (plan := w.plan(full=full)) is not None]
            return CompactionReport(table.name, tuple(_planned(w, plan) for w, plan in plans))
        planned: list[PlannedBucket] = []
        changes: list[BucketChanges] = []
        done: list[Compacted] = []
        scheduler = ManualScheduler()
        writers: list[BucketWriter] = []
        try:
            for w in buckets:
                plan = w.plan(full=full)
                if plan is None:
                    continue
                planned.append(_planned(w, plan))
                writers.append(w)
                w.trigger(scheduler, table.budget(), plan=plan)
                w.wait(scheduler)
                # what came out may be worth another one, as it would be at a writer's commit
                w.trigger(scheduler, table.budget())
                w.wait(scheduler)
                done += w.compactions
                staged = w.drain()
                if staged is not None:
                    changes.append(staged)
        except BaseException:
            for w in writers:
                w.abandon(scheduler)
            commit.abort(Staged(tuple(changes), newest.id))
            raise
        if not changes:
            return CompactionReport(table.name, tuple(planned))
        committed = commit.commit(Staged(tuple(changes), newest.id), identifier)
        # as Java: the job that compacts a write-only table also does its upkeep
        committed = Keeper(table).after(committed, identifier)
        return CompactionReport(
            table.name,
            tuple(planned),
            files_before=sum(len(c.compact_before) for c in changes),
            files_after=sum(len(c.compact_after) for c in changes),
            bytes_read=sum(r.bytes_read for r in done),
            bytes_written=sum(r.bytes_written for r in done),
            seconds=sum(r.seconds for r in done),
            snapshot=committed.snapshots[-1],
            upkeep=committed.upkeep,
        )

    def compact_manifest(self) -> int | None:
        """Merge the manifests of the newest snapshot into as few as may be; the snapshot made, None without need."""
        table = self.table
        check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
        return Commit(table, new_uuid(table), table.rng).compact_manifest()

    def expire(
        self,
        *,
        retain_min: int | None = None,
        retain_max: int | None = None,
        older_than: int | str | datetime | None = None,
        max_deletes: int | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Forget old snapshots and changelogs, and delete the files that nothing needs any more.

        The table's options say what stays, unless told here. Tags, branches and consumers keep what they need. On any
        doubt nothing is deleted, and the error says why. With `dry_run` the files are named and stay.
        """
        from shoal.table.expire_run import expire

        return expire(
            self.table, retain_min=retain_min, retain_max=retain_max, older_than=older_than, max_deletes=max_deletes,
            dry_run=dry_run,
        )  # fmt: skip

    def expire_partitions(
        self,
        *,
        older_than: int | str | datetime | None = None,
        strategy: str | None = None,
        timestamp_pattern: str | None = None,
        timestamp_formatter: str | None = None,
        max_expires: int | None = None,
        dry_run: bool = False,
    ) -> ExpiredPartitions:
        """Drop the partitions whose time, or last change (`strategy` `update-time`), lies before `older_than`.

        Without it `partition.expiration-time` counts. Partitions whose values are no time stay. With `dry_run` they
        are named and nothing is dropped.
        """
        from shoal.table.partition_expiry import expire_old_partitions

        check(self.table.schema.options, "write", has_primary_key=bool(self.table.primary_key))
        return expire_old_partitions(
            self.table, older_than, strategy=strategy, pattern=timestamp_pattern, formatter=timestamp_formatter,
            most=max_expires, dry_run=dry_run,
        )  # fmt: skip


def _buckets(table: Table, newest: Snapshot) -> Iterator[BucketWriter]:
    """A writer for every bucket of the snapshot, one after the other."""
    files = NewFiles(table)
    buckets: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries_of(table.metadata.live(newest)):
        if e.bucket >= 0:
            buckets.setdefault((e.partition, e.bucket), []).append(e)
    indexes: dict[tuple[bytes, int], list[IndexEntry]] = {}
    if table.options.deletion_vectors and newest.index_manifest:
        for i in table.metadata.index_entries(newest.index_manifest):
            indexes.setdefault((i.partition, i.bucket), []).append(i)
    for place, entries in buckets.items():
        live = [e.file for e in entries]
        following = max(f.max_sequence for f in live) + 1
        writer = bucket_writer_of(
            table, *place, entries[0].total_buckets, files.spec(*place), live, following, indexes.get(place, ())
        )
        if isinstance(writer, BucketWriter):
            yield writer


def _planned(w: BucketWriter, plan: Plan) -> PlannedBucket:
    return PlannedBucket(
        w.table.partition_path(w.partition).rstrip("/"),
        w.bucket,
        len(plan.files),
        sum(f.file_size for f in plan.files),
        plan.output_level,
        plan.reason,
    )
