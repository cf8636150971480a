# SPDX-License-Identifier: Apache-2.0
"""What `watch`, `freshness` and `timeline` put into a history, `check` and `timeline` take out of it later."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "doctor" / "data" / "flink-rest-sample.tar.xz"


@pytest.fixture
def job(tmp_path: Path) -> str:
    with tarfile.open(SAMPLE) as tar:
        tar.extractall(tmp_path, filter="data")
    return str(tmp_path / "flink-rest-sample")


def test_checkpoints_that_a_watch_kept_are_in_a_later_timeline(run, warehouse, tmp_path, job):
    history = str(tmp_path / "h.sqlite")
    line = ("shop.orders", "-w", warehouse, "--history", history)
    ran = run("doctor", "watch", *line, "--once", "--flink", job, "-o", "json")
    look = json.loads(ran.out)
    assert ran.code == 0 and look["flink"]["last_completed"] == 12 and look["flink"]["failed"] == 0
    found = json.loads(run("doctor", "timeline", *line, "-o", "json").out)
    series = {s["name"]: s["points"] for s in found["lanes"][0]["series"]}
    assert len(series["by Flink"]) == 11 and found["lanes"][0]["levels"] == {"configured": 5.0}
    assert found["join"]["missed"] == 0
    without = json.loads(run("doctor", "timeline", *line[:3], "-o", "json").out)
    assert without["join"] is None
    ran = run("doctor", "export", *line, "--parquet", str(tmp_path / "out"))
    assert ran.code == 0

    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "out" / "checkpoint.parquet").to_pylist()
    assert [r["id"] for r in rows] == list(range(1, 13)) and {r["status"] for r in rows} == {"COMPLETED"}


def test_check_reads_what_the_history_has_beside_snapshots(run, warehouse, tmp_path):
    history = str(tmp_path / "h.sqlite")
    line = ("shop.orders", "-w", warehouse, "--history", history)
    metrics = ("doctor", "check", *line, "--prometheus", "-")
    commit = "shoal_doctor_freshness_seconds{"
    assert not [r for r in run(*metrics).out.splitlines() if r.startswith(commit) and 'stage="commit"' in r]
    assert run("doctor", "freshness", *line, "--event-time", "id").code == run("doctor", "freshness", *line).code == 0
    assert [r for r in run(*metrics).out.splitlines() if r.startswith(commit) and 'stage="commit"' in r]
    found = json.loads(run("doctor", "check", *line, "-o", "json").out)
    trends = found["model"]["trends"]
    assert trends["retained_files"]["basis"] == "looks" and trends["manifests"]["basis"] == "after merges"
    assert trends["retained_files"]["slope"]["per_minute"] == 0  # five looks at a table that nobody writes to


def test_queries_are_in_later_timelines(run, warehouse, tmp_path):
    log, history = tmp_path / "queries.csv", str(tmp_path / "h.sqlite")
    log.write_text("time,table,duration,files\n2030-01-01,shop.orders,2.5,7\n")
    line = ("doctor", "timeline", "shop.orders", "-w", warehouse, "--history", history, "-o", "json")
    first, later = (json.loads(run(*line, *more).out) for more in (("--query-log", str(log)), ()))
    assert first["lanes"][-1] == later["lanes"][-1]
    assert {s["name"]: s["points"] for s in later["lanes"][-1]["series"]}["query ms"] == [[1893456000000, 2500.0]]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("shop.orders", "--job", "x"), "--job needs --flink"),
        (("shop.*", "--flink", "{folder}"), "saved answers are about one table"),
        (("shop.orders", "--flink", "ftp://x"), "no Flink address"),
        (("shop.orders", "--flink", "{folder}"), "no checkpoints.json"),
    ],
)
def test_a_watch_refuses_what_does_not_fit(run, warehouse, tmp_path: Path, more, says):
    history = ("--history", str(tmp_path / "h.sqlite"))
    (tmp_path / "empty").mkdir()
    line = [m.format(folder=tmp_path / "empty") for m in more]
    ran = run("doctor", "watch", *line, "-w", warehouse, "--once", *history)
    assert ran.code != 0 and says in ran.err
