# SPDX-License-Identifier: Apache-2.0
"""Timestamps of an ORC stripe, exactly: the streams of a column to the values that were written.

pyarrow reads the DATA stream, as if the column were a LONG: seconds since 2015 in the writer's zone. Nanoseconds come
from the SECONDARY stream, which is decoded here.

Agrees with: OrcTimestampColumnVector, FieldWriterFactory (2.0.0), TimestampTreeReader (ORC 1.9), except that what Java
moves comes back as it was inserted: Java writes a time before 1582-10-15 as the same day of the Julian calendar and
reads it as a Gregorian one, two to ten days off. Not to be recovered, and returned as Java does: the last second before
1970 (UTC), which Java stores like the first second after; the ten days of 1582 that the Julian calendar skips; values
that Java moved and then wrote again.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from shoal.errors import Corrupt, Unsupported
from shoal.format.instants import NANOS, array_of
from shoal.format.orc_integers import integers
from shoal.format.orc_tail import (
    SECONDARY,
    TIMESTAMP,
    TIMESTAMP_INSTANT,
    PlainFile,
    StripeFooter,
    Tail,
    chunks,
    damaged,
    read_at,
)
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

_DAY = 86_400
# 2015-01-01, ORC's zero.
_BASE = 1_420_070_400
# 1582-10-15 as a day since 1970: the Gregorian calendar's first.
_GREGORIAN = -141_427
_JAVA_ZONES = -2_208_988_800
# A day of January and one of July: one of them has standard time.
_WINTER, _SUMMER = 2_084_000_000, 2_099_600_000
# 2037-01-01: from here on zones have rules, not transitions. And a day of 9999, the last year that datetime has.
_RULES, _LAST = 2_114_380_800, 253_402_000_000
_QUARTER = 900
_DIRECT_V2 = 2
# Bytes a value can take in a stream: 64 bits and its share of a run's head, more than any writer needs.
_MOST_VALUE = 16
_FIXED = re.compile(
    r"(?:GMT|UTC|UT)?(?:([+-])(\d{1,2})(?::?(\d{2}))?)?|Z|GMT0|Etc/UTC|Etc/GMT|Zulu|Universal|Greenwich"
)


class StripeTimestamps:
    """The timestamp columns of one stripe of an open file. `legacy`: LTZ values were written as local wall clock."""

    def __init__(self, file: PlainFile, footer: StripeFooter, tail: Tail, path: str, *, legacy: bool) -> None:
        self._file, self._footer, self._tail = file, footer, tail
        self._path, self._legacy = path, legacy

    def column(self, column: int, stored: pa.Array, t: DataType, name: str) -> pa.Array:
        """The array of type `t` of the file's column `column`, from its seconds as they are stored."""
        kind = self._tail.types[column].kind
        since = stored.drop_null().to_numpy()
        try:
            nanos = _nanos(self._nanoseconds(column, len(since)))
        except (ValueError, IndexError, OSError) as err:
            raise damaged(self._path, err) from err
        zone = self._footer.zone
        base = _BASE if kind == TIMESTAMP_INSTANT else _BASE - self._offset_of_zero(zone)
        seconds = since + base
        # a time before 1970 with a fraction was stored one second late
        seconds -= (seconds < 0) & (nanos > 999_999)
        # pyarrow writes negative nanoseconds before 1970
        seconds, nanos = seconds + nanos // NANOS, nanos % NANOS
        if kind == TIMESTAMP or self._legacy or t.root == "TIMESTAMP":
            seconds = self._wall_clock(seconds, zone)
            if self._tail.hybrid:
                seconds = _from_julian(seconds)
        if not stored.null_count:
            return array_of(seconds, nanos, t, self._path, name)
        nulls = stored.is_null().to_numpy(zero_copy_only=False)
        spread = np.zeros((2, len(stored)), np.int64)
        spread[:, ~nulls] = seconds, nanos
        return array_of(spread[0], spread[1], t, self._path, name, nulls)

    def _nanoseconds(self, column: int, count: int) -> Array:
        if count == 0:
            return np.empty(0, np.int64)
        at = self._footer.streams.get((column, SECONDARY))
        encodings = self._footer.encodings
        if at is None or column >= len(encodings):
            raise ValueError(f"column {column} has no nanoseconds")
        if encodings[column][0] != _DIRECT_V2:
            raise Unsupported(
                f"{self._path}: its integers are in the encoding of ORC 0.11", hint="compact the table with Java"
            )
        raw = read_at(self._file, *at, self._path)
        limit = (count + 512) * _MOST_VALUE
        return integers(chunks(raw, self._tail.codec, self._tail.chunk, limit), count, signed=False)

    def _offset_of_zero(self, zone: str) -> int:
        """Seconds that the zone was ahead of UTC at the start of 2015 there."""
        ahead = int(self._wall_clock(np.array([_BASE]), zone)[0]) - _BASE
        return int(self._wall_clock(np.array([_BASE - ahead]), zone)[0]) - (_BASE - ahead)

    def _wall_clock(self, seconds: Array, zone: str) -> Array:
        """Instants as the wall clock of a zone shows them."""
        import pyarrow as pa

        fixed = _FIXED.fullmatch(zone)
        if fixed:
            sign, hours, minutes = fixed.groups()
            ahead = int(hours or 0) * 3600 + int(minutes or 0) * 60
            return seconds - ahead if sign == "-" else seconds + ahead
        if len(seconds) and max(-int(seconds.min()), int(seconds.max())) >= 1 << 40:
            raise Corrupt(f"{self._path}: holds a time beyond the year 30000", hint="the file is damaged")
        try:
            # Java's zones begin in 1900; before, it takes the standard time that the zone has today
            probes = _local(np.array([_WINTER, _SUMMER]), zone) - [_WINTER, _SUMMER]
            return np.where(seconds < _JAVA_ZONES, seconds + probes.min(), _local(seconds, zone))
        except (pa.ArrowException, ZoneInfoNotFoundError) as err:
            raise Unsupported(
                f"{self._path}: was written in the time zone '{zone}', which this machine does not know",
                hint="install the system's tzdata package",
            ) from err


