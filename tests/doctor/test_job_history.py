# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the history: what Flink forgot is there, also when nobody can ask it any more."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_tables import Made

import shoal
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.flink import Checkpoint, Job, JobLog, checkpoints_of, saved_job
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.timeline import timeline
from shoal.doctor.watch import look_and_keep, watch

DATA = Path(__file__).parent / "data"
HOUR = 3_600_000
URI = "memory:t"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("flink")
    with tarfile.open(DATA / "flink-rest-sample.tar.xz") as tar:
        tar.extractall(where, filter="data")
    return where / "flink-rest-sample"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryStore]:
    with HistoryStore(tmp_path / "h.sqlite") as store:
        yield store


def answers(sample: Path) -> list[Job]:
    """The job as each of its saved polls alone tells it."""
    whole = saved_job(sample)
    polls = [json.loads(p.read_text()) for p in sorted(sample.glob("checkpoints-[0-9]*.json"))]
    return [replace(whole, checkpoints=checkpoints_of([p]), counts=p["counts"]) for p in polls]


def test_answers_add_up_to_all_checkpoints(sample: Path, history: HistoryStore) -> None:
    polls = answers(sample)
    assert polls[-1].checkpoints[0].id == 3  # Flink had forgotten two
    for n, job in enumerate(polls):
        history.keep_job(URI, "d.t", job, 1000 + n)
    kept = history.job(URI)
    assert kept is not None
    assert kept == replace(saved_job(sample), at=kept.at)
    assert kept.missed == 0 and [c.id for c in kept.checkpoints] == list(range(1, 13))
    late = kept.checkpoints[7].trigger_ms
    part = history.job(URI, since_ms=late)
    assert part is not None and [c.id for c in part.checkpoints] == list(range(8, 13)) and part.missed == 0


def test_answers_in_another_order_leave_the_last_word(history: HistoryStore) -> None:
    begun = Checkpoint(7, "IN_PROGRESS", 5000, None, None, None)
    done = replace(begun, status="COMPLETED", ack_ms=5400, duration_ms=400)
    for seen, word in ((2000, done), (1000, begun)):
        history.keep_job(URI, "d.t", Job("x", "j", checkpoints=(word,), counts={"total": seen}), seen)
    kept = history.job(URI)
    assert kept is not None and kept.checkpoints == (done,) and kept.counts == {"total": 2000}


def test_old_checkpoints_go_with_the_snapshots_and_still_count_as_seen(history: HistoryStore) -> None:
    made = Made()
    made.commits(1)
    look_and_keep(made.table, history, clock=made.clock)
    uri, now = made.table.store.uri, made.clock.now_ms()
    minutes = tuple(Checkpoint(i, "COMPLETED", now + i * 60_000, now + i * 60_000 + 20, 20, 1) for i in range(1, 61))
    job = Job("x", "j", checkpoints=minutes, counts={"total": 60, "failed": 0, "restored": 0})
    history.keep_job(uri, "d.t", job, now)
    later = now + 48 * HOUR + 30 * 60_000
    history.roll_up(later)
    kept = history.job(uri)
    assert kept is not None
    cut = (later - 48 * HOUR) // 300_000 * 300_000
    assert [c.id for c in kept.checkpoints] == [c.id for c in minutes if c.trigger_ms >= cut]
    assert 20 < len(kept.checkpoints) < 40 and kept.dropped == 60 - len(kept.checkpoints)
    assert (kept.missed, kept.not_begun) == (0, 0)
    history.keep_job(uri, "d.t", job, later)  # an answer that still has them
    assert history.job(uri) == replace(kept, metrics={}, backpressure={})
    history.roll_up(later + 400 * 24 * HOUR)
    assert history.job(uri) is None


def test_metrics_of_long_ago_are_left_out(history: HistoryStore) -> None:
    made = Made()
    made.commits(1)
    uri = made.table.store.uri
    job = Job("x", "j", metrics={"compactionThreadBusy": {"0.t": 99.0}}, backpressure={"Writer": 0.9})
    history.keep_job(uri, "d.t", job, made.clock.now_ms())
    look_and_keep(made.table, history, clock=made.clock)
    assert history.job(uri) == job
    made.clock.sleep(700)
    look_and_keep(made.table, history, clock=made.clock)
    assert history.job(uri) == replace(job, metrics={}, backpressure={})


