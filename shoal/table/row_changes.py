# SPDX-License-Identifier: Apache-2.0
"""Rows of a table without a primary key taken away or replaced, in one commit.

With deletion vectors the old rows are marked in index files and new ones are appended; without, the files that hold
them are written again, each in its place. Rows of a row-tracking table keep their ids; a changed one gets the sequence
number of the commit. Agrees with: PaimonRowLevelCommand, DeleteFromPaimonTableCommand, UpdatePaimonTableCommand,
PaimonSparkWriter.persistDeletionVectors (2.0.0), but that files are rewritten one by one, so that buckets keep the
order of their rows. Invariant: all is decided on one snapshot; a commit that meets a change of the same files is a
`Conflict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.format.datafile import APPEND, DataFile
from shoal.format.index_manifest import IndexEntry
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.lsm.rolling import RollingWriter
from shoal.table.append_compact import SequenceBounds, vectors_of
from shoal.table.assignments import Mask
from shoal.table.buckets import UNAWARE, partitions_of
from shoal.table.column_changes import change_columns, check_changes
from shoal.table.commit import Commit
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.row_tracking import ROW_ID, STORED, TRACKED, fill
from shoal.table.runs import BucketFiles
from shoal.table.staged import BucketChanges, Committed, Staged
from shoal.table.upkeep import Keeper, Upkeep

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import Field
    from shoal.table.scan import Scan
    from shoal.table.split import Split
    from shoal.table.table import Table
    from shoal.table.write import Write

_ROWS = 65_536


class Decision(NamedTuple):
    """What becomes of the rows of a batch: those that go, those that change, and what the latter become."""

    drop: Mask
    change: Mask
    changed: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Which rows are touched, told from few columns, and what becomes of them, told from all.

    Without `decide` every touched row goes. `moves` says that a changed row may belong to another partition or bucket.
    Of tables whose rows lie in several files only the columns `reads` are given to `decide`, and what it makes has the
    columns `writes` alone; `drops` says that rows may go.
    """

    columns: Sequence[str]
    touched: Callable[[pa.RecordBatch], Mask]
    decide: Callable[[pa.RecordBatch], Decision] | None = None
    moves: bool = False
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    drops: bool = True

    def decided(self, rows: pa.RecordBatch) -> Decision:
        """What becomes of rows."""
        if self.decide is not None:
            return self.decide(rows)
        gone = self.touched(rows)
        return Decision(gone, np.zeros(len(gone), np.bool_))


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did. A number is None where counting would have meant reading what was dropped whole."""

    table: str
    deleted: int | None = 0
    updated: int = 0
    inserted: int = 0
    snapshot: int | None = None
    upkeep: Upkeep | None = None
    """What was done after the commit; its failures never fail the change."""

    def __str__(self) -> str:
        if self.snapshot is None:
            return f"{self.table}: nothing changed"
        counts = (("deleted", self.deleted), ("updated", self.updated), ("inserted", self.inserted))
        said = ", ".join(f"{n:,} rows {what}" for what, n in counts if n)
        return f"{self.table}: snapshot {self.snapshot}, {said or 'whole partitions dropped'}"

    def to_dict(self) -> dict[str, object]:
        out = {n: getattr(self, n) for n in self.__slots__}
        out["upkeep"] = None if self.upkeep is None else self.upkeep.to_dict()
        return out


@dataclass(frozen=True, slots=True)
class By:
    """Under which commit user and identifier a change is committed: its own, unless a job has one."""

    commit_user: str | None = None
    checkpoint: int | None = None

    @property
    def identifier(self) -> int:
        return BATCH_IDENTIFIER if self.checkpoint is None else self.checkpoint

    def commit(self, table: Table) -> Commit:
        return Commit(table, self.commit_user or new_uuid(table), table.rng)

    def finished(
        self, table: Table, committed: Committed, *, deleted: int | None = 0, updated: int = 0, inserted: int = 0
    ) -> Changed:
        """What a committed change did, after the upkeep that follows every commit."""
        done = Keeper(table).after(committed, self.identifier)
        return Changed(table.name, deleted, updated, inserted, done.snapshots[-1], done.upkeep)


ALONE = By()


@dataclass(slots=True)
class Made:
    """What has been written so far."""

    changes: list[BucketChanges] = field(default_factory=list)
    deleted: int = 0
    updated: int = 0
    moved: _Moved | None = None
    """Where changed rows with ids go, if they may change their partition."""


def change_rows(
    table: Table,
    scan: Scan,
    change: Change,
    operation: str,
    insert: Callable[[Write], int] | None = None,
    by: By = ALONE,
) -> Changed:
    """Carry out a change of the rows that `scan` may find, and commit it with what `insert` adds."""
    evolution = table.data_evolution
    if evolution:
        check_changes(table, change, operation)
    commit = by.commit(table)
    writer_table = table.with_options({"write-only": True})
    made = Made(moved=_Moved(table) if table.options.row_tracking and change.moves else None)
    with writer_table.write() as w:
        try:
            if evolution:
                change_columns(scan, change, made)
            else:
                for split in scan.plan().splits:
                    _split(scan, split, change, made, w)
            if made.moved is not None:
                made.changes += made.moved.close()
                made.moved = None
            inserted = insert(w) if insert is not None else 0
            made.changes += w.prepare(wait=True).changes
        except BaseException:
            if made.moved is not None:
                made.moved.abort()
            commit.abort(Staged(tuple(made.changes)))
            raise
    if not made.changes:
        return Changed(table.name)
    base = scan.snapshot
    staged = Staged(tuple(made.changes), base.id if base is not None else 0)
    committed = commit.commit(
        staged, by.identifier, operation=operation, rows_from=base.id if evolution and base is not None else None
    )
    return by.finished(table, committed, deleted=made.deleted, updated=made.updated, inserted=inserted)


def _split(scan: Scan, split: Split, change: Change, made: Made, w: Write) -> None:
    """Change the rows of one bucket."""
    table = scan.table
    if table.options.deletion_vectors:
        _marked(scan, split, change, made, w)
        return
    total = split.entries.column("total_buckets")[0].as_py()
    for file in split.files:
        if any(change.touched(b).any() for _, b in _live(scan, split, file, change.columns)):
            gone = BucketChanges(split.partition, split.bucket, total, deleted_files=(file,))
            new = _rewritten(scan, split, file, change, made, w)
            made.changes.append(replace(gone, new_files=tuple(new)))


def _rewritten(scan: Scan, split: Split, file: DataFile, change: Change, made: Made, w: Write) -> list[DataFile]:
    """The file without the rows that go, and with those that changed in their places."""
    table = scan.table
    out = _Output(table, split.partition, split.bucket, file.min_sequence, file.file_size)
    try:
        for _, rows in _live(scan, split, file, _all_columns(table)):
            drop, update, changed = change.decided(rows)
            made.deleted += int(drop.sum())
            made.updated += int(update.sum())
            if changed is not None and change.moves:
                made.moved.write(_with_ids(rows, update, changed, table)) if made.moved else w.append(changed)
                drop, update, changed = drop | update, np.zeros(len(drop), np.bool_), None
            out.write(_kept(rows, drop, update, changed, table))
        return out.close()
    except BaseException:
        out.abort()
        raise


def _kept(
    rows: pa.RecordBatch, drop: Mask, update: Mask, changed: pa.RecordBatch | None, table: Table
) -> pa.RecordBatch:
    """The rows that stay, changed ones in their places."""
    import pyarrow as pa

    take = np.arange(rows.num_rows)
    both = pa.Table.from_batches([rows])
    if changed is not None and changed.num_rows:
        # taking from old and new rows together works for nested columns too
        take[update] = rows.num_rows + np.arange(changed.num_rows)
        both = pa.concat_tables([both, pa.Table.from_batches([_with_ids(rows, update, changed, table)], both.schema)])
    kept = both.take(pa.array(take[~drop])).combine_chunks().to_batches()
    return kept[0] if kept else rows.slice(0, 0)


def _with_ids(rows: pa.RecordBatch, update: Mask, changed: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    """Changed rows with the row ids they had, and no sequence number: the commit's is theirs."""
    import pyarrow as pa

    if not table.options.row_tracking:
        return pa.RecordBatch.from_arrays(changed.columns, schema=rows.schema)
    ids = rows.column(ROW_ID.name).filter(pa.array(update))
    return pa.RecordBatch.from_arrays([*changed.columns, ids, pa.nulls(len(ids), pa.int64())], schema=rows.schema)


