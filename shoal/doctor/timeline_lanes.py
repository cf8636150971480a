# SPDX-License-Identifier: Apache-2.0
"""The nine lanes of a timeline: what each shows, as points over one axis.

Flows are spread over the time that they were gathered in, up to their snapshot: a checkpoint's files came while rows
came, and bars that are shorter than a checkpoint show no comb. Where runs of buckets are told for a stretch of time,
the crest is the most that any bucket had in it, the trough the most that some bucket had even at its lowest.

Invariants: bars add up to the files of their snapshots, but for what came before the axis begins; long series are
thinned by keeping the least and the most of each stretch, so no crest is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.checkpoints import Joined, bursts, join, writer_of_job, writers_of
from shoal.doctor.cycles import checkpoint_ends
from shoal.doctor.debt import Limits, data_commits, in_tree, replay
from shoal.doctor.segments import intervals_s
from shoal.doctor.states import class_is, ints, monotonic
from shoal.doctor.stocks import due_earliest, merge_parts
from shoal.doctor.timeline import Join, Lane, Point, Series, Tick
from shoal.doctor.timeline_changes import acts_of
from shoal.doctor.window import CHANGELOG, FLUSH, REMOVAL, REWRITE, SnapshotFacts, Window

if TYPE_CHECKING:
    from shoal.doctor.flink import Job
    from shoal.doctor.model import Model
    from shoal.doctor.query_log import Query
    from shoal.doctor.states import Floats, Ints, States

_KEPT = 4  # points of a line for each stretch, above which it is thinned
_PAUSE = 3  # usual intervals, above which nothing was gathered
_AROUND = 10  # intervals on each side that say what is usual
_ROLLED = 100  # checkpoints that a percentile is taken over
_SHORT = 8  # characters of a user's name
_FEW_USERS = 3  # that get rows of their own


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that all lanes share."""

    first_ms: int
    last_ms: int
    bins: int

    @classmethod
    def of(cls, window: Window, job: Job | None, queries: Sequence[Query], bins: int) -> Axis:
        """From the first snapshot, checkpoint or query to the last; the job's life before the table's is left out."""
        times = [s.time_ms for s in window.steps] + [q.at_ms for q in queries]
        if job is not None:
            times += [c.trigger_ms for c in job.checkpoints]
        if not times:
            times = [window.stock.taken_ms]
        first, last = min(times), max(times)
        return cls(first, max(last, first + 1), bins)

    @property
    def bin_ms(self) -> int:
        return max(1, -(-(self.last_ms - self.first_ms) // self.bins))

    @property
    def edges(self) -> Ints:
        import numpy as np

        return self.first_ms + self.bin_ms * np.arange(self.bins + 1, dtype=np.int64)

    def thin(self, times: Any, values: Any) -> tuple[Point, ...]:  # arrays
        """All points, or of each stretch the least and the most in their order."""
        import numpy as np

        t, v = np.asarray(times, np.int64), np.asarray(values, np.float64)
        known = np.isfinite(v)
        t, v = t[known], v[known]
        if len(t) > _KEPT * self.bins:
            bin_of = (t - self.first_ms) // self.bin_ms
            cuts = np.flatnonzero(np.r_[True, bin_of[1:] != bin_of[:-1]])
            kept = {len(t) - 1}
            for a, b in zip(cuts.tolist(), [*cuts[1:].tolist(), len(t)]):
                kept |= {a + int(np.argmin(v[a:b])), a + int(np.argmax(v[a:b]))}
            chosen = sorted(kept)
            t, v = t[chosen], v[chosen]
        return tuple(zip(t.tolist(), v.tolist()))


def lanes_of(window: Window, model: Model, job: Job | None, queries: Sequence[Query], axis: Axis) -> tuple[Lane, ...]:
    """The lanes in the order that they are drawn in."""
    limits = model.debt.limits
    states = replay(window, limits)
    joined = () if job is None else join(window.steps, job)
    return (
        _interval(window, model, job, axis), _commits(window, axis), _flows(window, model, axis),
        _runs(window, states, limits, axis), _stocks(window, states, limits, axis),
        _durations(window, job, joined, axis), _pins(window, axis), _acts(window, axis),
        _queries(window, queries, axis),
    )  # fmt: skip


def join_of(window: Window, job: Job) -> Join:
    """How snapshots and checkpoints fit."""
    import numpy as np

    joined = join(window.steps, job)
    oldest, newest = (job.checkpoints[0].id, job.checkpoints[-1].id) if job.checkpoints else (0, -1)
    told = [j for j in joined if oldest <= j.identifier <= newest]
    late = [j.late_ms for j in told if j.late_ms is not None]
    p50, p99 = (float(np.percentile(late, p)) for p in (50, 99)) if late else (None, None)
    # A checkpoint that was in time is committed at once: the least lateness has no wait in it.
    return Join(
        writer_of_job(writers_of(window.steps), job), len(told), sum(j.checkpoint is not None for j in told),
        sum(bool(j.of_failed) for j in told), job.missed, sum(j.identifier > newest for j in joined), p50, p99,
        float(min(late)) if late else None,
    )  # fmt: skip


# ---- 1, 2: checkpoints and commits -----------------------------------------------------------------------


def _interval(window: Window, model: Model, job: Job | None, axis: Axis) -> Lane:
    """How long each checkpoint was after the one before, and those that failed."""
    user = model.segments.user
    commits = [s for s in data_commits(window.steps) if s.user == user]
    series = [Series("by snapshots", "step", axis.thin([s.time_ms for s in commits], intervals_s(commits)))]
    ticks = [
        Tick(b.time_ms, "burst", f"checkpoints {b.first} to {b.last} committed in one go") for b in bursts(window.steps)
    ]
    note = "" if model.segments.streaming else "no checkpoint clock: commits of batches"
    levels = {}
    if job is not None:
        pairs = [(a, b) for a, b in zip(job.checkpoints, job.checkpoints[1:]) if b.id == a.id + 1]
        times, gaps = [b.trigger_ms for _, b in pairs], [(b.trigger_ms - a.trigger_ms) / 1000 for a, b in pairs]
        series.append(Series("by Flink", "step", axis.thin(times, gaps)))
        ticks = [
            Tick(c.failed_ms or c.trigger_ms, "failed", f"checkpoint {c.id}: {c.failure or 'failed'}")
            for c in job.checkpoints if c.status == "FAILED"
        ] + ticks  # fmt: skip
        if job.config.interval_ms is not None:
            levels["configured"] = job.config.interval_ms / 1000
        notes = [f"{job.missed:,} checkpoints were not seen"] if job.missed else []
        notes += [f"{job.not_begun:,} failed before they began"] if job.not_begun else []
        note = "; ".join([note] * bool(note) + notes)
    return Lane("interval", "checkpoint interval", "s", tuple(series), tuple(ticks), levels, note)


def _commits(window: Window, axis: Axis) -> Lane:
    """Snapshots by kind, and by user where several commit."""
    import numpy as np

    users = [u for u, _ in Counter(s.user for s in window.steps).most_common()]
    named = users if len(users) <= _FEW_USERS else users[: _FEW_USERS - 1]
    groups: dict[tuple[str, str], list[int]] = {}
    for s in window.steps:
        user = "" if len(users) < 2 else s.user if s.user in named else "others"
        groups.setdefault((s.kind, user), []).append(s.time_ms)
    series = []
    for kind, user in sorted(groups, key=lambda g: (g[0], users.index(g[1]) if g[1] in users else len(users))):
        times = np.array(groups[kind, user], np.int64)
        if len(times) > axis.bins:
            counted = np.bincount(np.minimum((times - axis.first_ms) // axis.bin_ms, axis.bins - 1))
            where = np.flatnonzero(counted)
            points = zip((axis.first_ms + where * axis.bin_ms).tolist(), counted[where].astype(float).tolist())
        else:
            points = zip(times.tolist(), [1.0] * len(times))
        series.append(Series(f"{kind} {user[:_SHORT]}".strip(), "ticks", tuple(points)))
    return Lane("commits", "snapshots", "snapshots", tuple(series), note="" if series else "no snapshot yet")


# ---- 3: flows --------------------------------------------------------------------------------------------


def _flows(window: Window, model: Model, axis: Axis) -> Lane:
    """Files made a minute, by class: they stack, because each is an object of its own."""
    series = tuple(Series(name, "bars", _rates(window, name, axis)) for name in (FLUSH, REWRITE, CHANGELOG))
    series = tuple(s for s in series if any(v for _, v in s.points) or s.name != CHANGELOG)
    return Lane(
        "flows",
        "files made a minute",
        "files/min",
        series,
        bin_ms=axis.bin_ms,
        note="" if window.steps else "no snapshot yet",
    )


def _rates(window: Window, name: str, axis: Axis) -> tuple[Point, ...]:
    import numpy as np

    files = per_step(window, name)
    if not len(files):
        return ()
    times = monotonic([s.time_ms for s in window.steps])
    brings = np.array([s.kind not in ("COMPACT", "ANALYZE") for s in window.steps], np.bool_)
    begun = _begun(times, brings)
    # What was made by each time: it grows evenly from where a snapshot's rows began to come to the snapshot.
    edges = axis.edges.astype(np.float64)
    made = np.zeros(len(edges))
    some = np.flatnonzero(files)
    for part in np.array_split(some, max(1, len(some) // 4096)):
        share = (edges[:, None] - begun[part]) / np.maximum(times[part] - begun[part], 1)
        made += (np.clip(share, 0, 1) * files[part]).sum(axis=1)
    per_minute = np.diff(made) * 60_000 / axis.bin_ms
    return tuple(zip((axis.edges[:-1]).tolist(), np.round(per_minute, 6).tolist()))


def _begun(times: Ints, brings: Any) -> Floats:
    """When the rows of each snapshot began to come: at the commit of data before it, but not before a long pause."""
    import numpy as np

    own = times[brings]
    if len(own) < 2:
        return times.astype(np.float64) - 1
    usual = float(np.median(np.diff(own)))
    gaps = np.diff(own)
    padded = np.r_[np.full(_AROUND, np.nan), gaps, np.full(_AROUND, np.nan)]
    around = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1), axis=1)
    length = np.r_[usual, np.minimum(gaps, _PAUSE * np.maximum(around, 1))]
    at = np.maximum(np.cumsum(brings) - 1, 0)  # a COMPACT belongs to the commit of data before it
    return np.asarray(times - np.maximum(length[at], 1) - (times - own[at]), np.float64)


def per_step(window: Window, *classes: str) -> Ints:
    """Files of these classes that each step made."""
    import numpy as np

    ids = np.array([s.id for s in window.steps], np.int64)
    out = np.zeros(len(ids), np.int64)
    mine = class_is(window.flows, *classes)
    np.add.at(out, np.searchsorted(ids, ints(window.flows, "snapshot")[mine]), ints(window.flows, "files")[mine])
    return out


# ---- 4, 5: runs and stocks -------------------------------------------------------------------------------

_UNKNOWN = "the live files before the first snapshot could not be read"


def _runs(window: Window, states: States | None, limits: Limits | None, axis: Axis) -> Lane:
    """Crests and troughs of the worst bucket against the trigger and the stop."""
    name, title = "runs", "sorted runs, worst bucket"
    if limits is not None and not limits.primary_key:
        return Lane(name, title, "runs", note="no primary key: files are not merged while reading")
    if states is None or limits is None or not states.steps:
        return Lane(name, title, "runs", note=_UNKNOWN if window.steps else "no snapshot yet")
    crest, trough = _crests(states, in_tree(states, limits), axis)
    levels = {"trigger": float(limits.compaction_trigger), "stop": float(limits.stop_trigger)}
    return Lane(name, title, "runs", (Series("crest", "step", crest), Series("trough", "step", trough)), levels=levels)


def _crests(states: States, treed: Any, axis: Axis) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """For each stretch the most that a bucket had, and the most that a bucket had at its lowest."""
    import numpy as np

    moves = states.moves
    if not len(moves):
        return (), ()
    order = np.argsort(moves.at, kind="stable")
    bucket, after = moves.bucket[order], moves.after["runs"][order]
    bin_of = np.minimum((states.times_ms[moves.at[order]] - axis.first_ms) // axis.bin_ms, axis.bins - 1)
    now = np.where(treed, states.start["runs"], 0)
    first, last = (int((states.times_ms[i] - axis.first_ms) // axis.bin_ms) for i in (0, -1))
    crest, trough = [], []
    for number in range(first, min(last, axis.bins - 1) + 1):
        a, b = np.searchsorted(bin_of, [number, number + 1])
        mine = treed[bucket[a:b]]
        who, what = bucket[a:b][mine], after[a:b][mine]
        low, high = now.copy(), now.copy()
        np.minimum.at(low, who, what)
        np.maximum.at(high, who, what)
        now[who] = what  # the last of each bucket stays: rows are in order
        at = axis.first_ms + number * axis.bin_ms
        crest.append((at, float(high.max(initial=0))))
        trough.append((at, float(low.max(initial=0))))
    return tuple(crest), tuple(trough)


def _stocks(window: Window, states: States | None, limits: Limits | None, axis: Axis) -> Lane:
    """Live files after each snapshot, runs to merge, and what lies dead on disk today by when it died."""
    import numpy as np

    if not window.steps:
        return Lane("stocks", "files", "files", note="no snapshot yet")
    times = [s.time_ms for s in window.steps]
    series = [Series("live", "step", axis.thin(times, [s.live_files for s in window.steps]))]
    earliest = window.stock.earliest
    ids = np.array([s.id for s in window.steps], np.int64)
    if earliest is not None and ids[-1] >= earliest:
        here = ids >= earliest
        dead = per_step(window, REMOVAL) * (ids > earliest) + per_step(window, CHANGELOG) * here
        series.append(Series("retained", "step", axis.thin(np.array(times)[here], np.cumsum(dead)[here])))
    if states is not None and limits is not None and limits.primary_key and states.steps:
        ends = checkpoint_ends(states)
        series.append(
            Series(
                "runs to merge",
                "step",
                axis.thin(np.array(times)[ends], merge_parts(states, limits).series(states)[ends]),
            )
        )
    note = "retained: dead data files and changelog that are still on disk, by when they came"
    return Lane("stocks", "files", "files", tuple(series), note=note)


# ---- 6: durations ----------------------------------------------------------------------------------------


def _durations(window: Window, job: Job | None, joined: Sequence[Joined], axis: Axis) -> Lane:
    """How long checkpoints took, how late snapshots came after them, how late compaction came after its flush."""
    series, levels = [], {}
    if job is not None:
        done = [c for c in job.checkpoints if c.duration_ms is not None and c.status == "COMPLETED"]
        series += _with_p99("checkpoint", [c.trigger_ms for c in done], [c.duration_ms or 0 for c in done], axis)
        late = [(j.time_ms, j.late_ms) for j in joined if j.late_ms is not None]
        series += _with_p99("ack to commit", [t for t, _ in late], [v for _, v in late], axis)
        told = job.metric("commitDuration_p99", window.name.rpartition(".")[2] or None)
        if told:
            levels["commit p99, Flink's metric"] = max(told)
    after = _compaction_late(window.steps)
    if after:
        series += _with_p99("compact late", [t for t, _ in after], [v for _, v in after], axis)
    note = "" if job is not None else "how long checkpoints and commits took is known to Flink alone: --flink"
    return Lane("durations", "durations", "ms", tuple(s for s in series if s.points), levels=levels, note=note)


def _with_p99(name: str, times: Sequence[int], values: Sequence[float], axis: Axis) -> list[Series]:
    import numpy as np

    if not values:
        return []
    padded = np.r_[np.full(_ROLLED - 1, np.nan), np.array(values, np.float64)]
    rolled = np.nanpercentile(np.lib.stride_tricks.sliding_window_view(padded, _ROLLED), 99, axis=1, method="higher")
    return [Series(name, "dots", axis.thin(times, values)), Series(f"{name} p99", "line", axis.thin(times, rolled))]


def _compaction_late(steps: Sequence[SnapshotFacts]) -> list[tuple[int, float]]:
    """How long each COMPACT came after the snapshot of data of the same user and identifier."""
    brought: dict[tuple[str, int], int] = {}
    out = []
    for s in steps:
        if s.kind == "APPEND":
            brought[s.user, s.identifier] = s.time_ms
        elif s.kind == "COMPACT" and (at := brought.get((s.user, s.identifier))) is not None:
            out.append((s.time_ms, float(s.time_ms - at)))
    return out


# ---- 7, 8, 9: pins, acts, queries ------------------------------------------------------------------------


def _pins(window: Window, axis: Axis) -> Lane:
    """Where the table begins today, where it would by its options, and who holds what, at the time of the snapshot."""
    times = {s.id: s.time_ms for s in window.steps}
    ticks = []

    def pin(snapshot: int, kind: str, label: str, instead: int | None = None) -> None:
        at = times.get(snapshot, instead)
        old = " (before this window)" if at is None or at < axis.first_ms else ""
        at = axis.first_ms if at is None else min(max(at, axis.first_ms), axis.last_ms)
        ticks.append(Tick(at, kind, f"{label}{old}"))

    earliest = window.stock.earliest
    if earliest is not None and window.steps:
        pin(earliest, "earliest", f"earliest snapshot {earliest}")
        due = due_earliest(window) if window.steps[-1].id >= earliest else earliest
        if due != earliest:
            pin(due, "due", f"snapshot {due} would be the earliest by the options")
    for h in window.stock.holders:
        what = "next reads" if h.kind == "consumer" else "holds"
        pin(h.snapshot, h.kind, f"{h.kind} {h.name} {what} {h.snapshot}".replace("  ", " "), h.time_ms)
    return Lane(
        "pins", "expiry and pins", "", ticks=tuple(ticks),
        note="" if ticks else "no snapshot yet" if not window.steps else "nothing holds a snapshot",
    )  # fmt: skip


def _acts(window: Window, axis: Axis) -> Lane:
    """Changes of schema, options and buckets, restarts, and what the doctor met."""
    ticks = tuple(Tick(c.at_ms, c.kind, c.says) for c in acts_of(window, axis))
    return Lane("acts", "schema, buckets, restarts", "", ticks=ticks, note="" if ticks else "none in this time")


def _queries(window: Window, queries: Sequence[Query], axis: Axis) -> Lane:
    """Timed queries, and what a read of each snapshot would have opened."""
    ends = [s for s, after in zip(window.steps, [*window.steps[1:], None]) if after is None or after.kind != "COMPACT"]
    plan = Series("files per plan", "step", axis.thin([s.time_ms for s in ends], [s.live_files for s in ends]))
    series = [plan] if ends else []
    times = [q.at_ms for q in queries]
    if queries:
        series.append(Series("query ms", "dots", axis.thin(times, [q.duration_ms for q in queries])))
        read = [(q.at_ms, q.files) for q in queries if q.files is not None]
        if read:
            series.append(Series("query files", "dots", axis.thin([t for t, _ in read], [f for _, f in read])))
    note = "" if queries else "files per plan: what a read of the whole snapshot opens; --query-log adds real queries"
    return Lane("queries", "reads", "files", tuple(series), note=note)
