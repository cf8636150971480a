# SPDX-License-Identifier: Apache-2.0
"""Compaction of tables whose columns lie in several files: one file for a stretch of row ids, which stay the same.

Rows that are marked as deleted are written too, and their marks move to the new file; with
`data-evolution.compaction.rewrite-row-ids` they go, and the rows that stay get new ids. Blob files are copied record by
record where `blob-compaction.enabled` says so. Agrees with: DataEvolutionNormalCompactTask,
DataEvolutionBlobCompactTask, DataEvolutionMaterializeDeletionCompactTask, DataEvolutionCompactDeletionVectorRewriter,
DataEvolutionCompactGlobalIndexDropper (2.0.0). Invariant: a new file holds the row ids of those it replaces and their
least and greatest sequence number; batches stream, a failure deletes what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Corrupt, Unsupported
from shoal.format.datafile import APPEND, COMPACT, DataFile, Entry
from shoal.format.index_manifest import DELETE, IndexEntry
from shoal.format.snapshot import Snapshot
from shoal.lsm.evolution_pick import BLOBS, LIVE, ROWS, EvolutionPolicy, Picked, pick
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.lsm.row_ranges import anchor, first_row, is_plain, is_vector_file
from shoal.table.append_compact import Vectors, vectors_of
from shoal.table.blob_column import BlobColumn
from shoal.table.blob_writer import BlobFiles, BlobWriter, blob_size, check_blobs
from shoal.table.compact import Bucket, Compacted, TaskResult
from shoal.table.data_evolution import Files, batches, cuts, file_fields, groups, span, wide_rows
from shoal.table.deletion_writer import AppendVectors, IndexNames, discard, read_vectors
from shoal.table.new_files import NewFiles
from shoal.table.runs import BucketFiles
from shoal.table.schema_type_checks import is_blob_file
from shoal.table.staged import BucketChanges
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.table.progress import Meter
    from shoal.table.table import Table

_ROWS = 65_536
# A stretch of rows has one file, however large.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Task:
    """Files of one partition to be written together."""

    at: Bucket
    picked: Picked
    total_buckets: int
    vectors: Vectors

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.picked.files

    @property
    def rule(self) -> str:
        return {BLOBS: "blob files", LIVE: "deleted rows"}.get(self.picked.what, "row ids")

    @property
    def reason(self) -> str:
        n = len(self.files)
        match self.picked.what:
            case "blobs":
                return f"{n} blob files of column '{(self.files[0].write_cols or ('',))[0]}'"
            case "live rows":
                return f"{n} files, rows of which are deleted"
        return f"{n} files of rows that follow each other"


def policy_of(table: Table) -> EvolutionPolicy:
    """What is compacted, by the table's options."""
    o = table.options
    return EvolutionPolicy(
        min_files=o.compaction_min_file_num,
        target=o.target_file_size(False),
        blob_target=blob_size(table),
        open_cost=o.split_open_file_cost,
        blobs=bool(o.get("blob-compaction.enabled")),
        new_ids=o.deletion_vectors and bool(o.get("data-evolution.compaction.rewrite-row-ids")),
    )


def tasks_of(table: Table, snapshot: Snapshot, live: Sequence[Entry]) -> Iterator[Task]:
    """What there is to compact among these live entries of a snapshot."""
    policy, files = policy_of(table), NewFiles(table)
    partitions: dict[tuple[bytes, int], list[Entry]] = {}
    for e in live:
        if is_vector_file(e.file.file_name):
            raise Unsupported(
                f"{table.name}: {e.file.file_name} holds vectors apart from their rows: such tables are read, not "
                "compacted",
                hint="CALL sys.compact in Flink or Spark does it",
            )
        partitions.setdefault((e.partition, e.bucket), []).append(e)
    today = {f.id for f in table.schema.fields if is_blob_file(f.type)}

    def blob_field(f: DataFile) -> int | None:
        held = _blob_field(table, f).id
        return held if held in today else None

    held = vectors_of(table, snapshot)
    for (partition, bucket), entries in partitions.items():
        vectors = held.get((partition, bucket), Vectors())
        deleted = {name: d.cardinality for name, d in vectors.deletions.items()}
        at = Bucket(table, partition, bucket, _whole(files.spec(partition, bucket)))
        for picked in pick([e.file for e in entries], policy, blob_field, deleted):
            yield Task(at, picked, entries[0].total_buckets, vectors)


