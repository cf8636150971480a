# SPDX-License-Identifier: Apache-2.0
"""Texts as local times by Java's `DateTimeFormatter` patterns, for partition values that name a time.

Agrees with: DateTimeFormatterBuilder.appendPattern with the SMART resolver and Locale.ROOT, LocalDateTime.parse,
LocalDate.parse (Java 17), and PartitionTimeExtractor's own formatters, which are LENIENT (2.0.0). Invariant: a text is
a time, in nanoseconds since 1970 on the local clock, exactly when Java makes that time of it; a date is its midnight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import BadRequest, Unsupported

_DAY_NS = 86_400_000_000_000
_HOUR_NS, _MINUTE_NS, _SECOND_NS = 3_600_000_000_000, 60_000_000_000, 1_000_000_000
_MAX_YEAR = 999_999_999
# Letters that Java knows and that name no part of a plain local time here: texts, zones, weeks, eras.
_OTHER = frozenset("GQqYwWEecFaBANnVvzOXxZpgL")
_RANGES = {
    "y": (1, _MAX_YEAR + 1), "u": (-_MAX_YEAR, _MAX_YEAR), "M": (1, 12), "d": (1, 31), "D": (1, 366), "H": (0, 23),
    "k": (1, 24), "K": (0, 11), "h": (1, 12), "m": (0, 59), "s": (0, 59), "S": (0, _SECOND_NS - 1),
}  # fmt: skip
# Java's own texts of the default formatter: any number of one or two digits, years of one to ten.
_NUMBER = r"(-?\d{1,2})"
_LENIENT = re.compile(
    rf"(-?\d{{1,10}})-{_NUMBER}-{_NUMBER}(?: {_NUMBER}:{_NUMBER}:{_NUMBER}(?:\.(\d{{1,9}}))?)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern, ready to parse. `letters` are the fields of the groups of `text`, in order."""

    text: re.Pattern[str]
    letters: tuple[str, ...]

    def parse(self, value: str) -> int | None:
        """Nanoseconds since 1970 on the local clock; None for a text that is no such time."""
        match = self.text.fullmatch(value)
        if match is None:
            return None
        found: dict[str, int] = {}
        for letter, digits in zip(self.letters, match.groups()):
            if digits is None:
                continue
            number = int(digits.ljust(9, "0")) if letter == "S" else int(digits)
            if letter == "yy":
                letter, number = "y", 2000 + number
            if found.setdefault(letter, number) != number:
                return None
        return _resolve(found)


