# SPDX-License-Identifier: Apache-2.0
"""Rows that have their sequence numbers, held against what others overwrote since.

An overwrite numbers its rows from 0, however high the numbers of what it replaces are. Rows that a writer numbered
before it, and commits after it, may then count as older than the rows it put there, and nobody would see them. Java
commits them all the same; here they get a `Conflict`, and are to be written again. Invariant: two writers that add
rows are no reason, in whichever order their numbers are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from shoal.errors import Conflict, NotFound
from shoal.format.datafile import ADD
from shoal.format.snapshot import Snapshot
from shoal.table.base_files import changes_of
from shoal.table.staged import Content

if TYPE_CHECKING:
    from shoal.table.table import Table

_HINT = "write the rows again: they are newer than the overwrite then"


class Overwrites:
    """The overwrites of others that one committer meets; it looks at each snapshot once. `mine` are its own."""

    def __init__(self, table: Table, user: str, mine: Collection[int]) -> None:
        self._meta = table.metadata
        self._user = user
        self._mine = mine
        self._found: list[Snapshot] = []
        self._from = self._until = 0  # snapshots after the one and up to the other were looked at

    def between(self, since: int, latest: Snapshot) -> list[Snapshot]:
        """Those after snapshot `since`, up to `latest`. One that has expired is none: nobody can tell what it was."""
        if not self._from <= since <= self._until <= latest.id:
            self._found, self._from, self._until = [], since, since
        for i in range(self._until + 1, latest.id + 1):
            if i in self._mine:
                continue
            try:
                snap = latest if i == latest.id else self._meta.snapshot(i)
            except NotFound:
                continue
            if snap.commit_kind == "OVERWRITE" and snap.commit_user != self._user:
                self._found.append(snap)
        self._until = latest.id
        return [s for s in self._found if s.id > since]


class NumberedRows:
    """The check of one commit through all its tries. `since` is the snapshot that numbers were taken from."""

    def __init__(self, table: Table, content: Content, since: int, overwrites: Overwrites) -> None:
        self._table = table
        self._since = since
        self._overwrites = overwrites
        self._least: dict[tuple[bytes, int], int] = {}
        o = table.options
        # elsewhere the newest row of a key is found by its values, by its commit, or later
        if content.kind == "APPEND" and table.primary_key and not (o.sequence_field or o.get(_BY_SNAPSHOT)):
            for e in content.entries:
                if e.kind == ADD and e.bucket >= 0:
                    place = e.partition, e.bucket
                    self._least[place] = min(e.file.min_sequence, self._least.get(place, e.file.min_sequence))

    def __bool__(self) -> bool:
        return bool(self._least)

    def check(self, latest: Snapshot) -> None:
        """Raise when an overwrite of another put rows with such numbers into these buckets."""
        partitions = frozenset(p for p, _ in self._least)
        for snap in self._overwrites.between(self._since, latest):
            try:
                changes = list(changes_of(self._table.metadata, snap, partitions))
            except NotFound:
                continue  # it has expired meanwhile
            for e in changes:
                least = self._least.get((e.partition, e.bucket))
                if least is not None and e.kind == ADD and e.file.max_sequence >= least:
                    raise self._conflict(snap, e.partition, e.bucket)
        self._since = latest.id

    def _conflict(self, snap: Snapshot, partition: bytes, bucket: int) -> Conflict:
        where = self._table.partition_path(partition).rstrip("/")
        return Conflict(
            f"{self._table.name}: {snap.commit_user} overwrote bucket {bucket}{f' of {where}' if where else ''} in "
            f"snapshot {snap.id}, after these rows had got their sequence numbers; they would count as the older ones",
            hint=_HINT,
        )


_BY_SNAPSHOT = "sequence.snapshot-ordering"
