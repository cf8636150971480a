# SPDX-License-Identifier: Apache-2.0
"""The tables of the `sys` database: every table of a lake, its options, its partitions.

Agrees with: AllTablesTable, AllTableOptionsTable, AllPartitionsTable, CatalogUtils.createGlobalSystemTable (2.0.0) for
a catalog that is a folder. Invariant: nothing but metadata is read; a table that is dropped meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from shoal.errors import NotFound, near
from shoal.format import paths
from shoal.format.row import decode
from shoal.table.inspect_files import partition_sums
from shoal.table.refs import root_of
from shoal.table.system_columns import ALL_PARTITIONS, ALL_TABLE_OPTIONS, ALL_TABLES, from_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

DATABASE = "sys"


class Catalog(Protocol):
    """What this module needs of a lake."""

    def databases(self) -> list[str]: ...

    def tables(self, database: str) -> list[str]: ...

    def table(self, name: str) -> Table: ...


def system(lake: Catalog, name: str) -> pa.Table:
    """The table `sys.<name>`; `NotFound` lists near names."""
    make = _MAKERS.get(name.lower())
    if make is None:
        raise NotFound(f"there is no table 'sys.{name}'", hint=near(name, NAMES) or f"there are {', '.join(NAMES)}")
    return make(lake)


def all_tables(lake: Catalog) -> pa.Table:
    """Every table with its kind. Counts are null: a folder keeps none apart from the tables themselves."""
    rows = []
    for database, name, table in _each(lake):
        o = table.schema.options
        made, changed = (None if v is None else int(v) for v in (o.get("createdAt"), o.get("updatedAt")))
        rows.append((
            database, name, o.get("type", "table"), bool(table.schema.partition_keys), bool(table.primary_key),
            o.get("owner"), made, o.get("createdBy"), changed, o.get("updatedBy"), None, None, None, None,
        ))  # fmt: skip
    return from_rows(ALL_TABLES, rows)


def all_table_options(lake: Catalog) -> pa.Table:
    """Options of every table, and the `path` it lies at."""
    rows = []
    for database, name, table in _each(lake):
        found = {"path": root_of(table.store).uri, **table.schema.options}
        rows += [(database, name, key, value) for key, value in sorted(found.items())]
    return from_rows(ALL_TABLE_OPTIONS, rows)


def all_partitions(lake: Catalog) -> pa.Table:
    """Partitions of every partitioned table, named as their folders are. Times are epoch milliseconds."""
    rows: list[tuple[Any, ...]] = []
    for database, name, table in _each(lake):
        if not table.schema.partition_keys:
            continue
        sums = partition_sums(table, table.metadata.latest())
        columns = ("partition", "row_count_sum", "file_size_sum", "file_count_sum", "creation_ms_max")
        for partition, count, size, files, newest in zip(*(sums.column(c).to_pylist() for c in columns)):
            title = _name(table, partition)
            rows.append((database, name, title, count, size, files, _epoch_ms(table, newest), False))
    return from_rows(ALL_PARTITIONS, rows)


_MAKERS: dict[str, Callable[[Catalog], pa.Table]] = {
    "tables": all_tables, "partitions": all_partitions, "all_table_options": all_table_options
}  # fmt: skip
NAMES = tuple(_MAKERS)


def _each(lake: Catalog) -> Iterator[tuple[str, str, Table]]:
    """(database, name, table) of everything there is."""
    for database in lake.databases():
        try:
            names = lake.tables(database)
        except NotFound:
            continue
        for name in names:
            try:
                yield database, name, lake.table(f"{database}.{name}")
            except NotFound:
                continue


def _name(table: Table, partition: bytes) -> str:
    """`dt=19723/h=1`: values as in the folder's name, but not escaped."""
    o, fields = table.options, table.schema.partition_fields
    values = decode([f.type for f in fields], partition, "partition")
    parts = []
    for f, v in zip(fields, values):
        text = None if v is None else paths.value_text(f.type, v, o.partition_legacy_name)
        parts.append(f"{f.name}={text if text is not None and text.strip() else o.partition_default_name}")
    return "/".join(parts)


def _epoch_ms(table: Table, local_ms: int | None) -> int | None:
    """A file's creation time, which is kept as the writer's wall clock, in epoch milliseconds."""
    if local_ms is None:
        return None
    wall = datetime.fromtimestamp(local_ms / 1000, UTC).replace(tzinfo=table.clock.zone)
    return round(wall.timestamp() * 1000)
