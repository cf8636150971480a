# SPDX-License-Identifier: Apache-2.0
"""Verbs that take whole partitions away: `table.overwrite()`, `truncate()` and `drop_partitions()`.

Agrees with: BatchTableCommit, AbstractFileStoreWrite.withIgnorePreviousFiles, FlinkCatalog.dropPartition (2.0.0).
Invariant: readers see the rows of before or those of after, never a mixture; files that were replaced stay until the
snapshots that hold them expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, NotFound
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.options import check
from shoal.table.commit import Commit
from shoal.table.new_files import new_uuid
from shoal.table.overwrite import Partitions, Spec
from shoal.table.partition_choice import partitions_of
from shoal.table.staged import Committed
from shoal.table.write import Write

if TYPE_CHECKING:
    from shoal.table.table import Table


def overwrite(table: Table, data: Any, partition: Spec | None, *, dynamic: bool | None) -> Committed:
    """Write rows in place of what their partitions, or the partition that is named, hold."""
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    Partitions(table, None if partition is None else [partition])  # a wrong name is told before anything is written
    with Write(table, ignore_previous=True) as w:
        w.upsert(data) if table.primary_key else w.append(data)
        staged = w.prepare(wait=True)
        committed = w.committer.overwrite(staged, BATCH_IDENTIFIER, partition, dynamic=dynamic)
        return w.keeper.after(committed, BATCH_IDENTIFIER)


def truncate(table: Table, partitions: Sequence[Spec] | None) -> Committed:
    """Take away every row, or those of some partitions."""
    return _commit(table).truncate(partitions)


def drop_partitions(table: Table, partitions: Sequence[Spec], *, missing_ok: bool) -> Committed:
    """Take away the partitions that each spec fits; `NotFound` for one that fits none."""
    commit = _commit(table)
    there = partitions_of(table.metadata.live(commit.refresh()))
    if not table.schema.partition_fields:
        raise BadRequest(f"{table.name} has no partitions", hint="t.truncate() takes every row away")
    for spec in () if missing_ok else partitions:
        wanted = Partitions(table, [spec])
        if not any(p in wanted for p in there):
            have = ", ".join(sorted(table.partition_path(p).rstrip("/") for p in there)[:5])
            raise NotFound(
                f"{table.name} has no partition {dict(spec)}",
                hint=f"there are {len(there)}, such as {have}" if there else "it is empty",
            )
    return commit.truncate(partitions)


def _commit(table: Table) -> Commit:
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    return Commit(table, new_uuid(table), table.rng)
