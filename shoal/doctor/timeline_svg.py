# SPDX-License-Identifier: Apache-2.0
"""A timeline as one SVG picture: the lanes under each other over one axis, vertical rules where something changed.

It stands alone, with no script, font or network, in light and dark by the reader's own setting; inside an HTML page its
colours follow the page's when that sets the same variables. Invariants: the same timeline gives the same bytes; every
text is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shoal.doctor.svg import moment
from shoal.doctor.timeline import Lane, Point, Series, Timeline, figure

WIDTH, NARROW = 960, 340  # of a page, and of a phone between its margins
SHARED = ("interval", "flows", "runs")  # lanes whose series are held against each other
_LEFT, _RIGHT, _TOP = 46, 14, 72
_TALL, _LOW, _ROW = 64, 38, 13  # heights of a shared plot, of a plot of its own, of a row of marks
_HEAD, _LEGEND, _GAP, _LINE = 20, 16, 14, 16
_CHARACTER = 6.4  # pixels of a letter of 12 px, on average
_APART = 24  # pixels between two numbers of rules
_KINDS = 4  # colours
_STYLE = """
.shoal { --bg: #ffffff; --ink: #1b2430; --dim: #5f6b7a; --grid: #e3e7ec; --rule: #c2410c;
  --c0: #1f6feb; --c1: #c77700; --c2: #1a8754; --c3: #8a3ffc; }
@media (prefers-color-scheme: dark) { .shoal { --bg: #10151c; --ink: #e6eaf0; --dim: #9aa6b5; --grid: #28303a;
  --rule: #fb923c; --c0: #6aa8ff; --c1: #f0b23c; --c2: #4cc38a; --c3: #b794ff; } }
.shoal text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; fill: var(--ink); }
.shoal text { paint-order: stroke; stroke: var(--bg); stroke-width: 3px; stroke-linejoin: round; }
.shoal .bg { fill: var(--bg); } .shoal .h { font-weight: 600; } .shoal .d { fill: var(--dim); font-size: 11px; }
.shoal .t { font-size: 15px; font-weight: 600; } .shoal .n { fill: var(--rule); font-size: 11px; font-weight: 600; }
.shoal .g { stroke: var(--grid); fill: none; } .shoal .r { stroke: var(--rule); stroke-dasharray: 3 3; opacity: .75; }
.shoal .lv { stroke: var(--dim); stroke-dasharray: 5 4; fill: none; }
.shoal .l { fill: none; stroke-width: 1.5; } .shoal .dot { stroke-width: 3; stroke-linecap: round; fill: none;
  opacity: .55; } .shoal .a { stroke: none; opacity: .85; } .shoal .m { stroke-width: 1.2; fill: none; }
""" + "".join(f".shoal .s{i} {{ stroke: var(--c{i}); }} .shoal .f{i} {{ fill: var(--c{i}); }}\n" for i in range(_KINDS))


# For the head of a page that holds `pictures`.
PAGE_STYLE = _STYLE + (
    ".near{display:none}@media(max-width:640px){.far{display:none}.near{display:block}}"
    ".shoal{max-width:100%;height:auto}"
)


_ALONE, _STYLED = ' xmlns="http://www.w3.org/2000/svg"', f"<style>{_STYLE}</style>"


def svg(t: Timeline, width: int = WIDTH, lanes: Sequence[str] = (), *, labelled_by: str = "") -> str:
    """The picture, `width` pixels wide; `lanes` chooses some by their ids.

    `labelled_by` is the id of its heading in a page that has `PAGE_STYLE`; without one it stands alone.
    """
    drawing = _Drawing(t, width)
    for lane in t.lanes:
        if not lanes or lane.id in lanes:
            drawing.lane(lane)
    drawing.axis()
    drawing.words()
    return drawing.finish(labelled_by)


def html(t: Timeline) -> str:
    """A page with the picture, wide and narrow, and its words as text: one file, nothing is loaded."""
    from shoal.doctor.html import document

    return document(f"{t.name or t.table}: timeline", pictures(t), PAGE_STYLE)


def pictures(t: Timeline) -> str:
    """The picture for a page, wide and narrow; the reader's screen shows one."""
    return "".join(
        f'<figure class="{name}"><figcaption><h3 id="timeline-{name}">Timeline</h3></figcaption>'
        f"{svg(t, size, labelled_by=f'timeline-{name}')}</figure>"
        for name, size in (("far", WIDTH), ("near", NARROW))
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """Series that share a plot."""

    series: tuple[tuple[int, Series], ...]  # with their colours
    most: float
    height: int


class _Drawing:
    def __init__(self, t: Timeline, width: int) -> None:
        self.t, self.width, self.y = t, width, float(_TOP)
        self.plot = width - _LEFT - _RIGHT
        self.out: list[str] = []
        self.texts: list[str] = []  # over everything, each with an edge of the ground: rules run behind words
        self.top = self.y

    def x(self, at_ms: float) -> float:
        share = (at_ms - self.t.first_ms) / max(self.t.last_ms - self.t.first_ms, 1)
        return _LEFT + min(max(share, 0.0), 1.0) * self.plot

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "") -> None:
        more = f' class="{style}"' * bool(style) + f' text-anchor="{anchor}"' * bool(anchor)
        self.texts.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>')

    # ---- lanes

    def lane(self, lane: Lane) -> None:
        about = f" ({lane.unit})" if lane.unit and lane.unit != lane.title else ""
        self.text(_LEFT, self.y + 12, f"{lane.title}{about}", "h")
        self.y += _HEAD
        if lane.empty:
            self._note(lane.note or "nothing in this time")
            self.y += _GAP
            return
        if any(s.shape == "ticks" for s in lane.series):
            for number, series in enumerate(lane.series):
                self._marks(number, series.name, series.points)
        else:
            for row in _rows(lane):
                self._legend(row, lane)
                self._plot(row, lane)
        for number, kind in enumerate(dict.fromkeys(tick.kind for tick in lane.ticks)):
            self._marks(number, kind, [(tick.at_ms, 1.0) for tick in lane.ticks if tick.kind == kind])
        if lane.id in ("pins", "acts"):
            for tick in lane.ticks[:6]:
                self._note(f"{self.t.clock(tick.at_ms)} {tick.label}")
        if lane.note:
            self._note(lane.note)
        self.y += _GAP

    def _note(self, words: str) -> None:
        for line in textwrap.wrap(words, max(20, int(self.plot / (_CHARACTER * 0.92)))):
            self.text(_LEFT, self.y + 10, line, "d")
            self.y += _LINE - 2

    def _legend(self, row: _Row, lane: Lane) -> None:
        x = float(_LEFT)
        words = [(f"f{c}", s.name) for c, s in row.series]
        words += [("", f"{name} {figure(v)}") for name, v in (lane.levels or {}).items()] if lane.id in SHARED else []
        for style, name in words:
            wide = (12 if style else 0) + _CHARACTER * len(name) + 14
            if x > _LEFT and x + wide > self.width:
                x, self.y = float(_LEFT), self.y + _LEGEND
            if style:
                self.out.append(f'<rect x="{x:.1f}" y="{self.y + 2:.1f}" width="9" height="9" class="{style}"/>')
            self.text(x + (13 if style else 0), self.y + 10, name, "d")
            x += wide
        self.y += _LEGEND

    def _plot(self, row: _Row, lane: Lane) -> None:
        top, bottom = self.y, self.y + row.height
        self.out.append(
            f'<path class="g" d="M{_LEFT} {bottom:.1f}H{self.width - _RIGHT}M{_LEFT} {top:.1f}v{row.height}"/>'
        )
        self.text(_LEFT - 5, top + 9, figure(row.most), "d", "end")
        self.text(_LEFT - 5, bottom, "0", "d", "end")

        def y(value: float) -> float:
            return bottom - min(value / row.most, 1.0) * (row.height - 2)

        if lane.id in SHARED:
            for value in (lane.levels or {}).values():
                self.out.append(f'<path class="lv" d="M{_LEFT} {y(value):.1f}H{self.width - _RIGHT}"/>')
        if all(s.shape == "bars" for _, s in row.series):
            self._stack(row, lane.bin_ms or 1, y)
        else:
            for colour, series in row.series:
                self._series(colour, series, y)
        self.y = bottom + 6

    def _stack(self, row: _Row, bin_ms: int, y: Callable[[float], float]) -> None:
        below: dict[int, float] = {}
        for colour, series in row.series:
            path = []
            for at, value in series.points:
                base = below.get(at, 0.0)
                below[at] = base + value
                if value > 0:
                    left, right = self.x(at), self.x(at + bin_ms)
                    path.append(f"M{left:.1f} {y(base):.1f}V{y(base + value):.1f}H{right:.1f}V{y(base):.1f}z")
            self.out.append(f'<path class="a f{colour}" d="{"".join(path)}"/>')

    def _series(self, colour: int, series: Series, y: Callable[[float], float]) -> None:
        if series.shape == "dots":
            path = "".join(f"M{self.x(at):.1f} {y(v):.1f}h0" for at, v in series.points)
            self.out.append(f'<path class="dot s{colour}" d="{path}"/>')
            return
        parts, before = [], None
        for at, value in series.points:
            if before is None:
                parts.append(f"M{self.x(at):.1f} {y(value):.1f}")
            elif series.shape == "step":
                parts.append(f"H{self.x(at):.1f}V{y(value):.1f}" if value != before else f"H{self.x(at):.1f}")
            else:
                parts.append(f"L{self.x(at):.1f} {y(value):.1f}")
            before = value
        self.out.append(f'<path class="l s{colour}" d="{"".join(parts)}"/>')

    def _marks(self, number: int, name: str, points: Sequence[Point]) -> None:
        """One row of marks, higher where more came in one stretch."""
        count = sum(v for _, v in points)
        self.text(_LEFT, self.y + 10, f"{name}: {count:,.0f}" if count > 1 else name, "d")
        self.y += _ROW + _ROW
        most = max((v for _, v in points), default=1.0)
        path = "".join(f"M{self.x(at):.1f} {self.y:.1f}v{-4 - 6 * v / most:.1f}" for at, v in points)
        self.out.append(f'<path class="m s{number % _KINDS}" d="{path}"/>')
        self.y += 2

    # ---- axis, rules, words

    def axis(self) -> None:
        bottom = self.y
        count = max(2, int(self.plot // 130) + 1)
        for i in range(count):
            at = self.t.first_ms + (self.t.last_ms - self.t.first_ms) * i / (count - 1)
            x = self.x(at)
            self.out.append(f'<path class="g" d="M{x:.1f} {bottom:.1f}v5"/>')
            anchor = "start" if i == 0 else "end" if i == count - 1 else "middle"
            self.text(x, bottom + 18, self.t.clock(round(at)), "d", anchor)
        marks: list[tuple[float, int, int]] = []  # where a number stands, the changes that it stands for
        for number, change in enumerate(self.t.changes, 1):
            x = self.x(change.at_ms)
            self.out.append(f'<path class="r" d="M{x:.1f} {self.top - 6:.1f}V{bottom:.1f}"/>')
            if marks and x - marks[-1][0] < _APART:
                marks[-1] = (marks[-1][0], marks[-1][1], number)
            else:
                marks.append((x, number, number))
        for x, one, last in marks:
            self.text(x, self.top - 9, str(one) if one == last else f"{one}-{last}", "n", "middle")
        self.y = bottom + 30

    def words(self) -> None:
        for line, style in _words(self.t, int((self.width - 2 * _RIGHT) / _CHARACTER)):
            self.text(_RIGHT, self.y + 12, line, style)
            self.y += _LINE + 2

    def finish(self, labelled_by: str) -> str:
        t, height = self.t, round(self.y + 12)
        name, day = t.name or t.table, moment(t.first_ms, "%Y-%m-%d")
        until = "" if moment(t.last_ms, "%Y-%m-%d") == day else f"{moment(t.last_ms, '%Y-%m-%d')} "
        when = f"{day} {moment(t.first_ms, '%H:%M:%S')} to {until}{moment(t.last_ms, '%H:%M:%S')} UTC"
        room = int((self.width - 2 * _RIGHT) / (_CHARACTER * 1.4))
        shown = name if len(name) <= room else f"{name[: room - 9]}…{name[-8:]}"
        title = escape(f"Timeline of {name}, {when}", quote=True)
        label = f'aria-labelledby="{labelled_by}"' if labelled_by else f'aria-label="{title}"'
        head = (
            f'<svg{"" if labelled_by else _ALONE} class="shoal" viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" height="{height}" role="img" {label}>{"" if labelled_by else _STYLED}'
            f'<rect class="bg" width="{self.width}" height="{height}"/>'
            f'<text x="{_RIGHT}" y="24" class="t">{escape(shown)}</text>'
            f'<text x="{_RIGHT}" y="42" class="d">{escape(when)}</text>'
        )
        return head + "\n" + "\n".join([*self.out, *self.texts]) + "\n</svg>\n"


def _rows(lane: Lane) -> Iterator[_Row]:
    """The plots of a lane: one for all that shares a scale; a series and its percentile share one."""
    known = [(i, s) for i, s in enumerate(lane.series) if s.points]
    if lane.id in SHARED:
        groups = [known]
    else:
        names = dict.fromkeys(s.name.removesuffix(" p99") for _, s in known)
        groups = [[(i, s) for i, s in known if s.name.removesuffix(" p99") == name] for name in names]
    for group in filter(None, groups):
        stacked: dict[int, float] = {}
        for _, s in group:
            for at, value in s.points:
                stacked[at] = stacked.get(at, 0.0) + value if s.shape == "bars" else max(stacked.get(at, 0.0), value)
        levels = (lane.levels or {}).values() if lane.id in SHARED else ()
        most = max([*stacked.values(), *levels]) or 1.0
        series = tuple((i % _KINDS, s) for i, s in group)
        yield _Row(series, most, _TALL if lane.id in SHARED else _LOW)


def _words(t: Timeline, room: int) -> Iterator[tuple[str, str]]:
    """The changes in order, and where slopes moved."""
    if not t.changes:
        for line in textwrap.wrap("No change in this time: interval, flows and options stayed as they were.", room):
            yield line, ""
    for number, change in enumerate(t.changes, 1):
        for i, line in enumerate(textwrap.wrap(f"{number}  {t.clock(change.at_ms)}  {change.says}", room)):
            yield ("   " * bool(i)) + line, ""
    for turn in t.turns:
        for line in textwrap.wrap(t.turn_text(turn), room):
            yield line, "h"
