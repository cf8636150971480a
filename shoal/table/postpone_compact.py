# SPDX-License-Identifier: Apache-2.0
"""Compaction of a table whose buckets are decided late: postponed rows get their buckets, in one COMPACT snapshot.

The rows of a partition are written again as if they came now, in the order in which their files were made, through the
merge tree of the buckets they belong to; those, and buckets whose batch writes left level-0 files, are compacted.
Agrees with: CompactAction.buildForPostponeBucketCompaction, PostponeBucketCompactOperator,
PostponeBucketCommittableRewriter, BucketFiles, PostponeUtils (2.0.0). Invariant: a postponed file goes in the same
snapshot in which its rows come; who compacted or overwrote one of its partitions meanwhile makes the commit a
`Conflict`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.clock import ManualScheduler, WatchedThreads
from shoal.errors import BadRequest
from shoal.format.datafile import DataFile, Entry
from shoal.format.manifest import entries_of
from shoal.format.schema import VALUE_KIND
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.table.buckets import Group, Place
from shoal.table.commit import Commit
from shoal.table.compact_choice import Choice
from shoal.table.compact_job import bucket_tasks
from shoal.table.compact_report import CompactionReport, PlannedBucket, done_compaction
from shoal.table.postpone_write import CountedRouter, bucket_counts, postponed_rows
from shoal.table.postponed import POSTPONED
from shoal.table.progress import Meter, Tell
from shoal.table.rows import unnamed
from shoal.table.runs import BucketFiles
from shoal.table.staged import BucketChanges, Staged
from shoal.table.strict_mode import OPTION as LAST_SAFE
from shoal.table.upkeep import Keeper
from shoal.table.write import Write

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do in one snapshot: postponed files by partition, real buckets, how many a partition has."""

    late: Mapping[bytes, Sequence[Entry]]
    buckets: Mapping[Place, Sequence[Entry]]
    counts: Mapping[bytes, int]

    def __bool__(self) -> bool:
        return bool(self.late or self.buckets)


def compact_postponed(
    table: Table, *, full: bool = False, dry_run: bool = False, choice: Choice | None = None,
    commit_user: str | None = None, checkpoint: int | None = None, threads: int = 1, progress: Tell | None = None,
) -> CompactionReport:  # fmt: skip
    """Give postponed rows of the chosen partitions their buckets and compact those; with `full`, all of them, up to the
    highest level. Rows go through one writer, buckets are compacted by `threads`."""
    started = table.clock.monotonic()
    commit = Commit(table, "", table.rng)
    newest = commit.refresh()
    work = work_of(table, newest, full=full, choice=choice) if newest else None
    if newest is None or not work:
        return CompactionReport(table.name, ())
    # the number of buckets is told by the router; what counts here is that buckets are fixed and compact
    real = table.with_schema(
        replace(table.schema, options={**table.schema.options, "bucket": "1", "write-only": "false"})
    )
    said = _planned(table, real, newest, work, full)
    planned, tasks = [p for p, _ in said], [files for _, files in said]
    if dry_run or not planned:
        return CompactionReport(table.name, tuple(planned))
    meter = Meter(tasks, table.clock.monotonic, progress)
    scheduler = ManualScheduler() if threads <= 1 else WatchedThreads(threads, meter.told)
    identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
    router, job = CountedRouter(real, work.counts), table.metrics.compaction.job()
    with Write(real, commit_user, router=router, scheduler=scheduler, threads=threads) as w:
        meter.told()
        for i, (partition, files) in enumerate(zip(work.late, tasks)):
            _replay(table, partition, files, w, meter)
            meter.ended(i)
        w.flush()
        for (partition, bucket), entries in work.buckets.items():
            bucket_writer = w.writer(Group(partition, bucket, np.empty(0, np.int64), entries[0].total_buckets))
            bucket_writer.at = replace(bucket_writer.at, meter=meter.listening)
        made = w.prepare(wait=True, compact="full" if full else "minor")
        job.add(w.bucket_sizes())
        # planned on `newest`: nobody may have compacted or overwritten these partitions since
        commit = Commit(table.with_options({LAST_SAFE: newest.id}), w.commit_user, table.rng)
        try:
            for i in range(len(work.late), len(tasks)):
                meter.ended(i)
            meter.told()
            changes = [one_compaction(table, c) for c in made.changes]
        except BaseException:
            commit.abort(made)
            raise
        changes += [
            BucketChanges(p, POSTPONED, entries[0].total_buckets, compact_before=tuple(e.file for e in entries))
            for p, entries in work.late.items()
        ]
        changes = [c for c in changes if c.compact_before or c.compact_after]
        if not changes:
            return CompactionReport(table.name, ())
        committed = commit.commit(Staged(tuple(changes), newest.id), identifier)
    # as Java: this job commits with real buckets, so it is the one that expires, which a postponing writer never does
    committed = Keeper(real).after(committed, identifier)
    old = {f.file_name for c in changes for f in c.compact_before}
    return CompactionReport(
        table.name,
        tuple(p for p in planned if (p.partition, p.bucket) in {_place(table, c.partition, c.bucket) for c in changes}),
        files_before=sum(len(c.compact_before) for c in changes),
        files_after=sum(len(c.compact_after) for c in changes),
        bytes_read=sum(f.file_size for c in changes for f in c.compact_before),
        bytes_written=sum(f.file_size for c in changes for f in c.compact_after if f.file_name not in old),
        seconds=table.clock.monotonic() - started,
        snapshot=committed.snapshots[-1],
        upkeep=committed.upkeep,
        compactions=tuple(done_compaction(*_place(table, p, b), c) for p, b, c in w.compacted),
    )


