# SPDX-License-Identifier: Apache-2.0
"""`table.delete(where)`: rows that a filter is true for go, in one commit.

Primary-key tables get -D rows; a filter on partition columns alone drops the partitions; other tables mark rows or
write files again (`row_changes`). Agrees with: PrimaryKeyTableUtils.validatePKUpsertDeletable,
DeleteFromPaimonTableCommand, OptimizeMetadataOnlyDeleteFromPaimonTable (2.0.0). Invariant: a table whose merge engine
would keep the deleted rows is refused, never written for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import Unsupported
from shoal.format.row import arrow_column, decode
from shoal.options import check
from shoal.table.assignments import Compute, columns_read, filtered, holds
from shoal.table.row_changes import ALONE, By, Change, Changed, change_rows

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from shoal.table.scan import Scan
    from shoal.table.table import Table

_DELETE = 3  # the row kind -D
FORCE = "delete.force-produce-changelog"


def delete(table: Table, where: str | pc.Expression | Compute | None = None, by: By = ALONE) -> Changed:
    """Delete the rows that `where` is true for, all rows without one."""
    scan, only = filtered(table, where)
    dropped = not table.options.get(FORCE)
    whole = dropped and where is None
    parts = dropped and scan.where is not None and set(scan.where_columns) <= set(table.schema.partition_keys)
    if table.primary_key and not (whole or parts):
        refuse_engine(table)
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    if whole:
        return _truncate(table, None, by)
    if parts:
        return _drop(table, scan, by)
    if table.primary_key:
        return _by_key(table, scan, only, by)
    change = Change(columns_read(table, scan, only), lambda rows: holds(only, rows))
    return change_rows(table, scan, change, "DELETE", by=by)


def refuse_engine(table: Table) -> None:
    """`Unsupported` where deletes by key do not take rows away."""
    o = table.options
    engine = o.merge_engine
    if o.ignore_delete:
        raise Unsupported(f"{table.name}: with 'ignore-delete' a DELETE does nothing", hint="alter the table first")
    if engine == "deduplicate":
        return
    hint = None
    if engine == "partial-update":
        if o.get("partial-update.remove-record-on-delete") or o.is_set(
            "partial-update.remove-record-on-sequence-group"
        ):
            return
        hint = (
            "set 'partial-update.remove-record-on-delete', or with sequence groups"
            " 'partial-update.remove-record-on-sequence-group'"
        )
    elif engine == "aggregation":
        if o.get("aggregation.remove-record-on-delete"):
            return
        hint = "set 'aggregation.remove-record-on-delete'"
    raise Unsupported(f"{table.name}: merge engine '{engine}' does not support DELETE", hint=hint)


def _by_key(table: Table, scan: Scan, only: Any, by: By) -> Changed:
    import pyarrow as pa

    commit = by.commit(table)
    count = 0
    with table.write() as w:
        for batch in scan.to_batches():
            rows = batch if scan.where is not None else batch.filter(pa.array(holds(only, batch)))
            if rows.num_rows:
                w.write(rows, [_DELETE] * rows.num_rows)
                count += rows.num_rows
        staged = w.prepare(wait=True)
        if not count:
            return Changed(table.name)
        committed = commit.commit(staged, by.identifier, operation="DELETE")
    return by.finished(table, committed, deleted=count)


def _truncate(table: Table, partitions: list[dict[str, object]] | None, by: By) -> Changed:
    commit = by.commit(table)
    if commit.refresh() is None:
        return Changed(table.name)
    made = commit.truncate(partitions, by.identifier)
    return by.finished(table, made, deleted=None)


def _drop(table: Table, scan: Scan, by: By) -> Changed:
    """Drop the partitions that the filter is true for: it says nothing about rows inside them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = table.schema.partition_fields
    there = pc.unique(table.metadata.live(scan.snapshot).column("partition")).to_pylist()
    values = [decode([f.type for f in fields], p, "partition") for p in there]
    columns = {f.name: arrow_column([v[i] for v in values], f.type) for i, f in enumerate(fields)}
    chosen = pa.table(columns).filter(scan.where).to_pylist() if there else []
    return _truncate(table, chosen, by) if chosen else Changed(table.name)
