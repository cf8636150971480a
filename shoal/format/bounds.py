# SPDX-License-Identifier: Apache-2.0
"""Which files cannot hold a row that a filter wants, by the bounds and null counts of their columns.

Agrees with: PredicateEvaluator over SimpleColStats (2.0.0), and is more careful: bounds of floats may leave out NaN,
those of CHAR columns may carry blanks. Invariant: what is not known keeps the file. Bounds have the type of the column
that the filter sees; after a change of type the caller converts them or leaves them out.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.format.predicate import (
    Always,
    And,
    Compare,
    Contains,
    EndsWith,
    In,
    IsNull,
    IsValid,
    Leaf,
    Like,
    Node,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from shoal.format.row import UNIT_NS, Value

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.data_writer import ColumnBounds

Mask = NDArray[np.bool_]


# ---- one file --------------------------------------------------------------------------------------------


def keep_bounds(node: Node, bounds: Mapping[str, ColumnBounds], rows: int, padded: Collection[str] = ()) -> bool:
    """Whether a file with these column bounds (stored values, see `row`) may hold a match.

    `padded` names the CHAR columns: what is read of them may have lost trailing blanks that the bounds have.
    """
    return _keep_one(node, _One(bounds, rows, padded), frozenset())


class _One:
    def __init__(self, bounds: Mapping[str, ColumnBounds], rows: int, padded: Collection[str]) -> None:
        self.bounds, self.rows, self.padded = bounds, rows, padded

    def of(self, column: str) -> tuple[Any, Any, int | None]:
        """(low, high, null count); None is not known."""
        b = self.bounds.get(column)
        if b is None:
            return None, None, None
        low = _unpadded(b.low) if column in self.padded and isinstance(b.low, bytes) else b.low
        return low, b.high, b.nulls


def _unpadded(low: bytes) -> bytes:
    """A lower bound of values from which trailing blanks are taken: cut before the first blank or control character."""
    m = re.search(rb"[\x00-\x20]", low)
    return low[: m.start()] if m else low


def _keep_one(node: Node, file: _One, finite: frozenset[str]) -> bool:
    match node:
        case And(parts):
            finite |= _without_nan(parts)
            return all(_keep_one(p, file, finite) for p in parts)
        case Or(parts):
            return any(_keep_one(p, file, finite) for p in parts)
        case Always(value):
            return value
        case Opaque():
            return True
    leaf: Leaf | Not = node
    column = leaf.part.column if isinstance(leaf, Not) else leaf.column
    low, high, nulls = file.of(column)
    if isinstance(leaf, IsNull):
        return nulls is None or nulls > 0
    if nulls is not None and nulls == file.rows:
        return False
    exact = column not in file.padded
    match leaf:
        case Compare(op, _, value):
            return _compare(op, stored(value), low, high, column in finite, exact)
        case In(_, values):
            return _within([stored(v) for v in values], low, high, column in finite)
        case Not(In(_, values)):
            point = low is not None and low == high and exact and not isinstance(low, float)
            return not (point and low in [stored(v) for v in values])
        case StartsWith(_, text):
            prefix = text.encode()
            return not ((low is not None and low[: len(prefix)] > prefix) or (high is not None and high < prefix))
        case Not(StartsWith(_, text)):
            prefix = text.encode()
            return not (low is not None and high is not None and low.startswith(prefix) and high.startswith(prefix))
        case Like(_, text):
            prefix = re.split(r"[%_\\]", text, maxsplit=1)[0].encode()
            return not ((low is not None and low[: len(prefix)] > prefix) or (high is not None and high < prefix))
    return True


def _compare(op: str, value: Value, low: Any, high: Any, finite: bool, exact: bool) -> bool:
    v: Any = value
    number = isinstance(v, float)
    if number and v != v:
        return op != "=" or not finite
    # a bound that is NaN: all comparisons below are false for it, and a NaN is above every number
    below = low is not None and v < low  # every value is above v
    above = high is not None and v > high
    match op:
        case "=":
            return not (below or above)
        case "<>":
            return not (exact and low is not None and low == high == v) or (number and not finite)
        case "<":
            return not (below or (low is not None and v == low) or (number and low is not None and low != low))
        case "<=":
            return not (below or (number and low is not None and low != low))
    if number and not finite:
        return True
    return not (above or (op == ">" and high is not None and v == high))


def _within(values: Sequence[Value], low: Any, high: Any, finite: bool) -> bool:
    if isinstance(values[0], float):
        return any(_compare("=", v, low, high, finite, True) for v in values)
    ordered: list[Any] = sorted(values)  # one type, no nulls
    first = 0 if low is None else bisect_left(ordered, low)
    return first < (len(ordered) if high is None else bisect_right(ordered, high))


def _without_nan(parts: Sequence[Node]) -> frozenset[str]:
    """Columns that are not NaN where all parts hold."""
    found = set()
    for p in parts:
        if isinstance(p, Compare):
            value = p.value.as_py() if _is_float(p.value.type) else None
            if value is not None and (p.op in ("=", "<", "<=")) == (value == value) and p.op not in (">", ">="):
                found.add(p.column)
        elif isinstance(p, In) and _is_float(p.values.type) and not any(v != v for v in p.values.to_pylist()):
            found.add(p.column)
    return frozenset(found)


def _is_float(t: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(t))


def stored(value: pa.Scalar) -> Value:
    """A value in the form that `row` keeps it in; the caller knows that it is not null."""
    import pyarrow as pa

    p, t = pa.types, value.type
    if p.is_timestamp(t):
        return int(value.value) * UNIT_NS[t.unit]
    if p.is_temporal(t):
        return int(value.value)
    if p.is_decimal(t):
        sign, digits, exponent = value.as_py().as_tuple()
        number = int("".join(map(str, digits))) * 10 ** (t.scale + exponent)
        return -number if sign else number
    found = value.as_py()
    if isinstance(found, str):
        return found.encode()
    assert found is None or isinstance(found, (bool, int, float, bytes))
    return found


# ---- many files ------------------------------------------------------------------------------------------


def keep_many(
    node: Node,
    lows: Mapping[str, pa.Array],
    highs: Mapping[str, pa.Array],
    nulls: Mapping[str, pa.Array],
    rows: pa.Array | NDArray[np.int64],
    padded: Collection[str] = (),
) -> Mask:
    """For each file whether it may hold a match: `keep_bounds` over columns of bounds.

    Bounds have the column's Arrow type, text may be binary; a null, or a column without bounds, is not known.
    """
    return _keep_all(node, _Many(lows, highs, nulls, np.asarray(rows), padded), frozenset())


class _Many:
    def __init__(
        self,
        lows: Mapping[str, pa.Array],
        highs: Mapping[str, pa.Array],
        nulls: Mapping[str, pa.Array],
        rows: NDArray[np.int64],
        padded: Collection[str],
    ) -> None:
        self.lows, self.highs, self.nulls, self.rows, self.padded = lows, highs, nulls, rows, padded

    def null_count(self, column: str) -> tuple[NDArray[np.int64], Mask]:
        """(null counts, whether each is known)."""
        found = self.nulls.get(column)
        if found is None:
            return np.zeros(len(self.rows), np.int64), np.zeros(len(self.rows), np.bool_)
        return (
            found.fill_null(0).to_numpy(zero_copy_only=False),
            found.is_valid().to_numpy(zero_copy_only=False),
        )

    def low(self, column: str) -> pa.Array | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self.lows.get(column)
        if found is None or column not in self.padded:
            return found
        return pc.replace_substring_regex(found.cast(pa.binary()), r"(?s)[\x00-\x20].*", "")

    def test(self, bound: pa.Array | None, op: str, value: pa.Scalar | bytes) -> Mask:
        """Whether `bound op value` is known to hold."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if bound is None:
            return np.zeros(len(self.rows), np.bool_)
        if isinstance(value, bytes):
            bound, value = bound.cast(pa.binary()), pa.scalar(value, pa.binary())
        elif pa.types.is_binary(bound.type) and pa.types.is_string(value.type):
            value = pa.scalar(value.as_py().encode(), pa.binary())
        name = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}[op]
        found: Mask = pc.call_function(name, [bound, value]).fill_null(False).to_numpy(zero_copy_only=False)
        return found


