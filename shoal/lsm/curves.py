# SPDX-License-Identifier: Apache-2.0
"""Rows on a space-filling curve: a few columns become one key, and rows whose keys are near are near in every column.

Each column becomes an unsigned number in the column's order, which a z-order or a Hilbert curve mixes bit by bit. The
numbers are scaled to the bounds that the rows have (`measured`), so that a column of small numbers has as much to say
as one of large ones. Agrees with: ZIndexer, HilbertIndexer (2.0.0) in which types can be clustered and how bits are
mixed, not in bytes: there a column takes its bits as they are, a decimal or a negative number out of order.
Invariant: the number of a column never falls where its value grows, nulls come first; each curve passes every point of
the space once, Hilbert's by steps to neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest
from shoal.format.hashing import byte_buffers
from shoal.lsm.keys import Array, column_words

if TYPE_CHECKING:
    import pyarrow as pa

U64 = np.uint64
_SIGN = U64(1 << 63)
_WORD = 64
_ALL = (1 << _WORD) - 1
# Rows whose bits are mixed at once: each bit is a byte meanwhile.
_ROWS = 16_384

ORDER, ZORDER, HILBERT = "order", "zorder", "hilbert"
STRATEGIES = (ORDER, ZORDER, HILBERT)


def strategy(name: str, columns: int) -> str:
    """The curve of `clustering.strategy`; `auto` goes by the number of columns."""
    if name == "auto":
        return ORDER if columns == 1 else ZORDER if columns < 5 else HILBERT
    if name.lower() not in STRATEGIES:
        raise BadRequest(f"there is no order '{name}'", hint=f"use {', '.join(STRATEGIES)} or auto")
    return name.lower()


# ---- columns as numbers


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the values of a column lie between: numbers, or bytes of a text. None where every value is null."""

    low: int | bytes | None = None
    high: int | bytes | None = None

    def joined(self, other: Bounds) -> Bounds:
        if other.low is None or other.high is None:
            return self
        if self.low is None or self.high is None:
            return other
        return Bounds(min(self.low, other.low), max(self.high, other.high))


