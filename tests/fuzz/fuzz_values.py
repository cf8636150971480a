# SPDX-License-Identifier: Apache-2.0
"""Values of the oracle's encoding as Arrow scalars: the literals of random filters."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.format.types import DataType

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH = date(1970, 1, 1).toordinal()


def scalar(value: Any, t: DataType, arrow: pa.DataType) -> pa.Scalar:
    """A value of the oracle's encoding as an Arrow scalar of a column's type. Plain types only."""
    if value is None:
        return pa.scalar(None, arrow)
    match t.root:
        case "FLOAT" | "DOUBLE":
            return pa.scalar(float(np.float32(value)) if t.root == "FLOAT" else float(value), arrow)
        case "DECIMAL":
            return pa.scalar(Decimal(value), arrow)
        case "BINARY" | "VARBINARY":
            return pa.scalar(bytes.fromhex(value), arrow)
        case "DATE":
            return pa.scalar(date.fromisoformat(value), arrow)
        case "TIME":
            seconds, nanos = _parse_clock(value)
            return pa.scalar(seconds * 1000 + nanos // 1_000_000, pa.int32()).cast(arrow)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            nanos = nanos_of(value)
            if pa.types.is_decimal(arrow):
                return pa.scalar(Decimal(f"{nanos}e-9"), arrow)
            count, rest = divmod(nanos, 10 ** (9 - _DIGITS[arrow.unit]))
            assert not rest, f"{value} does not fit {t}"
            return pa.scalar(count, pa.int64()).cast(arrow)
    return pa.scalar(value, arrow)


def nanos_of(text: str) -> int:
    """Nanoseconds since 1970 of an ISO time, with or without `Z`."""
    day, _, clock = text.rstrip("Z").partition("T")
    seconds, nanos = _parse_clock(clock)
    return ((date.fromisoformat(day).toordinal() - _EPOCH) * 86_400 + seconds) * 10**9 + nanos


def _parse_clock(text: str) -> tuple[int, int]:
    whole, _, fraction = text.partition(".")
    hours, minutes, *more = (int(x) for x in whole.split(":"))
    return hours * 3600 + minutes * 60 + (more[0] if more else 0), int(fraction.ljust(9, "0")) if fraction else 0
