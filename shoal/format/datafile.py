# SPDX-License-Identifier: Apache-2.0
"""The metadata of one data file, as a manifest entry carries it, and the entry itself.

Agrees with: DataFileMeta, ManifestEntry, FileEntry.Identifier (2.0.0). Invariant: an upgrade (a level change)
keeps everything but `level`; ADD and DELETE match by `Entry.identity`, never by name alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.format.varint import encode_nullable_longs, nullable_longs

ADD, DELETE = 0, 1
APPEND, COMPACT = 0, 1

# An empty BinaryRow with its arity prefix: the keys of append files and the bounds of "no statistics".
EMPTY_ROW = bytes(12)


NullCounts = tuple[int | None, ...] | None


class Stats:
    """Column bounds of a file: two BinaryRows with arity prefix, and a null count per column (None = unknown).

    A value. Null counts that come from a manifest stay in their Avro form until somebody asks: planning never does,
    and a commit writes them back as they are.
    """

    __slots__ = ("_counts", "_encoded", "max_values", "min_values")

    def __init__(
        self, min_values: bytes = EMPTY_ROW, max_values: bytes = EMPTY_ROW, null_counts: NullCounts | bytes = ()
    ) -> None:
        self.min_values = min_values
        self.max_values = max_values
        self._encoded = null_counts if isinstance(null_counts, bytes) else None
        self._counts: NullCounts = None if isinstance(null_counts, bytes) else null_counts

    @property
    def null_counts(self) -> NullCounts:
        if self._counts is None and self._encoded is not None:
            self._counts = nullable_longs(self._encoded)
        return self._counts

    @property
    def encoded_null_counts(self) -> bytes | None:
        """The Avro form: an array of nullable longs."""
        if self._encoded is None and self._counts is not None:
            self._encoded = encode_nullable_longs(self._counts)
        return self._encoded

    def _values(self) -> tuple[bytes, bytes, NullCounts]:
        return (self.min_values, self.max_values, self.null_counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stats) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.min_values, self.max_values))

    def __repr__(self) -> str:
        return f"Stats{self._values()!r}"


@dataclass(frozen=True, slots=True)
class DataFile:
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
        return replace(self, level=level)


@dataclass(frozen=True, slots=True)
class Entry:
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