def default_time(value: str) -> int | None:
    """What Java's default makes of a text: `2024-1-31` or `2024-1-31 5:06:07.8`, days and hours too large go on."""
    match = _LENIENT.fullmatch(value)
    if match is None:
        return None
    parts = match.groups()
    if any(p is not None and re.fullmatch("-0+", p) for p in parts):
        return None
    year, month, day, *time = (0 if p is None else int(p) for p in parts[:6])
    if abs(year) > _MAX_YEAR:
        return None
    nanos = 0 if parts[6] is None else int(parts[6].ljust(9, "0"))
    days = _days(year + (month - 1) // 12, (month - 1) % 12 + 1, 1) + day - 1
    return days * _DAY_NS + time[0] * _HOUR_NS + time[1] * _MINUTE_NS + time[2] * _SECOND_NS + nanos


# ---- the pattern -----------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """One element: a literal's regex, or a field's; `fixed` digits are reserved by the number before them."""

    regex: str
    letter: str = ""
    fixed: bool = False


def time_pattern(pattern: str, option: str) -> TimePattern:
    """Read a pattern; `option` is where it was given."""
    bad = f"{option} '{pattern}'"
    regexes: list[str] = []
    letters: list[str] = []
    run: list[_Part] = []  # a number and the fixed ones right after it
    depth = at = 0

    def close() -> None:
        # Java does not go back on a number, except for the fixed digits that follow it at once
        body = "".join(p.regex for p in run)
        regexes.append(f"(?>{body})" if body else "")
        letters.extend(p.letter for p in run)
        run.clear()

    while at < len(pattern):
        c = pattern[at]
        if c.isascii() and c.isalpha():
            end = at
            while end < len(pattern) and pattern[end] == c:
                end += 1
            part = _field(c, end - at, bad)
            if not part.fixed:
                close()
            run.append(part)
            at = end
            continue
        close()
        if c == "'":
            end = at + 1
            text = ""
            while True:
                if end >= len(pattern):
                    raise BadRequest(f"{bad} has a quote without an end", hint="write '' for a quote itself")
                if pattern[end] != "'":
                    text += pattern[end]
                elif pattern[end + 1 : end + 2] == "'":
                    text += "'"
                    end += 1
                else:
                    break
                end += 1
            regexes.append(re.escape(text or "'"))
            at = end + 1
            continue
        if c == "[":
            depth += 1
            regexes.append("(?>(?:")
        elif c == "]":
            depth -= 1
            if depth < 0:
                raise BadRequest(f"{bad} has a ] without a [", hint="put optional parts between [ and ]")
            regexes.append(")?)")
        elif c in "{}#":
            raise BadRequest(f"{bad} holds '{c}', which Java reserves", hint=f"quote it: '{c}'")
        else:
            regexes.append(re.escape(c))
        at += 1
    close()
    regexes.append(")?)" * depth)  # as Java: what is left open ends here
    return TimePattern(re.compile("".join(regexes), re.ASCII), tuple(letters))


def _field(letter: str, count: int, bad: str) -> _Part:
    match letter:
        case "y" | "u" if count == 2:
            return _Part(r"(\d{2})", "yy", True)
        case "y" | "u" if count < 4:
            return _Part(rf"(-?\d{{{count},19}})", letter)
        case "y" | "u" if count <= 19:
            # more digits than the pattern has need a sign
            return _Part(rf"(\d{{{count}}}|\+\d{{{count + 1},19}}|-\d{{{count},19}})", letter)
        case "M" | "d" | "H" | "k" | "K" | "h" | "m" | "s" if count <= 2:
            return _Part(r"(\d{2})", letter, True) if count == 2 else _Part(r"(-?\d{1,19})", letter)
        case "D" if count <= 3:
            if count == 1:
                return _Part(r"(-?\d{1,19})", letter)
            return _Part(rf"(\d{{{count},3}})", letter, count == 3)
        case "S" if count <= 9:
            return _Part(rf"(\d{{{count}}})", letter, True)
    if letter in _OTHER or (letter == "M" and count <= 5):
        raise Unsupported(
            f"{bad} uses '{letter * count}', which is not supported", hint="use the numbers y, M, d, D, H, m, s and S"
        )
    raise BadRequest(f"{bad} uses '{letter * count}', which no Java pattern has", hint="see Java's DateTimeFormatter")


# ---- fields to a time ------------------------------------------------------------------------------------


def _resolve(found: Mapping[str, int]) -> int | None:
    """The SMART resolver: a day beyond the end of its month is its last one, 24:00 is the next midnight."""
    midnight = found.get("H") == 24 and not any(found.get(c, 0) for c in "msS")
    for letter, value in found.items():
        low, high = _RANGES[letter]
        if not low <= value <= high and not (letter == "H" and midnight) and not (letter in "hk" and value == 0):
            return None
    days = _date(found)
    if days is None:
        return None
    time = _time(found)
    # without a time of day Java takes the date's midnight
    return days * _DAY_NS + (0 if time is None else time)


def _date(found: Mapping[str, int]) -> int | None:
    year, of_era = found.get("u"), found.get("y")
    if year is None:
        year = of_era
    elif of_era is not None and of_era != (year if year > 0 else 1 - year):
        return None
    if year is None:
        return None
    month, day, of_year = found.get("M"), found.get("d"), found.get("D")
    days: int | None = None
    if month is not None and day is not None:
        days = _days(year, month, min(day, _month_length(year, month)))
    if of_year is not None:
        other = _days(year, 1, of_year)
        if (of_year == 366 and not _leap(year)) or (days is not None and days != other):
            return None
        days = other
    return days


def _time(found: Mapping[str, int]) -> int | None:
    hour, minute, second, nanos = (found.get(c) for c in "HmsS")
    clock_hour = found.get("k")
    if clock_hour is not None:
        if hour is not None and hour != clock_hour % 24:
            return None
        hour = clock_hour % 24
    if hour is None or (minute is None and (second is not None or nanos is not None)):
        return None
    if second is None and nanos is not None:
        return None
    return hour * _HOUR_NS + (minute or 0) * _MINUTE_NS + (second or 0) * _SECOND_NS + (nanos or 0)


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _month_length(year: int, month: int) -> int:
    return (29 if _leap(year) else 28) if month == 2 else 30 if month in (4, 6, 9, 11) else 31


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970, in the calendar that Java uses for every year: Python's ends at 9999."""
    y = year - (month <= 2)
    era, of_era = y // 400, y % 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
