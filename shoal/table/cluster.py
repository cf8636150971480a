# SPDX-License-Identifier: Apache-2.0
"""Clustering of append tables step by step: new files are sorted by `clustering.columns` into levels of larger ones.

A job does it for tables without buckets, the writers of a bucket beside their work, each lot of files chosen by
`lsm/cluster_pick.py`. Agrees with: IncrementalClusterManager, IncrementalClusterCompact, HistoryPartitionCluster,
BucketedAppendClusterManager, CoreOptions.clusteringStrategy (2.0.0), but that rows of a row-tracking table keep their
ids. Invariant: the rows of a table are the same before and after, in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from shoal.clock import local_ms
from shoal.format.datafile import DataFile, Entry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.lsm.cluster_pick import ASKED, idle_partitions, pick_cluster
from shoal.lsm.curves import ORDER, strategy
from shoal.lsm.pick import Policy
from shoal.lsm.sort import SortOrder
from shoal.lsm.spill import spill_codec
from shoal.options import Options
from shoal.table.append_compact import Sorting, Task, Vectors, vectors_of
from shoal.table.compact import Bucket
from shoal.table.new_files import NewFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_COLUMNS = "clustering.columns"
_IDLE = "clustering.history-partition.idle-to-full-sort"
_LIMIT = "clustering.history-partition.limit"


def columns_of(options: Options) -> tuple[str, ...]:
    """`clustering.columns`."""
    return cast("tuple[str, ...]", options.get(_COLUMNS) or ())


def order_of(table: Table, columns: Sequence[str], name: str) -> SortOrder:
    """The order that the options ask for, checked against the table's columns."""
    width = cast(int, table.options.get("zorder.var-length-contribution"))
    spill = spill_codec(table.options.spill_compression, table.options.spill_zstd_level)
    order = SortOrder(strategy(name, len(columns)), tuple(columns), width, spill)
    order.check(table.name, table.schema.fields)
    return order


def write_order(table: Table) -> SortOrder | None:
    """The order in which the rows of a commit are written, for tables without buckets that ask for one.

    Where clustering is incremental rows wait for it on level 0, unless `clustering.incremental.optimize-write` is set.
    """
    o = table.options
    if table.primary_key or o.bucket != -1 or not columns_of(o):
        return None
    if o.get("clustering.incremental") and not o.get("clustering.incremental.optimize-write"):
        return None
    return order_of(table, columns_of(o), cast(str, o.get("clustering.strategy")))


@dataclass(frozen=True, slots=True)
class Clustering:
    """When and how a table is clustered."""

    policy: Policy
    sorting: Sorting
    table: Table

    @classmethod
    def of(cls, table: Table) -> Clustering | None:
        """None for tables that are not clustered in compactions."""
        o = table.options
        if table.primary_key or not o.get("clustering.incremental"):
            return None
        columns = columns_of(o)
        # within a bucket Java has one way, whatever the mode
        apart = o.get("clustering.incremental.mode") == "local-sort" and o.bucket == -1
        name = ORDER if apart else cast(str, o.get("clustering.strategy"))
        return cls(table.policy, Sorting(order_of(table, columns, name), apart), table)

    def task(
        self, at: Bucket, files: Sequence[DataFile], total_buckets: int, vectors: Vectors, *, full: bool,
        reason: str = ASKED,
    ) -> Task | None:  # fmt: skip
        """What to sort next of the files of a bucket, or of a partition without buckets."""
        policy = self.policy
        if self.table.options.bucket > 0:
            highest = max((f.level for f in files), default=0)
            policy = replace(policy, num_levels=max(policy.num_levels, highest + 1))
        plan = pick_cluster(files, policy, self._done, full=full, reason=reason)
        if plan is None:
            return None
        said = f"{plan.reason}: {self.sorting.order}"
        return Task(at, plan.files, total_buckets, plan.rule, said, vectors, plan.output_level, self.sorting)

    def _done(self, file: DataFile) -> bool:
        """Whether the file was sorted by the columns of today."""
        schema = self.table.metadata.schema(file.schema_id)
        return columns_of(Options(schema.options, strict=False)) == self.sorting.order.columns


def tasks_of(
    table: Table, snapshot: Snapshot, live: pa.Table, everything: pa.Table | None, *, full: bool
) -> Iterator[Task]:
    """What there is to sort in `live`, entries of a snapshot, and why.

    Where those are chosen ones out of `everything`, partitions that nobody writes to any more are sorted in full.
    """
    clustering = Clustering.of(table)
    assert clustering is not None
    files, held = NewFiles(table), vectors_of(table, snapshot)

    def task(place: tuple[bytes, int], entries: Sequence[Entry], full: bool, reason: str) -> Iterator[Task]:
        at = Bucket(table, *place, files.spec(*place))
        found = clustering.task(
            at, [e.file for e in entries], entries[0].total_buckets, held.get(place, Vectors()), full=full,
            reason=reason,
        )  # fmt: skip
        if found is not None:
            yield found

    chosen = _places(live)
    for place, entries in chosen.items():
        yield from task(place, entries, full, ASKED)
    idle_ms = cast("int | None", table.options.get(_IDLE))
    if everything is None or idle_ms is None or table.options.bucket > 0:
        return
    others = {partition: entries for (partition, _), entries in _places(everything).items()}
    before = local_ms(table.clock, table.clock.now_ms() - idle_ms)
    by_files = {p: [e.file for e in entries] for p, entries in others.items()}
    limit = max(0, cast(int, table.options.get(_LIMIT)))
    for partition in idle_partitions(by_files, clustering.policy, before, (p for p, _ in chosen), limit):
        entries = others[partition]
        yield from task((partition, entries[0].bucket), entries, True, "no new file for long, not yet sorted in full")


def _places(live: pa.Table) -> dict[tuple[bytes, int], list[Entry]]:
    out: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries_of(live):
        out.setdefault((e.partition, e.bucket), []).append(e)
    return out
