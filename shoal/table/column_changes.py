# SPDX-License-Identifier: Apache-2.0
"""Rows of a data-evolution table changed: files with the columns that change, beside those that are there.

A range of row ids in which a row changes gets one new file, of all its rows and of the named columns only; deletes
mark rows in the vector of the range's oldest file.

Agrees with: MergeIntoPaimonDataEvolutionTable, DataEvolutionPaimonWriter,
DataEvolutionTableDataWrite, PaimonRowLevelCommand, UpdatePaimonDataEvolutionTableCommand,
DataEvolutionPartialWriteOperator, DataEvolutionDeleteOperator (2.0.0).

Invariant: all is decided on one snapshot; who wrote the same columns of the same rows meanwhile, or compacted their
range, makes the commit a `Conflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.format.datafile import APPEND, DataFile
from shoal.format.index_manifest import DELETE, IndexEntry
from shoal.format.snapshot import Snapshot
from shoal.lsm.rolling import RollingWriter
from shoal.lsm.row_ranges import anchor
from shoal.table.append_compact import vectors_of
from shoal.table.assignments import Mask
from shoal.table.blob_writer import BlobFiles, blob_size, check_blobs
from shoal.table.data_evolution import Files, Group, batches, groups, span, wide_rows
from shoal.table.new_files import NewFiles
from shoal.table.runs import BucketFiles
from shoal.table.schema_type_checks import is_blob_file
from shoal.table.staged import BucketChanges

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.deletion_vectors import DeletionVector
    from shoal.format.types import Field
    from shoal.table.row_changes import Change, Made
    from shoal.table.scan import Scan
    from shoal.table.split import Split
    from shoal.table.table import Table

# A range has one file for each column, however large.
_NO_LIMIT = 1 << 62
ACTION = "global-index.column-update-action"


def check_changes(table: Table, change: Change, operation: str) -> None:
    """What Java refuses, before anything is read."""
    parts = [c for c in change.writes if c in table.schema.partition_keys]
    if parts:
        raise Unsupported(
            f"{table.name}: {operation} of partition column '{parts[0]}' in a table with 'data-evolution.enabled'",
            hint="delete the rows and insert them again: they get new row ids",
        )
    if change.drops and not table.options.deletion_vectors:
        raise Unsupported(
            f"{table.name}: with 'data-evolution.enabled' rows are deleted by deletion vectors alone",
            hint="set 'deletion-vectors.enabled' = 'true'",
        )
    check_blobs(table)


def change_columns(scan: Scan, change: Change, made: Made) -> None:
    """Write what the change makes of the rows that `scan` may find, and stage it."""
    for split in scan.plan().splits:
        _split(scan, split, change, made)
    written = [c for c in made.changes if c.new_files]
    if written:
        gone = _indexes_to_drop(scan.table, scan.snapshot, {c.partition for c in written}, change.writes)
        for partition, bucket, total, entries in gone:
            made.changes.append(BucketChanges(partition, bucket, total, deleted_indexes=entries))


def _split(scan: Scan, split: Split, change: Change, made: Made) -> None:
    """Change the rows of one partition."""
    from shoal.table.deletion_writer import vectors_of as vectors

    table = scan.table
    total = split.entries.column("total_buckets")[0].as_py()
    new: list[DataFile] = []
    marked: dict[str, np.ndarray] = {}
    try:
        for group in groups(split.files):
            rows = _Rows(table, split, group)
            if not any(change.touched(b).any() for _, _, b in rows.live(change.columns)):
                continue
            files, gone = _changed(rows, change, made)
            new += files
            if len(gone):
                marked[rows.anchor.file_name] = gone
        entries: tuple[IndexEntry, ...] = ()
        old: list[IndexEntry] = []
        if marked:
            held = vectors_of(table, scan.snapshot).get((split.partition, split.bucket))
            there = held.entries if held is not None else ()
            added, old = vectors(table, split.partition, split.bucket, there).delete_all(marked).write()
            entries = tuple(added)
    except BaseException:
        spec = NewFiles(table).spec(split.partition, split.bucket)
        for f in new:
            spec.remove(f)
        raise
    if new or marked:
        made.changes.append(
            BucketChanges(
                split.partition, split.bucket, total, tuple(new), new_indexes=entries, deleted_indexes=tuple(old)
            )
        )


class _Rows:
    """The rows of one range of row ids, whole columns of which may be read."""

    def __init__(self, table: Table, split: Split, group: Group) -> None:
        self.table = table
        self.split = split
        self.group = group
        self.first, self.count = span(group)
        held = anchor(group)
        if held is None:
            raise BadRequest(f"{table.name}: rows {self.first} and on lie in no plain file")
        self.anchor = held

    @property
    def vector(self) -> DeletionVector | None:
        deletion = self.split.deletions.get(self.anchor.file_name)
        opened = BucketFiles(self.table, self.split.partition, self.split.bucket, ())
        return None if deletion is None else opened.vector(deletion)

    def live(self, columns: Sequence[str]) -> Iterator[tuple[int, Mask | None, pa.RecordBatch]]:
        """(place of the first row of a batch, which of its rows are still there, those)."""
        import pyarrow as pa

        vector = self.vector
        for start, rows in self.all(columns):
            keep = None if vector is None else vector.keep(start, rows.num_rows)
            yield start, keep, rows if keep is None or keep.all() else rows.filter(pa.array(keep))

    def all(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows with their places in the range, deleted ones too."""
        table, partition, bucket = self.table, self.split.partition, self.split.bucket

        def opened(file: DataFile, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
            return BucketFiles(table, partition, bucket, fields).batches((file,), threads=True)

        files = Files(opened, lambda f: table.file_at(partition, bucket, f), table.file_schema)
        fields = [table.readable[c] for c in columns or (table.schema.names[0],)]
        start = 0
        for batch in batches(self.group, fields, files, rows=wide_rows(self.group, table.memory)):
            yield start, batch
            start += batch.num_rows


def _changed(rows: _Rows, change: Change, made: Made) -> tuple[list[DataFile], np.ndarray]:
    """(files with the new columns of a range if a row changes, the places of rows that go)."""
    import pyarrow as pa

    out = _Columns(rows, [f for f in rows.table.schema.fields if f.name in change.writes])
    wanted = {*change.reads, *out.plain, *change.columns}
    names = [n for n in rows.table.readable if n in wanted]
    gone = [np.empty(0, np.int64)]
    updated = 0
    try:
        vector = rows.vector
        for start, every in rows.all(names):
            keep = np.ones(every.num_rows, np.bool_) if vector is None else vector.keep(start, every.num_rows)
            at = np.flatnonzero(keep)
            drop, update, changed = change.decided(every if len(at) == len(keep) else every.filter(pa.array(keep)))
            gone.append(start + at[drop])
            updated += int(update.sum())
            made.deleted += int(drop.sum())
            out.write(every, at[update], changed)
        files = out.close() if updated else []
    except BaseException:
        out.abort()
        raise
    if not updated:
        out.abort()
    made.updated += updated
    return files, np.concatenate(gone)


class _Columns:
    """New files with some columns of a range: one of the plain ones, and those of each blob column."""

    def __init__(self, rows: _Rows, fields: Sequence[Field]) -> None:
        table = rows.table
        blobs = [f.name for f in fields if is_blob_file(f.type)]
        plain = [f for f in fields if f.name not in blobs]
        self.plain = [f.name for f in plain]
        self._first = rows.first
        self._writer = _writer(rows, plain) if plain else None
        spec = NewFiles(table).spec(rows.split.partition, rows.split.bucket)
        self._blobs = [BlobFiles(table.name, spec, name, blob_size(table)) for name in blobs]

    def write(self, rows: pa.RecordBatch, places: np.ndarray, changed: pa.RecordBatch | None) -> None:
        """The next rows of the range; those at `places` become the changed ones."""
        if self._writer is not None:
            self._writer.write(_put(rows.select(self.plain), places, changed))
        for b in self._blobs:
            values = [] if changed is None else changed.column(b.name)
            b.write_at(values, places.tolist(), rows.num_rows)

    def close(self) -> list[DataFile]:
        """The files, with their row ids."""
        plain = self._writer.close() if self._writer is not None else []
        files = [f._replace(first_row_id=self._first) for f in plain]
        for b in self._blobs:
            at = self._first
            for f in b.close():
                files.append(f._replace(first_row_id=at))
                at += f.row_count
        return files

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        for b in self._blobs:
            b.abort()


def _writer(rows: _Rows, fields: Sequence[Field]) -> RollingWriter:
    spec = NewFiles(rows.table).spec(rows.split.partition, rows.split.bucket)
    # one file a range: its rows are those of the range, in order
    spec = replace(spec, target_size=_NO_LIMIT, target_rows=None)
    whole = len(fields) == len(rows.table.schema.fields)
    size = max(f.file_size for f in rows.group)
    return RollingWriter(spec, source=APPEND, expected_bytes=size, columns=None if whole else fields)


def _put(rows: pa.RecordBatch, places: np.ndarray, changed: pa.RecordBatch | None) -> pa.RecordBatch:
    """The rows with changed ones in their places."""
    import pyarrow as pa

    if changed is None or not changed.num_rows:
        return rows
    new = pa.RecordBatch.from_arrays([changed.column(n) for n in rows.schema.names], schema=rows.schema)
    take = np.arange(rows.num_rows)
    take[places] = rows.num_rows + np.arange(new.num_rows)
    return pa.Table.from_batches([rows, new]).take(pa.array(take)).combine_chunks().to_batches()[0]


def _indexes_to_drop(
    table: Table, snapshot: Snapshot | None, partitions: set[bytes], columns: Sequence[str]
) -> Iterator[tuple[bytes, int, int, tuple[IndexEntry, ...]]]:
    """Global indexes of changed columns, which know the old values: refused, dropped or left, as the table says."""
    action = str(table.options.get(ACTION)).upper()
    if snapshot is None or snapshot.index_manifest is None or action == "IGNORE":
        return
    ids = {table.schema.field(c).id: c for c in columns}
    for e in table.metadata.index_entries(snapshot.index_manifest):
        g = e.global_index
        if g is None or e.partition not in partitions:
            continue
        known = [ids[i] for i in (g.field_id, *(g.extra_field_ids or ())) if i in ids]
        if not known:
            continue
        if action == "THROW_ERROR":
            raise Unsupported(
                f"{table.name}: column '{known[0]}' has a global index, which would keep the old values",
                hint=f"set '{ACTION}' to DROP_PARTITION_INDEX, and build the index again",
            )
        yield e.partition, e.bucket, -1, (e._replace(kind=DELETE),)