def _keep_all(node: Node, files: _Many, finite: frozenset[str]) -> Mask:
    match node:
        case And(parts):
            finite |= _without_nan(parts)
            return np.logical_and.reduce([_keep_all(p, files, finite) for p in parts])
        case Or(parts):
            return np.logical_or.reduce([_keep_all(p, files, finite) for p in parts])
        case Always(value):
            return np.full(len(files.rows), value)
        case Opaque():
            return np.ones(len(files.rows), np.bool_)
    leaf: Leaf | Not = node
    column = leaf.part.column if isinstance(leaf, Not) else leaf.column
    nulls, known = files.null_count(column)
    if isinstance(leaf, IsNull):
        return ~known | (nulls > 0)
    out: Mask = ~(known & (nulls == files.rows))
    if not isinstance(leaf, (IsValid, Contains, EndsWith)):
        out &= ~_excluded(leaf, column, files, column in finite)
    return out


def _excluded(leaf: Leaf | Not, column: str, files: _Many, finite: bool) -> Mask:
    """The files whose values cannot meet the leaf."""
    low, high = files.low(column), files.highs.get(column)
    never = np.zeros(len(files.rows), np.bool_)
    match leaf:
        case Compare(op, _, value):
            return _excluded_by(op, value, low, high, files, finite, column not in files.padded)
        case In(_, values):
            return _excluded_in(values, low, high, files, finite)
        case Not(In(_, values)):
            if column in files.padded or _is_float(values.type) or low is None or high is None:
                return never
            some = [_excluded_by("<>", v, low, high, files, finite, True) for v in values]
            return np.logical_or.reduce(some)
        case StartsWith(_, text):
            return _excluded_prefix(text.encode(), low, high, files)
        case Like(_, text):
            return _excluded_prefix(re.split(r"[%_\\]", text, maxsplit=1)[0].encode(), low, high, files)
        case Not(StartsWith(_, text)):
            return _starts(low, text.encode(), files) & _starts(high, text.encode(), files)
    return never


