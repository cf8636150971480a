# SPDX-License-Identifier: Apache-2.0
"""Tables with one planted cause each, and healthy ones that look alike: what D9 to D17 are held against.

Every table is written by shoal's own writer in memory, on a clock moved by hand, compaction beside the writer. Rows are
few and options are scaled with them; the cause is the one thing that a planted table has and its look-alike has not.
`grow` is the life of a table; a case is a function of `Plan`, which varies the interval, buckets, rows, format, seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from closing import closed_before_compression

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.beside import Beside
from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.case import case as case_of
from shoal.doctor.flink import Job
from shoal.doctor.take import take
from shoal.store.memory import MemoryStore
from shoal.table import consumers
from shoal.table.table import Table
from shoal.table.write import Write

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int64()), ("v", pa.string()), ("t", pa.timestamp("ms"))])


@dataclass(frozen=True)
class Plan:
    """What varies over the tables of one kind."""

    interval_s: float = 60
    buckets: int = 1
    rows: int = 6  # a checkpoint and bucket
    keys: int = 200
    format: str = "avro"
    seed: int = 1
    checkpoints: int = 70


@dataclass
class World:
    """A table with its clock, and the background of its writers."""

    table: Table
    clock: ManualClock
    background: list[ManualScheduler]
    rng: random.Random
    plan: Plan
    next_key: int = 0
    job: Job | None = None
    slo_ms: int | None = None
    probes: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def rows(self, n: int | None = None, *, dt: str = "a", ascending: bool = False, size: int = 8) -> pa.Table:
        """Rows of random keys, or of keys that were never there."""
        count = self.plan.rows * self.plan.buckets if n is None else n
        if ascending:
            keys = list(range(self.next_key, self.next_key + count))
            self.next_key += count
        else:
            keys = [self.rng.randrange(self.plan.keys) for _ in range(count)]
        values = [self.rng.randbytes(size).hex() for _ in keys]
        now = self.clock.now_ms()
        return pa.table([[dt] * len(keys), keys, values, [now - self.rng.randrange(500) for _ in keys]], schema=SCHEMA)

    def work(self) -> None:
        """Let the background do what waits."""
        for s in self.background:
            s.run_pending()

    def tick(self, times: float = 1) -> None:
        """An interval passes, compaction beside it."""
        self.work()
        self.clock.sleep(self.plan.interval_s * times)

    def case(self) -> Case:
        window = take(self.table.metadata, name=self.table.name, clock=self.clock)
        found = case_of(window, job=self.job, slo_ms=self.slo_ms)
        return replace(found, beside=Beside(probes=self.probes))


def world(
    plan: Plan, options: Mapping[str, object] | None = None, *, keyed: bool = True, partitioned: bool = False
) -> World:
    clock, background = ManualClock(), []

    def scheduler() -> ManualScheduler:
        background.append(ManualScheduler())
        return background[-1]

    lake = Lake(MemoryStore(), clock=clock, scheduler=scheduler)
    kept = int(plan.interval_s * plan.checkpoints * 4)  # whatever the interval: the life of the table
    base = {"file.format": plan.format, "snapshot.time-retained": f"{kept} s"}
    base |= {"bucket": str(plan.buckets)} if keyed else {}
    table = lake.create_table(
        "d.t", SCHEMA, primary_key=(["dt", "k"] if partitioned else ["k"]) if keyed else [],
        partition_by=["dt"] if partitioned else [], options={**base, **(options or {})},
    )  # fmt: skip
    return World(table, clock, background, random.Random(plan.seed), plan)


@contextmanager
def writer(w: World, user: str = "job") -> Iterator[Write]:
    with w.table.write(user) as write:
        yield write


def sliced(rows: pa.Table, parts: int) -> list[pa.Table]:
    """Rows as they come, some at a time."""
    size = -(-rows.num_rows // parts)
    return [rows.slice(at, size) for at in range(0, rows.num_rows, size)]


def grow(
    w: World, checkpoints: int | None = None, *, user: str = "job", first: int = 1,
    rows: Callable[[int], pa.Table | None] | None = None, after: Callable[[int], None] | None = None,
    busy: Callable[[int], bool] = lambda _: True, parts: int = 1,
) -> World:  # fmt: skip
    """So many checkpoints of one job. `rows` gives those of a checkpoint, `busy` whether compaction has time then."""
    n = w.plan.checkpoints if checkpoints is None else checkpoints
    with writer(w, user) as write:
        for i in range(first, first + n):
            data = w.rows() if rows is None else rows(i)
            for part in [] if data is None or not data.num_rows else (data,) if parts == 1 else sliced(data, parts):
                write.write(part)
            write.commit(i)
            if after is not None:
                after(i)
            if busy(i):
                w.work()
            w.clock.sleep(w.plan.interval_s)
    return w


def compacted_by_job(w: World, every: int, *, full: bool = False) -> Callable[[int], None]:
    """A compaction job of its own, every so many checkpoints."""

    def job(i: int) -> None:
        if i % every == 0:
            w.table.maintain.compact(full=full, commit_user="compactor", checkpoint=i)

    return job


# ---- D9: target or format too small ----------------------------------------------------------------------


def small_target(p: Plan) -> World:
    """Compaction closes files at 4 kb."""
    w = world(replace(p, keys=20_000 * p.buckets), {"target-file-size": "8 kb"})
    return grow(w, min(p.checkpoints, 40), rows=lambda i: w.rows(1000 * p.buckets))


def small_row_number(p: Plan) -> World:
    """New files are closed at some rows, long before they are large."""
    w = world(replace(p, keys=20_000 * p.buckets), {"target-file-row-num": "500"})
    return grow(w, min(p.checkpoints, 40), rows=lambda i: w.rows(1000 * p.buckets))


def small_row_number_append(p: Plan) -> World:
    """A table without keys, whose files are closed at some rows."""
    w = world(p, {"target-file-row-num": "30"}, keyed=False)
    return grow(w, rows=lambda i: w.rows(100), after=compacted_by_job(w, 8))


def small_target_append(p: Plan) -> World:
    """A table without keys, whose compaction leaves files of 2 kb alone."""
    w = world(p, {"target-file-size": "2 kb"}, keyed=False)
    return grow(w, rows=lambda i: w.rows(20), after=compacted_by_job(w, 5))


def closed_too_early(p: Plan) -> World:
    """Rows that compress well, in Parquet files that are closed by their size before that."""
    keys = 8000 * p.buckets
    w = world(replace(p, keys=keys, format="parquet"), {"target-file-size": "256 kb"})
    with closed_before_compression():
        return grow(w, min(p.checkpoints, 30), rows=lambda i: _repeated(w.rows(keys // 8), 40))


def compresses_well(p: Plan) -> World:
    """The same rows in files that are closed by what they take on disk."""
    keys = 8000 * p.buckets
    w = world(replace(p, keys=keys, format="parquet"), {"target-file-size": "256 kb"})
    return grow(w, min(p.checkpoints, 30), rows=lambda i: _repeated(w.rows(keys // 8), 40))


def _repeated(rows: pa.Table, times: int) -> pa.Table:
    at = rows.column_names.index("v")
    return rows.set_column(at, "v", pc.binary_repeat(rows.column("v"), times))


def append_table(p: Plan) -> World:
    """A table without keys and with defaults."""
    w = world(p, keyed=False)
    return grow(w, after=compacted_by_job(w, 8))


def one_large_load(p: Plan) -> World:
    """A batch load of many files of full size in each bucket, then a quiet life."""
    w = world(p, {"target-file-size": "64 kb"})
    with w.table.write() as write:
        write.write(w.rows(4000 * p.buckets, ascending=True, size=100))
        write.commit()
    return grow(w)


def settled(p: Plan) -> World:
    """A table with defaults that is updated for hours."""
    return grow(world(p))


# ---- D10: compaction conflict ----------------------------------------------------------------------------


def two_compactors(p: Plan) -> World:
    """The writer compacts, and a dedicated job compacts the same table every few checkpoints."""
    w = world(p)
    return grow(w, after=compacted_by_job(w, 7, full=True))


def two_writers_compact(p: Plan) -> World:
    """Two jobs write and compact the same buckets."""
    w = world(p)
    with w.table.write("one") as one, w.table.write("two") as two:
        for i in range(1, p.checkpoints + 1):
            for write in w.rng.sample([one, two], 2):
                write.write(w.rows())
                write.commit(i)
            w.tick()
    return w


def two_writers_one_compactor(p: Plan) -> World:
    """Two jobs write only; one job compacts."""
    w = world(p, {"write-only": "true"})
    with w.table.write("one") as one, w.table.write("two") as two:
        for i in range(1, p.checkpoints + 1):
            for write in (one, two):
                write.write(w.rows())
                write.commit(i)
            if i % 2 == 0:
                w.table.maintain.compact(commit_user="compactor", checkpoint=i)
            w.tick()
    return w


def renamed_writer(p: Plan) -> World:
    """A job goes on under another name, and once somebody compacts by hand."""
    w = world(p)
    grow(w, p.checkpoints // 2, user="old")
    w.table.maintain.compact(full=True)
    return grow(w, p.checkpoints // 2, user="new")


# ---- D11: manifest bloat ---------------------------------------------------------------------------------


def manifests_apart(p: Plan) -> World:
    """Manifests are merged only when hundreds lie there."""
    return grow(world(p, {"manifest.merge-min-count": "500"}), max(p.checkpoints, 90))


def tiny_manifests(p: Plan) -> World:
    """Manifests are full at 1 kb, so none is ever merged again."""
    return grow(world(p, {"manifest.target-file-size": "1 kb"}), max(p.checkpoints, 90))


def full_statistics(p: Plan) -> World:
    """Whole values of long texts are kept as bounds of each file. ORC keeps none of texts above 1024 bytes."""
    w = world(replace(p, format="parquet") if p.format == "orc" else p, {"metadata.stats-mode": "full"})
    return grow(w, rows=lambda i: w.rows(size=2000))


def full_statistics_of_few_snapshots(p: Plan) -> World:
    """The same of a table that keeps five snapshots."""
    w = world(
        replace(p, format="parquet") if p.format == "orc" else p,
        {"metadata.stats-mode": "full", "snapshot.num-retained.max": "5", "snapshot.num-retained.min": "2"},
    )
    return grow(w, rows=lambda i: w.rows(size=2000))


def just_before_a_merge(p: Plan) -> World:
    """As many manifests, and as many dead entries, as default options let lie."""
    w = world(p)
    grow(w, 19)
    return w


# ---- D12: freshness lost after commit --------------------------------------------------------------------

VECTORS = {"deletion-vectors.enabled": "true"}


def vectors_do_not_wait(p: Plan) -> World:
    """Readers skip level 0, and compaction comes late."""
    w = world(p, {**VECTORS, "lookup-wait": "false"})
    return grow(w, busy=lambda i: i % 6 == 0)


def rare_full_compaction(p: Plan) -> World:
    """The changelog comes with every twentieth checkpoint. Few keys would be compacted in full long before that."""
    p = replace(p, keys=100 * p.keys)
    return grow(world(p, {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "20"}))


def slow_discovery(p: Plan) -> World:
    """Streams look for snapshots every half hour."""
    return grow(world(p, {"continuous.discovery-interval": f"{int(p.interval_s * 30)} s"}))


def measured_late(p: Plan) -> World:
    """A sentinel saw rows committed in time and read late."""
    w = grow(world(p))
    w.probes = {"commit": (20_000.0, 30_000.0, 60_000.0), "read": (400_000.0, 900_000.0, 800_000.0)}
    return w


def vectors_that_wait(p: Plan) -> World:
    """Readers skip level 0, and each commit waits for its compaction."""
    return grow(world(p, VECTORS), min(p.checkpoints, 40))


def full_compaction_each_time(p: Plan) -> World:
    """A changelog by full compaction, at each checkpoint, and a stream that reads it."""
    options = {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "1"}
    w = world(p, options)
    return grow(w, min(p.checkpoints, 40), after=lambda i: consumers.save(w.table.store, "reader", i))


# ---- D13: buffer overflow --------------------------------------------------------------------------------


def buffer_not_spilled(p: Plan) -> World:
    """A buffer that holds a part of a checkpoint and is not spilled."""
    w = world(p, {"write-buffer-size": "128 kb", "page-size": "32 kb", "write-buffer-spillable": "false"})
    return grow(w, rows=lambda i: w.rows(200 * p.buckets, size=1000), checkpoints=min(p.checkpoints, 30), parts=10)


def spilled(p: Plan) -> World:
    """The same rows with a buffer that is spilled."""
    w = world(p, {"write-buffer-size": "128 kb", "page-size": "32 kb"})
    return grow(w, rows=lambda i: w.rows(200 * p.buckets, size=1000), checkpoints=min(p.checkpoints, 30), parts=10)


# ---- D14: idle commits -----------------------------------------------------------------------------------


def nothing_comes(p: Plan) -> World:
    """Every checkpoint makes a snapshot; rows come with each sixth."""
    w = world(p, {"snapshot.ignore-empty-commit": "false"})
    return grow(w, rows=lambda i: w.rows() if i % 6 == 0 else None)


def nightly_quiet(p: Plan) -> World:
    """A table that is quiet for a third of the time."""
    w = world(p, {"snapshot.ignore-empty-commit": "false"})
    return grow(w, rows=lambda i: w.rows() if i % 30 < 24 else None)


def skips_empty(p: Plan) -> World:
    """A writer that leaves empty checkpoints out."""
    w = world(p)
    return grow(w, rows=lambda i: w.rows() if w.rng.random() < 0.85 else None)


# ---- D15: held by tag or branch --------------------------------------------------------------------------


def unlimited_tags(p: Plan) -> World:
    """A tag every ten checkpoints, for ever, of a table that replaces itself."""
    w = world(p, {"snapshot.time-retained": "5 min", "snapshot.num-retained.min": "2"})

    def tag(i: int) -> None:
        if i % 10 == 0:
            w.table.tags.create(f"at-{i:04}")

    return grow(w, after=tag)


def forgotten_branch(p: Plan) -> World:
    """A branch of the first rows, long replaced."""
    w = world(p, {"snapshot.time-retained": "5 min", "snapshot.num-retained.min": "2"})

    def branch(i: int) -> None:
        if i == 30:
            w.table.tags.create("start")
            w.table.branches.create("trial", tag="start")

    return grow(w, after=branch)


def tags_that_end(p: Plan) -> World:
    """Tags with a time to live."""
    w = world(p, {"snapshot.time-retained": "5 min", "snapshot.num-retained.min": "2"})

    def tag(i: int) -> None:
        if i % 10 == 0:
            w.table.tags.create(f"at-{i:04}", keep=timedelta(days=3))

    return grow(w, after=tag)


def tag_of_what_is_there(p: Plan) -> World:
    """A tag without an end of a table without keys, all of whose files are still live."""
    w = world(p, {"snapshot.time-retained": "5 min", "snapshot.num-retained.min": "2"})

    def tag(i: int) -> None:
        if i == p.checkpoints:
            w.table.tags.create("release")

    return grow(w, after=tag)


# ---- D16: restart loops ----------------------------------------------------------------------------------


def loses_time(p: Plan) -> World:
    """The job fails every dozen checkpoints: checkpoints are missing and time is lost."""
    w = world(p)
    at, done = 1, 0
    while done < p.checkpoints:
        n = 8 + w.rng.randrange(6)
        grow(w, n, first=at)
        done, at = done + n, at + n + 1 + w.rng.randrange(3)
        w.clock.sleep(p.interval_s * 4 + 45)
    return w


def comes_back_with_a_backlog(p: Plan) -> World:
    """Checkpoints fail at the pace of the clock, and their rows come at once after the restart."""
    w = world(p)
    at, done = 1, 0
    while done < p.checkpoints:
        n, missed = 8 + w.rng.randrange(5), 3
        owed = missed * p.rows * p.buckets if done else 0
        grow(w, n, first=at, rows=_with_backlog(w, at, owed))
        done, at = done + n, at + n + missed
        w.clock.sleep(p.interval_s * missed)
    return w


def _with_backlog(w: World, at: int, owed: int) -> Callable[[int], pa.Table]:
    return lambda i: w.rows(w.plan.rows * w.plan.buckets + (owed if i == at else 0))


def new_names(p: Plan) -> World:
    """The job is submitted anew without its state again and again."""
    w = world(p)
    for i in range(6):
        grow(w, p.checkpoints // 6, user=f"job-{i}")
        w.clock.sleep(90)
    return w


def one_restart(p: Plan) -> World:
    """One restart in the table's life."""
    w = world(p)
    grow(w, p.checkpoints // 2)
    w.clock.sleep(p.interval_s * 3)
    return grow(w, p.checkpoints // 2, first=p.checkpoints // 2 + 3)


# ---- D17: read fan-in ------------------------------------------------------------------------------------


def high_trigger(p: Plan) -> World:
    """Compaction starts at 25 runs."""
    return grow(world(p, {"num-sorted-run.compaction-trigger": "25", "num-sorted-run.stop-trigger": "40"}))


def rare_compaction_job(p: Plan) -> World:
    """A write-only writer, and a compaction job every 150 checkpoints."""
    p = replace(p, checkpoints=260, rows=2)
    w = world(p, {"write-only": "true"})
    return grow(w, after=compacted_by_job(w, 150, full=True))


def keys_that_never_meet(p: Plan) -> World:
    """Many runs of ascending keys: nothing is merged."""
    w = world(p, {"num-sorted-run.compaction-trigger": "25", "num-sorted-run.stop-trigger": "40"})
    return grow(w, rows=lambda i: w.rows(ascending=True))


def just_compacted(p: Plan) -> World:
    """A table right after a full compaction."""
    w = grow(world(p))
    w.table.maintain.compact(full=True)
    return w


def few_snapshots(p: Plan) -> World:
    """A young table."""
    return grow(world(p), 4)


PLANTED: dict[str, tuple[Callable[[Plan], World], ...]] = {
    "D9": (small_target, small_row_number, small_row_number_append, small_target_append, closed_too_early),
    "D10": (two_compactors, two_writers_compact),
    "D11": (manifests_apart, tiny_manifests, full_statistics, full_statistics_of_few_snapshots),
    "D12": (vectors_do_not_wait, rare_full_compaction, slow_discovery, measured_late),
    "D13": (buffer_not_spilled,),
    "D14": (nothing_comes,),
    "D15": (unlimited_tags, forgotten_branch),
    "D16": (loses_time, comes_back_with_a_backlog, new_names),
    "D17": (high_trigger, rare_compaction_job),
}
HEALTHY: tuple[Callable[[Plan], World], ...] = (
    settled, append_table, compresses_well, one_large_load, two_writers_one_compactor, renamed_writer, just_before_a_merge, vectors_that_wait,
    full_compaction_each_time, spilled, nightly_quiet, skips_empty, tags_that_end, tag_of_what_is_there, one_restart,
    keys_that_never_meet, just_compacted, few_snapshots,
)  # fmt: skip
