# SPDX-License-Identifier: Apache-2.0
"""Partitions with keys or buckets written again as a whole: their rows as writers hold them, and the files they become.

Used by `rescale` and `sort_keyed`, which stream the one into a `Write` that overwrites and commit the other in place of
the partitions. Invariant: rows that no compaction has shown yet come along; nobody sees a part of what is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import BadRequest
from shoal.format.datafile import Entry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.table.postpone_compact import one_compaction
from shoal.table.rows import unnamed
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.staged import BucketChanges
from shoal.table.strict_mode import OPTION as LAST_SAFE

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.progress import Meter
    from shoal.table.table import Table


def real(live: pa.Table) -> pa.Table:
    """Entries without those of postponed rows: nobody has decided on their bucket yet."""
    import pyarrow.compute as pc

    return live.filter(pc.greater_equal(live.column("bucket"), 0)) if live.num_rows else live


def of_partitions(live: pa.Table, partitions: Collection[bytes]) -> pa.Table:
    """The entries of these partitions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = live.column("partition")
    return live.filter(pc.is_in(column, pa.array(list(partitions), column.type)))


def by_partition(live: pa.Table) -> dict[bytes, list[Entry]]:
    out: dict[bytes, list[Entry]] = {}
    for e in entries_of(live):
        out.setdefault(e.partition, []).append(e)
    return out


# Rows are taken as they are: none is a retraction, or too old.
_PLAIN = {"rowkind.field": None, "record-level.expire-time": None}


def overwriting(table: Table, snapshot: Snapshot, options: Mapping[str, str] | None = None) -> Table:
    """The table as its partitions are written again, with other options, from rows of this snapshot.

    Who changes one of the partitions from here on makes the commit a conflict. Compaction is part of the work, as rows
    may show once they are compacted only.
    """
    fixed = {"write-only": "false", LAST_SAFE: str(snapshot.id)}
    if table.options.changelog_producer != "lookup":  # whose compactions know that an overwrite tells nothing
        fixed["changelog-producer"] = "none"
    wanted = {**table.schema.options, **(options or {}), **_PLAIN, **fixed}
    return table.with_schema(replace(table.schema, options={k: v for k, v in wanted.items() if v is not None}))


def rows_of(
    source: Table, snapshot: Snapshot, entries: pa.Table, columns: Sequence[str] | None = None,
    meter: Meter | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of these files as writers hold them, those too that no compaction has shown yet.

    `BadRequest` where the table's options leave files out of reads: their rows would be lost.
    """
    scan = Scan(source, columns=columns, selected=Selected(snapshot, entries, levels=0), meter=meter)
    dropped = scan.plan().dropped
    if dropped:
        raise BadRequest(
            f"{source.name}: its options leave files out of reads ({', '.join(dropped)}), whose rows would be lost",
            hint="take these options away and try again",
        )
    for batch in scan.to_batches():
        if batch.num_rows:
            yield unnamed(batch)


def as_new(table: Table, c: BucketChanges) -> BucketChanges:
    """What became of the rows of a bucket, as new files: one snapshot, not two, between which rows might not show."""
    one = one_compaction(table, c)
    assert not one.compact_before, "a writer that overwrites knows no files of before"
    return BucketChanges(
        c.partition, c.bucket, c.total_buckets, one.compact_after, changelog_files=one.compact_changelog,
        new_indexes=one.compact_new_indexes, deleted_indexes=one.compact_deleted_indexes,
    )  # fmt: skip
