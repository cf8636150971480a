# SPDX-License-Identifier: Apache-2.0
"""A column of a data file in the values that its file index stores.

Agrees with: BitmapFileIndex.getValueMapper, BitSliceIndexBitmapFileIndex.getValueMapper, KeyFactory (2.0.0).
Timestamps are milliseconds (up to 3 digits) or microseconds, rounded down; decimals are whole numbers; text is bytes.
Invariant: rows without a value count as rows and have no place in `values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest
from shoal.format import java_table
from shoal.format.index_values import LAYOUT
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

_PER_MICRO = {"s": -1_000_000, "ms": -1_000, "us": 1, "ns": 1_000}


@dataclass(frozen=True, slots=True)
class Values:
    """The values of some rows: numbers in a numpy array, text as an Arrow array of bytes."""

    rows: int
    """How many rows there are, with and without a value."""
    at: Array
    """The rows that have a value, ascending."""
    numbers: Array | None
    text: pa.BinaryArray | None


@dataclass(frozen=True, slots=True)
class Distinct:
    """The different values of a column in the index's order, and which of them each row has."""

    rows: int
    at: Array
    codes: Array
    """For each of `at` the number of its value."""
    firsts: Array
    """For each value the place in `at` where it came first."""
    numbers: Array | None
    """The values: numbers in Java's big-endian layout are `encoded`."""
    text: tuple[bytes, ...]
    type: DataType

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def widths(self) -> Array:
        """Bytes that each value takes."""
        if self.numbers is not None:
            return np.full(len(self), np.dtype(LAYOUT[self.type.root]).itemsize, np.int64)
        return np.fromiter((4 + len(v) for v in self.text), np.int64, len(self.text))

    def encoded(self, start: int, end: int, *behind: Array) -> bytes:
        """The values `start` to `end` with an int32 of each array behind every one."""
        if self.numbers is not None:
            fields = [("value", LAYOUT[self.type.root])] + [(f"n{i}", ">i4") for i in range(len(behind))]
            out = np.empty(end - start, np.dtype(fields))
            out["value"] = self.numbers[start:end]
            for i, extra in enumerate(behind):
                out[f"n{i}"] = extra[start:end]
            return out.tobytes()
        # text has no fixed width; this is one step for each different value, not for each row
        parts = []
        tails = np.stack([e[start:end] for e in behind], axis=1).astype(">i4") if behind else None
        for i, v in enumerate(self.text[start:end]):
            parts += [len(v).to_bytes(4, "big"), v, b"" if tails is None else tails[i].tobytes()]
        return b"".join(parts)

    def hash_order(self) -> Array:
        """The values in the order of a HashMap in which a computeIfAbsent for each row made them."""
        arrival = np.argsort(self.firsts, kind="stable")
        used_later = int(self.firsts.max(initial=0)) < len(self.at) - 1
        return arrival[java_table.computed(self._hashes()[arrival], used_later)]

    def _hashes(self) -> Array:
        import pyarrow as pa

        v = self.numbers
        if v is None:
            data = pa.array(self.text, pa.large_binary())
            raw = data.buffers()
            offsets = np.frombuffer(raw[1], np.int64)[: len(data) + 1]
            bytes_ = np.frombuffer(raw[2], np.uint8) if raw[2] is not None else np.empty(0, np.uint8)
            return java_table.bytes_hashes(bytes_, offsets)
        if self.type.root == "BOOLEAN":
            return np.where(v, 1231, 1237)
        if v.dtype.kind == "f":
            v = v.view(f"i{v.dtype.itemsize}")
        return java_table.folded(v) if v.dtype.itemsize == 8 else v.astype(np.int64)


def values(column: pa.Array, t: DataType, name: str) -> Values:
    """A column (of the type's Arrow type, or one that casts to it) as an index stores it."""
    import pyarrow as pa

    if column.type != to_arrow(t):
        column = column.cast(to_arrow(t))
    rows = len(column)
    at = np.arange(rows)
    if column.null_count:
        at = at[column.is_valid().to_numpy(zero_copy_only=False)]
        column = column.drop_null()
    if t.is_bytes:
        return Values(rows, at, None, column.cast(pa.binary()))
    return Values(rows, at, _numbers(column, t, name), None)


