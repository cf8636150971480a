# SPDX-License-Identifier: Apache-2.0
"""Flink jobs and their checkpoints in the history: each answer adds to what earlier ones told.

Flink remembers ten checkpoints, the history keeps them as long as snapshots stay single ones. Invariants: the last
word on a checkpoint stays, whatever the order in which two processes ask; one that is forgotten here still counts as
seen (`Job.dropped`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.doctor.flink import Checkpoint, CheckpointConfig, Job
from shoal.doctor.window import Event

# Metrics are of one moment: when nobody has asked the job for so long, they say nothing of now.
_STALE_MS = 10 * 60_000
_CHECKPOINT = "id, status, trigger_ms, ack_ms, duration_ms, state_size, savepoint, failed_ms, failure"


def put_job(db: sqlite3.Connection, source: int, job: Job, now_ms: int) -> list[Event]:
    """Keep what a job said by `now_ms`; the event to tell when another job wrote the table until now."""
    name = job.id or ""
    other = db.execute(
        "SELECT id, name FROM flink_job WHERE source = ? AND id <> ? ORDER BY seen_ms DESC LIMIT 1", (source, name)
    ).fetchone()
    known = db.execute("SELECT forgotten FROM flink_job WHERE source = ? AND id = ?", (source, name)).fetchone()
    db.execute(
        "INSERT INTO flink_job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, NULL) ON CONFLICT (source, id) DO "
        "UPDATE SET seen_ms = excluded.seen_ms, name = excluded.name, state = excluded.state, started_ms = "
        "excluded.started_ms, flink = excluded.flink, address = excluded.address, config = excluded.config, "
        "counts = excluded.counts, durations = excluded.durations, metrics = excluded.metrics, backpressure = "
        "excluded.backpressure WHERE excluded.seen_ms >= flink_job.seen_ms",
        (
            source, name, now_ms, job.name, job.state, job.started_ms, job.flink, job.at,
            json.dumps(asdict(job.config)), json.dumps(dict(job.counts)), json.dumps(dict(job.durations)),
            json.dumps({k: dict(v) for k, v in job.metrics.items()}), json.dumps(dict(job.backpressure)),
        ),
    )  # fmt: skip
    forgotten = -1 if known is None or known[0] is None else known[0]
    db.executemany(
        f"INSERT INTO flink_checkpoint VALUES ({', '.join('?' * 11)}) ON CONFLICT (source, job, id) DO UPDATE SET "
        "status = excluded.status, ack_ms = excluded.ack_ms, duration_ms = excluded.duration_ms, state_size = "
        "excluded.state_size, failed_ms = excluded.failed_ms, failure = excluded.failure "
        "WHERE flink_checkpoint.status = 'IN_PROGRESS'",
        [
            (source, name, c.id, c.status, c.trigger_ms, c.ack_ms, c.duration_ms, c.state_size, c.savepoint,
             c.failed_ms, c.failure)
            for c in job.checkpoints if c.id > forgotten
        ],
    )  # fmt: skip
    if known is not None or other is None:
        return []
    return [Event(now_ms, "job", f"job {name} ({job.name}) writes in place of {other[0]} ({other[1]})")]


def job_of(db: sqlite3.Connection, source: int, since_ms: int | None, now_ms: int | None) -> Job | None:
    """The job that was seen last, with all its checkpoints that are kept, or those begun since a time."""
    row = db.execute("SELECT * FROM flink_job WHERE source = ? ORDER BY seen_ms DESC, id LIMIT 1", (source,)).fetchone()
    if row is None:
        return None
    (_, name, seen, title, state, started, flink, at, config, counts, durations, metrics, pressure, dropped, _) = row
    rows = db.execute(
        f"SELECT {_CHECKPOINT} FROM flink_checkpoint WHERE source = ? AND job = ? ORDER BY id", (source, name)
    ).fetchall()
    wanted = [r for r in rows if since_ms is None or r[2] >= since_ms]
    fresh = now_ms is None or now_ms - seen <= _STALE_MS
    return Job(
        at, name or None, title, state, started, flink, CheckpointConfig(**json.loads(config)),
        tuple(map(_checkpoint, wanted)),
        json.loads(counts), json.loads(durations),
        json.loads(metrics) if fresh else {}, json.loads(pressure) if fresh else {},
        dropped + len(rows) - len(wanted),
    )  # fmt: skip


def _checkpoint(row: Sequence[Any]) -> Checkpoint:
    number, status, trigger, ack, duration, size, savepoint, failed, failure = row
    return Checkpoint(number, status, trigger, ack, duration, size, bool(savepoint), failed, failure)


def forget_old(db: sqlite3.Connection, source: int, cut_ms: int, end_ms: int) -> None:
    """Forget checkpoints begun before `cut_ms`, and jobs that nobody has seen since `end_ms`."""
    old = "FROM flink_checkpoint WHERE source = ? AND trigger_ms < ?"
    for name, count, last in db.execute(
        f"SELECT job, count(*), max(id) {old} GROUP BY job", (source, cut_ms)
    ).fetchall():
        db.execute(
            "UPDATE flink_job SET dropped = dropped + ?, forgotten = max(coalesce(forgotten, -1), ?) "
            "WHERE source = ? AND id = ?",
            (count, last, source, name),
        )
    db.execute(f"DELETE {old}", (source, cut_ms))
    db.execute("DELETE FROM flink_job WHERE source = ? AND seen_ms < ?", (source, end_ms))
