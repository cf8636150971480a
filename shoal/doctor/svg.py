# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG: lines, stacked columns, bars to both sides, a heat map. Text in, text out.

Colours are classes (`s0`, `s1`, ...) that the page gives in light and dark; lines differ in their dashes too. Every
plot has a title and a description for those who don't see it. Invariants: all texts are escaped; nothing is fetched;
a series of no points is no error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from shoal.doctor.report import brief

WIDTH, HEIGHT = 440, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 26
_LABEL = 12  # pixels from one label of a level to the next
_FEW = 60  # dots that do not touch each other
_DAY_MS = 86_400_000
_STEPS_MS = tuple(
    s * 1000 for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one name. `steps`: the value stays until the next point; `dots`: no line at all; `faint`: a thin one.

    `band` is the least and the most at each point: an area behind the line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    steps: bool = False
    dots: bool = False
    faint: bool = False
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A level across the plot, or a moment down through it."""

    at: float
    label: str
    moment: bool = False


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers over a range.

    >>> ticks(0, 9), ticks(0, 0.9)
    ([0.0, 2.5, 5.0, 7.5], [0.0, 0.25, 0.5, 0.75])
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(low: float, high: float, count: int = 5) -> list[tuple[float, str]]:
    """Round moments over a range of epoch milliseconds, with their text in UTC."""
    span = high - low
    step = next((s for s in _STEPS_MS if span / s <= count), None)
    step = step or _DAY_MS * math.ceil(span / _DAY_MS / count)
    form = "%H:%M:%S" if step < 60_000 else "%H:%M" if span <= 2 * _DAY_MS else "%m-%d %H:%M"
    if step >= _DAY_MS:
        form = "%m-%d"
    first = math.ceil(low / step)
    return [(k * step, moment(k * step, form)) for k in range(first, math.floor(high / step) + 1)]


def moment(ms: float, form: str = "%Y-%m-%d %H:%M:%SZ") -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)


def number(value: float) -> str:
    """Short, for an axis.

    >>> number(0.25), number(1500), number(2_000_000)
    ('0.25', '1.5k', '2M')
    """
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{brief(value / scale)}{unit}"
    return brief(value)


class Frame:
    """The plane of one plot: scales, grid and axes."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, height: int = HEIGHT, right: int = _RIGHT
    ) -> None:
        self.height, self.right = height, WIDTH - right
        self.x0, self.x1 = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)
        self.y0, self.y1 = y if y[1] > y[0] else (y[0], y[0] + 1)
        self.label_y = float(height)
        self.parts: list[str] = []

    def px(self, x: float) -> float:
        return _LEFT + (x - self.x0) / (self.x1 - self.x0) * (self.right - _LEFT)

    def py(self, y: float) -> float:
        return self.height - _BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (self.height - _TOP - _BOTTOM)

    def axes(self, *, time: bool) -> None:
        for value in ticks(self.y0, self.y1):
            y = self.py(value)
            self.parts.append(f'<line class="grid" x1="{_LEFT}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.parts.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
            )
        bottom = self.height - _BOTTOM
        self.parts.append(f'<line class="axis" x1="{_LEFT}" x2="{self.right}" y1="{bottom}" y2="{bottom}"/>')
        marks = time_ticks(self.x0, self.x1) if time else [(v, number(v)) for v in ticks(self.x0, self.x1)]
        for at, text in marks:
            x = self.px(at)
            anchor = "end" if x > self.right - 28 else "start" if x < _LEFT + 14 else "middle"
            self.parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            self.parts.append(
                f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{escape(text)}</text>'
            )

    def rule(self, r: Rule) -> None:
        if r.moment:
            if self.x0 <= r.at <= self.x1:
                x = self.px(r.at)
                left = x > WIDTH / 2
                self.parts.append(
                    f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{self.height - _BOTTOM}"/>'
                )
                self.parts.append(
                    f'<text class="note" x="{x + (-4 if left else 4):.1f}" y="{_TOP + 10}" '
                    f'text-anchor="{"end" if left else "start"}">{escape(r.label)}</text>'
                )
        elif self.y0 <= r.at <= self.y1:
            y = self.py(r.at)
            self.parts.append(f'<line class="rule" x1="{_LEFT}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            # beside the plot, not on its points, and not on the label before it
            self.label_y = min(y + 4, self.label_y - _LABEL)
            self.parts.append(
                f'<text class="note" x="{self.right + 5}" y="{self.label_y:.1f}">{escape(r.label)}</text>'
            )

    def line(self, one: Line, number_of: int) -> None:
        points = list(zip(one.x, one.y))
        if one.dots:
            radius = 2.6 if len(points) <= _FEW else 1.8
            self.parts += [
                f'<circle class="dot s{number_of}" cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{radius}"/>'
                for x, y in points
            ]
            return
        if one.band is not None and points:
            there = [f"{self.px(x):.1f} {self.py(v):.1f}" for x, v in zip(one.x, one.band[1])]
            back = [f"{self.px(x):.1f} {self.py(v):.1f}" for x, v in zip(one.x, one.band[0])]
            self.parts.append(f'<path class="band s{number_of}" d="M{"L".join([*there, *reversed(back)])}Z"/>')
        path, last = [], None
        for x, y in points:
            if last is None:
                path.append(f"M{self.px(x):.1f} {self.py(y):.1f}")
            else:
                if one.steps:
                    path.append(f"H{self.px(x):.1f}")
                path.append(f"L{self.px(x):.1f} {self.py(y):.1f}")
            last = (x, y)
        if path:
            faint = " faint" if one.faint else ""
            self.parts.append(f'<path class="line s{number_of}{faint}" d="{"".join(path)}"/>')

    def svg(self, key: str, title: str, about: str) -> str:
        return wrapped("".join(self.parts), key, title, about, self.height)


def wrapped(body: str, key: str, title: str, about: str, height: float) -> str:
    """A whole SVG with its title and description."""
    k = escape(key, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{k}-t {k}-d">'
        f'<title id="{k}-t">{escape(title)}</title><desc id="{k}-d">{escape(about)}</desc>{body}</svg>'
    )


# ---- the plots -------------------------------------------------------------------------------------------


def lines(
    key: str, title: str, about: str, series: Sequence[Line], *, rules: Sequence[Rule] = (), time: bool = True
) -> str:
    """Lines over time; the axis of values begins at 0."""
    xs = [v for s in series for v in s.x]
    ys = [v for s in series for v in (*s.y, *(s.band[1] if s.band else ()))] + [r.at for r in rules if not r.moment]
    levels = sorted((r for r in rules if not r.moment), key=lambda r: r.at)
    right = _RIGHT if not levels else 14 + 7 * max(len(r.label) for r in levels)
    frame = Frame((min(xs, default=0), max(xs, default=1)), (0, 1.08 * max(ys, default=1) or 1), right=right)
    frame.axes(time=time)
    for i, one in enumerate(series):
        frame.line(one, i)
    for r in (*levels, *(r for r in rules if r.moment)):
        frame.rule(r)
    return frame.svg(key, title, about)


def stacked(
    key: str, title: str, about: str, edges: Sequence[float], names: Sequence[str], values: Sequence[Sequence[float]]
) -> str:
    """Columns over time, one layer a name; `values` by name, then by column."""
    sums = [sum(layer[i] for layer in values) for i in range(len(edges) - 1)]
    frame = Frame((edges[0], edges[-1]), (0, 1.08 * max(sums, default=1) or 1))
    frame.axes(time=True)
    for i in range(len(edges) - 1):
        x, w = frame.px(edges[i]), frame.px(edges[i + 1]) - frame.px(edges[i])
        base = 0.0
        for number_of, layer in enumerate(values):
            if layer[i] > 0:
                top, bottom = frame.py(base + layer[i]), frame.py(base)
                frame.parts.append(
                    f'<rect class="fill s{number_of}" x="{x + 0.4:.1f}" y="{top:.1f}" width="{max(w - 0.8, 0.4):.1f}" '
                    f'height="{bottom - top:.1f}"/>'
                )
            base += layer[i]
    return frame.svg(key, title, about)


def bars(key: str, title: str, about: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Bars to both sides of zero: (name, value, text of the value)."""
    row, top = 38, 8
    height = top + row * len(rows) + 8
    low, high = min([0.0, *(v for _, v, _ in rows)]), max([0.0, *(v for _, v, _ in rows)])
    span = (high - low) or 1.0
    scale = (WIDTH - 24 - 90) / span
    zero = 12 + (-low) * scale + (45 if low < 0 else 0)
    parts = [f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{top}" y2="{height - 6}"/>']
    for i, (name, value, text) in enumerate(rows):
        y = top + i * row
        width = abs(value) * scale
        x = zero if value >= 0 else zero - width
        parts.append(f'<text class="label" x="12" y="{y + 12}">{escape(name)}</text>')
        parts.append(
            f'<rect class="fill s{0 if value >= 0 else 1}" x="{x:.1f}" y="{y + 17}" width="{max(width, 1):.1f}" '
            'height="13"/>'
        )
        side, anchor = (x + width + 5, "start") if value >= 0 else (x - 5, "end")
        parts.append(f'<text class="tick" x="{side:.1f}" y="{y + 28}" text-anchor="{anchor}">{escape(text)}</text>')
    return wrapped("".join(parts), key, title, about, height)


def heat(
    key: str, title: str, about: str, edges: Sequence[float], names: Sequence[str], cells: Sequence[Sequence[float]],
    top: float,
) -> str:  # fmt: skip
    """A row a name, a column a stretch of time; the darker, the nearer to `top`."""
    left, row = 116, 17
    bottom = _TOP + row * len(names)
    width = WIDTH - left - _RIGHT
    span = (edges[-1] - edges[0]) or 1
    parts = []
    for i, (name, values) in enumerate(zip(names, cells)):
        y = _TOP + i * row
        shown = name if len(name) <= 17 else "…" + name[-16:]
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(shown)}</text>')
        for j, value in enumerate(values):
            x = left + (edges[j] - edges[0]) / span * width
            w = (edges[j + 1] - edges[j]) / span * width
            share = min(max(value / top, 0), 1) if top else 0
            parts.append(
                f'<rect class="heat" x="{x:.1f}" y="{y}" width="{w + 0.3:.1f}" height="{row - 2}" '
                f'fill-opacity="{0.06 + 0.94 * share:.2f}"/>'
            )
    for at, text in time_ticks(edges[0], edges[-1], 4):
        x = left + (at - edges[0]) / span * width
        anchor = "end" if x > WIDTH - 40 else "middle"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{escape(text)}</text>')
    return wrapped("".join(parts), key, title, about, bottom + 24)
