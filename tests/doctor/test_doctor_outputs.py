# SPDX-License-Identifier: Apache-2.0
"""JSON and metrics: what docs promise is what comes out, with the values of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from json_paths import documents, fields, json_table, table

from shoal.doctor.beside import Beside
from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.prometheus import name_table, samples
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


def test_values_are_the_models(held: Checkup) -> None:
    found = {(s.name, *s.labels.values()): s.value for s in samples(held, per_bucket=True)}
    m = held.case.model
    assert m.merge is not None and m.excess is not None and m.debt.live is not None and m.metadata is not None
    assert found["merge_debt",] == m.merge.runs_to_merge.now and found["excess_files",] == m.excess.excess.now
    assert sum(v for k, v in found.items() if k[0] == "live_files") == m.debt.live.data.files
    assert found["flow_files", "flush"] == m.flows.made["flush"].files == 480
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
    assert {"flow_files", "snapshots", "verdict_code"} <= names


def test_freshness_is_told_by_stage(held: Checkup) -> None:
    """Commits every 10 s, of a table that was slower before; by event times where they were read."""

    def told(found: Checkup) -> dict[str, float]:
        return {s.labels["stage"]: s.value for s in samples(found) if s.name == "freshness_seconds"}

    assert told(held) == pytest.approx({"batch": 60, "stream": 70})  # + continuous.discovery-interval
    probed = Checkup(replace(held.case, beside=Beside(probes={"commit": (50.0, 250.0)})), ())
    assert told(probed) == pytest.approx({"commit": 0.248, "batch": 0.248, "stream": 10.248})
