# SPDX-License-Identifier: Apache-2.0
"""Casts of text to BOOLEAN, numbers, DATE, TIME and timestamps.

Agrees with: StringToBooleanCastRule, StringToNumericPrimitiveCastRule, StringToDecimalCastRule, StringToDateCastRule,
StringToTimeCastRule, StringToTimestampCastRule (2.0.0), down to what they let pass: `.` is the number 0, `2024-02-30`
is the 29th as a TIMESTAMP and an error as a DATE, digits alone are days or a count since 1970. Text is not trimmed
unless said below. Invariant: text that Java refuses raises `BadRequest`; only a DECIMAL too large is null.
"""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING

import numpy as np

from shoal.format.cast_change import Change, by_value
from shoal.format.cast_numbers import rounded
from shoal.format.cast_times import DAY, DAY_MS, instants, joined
from shoal.format.text_values import floats, whole_numbers

if TYPE_CHECKING:
    import pyarrow as pa

_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,10})?")
_BLANKS = "".join(map(chr, range(33)))  # what Java's trim takes off
_COUNT = re.compile(r"-?\d+")


def text_to_boolean(a: pa.Array, change: Change) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    low = pc.utf8_lower(a)
    yes, no = (pc.is_in(low, pa.array(words)) for words in (_TRUE, _FALSE))
    _check(a, pc.or_(yes, no), change, "it is neither true nor false")
    return pc.if_else(a.is_valid(), yes, None)


def text_to_integer(a: pa.Array, change: Change) -> pa.Array:
    """An optional sign, digits, and a fraction that is dropped."""
    import pyarrow as pa
    import pyarrow.compute as pc

    form = pc.match_substring_regex(a, r"^(?:[+-]?[0-9]*\.[0-9]*|[+-]?[0-9]+)$")
    _check(a, form, change, "it is not a number")
    whole = pc.replace_substring_regex(a, r"^\+?(-?)0*([0-9]*)(?:\.[0-9]*)?$", r"\1\2")
    number = whole_numbers(pc.if_else(pc.is_in(whole, pa.array(["", "-"])), "0", whole), change.target)
    _check(a, number.is_valid(), change, "it is out of range")
    return number


def _check(a: pa.Array, good: pa.Array, change: Change, why: str) -> None:
    import pyarrow.compute as pc

    bad = pc.and_(pc.invert(good), a.is_valid())
    if pc.any(bad, min_count=0).as_py():
        raise change.refuse(a.filter(bad)[0].as_py(), why)


def text_to_float(a: pa.Array, change: Change) -> pa.Array:
    """Java's number literals, see `floats`."""
    import pyarrow as pa

    values, bad = floats(a, change.target)
    _check(a, pa.array(~bad), change, "it is not a number")
    return values


def text_to_decimal(a: pa.Array, change: Change) -> pa.Array:
    def parse(text: str) -> decimal.Decimal | None:
        m = _DECIMAL.fullmatch(text)
        if not m or (m[3] and abs(int(m[3][1:])) >= 1 << 31):
            raise change.refuse(text, "it is not a number")
        return rounded(text, change.target)

    return by_value(a, parse, change.arrow)


def text_to_date(a: pa.Array, change: Change) -> pa.Array:
    """`y-m-d`, `y-m` or a text with a blank and more behind it; digits alone are days since 1970."""
    import pyarrow as pa

    def parse(text: str) -> int:
        if _COUNT.fullmatch(text):
            return _integer(text, change)
        head = text[: text.index(" ")] if text.find(" ") > 0 else text
        parts = [p.strip(_BLANKS) for p in head.split("-", 2)]
        if not all(p.isascii() and p.isdigit() for p in parts):
            raise change.refuse(text, "it is not a date")
        year, month, day = ([int(p) for p in parts] + [1, 1])[:3]
        if year > 9999 or not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
            raise change.refuse(text, "there is no such day")
        return _days(year, month, day)

    return by_value(a, parse, pa.int32()).view(change.arrow)


def _integer(text: str, change: Change) -> int:
    if not text.isascii() or not -(1 << 31) <= int(text) < 1 << 31:
        raise change.refuse(text, "it is out of range")
    return int(text)