def _whole(spec: FileSpec) -> FileSpec:
    return replace(spec, target_size=_NO_LIMIT, target_rows=None)


def _blob_field(table: Table, f: DataFile) -> Field:
    """The column that a blob file holds, as it was when the file was written."""
    fields = file_fields(f, table.file_schema(f.schema_id))
    if f.write_cols is None or len(fields) != 1:
        raise Corrupt(f"{f.file_name} does not say which column it holds", hint="its manifest entry is damaged")
    return fields[0]


# ---- one task


def result_of(task: Task, meter: Meter | None = None) -> TaskResult:
    """Carry a task out. The deletion vectors of its files are left to `settled`, which sees all tasks."""
    task = replace(task, at=replace(task.at, meter=meter))
    done = task.at.table.metrics.compaction.run(lambda: _carry_out(task))
    changes = BucketChanges(
        task.at.partition, task.at.bucket, task.total_buckets, compact_before=done.before, compact_after=done.after
    )
    return TaskResult(changes, (done,), (BucketSizes(0, 0, done.input_bytes, done.output_bytes),))


def _carry_out(task: Task) -> Compacted:
    at, files = task.at, task.files
    started = at.table.clock.monotonic()
    written = {ROWS: _rows, BLOBS: _blobs, LIVE: _live}[task.picked.what](task)
    return Compacted(
        files, tuple(written), 0, task.reason,
        bytes_read=sum(f.file_size for f in files), bytes_written=sum(f.file_size for f in written),
        seconds=at.table.clock.monotonic() - started,
    )  # fmt: skip


def _rows(task: Task) -> list[DataFile]:
    """All rows, deleted ones too, in one file. Java's says that rows were appended, whoever wrote it."""
    at = task.at
    fields = [f for f in at.table.schema.fields if not is_blob_file(f.type)]
    columns = None if len(fields) == len(at.table.schema.fields) else fields
    size = sum(f.file_size for f in task.files)
    writer = RollingWriter(at.spec, source=APPEND, expected_bytes=size, columns=columns)
    try:
        opened = _opened(at)
        for group in groups(task.files):
            for batch in batches(group, fields, opened, rows=wide_rows(group, at.table.memory)):
                writer.write(batch)
        return _numbered(task, writer.close())
    except BaseException:
        writer.abort()
        raise


def _blobs(task: Task) -> list[DataFile]:
    """The records of one column, the newest of each row, in one file."""
    at, files = task.at, task.files
    held = _blob_field(at.table, files[0]).id
    field = next(f for f in at.table.schema.fields if f.id == held)
    first = min(map(first_row, files))
    total = max(first_row(f) + f.row_count for f in files) - first
    column = BlobColumn(field, files, first, total, lambda f: at.table.file_at(at.partition, at.bucket, f))
    out = BlobFiles(at.table.name, at.spec, field.name, _NO_LIMIT, source=COMPACT)
    try:
        for start, stop in cuts(total, _ROWS, [column]):
            out.copy(column.records(start, stop))
        return _numbered(task, out.close())
    except BaseException:
        out.abort()
        raise


