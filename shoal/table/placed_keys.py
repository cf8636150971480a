# SPDX-License-Identifier: Apache-2.0
"""What a writer knew of the places of keys when it gave its rows their buckets, held against what others did since.

With dynamic buckets and with keys that change their partition, a bucket is right only as long as nobody else places
the same key. Java asks for one writer at a time and puts a key into two buckets otherwise; here the later of two gets a
`Conflict`, and its rows are to be written again. Invariant: compactions and dropped partitions are no reason.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Conflict, NotFound
from shoal.format.hash_index import INDEX_TYPE
from shoal.format.snapshot import Snapshot

if TYPE_CHECKING:
    from shoal.table.table import Table

_HINT = "one writer at a time for a partition with dynamic buckets; write the rows again"


@dataclass(frozen=True, slots=True)
class PlacedKeys:
    """Where rows were placed by. Either the hash indexes of their partitions, or all keys up to a snapshot."""

    partitions: frozenset[bytes] = frozenset()
    hash_files: frozenset[str] = frozenset()
    """Every hash index file of these partitions that was read, or written since."""
    keys_until: int | None = None


def joined(parts: Collection[PlacedKeys | None], name: str) -> PlacedKeys | None:
    """What several writers of one checkpoint knew; no two may have placed keys of one partition."""
    known = [p for p in parts if p is not None]
    if not known:
        return None
    partitions = frozenset[bytes]().union(*(p.partitions for p in known))
    each = [p.keys_until for p in known if p.keys_until is not None]
    if len(partitions) < sum(len(p.partitions) for p in known) or len(each) > 1:
        raise Conflict(f"{name}: two writers placed keys of the same partition in one checkpoint", hint=_HINT)
    return PlacedKeys(
        partitions, frozenset[str]().union(*(p.hash_files for p in known)), min(each, default=None)
    )  # fmt: skip


def check(table: Table, placed: PlacedKeys, latest: Snapshot, user: str, mine: Collection[int], since: int = 0) -> None:
    """Raise when others have placed keys that `placed` does not know.

    `mine` are snapshots of this committer, those up to `since` were looked at before.
    """
    metadata = table.metadata
    if placed.partitions and latest.index_manifest is not None:
        for e in metadata.index_entries(latest.index_manifest):
            if e.index_type == INDEX_TYPE and e.partition in placed.partitions and e.file_name not in placed.hash_files:
                raise Conflict(
                    f"{table.name}: another writer gave keys of {table.partition_path(e.partition) or 'the table'} "
                    f"their buckets first (hash index {e.file_name} of bucket {e.bucket} is new)",
                    hint=_HINT,
                )
    if placed.keys_until is None:
        return
    for i in range(max(placed.keys_until, since) + 1, latest.id + 1):
        if i in mine:
            continue
        try:
            snap = latest if i == latest.id else metadata.snapshot(i)
            if snap.commit_user == user or snap.commit_kind == "COMPACT":
                continue
            adds = any(m.added for m in metadata.delta(snap))
        except NotFound as err:
            raise Conflict(
                f"{table.name}: keys were placed by snapshot {placed.keys_until}, and what others did has expired "
                f"({err.message})",
                hint=_HINT,
            ) from err
        if adds:
            raise Conflict(
                f"{table.name}: {snap.commit_user} wrote snapshot {i} after the keys of these rows had been looked up",
                hint=_HINT,
            )
