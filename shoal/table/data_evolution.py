# SPDX-License-Identifier: Apache-2.0
"""Rows whose columns lie in several files: files of one range of row ids are put side by side, the newest one wins.

Agrees with: DataEvolutionSplitRead, BlobFallbackRecordReader, DataEvolutionFileStoreScan, RangeHelper (2.0.0).
Invariant: rows of a group are its row ids in order, so files are joined by position and nothing may drop a row before
the join; a filter drops whole groups only, by the bounds of the files whose columns count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shoal.errors import Corrupt
from shoal.format.blob import is_blob_file
from shoal.format.bounds import keep_bounds
from shoal.format.data_writer import ColumnBounds
from shoal.format.datafile import DataFile, Entry
from shoal.format.predicate import TRUE, Node, project
from shoal.format.schema import Schema
from shoal.format.stats import file_bounds
from shoal.format.types import Field, arrow_field, arrow_schema
from shoal.lsm.row_ranges import first_row, is_plain, is_vector_file, together
from shoal.table.blob_column import BlobColumn
from shoal.table.row_tracking import ROW_ID, TRACKED
from shoal.table.runs import UNPACKED, fitting

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.store.base import Store

Group = tuple[DataFile, ...]
# Bytes of blobs in one batch, about: values of megabytes make batches of few rows.
_BLOB_BYTES = 64 << 20


class Deleted(Protocol):
    """A deletion vector: which rows of a stretch are still there."""

    def keep(self, start: int, count: int) -> np.typing.NDArray[np.bool_]: ...


@dataclass(frozen=True)
class Files:
    """How the files of one bucket are opened.

    `open` gives the rows of a file with the columns asked for (by field id, absent ones null, the tracked ones filled),
    none left out;
    `locate` says where a file lies; `schema` gives a schema by id. `descriptors`: blobs come as references.
    """

    open: Callable[[DataFile, Sequence[Field]], Iterator[pa.RecordBatch]]
    locate: Callable[[DataFile], tuple[Store, str]]
    schema: Callable[[int], Schema]
    descriptors: bool = False


# ---- groups ----------------------------------------------------------------------------------------------


def groups(files: Sequence[DataFile]) -> list[Group]:
    """Files whose row ids overlap, together, in order of row ids.

    In a group come first the normal files, newest first, then blob files and vector files by their first row.
    """
    return [_sorted(g) for g in together(files, gap=0)]


def _sorted(group: Sequence[DataFile]) -> Group:
    normal = sorted((f for f in group if is_plain(f)), key=lambda f: -f.max_sequence)
    for f in normal[1:]:
        if (f.first_row_id, f.row_count) != (normal[0].first_row_id, normal[0].row_count):
            raise Corrupt(
                f"{f.file_name} and {normal[0].file_name} overlap in row ids, but not exactly",
                hint="files of one range of rows must have the same rows",
            )
    rest = sorted((f for f in group if not is_plain(f)), key=lambda f: (first_row(f), -f.max_sequence))
    return (*normal, *rest)


def span(group: Group) -> tuple[int, int]:
    """(first row id, number of rows) of a group."""
    first = first_row(group[0]) if is_plain(group[0]) else min(map(first_row, group))
    rows = group[0].row_count if is_plain(group[0]) else max(first_row(f) + f.row_count for f in group) - first
    return first, rows


def file_fields(file: DataFile, schema: Schema) -> tuple[Field, ...]:
    """The table's columns that a file holds."""
    if file.write_cols is None:
        return schema.fields
    return tuple(f for f in schema.fields if f.name in file.write_cols)


# ---- which file gives which column -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Columns of a group that come from the same file, or the same row of files that each have a part of the rows."""

    files: Group
    fields: tuple[Field, ...]


