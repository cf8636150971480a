# SPDX-License-Identifier: Apache-2.0
"""Everything the doctor counts and computes of one table, as one value: what diagnoses and outputs take.

`model(window)` is a pure function: the same window and the same random generator give the same numbers. `to_dict()` is
a stable contract, versioned; what a window cannot tell is null in it, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.attribution import Attribution, attribute
from shoal.doctor.beside import Seen, just_expired, retained_then
from shoal.doctor.cycles import BucketCycles, Cycles, Phase, bucket_phase, cycles, of_bucket
from shoal.doctor.debt import TOP, Debt, Limits, debt, replay
from shoal.doctor.forecast import Prices, Requests, Stall, Steady, requests, stall, steady
from shoal.doctor.segments import Segments, segments
from shoal.doctor.slope import FEWEST, Slope, theil_sen
from shoal.doctor.states import States
from shoal.doctor.stocks import (
    ExcessFiles,
    Flows,
    MergeDebt,
    MetadataDebt,
    Parts,
    RetainedDebt,
    Sustainability,
    excess_files,
    excess_parts,
    flows_of,
    live_parts,
    merge_debt,
    merge_parts,
    metadata_debt,
    retained_debt,
    sustainability,
)
from shoal.doctor.window import NOTHING, Window

if TYPE_CHECKING:
    import numpy as np

VERSION = 1


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of one stock at equal phase. Rising: by more than a file a cycle of `cycle_minutes`, in each bucket."""

    slope: Slope | None
    basis: str  # "troughs", "crests", "checkpoint ends", "after expiry", "looks", "after merges"
    cycle_minutes: float | None
    buckets: int  # that the stock is a sum over
    provisional: bool

    @property
    def rising(self) -> bool:
        if self.slope is None or self.cycle_minutes is None:
            return False
        return self.slope.rising(self.cycle_minutes, self.buckets)

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "slope": None if self.slope is None else self.slope.to_dict(), "basis": self.basis,
            "cycle_minutes": self.cycle_minutes, "buckets": self.buckets, "rising": self.rising,
            "provisional": self.provisional,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BucketModel:
    """One of the worst buckets: its rhythm, where its runs go, and when its writer must wait."""

    cycles: BucketCycles
    runs: int
    level0: int
    files: int
    bytes: int
    troughs: Trend
    crests: Trend
    stall: Stall | None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            **self.cycles.to_dict(), "runs": self.runs, "level0": self.level0, "files": self.files,
            "bytes": self.bytes, "troughs": self.troughs.to_dict(), "crests": self.crests.to_dict(),
            "stall": None if self.stall is None else self.stall.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """The debt of one table over one window: counts, stocks, flows, rhythm, trends, changes, forecasts."""

    table: str
    name: str
    debt: Debt
    merge: MergeDebt | None  # None for a table without a primary key, and where the state is not known
    excess: ExcessFiles | None
    retained: RetainedDebt
    metadata: MetadataDebt | None
    flows: Flows
    sustainability: Sustainability | None
    cycles: Cycles | None
    # live_files, excess_files, merge_debt (troughs), crests (of merge debt), manifests, retained_files (over looks)
    trends: Mapping[str, Trend]
    buckets: tuple[BucketModel, ...]
    segments: Segments
    change: Attribution | None  # of flushed files a minute, the last segment against the one before it
    requests: Requests | None
    steady: Steady | None

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """Buckets whose writer waits, or will at this rate, the soonest first."""
        found = [b.stall for b in self.buckets if b.stall is not None and b.stall.minutes.value is not None]
        return tuple(sorted(found, key=lambda s: s.minutes.value or 0.0))

    def to_dict(self) -> dict[str, Any]:  # JSON
        def or_none(value: Any) -> Any:  # any of the values above
            return None if value is None else value.to_dict()

        return {
            "version": VERSION,
            "table": self.table,
            "name": self.name,
            "debt": self.debt.to_dict(),
            "stocks": {
                "merge": or_none(self.merge), "excess": or_none(self.excess), "retained": self.retained.to_dict(),
                "metadata": or_none(self.metadata),
            },
            "flows": self.flows.to_dict(),
            "sustainability": or_none(self.sustainability),
            "cycles": or_none(self.cycles),
            "trends": {name: t.to_dict() for name, t in self.trends.items()},
            "buckets": [b.to_dict() for b in self.buckets],
            "segments": self.segments.to_dict(),
            "change": or_none(self.change),
            "requests": or_none(self.requests),
            "steady": or_none(self.steady),
        }  # fmt: skip


