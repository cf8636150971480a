# SPDX-License-Identifier: Apache-2.0
"""Columns as users give them in the table's types, without loss, and what a type forbids at any depth.

A type is fitted where every value survives: integers that are in range, decimals that keep their digits, timestamps
that keep their ticks; only doubles may be rounded to FLOAT. Lengths and NOT NULL hold inside of arrays, maps and rows
too. A shorter CHAR or BINARY is not padded: Java's core stores it as it is. Invariant: what passes here, Java reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import BadRequest
from shoal.format.types import MAX_LENGTH, DataType

if TYPE_CHECKING:
    import pyarrow as pa

# Values in a message are cut to this many characters.
_SHOWN = 60


def fitted(array: pa.Array, target: pa.Field, t: DataType, table: str) -> pa.Array:
    """`array` in the type of `target`; `BadRequest` names the column and the first value that does not fit."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type != target.type:
        array = _cast(array, target, t, table)
    elif pa.types.is_decimal(array.type):
        _check_digits(array, target, t, table)
    wrong = _wrong(array, t)
    if wrong is not None:
        raise BadRequest(
            f"{table}: column '{target.name}': {wrong}", hint="nothing was written; correct the value and write again"
        )
    return array


def _cast(array: pa.Array, target: pa.Field, t: DataType, table: str) -> pa.Array:
    import pyarrow as pa

    try:
        return _lossless(array, target.type)
    except pa.ArrowException as err:
        why = str(err).splitlines()[0]
    value = _first_that_fails(array, target.type)
    shown = "" if value is None else f" and {_text(value)} does not fit"
    raise BadRequest(
        f"{table}: column '{target.name}' is {t} and what is given {array.type}{shown}",
        hint=f"cast it before writing ({why})",
    )


def _lossless(array: pa.Array, target: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    out = array.cast(target)
    if pa.types.is_float32(target) and pa.types.is_float64(array.type):
        grown = pc.and_not(pc.is_inf(out), pc.is_inf(array))
        if pc.any(grown).as_py():
            raise pa.ArrowInvalid("a DOUBLE out of the range of FLOAT")
    return out


def _first_that_fails(array: pa.Array, target: pa.DataType) -> pa.Scalar | None:
    """The first value that cannot be cast, by halving; None when each one alone can be."""
    import pyarrow as pa

    def fails(part: pa.Array) -> bool:
        try:
            _lossless(part, target)
        except pa.ArrowException:
            return True
        return False

    low, high = 0, len(array)
    if not fails(array):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if fails(array.slice(low, middle - low)):
            high = middle
        else:
            low = middle
    return array[low] if high > low else None


def _check_digits(array: pa.Array, target: pa.Field, t: DataType, table: str) -> None:
    """Arrow lets a decimal hold more digits than its type has; a file would hold them too."""
    import pyarrow as pa

    try:
        array.validate(full=True)
    except pa.ArrowException as err:
        for value in array:
            try:
                pa.array([value.as_py()], array.type)
            except (pa.ArrowException, ValueError):
                raise BadRequest(
                    f"{table}: column '{target.name}' is {t} and {_text(value)} does not fit",
                    hint="nothing was written; correct the value and write again",
                ) from err
        raise BadRequest(f"{table}: column '{target.name}' does not hold valid {t} values ({err})") from err


def _wrong(array: pa.Array, t: DataType) -> str | None:
    """What a value breaks of its type: a length, or NOT NULL inside of a nested value. None when nothing does."""
    if not len(array):
        return None
    if t.length is not None and t.root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        return _too_long(array, t)
    match t.root:
        case "ARRAY":
            assert t.element is not None
            return _inside(array.flatten(), t.element, "an element")
        case "MULTISET" | "MAP":
            entries = _entries(array)
            keys = t.element if t.root == "MULTISET" else t.key
            assert keys is not None
            if entries.field(0).null_count:
                return f"a key of {t} is null, which no file can hold"
            wrong = _wrong(entries.field(0), keys)
            return wrong or (None if t.value is None else _inside(entries.field(1), t.value, "a value"))
        case "ROW":
            for child, f in zip(array.flatten(), t.fields):
                if not f.type.nullable and child.null_count > array.null_count:
                    return f"field '{f.name}' of {t} holds a null and may not"
                wrong = _wrong(child, f.type)
                if wrong is not None:
                    return wrong
    return None


def _inside(values: pa.Array, t: DataType, what: str) -> str | None:
    if not t.nullable and values.null_count:
        return f"{what} of type {t} is null and may not be"
    return _wrong(values, t)


def _entries(array: pa.Array) -> pa.StructArray:
    """Keys and values of a map's rows, those that lie under a null left out."""
    import pyarrow as pa

    if array.null_count:
        array = array.drop_null()
    low, high = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.StructArray.from_arrays(
        [array.keys.slice(low, high - low), array.items.slice(low, high - low)], ["key", "value"]
    )


def _too_long(array: pa.Array, t: DataType) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if t.length == MAX_LENGTH:
        return None
    lengths = pc.utf8_length(array) if pa.types.is_string(array.type) else pc.binary_length(array)
    longest = pc.max(lengths).as_py()
    if longest is None or longest <= t.length:
        return None
    first = pc.index(pc.greater(lengths, t.length), True).as_py()
    return f"{_text(array[first])} has length {lengths[first].as_py()}, more than {t.root}({t.length}) takes"


def _text(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
