# SPDX-License-Identifier: Apache-2.0
"""The deletion vectors of a bucket of a primary-key table, in one index file.

Agrees with: DeletionVectorsIndexFile.writeSingleFile, BucketedDvMaintainer (2.0.0). Invariant: a bucket has one such
file in a snapshot; the new one holds every vector, so it replaces the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shoal.format.datafile import ADD
from shoal.format.deletion_vectors import DeletionVector, decode_file, encode_file
from shoal.format.index_manifest import IndexEntry
from shoal.store.base import add_file
from shoal.table.new_files import new_uuid

if TYPE_CHECKING:
    from shoal.table.table import Table

INDEX_TYPE = "DELETION_VECTORS"


def write_vectors(
    table: Table, partition: bytes, bucket: int, vectors: Mapping[str, DeletionVector]
) -> list[IndexEntry]:
    """Write all vectors of a bucket; the entry that a commit adds."""
    data, ranges = encode_file(vectors)
    name = f"index-{new_uuid(table)}-0"
    store, path = table.index_at(partition, bucket, name, None)
    add_file(store, path, memoryview(data))
    return [IndexEntry(ADD, partition, bucket, INDEX_TYPE, name, len(data), len(ranges), ranges)]


def read_vectors(
    table: Table, partition: bytes, bucket: int, entries: Iterable[IndexEntry]
) -> dict[str, DeletionVector]:
    """The vectors of a bucket by data file."""
    out: dict[str, DeletionVector] = {}
    for e in entries:
        if e.index_type == INDEX_TYPE:
            store, path = table.index_at(partition, bucket, e.file_name, e.external_path)
            out |= decode_file(store.read(path), e.dv_ranges or (), path)
    return out
