# SPDX-License-Identifier: Apache-2.0
"""The text after WHERE, as an Arrow expression over a table's columns.

Literals take the type of the column they meet. Invariant: a filter made here keeps exactly the rows that SQL keeps:
null is neither true nor false, NaN equals itself and is above every number, and a literal between two values of a
column's type (`k > 1.5`, `d = 0.125` on DECIMAL(9, 2)) is compared exactly, not rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, near
from shoal.format.types import Field
from shoal.table.compare import (
    DAY,
    Column,
    Literal,
    balanced,
    compare,
    in_set,
    null,
    sql_type,
    to_boolean,
    to_instant,
    to_number,
    to_time,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


Path = tuple[str, ...]

# Most statements that do not parse are typos, or names that are also words of SQL.
_READ_HINT = "look at that place; names that are words of SQL go in back-quotes"


def parse(text: str, schema: pa.Schema, wide: Collection[Path] = ()) -> pc.Expression:
    """The expression of a predicate such as `dt = '2026-11-01' AND total > 100`.

    `wide` names the columns (and members of ROW columns) that are timestamps, although they are decimals in Arrow.

    >>> import pyarrow as pa
    >>> print(parse("K > 1.5", pa.schema([("k", pa.int32())])))
    (k > 1)
    """
    import pyarrow as pa

    try:
        expression = _Reader(schema, wide).predicate(_syntax(text))
        schema.empty_table().filter(expression)  # binds it, and so finds types that Arrow cannot compare
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError) as err:
        raise BadRequest(f"cannot use the filter '{text}': {_one_line(err)}") from err
    except RecursionError as err:
        raise BadRequest("the filter is nested too deeply", hint="use IN (...) for long lists") from err
    return expression


def wide_paths(fields: Iterable[Field], above: Path = ()) -> frozenset[Path]:
    """Where timestamps of any year lie: columns, and members of ROW columns."""
    found: set[Path] = set()
    for f in fields:
        at = (*above, f.name)
        if f.type.wide:
            found.add(at)
        elif f.type.root == "ROW":
            found |= wide_paths(f.type.fields, at)
    return frozenset(found)


def columns_of(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that an expression reads, in schema order.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> columns_of(pc.field("k") > 1, pa.schema([("k", pa.int32()), ("v", pa.string())]))
    ['k']
    """
    import pyarrow as pa

    def binds(without: pa.Schema) -> bool:
        try:
            without.empty_table().filter(expression)
        except (pa.ArrowException, TypeError):
            return False
        return True

    if not binds(schema):
        raise BadRequest(f"the filter '{expression}' does not fit the columns {', '.join(schema.names)}")
    text = str(expression)
    if "FieldPath(" in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        raise BadRequest(
            f"the filter '{expression}' names columns by number, which a scan cannot follow", hint="use their names"
        )
    return [n for i, n in enumerate(schema.names) if n in text and not binds(schema.remove(i))]


@cache
def dialect() -> Any:  # sqlglot's classes are untyped here
    """DuckDB's SQL plus back-quoted names: what filters and queries are read as."""
    from sqlglot.dialects.duckdb import DuckDB

    class Shoal(DuckDB):  # type: ignore[misc]
        class Tokenizer(DuckDB.Tokenizer):  # type: ignore[misc]
            IDENTIFIERS = ['"', "`"]  # noqa: RUF012 - sqlglot's way to set it
            HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012

    return Shoal


def syntax_error(err: Exception, what: str) -> BadRequest:
    """sqlglot's complaint in one line, with the place."""
    found: list[dict[str, Any]] = getattr(err, "errors", None) or []
    if not found:
        return BadRequest(f"cannot read the {what}: {_one_line(err)}", hint=_READ_HINT)
    e = found[0]
    at = f"line {e['line']}, column {e['col']}"
    near_text = f" at '{e['highlight']}'" if e.get("highlight") else ""
    says = re.sub(r"Expected (.*?) but got <Token.*", r"expected \1", str(e["description"]), flags=re.DOTALL)
    says = re.sub(r"Required keyword: '(\w+)' missing for .*", "something is missing", says)
    return BadRequest(f"cannot read the {what}: {says.rstrip('.')}{near_text} ({at})", hint=_READ_HINT)


