# SPDX-License-Identifier: Apache-2.0
"""Rows that are too old to survive a compaction: `record-level.expire-time`.

Agrees with: RecordLevelExpire (2.0.0). Invariant: only compactions look at it, reads and level-0 files do not; a row
without a time stays. Times are seconds: an INT, a BIGINT (above 10^12 it is milliseconds) or a TIMESTAMP as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.errors import BadRequest
from shoal.format.datafile import DataFile
from shoal.format.row import arrow_column
from shoal.format.stats import file_bounds
from shoal.lsm.keys import Array
from shoal.lsm.picking import validity

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_MILLIS = 1_000_000_000_000
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class RecordExpire:
    """Rows whose `column` lies more than `seconds` before `now` are gone."""

    column: str
    seconds: int
    now: int

    def keeps(self, times: pa.Array) -> Array:
        """Which rows stay."""
        valid = validity(times)
        keep: Array = _seconds(times) + self.seconds >= self.now
        return keep if valid is None else keep | ~valid

    def touches(self, table: Table, file: DataFile) -> bool:
        """Whether a file holds a row that is too old, as far as its statistics tell."""
        schema = table.file_schema(file.schema_id)
        today = table.schema.field(self.column)
        written = next((f for f in schema.fields if f.id == today.id), None)
        if written is None:
            return False
        known = file_bounds(schema.fields, file.value_stats, file.value_stats_cols, file.file_name)
        if written.name not in known:
            return False
        least = known[written.name].low
        if least is None:
            return False
        return bool(_seconds(arrow_column([least], written.type))[0] < self.now - self.seconds)


def record_expire(table: Table) -> RecordExpire | None:
    """The table's rule at this moment; None where rows do not expire."""
    time = table.options.get("record-level.expire-time")
    if time is None:
        return None
    column = table.options.get("record-level.time-field")
    if not isinstance(column, str) or column not in table.schema.names:
        raise BadRequest(
            f"{table.name}: 'record-level.expire-time' needs a column to look at, not {column!r}",
            hint="set 'record-level.time-field' to an INT, BIGINT or TIMESTAMP column",
        )
    root = table.schema.field(column).type.root
    if root not in ("INT", "BIGINT") and not root.startswith("TIMESTAMP"):
        raise BadRequest(
            f"{table.name}: 'record-level.time-field' = '{column}' is {root}",
            hint="the column must be INT, BIGINT or TIMESTAMP",
        )
    return RecordExpire(column, cast(int, time) // 1000, table.clock.now_ms() // 1000)


def _seconds(times: pa.Array) -> Array:
    """Whole seconds, cut towards zero as Java divides; anything where a time is null."""
    import pyarrow as pa

    t = times.type
    if pa.types.is_decimal(t):
        raise BadRequest("'record-level.time-field' has more digits than a timestamp of Arrow")
    raw = np.frombuffer(times.buffers()[1], np.dtype(f"i{t.bit_width // 8}"))
    v = raw[times.offset : times.offset + len(times)].astype(np.int64)
    if pa.types.is_timestamp(t):
        # first milliseconds, rounded down, then seconds, cut: Timestamp.getMillisecond() / 1000
        unit = _UNITS[t.unit]
        ms = v * 1000 if unit == 1 else v // (unit // 1000)
        return np.where(ms < 0, -(-ms // 1000), ms // 1000)
    return np.where(v >= _MILLIS, v // 1000, v) if t.bit_width == 64 else v
