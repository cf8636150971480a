# SPDX-License-Identifier: Apache-2.0
"""Tables with one planted cause, or with none, lived through in numbers: writer, compaction, expiry, but no bytes.

A `Life` says what a table is and what happens to it, `live(life)` is the window that a doctor would see at its end.
What is simulated is what Java does, in its order: at a checkpoint each bucket with rows flushes a file; a compaction
that is done enters that commit as a COMPACT snapshot; universal compaction picks anew; expiry deletes. `written(life)`
makes the same table with shoal's own writer, for the few tests that can wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.doctor.window import (
    Count,
    Holder,
    IndexFacts,
    SchemaFacts,
    SnapshotFacts,
    Stock,
    Window,
    advance,
    flow_fields,
    state_fields,
)
from shoal.lsm.pick import choose_runs, policy_of

START_MS = 1_767_225_600_000  # 2026-01-01
BATCH = 2**63 - 1
# Bytes of an empty file, and of a row, by format.
FORMATS = {"avro": (520, 42.0), "parquet": (1900, 30.0), "orc": (900, 26.0)}


@dataclass(frozen=True)
class Phase:
    """Some commits of one clock. `rate` of rows a second; `pause_s` passes before the first of them."""

    commits: int
    interval_s: float
    rate: float | None = None
    pause_s: float = 0.0


@dataclass(frozen=True)
class Life:
    """One table. Options are the table's; those that say how it is compacted and expired are obeyed."""

    phases: tuple[Phase, ...]
    buckets: int = 4
    rate: float = 100.0
    keys: int = 50_000
    format: str = "avro"
    options: Mapping[str, str] = field(default_factory=dict)
    primary_key: bool = True
    seed: int = 0
    hot: float = 0.0  # share of the rows that goes to bucket 1 on top of its own
    partitions: Callable[[float], str] | None = None  # by seconds of event time
    late: float = 0.0  # share of the rows that belongs to earlier days
    late_days: int = 7
    spread: tuple[str, ...] = ()  # partitions that rows spread over, by falling shares
    slowness: int = 0  # checkpoints that a compaction takes longer than one
    compactor_every: int = 0  # commits between the runs of a compacting user
    compactor_dies_after: int = 0  # commits
    expires: bool = True
    consumer_at: int = 0  # the commit after which a consumer stops moving
    consumer: str | None = None  # one that always follows
    batch: bool = False  # commits are batch jobs

    def option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))

    @property
    def write_only(self) -> bool:
        return self.options.get("write-only") == "true"


@dataclass
class _Run:
    level: int
    rows: float
    size: int

    @property
    def files(self) -> tuple[_Run, ...]:
        return (self,)


@dataclass
class _Bucket:
    partition: str
    number: int
    runs: list[_Run] = field(default_factory=list)  # newest first
    sequence: int = 0
    busy: int = 0  # checkpoints until the picked runs are merged
    picked: int = 0  # how many runs these are
    older: int = 0  # how many lie behind them
    output: int = 0
    done: bool = False


