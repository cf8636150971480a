# SPDX-License-Identifier: Apache-2.0
"""One bucket being written: its level-0 files, its sequence numbers, and the compaction beside it.

Agrees with: MergeTreeWriter, MergeTreeCompactManager, ClusteringCompactManager (2.0.0). Invariant: `levels` is what the
bucket will hold once everything staged is committed; one compaction runs at a time; a finished compaction enters the
checkpoint that collects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.clock import Scheduler
from shoal.errors import BadRequest, ShoalError
from shoal.format.datafile import DataFile
from shoal.format.index_manifest import IndexEntry
from shoal.lsm.clustered_pick import ClusteredFiles, ClusteredPlan, pick_clustered
from shoal.lsm.levels import Levels
from shoal.lsm.pick import Memory, Plan, Wait, pick, should_wait
from shoal.lsm.rolling import FileSpec
from shoal.store.base import delete_each
from shoal.table.append_bucket_writer import AppendBucketWriter
from shoal.table.clustered_compact import recluster, span_of
from shoal.table.compact import Bucket, Compacted, Vectors, compact, discard
from shoal.table.deletion_writer import read_vectors, write_vectors
from shoal.table.pending import Pending, write_files
from shoal.table.record_expire import record_expire
from shoal.table.staged import BucketChanges, Staged, new_extras, places_of
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class BucketWriter:
    """Made from the bucket's live files (where it compacts); fed by `flush`, emptied by `drain`."""

    def __init__(
        self,
        table: Table,
        partition: bytes,
        bucket: int,
        total_buckets: int,
        spec: FileSpec,
        live: Sequence[DataFile],
        next_sequence: int,
        vectors: Vectors | None = None,
        *,
        overwrites: bool = False,
    ) -> None:
        self._overwrites = overwrites
        self.table = table
        self.partition = partition
        self.bucket = bucket
        self.total_buckets = total_buckets
        self.at = Bucket(table, partition, bucket, spec)
        self._compacts: Bucket | None = None  # `at` with columns that came later
        self.next_sequence = next_sequence
        self.stale = False
        # a writer that does not compact keeps no levels: they may hold thousands of runs
        compacts = bool(table.primary_key) and not table.options.write_only and bucket >= 0
        self._levels: Levels | ClusteredFiles | None = None
        if compacts and table.clustered:
            self._levels = ClusteredFiles.of(live)
        elif compacts:
            self._levels = Levels.of(live, table.policy.num_levels, table.bounds)
        self._memory = Memory.at_start(live, table.policy)
        self._running: Future[Compacted] | None = None
        self._vectors = vectors
        self._marked = False  # the vectors changed since they were written
        self.compactions: list[Compacted] = []
        """What compactions of this checkpoint did, for reports."""
        self._sizes = (0, 0)  # of the last compaction
        self._pending = Pending()

    @property
    def busy(self) -> bool:
        """A compaction is running, or something is staged."""
        return self._running is not None or self._staged

    @property
    def _staged(self) -> bool:
        return self._marked or bool(self._pending)

    @property
    def run_count(self) -> int:
        return self._levels.run_count if self._levels else 0

    @property
    def sizes(self) -> BucketSizes | None:
        """What is measured of a bucket that compacts."""
        if self._levels is None:
            return None
        return BucketSizes(len(self._levels.level0), self._levels.size, *self._sizes)

    # ---- rows to level 0

    def take_sequences(self, count: int) -> int:
        """Reserve `count` sequence numbers; the first one."""
        first = self.next_sequence
        self.next_sequence += count
        return first

    def flush(self, batches: Iterable[pa.RecordBatch], first_sequence: int, expected_bytes: int) -> list[DataFile]:
        """Write rows (sorted and folded for keyed tables) to new files. May run beside other buckets' flushes."""
        return write_files(self.at.spec, batches, first_sequence, expected_bytes)

    def add(
        self,
        files: Sequence[DataFile],
        changelog: Sequence[DataFile] = (),
        new_indexes: Sequence[IndexEntry] = (),
        deleted_indexes: Sequence[IndexEntry] = (),
    ) -> None:
        """Stage what rows became: data files, their raw changelog, index files."""
        self._pending.add(files, changelog, new_indexes, deleted_indexes)
        if self._levels is not None:
            self._levels = self._levels.apply((), files)

    # ---- compaction

    @property
    def unfinished(self) -> bool:
        """Whether the bucket still has work that lookups wait for: level-0 files, or a compaction under way."""
        return self._wait().unfinished or self._running is not None

    def brake(self, scheduler: Scheduler, *, at_commit: bool) -> None:
        """Wait for the running compaction when the bucket has more runs than it may have."""
        if self._running is None:
            return
        wait = self._wait()
        if wait.commit if at_commit else wait.flush:
            self.wait(scheduler)

    def _wait(self) -> Wait:
        if isinstance(self._levels, Levels):
            return should_wait(self._levels, self.table.policy)
        # sorted files are no runs that a read merges: they hold nobody back
        return Wait(False, False, self._levels is not None and bool(self._levels.level0))

    def collect(self) -> None:
        """Take in the running compaction if it has finished. Raises what made it fail."""
        if self._running is None or not self._running.done():
            return
        finished, self._running = self._running, None
        result = finished.result()
        assert self._levels is not None
        self._levels = self._levels.apply(result.before, result.after)
        pending = self._pending
        outputs = {f.file_name: f for f in pending.compact_after}
        kept = {f.file_name for f in result.after}
        for f in result.before:
            if f.file_name in outputs:
                # output of a compaction of this same checkpoint: it never becomes visible
                pending.compact_after.remove(outputs[f.file_name])
                moved = any(b.file_name == f.file_name for b in pending.compact_before)
                if f.file_name not in kept and not moved:
                    self.at.spec.remove(f)
                elif f.file_name not in kept:
                    self._remove_beside(f)
            else:
                pending.compact_before.append(f)
        pending.compact_after += result.after
        pending.compact_changelog += result.changelog
        self.compactions.append(result)
        if result.vectors is not None:
            self._vectors, self._marked = result.vectors, True
        gone = [f.file_name for f in result.before if f.file_name not in kept]
        self._compacting.table.lookup_files.drop(gone)
        self._compacting.table.key_files.drop(gone)

    @property
    def _compacting(self) -> Bucket:
        return self._compacts or self.at

    def _remove_beside(self, file: DataFile) -> None:
        """Delete what came to lie beside a file of before when this checkpoint moved it, which it now uses up."""
        first = [b for b in self._pending.compact_before if b.file_name == file.file_name]
        at = self.at
        delete_each(at.table.beside(at.partition, at.bucket, f, extra) for f, extra in new_extras(first, [file]))

    def trigger(
        self, scheduler: Scheduler, budget: Budget, *, full: bool = False, plan: Plan | ClusteredPlan | None = None
    ) -> None:
        """Start the compaction that the bucket needs (or `plan`), if any and if none is running."""
        if self._levels is None or self._running is not None:
            return
        levels, policy, vectors = self._levels, self.table.policy, self._vectors
        plan = self.plan(full=full) if plan is None else plan
        if plan is not None:
            chosen = plan
            self._compacts = self._compacting.knowing(levels.files)
            at = self._compacting

            def work() -> Compacted:
                if isinstance(chosen, ClusteredPlan):
                    assert isinstance(levels, ClusteredFiles)
                    done = recluster(at, chosen, levels, budget, vectors)
                else:
                    assert isinstance(levels, Levels)
                    done = compact(at, chosen, levels, policy, budget, vectors, overwrites=self._overwrites)
                self._sizes = done.input_bytes, done.output_bytes
                return done

            self._running = self.table.metrics.compaction.submit(scheduler, work)

    def plan(self, *, full: bool = False) -> Plan | ClusteredPlan | None:
        """What the bucket would compact now; None when it is healthy. Asking counts, as it does in Java."""
        if self._levels is None:
            return None
        table, levels = self.table, self._levels
        if isinstance(levels, ClusteredFiles):
            return pick_clustered(levels, self.at.spec.target_size, span_of(table), full=full)
        expire = record_expire(table) if full else None
        plan, self._memory = pick(
            levels, table.policy, self._memory, now_ms=table.local_now_ms(), hour=table.local_hour(), full=full,
            deleted_in=self._vectors or (),
            expired=[f.file_name for f in levels.files if expire.touches(table, f)] if expire else (),
        )  # fmt: skip
        return plan

    def wait(self, scheduler: Scheduler) -> None:
        """Wait for the running compaction and take it in."""
        if self._running is not None:
            try:
                scheduler.wait(self._running)
            finally:
                self.collect()  # one that failed is told once; the next checkpoint starts another

    # ---- checkpoint

    def drain(self) -> BucketChanges | None:
        """What is staged, for a commit; the writer starts its next checkpoint."""
        if not self._staged:
            return None
        if self._marked and self._vectors is not None:
            new = write_vectors(self.table, self.partition, self.bucket, self._vectors)
            # it has the marks of a commit that came to nothing too; a state that was kept may name that one's file
            self._pending.compact_new_indexes = list(new)
            self._marked = False
        self.compactions = []
        return self._pending.drain(self.partition, self.bucket, self.total_buckets)

    def restage(self, changes: BucketChanges) -> None:
        """Take back what `drain` gave, here or in the writer that this one follows."""
        self._pending.restage(changes)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """What the bucket will hold, where it compacts."""
        return tuple(self._levels.files) if self._levels else ()

    def abandon(self, scheduler: Scheduler) -> None:
        """Drop the running compaction and everything staged, files included."""
        self._marked = False
        changes, (running, self._running) = self.drain(), (self._running, None)
        if running is not None and not running.cancel():
            try:
                if not (running.done() and running.exception()):  # one that failed has deleted its files itself
                    discard(self.at, scheduler.wait(running))
            except ShoalError:
                pass  # as above; a file that stays is one for orphan cleaning
        if changes is not None:
            delete_each(places_of(self.table, Staged((changes,))))


