# SPDX-License-Identifier: Apache-2.0
"""Look again and again: each look goes on from the last one and is kept in the history.

Looks at several tables run beside each other on a `Scheduler`; what they saw is kept by the one caller. Where a Flink
job is asked too, its checkpoints are kept beside the snapshots, and it is asked between looks as often as it forgets.
Invariant: a table or a job that cannot be read spoils no other, and its trouble is told, not hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.clock import Clock, Scheduler
from shoal.doctor.allowance import FREE, Allowance
from shoal.doctor.flink import Job, JobLog
from shoal.doctor.history_file import check_outside
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.rollup import FINE_SPAN
from shoal.doctor.take import Known, take
from shoal.doctor.window import CHANGELOG, FLUSH, REMOVAL, REWRITE, Window
from shoal.errors import BadRequest, ShoalError, Unsupported
from shoal.table.metadata import Metadata
from shoal.table.table import Table

SCHEMA = "shoal.doctor.watch/1"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one table: what it saw, or why it could not."""

    name: str
    at_ms: int
    window: Window | None
    trouble: ShoalError | None = None
    job: Job | None = None  # the Flink job that writes it, where one was asked
    job_trouble: ShoalError | None = None

    def to_dict(self) -> dict[str, Any]:  # JSON
        out: dict[str, Any] = {"schema": SCHEMA, "table": self.name, "at_ms": self.at_ms}
        if self.trouble is not None:
            return {**out, "error": self.trouble.code, "message": self.trouble.message}
        w = self.window
        assert w is not None
        counts = flow_counts(w)
        return {
            **out,
            "latest": w.stock.latest,
            "earliest": w.stock.earliest,
            "snapshots": len(w.steps),
            "files": counts,
            "live_files": live_files(w),
            "holders": len(w.stock.holders),
            "gaps": sum(g.last - g.first + 1 for g in w.gaps),
            "events": [{"kind": e.kind, "what": e.what, "snapshot": e.snapshot} for e in w.events],
            "requests": w.stock.requests,
            "bytes_read": w.stock.bytes_read,
            "partial": w.stock.partial,
            **self._of_job(),
        }

    def _of_job(self) -> dict[str, Any]:  # JSON
        if self.job_trouble is not None:
            return {"flink": {"error": self.job_trouble.code, "message": self.job_trouble.message}}
        if self.job is None:
            return {}
        done = [c for c in self.job.checkpoints if c.status == "COMPLETED"]
        return {
            "flink": {
                "job": self.job.id, "state": self.job.state, "last_completed": done[-1].id if done else None,
                "failed": self.job.counts.get("failed"), "restored": self.job.counts.get("restored"),
            }
        }  # fmt: skip

    def line(self) -> str:
        """The look as one line for people."""
        from datetime import UTC, datetime

        time = datetime.fromtimestamp(self.at_ms / 1000, UTC).strftime("%H:%M:%SZ")
        if self.trouble is not None:
            return f"{time}  {self.name}  {self.trouble.code}: {self.trouble.message}"
        w = self.window
        assert w is not None
        made = flow_counts(w)
        latest = "no snapshot" if w.stock.latest is None else f"snapshot {w.stock.latest}"
        parts = [f"{latest} (+{len(w.steps)})"]
        parts += [f"+{made[word]} {word}" for word in (FLUSH, REWRITE, CHANGELOG) if made[word]]
        parts += [f"-{made[REMOVAL]}"] if made[REMOVAL] else []
        live = live_files(w)
        parts.append("live files not known" if live is None else f"live {live:,}")
        parts += [f"{e.kind}: {e.what}" for e in w.events]
        parts += [f"snapshots {g.first} to {g.last} {g.kind}" for g in w.gaps]
        if self.job is not None:
            parts.append(f"{max((c.id for c in self.job.checkpoints), default=0):,} checkpoints begun")
        if self.job_trouble is not None:
            parts.append(f"flink: {self.job_trouble.code}: {self.job_trouble.message}")
        return f"{time}  {self.name}  {', '.join(parts)}  [{w.stock.requests} requests]"


