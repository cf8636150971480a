# SPDX-License-Identifier: Apache-2.0
"""A streaming job: rows of a source into a table, one commit a checkpoint, each row exactly once.

At every tick of the checkpoint clock the rows that are due are written and committed together with the position after
them (`checkpoint.py`). Started again after a crash, a job reads that position back and goes on from it.

Invariant: what the table holds is always a prefix of the source, cut at a checkpoint. Time is read and waited for only
through the lake's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from shoal.clock import ManualScheduler, Scheduler, SystemClock
from shoal.errors import BadRequest, CommitUnknown, Conflict, Fenced, NotFound
from shoal.flow.checkpoint import Checkpoint, last_checkpoint
from shoal.option_values import parse_duration
from shoal.options import check
from shoal.table.staged import Committed
from shoal.table.table import option_map

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.catalog.filesystem import Lake
    from shoal.flow.source import Source
    from shoal.table.table import Table
    from shoal.table.write import Write

# One take of a source: bounds memory, and lets a checkpoint come in the middle of a backlog.
TAKE_ROWS = 50_000
# How long a waiting job may overlook that it is to stop.
STOP_S = 0.2
# Waits before an unclear commit is asked about again. A store that stays away longer ends the job, which loses nothing.
SETTLE_S = (0.1, 0.5, 2.0, 5.0)
# Clocks add up floats; nearer than this to a tick is at it.
_EPSILON_S = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """A source and the table it goes to.

    `name` is the commit user: it finds the job's own snapshots again, so it must stay the same between runs and be
    used by one running job at a time. Where the table is missing it is made (`create`) with `options` and the keys of
    the source, unless others are given. `start` is the position of a job that has no snapshot yet.
    """

    lake: Lake
    source: Source
    table: str
    name: str
    checkpoint_s: float = 60.0
    create: bool = True
    primary_key: Sequence[str] | None = None
    partition_by: Sequence[str] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    start: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise BadRequest("a job needs a name", hint="the name finds the job's position again after a restart")
        if not 0 < self.checkpoint_s < math.inf:
            raise BadRequest(f"the checkpoint interval is {self.checkpoint_s} s; it must be above 0")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running job stands after a checkpoint; `total` is None while the source does not know it.

    `upkeep_failure` says why the last upkeep that was not done was not.
    """

    position: int
    total: int | None
    checkpoints: int
    snapshots: int
    stream_s: float
    upkeep_failure: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """What one run of a job did. `position` is where the next run goes on; seconds by the job's clock and the wall.

    `upkeep_failures` counts the commits after which old snapshots, tags or partitions could not be looked after, and
    `upkeep_failure` is the last reason. No commit failed for it.
    """

    table: str
    rows: int
    checkpoints: int
    snapshots: int
    position: int
    ended: bool
    clock_s: float
    wall_s: float
    upkeep_failures: int = 0
    upkeep_failure: str | None = None

    def __str__(self) -> str:
        state = "the source has ended" if self.ended else f"stopped at position {self.position:,}"
        if self.upkeep_failure is not None:
            times = f"{self.upkeep_failures:,} of {self.checkpoints:,}"
            state += f"; upkeep failed after {times} checkpoints, last: {self.upkeep_failure}"
        return (
            f"{self.table}: {self.rows:,} rows in {self.checkpoints:,} checkpoints and {self.snapshots:,} snapshots, "
            f"{self.clock_s:,.1f} s by its clock, {self.wall_s:,.1f} s; {state}"
        )

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def run(
    job: Job, *, on_progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None
) -> JobResult:
    """Run a job until its source ends, or until `stop()` is true: then what was taken is committed first.

    Time is that of the job's lake. `on_progress` is called after every checkpoint.
    """
    clock, wall = job.lake.clock, SystemClock()
    began, wall_began = clock.monotonic(), wall.monotonic()
    table = _open_table(job)
    scheduler = table.new_scheduler()
    table.new_scheduler = lambda: scheduler  # so that compaction runs where this loop can push it
    last = last_checkpoint(table, job.name, job.source.fingerprint, job.start)
    with table.write(commit_user=job.name) as writer:
        loop = _Loop(job, writer, scheduler, last, stop)
        while not loop.over:
            loop.checkpoint()
            if on_progress is not None:
                on_progress(loop.progress())
    return JobResult(
        table.name, loop.rows, loop.checkpoints, loop.snapshots, loop.position, loop.next_s is None,
        clock.monotonic() - began, wall.monotonic() - wall_began, loop.upkeep_failures, loop.upkeep_failure,
    )  # fmt: skip