AnyBucketWriter = BucketWriter | AppendBucketWriter


def abandon_all(writers: Iterable[AnyBucketWriter], scheduler: Scheduler) -> None:
    """`abandon` for each of them, whatever happens to the others; the first failure is raised at the end."""
    with ExitStack() as rest:
        for w in writers:
            rest.callback(w.abandon, scheduler)


def drain_all(writers: Iterable[AnyBucketWriter]) -> list[BucketChanges]:
    """What all of them have staged. When one fails, the others take back what they gave, or nobody would delete it."""
    drained: list[tuple[AnyBucketWriter, BucketChanges]] = []
    try:
        for w in writers:
            changes = w.drain()
            if changes is not None:
                drained.append((w, changes))
    except BaseException:
        for w, changes in drained:
            w.restage(changes)
        raise
    return [changes for _, changes in drained]


def compact_for_commit(
    writers: Sequence[AnyBucketWriter],
    scheduler: Scheduler,
    budget: Budget,
    *,
    wait: bool = False,
    asked: Mapping[tuple[bytes, int], str] | None = None,
) -> None:
    """What compactions do for a commit: finished ones enter it, needed ones start, some are waited for.

    `asked` are buckets that someone wants compacted, `minor` or `full`: those are waited for. So is everything with
    `wait`, with `commit.force-compact`, and on tables that look up unless `lookup-wait` is off.
    Agrees with: MergeTreeWriter.prepareCommit, StoreSinkWrite (2.0.0).
    """
    asked = asked or {}
    for w in writers:
        how = asked.get((w.partition, w.bucket))
        if how is not None and not w.stale:
            w.wait(scheduler)
            w.trigger(scheduler, budget, full=how == "full")
    for w in writers:
        o = w.table.options
        waits = wait or (w.partition, w.bucket) in asked or (o.needs_lookup and bool(o.get("lookup-wait")))
        if waits:
            w.wait(scheduler)
        else:
            w.collect()
        if not w.stale:
            w.trigger(scheduler, budget)
    for w in writers:
        o = w.table.options
        waits = wait or (w.partition, w.bucket) in asked or (o.needs_lookup and bool(o.get("lookup-wait")))
        if waits or o.force_compact:
            w.wait(scheduler)
        else:
            w.brake(scheduler, at_commit=True)