def model(
    window: Window, *, prices: Prices | None = None, rng: np.random.Generator | None = None, looks: Sequence[Seen] = ()
) -> Model:
    """Compute everything; without a generator the random pairs of long series are the same each time.

    `looks` are earlier ones at the table: what retained snapshots held then, and so the slope of retained debt.
    """
    import numpy as np

    rng = np.random.default_rng(0) if rng is None else rng
    limits = None if window.schema is None else Limits.of(window.schema)
    replayed = replay(window, limits)
    counts = debt(window, replayed)
    found = None if replayed is None or limits is None else cycles(replayed, limits)
    cut = segments(window)
    live = NOTHING if counts.live is None else counts.live.data
    merge = excess = rho = None
    trends: dict[str, Trend] = {}
    buckets: tuple[BucketModel, ...] = ()
    if replayed is not None and limits is not None and found is not None and replayed.steps:
        merge = merge_debt(replayed, limits) if limits.primary_key else None
        excess = excess_files(replayed, limits)
        rho = sustainability(replayed, limits, found)
        cycle = found.minutes or _cycle_minutes(counts, limits)
        trends = _trends(replayed, limits, found, cycle, rng)
        buckets = _worst(replayed, limits, found, cycle, rng)
        active = max(found.active_buckets, 1)
        trends |= {
            "manifests": _manifests(window, cycle, rng),
            "retained_files": _retained(window, looks, cycle, rng, active),
        }
    known = counts.buckets.count if counts.buckets is not None else 0
    return Model(
        window.table, window.name, counts, merge, excess, retained_debt(window, replayed, complete=counts.complete),
        metadata_debt(window), flows_of(window), rho, found, trends, buckets, cut, _change(window, cut),
        requests(window, prices), None if counts.live is None else steady(window, live, known, prices),
    )  # fmt: skip


def _cycle_minutes(counts: Debt, limits: Limits) -> float | None:
    """Where nothing drains, a cycle is the time that a healthy bucket would take to be compacted."""
    rate = counts.commits_per_minute
    enough = limits.compaction_trigger if limits.primary_key else limits.min_file_num
    return enough / rate if rate else None


def _trends(
    states: States, limits: Limits, found: Cycles, cycle: float | None, rng: np.random.Generator
) -> dict[str, Trend]:
    def trend(parts: Parts, *, crests: bool = False) -> Trend:
        phase = parts.phase(states, found, crests=crests)
        return _of_phase(phase, found, cycle, rng, max(found.active_buckets, 1))

    out = {"live_files": trend(live_parts(states)), "excess_files": trend(excess_parts(states, limits))}
    if limits.primary_key:
        merge = merge_parts(states, limits)
        out |= {"merge_debt": trend(merge), "crests": trend(merge, crests=True)}
    return out


def _manifests(window: Window, cycle: float | None, rng: np.random.Generator) -> Trend:
    """Manifests that a read opens, just after commits that merged some: between two merges every commit adds one."""
    import numpy as np

    merged = [s for s in window.steps if s.wrote.get("merged-manifest", NOTHING).files]
    minutes = np.array([s.time_ms for s in merged], np.float64) / 60_000
    slope = theil_sen(minutes, [s.manifests.files for s in merged], rng=rng)
    return Trend(slope, "after merges", cycle, 1, provisional=False)


def _retained(
    window: Window, looks: Sequence[Seen], cycle: float | None, rng: np.random.Generator, buckets: int
) -> Trend:
    """Dead files and changelog on disk over the looks, of those just after expiry where there are enough of these."""
    times, files = retained_then(window, looks)
    expired = just_expired(looks, times)
    basis = "looks"
    if len(expired) >= FEWEST:
        basis, times, files = "after expiry", times[expired], files[expired]
    slope = theil_sen(times / 60_000, files, rng=rng)
    return Trend(slope, basis, cycle, buckets, provisional=basis == "looks" and len(expired) > 0)


def _of_phase(phase: Phase, found: Cycles, cycle: float | None, rng: np.random.Generator, buckets: int = 1) -> Trend:
    return Trend(theil_sen(phase.minutes, phase.values, rng=rng), phase.basis, cycle, buckets, found.provisional)


def _worst(
    states: States, limits: Limits, found: Cycles, cycle: float | None, rng: np.random.Generator
) -> tuple[BucketModel, ...]:
    """The buckets with the most runs, then files, as in the debt's list."""
    import numpy as np

    end = states.end
    worst = np.lexsort((states.number, -end["files"], -end["runs"]))[:TOP]
    name = "runs" if limits.primary_key else "files"
    out = []
    for bucket in (b for b in worst.tolist() if end["files"][b]):
        troughs, crests = (
            _of_phase(bucket_phase(states, found, bucket, name, crests=c), found, cycle, rng) for c in (False, True)
        )
        out.append(
            BucketModel(
                of_bucket(states, limits, found, bucket), int(end["runs"][bucket]), int(end["level0"][bucket]),
                int(end["files"][bucket]), int(end["bytes"][bucket]), troughs, crests,
                stall(states, limits, found, bucket, rng=rng),
            )
        )  # fmt: skip
    return tuple(out)


def _change(window: Window, cut: Segments) -> Attribution | None:
    if len(cut.segments) < 2:
        return None
    before, after = cut.segments[-2:]
    return attribute(window, window, a_span=(after.first, after.last), b_span=(before.first, before.last))
