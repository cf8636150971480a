# SPDX-License-Identifier: Apache-2.0
"""`shoal tail`: the changes that Java's stream gives, as lines."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def changes(golden, tmp_path):
    """A warehouse of our own with a table of six commits and a lookup changelog."""
    shutil.copytree(golden("changelog") / "changelog.db" / "dd_lookup", tmp_path / "changelog.db" / "dd_lookup")
    return str(tmp_path)


def test_lines_are_javas_changes_in_javas_order(run, changes, expected, unpacked):
    lines = (unpacked("expected") / "expected" / "changelog.dd_lookup.stream_from_1.jsonl").read_text().splitlines()[1:]
    java = [{"snapshot": r["snapshot"], "rowkind": r["op"], **r["row"]} for r in map(json.loads, lines)]
    ran = run("tail", "-w", changes, "changelog.dd_lookup", "--start", "1", "--until", "latest")
    assert [json.loads(line) for line in ran.out.splitlines()] == java
    assert (ran.code, ran.err) == (0, f"{len(java)} rows, up to snapshot 12\n")


def test_columns_filter_and_csv(run, changes):
    ran = run(
        "tail", "-w", changes, "changelog.dd_lookup", "--start", "4", "--until", "6", "--columns", "id,v",
        "--where", "id = 1", "-o", "csv",
    )  # fmt: skip
    assert ran.out == "snapshot,rowkind,id,v\n4,-U,1,a1\n4,+U,1,a2\n6,-U,1,a2\n6,+U,1,a4\n"


def test_a_consumer_goes_on_where_it_was(run, changes):
    line = ("tail", "-w", changes, "changelog.dd_lookup", "--consumer", "bi")
    first = run(*line, "--start", "1", "--until", "4")
    second = run(*line, "--until", "latest")
    whole = run("tail", "-w", changes, "changelog.dd_lookup", "--start", "1", "--until", "latest")
    assert first.out + second.out == whole.out
    assert run(*line, "--until", "latest").out == ""


def test_the_state_comes_first_unless_told_otherwise(run, changes):
    ran = run("tail", "-w", changes, "changelog.dd_lookup", "--until", "latest")
    assert {json.loads(line)["rowkind"] for line in ran.out.splitlines()} <= {"+I", "+U"}
    assert (
        run("tail", "-w", changes, "changelog.dd_lookup", "--start", "latest", "--until", "latest").err == "no rows\n"
    )


def test_a_start_that_is_gone_names_the_ways_out(run, golden):
    ran = run("tail", "-w", str(golden("maint")), "maint.expired", "--start", "1")
    assert ran.code == 2
    assert "snapshot 1 has expired" in ran.err and "the earliest that is left is 5" in ran.err and "hint: " in ran.err


def test_a_wrong_word_is_one_line_and_a_hint(run, changes):
    for args, says in (
        (("--start", "lastest"), "lastest"),
        (("--columns", "nope"), "has no column 'nope'"),
        (("--option", "scan.moed=latest"), "scan.moed"),
        (("--where", "nope > 1"), "unknown column 'nope'"),
    ):
        ran = run("tail", "-w", changes, "changelog.dd_lookup", *args, "--until", "latest")
        assert ran.code == 2 and says in ran.err, args
