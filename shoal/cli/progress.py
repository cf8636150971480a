# SPDX-License-Identifier: Apache-2.0
"""How far a long command is: one line that is drawn again on a terminal, a plain line now and then elsewhere.

Invariant: the line fits the terminal, whatever the name; into a pipe or a file go no control codes; a bar that is
cleared leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from shoal.cli.output import columns_of, cut, is_terminal, note, shown, width

if TYPE_CHECKING:
    from shoal.table.progress import Progress

_BAR = 20
_LEAST_BAR = 6
_LEAST_NAME = 12
_LEFT = len("  9 min 59 s left")
_DRAW_S = 0.1
_LINE_S = 10.0
_CLEAR = "\r\x1b[K"


class ProgressBar:
    """Redrawn in place, ten times a second at most."""

    def __init__(self, name: str) -> None:
        self._name = shown(name)
        self._drawn: float | None = None

    def __call__(self, at: Progress) -> None:
        if self._drawn is not None and at.seconds - self._drawn < _DRAW_S and at.tasks_done < at.tasks:
            return
        self._drawn = at.seconds
        # the last column stays free: some terminals wrap when it is written
        print(_CLEAR + bar(self._name, at, width(sys.stderr) - 1), end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._drawn is not None:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


class ProgressLines:
    """A line every ten seconds, so that a log shows that something happens; short work says nothing."""

    def __init__(self, name: str) -> None:
        self._name = shown(name)
        self._next = _LINE_S

    def __call__(self, at: Progress) -> None:
        if at.seconds >= self._next:
            self._next = at.seconds + _LINE_S
            note(f"{self._name}: {', '.join(_parts(at))}")

    def clear(self) -> None:
        """Lines stay."""


def progress_of(name: str) -> ProgressBar | ProgressLines:
    """What shows progress on stderr."""
    drawn = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
    return ProgressBar(name) if drawn else ProgressLines(name)


def bar(name: str, at: Progress, columns: int) -> str:
    """The line for a terminal of so many columns: what does not fit is the bar first, then the end of the name."""
    # numbers as wide as they will get, so that the bar stands still
    told = "  ".join(_parts(at, pad=True)).ljust(_LEFT + len("  ".join(_parts(at, pad=True)[:3])))
    room = columns - len(told) - 2
    drawn = min(_BAR, room - min(columns_of(name), _LEAST_NAME) - 4)
    if drawn >= _LEAST_BAR:
        full = drawn if at.bytes_done >= at.bytes else drawn * at.bytes_done // at.bytes
        told = f"[{'#' * full}{'.' * (drawn - full)}]  {told}"
        room -= drawn + 4
    return cut((f"{cut(name, room)}  {told}" if room >= 2 else told).rstrip(), columns)


def _parts(at: Progress, *, pad: bool = False) -> list[str]:
    share = 100 * at.bytes_done // at.bytes if at.bytes else 100
    files = f"{at.files:,}"
    parts = [
        f"{share:{3 if pad else 1}} %",
        f"{at.files_done:{len(files)},}/{files} files" if pad else f"{at.files_done:,} of {files} files",
        _sizes(at.bytes_done, at.bytes, pad),
    ]
    left = at.seconds_left
    if at.tasks_done == at.tasks:
        parts.append("committing")
    elif at.bytes_done >= at.bytes:
        parts.append("finishing")  # all is read, the last of it is being written
    elif left is not None:
        parts.append(f"{_time(left)} left")
    return parts


def _sizes(done: int, of: int, pad: bool) -> str:
    """Both in the unit of the second."""
    scale, unit = 1, "bytes"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if of < 1024 * scale:
            break
        scale, unit = scale * 1024, bigger
    digits = 0 if scale == 1 or of >= 100 * scale else 1
    total = f"{of / scale:,.{digits}f}"
    now = f"{done / scale:,.{digits}f}"
    return f"{now:>{len(total)}}/{total} {unit}" if pad else f"{now} of {total} {unit}"


def _time(seconds: float) -> str:
    """
    >>> _time(4.2), _time(61), _time(3_700), _time(200_000)
    ('5 s', '1 min 1 s', '1 h 1 min', '55 h')
    """
    whole = -int(-seconds // 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min" if whole < 36_000 else f"{whole // 3_600} h"