def sources(group: Group, fields: Sequence[Field], schema: Callable[[int], Schema]) -> list[Source]:
    """Where each column comes from; a column that no file has is in none."""
    left = list(fields)
    found = []
    for files in _layers(group, schema):
        have = {f.id for f in file_fields(files[0], schema(files[0].schema_id))}
        if is_plain(files[0]):
            have |= {f.id for f in TRACKED}  # of rows as they are now: the newest file's
        given = tuple(f for f in left if f.id in have)
        if given:
            found.append(Source(files, given))
            left = [f for f in left if f.id not in have]
    for f in left:
        if not f.type.nullable:
            raise Corrupt(
                f"column '{f.name}' is NOT NULL, but no file of rows {span(group)[0]} and on has it",
                hint="a file was removed by hand, or the column was made NOT NULL after rows were written without it",
            )
    return found


def _layers(group: Group, schema: Callable[[int], Schema]) -> list[Group]:
    """Normal files newest first, then the blob files of each field, then vector files of the same columns."""
    layers: list[Group] = [(f,) for f in group if is_plain(f)]
    parts: dict[tuple[object, ...], list[DataFile]] = {}
    for f in group:
        if is_blob_file(f.file_name):
            columns = file_fields(f, schema(f.schema_id))
            if f.write_cols is None or not columns:
                raise Corrupt(f"{f.file_name} does not say which column it holds", hint="its manifest entry is damaged")
            parts.setdefault(("blob", columns[0].id), []).append(f)
    for f in group:
        if is_vector_file(f.file_name):
            kind = f.file_name.rsplit(".", 1)[-1]
            parts.setdefault(("vector", f.schema_id, kind, tuple(sorted(f.write_cols or ()))), []).append(f)
    return layers + [tuple(files) for files in parts.values()]


# ---- rows ------------------------------------------------------------------------------------------------


