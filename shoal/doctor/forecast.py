# SPDX-License-Identifier: Apache-2.0
"""What will happen if nothing changes: stalls, planning time, requests and their price, storage, objects.

Each forecast has an interval and says in words what it assumes. Rates keep on as in the window; prices, file-block
sizes and planning times are values that the caller gives.

Invariants: no forecast without the numbers it needs (None instead); a writer that already waits is called stalled, not
forecast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.cycles import Cycles, bucket_phase
from shoal.doctor.debt import Limits, data_commits, in_tree
from shoal.doctor.slope import theil_sen
from shoal.doctor.states import States, class_is, ints
from shoal.doctor.stocks import retention
from shoal.doctor.window import CHANGELOG, FLUSH, METADATA, NOTHING, REMOVAL, REWRITE, Count, Window

if TYPE_CHECKING:
    import numpy as np

DAY_MINUTES, MONTH_DAYS = 1440.0, 30.4375
_LATE, _STALLED = 10, 5  # commits of a bucket that are looked at, and of these that must have waited
_CHUNKS, _CHUNK = 10, 5  # stretches that an interval of a rate is told from, and commits that each needs
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval; a bound that is not known, or not finite, is None."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Interval:
        return Interval(*(None if v is None else v * factor for v in (self.value, self.low, self.high)))

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Stall:
    """When a bucket has more runs than writers wait for."""

    partition: str
    bucket: int
    runs: int
    crest: float
    stop_trigger: int
    stalled: bool
    minutes: Interval  # from the end of the window; value None: not at this rate
    assumption: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "partition": self.partition, "bucket": self.bucket, "runs": self.runs, "crest": self.crest,
            "stop_trigger": self.stop_trigger, "stalled": self.stalled, "minutes": self.minutes.to_dict(),
            "assumption": self.assumption,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """One reading of a table's metadata, and how long it took."""

    manifest_bytes: int
    entries: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Planning:
    """Seconds of planning = fixed + per byte of manifests + per entry; and the days until it takes too long."""

    fixed: float
    per_byte: float
    per_entry: float
    now: Interval
    days: Interval  # until `limit_s`
    limit_s: float
    assumption: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "fixed": self.fixed, "per_byte": self.per_byte, "per_entry": self.per_entry, "now": self.now.to_dict(),
            "days": self.days.to_dict(), "limit_s": self.limit_s, "assumption": self.assumption,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """What an object store asks: for a thousand requests, and for a gigabyte and month."""

    put_per_1000: float = 0.0
    get_per_1000: float = 0.0
    delete_per_1000: float = 0.0
    gigabyte_month: float = 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Objects created a day, what they cost, and how many it takes a commit."""

    per_commit: float
    puts_per_day: Interval
    deletes_per_day: Interval  # what is made is deleted one day
    cost_per_day: Interval | None  # None without prices
    assumption: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "per_commit": self.per_commit, "puts_per_day": self.puts_per_day.to_dict(),
            "deletes_per_day": self.deletes_per_day.to_dict(),
            "cost_per_day": None if self.cost_per_day is None else self.cost_per_day.to_dict(),
            "assumption": self.assumption,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Steady:
    """What lies in the folder once expiry deletes as fast as commits make: rate x retention (Little's law)."""

    snapshots: Interval
    dead_files: Interval
    dead_bytes: Interval
    changelog_files: Interval
    changelog_bytes: Interval
    metadata_files: Interval
    objects: Interval  # these, and the live files
    namenode_objects: Interval  # a file and its blocks each, and bucket folders
    storage_gb: Interval
    cost_per_month: Interval | None
    assumption: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        names = (
            "snapshots", "dead_files", "dead_bytes", "changelog_files", "changelog_bytes", "metadata_files", "objects",
            "namenode_objects", "storage_gb",
        )  # fmt: skip
        cost = None if self.cost_per_month is None else self.cost_per_month.to_dict()
        return {
            **{n: getattr(self, n).to_dict() for n in names}, "cost_per_month": cost, "assumption": self.assumption
        }  # fmt: skip


# ---- stalls ----------------------------------------------------------------------------------------------


def stall(states: States, limits: Limits, found: Cycles, bucket: int, *, rng: np.random.Generator) -> Stall | None:
    """When the crests of one bucket reach the runs that writers wait for; None for what is no merge tree."""
    if not in_tree(states, limits)[bucket]:
        return None
    p = limits.stop_trigger
    runs = states.series(bucket, "runs")
    now = int(runs[-1]) if len(runs) else int(states.start["runs"][bucket])
    crests = bucket_phase(states, found, bucket, "runs", crests=True)
    crest = float(max(crests.values[-1], now)) if len(crests.values) else float(now)
    name = states.partitions[int(states.partition_of[bucket])].rstrip("/")
    number = int(states.number[bucket])
    if limits.write_only:
        why = "a write-only writer never waits: readers open all runs"
        return Stall(name, number, now, crest, p, False, Interval(None), why)
    if _waits(states, bucket, p):
        why = f"runs stay at {p + 1} to {p + 2}: the writer already waits for compaction"
        return Stall(name, number, now, crest, p, True, Interval(0.0, 0.0, 0.0), why)
    slope = theil_sen(crests.minutes, crests.values, rng=rng)
    why = f"the crests ({crests.basis}) go on as they went in this window"
    if slope is None or slope.value <= 0:
        return Stall(
            name,
            number,
            now,
            crest,
            p,
            False,
            Interval(None, _until(p - crest, None if slope is None else slope.high)),
            why,
        )
    eta = Interval(_until(p - crest, slope.value), _until(p - crest, slope.high), _until(p - crest, slope.low))
    return Stall(name, number, now, crest, p, False, eta, why)


def _until(missing: float, per_minute: float | None) -> float | None:
    return max(missing, 0.0) / per_minute if per_minute is not None and per_minute > 0 else None


def _waits(states: States, bucket: int, p: int) -> bool:
    """Whether the bucket's last commits of data found it where its writer waits: p+1 or p+2 runs, never more."""
    import numpy as np

    brings = np.array([s.kind not in ("COMPACT", "ANALYZE") for s in states.steps], np.bool_)
    span = states.span(bucket)
    mine = brings[states.moves.at[span]] & (states.moves.done["flush"][span] > 0)
    late = states.moves.after["runs"][span][mine][-_LATE:]
    return len(late) >= _STALLED and int((late > p).sum()) >= max(_STALLED, len(late) // 2) and int(late.max()) <= p + 2


# ---- planning --------------------------------------------------------------------------------------------


def planning(
    plans: Sequence[Plan], *, manifest_bytes: int, entries: int, bytes_per_day: float, entries_per_day: float,
    limit_s: float,
) -> Planning | None:  # fmt: skip
    """Fit planning time on readings, none of its parts below 0; None for fewer than three."""
    import numpy as np

    if len(plans) < 3:
        return None
    x = np.array([[1.0, p.manifest_bytes, p.entries] for p in plans])
    y = np.array([p.seconds for p in plans])
    fit = _not_negative(x, y)
    now = float(fit @ np.array([1.0, manifest_bytes, entries]))
    spread = _Z * math.sqrt(float(((x @ fit - y) ** 2).sum()) / max(len(plans) - 1, 1))
    growth = float(fit[1]) * bytes_per_day + float(fit[2]) * entries_per_day
    until = Interval(*(_days(limit_s - now - d, growth) for d in (0.0, spread, -spread)))
    why = f"manifests go on growing by {bytes_per_day:,.0f} bytes and {entries_per_day:,.0f} entries a day"
    return Planning(
        float(fit[0]), float(fit[1]), float(fit[2]), Interval(now, max(now - spread, 0.0), now + spread), until,
        limit_s, why,
    )  # fmt: skip


def _days(missing: float, per_day: float) -> float | None:
    if missing <= 0:
        return 0.0
    return missing / per_day if per_day > 0 else None


def _not_negative(x: Any, y: Any) -> Any:  # arrays of floats
    """Least squares over non-negative coefficients: three of them, so every set of zeros is tried."""
    import numpy as np

    best, least = np.zeros(x.shape[1]), math.inf
    scale = np.maximum(np.abs(x).max(axis=0), 1e-300)
    for chosen in range(1, 1 << x.shape[1]):
        columns = [i for i in range(x.shape[1]) if chosen >> i & 1]
        found, *_ = np.linalg.lstsq(x[:, columns] / scale[columns], y, rcond=None)
        if (found < 0).any():
            continue
        full = np.zeros(x.shape[1])
        full[columns] = found / scale[columns]
        error = float(((x @ full - y) ** 2).sum())
        if error < least * (1 - 1e-9) - 1e-30:
            best, least = full, error
    return best


# ---- rates and what follows from them --------------------------------------------------------------------


def rate(times_ms: Sequence[int], counts: Sequence[float]) -> Interval | None:
    """What commits bring a minute, with the interval that ten stretches of the window tell; None without length."""
    import numpy as np

    n = len(times_ms)
    if n < 2 or max(times_ms) <= times_ms[0]:
        return None
    times = np.maximum.accumulate(np.array(times_ms, np.float64)) / 60_000
    values = np.array(counts, np.float64)
    # Commit i brings what came since commit i - 1; the first one stands for one mean interval.
    whole = float(values.sum() / ((times[-1] - times[0]) * n / (n - 1)))
    chunks = min(_CHUNKS, (n - 1) // _CHUNK)
    if chunks < 2:
        return Interval(whole)
    edges = np.linspace(0, n - 1, chunks + 1).round().astype(int)
    sums = np.add.reduceat(values[1:], edges[:-1])
    lengths = times[edges[1:]] - times[edges[:-1]]
    if (lengths <= 0).any():
        return Interval(whole)
    half = float(_Z * (sums / lengths).std(ddof=1) / math.sqrt(chunks))
    return Interval(whole, max(whole - half, 0.0), whole + half)


def _per_commit(window: Window, weight: Any) -> tuple[list[int], list[float]]:
    """Times of the commits of data, and what each brought with the COMPACT snapshots after it."""
    times: list[int] = []
    values: list[float] = []
    for step, value in zip(window.steps, weight):
        if step.kind not in ("COMPACT", "ANALYZE"):
            times.append(step.time_ms)
            values.append(float(value))
        elif values:
            values[-1] += float(value)
    return times, values


def _by_step(window: Window, classes: Sequence[str], column: str) -> Any:  # an array of floats
    """A column of the flows of some classes, none of them an upgrade, summed by step."""
    import numpy as np

    ids = np.array([s.id for s in window.steps], np.int64)
    flows = window.flows
    mine = class_is(flows, *classes)
    at = np.searchsorted(ids, ints(flows, "snapshot")[mine])
    return np.bincount(at, ints(flows, column)[mine], len(ids))


def requests(window: Window, prices: Prices | None = None) -> Requests | None:
    """Objects that a day of this rhythm creates: data, changelog, metadata, and one LATEST hint a snapshot."""
    import numpy as np

    commits = data_commits(window.steps)
    if not commits:
        return None
    made = _by_step(window, (FLUSH, REWRITE, CHANGELOG), "files") + _by_step(
        window, (FLUSH, REWRITE, CHANGELOG), "extras"
    )
    metadata = np.array([sum(s.wrote.get(k, NOTHING).files for k in METADATA) for s in window.steps], np.float64)
    puts = rate(*_per_commit(window, made + metadata + 1))
    deletes = rate(*_per_commit(window, made + metadata))
    if puts is None or deletes is None:
        return None
    total = float((made + metadata + 1).sum())
    cost = None
    if prices is not None:
        put, delete = prices.put_per_1000 / 1000 * DAY_MINUTES, prices.delete_per_1000 / 1000 * DAY_MINUTES
        cost = _added(puts.times(put), deletes.times(delete))
    why = "commits go on at this rate; reads and listings are not counted; each object is put and deleted once"
    return Requests(
        total / len(commits), puts.times(DAY_MINUTES), deletes.times(DAY_MINUTES), cost, why
    )  # fmt: skip


def _added(*parts: Interval) -> Interval:
    def of(name: str) -> float | None:
        found = [getattr(p, name) for p in parts]
        return None if any(v is None for v in found) else float(sum(found))

    return Interval(of("value"), of("low"), of("high"))


def steady(window: Window, live: Count, buckets: int, prices: Prices | None = None) -> Steady | None:
    """The stocks of the past once they no longer grow, by Little's law."""
    import numpy as np

    keep = retention(window)
    per_minute = rate(*_per_commit(window, np.ones(len(window.steps))))
    if per_minute is None or per_minute.value is None:
        return None

    def stays(own: Any) -> float:
        """Minutes that a snapshot stays: its time, but at least `least` and at most `most` snapshots."""
        assert per_minute is not None and per_minute.value is not None
        return max(min(own.time_ms / 60_000, own.most / per_minute.value), own.least / per_minute.value)

    minutes = stays(keep.snapshots)
    logs = stays(keep.changelogs) if keep.decoupled else minutes

    def stock(weights: Any, length: float) -> Interval:
        found = rate(*_per_commit(window, weights))
        return Interval(None) if found is None else found.times(length)

    metadata = np.array([sum(s.wrote.get(k, NOTHING).files for k in METADATA) for s in window.steps], np.float64)
    metadata_bytes = np.array([sum(s.wrote.get(k, NOTHING).bytes for k in METADATA) for s in window.steps], np.float64)
    dead, dead_bytes = (stock(_by_step(window, (REMOVAL,), c), minutes) for c in ("files", "bytes"))
    told, told_bytes = (stock(_by_step(window, (CHANGELOG,), c), logs) for c in ("files", "bytes"))
    records = stock(metadata, minutes)
    alive = Interval(float(live.files), float(live.files), float(live.files))
    objects = _added(dead, told, records, alive)
    namenode = _added(objects.times(2), Interval(float(buckets), float(buckets), float(buckets)))
    held = Interval(float(live.bytes), float(live.bytes), float(live.bytes))
    storage = _added(dead_bytes, told_bytes, stock(metadata_bytes, minutes), held).times(1e-9)
    cost = None if prices is None else storage.times(prices.gigabyte_month)
    why = (
        f"snapshots stay {minutes:,.0f} minutes and changelogs {logs:,.0f}, expiry keeps up, nothing else holds them, "
        "and live files stay as many"
    )
    return Steady(
        per_minute.times(minutes), dead, dead_bytes, told, told_bytes, records, objects, namenode, storage, cost, why
    )
