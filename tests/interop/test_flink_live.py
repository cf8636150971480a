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
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from shoal.catalog.filesystem import Lake
from shoal.cli.main import main
from shoal.doctor.diagnose.case import case
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.flink import Job, LiveJob, Rest
from shoal.doctor.take import take
from shoal.doctor.timeline import timeline
from shoal.doctor.window import Window
from shoal.errors import ShoalError
from shoal.store import LocalStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

FLINK = Path(os.environ.get("SHOAL_ORACLE", Path(__file__).parents[3] / "shared" / "oracle")) / "flink-rest"
ENOUGH, LONGEST_S = 45, 180  # snapshots to watch, seconds to wait for them


class Heard:
    """Flink's answers, and the ids of the checkpoints in each of them."""

    def __init__(self, rest: Rest) -> None:
        self.at, self._rest = rest.at, rest
        self.answers: list[set[int]] = []

    def get(self, path: str) -> Any:
        answer = self._rest.get(path)
        if path.endswith("/checkpoints"):
            self.answers.append({row["id"] for row in answer["history"]})
        return answer


@dataclass(frozen=True)
class Watched:
    """The job as it was polled from its first checkpoint on, and a look at its table before the last poll."""

    warehouse: Path
    url: str
    job: Job
    window: Window
    answers: list[set[int]]


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
    line = [f"warehouse=file:{top}/lake", f"port={port}", f"seconds={LONGEST_S + 120}", "interval=1 s", "keys=5000"]
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
    heard, enough = Heard(Rest(url, timeout_s=60)), Event()
    live = LiveJob(heard, table="d.t")

    def ask() -> None:
        while not enough.wait(1):
            with suppress(ShoalError):  # no answer in time: the next one may have a gap, and the job has to tell so
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
    # Flink gives the same answer so long: one that was made before the look knows nothing of the newest snapshots
    time.sleep(heard.get("config")["refresh-interval"] / 1000 + 0.1)
    return Watched(warehouse, url, live.poll(), window, heard.answers)


def test_nothing_that_flink_told_is_lost_and_what_it_forgot_is_counted(watched: Watched) -> None:
    told = set().union(*watched.answers)
    assert [c.id for c in watched.job.checkpoints] == sorted(told)
    # a job that was not restored counts from 1
    assert watched.job.missed == max(told) - len(told)
    assert watched.job.not_begun <= watched.job.counts["failed"]


def test_every_snapshot_is_a_checkpoint_that_flink_told_of(watched: Watched) -> None:
    """Where one answer follows another within ten checkpoints none is missing; under load they may lie apart."""
    own, answers = {s.identifier for s in watched.window.steps}, [a for a in watched.answers if a]
    assert len(watched.window.steps) >= 20
    for answer in answers:
        assert {i for i in own if min(answer) <= i <= max(answer)} <= answer
    assert max(own) <= max(answers[-1])  # the last answer is newer than the look
    apart = {i for a, b in pairwise([{0}, *answers]) for i in range(max(a) + 1, min(b))}
    assert own - set().union(*answers) == own & apart


def test_snapshots_and_checkpoints_are_joined(watched: Watched) -> None:
    job, own = watched.job, {s.identifier for s in watched.window.steps}
    assert job.config.interval_ms == 1000 and job.metric("lastCommitDuration", "t")
    t = timeline(watched.window, None, job)
    assert t.join is not None and t.join.newer == 0
    assert t.join.matched == len(own & {c.id for c in job.checkpoints}) > 0
    assert t.join.identifiers == len([i for i in own if i >= job.checkpoints[0].id])
    assert t.join.offset_ms is not None and t.join.offset_ms >= 0  # one machine, one clock
    for name in ("checkpoint", "ack to commit"):
        assert next(s for s in t.lane("durations").series if s.name == name).points
    assert t.lane("interval").levels == {"configured": 1.0}


def test_the_command_sees_the_running_job(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["doctor", "timeline", "d.t", "-w", str(watched.warehouse), "--flink", watched.url, "--follow", "2s"]
    assert main([*line, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    join = found["join"]
    assert 0 < join["matched"] <= join["identifiers"] <= join["matched"] + join["missed"]


def test_a_checkpoint_a_second_is_too_frequent(watched: Watched) -> None:
    found = diagnose(case(watched.window, job=watched.job))
    worst = [f.id for f in found if f.severity != "info"]
    assert worst[:1] == ["D1"]
