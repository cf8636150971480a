# SPDX-License-Identifier: Apache-2.0
"""Values of a column as bytes, all at once: varints, texts, decimals, and columns laid side by side as rows.

A column of bytes is a pair: the bytes of all values one after another, and how many belong to each value.
Invariant: nothing here loops over values; memory is a small multiple of the bytes that come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]
Pieces = tuple[Array, Array]
"""Bytes (uint8) of all values, and the length (int64) of each."""


def zigzag(v: Array) -> Array:
    """Signed 64-bit numbers as unsigned ones, small where they are near zero."""
    wide = v.astype(np.int64, copy=False)
    return ((wide << 1) ^ (wide >> 63)).view(np.uint64)


def varints(v: Array) -> Pieces:
    """Unsigned 64-bit numbers, seven bits a byte, the lowest first."""
    width = 1
    lengths: Array = np.ones(len(v), np.int64)
    while width < 10 and len(v) and (more := v >= np.uint64(1 << (7 * width))).any():
        lengths += more
        width += 1
    if width == 1:
        return v.astype(np.uint8), lengths
    return _groups([(v >> np.uint64(7 * k)).astype(np.uint8) & 127 for k in range(width)], lengths)


def wide_varints(low: Array, high: Array) -> Pieces:
    """Signed 128-bit numbers (two's complement, two words of 64 bits) as varints, zigzag."""
    sign = (high.view(np.int64) >> 63).view(np.uint64)
    one, top = np.uint64(1), np.uint64(63)
    a: Array = (low << one) ^ sign
    b: Array = ((high << one) | (low >> top)) ^ sign
    if not b.any():
        return varints(a)
    parts = []
    for k in range(19):
        at = 7 * k
        part: Array
        if at < 64:
            part = a >> np.uint64(at)
            if at > 57:
                part = part | (b << np.uint64(64 - at))
        else:
            part = b >> np.uint64(at - 64)
        parts.append(part.astype(np.uint8) & 127)
    last = np.zeros(len(a), np.int64)
    for k, part in enumerate(parts):
        last[part != 0] = k
    return _groups(parts, last + 1)


def _groups(parts: Sequence[Array], lengths: Array) -> Pieces:
    """Seven bits each of `parts`, as many of them as `lengths` says."""
    width = int(lengths.max()) if len(lengths) else 1
    out = np.empty((len(lengths), width), np.uint8)
    for k in range(width):
        out[:, k] = parts[k] | ((lengths > k + 1).view(np.uint8) << 7)
    return out[np.arange(width) < lengths[:, None]], lengths


def texts(a: pa.Array) -> Pieces:
    """The bytes of a string or binary array without nulls."""
    offsets = np.frombuffer(a.buffers()[1], np.int32)[a.offset : a.offset + len(a) + 1]
    if not len(a):
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    data = a.buffers()[2]
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return raw[offsets[0] : offsets[-1]], np.diff(offsets).astype(np.int64)


def decimal_words(a: pa.Array) -> tuple[Array, Array]:
    """(low, high) words of a decimal128 array without nulls."""
    words = np.frombuffer(a.buffers()[1], np.uint64)[2 * a.offset : 2 * (a.offset + len(a))]
    return words[0::2], words[1::2]


def minimal_decimals(a: pa.Array) -> Pieces:
    """Unscaled values of a decimal128 array without nulls, big-endian, as few bytes as their sign allows."""
    raw = np.frombuffer(a.buffers()[1], np.uint8)[16 * a.offset : 16 * (a.offset + len(a))].reshape(-1, 16)[:, ::-1]
    sign = np.where(raw[:, 0] > 127, 255, 0).astype(np.uint8)
    other = raw != sign[:, None]
    first = np.where(other.any(axis=1), other.argmax(axis=1), 15)
    # the first byte that is kept must show the sign
    rows = np.arange(len(raw))
    first = np.maximum(first - ((raw[rows, first] ^ sign) > 127), 0)
    return np.ascontiguousarray(raw)[np.arange(16) >= first[:, None]], 16 - first.astype(np.int64)


def fixed(v: Array, width: int) -> Pieces:
    """Numbers of `width` bytes, little-endian."""
    return np.ascontiguousarray(v).view(np.uint8), np.full(len(v), width, np.int64)


def side_by_side(parts: Sequence[Pieces], rows: int) -> Pieces:
    """Rows: of each, its bytes of the first part, then those of the second, and so on."""
    if len(parts) == 1:
        return parts[0]
    lengths: Array = np.zeros(rows, np.int64)
    for _, n in parts:
        lengths += n
    total = int(lengths.sum())
    kind = np.int32 if total < 1 << 31 else np.int64
    at: Array = (np.cumsum(lengths) - lengths).astype(kind)
    out = np.empty(total, np.uint8)
    for flat, n in parts:
        if not len(flat):
            continue
        least, most = int(n.min()), int(n.max())
        if most == 1:
            out[at if least else at[n > 0]] = flat
        elif least == most:
            out[(at[:, None] + np.arange(most, dtype=kind)).ravel()] = flat
        else:
            start = at - (np.cumsum(n) - n).astype(kind)
            out[np.repeat(start, n) + np.arange(len(flat), dtype=kind)] = flat
        at += n.astype(kind)
    return out, lengths


def runs_of(flat: Array, lengths: Array, counts: Array) -> Pieces:
    """The same bytes, `counts` neighbouring values taken as one."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    at = np.concatenate(([0], np.cumsum(counts)))
    return flat, np.diff(ends[at])
