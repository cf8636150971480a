# SPDX-License-Identifier: Apache-2.0
"""Carrying out a compaction task: merge what overlaps, rewrite what is small, move the rest up.

Agrees with: MergeTreeCompactTask, MergeTreeCompactRewriter (2.0.0). Invariant: the files of `after` hold what the files
of `before` held, without the versions that are hidden; nothing is visible until a commit says so, and a failure
deletes what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.errors import NotFound
from shoal.format.datafile import COMPACT, DataFile
from shoal.lsm.levels import Levels
from shoal.lsm.merge import merge_runs
from shoal.lsm.pick import Plan, Policy, Task, task
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.lsm.sections import Section
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles
from shoal.table.staged import Indexes

if TYPE_CHECKING:
    from shoal.table.table import Table

Files = tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction of one bucket. Bytes are file sizes, seconds are wall time."""

    before: Files
    after: Files
    output_level: int
    reason: str
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    changelog: Files = ()
    new_indexes: Indexes = ()
    deleted_indexes: Indexes = ()

    @property
    def written(self) -> Files:
        """Files that this compaction wrote, changelog files too; upgrades wrote nothing."""
        old = {f.file_name for f in self.before}
        return (*(f for f in self.after if f.file_name not in old), *self.changelog)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where a compaction works: one bucket of a table."""

    table: Table
    partition: bytes
    bucket: int
    spec: FileSpec


def compact(at: Bucket, plan: Plan, levels: Levels, policy: Policy, budget: Budget) -> Compacted:
    """Carry out `plan`. Reads and writes data files; returns what a commit needs."""
    started = at.table.clock.monotonic()
    work = task(plan, levels, policy)
    writers: list[RollingWriter] = []
    before: list[DataFile] = []
    after: list[DataFile] = []
    try:
        for group in work.rewrites:
            writer = _rewrite(at, group, work, budget)
            writers.append(writer)
            before += [f for section in group for run in section for f in run]
            after += writer.files
    except BaseException:
        for w in writers:
            w.abort()
        raise
    written = sum(f.file_size for f in after)
    read = sum(f.file_size for f in before)
    before += work.upgrades
    after += [f.upgraded(work.output_level) for f in work.upgrades]
    seconds = at.table.clock.monotonic() - started
    return Compacted(tuple(before), tuple(after), work.output_level, plan.reason, read, written, seconds)


def _rewrite(at: Bucket, group: Sequence[Section], work: Task, budget: Budget) -> RollingWriter:
    """Merge neighbouring sections into files of the output level."""
    table = at.table
    files = BucketFiles(table, at.partition, at.bucket, (*table.schema.fields, *SYSTEM_FIELDS), recent=at.spec.recent)
    size = sum(f.file_size for section in group for run in section for f in run)
    writer = RollingWriter(at.spec, level=work.output_level, source=COMPACT, expected_bytes=size)
    columns = [*table.schema.names, *(f.name for f in SYSTEM_FIELDS)]
    try:
        for section in group:
            runs = [files.run(run) for run in section]
            merged = merge_runs(runs, table.rules, columns, budget, drop_deletes=work.drop_delete, ordered=True)
            for batch in merged:
                writer.write(batch)
        writer.close()
    except BaseException:
        writer.abort()
        raise
    return writer


def discard(at: Bucket, result: Compacted) -> None:
    """Delete the files of a result that will not be committed."""
    for f in result.written:
        try:
            at.spec.remove(f)
        except NotFound:
            continue