def bucket_writer_of(
    table: Table,
    partition: bytes,
    bucket: int,
    total_buckets: int,
    spec: FileSpec,
    live: Sequence[DataFile],
    next_sequence: int,
    indexes: Sequence[IndexEntry] = (),
    *,
    overwrites: bool = False,
) -> AnyBucketWriter:
    """The writer of a bucket. `live` and `indexes` are its files and index files in one snapshot, where it compacts.

    One that `overwrites` takes neither.
    """
    if not table.primary_key:
        old = ((), ()) if overwrites else (live, indexes)
        return AppendBucketWriter(table, partition, bucket, total_buckets, spec, old[0], next_sequence, old[1])
    vectors = None
    if table.options.deletion_vectors and not table.options.write_only and bucket >= 0:
        vectors = read_vectors(table, partition, bucket, () if overwrites else indexes)
    return BucketWriter(
        table, partition, bucket, total_buckets, spec, live, next_sequence, vectors, overwrites=overwrites
    )


# What makes a partition have another number of buckets.
RESCALE = "'shoal compact rescale DB.TABLE --buckets N' (t.maintain.rescale(N)) gives table and partitions one number"


def check_bucket_count(table: Table, count: int, there: set[int]) -> None:
    """A changed `bucket` must not split the keys of a partition over two layouts."""
    other = there - {count}
    if other:
        raise BadRequest(
            f"{table.name}: the partition has {sorted(other)[0]} buckets and the table's bucket option says {count}",
            hint=RESCALE,
        )
