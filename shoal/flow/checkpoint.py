# SPDX-License-Identifier: Apache-2.0
"""Where a job stands, kept in the properties of the snapshots that it makes.

Invariant: the position of a snapshot counts exactly the rows that this snapshot and the job's earlier ones hold, and
the store makes both visible with one create. So there is no state beside the table that a crash could tear from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, Corrupt, NotFound

if TYPE_CHECKING:
    from shoal.format.snapshot import Snapshot
    from shoal.table.table import Table

POSITION, FINGERPRINT = "shoal.job.position", "shoal.job.fingerprint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a job: its id (the commit identifier) and the source rows before it.

    `snapshot` is the snapshot that told it; 0 is the start of a job that has made none.
    """

    id: int
    position: int
    snapshot: int = 0

    def properties(self, fingerprint: str) -> Mapping[str, str]:
        """What goes into the snapshots of this checkpoint."""
        return {POSITION: str(self.position), FINGERPRINT: fingerprint}


def last_checkpoint(table: Table, job: str, fingerprint: str, start: int | None = None) -> Checkpoint:
    """The newest checkpoint of `job`, found by walking back from the newest snapshot; the start when there is none.

    Another fingerprint is refused: a position says nothing about other rows.
    """
    snap, expired = _newest_of(table, job)
    if snap is None and expired and start is None:
        raise BadRequest(
            f"{table.name} has no snapshot of job '{job}', but older snapshots have expired",
            hint="where the job stood is not known any more; say where to begin with start=, 0 for a new job",
        )
    if snap is None:
        return Checkpoint(0, start or 0)
    said = snap.properties or {}
    if POSITION not in said or FINGERPRINT not in said:
        raise BadRequest(
            f"{table.name}: snapshot {snap.id} of '{job}' has no position, so another kind of writer made it",
            hint="give the job a name that no other writer uses",
        )
    if said[FINGERPRINT] != fingerprint:
        raise BadRequest(
            f"{table.name}: job '{job}' has read [{said[FINGERPRINT]}], not [{fingerprint}]",
            hint="run it with the source it began with, or give the new source a job name of its own",
        )
    if not said[POSITION].isdecimal():
        raise Corrupt(f"{table.name}: snapshot {snap.id} says {POSITION} = {said[POSITION]!r}")
    return Checkpoint(snap.commit_identifier, int(said[POSITION]), snap.id)


def _newest_of(table: Table, job: str) -> tuple[Snapshot | None, bool]:
    """The newest snapshot of a commit user, and whether there were older ones that are gone."""
    metadata = table.metadata
    snap = metadata.latest()
    if snap is None:
        return None, False
    for snapshot_id in range(snap.id, 0, -1):
        if snapshot_id < snap.id:
            try:
                snap = metadata.snapshot(snapshot_id)
            except NotFound:
                return None, True
        if snap.commit_user == job:
            return snap, False
    return None, False
