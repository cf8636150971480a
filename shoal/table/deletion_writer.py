# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors written: which rows of data files are gone, collected and put into index files.

A table with buckets has one index file for each bucket, written whole when any vector of it changes (`BucketVectors`).
One without has many of about a size: those that a change touches are written anew (`AppendVectors`).

Agrees with: DeletionVectorsIndexFile, DeletionVectorIndexFileWriter, BucketedDvMaintainer, AppendDeleteFileMaintainer
(2.0.0). Invariant: a vector only grows, and goes when its data file does; one keeps the layout it was made with, and a
new one has that of `deletion-vectors.bitmap64`. Files of a write that failed are gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadRequest, Corrupt, ShoalError
from shoal.format import deletion_vectors, java_table
from shoal.format.deletion_vectors import INDEX_TYPE, DeletionVector
from shoal.format.index_manifest import ADD, DELETE, IndexEntry
from shoal.store.base import add_file
from shoal.table.new_files import new_uuid
from shoal.table.placement import Placement

if TYPE_CHECKING:
    from shoal.store.base import Store
    from shoal.table.table import Table

# A 32 bit vector has no room for positions from here on.
_MOST_32 = 2**31 - 1
_EMPTY = np.empty(0, np.int64)

Positions = NDArray[np.int64] | Iterable[int]
Vectors = Mapping[str, DeletionVector]


class IndexNames:
    """What the index files of one writer are called, its UUID and a counter, and where they lie."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._beside = Placement(table.store, table.places, table.options, table.rng)
        self._prefix = f"index-{new_uuid(table)}-"
        self._counter = itertools.count()

    def next(self) -> str:
        return f"{self._prefix}{next(self._counter)}"

    def place(self, partition: bytes, bucket: int, name: str) -> tuple[Store, str, str | None]:
        """(store, path in it, external path) of a new file; beside data files it follows them to external folders."""
        t = self._table
        if t.options.get("index-file-in-data-file-dir"):
            return self._beside.place(t.bucket_folder(partition, bucket), name)
        return *t.index_at(partition, bucket, name, None), None


def read_vectors(
    table: Table, partition: bytes, bucket: int, entries: Iterable[IndexEntry]
) -> dict[str, DeletionVector]:
    """The vectors of a bucket's index files by data file. Entries of other buckets and kinds are passed over."""
    out: dict[str, DeletionVector] = {}
    for e in vector_entries(entries, partition, bucket):
        out |= _read(table, e)
    return out


def vector_entries(entries: Iterable[IndexEntry], partition: bytes, bucket: int) -> list[IndexEntry]:
    """Those entries of an index manifest that hold the deletion vectors of a bucket."""
    return [e for e in entries if e.index_type == INDEX_TYPE and (e.partition, e.bucket) == (partition, bucket)]


def write_vectors(
    table: Table, partition: bytes, bucket: int, vectors: Vectors, names: IndexNames | None = None
) -> list[IndexEntry]:
    """Index files of these vectors, as entries to be added.

    With buckets this is one file, which replaces the bucket's at the commit; without vectors it is an empty one. A
    table without buckets gets files of about `deletion-vector.index-file.target-size`.
    """
    names = names or IndexNames(table)
    ordered = {n: vectors[n] for n in java_table.names_put(vectors)}
    out: list[IndexEntry] = []
    try:
        if not _unaware(table):
            out.append(_write(partition, bucket, ordered, names))
        else:
            for part in _rolled(ordered, _target_size(table)):
                out.append(_write(partition, bucket, part, names))
    except ShoalError:
        discard(table, out)
        raise
    return out


def discard(table: Table, entries: Iterable[IndexEntry]) -> None:
    """Delete index files that no commit will name."""
    for e in entries:
        store, path = table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
        store.delete(path)


def _unaware(table: Table) -> bool:
    return not table.primary_key and table.options.bucket == -1


def _target_size(table: Table) -> int:
    size = table.options.get("deletion-vector.index-file.target-size")
    assert isinstance(size, int)
    return size


