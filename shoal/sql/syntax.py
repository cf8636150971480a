# SPDX-License-Identifier: Apache-2.0
"""SQL text to sqlglot trees: statements told apart, dialect, errors with a place, names of tables.

The dialect is DuckDB's plus back-quoted names, a few types and functions of Flink and Spark, and hints. Invariant: what
cannot be carried over to DuckDB raises; nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from shoal.errors import BadRequest, Unsupported
from shoal.table.where import dialect, syntax_error

_PIECE = re.compile(
    r"""(?P<text>'(?:[^']|'')*(?:'|$) | "(?:[^"]|"")*(?:"|$) | `(?:[^`]|``)*(?:`|$)
                | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|$))
      | (?P<comment>--[^\n]* | /\*.*?(?:\*/|$)) | (?P<end>;) | (?P<space>\s+) | (?P<word>\w[\w$]*) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
# Types that DuckDB has under another name or without a length.
_TYPES = {"BYTES": "BLOB", "TIMESTAMP_LTZ": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}


def split(text: str) -> list[str]:
    """The statements of a text; `;` in quotes and comments does not end one, and comments alone are none.

    >>> split("SELECT ';' -- a; b" + chr(10) + "; SELECT 2;")
    ["SELECT ';' -- a; b", 'SELECT 2']
    """
    out: list[str] = []
    start, solid = 0, False
    for m in _PIECE.finditer(text):
        if m["end"]:
            if solid:
                out.append(text[start : m.start()].strip())
            start, solid = m.end(), False
        elif not m["space"] and not m["comment"]:
            solid = True
    if solid:
        out.append(text[start:].strip())
    return out


def words(statement: str, n: int) -> list[tuple[str, int]]:
    """The first `n` words or signs of a statement, upper-case, and where each ends."""
    out: list[tuple[str, int]] = []
    for m in _PIECE.finditer(statement):
        if not m["space"] and not m["comment"]:
            out.append((m[0].upper(), m.end()))
            if len(out) == n:
                break
    return out


@cache
def query_dialect() -> Any:
    """The dialect of queries: that of filters, plus functions of Flink and Spark that DuckDB has by other names."""
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    spark = Spark()
    base = dialect()
    borrowed = {
        n: Spark.Parser.FUNCTIONS[n] for n in ("COLLECT_LIST", "COLLECT_SET", "GET_JSON_OBJECT", "RLIKE", "SIZE")
    }
    for name in ("DATE_FORMAT", "FROM_UNIXTIME", "TO_DATE"):  # their patterns are Java's: yyyy-MM-dd
        borrowed[name] = partial(Spark.Parser.FUNCTIONS[name], dialect=spark)

    class ShoalQuery(base):  # type: ignore[misc, valid-type]
        class Parser(base.Parser):  # type: ignore[misc, name-defined]
            FUNCTIONS = {**base.Parser.FUNCTIONS, **borrowed, "NVL": exp.Coalesce.from_arg_list}  # noqa: RUF012

    return ShoalQuery


def parse_query(text: str) -> Any:
    """The tree of one query; `BadRequest` with line and column when it is none."""
    from sqlglot import exp

    tree = _parsed(text, "query")
    if not isinstance(tree, exp.Query | exp.Values | exp.Pivot | exp.Summarize):
        kind = "nothing" if tree is None else tree.key.upper()
        raise Unsupported(f"{kind} is not a query", hint="queries start with SELECT, WITH, FROM, VALUES or TABLE")
    _no_change_inside(tree)
    return tree


def parse_change(text: str) -> Any:
    """The tree of one statement that changes rows."""
    from sqlglot import exp

    tree = _parsed(text, "statement")
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.TruncateTable):
        kind = "nothing" if tree is None else tree.key.upper()
        raise Unsupported(f"{kind} changes no rows", hint="INSERT, UPDATE, DELETE, MERGE and TRUNCATE TABLE do")
    if returning := tree.args.get("returning"):
        raise Unsupported(f"{returning.sql()} is not supported", hint="the result says how many rows were touched")
    return tree


def writes(text: str) -> bool:
    """Whether a statement that begins with WITH changes rows in the end."""
    from sqlglot import exp

    try:
        return isinstance(_parsed(text, "statement"), exp.Insert | exp.Update | exp.Delete | exp.Merge)
    except (BadRequest, Unsupported):
        return False  # it is told as a query


def _no_change_inside(tree: Any) -> None:
    from sqlglot import exp

    write = tree.find(exp.Into, exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create)
    if isinstance(write, exp.Into | exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create):
        raise Unsupported(
            f"{write.key.upper()} inside of a query", hint="rows are written with INSERT INTO t SELECT ..."
        )