def _month_days(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if leap and month == 2 else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a day in the Gregorian calendar, for every year."""
    months = np.datetime64((year - 1970) * 12 + (month - 1), "M")
    return int(months.astype("datetime64[D]").astype(np.int64)) + day - 1


def text_to_time(a: pa.Array, change: Change) -> pa.Array:
    """`h:m:s.f`, shorter forms of it, and an offset behind it; digits alone are milliseconds.

    Java lets a TIME leave the day (`25:00:00`); Arrow's cannot, so that is an error here.
    """
    import pyarrow as pa

    def parse(text: str) -> int:
        millis = _integer(text, change) if _COUNT.fullmatch(text) else _time(text, change)
        if not 0 <= millis < DAY_MS:
            raise change.refuse(text, "it is not a time of the day")
        return millis

    return by_value(a, parse, pa.int32()).view(change.arrow)


def _time(text: str, change: Change) -> int:
    def number(part: str) -> int:
        part = part.strip(_BLANKS)
        if not (part.isascii() and part.isdigit()) or int(part) >= 1 << 31:
            raise change.refuse(text, "it is not a time")
        return int(part)

    mark, sign = (text.find("-"), -1) if "-" in text else (text.find("+"), 1)
    clock, offset = (text, "0") if mark < 0 else (text[:mark], text[mark + 1 :])
    if clock.count(":") < min(text.count(":"), 2):
        raise change.refuse(text, "an offset of hours and minutes needs seconds before it")
    away = [number(p) for p in offset.split(":", 1)] + [0]
    hour, minute, second, *_ = [*clock.split(":", 2), "0", "0"]
    second, point, fraction = second.partition(".")
    millis = _millis(fraction.strip(_BLANKS)) if point else 0
    total = (number(hour) + sign * away[0]) * 3_600_000 + (number(minute) + sign * away[1]) * 60_000
    total += number(second) * 1000 + millis
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)  # as Java's int


def _millis(fraction: str) -> int:
    """Three digits of a fraction, the next one rounding them up; what is no digit counts as 0."""
    digits = [int(c) if "0" <= c <= "9" else 0 for c in fraction[:3].ljust(3, "0")]
    return digits[0] * 100 + digits[1] * 10 + digits[2] + (fraction[3:4] >= "5")


def _twice(name: str) -> str:
    """Java's `[MM][M]`: two digits, or one; after two the same number may follow once more. Or nothing."""
    return rf"(?:(?P<{name}>\d\d)(?P<{name}2>\d*)|(?P<{name}1>\d?))"


_STAMP = re.compile(
    rf"(?:(?P<year>\d{{4}})|\+(?P<far>\d{{5,9}}))-{_twice('month')}-{_twice('day')}"
    rf"(?: {_twice('hour')}:{_twice('minute')}:{_twice('second')}(?:\.(?P<fraction>\d{{0,9}}))?)?",
    re.ASCII,
)


def text_to_timestamp(a: pa.Array, change: Change) -> pa.Array:
    """`yyyy-mm-dd` and perhaps ` hh:mm:ss.f`; for TIMESTAMP digits alone are a count since 1970 in its unit."""
    import pyarrow as pa

    precision, local = change.target.precision or 0, change.target.root == "TIMESTAMP_LTZ"

    def parse(text: str) -> dict[str, int]:
        if not local and _COUNT.fullmatch(text):
            seconds, nanos = _counted(text, precision, change)
        else:
            seconds, nanos = _stamp(text, change)
        return {"seconds": seconds, "nanos": nanos // 10 ** (9 - precision) * 10 ** (9 - precision)}

    parts = by_value(a, parse, pa.struct({"seconds": pa.int64(), "nanos": pa.int64()}))
    seconds, nanos = (p.fill_null(0).to_numpy(zero_copy_only=False) for p in parts.flatten())
    return joined(instants(seconds, change.zone) if local else seconds, nanos, a, change)


def _counted(text: str, precision: int, change: Change) -> tuple[int, int]:
    if precision not in (0, 3, 6, 9) or not text.isascii() or not -(1 << 63) <= int(text) < 1 << 63:
        raise change.refuse(text, "a count since 1970 needs a precision of 0, 3, 6 or 9 and 64 bits")
    count = int(text)
    if precision == 0:
        # Java counts in milliseconds, in 64 bits that may overflow
        count, precision = (count * 1000 + (1 << 63)) % (1 << 64) - (1 << 63), 3
    seconds, rest = divmod(count, 10**precision)
    return seconds, rest * 10 ** (9 - precision)


def _stamp(text: str, change: Change) -> tuple[int, int]:
    m = _STAMP.fullmatch(text)
    if not m or (parts := _parts(m)) is None:
        raise change.refuse(text, "it is not a timestamp like 2024-02-29 12:34:56.789")
    year, month, day, hour, minute, second = parts
    nanos = int((m["fraction"] or "").ljust(9, "0"))
    # 24:00:00 is the next day
    late = hour == 24 and not (minute or second or nanos)
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= 31 and (hour < 24 or late) and minute < 60 and second < 60):
        raise change.refuse(text, "there is no such time")
    # a day that the month lacks is the last one of it
    days = _days(year, month, min(day, _month_days(year, month)))
    return days * DAY + hour * 3600 + minute * 60 + second, nanos


def _parts(m: re.Match[str]) -> list[int] | None:
    if not m["month"] and not m["month1"] and (m["day"] or m["day1"]):
        return None  # in 2024--05 Java takes -05 for the month
    parts = [int(m["year"] or m["far"])]
    for name, default in (("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0)):
        again = m[name + "2"]
        if again and int(again) != int(m[name]):
            return None
        number = m[name] or m[name + "1"]
        parts.append(int(number) if number else default)
    return parts
