# SPDX-License-Identifier: Apache-2.0
"""The metadata of one data file, as a manifest entry carries it, and the entry itself.

Agrees with: DataFileMeta, ManifestEntry, FileEntry.Identifier (2.0.0). Invariant: an upgrade (a level change)
keeps everything but `level`; ADD and DELETE match by `Entry.identity`, never by name alone.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.format.varint import encode_nullable_longs, nullable_longs

ADD, DELETE = 0, 1
APPEND, COMPACT = 0, 1

# An empty BinaryRow with its arity prefix: the keys of append files and the bounds of "no statistics".
EMPTY_ROW = bytes(12)


NullCounts = tuple[int | None, ...] | None

# Tuples, not dataclasses: a plan makes tens of thousands of these, and a tuple is made eight times faster.


class Stats(NamedTuple):
    """Column bounds of a file: two BinaryRows with arity prefix, and the null counts in their Avro form.

    Null counts stay encoded until somebody asks: planning never does, and a commit writes them back as they are.
    """

    min_values: bytes = EMPTY_ROW
    max_values: bytes = EMPTY_ROW
    encoded_null_counts: bytes | None = b"\0"

    @classmethod
    def of(cls, min_values: bytes, max_values: bytes, null_counts: NullCounts) -> Stats:
        encoded = None if null_counts is None else encode_nullable_longs(null_counts)
        return cls(min_values, max_values, encoded)

    @property
    def null_counts(self) -> NullCounts:
        """A count per column, None where it is not known; None when there are none at all."""
        return None if self.encoded_null_counts is None else nullable_longs(self.encoded_null_counts)


class DataFile(NamedTuple):
    """One data or changelog file. Sizes in bytes; `creation_ms` is the writer's local wall clock read as UTC."""

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: Stats
    value_stats: Stats
    min_sequence: int
    max_sequence: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_ms: int | None = None
    delete_row_count: int | None = None
    embedded_index: bytes | None = None
    file_source: int | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None

    def upgraded(self, level: int) -> DataFile:
        """The same file at another level; nothing is rewritten."""
        return self._replace(level=level)


class Entry(NamedTuple):
    """One manifest entry: `kind` is ADD or DELETE, `partition` a BinaryRow with arity prefix."""

    kind: int
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFile

    @property
    def identity(self) -> tuple[object, ...]:
        f = self.file
        return (self.partition, self.bucket, f.level, f.file_name, f.extra_files, f.embedded_index, f.external_path)
