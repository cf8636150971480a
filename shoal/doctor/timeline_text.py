# SPDX-License-Identifier: Apache-2.0
"""A timeline as lines of text: each series a row of blocks over one time axis, changes as numbered marks.

A row shows the most of each column of time; its last and its highest value stand at its end. Rows of lanes that are
held against each other (interval, flows, runs) share their scale, the others have their own. Invariant: no line is
wider than the width, but for what cannot be cut (never below 60).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from shoal.doctor.timeline import Lane, Series, Timeline, figure

Style = Literal["head", "title", "plain", "dim"]

NARROWEST = 60
_LABEL, _VALUE = 18, 7
_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING, _ZERO, _RULE = " ", "·", "┊"
_SHARED = ("interval", "flows", "runs")  # lanes with one scale
_MARKS = {"failed": "x", "burst": "≡", "earliest": "├", "due": "┆", "restart": "↺"}
_LISTED = 6  # ticks of a lane that are told in words


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: Style = "plain"


def columns(width: int) -> int:
    """How many columns of time a width leaves: as many bins show every bar."""
    return max(width, NARROWEST) - _LABEL - 2 * (_VALUE + 1) - 1


def lines(t: Timeline, width: int = 80) -> list[Line]:
    """The whole timeline: what it spans, the lanes, the axis, the changes, and where slopes moved."""
    return list(_lines(t, max(width, NARROWEST)))


def text(t: Timeline, width: int = 80) -> str:
    return "".join(f"{line.text}\n" for line in lines(t, width))


def _lines(t: Timeline, width: int) -> Iterator[Line]:
    room = columns(width)
    span = "no snapshot" if t.first is None else f"snapshots {t.first:,} to {t.last:,}"
    yield from _wrapped(
        f"{t.name or t.table}: {span}, {_stamp(t.first_ms)} to {_stamp(t.last_ms)} UTC", width, 2, "head"
    )
    for says in _join(t):
        yield from _wrapped(says, width, 2)
    grid = _Grid(t, room)
    yield Line("")
    yield Line(f"{'':{_LABEL}} {grid.marks()} {'last':>{_VALUE}} {'most':>{_VALUE}}".rstrip(), "dim")
    for lane in t.lanes:
        yield from _lane(lane, grid, width)
    yield Line(f"{'':{_LABEL}} {grid.axis()}", "dim")
    yield Line("")
    yield from _changes(t, width)


def _join(t: Timeline) -> Iterator[str]:
    j = t.join
    if j is None:
        return
    if j.user is None:
        yield "no writer of this table fits the job: nothing is joined"
        return
    yield (
        f"{j.matched:,} of {j.identifiers:,} checkpoints with snapshots are known to Flink"
        + (f"; {j.of_failed:,} of them failed" if j.of_failed else "")
        + (f"; {j.missed:,} more were not seen" if j.missed else "")
        + (f"; {j.newer:,} are newer than its last answer" if j.newer else "")
    )
    if j.late_p50_ms is not None and j.late_p99_ms is not None:
        offset = j.offset_ms or 0.0
        behind = f"; the committer's clock is {-offset:,.0f} ms or more behind" if offset < 0 else ""
        yield f"commit after the last ack: p50 {j.late_p50_ms:,.0f} ms, p99 {j.late_p99_ms:,.0f} ms{behind}"


class _Grid:
    """The columns of time."""

    def __init__(self, t: Timeline, room: int) -> None:
        self.t, self.room = t, room
        self._per = max((t.last_ms - t.first_ms) / room, 1e-9)
        self.rules = {self.column(c.at_ms) for c in t.changes}

    def column(self, at_ms: float) -> int:
        return min(max(int((at_ms - self.t.first_ms) / self._per), 0), self.room - 1)

    def marks(self) -> str:
        """Numbers of changes above their columns; of several in one column the first."""
        row = [" "] * self.room
        for number, change in enumerate(self.t.changes, 1):
            at, word = self.column(change.at_ms), str(number)
            at = min(at, self.room - len(word))
            if all(c == " " for c in row[max(at - 1, 0) : at + len(word)]):
                row[at : at + len(word)] = word
        return "".join(row)

    def axis(self) -> str:
        """Times under their columns."""
        row = [" "] * self.room
        count = max(2, self.room // 20)
        for i in range(count):
            at = round(i * (self.room - 1) / (count - 1))
            word = self.t.clock(
                round(self.t.first_ms + (at + 0.5) * self._per)
                if 0 < i < count - 1
                else (self.t.first_ms if i == 0 else self.t.last_ms)
            )
            begin = min(max(at - len(word) // 2, 0), self.room - len(word))
            row[begin : begin + len(word)] = word
        return "".join(row)

    def values(self, series: Series, bin_ms: int | None) -> list[float | None]:
        """The most of each column; a step stays until the next point."""
        out: list[float | None] = [None] * self.room
        for at, value in series.points:
            width = bin_ms if series.shape == "bars" and bin_ms else 0
            first = self.column(at + 0.01 * width)
            for column in range(first, self.column(at + 0.99 * width) + 1):
                before = out[column]
                if series.shape == "ticks":
                    out[column] = (before or 0.0) + value
                else:
                    out[column] = value if before is None else max(before, value)
        if series.shape in ("step", "line") and series.points:
            points = iter([*series.points, (1 << 62, 0.0)])
            at, value = next(points)
            then: float | None = None
            for column in range(self.room):
                while at < self.t.first_ms + (column + 1) * self._per:
                    then = value
                    at, value = next(points)
                if out[column] is None and at < 1 << 62:
                    out[column] = then
        return out

    def ruled(self, cells: Sequence[str]) -> str:
        return "".join(_RULE if c == _NOTHING and i in self.rules else c for i, c in enumerate(cells))


def _lane(lane: Lane, grid: _Grid, width: int) -> Iterator[Line]:
    levels = ", ".join(f"{name} {figure(value)}" for name, value in (lane.levels or {}).items())
    unit = lane.unit if lane.unit and lane.unit != lane.title else ""
    about = ", ".join(filter(None, (unit, levels)))
    yield Line(_cut(f"{lane.title}{f' ({about})' if about else ''}", width), "title")
    if lane.empty:
        for part in textwrap.wrap(lane.note or "nothing in this time", width - 2):
            yield Line(f"  {part}", "dim")
        return
    values = [grid.values(s, lane.bin_ms) for s in lane.series]
    most = [max((v for v in row if v is not None), default=0.0) for row in values]
    whole = max([*most, *(lane.levels or {}).values()], default=0.0)
    for series, row, own in zip(lane.series, values, most):
        if not series.points:
            continue
        cells = [_block(v, whole if lane.id in _SHARED else own) for v in row]
        if series.shape == "ticks":
            end = f"{sum(v for _, v in series.points):>{2 * _VALUE + 1},.0f}"
        else:
            end = f"{figure(series.points[-1][1]):>{_VALUE}} {figure(max(v for _, v in series.points)):>{_VALUE}}"
        yield Line(f"{_cut('  ' + series.name, _LABEL):{_LABEL}} {grid.ruled(cells)} {end}")
    for kind in dict.fromkeys(tick.kind for tick in lane.ticks):
        mine = [tick for tick in lane.ticks if tick.kind == kind]
        cells = [_NOTHING] * grid.room
        for tick in mine:
            cells[grid.column(tick.at_ms)] = _MARKS.get(kind, "▲")
        yield Line(f"{_cut('  ' + kind, _LABEL):{_LABEL}} {grid.ruled(cells)} {len(mine):>{2 * _VALUE + 1},}")
    if lane.id == "pins":
        for tick in lane.ticks[:_LISTED]:
            yield Line(_cut(f"    {grid.t.clock(tick.at_ms)} {tick.label}", width), "dim")
        if len(lane.ticks) > _LISTED:
            yield Line(f"    and {len(lane.ticks) - _LISTED:,} more", "dim")
    for part in textwrap.wrap(lane.note, width - 4):
        yield Line(f"    {part}", "dim")


def _block(value: float | None, most: float) -> str:
    if value is None:
        return _NOTHING
    if value <= 0 or most <= 0:
        return _ZERO
    return _BLOCKS[min(max(-int(-(value / most * len(_BLOCKS)) // 1) - 1, 0), len(_BLOCKS) - 1)]


def _changes(t: Timeline, width: int) -> Iterator[Line]:
    if not t.changes:
        yield from _wrapped("No change in this time: interval, flows and options stayed as they were.", width, 2)
        return
    yield Line("Changes, in order", "head")
    for number, change in enumerate(t.changes, 1):
        yield from _wrapped(f"{number:>3}  {t.clock(change.at_ms)}  {change.says}", width, 12)
    if t.turns:
        yield Line("")
        yield from _wrapped(
            "Where slopes moved (order and ratio; a cause needs more: shoal doctor check)", width, 2, "head"
        )
        for turn in t.turns:
            yield from _wrapped(f"  {t.turn_text(turn)}", width, 4)
        if still := [name for name in t.stocks if name not in {turn.stock for turn in t.turns}]:
            yield Line(f"  {' and '.join(still)}: no slope moved")


def _wrapped(words: str, width: int, indent: int, style: Style = "plain") -> Iterator[Line]:
    for part in textwrap.wrap(words, width, subsequent_indent=" " * indent, drop_whitespace=True):
        yield Line(part, style)


def _cut(words: str, room: int) -> str:
    return words if len(words) <= room else words[: room - 1] + "…"


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