class _Loop:
    """The checkpoint clock: wait for a tick, write what is due, commit it with the position after it."""

    def __init__(
        self, job: Job, writer: Write, scheduler: Scheduler, last: Checkpoint, stop: Callable[[], bool] | None
    ) -> None:
        self.job, self.writer, self.scheduler, self.stop = job, writer, scheduler, stop
        self.clock = job.lake.clock
        self.last, self.position = last, last.position
        self.rows = self.checkpoints = self.snapshots = 0
        self.upkeep_failures = 0
        self.upkeep_failure: str | None = None
        self.stopping = False
        look = job.source.take(self.position, until_s=-1, max_rows=1)
        self.next_s = look.next_s
        self.began = self.tick = self.clock.monotonic()
        # The stream goes on at the second where it was left: the pause between two runs is not part of it.
        self.origin = self.began - look.at_s

    @property
    def over(self) -> bool:
        return self.stopping or self.next_s is None

    def progress(self) -> Progress:
        stream_s = self.clock.monotonic() - self.origin
        return Progress(
            self.position, self.job.source.total, self.checkpoints, self.snapshots, stream_s, self.upkeep_failure
        )

    def checkpoint(self) -> None:
        if isinstance(self.scheduler, ManualScheduler):
            self.scheduler.run_pending()  # the compactions that the last checkpoint started
        self._move_tick()
        before = self.position
        self._write_until_tick()
        committed = self._commit(Checkpoint(self.last.id + 1, self.position))
        self.checkpoints += 1
        self.snapshots += len(committed.snapshots)
        self.rows += self.position - before
        if committed.upkeep is not None and committed.upkeep.failure is not None:
            self.upkeep_failures += 1
            self.upkeep_failure = committed.upkeep.failure.message

    def _move_tick(self) -> None:
        """The next point of the grid; ticks that passed during a slow commit are left out."""
        every, now = self.job.checkpoint_s, self.clock.monotonic()
        missed = max(0, math.floor((now - self.tick) / every + _EPSILON_S))
        self.tick += every * (missed + 1)

    def _write_until_tick(self) -> None:
        """Write what is due, now and at the tick. A backlog is written without waiting, up to the tick."""
        while True:
            now = self.clock.monotonic()
            at_tick = now >= self.tick - _EPSILON_S
            due_s = (self.tick if at_tick else now) - self.origin
            taken = 0
            if self.next_s is not None and self.next_s <= due_s:
                changes = self.job.source.take(self.position, until_s=due_s, max_rows=TAKE_ROWS)
                self.writer.write(changes.rows, changes.kinds)
                self.position, self.next_s, taken = changes.position, changes.next_s, len(changes)
            if at_tick or self._told_to_stop() or self.next_s is None:
                return
            if taken < TAKE_ROWS:
                self._sleep_until_tick()

    def _sleep_until_tick(self) -> None:
        while (left := self.tick - self.clock.monotonic()) > _EPSILON_S and not self._told_to_stop():
            self.clock.sleep(left if self.stop is None else min(left, STOP_S))

    def _told_to_stop(self) -> bool:
        self.stopping = self.stopping or (self.stop is not None and self.stop())
        return self.stopping

    def _commit(self, here: Checkpoint) -> Committed:
        """Commit rows and position; an unclear outcome is settled by committing the same checkpoint again."""
        properties = here.properties(self.job.source.fingerprint)
        for wait_s in (*SETTLE_S, None):
            try:
                committed = self.writer.commit(checkpoint=here.id, properties=properties)
            except CommitUnknown:
                if wait_s is None:
                    raise
                self.clock.sleep(wait_s)
            except Conflict:
                if here.position != self.last.position:
                    raise
                return Committed()  # nothing but a compaction, and another writer has done it
            else:
                if committed.replayed:
                    raise Fenced(
                        f"{self.job.table}: checkpoint {here.id} of job '{self.job.name}' was committed by another run",
                        hint="two runs of one job are at work: stop one of them, or give it a name of its own",
                    )
                if committed.snapshots:
                    self.last = here
                return committed
        raise AssertionError("the last try returns or raises")


