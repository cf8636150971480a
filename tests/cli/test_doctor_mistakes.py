# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor` when something is wrong: the exit code, and one line that names it and says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ONE = ("check", "debt", "forecast", "timeline", "freshness", "fix", "verify", "history", "lint", "watch", "export")


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def line(verb: str, table: str, top: str, tmp_path: Path) -> list[str]:
    more = {"watch": ["--once"], "export": ["--parquet", str(tmp_path / "out")]}
    return ["doctor", verb, table, "-w", top, *more.get(verb, [])]


def one_line(text: str) -> bool:
    """An error and at most a hint, each one line, with a code, and no traceback."""
    lines = text.splitlines()
    return (
        lines[0].startswith("shoal: error: ") and "[SH-" in lines[0] and [x[:6] for x in lines[1:]] in ([], ["hint: "])
    )


@pytest.mark.parametrize("verb", ONE)
def test_a_table_that_is_not_there(run, warehouse, tmp_path, verb):
    ran = run(*line(verb, "shop.nope", warehouse, tmp_path))
    assert ran.code == 2 and one_line(ran.err) and "'shop.nope'" in ran.err and "orders" in ran.err


@pytest.mark.parametrize("verb", [v for v in ONE if v != "verify"])  # which wants a plan first
def test_a_table_that_cannot_be_read_is_3(run, warehouse, tmp_path, verb):
    own = Path(shutil.copytree(warehouse, tmp_path / "own"))
    newest = max((own / "shop.db" / "orders" / "snapshot").glob("snapshot-*"), key=lambda p: int(p.name[9:]))
    newest.write_text("{ no json")
    ran = run(*line(verb, "shop.orders", str(own), tmp_path))
    assert ran.code == 3 and newest.name in (ran.out if verb == "watch" else ran.err)
    assert verb == "watch" or one_line(ran.err)


@pytest.mark.parametrize(
    "verb", ["check", "debt", "forecast", "timeline", "fix", "verify", "history", "watch", "export"]
)
def test_a_history_that_cannot_be_read_is_3(run, warehouse, tmp_path, verb):
    bad = tmp_path / "bad.sqlite"
    bad.write_text("this was never a database, whatever its name says")
    ran = run(*line(verb, "shop.orders", warehouse, tmp_path), "--history", str(bad))
    assert ran.code == 3 and one_line(ran.err) and "bad.sqlite is damaged" in ran.err and "move it away" in ran.err


@pytest.mark.parametrize("verb", ["check", "history", "watch"])
def test_no_history_inside_the_warehouse(run, warehouse, tmp_path, verb):
    for name in ("doctor.sqlite", "shop.db/doctor.sqlite", "shop.db/orders/doctor.sqlite"):
        own = Path(shutil.copytree(warehouse, tmp_path / name.replace("/", "-")))
        ran = run(*line(verb, "shop.orders", str(own), tmp_path), "--history", str(own / name))
        assert ran.code == 2 and one_line(ran.err) and "where the doctor writes nothing" in ran.err, name


@pytest.mark.parametrize("verb", ["check", "fix", "timeline"])
def test_a_flink_that_does_not_answer(run, warehouse, verb):
    for at in ("http://127.0.0.1:9", "127.0.0.1:9"):
        ran = run("doctor", verb, "shop.orders", "-w", warehouse, "--flink", at)
        assert ran.code == 3 and one_line(ran.err) and "127.0.0.1:9/" in ran.err and "REST address" in ran.err
    ran = run("doctor", verb, "shop.orders", "-w", warehouse, "--flink", "/no/folder")
    assert ran.code == 2 and "no Flink address, and no folder" in ran.err and "saved answers" in ran.err


MISTAKES = {
    "check --bogus": "has no option --bogus",
    "check --slo soon": "--slo 'soon' is not a duration",
    "check --slo 0s": "--slo '0s' is not a time above zero",
    "fix --slo 0s": "--slo '0s' is not a time above zero",
    "freshness --slo 0s": "--slo '0s' is not a time above zero",
    "check --since tomorrow": "--since 'tomorrow' is no time",
    "check --fail-on fatal": "'fatal' is not a severity",
    "check --max-requests 0": "give a number above 0",
    "check --job j": "--job needs --flink",
    "check --per-bucket": "say --prometheus FILE too",
    "check --catalog c": "say --prometheus FILE too",
    "check --html - --prometheus -": "--html and --prometheus cannot both go to stdout",
    "check --prometheus - -o json": "--prometheus and the JSON cannot both go to stdout",
    "fix --plan - --json": "--plan and the JSON cannot both go to stdout",
    "timeline --svg - --html -": "--svg and --html cannot both go to stdout",
    "check --html /no/such/x.html": "cannot write /no/such/x.html: No such file",
    "check --prometheus /no/such/x": "cannot write /no/such/x: No such file",
    "timeline --svg {tmp}": "Is a directory",
    "fix --plan /no/such/x": "cannot write /no/such/x: No such file",
    "timeline --query-log /no/file": "no query log at /no/file",
    "timeline --query-log {tmp}/junk": "no columns 'time' and 'duration'",
    "timeline --follow 5min": "--follow needs --flink",
    "verify --plan /no/plan": "no file /no/plan",
    "verify --plan {tmp}/junk": "is not JSON",
    "verify --plan {tmp}/other.json": "not a plan",
    "forecast --put-price x": "'x' is not a price",
    "lint --rule L-999": "no rule 'L-999'",
}


@pytest.mark.parametrize("said", MISTAKES)
def test_what_was_typed_wrong_is_2(run, warehouse, tmp_path, said):
    (tmp_path / "junk").write_text("a,b\n1,2\n")
    (tmp_path / "other.json").write_text('{"x": 1}')
    verb, *more = said.format(tmp=tmp_path).split()
    ran = run("doctor", verb, "shop.orders", "-w", warehouse, *more)
    assert ran.code == 2 and one_line(ran.err) and MISTAKES[said] in ran.err and ran.out == ""
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("said", ["--flink x", "--job j", "--event-time v"])
def test_a_fleet_does_not_offer_what_is_about_one_table(run, warehouse, said):
    ran = run("doctor", "fleet", "-w", warehouse, *said.split())
    assert ran.code == 2 and "has no option" in ran.err and said.split()[0] not in ran.err.partition("it has")[2]


def test_a_fleet_says_what_is_wrong(run, warehouse, tmp_path):
    (tmp_path / "file").write_text("")
    for more, words in (
        (["nope"], "fits 'nope'"), (["--threads", "0"], "'0' is not a number of threads"), (["--slo", "0s"], "--slo '0s' is not a time above zero"),
        (["--html", str(tmp_path / "file")], "cannot make the folder"), (["--per-bucket"], "say --prometheus FILE too"),
        (["--prometheus", "-", "--json"], "cannot both go to stdout"),
    ):  # fmt: skip
        ran = run("doctor", "fleet", "-w", warehouse, *more)
        assert ran.code == 2 and one_line(ran.err) and words in ran.err, more
