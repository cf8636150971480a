# SPDX-License-Identifier: Apache-2.0
"""Which commits compact in full, and which buckets: `full-compaction.delta-commits`.

Agrees with: GlobalFullCompactionSinkWrite (2.0.0), which keeps the buckets in Flink's state; here a writer that starts
reads them back from its own snapshots. Invariant: a bucket that got rows from a commit user is compacted in full at
that user's next due checkpoint, also after a restart or a failed commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from shoal.errors import NotFound
from shoal.format.snapshot import BATCH_IDENTIFIER

if TYPE_CHECKING:
    from shoal.table.table import Table

Place = tuple[bytes, int]


class FullCompactions:
    """The buckets that a writer touched since its last full compaction."""

    def __init__(self, table: Table, commit_user: str | None) -> None:
        """`commit_user` is the name of a user that may have written before; None for one that is new."""
        self._table = table
        self._user = commit_user
        self._every = _every(table)
        self._places: set[Place] | None = None

    def due(self, checkpoint: int | None) -> bool:
        """Whether this checkpoint compacts in full. A batch commit does, where any does."""
        if self._every is None:
            return False
        return checkpoint is None or _is_due(checkpoint, self._every)

    def places(self) -> set[Place]:
        """Buckets to compact at the next due checkpoint, besides those that it writes to."""
        if self._every is None:
            return set()
        if self._places is None:
            self._places = set() if self._user is None else _touched(self._table, self._user, self._every)
        return self._places

    def committed(self, places: Iterable[Place], *, full: bool) -> None:
        """A commit touched these buckets; a `full` one compacted them and all before."""
        if self._every is None:
            return
        known = self.places()
        if full:
            known.clear()
        else:
            known.update(places)


def _every(table: Table) -> int | None:
    o = table.options
    if not table.primary_key or o.write_only:
        return None
    every = cast("int | None", o.get("full-compaction.delta-commits"))
    if every is None:
        return 1 if o.changelog_producer == "full-compaction" else None
    return max(1, every)


def _is_due(checkpoint: int, every: int) -> bool:
    return checkpoint % every == 0 or checkpoint == BATCH_IDENTIFIER


def _touched(table: Table, user: str, every: int) -> set[Place]:
    """Buckets that this user's snapshots added rows to since its last full compaction, as far as they are kept."""
    out: set[Place] = set()
    meta = table.metadata
    for n in reversed(meta.snapshot_ids()):
        try:
            snap = meta.snapshot(n)
        except NotFound:  # expired meanwhile
            break
        if snap.commit_user != user:
            continue
        if snap.commit_kind == "COMPACT" and _is_due(snap.commit_identifier, every):
            break
        if snap.commit_kind == "APPEND":
            for m in meta.delta(snap):
                entries = meta.entries(m)
                out.update(zip(entries.column("partition").to_pylist(), entries.column("bucket").to_pylist()))
    return {place for place in out if place[1] >= 0}
