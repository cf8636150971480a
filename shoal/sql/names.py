# SPDX-License-Identifier: Apache-2.0
"""What the table names of a query mean: table, system table, and which snapshot of it.

A name is looked up as it is written first, then without regard to case if only one fits. Invariant: time travel that
is asked for is done or raises; no query reads another snapshot than it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shoal.errors import BadRequest, NotFound, Unsupported, near
from shoal.options import check
from shoal.table.refs import split_name

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class Catalog(Protocol):
    """What the engine needs of a lake."""

    def databases(self) -> list[str]: ...

    def tables(self, database: str) -> list[str]: ...

    def table(self, name: str) -> Table: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One table reference of a query, found."""

    database: str
    name: str
    table: Table
    system: str | None = None
    snapshot: int | None = None

    def rows(self) -> pa.Table:
        """A system table's rows."""
        assert self.system is not None
        at = {} if self.snapshot is None else {"snapshot": self.snapshot}
        return self.table.system(self.system, **at)


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
        database, name, table = self.open(node.db or None, base)
        if branch is not None:
            table = table.branch(branch)
            name = f"{name}$branch_{branch}"
        known = None if system is None else _system(node.name, system)
        named = {k: v for k, v in (options or {}).items() if k in _NAMED}
        rest = {k: v for k, v in (options or {}).items() if k not in _NAMED}
        if rest:
            check(rest, "create", has_primary_key=bool(table.primary_key))
            if known is None and any(k.startswith("incremental") for k in rest):
                raise Unsupported(
                    f"a query cannot tell what kind of change the rows of '{node.name}' are",
                    hint=f"select from '{name}$audit_log' with the same options: its column rowkind says",
                )
            table = table.with_options(rest)
        return Source(database, name, table, known, _snapshot(table, node.args.get("version"), named))

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


# ---- time travel

# Options of a hint that name one snapshot; the others are those of the read.
_NAMED = ("scan.snapshot-id", "scan.version", "scan.tag-name", "scan.timestamp")


def _snapshot(table: Table, version: Any, options: Mapping[str, str]) -> int | None:
    asked: list[int] = []
    for key, value in options.items():
        match key:
            case "scan.snapshot-id":
                if not value.isdecimal():
                    raise BadRequest(f"scan.snapshot-id = '{value}' is not a number")
                asked.append(int(value))
            case "scan.version":
                asked.append(_at_version(table, value))
            case "scan.tag-name":
                asked.append(_tag(table, value))
            case "scan.timestamp":
                asked.append(_at_time(table, value))
    if version is not None:
        value = _text(version.expression)
        asked.append(_at_time(table, value) if version.name.upper() == "TIMESTAMP" else _at_version(table, value))
    if len(set(asked)) > 1:
        raise BadRequest(f"one table at two snapshots: {asked[0]} and {asked[1]}")
    return asked[0] if asked else None


def _text(node: Any) -> str:
    from sqlglot import exp

    inner = node.this if isinstance(node, exp.Cast) else node
    if not isinstance(inner, exp.Literal):
        raise Unsupported(f"'{node.sql()}' after AS OF is not supported", hint="write a literal")
    return str(inner.this)


def _at_version(table: Table, value: str) -> int:
    """A tag of that name, or a snapshot id, in that order like Java."""
    if not value.isdecimal():
        return _tag(table, value)
    tags = table.inspect.tags()
    names = tags.column("tag_name").to_pylist()
    return int(tags.column("snapshot_id")[names.index(value)].as_py()) if value in names else int(value)


def _tag(table: Table, name: str) -> int:
    tags = table.inspect.tags()
    names = tags.column("tag_name").to_pylist()
    if name not in names:
        raise NotFound(f"no tag '{name}'", hint=near(name, names) or f"tags: {', '.join(names[:10]) or 'none yet'}")
    return int(tags.column("snapshot_id")[names.index(name)].as_py())


def _at_time(table: Table, value: str) -> int:
    """The newest snapshot committed at or before a local time."""
    import pyarrow.compute as pc

    from shoal.table.where import parse

    if not re.match(r"\s*\d{4}-", value):
        raise Unsupported(f"the time '{value}' is not supported", hint="write it like '2026-11-01 12:34:56'")
    snapshots = table.inspect.snapshots()
    quoted = value.replace("'", "''")
    found = snapshots.filter(parse(f"commit_time <= '{quoted}'", snapshots.schema)).column("snapshot_id")
    if not len(found):
        raise NotFound(f"no snapshot is as old as '{value}'", hint="older ones may have expired")
    return int(pc.max(found).as_py())