def _open_table(job: Job) -> Table:
    try:
        table = job.lake.table(job.table)
    except NotFound:
        if not job.create:
            raise
        return _create_table(job)
    _check_same(job, table)
    return table


def _create_table(job: Job) -> Table:
    source = job.source
    primary_key = source.primary_key if job.primary_key is None else job.primary_key
    check(option_map(job.options), "create", has_primary_key=bool(primary_key))
    if primary_key and "bucket" not in job.options:
        # Paimon's default is a dynamic number, which writers here do not do yet: better no table than one to drop again
        raise BadRequest(
            f"{job.table}: a new table with a primary key needs a number of buckets",
            hint="give the option bucket=4: about one for each GB of a partition, and at least one a writing core",
        )
    return job.lake.create_table(
        job.table,
        source.schema,
        primary_key=primary_key,
        partition_by=source.partition_by if job.partition_by is None else job.partition_by,
        options=job.options,
        if_not_exists=True,
    )


def _check_same(job: Job, table: Table) -> None:
    """What was asked for a new table must not be overlooked on one that is there."""
    schema = table.schema
    asked: dict[str, tuple[object, object]] = {
        key: (value, schema.options.get(key)) for key, value in option_map(job.options).items()
    }
    if job.primary_key is not None:
        asked["primary key"] = tuple(job.primary_key), schema.primary_keys
    if job.partition_by is not None:
        asked["partition"] = tuple(job.partition_by), schema.partition_keys
    for what, (wanted, found) in asked.items():
        if wanted != found:
            raise BadRequest(
                f"{table.name} exists with {what} {_shown(found)}, not {_shown(wanted)}",
                hint="leave it out to use the table as it is, or name another table",
            )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(value)})" if value else "none"
    return "not set" if value is None else f"= {value}"


# ---- what a command line says ----------------------------------------------------------------------------


def parse_interval(text: str) -> float:
    """Seconds of `10s`, `1 min` or `500ms`.

    >>> parse_interval("1 min")
    60.0
    """
    seconds = parse_duration(text) / 1000
    if text.strip().isdecimal():
        raise BadRequest(f"'{text}' has no unit", hint=f"write {text.strip()}s for seconds, or use ms, min or h")
    if not seconds:
        raise BadRequest(f"the interval '{text}' is zero", hint="10s commits six times a minute")
    return seconds


def parse_source(
    text: str | Sequence[str],
    *,
    speed: float | None = None,
    rows_per_second: float | None = None,
    kind_column: str | None = None,
    time_column: str | None = None,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    schema: pa.Schema | None = None,
) -> Source:
    """The source that a text means: `flights:2013-01-01..2013-02-01` (the end is not included), or files and globs.

    >>> parse_source("flights:2013-01-01..2013-01-02").primary_key
    ('flight_date', 'carrier', 'flight', 'origin')
    """
    texts = (text,) if isinstance(text, str) else tuple(text)
    if not any(t.partition(":")[0] == "flights" for t in texts):
        from shoal.flow.sources.files import FilesSource

        return FilesSource(
            texts, kind_column=kind_column, time_column=time_column, speed=speed, rows_per_second=rows_per_second,
            primary_key=primary_key, partition_by=partition_by, schema=schema,
        )  # fmt: skip
    if len(texts) > 1:
        raise BadRequest("the flights are a source of their own", hint="name the flights or files, not both")
    for name, value in (
        ("rows_per_second", rows_per_second), ("kind_column", kind_column), ("time_column", time_column),
        ("primary_key", primary_key), ("partition_by", partition_by), ("schema", schema),
    ):  # fmt: skip
        if value:
            raise BadRequest(f"the flights have their own {name}", hint="only their speed can be chosen")
    from shoal.flow.sources.flights import FlightsSource

    return FlightsSource(*_days(texts[0]), speed=1.0 if speed is None else speed)


def _days(text: str) -> tuple[date, date]:
    days = text.partition(":")[2].split("..")
    try:
        start, end = (date.fromisoformat(day) for day in days)
    except ValueError as err:
        raise BadRequest(
            f"'{text}' does not name days", hint="write flights:2013-01-01..2013-02-01; the end is not included"
        ) from err
    return start, end