def test_another_job_is_told(history: HistoryStore) -> None:
    made = Made()
    made.commits(2)
    uri = made.table.store.uri
    look_and_keep(made.table, history, clock=made.clock)
    history.keep_job(uri, "d.t", Job("x", "a", "ingest"), made.clock.now_ms())
    made.commits(2)
    history.keep_job(uri, "d.t", Job("x", "b", "ingest-2"), made.clock.now_ms())
    history.keep_job(uri, "d.t", Job("x", "b", "ingest-2"), made.clock.now_ms())
    look_and_keep(made.table, history, clock=made.clock)
    window = history.window(uri)
    assert [(e.kind, e.what) for e in window.events] == [("job", "job b (ingest-2) writes in place of a (ingest)")]
    found = timeline(window, None, history.job(uri))
    assert "job: job b (ingest-2) writes in place of a (ingest)" in [c.says for c in found.changes if c.act]


def test_a_history_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    made, path = Made(), tmp_path / "h.sqlite"
    made.commits(4)
    with HistoryStore(path) as history:
        look_and_keep(made.table, history, clock=made.clock)
        before = history.window(made.table.store.uri)
    with sqlite3.connect(path) as db:
        for name in ("flink_job", "flink_checkpoint"):
            db.execute(f"DROP TABLE {name}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with HistoryStore(path) as one, HistoryStore(path) as other:
        after = one.window(made.table.store.uri)
        assert after.steps == before.steps and after.flows.equals(before.flows)
        other.keep_job(made.table.store.uri, "d.t", Job("x", "j"), 5)
        assert one.job(made.table.store.uri) == Job("x", "j")
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    db.close()


def test_a_forgotten_table_has_no_job(history: HistoryStore) -> None:
    history.keep_job(URI, "d.t", Job("x", "j", checkpoints=(Checkpoint(1, "COMPLETED", 1, 2, 1, 0),)), 5)
    history.forget(URI)
    assert history.job(URI) is None and history.tables() == {}
    history.keep_job(URI, "d.t", Job("x", "j"), 5)
    kept = history.job(URI)
    assert kept is not None and kept.checkpoints == ()


# ---- watching ---------------------------------------------------------------------------------------------


class Cluster:
    """A Flink cluster on the test's clock: a checkpoint every `interval_s`, ten of them in each answer."""

    at = "http://flink"

    def __init__(self, clock: ManualClock, interval_s: float, writes: dict[str, str]) -> None:
        self.clock, self.interval_s = clock, interval_s
        self.writes = writes  # the table that each job writes
        self.begun = dict.fromkeys(writes, clock.now_ms())
        self.states = dict.fromkeys(writes, "RUNNING")
        self.down = False
        self.asked = 0

    def taken(self, job: str) -> int:
        return int((self.clock.now_ms() - self.begun[job]) / 1000 / self.interval_s)

    def get(self, path: str) -> Any:
        self.asked += 1
        if self.down:
            raise shoal.StorageFailed(f"{self.at}/{path}: no answer")
        if path == "jobs/overview":
            return {"jobs": [{"jid": j, "name": f"ingest {j}", "state": s} for j, s in self.states.items()]}
        if path == "config":
            return {"flink-version": "2.0.1"}
        job, _, rest = path.removeprefix("jobs/").partition("/")
        if job not in self.writes:
            raise shoal.NotFound(f"{self.at}/{path}: Flink does not know it")
        if rest == "":
            vertex = {"id": "v", "name": f"Global Committer : {self.writes[job]}"}
            return {"jid": job, "name": f"ingest {job}", "state": self.states[job], "vertices": [vertex]}
        if rest == "checkpoints/config":
            return {"interval": int(self.interval_s * 1000), "mode": "exactly_once"}
        if rest == "checkpoints":
            count = self.taken(job)
            ids = range(max(1, count - 9), count + 1)
            return {"counts": {"total": count, "restored": 0, "failed": 0}, "history": [self.row(job, i) for i in ids]}
        return {} if rest.endswith("backpressure") else []

    def row(self, job: str, i: int) -> dict[str, Any]:
        at = self.begun[job] + round(i * self.interval_s * 1000)
        return {
            "id": i, "status": "COMPLETED", "trigger_timestamp": at, "latest_ack_timestamp": at + 5,
            "end_to_end_duration": 5, "state_size": 10, "is_savepoint": False,
        }  # fmt: skip


def test_a_watch_keeps_every_checkpoint_though_flink_remembers_ten(history: HistoryStore) -> None:
    made = Made()
    made.commits(2)
    cluster = Cluster(made.clock, 1, {"a": "t"})
    jobs = JobLog(cluster)
    looks = watch(
        lambda: [made.table], history, clock=made.clock, scheduler=ManualScheduler(), every_s=60, jobs=jobs
    )  # fmt: skip
    for _ in range(5):
        look = next(looks)
    assert made.clock.now_ms() - cluster.begun["a"] == 240_000
    kept = history.job(made.table.store.uri)
    assert kept is not None and [c.id for c in kept.checkpoints] == list(range(1, 241)) and kept.missed == 0
    assert [c.trigger_ms for c in kept.checkpoints] == [cluster.row("a", i)["trigger_timestamp"] for i in range(1, 241)]
    assert cluster.asked < 2 * 240 / 2 + 5 * 8 + 4  # two glances in five seconds would be too many
    assert look.to_dict()["flink"]["last_completed"] == 240 and "240 checkpoints begun" in look.line()


def test_a_cluster_that_is_down_stops_no_watch_and_is_told(history: HistoryStore) -> None:
    made = Made()
    made.commits(2)
    cluster = Cluster(made.clock, 5, {"a": "t"})
    looks = watch(
        lambda: [made.table], history, clock=made.clock, scheduler=ManualScheduler(), every_s=30, jobs=JobLog(cluster)
    )  # fmt: skip
    next(looks)
    cluster.down = True
    made.commits(1)
    down = next(looks)
    assert down.window is not None and len(down.window.steps) == 1 and isinstance(down.job_trouble, shoal.StorageFailed)
    assert down.to_dict()["flink"] == {"error": "SH-STORAGE", "message": down.job_trouble.message}
    assert "no answer" in down.line()
    cluster.down = False
    again = next(looks)
    assert again.job is not None and again.job_trouble is None
    kept = history.job(made.table.store.uri)
    assert kept is not None and kept.checkpoints[-1].id == cluster.taken("a")
    assert kept.missed == cluster.taken("a") - len(kept.checkpoints)


def test_a_job_that_was_started_again_is_found(history: HistoryStore) -> None:
    made = Made()
    made.commits(2)
    cluster = Cluster(made.clock, 5, {"a": "t"})
    looks = watch(
        lambda: [made.table], history, clock=made.clock, scheduler=ManualScheduler(), every_s=30, jobs=JobLog(cluster)
    )  # fmt: skip
    next(looks)
    cluster.states["a"] = "CANCELED"
    assert next(looks).job is not None
    cluster.writes["b"], cluster.states["b"], cluster.begun["b"] = "t", "RUNNING", made.clock.now_ms()
    found = next(looks).job
    assert found is not None and found.id == "b"
    del cluster.writes["b"], cluster.states["b"]  # a session cluster that was started anew knows neither
    cluster.writes["c"], cluster.states["c"], cluster.begun["c"] = "t", "RUNNING", made.clock.now_ms()
    found = next(looks).job
    assert found is not None and found.id == "c"


def test_of_several_tables_each_has_its_own_job(history: HistoryStore) -> None:
    clock = ManualClock()
    cluster = Cluster(clock, 5, {"a": "orders", "b": "items"})
    log = JobLog(cluster, only=False)
    found = [log.job(name) for name in ("shop.orders", "shop.items", "shop.none")]
    assert [None if j is None else j.id for j in found] == ["a", "b", None]
    cluster.writes["b"] = "orders"
    with pytest.raises(shoal.BadRequest, match=r"several jobs write shop\.orders: a, b"):
        JobLog(cluster, only=False).job("shop.orders")
    named = JobLog(cluster, "ingest b", only=False).job("shop.orders")
    assert named is not None and named.id == "b"