def _excluded_by(
    op: str, value: pa.Scalar, low: pa.Array | None, high: pa.Array | None, files: _Many, finite: bool, exact: bool
) -> Mask:
    never = np.zeros(len(files.rows), np.bool_)
    number = _is_float(value.type)
    if number and value.as_py() != value.as_py():
        return np.full(len(files.rows), op == "=" and finite)
    match op:
        case "=":
            return files.test(low, ">", value) | files.test(high, "<", value)
        case "<>":
            if not exact or (number and not finite):
                return never
            return files.test(low, "=", value) & files.test(high, "=", value)
        case "<" | "<=":
            return files.test(low, ">=" if op == "<" else ">", value) | _is_nan(low, files)
    if number and not finite:
        return never
    return files.test(high, "<=" if op == ">" else "<", value)


def _is_nan(bound: pa.Array | None, files: _Many) -> Mask:
    import pyarrow.compute as pc

    if bound is None or not _is_float(bound.type):
        return np.zeros(len(files.rows), np.bool_)
    found: Mask = pc.is_nan(bound).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _excluded_in(values: pa.Array, low: pa.Array | None, high: pa.Array | None, files: _Many, finite: bool) -> Mask:
    if len(values) <= 32:
        each = [_excluded_by("=", v, low, high, files, finite, True) for v in values]
        return np.logical_and.reduce(each)
    if _is_float(values.type) and np.isnan(values.to_numpy()).any():
        return np.zeros(len(files.rows), np.bool_)
    ordered = np.sort(_sortable(values))
    first = np.zeros(len(files.rows), np.int64)
    last = np.full(len(files.rows), len(ordered))
    for bound, side, at in ((low, "left", first), (high, "right", last)):
        if bound is not None:
            known = bound.is_valid().to_numpy(zero_copy_only=False)
            at[known] = np.searchsorted(ordered, _sortable(bound.drop_null()), side=side)  # type: ignore[call-overload]
    return first >= last


def _sortable(values: pa.Array) -> NDArray[Any]:
    """Values as numpy sorts them: numbers, or objects that compare."""
    import pyarrow as pa

    p, t = pa.types, values.type
    if p.is_integer(t) or p.is_floating(t):
        return values.to_numpy()
    if p.is_temporal(t):
        return values.view(pa.int32() if t.bit_width == 32 else pa.int64()).to_numpy()
    if p.is_string(t) or p.is_large_string(t):
        values = values.cast(pa.binary())
    out = np.empty(len(values), object)
    out[:] = values.to_pylist()
    return out


def _excluded_prefix(prefix: bytes, low: pa.Array | None, high: pa.Array | None, files: _Many) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = None if low is None else pc.binary_slice(low.cast(pa.binary()), 0, len(prefix))
    return files.test(heads, ">", prefix) | files.test(high, "<", prefix)


def _starts(bound: pa.Array | None, prefix: bytes, files: _Many) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    if bound is None:
        return np.zeros(len(files.rows), np.bool_)
    return files.test(pc.binary_slice(bound.cast(pa.binary()), 0, len(prefix)), "=", prefix)
