# SPDX-License-Identifier: Apache-2.0
"""Arrow's expressions as trees of `predicate`.

Each part is asked when it is true, when it is false and when it is null; the three answers carry SQL's logic through
NOT, OR, CASE and COALESCE. Invariant: an answer may hold for more rows than the part, never for fewer; a part that is
not understood is Opaque. Arrow compares floats as IEEE does (a NaN is unequal to all and above none), the tree as
Paimon does, so both kinds of comparison come out of here as what Arrow keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from shoal.format import expression as ex
from shoal.format.predicate import (
    FALSE,
    TRUE,
    Always,
    Compare,
    Contains,
    EndsWith,
    In,
    IsNull,
    IsValid,
    Like,
    Node,
    Not,
    Opaque,
    StartsWith,
    all_of,
    any_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_OPS = {
    "equal": "=", "not_equal": "<>", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_JOINS = {"and_kleene": True, "and": True, "or_kleene": False, "or": False}
_TEXT: dict[str, type[StartsWith | EndsWith | Contains | Like]] = {
    "starts_with": StartsWith, "ends_with": EndsWith, "match_substring": Contains, "match_like": Like,
}  # fmt: skip
_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY = 86_400 * _UNIT["s"]


def read(expression: pc.Expression, schema: pa.Schema) -> Node:
    """The tree of a filter over columns of these types."""
    part = ex.read(expression)
    if part is None or not ex.columns(part) <= set(schema.names):
        return Opaque(frozenset(schema.names))
    try:
        return _Reader(schema).when(part, True)
    except RecursionError:
        return Opaque(ex.columns(part))


class _Reader:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def when(self, part: ex.Part, state: bool | None) -> Node:
        """When a condition is true, false or null."""
        import pyarrow as pa

        if isinstance(part, ex.Literal):
            return Always(pa.types.is_boolean(part.value.type) and part.value.as_py() is state)
        if isinstance(part, ex.Ref):
            kind = self._type(part)
            if kind is None or not pa.types.is_boolean(kind):
                return Opaque(ex.columns(part))
            return self._known(part.path[0], None if state is None else [Compare("=", part.path[0], pa.scalar(state))])
        name = part.name
        if name in _JOINS:
            parts = _chain(part, _JOINS[name])
            join = all_of if state is not None and _JOINS[name] == state else any_of
            return join(self.when(p, state) for p in parts)
        if name == "invert":
            return self.when(part.args[0], None if state is None else not state)
        if name in _OPS:
            return self._compare(_OPS[name], part, state)
        if name in ("is_null", "is_valid", "is_nan"):
            return self._test(part, state)
        if name == "is_in":
            return self._in(part, state)
        if name in _TEXT or name == "match_substring_regex":
            return self._text(part, state)
        if name == "if_else":
            return self._if_else(part, state)
        if name == "coalesce":
            return self._coalesce(part.args, state)
        return Opaque(ex.columns(part))

    @staticmethod
    def _known(column: str, when: Sequence[Node] | None) -> Node:
        """A condition that is null exactly where its column is (`when` is None then)."""
        return IsNull(column) if when is None else all_of(when)

    # ---- functions

    def _if_else(self, part: ex.Call, state: bool | None) -> Node:
        test, yes, no = part.args
        arms = [
            all_of([self.when(test, True), self.when(yes, state)]),
            all_of([self.when(test, False), self.when(no, state)]),
        ]
        return any_of([*arms, self.when(test, None)] if state is None else arms)

    def _coalesce(self, args: Sequence[ex.Part], state: bool | None) -> Node:
        nulls = [self.when(a, None) for a in args]
        if state is None:
            return all_of(nulls)
        return any_of(all_of([*nulls[:i], self.when(a, state)]) for i, a in enumerate(args))

    def _test(self, part: ex.Call, state: bool | None) -> Node:
        import pyarrow as pa

        inner = part.args[0]
        column = self._column(inner)
        if part.name == "is_nan":
            if column is None or not pa.types.is_floating(column[1]):
                return Opaque(ex.columns(part))
            nan = pa.scalar(math.nan, column[1])
            return self._known(column[0], None if state is None else [Compare("=" if state else "<>", column[0], nan)])
        if state is None:
            return FALSE
        yes = (part.name == "is_null") == state
        with_nan = part.name == "is_null" and bool(_option(part, "nan_is_null"))
        if column is not None:
            is_null, is_valid = IsNull(column[0]), IsValid(column[0])
            if with_nan and pa.types.is_floating(column[1]):
                nan = pa.scalar(math.nan, column[1])
                return any_of([is_null, Compare("=", column[0], nan)]) if yes else Compare("<>", column[0], nan)
            return is_null if yes else is_valid
        if isinstance(inner, ex.Literal) and not with_nan:
            return Always(inner.value.is_valid != yes)
        if isinstance(inner, ex.Call) and not with_nan:  # a condition; another function is Opaque either way
            return self.when(inner, None) if yes else any_of([self.when(inner, True), self.when(inner, False)])
        return Opaque(ex.columns(part))

    def _text(self, part: ex.Call, state: bool | None) -> Node:
        import pyarrow as pa

        column = self._column(part.args[0])
        pattern = _option(part, "pattern")
        if column is None or not (pa.types.is_string(column[1]) or pa.types.is_large_string(column[1])):
            return Opaque(ex.columns(part))
        name = column[0]
        if state is None:
            return IsNull(name)
        if part.name not in _TEXT or _option(part, "ignore_case") or not isinstance(pattern, str):
            return all_of([IsValid(name), Opaque(frozenset((name,)))])
        if not pattern and part.name != "match_like":
            return IsValid(name) if state else FALSE
        leaf = _TEXT[part.name](name, pattern)
        return leaf if state else Not(leaf)

    def _in(self, part: ex.Call, state: bool | None) -> Node:
        import pyarrow as pa

        column = self._column(part.args[0])
        if column is None or part.options is None:
            return Opaque(ex.columns(part))
        name, kind = column
        given = part.options["value_set"].values
        mode = _option(part, "null_matching_behavior")  # 0 match, 1 skip, 2 emit null, 3 inconclusive
        values = _as_column(given.drop_null().unique(), kind)
        if values is None or mode not in (0, 1, 2, 3):
            return Opaque(ex.columns(part))
        has_null = given.null_count > 0
        if state is None:
            return FALSE if mode < 2 else TRUE if mode == 3 and has_null else IsNull(name)
        if state:
            return any_of([_one_of(name, values), IsNull(name) if mode == 0 and has_null else FALSE])
        if mode == 3 and has_null:
            return FALSE
        others = IsValid(name) if pa.types.is_floating(kind) or not len(values) else _none_of(name, values)
        return any_of([others, IsNull(name) if mode == 1 or (mode == 0 and not has_null) else FALSE])

    def _compare(self, op: str, part: ex.Call, state: bool | None) -> Node:
        import pyarrow as pa
        import pyarrow.compute as pc

        a, b = part.args
        left, right = self._column(a), self._column(b)
        if left is None and isinstance(a, ex.Literal):
            if isinstance(b, ex.Literal):
                try:
                    return Always(pc.call_function(part.name, [a.value, b.value]).as_py() is state)
                except pa.ArrowException:
                    return Opaque(frozenset())
            left, right, b, op = right, left, a, _FLIPPED[op]
        if left is None:
            return Opaque(ex.columns(part))
        name, kind = left
        if isinstance(b, ex.Literal):
            if not b.value.is_valid:
                return TRUE if state is None else FALSE
            if state is None:
                return IsNull(name)
            return _with_value(op, name, kind, b.value, state)
        if right is None:
            return Opaque(ex.columns(part))
        if right == left:
            return IsNull(name) if state is None else _with_itself(op, name, kind, state)
        if state is None:
            return any_of([IsNull(name), IsNull(right[0])])
        return all_of([IsValid(name), IsValid(right[0]), Opaque(frozenset((name, right[0])))])

    # ---- columns

    def _type(self, ref: ex.Ref) -> pa.DataType | None:
        return self.schema.field(ref.path[0]).type if len(ref.path) == 1 else None

    def _column(self, part: ex.Part) -> tuple[str, pa.DataType] | None:
        """(name, type) of a column, looking through casts that keep every value and the order."""
        if isinstance(part, ex.Ref):
            kind = self._type(part)
            return None if kind is None else (part.path[0], kind)
        if isinstance(part, ex.Call) and part.name == "cast" and part.options is not None:
            inner = self._column(part.args[0])
            if inner is not None and _keeps_all(inner[1], part.options["to_type"].type):
                return inner
        return None


def _chain(part: ex.Call, conjunction: bool) -> list[ex.Part]:
    """The operands of a chain of ANDs (or ORs), however deep it is nested."""
    out: list[ex.Part] = []
    rest: list[ex.Part] = [part]
    while rest:
        p = rest.pop()
        if isinstance(p, ex.Call) and _JOINS.get(p.name) is conjunction:
            rest += reversed(p.args)
        else:
            out.append(p)
    return out


def _option(part: ex.Call, name: str) -> Any:
    if part.options is None or name not in {f.name for f in part.options.type}:
        return None
    return part.options[name].as_py()


def _keeps_all(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether a cast from `a` to `b` changes no value."""
    import pyarrow as pa

    p = pa.types
    if a == b:
        return True
    if p.is_integer(a):
        if p.is_integer(b):
            return (a.bit_width < b.bit_width and p.is_signed_integer(b)) or (
                a.bit_width < b.bit_width and p.is_unsigned_integer(a)
            )
        return bool(p.is_float64(b) and a.bit_width <= 32)
    if p.is_float32(a):
        return bool(p.is_float64(b))
    if p.is_decimal(a) and p.is_decimal(b):
        return bool(b.scale >= a.scale and b.precision - b.scale >= a.precision - a.scale)
    if p.is_timestamp(a) and p.is_timestamp(b):
        return (a.tz is None) == (b.tz is None) and _UNIT[b.unit] <= _UNIT[a.unit]
    if p.is_date32(a):
        return bool(p.is_timestamp(b) and b.tz is None)
    return bool(
        (p.is_string(a) and p.is_large_string(b))
        or ((p.is_binary(a) or p.is_fixed_size_binary(a)) and (p.is_binary(b) or p.is_large_binary(b)))
    )