def _rolled(vectors: Vectors, target: int) -> list[dict[str, DeletionVector]]:
    """Vectors for each file: one is full when it has grown beyond the target."""
    out: list[dict[str, DeletionVector]] = []
    size = target + 1
    for name, vector in vectors.items():
        if size > target:
            out.append({})
            size = 1
        out[-1][name] = vector
        size += len(deletion_vectors.encode_vector(vector))
    return out


def _write(partition: bytes, bucket: int, vectors: Vectors, names: IndexNames) -> IndexEntry:
    data, ranges = deletion_vectors.encode_file(vectors)
    name = names.next()
    store, path, external = names.place(partition, bucket, name)
    add_file(store, path, data)
    return IndexEntry(ADD, partition, bucket, INDEX_TYPE, name, len(data), len(ranges), ranges, external)


def _read(table: Table, e: IndexEntry, only: Iterable[str] | None = None) -> dict[str, DeletionVector]:
    store, path = table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
    data = store.read(path)
    if len(data) != e.file_size:
        raise Corrupt(f"{path}: {len(data)} bytes where the manifest says {e.file_size}", hint="the file is damaged")
    ranges = e.dv_ranges or ()
    if only is not None:
        wanted = set(only)
        ranges = tuple(r for r in ranges if r.file_name in wanted)
    return deletion_vectors.decode_file(data, ranges, path)


def _merged(old: DeletionVector | None, positions: NDArray[np.int64], bits64: bool, file: str) -> DeletionVector:
    """A vector with more positions; an old one keeps its layout."""
    if old is not None:
        positions, bits64 = np.union1d(old.positions, positions), old.bits64
    vector = DeletionVector.of(positions, bits64)
    if len(vector.positions) and (vector.positions[0] < 0 or (not bits64 and vector.last > _MOST_32)):
        raise BadRequest(
            f"row {int(vector.positions[0] if vector.positions[0] < 0 else vector.last)} of {file} cannot be deleted:"
            f" its deletion vector holds positions up to {_MOST_32}",
            hint="set deletion-vectors.bitmap64 to true for files of that many rows",
        )
    return vector


def _array(positions: Positions) -> NDArray[np.int64]:
    return positions if isinstance(positions, np.ndarray) else np.fromiter(positions, np.int64)


@dataclass(frozen=True, slots=True)
class BucketVectors:
    """The deletion vectors of one bucket. A change gives a new value; `write` makes the bucket's next file."""

    table: Table
    partition: bytes
    bucket: int
    vectors: Vectors = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def restore(cls, table: Table, partition: bytes, bucket: int, entries: Iterable[IndexEntry]) -> BucketVectors:
        """Those that the entries of an index manifest name."""
        return cls(table, partition, bucket, read_vectors(table, partition, bucket, entries))

    def get(self, file: str) -> DeletionVector | None:
        return self.vectors.get(file)

    def delete(self, file: str, positions: Positions) -> BucketVectors:
        """With more rows of a data file deleted; rows that were deleted before change nothing."""
        return self.delete_all({file: positions})

    def delete_all(self, deleted: Mapping[str, Positions]) -> BucketVectors:
        """The same for several data files at once."""
        bits64 = _bits64(self.table)
        new = {}
        for file, positions in deleted.items():
            old = self.vectors.get(file)
            vector = _merged(old, _array(positions), bits64, file)
            if vector.cardinality > (old.cardinality if old is not None else 0):
                new[file] = vector
        return replace(self, vectors={**self.vectors, **new}, changed=True) if new else self

    def remove(self, files: Iterable[str]) -> BucketVectors:
        """Without the vectors of data files that are gone."""
        gone = set(files) & self.vectors.keys()
        if not gone:
            return self
        return replace(self, vectors={n: v for n, v in self.vectors.items() if n not in gone}, changed=True)

    def write(self, names: IndexNames | None = None) -> tuple[list[IndexEntry], list[IndexEntry]]:
        """(new index entries, deleted ones); none when nothing changed.

        A bucket's new file replaces the one before without naming it, so there is never a deleted one.
        """
        if not self.changed:
            return [], []
        return write_vectors(self.table, self.partition, self.bucket, self.vectors, names), []

    def written(self) -> BucketVectors:
        """The same vectors, all of them in a file."""
        return replace(self, changed=False)