def work_of(table: Table, snapshot: Snapshot, *, full: bool, choice: Choice | None = None) -> Work:
    """What a compaction of this snapshot works on: postponed files, and real buckets with files at level 0, or all."""
    live = table.metadata.live(snapshot)
    late: dict[bytes, list[Entry]] = {}
    buckets: dict[Place, list[Entry]] = {}
    for e in entries_of(choice.of(table, live) if choice else live):
        if e.bucket == POSTPONED:
            late.setdefault(e.partition, []).append(e)
        elif e.bucket >= 0 and e.total_buckets > 0 and (full or e.file.level == 0):
            buckets.setdefault((e.partition, e.bucket), []).append(e)
    counts = bucket_counts(table.name, live)
    rows = postponed_rows(live)
    for partition in late:
        if partition not in counts:
            counts[partition] = _first_count(table, rows.get(partition, 0))
    return Work(late, buckets, counts)


def _first_count(table: Table, rows: int) -> int:
    """How many buckets a partition gets that has none."""
    get: Any = table.options.get
    target: int | None = get("postpone.target-row-num-per-bucket")
    if target is not None:
        if target <= 0:
            raise BadRequest(f"{table.name}: 'postpone.target-row-num-per-bucket' = {target} is not positive")
        return max(1, -(-rows // target))
    count: int = get("postpone.default-bucket-num")
    if count <= 0:
        raise BadRequest(f"{table.name}: 'postpone.default-bucket-num' = {count} is not positive")
    return count


def _replay(table: Table, partition: bytes, files: Sequence[DataFile], w: Write, meter: Meter) -> None:
    """Write the rows of postponed files again, in the order in which the files were made."""
    opened = BucketFiles(table, partition, POSTPONED, (*table.schema.fields, VALUE_KIND), meter=meter.listening)
    in_order = sorted(files, key=lambda f: f.creation_ms or 0)
    for batch in opened.batches(in_order):
        if batch.num_rows:
            w.replay(unnamed(batch.drop_columns([VALUE_KIND.name])), batch.column(VALUE_KIND.name))


def one_compaction(table: Table, c: BucketChanges) -> BucketChanges:
    """What a writer made of the rows and of the bucket, as one compaction. New files that it used up are deleted."""
    new = {f.file_name: f for f in c.new_files}
    gone = [new.pop(f.file_name) for f in c.compact_before if f.file_name in new]
    kept = {f.file_name for f in c.compact_after}
    for f in gone:
        if f.file_name not in kept:
            places = [table.file_at(c.partition, c.bucket, f)]
            places += [table.beside(c.partition, c.bucket, f, extra) for extra in f.extra_files]
            for store, path in places:
                store.delete(path)
    used = {f.file_name for f in gone}
    return BucketChanges(
        c.partition, c.bucket, c.total_buckets,
        compact_before=tuple(f for f in c.compact_before if f.file_name not in used),
        compact_after=(*new.values(), *c.compact_after),
        compact_changelog=(*c.changelog_files, *c.compact_changelog),
        compact_new_indexes=(*c.new_indexes, *c.compact_new_indexes),
        compact_deleted_indexes=(*c.deleted_indexes, *c.compact_deleted_indexes),
    )  # fmt: skip


def _planned(
    table: Table, real: Table, snapshot: Snapshot, work: Work, full: bool
) -> list[tuple[PlannedBucket, tuple[DataFile, ...]]]:
    """What is said of each bucket, and its files: first the postponed ones, then the real ones.

    A bucket whose partition has postponed rows gets new files, so what it compacts shows only then.
    """
    top = table.policy.num_levels - 1 if full else 0
    out = []

    def say(place: Place, files: Sequence[DataFile], level: int, rule: str, reason: str) -> None:
        size = sum(f.file_size for f in files)
        out.append((PlannedBucket(*_place(table, *place), len(files), size, level, rule, reason), tuple(files)))

    for p, entries in work.late.items():
        rows, count = sum(e.file.row_count for e in entries), work.counts[p]
        reason = f"{rows:,} rows wait for {count:,} bucket{'s' if count > 1 else ''}"
        say((p, POSTPONED), [e.file for e in entries], top, "postponed", reason)
    known = _at_places(table.metadata.live(snapshot), [place for place in work.buckets if place[0] not in work.late])
    plans = {(t.partition, t.bucket): t.plan for t in bucket_tasks(real, snapshot, known, full=full)}
    for place, entries in work.buckets.items():
        plan = plans.get(place)
        if plan is not None:
            say(place, plan.files, plan.output_level, plan.rule, plan.reason)
        elif place[0] in work.late:
            level0 = sum(e.file.level == 0 for e in entries)
            why = ("asked for", "full compaction asked for") if full else ("level 0", f"{level0} files at level 0")
            say(place, [e.file for e in entries], top, *why)
    return out


def _at_places(live: pa.Table, places: Collection[Place]) -> pa.Table:
    """The entries of these buckets."""
    import pyarrow as pa

    wanted = set(places)
    at = zip(live.column("partition").to_pylist(), live.column("bucket").to_pylist())
    return live.filter(pa.array([place in wanted for place in at], pa.bool_()))


def _place(table: Table, partition: bytes, bucket: int) -> tuple[str, int]:
    return table.partition_path(partition).rstrip("/"), bucket
