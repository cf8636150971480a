# SPDX-License-Identifier: Apache-2.0
"""SQL queries over a lake: sqlglot reads them, DuckDB runs them, `Table.scan` feeds them.

Each table reference becomes a placeholder that DuckDB scans through `sources.Feed`, so columns and filters reach our
own pruning and merge. Invariant: a query sees one snapshot of each table, reads nothing but tables of the lake, and
fails with a `ShoalError` only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, StorageFailed, Unsupported, near
from shoal.sql.names import Catalog, Names, Source
from shoal.sql.syntax import parse_query, render, split, table_nodes, take_hints, words, writes

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from shoal.sql.sources import Feed

# Rows of a batch that a query hands out.
BATCH_ROWS = 65_536
# Field metadata of a result column: the SQL type where Arrow's says less.
SQL_TYPE = b"shoal.sql-type"

_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "PIVOT", "UNPIVOT", "SUMMARIZE", "(")
_WRITE = "rows are written with INSERT, UPDATE, DELETE and MERGE, and with Table.write() in Python"
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE")
_DEFINE = "in Python, lake.create_table() makes a table and table.alter() changes it"
_SET = "options of one query are a hint after the table: t /*+ OPTIONS('key' = 'value') */"
_EXPORT = "run a SELECT and choose an output format: jsonl, csv, arrow, parquet"
_ONLY_LAKE = "a query reads the tables of the warehouse only"
_INSTEAD = {
    "UPSERT": _WRITE, "REPLACE": _WRITE, "CREATE": _DEFINE, "ALTER": _DEFINE, "DROP": _DEFINE, "COMMENT": _DEFINE,
    "RENAME": _DEFINE,
    "CALL": "maintenance is Table.maintain in Python and 'shoal compact' at the terminal",
    "ANALYZE": "SUMMARIZE t shows statistics of a table", "MSCK": "partitions need no repair",
    "SET": _SET, "RESET": _SET, "PRAGMA": _SET, "USE": "give the default database when the engine is made",
    "COPY": _EXPORT, "EXPORT": _EXPORT, "IMPORT": _ONLY_LAKE, "INSTALL": _ONLY_LAKE, "LOAD": _ONLY_LAKE,
    "ATTACH": _ONLY_LAKE, "DETACH": _ONLY_LAKE, "VACUUM": "'shoal compact' merges files", "CHECKPOINT": _WRITE,
    "BEGIN": "each commit of Table.write() is a transaction", "START": "each commit of Table.write() is a transaction",
    "COMMIT": "each commit of Table.write() is a transaction", "ROLLBACK": "each commit of Table.write() is one",
    "EXECUTE": _WRITE, "PREPARE": "put the values into the query", "GRANT": "shoal keeps no users",
    "REVOKE": "shoal keeps no users",
}  # fmt: skip


class Engine:
    """Runs queries over a lake. `database` is where names without one are looked up."""

    def __init__(
        self,
        lake: Catalog,
        *,
        database: str | None = None,
        catalog: str = "paimon",
        memory_limit: str | None = None,
    ) -> None:
        self.names = Names(lake, database, catalog)
        self.lake = lake
        self.memory_limit = memory_limit
        self._running: duckdb.DuckDBPyConnection | None = None
        self._database: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def interrupt(self) -> None:
        """Stop the query that runs, from another thread; it ends in an error."""
        if self._running is not None:
            self._running.interrupt()

    def query(self, sql: str) -> pa.RecordBatchReader:
        """The rows of one query, streamed. See `split` for texts of several.

        Statements that change rows are done when this returns; their result says how many rows they touched.
        """
        found = split(sql)
        if len(found) != 1:
            raise BadRequest(
                "one statement at a time" if found else "there is no statement",
                hint="shoal.sql.engine.split(text) takes a text apart" if found else "such as SELECT * FROM db.t",
            )
        text = found[0]
        head = [w for w, _ in words(text, 3)]
        if head[0] in _CHANGES or (head[0] == "WITH" and writes(text)):
            from shoal.sql.changes import change

            return change(self, text)
        if head[0] in _QUERIES:
            return self._run(text)
        if head[0] == "EXPLAIN":
            at = words(text, 2)[-1 if head[1:2] == ["ANALYZE"] else 0][1]
            if not text[at:].strip():
                raise BadRequest("EXPLAIN needs a query")
            return self._run(text[at:], prefix="EXPLAIN ANALYZE " if head[1:2] == ["ANALYZE"] else "EXPLAIN ")
        if head[0] in ("DESCRIBE", "DESC"):
            at = words(text, 1)[0][1]
            if head[1:2] and head[1] in _QUERIES and head[1] != "TABLE":
                return self._run(text[at:], prefix="DESCRIBE ")
            return self._describe(re.sub(r"^\s*TABLE\s", " ", text[at:], flags=re.IGNORECASE))
        if head[0] == "SHOW":
            return self._show(text, head[1] if head[1:] else "")
        if head[0] in _INSTEAD:
            raise Unsupported(f"{head[0]} is not a query", hint=_INSTEAD[head[0]])
        known = (*_QUERIES[:-1], *_CHANGES, *_INSTEAD, "EXPLAIN", "DESCRIBE", "SHOW")
        raise BadRequest(f"'{head[0]}' does not begin a statement (line 1, column 1)", hint=near(head[0], known))

    # ---- statements about tables

    def _describe(self, name: str) -> pa.RecordBatchReader:
        import pyarrow as pa

        from shoal.format.types import from_arrow

        source = self._named(name, "DESCRIBE")
        rows = [(f.name, str(from_arrow(f.type, column=f.name)), f.nullable) for f in source.schema()]
        names, types, nulls = zip(*rows)
        return pa.table({"name": names, "type": types, "null": nulls}).to_reader()

    def _named(self, text: str, what: str) -> Source:
        from sqlglot import exp

        if not text.strip():
            raise BadRequest(f"{what} needs a table")
        node = parse_query(f"FROM {text}").find(exp.Table)
        return self.names.find(node)

    def _show(self, text: str, kind: str) -> pa.RecordBatchReader:
        import pyarrow as pa

        from shoal.table.where import parse

        m = re.fullmatch(
            r"SHOW\s+(TABLES|DATABASES|SCHEMAS)(?:\s+(?:FROM|IN)\s+(\S+))?(?:\s+LIKE\s+('(?:[^']|'')*'))?",
            " ".join(text.split()),
            re.IGNORECASE,
        )
        if not m or (m[2] and m[1].upper() != "TABLES"):
            raise Unsupported(
                f"SHOW {kind} is not supported" if kind not in ("TABLES", "DATABASES") else f"cannot read '{text}'",
                hint="SHOW TABLES [IN database] [LIKE 'pattern'], SHOW DATABASES [LIKE 'pattern'] and DESCRIBE t are",
            )
        if m[1].upper() == "TABLES":
            database = m[2].strip('`"') if m[2] else self.names.database("SHOW TABLES")
            column, found = "table_name", self.names.tables(database)
        else:
            column, found = "database_name", self.lake.databases()
        rows = pa.table({column: pa.array(found, pa.string())})
        return (rows.filter(parse(f"{column} LIKE {m[3]}", rows.schema)) if m[3] else rows).to_reader()

    # ---- queries

    def _run(self, text: str, prefix: str = "") -> pa.RecordBatchReader:
        return self.run(parse_query(text), prefix)

    def run(self, tree: Any, prefix: str = "") -> pa.RecordBatchReader:
        """The rows of the query that a tree is."""
        import duckdb

        sources = self.bind(tree)
        sql = prefix + render(tree)
        connection = self._running = self.connect()
        feeds: list[Feed] = []
        try:
            for name, source in sources.items():
                connection.register(name, scannable(source, feeds))
            relation = connection.sql(sql)
            types = [str(t) for t in relation.types]
            reader = relation.to_arrow_reader(BATCH_ROWS)
        except (duckdb.Error, OSError, RuntimeError) as err:
            connection.close()
            raise problem(err, feeds) from err
        import pyarrow as pa

        schema = _with_types(reader.schema, types)
        return pa.RecordBatchReader.from_batches(schema, _stream(connection, reader, schema, feeds))

    def bind(self, tree: Any, given: Collection[str] = ()) -> dict[str, Source]:
        """Puts placeholders in the place of table names, but those `given`; says what each stands for."""
        from sqlglot import exp

        hints = take_hints(tree)
        nodes = [n for n in table_nodes(tree) if n.name not in given]
        found = [self.names.find(n, hints.get(id(n))) for n in nodes]
        placeholders: dict[tuple[Any, ...], str] = {}
        sources: dict[str, Source] = {}
        aliases: dict[tuple[str, str], str] = {}
        plain = {(s.database, n.name.lower()) for n, s in zip(nodes, found) if not n.alias}
        for node, source in zip(nodes, found):
            name = placeholders.setdefault(source.key, f"__shoal_{len(placeholders)}")
            sources.setdefault(name, source)
            if not node.alias and not isinstance(node.parent, exp.Summarize):
                clash = sum(n == node.name.lower() for _, n in plain) > 1
                alias = f"{source.database}.{node.name}" if clash else node.name
                aliases[source.database.lower(), node.name.lower()] = alias
                node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
            for part in ("db", "catalog", "version"):
                node.set(part, None)
            node.set("this", exp.to_identifier(name, quoted=True))
        for column in tree.find_all(exp.Column):  # db.t.c: DuckDB knows t only
            alias = aliases.get((column.db.lower(), column.table.lower())) if column.db else None
            if alias is not None:
                column.set("table", exp.to_identifier(alias, quoted=True))
                column.set("db", None)
                column.set("catalog", None)
        return sources

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the engine's DuckDB, which sees nothing of the machine.

        To open a DuckDB takes as long as a small query, so the connections share one, and its memory.
        """
        import duckdb

        with self._lock:
            if self._database is not None:
                try:
                    return self._connected(self._database)
                except duckdb.Error:  # after a fatal error it takes no query any more
                    self._database = None
            self._database = self._opened()
            return self._connected(self._database)

    @staticmethod
    def _connected(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        connection = database.cursor()
        connection.execute("SELECT 1").fetchall()
        return connection

    def _opened(self) -> duckdb.DuckDBPyConnection:
        import tempfile

        import duckdb

        config = {
            "enable_external_access": "false",  # no files, no network: FROM 'x.csv' and read_csv() fail
            "python_enable_replacements": "false",  # no variables of the caller either
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "temp_directory": tempfile.gettempdir(),
        }
        if self.memory_limit is not None:
            config["memory_limit"] = self.memory_limit
        try:
            database = duckdb.connect(":memory:", config=config)
            database.execute("SET GLOBAL TimeZone = 'UTC'")
            database.execute("SET lock_configuration = true")
        except duckdb.Error as err:
            raise BadRequest(_sentence(err)[0], hint="memory limits are written like '2GB'") from err
        return database


def scannable(source: Source, feeds: list[Feed]) -> Any:
    """A source as DuckDB takes it; feeds keep their errors."""
    from shoal.sql.sources import Feed

    if source.rows is not None:
        return source.rows()
    assert source.table is not None
    feeds.append(Feed(source.table, **source.when))
    return feeds[-1]


def _with_types(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    """Marks whole numbers of 128 bits, which Arrow has as DECIMAL(38, 0): sum() of integers is one."""
    import pyarrow as pa

    fields = [
        f.with_metadata({SQL_TYPE: t.encode()}) if t in ("HUGEINT", "UHUGEINT") else f for f, t in zip(schema, types)
    ]
    return pa.schema(fields)


def _stream(
    connection: duckdb.DuckDBPyConnection, reader: pa.RecordBatchReader, schema: pa.Schema, feeds: Sequence[Feed]
) -> Iterator[pa.RecordBatch]:
    import duckdb
    import pyarrow as pa

    try:
        for batch in reader:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (duckdb.Error, pa.ArrowException, OSError) as err:
        raise problem(err, feeds) from err
    finally:
        connection.close()


# ---- errors


def problem(err: BaseException, feeds: Sequence[Feed]) -> BaseException:
    """What went wrong, in our words: a failed scan's own error, else DuckDB's first sentence."""
    for feed in feeds:
        if feed.error is not None:
            return feed.error
    says, hint = _sentence(err)
    kind = str(err).partition(":")[0]
    if "Permission" in kind:
        return Unsupported(says, hint=_ONLY_LAKE)
    if "Not implemented" in kind:
        return Unsupported(says, hint=hint)
    if "Out of Memory" in kind:
        return StorageFailed(says, hint="give the engine a higher memory_limit, or select less")
    if kind in ("IO Error", "Internal Error", "FATAL Error"):
        return StorageFailed(says, hint=hint)
    return BadRequest(says, hint=hint)


def _sentence(err: BaseException) -> tuple[str, str | None]:
    """DuckDB's message without its class and without the query, which is not the one that was typed."""
    text = re.split(r"\n\s*\n?LINE \d+:", str(err), maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = re.sub(r"^(Invalid Input Error: )?[A-Z][\w ]* Error: ", "", lines[0]) if lines else type(err).__name__
    hint = " ".join(lines[1:]) or None
    return first, hint and hint[0].lower() + hint[1:]


__all__ = ["Engine", "split"]
