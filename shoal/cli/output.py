# SPDX-License-Identifier: Apache-2.0
"""What commands print: results on stdout, everything else on stderr.

Invariants: text for people follows the terminal's width and colours; into a pipe or a file it has no colour and nothing
is cut, whatever the width. JSON holds raw numbers.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO, TypeAlias

Cell: TypeAlias = str | int | float | None

WIDTH = 80
BOLD, DIM, RED, YELLOW = "1", "2", "1;31", "33"
_GAP = "  "
_NARROWEST = 8  # columns are not cut below this
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_terminal(stream: TextIO) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and has_colour(stream) else text


def width(stream: TextIO | None = None) -> int:
    """Columns to fill: those of the terminal behind `stream` (stdout), or 80."""
    out = sys.stdout if stream is None else stream
    if not is_terminal(out):
        return WIDTH
    try:
        told = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        told = 0
    if told > 0:
        return told
    try:
        return os.get_terminal_size(out.fileno()).columns or WIDTH
    except (OSError, ValueError):  # a stream that says it is a terminal and has none
        return WIDTH


def note(text: str) -> None:
    """A message for people, on stderr."""
    print(text, file=sys.stderr)


def show_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: object) -> object:
    """Bytes as hex, dates and times as in ISO 8601, decimals as their text."""
    if isinstance(value, bytes):
        return value.hex()
    iso = getattr(value, "isoformat", None)
    return str(value) if iso is None else iso()


def shown(value: Cell) -> str:
    """One cell as text: numbers with separators, control characters escaped so that a row stays a line.

    >>> shown(1234567), shown(None), shown("a\\nb")
    ('1,234,567', '', 'a\\\\nb')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode(), value)


def show_table(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table: numbers to the right; on a terminal it is fitted to the width, elsewhere nothing is cut."""
    cells = [list(row) for row in rows]
    right = [all(_is_number(row[i]) for row in cells) for i in range(len(heads))]
    texts = [list(heads), *([shown(value) for value in row] for row in cells)]
    widths = [max(columns_of(row[i]) for row in texts) for i in range(len(heads))]
    if is_terminal(sys.stdout):
        widths = fitted(widths, right, width() - len(_GAP) * (len(heads) - 1))
    for number, row in enumerate(texts):
        line = _GAP.join(_padded(cut(t, w), w, r) for t, w, r in zip(row, widths, right)).rstrip()
        print(line if number else paint(line, BOLD, sys.stdout))


def show_pairs(pairs: Mapping[str, Cell]) -> None:
    """Names and values, one pair a line, values under each other."""
    indent = max(map(len, pairs), default=0) + len(_GAP)
    for name, value in pairs.items():
        if value is not None:
            print(f"{paint(name.ljust(indent), DIM, sys.stdout)}{shown(value)}")


def _is_number(value: Cell) -> bool:
    return value is None or isinstance(value, int | float) or value.isdigit()


def columns_of(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def fitted(widths: Sequence[int], right: Sequence[bool], room: int) -> list[int]:
    """Narrower text columns, the widest first, until the row fits or all are narrow. Numbers are never cut.

    >>> fitted([10, 40, 6], [False, False, True], 36)
    [10, 20, 6]
    """
    out = list(widths)
    texts = [i for i, is_right in enumerate(right) if not is_right]
    while sum(out) > room and texts:
        widest = max(texts, key=lambda i: out[i])
        if out[widest] <= _NARROWEST:
            break
        out[widest] -= 1
    return out


def cut(text: str, room: int) -> str:
    """The text in so many columns."""
    if columns_of(text) <= room:
        return text
    while text and columns_of(text) > room - 1:
        text = text[:-1]
    return text + "…"


def _padded(text: str, room: int, right: bool) -> str:
    space = " " * (room - columns_of(text))
    return space + text if right else text + space
