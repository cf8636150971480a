# SPDX-License-Identifier: Apache-2.0
"""Texts of CSV and JSON files, and of partition folders, as columns of the table's types.

Agrees with: CsvParser.parseField, JsonFileReader, TypeUtils.castFromString (2.0.0). Invariant: a text that Java
cannot parse is marked as bad and is null; nothing is guessed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ShoalError
from shoal.format.types import MAX_LENGTH, DataType, to_arrow

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Bad = npt.NDArray[np.bool_]

STRING = DataType("VARCHAR", length=MAX_LENGTH)
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_NUMBER = r"^[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)$"
_HEX = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?\Z")
# What Java's parseDouble takes off both ends.
_BLANKS = "".join(map(chr, range(33)))


def parsed(texts: pa.Array, t: DataType) -> tuple[pa.Array, Bad]:
    """(values, which texts are none): a bad text is null, and so is null."""
    if t.root in ("CHAR", "VARCHAR"):
        return texts, np.zeros(len(texts), bool)
    if t.root in _BITS:
        return _integers(texts, t)
    if t.root in ("FLOAT", "DOUBLE"):
        return floats(texts, t)
    if t.root == "BOOLEAN":
        import pyarrow.compute as pc

        return pc.equal(pc.utf8_lower(texts), "true"), np.zeros(len(texts), bool)
    if t.root in ("BINARY", "VARBINARY", "BLOB"):
        return _one_by_one(texts, t, _base64)
    from shoal.format.evolve import converter

    change = converter(STRING, t, "text")
    assert change is not None
    try:
        return change(texts), np.zeros(len(texts), bool)
    except ShoalError:
        return _one_by_one(texts, t, lambda text: change(_single(text))[0].as_py())


def _single(text: str) -> pa.Array:
    import pyarrow as pa

    return pa.array([text], pa.string())


def _base64(text: str) -> bytes:
    data = text.encode()
    if b"=" not in data:  # Java does without the padding
        data += b"=" * (-len(data) % 4)
    return base64.b64decode(data, validate=True)


def _one_by_one(texts: pa.Array, t: DataType, parse: Callable[[str], Any]) -> tuple[pa.Array, Bad]:
    """Values that no vector function parses, or of a block where some are bad: one by one."""
    import pyarrow as pa

    bad = np.zeros(len(texts), bool)
    values: list[Any] = []
    for i, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = parse(text)
            except (ShoalError, ValueError, binascii.Error):
                bad[i] = True
        values.append(value)
    return pa.array(values, to_arrow(t)), bad


def _bad(texts: pa.Array, good: pa.Array) -> Bad:
    import pyarrow.compute as pc

    wrong = pc.and_(texts.is_valid(), pc.invert(pc.fill_null(good, False)))
    return np.asarray(wrong.to_numpy(zero_copy_only=False), bool)


def _integers(texts: pa.Array, t: DataType) -> tuple[pa.Array, Bad]:
    """Digits with a sign; one that does not fit the type is bad."""
    import pyarrow.compute as pc

    good = pc.match_substring_regex(texts, "^[+-]?[0-9]+$")
    digits = pc.replace_substring_regex(pc.if_else(good, texts, None), r"^(?:\+|(-?))0*([0-9])", r"\1\2")
    values = whole_numbers(digits, t)
    return values, _bad(texts, values.is_valid())


def whole_numbers(digits: pa.Array, t: DataType) -> pa.Array:
    """Digits without needless zeros, perhaps with a minus, as an integer type; null where they do not fit it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # nineteen digits are more than any 64-bit number has, and less than what 128 bits hold
    short = pc.less_equal(pc.utf8_length(digits), 20)
    wide = pc.if_else(short, digits, None).cast(pa.decimal128(38, 0))
    bits = _BITS[t.root]
    low, high = (pa.scalar(v, pa.decimal128(38, 0)) for v in (-(1 << bits - 1), (1 << bits - 1) - 1))
    fits = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
    return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(to_arrow(t))


def floats(texts: pa.Array, t: DataType) -> tuple[pa.Array, Bad]:
    """Java's number literals, blanks around them taken off: `1.5`, `1e3`, `.5f`, `NaN`, `0x1p3`. Rounded once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bare = pc.utf8_trim(texts, _BLANKS)
    good = pc.match_substring_regex(bare, _NUMBER)
    plain = pc.replace_substring_regex(pc.if_else(good, bare, None), r"^\+|([0-9.])[fFdD]$", r"\1")
    values = pc.replace_substring(plain, "Infinity", "inf").cast(to_arrow(t))
    bad = _bad(texts, good)
    for i in np.flatnonzero(bad).tolist():  # Java reads C's hexadecimal floats too, which are rare
        if _HEX.match(bare[i].as_py()):
            mask = np.arange(len(texts)) == i
            values = pc.if_else(pa.array(mask), pa.scalar(_hexadecimal(bare[i].as_py()), values.type), values)
            bad[i] = False
    return values, bad


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("fFdD"))
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")
