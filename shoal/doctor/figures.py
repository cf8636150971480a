# SPDX-License-Identifier: Apache-2.0
"""What a report draws of a checkup: each figure with its plot, its words, and the table behind it.

Pure functions of a checkup. Invariants: a table behind a plot holds the plotted numbers, in at most `ROWS` rows; long
series are thinned to the least and the most of each stretch, so no crest and no trough is lost; a figure whose numbers
are not known is left out, not drawn empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor import svg
from shoal.doctor.attribution import Factor
from shoal.doctor.checkup import Checkup
from shoal.doctor.cycles import bucket_phase
from shoal.doctor.debt import data_commits
from shoal.doctor.report import brief, number_text, signed
from shoal.doctor.segments import intervals_s
from shoal.doctor.states import class_is, ints, monotonic
from shoal.doctor.stocks import excess_parts, merge_parts
from shoal.doctor.window import CHANGELOG, FLUSH, METADATA, REWRITE, Window

if TYPE_CHECKING:
    from shoal.doctor.states import Floats, Ints

STRETCHES, ROWS = 150, 24  # of a line, of a table
MANY = 144  # snapshots that are drawn one by one


@dataclass(frozen=True, slots=True)
class Figure:
    """`legend`: names in the order of the colours. `says`: what to see in it, one sentence with numbers."""

    key: str
    title: str
    says: str
    svg: str
    legend: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures(c: Checkup) -> list[Figure]:
    """All that the numbers allow."""
    found = [stocks(c), flows(c), runs(c), cadence(c), factors(c), buckets(c), holders(c)]
    return [f for f in found if f is not None]


# ---- series ----------------------------------------------------------------------------------------------


def edges_of(times: Ints, count: int) -> list[float]:
    """Edges of so many equal stretches of time, fewer where the times are few."""
    import numpy as np

    n = max(min(count, len(times) - 1), 1)
    return [float(v) for v in np.linspace(float(times[0]), max(float(times[-1]), float(times[0]) + 1), n + 1)]


def _stretch(times: Ints, edges: Sequence[float]) -> Ints:
    """By time, the stretch it lies in."""
    import numpy as np

    found = np.searchsorted(np.asarray(edges), times, side="right") - 1
    return np.asarray(np.clip(found, 0, len(edges) - 2), np.int64)


def thinned(times: Ints, values: Any) -> tuple[list[float], list[float]]:
    """At most two points a stretch, its least and its most, and always the last one."""
    import numpy as np

    n = len(times)
    if n <= 2 * STRETCHES:
        return times.astype(float).tolist(), np.asarray(values, float).tolist()
    cuts = np.linspace(0, n, STRETCHES + 1).astype(int)
    kept: set[int] = {0, n - 1}
    for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist()):
        kept |= {a + int(np.argmin(values[a:b])), a + int(np.argmax(values[a:b]))}
    at = sorted(kept)
    return times[at].astype(float).tolist(), np.asarray(values, float)[at].tolist()


def drawn_stock(name: str, times: Ints, values: Any) -> svg.Line:
    """A line of every value, or of means with the least and the most around them where there are many."""
    import numpy as np

    if len(times) <= MANY:
        return svg.Line(name, times.astype(float).tolist(), np.asarray(values, float).tolist(), steps=True)
    edges = edges_of(times, 72)
    where = _stretch(times, edges)
    starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
    count = np.diff(np.r_[starts, len(times)])
    low, high = (np.asarray(f.reduceat(values, starts), float) for f in (np.minimum, np.maximum))
    mean = np.add.reduceat(values, starts) / count
    x = [(edges[k] + edges[k + 1]) / 2 for k in where[starts].tolist()]
    return svg.Line(name, x, mean.tolist(), band=(low.tolist(), high.tolist()))


def _table(times: Ints, columns: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    """Least and most of each column by stretch of time."""
    edges = edges_of(times, ROWS)
    where = _stretch(times, edges)
    rows = []
    for k in range(len(edges) - 1):
        inside = where == k
        if not inside.any():
            continue
        cells = [svg.moment(edges[k])]
        for values in columns:
            low, high = float(values[inside].min()), float(values[inside].max())
            cells.append(number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}")
        rows.append(tuple(cells))
    return tuple(rows)


def _changes(c: Checkup) -> list[svg.Rule]:
    """Moments at which the commit interval changed."""
    return [
        svg.Rule(s.time_ms, f"{brief(s.before)} → {brief(s.after)} s", moment=True)
        for s in c.case.model.segments.changes if s.signal == "commit_interval_s"
    ][-4:]  # fmt: skip


# ---- figures ---------------------------------------------------------------------------------------------


def stocks(c: Checkup) -> Figure | None:
    import numpy as np

    states, limits = c.case.states, c.case.limits
    if states is None or limits is None or len(states.steps) < 2:
        return None
    series = {"live files": states.sum_of("files"), "excess files": excess_parts(states, limits).series(states)}
    if limits.primary_key:
        merge = merge_parts(states, limits).series(states)
        if np.array_equal(merge, series["excess files"]):  # small files, each a run: one line is enough
            series["excess files, and merge debt"] = series.pop("excess files")
        else:
            series["merge debt (runs beyond one)"] = merge
    now = {name: int(v[-1]) for name, v in series.items()}
    says = "After the newest snapshot: " + ", ".join(f"{v:,} {n}" for n, v in now.items()) + "."
    if len(states.steps) > MANY:
        says += " Lines are means, areas reach from the least to the most."
    drawn = [drawn_stock(n, states.times_ms, v) for n, v in series.items()]
    title = "Live stocks, snapshot by snapshot"
    return Figure(
        "stocks", title, says, svg.lines("stocks", title, says, drawn, rules=_changes(c)), tuple(series),
        ("from", *series), _table(states.times_ms, list(series.values())),
    )  # fmt: skip


def flows(c: Checkup) -> Figure | None:
    """Files a minute by what made them."""
    import numpy as np

    w = c.case.window
    if len(w.steps) < 3:
        return None
    times = monotonic([s.time_ms for s in w.steps])
    commits = len(data_commits(w.steps))
    # the first commit brought what came before it, and a column of one commit would only show the clock
    begin = times[0] - (times[-1] - times[0]) // max(commits - 1, 1)
    edges = edges_of(np.r_[begin, times], min(48, max(commits // 4, 6)))
    where = _stretch(times, edges)
    minutes = np.diff(np.asarray(edges)) / 60_000
    layers = {
        name: np.bincount(where, weights=v, minlength=len(minutes)) / minutes for name, v in made_by_step(w).items()
    }
    layers = {n: v for n, v in layers.items() if v.any()}
    made = c.case.model.flows
    parts = [f"{brief(made.per_minute(n) or 0)} {n}" for n in ("flush", "rewrite", "changelog", "metadata")]
    says = f"Files made a minute over the whole window: {', '.join(parts)}."
    rows = []
    step = -(-len(minutes) // ROWS)
    for k in range(0, len(minutes), step):
        part = slice(k, min(k + step, len(minutes)))
        cells = [f"{float((v[part] * minutes[part]).sum() / minutes[part].sum()):,.1f}" for v in layers.values()]
        rows.append((svg.moment(edges[k]), *cells))
    title = "Files made a minute"
    drawn = svg.stacked("flows", title, says, edges, list(layers), [v.tolist() for v in layers.values()])
    return Figure("flows", title, says, drawn, tuple(layers), ("from", *layers), tuple(rows))


def made_by_step(w: Window) -> dict[str, Floats]:
    """Files by class for each step."""
    import numpy as np

    ids = np.array([s.id for s in w.steps], np.int64)
    out: dict[str, Floats] = {}
    for name in (FLUSH, REWRITE, CHANGELOG):
        mine = class_is(w.flows, name)
        at = np.searchsorted(ids, ints(w.flows, "snapshot")[mine])
        out[name] = np.bincount(at, weights=ints(w.flows, "files")[mine], minlength=len(ids)).astype(np.float64)
    out["metadata"] = np.array([sum(s.wrote[k].files for k in METADATA if k in s.wrote) for s in w.steps], np.float64)
    return out


def runs(c: Checkup) -> Figure | None:
    """Sorted runs of the worst bucket, with crests and troughs, against trigger and stop."""
    states, limits, m = c.case.states, c.case.limits, c.case.model
    if states is None or limits is None or not limits.primary_key or not m.buckets or m.cycles is None:
        return None
    if len(states.steps) < 2:
        return None
    # of those with as many runs, the one that changed last: an old partition has no rhythm to show
    worst = max(m.buckets, key=lambda b: (b.runs, int(states.moves.at[states.span(b.cycles.bucket)][-1:].sum())))
    at = worst.cycles.bucket
    series = states.series(at, "runs")
    many = len(series) > MANY
    drawn = [svg.Line("sorted runs", *thinned(states.times_ms, series), steps=True, faint=many)]
    for name, crests in (("crests, before compaction", True), ("troughs, after it", False)):
        phase = bucket_phase(states, m.cycles, at, "runs", crests=crests)
        if len(phase.values) and phase.basis != "checkpoint ends":
            first = float(states.times_ms[0])
            x = [first + 60_000 * float(v) for v in phase.minutes]
            cut = max(len(x) // 120, 1)
            drawn.append(svg.Line(name, x[::cut], [float(v) for v in phase.values][::cut], dots=True))
    where = _bucket_name(worst.cycles.partition, worst.cycles.number)
    says = (
        f"Bucket {where} holds {worst.runs:,} sorted runs now, and held at most {int(series.max()):,}; compaction "
        f"starts at {limits.compaction_trigger} (trigger), writers wait above {limits.stop_trigger} (stop)."
    )
    # a stop trigger far away would press the line flat
    rules = [svg.Rule(limits.compaction_trigger, f"trigger {limits.compaction_trigger}")]
    if limits.stop_trigger <= 4 * max(int(series.max()), limits.compaction_trigger):
        rules.append(svg.Rule(limits.stop_trigger, f"stop {limits.stop_trigger}"))
    title = f"Sorted runs of the worst bucket ({where})"
    return Figure(
        "runs", title, says, svg.lines("runs", title, says, drawn, rules=rules), tuple(d.name for d in drawn),
        ("from", "sorted runs"), _table(states.times_ms, [series]),
    )  # fmt: skip


def _bucket_name(partition: str, number: int) -> str:
    return f"{partition}/{number}" if partition else str(number)


def cadence(c: Checkup) -> Figure | None:
    """Seconds between commits."""
    import numpy as np

    user = c.case.model.segments.user
    mine = [s for s in data_commits(c.case.window.steps) if s.user == user]
    if len(mine) < 3:
        return None
    gaps = intervals_s(mine)
    known = np.flatnonzero(np.isfinite(gaps))
    if len(known) < 2:
        return None
    times = monotonic([mine[int(i)].time_ms for i in known])
    values = np.asarray(gaps[known], np.float64)
    says = (
        f"A commit every {brief(float(np.median(values)))} s in the middle, {brief(float(values.min()))} to "
        f"{brief(float(values.max()))} s, by '{user}'."
    )
    # one long pause must not hide the rhythm
    top = max(float(np.quantile(values, 0.98)) * 1.5, float(np.median(values)) * 2)
    x, y = thinned(times, np.minimum(values, top))
    title = "Seconds between two commits"
    return Figure(
        "cadence", title, says, svg.lines("cadence", title, says, [svg.Line("seconds", x, y)], rules=_changes(c)),
        ("seconds",), ("from", "seconds"), _table(times, [values]),
    )  # fmt: skip


def factors(c: Checkup) -> Figure | None:
    """What the last change of new files a minute is made of."""
    change = c.case.model.change
    if change is None or not change.difference:
        return None
    whole = Factor("new files a minute", change.a, change.b, change.difference)
    rows = [(f.name, f.part, f"{signed(f.part)}  ({_ratio(f)})") for f in (*change.factors, whole)]
    went = f"New files a minute went from {brief(change.b)} to {brief(change.a)}"
    says = f"{went}: {change}. The parts add up to the change."
    title = "What the change of new files a minute is made of"
    table = [
        (f.name, number_text(f.b), number_text(f.a), _ratio(f), f"{signed(f.part)}") for f in (*change.factors, whole)
    ]
    return Figure(
        "factors", title, says, svg.bars("factors", title, says, rows), (),
        ("factor", "before", "after", "ratio", "part"), tuple(table),
    )  # fmt: skip


def _ratio(f: Factor) -> str:
    return f"x{brief(f.ratio)}" if f.ratio != float("inf") else "from 0"


def buckets(c: Checkup) -> Figure | None:
    """Runs (files, without a primary key) of the worst buckets over time."""
    import numpy as np

    states, limits, m = c.case.states, c.case.limits, c.case.model
    if states is None or limits is None or len(m.buckets) < 2 or len(states.steps) < 2:
        return None
    column = "runs" if limits.primary_key else "files"
    edges = edges_of(states.times_ms, 60)
    where = _stretch(states.times_ms, edges)
    starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
    shown = [(_bucket_name(b.cycles.partition, b.cycles.number), b.cycles.bucket) for b in m.buckets]
    cells, rows = [], []
    for name, at in shown:
        series = states.series(at, column)
        most = _filled(np.maximum.reduceat(series, starts), where[starts], len(edges) - 1)
        cells.append(most)
        rows.append((name, f"{int(series[-1]):,}", f"{float(series.mean()):,.1f}", f"{int(series.max()):,}"))
    top = float(max(max(r) for r in cells))
    word = "sorted runs" if column == "runs" else "files"
    says = f"The {len(shown)} worst buckets; a cell of full colour holds {top:,.0f} {word}."
    title = f"Most {word} by bucket and time"
    drawn = svg.heat("buckets", title, says, edges, [n for n, _ in shown], cells, top)
    return Figure("buckets", title, says, drawn, (), ("bucket", "now", "mean", "most"), tuple(rows))


def _filled(values: Any, where: Any, count: int) -> list[float]:
    """By stretch; one without a snapshot shows what the one before it had."""
    out: list[float] = []
    known = dict(zip(where.tolist(), values.tolist()))
    for k in range(count):
        out.append(float(known.get(k, out[-1] if out else 0)))
    return out


def holders(c: Checkup) -> Figure | None:
    """Files that only the past holds, by holder."""
    known = [(f"{h.kind} {h.name}".strip(), h.least, h.most) for h in c.case.model.retained.holders]
    rows = [(n, low, high) for n, low, high in known if low is not None and high is not None and high.files]
    if not rows:
        return None
    shown = sorted(rows, key=lambda r: -r[2].files)[:10]
    bars = [
        (n, float(high.files), f"{high.files:,}" if low == high else f"{low.files:,} to {high.files:,}")
        for n, low, high in shown
    ]
    says = f"Held by {shown[0][0]}: {bars[0][2]} files that the newest snapshot no longer has. Holders overlap."
    title = "Dead files and changelogs, by who holds them"
    table = [
        (n, t, f"{low.bytes:,}" if low == high else f"{low.bytes:,} to {high.bytes:,}")
        for (n, low, high), (_, _, t) in zip(shown, bars)
    ]
    return Figure(
        "holders", title, says, svg.bars("holders", title, says, bars), (), ("holder", "files", "bytes"), tuple(table)
    )  # fmt: skip
