# SPDX-License-Identifier: Apache-2.0
"""Numbers as messages write them: sizes and times with the units of option values.

Invariant: for people, rounded to one decimal; a text that goes into an option has a whole number.
"""

from __future__ import annotations


def amount(size: float) -> str:
    """A size.

    >>> amount(128 << 20), amount(1536), amount(12)
    ('128 mb', '1.5 kb', '12 b')
    """
    for unit, scale in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if size >= scale:
            return f"{_short(size / scale)} {unit}"
    return f"{round(size)} b"


def duration(ms: float) -> str:
    """A time.

    >>> duration(10_000), duration(90_000), duration(7_200_000), duration(15)
    ('10 s', '1.5 min', '2 h', '15 ms')
    """
    for unit, scale in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= scale:
            return f"{_short(ms / scale)} {unit}"
    return f"{round(ms)} ms"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