@dataclass(frozen=True, slots=True)
class AppendVectors:
    """The deletion vectors of one partition of a table without buckets; index files are read when they are needed.

    Each index file belongs to one of these values at most, so that no two write the same vectors anew.
    """

    table: Table
    partition: bytes
    bucket: int
    entries: tuple[IndexEntry, ...] = ()
    """The index files there are."""
    deleted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Rows deleted since, by data file."""
    gone: frozenset[str] = frozenset()
    """Data files that are gone."""

    @classmethod
    def restore(cls, table: Table, partition: bytes, bucket: int, entries: Iterable[IndexEntry]) -> AppendVectors:
        """Those that the entries of an index manifest name."""
        return cls(table, partition, bucket, tuple(vector_entries(entries, partition, bucket)))

    def get(self, file: str) -> DeletionVector | None:
        """What is deleted of a data file now."""
        if file in self.gone:
            return None
        old = self._old([file]).get(file)
        more = self.deleted.get(file)
        return old if more is None else _merged(old, more, _bits64(self.table), file)

    def delete(self, file: str, positions: Positions) -> AppendVectors:
        """With more rows of a data file deleted."""
        return self.delete_all({file: positions})

    def delete_all(self, deleted: Mapping[str, Positions]) -> AppendVectors:
        """The same for several data files at once."""
        new = {f: np.union1d(self.deleted.get(f, _EMPTY), _array(p)) for f, p in deleted.items()}
        return replace(self, deleted={**self.deleted, **{f: p for f, p in new.items() if len(p)}})

    def remove(self, files: Iterable[str]) -> AppendVectors:
        """Without the vectors of data files that are gone."""
        gone = set(files)
        return replace(self, gone=self.gone | gone, deleted={n: p for n, p in self.deleted.items() if n not in gone})

    def write(self, names: IndexNames | None = None) -> tuple[list[IndexEntry], list[IndexEntry]]:
        """(new index entries, deleted ones): index files with a vector that changed are replaced."""
        names = names or IndexNames(self.table)
        touched = [e for e in self._walk() if any(self._changes(r.file_name) for r in e.dv_ranges or ())]
        old = self._old(self.deleted)
        bits64 = _bits64(self.table)
        new: list[IndexEntry] = []
        try:
            for e in touched:
                kept = [r.file_name for r in e.dv_ranges or () if not self._changes(r.file_name)]
                new += self._written(_read(self.table, e, kept) if kept else {}, names)
            changed = {f: _merged(old.get(f), p, bits64, f) for f, p in self.deleted.items()}
            new += self._written(changed, names)
        except ShoalError:
            discard(self.table, new)
            raise
        return new, [e._replace(kind=DELETE) for e in touched]

    def _changes(self, file: str) -> bool:
        return file in self.deleted or file in self.gone

    def _walk(self) -> Sequence[IndexEntry]:
        by_name = {e.file_name: e for e in self.entries}
        return [by_name[n] for n in java_table.names_computed(list(by_name))]

    def _old(self, files: Iterable[str]) -> dict[str, DeletionVector]:
        wanted = set(files)
        out: dict[str, DeletionVector] = {}
        for e in self.entries:
            here = wanted.intersection(r.file_name for r in e.dv_ranges or ())
            if here:
                out |= _read(self.table, e, here)
        return out

    def _written(self, vectors: Vectors, names: IndexNames) -> list[IndexEntry]:
        return write_vectors(self.table, self.partition, self.bucket, vectors, names) if vectors else []


def _bits64(table: Table) -> bool:
    return bool(table.options.get("deletion-vectors.bitmap64"))


def vectors_of(table: Table, partition: bytes, bucket: int, entries: Iterable[Any]) -> BucketVectors | AppendVectors:
    """The vectors of a bucket in the form that the table keeps them."""
    kind = AppendVectors if _unaware(table) else BucketVectors
    return kind.restore(table, partition, bucket, entries)
