# SPDX-License-Identifier: Apache-2.0
"""ALTER TABLE on the store: the next schema file, created once.

Agrees with: SchemaManager.commitChanges, validateFallbackBranch (2.0.0). Invariant: `schema-N` is created by one
writer only; whoever loses reads the winner's schema and applies its own changes again on top, with all checks, so no
change is lost and none is half done. A create whose outcome is unknown is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import BadRequest, NotFound, StorageFailed
from shoal.format import paths
from shoal.format.schema import Schema
from shoal.table import alter as pure
from shoal.table.schema_change import Change
from shoal.table.table import Table


def alter(table: Table, changes: Sequence[Change]) -> Table:
    """The table at the schema that the changes make of its newest one."""
    has_rows = table.metadata.latest() is not None
    while True:
        newest = table.metadata.latest_schema_id()
        if newest is None:
            raise NotFound(f"{table.name}: the table is gone", hint="create it again")
        made = pure.apply(
            table.metadata.schema(newest), changes, table=table.name, has_rows=has_rows, time_ms=table.clock.now_ms()
        )
        _check_branches(table, made)
        if _create(table, made):
            return table.with_schema(made)
        has_rows = table.metadata.latest() is not None


def _create(table: Table, schema: Schema) -> bool:
    path, data = paths.schema(schema.id), schema.encode()
    try:
        return table.store.create(path, data)
    except StorageFailed as err:
        if err.definite:
            raise
        try:
            return table.store.read(path) == data
        except NotFound:
            raise err from None  # it did not happen; trying again is the caller's decision


def _check_branches(table: Table, schema: Schema) -> None:
    """Branches that the options name must be there. A branch has a folder of its own, with schemas in it."""
    keys = ("scan.fallback-branch", "scan.primary-branch")
    named = {k: n for k in keys if (n := schema.options.get(k, "").strip())}
    if len(named) == 2:
        raise BadRequest(f"{table.name}: '{keys[0]}' and '{keys[1]}' exclude each other", hint="set only one of them")
    for key, name in named.items():
        try:
            table.branch(name)
        except NotFound as err:
            raise BadRequest(f"{table.name}: '{key}' = '{name}' names no branch that is there", hint=err.hint) from err
