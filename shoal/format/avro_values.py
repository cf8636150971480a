# SPDX-License-Identifier: Apache-2.0
"""Values of an Avro block at noted positions, decoded all at once with numpy.

Invariant: a position that does not hold such a value, wholly inside the block, is `Damaged`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

# The bytes of 64 bits, seven in each.
_MOST_BYTES = 10
_DECIMAL = 16
# Texts of more bytes than this, on average, are copied one by one: an index for each byte would cost more.
_LONG_TEXT = 64


class Damaged(Exception):
    """The bytes do not fit the schema; the reader adds the file's name."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What lies at a position: a kind, and the union byte that says null (None: no union)."""

    kind: str
    null: int | None = None
    scale: int = 0


def ends_of(raw: bytes) -> Array:
    """For each byte of a block, where the next one below 128 is: the end of a varint that begins there."""
    values = np.frombuffer(raw, np.uint8)
    last = np.where(values < 128, np.arange(len(raw), dtype=np.int32), np.int32(len(raw)))
    return np.minimum.accumulate(last[::-1])[::-1]


def values_at(leaf: Leaf, block: bytes, ends: Array, positions: list[int]) -> pa.Array:
    """The values at these positions."""
    raw = np.frombuffer(block, np.uint8)
    at = np.array(positions, np.int64)
    valid = np.ones(len(at), bool)
    if leaf.null is not None:
        branch = raw[at]
        valid = branch == 2 - leaf.null
        if (branch[~valid] != leaf.null).any():
            raise Damaged
        at = at[valid] + 1
    if len(at) and int(at.max()) >= len(raw):
        raise Damaged
    match leaf.kind:
        case "long":
            return _array(_varints(raw, ends, at)[0], "int64", valid)
        case "float" | "double":
            width = 4 if leaf.kind == "float" else 8
            values = _fixed(raw, at, width).view(f"<f{width}")[:, 0]
            return _array(values, leaf.kind, valid)
        case "boolean":
            return _array(raw[at] == 1, "bool_", valid)
        case "decimal":
            return _decimals(raw, ends, at, valid, leaf.scale)
    return _texts(block, raw, ends, at, valid)


def _array(values: Array, kind: str, valid: Array) -> pa.Array:
    import pyarrow as pa

    t = {"int64": pa.int64(), "float": pa.float32(), "double": pa.float64(), "bool_": pa.bool_()}[kind]
    if len(values) == len(valid):
        return pa.array(values, t)
    spread = np.zeros(len(valid), values.dtype)
    spread[valid] = values
    return pa.array(spread, t, mask=~valid)


def _varints(raw: Array, ends: Array, at: Array) -> tuple[Array, Array]:
    """(numbers, positions behind them)."""
    behind = ends[at] + 1
    sizes = behind - at
    if len(at) and int(behind.max()) > len(raw):
        raise Damaged
    values = np.zeros(len(at), np.uint64)
    for k in range(int(sizes.max(initial=0))):
        if k == _MOST_BYTES:
            raise Damaged
        longer = np.flatnonzero(sizes > k)
        values[longer] |= (raw[at[longer] + k] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * k)
    one = np.uint64(1)
    return ((values >> one) ^ (np.uint64(0) - (values & one))).view(np.int64), behind


def _fixed(raw: Array, at: Array, width: int) -> Array:
    if len(at) and int(at.max()) + width > len(raw):
        raise Damaged
    return raw[at[:, None] + np.arange(width)]


def _lengths(raw: Array, ends: Array, at: Array) -> tuple[Array, Array]:
    """(lengths, where the bytes begin) of texts."""
    lengths, starts = _varints(raw, ends, at)
    if len(at) and (
        int(lengths.min()) < 0 or int(lengths.max()) > len(raw) or int((starts + lengths).max()) > len(raw)
    ):
        raise Damaged
    return lengths, starts.astype(np.int64)


def _decimals(raw: Array, ends: Array, at: Array, valid: Array, scale: int) -> pa.Array:
    """Big-endian numbers of one to sixteen bytes as 128-bit decimals."""
    import pyarrow as pa

    lengths, starts = _lengths(raw, ends, at)
    if len(at) and not (int(lengths.min()) >= 1 and int(lengths.max()) <= _DECIMAL):
        raise Damaged
    words = np.zeros((len(valid), _DECIMAL), np.uint8)
    dense = np.repeat(np.where(raw[starts] > 127, np.uint8(255), np.uint8(0))[:, None], _DECIMAL, axis=1)
    for k in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > k)
        dense[longer, k] = raw[(starts + lengths)[longer] - 1 - k]
    words[valid] = dense
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(valid), [bits, pa.py_buffer(words)])


def _texts(block: bytes, raw: Array, ends: Array, at: Array, valid: Array) -> pa.Array:
    import pyarrow as pa

    lengths, starts = _lengths(raw, ends, at)
    spread = np.zeros(len(valid) + 1, np.int64)
    spread[1:][valid] = lengths
    offsets = np.cumsum(spread)
    total = int(offsets[-1])
    if total > _LONG_TEXT * len(at):
        data = b"".join([block[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist())])
    else:
        before = np.cumsum(lengths) - lengths
        data = raw[np.repeat(starts - before, lengths) + np.arange(total)].tobytes()
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(valid), [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )
