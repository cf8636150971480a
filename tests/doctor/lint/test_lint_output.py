# SPDX-License-Identifier: Apache-2.0
"""What scripts and code hosts read: the versioned JSON, SARIF 2.1.0, and the table of rules in the docs."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.doctor.lint.output import rule_table, summary, to_json, to_sarif
from shoal.doctor.lint.rules import all_rules, find
from shoal.doctor.lint.sources import lint_text
from shoal.doctor.lint.subject import Around, Subject, settings_of

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[3] / "docs" / "lint.md"
FOUND = lint_text((DATA / "seed2.sql").read_text(), "ddl/seed2.sql", around=Around())


def test_json_has_a_version_and_every_field():
    told = json.loads(json.dumps(to_json(["ddl/seed2.sql"], FOUND)))
    assert told["schema"] == "shoal.doctor.lint/1" and told["paimon"] == "2.0.0"
    assert told["counts"] == {"error": 13, "warn": 3, "info": 0}
    first = told["findings"][0]
    assert first["scope"] == {"table": "events", "option": "format", "file": "ddl/seed2.sql", "line": 15, "column": 5}
    assert first["evidence"] == {"value": "parquet"} and first["confidence"] == "proven"
    assert set(first) == {
        "id",
        "name",
        "severity",
        "confidence",
        "scope",
        "evidence",
        "says",
        "change",
        "effect",
        "snapshots",
    }


def test_sarif_has_what_2_1_0_requires():
    """The required properties and types of the schema's parts that are used here."""
    log = json.loads(json.dumps(to_sarif(FOUND, "1.0")))
    assert set(log) == {"$schema", "version", "runs"} and log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert isinstance(driver["name"], str) and isinstance(driver["version"], str)
    ids = [r["id"] for r in driver["rules"]]
    assert len(set(ids)) == len(ids) and set(ids) == {f.id for f in FOUND}
    for rule in driver["rules"]:
        assert rule["helpUri"].startswith("https://") and rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        assert rule["name"].isalnum()
    assert len(run["results"]) == len(FOUND)
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "ddl/seed2.sql"
        assert physical["region"]["startLine"] >= 1 and physical["region"]["startColumn"] >= 1
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())


def test_sarif_of_a_table_has_a_logical_location():
    from shoal.doctor.lint.rules import lint

    found = lint(Subject("table", "d.t", settings_of({"format": "orc"})))
    (result,) = to_sarif(found, "1.0")["runs"][0]["results"]
    assert result["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "d.t", "kind": "resource"}]}]


def test_nothing_found_is_a_valid_log_too():
    assert to_sarif([], "1.0")["runs"][0]["results"] == []
    assert summary([]) == "nothing to say"
    assert summary(FOUND) == "13 errors, 3 warns"


def test_the_docs_list_every_rule_as_it_is():
    text = DOCS.read_text()
    assert text[text.index("| rule | severity |") :] == rule_table()


def test_rules_are_found_by_any_spelling_of_their_id():
    assert {find(t).id for t in ("L-17", "l-17", "17", "L17")} == {"L-17"}
    assert [r.id for r in all_rules()] == sorted(r.id for r in all_rules())
    for rule in all_rules():
        assert rule.uri.startswith("https://github.com/apache/paimon/blob/release-2.0.0/") and rule.when and rule.name