def flow_counts(window: Window) -> dict[str, int]:
    """Files by class; an upgrade counts once."""
    import pyarrow.compute as pc

    flows = window.flows
    gained = flows.filter(
        pc.or_(pc.equal(flows.column("change"), 1), pc.equal(flows.column("class"), REMOVAL))
    )  # fmt: skip
    sums = gained.group_by("class").aggregate([("files", "sum")])
    found = dict(zip(sums.column("class").to_pylist(), sums.column("files_sum").to_pylist()))
    return {word: int(found.get(word, 0)) for word in (FLUSH, REWRITE, "upgrade", REMOVAL, CHANGELOG)}


def live_files(window: Window) -> int | None:
    import pyarrow.compute as pc

    if window.steps:
        return window.steps[-1].live_files
    return None if window.start is None else int(pc.sum(window.start.column("files"), min_count=0).as_py())


def metadata_of(table: Table) -> Metadata:
    """The metadata that a look reads; tables without snapshots of their own are refused."""
    found = getattr(table, "metadata", None)
    if not isinstance(found, Metadata):
        raise Unsupported(f"{table.name} is a folder of plain files: it has no snapshots to look at")
    return found


def look_and_keep(table: Table, history: HistoryStore, *, clock: Clock, budget: Allowance = FREE) -> Window:
    """Catch up with a table and keep it; what was new. `history.window(table's address)` has all of it."""
    metadata = metadata_of(table)
    check_outside(history.path, metadata.store.uri)
    window = take(metadata, name=table.name, clock=clock, known=history.known(metadata.store.uri), budget=budget)
    history.append(window)
    return window


def watch(
    tables: Callable[[], Sequence[Table]], history: HistoryStore, *, clock: Clock, scheduler: Scheduler,
    every_s: float, once: bool = False, budget: Allowance = FREE, jobs: JobLog | None = None,
) -> Iterator[Look]:  # fmt: skip
    """Look at the tables every so often, endlessly or once. `tables` is asked each time: some may be new.

    `jobs` are the Flink jobs that write them.
    """
    if not every_s > 0:
        raise BadRequest(f"cannot look every {every_s} s", hint="give a time above 0, e.g. 10s")
    known: dict[str, Known] = {}
    next_at, next_roll = clock.monotonic(), clock.now_ms()
    while True:
        looks = []
        for table in tables():
            try:
                metadata = metadata_of(table)
                check_outside(history.path, metadata.store.uri)
            except Unsupported as err:
                yield Look(table.name, clock.now_ms(), None, err)
                continue
            uri = metadata.store.uri
            # another process may have seen more meanwhile; the state is only read from the file where it did
            kept = history.known(uri, than=known.get(uri))
            known[uri] = kept

            def work(metadata: Metadata = metadata, name: str = table.name, kept: Known = kept) -> Window:
                return take(metadata, name=name, clock=clock, known=kept, budget=budget)

            looks.append((table.name, uri, scheduler.submit(work)))
        for name, uri, future in looks:
            at = clock.now_ms()
            try:
                window = scheduler.wait(future)
            except ShoalError as err:
                yield Look(name, at, None, err)
                continue
            history.append(window)
            known[uri] = Known.of(window)
            yield _with_job(Look(name, at, window), jobs, history, uri, clock)
        if clock.now_ms() >= next_roll:
            history.roll_up(clock.now_ms())
            next_roll = clock.now_ms() + FINE_SPAN
        if once:
            return
        next_at = max(next_at + every_s, clock.monotonic())  # a slow look is not followed by a burst
        _rest(clock, next_at, jobs)


def _with_job(look: Look, jobs: JobLog | None, history: HistoryStore, uri: str, clock: Clock) -> Look:
    """A look with what the table's job says, kept."""
    if jobs is None:
        return look
    try:
        job = jobs.job(look.name)
    except ShoalError as err:
        return replace(look, job_trouble=err)
    if job is not None:
        history.keep_job(uri, look.name, job, clock.now_ms())
    return replace(look, job=job)


def _rest(clock: Clock, until: float, jobs: JobLog | None) -> None:
    """Sleep until a time of the monotonic clock, with a glance at the jobs before they forget."""
    while (left := until - clock.monotonic()) > 0:
        pause = None if jobs is None else jobs.pause_s
        clock.sleep(left if pause is None else min(left, pause))
        if jobs is not None and until - clock.monotonic() > 0:
            jobs.glance()
