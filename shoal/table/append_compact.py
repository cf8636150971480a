# SPDX-License-Identifier: Apache-2.0
"""Compaction of tables without a primary key: files read one after the other and written as fewer, larger ones.

A `Task` says which files become one, `carry_out` does it, `tasks_of` are those of the dedicated job. With a `Sorting`
(see `cluster`) rows are sorted on the way, else they keep their order. Rows that a deletion vector marks are left out
and their vectors forgotten; rows of a row-tracking table take their ids and sequence numbers with them. Agrees
with: AppendCompactTask, AppendTableCompactor, BaseAppendFileStoreWrite.compactRewrite and clusterRewrite,
RowDataFileSequenceNumberTracker (2.0.0). Invariant: nothing is visible until a commit says so, and a failure deletes
what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.errors import NotFound
from shoal.format.datafile import COMPACT, DataFile, Entry
from shoal.format.deletion_vectors import INDEX_TYPE
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.schema import SEQUENCE_NUMBER
from shoal.format.snapshot import Snapshot
from shoal.lsm.append_pick import AppendPolicy, Waiting, append_policy, pick_full, pick_next, pick_round, worth
from shoal.lsm.cluster_pick import packs
from shoal.lsm.rolling import RollingWriter
from shoal.lsm.sort import SortOrder
from shoal.table.compact import Bucket, Compacted, TaskResult
from shoal.table.deletions import Deletion
from shoal.table.new_files import NewFiles
from shoal.table.progress import Meter, in_order
from shoal.table.row_tracking import STORED, TRACKED
from shoal.table.runs import BucketFiles
from shoal.table.staged import BucketChanges
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

Files = tuple[DataFile, ...]

# Which rule takes files, and what of it holds here.
_Why = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sorting:
    """How rows are sorted on their way into new files: all together, or `apart`, a target size at a time."""

    order: SortOrder
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Files of one bucket to be written together, in the order of their rows unless they are sorted, to a level."""

    at: Bucket
    files: Files
    total_buckets: int
    rule: str
    reason: str
    vectors: Vectors
    level: int = 0
    sorting: Sorting | None = None


@dataclass(frozen=True, slots=True)
class Vectors:
    """The deletion vectors of one bucket, or of one partition of a table without buckets."""

    entries: tuple[IndexEntry, ...] = ()

    @property
    def deletions(self) -> dict[str, Deletion]:
        """Where the vector of each data file lies."""
        return {
            r.file_name: Deletion(e.file_name, e.external_path, r.offset, r.length, r.cardinality)
            for e in self.entries
            for r in e.dv_ranges or ()
        }

    @property
    def index_of(self) -> dict[str, str]:
        """The index file that holds the vector of each data file."""
        return {r.file_name: e.file_name for e in self.entries for r in e.dv_ranges or ()}


def policy_of(table: Table) -> AppendPolicy:
    """When and what an append table compacts, by its options."""
    o = table.options
    return append_policy(
        min_files=o.compaction_min_file_num,
        target=o.target_file_size(False),
        small_ratio=o.small_file_ratio,
        open_cost=o.split_open_file_cost,
        delete_ratio=o.compaction_delete_ratio,
        file_limit=o.compaction_file_limit,
        rewrite_all=o.force_rewrite_all,
        vectors=o.deletion_vectors,
    )


# ---- one task


def rewrite(task: Task, budget: Budget) -> list[DataFile]:
    """The rows of the files in new files, one file after the other or sorted; what is marked as deleted is left out."""
    groups, sorting = [task.files], task.sorting
    if sorting is not None and sorting.apart:
        groups = packs(task.files, task.at.spec.target_size)
    written: list[DataFile] = []
    try:
        for group in groups:
            written += _rewritten(task, group, budget)
    except BaseException:
        for f in written:
            task.at.spec.remove(f)
        raise
    return [f.upgraded(task.level) for f in written] if task.level else written


