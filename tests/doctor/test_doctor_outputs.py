# SPDX-License-Identifier: Apache-2.0
"""JSON, metrics, alerts, dashboard: what docs promise is what comes out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from json_paths import documents, fields, json_table, table
from make_facts import read

from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.prometheus import NAMES, PREFIX, name_table, samples, text_of
from shoal.doctor.stocks import retained_debt

DOCS = Path(__file__).parents[2] / "docs"
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def held() -> Checkup:
    return checkup(table(), slo_ms=30_000)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# ---- JSON


def test_the_docs_list_every_field() -> None:
    assert json_table() in page("doctor-json.md"), "run .venv/bin/python dev/make-doctor-docs"
    some = fields()
    assert {"verdict.code", "findings[].id", "model.debt.live.data"} <= some["shoal.doctor.check/1"].keys()
    for schema in some:
        assert f"| `{schema}` |" in page("doctor-json.md")


def test_documents_say_their_schema() -> None:
    for schema, found in documents().items():
        assert all(one["schema"] in (schema, "") for one in found), schema


# ---- Prometheus


def test_the_docs_list_every_metric() -> None:
    assert name_table() in page("doctor-metrics.md"), "run .venv/bin/python dev/make-doctor-docs"


def test_the_text_is_prometheus(held: Checkup) -> None:
    text = text_of([held], catalog='a"b\\c', per_bucket=True)
    seen: dict[str, str] = {}
    for line in text.splitlines():
        if kind := re.fullmatch(r"# TYPE (\S+) (gauge|counter)", line):
            assert kind[1] not in seen
            seen[kind[1]] = kind[2]
        elif not line.startswith("# HELP "):
            assert re.fullmatch(r'[a-z_]+\{([a-z]+="([^"\\\n]|\\.)*",?)+\} -?[0-9.e+-]+', line), line
            assert line.partition("{")[0] in seen
    assert {n.removeprefix(PREFIX) for n in seen} <= NAMES.keys()
    assert all(seen[PREFIX + n] == NAMES[n][0] for n in NAMES if PREFIX + n in seen)
    labels = {n: set(NAMES[n][1].split(",")) - {""} for n in NAMES}
    for s in samples(held, per_bucket=True):
        assert set(s.labels) == labels[s.name], s


def test_values_are_the_models(held: Checkup) -> None:
    found = {(s.name, *s.labels.values()): s.value for s in samples(held, per_bucket=True)}
    m = held.case.model
    assert m.merge is not None and m.excess is not None and m.debt.live is not None and m.metadata is not None
    assert found["merge_debt",] == m.merge.runs_to_merge.now and found["excess_files",] == m.excess.excess.now
    assert sum(v for k, v in found.items() if k[0] == "live_files") == m.debt.live.data.files
    assert found["flow_files_total", "flush"] == m.flows.made["flush"].files == 480
    assert found["commit_interval_seconds",] == m.debt.interval_s and found["snapshot_age_seconds",] == 1
    assert found["consumer_lag_snapshots", "bi"] == (held.case.window.stock.latest or 0) - 20 + 1
    overdue = next(h.most for h in m.retained.holders if h.kind == "overdue snapshots")
    assert overdue is not None and found["retained_files", "overdue snapshots"] == overdue.files
    assert sum(1 for k in found if k[0] == "bucket_runs") == 4
    assert found["findings", "error"] == held.counts["error"] and found["verdict_code",] == held.verdict.code
    assert not any(s.name.startswith("bucket_") for s in samples(held))
    assert retained_debt(held.case.window, held.case.states, complete=True) == m.retained


def test_what_is_not_known_has_no_sample(held: Checkup) -> None:
    blind = checkup(replace(held.case.window, start=None))
    names = {s.name for s in samples(blind)}
    assert not names & {"live_files", "runs_max", "merge_debt", "excess_files", "slope", "stall_eta_seconds"}
    assert {"flow_files_total", "snapshots", "verdict_code"} <= names


def test_freshness_comes_from_sentinels(held: Checkup) -> None:
    probed = Checkup(replace(held.case, probes={"commit": (50.0, 250.0)}), ())
    assert [s.value for s in samples(probed) if s.name == "freshness_seconds"] == [0.25]


def test_alerts_and_dashboard_name_only_what_is_exported(held: Checkup) -> None:
    other = checkup(read(DATA / "virtual-writer-none-10s.json.gz")[0])
    text = text_of([held, other], catalog="c", per_bucket=True)
    exported = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | {PREFIX + "stall_eta_seconds"}
    for name in ("prometheus-alerts.yml", "grafana-dashboard.json"):
        asked = set(re.findall(rf"{PREFIX}[a-z_]+", page(name)))
        assert asked and asked <= exported, (name, asked - exported)
    for label, value in re.findall(r'(severity|stock|holder|class)="([^"]+)"', page("prometheus-alerts.yml")):
        assert f'{label}="{value}"' in text, (label, value)


def test_the_dashboard_is_whole() -> None:
    found = json.loads(page("grafana-dashboard.json"))
    assert len({p["id"] for p in found["panels"]}) == len(found["panels"]) > 10
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in found["panels"]]
    assert len(set(places)) == len(places)
    variables = {v["name"] for v in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", " ".join(t["expr"] for p in found["panels"] for t in p["targets"])))
    assert used <= variables and "datasource" in variables


def test_every_alert_has_what_prometheus_asks() -> None:
    rules = re.split(r"\n      - alert: ", page("prometheus-alerts.yml"))[1:]
    assert len(rules) == 9
    for rule in rules:
        for part in ("expr: ", "for: ", "labels:", "severity: ", "annotations:", "summary: "):
            assert part in rule, rule