class _Life:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.rng = np.random.default_rng(life.seed)
        self.buckets: dict[tuple[str, int], _Bucket] = {}
        self.steps: list[SnapshotFacts] = []
        self.rows: list[tuple[object, ...]] = []
        self.live = 0
        self.earliest = 1
        self.now = 0.0
        self.event = 0.0
        self.consumer: int | None = None
        self.trigger = life.option("num-sorted-run.compaction-trigger", 5)
        self.stop = max(self.trigger, life.option("num-sorted-run.stop-trigger", self.trigger + 3))
        self.top = life.option("num-levels", self.trigger + 1) - 1
        self.target = _size(life.options.get("target-file-size", "128 mb" if life.primary_key else "256 mb"))
        self.policy = policy_of(trigger=self.trigger, stop_trigger=self.stop, num_levels=self.top + 1)
        self.producer = life.options.get("changelog-producer", "none")

    # ---- what a file holds

    def held(self, arrivals: float) -> float:
        """Rows that are left of arrivals in one bucket."""
        if not self.life.primary_key:
            return arrivals
        keys = self.life.keys / max(self.life.buckets, 1)
        return keys * (1 - math.exp(-arrivals / keys))

    def size(self, rows: float) -> int:
        fixed, each = FORMATS[self.life.format]
        return int(fixed + each * rows)

    # ---- commits

    def flow(self, name: str, change: int, bucket: _Bucket, level: int, size: int, rows: float, seq: object) -> None:
        low, high = seq if isinstance(seq, tuple) else (None, None)
        small = int(size < 0.7 * self.target)
        self.rows.append(
            (len(self.steps) + 1, name, change, bucket.partition, bucket.number, max(self.life.buckets, 1), level, 1, size,
             int(rows), 0, low, high, 0, size, small)
        )  # fmt: skip
        if name != "changelog":
            self.live += change

    def snapshot(self, kind: str, identifier: int, user: str, changelog: bool = False) -> None:
        wrote = {n: Count(1, 900) for n in ("base-list", "delta-list", "delta-manifest", "snapshot")}
        if changelog:
            wrote |= {n: Count(1, 900) for n in ("changelog-list", "changelog-manifest")}
        number = len(self.steps) + 1
        at = START_MS + round(self.now * 1000) + (20 if kind == "COMPACT" else 0)
        entries = max(self.live, 1)
        self.steps.append(
            SnapshotFacts(
                number,
                0,
                user,
                identifier,
                kind,
                at,
                None,
                None,
                None,
                None,
                None,
                (f"b{number}", f"d{number}"),
                wrote,
                Count(3, 3000),
                entries,
                0,
                self.live,
                True,
            )
        )

    def run(self) -> Window:
        life, number = self.life, 0
        for phase in life.phases:
            self.now += phase.pause_s
            for _ in range(phase.commits):
                number += 1
                jitter = float(self.rng.normal(0, 0.01)) * phase.interval_s
                self.now += max(phase.interval_s + jitter, phase.interval_s / 2)
                self.event += phase.interval_s
                self.checkpoint(number, phase)
        return self.window()

    def checkpoint(self, number: int, phase: Phase) -> None:
        life = self.life
        rate = life.rate if phase.rate is None else phase.rate
        identifier = BATCH if life.batch else number
        arrivals = self.arrivals(int(self.rng.poisson(rate * phase.interval_s)))
        told = False
        for key, count in arrivals.items():
            bucket = self.buckets.setdefault(key, _Bucket(*key))
            if len(bucket.runs) > self.stop and bucket.busy and not life.write_only:
                bucket.busy, bucket.done = 0, True  # the writer waits until it is merged
                self.now += phase.interval_s
            rows = self.held(count)
            seq = (bucket.sequence, bucket.sequence + count - 1)
            bucket.sequence += count
            bucket.runs.insert(0, _Run(0, rows, self.size(rows)))
            self.flow("flush", 1, bucket, 0, self.size(rows), rows, seq)
            if self.producer == "input":
                told = True
                self.flow("changelog", 1, bucket, 0, self.size(rows), rows, seq)
        self.snapshot("APPEND", identifier, "writer", told)
        if not life.write_only and life.primary_key:
            self.compacted(identifier)
        alive = not life.compactor_dies_after or number <= life.compactor_dies_after
        if life.compactor_every and number % life.compactor_every == 0 and alive:
            self.full()
        if life.consumer_at == number:
            self.consumer = len(self.steps) + 1
        if life.expires and (not life.write_only or life.compactor_every):
            self.expire()

    def arrivals(self, rows: int) -> dict[tuple[str, int], int]:
        """Rows by partition and bucket."""
        life, out = self.life, {}
        places: dict[str, int] = {"": rows}
        if life.partitions is not None:
            late = int(self.rng.binomial(rows, life.late)) if life.late else 0
            places = {life.partitions(self.event): rows - late}
            back = self.rng.integers(1, life.late_days + 1, late)
            for days, count in zip(*(c.tolist() for c in np.unique(back, return_counts=True))):
                name = life.partitions(self.event - days * 86_400)
                places[name] = places.get(name, 0) + count
        elif life.spread:
            shares = np.array([1 / (i + 1) for i in range(len(life.spread))])
            counts = self.rng.multinomial(rows, shares / shares.sum())
            places = dict(zip(life.spread, counts.tolist()))
        n = max(life.buckets, 1)
        shares = np.full(n, (1 - life.hot) / n)
        shares[min(1, n - 1)] += life.hot
        for name, count in places.items():
            for number, got in enumerate(self.rng.multinomial(count, shares).tolist()):
                if got:
                    out[name, number] = got
        return out

    # ---- compaction

    def compacted(self, identifier: int) -> None:
        """Commit what was merged since the last checkpoint, then pick anew."""
        lookup = self.producer == "lookup" or self.life.options.get("deletion-vectors.enabled") == "true"
        ready = []
        for bucket in self.buckets.values():
            if bucket.busy:
                bucket.busy -= 1
                bucket.done = bucket.done or bucket.busy == 0
            if bucket.done:
                ready.append(bucket)
        told = False
        for bucket in ready:
            told = self.merge(bucket, bucket.picked, bucket.output, lookup) or told
            bucket.done, bucket.busy = False, 0
        if ready:
            self.snapshot("COMPACT", identifier, "writer", told)
        for bucket in self.buckets.values():
            if not bucket.busy and bucket.runs and bucket.runs[0].level == 0:
                count, output = self.pick(bucket, lookup)
                if count:
                    # what comes later lies before the picked runs
                    bucket.picked, bucket.older = count, len(bucket.runs) - count
                    bucket.output, bucket.busy = output, 1 + self.life.slowness

    def pick(self, bucket: _Bucket, lookup: bool) -> tuple[int, int]:
        """How many of the newest runs are merged, and to which level; the choice of runs is Paimon's."""
        runs = bucket.runs
        plan = choose_runs(runs, self.top + 1, self.policy)  # type: ignore[arg-type]  # runs without files
        if plan is not None:
            return len(plan.files), plan.output_level
        level0 = sum(r.level == 0 for r in runs)
        if not lookup or not level0:
            return 0, 0
        count = level0 + (level0 < len(runs) and runs[level0].level == 1)
        return count, self.top if count == len(runs) else max(runs[count].level - 1, 1)

    def merge(self, bucket: _Bucket, count: int, output: int, lookup: bool) -> bool:
        first = len(bucket.runs) - bucket.older - count
        taken = bucket.runs[first : first + count]
        for run in taken:
            self.flow("removal", -1, bucket, run.level, run.size, run.rows, None)
        rows = self.held(sum(r.rows for r in taken)) if len(taken) > 1 else taken[0].rows
        fixed, _ = FORMATS[self.life.format]
        size = max(self.size(rows), fixed)
        new = [_Run(output, rows, size)]
        self.flow("rewrite", 1, bucket, output, size, rows, None)
        bucket.runs[first : first + count] = new
        told = lookup and self.producer == "lookup" and any(r.level == 0 for r in taken)
        if told:
            size = sum(r.size for r in taken if r.level == 0)
            self.flow("changelog", 1, bucket, output, size, rows, None)
        return told

    def full(self) -> None:
        """Another user merges everything."""
        any_run = False
        for bucket in self.buckets.values():
            if len(bucket.runs) > 1:
                bucket.older, any_run = 0, True
                self.merge(bucket, len(bucket.runs), self.top if self.life.primary_key else 0, False)
        if any_run:
            self.snapshot("COMPACT", BATCH, "compactor")

    # ---- the past

    def expire(self) -> None:
        options = self.life.options
        keep_s = _seconds(options.get("snapshot.time-retained", "1 h"))
        least = self.life.option("snapshot.num-retained.min", 10)
        limit = self.life.option("snapshot.expire.limit", 50)
        latest = len(self.steps)
        now = START_MS + self.now * 1000
        end = self.earliest
        while end < latest - least + 1 and now - self.steps[end - 1].time_ms > keep_s * 1000:
            end += 1
        if self.consumer is not None:
            end = min(end, self.consumer)
        self.earliest = max(min(end, self.earliest + limit), self.earliest)

    def window(self) -> Window:
        life = self.life
        columns = list(zip(*self.rows)) if self.rows else [[] for _ in flow_fields()]
        flows = pa.table(
            [pa.array(list(c), f.type) for c, f in zip(columns, flow_fields())], schema=flow_fields()
        )  # fmt: skip
        flows = _grouped(flows)
        old = flows.filter(pc.less(flows.column("snapshot"), self.earliest))
        kept = flows.filter(pc.greater_equal(flows.column("snapshot"), self.earliest))
        start = advance(state_fields().empty_table(), old)
        options = {"bucket": str(life.buckets), **life.options}
        keyed = ("id",) if life.primary_key else ()
        parted = ("dt",) if life.partitions is not None else ("region",) if life.spread else ()
        schema = SchemaFacts(0, START_MS, options, parted, keyed, ("id", "v"))
        holders = []
        if self.consumer is not None:
            holders.append(Holder("consumer", "stuck", self.consumer, START_MS))
        if life.consumer is not None:
            holders.append(Holder("consumer", life.consumer, len(self.steps) + 1, START_MS))
        taken = self.steps[-1].time_ms + 1000
        stock = Stock(taken, self.earliest, len(self.steps), tuple(holders), IndexFacts({}, 0, 0), 0, 0)
        return Window(
            "memory:life", "d.t", tuple(self.steps[self.earliest - 1 :]), kept, start, (schema,), stock
        )  # fmt: skip


def _grouped(flows: pa.Table) -> pa.Table:
    keys = ["snapshot", "class", "change", "partition", "bucket", "total_buckets", "level"]
    sums = ["files", "bytes", "rows", "deleted_rows", "extras", "small"]
    how = [(n, "sum") for n in sums] + [("min_sequence", "min"), ("max_sequence", "max"), ("largest", "max")]
    table = flows.group_by(keys, use_threads=False).aggregate(how)
    names = [*keys, *sums, "min_sequence", "max_sequence", "largest"]
    return table.rename_columns(names).select(flow_fields().names).cast(flow_fields())


def _size(text: str) -> int:
    number, _, unit = text.partition(" ")
    return int(number) * {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20}[unit]


def _seconds(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[unit]


def live(life: Life) -> Window:
    """What a doctor sees at the end of a life."""
    return _Life(life).run()


def by_day(seconds: float, *, day_s: float = 86_400.0) -> str:
    """A partition a day."""
    from datetime import UTC, datetime, timedelta

    day = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=math.floor(seconds / day_s))
    return f"dt={day:%Y-%m-%d}/"
