# SPDX-License-Identifier: Apache-2.0
"""What a commit writes into the metadata of the files it adds: row ids and sequence numbers.

Agrees with: RowTrackingCommitUtils, FileStoreCommitImpl.stampSequenceWithSnapshotId, SequenceSnapshotProperties
(2.0.0). Pure. Invariant: a row id is given once; files that a compaction wrote keep what they carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.errors import BadRequest
from shoal.format.blob import is_blob_file
from shoal.format.datafile import ADD, APPEND, Entry

MAX_SEQUENCE = "sequence.generation.max-sequence-number"


def by_partition(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of each partition together, so that a partition's row ids follow each other."""
    groups: dict[bytes, list[Entry]] = {}
    for e in entries:
        groups.setdefault(e.partition, []).append(e)
    return [e for group in groups.values() for e in group]


def tracked(entries: Sequence[Entry], snapshot_id: int, first: int) -> tuple[list[Entry], int]:
    """Entries with their row ids, the first of which is `first`, and the next id to give."""
    return _numbered([_versioned(e, snapshot_id) for e in entries], first)


def stamped(entries: Sequence[Entry], snapshot_id: int) -> list[Entry]:
    """Added files with the snapshot as sequence number of their rows (`sequence.snapshot-ordering`)."""
    return [_sequenced(e, snapshot_id, snapshot_id) if e.kind == ADD else e for e in entries]


def max_sequence(properties: Mapping[str, str], entries: Sequence[Entry], latest: int | None) -> dict[str, str]:
    """Snapshot properties with the greatest sequence number there is (`write.sequence-number-init-mode`)."""
    numbers = [e.file.max_sequence for e in entries if e.kind == ADD] + ([] if latest is None else [latest])
    return {**properties, MAX_SEQUENCE: str(max(numbers))} if numbers else dict(properties)


def dedicated(name: str) -> bool:
    """Whether a file holds one column of rows that lie in other files: blobs, vectors."""
    return is_blob_file(name) or _vector(name)


def _vector(name: str) -> bool:
    return ".vector." in name


def _sequenced(e: Entry, low: int, high: int) -> Entry:
    return e._replace(file=e.file._replace(min_sequence=low, max_sequence=high))


def _versioned(e: Entry, snapshot_id: int) -> Entry:
    """New rows get the snapshot's id as version; in a file with old rows too, it is the greatest."""
    f = e.file
    if f.min_sequence == 0:
        return _sequenced(e, snapshot_id, snapshot_id)
    return _sequenced(e, f.min_sequence, snapshot_id) if f.max_sequence == 0 else e


def _numbered(entries: Sequence[Entry], first: int) -> tuple[list[Entry], int]:
    """Row ids for new rows. Blob and vector files take those of the data file before them, field by field."""
    out: list[Entry] = []
    start = beside = vectors = first
    blobs: dict[str, int] = {}
    for e in entries:
        f = e.file
        if f.file_source is None:
            raise BadRequest(f"file {f.file_name} does not say whether a compaction wrote it: it gets no row ids")
        if f.file_source != APPEND or f.first_row_id is not None or "_ROW_ID" in (f.write_cols or ()):
            out.append(e)
            continue
        if is_blob_file(f.file_name):
            field = (f.write_cols or ("",))[0]
            given = blobs.get(field, beside)
            blobs[field] = given + f.row_count
        elif _vector(f.file_name):
            given, vectors = vectors, vectors + f.row_count
        else:
            given = beside = start
            start += f.row_count
            blobs.clear()
        if dedicated(f.file_name) and given >= start:
            raise BadRequest(f"file {f.file_name} comes before the data file whose rows it belongs to")
        out.append(e._replace(file=f._replace(first_row_id=given)))
    return out, start
