# SPDX-License-Identifier: Apache-2.0
"""A table that was opened before its schema changed, as it is now.

Whoever writes rows of others again must know all of their columns: a compaction by an old schema would drop the values
of a column that was added since, in silence, as Java's does. Invariant: options that were given on top of the table's
own stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.format.schema import Schema

if TYPE_CHECKING:
    from shoal.table.table import Table

# What a writer plans its compactions by, and what it knows of its buckets.
_PLANNED_BY = (
    "bucket",
    "changelog-producer",
    "deletion-vectors.enabled",
    "force-lookup",
    "merge-engine",
    "num-levels",
    "num-sorted-run.compaction-trigger",
    "pk-clustering-override",
    "write-only",
)


def of_today(table: Table) -> Table:
    """The table with its newest schema, itself where it has that."""
    now = _newest(table)
    if now is None:
        return table
    own, held = table.metadata.schema(table.schema.id).options, table.schema.options
    given = {k: v for k, v in held.items() if own.get(k) != v}
    return table.with_schema(replace(now, options={**now.options, **given}))


def columns_of_today(table: Table) -> Table:
    """`of_today` for a writer that goes on: the options that its compactions are planned by stay as it has them."""
    today, held = of_today(table), table.schema.options
    if today is table:
        return table
    options = {k: v for k, v in today.schema.options.items() if k not in _PLANNED_BY}
    options |= {k: held[k] for k in _PLANNED_BY if k in held}
    return table.with_schema(replace(today.schema, options=options))


def _newest(table: Table) -> Schema | None:
    newest = table.metadata.latest_schema_id()
    return None if newest is None or newest == table.schema.id else table.metadata.schema(newest)