def batches(
    group: Group, fields: Sequence[Field], files: Files, *, rows: int = 65_536, deleted: Deleted | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a group with these columns, in order of row ids, without those that `deleted` names."""
    import pyarrow as pa

    first, total = span(group)
    streams: list[tuple[tuple[Field, ...], _Stream]] = []
    blobs: list[tuple[Field, BlobColumn]] = []
    for s in sources(group, fields, files.schema):
        if is_blob_file(s.files[0].file_name):
            f = s.fields[0]
            blobs.append((f, BlobColumn(f, s.files, first, total, files.locate, descriptors=files.descriptors)))
        else:
            streams.append((s.fields, _Stream(s, first, total, files)))
    schema = arrow_schema(fields)
    try:
        for start, stop in cuts(total, rows, [b for _, b in blobs]):
            n = stop - start
            keep = None if deleted is None else deleted.keep(start, n)
            mask = None if keep is None or keep.all() else pa.array(keep)
            made: dict[int, pa.Array] = {}
            for given, stream in streams:
                for f, a in zip(given, stream.take(n)):
                    made[f.id] = a if mask is None else a.filter(mask)
            for f, column in blobs:
                made[f.id] = column.take(start, stop, keep)
            left = n if keep is None else int(keep.sum())
            if left:
                arrays = [made.get(f.id) for f in fields]
                yield _batch(
                    [pa.nulls(left, t) if a is None else a for a, t in zip(arrays, schema.types)], schema, left
                )
    finally:
        for _, stream in streams:
            stream.close()


def _batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    import pyarrow as pa

    if not arrays:  # rows without columns are counted all the same
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def wide_rows(group: Group, memory: int) -> int:
    """Rows of a batch of this group: their width follows the memory, as far as the sizes of files tell it."""
    return fitting(memory, UNPACKED * sum(f.file_size / max(1, f.row_count) for f in group if is_plain(f)))


def cuts(total: int, rows: int, blobs: Sequence[BlobColumn]) -> Iterator[tuple[int, int]]:
    """Stretches of at most `rows` rows and about `_BLOB_BYTES` of blobs."""
    ends = sum((b.ends for b in blobs), np.zeros(total, np.int64))
    start = 0
    while start < total:
        stop = min(start + rows, total)
        if blobs:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, min(stop, int(np.searchsorted(ends, before + _BLOB_BYTES, "right"))))
        yield start, stop
        start = stop


class _Stream:
    """Rows of one source, taken in stretches of any length."""

    def __init__(self, source: Source, first: int, total: int, files: Files) -> None:
        self._fields = source.fields
        self._name = source.files[0].file_name
        self._parts = _parts(source.files, first, total)
        self._batches = self._read(files)
        self._waiting: pa.RecordBatch | None = None

    def _read(self, files: Files) -> Iterator[pa.RecordBatch]:
        for f in self._parts:
            yield from files.open(f, self._fields)

    def take(self, n: int) -> list[pa.Array]:
        """The next `n` rows, an array for each column."""
        import pyarrow as pa

        pieces: list[pa.RecordBatch] = []
        while n:
            batch = self._waiting if self._waiting is not None else next(self._batches, None)
            if batch is None:
                raise Corrupt(
                    f"{self._name} holds fewer rows than its metadata says", hint="it is damaged; restore the file"
                )
            piece = batch.slice(0, n)
            self._waiting = batch.slice(n) if batch.num_rows > n else None
            n -= piece.num_rows
            pieces.append(piece)
        types = [arrow_field(f).type for f in self._fields]
        if not pieces:
            return [pa.nulls(0, t) for t in types]
        if len(pieces) == 1:
            return list(pieces[0].columns)
        return [pa.concat_arrays([p.column(i) for p in pieces]) for i in range(len(types))]

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _parts(files: Group, first: int, total: int) -> list[DataFile]:
    """Of vector files those that count: one after the other over all rows, a newer one hides older ones it overlaps."""
    if is_plain(files[0]):
        return list(files)
    out: list[DataFile] = []
    expected = first
    for f in files:
        if first_row(f) < expected:
            if f.max_sequence >= out[-1].max_sequence:
                raise Corrupt(
                    f"{f.file_name} and {out[-1].file_name} hold the same rows, and neither is newer",
                    hint="vector files that overlap must differ in sequence number",
                )
            continue
        if first_row(f) > expected:
            break
        out.append(f)
        expected += f.row_count
    if expected != first + total:
        raise Corrupt(
            f"no file like {files[0].file_name} holds row {expected}", hint="a file was removed by hand; restore it"
        )
    return out


# ---- pruning ---------------------------------------------------------------------------------------------


def keep_entries(entries: Sequence[Entry], schema: Callable[[int], Schema], today: Schema, node: Node) -> list[bool]:
    """For each entry whether its group may hold a row that the filter wants."""
    node = project(node, [f.name for f in (*today.fields, ROW_ID) if not f.type.is_nested])
    if node == TRUE:
        return [True] * len(entries)
    padded = [f.name for f in today.fields if f.type.root == "CHAR"]
    alive = set()
    for g in groups([e.file for e in entries]):
        if keep_bounds(node, group_bounds(g, schema, today), span(g)[1], padded):
            alive |= {id(f) for f in g}
    return [id(e.file) in alive for e in entries]


def group_bounds(group: Group, schema: Callable[[int], Schema], today: Schema) -> Mapping[str, ColumnBounds]:
    """Bounds of a group's columns by today's names, each from the newest file that has it; none where unknown."""
    first, rows = span(group)
    out = {ROW_ID.name: ColumnBounds(first, first + rows - 1, 0)}
    left = {f.id: f for f in today.fields}
    for file in group:
        fields = file_fields(file, schema(file.schema_id))
        if not is_plain(file):
            for f in fields:
                left.pop(f.id, None)
            continue
        known = file_bounds(fields, file.value_stats, file.value_stats_cols, file.file_name)
        for f in fields:
            now = left.pop(f.id, None)
            if now is not None and now.type.same_as(f.type) and f.name in known:
                out[now.name] = known[f.name]
    for f in left.values():  # in no file: null in every row
        out[f.name] = ColumnBounds(None, None, rows)
    return out
