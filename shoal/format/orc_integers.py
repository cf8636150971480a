# SPDX-License-Identifier: Apache-2.0
"""ORC's run-length encoding of integers, version 2, run by run into one numpy array.

Agrees with: RunLengthIntegerReaderV2 of ORC 1.9. Invariant: exactly as many values come out as are asked for, or
`ValueError` or `IndexError`; arithmetic wraps at 64 bits as Java's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.format.varint import read_unsigned

Array = np.ndarray[Any, np.dtype[Any]]

# Bits of a value by its five-bit code.
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
_WORD = (1 << 64) - 1


def integers(b: bytes, count: int, *, signed: bool) -> Array:
    """`count` values of a stream, as int64."""
    out = np.empty(count, np.int64)
    at = 0
    for values in runs(b, signed=signed):
        take = min(len(values), count - at)
        out[at : at + take] = values[:take]
        at += take
        if at == count:
            break
    if at < count:
        raise ValueError(f"a stream ends after {at} of {count} values")
    return out


def runs(b: bytes, *, signed: bool) -> Iterator[Array]:
    """The values of a stream, one array for each run."""
    p = 0
    while p < len(b):
        kind = b[p] >> 6
        if kind == 0:
            values, p = _short_repeat(b, p, signed)
        elif kind == 1:
            n, width, p = _head(b, p)
            raw = _unpacked(b, p, n, width)
            values, p = _unzigzag(raw) if signed else raw.view(np.int64), p + _bytes(n, width)
        elif kind == 2:
            values, p = _patched(b, p)
        else:
            values, p = _delta(b, p, signed)
        yield values


def _head(b: bytes, p: int) -> tuple[int, int, int]:
    """(values, bits of each, next position) of the two bytes that most kinds of run begin with."""
    return ((b[p] & 1) << 8 | b[p + 1]) + 1, _WIDTHS[b[p] >> 1 & 31], p + 2


def _bytes(n: int, width: int) -> int:
    return (n * width + 7) >> 3


def _short_repeat(b: bytes, p: int, signed: bool) -> tuple[Array, int]:
    width, n = (b[p] >> 3 & 7) + 1, (b[p] & 7) + 3
    if p + 1 + width > len(b):
        raise IndexError
    value = int.from_bytes(b[p + 1 : p + 1 + width], "big")
    return np.full(n, _word((value >> 1) ^ -(value & 1) if signed else value), np.int64), p + 1 + width


def _word(n: int) -> int:
    """A number cut to a signed word."""
    n &= _WORD
    return n - (1 << 64) if n >> 63 else n


def _patched(b: bytes, p: int) -> tuple[Array, int]:
    """Small values above a base, with patches for the few that have more bits."""
    n, width, p = _head(b, p)
    base_bytes, patch_width = (b[p] >> 5) + 1, _WIDTHS[b[p] & 31]
    gap_width, patches = (b[p + 1] >> 5) + 1, b[p + 1] & 31
    p += 2
    base = int.from_bytes(b[p : p + base_bytes], "big")
    sign = 1 << (8 * base_bytes - 1)
    if base & sign:
        base = -(base & (sign - 1))
    p += base_bytes
    values = _unpacked(b, p, n, width)
    p += _bytes(n, width)
    entry = next(w for w in _WIDTHS if w >= patch_width + gap_width)
    listed = _unpacked(b, p, patches, entry)
    p += _bytes(patches, entry)
    if patches:
        # a gap of 255 with an empty patch goes on to the next entry
        places = np.cumsum((listed >> np.uint64(patch_width)).astype(np.int64))
        if places[-1] >= n:
            raise ValueError("a patch lies beyond its run")
        high = listed & np.uint64((1 << patch_width) - 1)
        np.bitwise_or.at(values, places, high << np.uint64(width) if width < 64 else high * np.uint64(0))
    return values.view(np.int64) + np.int64(base), p


def _delta(b: bytes, p: int, signed: bool) -> tuple[Array, int]:
    n = ((b[p] & 1) << 8 | b[p + 1]) + 1
    code = b[p] >> 1 & 31
    p += 2
    first, p = read_unsigned(b, p)
    if signed:
        first = (first >> 1) ^ -(first & 1)
    step, p = read_unsigned(b, p)
    step = (step >> 1) ^ -(step & 1)
    steps = np.full(n, _word(step), np.int64)
    steps[0] = _word(first)
    if code:
        width = _WIDTHS[code]
        more = _unpacked(b, p, max(n - 2, 0), width).view(np.int64)
        steps[2:] = more if step >= 0 else -more
        p += _bytes(max(n - 2, 0), width)
    return np.cumsum(steps), p


def _unzigzag(raw: Array) -> Array:
    one = np.uint64(1)
    return ((raw >> one) ^ (np.uint64(0) - (raw & one))).view(np.int64)


def _unpacked(b: bytes, p: int, n: int, width: int) -> Array:
    """`n` big-endian numbers of `width` bits each, as uint64."""
    size = _bytes(n, width)
    if p + size > len(b):
        raise IndexError
    raw = np.frombuffer(b, np.uint8, size, p)
    word = next(w for w in (8, 16, 32, 64) if w >= width)
    if width == word:
        return raw.view(f">u{word // 8}").astype(np.uint64)
    bits = np.zeros((n, word), np.uint8)
    bits[:, word - width :] = np.unpackbits(raw, count=n * width).reshape(n, width)
    return np.packbits(bits, axis=1).view(f">u{word // 8}")[:, 0].astype(np.uint64)