def _live(task: Task) -> list[DataFile]:
    """The rows that are not deleted, all columns of them; the commit gives them row ids."""
    at = task.at
    check_blobs(at.table)
    blobs = [f for f in at.table.schema.fields if is_blob_file(f.type)]
    size = sum(f.file_size for f in task.files)
    writer: RollingWriter | BlobWriter
    if blobs:
        writer = BlobWriter(at.table.name, at.spec, blobs, _NO_LIMIT, 0, size)
    else:
        writer = RollingWriter(at.spec, source=APPEND, expected_bytes=size)
    opened, deletions = _opened(at), task.vectors.deletions
    vectors = BucketFiles(at.table, at.partition, at.bucket, ())
    try:
        for group in groups(task.files):
            held = anchor(group)
            deletion = None if held is None else deletions.get(held.file_name)
            deleted = None if deletion is None else vectors.vector(deletion)
            rows = wide_rows(group, at.table.memory)
            for batch in batches(group, at.table.schema.fields, opened, rows=rows, deleted=deleted):
                writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _opened(at: Bucket) -> Files:
    def opened(file: DataFile, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        return BucketFiles(at.table, at.partition, at.bucket, fields, meter=at.meter).batches((file,), threads=True)

    return Files(opened, lambda f: at.table.file_at(at.partition, at.bucket, f), at.table.file_schema)


def _numbered(task: Task, written: Sequence[DataFile]) -> list[DataFile]:
    """The one new file with the row ids and the sequence numbers of the old ones."""
    (new,) = written
    files = task.files
    first = min(map(first_row, files))
    if first + new.row_count != max(first_row(f) + f.row_count for f in files):
        raise Corrupt(
            f"{task.at.table.name}: {new.row_count} rows from row {first} on were read from {files[0].file_name} and "
            "those beside it, which say otherwise",
            hint="a file was removed by hand; restore it",
        )
    low, high = min(f.min_sequence for f in files), max(f.max_sequence for f in files)
    return [new._replace(first_row_id=first, min_sequence=low, max_sequence=high)]


# ---- what goes with all tasks


def settled(
    table: Table, newest: Snapshot | None, tasks: Sequence[Task], results: Sequence[TaskResult]
) -> list[TaskResult]:
    """The results, and what their commit changes besides: deletion vectors move, indexes over old row ids go.

    `newest` is the newest snapshot now: an index that was built meanwhile goes as well.
    """
    out = list(results)
    made: list[IndexEntry] = []
    try:
        for partition, mine in _by_partition(tasks, results).items():
            task = mine[0][0]
            new, old = _moved(task.at, task.vectors, mine)
            made += new
            if new or old:
                changes = BucketChanges(
                    partition, task.at.bucket, task.total_buckets,
                    compact_new_indexes=tuple(new), compact_deleted_indexes=tuple(old),
                )  # fmt: skip
                out.append(TaskResult(changes, ()))
        out += _without_indexes(table, newest, {t.at.partition for t in tasks if t.picked.what == LIVE})
    except BaseException:
        discard(table, made)
        raise
    return out


_Mine = list[tuple[Task, TaskResult]]


def _by_partition(tasks: Sequence[Task], results: Sequence[TaskResult]) -> dict[bytes, _Mine]:
    out: dict[bytes, _Mine] = {}
    for task, result in zip(tasks, results):
        if task.vectors.entries and task.picked.what != BLOBS:
            out.setdefault(task.at.partition, []).append((task, result))
    return out


def _moved(at: Bucket, vectors: Vectors, mine: _Mine) -> tuple[list[IndexEntry], list[IndexEntry]]:
    """(new index entries, deleted ones): the vectors of files that went are those of the files that came."""
    index_of = vectors.index_of
    anchors: dict[str, int] = {}  # with a vector, and the row id that its positions count from
    for task, _ in mine:
        for group in groups([f for f in task.files if is_plain(f)]):
            held = anchor(group)
            if held is not None and held.file_name in index_of:
                anchors[held.file_name] = span(group)[0]
    if not anchors:
        return [], []
    touched = {index_of[name] for name in anchors}
    entries = [e for e in vectors.entries if e.file_name in touched]
    there = read_vectors(at.table, at.partition, at.bucket, entries)
    marked: dict[str, np.ndarray] = {}
    for task, result in mine:
        if task.picked.what == LIVE:
            continue
        assert result.changes is not None
        (new,) = result.changes.compact_after
        moved = [
            there[f.file_name].positions + (anchors[f.file_name] - first_row(new))
            for f in task.files
            if f.file_name in anchors
        ]
        if moved:
            marked[new.file_name] = np.concatenate(moved)
    kept = AppendVectors.restore(at.table, at.partition, at.bucket, vectors.entries)
    return kept.remove(anchors).delete_all(marked).write(IndexNames(at.table))


def _without_indexes(table: Table, newest: Snapshot | None, partitions: set[bytes]) -> Iterator[TaskResult]:
    """Global indexes know rows by ids that these partitions have no more."""
    if not partitions or newest is None or newest.index_manifest is None:
        return
    places: dict[tuple[bytes, int], list[IndexEntry]] = {}
    for e in table.metadata.index_entries(newest.index_manifest):
        if e.global_index is not None and e.partition in partitions:
            places.setdefault((e.partition, e.bucket), []).append(e._replace(kind=DELETE))
    for (partition, bucket), gone in places.items():
        yield TaskResult(BucketChanges(partition, bucket, -1, compact_deleted_indexes=tuple(gone)), ())
