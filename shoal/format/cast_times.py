# SPDX-License-Identifier: Apache-2.0
"""Casts among DATE, TIME, TIMESTAMP, TIMESTAMP_LTZ and whole numbers of seconds.

Agrees with: TimestampToTimestampCastRule, TimestampToDateCastRule, TimestampToTimeCastRule,
TimestampToNumericPrimitiveCastRule, DateToTimestampCastRule, TimeToTimestampCastRule, NumericPrimitiveToTimestamp
(2.0.0), with what they do before 1970: a TIMESTAMP as DATE, as seconds, or cut to three digits and less moves towards
1970. A timestamp is handled as seconds and nanoseconds of the second, so wide ones (DECIMAL seconds) are no special
case. Invariant: a value that the Arrow type cannot hold is a typed error, never a wrapped value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format.cast_change import Change, array_of, decimals_of, nulls_of, values_of, words_of
from shoal.format.cast_numbers import INTEGERS
from shoal.format.types import WIDE_DIGITS, DataType, unit

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Array = npt.NDArray[Any]

DAY = 86_400
DAY_MS = 86_400_000
_NANOS = 1_000_000_000
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": _NANOS}


def is_wide(t: DataType) -> bool:
    return t.is_timestamp and t.wide and (t.precision or 0) > 6


def split(a: pa.Array, t: DataType) -> tuple[Array, Array]:
    """Timestamps as seconds since 1970 and nanoseconds of the second; 0 where they are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_wide(t):
        return divided(values_of(a), _PER_SECOND[unit(t.precision or 0)])
    whole = pc.floor(a)
    below = words_of(pc.subtract(a, whole))[:, 0] if len(a) else np.zeros(0, np.int64)
    nulls = nulls_of(a)
    return values_of(whole.cast(pa.int64())), below if nulls is None else np.where(nulls, 0, below)


def divided(values: Array, per_second: int) -> tuple[Array, Array]:
    """Numbers of so many a second as seconds and nanoseconds."""
    seconds, rest = np.divmod(values.astype(np.int64), per_second)
    return seconds, rest * (_NANOS // per_second)


def joined(seconds: Array, nanos: Array, like: pa.Array, change: Change) -> pa.Array:
    """The inverse of `split` for the target, null where `like` is."""
    import pyarrow as pa

    if is_wide(change.target):
        _check_range(seconds, 10 ** (WIDE_DIGITS - 9), "shoal's wide timestamps hold the years 1 to 9999", change)
        whole = pa.array(seconds).cast(pa.decimal128(28, 9))
        below = decimals_of(np.column_stack([nanos, np.zeros_like(nanos)]), pa.array(nanos), whole.type)
        made = pa.compute.add(whole, below)
        return decimals_of(words_of(made), like, change.arrow)
    name = unit(change.target.precision or 0)
    per = _PER_SECOND[name]
    years = "1677 to 2262; a lake opened with wide timestamps holds all" if name == "ns" else "1 to 9999 and many more"
    _check_range(seconds, 2**63 // per, f"Arrow's timestamp[{name}] holds the years {years}", change)
    return array_of(seconds * per + nanos // (_NANOS // per), like, change.arrow)


def _check_range(seconds: Array, end: int, why: str, change: Change) -> None:
    outside = (seconds < 1 - end) | (seconds >= end - 1)
    if outside.any():
        raise change.refuse(f"{int(seconds[outside][0])} seconds since 1970", why)


def timestamp_to_timestamp(a: pa.Array, change: Change) -> pa.Array:
    seconds, nanos = split(a, change.source)
    if change.source.root != change.target.root:
        to_local = change.source.root == "TIMESTAMP_LTZ"
        seconds = local_seconds(seconds, change.zone) if to_local else instants(seconds, change.zone)
    precision = change.target.precision or 0
    if (change.source.precision or 0) > precision:
        seconds, nanos = _cut(seconds, nanos, precision)
    return joined(seconds, nanos, a, change)


def _cut(seconds: Array, nanos: Array, precision: int) -> tuple[Array, Array]:
    """Fewer digits. Java cuts milliseconds of either sign towards 1970, finer digits downwards."""
    step = 10 ** (9 - precision)
    if precision > 3:
        return seconds, nanos // step * step
    millis = seconds * 1000 + nanos // 1_000_000
    kept = towards_zero(millis, 10 ** (3 - precision)) * 10 ** (3 - precision)
    # a value with no more digits than asked stays as it is
    return divided(np.where(nanos % step == 0, millis, kept), 1000)


def towards_zero(values: Array, by: int) -> Array:
    """Java's division of whole numbers."""
    quotient, rest = np.divmod(values, by)
    return np.asarray(quotient + ((quotient < 0) & (rest != 0)))


def timestamp_to_date(a: pa.Array, change: Change) -> pa.Array:
    seconds, nanos = split(a, change.source)
    if change.source.root == "TIMESTAMP_LTZ":
        days = local_seconds(seconds, change.zone) // DAY
    else:
        days = towards_zero(seconds * 1000 + nanos // 1_000_000, DAY_MS)
    return array_of(days.astype(np.int32), a, change.arrow)


def timestamp_to_time(a: pa.Array, change: Change) -> pa.Array:
    seconds, nanos = split(a, change.source)
    if change.source.root == "TIMESTAMP_LTZ":
        seconds = local_seconds(seconds, change.zone)
    return array_of((seconds % DAY * 1000 + nanos // 1_000_000).astype(np.int32), a, change.arrow)


def timestamp_to_number(a: pa.Array, change: Change) -> pa.Array:
    seconds, nanos = split(a, change.source)
    whole = towards_zero(seconds * 1000 + nanos // 1_000_000, 1000)
    return array_of(whole.astype(INTEGERS[change.target.root]), a, change.arrow)


def number_to_timestamp(a: pa.Array, change: Change) -> pa.Array:
    """Seconds since 1970. Java makes an LTZ of them as if they were local time of its zone; so does this."""
    seconds, nanos = divided(values_of(a).astype(np.int64) * 1000, 1000)
    if change.target.root == "TIMESTAMP_LTZ":
        seconds = local_seconds(seconds, change.zone)
    return joined(seconds, nanos, a, change)


def date_to_timestamp(a: pa.Array, change: Change) -> pa.Array:
    seconds = values_of(a).astype(np.int64) * DAY
    if change.target.root == "TIMESTAMP_LTZ":
        seconds = instants(seconds, change.zone)
    return joined(seconds, np.zeros_like(seconds), a, change)


def time_to_timestamp(a: pa.Array, change: Change) -> pa.Array:
    """On the first of January 1970. Digits that the target's Arrow unit lacks (TIMESTAMP(0)) are cut."""
    return joined(*divided(values_of(a), 1000), a, change)


def local_seconds(seconds: Array, zone: str) -> Array:
    """Wall clock seconds in a zone of instants."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if zone == "UTC":
        return seconds
    return values_of(pc.local_timestamp(pa.array(seconds).view(pa.timestamp("s", zone))))


def instants(seconds: Array, zone: str) -> Array:
    """Instants of wall clock seconds in a zone: the first of two, and a skipped hour moves to the hour after."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if zone == "UTC":
        return seconds
    wall = pa.array(seconds).view(pa.timestamp("s"))
    made = values_of(pc.assume_timezone(wall, zone, ambiguous="earliest", nonexistent="earliest"))
    # of a skipped wall clock Arrow gives the last instant before the gap: take the offset from there
    offset = local_seconds(made, zone) - made
    return seconds - offset
