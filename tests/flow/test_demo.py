# SPDX-License-Identifier: Apache-2.0
"""The demo on two days: its tables against the CSV, its counts against the files, its words against the terminal."""

from __future__ import annotations

import importlib.util
import io
import json
import shlex
from collections import defaultdict
from datetime import date
from pathlib import Path
from statistics import fmean

import pytest
from flights_model import independent_fold

import shoal
from shoal.cli.main import main
from shoal.errors import BadRequest
from shoal.flow.demo import MARKER, demo
from shoal.flow.sources.flights import KEY

_spec = importlib.util.spec_from_file_location(
    "independent_count", Path(__file__).parents[1] / "doctor" / "independent_count.py"
)
count = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(count)

SPAN = {"start": date(2013, 1, 1), "end": date(2013, 1, 3), "hours": 0.1}
TABLES = ("flights_60s", "flights_10s")


@pytest.fixture(scope="module")
def fold():
    return independent_fold(SPAN["start"], SPAN["end"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "shoal-demo"


@pytest.fixture(scope="module")
def report(folder):
    return demo(str(folder), **SPAN)


@pytest.fixture(params=TABLES)
def table(request, report, folder):
    """The folder of one table, and the doctor's debt of it."""
    debts = dict(zip(TABLES, (report.comparison.b, report.comparison.a)))
    return folder / "demo.db" / request.param, debts[request.param]


@pytest.mark.parametrize("name", TABLES)
def test_both_tables_equal_the_csv(report, folder, fold, name):
    found = shoal.open(str(folder)).table(f"demo.{name}").scan().to_arrow()
    assert found.sort_by([(key, "ascending") for key in KEY]).to_pylist() == fold


def test_the_answer_is_the_same_from_both_tables_and_from_the_csv(report, fold):
    delays = defaultdict(list)
    flights = defaultdict(int)
    for row in fold:
        if row["status"] == "arrived":
            flights[row["carrier"]] += 1
            delays[row["carrier"]] += [] if row["arr_delay"] is None else [row["arr_delay"]]
    often = [c for c, n in flights.items() if n >= 100]
    worst = sorted(often, key=lambda c: (-fmean(delays[c]), c))[:5]
    assert report.same_answer
    answer = report.tables[0].answer.to_pylist()
    assert [(r["carrier"], r["flights"]) for r in answer] == [(c, flights[c]) for c in worst]
    assert [r["minutes_late"] for r in answer] == pytest.approx([fmean(delays[c]) for c in worst], abs=0.051)


def test_the_doctors_counts_of_made_files_equal_the_files_on_disk(table):
    path, debt = table
    disk = count.on_disk(path)
    # Nothing expires in the demo, so what was made is still there.
    assert debt.made["level0"].files + debt.made["compacted"].files == disk["data"]
    assert {kind: debt.made[kind].files for kind in ("manifest", "manifest_list", "snapshot")} == {
        kind: disk[kind] for kind in ("manifest", "manifest_list", "snapshot")
    }
    assert debt.made["changelog"].files == disk["changelog"] == 0
    for kind, prefix in (("manifest_list", "manifest-list-"), ("snapshot", "snapshot-")):
        assert debt.made[kind].bytes == count.bytes_on_disk(path, prefix)


def test_the_doctors_counts_equal_the_manifests(table):
    path, debt = table
    steps = count.per_snapshot(path)
    assert debt.made["level0"].files == sum(s["flush"] for s in steps)
    assert debt.made["compacted"].files == sum(s["rewrite"] for s in steps)
    assert debt.upgraded.files == sum(s["upgrade"] for s in steps)
    live = steps[-1]["live"]
    assert debt.live.data.files == sum(live.values())
    assert debt.live.level0.files == sum(n for (_, level), n in live.items() if level == 0)
    assert debt.retained["data"].files == count.on_disk(path)["data"] - debt.live.data.files
    assert debt.identity.holds
    assert debt.complete


def test_the_faster_clock_commits_six_times_as_often(report):
    slow, fast = (t.job for t in report.tables)
    assert slow.rows == fast.rows
    assert fast.checkpoints == pytest.approx(6 * slow.checkpoints, abs=6)
    assert report.comparison.sentence.startswith("Checkpoints 6.0x as often: ")


def test_the_report_fits_eighty_columns_and_one_page(report):
    lines = str(report).splitlines()
    assert max(len(line) for line in lines if str(report.folder) not in line) <= 80
    assert len(lines) <= 42
    assert "Both say:" in lines


def test_the_report_is_json(report):
    assert json.loads(json.dumps(report.to_dict()))["same_answer"] is True


def test_the_commands_to_type_next_work(report, capsys):
    commands = [line.strip() for line in str(report).splitlines() if line.startswith("  shoal ")]
    assert len(commands) == 4
    for command in commands[:-1]:
        # the table of the short clock is the sick one
        assert main(shlex.split(command)[1:]) == int(" doctor check " in command), capsys.readouterr().err
        assert capsys.readouterr().out


def test_another_run_gives_the_same_files_and_counts(report, tmp_path):
    again = demo(str(tmp_path / "again"), **SPAN)
    first, second = (told(r) for r in (report, again))
    assert first == second


def told(report):
    """All that a report says, but for wall seconds and where the tables lie."""
    text = json.dumps(report.to_dict()).replace(str(report.folder), "")
    return json.loads(text, object_hook=lambda d: {k: v for k, v in d.items() if k not in ("wall_s", "table")})


def test_progress_is_a_line_a_step_where_there_is_no_terminal(tmp_path):
    out = io.StringIO()
    demo(str(tmp_path / "d"), start=date(2013, 1, 1), end=date(2013, 1, 2), hours=0.03, progress=out)
    assert [line.split(" ...")[0] for line in out.getvalue().splitlines()] == [
        "60 s checkpoints", "asking demo.flights_60s", "10 s checkpoints", "asking demo.flights_10s",
    ]  # fmt: skip


# ---- the folder ------------------------------------------------------------------------------------------

TINY = {"start": date(2013, 1, 1), "end": date(2013, 1, 2), "hours": 0.02}


def test_a_folder_that_is_no_demo_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    for force in (False, True):
        with pytest.raises(BadRequest, match="not replaced"):
            demo(str(tmp_path), force=force, ask=lambda _: True, **TINY)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_demo_with_something_else_in_it_is_left_alone(tmp_path):
    for name in (MARKER, "letter.txt"):
        (tmp_path / name).write_text("dear")
    with pytest.raises(BadRequest, match=r"holds letter\.txt"):
        demo(str(tmp_path), force=True, **TINY)


def test_a_file_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("dear")
    with pytest.raises(BadRequest, match="is a file"):
        demo(str(tmp_path / "file"), force=True, **TINY)


def test_an_earlier_demo_is_replaced_only_when_that_is_wanted(tmp_path):
    (tmp_path / MARKER).write_text("")
    (tmp_path / "demo.db" / "old").mkdir(parents=True)
    asked = []
    for ask in (None, lambda question: bool(asked.append(question))):
        with pytest.raises(BadRequest, match="holds an earlier demo"):
            demo(str(tmp_path), ask=ask, **TINY)
    assert asked == [f"{tmp_path} holds an earlier demo. Replace it?"]
    assert (tmp_path / "demo.db" / "old").exists()
    demo(str(tmp_path), force=True, **TINY)
    assert sorted(p.name for p in (tmp_path / "demo.db").iterdir()) == ["flights_10s", "flights_60s"]


def test_days_outside_the_data_are_refused_before_anything_is_deleted(tmp_path):
    (tmp_path / MARKER).write_text("")
    (tmp_path / "demo.db").mkdir()
    with pytest.raises(BadRequest, match="no flights from"):
        demo(str(tmp_path), force=True, start=date(2014, 1, 1), end=date(2014, 2, 1))
    assert (tmp_path / "demo.db").exists()
