# SPDX-License-Identifier: Apache-2.0
"""Bit-sliced indexes: for each bit of a number the rows in whose number it is set.

Agrees with: BitSliceIndexBitmapFileIndex, BitSliceIndexRoaringBitmap (2.0.0). Numbers below zero have slices of their
own, over their absolute values. Comparisons walk the slices from the top (O'Neil and Quass, 1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.format import roaring
from shoal.format.index_values import Question, Reader
from shoal.format.indexed_column import Values

if TYPE_CHECKING:
    from pyroaring import BitMap

_VERSION = 1
NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIME", "DECIMAL", "TIMESTAMP", "TIMESTAMP_LTZ")


_Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Slices:
    """Numbers `low` to `high`: the rows that have one, and a slice for each bit of the number minus `low`."""

    low: int
    high: int
    present: BitMap
    bits: Sequence[BitMap]

    def compare(self, value: int) -> tuple[BitMap, BitMap, BitMap]:
        """The rows below, at and above a value."""
        from pyroaring import BitMap

        if value < self.low:
            return BitMap(), BitMap(), self.present
        if value > self.high or (value - self.low) >> len(self.bits):
            return self.present, BitMap(), BitMap()
        below, above, same = BitMap(), BitMap(), self.present
        for i in range(len(self.bits) - 1, -1, -1):
            if (value - self.low) >> i & 1:
                below |= same - self.bits[i]
                same = same & self.bits[i]
            else:
                above |= same & self.bits[i]
                same = same - self.bits[i]
        return below, same, above


def rows(q: Question, index: Reader) -> BitMap | None:
    """The rows that answer the question."""
    from pyroaring import BitMap

    if q.type.root not in NUMBERS:
        return None
    _check(index)
    count = index.number(">i")
    if index.row_count >= 0 and count != index.row_count:
        raise ValueError(f"{count} rows in the index of a file of {index.row_count}")
    positive, negative = (_slices(index) if index.number(">b") else None for _ in range(2))
    present = BitMap()
    for part in (positive, negative):
        if part is not None:
            present |= part.present
    if q.op == "valid":
        return present
    if q.op == "null":
        return BitMap(range(count)) - present
    if q.op in ("=", "<>"):
        found = BitMap()
        for v in q.values:
            found |= _sides(int(v), positive, negative)[1]
        return found if q.op == "=" else present - found
    below, same, above = _sides(int(q.values[0]), positive, negative)
    found = below if q.op[0] == "<" else above
    return found | same if q.op.endswith("=") else found


def _sides(value: int, positive: Slices | None, negative: Slices | None) -> tuple[BitMap, BitMap, BitMap]:
    """The rows below, at and above a value of either sign."""
    from pyroaring import BitMap

    plus = BitMap() if positive is None else positive.present
    minus = BitMap() if negative is None else negative.present
    if value >= 0:
        below, same, above = (BitMap(), BitMap(), BitMap()) if positive is None else positive.compare(value)
        return below | minus, same, above
    farther, same, nearer = (BitMap(), BitMap(), BitMap()) if negative is None else negative.compare(-value)[::-1]
    return farther, same, nearer | plus


def _check(index: Reader) -> None:
    version = index.number(">b")
    if version != _VERSION:
        raise Unsupported(f"{index.path} has version {version} where {_VERSION} is read", hint="upgrade shoal")


def _slices(index: Reader) -> Slices:
    _check(index)
    low, high = index.number(">q"), index.number(">q")
    present, index.at = roaring.read(index.data, index.at, index.path)
    bits = []
    for _ in range(index.count()):
        found, index.at = roaring.read(index.data, index.at, index.path)
        bits.append(found)
    return Slices(low, high, present, bits)


# ---- writing ---------------------------------------------------------------------------------------------


def encode(parts: Sequence[Values], column: str) -> bytes:
    """The index of a column, given batch by batch."""
    starts = np.cumsum([0, *(p.rows for p in parts)])
    at = np.concatenate([np.empty(0, np.int64), *(p.at + s for p, s in zip(parts, starts))])
    values = np.concatenate([np.empty(0, np.int64), *(p.numbers for p in parts if p.numbers is not None)])
    if len(values) and int(values.min()) == -(2**63):
        raise BadRequest(
            f"column '{column}': a bsi index cannot hold {-(2**63)}, whose absolute value has no 64 bit form",
            hint="leave the column out of the index",
        )
    out = _VERSION.to_bytes(1, "big") + int(starts[-1]).to_bytes(4, "big")
    for side in (values >= 0, values < 0):
        out += b"\1" + _encode_slices(at[side], np.abs(values[side])) if side.any() else b"\0"
    return out


def _encode_slices(at: _Ints, values: _Ints) -> bytes:
    """Java begins each side at zero, whatever its least value."""
    high = int(values.max())
    bits = slices(at, values, high.bit_length())
    return b"".join((
        _VERSION.to_bytes(1, "big"), bytes(8), high.to_bytes(8, "big"), roaring.encode(at),
        len(bits).to_bytes(4, "big"), *bits,
    ))  # fmt: skip


def slices(at: _Ints, values: _Ints, count: int) -> list[bytes]:
    """For each bit the bitmap of the rows in whose number it is set."""
    return [roaring.encode(at[(values >> i & 1).astype(bool)]) for i in range(count)]
