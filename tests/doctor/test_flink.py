# SPDX-License-Identifier: Apache-2.0
"""Flink's answers as values, and checkpoints joined with snapshots, held against a real job's saved answers.

`data/flink-rest-sample.tar.xz` was saved from Flink 2.0.1 with Paimon 2.0.0: a job with 5 s checkpoints, and in
`failed-checkpoints` one at 2 s of whose checkpoints most timed out.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import shoal
from shoal.clock import ManualClock
from shoal.doctor.checkpoints import bursts, join, restarts, rhythm_ms, writers_of
from shoal.doctor.flink import Checkpoint, Job, LiveJob, Rest, checkpoints_of, follow, saved_job
from shoal.doctor.window import NOTHING, SnapshotFacts

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("flink")
    with tarfile.open(DATA / "flink-rest-sample.tar.xz") as tar:
        tar.extractall(where, filter="data")
    return where / "flink-rest-sample"


def facts(snapshot: int, kind: str, identifier: int, time_ms: int, user: str = "u") -> SnapshotFacts:
    return SnapshotFacts(
        id=snapshot, schema_id=0, user=user, identifier=identifier, kind=kind, time_ms=time_ms, total_records=0,
        delta_records=0, changelog_records=0, watermark=None, operation=None, lists=("", ""), wrote={},
        manifests=NOTHING, entries=0, dead_entries=0, live_files=0, identity_holds=True,
    )  # fmt: skip


def steps(folder: Path) -> list[SnapshotFacts]:
    rows = map(json.loads, (folder / "snapshots.jsonl").read_text().splitlines())
    return [facts(r["id"], r["commitKind"], r["commitIdentifier"], r["timeMillis"], r["commitUser"]) for r in rows]


def test_a_saved_job(sample: Path) -> None:
    job = saved_job(sample)
    assert (job.name, job.state, job.flink) == ("insert-into_p.d.t", "RUNNING", "2.0.1")
    c = job.config
    assert (c.interval_ms, c.timeout_ms, c.min_pause_ms, c.max_concurrent) == (5000, 600_000, 0, 1)
    # the last answer alone forgot the first two
    assert [x.id for x in job.checkpoints] == list(range(1, 13)) and job.missed == 0
    first = job.checkpoints[0]
    assert (first.trigger_ms, first.ack_ms, first.duration_ms) == (1795991336140, 1795991336791, 651)
    assert job.durations["max"] == 651 and job.durations["p50"] == 35
    assert job.metric("commitDuration_p99") == [327.0]
    assert job.metric("compactionTotalCount", "t") == [4.0, 4.0]
    assert job.metric("compactionTotalCount", "another") == []
    assert list(job.backpressure.values()) == [0.0, 0.0, 0.0]


def test_the_last_answer_alone_says_what_it_missed(sample: Path) -> None:
    seen = checkpoints_of([json.loads((sample / "checkpoints-12.json").read_text())])
    assert [c.id for c in seen] == list(range(3, 13))


@pytest.mark.parametrize(
    ("ids", "counts", "missed", "not_begun"),
    [
        # seen live: triggers that failed while tasks were starting are counted and have no id
        (range(1, 40), {"total": 46, "failed": 7, "restored": 0}, 0, 7),
        (range(20, 40), {"total": 46, "failed": 7, "restored": 0}, 19, 7),
        ([1, 2, 3, 7, 8], {"total": 8, "failed": 0, "restored": 0}, 3, 0),
        (range(101, 111), {"total": 10, "failed": 0, "restored": 1}, 0, 0),
        (range(111, 121), {"total": 20, "failed": 0, "restored": 1}, 10, 0),
        ([], {"total": 4, "failed": 1, "restored": 0}, 4, 0),
        ([], {}, 0, 0),
    ],
)
def test_what_was_missed(ids: Any, counts: dict[str, int], missed: int, not_begun: int) -> None:
    seen = tuple(Checkpoint(i, "COMPLETED", i, i, 0, 0) for i in ids)
    job = Job("x", counts=counts, checkpoints=seen)
    assert (job.missed, job.not_begun) == (missed, not_begun)


def test_each_checkpoint_has_its_snapshots(sample: Path) -> None:
    joined = join(steps(sample), saved_job(sample))
    assert [j.identifier for j in joined] == list(range(1, 13))
    assert {j.identifier: j.snapshots for j in joined if len(j.snapshots) > 1} == {
        6: (6, 7),
        10: (11, 12),
        11: (13, 14),
    }
    late = [j.late_ms for j in joined]
    assert late == [298, 50, 16, 15, 18, 19, 7, 8, 6, 18, 8, 8]  # timeMillis - latest_ack_timestamp
    assert not any(j.of_failed for j in joined)
    assert bursts(steps(sample)) == () and restarts(steps(sample)) == ()


def test_failed_checkpoints_are_committed_with_the_next_that_completes(sample: Path) -> None:
    folder = sample / "failed-checkpoints"
    job, own = saved_job(folder), steps(folder)
    joined = {j.identifier: j for j in join(own, job)}
    for identifier in range(4, 10):
        j = joined[identifier]
        assert j.of_failed and j.completed is not None and j.completed.id == 10
    assert joined[4].late_ms == 1795991578019 - 1795991577996
    assert (joined[3].of_failed, joined[10].of_failed) == (False, False)
    # without Flink: dense ids in a row
    assert [(b.first, b.last) for b in bursts(own)] == [(1, 3), (4, 10), (12, 14), (15, 16), (18, 21), (22, 23)]
    firsts = {s.identifier: s for s in reversed(own)}
    rhythm = rhythm_ms([firsts[i] for i in sorted(firsts)])
    assert rhythm == pytest.approx(2000, rel=0.15)  # the configured 2 s, although snapshots come in bursts


def test_where_looks_missed_checkpoints_no_lateness_is_guessed(sample: Path) -> None:
    job = saved_job(sample)
    seen = replace(job, checkpoints=tuple(c for c in job.checkpoints if c.id not in (5, 6, 7)))
    joined = {j.identifier: j for j in join(steps(sample), seen)}
    assert {i for i, j in joined.items() if j.checkpoint is None} == {5, 6, 7} and seen.missed == 3
    assert all(joined[i].completed is None and joined[i].late_ms is None for i in (5, 6, 7))
    whole = {j.identifier: j for j in join(steps(sample), job)}
    assert all(joined[i] == whole[i] for i in joined if i not in (5, 6, 7))
    folder = sample / "failed-checkpoints"
    job = saved_job(folder)  # 4 to 9 failed, 10 completed
    seen = replace(job, checkpoints=tuple(c for c in job.checkpoints if c.id != 7))
    joined = {j.identifier: j for j in join(steps(folder), seen)}
    assert [joined[i].late_ms is None for i in range(3, 11)] == [False, *[True] * 4, *[False] * 3]


def test_a_fast_clock_that_stood_for_hours_makes_no_bursts() -> None:
    own = [facts(i, "APPEND", i, 5_000 * i + 7_200_000 * (i // 20), "job") for i in range(1, 90)]
    assert bursts(own) == ()


def test_another_writer_is_not_the_job(sample: Path) -> None:
    other = [facts(100 + s.id, s.kind, s.identifier, s.time_ms + 86_400_000, "other") for s in steps(sample)]
    job = saved_job(sample)
    assert len(join([*steps(sample), *other], job)) == 12
    assert join(other, job) == ()


def test_batches_are_no_checkpoints() -> None:
    assert writers_of([facts(1, "APPEND", 2**63 - 1, 0), facts(2, "COMPACT", 3, 1, "c")]) == {}


def test_identifiers_that_fall_back_or_are_left_out() -> None:
    ids = [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 12, 13, 14]
    found = restarts([facts(n, "APPEND", i, n * 1000) for n, i in enumerate(ids, 1)])
    assert [(r.snapshot, r.before, r.after) for r in found] == [(6, 5, 3), (12, 8, 12)]
    # a writer that skips checkpoints without rows
    assert restarts([facts(n, "APPEND", n * 3 + n % 2, n * 1000) for n in range(1, 9)]) == ()


def test_wrong_addresses_and_folders(tmp_path: Path) -> None:
    with pytest.raises(shoal.NotFound, match="no such folder"):
        saved_job(tmp_path / "nothing")
    with pytest.raises(shoal.NotFound, match=r"checkpoints\.json"):
        saved_job(tmp_path)
    (tmp_path / "checkpoints.json").write_text("<html>")
    with pytest.raises(shoal.Corrupt, match=r"checkpoints\.json: not JSON"):
        saved_job(tmp_path)
    with pytest.raises(shoal.BadRequest, match="no Flink address"):
        Rest("ftp://x")
    with pytest.raises(shoal.StorageFailed, match="no answer"):
        Rest("http://127.0.0.1:9", timeout_s=2).get("jobs")


# ---- a server that answers from the saved files


class Server:
    """Answers as the saved job's server would have at poll number `n`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.n = 5
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = outer.answer(self.path.lstrip("/"))
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, path: str) -> Any:
        path, _, query = path.partition("?")
        parts = path.split("/")
        if path == "jobs/overview":
            return self.saved("jobs-overview")
        if path == "config":
            return self.saved("config")
        if len(parts) < 2 or parts[1] != self.saved("job")["jid"]:
            return None
        vertices = [v["id"] for v in self.saved("job")["vertices"]]
        match parts[2:]:
            case []:
                return self.saved("job")
            case ["checkpoints"]:
                return self.saved(f"checkpoints-{self.n:02}")
            case ["checkpoints", "config"]:
                return self.saved("checkpoints-config")
            case ["vertices", v, "backpressure"]:
                return self.saved(f"backpressure-vertex-{vertices.index(v)}")
            case ["vertices", v, "metrics"]:
                rows = self.saved(f"paimon-metrics-vertex-{vertices.index(v)}") if vertices.index(v) else []
                wanted = query.removeprefix("get=").replace("%2C", ",").split(",")
                return [r for r in rows if r["id"] in wanted] if query else [{"id": r["id"]} for r in rows]
        return None

    def saved(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture
def server(sample: Path) -> Iterator[Server]:
    s = Server(sample)
    thread = Thread(target=s.http.serve_forever, daemon=True)
    thread.start()
    yield s
    s.http.shutdown()
    s.http.server_close()
    thread.join()


def test_a_live_job_is_polled(server: Server, sample: Path) -> None:
    live = LiveJob(Rest(server.url))
    assert [c.id for c in live.poll().checkpoints] == [1, 2, 3, 4, 5]
    server.n = 12
    job = live.poll()
    assert [c.id for c in job.checkpoints] == list(range(1, 13)) and job.missed == 0
    whole = saved_job(sample)
    assert (job.config, job.checkpoints, job.durations) == (whole.config, whole.checkpoints, whole.durations)
    assert job.metric("compactionThreadBusy") == whole.metric("compactionThreadBusy")


def test_a_job_is_followed_so_that_nothing_is_forgotten(server: Server) -> None:
    class Passing(ManualClock):
        """Two checkpoints come with every wait."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            server.n = min(server.n + 2, 12)

    job = follow(LiveJob(Rest(server.url)), clock=Passing(), for_s=60)
    assert [c.id for c in job.checkpoints] == list(range(1, 13)) and job.missed == 0
    assert job.metric("compactionThreadBusy")


def test_which_job(server: Server) -> None:
    jid = server.saved("job")["jid"]
    for job in (jid, "insert-into_p.d.t"):
        assert LiveJob(Rest(server.url), job).poll().id == jid
    with pytest.raises(shoal.BadRequest, match=r"no running job 'x'; running: .*insert-into"):
        LiveJob(Rest(server.url), "x")