def _marked(scan: Scan, split: Split, change: Change, made: Made, w: Write) -> None:
    """Mark rows as deleted, and append what changed rows become."""
    from shoal.table.deletion_writer import vectors_of as vectors

    table = scan.table
    positions: dict[str, NDArray[np.int64]] = {}
    columns = change.columns if change.decide is None else _all_columns(table)
    tracked = table.options.row_tracking
    moved = made.moved
    out = _Output(table, split.partition, split.bucket, 0, 0) if tracked and moved is None else None
    try:
        for file in split.files:
            if change.decide is not None and not any(
                change.touched(b).any() for _, b in _live(scan, split, file, change.columns)
            ):
                continue
            found = [np.empty(0, np.int64)]
            for at, rows in _live(scan, split, file, columns):
                drop, update, changed = change.decided(rows)
                made.deleted += int(drop.sum())
                made.updated += int(update.sum())
                found.append(at[drop | update])
                if changed is not None and changed.num_rows:
                    to = out or moved
                    if to is not None:
                        to.write(_with_ids(rows, update, changed, table))
                    else:
                        w.append(changed)
            marked = np.concatenate(found)
            if len(marked):
                positions[file.file_name] = marked
        new_files = out.close() if out is not None else []
    except BaseException:
        if out is not None:
            out.abort()
        raise
    if not positions:
        return
    total = split.entries.column("total_buckets")[0].as_py()
    entries: tuple[IndexEntry, ...] = ()
    held = vectors_of(table, scan.snapshot).get((split.partition, split.bucket))
    if held is not None:
        entries = held.entries
    new, old = vectors(table, split.partition, split.bucket, entries).delete_all(positions).write()
    made.changes.append(
        BucketChanges(
            split.partition, split.bucket, total, tuple(new_files), new_indexes=tuple(new), deleted_indexes=tuple(old)
        )
    )


