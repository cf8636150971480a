# SPDX-License-Identifier: Apache-2.0
"""Verbs that change files without changing rows: `table.maintain.compact()` and `expire()`.

Invariant: what a reader sees is the same before and after; a conflict with another writer leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.format.datafile import Entry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.lsm.levels import Levels
from shoal.lsm.pick import Memory, Plan, pick
from shoal.options import check
from shoal.table.commit import Commit
from shoal.table.compact import Bucket, Compacted, compact, discard
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.staged import BucketChanges, Staged
from shoal.table.upkeep import Keeper

if TYPE_CHECKING:
    from datetime import datetime

    from shoal.table.expire_run import Expired
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

    def compact(self, *, full: bool = False, dry_run: bool = False) -> CompactionReport:
        """Compact every bucket that needs it; with `full` everything goes to the highest level.

        Tables without a primary key: small files become larger ones; without buckets `full` makes no difference.
        With `dry_run` nothing is written. `Conflict` when another writer compacted the same files meanwhile.
        """
        table = self.table
        check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
        if not table.primary_key:
            from shoal.table.append_compact import compact_append

            return compact_append(table, full=full, dry_run=dry_run)
        commit = Commit(table, new_uuid(table), table.rng)
        newest = commit.refresh()
        chosen = list(self._chosen(newest, full)) if newest else []
        planned = tuple(c.planned(table) for c in chosen)
        if dry_run or not chosen or newest is None:
            return CompactionReport(table.name, planned)
        done: list[tuple[_Chosen, Compacted]] = []
        try:
            for c in chosen:
                done.append((c, compact(c.at, c.plan, c.levels, table.policy, table.budget())))
        except BaseException:
            for c, result in done:
                discard(c.at, result)
            raise
        changes = tuple(
            BucketChanges(c.at.partition, c.at.bucket, c.total_buckets, (), r.before, r.after) for c, r in done
        )
        committed = commit.commit(Staged(changes, newest.id), BATCH_IDENTIFIER)
        # as Java: the job that compacts a write-only table also does its upkeep
        keeper = Keeper(table.with_options({"write-only": False}))
        committed = keeper.after(committed, BATCH_IDENTIFIER)
        results = [r for _, r in done]
        return CompactionReport(
            table.name,
            planned,
            files_before=sum(len(r.before) for r in results),
            files_after=sum(len(r.after) for r in results),
            bytes_read=sum(r.bytes_read for r in results),
            bytes_written=sum(r.bytes_written for r in results),
            seconds=sum(r.seconds for r in results),
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

    def _chosen(self, newest: Snapshot, full: bool) -> Iterator[_Chosen]:
        """Every bucket of the snapshot that has something to compact."""
        table = self.table
        files = NewFiles(table)
        buckets: dict[tuple[bytes, int], list[Entry]] = {}
        for e in entries_of(table.metadata.live(newest)):
            if e.bucket >= 0:
                buckets.setdefault((e.partition, e.bucket), []).append(e)
        for (partition, bucket), entries in buckets.items():
            live = [e.file for e in entries]
            levels = Levels.of(live, table.policy.num_levels, table.bounds)
            memory = Memory.at_start(live, table.policy)
            plan, _ = pick(
                levels, table.policy, memory, now_ms=table.local_now_ms(), hour=table.local_hour(), full=full
            )
            if plan is not None:
                at = Bucket(table, partition, bucket, files.spec(partition, bucket))
                yield _Chosen(at, levels, plan, entries[0].total_buckets)


@dataclass(frozen=True, slots=True)
class _Chosen:
    at: Bucket
    levels: Levels
    plan: Plan
    total_buckets: int

    def planned(self, table: Table) -> PlannedBucket:
        return PlannedBucket(
            table.partition_path(self.at.partition).rstrip("/"),
            self.at.bucket,
            len(self.plan.files),
            sum(f.file_size for f in self.plan.files),
            self.plan.output_level,
            self.plan.reason,
        )
