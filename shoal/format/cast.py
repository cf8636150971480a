# SPDX-License-Identifier: Apache-2.0
"""Which type a column may be changed to, and the function that turns the old values into the new type.

Agrees with: DataTypeCasts, CastExecutors (2.0.0). Invariant: `alter_allows` is true only for pairs that `cast` has a
rule for, and `monotone` only where casting the bounds of a column gives bounds of the cast column.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.errors import BadRequest
from shoal.format import cast_nested as nested
from shoal.format import cast_numbers as numbers
from shoal.format import cast_parse as parse
from shoal.format import cast_text as text
from shoal.format import cast_times as times
from shoal.format.cast_change import Cast, Change
from shoal.format.cast_nested import STRING
from shoal.format.types import MAX_LENGTH, DataType, unit

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGERS = tuple(numbers.INTEGERS)
_FLOATS = tuple(numbers.FLOATS)
_STAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ")
_TEXTS, _BYTES = ("CHAR", "VARCHAR"), ("BINARY", "VARBINARY")

_NESTED = ("ARRAY", "MAP", "ROW")


def _pairs(sources: tuple[str, ...], targets: tuple[str, ...], rule: Cast) -> dict[tuple[str, str], Cast]:
    return {(s, t): rule for s in sources for t in targets}


_RULES: dict[tuple[str, str], Cast] = {
    **_pairs(_INTEGERS + _FLOATS, _INTEGERS + _FLOATS, numbers.number_to_number),
    **_pairs(_INTEGERS, ("DECIMAL",), numbers.integer_to_decimal),
    **_pairs(_FLOATS, ("DECIMAL",), numbers.float_to_decimal),
    **_pairs(("DECIMAL",), ("DECIMAL",), numbers.decimal_to_decimal),
    **_pairs(("DECIMAL",), _INTEGERS + _FLOATS, numbers.decimal_to_number),
    **_pairs(("BOOLEAN",), (*_INTEGERS, *_FLOATS, "DECIMAL"), numbers.boolean_to_number),
    **_pairs(_INTEGERS, ("BOOLEAN",), numbers.number_to_boolean),
    **_pairs(("INT", "BIGINT"), _STAMPS, times.number_to_timestamp),
    **_pairs(_STAMPS, _STAMPS, times.timestamp_to_timestamp),
    **_pairs(_STAMPS, ("DATE",), times.timestamp_to_date),
    **_pairs(_STAMPS, ("TIME",), times.timestamp_to_time),
    **_pairs(_STAMPS, ("INT", "BIGINT"), times.timestamp_to_number),
    **_pairs(("DATE",), _STAMPS, times.date_to_timestamp),
    **_pairs(("TIME",), _STAMPS, times.time_to_timestamp),
    **_pairs((*_INTEGERS, *_FLOATS, "DECIMAL"), _TEXTS, text.number_to_text),
    **_pairs(("BOOLEAN",), _TEXTS, text.boolean_to_text),
    **_pairs(_TEXTS, _TEXTS, text.text_to_text),
    **_pairs(_TEXTS, _BYTES, text.text_to_bytes),
    **_pairs(_BYTES, _BYTES, text.bytes_to_bytes),
    **_pairs(_BYTES, _TEXTS, text.bytes_to_text),
    **_pairs(_TEXTS, ("BOOLEAN",), parse.text_to_boolean),
    **_pairs(_TEXTS, _INTEGERS, parse.text_to_integer),
    **_pairs(_TEXTS, _FLOATS, parse.text_to_float),
    **_pairs(_TEXTS, ("DECIMAL",), parse.text_to_decimal),
    **_pairs(_TEXTS, ("DATE",), parse.text_to_date),
    **_pairs(_TEXTS, ("TIME",), parse.text_to_time),
    **_pairs(_TEXTS, _STAMPS, parse.text_to_timestamp),
}

# These become STRING only: no VARCHAR with a length, no CHAR.
_STRING_ONLY: dict[str, Cast] = {
    "DATE": text.date_to_text,
    "TIME": text.time_to_text,
    "TIMESTAMP": text.timestamp_to_text,
    "TIMESTAMP_LTZ": text.timestamp_to_text,
}


def rule(source: DataType, target: DataType) -> Cast | None:
    """The cast from one type to another, as CastExecutors finds it; None when Paimon has none."""
    if source.root in _STRING_ONLY and target.root in _TEXTS:
        is_string = target.root == "VARCHAR" and target.length == MAX_LENGTH
        return _STRING_ONLY[source.root] if is_string else None
    if source.root in _NESTED and target.root in _TEXTS:
        return partial(nested.nested_to_text, rule) if all(rule(t, STRING) for t in nested.members(source)) else None
    if source.root in _TEXTS and target.root in _NESTED:
        return partial(nested.text_to_nested, rule) if all(rule(STRING, t) for t in nested.members(target)) else None
    return _RULES.get((source.root, target.root))


def alter_allows(source: DataType, target: DataType, *, explicit: bool = True) -> bool:
    """Whether ALTER may change a column so; `explicit` is option `disable-explicit-type-casting` = false.

    Only implicit changes, which lose little, are allowed without. Nullability is asked apart.
    """
    if source.same_as(target):
        return True
    if target.root in _NESTED:
        return False  # texts become nested values as defaults only
    return rule(source, target) is not None and (explicit or _implicit(source.root, target.root))


def _implicit(source: str, target: str) -> bool:
    if source == target:
        return True
    if source in _INTEGERS and target in _INTEGERS:
        return _INTEGERS.index(source) < _INTEGERS.index(target)
    match target:
        case "VARCHAR":
            return source == "CHAR"
        case "VARBINARY":
            return source == "BINARY"
        case "FLOAT":
            return source in (*_INTEGERS, "DECIMAL")
        case "DECIMAL" | "DOUBLE":
            return source in (*_INTEGERS, *_FLOATS, "DECIMAL")
        case "DATE" | "TIME":
            return source == "TIMESTAMP"
    return source in _STAMPS and target in _STAMPS


def monotone(source: DataType, target: DataType) -> bool:
    """Whether the cast keeps order and makes no null, so that bounds and null counts of a file still hold when cast.

    Java keeps filters only where whole numbers were widened; these are all changes that are as safe.
    """
    if source.same_as(target):
        return True
    s, t = source.root, target.root
    if target.is_timestamp and unit(target.precision or 0) == "ns" and not target.wide:
        return s == t and unit(source.precision or 0) == "ns"  # not every year fits
    if s in _INTEGERS and t in _INTEGERS:
        return _INTEGERS.index(s) <= _INTEGERS.index(t)
    if t == "DECIMAL":
        whole = (target.precision or 10) - (target.scale or 0)
        digits = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
        if s == "DECIMAL":
            # a place dropped may round 9.9 up to 10
            lost = (source.scale or 0) > (target.scale or 0)
            return whole >= (source.precision or 10) - (source.scale or 0) + lost
        return s in digits and whole >= digits[s]
    if t in _FLOATS:
        return s in (*_INTEGERS, "DECIMAL") or (s, t) == ("FLOAT", "DOUBLE")
    if s == t and s in _STAMPS:
        return True
    return (s, t) in (("VARCHAR", "VARCHAR"), ("CHAR", "VARCHAR"), ("DATE", "TIMESTAMP"), ("TIMESTAMP", "DATE"))


def default_value(text: str, t: DataType, column: str) -> pa.Array:
    """The default of a column, one row: its text in the schema file, with or without quotes, cast to the type."""
    import pyarrow as pa

    cast = rule(STRING, t)
    if cast is None:
        raise BadRequest(f"column '{column}': a column of type {t} cannot have a default", hint="reset the default")
    if text.startswith("'") and text.endswith("'"):
        text = text[1:-1]
    return cast(pa.array([text], pa.string()), Change(STRING, t, column))
