# SPDX-License-Identifier: Apache-2.0
"""Exact instants, as whole seconds since 1970 and nanoseconds, to the Arrow array of a timestamp column.

Invariant: no value wraps around. What the column's Arrow type cannot hold is an error that names file and column;
digits beyond the column's precision are cut, as its type says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt, Unsupported
from shoal.format.types import WIDE_DIGITS, DataType, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

NANOS = 1_000_000_000
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": NANOS}
# Twelve digits of seconds: what decimal(21, 9) holds, and far more than the years of any type.
_MOST_SECONDS = 10**12 - 1


def array_of(seconds: Array, nanos: Array, t: DataType, path: str, column: str, nulls: Array | None = None) -> pa.Array:
    """The column's array from seconds (int64) and nanoseconds of the second (0 to 999,999,999).

    `nulls` marks rows without a value; what stands there in the other arrays does not matter.
    """
    import pyarrow as pa

    target = to_arrow(t)
    if nulls is not None:
        seconds, nanos = np.where(nulls, 0, seconds), np.where(nulls, 0, nanos)
    if len(seconds) and max(-int(seconds.min()), int(seconds.max())) > _MOST_SECONDS:
        raise Corrupt(f"{path}: column '{column}' holds a time beyond the year 30000", hint="the file is damaged")
    if pa.types.is_decimal(target):
        return decimal_seconds(seconds, nanos, nulls)
    if not pa.types.is_timestamp(target):
        raise Corrupt(
            f"{path}: column '{column}' holds timestamps where the schema says {t}",
            hint="the file does not fit the schema it was written with",
        )
    per = PER_SECOND[target.unit]
    if target.unit == "ns":
        _check_nanoseconds(seconds, nanos, path, column)
    units = seconds * per + nanos // (NANOS // per)
    return pa.array(units, pa.int64(), mask=nulls).view(target)


def parts(a: pa.Array) -> tuple[Array, Array]:
    """The opposite: (seconds, nanoseconds of the second) of timestamps or decimal seconds; anything where null."""
    import pyarrow as pa

    if pa.types.is_decimal(a.type):
        words = np.frombuffer(a.buffers()[1] or b"", np.int64).reshape(-1, 2)[a.offset : a.offset + len(a)]
        # long division by 10^9, 32 bits at a time from the top. The quotient fits 64 bits, where its own top digit, 0
        # or -1, is what wraps away.
        high, low = words[:, 1], words[:, 0]
        seconds, rest = np.zeros(len(a), np.int64), high % NANOS
        for digit in ((low >> 32) & 0xFFFFFFFF, low & 0xFFFFFFFF):
            both = (rest << 32) + digit
            seconds, rest = (seconds << 32) + both // NANOS, both % NANOS
        return seconds, rest
    per = PER_SECOND[a.type.unit]
    units = np.asarray(a.view(pa.int64()).fill_null(0))
    return units // per, units % per * (NANOS // per)


def _check_nanoseconds(seconds: Array, nanos: Array, path: str, column: str) -> None:
    most, rest = divmod(2**63 - 1, NANOS)
    least, above = divmod(-(2**63), NANOS)
    outside = (seconds > most) | (seconds < least) | ((seconds == most) & (nanos > rest))
    outside |= (seconds == least) & (nanos < above)
    if outside.any():
        raise Unsupported(
            f"{path}: column '{column}' holds a time outside the years 1677 to 2262, which 64-bit nanoseconds cannot "
            "hold",
            hint="read it as decimal seconds, read the other columns, or alter the column to TIMESTAMP(6)",
        )


def decimal_seconds(seconds: Array, nanos: Array, nulls: Array | None = None) -> pa.Array:
    """Decimals with nine digits behind the point: the 128-bit number seconds * 10^9 + nanos."""
    import pyarrow as pa

    # in two halves that do not overflow: seconds = high * 2^32 + low
    high = (seconds >> 32) * NANOS
    low = (seconds & 0xFFFFFFFF) * NANOS + nanos
    words = np.empty((len(seconds), 2), np.int64)
    # the product is high * 2^32 + low with 0 <= low < 2^63
    total = high + (low >> 32)
    words[:, 0] = (total << 32) | (low & 0xFFFFFFFF)
    words[:, 1] = total >> 32
    valid = None if nulls is None or not nulls.any() else pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(WIDE_DIGITS, 9), len(seconds), [valid, pa.py_buffer(words)])
