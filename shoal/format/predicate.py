# SPDX-License-Identifier: Apache-2.0
"""A filter as a tree that planning can look into: what drops buckets, files and row groups.

Agrees with: Predicate, PredicateBuilder (2.0.0) in what each leaf means. A node says for which rows a filter may be
TRUE; SQL's null counts as not true, so there is no third value, and negations are worked in when the tree is made.
Values compare as in Paimon: NaN equals itself and is above all numbers, strings by their bytes; zeros are equal.
Invariant: a node may hold for more rows than the filter, never for fewer: what is dropped by it holds no match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True where the column is not null and `part` is not true."""

    part: In | StartsWith | EndsWith | Contains | Like


@dataclass(frozen=True, slots=True)
class Compare:
    """`column op value`; op is = <> < <= > >=. The value is not null and has the column's Arrow type."""

    op: str
    column: str
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class In:
    """The column is one of `values`: at least two, no nulls, of the column's Arrow type."""

    column: str
    values: pa.Array


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class IsValid:
    column: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    column: str
    text: str


@dataclass(frozen=True, slots=True)
class EndsWith:
    column: str
    text: str


@dataclass(frozen=True, slots=True)
class Contains:
    column: str
    text: str


@dataclass(frozen=True, slots=True)
class Like:
    """SQL's LIKE: `%` any text, `_` one character, a backslash takes the next one as it is."""

    column: str
    text: str


@dataclass(frozen=True, slots=True)
class Always:
    value: bool


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something about these columns that only the filter itself can tell."""

    columns: frozenset[str]


Leaf = Compare | In | IsNull | IsValid | StartsWith | EndsWith | Contains | Like
Node = And | Or | Not | Leaf | Always | Opaque

TRUE, FALSE = Always(True), Always(False)


def of(expression: pc.Expression, schema: pa.Schema) -> Node:
    """The tree of a filter over columns of these types.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> of(~(pc.field("k") > 1) & pc.field("k").is_valid(), pa.schema([("k", pa.int32())]))
    Compare(op='<=', column='k', value=<pyarrow.Int32Scalar: 1>)
    """
    from shoal.format.predicate_reader import read

    return read(expression, schema)


# ---- making trees ----------------------------------------------------------------------------------------


def all_of(parts: Iterable[Node]) -> Node:
    """The conjunction, simplified: no nested And, no constants, nothing about nulls that another part says already."""
    flat = _flat(parts, And)
    valid = frozenset().union(*(not_null(p) for p in flat))
    flat = _flat((_no_nulls(p, valid) for p in flat), And)
    if FALSE in flat:
        return FALSE
    said = frozenset().union(*(not_null(p) for p in flat if not isinstance(p, IsValid)))
    kept = [p for p in flat if p != TRUE and not (isinstance(p, IsValid) and p.column in said)]
    return TRUE if not kept else kept[0] if len(kept) == 1 else And(tuple(kept))


def _no_nulls(node: Node, valid: frozenset[str]) -> Node:
    """The node where these columns hold values."""
    if isinstance(node, IsNull):
        return FALSE if node.column in valid else node
    if isinstance(node, Or) and any(isinstance(p, IsNull) for p in node.parts):
        return any_of(_no_nulls(p, valid) for p in node.parts)
    return node


def any_of(parts: Iterable[Node]) -> Node:
    """The disjunction, simplified."""
    flat = _flat(parts, Or)
    if TRUE in flat:
        return TRUE
    kept = [p for p in flat if p != FALSE]
    return FALSE if not kept else kept[0] if len(kept) == 1 else Or(tuple(kept))


def _flat(parts: Iterable[Node], kind: type[And] | type[Or]) -> list[Node]:
    out: list[Node] = []
    seen: set[Node] = set()  # of what repeats in practice; scalars are not worth comparing
    for p in parts:
        for inner in p.parts if isinstance(p, kind) else (p,):
            if not isinstance(inner, (IsNull, IsValid, Opaque)):
                out.append(inner)
            elif inner not in seen:
                seen.add(inner)
                out.append(inner)
    return out


def not_null(node: Node) -> frozenset[str]:
    """Columns that hold a value in every row for which the node is true."""
    if isinstance(node, And):
        return frozenset().union(*(not_null(p) for p in node.parts))
    if isinstance(node, Or):
        first, *rest = (not_null(p) for p in node.parts)
        return first.intersection(*rest)
    if isinstance(node, (Always, Opaque, IsNull)):
        return frozenset()
    return columns(node)


# ---- looking at trees ------------------------------------------------------------------------------------


def columns(node: Node) -> frozenset[str]:
    """The columns that the node looks at."""
    match node:
        case And(parts) | Or(parts):
            return frozenset().union(*(columns(p) for p in parts))
        case Not(part):
            return frozenset((part.column,))
        case Always():
            return frozenset()
        case Opaque(names):
            return names
        case leaf:
            return frozenset((leaf.column,))


def equalities(node: Node) -> dict[str, list[pa.Scalar]]:
    """For each column that must be one of some values, these values: what a bucket can be worked out of.

    A column that is not in the result may hold anything. Zero stands for both zeros, which hash apart; a NaN has
    many patterns of bits, so a column that may be NaN is left out.
    """
    import pyarrow as pa

    out = {}
    for column, found in _pinned(node).items():
        zeros = [v for v in found if pa.types.is_floating(v.type) and not v.as_py()]
        out[column] = found + [pa.scalar(-0.0, v.type) for v in zeros]
    return out


def _pinned(node: Node) -> dict[str, list[pa.Scalar]]:
    match node:
        case Compare("=", column, value):
            return _values(column, [value])
        case In(column, values):
            return _values(column, list(values))
        case And(parts):
            out: dict[str, list[pa.Scalar]] = {}
            for part in parts:
                for column, found in _pinned(part).items():
                    both = set(found)
                    out[column] = [v for v in out[column] if v in both] if column in out else found
            return out
        case Or(parts):
            first, *rest = (_pinned(p) for p in parts)
            return {
                c: list(dict.fromkeys([*v, *(w for e in rest for w in e[c])]))
                for c, v in first.items()
                if all(c in e for e in rest)
            }
    return {}


def _values(column: str, found: list[pa.Scalar]) -> dict[str, list[pa.Scalar]]:
    """Zeros come as +0.0, so that they are the same when sets of values meet."""
    import pyarrow as pa

    if not pa.types.is_floating(found[0].type):
        return {column: found}
    numbers = [v.as_py() for v in found]
    if any(n != n for n in numbers):
        return {}
    return {column: [v if n else pa.scalar(0.0, v.type) for v, n in zip(found, numbers)]}


def project(node: Node, names: Collection[str]) -> Node:
    """The strongest condition that the node implies and that looks at these columns only: for partitions and keys."""
    match node:
        case And(parts):
            return all_of(project(p, names) for p in parts)
        case Or(parts):
            return any_of(project(p, names) for p in parts)
    return node if columns(node) <= set(names) else TRUE


def rename(node: Node, names: Mapping[str, str]) -> Node:
    """The same condition over columns of other names: `names` maps old to new; a name that is not in it stays."""

    def change(leaf: Leaf) -> Leaf:
        return replace(leaf, column=names.get(leaf.column, leaf.column))

    match node:
        case And(parts):
            return And(tuple(rename(p, names) for p in parts))
        case Or(parts):
            return Or(tuple(rename(p, names) for p in parts))
        case Not(part):
            return Not(change(part))  # type: ignore[arg-type]  # the kind of leaf stays
        case Always():
            return node
        case Opaque(found):
            return Opaque(frozenset(names.get(c, c) for c in found))
        case leaf:
            return change(leaf)
