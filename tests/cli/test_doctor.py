# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor check, debt, forecast, fix, verify, fleet` over small tables on a virtual clock."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store import LocalStore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])


def make(lake: Lake, name: str, commits: int, every_s: float = 60, rows: int = 5, **options: object) -> None:
    asked = {"bucket": 1, "num-sorted-run.compaction-trigger": 3, **options}
    table = lake.create_table(name, SCHEMA, primary_key=["k"], options=asked)
    with table.write(commit_user="w") as w:
        for n in range(1, commits + 1):
            lake.clock.sleep(every_s)
            w.upsert(pa.table([list(range(n, n + rows)), [n] * rows], schema=SCHEMA))
            w.commit(checkpoint=n, wait=True)  # its compaction keeps up


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """shop.healthy, shop.lonely (write-only, nobody compacts), shop.young (2 commits), hr.staff (no snapshot)."""
    top = tmp_path_factory.mktemp("lake")
    lake = Lake(LocalStore(top), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    make(lake, "shop.healthy", 20)
    make(lake, "shop.lonely", 40, **{"write-only": True})
    make(lake, "shop.young", 2)
    lake.create_table("hr.staff", SCHEMA, primary_key=["k"], options={"bucket": 1})
    return top


@pytest.fixture
def own(tables: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tables, tmp_path / "own"))


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# ---- check, debt, forecast


@pytest.mark.parametrize(
    ("table", "code", "word"),
    [("healthy", 0, "well"), ("lonely", 1, "sick"), ("young", 4, "too little data")],
)
def test_check_ends_with_the_verdicts_code(run, tables, table, code, word):
    ran = run("doctor", "check", f"shop.{table}", "-w", str(tables))
    assert ran.code == code and ran.out.startswith(f"{word}: ")
    assert max(map(len, ran.out.splitlines())) <= 80
    found = json.loads(run("doctor", "check", f"shop.{table}", "-w", str(tables), "--json").out)
    assert found["verdict"]["code"] == code and found["schema"] == "shoal.doctor.check/1"
    assert found == json.loads(run("doctor", "check", f"shop.{table}", "-w", str(tables), "-o", "json").out) | {
        "taken_ms": found["taken_ms"], "fix": found["fix"], "model": found["model"], "findings": found["findings"]
    }  # fmt: skip


def test_fail_on_sets_the_bar(run, tables):
    line = ("doctor", "check", "shop.lonely", "-w", str(tables))
    found = json.loads(run(*line, "--json", "--fail-on", "info").out)["findings"]
    assert found and run(*line, "--fail-on", "info").code == 1
    assert run("doctor", "check", "shop.lonely", "-w", str(tables), "--fail-on", "fatal").code == 2


def test_a_table_without_snapshots_is_too_little_data(run, tables):
    for verb in ("check", "debt", "forecast"):
        assert run("doctor", verb, "hr.staff", "-w", str(tables)).code == 4, verb


def test_since_begins_at_a_time(run, tables):
    line = ("doctor", "check", "shop.healthy", "-w", str(tables), "--json")
    whole, late = (json.loads(run(*line, *more).out)["window"] for more in ((), ("--since", "2999-01-01T00:00")))
    assert whole["first"] == 1 and late["first"] is None and run(*line, "--since", "yesterday").code == 2
    middle = shoal.open(str(tables)).table("shop.healthy").metadata.snapshot(9).time_ms
    text = pa.scalar(middle, pa.timestamp("ms", "UTC")).as_py().isoformat()
    begun = json.loads(run(*line, "--since", text).out)["window"]
    assert begun["first_ms"] == middle and 7 < begun["first"] <= 9 and begun["last"] == whole["last"]


def test_a_table_that_cannot_be_read_is_3(run, own):
    newest = max((own / "shop.db" / "healthy" / "snapshot").glob("snapshot-*"), key=lambda p: int(p.name[9:]))
    newest.write_text("{ no json")
    for verb in ("check", "debt", "forecast", "fix"):
        ran = run("doctor", verb, "shop.healthy", "-w", str(own))
        assert ran.code == 3 and "error:" in ran.err, verb


