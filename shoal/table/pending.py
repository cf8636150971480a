# SPDX-License-Identifier: Apache-2.0
"""What a bucket writer has staged since its last checkpoint.

Agrees with: the increments that MergeTreeWriter and AppendOnlyWriter gather (2.0.0). Invariant: nothing here is visible
yet; every file that exists only because of it is named in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from shoal.format.datafile import DataFile
from shoal.format.index_manifest import IndexEntry
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.table.staged import BucketChanges

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Pending:
    """The fields of `BucketChanges`, growing."""

    new_files: list[DataFile] = field(default_factory=list)
    compact_before: list[DataFile] = field(default_factory=list)
    compact_after: list[DataFile] = field(default_factory=list)
    changelog_files: list[DataFile] = field(default_factory=list)
    new_indexes: list[IndexEntry] = field(default_factory=list)
    deleted_indexes: list[IndexEntry] = field(default_factory=list)
    compact_changelog: list[DataFile] = field(default_factory=list)
    compact_new_indexes: list[IndexEntry] = field(default_factory=list)
    compact_deleted_indexes: list[IndexEntry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def add(
        self,
        files: Sequence[DataFile],
        changelog: Sequence[DataFile] = (),
        new_indexes: Sequence[IndexEntry] = (),
        deleted_indexes: Sequence[IndexEntry] = (),
    ) -> None:
        """What rows became: data files, their raw changelog, index files."""
        self.new_files += files
        self.changelog_files += changelog
        self.new_indexes += new_indexes
        self.deleted_indexes += deleted_indexes

    def drain(self, partition: bytes, bucket: int, total_buckets: int) -> BucketChanges:
        """All of it, for a commit; nothing is left."""
        taken = {f.name: tuple(getattr(self, f.name)) for f in fields(self)}
        for f in fields(self):
            getattr(self, f.name).clear()
        return BucketChanges(partition, bucket, total_buckets, **taken)

    def restage(self, changes: BucketChanges) -> None:
        """Take back what `drain` gave, here or in the writer that this one follows."""
        for f in fields(self):
            getattr(self, f.name).extend(getattr(changes, f.name))


def write_files(
    spec: FileSpec, batches: Iterable[pa.RecordBatch], first_sequence: int, expected_bytes: int
) -> list[DataFile]:
    """Rows as new level-0 files; on failure none is left."""
    writer = RollingWriter(spec, first_sequence=first_sequence, expected_bytes=expected_bytes)
    try:
        for b in batches:
            writer.write(b)
    except BaseException:
        writer.abort()
        raise
    return writer.close()
