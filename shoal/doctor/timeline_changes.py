# SPDX-License-Identifier: Apache-2.0
"""What changed on a timeline, in order, and after which change a slope moved.

Acts are what somebody did or what befell a writer: options, schema, buckets, the checkpoint interval, restarts, failed
checkpoints. The rest was measured: change points of the flows (`segments`), of files per plan, of checkpoint and query
durations. A slope has moved where the 95 % intervals before and after have nothing in common; it is told with the
acts nearest before it, which is order, not cause.

Invariants: pure; the same window gives the same changes; a change is told once, with its ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from shoal.doctor.attribution import attribute
from shoal.doctor.checkpoints import restarts
from shoal.doctor.cycles import Cycles, checkpoint_ends
from shoal.doctor.debt import replay
from shoal.doctor.segments import SIGNALS, change_points, felt
from shoal.doctor.slope import Slope, theil_sen
from shoal.doctor.states import class_is, ints, monotonic
from shoal.doctor.stocks import Parts, live_parts, merge_parts
from shoal.doctor.timeline import Change, Turn, rounded
from shoal.doctor.window import CHANGELOG, FLUSH, REWRITE, SchemaFacts, Window

if TYPE_CHECKING:
    from shoal.doctor.flink import Job
    from shoal.doctor.model import Model
    from shoal.doctor.query_log import Query
    from shoal.doctor.states import States

_WORDS = dict(zip(SIGNALS, ("interval", "flush/min", "files/commit", "bytes/file")))
_FEWEST_QUERIES, _FEWEST_PLANS = 5, 20  # in a stretch
_MUCH = 1.25  # a level of files per plan or of durations that is another one
_MOVED = 1.1  # times as many files made a minute, or as few
_TOGETHER = 2  # checkpoint intervals within which changes came together
_LEAST_MS = 1000


class Span(Protocol):
    """The time of a timeline."""

    @property
    def first_ms(self) -> int: ...

    @property
    def last_ms(self) -> int: ...


def changes_of(
    window: Window, model: Model, job: Job | None, queries: Sequence[Query], span: Span
) -> tuple[Change, ...]:
    """All changes, in order of time; of those of one time, acts first."""
    found = [*acts_of(window, span), *_rhythm(model), *_levels(window)]
    if job is not None:
        found += _failures(job)
        done = [c for c in job.checkpoints if c.status == "COMPLETED" and c.duration_ms is not None]
        found += _moved(
            "checkpoint duration", [c.trigger_ms for c in done], [float(c.duration_ms or 0) for c in done],
            _FEWEST_PLANS,
        )  # fmt: skip
    found += _moved("query time", [q.at_ms for q in queries], [q.duration_ms for q in queries], _FEWEST_QUERIES)
    read = [(q.at_ms, float(q.files)) for q in queries if q.files is not None]
    found += _moved("files per query", [t for t, _ in read], [f for _, f in read], _FEWEST_QUERIES)
    return tuple(sorted(found, key=lambda c: (c.at_ms, not c.act)))


# ---- acts ------------------------------------------------------------------------------------------------


def acts_of(window: Window, span: Span) -> list[Change]:
    """What the table itself tells of: schema files, bucket counts, identifiers, and what looks met."""
    found = [c for a, b in pairwise(window.schemas) for c in _altered(a, b) if span.first_ms < b.time_ms]
    found += _rescaled(window)
    for r in restarts(window.steps):
        found.append(Change(r.time_ms, "restart", f"restart: checkpoint {r.before}→{r.after}", r.snapshot))
    for e in window.events:
        if e.kind in ("rollback", "replaced", "fix", "job"):
            found.append(Change(e.time_ms, "event", f"{e.kind}: {e.what}", e.snapshot))
    return sorted(found, key=lambda c: c.at_ms)


def _altered(old: SchemaFacts, new: SchemaFacts) -> list[Change]:
    """One change for each option, one for the columns."""
    out = []
    for key in sorted({*old.options, *new.options}):
        a, b = old.options.get(key), new.options.get(key)
        if a != b:
            says = f"{key} {'unset' if a is None else a}→{'unset' if b is None else b}"
            out.append(Change(new.time_ms, "option", says, None, a, b))
    for what, a_names, b_names in (
        ("column", old.columns, new.columns), ("primary key", old.primary_keys, new.primary_keys),
        ("partition key", old.partition_keys, new.partition_keys),
    ):  # fmt: skip
        gained, lost = [n for n in b_names if n not in a_names], [n for n in a_names if n not in b_names]
        if gained or lost:
            says = " ".join([*(f"+{n}" for n in gained), *(f"-{n}" for n in lost)])
            out.append(Change(new.time_ms, "schema", f"{what} {says}"))
    return out


def _rescaled(window: Window) -> list[Change]:
    """Where files of another number of buckets first came."""
    import pyarrow as pa

    mine = class_is(window.flows, FLUSH, REWRITE)
    made = window.flows.filter(pa.array(mine)).select(["snapshot", "total_buckets"]).drop_null()
    firsts = made.group_by("total_buckets").aggregate([("snapshot", "min")]).sort_by("snapshot_min").to_pylist()
    if window.start is not None and window.start.num_rows and firsts:
        stood = {n for n in window.start.column("total_buckets").to_pylist() if n is not None}
        firsts = [{"total_buckets": n, "snapshot_min": 0} for n in sorted(stood)] + [
            f for f in firsts if f["total_buckets"] not in stood
        ]
    times = {s.id: s.time_ms for s in window.steps}
    return [
        Change(
            times[b["snapshot_min"]], "buckets", f"buckets {a['total_buckets']}→{b['total_buckets']}",
            b["snapshot_min"], float(a["total_buckets"]), float(b["total_buckets"]),
        )
        for a, b in pairwise(firsts) if b["snapshot_min"] in times
    ]  # fmt: skip


def _failures(job: Job) -> list[Change]:
    """Checkpoints that failed one after another are one change."""
    groups: list[list[int]] = []
    for i, c in enumerate(job.checkpoints):
        if c.status == "FAILED":
            if groups and groups[-1][-1] == i - 1:
                groups[-1].append(i)
            else:
                groups.append([i])
    out = []
    for group in groups:
        first, last = job.checkpoints[group[0]], job.checkpoints[group[-1]]
        ids = f"{first.id}" if len(group) == 1 else f"{first.id} to {last.id}"
        says = f"checkpoint{'s' if len(group) > 1 else ''} {ids} failed"
        out.append(Change(first.failed_ms or first.trigger_ms, "failures", says))
    return out


# ---- what was measured -----------------------------------------------------------------------------------


def _rhythm(model: Model) -> list[Change]:
    out = []
    for c in model.segments.changes:
        word, kind = _WORDS[c.signal], "interval" if c.signal == "commit_interval_s" else c.signal
        if kind == "interval":
            says = f"interval {rounded(c.before)}→{rounded(c.after)} s"
        else:
            says = _times(word, c.before, c.after)
        out.append(Change(c.time_ms, kind, says, c.snapshot, c.before, c.after))
    return out


def _levels(window: Window) -> list[Change]:
    """Files per plan, at checkpoint ends."""
    ends = [s for s, after in zip(window.steps, [*window.steps[1:], None]) if after is None or after.kind != "COMPACT"]
    return _moved("files per plan", [s.time_ms for s in ends], [float(s.live_files) for s in ends], _FEWEST_PLANS)


def _moved(what: str, times: Sequence[int], values: Sequence[float], shortest: int) -> list[Change]:
    """The change points of a series of levels."""
    import numpy as np

    v = np.array(values, np.float64)
    cuts = felt(v, change_points(np.log1p(v), shortest=shortest), least=_MUCH)
    edges = [0, *cuts, len(v)]
    medians = [float(np.median(v[a:b])) for a, b in pairwise(edges)] if len(v) else []
    kind = what.replace(" ", "_")
    return [
        Change(times[cut], kind, _times(what, medians[i], medians[i + 1]), None, medians[i], medians[i + 1])
        for i, cut in enumerate(cuts)
    ]


def _times(what: str, before: float, after: float) -> str:
    return f"{what} x{rounded(after / before)}" if before else f"{what} 0→{rounded(after)}"


# ---- slopes ----------------------------------------------------------------------------------------------

Points = tuple[Any, Any]  # arrays: epoch ms, values


@dataclass(frozen=True)
class Stock:
    """A series that has a slope, and what must lie between two slopes beside their intervals."""

    name: str
    points: Points  # at equal phase
    ends: Points  # at every checkpoint's end: for stretches in which nothing drains
    other: Callable[[Slope, Slope], bool]

    def slope(self, first: int, until: int) -> Slope | None:
        """The slope between two times; None where too few points lie there."""
        return _slope(self.points, first, until) or _slope(self.ends, first, until)


def stocks_of(window: Window, model: Model) -> tuple[Stock, ...]:
    """Everything that was made, and live files and merge debt at equal phase where the state is known."""
    if not window.steps:
        return ()
    made = _made(window)
    out = [Stock("files made", made, made, _other_rate)]
    limits, trend = model.debt.limits, model.trends.get("live_files")
    states = replay(window, limits)
    if states is None or limits is None or model.cycles is None or trend is None or trend.cycle_minutes is None:
        return tuple(out)
    cycle, buckets = trend.cycle_minutes, trend.buckets

    def other(a: Slope, b: Slope) -> bool:
        return abs(b.value - a.value) * cycle > buckets

    stocks = {"live files": live_parts(states)}
    if limits.primary_key:
        stocks["merge debt"] = merge_parts(states, limits)
    ends = checkpoint_ends(states)
    for name, parts in stocks.items():
        whole = (states.times_ms[ends], parts.series(states)[ends].astype("float64"))
        out.append(Stock(name, _phase(states, model.cycles, parts), whole, other))
    return tuple(out)


def turns_of(
    window: Window, model: Model, changes: Sequence[Change], stocks: Sequence[Stock]
) -> tuple[Turn, ...]:  # fmt: skip
    """Where the slope of a stock moved, with the changes that came together there."""
    if len(window.steps) < 2 or not changes:
        return ()
    interval = max((s.medians.get("commit_interval_s", 0.0) for s in model.segments.segments), default=0.0)
    groups = _together(changes, max(_LEAST_MS, round(_TOGETHER * interval * 1000)))
    begin, end = window.steps[0].time_ms, window.steps[-1].time_ms + 1
    out = []
    for stock in stocks:
        since = begin  # the last time that this slope moved
        for group, after in zip(groups, [*groups[1:], None]):
            at, until = changes[group[0]].at_ms, end if after is None else changes[after[0]].at_ms
            a, b = stock.slope(since, at), stock.slope(at, until)
            if a is None or b is None or not (a.high < b.low or b.high < a.low) or not stock.other(a, b):
                continue
            factors = _factors(window, (since, at), (at, until)) if stock.name == "files made" else ""
            acts = tuple(i for i in group if changes[i].act) or (group[0],)
            out.append(Turn(stock.name, at, acts, a.value, b.value, factors))
            since = at
    return tuple(sorted(out, key=lambda t: t.at_ms))


def _together(changes: Sequence[Change], near_ms: int) -> list[list[int]]:
    """Positions of changes, those that came together in one group."""
    groups: list[list[int]] = []
    for i, c in enumerate(changes):
        if groups and c.at_ms - changes[groups[-1][0]].at_ms <= near_ms:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _made(window: Window) -> Points:
    """All objects that were ever made, data, changelog and metadata, after each commit."""
    import numpy as np

    ids = np.array([s.id for s in window.steps], np.int64)
    made = np.array([sum(c.files for c in s.wrote.values()) for s in window.steps], np.int64)
    mine = class_is(window.flows, FLUSH, REWRITE, CHANGELOG)
    np.add.at(made, np.searchsorted(ids, ints(window.flows, "snapshot")[mine]), ints(window.flows, "files")[mine])
    ends = np.array([s.kind not in ("COMPACT", "ANALYZE") for s in window.steps[1:]] + [True], np.bool_)
    return monotonic([s.time_ms for s in window.steps])[ends], np.cumsum(made)[ends].astype(np.float64)


def _phase(states: States, found: Cycles, parts: Parts) -> Points:
    """A stock at equal phase."""
    phase = parts.phase(states, found)
    return states.times_ms[0] + phase.minutes * 60_000, phase.values


def _slope(points: Points, first: int, until: int) -> Slope | None:
    import numpy as np

    times, values = points
    inside = (times >= first) & (times < until)
    return theil_sen(times[inside] / 60_000, values[inside], rng=np.random.default_rng(0))


def _other_rate(a: Slope, b: Slope) -> bool:
    low, high = sorted((a.value, b.value))
    return low <= 0 < high or high > _MOVED * low


def _factors(window: Window, before: tuple[int, int], after: tuple[int, int]) -> str:
    """What the change of flushed files a minute is made of."""
    spans = []
    for first, until in (before, after):
        ids = [s.id for s in window.steps if first <= s.time_ms < until]
        if len(ids) < 2:
            return ""
        spans.append((ids[0], ids[-1]))
    found = attribute(window, window, a_span=spans[1], b_span=spans[0])
    return "" if found is None else str(found)