def _local(seconds: Array, zone: str) -> Array:
    """Instants as the wall clock of a zone of the tz database shows them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    out = pc.local_timestamp(pa.array(seconds, pa.timestamp("s", zone))).view(pa.int64()).to_numpy()
    far = seconds >= _RULES
    if not far.any():
        return out
    # pyarrow knows no summer time after 2037. Python does, value by value: one for each quarter of an hour that occurs
    rule = ZoneInfo(zone)
    quarters, at = np.unique(seconds[far] // _QUARTER, return_inverse=True)
    ahead = [_seconds(datetime.fromtimestamp(min(q * _QUARTER, _LAST), rule).utcoffset()) for q in quarters.tolist()]
    out = out.copy()
    out[far] = seconds[far] + np.array(ahead)[at]
    return out


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else int(offset.total_seconds())


def _nanos(stored: Array) -> Array:
    """Nanoseconds: the low three bits tell how many zeros were cut (none, or one more than they say)."""
    zeros = stored & 7
    nanos = (stored >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)
    if len(nanos) and max(-int(nanos.min()), int(nanos.max())) >= NANOS:
        raise ValueError("a nanosecond beyond its second")
    return nanos


def _from_julian(seconds: Array) -> Array:
    """Wall clocks before the Gregorian calendar: the same year, month and day where they were read as Julian ones."""
    day = seconds // _DAY
    old = day < _GREGORIAN
    if not old.any():
        return seconds
    # the Julian day number counts years of 365.25 days from March of the year -4800
    c = day[old] + 2_440_588 + 32_082
    years = (4 * c + 3) // 1461
    rest = c - 1461 * years // 4
    months = (5 * rest + 2) // 153
    date = rest - (153 * months + 2) // 5 + 1
    # and back, with the Gregorian leap days
    gregorian = date + (153 * months + 2) // 5 + 365 * years + years // 4 - years // 100 + years // 400 - 32_045
    out = seconds.copy()
    out[old] = seconds[old] + (gregorian - 2_440_588 - day[old]) * _DAY
    return out