def _numbers(column: pa.Array, t: DataType, name: str) -> Array:
    import pyarrow as pa

    if t.is_timestamp:
        return _instants(column, t)
    if t.root == "DECIMAL":
        words = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)[column.offset : column.offset + len(column)]
        if (words[:, 1] != words[:, 0] >> 63).any():
            raise BadRequest(
                f"column '{name}': an index holds decimals as 64 bit numbers, and one is larger",
                hint="leave the column out of the index",
            )
        return words[:, 0].copy()
    if t.root == "BOOLEAN":
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.uint8)
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32())
    return np.array(column.to_numpy(zero_copy_only=False))


def _instants(column: pa.Array, t: DataType) -> Array:
    import pyarrow as pa

    millis = (t.precision or 0) <= 3
    if pa.types.is_decimal(column.type):  # seconds with nine digits, which may not fit 64 bits as nanoseconds
        words = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, 2)[column.offset : column.offset + len(column)]
        # 2^64 = 18446744073709551 * 1000 + 616: both words are divided on their own, the remainders together
        high = words[:, 1].view(np.int64)
        low, rest = words[:, 0] // np.uint64(1000), words[:, 0] % np.uint64(1000)
        micros = high * 18446744073709551 + low.astype(np.int64) + (high * 616 + rest.astype(np.int64)) // 1000
        return micros // 1000 if millis else micros
    per = _PER_MICRO[column.type.unit]
    raw = np.array(column.view(pa.int64()).to_numpy(zero_copy_only=False))
    if millis:
        return raw * (-per // 1000) if per < 0 else raw // (per * 1000)
    return raw * -per if per < 0 else raw // per


def distinct(parts: Sequence[Values], t: DataType) -> Distinct:
    """The different values of all batches of a column; the rows of a batch follow those of the one before."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = np.cumsum([0, *(p.rows for p in parts)])
    at = np.concatenate([np.empty(0, np.int64), *(p.at + s for p, s in zip(parts, starts))])
    if t.is_bytes:
        whole = pa.chunked_array([p.text for p in parts if p.text is not None], pa.binary()).combine_chunks()
        coded = (pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole).dictionary_encode()
        ranks = pc.sort_indices(coded.dictionary).to_numpy()
        place = np.empty(len(ranks), np.int64)
        place[ranks] = np.arange(len(ranks))
        codes = place[coded.indices.to_numpy()] if len(at) else np.empty(0, np.int64)
        text = tuple(coded.dictionary.take(pa.array(ranks)).to_pylist())
        return Distinct(int(starts[-1]), at, codes, _firsts(codes, len(text)), None, text, t)
    numbers = np.concatenate([p.numbers for p in parts if p.numbers is not None] or [np.empty(0, np.int64)])
    keys = _ascending(numbers) if numbers.dtype.kind == "f" else numbers
    _, firsts, codes = np.unique(keys, return_index=True, return_inverse=True)
    return Distinct(int(starts[-1]), at, codes.reshape(-1), firsts, numbers[firsts], (), t)


def _firsts(codes: Array, count: int) -> Array:
    out = np.zeros(count, np.int64)
    out[codes[::-1]] = np.arange(len(codes))[::-1]  # of several writes to one place the last stays
    return out


def canonical(v: Array) -> Array:
    """Floats with one pattern for all NaN, as floatToIntBits has it."""
    return np.where(np.isnan(v), np.array(np.nan, v.dtype), v) if v.dtype.kind == "f" else v


def _ascending(v: Array) -> Array:
    """Whole numbers in the order of Float.compareTo: zeros apart, all NaN one and above everything."""
    bits = canonical(v).view(f"i{v.dtype.itemsize}")
    return bits ^ ((bits >> (8 * v.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)
