# SPDX-License-Identifier: Apache-2.0
"""Metrics, alert rules and dashboard as Prometheus and Grafana take them: read by their own parsers and models.

The alerts are judged by `data/alerts.test.yml`, a file of `promtool test rules`: here a small model of the part of
PromQL that the rules use evaluates it, and promtool itself does where it is installed (Debian: apt install prometheus).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import operator
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from json_paths import table
from make_facts import read
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from toy import File, Toy

from shoal.doctor.beside import Beside
from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.prometheus import NAMES, PREFIX, text_of
from shoal.metrics import CONTENT_TYPE

ROOT = Path(__file__).parents[2]
DOCS, DATA = ROOT / "docs", Path(__file__).parent / "data"
ALERTS, DASHBOARD, CASES = DOCS / "prometheus-alerts.yml", DOCS / "grafana-dashboard.json", DATA / "alerts.test.yml"
SCRAPED = {"instance", "job"}


def filling() -> Checkup:
    """A bucket that gets a run a minute, of ten that it may have: its writer stalls in time."""
    toy = Toy({"bucket": "1", "num-sorted-run.stop-trigger": "60", "num-sorted-run.compaction-trigger": "50"})
    for n in range(1, 41):
        toy.commit(("flush", File(0, 9000)), at=n * 60_000, identifier=n)
    return checkup(toy.window())


@pytest.fixture(scope="module")
def text() -> str:
    """What `--prometheus` writes of tables that between them have every metric."""
    writer = read(DATA / "virtual-writer-none-10s.json.gz")[0]
    found = [
        checkup(table(), slo_ms=30_000, beside=Beside(probes={"commit": (50.0, 250.0)})),
        checkup(writer),
        filling(),
    ]
    return text_of(found, catalog='s3://a/"b"\\c', per_bucket=True, unread=["shop.gone"], now_ms=1_767_225_600_123)


Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def exported(text: str) -> dict[str, Labels]:
    """By metric: its labels with the values they have."""
    out: dict[str, Labels] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            mine = out.setdefault(s.name, {})
            for label, value in s.labels.items():
                mine.setdefault(label, set()).add(value)
    return out


# ---- metrics ---------------------------------------------------------------------------------------------


def test_prometheus_own_parser_reads_every_metric(text: str, exported: dict[str, Labels]) -> None:
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert families.keys() == {PREFIX + n for n in NAMES} == exported.keys()
    for name, (kind, labels, words) in NAMES.items():
        family = families[PREFIX + name]
        assert (family.type, family.documentation) == (kind, words), name
        wanted = {"catalog", "database", "table", *labels.split(",")} - {""}
        assert all(s.labels.keys() == wanted for s in family.samples), name
    assert exported[PREFIX + "verdict_code"]["catalog"] == {'s3://a/"b"\\c'}
    when = {s.labels["table"]: s.value for s in families[PREFIX + "look_timestamp_seconds"].samples}
    assert when["gone"] == 1_767_225_600.123


def test_it_keeps_the_rules_of_openmetrics(text: str) -> None:
    families = list(openmetrics.text_string_to_metric_families(text + "# EOF\n"))
    assert len(families) == len(NAMES)
    series = [(s.name, *sorted(s.labels.items())) for f in families for s in f.samples]
    assert len(set(series)) == len(series)
    for f in families:  # a total that may fall is no counter; base units only
        assert f.type == "gauge" and not f.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_ms")), (
            f.name
        )


# ---- names in queries ------------------------------------------------------------------------------------


def selectors(node: Any) -> Iterator[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "args"):
        below = getattr(node, name, None)
        for one in below if isinstance(below, list) else [below]:
            if one is not None:
                yield from selectors(one)


def check_query(query: str, exported: dict[str, Labels]) -> set[str]:
    """A query asks for what there is; the labels that its result has."""
    labels: set[str] = set()
    tree = promql.parse(query)
    found = list(selectors(tree))
    assert found, query
    for s in found:
        assert s.name in exported, (query, s.name)
        for m in s.matchers.matchers:
            assert m.name in exported[s.name], (query, m.name)
            values = exported[s.name][m.name]
            if str(m.op) == "MatchOp.Equal":
                assert m.value in values, (query, m.value, values)
            elif "$" not in m.value:  # a variable of the dashboard
                assert all(v in values for v in m.value.split("|")), (query, m.value, values)
        labels |= exported[s.name].keys()
    if isinstance(tree, promql.AggregateExpr):
        labels = set(tree.modifier.labels)
    return labels


def rules() -> list[dict[str, Any]]:
    return [r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]]


def test_alerts_ask_for_what_is_exported(exported: dict[str, Labels]) -> None:
    assert len({r["alert"] for r in rules()}) == len(rules()) == 10
    for r in rules():
        assert r.keys() == {"alert", "expr", "for", "labels", "annotations"} and r["labels"].keys() == {"severity"}
        labels = check_query(r["expr"], exported)
        for name in re.findall(r"\$labels\.(\w+)", " ".join(r["annotations"].values())):
            assert name in labels, (r["alert"], name)


def test_the_dashboard_asks_for_what_is_exported(exported: dict[str, Labels]) -> None:
    found = json.loads(DASHBOARD.read_text())
    variables = {v["name"] for v in found["templating"]["list"]}
    for p in found["panels"]:
        assert [t["refId"] for t in p["targets"]] == [chr(65 + i) for i in range(len(p["targets"]))]
        for t in p["targets"]:
            labels = check_query(t["expr"], exported)
            assert set(re.findall(r"\{\{(\w+)\}\}", t["legendFormat"])) <= labels, t
            assert set(re.findall(r"\$(\w+)", t["expr"])) == variables - {"datasource"}, t
    for v in found["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", v["query"]["query"])
        assert asked is not None and asked[2] in check_query(asked[1], exported) and asked[2] == v["name"]


# ---- the dashboard ---------------------------------------------------------------------------------------


def left_out(mine: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """What Grafana's own model does not know of a document, or has another value for."""
    if isinstance(mine, dict):
        for key, value in mine.items():
            yield from left_out(value, theirs[key], f"{at}.{key}") if key in (theirs or {}) else [f"{at}.{key}"]
    elif isinstance(mine, list):
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            yield from left_out(a, b, f"{at}[{i}]")
    elif mine != theirs:
        yield f"{at}: {theirs!r}"


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    register_default_plugins()
    found = json.loads(DASHBOARD.read_text())
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(found)))
    assert list(left_out(found, again)) == []
    assert found["schemaVersion"] >= 36  # since then a data source is {type, uid}