def _all_columns(table: Table) -> list[str]:
    return [*table.schema.names, *((f.name for f in TRACKED) if table.options.row_tracking else ())]


def _live(
    scan: Scan, split: Split, file: DataFile, columns: Sequence[str]
) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """(places in the file, rows) of a file's rows that are not deleted."""
    import pyarrow as pa

    table = scan.table
    wanted: list[Field] = [table.readable[c] for c in columns or (table.schema.names[0],)]
    opened = BucketFiles(table, split.partition, split.bucket, wanted)
    deletion = split.deletions.get(file.file_name)
    vector = None if deletion is None else opened.vector(deletion)
    tracked = any(f in TRACKED for f in wanted)
    for start, batch in opened.reader(file, threads=True).positioned(_ROWS):
        rows = fill(batch, file, start) if tracked else batch
        at = np.arange(start, start + rows.num_rows, dtype=np.int64)
        if vector is not None:
            keep = vector.keep(start, rows.num_rows)
            at, rows = at[keep], rows.filter(pa.array(keep))
        if rows.num_rows:
            yield at, rows


class _Output:
    """New files of one bucket; of row-tracking tables with the ids and sequence numbers of their rows."""

    def __init__(self, table: Table, partition: bytes, bucket: int, first_sequence: int, expected: int) -> None:
        self._tracked = table.options.row_tracking
        self._bounds = SequenceBounds()
        self._fields = (*table.schema.fields, *STORED) if self._tracked else None
        spec = NewFiles(table).spec(partition, bucket)
        self._writer = RollingWriter(
            spec, source=APPEND, first_sequence=first_sequence, expected_bytes=expected, columns=self._fields
        )

    def write(self, rows: pa.RecordBatch) -> None:
        if self._tracked:
            self._bounds.add(rows)
        self._writer.write(rows)

    def close(self) -> list[DataFile]:
        files = self._writer.close()
        return self._bounds.told(files) if self._tracked else files

    def abort(self) -> None:
        self._writer.abort()


class _Moved:
    """Changed rows of a row-tracking table on their way into whichever partition they belong to now."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._outputs: dict[bytes, _Output] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        import pyarrow as pa

        if not rows.num_rows:
            return
        partitions, codes = partitions_of(self._table, pa.Table.from_batches([rows]))
        for i, p in enumerate(partitions):
            if p not in self._outputs:
                self._outputs[p] = _Output(self._table, p, 0, 0, 0)
            self._outputs[p].write(rows.filter(pa.array(codes == i)))

    def close(self) -> list[BucketChanges]:
        # a table with row ids has no buckets
        return [BucketChanges(p, 0, UNAWARE, tuple(out.close())) for p, out in self._outputs.items()]

    def abort(self) -> None:
        for out in self._outputs.values():
            out.abort()