def test_debt_counts_and_lists(run, tables):
    line = ("doctor", "debt", "shop.healthy", "-w", str(tables), "--list")
    found = json.loads(run(*line, "--json").out)
    files = [p for p in (tables / "shop.db" / "healthy").rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert found["on_disk"]["total"]["files"] == len(files) and found["schema"] == "shoal.doctor.debt/1"
    text = run(*line).out
    for part in ("data files", "on disk", "merge debt", "flow", "held by", "drains"):
        assert part in text, part


def test_a_forecast_has_prices_when_they_are_given(run, tables):
    line = ("doctor", "forecast", "shop.healthy", "-w", str(tables))
    found = json.loads(run(*line, "--json").out)
    assert found["requests"]["cost_per_day"] is None and found["planning"] is None
    puts = found["requests"]["puts_per_day"]["value"]
    paid = json.loads(run(*line, "--json", "--put-price", "5", "--plan-limit", "10s").out)
    assert paid["requests"]["cost_per_day"]["value"] == pytest.approx(puts * 5 / 1000)
    assert paid["planning"]["limit_s"] == 10
    text = run(*line, "--put-price", "5", "--storage-price", "1").out
    assert "requests cost:" in text and "storage cost a month:" in text and "objects in all:" in text
    assert "  storage: " in text and not re.search(r"\de-", text)
    for price in ("-1", "x", "nan", "inf", "1e9"):
        ran = run(*line, "--put-price", price)
        assert ran.code == 2 and f"'{price}' is not a price" in ran.err
    ran = run("doctor", "verify", "shop.healthy", "-w", str(tables), "--cycles", "many")
    assert ran.code == 2 and "'many' is not a number of cycles" in ran.err


def test_flink_answers_are_read_from_a_folder(run, tables, tmp_path):
    with tarfile.open(Path(__file__).parents[1] / "doctor" / "data" / "flink-rest-sample.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.rglob("job.json")).parent
    assert run("doctor", "check", "shop.healthy", "-w", str(tables), "--flink", str(folder)).code == 0
    ran = run("doctor", "check", "shop.healthy", "-w", str(tables), "--job", "x")
    assert ran.code == 2 and "--job needs --flink" in ran.err


def test_files_are_written_beside_the_text(run, tables, tmp_path):
    page, metrics = tmp_path / "t.html", tmp_path / "t.prom"
    ran = run(
        "doctor", "check", "shop.lonely", "-w", str(tables), "--html", str(page), "--prometheus", str(metrics),
        "--catalog", "main",
    )  # fmt: skip
    assert ran.code == 1 and ran.out.startswith("sick: ")
    assert page.read_text().startswith("<!DOCTYPE html>") and "shop.lonely" in page.read_text()
    assert 'shoal_doctor_verdict_code{catalog="main",database="shop",table="lonely"} 1\n' in metrics.read_text()
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".tmp") == []
    ran = run("doctor", "check", "shop.lonely", "-w", str(tables), "--prometheus", "-")
    assert ran.code == 1 and ran.out.startswith("# HELP shoal_doctor_")


def test_metrics_say_that_a_table_cannot_be_read_any_more(run, own, tmp_path):
    """A text file that stayed as it was would go on saying that all is well."""
    metrics = tmp_path / "t.prom"
    line = ("doctor", "check", "shop.healthy", "-w", str(own), "--catalog", "main", "--prometheus", str(metrics))
    assert run(*line).code == 0
    newest = max((own / "shop.db" / "healthy" / "snapshot").glob("snapshot-*"), key=lambda p: int(p.name[9:]))
    newest.write_text("{ no json")
    assert run(*line).code == 3
    found = {
        f.name.removeprefix("shoal_doctor_"): f.samples for f in text_string_to_metric_families(metrics.read_text())
    }
    assert found.keys() == {"verdict_code", "look_timestamp_seconds"} and found["verdict_code"][0].value == 3
    assert abs(found["look_timestamp_seconds"][0].value - time.time()) < 60


def test_event_times_come_into_the_check(run, tables, tmp_path):
    line = ("doctor", "check", "shop.young", "-w", str(tables), "--prometheus", "-", "--event-time")
    ran = run(*line, "v")  # 1 and 2, as seconds after 1970
    stages = {s.labels["stage"]: s.value for f in text_string_to_metric_families(ran.out)
              if f.name == "shoal_doctor_freshness_seconds" for s in f.samples}  # fmt: skip
    times = [shoal.open(str(tables)).table("shop.young").metadata.snapshot(n).time_ms / 1000 for n in (1, 2)]
    assert stages["commit"] == pytest.approx(times[1] - 2, abs=1) and set(stages) == {"commit", "batch", "stream"}
    ran = run(*line, "when")
    assert ran.code == 2 and "no column 'when'" in ran.err and "k, v" in ran.err


def test_a_history_gives_what_expired_since(run, own, tmp_path):
    line = ("doctor", "check", "shop.healthy", "-w", str(own), "--history", str(tmp_path / "h.sqlite"), "--json")
    before = json.loads(run(*line).out)["window"]
    shoal.open(str(own)).table("shop.healthy").maintain.expire(retain_min=1, retain_max=2)
    after = json.loads(run(*line).out)["window"]
    assert (after["first"], after["last"]) == (before["first"], before["last"])
    alone = json.loads(run("doctor", "check", "shop.healthy", "-w", str(own), "--json").out)["window"]
    assert before["last"] - 2 < alone["first"] <= before["last"]


# ---- fix and verify


def answers(monkeypatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_fix_prints_and_changes_nothing(run, own):
    before = sorted((p, p.stat().st_mtime_ns) for p in own.rglob("*"))
    ran = run("doctor", "fix", "shop.lonely", "-w", str(own))
    assert ran.code == 1 and "CALL sys.compact(`table` => 'shop.lonely');" in ran.out
    assert "ALTER TABLE `shop`.`lonely` SET ('write-only' = 'false');" in ran.out
    assert ran.out.index("FIRST AID") < ran.out.index("compact once") < ran.out.index("ROOT FIX")
    assert sorted((p, p.stat().st_mtime_ns) for p in own.rglob("*")) == before
    plan = json.loads(run("doctor", "fix", "shop.lonely", "-w", str(own), "-o", "json").out)
    assert plan["schema"] == "shoal.doctor.fix/1" and "compact-now" in [s["id"] for s in plan["steps"]]


def test_apply_asks_for_each_step_and_keeps_what_it_did(run, own, monkeypatch, tmp_path):
    line = ("-w", str(own), "--history", str(tmp_path / "h.sqlite"))
    steps = json.loads(run("doctor", "fix", "shop.lonely", "-w", str(own), "--json").out)["steps"]
    asked = [s["id"] for s in steps if s["action"] is not None]
    answers(monkeypatch, *("y" if i in ("compact-now", "writers-compact") else "n" for i in asked))
    ran = run("doctor", "fix", "shop.lonely", *line, "--apply")
    assert ran.code == 0 and ran.out.count("-- done: ") == 2, ran.err
    table = shoal.open(str(own)).table("shop.lonely")
    assert table.schema.options["write-only"] == "false"
    assert table.metadata.latest().commit_kind == "COMPACT"
    history = json.loads(run("doctor", "history", "shop.lonely", *line, "-o", "json").out)
    assert [e["what"].partition(":")[0] for e in history["events"] if e["kind"] == "fix"] == [
        "compact-now", "writers-compact",
    ]  # fmt: skip
    early = run("doctor", "verify", "shop.lonely", *line)
    assert early.code == 4 and "too early" in early.out


def test_the_end_of_the_input_is_a_no(run, own, monkeypatch):
    answers(monkeypatch)
    before = shoal.open(str(own)).table("shop.lonely").metadata.latest_id()
    ran = run("doctor", "fix", "shop.lonely", "-w", str(own), "--apply")
    assert ran.code == 0 and "-- done" not in ran.out
    assert shoal.open(str(own)).table("shop.lonely").metadata.latest_id() == before
    assert run("doctor", "fix", "shop.lonely", "-w", str(own), "--apply", "--json").code == 2


def test_no_step_is_done_that_the_history_cannot_keep(run, own, monkeypatch):
    answers(monkeypatch, "y", "y", "y", "y")
    before = sorted((p, p.stat().st_mtime_ns) for p in own.rglob("*"))
    inside = own / "shop.db" / "lonely" / "h.sqlite"
    for path in (inside, own / "shop.db" / "lonely" / "snapshot" / "snapshot-1"):
        ran = run("doctor", "fix", "shop.lonely", "-w", str(own), "--apply", "--history", str(path))
        assert ran.code in (2, 3, 4) and "-- done" not in ran.out
        inside.unlink(missing_ok=True)
    assert [p for p, _ in before] == sorted(own.rglob("*"))


def test_verify_compares_a_plan_in_a_file_with_what_came(run, own, tmp_path):
    file = str(tmp_path / "plan.json")
    run("doctor", "fix", "shop.lonely", "-w", str(own), "--plan", file)
    lake = Lake(LocalStore(own), clock=ManualClock(10**12), scheduler=ManualScheduler, rng=random.Random(4))
    table = lake.table("shop.lonely").alter(options={"write-only": False})
    with table.write(commit_user="w") as w:
        for n in range(41, 61):
            lake.clock.sleep(60)
            w.upsert(pa.table([[n], [n]], schema=SCHEMA))
            w.commit(checkpoint=n)
    table.maintain.compact()
    ran = run("doctor", "verify", "shop.lonely", "-w", str(own), "--plan", file, "--cycles", "0", "--json")
    found = {(c["step"], c["reading"]): c for c in json.loads(ran.out)["checked"]}
    assert found["compact-now", "most_runs"]["word"] == "as forecast"
    assert found["compact-now", "most_runs"]["before"] == 40
    assert run("doctor", "verify", "shop.healthy", "-w", str(own), "--plan", file).code == 2  # another table's
    assert run("doctor", "verify", "shop.healthy", "-w", str(own)).code == 2  # there is no plan
    (tmp_path / "bad.json").write_text("[]")
    assert (
        run("doctor", "verify", "shop.healthy", "-w", str(own), "--plan", str(tmp_path / "bad.json")).code == 2
    )  # no plan


# ---- fleet


def test_a_fleet_has_the_sickest_first_and_the_worst_code(run, tables):
    ran = run("doctor", "fleet", "-w", str(tables))
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [
        "shop.lonely", "shop.young", "hr.staff", "shop.healthy",
    ]  # fmt: skip
    found = json.loads(run("doctor", "fleet", "shop", "-w", str(tables), "--json").out)
    assert found["code"] == 1 and [t["code"] for t in found["tables"]] == [1, 4, 0]
    assert run("doctor", "fleet", "shop.h*", "-w", str(tables)).code == 0
    assert run("doctor", "fleet", "nothing", "-w", str(tables)).code == 2
    assert run("doctor", "fleet", "-w", str(tables), "--threads", "0").code == 2


def test_one_bad_table_does_not_stop_the_others(run, own, tmp_path):
    newest = max((own / "shop.db" / "young" / "snapshot").glob("snapshot-*"), key=lambda p: int(p.name[9:]))
    newest.write_text("{ no json")
    pages, metrics = tmp_path / "pages", tmp_path / "fleet.prom"
    ran = run("doctor", "fleet", "-w", str(own), "--html", str(pages), "--prometheus", str(metrics), "--threads", "2")
    assert ran.code == 3 and ran.out.splitlines()[1].startswith("shop.young    cannot be read")
    index = (pages / "index.html").read_text()
    assert sorted(p.name for p in pages.iterdir()) == [
        "hr.staff.html", "index.html", "shop.healthy.html", "shop.lonely.html",
    ]  # fmt: skip
    assert index.index("shop.young") < index.index("shop.lonely") < index.index("shop.healthy")
    assert 'table="young"} 3' in metrics.read_text()
