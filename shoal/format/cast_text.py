# SPDX-License-Identifier: Apache-2.0
"""Casts to CHAR and VARCHAR, and among texts and bytes.

Agrees with: NumericToStringCastRule, BooleanToStringCastRule, DateToStringCastRule, TimeToStringCastRule,
TimestampToStringCastRule, StringToStringCastRule, StringToBinaryCastRule, BinaryToBinaryCastRule,
BinaryToStringCastRule (2.0.0). Text too long is cut, CHAR is filled with blanks, BINARY with zero bytes; but bytes
become text of any length as they are. Invariant: the result is valid UTF-8.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format.cast_change import Change, array_of, by_value, nulls_of, values_of, words_of
from shoal.format.cast_times import DAY, DAY_MS, local_seconds, split
from shoal.format.float_text import java_text
from shoal.format.types import MAX_LENGTH, DataType

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Array = npt.NDArray[Any]

_ZERO = ord("0")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def fitted(a: pa.Array, target: DataType) -> pa.Array:
    """Texts cut to the length of a CHAR or VARCHAR, those of a CHAR filled with blanks."""
    import pyarrow.compute as pc

    length = MAX_LENGTH if target.length is None else target.length
    if length == MAX_LENGTH or not len(a):
        return a
    if (pc.max(pc.utf8_length(a)).as_py() or 0) > length:
        a = pc.utf8_slice_codeunits(a, 0, length)
    return pc.utf8_rpad(a, length, " ") if target.root == "CHAR" else a


def text_to_text(a: pa.Array, change: Change) -> pa.Array:
    return fitted(a, change.target)


def text_to_bytes(a: pa.Array, change: Change) -> pa.Array:
    import pyarrow as pa

    return bytes_to_bytes(a.cast(pa.binary()), change)


def bytes_to_bytes(a: pa.Array, change: Change) -> pa.Array:
    """Bytes cut to the length of the type, those of a BINARY filled with zero bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    length = MAX_LENGTH if change.target.length is None else change.target.length
    if length == MAX_LENGTH or not len(a):
        return a
    if (pc.max(pc.binary_length(a)).as_py() or 0) > length:
        a = pc.binary_slice(a, 0, length)
    if change.target.root != "BINARY":
        return a
    missing = pc.subtract(length, pc.fill_null(pc.binary_length(a), length)).dictionary_encode()
    zeros = pa.array([bytes(n) for n in missing.dictionary.to_pylist()], pa.binary()).take(missing.indices)
    return pc.binary_join_element_wise(a, zeros, b"")


def bytes_to_text(a: pa.Array, change: Change) -> pa.Array:
    """The bytes as UTF-8. Java keeps broken bytes and shows them as U+FFFD; Arrow text cannot hold them."""
    import pyarrow as pa

    try:
        return a.cast(pa.string())
    except pa.ArrowInvalid:
        # rare, and Arrow has no lenient decoder
        return by_value(a, _decoded, pa.string())


def _decoded(data: bytes) -> str:
    # Java takes an encoded surrogate for one broken character, Python for three
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def number_to_text(a: pa.Array, change: Change) -> pa.Array:
    """Whole numbers, floats and decimals; the decimals with all digits of their scale and no exponent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match change.source.root:
        case "DECIMAL":
            text = decimal_text(a)
        case "FLOAT" | "DOUBLE":
            text = java_text(values_of(a))
            nulls = nulls_of(a)
            text = text if nulls is None else pc.if_else(pa.array(nulls), None, text)
        case _:
            text = a.cast(pa.string())
    return fitted(text, change.target)


def decimal_text(a: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    scale = a.type.scale
    whole = pa.Array.from_buffers(pa.decimal128(a.type.precision, 0), len(a), a.buffers(), a.null_count, a.offset)
    text = whole.cast(pa.string())
    if not scale:
        return text
    negative = array_of(words_of(a)[:, 1] < 0, a, pa.bool_())
    text = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    sign = pc.if_else(negative, "-", "")
    head, tail = pc.utf8_slice_codeunits(text, 0, -scale), pc.utf8_slice_codeunits(text, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, head, ""), tail, ".")


def boolean_to_text(a: pa.Array, change: Change) -> pa.Array:
    import pyarrow as pa

    return fitted(a.cast(pa.string()), change.target)


def date_to_text(a: pa.Array, change: Change) -> pa.Array:
    return _texts([_date_digits(values_of(a).astype(np.int64))], None, a)


def time_to_text(a: pa.Array, change: Change) -> pa.Array:
    """Hours, minutes, seconds, and after a point the digits of the type: one at least, no zeros behind it."""
    millis = values_of(a).astype(np.int64) % DAY_MS
    parts = [_clock_digits(millis // 1000)]
    precision = change.source.precision or 0
    if not precision:
        return _texts(parts, None, a)
    digits = _digits(millis % 1000, 3)
    parts += [_sign(".", len(millis)), digits]
    return _texts(parts, np.minimum(np.maximum(_significant(digits), 1), precision) + 9, a)


def timestamp_to_text(a: pa.Array, change: Change) -> pa.Array:
    """As many digits behind the point as the type has, more only where the value has more."""
    seconds, nanos = split(a, change.source)
    if change.source.root == "TIMESTAMP_LTZ":
        seconds = local_seconds(seconds, change.zone)
    count = len(seconds)
    digits = _digits(nanos, 9)
    shown = np.maximum(_significant(digits), change.source.precision or 0)
    parts = [_date_digits(seconds // DAY), _sign(" ", count), _clock_digits(seconds % DAY), _sign(".", count), digits]
    return _texts(parts, 19 + shown + (shown > 0), a)


def _date_digits(days: Array) -> Array:
    """`yyyy-mm-dd` as rows of ten bytes; a year is its last four digits, as Java has it."""
    months = days.astype("datetime64[D]").astype("datetime64[M]")
    month = months.astype(np.int64)
    day = days - months.astype("datetime64[D]").astype(np.int64)
    dash = _sign("-", len(days))
    year = (month // 12 + 1970) % 10_000
    return np.hstack([_digits(year, 4), dash, _digits(month % 12 + 1, 2), dash, _digits(day + 1, 2)])


def _clock_digits(seconds: Array) -> Array:
    """`hh:mm:ss` as rows of eight bytes."""
    colon = _sign(":", len(seconds))
    hour, minute = _digits(seconds // 3600, 2), _digits(seconds // 60 % 60, 2)
    return np.hstack([hour, colon, minute, colon, _digits(seconds % 60, 2)])


def _digits(numbers: Array, count: int) -> Array:
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return np.asarray(numbers[:, None] // powers % 10 + _ZERO, np.uint8)


def _sign(text: str, rows: int) -> Array:
    return np.full((rows, 1), ord(text), np.uint8)


def _significant(digits: Array) -> Array:
    """How many digits there are without the zeros at the end."""
    used = digits != _ZERO
    width = digits.shape[1]
    return np.where(used.any(axis=1), width - np.argmax(used[:, ::-1], axis=1), 0)


def _texts(parts: list[Array], lengths: Array | None, like: pa.Array) -> pa.Array:
    """Rows of bytes, each cut to its length, as a column of text that is null where `like` is."""
    import pyarrow as pa

    matrix = np.hstack(parts)
    rows, width = matrix.shape
    if lengths is None:
        lengths = np.full(rows, width)
    data = matrix[np.arange(width) < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = nulls_of(like)
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data), valid)
