# SPDX-License-Identifier: Apache-2.0
"""`table.update(set=..., where=...)`: columns of the rows that a filter is true for get new values, in one commit.

Agrees with: UpdatePaimonTableCommand, SupportsRowLevelOperationFlinkTableSink.applyRowLevelUpdate (2.0.0). Invariant: a
row is read and written whole, so that columns that are not named keep what they had; primary keys never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.options import check
from shoal.table.assignments import Compute, Mask, assigned, check_columns, columns_read, filtered, holds, inputs_of
from shoal.table.row_changes import ALONE, By, Change, Changed, Decision, change_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.scan import Scan
    from shoal.table.table import Table

_UPDATE = 2  # the row kind +U


def update(
    table: Table,
    set: Mapping[str, Any],  # noqa: A002  SQL's word
    where: str | pc.Expression | Compute | None = None,
    by: By = ALONE,
) -> Changed:
    """Give columns new values: constants, Arrow expressions over the row's old values, or functions of batches."""
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    check_columns(table, set, "UPDATE")
    scan, only = filtered(table, where)
    if table.primary_key:
        refuse_update(table, set)
        return _by_key(table, scan, set, only, by)

    writes = [n for n in table.schema.names if n in set] if table.data_evolution else None

    def decide(rows: pa.RecordBatch) -> Decision:
        import pyarrow as pa

        mask: Mask = holds(only, rows)
        old = rows.filter(pa.array(mask))
        return Decision(np.zeros(len(mask), np.bool_), mask, assigned(table, set, old, only=writes))

    columns = columns_read(table, scan, only)
    change = Change(
        columns, lambda rows: holds(only, rows), decide, moves=places_rows(table, set),
        reads=inputs_of(table, set.values()) if table.data_evolution else (), writes=writes or (), drops=False,
    )  # fmt: skip
    return change_rows(table, scan, change, "UPDATE", by=by)


def places_rows(table: Table, columns: Mapping[str, Any]) -> bool:
    """Whether one of these columns says where a row lies."""
    where = {*table.schema.partition_keys, *(table.options.bucket_key if table.options.bucket > 0 else ())}
    return any(c in where for c in columns)


def refuse_update(table: Table, columns: Mapping[str, Any]) -> None:
    """What a primary-key table does not take: new keys, and engines that would fold the new row into the old."""
    keys = [c for c in columns if c in table.primary_key]
    if keys:
        raise BadRequest(
            f"{table.name}: primary-key column '{keys[0]}' cannot be updated",
            hint="delete the rows and insert them with their new keys",
        )
    engine = table.options.merge_engine
    if engine not in ("deduplicate", "partial-update"):
        raise Unsupported(f"{table.name}: merge engine '{engine}' does not support UPDATE")


def _by_key(table: Table, scan: Scan, values: Mapping[str, Any], only: Any, by: By) -> Changed:
    import pyarrow as pa

    commit = by.commit(table)
    count = 0
    with table.write() as w:
        for batch in scan.to_batches():
            rows = batch if scan.where is not None else batch.filter(pa.array(holds(only, batch)))
            if rows.num_rows:
                w.write(assigned(table, values, rows), [_UPDATE] * rows.num_rows)
                count += rows.num_rows
        staged = w.prepare(wait=True)
        if not count:
            return Changed(table.name)
        committed = commit.commit(staged, by.identifier, operation="UPDATE")
    return by.finished(table, committed, updated=count)