def measured(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> list[Bounds]:
    """The bounds of these columns over all batches."""
    found = [Bounds()] * len(columns)
    for batch in batches:
        found = [b.joined(_bounds(batch.column(c))) for b, c in zip(found, columns)]
    return found


def _bounds(column: pa.Array) -> Bounds:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        column = column.drop_null()
    if not len(column):
        return Bounds()
    if _is_text(column.type):
        least_most = pc.min_max(column.cast(pa.binary()))
        return Bounds(least_most["min"].as_py(), least_most["max"].as_py())
    numbers = _number(column)
    return Bounds(int(numbers.min()), int(numbers.max()))


def _is_text(t: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(t) or pa.types.is_binary(t))


def _number(column: pa.Array) -> Array:
    """One unsigned number a row, in the order of the values. What is no 64-bit decimal becomes the nearest one."""
    import pyarrow as pa

    if pa.types.is_decimal128(column.type):
        pair = np.frombuffer(column.buffers()[1], U64).reshape(-1, 2)[column.offset : column.offset + len(column)]
        low, high = pair[:, 0].view(np.int64), pair[:, 1].view(np.int64)
        fits = high == low >> np.int64(63)
        edge = np.where(high < 0, np.int64(-1 << 63), np.int64((1 << 63) - 1))
        return np.where(fits, low, edge).view(U64) ^ _SIGN
    return column_words(column, nullable=True)[-1]


@dataclass(frozen=True, slots=True)
class Axis:
    """How the values of one column become words of `bits` bits each.

    The first is how far the value lies between `base` and `span` above it, of a text without its first `skip` bytes.
    """

    base: int
    span: int
    bits: tuple[int, ...]
    skip: int = 0

    @classmethod
    def of(cls, bounds: Bounds, width: int) -> Axis:
        """The axis for values between the bounds; of a text `width` bytes count, after those that all have in front."""
        low, high, skip, more = bounds.low, bounds.high, 0, 0
        if isinstance(low, bytes) and isinstance(high, bytes):
            while skip < min(len(low), len(high)) and low[skip] == high[skip]:
                skip += 1
            used, more = min(width, 8), max(0, width - 8)
            low, high = (_front(v[skip:], used) for v in (low, high))
        if not isinstance(low, int) or not isinstance(high, int):
            return cls(0, 1, (1,))
        # one more than the difference: zero stands for null
        span = min(high - low + 1, _ALL)
        rest = [8 * min(8, more - at) for at in range(0, more, 8)]
        return cls(low, span, (span.bit_length(), *rest), skip)

    def words(self, column: pa.Array, width: int) -> list[Array]:
        """The words of a column, as many as `bits`, each in its lowest bits. Values out of bounds take the nearest."""
        import pyarrow as pa

        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        rest: list[Array] = []
        if _is_text(column.type):
            long = 8 + sum(self.bits[1:]) // 8
            padded = _cut(column.cast(pa.binary()).fill_null(b""), self.skip, long)
            first = padded[:, :8].copy()
            first[:, min(width, 8) :] = 0
            number = _word(first)
            rest = [_word(padded[:, at : at + 8]) for at in range(8, long, 8)]
        else:
            number = _number(column)
        base, span = U64(self.base), U64(self.span)
        moved = np.minimum(np.where(number < base, U64(0), number - base), span - U64(1)) + U64(1)
        # stretched to 64 bits, so that the highest ones tell halves and quarters of what is there
        stretched = moved * U64(_ALL // self.span) >> U64(_WORD - self.bits[0])
        out = [stretched, *rest]
        return out if nulls is None else [np.where(nulls, U64(0), w) for w in out]


def _front(value: bytes, used: int) -> int:
    return int.from_bytes(value[:used].ljust(8, b"\0"), "big")


def _cut(texts: pa.Array, start: int, width: int) -> Array:
    """(n, width) bytes of each text from `start` on, with zeros behind its end."""
    offsets, data = byte_buffers(texts)
    begins, ends = offsets[:-1].astype(np.int64) + start, offsets[1:].astype(np.int64)
    places = begins[:, None] + np.arange(width)
    return np.where(places < ends[:, None], data[np.minimum(places, len(data) - 1)], np.uint8(0))


def _word(eight: Array) -> Array:
    """Up to eight bytes as a number, its highest bits first."""
    out = np.zeros((len(eight), 8), np.uint8)
    out[:, 8 - eight.shape[1] :] = eight
    return out.view(">u8")[:, 0].astype(U64)


# ---- points to keys


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve through the space of some columns. `width` is how many bytes of a text count."""

    strategy: str
    axes: tuple[Axis, ...]
    width: int = 8

    @classmethod
    def through(cls, name: str, bounds: Sequence[Bounds], width: int) -> Curve:
        # Hilbert's curve goes through a cube, where more than a word a column is more than it can tell
        width = min(width, 8) if name == HILBERT else width
        return cls(name, tuple(Axis.of(b, width) for b in bounds), width)

    def keys(self, columns: Sequence[pa.Array]) -> Array:
        """The rows' places on the curve as bytes, one row each, whose unsigned order is the curve's."""
        parts = [self._keys([c.slice(at, _ROWS) for c in columns]) for at in range(0, max(1, len(columns[0])), _ROWS)]
        return np.concatenate(parts)

    def _keys(self, columns: Sequence[pa.Array]) -> Array:
        words = [a.words(c, self.width) for a, c in zip(self.axes, columns)]
        if self.strategy != HILBERT:
            return interleaved(words, [a.bits for a in self.axes])
        most = max(a.bits[0] for a in self.axes)
        points = [w[0] << U64(most - a.bits[0]) for w, a in zip(words, self.axes)]
        turned = hilbert(points, most)
        return interleaved([[w] for w in turned], [(most,)] * len(turned))


def interleaved(columns: Sequence[Sequence[Array]], bits: Sequence[Sequence[int]]) -> Array:
    """The bits of all columns in turn, the highest of each first; a column that has no more is passed over."""
    planes, lengths = [], []
    for words, widths in zip(columns, bits):
        own = [
            np.unpackbits(w.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)[:, _WORD - b :]
            for w, b in zip(words, widths)
        ]
        planes += own
        lengths.append(sum(widths))
    starts = np.cumsum([0, *lengths[:-1]])
    turns = [s + i for i in range(max(lengths)) for s, n in zip(starts, lengths) if i < n]
    return np.packbits(np.concatenate(planes, axis=1)[:, turns], axis=1)


def hilbert(points: Sequence[Array], bits: int) -> list[Array]:
    """Places on Hilbert's curve through a cube of `bits` bits a side, as words to interleave (J. Skilling, 2004)."""
    x = [p.copy() for p in points]
    n = len(x)
    at = bits - 1
    while at > 0:
        q, below = U64(1 << at), U64((1 << at) - 1)
        for i in range(n):
            set_ = (x[i] & q) != 0
            swapped = np.where(set_, U64(0), (x[0] ^ x[i]) & below)
            x[0] ^= np.where(set_, below, swapped)
            if i:
                x[i] ^= swapped
        at -= 1
    for i in range(1, n):
        x[i] ^= x[i - 1]
    turned = np.zeros_like(x[0])
    for at in range(bits - 1, 0, -1):
        turned ^= np.where((x[n - 1] & U64(1 << at)) != 0, U64((1 << at) - 1), U64(0))
    return [w ^ turned for w in x]
