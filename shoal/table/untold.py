# SPDX-License-Identifier: Apache-2.0
"""Changes that the changelog has not told yet: which files they wait in, and the compaction that tells them.

With `changelog-producer` `lookup` a file of level 0 waits, with `full-compaction` one below the highest level. Whoever
takes such files away in an OVERWRITE snapshot, which has no changelog, takes the changes from everybody who follows the
table. Java does: RescaleAction, SortCompactAction (2.0.0). Invariant: rows are the same before and after; a change is
told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.format.datafile import Entry
from shoal.format.snapshot import Snapshot
from shoal.table.commit import Commit
from shoal.table.compact_job import bucket_tasks, publish, run_all, run_bucket
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.postponed import POSTPONED
from shoal.table.progress import Meter, Tell
from shoal.table.staged import Staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from shoal.table.compact import TaskResult
    from shoal.table.table import Table


def tells_late(table: Table) -> bool:
    """Whether compactions make the changelog."""
    return bool(table.primary_key) and table.options.changelog_producer in ("lookup", "full-compaction")


def untold(table: Table, entries: Iterable[Entry]) -> int:
    """How many of these files wait for a compaction that tells what they changed."""
    if not tells_late(table):
        return 0
    lookup = table.options.changelog_producer == "lookup"
    least = 1 if lookup else table.policy.num_levels - 1
    return sum(e.file.level < least for e in entries)


def tell(table: Table, snapshot: Snapshot, live: pa.Table, progress: Tell | None = None) -> int | None:
    """Compact what waits in the buckets of `live`, entries of the snapshot; the snapshot that tells it.

    `Conflict` when somebody else compacted these files meanwhile: nothing has happened then.
    """
    given = {"write-only": "false", "lookup-compact": "radical"}
    if table.options.bucket == POSTPONED:
        given["bucket"] = "1"  # what counts here is that buckets are real and compact
    real = table.with_schema(replace(table.schema, options={**table.schema.options, **given}))
    tasks = tuple(bucket_tasks(real, snapshot, live, full=table.options.changelog_producer == "full-compaction"))
    commit = Commit(table, new_uuid(table), table.rng)
    files, budget = NewFiles(real), table.budget()
    meter = Meter([t.plan.files for t in tasks], table.clock.monotonic, progress)

    def abort(results: Sequence[TaskResult]) -> None:
        commit.abort(Staged(tuple(r.changes for r in results if r.changes is not None), snapshot.id))

    results = run_all(tasks, lambda t: run_bucket(real, files, t, budget, meter.listening), abort, meter)
    committed = publish(real, commit, snapshot, results, None)
    return committed.snapshots[-1] if committed is not None and committed.snapshots else None