def _rewritten(task: Task, files: Files, budget: Budget) -> list[DataFile]:
    at, table = task.at, task.at.table
    tracked = table.options.row_tracking
    fields = [*table.schema.fields, *(TRACKED if tracked else ())]
    deletions = task.vectors.deletions

    def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        wanted = fields if columns is None else [f for f in fields if f.name in columns]
        meter = at.meter if columns is None else None
        opened = BucketFiles(table, at.partition, at.bucket, wanted, deletions=deletions, meter=meter)
        # a first look at the columns of an order is light, and each thread keeps memory of its own
        return opened.batches(files, threads=columns is None)

    writer = RollingWriter(
        at.spec, source=COMPACT, first_sequence=files[0].min_sequence, expected_bytes=sum(f.file_size for f in files),
        columns=(*table.schema.fields, *STORED) if tracked else None,
    )  # fmt: skip
    bounds = SequenceBounds()
    try:
        for batch in (
            read(None) if task.sorting is None else in_order(read, task.sorting.order, budget, at.meter, files)
        ):
            if tracked:
                bounds.add(batch)
            writer.write(batch)
        written = writer.close()
    except BaseException:
        writer.abort()
        raise
    return bounds.told(written) if tracked else written


class SequenceBounds:
    """Least and greatest sequence number of the files that batches end up in: files hold whole batches.

    Rows without one get the commit's. 0 stands for it: as least where no row has one, as greatest where any lacks it.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[int, int | None, int | None]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        if batch.num_rows:
            numbers = batch.column(SEQUENCE_NUMBER.name)
            bounds = pc.min_max(numbers)
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
            self._batches.append((batch.num_rows, low, None if numbers.null_count else high))

    def told(self, files: Sequence[DataFile]) -> list[DataFile]:
        """The files with their bounds."""
        out = []
        at, start = 0, 0  # the next batch, and the row that it starts at
        end = 0
        for f in files:
            end += f.row_count
            first = at
            while at < len(self._batches) and start < end:
                start += self._batches[at][0]
                at += 1
            here = self._batches[first:at]
            if start > end:  # a batch that two files share counts for both
                at -= 1
                start -= self._batches[at][0]
            lows = [low for _, low, _ in here if low is not None]
            highs = [high for _, _, high in here if high is not None]
            high = max(highs) if len(highs) == len(here) else 0
            out.append(f._replace(min_sequence=min(lows, default=0), max_sequence=high))
        return out


def carry_out(task: Task, budget: Budget | None = None) -> Compacted:
    """Read and write the files of a task; what a commit needs."""
    at, files = task.at, task.files
    started = at.table.clock.monotonic()
    written = rewrite(task, budget or at.table.budget())
    try:
        new, old = forget(at, task.vectors, files)
    except BaseException:
        delete_files(at, written, ())
        raise
    return Compacted(
        files, tuple(written), task.level, task.reason,
        bytes_read=sum(f.file_size for f in files), bytes_written=sum(f.file_size for f in written),
        seconds=at.table.clock.monotonic() - started, new_indexes=new, deleted_indexes=old,
    )  # fmt: skip


def forget(
    at: Bucket, vectors: Vectors, files: Sequence[DataFile]
) -> tuple[tuple[IndexEntry, ...], tuple[IndexEntry, ...]]:
    """(new index entries, those that go) once `files` are gone: their vectors go, what lay beside them is kept."""
    if not vectors.entries:
        return (), ()
    from shoal.table.deletion_writer import vectors_of

    held = vectors_of(at.table, at.partition, at.bucket, vectors.entries)
    new, old = held.remove([f.file_name for f in files]).write()
    return tuple(new), tuple(old)


def discard(at: Bucket, done: Compacted) -> None:
    """Delete the files of a result that will not be committed."""
    delete_files(at, done.after, done.new_indexes)


def delete_files(at: Bucket, files: Sequence[DataFile], indexes: Sequence[IndexEntry]) -> None:
    places = [at.table.file_at(at.partition, at.bucket, f) for f in files]
    places += [at.table.beside(at.partition, at.bucket, f, name) for f in files for name in f.extra_files]
    places += [at.table.index_at(at.partition, at.bucket, e.file_name, e.external_path) for e in indexes]
    for store, path in places:
        try:
            store.delete(path)
        except NotFound:
            continue


# ---- the dedicated job


def tasks_of(table: Table, snapshot: Snapshot, live: pa.Table, *, full: bool) -> Iterator[Task]:
    """What there is to compact in `live`, entries of a snapshot, and why.

    Buckets: with `full` as a forced compaction, else what an inline one would take. Without buckets there is one way.
    """
    policy, files = policy_of(table), NewFiles(table)
    buckets: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries_of(live):
        buckets.setdefault((e.partition, e.bucket), []).append(e)
    held = vectors_of(table, snapshot)
    for (partition, bucket), entries in buckets.items():
        at = Bucket(table, partition, bucket, files.spec(partition, bucket))
        vectors = held.get((partition, bucket), Vectors())
        live = [e.file for e in entries]
        chosen = _bucket(live, policy, vectors, full) if table.options.bucket > 0 else _partition(live, policy, vectors)
        for group, reason in chosen:
            yield Task(at, group, entries[0].total_buckets, *reason, vectors)


def vectors_of(table: Table, snapshot: Snapshot | None) -> dict[tuple[bytes, int], Vectors]:
    """The index files with deletion vectors, by partition and bucket."""
    if snapshot is None or snapshot.index_manifest is None or not table.options.deletion_vectors:
        return {}
    out: dict[tuple[bytes, int], list[IndexEntry]] = {}
    for e in table.metadata.index_entries(snapshot.index_manifest):
        if e.index_type == INDEX_TYPE:
            out.setdefault((e.partition, e.bucket), []).append(e)
    return {where: Vectors(tuple(entries)) for where, entries in out.items()}


def _bucket(
    live: Sequence[DataFile], policy: AppendPolicy, vectors: Vectors, full: bool
) -> Iterator[tuple[Files, _Why]]:
    if full:
        group = pick_full(live, policy, vectors.index_of)
        if group:
            yield group, why(group, policy, full=True)
        return
    picked, queue = pick_next(live, policy)
    while picked is not None:
        yield picked, why(picked, policy, full=False)
        picked, queue = pick_next(queue, policy)


def _partition(live: Sequence[DataFile], policy: AppendPolicy, vectors: Vectors) -> Iterator[tuple[Files, _Why]]:
    deletions = vectors.deletions
    counts = {name: d.cardinality for name, d in deletions.items()}
    index_of = vectors.index_of
    looked_at = [f for f in live if worth(f, policy, lambda name: counts.get(name, 0))]
    waiting = Waiting()
    for start in range(0, len(looked_at), policy.file_limit):
        waiting = waiting.seen(looked_at[start : start + policy.file_limit])
        groups, waiting = pick_round(waiting, policy, index_of)
        yield from ((_arrival(g), _why(g, policy, deletions)) for g in groups)


def why(group: Files, policy: AppendPolicy, *, full: bool) -> _Why:
    """(rule, reason) for files of a bucket."""
    if full:
        return "asked for", f"full compaction asked for, {sum(f.file_size < policy.enough for f in group)} small files"
    return "neighbours", f"{len(group)} neighbouring files, {policy.min_files} are enough"


def _why(group: Files, policy: AppendPolicy, deletions: Mapping[str, Deletion]) -> _Why:
    """(rule, reason) for files of a table without buckets."""
    marked = sum(f.file_name in deletions for f in group)
    if marked:
        return "deleted rows", f"{marked} of {len(group)} files have deleted rows"
    if len(group) < policy.min_files and sum(f.file_size + policy.open_cost for f in group) < 2 * policy.target:
        return "waited", f"{len(group)} small files, for which {policy.min_files} were not found"
    return "small files", f"{len(group)} small files"


def _arrival(group: Files) -> Files:
    """In the order in which the rows came, as far as files tell."""
    return tuple(sorted(group, key=lambda f: (f.creation_ms or 0, f.first_row_id or 0, f.min_sequence, f.file_name)))


def result_of(task: Task, budget: Budget | None = None, meter: Meter | None = None) -> TaskResult:
    """Carry a task out, for a job."""
    task = replace(task, at=replace(task.at, meter=meter))
    done = task.at.table.metrics.compaction.run(lambda: carry_out(task, budget))
    changes = BucketChanges(
        task.at.partition, task.at.bucket, task.total_buckets, compact_before=done.before, compact_after=done.after,
        compact_new_indexes=done.new_indexes, compact_deleted_indexes=done.deleted_indexes,
    )  # fmt: skip
    return TaskResult(changes, (done,), (BucketSizes(0, 0, done.input_bytes, done.output_bytes),))
