# SPDX-License-Identifier: Apache-2.0
"""Partitions of a table without primary key and buckets written anew, their rows sorted; which tables can be sorted.

Those with a primary key and dynamic buckets are sorted in `sort_keyed`.

Agrees with: SortCompactAction, TableSorter, CompactProcedure (2.0.0) in what can be sorted and how; the snapshot is of
kind OVERWRITE as there. It takes away the files that were read, where Java's takes what lies there by then: rows that
come meanwhile stay, unsorted, and a change of a file that was read is a `Conflict`. Rows of a row-tracking table keep
their ids. Invariant: the rows of a partition are the same before and after, in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.budget import Budget
from shoal.errors import BadRequest
from shoal.format.datafile import Entry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.lsm.curves import STRATEGIES
from shoal.lsm.sort import SortOrder
from shoal.table import cluster
from shoal.table.append_compact import Sorting, Task, Vectors, carry_out, vectors_of
from shoal.table.compact import Bucket, TaskResult
from shoal.table.compact_choice import Choice
from shoal.table.new_files import NewFiles
from shoal.table.postponed import POSTPONED
from shoal.table.staged import BucketChanges
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.progress import Meter
    from shoal.table.table import Table


def order_of(table: Table, name: str | None, columns: str | Sequence[str] | None, choice: Choice) -> SortOrder:
    """The order that is asked for; `BadRequest` where the table cannot be sorted."""
    say = f"{table.name}: sort compaction"
    if name is None or not columns:
        raise BadRequest(f"{say} needs an order strategy and columns to order by", hint="give both, or none")
    if name.lower() not in STRATEGIES:
        raise BadRequest(f"{say} has no order '{name}'", hint=f"use {', '.join(STRATEGIES)}")
    if choice.idle_time is not None:
        raise BadRequest(f"{say} does not go with an idle time", hint="name the partitions, or give a condition")
    if table.data_evolution:
        raise BadRequest(f"{say} is not for tables with 'data-evolution.enabled'")
    crossing = bool(table.primary_key) and not set(table.schema.partition_keys) <= set(table.primary_key)
    if table.options.bucket != -1 or crossing:
        raise _other_buckets(table, say, crossing)
    given = columns.split(",") if isinstance(columns, str) else columns
    return cluster.order_of(table, [c.strip() for c in given], name.lower())


def _other_buckets(table: Table, say: str, crossing: bool) -> BadRequest:
    """What to do instead for tables where a row's place is not free."""
    count = table.options.bucket
    if crossing and count == -1:
        what, instead = "has keys that move between partitions", "a primary key that holds the partition columns"
    elif count == POSTPONED:
        what, instead = "postpones buckets (-2)", "'bucket' = '-1'"
    else:
        what, instead = f"has fixed buckets ({count})", "'bucket' = '-1'"
    return BadRequest(
        f"{say} is for tables with bucket = -1 whose keys stay in their partition; this one {what}",
        hint=f"'shoal compact run {table.name} --full' makes its files few and large; to sort them too, copy the rows "
        f"to a table with {instead}",
    )


def tasks_of(table: Table, snapshot: Snapshot, live: pa.Table, order: SortOrder) -> Iterator[Task]:
    """One task for each partition of `live`, entries of the snapshot."""
    files, held = NewFiles(table), vectors_of(table, snapshot)
    places: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries_of(live):
        places.setdefault((e.partition, e.bucket), []).append(e)
    for place, entries in places.items():
        at = Bucket(table, *place, files.spec(*place))
        there = tuple(e.file for e in entries)
        vectors = held.get(place, Vectors())
        yield Task(at, there, entries[0].total_buckets, "sorted", f"sorted by {order}", vectors, 0, Sorting(order))


def result_of(task: Task, budget: Budget, meter: Meter | None = None) -> TaskResult:
    """Carry a task out: the new files stand for the old ones."""
    task = replace(task, at=replace(task.at, meter=meter))
    done = task.at.table.metrics.compaction.run(lambda: carry_out(task, budget))
    changes = BucketChanges(
        task.at.partition, task.at.bucket, task.total_buckets, new_files=done.after, deleted_files=done.before,
        new_indexes=done.new_indexes, deleted_indexes=done.deleted_indexes,
    )  # fmt: skip
    return TaskResult(changes, (done,), (BucketSizes(0, 0, done.input_bytes, done.output_bytes),))
