# SPDX-License-Identifier: Apache-2.0
"""Compaction of postponed rows: they get their buckets, go through an ordinary writer, and their old files go.

Agrees with: CompactAction.buildForPostponeBucketCompaction, PostponeBucketCompactOperator,
PostponeBucketCommittableRewriter, BucketFiles, PostponeUtils.determineBucketNum (2.0.0). Invariant: rows of one writer
are written in the order it wrote them; a partition keeps the number of buckets it has; what comes out is one
compaction, so a stream sees no row twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest
from shoal.format.datafile import DataFile, Entry
from shoal.format.manifest import entries_of
from shoal.format.schema import VALUE_KIND
from shoal.format.snapshot import Snapshot
from shoal.table.postpone_write import bucket_numbers
from shoal.table.postponed import POSTPONED, by_writer
from shoal.table.runs import BucketFiles
from shoal.table.staged import BucketChanges, Staged
from shoal.table.strict_mode import OPTION as LAST_SAFE
from shoal.table.write import Write

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.commit import Commit
    from shoal.table.table import Table

_READ_ROWS = 65_536


def postponed(table: Table, newest: Snapshot) -> dict[bytes, list[Entry]]:
    """The postponed files of each partition."""
    import pyarrow.compute as pc

    live = table.metadata.live(newest)
    found: dict[bytes, list[Entry]] = {}
    for e in entries_of(live.filter(pc.equal(live.column("bucket"), POSTPONED))):
        found.setdefault(e.partition, []).append(e)
    return found


def committing(table: Table, newest: Snapshot) -> Table:
    """The table as the committer of such a compaction sees it: nobody else may have compacted the partitions since."""
    return _with(table, {LAST_SAFE: str(newest.id)})


def into_buckets(table: Table, newest: Snapshot, commit: Commit) -> list[BucketChanges]:
    """Write the postponed rows of a snapshot into buckets; what a commit makes of it, as compactions."""
    late = postponed(table, newest)
    known, rows = bucket_numbers(table, newest)
    by_count: dict[int, list[bytes]] = {}
    for partition in late:
        count = known.get(partition) or _new_number(table, rows.get(partition, 0))
        by_count.setdefault(count, []).append(partition)
    staged: list[BucketChanges] = []
    with ExitStack() as on_failure:
        on_failure.callback(lambda: commit.abort(Staged(tuple(staged))))
        for count, partitions in by_count.items():
            with Write(_with(table, {"bucket": str(count), "write-only": "false"})) as w:
                for p in partitions:
                    for batch, kinds in _rows(table, p, [e.file for e in late[p]]):
                        w.write(batch, kinds)
                staged += w.prepare(compact="minor").changes
        on_failure.pop_all()
    changes = []
    for c in staged:
        change, unused = _as_compaction(c)
        if unused.new_files:
            commit.abort(Staged((unused,)))
        changes.append(change)
    for p, entries in late.items():
        gone = tuple(e.file for e in entries)
        changes.append(BucketChanges(p, POSTPONED, entries[0].total_buckets, compact_before=gone))
    return changes


def _with(table: Table, options: dict[str, str]) -> Table:
    return table.with_schema(replace(table.schema, options={**table.schema.options, **options}))


def _new_number(table: Table, rows: int) -> int:
    """The number of buckets of a partition that has none yet."""
    get: Any = table.options.get
    target: int | None = get("postpone.target-row-num-per-bucket")
    wanted: int = get("postpone.default-bucket-num") if target is None else target
    if wanted <= 0:
        key = "default-bucket-num" if target is None else "target-row-num-per-bucket"
        raise BadRequest(f"{table.name}: 'postpone.{key}' = {wanted} is not positive")
    return wanted if target is None else max(1, -(-rows // target))


def _rows(table: Table, partition: bytes, files: list[DataFile]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Rows and their kinds, in the order that each writer wrote them."""
    opened = BucketFiles(table, partition, POSTPONED, [*table.schema.fields, VALUE_KIND])
    for of_one in by_writer(table, files):
        for batch in opened.batches(of_one, _READ_ROWS):
            if batch.num_rows:
                yield batch.select(table.schema.names), batch.column(VALUE_KIND.name)


def _as_compaction(c: BucketChanges) -> tuple[BucketChanges, BucketChanges]:
    """(the same files as the work of a compaction alone, new files that it has merged already)."""
    merged = {f.file_name for f in c.compact_before}
    lifted = {f.file_name for f in c.compact_after}
    new = {f.file_name for f in c.new_files}
    change = BucketChanges(
        c.partition,
        c.bucket,
        c.total_buckets,
        compact_before=tuple(f for f in c.compact_before if f.file_name not in new),
        compact_after=(*(f for f in c.new_files if f.file_name not in merged), *c.compact_after),
        compact_changelog=(*c.changelog_files, *c.compact_changelog),
        compact_new_indexes=(*c.new_indexes, *c.compact_new_indexes),
        compact_deleted_indexes=(*c.deleted_indexes, *c.compact_deleted_indexes),
    )
    unused = tuple(f for f in c.new_files if f.file_name in merged and f.file_name not in lifted)
    return change, BucketChanges(c.partition, c.bucket, c.total_buckets, new_files=unused)
