# SPDX-License-Identifier: Apache-2.0
"""Keeping the list of manifests short: small ones are merged at every commit.

Agrees with: ManifestFileMerger, FileEntry.mergeEntries (2.0.0). Pure decisions over list rows; entries are loaded and
new manifests written through the two functions passed in. Invariant: the merged list has the same live files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import Corrupt
from shoal.format.datafile import ADD, DELETE, Entry
from shoal.format.manifest import ManifestMeta, encode_entries, partition_stats
from shoal.format.row import decode, order_key
from shoal.format.types import DataType


class Coded(NamedTuple):
    """An entry in its encoded form, with what a merge must know of it. Merging joins bytes, it encodes nothing."""

    kind: int
    identity: tuple[object, ...]
    partition: bytes
    bucket: int
    level: int
    schema_id: int
    rows: tuple[int, int] | None  # first and last row id, where the file has them
    data: bytes


def coded(entries: Sequence[Entry]) -> list[Coded]:
    out = []
    for e, data in zip(entries, encode_entries(entries)):
        f = e.file
        rows = None if f.first_row_id is None else (f.first_row_id, f.first_row_id + f.row_count - 1)
        out.append(Coded(e.kind, e.identity, e.partition, e.bucket, f.level, f.schema_id, rows, data))
    return out


def meta_of(name: str, size: int, entries: Sequence[Coded], partition_types: Sequence[DataType]) -> ManifestMeta:
    """The list row of a manifest of these entries."""
    added = sum(e.kind == ADD for e in entries)
    buckets, levels = [e.bucket for e in entries], [e.level for e in entries]
    rows = [e.rows for e in entries if e.rows is not None]
    whole = bool(rows) and len(rows) == len(entries)
    return ManifestMeta(
        name, size, added, len(entries) - added, partition_stats([e.partition for e in entries], partition_types),
        max((e.schema_id for e in entries), default=0), min(buckets, default=None), max(buckets, default=None),
        min(levels, default=None), max(levels, default=None),
        min(r[0] for r in rows) if whole else None, max(r[1] for r in rows) if whole else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """`manifest.target-file-size`, `manifest.full-compaction-threshold-size` (bytes), `manifest.merge-min-count`."""

    target_size: int = 8 << 20
    full_threshold: int = 16 << 20
    min_count: int = 30


Load = Callable[[ManifestMeta], Sequence[Coded]]
Write = Callable[[Sequence[Coded]], list[ManifestMeta]]


def merge_manifests(
    metas: Sequence[ManifestMeta], options: MergeOptions, partition_types: Sequence[DataType], load: Load, write: Write
) -> list[ManifestMeta]:
    """The list that replaces `metas`: a full merge when enough has changed, else a merge of small neighbours."""
    full = _full(metas, options, partition_types, load, write)
    return _minor(metas, options, load, write) if full is None else full


def _minor(metas: Sequence[ManifestMeta], options: MergeOptions, load: Load, write: Write) -> list[ManifestMeta]:
    out: list[ManifestMeta] = []
    group: list[ManifestMeta] = []
    size = 0
    for m in metas:
        size += m.file_size
        group.append(m)
        if size >= options.target_size:
            out += _merged(group, load, write)
            group, size = [], 0
    return out + (_merged(group, load, write) if len(group) >= options.min_count else group)


def _merged(group: Sequence[ManifestMeta], load: Load, write: Write) -> list[ManifestMeta]:
    if len(group) == 1:
        return list(group)
    left = cancel(e for m in group for e in load(m))
    return write(left) if left else []


def cancel(entries: Iterable[Coded]) -> list[Coded]:
    """Entries in order, ADDs cancelled by later DELETEs; a DELETE without its ADD stays."""
    left: dict[tuple[object, ...], Coded] = {}
    for e in entries:
        old = left.get(e.identity)
        if e.kind == ADD:
            if old is not None:
                raise Corrupt(
                    f"file {e.identity[3]} is added twice", hint="two snapshots hold the same file; check the table"
                )
            left[e.identity] = e
        elif old is not None and old.kind == ADD:
            del left[e.identity]
        else:
            left[e.identity] = e
    return list(left.values())


def _full(
    metas: Sequence[ManifestMeta], options: MergeOptions, partition_types: Sequence[DataType], load: Load, write: Write
) -> list[ManifestMeta] | None:
    def must_change(m: ManifestMeta) -> bool:
        return m.deleted > 0 or m.file_size < options.target_size

    if sum(m.file_size for m in metas if must_change(m)) < options.full_threshold:
        return None
    deleted = {e.identity: e.partition for m in metas if m.deleted for e in load(m) if e.kind == DELETE}
    touched = set(deleted.values())
    kept = [m for m in metas if not must_change(m) and not may_hold(m, touched, partition_types)]
    rest = [m for m in metas if m not in kept]
    if len(rest) <= 1:
        return None
    entries: list[Coded] = []
    for m in rest:
        adds = [e for e in load(m) if e.kind == ADD]
        alive = [e for e in adds if e.identity not in deleted]
        if must_change(m) or len(alive) < len(adds):
            entries += alive
        else:
            kept.append(m)
    return kept + (write(entries) if entries else [])


def may_hold(m: ManifestMeta, partitions: Collection[bytes], types: Sequence[DataType]) -> bool:
    """Whether a manifest's partition bounds admit one of the partitions."""
    if not partitions or not types:
        return bool(partitions)
    low, high = decode(types, m.partition_stats.min_values), decode(types, m.partition_stats.max_values)
    nulls = m.partition_stats.null_counts or ()

    def inside(p: bytes) -> bool:
        for i, (t, v) in enumerate(zip(types, decode(types, p))):
            if v is None:
                if nulls and nulls[i] == 0:
                    return False
            elif low[i] is None or high[i] is None:
                if nulls and nulls[i] == m.added + m.deleted:
                    return False
            elif not order_key(t, low[i]) <= order_key(t, v) <= order_key(t, high[i]):
                return False
        return True

    return any(inside(p) for p in partitions)
