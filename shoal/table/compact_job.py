# SPDX-License-Identifier: Apache-2.0
"""A compaction on demand in three steps: tasks, their results, one commit.

A `Task` (of a bucket with keys here, of an append table in `append_compact`) says what to do in one bucket and holds
values only, `run_all` carries tasks out, side by side where that is wanted, `publish` commits what came of them.
Agrees with: CompactAction, CompactorSink, StoreCommitter (2.0.0). Invariant: nothing is visible before the commit; when
a task fails or the caller is interrupted, the files of all tasks are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from shoal.clock import LOOK_S, ManualScheduler
from shoal.format.datafile import DataFile, Entry
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.lsm.clustered_pick import ClusteredPlan
from shoal.lsm.pick import Plan
from shoal.table.bucket_writer import BucketWriter, bucket_writer_of
from shoal.table.commit import Commit
from shoal.table.compact import TaskResult
from shoal.table.new_files import NewFiles
from shoal.table.progress import Meter
from shoal.table.staged import Committed, Staged
from shoal.table.stored_lookups import check_lookups
from shoal.table.upkeep import Keeper

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.budget import Budget
    from shoal.table.table import Table

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BucketTask:
    """A bucket of a primary-key table as a snapshot has it, and what is to be compacted in it."""

    partition: bytes
    bucket: int
    total_buckets: int
    files: tuple[DataFile, ...]
    indexes: tuple[IndexEntry, ...]
    full: bool
    plan: Plan | ClusteredPlan

    @property
    def bytes(self) -> int:
        return sum(f.file_size for f in self.plan.files)


# ---- tasks of primary-key tables


def bucket_tasks(table: Table, snapshot: Snapshot, live: pa.Table, *, full: bool) -> Iterator[BucketTask]:
    """What there is to do in the buckets of `live`, entries of the snapshot."""
    check_lookups(table)
    files = NewFiles(table)
    buckets: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries_of(live):
        if e.bucket >= 0:
            buckets.setdefault((e.partition, e.bucket), []).append(e)
    indexes: dict[tuple[bytes, int], list[IndexEntry]] = {}
    if table.options.deletion_vectors and snapshot.index_manifest:
        for i in table.metadata.index_entries(snapshot.index_manifest):
            indexes.setdefault((i.partition, i.bucket), []).append(i)
    for place, entries in buckets.items():
        held, total = tuple(e.file for e in entries), entries[0].total_buckets
        there = tuple(indexes.get(place, ()))
        plan = _writer(table, files, *place, total, held, there).plan(full=full)
        if plan is not None:
            yield BucketTask(*place, total, held, there, full, plan)


def run_bucket(
    table: Table, files: NewFiles, task: BucketTask, budget: Budget, meter: Meter | None = None
) -> TaskResult:
    """Carry the task out. What came out may be worth another compaction, as it would be at a writer's commit."""
    w = _writer(table, files, task.partition, task.bucket, task.total_buckets, task.files, task.indexes)
    w.at = replace(w.at, meter=meter)
    scheduler = ManualScheduler()
    try:
        w.plan(full=task.full)  # the writer notes that it was asked, as the one that planned did
        w.trigger(scheduler, budget, plan=task.plan)
        w.wait(scheduler)
        w.trigger(scheduler, budget)
        w.wait(scheduler)
        done, sizes = tuple(w.compactions), w.sizes
        return TaskResult(w.drain(), done, () if sizes is None else (sizes,))
    except BaseException:
        w.abandon(scheduler)
        raise


def _writer(
    table: Table,
    files: NewFiles,
    partition: bytes,
    bucket: int,
    total_buckets: int,
    live: Sequence[DataFile],
    indexes: Sequence[IndexEntry],
) -> BucketWriter:
    following = max(f.max_sequence for f in live) + 1
    spec = files.spec(partition, bucket)
    w = bucket_writer_of(table, partition, bucket, total_buckets, spec, live, following, indexes)
    assert isinstance(w, BucketWriter)
    return w


# ---- carrying out


def run_all(
    tasks: Sequence[T],
    run: Callable[[T], R],
    abort: Callable[[Sequence[R]], None],
    meter: Meter,
    *,
    threads: int = 1,
) -> list[R]:
    """The result of every task, in their order; all or nothing: `abort` deletes the files of those that were done."""
    results: list[R | None] = [None] * len(tasks)

    try:
        meter.told()
        if threads <= 1:
            for i, task in enumerate(tasks):
                results[i] = run(task)
                meter.ended(i)
                meter.told()
        else:
            _side_by_side(tasks, run, results, threads, meter)
    except BaseException:
        abort([r for r in results if r is not None])
        raise
    return [r for r in results if r is not None]


def _side_by_side(
    tasks: Sequence[T],
    run: Callable[[T], R],
    results: list[R | None],
    threads: int,
    meter: Meter,
) -> None:
    """Fill `results`, also with what was still running when something went wrong."""
    with ThreadPoolExecutor(threads, thread_name_prefix="shoal-compact") as pool:
        waiting: dict[Future[R], int] = {pool.submit(run, task): i for i, task in enumerate(tasks)}

        def take(done: set[Future[R]]) -> None:
            failed: BaseException | None = None
            for future in done:
                i = waiting.pop(future)
                if not future.cancelled():
                    failed = future.exception() or failed
                    results[i] = None if future.exception() else future.result()
                    meter.ended(i)
            if failed is not None:
                raise failed

        try:
            while waiting:
                done = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED).done
                take(done)
                meter.told()
        except BaseException:
            for future in waiting:
                future.cancel()
            for future in wait(waiting).done:  # what is under way has files to give back
                if not future.cancelled() and future.exception() is None:
                    results[waiting[future]] = future.result()
            raise


# ---- the commit


def publish(
    table: Table, commit: Commit, snapshot: Snapshot, results: Sequence[TaskResult], checkpoint: int | None
) -> Committed | None:
    """One snapshot of all results, and the upkeep after it; None without changes. `Conflict` as commits have it."""
    changes = tuple(r.changes for r in results if r.changes is not None)
    if not changes:
        return None
    identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
    committed = commit.commit(Staged(changes, snapshot.id), identifier)
    # as Java: the job that compacts a write-only table also does its upkeep
    return Keeper(table.with_options({"write-only": False})).after(committed, identifier)
