# SPDX-License-Identifier: Apache-2.0
"""What a writer hands to a committer: files that exist but are not visible yet, and what a commit made of them.

Agrees with: CommitMessageImpl, DataIncrement, CompactIncrement, ManifestCommittable (2.0.0). Invariant: a `Staged` is a
plain value; it can be sent to another process and committed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.format.datafile import ADD, DELETE, DataFile, Entry
from shoal.format.index_manifest import IndexEntry
from shoal.table.placed_keys import PlacedKeys

if TYPE_CHECKING:
    from shoal.store.base import Store
    from shoal.table.table import Table
    from shoal.table.upkeep import Upkeep

Files = tuple[DataFile, ...]
Indexes = tuple[IndexEntry, ...]

HASHES, VECTORS = "HASH", "DELETION_VECTORS"


@dataclass(frozen=True, slots=True)
class Content:
    """What one snapshot adds and removes: its delta, its changelog, its index files."""

    kind: str
    entries: tuple[Entry, ...] = ()
    changelog: tuple[Entry, ...] = ()
    indexes: Indexes = ()

    @property
    def empty(self) -> bool:
        return not (self.entries or self.changelog or self.indexes)

    @property
    def partitions(self) -> frozenset[bytes]:
        """The partitions whose rows this changes; a hash index changes none."""
        vectors = (i.partition for i in self.indexes if i.index_type == VECTORS or i.global_index is not None)
        return frozenset(e.partition for e in self.entries) | frozenset(vectors)


@dataclass(frozen=True, slots=True)
class BucketChanges:
    """Files of one bucket that a commit adds or replaces. `partition` is a BinaryRow with arity prefix.

    The first group is what rows became (DataIncrement), the second what a compaction did (CompactIncrement). Index
    entries are of kind ADD in the `new_` and DELETE in the `deleted_` tuples.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    new_files: Files = ()
    compact_before: Files = ()
    compact_after: Files = ()
    deleted_files: Files = ()
    changelog_files: Files = ()
    new_indexes: Indexes = ()
    deleted_indexes: Indexes = ()
    compact_changelog: Files = ()
    compact_new_indexes: Indexes = ()
    compact_deleted_indexes: Indexes = ()

    @property
    def compaction(self) -> BucketChanges:
        """What a compaction did, alone."""
        return replace(self, new_files=(), deleted_files=(), changelog_files=(), new_indexes=(), deleted_indexes=())

    def entries(self, kind: int, files: Files) -> list[Entry]:
        return [Entry(kind, self.partition, self.bucket, self.total_buckets, f) for f in files]


@dataclass(frozen=True, slots=True)
class Staged:
    """Everything one checkpoint commits. `base_snapshot` is the snapshot that compactions were planned on."""

    changes: tuple[BucketChanges, ...] = ()
    base_snapshot: int = 0
    watermark: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    placed: PlacedKeys | None = None
    """What the buckets of keys were chosen by, where a table remembers them."""

    def appended(self) -> Content:
        """What rows became, as a snapshot of its own; `OVERWRITE` when that takes rows away."""
        entries: list[Entry] = []
        changelog: list[Entry] = []
        indexes: list[IndexEntry] = []
        for c in self.changes:
            entries += c.entries(ADD, c.new_files) + c.entries(DELETE, c.deleted_files)
            changelog += c.entries(ADD, c.changelog_files)
            indexes += (*c.deleted_indexes, *c.new_indexes)
        takes = any(c.deleted_files for c in self.changes) or any(i.index_type == VECTORS for i in indexes)
        return Content("OVERWRITE" if takes else "APPEND", tuple(entries), tuple(changelog), tuple(indexes))

    def compacted(self) -> Content:
        """What compactions did, as a snapshot of its own."""
        entries: list[Entry] = []
        changelog: list[Entry] = []
        indexes: list[IndexEntry] = []
        for c in self.changes:
            entries += c.entries(DELETE, c.compact_before) + c.entries(ADD, c.compact_after)
            changelog += c.entries(ADD, c.compact_changelog)
            indexes += (*c.compact_deleted_indexes, *c.compact_new_indexes)
        return Content("COMPACT", tuple(entries), tuple(changelog), tuple(indexes))

    def written(self) -> Iterator[tuple[BucketChanges, DataFile]]:
        """Files that exist only because of this value: new ones and compaction output, not upgrades."""
        for c in self.changes:
            old = {f.file_name for f in c.compact_before}
            yield from ((c, f) for f in (*c.new_files, *c.changelog_files, *c.compact_changelog))
            yield from ((c, f) for f in c.compact_after if f.file_name not in old)

    def indexes(self) -> Iterator[tuple[BucketChanges, IndexEntry]]:
        """Index files that exist only because of this value."""
        for c in self.changes:
            yield from ((c, e) for e in (*c.new_indexes, *c.compact_new_indexes))

    def encode(self) -> bytes:
        """JSON with a version, for `decode`: to send it to the process that commits, or to keep it in a checkpoint."""
        from shoal.table.staged_bytes import encode

        return encode(self)

    @staticmethod
    def decode(data: bytes | str) -> Staged:
        from shoal.table.staged_bytes import decode

        return decode(data)


def places_of(table: Table, staged: Staged, *, upgrades: bool = False) -> Iterator[tuple[Store, str]]:
    """Where the files of `staged` lie; with `upgrades` those too that were there before at another level."""
    for c, f in staged.written():
        yield table.file_at(c.partition, c.bucket, f)
        yield from (table.beside(c.partition, c.bucket, f, extra) for extra in f.extra_files)
    for c in staged.changes:
        made = new_extras(c.compact_before, c.compact_after)
        yield from (table.beside(c.partition, c.bucket, f, extra) for f, extra in made)
    if upgrades:
        for c in staged.changes:
            old = {f.file_name for f in c.compact_before}
            for f in c.compact_after:
                if f.file_name in old:
                    yield table.file_at(c.partition, c.bucket, f)
    for c, i in staged.indexes():
        yield table.index_at(c.partition, c.bucket, i.file_name, i.external_path)


def new_extras(before: Iterable[DataFile], after: Iterable[DataFile]) -> Iterator[tuple[DataFile, str]]:
    """What came to lie beside files that a compaction only moved to another level."""
    old = {f.file_name: f.extra_files for f in before}
    for f in after:
        yield from ((f, extra) for extra in f.extra_files if extra not in old.get(f.file_name, f.extra_files))


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did. No snapshots: there was nothing to commit, or (`replayed`) it had been committed before.

    `compaction_conflict` says that another writer had changed the files of a finished compaction: its result was
    dropped, the new rows were committed all the same.
    """

    snapshots: tuple[int, ...] = ()
    replayed: bool = False
    rows: int = 0
    compaction_conflict: str | None = None
    upkeep: Upkeep | None = field(default=None, repr=False)
    """What was done after the commit; its failures never fail the commit."""
    partitions: Mapping[bytes, bool] = field(default_factory=dict, repr=False)
    """The partitions it changed (BinaryRows): True where rows were written, False where files were only compacted."""

    def __str__(self) -> str:
        if self.replayed:
            return "committed before"
        if not self.snapshots:
            return "nothing to commit"
        ids = " and ".join(str(s) for s in self.snapshots)
        return f"snapshot {ids}: {self.rows:,} rows" + (
            f" ({self.compaction_conflict})" if self.compaction_conflict else ""
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "snapshots": list(self.snapshots), "replayed": self.replayed, "rows": self.rows,
            "compaction_conflict": self.compaction_conflict,
            "upkeep": None if self.upkeep is None else self.upkeep.to_dict(),
        }  # fmt: skip
