# SPDX-License-Identifier: Apache-2.0
"""Streams of an ORC column: runs of integers, bytes and bits, timestamps and decimals, encoded from whole columns.

Agrees with: the ORC v1 specification, RLE version 2. Integers go out as runs of 512: as a fixed step where there is
one, else packed in whole bytes (or 1, 2, 4 bits); which a compressor behind makes up for. Invariant: every reader of
ORC 0.12 and later decodes the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.format.byte_columns import Array, decimal_words, wide_varints, zigzag
from shoal.format.instants import parts
from shoal.format.varint import unsigned, varint

if TYPE_CHECKING:
    import pyarrow as pa

_RUN = 512
_BYTES_RUN = 128
# Widths in bits that runs are packed with, and their codes.
_WIDTHS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
_CODES = {w: w - 1 for w in _WIDTHS if w <= 24} | {32: 27, 40: 28, 48: 29, 56: 30, 64: 31}
# Steps beyond this could overflow where they are subtracted.
_STEP = 1 << 61
# 2015-01-01, ORC's zero of time.
_BASE = 1_420_070_400


def integers(v: Array, *, signed: bool) -> bytes:
    """Numbers as an integer stream, RLE version 2."""
    count = len(v)
    if not count:
        return b""
    wide = v.astype(np.int64, copy=False)
    runs = -(-count // _RUN)
    pad = runs * _RUN - count
    # the last run is filled up with a step of the same size, so that a sequence stays one
    filled = np.concatenate([wide, np.full(pad, wide[-1], np.int64)]) if pad else wide
    blocks = filled.reshape(runs, _RUN)
    near = (blocks.max(axis=1) < _STEP) & (blocks.min(axis=1) > -_STEP)
    steps = np.diff(blocks, axis=1)
    even = near & (steps == steps[:, :1]).all(axis=1)
    last = _RUN - pad
    if pad:
        tail = steps[-1, : last - 1]
        even[-1] = near[-1] and (last == 1 or bool((tail == tail[0]).all()))
    stored = (zigzag(blocks.ravel()) if signed else blocks.ravel().view(np.uint64)).reshape(runs, _RUN)
    packed = _packed(stored, even)
    out: list[bytes] = []
    for run in range(runs):
        length = last if run == runs - 1 else _RUN
        if even[run] and length > 1:
            first, step = int(blocks[run, 0]), int(blocks[run, 1] - blocks[run, 0])
            out.append((0xC000 | length - 1).to_bytes(2, "big"))
            out.append((varint(first) if signed else unsigned(first)) + varint(step))
            continue
        width, raw = packed[run]
        out.append((0x4000 | _CODES[width] << 9 | length - 1).to_bytes(2, "big"))
        out.append(raw[: -(-length * width // 8)])
    return b"".join(out)


def _packed(blocks: Array, left_out: Array) -> dict[int, tuple[int, bytes]]:
    """By run: the bits of a value, and the values packed with so many, the highest bit first."""
    most = blocks.max(axis=1)
    out: dict[int, tuple[int, bytes]] = {}
    low = np.uint64(0)
    for width in _WIDTHS:
        limit = np.uint64((1 << width) - 1)
        # a run of one value is packed although it counts as even
        chosen = np.flatnonzero((most <= limit) & ((most > low) if width > 1 else True) & _kept(left_out, blocks))
        low = limit
        if not len(chosen):
            continue
        values = blocks[chosen]
        if width >= 8:
            raw = values.astype(">u8").view(np.uint8).reshape(len(chosen), _RUN, 8)[:, :, 8 - width // 8 :]
        else:
            per = 8 // width
            parts = values.astype(np.uint8).reshape(len(chosen), _RUN // per, per)
            raw = np.zeros(parts.shape[:2], np.uint8)
            for k in range(per):
                raw |= parts[:, :, k] << (8 - width * (k + 1))
        flat = np.ascontiguousarray(raw).reshape(len(chosen), -1)
        for run, line in zip(chosen.tolist(), flat):
            out[run] = width, line.tobytes()
    return out


def _kept(left_out: Array, blocks: Array) -> Array:
    kept = ~left_out
    kept[-1] = True  # it may hold a single value
    return kept


def octets(v: Array) -> bytes:
    """Bytes as a byte stream, run-length encoded in runs of up to 128."""
    count = len(v)
    if not count:
        return b""
    whole = count // _BYTES_RUN
    blocks = v[: whole * _BYTES_RUN].reshape(whole, _BYTES_RUN)
    same = (blocks == blocks[:, :1]).all(axis=1)
    plain = np.empty((whole, _BYTES_RUN + 1), np.uint8)
    plain[:, 0] = 128  # -128: so many bytes as they are
    plain[:, 1:] = blocks
    kept = np.ones(plain.shape, bool)
    kept[same, 2:] = False
    plain[same, 0] = _BYTES_RUN - 3
    rest = v[whole * _BYTES_RUN :]
    tail = bytes([256 - len(rest)]) + rest.tobytes() if len(rest) else b""
    return plain[kept].tobytes() + tail


def bits(v: Array) -> bytes:
    """Booleans as a bit stream."""
    return octets(np.packbits(v))


def timestamps(a: pa.Array) -> tuple[bytes, bytes]:
    """(seconds, nanoseconds) streams of timestamps or decimal seconds without nulls, in UTC.

    ORC stores seconds cut towards 1970 and readers put that right by the nanoseconds, but for the last second before
    1970: as with Java's writer it comes back as the first second after.
    """
    seconds, nanos = parts(a)
    seconds = seconds + ((seconds < 0) & (nanos > 999_999))
    return integers(seconds - _BASE, signed=True), integers(_short_nanos(nanos), signed=False)


def _short_nanos(nanos: Array) -> Array:
    """Nanoseconds without their zeros at the end; the low three bits say how many there were, less one."""
    left, zeros = nanos.copy(), np.zeros(len(nanos), np.int64)
    cut = (nanos != 0) & (nanos % 100 == 0)
    left[cut] //= 100
    zeros[cut] = 1
    for _ in range(6):
        more = cut & (left % 10 == 0)
        if not more.any():
            break
        left[more] //= 10
        zeros[more] += 1
    return left << 3 | zeros


def decimals(a: pa.Array, scale: int) -> tuple[bytes, bytes]:
    """(values, scales) streams of a decimal array without nulls."""
    flat, _ = wide_varints(*decimal_words(a))
    return flat.tobytes(), integers(np.full(len(a), scale, np.int64), signed=True)
