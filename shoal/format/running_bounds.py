# SPDX-License-Identifier: Apache-2.0
"""Null counts, least and greatest values of columns as they are written, for formats whose files do not tell.

Agrees with: SimpleStatsCollector for Avro, OrcSimpleStatsExtractor with ORC's ColumnStatisticsImpl (2.0.0). Invariant:
what is found holds for every row added; a column that keeps no bounds costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shoal.format.data_writer import ColumnBounds
from shoal.format.row import UNIT_NS, Value, order_key, stored_values
from shoal.format.types import DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa

# What `stats.mode_length` says of modes without bounds (a layer of its own would only hold these two).
_COUNTS = -1
# ORC keeps only the beginning of longer texts, and then Paimon takes no bound.
_LONGEST = 1024


class RunningBounds:
    """Bounds of the columns of one file. ORC bounds no binaries, and neither bounds nested columns."""

    def __init__(self, fields: Sequence[Field], limits: Mapping[str, int | None], form: Literal["avro", "orc"]) -> None:
        self._fields = fields
        self._form = form
        limited = {f.name: limits.get(f.name) for f in fields}
        self._counted = [i for i, f in enumerate(fields) if (n := limited[f.name]) is None or n >= _COUNTS]
        self._bounded = frozenset(i for i in self._counted if limited[fields[i].name] != _COUNTS and self._has(i))
        self._nulls = [0] * len(fields)
        self._low: list[Value] = [None] * len(fields)
        self._high: list[Value] = [None] * len(fields)
        self._unknown: set[int] = set()

    def _has(self, i: int) -> bool:
        t = self._fields[i].type
        return not t.is_nested and not (self._form == "orc" and t.root in ("BINARY", "VARBINARY", "BLOB"))

    def add(self, batch: pa.RecordBatch) -> None:
        for i in self._counted:
            column = batch.column(i)
            self._nulls[i] += column.null_count
            if i in self._bounded and i not in self._unknown and column.null_count < len(column):
                self._widen(i, column, self._fields[i].type)

    def _widen(self, i: int, column: pa.Array, t: DataType) -> None:
        low: Value
        high: Value
        if t.root in ("FLOAT", "DOUBLE"):
            values = column.drop_null().to_numpy()
            if self._form == "orc":
                if np.isnan(values).any():
                    # ORC's bounds depend on where among the others the NaN stood
                    self._unknown.add(i)
                    return
                low, high = float(values.min()), float(values.max())
            else:
                low, high = _float_ends(values)
        else:
            low, high = _ends(padded(column, t) if self._form == "orc" else column, t)
        if self._low[i] is None or order_key(t, low) < order_key(t, self._low[i]):
            self._low[i] = low
        if self._high[i] is None or order_key(t, high) > order_key(t, self._high[i]):
            self._high[i] = high

    def found(self) -> dict[str, ColumnBounds]:
        return {self._fields[i].name: self._of(i) for i in self._counted}

    def _of(self, i: int) -> ColumnBounds:
        if i in self._unknown:
            return ColumnBounds(None, None, self._nulls[i])
        low, high = (self._short(v) for v in (self._low[i], self._high[i]))
        return ColumnBounds(low, high, self._nulls[i])

    def _short(self, v: Value) -> Value:
        return None if self._form == "orc" and isinstance(v, bytes) and len(v) > _LONGEST else v


def padded(column: pa.Array, t: DataType) -> pa.Array:
    """CHAR values as ORC files hold them: filled up with blanks."""
    import pyarrow.compute as pc

    return pc.utf8_rpad(column, t.length or 1, " ") if t.root == "CHAR" else column


def _ends(column: pa.Array, t: DataType) -> tuple[Value, Value]:
    """Least and greatest value in stored form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    scale = 1
    if t.is_timestamp and not pa.types.is_decimal(column.type):
        column, scale = column.view(pa.int64()), UNIT_NS[column.type.unit]
    elif t.root in ("DATE", "TIME"):
        column = column.view(pa.int32())
    elif t.is_bytes:
        column = column.cast(pa.binary())
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if t.root == "DECIMAL" or (t.is_timestamp and scale == 1 and not isinstance(low, int)):
        low, high = stored_values(pa.array([low, high], column.type), t)
    return (low * scale, high * scale) if scale > 1 else (low, high)


def _float_ends(values: np.ndarray[Any, np.dtype[Any]]) -> tuple[float, float]:
    """Least and greatest float in Java's order: -0.0 before 0.0, NaN after everything."""
    kind = np.int32 if values.dtype == np.float32 else np.int64
    bits: np.ndarray[Any, Any] = values.view(kind)
    order = bits ^ ((bits >> (8 * bits.itemsize - 1)) & np.iinfo(kind).max)
    order[np.isnan(values)] = np.iinfo(kind).max
    low, high = float(values[order.argmin()]), float(values[order.argmax()])
    return low, math.nan if high != high else high
