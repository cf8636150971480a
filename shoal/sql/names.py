# SPDX-License-Identifier: Apache-2.0
"""What the table names of a query mean: a table, a branch, a system table, `sys.tables`, and which snapshot of it.

A name is looked up as it is written first, then without regard to case if only one fits. The rules of time travel are
those of `table/travel`. Invariant: time travel that is asked for is done or raises; no query reads another snapshot
than it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from shoal.catalog.system import DATABASE as SYS
from shoal.catalog.system import NAMES as SYS_TABLES
from shoal.errors import BadRequest, NotFound, Unsupported, near
from shoal.options import check
from shoal.table.refs import split_name
from shoal.table.travel import says_where

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class Catalog(Protocol):
    """What the engine needs of a lake."""

    def databases(self) -> list[str]: ...

    def tables(self, database: str) -> list[str]: ...

    def table(self, name: str) -> Table: ...

    def system(self, name: str) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One table reference of a query, found. `when` are the arguments of `Table.scan` that name the past.

    `rows` makes the rows of a system table, which are few; None for a table that is scanned.
    """

    database: str
    name: str
    table: Table | None
    when: Mapping[str, Any]
    rows: Callable[[], pa.Table] | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for references that mean the same rows."""
        return self.database, self.name, *sorted(self.when.items()), *sorted(self.options.items())

    def schema(self) -> pa.Schema:
        if self.rows is not None:
            return self.rows().schema
        assert self.table is not None
        return self.table.scan(**self.when).schema


class Names:
    """Looks names up in a lake."""

    def __init__(self, lake: Catalog, database: str | None, catalog: str) -> None:
        self.lake = lake
        self.catalog = catalog
        self._database = database

    def find(self, node: Any, options: Mapping[str, str] | None = None) -> Source:
        """The source of a table node of a query, with the options of its hint."""
        if node.catalog and node.catalog.lower() != self.catalog.lower():
            raise NotFound(f"unknown catalog '{node.catalog}'", hint=f"this one is called {self.catalog}")
        base, branch, system = split_name(node.name)
        when = _when(node.args.get("version"))
        if node.db.lower() == SYS:
            if when or options or branch or system:
                raise BadRequest(f"'{SYS}.{node.name}' has no snapshots and no options", hint="select from it as it is")
            return Source(SYS, base.lower(), None, {}, partial(self.lake.system, base))
        database, name, table = self.open(node.db or None, base)
        if branch is not None:
            table = table.branch(branch)
            name = f"{name}$branch_{branch}"
        if options:
            _check(table, name, options, when, system)
            table = table.with_options(options)
        if system is None:
            return Source(database, name, table, when, options=options or {})
        key = _system(node.name, system)
        return Source(database, f"{name}${key}", table, when, partial(table.system, key, **when), options or {})

    def open(self, database: str | None, name: str) -> tuple[str, str, Table]:
        """(database, table name, table) of a name; `NotFound` lists near names."""
        if "." in name or "/" in name:
            raise NotFound(f"unknown table '{name}'", hint="files cannot be queried, only tables of the warehouse")
        database = self.database(name) if database is None else database
        try:
            return database, name, self.lake.table(f"{database}.{name}")
        except NotFound:
            database = spelling(database, self.lake.databases(), "database")
            tables = self.lake.tables(database)
            if not any(t.lower() == name.lower() for t in tables):
                elsewhere = [f"{d}.{t}" for d in self.lake.databases()[:20] for t in self.lake.tables(d) if t == name]
                hint = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else None
                hint = hint or near(name, tables) or f"tables of {database}: {', '.join(tables[:10]) or 'none yet'}"
                raise NotFound(f"unknown table '{database}.{name}'", hint=hint) from None
            name = spelling(name, tables, "table")
            return database, name, self.lake.table(f"{database}.{name}")

    def tables(self, database: str) -> list[str]:
        """Names of a database's tables; `sys` has those about all tables there are."""
        if database.lower() == SYS:
            return sorted(SYS_TABLES)
        return self.lake.tables(spelling(database, self.lake.databases(), "database"))

    def database(self, what: str) -> str:
        """The default database, for the name `what` that has none."""
        if self._database is not None:
            return self._database
        found = self.lake.databases()
        if len(found) == 1:
            return found[0]
        raise BadRequest(
            f"'{what}' needs a database: {', '.join(found[:10]) or 'there are none yet'}",
            hint=f"write {found[0]}.{what}, or choose a default database" if found else None,
        )


def spelling(name: str, known: list[str], what: str) -> str:
    """A name as the lake spells it."""
    if name in known:
        return name
    same = [n for n in known if n.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    if same:
        raise BadRequest(f"{what} '{name}' could be {' or '.join(same)}", hint="write it exactly, in back-quotes")
    raise NotFound(f"unknown {what} '{name}'", hint=near(name, known) or f"{what}s: {', '.join(known[:10])}")


def _system(name: str, system: str) -> str:
    from shoal.table.inspect import NAMES

    key = system.lower().replace("-", "_")
    if key not in NAMES:
        raise NotFound(f"unknown system table '{name}'", hint=near(key, NAMES) or f"there are {', '.join(NAMES)}")
    return key


# ---- time travel and options


def _check(table: Table, name: str, options: Mapping[str, str], when: Mapping[str, Any], system: str | None) -> None:
    check(options, "create", has_primary_key=bool(table.primary_key))
    placed = [k for k in options if says_where(k)]
    if when and placed:
        raise BadRequest(f"'{name}' cannot be read at two snapshots", hint=f"leave out AS OF, or '{placed[0]}'")
    if system is None and any(k.startswith("incremental") for k in options):
        raise Unsupported(
            f"a query cannot tell what kind of change the rows of '{name}' are",
            hint=f"select from '{name}$audit_log' with the same options: its column rowkind says",
        )


def _when(version: Any) -> dict[str, Any]:
    """`VERSION AS OF` and `TIMESTAMP AS OF` as arguments of `Table.scan`. A number as time is seconds, as in Spark."""
    from sqlglot import exp

    if version is None:
        return {}
    node = version.expression
    inner = node.this if isinstance(node, exp.Cast) else node
    if not isinstance(inner, exp.Literal):
        raise Unsupported(f"'{node.sql()}' after AS OF is not supported", hint="write a literal")
    text = str(inner.this)
    if version.name.upper() != "TIMESTAMP":
        return {"version": text}
    return {"timestamp": text if inner.is_string or not text.isdecimal() else int(text) * 1000}