# ---- comparisons -----------------------------------------------------------------------------------------


def _with_itself(op: str, name: str, kind: pa.DataType, state: bool) -> Node:
    """`k = k` and the like. Of floats only NaN is unequal to itself."""
    import pyarrow as pa

    if pa.types.is_floating(kind) and op not in ("<", ">"):
        return Compare("<>" if (op != "<>") == state else "=", name, pa.scalar(math.nan, kind))
    return IsValid(name) if (op in ("=", "<=", ">=")) == state else FALSE


def _with_value(op: str, name: str, kind: pa.DataType, value: pa.Scalar, state: bool) -> Node:
    """When `name op value` is true (or false)."""
    import pyarrow as pa

    p = pa.types
    unclear = all_of([IsValid(name), Opaque(frozenset((name,)))])
    if p.is_floating(kind):
        return _float(op, name, kind, value, state) or unclear
    if p.is_integer(kind) or p.is_decimal(kind) or p.is_temporal(kind):
        at = _place(kind, value)
        if isinstance(at, float) and math.isnan(at):  # unequal to NaN, whatever the column holds
            return IsValid(name) if (op == "<>") == state else FALSE
        return unclear if at is None else _on_grid(op if state else _NEGATED[op], name, kind, at)
    same = _as_column(pa.array([value.as_py()], value.type), kind) if not p.is_nested(kind) else None
    return unclear if same is None or not len(same) else Compare(op if state else _NEGATED[op], name, same[0])