def _parsed(text: str, what: str) -> Any:
    from sqlglot import ErrorLevel, exp
    from sqlglot.errors import SqlglotError

    with _quiet():
        try:
            trees = query_dialect()().parse(text, error_level=ErrorLevel.IMMEDIATE)
        except SqlglotError as err:
            raise syntax_error(err, what) from err
        except RecursionError as err:
            raise BadRequest(f"the {what} is nested too deeply") from err
    tree = trees[0] if len(trees) == 1 else None
    for cast in () if tree is None else tree.find_all(exp.Cast):
        _known_type(cast.to)
    return tree


def _known_type(kind: Any) -> None:
    """Flink's and Spark's spellings of types, as DuckDB has them."""
    from sqlglot import exp

    t = exp.DataType.Type
    name = str(kind.args.get("kind") or "").upper()
    if kind.this == t.USERDEFINED and name in _TYPES:
        kind.replace(exp.DataType.build(_TYPES[name], dialect="duckdb"))
    elif kind.this in (t.BINARY, t.VARBINARY, t.TIMESTAMPLTZ, t.TIMESTAMPTZ, t.TIME):
        kind.set("expressions", [])  # DuckDB has no lengths there
    elif kind.this == t.TIMESTAMP and kind.expressions and kind.expressions[0].name in ("7", "8", "9"):
        kind.replace(exp.DataType(this=t.TIMESTAMP_NS))


def render(tree: Any) -> str:
    """DuckDB's SQL of a tree."""
    from sqlglot import ErrorLevel
    from sqlglot.errors import UnsupportedError

    with _quiet():
        try:
            return str(tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE, comments=False))
        except UnsupportedError as err:
            raise Unsupported(f"the query uses what DuckDB has not: {' '.join(str(err).split())}") from err


class _quiet:  # noqa: N801 - used as a statement
    """sqlglot reports by logging as well as by raising; only the raising is wanted."""

    def __enter__(self) -> None:
        import logging

        self.log = logging.getLogger("sqlglot")
        self.log.addFilter(_nothing)

    def __exit__(self, *_: object) -> None:
        self.log.removeFilter(_nothing)


def _nothing(_: object) -> bool:
    return False


def table_nodes(tree: Any) -> Iterator[Any]:
    """References to tables: not to CTEs, and not table functions."""
    from sqlglot import exp

    for node in list(tree.find_all(exp.Table)):
        if isinstance(node.this, exp.Identifier) and not (_bare(node) and _is_cte(node)):
            yield node


def _bare(node: Any) -> bool:
    return not node.args.get("db") and not node.args.get("catalog")


def _is_cte(node: Any) -> bool:
    """Whether a bare name means a CTE: one of an enclosing query, of those before it, or itself if recursive."""
    from sqlglot import exp

    name, child, parent = node.name.lower(), node, node.parent
    while parent is not None:
        if isinstance(parent, exp.With):
            ctes = parent.expressions
            at = next(i for i, c in enumerate(ctes) if c is child)
            visible = ctes[: at + 1] if parent.args.get("recursive") else ctes[:at]
        else:
            found = parent.args.get("with_") or parent.args.get("with")
            # from inside of the WITH itself its names were looked up one step before
            visible = found.expressions if found is not None and found is not child else []
        if any(c.alias.lower() == name for c in visible):
            return True
        child, parent = parent, parent.parent
    return False


_HINT = re.compile(r"\s*\+\s*OPTIONS\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(r"\s*'((?:[^']|'')*)'\s*=\s*'((?:[^']|'')*)'\s*(?:,|$)")


def take_hints(tree: Any) -> dict[int, dict[str, str]]:
    """`/*+ OPTIONS('k' = 'v') */` of each table, by the id of its node; a hint that stands elsewhere raises."""
    from sqlglot import exp

    out: dict[int, dict[str, str]] = {}
    for node in tree.walk():
        for comment in node.comments or ():
            if not comment.lstrip().startswith("+") or "OPTIONS" not in comment.upper():
                continue  # a join strategy, say: advice for another engine, the rows are the same
            owner = node if isinstance(node, exp.Table) else node.find_ancestor(exp.Table)
            m = _HINT.fullmatch(comment)
            if owner is None or not m:
                raise Unsupported(
                    f"the hint /*{comment.strip()}*/ is not understood",
                    hint="OPTIONS('key' = 'value') may follow a table name",
                )
            out.setdefault(id(owner), {}).update(_pairs(m[1]))
    for node in list(tree.find_all(exp.Hint)):
        node.pop()
    return out


def _pairs(text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        m = _PAIR.match(text, at)
        if not m:
            raise BadRequest(f"cannot read the hint OPTIONS({text})", hint="write OPTIONS('key' = 'value', ...)")
        out[m[1].replace("''", "'")] = m[2].replace("''", "'")
        at = m.end()
    return out