def test_no_panel_covers_another() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({p["id"] for p in panels}) == len({p["title"] for p in panels}) == len(panels)
    for p in panels:
        place = p["gridPos"]
        assert place["x"] in range(25 - place["w"]) and place["h"] > 0  # Grafana's grid has 24 columns
        assert p["fieldConfig"]["defaults"]["unit"] in ("short", "bytes", "s")  # of its list of units
        assert p["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for a, b in combinations((p["gridPos"] for p in panels), 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)


# ---- the alerts, by a small model of PromQL --------------------------------------------------------------

Vector = dict[frozenset[tuple[str, str]], float]
_KEEPS: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, ">": operator.gt, "==": operator.eq}
_GIVES: dict[str, Callable[[float, float], float]] = {"*": operator.mul, "-": operator.sub}


def evaluate(node: Any, series: dict[str, Vector], now: float) -> Vector | float:
    """What an expression is: no rates, no groups, one-to-one matching on all labels."""
    if isinstance(node, promql.NumberLiteral):
        return node.val
    if isinstance(node, promql.Call):
        assert node.func.name == "time"
        return now
    if isinstance(node, promql.VectorSelector):
        asked = {(m.name, m.value) for m in node.matchers.matchers if str(m.op) == "MatchOp.Equal"}
        assert len(asked) == len(node.matchers.matchers)
        return {labels: v for labels, v in series.get(node.name, {}).items() if asked <= labels}
    assert isinstance(node, promql.BinaryExpr), node
    left, right = evaluate(node.lhs, series, now), evaluate(node.rhs, series, now)
    op = str(node.op)
    if op == "and":
        assert isinstance(left, dict) and isinstance(right, dict)
        on = set(node.modifier.matching.labels) if node.modifier and node.modifier.matching else None

        def key(labels: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
            return frozenset(p for p in labels if on is None or p[0] in on)

        there = {key(labels) for labels in right}
        return {labels: v for labels, v in left.items() if key(labels) in there}
    assert node.modifier is None
    if not isinstance(left, dict) and not isinstance(right, dict):
        return _GIVES[op](left, right)
    labels = [n for n in (left if isinstance(left, dict) else right) if not isinstance(right, dict) or n in right]
    pairs = [
        (n, left[n] if isinstance(left, dict) else left, right[n] if isinstance(right, dict) else right) for n in labels
    ]
    if op in _KEEPS:
        return {n: a for n, a, b in pairs if _KEEPS[op](a, b)}
    return {n: _GIVES[op](a, b) for n, a, b in pairs}


def test_the_model_of_promql() -> None:
    """Against what Prometheus' documentation says of operators and matching."""
    a, b = frozenset({("t", "x"), ("k", "1")}), frozenset({("t", "y"), ("k", "1")})
    series: dict[str, Vector] = {"m": {a: 3, b: 5}, "n": {a: 3, b: 4}, "o": {frozenset({("t", "y")}): 0}}

    def given(query: str) -> Vector | float:
        return evaluate(promql.parse(query), series, 100)

    assert given("m > n") == {b: 5} and given("m == 3") == {a: 3} and given('m{t="y"} * 2') == {b: 10}
    assert given("m > 2 * n - 5") == {a: 3, b: 5} and given("time() - m > 96") == {a: 97}
    assert given("m and on (t) o") == {b: 5} and given("m and o") == {} and given("gone > 1") == {}


def values(notation: str) -> list[float]:
    """`3x2` is 3 three times, `0+60x2` is 0, 60, 120."""
    out: list[float] = []
    for part in notation.split():
        found = re.fullmatch(r"(-?[\d.]+)(?:\+([\d.]+))?(?:x(\d+))?", part)
        assert found is not None, part
        out += [float(found[1]) + i * float(found[2] or 0) for i in range(int(found[3] or 0) + 1)]
    return out


@pytest.mark.parametrize(
    "case", yaml.safe_load(CASES.read_text())["tests"], ids=lambda c: c["alert_rule_test"][0]["alertname"]
)
def test_alerts_fire_on_what_they_mean(case: dict[str, Any], exported: dict[str, Labels]) -> None:
    by_name = {r["alert"]: r for r in rules()}
    series: list[tuple[str, frozenset[tuple[str, str]], list[float]]] = []
    for one in case["input_series"]:
        asked = promql.parse(one["series"])
        labels = {m.name: m.value for m in asked.matchers.matchers}
        assert labels.keys() - SCRAPED == exported[asked.name].keys(), asked.name  # as shoal exports it
        series.append((asked.name, frozenset(labels.items()), values(one["values"])))
    for asked in case["alert_rule_test"]:
        rule, at = by_name[asked["alertname"]], int(asked["eval_time"].removesuffix("m"))
        tree = promql.parse(rule["expr"])
        amount, unit = int(rule["for"][:-1]), rule["for"][-1]
        held = amount * {"m": 1, "h": 60}[unit]
        since: dict[frozenset[tuple[str, str]], int] = {}
        for minute in range(at + 1):
            now: dict[str, Vector] = {}
            for name, labels_of, some in series:
                if minute < len(some):
                    now.setdefault(name, {})[labels_of] = some[minute]
            found = evaluate(tree, now, 60 * minute)
            assert isinstance(found, dict)
            since = {labels_of: since.get(labels_of, minute) for labels_of in found}
        # a label of the rule takes the place of the series' own
        fired = [{**dict(labels_of), **rule["labels"]} for labels_of, first in since.items() if at - first >= held]
        wanted = [a["exp_labels"] for a in asked["exp_alerts"]]
        assert sorted(sorted(d.items()) for d in fired) == sorted(sorted(d.items()) for d in wanted), asked


def test_each_alert_has_a_case() -> None:
    tried = {
        a["alertname"]
        for c in yaml.safe_load(CASES.read_text())["tests"]
        for a in c["alert_rule_test"]
        if a["exp_alerts"]
    }
    assert tried == {r["alert"] for r in rules()}


# ---- Prometheus itself -----------------------------------------------------------------------------------


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing (Debian: apt install prometheus)")
    return found


@pytest.mark.live
def test_promtool_takes_rules_cases_and_metrics(text: str) -> None:
    tool = program("promtool")
    for line, given in (
        (["check", "rules", "--lint=all", "--lint-fatal", str(ALERTS)], None),
        (["test", "rules", str(CASES)], None),
        (["check", "metrics"], text),
    ):
        done = subprocess.run([tool, *line], input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert given is None or (done.stdout + done.stderr).strip() == ""  # not even advice


@contextlib.contextmanager
def served(text: str) -> Iterator[int]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _asked(port: int, path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())["data"]


@pytest.mark.live
def test_prometheus_scrapes_it_and_answers_every_panel(text: str, tmp_path: Path) -> None:
    server = program("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(text) as target:
        (tmp_path / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "shoal", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
        }))  # fmt: skip
        line = [
            server, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ]  # fmt: skip
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                until = time.monotonic() + 60
                wanted = {
                    f"Shoal{n}"
                    for n in ("BucketAtStopTrigger", "WriterStallsSoon", "TableCannotBeRead", "DoctorSilent")
                }
                pending: set[str] = set()
                while not wanted <= pending:
                    assert time.monotonic() < until and process.poll() is None, pending
                    time.sleep(0.3)
                    with contextlib.suppress(OSError):  # until it listens
                        pending = {a["labels"]["alertname"] for a in _asked(port, "alerts")["alerts"]}
                evaluated = [r for g in _asked(port, "rules")["groups"] for r in g["rules"]]
                assert {r["health"] for r in evaluated} == {"ok"} and len(evaluated) == len(rules())
                found = json.loads(DASHBOARD.read_text())
                for t in (t for p in found["panels"] for t in p["targets"]):
                    query = re.sub(r"\$(catalog|database|table)", ".*", t["expr"])
                    assert _asked(port, "query", query=query)["result"], query
            finally:
                process.terminate()
