# SPDX-License-Identifier: Apache-2.0
"""Statements that change rows: INSERT INTO, INSERT OVERWRITE, UPDATE, DELETE, MERGE INTO, TRUNCATE TABLE.

sqlglot reads them, DuckDB computes rows, values and conditions, the verbs of `Table` do the rest in one commit. Columns
of an INSERT go by position unless they are named. Agrees with: FlinkTableSink, PaimonMergeInto, PaimonUpdateTable,
PaimonDeleteTable (2.0.0). Invariant: a statement is done as a whole when it returns, or has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, ShoalError, Unsupported
from shoal.sql.engine import problem, scannable
from shoal.sql.names import spelling
from shoal.sql.sources import unique
from shoal.sql.syntax import parse_change, render, take_hints
from shoal.table.merge_into import SOURCE, Clause, Clauses, merge_clauses
from shoal.table.where import parse

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.sql.engine import Engine
    from shoal.sql.sources import Feed
    from shoal.table.row_changes import Changed
    from shoal.table.table import Table

_ROWS = "__shoal_rows"
_NUMBER = "__shoal_row"
_MATCH = "__shoal_on_"


def change(engine: Engine, text: str) -> pa.RecordBatchReader:
    """Carry out one statement; one row says how many rows it touched, and the snapshot it made."""
    from sqlglot import exp

    tree = parse_change(text)
    if isinstance(tree, exp.Insert):
        return _Insert(engine, tree).run()
    if isinstance(tree, exp.TruncateTable):
        if len(tree.expressions) != 1:
            raise Unsupported("TRUNCATE of several tables", hint="truncate them one by one")
        done = _target(engine, tree.expressions[0], {})[0].truncate()
        return _told({"deleted": None}, done.snapshots[-1] if done.snapshots else None)
    if isinstance(tree, exp.Merge):
        return _Merge(engine, tree).run()
    return _update(engine, tree) if isinstance(tree, exp.Update) else _delete(engine, tree)


def _told(counts: Mapping[str, int | None], snapshot: int | None) -> pa.RecordBatchReader:
    import pyarrow as pa

    columns = {**counts, "snapshot": snapshot}
    return pa.table({n: pa.array([v], pa.int64()) for n, v in columns.items()}).to_reader()


def _target(engine: Engine, node: Any, hints: Mapping[int, Mapping[str, str]]) -> tuple[Table, str]:
    """(the table that a statement changes, the name that its expressions call it by)."""
    source = engine.names.find(node, hints.get(id(node)))
    if source.table is None or source.rows is not None or source.when:
        raise BadRequest(f"'{node.name}' cannot be changed", hint="name the table itself, without AS OF")
    return source.table, node.alias or node.name


def _no(tree: Any, *parts: str) -> None:
    """Raise where a statement says more than can be done."""
    for part in parts:
        found = tree.args.get(part)
        if found:
            said = found[0] if isinstance(found, list) else found
            text = said.sql() if hasattr(said, "sql") else part
            raise Unsupported(f"{tree.key.upper()} ... {text} is not supported", hint="MERGE INTO may say the same")


# ---- INSERT ----------------------------------------------------------------------------------------------


class _Insert:
    """INSERT INTO and INSERT OVERWRITE."""

    def __init__(self, engine: Engine, tree: Any) -> None:
        from sqlglot import exp

        _no(tree, "conflict", "ignore", "alternative", "where", "default")
        if tree.expression is None:
            raise BadRequest("INSERT needs rows", hint="INSERT INTO t VALUES (1, 'a'), or a SELECT")
        self._engine = engine
        self._overwrite = bool(tree.args.get("overwrite"))
        self._by_name = bool(tree.args.get("by_name"))
        node = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        names = [n.name for n in tree.this.expressions] if isinstance(tree.this, exp.Schema) else []
        self._query = tree.expression
        hints = take_hints(tree.this)
        outer = tree.args.get("with_") or tree.args.get("with")
        if outer is not None:
            if self._query.args.get("with_") or self._query.args.get("with"):
                raise Unsupported("INSERT with two WITH clauses", hint="leave one of them")
            self._query.set("with_", outer.pop())
        part = node.args.get("partition")
        self.table, _ = _target(engine, node, hints)
        self._constants = self._partition(part)
        self._columns = [spelling(n, self.table.schema.names, "column") for n in names]

    def _partition(self, part: Any) -> dict[str, Any]:
        """Values of the columns that PARTITION (...) names; a name without value only says where it comes from."""
        from sqlglot import exp

        found: dict[str, Any] = {}
        for p in part.expressions if part is not None else ():
            if isinstance(p, exp.Column):
                continue
            if not isinstance(p, exp.EQ) or not isinstance(p.this, exp.Column):
                raise BadRequest(f"cannot read PARTITION ({p.sql()})", hint="write PARTITION (dt = '2026-11-01')")
            found[spelling(p.this.name, list(self.table.schema.partition_keys), "partition column")] = p.expression
        return found

    def run(self) -> pa.RecordBatchReader:
        table = self.table
        reader = self._engine.run(self._query)
        names = self._names(reader.schema.names)
        batches = self._batches(reader, names)
        if self._overwrite:
            import pyarrow as pa

            chosen = [f for f in table.arrow_schema if f.name in (*names, *self._constants)]
            rows = pa.RecordBatchReader.from_batches(pa.schema(chosen), batches)
            done = table.overwrite(rows, self._values() if self._constants else None)
        else:
            with table.write() as w:
                for batch in batches:
                    w.append(batch)
                done = w.commit()
        return _told({"inserted": done.rows}, done.snapshots[-1] if done.snapshots else None)

    def _names(self, given: Sequence[str]) -> list[str]:
        """The table's column for each column of the query."""
        table, left = self.table, [n for n in self.table.schema.names if n not in self._constants]
        if self._by_name:
            return [spelling(n, left, "column") for n in given]
        names = self._columns or left
        if len(names) != len(given):
            raise BadRequest(
                f"{table.name}: INSERT needs {len(names)} columns ({', '.join(names)}) and the rows have {len(given)}",
                hint="name the columns: INSERT INTO t (a, b) ...",
            )
        return names

    def _batches(self, reader: pa.RecordBatchReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        table = self.table
        fixed = self._values()
        for batch in reader:
            columns = dict(zip(names, batch.columns))
            columns |= {n: pa.repeat(v, batch.num_rows) for n, v in fixed.items()}
            fields = [f for f in table.arrow_schema if f.name in columns]
            arrays = [_fitted(columns[f.name], f.type, f"{table.name}: column '{f.name}'") for f in fields]
            schema = pa.schema([pa.field(f.name, f.type) for f in fields])
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _values(self) -> dict[str, Any]:
        """The constants of PARTITION (...) as values of their columns."""
        from sqlglot import exp

        if not self._constants:
            return {}
        query = exp.Select(expressions=[exp.alias_(v.copy(), n, quoted=True) for n, v in self._constants.items()])
        row = self._engine.run(query).read_all()
        types = {f.name: f.type for f in self.table.arrow_schema}
        return {
            n: _fitted(row.column(i).combine_chunks(), types[n], f"{self.table.name}: column '{n}'")[0]
            for i, n in enumerate(self._constants)
        }


def _fitted(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """A column that DuckDB made, in the type of the table's."""
    import pyarrow as pa

    if array.type == kind:
        return array
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)  # a NULL has some type or other
    try:
        return (array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).cast(kind)
    except pa.ArrowException as err:
        raise BadRequest(f"{what} ({kind}) does not take {array.type}", hint=str(err).splitlines()[0]) from err


# ---- UPDATE and DELETE -----------------------------------------------------------------------------------


def _delete(engine: Engine, tree: Any) -> pa.RecordBatchReader:
    from shoal.table.delete import delete

    _no(tree, "using", "order", "limit", "tables")
    table, name = _target(engine, tree.this, take_hints(tree.this))
    with _Computing(engine, table, {name: ""}) as computing:
        done = delete(table, computing.where(tree.args.get("where")))
    return _told({"deleted": done.deleted}, done.snapshot)


def _update(engine: Engine, tree: Any) -> pa.RecordBatchReader:
    from shoal.table.update import update

    _no(tree, "from_", "from", "order", "limit")
    table, name = _target(engine, tree.this, take_hints(tree.this))
    with _Computing(engine, table, {name: ""}) as computing:
        values = computing.assignments(tree.expressions, name)
        done = update(table, values, computing.where(tree.args.get("where")))
    return _told({"updated": done.updated}, done.snapshot)


class _Computing:
    """Expressions of a statement as functions of batches, which DuckDB computes.

    `sides` are the names that expressions call tables by, with what the columns of a batch begin with.
    """

    def __init__(
        self, engine: Engine, table: Table, sides: Mapping[str, str], beside: Sequence[str] = (), first: str = ""
    ) -> None:
        """`beside` are the columns of the other side, whose names begin with `first` in a batch."""
        self._engine = engine
        self.table = table
        self._sides = {n.lower(): p for n, p in sides.items()}
        self._names = {"": list(table.readable), first: list(beside)} if first else {"": list(table.readable)}
        self._connections: list[duckdb.DuckDBPyConnection] = []

    def __enter__(self) -> _Computing:
        return self

    def __exit__(self, *_: object) -> None:
        for c in self._connections:
            c.close()

    def where(self, node: Any) -> pc.Expression | Computed | None:
        """A condition: a filter that narrows the scan where that says it, else a function."""
        if node is None:
            return None
        from sqlglot import exp

        condition = node.this if isinstance(node, exp.Where) else node
        if not condition.find(exp.Query):
            plain = self._resolved(condition, None)[0]
            try:
                return parse(plain.sql(dialect="duckdb"), self.table.readable_schema)
            except ShoalError:
                pass  # DuckDB knows more functions, and says better what is wrong
        return self.computed(condition)

    def assignments(self, pairs: Sequence[Any], name: str) -> dict[str, Any]:
        """Values by column of SET a = ..., b = ..."""
        from sqlglot import exp

        out: dict[str, Any] = {}
        for p in pairs:
            if not isinstance(p, exp.EQ) or not isinstance(p.this, exp.Column):
                raise BadRequest(f"cannot read SET {p.sql()}", hint="write SET column = value")
            if p.this.table and p.this.table.lower() != name.lower():
                raise BadRequest(f"SET {p.this.sql()}: only columns of '{name}' are changed")
            column = spelling(p.this.name, list(self.table.schema.names), "column")
            if column in out:
                raise BadRequest(f"SET names column '{column}' twice")
            out[column] = self.value(p.expression, column)
        return out

    def value(self, node: Any, column: str) -> Any:
        """A value for a column."""
        return self.computed(node, self.table.arrow_schema.field(column))

    def computed(self, node: Any, field: pa.Field | None = None) -> Computed:
        from sqlglot import exp

        tree, reads = self._resolved(node, _ROWS)
        rows = exp.Table(this=exp.to_identifier(_ROWS, quoted=True))
        number = exp.column(exp.to_identifier(_NUMBER, quoted=True), exp.to_identifier(_ROWS, quoted=True))
        select = exp.Select(expressions=[number, exp.alias_(tree, "value")]).from_(rows)
        feeds: list[Feed] = []
        sources = self._engine.bind(select, (_ROWS,))
        connection = self._engine.connect()
        self._connections.append(connection)
        for name, source in sources.items():
            connection.register(name, scannable(source, feeds))
        return Computed(connection, render(select), feeds, tuple(reads), field)

    def _resolved(self, node: Any, alias: str | None) -> tuple[Any, list[str]]:
        """(the expression with columns named as in a batch, those of the table that it reads)."""
        from sqlglot import exp

        reads: list[str] = []

        def named(c: Any) -> Any:
            if not isinstance(c, exp.Column) or isinstance(c.this, exp.Star):
                return c
            found = self._column(c)
            if found is None:
                return c
            if not found.startswith(SOURCE):
                reads.append(found)
            table = None if alias is None else exp.to_identifier(alias, quoted=True)
            return exp.column(exp.to_identifier(found, quoted=True), table)

        return node.copy().transform(named), reads

    def _column(self, c: Any) -> str | None:
        """The column of a batch that a name means; None where it belongs to a query inside of the expression."""
        from sqlglot import exp

        inside = c.find_ancestor(exp.Query) is not None
        if c.table:
            side = self._sides.get(c.table.lower())
            if side is None:
                if inside:
                    return None
                raise BadRequest(f"unknown table '{c.table}' in '{c.sql()}'", hint=f"there is {self._there()}")
            return side + spelling(c.name, self._names[side], "column")
        if inside:
            return None
        found = [p + n for p, names in self._names.items() for n in names if n.lower() == c.name.lower()]
        exact = [f for f in found if f.removeprefix(SOURCE) == c.name]
        found = exact or found
        if not found:
            every = [n for names in self._names.values() for n in names]
            return spelling(c.name, every, "column")  # raises, with names that are near
        if len(found) > 1:
            raise BadRequest(f"column '{c.name}' is in both tables", hint=f"write which: {self._there()}")
        return found[0]

    def _there(self) -> str:
        return " and ".join(self._sides)


class Computed:
    """An expression as a function of batches. `reads` are the columns of the table that it looks at."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        sql: str,
        feeds: Sequence[Feed],
        reads: tuple[str, ...],
        field: pa.Field | None,
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._feeds = feeds
        self._field = field
        self.reads = reads

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        import duckdb
        import pyarrow as pa

        names = unique(rows.schema.names)
        numbers = pa.array(np.arange(rows.num_rows))
        given = pa.Table.from_arrays([*rows.columns, numbers], names=[*names, _NUMBER])
        try:
            self._connection.register(_ROWS, given)
            found = self._connection.sql(self._sql).to_arrow_table()
            self._connection.unregister(_ROWS)
        except (duckdb.Error, OSError, RuntimeError) as err:
            raise problem(err, self._feeds) from err
        # joins that subqueries become may change the order
        order = np.argsort(found.column(0).to_numpy(), kind="stable")
        if len(order) != rows.num_rows:
            raise BadRequest("an expression gives several values for one row")
        values = found.column(1).take(pa.array(order)).combine_chunks()
        array = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
        return array if self._field is None else _fitted(array, self._field.type, f"column '{self._field.name}'")


# ---- MERGE -----------------------------------------------------------------------------------------------


class _Merge:
    """MERGE INTO t USING s ON t.k = s.k WHEN ..."""

    def __init__(self, engine: Engine, tree: Any) -> None:
        self._engine = engine
        self._tree = tree
        hints = take_hints(tree.this)
        self.table, self._mine = _target(engine, tree.this, hints)
        using = tree.args["using"]
        self._theirs = using.alias or using.name
        if not self._theirs:
            raise BadRequest("the source of MERGE needs a name", hint="USING (SELECT ...) AS s")
        if self._theirs.lower() == self._mine.lower():
            raise BadRequest(f"both sides of MERGE are called '{self._mine}'", hint="give one of them an alias")

    def run(self) -> pa.RecordBatchReader:
        source, on, names = self._source()
        sides = {self._mine: "", self._theirs: SOURCE}
        with _Computing(self._engine, self.table, sides, names, SOURCE) as computing:
            clauses = self._clauses(computing, names)
            done: Changed = merge_clauses(self.table, source, on, clauses)
        counts = {"inserted": done.inserted, "updated": done.updated, "deleted": done.deleted}
        return _told(counts, done.snapshot)

    def _source(self) -> tuple[pa.Table, dict[str, str], list[str]]:
        """(the rows of the source, the columns that are matched, the source's own columns)."""
        from sqlglot import exp

        on_ = self._tree.args["on"]
        pairs = [self._pair(c) for c in (on_.flatten() if isinstance(on_, exp.And) else (on_,))]
        using = self._tree.args["using"].copy()
        star = exp.Column(this=exp.Star(), table=exp.to_identifier(self._theirs))
        extra = [exp.alias_(theirs, f"{_MATCH}{i}", quoted=True) for i, (_, theirs) in enumerate(pairs)]
        query = exp.Select(expressions=[star, *extra]).from_(using)
        rows = self._engine.run(query).read_all()
        names = rows.column_names[: len(rows.column_names) - len(pairs)]
        on = {mine: f"{_MATCH}{i}" for i, (mine, _) in enumerate(pairs)}
        if len(on) < len(pairs):
            raise Unsupported("MERGE ... ON matches a column twice", hint="put the other condition into WHEN ... AND")
        if len(set(names)) < len(names):
            raise BadRequest("the source of MERGE has two columns of one name", hint="give them names with AS")
        return rows, on, names

    def _pair(self, node: Any) -> tuple[str, Any]:
        """A column of the table and what it must be equal to, from `t.a = s.b`."""
        from sqlglot import exp

        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.EQ):
            for mine, theirs in ((node.this, node.expression), (node.expression, node.this)):
                if isinstance(mine, exp.Column) and mine.table.lower() == self._mine.lower():
                    columns = list(theirs.find_all(exp.Column))
                    if columns and all(c.table.lower() == self._theirs.lower() for c in columns):
                        return spelling(mine.name, list(self.table.readable), "column"), theirs.copy()
        raise Unsupported(
            f"MERGE ... ON {node.sql()} is not supported",
            hint=f"ON takes equalities such as {self._mine}.id = {self._theirs}.id, joined by AND; other conditions"
            " stand in WHEN MATCHED AND ...",
        )

    def _clauses(self, computing: _Computing, names: Sequence[str]) -> Clauses:
        from sqlglot import exp

        matched: list[Clause] = []
        new: list[Clause] = []
        alone: list[Clause] = []
        for when in self._tree.args["whens"].expressions:
            condition = when.args.get("condition")
            test = None if condition is None else computing.computed(condition)
            then = when.args["then"]
            if isinstance(then, exp.Insert):
                new.append(Clause(self._inserted(then, computing, names), test))
                continue
            values = None
            if isinstance(then, exp.Update):
                if any(isinstance(e, exp.Star) for e in then.expressions):
                    values = self._all(computing, names)
                else:
                    values = computing.assignments(then.expressions, self._mine)
            elif then.name.upper() != "DELETE":
                raise Unsupported(f"MERGE ... THEN {then.sql()} is not supported", hint="UPDATE, DELETE and INSERT are")
            (matched if when.args.get("matched") else alone).append(Clause(values, test))
            if not when.args.get("matched") and not when.args.get("source"):
                raise BadRequest("WHEN NOT MATCHED takes INSERT", hint="WHEN NOT MATCHED BY SOURCE takes the others")
        return Clauses(tuple(matched), tuple(new), tuple(alone))

    def _inserted(self, then: Any, computing: _Computing, names: Sequence[str]) -> dict[str, Any]:
        from sqlglot import exp

        if isinstance(then.this, exp.Star):
            return self._all(computing, names)
        table = self.table
        named = then.this.expressions if then.this is not None else []
        columns = [spelling(c.name, list(table.schema.names), "column") for c in named] or list(table.schema.names)
        values = then.expression.expressions if then.expression is not None else []
        if len(values) == 1 and isinstance(values[0], exp.Tuple):
            values = values[0].expressions
        if len(columns) != len(values):
            raise BadRequest(f"MERGE inserts {len(values)} values into {len(columns)} columns")
        return {c: computing.value(v, c) for c, v in zip(columns, values)}

    def _all(self, computing: _Computing, names: Sequence[str]) -> dict[str, Any]:
        """The values of `*`: columns of the source by name."""
        from sqlglot import exp

        out = {}
        for n in self.table.schema.names:
            theirs = spelling(n, list(names), "column")
            out[n] = computing.value(exp.column(exp.to_identifier(theirs, quoted=True), self._theirs), n)
        return out
