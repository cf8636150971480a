# SPDX-License-Identifier: Apache-2.0
"""Verbs that change files without changing rows: `table.maintain.compact()` and `expire()`.

Invariant: what a reader sees is the same before and after; a conflict with another writer leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.options import check
from shoal.table.commit import Commit
from shoal.table.compact import Files, TaskResult
from shoal.table.compact_choice import Choice
from shoal.table.compact_job import bucket_tasks, publish, run_all, run_bucket
from shoal.table.compact_report import CompactionReport, PlannedBucket, done_compaction
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.newest_schema import of_today
from shoal.table.postponed import POSTPONED
from shoal.table.progress import Meter, Progress
from shoal.table.staged import Staged

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.lsm.sort import SortOrder
    from shoal.table.expire_run import Expired
    from shoal.table.partition_expiry import ExpiredPartitions
    from shoal.table.rescale import Rescaled
    from shoal.table.table import Table


class Maintain:
    """`table.maintain`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def compact(
        self,
        *,
        full: bool = False,
        where: str | pc.Expression | None = None,
        partitions: Sequence[Mapping[str, object]] | None = None,
        idle_time: str | int | None = None,
        order_strategy: str | None = None,
        order_by: str | Sequence[str] | None = None,
        dry_run: bool = False,
        commit_user: str | None = None,
        checkpoint: int | None = None,
        threads: int = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> CompactionReport:
        """Compact every bucket that needs it; with `full` everything goes to the highest level.

        Tables without a primary key: small files become larger ones; without buckets `full` makes no difference. Those
        with `clustering.incremental` are sorted by `clustering.columns`, level by level, with `full` all of their rows.
        `order_strategy` (`order`, `zorder`, `hilbert`) with `order_by` writes whole partitions of a table with
        `bucket` -1 anew, sorted; with a primary key, its keys into buckets in that order. That is a snapshot of kind
        OVERWRITE.
        Postponed rows get their buckets. `where` (over partition columns), `partitions` (`[{"dt": "2026-11-01"}]`) and
        `idle_time` (no new file for so long, `"1 h"` or milliseconds) choose partitions. Buckets are worked on by so
        many `threads`, which share the memory; `progress` is called as batches are read. With `dry_run` nothing is
        written. `Conflict` when another writer compacted the same files meanwhile. A job that compacts again and again
        gives its `commit_user` and the `checkpoint`.
        """
        table, choice = of_today(self.table), Choice(where, partitions, idle_time)
        check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
        order = None
        if order_strategy is not None or order_by is not None:
            from shoal.table.sort_compact import order_of

            order = order_of(table, order_strategy, order_by, choice)
        if order is not None and table.primary_key:
            from shoal.table.sort_keyed import sort_keyed

            return sort_keyed(
                table, order, choice, dry_run=dry_run, commit_user=commit_user, checkpoint=checkpoint,
                threads=threads, progress=progress,
            )  # fmt: skip
        if table.primary_key and table.options.bucket == POSTPONED:
            from shoal.table.postpone_compact import compact_postponed

            return compact_postponed(
                table, full=full, dry_run=dry_run, choice=choice, commit_user=commit_user, checkpoint=checkpoint,
                threads=threads, progress=progress,
            )  # fmt: skip
        # compaction is what this is for, whatever the table's own writers do
        table = table.with_schema(replace(table.schema, options={**table.schema.options, "write-only": "false"}))
        commit = Commit(table, commit_user or new_uuid(table), table.rng)
        newest = commit.refresh()
        if newest is None:
            return CompactionReport(table.name, ())
        everything = table.metadata.live(newest)
        live = choice.of(table, everything)
        if order is not None:
            job = _sort_job(table, newest, live, order, threads)
        elif table.primary_key:
            job = _bucket_job(table, newest, live, full, threads)
        elif table.data_evolution:
            job = _evolution_job(table, newest, live, full, threads)
        else:
            job = _append_job(table, newest, live, everything if choice else None, full, threads)
        planned = job.planned
        if dry_run or not job.tasks:
            return CompactionReport(table.name, planned)
        measured = table.metrics.compaction.job()
        meter = Meter(job.files, table.clock.monotonic, progress, job.passes)

        def abort(results: Sequence[TaskResult]) -> None:
            commit.abort(Staged(tuple(r.changes for r in results if r.changes is not None), newest.id))

        results = run_all(job.tasks, lambda t: job.run(t, meter.listening), abort, meter, threads=threads)
        if job.settle is not None:
            try:
                results = job.settle(results, commit.refresh())
            except BaseException:
                abort(results)
                raise
        committed = publish(table, commit, newest, results, checkpoint)
        measured.add(s for r in results for s in r.sizes)
        done, changes = [d for r in results for d in r.done], [r.changes for r in results if r.changes is not None]
        if committed is None:
            return CompactionReport(table.name, planned)
        return CompactionReport(
            table.name,
            planned,
            files_before=sum(len(c.compact_before) + len(c.deleted_files) for c in changes),
            files_after=sum(len(c.compact_after) + len(c.new_files) for c in changes),
            bytes_read=sum(r.bytes_read for r in done),
            bytes_written=sum(r.bytes_written for r in done),
            seconds=sum(r.seconds for r in done),
            snapshot=committed.snapshots[-1],
            upkeep=committed.upkeep,
            compactions=tuple(
                done_compaction(p.partition, p.bucket, d) for p, r in zip(planned, results) for d in r.done
            ),
        )

    def rescale(
        self,
        buckets: int | None = None,
        *,
        partitions: Sequence[Mapping[str, object]] | None = None,
        where: str | pc.Expression | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> Rescaled:
        """Write partitions again with another number of buckets, and set the table's `bucket` to it.

        Without `buckets` those that have another number than the table get the table's. `where` and `partitions` choose
        some, as in `compact`; the others keep their number: they are read as before, and written to when they have been
        rescaled too. A table that postpones buckets keeps its option. Changes that no changelog has told yet are told
        first, by a compaction. `Conflict` when another writer changed one of the partitions meanwhile: no row has moved
        then. After a death, the same call does what is left.
        """
        from shoal.table.rescale import rescale

        return rescale(self.table, buckets, Choice(where, partitions), dry_run=dry_run, progress=progress)

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


@dataclass(frozen=True, slots=True)
class _Job:
    """Tasks, the files of each, what is said of it, what carries it out, what adds to the results what they need
    together, and how often rows are handled."""

    tasks: Sequence[Any]
    files: Sequence[Files]
    planned: tuple[PlannedBucket, ...]
    run: Callable[[Any, Meter | None], TaskResult]
    settle: Callable[[list[TaskResult], Snapshot | None], list[TaskResult]] | None = None
    passes: int = 1


def _bucket_job(table: Table, newest: Snapshot, live: pa.Table, full: bool, threads: int) -> _Job:
    """For a table with a primary key."""
    tasks = tuple(bucket_tasks(table, newest, live, full=full))
    files, budget = NewFiles(table), table.budget().share(threads)
    planned = tuple(
        _planned(table, t.partition, t.bucket, t.plan.files, t.plan.output_level, t.plan.rule, t.plan.reason)
        for t in tasks
    )
    taken = [t.plan.files for t in tasks]
    return _Job(tasks, taken, planned, lambda task, meter: run_bucket(table, files, task, budget, meter))


def _append_job(
    table: Table, newest: Snapshot, live: pa.Table, everything: pa.Table | None, full: bool, threads: int
) -> _Job:
    """For one without. The groups of a partition whose deletion vectors lie together are one after the other.

    `everything` are the entries of all partitions where some were chosen.
    """
    from shoal.lsm.sort import PASSES
    from shoal.table import append_compact, cluster

    clustered = bool(table.options.get("clustering.incremental"))
    if clustered:
        tasks = tuple(cluster.tasks_of(table, newest, live, everything, full=full))
    else:
        tasks = tuple(append_compact.tasks_of(table, newest, live, full=full))
    budget = table.budget().share(threads)
    planned = tuple(_planned(table, t.at.partition, t.at.bucket, t.files, t.level, t.rule, t.reason) for t in tasks)
    files = [t.files for t in tasks]
    return _Job(
        tasks, files, planned, lambda task, meter: append_compact.result_of(task, budget, meter),
        passes=PASSES if clustered else 1,
    )  # fmt: skip


def _sort_job(table: Table, newest: Snapshot, live: pa.Table, order: SortOrder, threads: int) -> _Job:
    """The partitions of `live` written anew in this order."""
    from shoal.lsm.sort import PASSES
    from shoal.table.sort_compact import result_of, tasks_of

    tasks, budget = tuple(tasks_of(table, newest, live, order)), table.budget().share(threads)
    planned = tuple(_planned(table, t.at.partition, t.at.bucket, t.files, 0, t.rule, t.reason) for t in tasks)
    files = [t.files for t in tasks]
    return _Job(tasks, files, planned, lambda task, meter: result_of(task, budget, meter), passes=PASSES)


def _evolution_job(table: Table, newest: Snapshot, live: pa.Table, full: bool, threads: int) -> _Job:
    """For a table whose columns lie in several files. There is one way: `full` makes no difference."""
    from shoal.table.evolution_compact import result_of, settled, tasks_of

    tasks = tuple(tasks_of(table, newest, entries_of(live)))
    planned = tuple(_planned(table, t.at.partition, t.at.bucket, t.files, 0, t.rule, t.reason) for t in tasks)
    files = [t.files for t in tasks]
    return _Job(tasks, files, planned, result_of, lambda results, now: settled(table, now, tasks, results))


def _planned(
    table: Table, partition: bytes, bucket: int, files: Sequence[DataFile], level: int, rule: str, reason: str
) -> PlannedBucket:
    path = table.partition_path(partition).rstrip("/")
    return PlannedBucket(path, bucket, len(files), sum(f.file_size for f in files), level, rule, reason)