def _float(op: str, name: str, kind: pa.DataType, value: pa.Scalar, state: bool) -> Node | None:
    """A float column against a number; None when Arrow would round one of them."""
    import pyarrow as pa

    p = pa.types
    digits = 53 if p.is_float64(kind) else 24 if p.is_float32(kind) else 11
    number = value.as_py()
    if p.is_integer(value.type):
        if abs(number) > 1 << digits:
            return None
    elif not p.is_floating(value.type):
        return None
    number = float(number)
    if math.isnan(number):
        return IsValid(name) if (op == "<>") == state else FALSE
    same = pa.scalar(number, pa.float64()).cast(kind, safe=False)
    if same.as_py() != number:
        return None
    nan = pa.scalar(math.nan, kind)
    if op in ("<", "<=", "=", "<>") or not state:
        found = Compare(op if state else _NEGATED[op], name, same)
        return any_of([found, Compare("=", name, nan)]) if op in (">", ">=") else found
    return all_of([Compare(op, name, same), Compare("<>", name, nan)])


def _place(kind: pa.DataType, value: pa.Scalar) -> Fraction | float | None:
    """Where a value lies among the whole steps of a column's type; None when Arrow compares them in another way."""
    import pyarrow as pa

    p, t = pa.types, value.type
    if p.is_floating(t):
        number = value.as_py()
        exact = 53 if p.is_float64(t) else 24
        if not p.is_integer(kind) or (math.isfinite(number) and abs(number) >= 1 << exact):
            return None
        return Fraction(number) if math.isfinite(number) else number
    if p.is_integer(kind) or p.is_decimal(kind):
        if not (p.is_integer(t) or p.is_decimal(t)):
            return None
        return Fraction(value.as_py()) * 10 ** (kind.scale if p.is_decimal(kind) else 0)
    if p.is_time(kind) or p.is_time(t):
        return Fraction(value.value * _UNIT[t.unit], _UNIT[kind.unit]) if p.is_time(kind) and p.is_time(t) else None
    ns = _instant(value)
    zoned = [p.is_timestamp(k) and k.tz is not None for k in (kind, t)]
    if ns is None or zoned[0] != zoned[1]:
        return None
    if p.is_date32(kind):
        return Fraction(ns, _DAY)
    return Fraction(ns, _UNIT[kind.unit]) if p.is_timestamp(kind) else None


