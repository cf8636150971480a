# SPDX-License-Identifier: Apache-2.0
"""Whole batches as Java's compacted rows: a byte for the row kind, a bit for each null, then the values that are there.

Keys and values of stored lookup files are such rows. Agrees with: RowCompactedSerializer (2.0.0). Invariant: bytes
equal those of Java's serializer, which compares keys by what it reads from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Unsupported
from shoal.format.binary_nested import arrays, can_nest, maps
from shoal.format.byte_columns import Array, Pieces, fixed, minimal_decimals, side_by_side, texts, varints
from shoal.format.instants import parts as instant_parts
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_KIND_BITS = 8
_COMPACT_DECIMAL, _COMPACT_TIMESTAMP = 18, 3
_WIDTHS = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "DATE": 4, "TIME": 4, "BIGINT": 8, "FLOAT": 4, "DOUBLE": 8}


def can_compact(t: DataType) -> bool:
    """Whether values of this type are written here."""
    if t.root == "ROW":
        return all(can_compact(f.type) for f in t.fields)
    if t.root in ("ARRAY", "MAP", "MULTISET"):
        return can_nest(t)
    plain = t.root in _WIDTHS or t.root in ("BOOLEAN", "DECIMAL", "VARIANT")
    return plain or t.is_timestamp or (t.is_bytes and t.root != "BLOB")


def compact_rows(columns: Sequence[pa.Array], types: Sequence[DataType], rows: int) -> Pieces:
    """The bytes of each row, of kind +I."""
    width = (len(types) + 7 + _KIND_BITS) // 8
    header = np.zeros((rows, width), np.uint8)
    parts: list[Pieces] = [(header.reshape(-1), np.full(rows, width, np.int64))]
    for i, (column, t) in enumerate(zip(columns, types)):
        if not column.null_count:
            parts += _values(column, t)
            continue
        valid = np.asarray(column.is_valid())
        bit = i + _KIND_BITS
        header[:, bit // 8] |= (~valid).view(np.uint8) << (bit % 8)
        parts += [_spread(p, valid) for p in _values(column.drop_null(), t)]
    return side_by_side(parts, rows)


def _spread(p: Pieces, valid: Array) -> Pieces:
    """Values of the valid rows as values of all rows; the others have no bytes."""
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = p[1]
    return p[0], lengths


def _values(a: pa.Array, t: DataType) -> list[Pieces]:
    """The bytes of an array without nulls, as parts that lie behind one another."""
    import pyarrow as pa

    if t.is_timestamp:
        return _timestamps(a, t)
    match t.root:
        case "BOOLEAN":
            return [fixed(a.cast(pa.uint8()).to_numpy(), 1)]
        case "DATE" | "TIME":
            return [fixed(a.view(pa.int32()).to_numpy(), 4)]
        case "DECIMAL" if (t.precision or 10) <= _COMPACT_DECIMAL:
            words = np.frombuffer(a.buffers()[1] or b"", np.int64)[2 * a.offset : 2 * (a.offset + len(a)) : 2]
            return [fixed(words, 8)]
        case "DECIMAL":
            return _sized(minimal_decimals(a))
        case "ROW":
            fields = [a.field(i) for i in range(a.type.num_fields)]
            return _sized(compact_rows(fields, [f.type for f in t.fields], len(a)))
        case "ARRAY":
            assert t.element is not None
            return _sized(arrays(a, t.element))
        case "MAP" | "MULTISET":
            return _sized(maps(a, t))
        case "VARIANT":
            both = [p for name in ("value", "metadata") for p in _sized(texts(a.field(name)))]
            return _sized(side_by_side(both, len(a)))
    if t.root in _WIDTHS:
        return [fixed(a.to_numpy(), _WIDTHS[t.root])]
    if t.is_bytes and t.root != "BLOB":
        return _sized(texts(a))
    raise Unsupported(f"lookup files take no {t}")


def _timestamps(a: pa.Array, t: DataType) -> list[Pieces]:
    """Milliseconds and, with more digits, the nanoseconds within them."""
    seconds, nanos = instant_parts(a)
    millis = fixed(seconds * 1000 + nanos // 1_000_000, 8)
    if (t.precision or 0) <= _COMPACT_TIMESTAMP:
        return [millis]
    return [millis, varints((nanos % 1_000_000).astype(np.uint64))]


def _sized(p: Pieces) -> list[Pieces]:
    """Bytes with their length before them."""
    return [varints(p[1].astype(np.uint64)), p]
