# SPDX-License-Identifier: Apache-2.0
"""Partitions with dynamic buckets written anew, so that keys which lie near each other in some columns share a bucket.

Rows come in the order of the columns, and a key gets the first bucket that is not full, whatever bucket it had; within
a bucket files stay sorted by key. So a bucket holds a narrow span of the columns, and a reader skips the others.
Agrees with: SortCompactAction, DynamicBucketCompactSink, SimpleHashBucketAssigner (2.0.0), for one assigner. Three of
Java's faults are not copied: it drops rows that others write meanwhile (here a `Conflict`) and rows that no compaction
has shown yet (here they come along), and files that it leaves at level 0 are told as new rows by the next compaction
(here they stand at the highest level). Invariant: the rows of a partition are the same before and after, each key in
the bucket that the new hash indexes name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.budget import Budget
from shoal.clock import ManualScheduler
from shoal.errors import BadRequest, Conflict
from shoal.format.datafile import Entry
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.lsm.sort import PASSES, SortOrder
from shoal.table.commit import Commit
from shoal.table.compact import Compacted
from shoal.table.compact_choice import Choice
from shoal.table.compact_job import run_all
from shoal.table.compact_report import CompactionReport, PlannedBucket, done_compaction
from shoal.table.new_files import new_uuid
from shoal.table.overwrite import Exactly
from shoal.table.progress import Meter, Tell, in_order
from shoal.table.row_kinds import INSERT
from shoal.table.staged import BucketChanges, Staged
from shoal.table.table_metrics import BucketSizes
from shoal.table.untold import untold
from shoal.table.upkeep import Keeper
from shoal.table.whole_partitions import as_new, by_partition, of_partitions, overwriting, real, rows_of
from shoal.table.write import Write

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


@dataclass(frozen=True, slots=True)
class SortTask:
    """A partition, and its files in a snapshot."""

    partition: bytes
    entries: tuple[Entry, ...]
    live: pa.Table
    reason: str


@dataclass(frozen=True, slots=True)
class SortedPartition:
    """What became of a partition: files of its new buckets, which nobody sees before a commit."""

    changes: tuple[BucketChanges, ...]
    done: Compacted

    @property
    def sizes(self) -> Iterator[BucketSizes]:
        """Of the new buckets."""
        for c in self.changes:
            size = sum(f.file_size for f in c.new_files)
            yield BucketSizes(0, size, size, size)


def sort_keyed(
    table: Table, order: SortOrder, choice: Choice, *, dry_run: bool = False, commit_user: str | None = None,
    checkpoint: int | None = None, threads: int = 1, progress: Tell | None = None,
) -> CompactionReport:  # fmt: skip
    """Write the chosen partitions of a table with dynamic buckets anew, in one OVERWRITE snapshot without a changelog.

    Partitions are sorted by so many `threads`, which share the memory. `Conflict` when anybody changed one of them
    meanwhile: nothing has happened then.
    """
    newest = table.metadata.latest()
    if newest is None:
        return CompactionReport(table.name, ())
    live = choice.of(table, real(table.metadata.live(newest)))
    tasks = [
        SortTask(p, tuple(entries), of_partitions(live, [p]), f"sorted by {order}")
        for p, entries in by_partition(live).items()
    ]
    top = table.policy.num_levels - 1
    planned = tuple(p for t in tasks for p in _planned(table, t, top))
    if not dry_run:
        _check_told(table, tasks)
    if dry_run or not tasks:
        return CompactionReport(table.name, planned)
    target = overwriting(table, newest)
    budget = table.budget().share(threads)
    commit = Commit(target, commit_user or new_uuid(table), table.rng)
    job, started = table.metrics.compaction.job(), table.clock.monotonic()
    meter = Meter([[e.file for e in t.entries] for t in tasks], table.clock.monotonic, progress, PASSES)

    def staged(results: Sequence[SortedPartition]) -> Staged:
        return Staged(tuple(c for r in results for c in r.changes), newest.id)

    results = run_all(
        tasks, lambda t: _sorted(table, target, newest, t, order, top, budget, meter.listening),
        lambda done: commit.abort(staged(done)), meter, threads=threads,
    )  # fmt: skip
    identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
    try:
        committed = commit.overwrite(staged(results), identifier, chosen=Exactly([t.partition for t in tasks]))
    except Conflict as err:
        hint = "nothing has happened: sort again while nobody writes to these partitions, or compacts them"
        raise type(err)(err.message, hint=hint) from err
    job.add(s for r in results for s in r.sizes)
    committed = Keeper(table.with_options({"write-only": False})).after(committed, identifier)
    done = [r.done for r in results]
    return CompactionReport(
        table.name,
        planned,
        files_before=sum(len(d.before) for d in done),
        files_after=sum(len(d.after) for d in done),
        bytes_read=sum(d.bytes_read for d in done),
        bytes_written=sum(d.bytes_written for d in done),
        seconds=table.clock.monotonic() - started,
        snapshot=committed.snapshots[-1],
        upkeep=committed.upkeep,
        compactions=tuple(done_compaction(_path(table, t.partition), None, d) for t, d in zip(tasks, done)),
    )


def _check_told(table: Table, tasks: Sequence[SortTask]) -> None:
    """`BadRequest` where a compaction has changes to tell still: the files it would tell them from go.

    Java sorts all the same, and who follows the table never learns of them.
    """
    producer = table.options.changelog_producer
    for t in tasks:
        waiting = untold(table, t.entries)
        if waiting:
            at = _path(table, t.partition)
            raise BadRequest(
                f"{table.name}: sort compaction would lose changes that 'changelog-producer' = '{producer}' has not "
                f"told yet: {waiting} files {f'of {at} ' if at else ''}wait for a compaction that tells them",
                hint=f"'shoal compact run {table.name} --full' (t.maintain.compact(full=True)) tells them; sort then",
            )


def _planned(table: Table, task: SortTask, top: int) -> Iterator[PlannedBucket]:
    buckets: dict[int, list[Entry]] = {}
    for e in task.entries:
        buckets.setdefault(e.bucket, []).append(e)
    path = _path(table, task.partition)
    for bucket, entries in sorted(buckets.items()):
        size = sum(e.file.file_size for e in entries)
        yield PlannedBucket(path, bucket, len(entries), size, top, "sorted", task.reason)


def _path(table: Table, partition: bytes) -> str:
    return table.partition_path(partition).rstrip("/")


# ---- one partition


def _sorted(
    table: Table, target: Table, snapshot: Snapshot, task: SortTask, order: SortOrder, top: int, budget: Budget,
    meter: Meter | None,
) -> SortedPartition:  # fmt: skip
    """The rows of a partition in new files, in buckets that follow each other in the order."""
    import pyarrow as pa

    started = table.clock.monotonic()
    # what is read, what is sorted and what is written are held at once
    source, into = table.with_schema(table.schema), target.with_schema(target.schema)
    source.memory = budget.share(4).total
    into.memory = budget.share(2).total

    def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return rows_of(source, snapshot, task.live, columns, meter if columns is None else None)

    before = tuple(e.file for e in task.entries)
    with Write(into, ignore_previous=True, scheduler=ManualScheduler()) as w:
        for batch in in_order(read, order, budget.share(4), meter, before):
            w.replay(batch, pa.array(np.full(batch.num_rows, INSERT, np.int8)))
        made = w.prepare(wait=True, compact="full")
        try:
            changes = tuple(as_new(into, c) for c in made.changes)
        except BaseException:
            w.abort(made)
            raise
    after = tuple(f for c in changes for f in c.new_files)
    done = Compacted(
        before, after, top, task.reason, bytes_read=sum(f.file_size for f in before),
        bytes_written=sum(f.file_size for f in after), seconds=table.clock.monotonic() - started,
    )  # fmt: skip
    return SortedPartition(changes, done)
