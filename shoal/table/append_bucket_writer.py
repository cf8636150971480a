# SPDX-License-Identifier: Apache-2.0
"""One bucket of a table without a primary key being written, and the compaction beside it.

The same surface as `BucketWriter`. Agrees with: AppendOnlyWriter, BucketedAppendCompactManager,
BucketedAppendClusterManager (2.0.0), but for what two compactions of one checkpoint leave behind: Java's commit refuses
the file that the second one took from the first, here it never becomes visible. Invariant: rows keep their order in the
bucket, unless its table is clustered; one compaction runs at a time; without buckets nothing compacts here, a job of
its own does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.clock import Scheduler
from shoal.errors import ShoalError
from shoal.format.datafile import DataFile
from shoal.format.deletion_vectors import INDEX_TYPE
from shoal.format.index_manifest import IndexEntry
from shoal.lsm.append_pick import after, in_order, pick_full, pick_next
from shoal.lsm.rolling import FileSpec
from shoal.store.base import delete_each
from shoal.table.append_compact import Task, Vectors, carry_out, delete_files, discard, policy_of, why
from shoal.table.blob_writer import append_writer
from shoal.table.cluster import Clustering
from shoal.table.compact import Bucket, Compacted
from shoal.table.pending import Pending
from shoal.table.staged import BucketChanges, Staged, places_of
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class AppendBucketWriter:
    """Made from the bucket's live files and index files (where it compacts); fed by `flush`, emptied by `drain`."""

    def __init__(
        self,
        table: Table,
        partition: bytes,
        bucket: int,
        total_buckets: int,
        spec: FileSpec,
        live: Sequence[DataFile],
        next_sequence: int,
        indexes: Sequence[IndexEntry] = (),
    ) -> None:
        self.table = table
        self.partition = partition
        self.bucket = bucket
        self.total_buckets = total_buckets
        self.at = Bucket(table, partition, bucket, spec)
        self._compacting = self.at  # with columns that came later
        self.next_sequence = next_sequence
        self.stale = False
        self.compactions: list[Compacted] = []
        """What compactions of this checkpoint did, for reports."""
        self._sizes = (0, 0)  # of the last compaction
        self._policy = policy_of(table)
        self._compacts = table.options.bucket > 0 and not table.options.write_only
        self._clustering = Clustering.of(table) if self._compacts else None
        self._queue = in_order(live) if self._compacts else ()
        self._vectors = Vectors(tuple(e for e in indexes if e.index_type == INDEX_TYPE) if self._compacts else ())
        self._running: Future[Compacted] | None = None
        self._pending = Pending()

    @property
    def busy(self) -> bool:
        """A compaction is running, or something is staged."""
        return self._running is not None or bool(self._pending)

    @property
    def run_count(self) -> int:
        return 0

    @property
    def sizes(self) -> BucketSizes | None:
        """What is measured of a bucket that compacts: its last compaction, not its files, as in Java."""
        return BucketSizes(0, 0, *self._sizes) if self._compacts else None

    # ---- rows to files

    def take_sequences(self, count: int) -> int:
        """Reserve `count` sequence numbers; the first one."""
        first = self.next_sequence
        self.next_sequence += count
        return first

    def flush(self, batches: Iterable[pa.RecordBatch], first_sequence: int, expected_bytes: int) -> list[DataFile]:
        """Write rows to new files, in their order. May run beside other buckets' flushes."""
        writer = append_writer(self.table, self.at.spec, first_sequence, expected_bytes)
        try:
            for b in batches:
                writer.write(b)
        except BaseException:
            writer.abort()
            raise
        return self.numbered(writer.close())

    def numbered(self, files: Sequence[DataFile]) -> list[DataFile]:
        """With row tracking rows get the commit's sequence number where files count from 0: every file does then."""
        if not self.table.options.row_tracking:
            return list(files)
        return [f._replace(min_sequence=0, max_sequence=f.row_count - 1) for f in files]

    def add(
        self,
        files: Sequence[DataFile],
        changelog: Sequence[DataFile] = (),
        new_indexes: Sequence[IndexEntry] = (),
        deleted_indexes: Sequence[IndexEntry] = (),
    ) -> None:
        """Stage what rows became. Append tables have no changelog."""
        assert not changelog
        self._pending.add(files, (), new_indexes, deleted_indexes)
        if self._compacts:
            self._queue = in_order((*self._queue, *files))

    # ---- compaction

    def brake(self, scheduler: Scheduler, *, at_commit: bool) -> None:
        """Reads of append tables merge nothing, so a writer never waits for its compaction."""

    def collect(self) -> None:
        """Take in the running compaction if it has finished. Raises what made it fail."""
        if self._running is None or not self._running.done():
            return
        finished, self._running = self._running, None
        result = finished.result()
        self.compactions.append(result)
        pending = self._pending
        outputs = {f.file_name for f in pending.compact_after}
        passing = [f for f in result.before if f.file_name in outputs]
        # outputs of a compaction of this same checkpoint never become visible
        delete_files(self.at, passing, pending.compact_new_indexes if result.new_indexes else ())
        gone = {f.file_name for f in passing}
        pending.compact_after = [f for f in pending.compact_after if f.file_name not in gone]
        pending.compact_before += (f for f in result.before if f.file_name not in gone)
        pending.compact_after += result.after
        if result.new_indexes:
            pending.compact_new_indexes = list(result.new_indexes)
            self._vectors = Vectors(result.new_indexes)
        if self._clustering is not None:
            taken = {f.file_name for f in result.before}
            self._queue = in_order((*(f for f in self._queue if f.file_name not in taken), *result.after))
        else:
            self._queue = in_order(after(self._queue, result.after, self._policy))

    def trigger(self, scheduler: Scheduler, budget: Budget, *, full: bool = False) -> None:
        """Start the compaction that the bucket needs, if any and if none is running."""
        if not self._compacts or self._running is not None:
            return
        task = self._next_task(full=full)
        if task is not None:

            def work() -> Compacted:
                done = carry_out(task, budget)
                self._sizes = done.input_bytes, done.output_bytes
                return done

            self._running = self.table.metrics.compaction.submit(scheduler, work)

    def _next_task(self, *, full: bool) -> Task | None:
        """What is due. Files that are taken in order leave the queue; what is clustered stays until it is done."""
        self._compacting = self._compacting.knowing(self._queue)
        if self._clustering is not None:
            return self._clustering.task(self._compacting, self._queue, self.total_buckets, self._vectors, full=full)
        if full:
            files = pick_full(self._queue, self._policy, self._vectors.index_of)
            if files is None:
                return None
            self._queue = ()
        else:
            files, self._queue = pick_next(self._queue, self._policy)
        if not files:
            return None
        return Task(self._compacting, files, self.total_buckets, *why(files, self._policy, full=full), self._vectors)

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
        self.compactions = []
        return self._pending.drain(self.partition, self.bucket, self.total_buckets) if self._pending else None

    def restage(self, changes: BucketChanges) -> None:
        """Take back what `drain` gave, here or in the writer that this one follows."""
        self._pending.restage(changes)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """What the bucket will hold, where it compacts."""
        return tuple(self._queue)

    def abandon(self, scheduler: Scheduler) -> None:
        """Drop the running compaction and everything staged, files included."""
        changes, (running, self._running) = self.drain(), (self._running, None)
        if running is not None and not running.cancel():
            try:
                if not (running.done() and running.exception()):  # one that failed has deleted its files itself
                    discard(self.at, scheduler.wait(running))
            except ShoalError:
                pass  # as above; a file that stays is one for orphan cleaning
        if changes is not None:
            delete_each(places_of(self.table, Staged((changes,))))
