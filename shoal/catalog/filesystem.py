# SPDX-License-Identifier: Apache-2.0
"""A warehouse folder as a lake of databases and tables.

Agrees with: FileSystemCatalog, AbstractCatalog (2.0.0): `<database>.db/<table>/schema/schema-0` makes a table.
Invariant: a table exists when it has a schema file; listing opens none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from shoal.budget import DEFAULT_BYTES
from shoal.catalog.names import check_name, split_name
from shoal.clock import Clock, Scheduler, SystemClock, ThreadScheduler
from shoal.errors import BadRequest, NotFound, near
from shoal.metrics import Registry
from shoal.store.base import Store
from shoal.store.cache import CACHE_BYTES, Cache
from shoal.store.prefix import PrefixStore

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class Lake:
    """A warehouse. Open it with `shoal.open`."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        scheduler: Callable[[], Scheduler] | None = None,
        memory: int = DEFAULT_BYTES,
        rng: random.Random | None = None,
        wide_timestamps: bool = False,
        store_options: Mapping[str, str] | None = None,
        metrics: Registry | None = None,
    ) -> None:
        self.store = store
        self.cache = Cache(min(CACHE_BYTES, memory // 2))
        self.clock = clock or SystemClock()
        self._scheduler = scheduler or ThreadScheduler
        self._memory = memory
        self._rng = rng
        self._wide_timestamps = wide_timestamps
        self._store_options = store_options
        self.metrics = Registry() if metrics is None else metrics
        """What its tables measure."""

    def __repr__(self) -> str:
        return f"<Lake {self.store.uri}>"

    def databases(self) -> list[str]:
        """Names of the databases, sorted."""
        return [d.removesuffix(".db") for d in self.store.list_dir("")[0] if d.endswith(".db")]

    def tables(self, database: str) -> list[str]:
        """Names of a database's tables, sorted."""
        check_name(database, "database")
        folders = self.store.list_dir(f"{database}.db")[0]
        if not folders and database not in self.databases():
            raise NotFound(
                f"no database '{database}' in {self.store.uri}", hint=_have(database, self.databases(), "databases")
            )
        return [t for t in folders if self.store.list_dir(f"{database}.db/{t}/schema")[1]]

    def table(self, name: str) -> Table:
        """The table `db.name`, or a branch of it as `db.name$branch_b`; `NotFound` lists near names."""
        from shoal.store.uri import open_store
        from shoal.table.format_table import FormatTable, is_format_table
        from shoal.table.metadata import Metadata
        from shoal.table.table import Table

        base, mark, branch = name.partition("$branch_")
        if mark:
            return self.table(base).branch(branch)
        database, short = split_name(name)
        store = PrefixStore(self.store, f"{database}.db/{short}")
        meta = Metadata(store, self.cache)
        latest = meta.latest_schema_id()
        if latest is None:
            names = self.tables(database)
            raise NotFound(f"no table '{name}' in {self.store.uri}", hint=_have(short, names, f"tables of {database}"))
        schema = meta.schema(latest)
        if is_format_table(schema):
            # it can be scanned like a table, and says itself what it is when asked for more
            at = open_store(path, self._store_options) if (path := schema.options.get("path")) else store
            return cast("Table", FormatTable(f"{database}.{short}", at, schema))
        return Table(
            f"{database}.{short}", store, schema, cache=self.cache, clock=self.clock,
            scheduler=self._scheduler, memory=self._memory, rng=self._rng, wide_timestamps=self._wide_timestamps,
            store_options=self._store_options, registry=self.metrics,
        )  # fmt: skip

    def system(self, name: str) -> pa.Table:
        """A table of the `sys` database: `tables`, `partitions` or `all_table_options`, about all tables there are."""
        from shoal.catalog.system import system

        return system(self, name)

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create `db.name` with these columns; the database is made where it is missing."""
        from shoal.table.create import first_schema

        database, short = split_name(name)
        store = PrefixStore(self.store, f"{database}.db/{short}")
        made = first_schema(
            f"{database}.{short}",
            schema,
            tuple(primary_key),
            tuple(partition_by),
            options,
            comment,
            self.clock.now_ms(),
        )
        if not store.create("schema/schema-0", made.encode()) and not if_not_exists:
            raise BadRequest(f"table '{name}' exists already", hint="drop it first, or pass if_not_exists=True")
        return self.table(name)


def _have(wanted: str, names: list[str], what: str) -> str:
    return near(wanted, names) or (f"{what}: {', '.join(names[:10])}" if names else f"there are no {what} yet")