def _instant(value: pa.Scalar) -> int | None:
    """Nanoseconds since 1970 of a date or timestamp."""
    import pyarrow as pa

    p, t = pa.types, value.type
    if p.is_timestamp(t):
        return int(value.value) * _UNIT[t.unit]
    if p.is_date(t):
        return int(value.value) * (_DAY if p.is_date32(t) else _UNIT["ms"])
    return None


def _on_grid(op: str, name: str, kind: pa.DataType, at: Fraction | float) -> Node:
    """A comparison with a value that may lie between two values of the type, or outside of all."""
    import pyarrow as pa

    p = pa.types
    if p.is_decimal(kind):
        low, high = -(10**kind.precision) + 1, 10**kind.precision - 1
    else:
        low, high = _limits(kind)
    if isinstance(at, float):  # an infinity
        at = Fraction(high + 1 if at > 0 else low - 1)
    down, up = math.floor(at), math.ceil(at)
    if op in ("=", "<>"):
        if down == up and low <= down <= high:
            return Compare(op, name, _step(kind, down))
        return FALSE if op == "=" else IsValid(name)
    bound = up if op in ("<", ">=") else down
    if bound > high or bound < low:
        return IsValid(name) if (bound > high) == (op in ("<", "<=")) else FALSE
    return Compare(op, name, _step(kind, bound))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    import pyarrow as pa

    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1


def _step(kind: pa.DataType, i: int) -> pa.Scalar:
    """The i-th value of a type that is made of whole steps."""
    from decimal import Decimal

    import pyarrow as pa

    p = pa.types
    if p.is_decimal(kind):
        return pa.scalar(Decimal((int(i < 0), tuple(map(int, str(abs(i)))), -kind.scale)), kind)
    if p.is_temporal(kind):
        return pa.array([i], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)[0]
    return pa.scalar(i, kind)


# ---- sets ------------------------------------------------------------------------------------------------


def _as_column(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The values that a column of this type can hold, in its type; None when Arrow compares them in another way."""
    import pyarrow as pa
    import pyarrow.compute as pc

    p, t = pa.types, values.type
    if t == kind:
        return values
    text = (p.is_string, p.is_large_string, p.is_string_view)
    raw = (p.is_binary, p.is_large_binary, p.is_fixed_size_binary, p.is_binary_view)
    if any(any(f(kind) for f in group) and any(f(t) for f in group) for group in (text, raw)):
        if not p.is_fixed_size_binary(kind):
            return values.cast(kind)
        return values.filter(pc.equal(pc.binary_length(values), kind.byte_width)).cast(kind)
    if not (p.is_integer(kind) or p.is_decimal(kind) or p.is_temporal(kind)):
        return None
    if p.is_integer(kind) and p.is_integer(t):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            pass  # some are out of its range: one by one
    out = []
    for v in values:
        at = _place(kind, v)
        if at is None:
            return None
        found = FALSE if isinstance(at, float) else _on_grid("=", "", kind, at)
        if isinstance(found, Compare):
            out.append(found.value)
    return pa.array(out, kind)


def _one_of(name: str, values: pa.Array) -> Node:
    if len(values) < 2:
        return Compare("=", name, values[0]) if len(values) else FALSE
    return In(name, values)


def _none_of(name: str, values: pa.Array) -> Node:
    return Compare("<>", name, values[0]) if len(values) == 1 else Not(In(name, values))
