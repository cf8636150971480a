# SPDX-License-Identifier: Apache-2.0
"""Rows of a column by position: what merges and deletion vectors end with, so most of their time.

Arrow's `take` copies a column without nulls several times as fast as one with nulls, whose bits it moves one by one.
So values and validity are picked apart and put together again. Invariant: the result equals Arrow's `take`; positions
are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]


def picked(values: pa.Array, rows: Array, index: pa.Array | None = None, missing: Array | None = None) -> pa.Array:
    """`values` at these rows, null where `missing`. `index` is `rows` as Arrow array, for callers with many columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t, n = values.type, len(rows)
    if not _flat(t):
        return values.take(pa.array(rows) if missing is None else pa.array(rows, mask=missing))
    if not len(values) or not n:
        return pa.nulls(n, t)
    if missing is None and (not values.null_count or not _fixed(t)):
        return pc.take(values, pa.array(rows) if index is None else index, boundscheck=False)
    valid = validity(values)
    if missing is not None:
        rows, index = np.where(missing, 0, rows), None
    if pa.types.is_boolean(t):
        bits = _bits(values.buffers()[1], values.offset, len(values))[rows]
        data = [None, pa.py_buffer(np.packbits(bits, bitorder="little"))]
    else:
        bare = values
        if valid is not None:
            bare = pa.Array.from_buffers(t, len(values), [None, *values.buffers()[1:]], 0, values.offset)
        data = pc.take(bare, pa.array(rows) if index is None else index, boundscheck=False).buffers()
    here = np.ones(n, bool) if valid is None else valid[rows]
    if missing is not None:
        here &= ~missing
    nulls = n - int(np.count_nonzero(here))
    data[0] = pa.py_buffer(np.packbits(here, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(t, n, data, nulls)


def picked_across(parts: Sequence[pa.RecordBatch], rows: Array) -> pa.RecordBatch:
    """The rows at these positions of the parts laid end to end, which is never done: of the parts no more is copied."""
    import pyarrow as pa

    if not len(rows):
        return parts[0].slice(0, 0)
    starts = np.cumsum([0, *(p.num_rows for p in parts)])
    part = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(len(parts) + 1))
    some = [(p, rows[order[a:b]] - start) for p, start, (a, b) in zip(parts, starts, pairwise(ends)) if b > a]
    back = np.empty(len(rows), np.int64)
    back[order] = np.arange(len(rows))
    schema = parts[0].schema

    def column(i: int) -> pa.Array:
        here = [picked(p.column(i), at) for p, at in some]
        return here[0] if len(here) == 1 else picked(pa.concat_arrays(here), back)

    return pa.RecordBatch.from_arrays([column(i) for i in range(len(schema))], schema=schema)


def kept(batch: pa.RecordBatch, keep: Array) -> pa.RecordBatch:
    """The rows of a batch that a mask keeps."""
    import pyarrow as pa

    rows = np.flatnonzero(keep)
    if len(rows) == len(keep):
        return batch
    index = pa.array(rows)
    return pa.RecordBatch.from_arrays([picked(c, rows, index) for c in batch.columns], schema=batch.schema)


def validity(values: pa.Array) -> Array | None:
    """Which values are not null; None when all are."""
    if not values.null_count:
        return None
    bits = values.buffers()[0]
    if bits is None:  # types that know nulls another way
        mask: Array = values.is_valid().to_numpy(zero_copy_only=False)
        return mask
    return _bits(bits, values.offset, len(values))


def _bits(packed: pa.Buffer, offset: int, count: int) -> Array:
    ahead = offset % 8
    raw = np.frombuffer(packed, np.uint8)[offset // 8 :]
    bits: Array = np.unpackbits(raw, count=ahead + count, bitorder="little")[ahead:].view(bool)
    return bits


def _flat(t: pa.DataType) -> bool:
    """Whether a type's values lie in plain buffers."""
    import pyarrow as pa

    return _fixed(t) or pa.types.is_string(t) or pa.types.is_binary(t)


def _fixed(t: pa.DataType) -> bool:
    """Whether all values of a type are as wide. Of texts the bytes cost so much that nulls hardly matter."""
    import pyarrow as pa

    p = pa.types
    return bool(p.is_primitive(t) or p.is_decimal128(t) or p.is_fixed_size_binary(t))
