# SPDX-License-Identifier: Apache-2.0
"""What happened to a table, and when: nine lanes over one time axis, and the changes between them in order.

A `Timeline` is a value that terminal, JSON and pictures draw alike. It states order and ratio and nothing else: that
one thing came before another is no cause; causes are for diagnoses, with their evidence. The lanes come from
`timeline_lanes`, the changes from `timeline_changes`.

Invariants: pure, a function of its arguments; every point is a number that was seen or counted; a lane without points
says why it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from shoal.doctor.report import brief
from shoal.doctor.window import Window

if TYPE_CHECKING:
    from shoal.doctor.flink import Job
    from shoal.doctor.model import Model
    from shoal.doctor.query_log import Query

SCHEMA = "shoal.doctor.timeline/1"
BINS = 120  # stretches that flows are summed over

# How a series is drawn: a line through its points; a value that stays until the next; bars of `Lane.bin_ms`, on top of
# each other; single points; one mark a point, whose value is a count.
Shape = Literal["line", "step", "bars", "dots", "ticks"]
Point = tuple[int, float]  # epoch ms, value

# What somebody did, or what happened to a writer, and what was measured afterwards.
ACTS = ("option", "schema", "buckets", "interval", "restart", "failures", "event")


@dataclass(frozen=True, slots=True)
class Series:
    """One row of a lane."""

    name: str
    shape: Shape
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"name": self.name, "shape": self.shape, "points": [list(p) for p in self.points]}


@dataclass(frozen=True, slots=True)
class Tick:
    """Something at one time."""

    at_ms: int
    kind: str
    label: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"at_ms": self.at_ms, "kind": self.kind, "label": self.label}


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows that share a unit. `levels` are lines to hold values against; `note` says why it is empty, or partly so."""

    id: str
    title: str
    unit: str
    series: tuple[Series, ...] = ()
    ticks: tuple[Tick, ...] = ()
    levels: Mapping[str, float] | None = None
    note: str = ""
    bin_ms: int | None = None  # of bars

    @property
    def empty(self) -> bool:
        return not self.ticks and not any(s.points for s in self.series)

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "id": self.id, "title": self.title, "unit": self.unit, "series": [s.to_dict() for s in self.series],
            "ticks": [t.to_dict() for t in self.ticks], "levels": dict(self.levels or {}), "note": self.note,
            "bin_ms": self.bin_ms,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One vertical rule. `says` is a few words, like `interval 60→10 s`; kinds of `ACTS` are no measurements."""

    at_ms: int
    kind: str
    says: str
    snapshot: int | None = None
    before: float | str | None = None
    after: float | str | None = None

    @property
    def act(self) -> bool:
        return self.kind in ACTS

    @property
    def ratio(self) -> float | None:
        a, b = self.after, self.before
        return a / b if isinstance(a, int | float) and isinstance(b, int | float) and b else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "at_ms": self.at_ms, "kind": self.kind, "says": self.says, "snapshot": self.snapshot,
            "before": self.before, "after": self.after, "ratio": self.ratio,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """The slope of a stock on both sides of changes that came together: the 95 % intervals have nothing in common."""

    stock: str  # "files made", "live files", "merge debt"
    at_ms: int
    changes: tuple[int, ...]  # positions in `Timeline.changes`, acts where there are any
    before: float  # a minute
    after: float
    factors: str = ""  # of flushed files a minute: `x6.0 = x6.0 commits · x1.0 buckets · x1.0 files`

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before > 0 else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "stock": self.stock, "at_ms": self.at_ms, "changes": list(self.changes), "per_minute_before": self.before,
            "per_minute_after": self.after, "ratio": self.ratio, "factors": self.factors,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Join:
    """Snapshots and a job's checkpoints, by checkpoint id."""

    user: str | None  # the writer that is the job; None where none fits
    identifiers: int  # checkpoints that made snapshots, from the oldest to the newest that Flink told of
    matched: int  # of these, those that Flink told of
    of_failed: int  # whose checkpoint had failed
    missed: int  # checkpoints that began and nobody saw
    newer: int  # checkpoints that made snapshots after Flink's last answer: it gives the same one for some seconds
    late_p50_ms: float | None  # first snapshot - last answer to the checkpoint that it was committed with
    late_p99_ms: float | None
    offset_ms: float | None  # the least lateness: below 0 the committer's clock is behind by at least that

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "user": self.user, "identifiers": self.identifiers, "matched": self.matched, "of_failed": self.of_failed,
            "missed": self.missed, "newer": self.newer, "late_p50_ms": self.late_p50_ms,
            "late_p99_ms": self.late_p99_ms, "offset_ms": self.offset_ms,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes over one time axis, what changed, and after which change each slope moved."""

    table: str
    name: str
    first_ms: int
    last_ms: int
    first: int | None  # snapshot ids
    last: int | None
    lanes: tuple[Lane, ...]
    changes: tuple[Change, ...]
    turns: tuple[Turn, ...]
    stocks: tuple[str, ...]  # whose slopes were looked at
    join: Join | None  # None where no job was asked

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.lanes if lane.id == name)

    @property
    def text(self) -> str:
        """The changes in order, in one line: `14:02 interval 60→10 s; 14:03 flush/min x6.0`."""
        return "; ".join(f"{self.clock(c.at_ms)} {c.says}" for c in self.changes)

    def turn_text(self, turn: Turn) -> str:
        """One turn as a sentence of order and ratio."""
        after = " and ".join(f"{self.clock(c.at_ms)} {c.says}" for c in (self.changes[i] for i in turn.changes))
        times = f" (x{rounded(turn.ratio)})" if turn.ratio is not None and turn.after > 0 else ""
        made = f"; flushed files {turn.factors}" if turn.factors else ""
        return f"{turn.stock} {rate(turn.before)} → {rate(turn.after)} a minute{times} after {after}{made}"

    def clock(self, at_ms: int) -> str:
        """A time of this axis, as short as it can be told: seconds where the axis is short, days where it is long."""
        span = self.last_ms - self.first_ms
        form = "%H:%M:%S" if span < 20 * 60_000 else "%H:%M" if span < 20 * 3_600_000 else "%m-%d %H:%M"
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "schema": SCHEMA, "table": self.table, "name": self.name, "first_ms": self.first_ms,
            "last_ms": self.last_ms, "first": self.first, "last": self.last,
            "lanes": [lane.to_dict() for lane in self.lanes], "changes": [c.to_dict() for c in self.changes],
            "stocks": list(self.stocks), "turns": [t.to_dict() | {"says": self.turn_text(t)} for t in self.turns],
            "join": None if self.join is None else self.join.to_dict(), "text": self.text,
        }  # fmt: skip


def rounded(value: float) -> str:
    """Two digits that count.

    >>> rounded(5.96), rounded(48.6), rounded(0.1666)
    ('6.0', '49', '0.17')
    """
    if value == 0 or abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else brief(value, 2)


def figure(value: float) -> str:
    """A value of a lane: whole numbers in full.

    >>> figure(3692.0), figure(5.8123), figure(12345.6)
    ('3,692', '5.8', '12,346')
    """
    return f"{value:,.0f}" if value == round(value) else rounded(value)


def rate(value: float) -> str:
    return f"{'+' if value > 0 else ''}{rounded(value)}"


def timeline(
    window: Window, model: Model | None = None, job: Job | None = None, queries: Sequence[Query] = (), *,
    bins: int = BINS,
) -> Timeline:  # fmt: skip
    """The timeline of a window; `bins` is how many stretches flows are summed over."""
    from shoal.doctor.model import model as compute
    from shoal.doctor.timeline_changes import changes_of, stocks_of, turns_of
    from shoal.doctor.timeline_lanes import Axis, join_of, lanes_of

    model = compute(window) if model is None else model
    axis = Axis.of(window, job, queries, bins)
    found = changes_of(window, model, job, queries, axis)
    stocks = stocks_of(window, model)
    return Timeline(
        window.table, window.name, axis.first_ms, axis.last_ms, window.steps[0].id if window.steps else None,
        window.steps[-1].id if window.steps else None, lanes_of(window, model, job, queries, axis), found,
        turns_of(window, model, found, stocks), tuple(s.name for s in stocks),
        None if job is None else join_of(window, job),
    )  # fmt: skip
