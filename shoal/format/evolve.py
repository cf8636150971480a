# SPDX-License-Identifier: Apache-2.0
"""Columns of a file written under an older schema, as the columns of the table's schema now.

Agrees with: SchemaEvolutionUtil, FormatReaderMapping, CastedRow, CastedArray, CastedMap (2.0.0). Members of a ROW are
matched by field id, in whatever order and under whatever name; one that the file lacks is null, one that the table
lacks is dropped, and a ROW of which no member is left is null as a whole. Elements of arrays and values of maps follow
the same rules; keys of maps never change. Invariant: the result has the Arrow type of the target, nested names and
nullability included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.errors import BadRequest
from shoal.format.cast import rule
from shoal.format.cast_change import Change, nulls_of
from shoal.format.cast_nested import list_parts
from shoal.format.types import MAX_LENGTH, DataType, to_arrow, unit, widened

if TYPE_CHECKING:
    import pyarrow as pa

Converter = Callable[["pa.Array"], "pa.Array"]


def converter(source: DataType, target: DataType, column: str, *, zone: str = "UTC") -> Converter | None:
    """What makes Arrow arrays of `source` those of `target`; None when they can be used as they are.

    `column` is for messages. `zone` is the local zone of TIMESTAMP_LTZ; Java takes that of its process, and shoal's
    is UTC, as the test oracle's.
    """
    if source == target or _same_arrays(source, target):
        return None
    if source.root == target.root:
        if _nothing_left(source, target):
            return lambda a: _all_null(a, target)
        match source.root:
            case "ROW":
                return _row(source, target, column, zone)
            case "ARRAY":
                return _array(source, target, column, zone)
            case "MAP":
                return _map(source, target, column, zone)
            case "MULTISET":
                return _map(_counts(source), _counts(target), column, zone)
            case "VECTOR" if source.length == target.length and source.element == target.element:
                return lambda a: a.cast(to_arrow(target))
    cast = rule(source, target)
    if cast is None:
        raise BadRequest(
            f"column '{column}': a file holds {source} where the table has {target}, and Paimon has no cast for that",
            hint="the schema files of the table do not belong together; change the column back to the type of the file",
        )
    change = Change(source, target, column, zone)
    return lambda a: cast(a, change)


def _counts(multiset: DataType) -> DataType:
    """A MULTISET as the map it is in Arrow: elements and how often they occur."""
    return DataType("MAP", multiset.nullable, key=multiset.element, value=DataType("INT", False))


def _nothing_left(source: DataType, target: DataType) -> bool:
    """Whether the two types have no plain value in common. Java then does not read the column: it is null."""
    if source.root != target.root:
        return False
    if source.root == "ROW":
        kept = {f.id: f.type for f in source.fields}
        return all(f.id not in kept or _nothing_left(kept[f.id], f.type) for f in target.fields)
    inner = zip((source.element, source.key, source.value), (target.element, target.key, target.value))
    return any(s is not None and t is not None and _nothing_left(s, t) for s, t in inner)


def _all_null(a: pa.Array, target: DataType) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(len(a), to_arrow(target))


def _same_arrays(source: DataType, target: DataType) -> bool:
    """Whether every array of `source` is one of `target`: the same Arrow type and nothing to move, cut or fill."""
    if source.root != target.root:
        return (source.root, target.root, target.length) in (
            ("CHAR", "VARCHAR", MAX_LENGTH),
            ("BINARY", "VARBINARY", MAX_LENGTH),
        )
    match source.root:
        case "ROW":
            return len(source.fields) == len(target.fields) and all(
                (s.id, s.name, s.type.nullable) == (t.id, t.name, t.type.nullable) and _same_arrays(s.type, t.type)
                for s, t in zip(source.fields, target.fields)
            )
        case "ARRAY" | "MULTISET" | "VECTOR":
            s, t = source.element, target.element
            assert s is not None and t is not None
            return s.nullable == t.nullable and source.length == target.length and _same_arrays(s, t)
        case "MAP":
            s, t = source.value, target.value
            assert s is not None and t is not None and source.key is not None and target.key is not None
            return s.nullable == t.nullable and _same_arrays(source.key, target.key) and _same_arrays(s, t)
        case "VARCHAR" | "VARBINARY":
            return target.length in (source.length, MAX_LENGTH)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            low, high = source.precision or 0, target.precision or 0
            return low <= high and unit(low) == unit(high) and to_arrow(source) == to_arrow(target)
    return source.same_as(target)


def _row(source: DataType, target: DataType, column: str, zone: str) -> Converter:
    import pyarrow as pa

    places = {f.id: i for i, f in enumerate(source.fields)}
    kind = to_arrow(target)
    moves: list[tuple[int, Converter | None, pa.DataType]] = []
    for i, f in enumerate(target.fields):
        at = places.get(f.id, -1)
        child = converter(source.fields[at].type, f.type, f"{column}.{f.name}", zone=zone) if at >= 0 else None
        moves.append((at, child, kind.field(i).type))

    def convert(a: pa.Array) -> pa.Array:
        # flatten() carries the nulls of the row into its members: what lies under a null row is not read
        members = a.flatten()
        made = []
        for at, child, wanted in moves:
            if at < 0:
                made.append(pa.nulls(len(a), wanted))
            else:
                made.append(members[at] if child is None else child(members[at]))
        valid = a.is_valid()
        return pa.StructArray.from_arrays(made, fields=list(kind), mask=pa.compute.invert(valid))

    return convert


def _array(source: DataType, target: DataType, column: str, zone: str) -> Converter:
    import pyarrow as pa

    assert source.element is not None and target.element is not None
    child = converter(source.element, target.element, f"{column}.element", zone=zone)
    kind = to_arrow(target)

    def convert(a: pa.Array) -> pa.Array:
        offsets, values = list_parts(a)
        nulls = nulls_of(a)
        mask = None if nulls is None else pa.array(nulls)
        return pa.ListArray.from_arrays(offsets, values if child is None else child(values), type=kind, mask=mask)

    return convert


def _map(source: DataType, target: DataType, column: str, zone: str) -> Converter:
    import pyarrow as pa

    assert source.key is not None and target.key is not None and source.value is not None and target.value is not None
    if not widened(source.key).same_as(widened(target.key)):
        raise BadRequest(
            f"column '{column}': a file holds {source} where the table has {target}, and keys of maps cannot change",
            hint="the schema files of the table do not belong together; change the column back to the type of the file",
        )
    child = converter(source.value, target.value, f"{column}.value", zone=zone)
    key = converter(source.key, target.key, f"{column}.key", zone=zone)  # of wide and other timestamps
    kind = to_arrow(target)

    def convert(a: pa.Array) -> pa.Array:
        offsets, entries = list_parts(a)
        keys, values = entries.flatten()
        nulls = nulls_of(a)
        mask = None if nulls is None else pa.array(nulls)
        keys = keys if key is None else key(keys)
        values = values if child is None else child(values)
        return pa.MapArray.from_arrays(offsets, keys, values, type=kind, mask=mask)

    return convert
