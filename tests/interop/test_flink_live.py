# SPDX-License-Identifier: Apache-2.0
"""A real Flink job that writes at a checkpoint a second, watched while it runs and joined by checkpoint id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest

from shoal.catalog.filesystem import Lake
from shoal.cli.main import main
from shoal.doctor.diagnose.case import case
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.flink import Job, LiveJob, Rest
from shoal.doctor.take import take
from shoal.doctor.timeline import timeline
from shoal.doctor.window import Window
from shoal.store import LocalStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

FLINK = Path(os.environ.get("SHOAL_ORACLE", Path(__file__).parents[3] / "shared" / "oracle")) / "flink-rest"
ENOUGH, LONGEST_S = 45, 90  # snapshots to watch, seconds to wait for them


@dataclass(frozen=True)
class Watched:
    """The job as it was polled from its first checkpoint on, and a look at its table before the last poll."""

    warehouse: Path
    url: str
    job: Job
    window: Window


def why_not() -> str | None:
    if shutil.which("javac") is None:
        return "javac is missing: the Flink job needs Java 17"
    if not FLINK.is_file():
        return f"no {FLINK}; set SHOAL_ORACLE to the oracle folder"
    return None


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    top = tmp_path_factory.mktemp("flink")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [f"warehouse=file:{top}/lake", f"port={port}", f"seconds={LONGEST_S + 60}", "interval=1 s", "keys=5000"]
    with (top / "err").open("wb") as err:
        process = subprocess.Popen([str(FLINK), *line], stdout=subprocess.PIPE, stderr=err, start_new_session=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        assert told, (top / "err").read_text()[-2000:]
        url = json.loads(told)["rest"]
        yield _watch(top / "lake", url)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _watch(warehouse: Path, url: str) -> Watched:
    """Flink remembers ten checkpoints, here ten seconds: a thread of its own asks, however long a look takes."""
    live, enough = LiveJob(Rest(url), table="d.t"), Event()

    def ask() -> None:
        while not enough.wait(1):
            live.look()

    asking = Thread(target=ask)
    asking.start()
    try:
        metadata = Lake(LocalStore(warehouse)).table("d.t").metadata
        end = time.monotonic() + LONGEST_S
        while (metadata.latest_id() or 0) < ENOUGH and time.monotonic() < end:
            time.sleep(1)
        window = take(metadata, name="d.t")
    finally:
        enough.set()
        asking.join()
    return Watched(warehouse, url, live.poll(), window)


def test_every_snapshot_is_a_checkpoint_that_flink_told_of(watched: Watched) -> None:
    job, steps = watched.job, watched.window.steps
    assert len(steps) >= 20
    assert {s.identifier for s in steps} <= {c.id for c in job.checkpoints}
    assert job.missed == 0 and job.not_begun <= job.counts["failed"]
    assert job.config.interval_ms == 1000 and job.metric("lastCommitDuration", "t")
    t = timeline(watched.window, None, job)
    assert t.join is not None
    assert t.join.matched == t.join.identifiers == len({s.identifier for s in steps})
    assert t.join.offset_ms is not None and t.join.offset_ms >= 0  # one machine, one clock
    for name in ("checkpoint", "ack to commit"):
        assert next(s for s in t.lane("durations").series if s.name == name).points
    assert t.lane("interval").levels == {"configured": 1.0}


def test_the_command_sees_the_running_job(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["doctor", "timeline", "d.t", "-w", str(watched.warehouse), "--flink", watched.url, "--follow", "2s"]
    assert main([*line, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["join"]["matched"] == found["join"]["identifiers"] > 0


def test_a_checkpoint_a_second_is_too_frequent(watched: Watched) -> None:
    found = diagnose(case(watched.window, job=watched.job))
    worst = [f.id for f in found if f.severity != "info"]
    assert worst[:1] == ["D1"]