def resolve(name: str, names: Sequence[str], what: str = "column") -> str:
    """The name as it is spelled in `names`: an exact match first, then the only one that differs in case."""
    if name in names:
        return name
    same = [n for n in names if n.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    if same:
        raise BadRequest(f"{what} '{name}' could be {' or '.join(same)}", hint="write it exactly, in back-quotes")
    lower = {n.lower(): n for n in names}
    hint = near(name.lower(), lower)
    for found, n in lower.items() if hint else ():
        hint = hint and hint.replace(f"'{found}'", f"'{n}'")
    raise BadRequest(f"unknown {what} '{name}'", hint=hint or f"there are {', '.join(names)}")


def _syntax(text: str) -> Any:
    from sqlglot import ErrorLevel, exp
    from sqlglot.errors import SqlglotError

    try:
        found = dialect()().parse_into(exp.Condition, text, error_level=ErrorLevel.IMMEDIATE)
    except SqlglotError as err:
        raise syntax_error(getattr(err, "__cause__", None) or err, "filter") from err
    if len(found) != 1 or found[0] is None:
        raise BadRequest("a filter is one condition", hint="such as \"dt = '2026-11-01' AND total > 100\"")
    return found[0]


def _one_line(err: BaseException) -> str:
    return " ".join(str(err).split())


class _Reader:
    """Turns sqlglot's tree into an expression."""

    def __init__(self, schema: pa.Schema, wide: Collection[Path]) -> None:
        from sqlglot import exp

        self.schema = schema
        self.wide = wide
        self.compare: dict[Any, str] = {
            exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
        }  # fmt: skip
        self.read: dict[Any, Callable[[Any], pc.Expression]] = {
            **dict.fromkeys(self.compare, self._comparison),
            exp.And: self._all, exp.Or: self._any, exp.Not: self._not,
            exp.In: self._in, exp.Between: self._between, exp.Is: self._is,
            exp.Like: self._like, exp.ILike: self._like, exp.Escape: self._like,
            exp.NullSafeEQ: self._same, exp.NullSafeNEQ: lambda n: ~self._same(n),
        }  # fmt: skip

    # ---- conditions

    def predicate(self, node: Any) -> pc.Expression:
        import pyarrow as pa
        import pyarrow.compute as pc

        node = node.unnest()
        if type(node) in self.read:
            return self.read[type(node)](node)
        value = self.operand(node)
        if isinstance(value, Column):
            if pa.types.is_boolean(value.type):
                return value.e
            raise BadRequest(
                f"column '{value.name}' is {sql_type(value.type)}, not BOOLEAN", hint="compare it with a value"
            )
        if value.kind == "null":
            return null()
        if value.kind != "bool":
            raise BadRequest(f"{value.text} is not a condition")
        return pc.scalar(value.value)

    def _all(self, node: Any) -> pc.Expression:
        return balanced([self.predicate(n) for n in node.flatten()], lambda a, b: a & b)

    def _any(self, node: Any) -> pc.Expression:
        return balanced([self.predicate(n) for n in node.flatten()], lambda a, b: a | b)

    def _not(self, node: Any) -> pc.Expression:
        from sqlglot import exp

        inner = node.this.unnest()
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            value = self.operand(inner.this)
            if isinstance(value, Column):
                return value.e.is_valid()  # Arrow prunes with this, not with the inverse of is_null
        return ~self.predicate(inner)

    def _comparison(self, node: Any) -> pc.Expression:
        return compare(self.compare[type(node)], self.operand(node.this), self.operand(node.expression))

    def _between(self, node: Any) -> pc.Expression:
        if node.args.get("symmetric"):
            raise BadRequest("BETWEEN SYMMETRIC is not supported in a filter", hint="write the lower bound first")
        value = self.operand(node.this)
        low, high = self.operand(node.args["low"]), self.operand(node.args["high"])
        return compare(">=", value, low) & compare("<=", value, high)

    def _in(self, node: Any) -> pc.Expression:
        if not node.expressions:
            raise BadRequest("IN takes a list of literals in a filter", hint="a query can take IN (SELECT ...)")
        value, items = self.operand(node.this), [self.operand(n) for n in node.expressions]
        many = [i for i in items if isinstance(i, Literal) and i.kind != "null"]
        if isinstance(value, Column) and len(many) > 8 and (found := in_set(value, many)) is not None:
            rest = [compare("=", value, i) for i in items if isinstance(i, Column) or i.kind == "null"]
            return balanced([found, *rest], lambda a, b: a | b)
        return balanced([compare("=", value, i) for i in items], lambda a, b: a | b)

    def _is(self, node: Any) -> pc.Expression:
        import pyarrow.compute as pc
        from sqlglot import exp

        right = node.expression
        if node.args.get("negate"):
            positive = node.copy()
            positive.set("negate", None)
            return self._not(exp.Not(this=positive))
        if isinstance(right, exp.Null):
            value = self.operand(node.this)
            return value.e.is_null() if isinstance(value, Column) else pc.scalar(value.kind == "null")
        if isinstance(right, exp.Boolean):
            condition = self.predicate(node.this)
            return pc.coalesce(condition if right.this else ~condition, pc.scalar(False))
        raise BadRequest(f"'{right.sql()}' after IS is not supported in a filter", hint="IS takes NULL, TRUE or FALSE")

    def _same(self, node: Any) -> pc.Expression:
        """IS NOT DISTINCT FROM: null is the same as null."""
        import pyarrow.compute as pc

        left, right = self.operand(node.this), self.operand(node.expression)
        nulls = [v.e.is_null() if isinstance(v, Column) else pc.scalar(v.kind == "null") for v in (left, right)]
        return pc.coalesce(compare("=", left, right), nulls[0] & nulls[1])

    def _like(self, node: Any) -> pc.Expression:
        import pyarrow as pa
        from sqlglot import exp

        escape = None
        if isinstance(node, exp.Escape):
            mark = self.operand(node.expression)
            if not isinstance(mark, Literal) or mark.kind != "text" or len(mark.value) > 1:
                raise BadRequest("ESCAPE takes one character")
            escape, node = mark.value or None, node.this
        if not isinstance(node, exp.Like | exp.ILike):
            raise BadRequest("ESCAPE follows a LIKE")
        value, pattern = self.operand(node.this), self.operand(node.expression)
        if not isinstance(value, Column) or not pa.types.is_string(value.type):
            raise BadRequest("LIKE needs a column of strings on its left")
        if not isinstance(pattern, Literal) or pattern.kind not in ("text", "null"):
            raise BadRequest("LIKE needs a pattern in quotes on its right")
        if pattern.kind == "null":
            return null()
        found = _matches(value.e, pattern.value, escape, isinstance(node, exp.ILike))
        return ~found if node.args.get("negate") else found

    # ---- values

    def operand(self, node: Any) -> Column | Literal:
        import pyarrow as pa
        from sqlglot import exp

        node = node.unnest()
        if isinstance(node, exp.Column | exp.Dot):
            return self._column(node)
        if type(node) in self.read:
            return Column(node.sql(), pa.bool_(), self.predicate(node))
        literal = _literal(node)
        if literal is not None:
            return literal
        if isinstance(node, exp.Func) and not isinstance(node, exp.Cast):
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            raise BadRequest(f"the function {name.upper()} is not supported in a filter", hint="a query can use it")
        raise BadRequest(f"'{node.sql()}' is not supported in a filter", hint="compare columns with literals")

    def _column(self, node: Any) -> Column:
        import pyarrow as pa
        import pyarrow.compute as pc

        path = [p.name for p in node.parts] if hasattr(node, "parts") else []
        if not path or any(not p for p in path):
            raise BadRequest(f"'{node.sql()}' is not supported in a filter", hint="name one column")
        names = [resolve(path[0], self.schema.names)]
        kind = self.schema.field(names[0]).type
        for part in path[1:]:
            if not pa.types.is_struct(kind):
                raise BadRequest(f"column '{'.'.join(names)}' is {sql_type(kind)}, it has no member '{part}'")
            names.append(resolve(part, [f.name for f in kind], f"member of '{'.'.join(names)}'"))
            kind = kind.field(names[-1]).type
        return Column(".".join(names), kind, pc.field(*names), tuple(names) in self.wide)


def _literal(node: Any) -> Literal | None:
    from sqlglot import exp

    text = f"x'{node.this}'" if isinstance(node, exp.HexString) else node.sql()
    if isinstance(node, exp.Null):
        return Literal("null", None, text)
    if isinstance(node, exp.Boolean):
        return Literal("bool", bool(node.this), text)
    if isinstance(node, exp.Literal):
        return Literal("text", node.this, text) if node.is_string else Literal("number", Decimal(node.this), text)
    if isinstance(node, exp.HexString):
        try:
            return Literal("bytes", bytes.fromhex(node.this), text)
        except ValueError as err:
            raise BadRequest(f"x'{node.this}' is not pairs of hexadecimal digits") from err
    if isinstance(node, exp.Neg):
        inner = _literal(node.this.unnest())
        if inner is not None and inner.kind == "number":
            # copy_negate keeps all digits; a plain minus would round to the decimal context
            value = inner.value.copy_negate() if isinstance(inner.value, Decimal) else -inner.value
            return Literal("number", value, text)
    if isinstance(node, exp.Cast):
        inner = _literal(node.this.unnest())
        return None if inner is None else _cast(inner, node.to, text)
    return None


def _cast(literal: Literal, to: Any, text: str) -> Literal:
    """`CAST('...' AS type)` and `DATE '...'`, worked out here."""
    from sqlglot import exp

    if literal.kind == "null":
        return literal
    t = exp.DataType.Type
    kind, value = literal.kind, literal.value
    if to.this in (t.TEXT, t.VARCHAR, t.CHAR, t.NCHAR, t.NVARCHAR) and kind in ("text", "number"):
        return Literal("text", literal.value if kind == "text" else str(value), text)
    if to.is_type(*exp.DataType.NUMERIC_TYPES) and kind in ("text", "number"):
        number = to_number(literal) if kind == "text" else value
        # to_integral_value, not int(): 1e999999999 would be a number of a gigabyte
        whole = number.to_integral_value() == number if isinstance(number, Decimal) else number.is_integer()
        if to.is_type(*exp.DataType.INTEGER_TYPES) and not whole:
            raise BadRequest(f"{literal.text} is not a whole number")
        return Literal("number", number, text)
    if to.this == t.BOOLEAN and kind in ("text", "bool"):
        return Literal("bool", value if kind == "bool" else to_boolean(literal), text)
    if to.this in (t.DATE, t.DATE32) and kind in ("text", "date", "instant"):
        ns = to_instant(literal) if kind == "text" else value
        return Literal("date", ns // DAY * DAY, text)
    if to.is_type(*exp.DataType.TEMPORAL_TYPES) and to.this != t.TIME and kind in ("text", "date", "instant"):
        return Literal("instant", to_instant(literal) if kind == "text" else value, text)
    if to.this == t.TIME and kind in ("text", "time"):
        return Literal("time", to_time(literal) if kind == "text" else value, text)
    if to.this in (t.BINARY, t.VARBINARY, t.BLOB) and kind in ("text", "bytes"):
        return Literal("bytes", value.encode() if kind == "text" else value, text)
    raise BadRequest(f"{text} is not supported in a filter")


# ---- LIKE


def _matches(e: pc.Expression, pattern: str, escape: str | None, ignore_case: bool) -> pc.Expression:
    """`%` is any text, `_` one character; nothing escapes unless ESCAPE says so."""
    import pyarrow.compute as pc

    parts: list[tuple[bool, str]] = []  # (is a wildcard, text)
    chars = iter(pattern)
    for c in chars:
        if escape is not None and c == escape:
            literal = next(chars, None)
            if literal is None:
                raise BadRequest(f"the pattern '{pattern}' ends with its escape character")
            parts.append((False, literal))
        else:
            parts.append((c in "%_", c))
    lead = "".join(c for wild, c in _until_wild(parts))
    if not ignore_case:
        if len(lead) == len(parts):
            return e == lead
        if parts[len(lead) :] == [(True, "%")]:
            return _with_prefix(e, lead)
    regex = "".join((".*" if c == "%" else ".") if wild else re.escape(c) for wild, c in parts)
    found = pc.match_substring_regex(e, rf"(?s)\A(?:{regex})\z", ignore_case=ignore_case)
    return found if ignore_case or not lead else _with_prefix(e, lead) & found


def _until_wild(parts: Sequence[tuple[bool, str]]) -> Sequence[tuple[bool, str]]:
    for i, (wild, _) in enumerate(parts):
        if wild:
            return parts[:i]
    return parts


def _with_prefix(e: pc.Expression, prefix: str) -> pc.Expression:
    """A prefix, with the range of strings it spans: the range is what can drop files."""
    import pyarrow.compute as pc

    found = pc.starts_with(e, prefix)
    if not prefix:
        return found
    last = ord(prefix[-1])
    if last >= 0xD7FF:  # the next character would be a surrogate, or none
        return (e >= prefix) & found
    return (e >= prefix) & (e < prefix[:-1] + chr(last + 1)) & found
