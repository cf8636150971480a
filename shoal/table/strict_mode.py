# SPDX-License-Identifier: Apache-2.0
"""`commit.strict-mode.last-safe-snapshot`: others may add rows, but not touch what this committer works on.

Agrees with: StrictModeChecker (2.0.0). Invariant: a snapshot that was found safe is not looked at again.
"""

from __future__ import annotations

from collections.abc import Collection

from shoal.errors import Conflict, NotFound
from shoal.format.snapshot import Snapshot
from shoal.table.base_files import changes_of
from shoal.table.metadata import Metadata
from shoal.table.staged import Content

OPTION = "commit.strict-mode.last-safe-snapshot"


class StrictMode:
    """What one committer has found safe so far."""

    def __init__(self, name: str, meta: Metadata, user: str, last_safe: int) -> None:
        self._name = name
        self._meta = meta
        self._user = user
        self.last_safe = last_safe

    def check(self, latest: Snapshot, content: Content) -> None:
        """Refuse the commit when another user compacted or overwrote its partitions, or added to what it overwrites."""
        partitions = content.partitions
        for i in range(max(self.last_safe + 1, 1), latest.id + 1):
            snap = latest if i == latest.id else self._meta.snapshot(i)
            if snap.commit_user == self._user:
                continue
            replaces = snap.commit_kind in ("COMPACT", "OVERWRITE")
            adds = snap.commit_kind == "APPEND" and content.kind == "OVERWRITE"
            if (replaces and self._touches(snap, partitions)) or (adds and self._adds(snap, partitions)):
                raise Conflict(
                    f"{self._name}: snapshot {i} ({snap.commit_kind}) of {snap.commit_user} changed the same partition",
                    hint=f"'{OPTION}' allows no such change after snapshot {self.last_safe}: start the job again",
                )
        self.last_safe = latest.id

    def _touches(self, snap: Snapshot, partitions: Collection[bytes]) -> bool:
        if any(True for _ in changes_of(self._meta, snap, partitions)):
            return True
        name = snap.index_manifest
        if name is None or self._index_before(snap) == name:
            return False
        return any(e.partition in partitions for e in self._meta.index_entries(name))

    def _index_before(self, snap: Snapshot) -> str | None:
        try:
            return self._meta.snapshot(snap.id - 1).index_manifest
        except NotFound:
            return None

    def _adds(self, snap: Snapshot, partitions: Collection[bytes]) -> bool:
        return any(e.bucket >= 0 for e in changes_of(self._meta, snap, partitions))
