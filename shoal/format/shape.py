# SPDX-License-Identifier: Apache-2.0
"""Arrays as a file library gives them, rebuilt in the Arrow types of Paimon's columns.

Nested arrays are walked along the column's type; each leaf goes through a function, so that a reader can replace
what the library cannot say exactly. Invariant: rows, nulls and offsets stay as they are; members are matched by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt
from shoal.format.instants import NANOS, PER_SECOND, array_of
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

# A leaf array and its Paimon type to the array in that type's Arrow type.
Leaf = Callable[["pa.Array", DataType], "pa.Array"]


def rebuilt(a: pa.Array, t: DataType, leaf: Leaf) -> pa.Array:
    """The array of a column of type `t`, every leaf of it replaced by what `leaf` makes of it."""
    import pyarrow as pa

    p = pa.types
    if t.root == "ROW" and p.is_struct(a.type):
        return _row(a, t, leaf)
    if t.root in ("ARRAY", "VECTOR") and (p.is_list(a.type) or p.is_fixed_size_list(a.type)):
        assert t.element is not None
        if p.is_fixed_size_list(a.type):
            a = a.cast(pa.list_(a.type.value_field))
        offsets, start, count = _offsets(a)
        values = rebuilt(a.values.slice(start, count), t.element, leaf)
        target = pa.list_(pa.field("element", values.type, t.element.nullable))
        made = pa.ListArray.from_arrays(offsets, values, type=target, mask=_nulls(a))
        return made if t.root == "ARRAY" else made.cast(to_arrow(t))
    if t.root in ("MAP", "MULTISET") and p.is_map(a.type):
        key, value = map_parts(t)
        offsets, start, count = _offsets(a)
        keys = rebuilt(a.keys.slice(start, count), key, leaf)
        items = rebuilt(a.items.slice(start, count), value, leaf)
        return pa.MapArray.from_arrays(offsets, keys, items, type=to_arrow(t), mask=_nulls(a))
    return leaf(a, t)


def parts_of(t: DataType) -> tuple[DataType, ...]:
    """The types right inside a nested type; none for a leaf."""
    if t.root in ("MAP", "MULTISET"):
        return map_parts(t)
    return tuple(f.type for f in t.fields) if t.element is None else (t.element,)


def map_parts(t: DataType) -> tuple[DataType, DataType]:
    """Key and value types of a MAP, or of the map from element to count that a MULTISET is stored as."""
    key, value = (t.key, t.value) if t.root == "MAP" else (t.element, DataType("INT", False))
    assert key is not None and value is not None
    return key, value


def list_parts(a: pa.Array) -> tuple[Any, tuple[pa.Array, ...]]:
    """(the length of each list, the values of all) of an array of lists or maps without nulls; keys and values."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_list(a.type):
        size = a.type.list_size
        return np.full(len(a), size, np.int64), (a.values.slice(a.offset * size, len(a) * size),)
    raw = a.offsets.to_numpy(zero_copy_only=True)
    start, count = int(raw[0]), int(raw[-1] - raw[0])
    members = (a.keys, a.items) if pa.types.is_map(a.type) else (a.values,)
    return np.diff(raw).astype(np.int64), tuple(m.slice(start, count) for m in members)


def _row(a: pa.Array, t: DataType, leaf: Leaf) -> pa.Array:
    import pyarrow as pa

    target = to_arrow(t)
    if not t.fields:
        return a
    members = []
    for f in t.fields:
        at = a.type.get_field_index(f.name)
        members.append(pa.nulls(len(a), to_arrow(f.type)) if at < 0 else rebuilt(a.field(at), f.type, leaf))
    return pa.StructArray.from_arrays(members, fields=list(target), mask=_nulls(a))


def _nulls(a: pa.Array) -> pa.Array | None:
    return a.is_null() if a.null_count else None


def _offsets(a: pa.Array) -> tuple[pa.Array, int, int]:
    """(offsets from zero, where the first value is, how many there are) of a list or map array, sliced or not."""
    import pyarrow as pa

    raw = a.offsets.to_numpy(zero_copy_only=True)
    first, last = int(raw[0]), int(raw[-1])
    return pa.array(raw - first) if first else a.offsets, first, last - first


def as_stored(a: pa.Array, t: DataType, path: str, column: str) -> pa.Array:
    """A leaf array in its column's Arrow type; `Corrupt` when the file holds something else."""
    import pyarrow as pa

    target = to_arrow(t)
    if a.type == target:
        return a
    if t.is_timestamp and pa.types.is_timestamp(a.type):
        return _instants(a, t, path, column)
    try:
        return a.cast(target)
    except pa.ArrowException as err:
        raise Corrupt(
            f"{path}: column '{column}' holds {a.type} where the schema says {t} ({_first(err)})",
            hint="the file does not fit the schema it was written with",
        ) from err


def _instants(a: pa.Array, t: DataType, path: str, column: str) -> pa.Array:
    """Timestamps in another unit: a cast would cut times before 1970 towards it, or wrap around."""
    import numpy as np
    import pyarrow as pa

    per = PER_SECOND[a.type.unit]
    raw = a.view(pa.int64())
    units = raw.fill_null(0).to_numpy()
    nulls = np.asarray(a.is_null()) if a.null_count else None
    return array_of(units // per, units % per * (NANOS // per), t, path, column, nulls)


def checked(a: pa.Array, t: DataType, path: str, column: str) -> pa.Array:
    """A leaf array whose text is UTF-8 and whose decimals have the digits of their type; `Corrupt` otherwise."""
    import pyarrow as pa

    if t.root in ("CHAR", "VARCHAR", "DECIMAL"):
        try:
            a.validate(full=True)
        except pa.ArrowException as err:
            raise Corrupt(
                f"{path}: column '{column}' holds a value that is no {t} ({_first(err)})", hint="the file is damaged"
            ) from err
    return a


def _first(err: BaseException) -> str:
    return str(err).split("\n")[0][:200]
