# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor timeline`: its sources and outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_text_json_and_a_picture(run, warehouse, tmp_path):
    ran = run("doctor", "timeline", "shop.orders", "-w", warehouse)
    assert ran.code == 0 and ran.out.startswith("shop.orders: snapshots 1 to 3, ")
    assert max(map(len, ran.out.splitlines())) <= 80 and "known to Flink alone" in ran.out
    picture = tmp_path / "t.svg"
    ran = run("doctor", "timeline", "shop.orders", "-w", warehouse, "-o", "json", "--svg", str(picture))
    found = json.loads(ran.out)
    assert (found["schema"], found["first"], found["last"], found["join"]) == ("shoal.doctor.timeline/1", 1, 3, None)
    assert picture.read_text().startswith("<svg ") and ran.err == f"shoal: wrote {picture}\n"
    page = run("doctor", "timeline", "shop.orders", "-w", warehouse, "--html", "-").out
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg ") == 2 and "<script" not in page


def test_a_query_log_and_a_history(run, warehouse, tmp_path):
    log = tmp_path / "queries.csv"
    log.write_text("time,table,duration\n2030-01-01,shop.orders,2.5\n2030-01-01,shop.items,9\n")
    line = ("doctor", "timeline", "shop.orders", "-w", warehouse, "-o", "json", "--query-log", str(log))
    for more in ((), ("--history", str(tmp_path / "h.sqlite")), ("--since", "2020-01-01")):
        found = json.loads(run(*line, *more).out)
        reads = {s["name"]: s["points"] for s in found["lanes"][-1]["series"]}
        assert reads["query ms"] == [[1893456000000, 2500.0]] and found["first"] == 1
    later = json.loads(run(*line[:-2], "--since", "2030-01-01").out)
    assert later["first"] is None and later["changes"] == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--job", "x"), "--job needs --flink"),
        (("--follow", "1min"), "--follow needs --flink"),
        (("--flink", "{folder}", "--follow", "1min"), "nothing comes there"),
        (("--flink", "{folder}"), "no checkpoints.json"),
        (("--flink", "ftp://x"), "no Flink address"),
        (("--query-log", "{folder}/q"), "no query log"),
    ],
)
def test_what_does_not_fit_is_refused(run, warehouse, tmp_path: Path, more, says):
    ran = run("doctor", "timeline", "shop.orders", "-w", warehouse, *(m.format(folder=tmp_path) for m in more))
    assert ran.code != 0 and says in ran.err
