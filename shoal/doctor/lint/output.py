# SPDX-License-Identifier: Apache-2.0
"""Findings as lines for people, as JSON for scripts, and as SARIF 2.1.0 for code hosts and editors.

Invariants: a finding is one line, whatever is in it; the JSON has a version (`schema`) and raw numbers; SARIF lists
each rule that speaks once, with a help URI, and every result points to one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.doctor.finding import SEVERITIES, Finding
from shoal.doctor.lint.rules import RELEASE, all_rules, find

SCHEMA = "shoal.doctor.lint/1"
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warn": "warning", "info": "note"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

Paint = Callable[[str, str], str]  # (text, severity or "dim") -> text


def line(one: Finding, paint: Paint = lambda text, _: text) -> str:
    """`file:line:column: severity L-.. says; hint`."""
    where = where_of(one)
    hint = "; ".join(one.change)
    parts = [f"{where}:", paint(one.severity, one.severity), one.id, _CONTROL.sub(" ", one.says)]
    return " ".join(parts) + (paint(f"  hint: {_CONTROL.sub(' ', hint)}", "dim") if hint else "")


def where_of(one: Finding) -> str:
    """The place in its file, or the table."""
    if "file" in one.scope:
        return f"{one.scope['file']}:{one.scope['line']}:{one.scope['column']}"
    return str(next((one.scope[k] for k in ("table", "catalog", "hint", "job") if k in one.scope), "-"))


def summary(findings: Sequence[Finding]) -> str:
    """How many there are of each severity."""
    counts = Counter(f.severity for f in findings)
    words = [f"{counts[s]} {s}{'s' if counts[s] != 1 and s != 'info' else ''}" for s in SEVERITIES if counts[s]]
    return ", ".join(words) if words else "nothing to say"


def to_json(sources: Iterable[str], findings: Sequence[Finding]) -> dict[str, Any]:
    counts = Counter(f.severity for f in findings)
    return {
        "schema": SCHEMA,
        "paimon": RELEASE,
        "sources": list(sources),
        "counts": {s: counts[s] for s in SEVERITIES},
        "findings": [f.to_dict() for f in findings],
    }


def to_sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    spoken = {f.id for f in findings}
    rules = [r for r in all_rules() if r.id in spoken]
    index = {r.id: i for i, r in enumerate(rules)}
    return {
        "$schema": SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "shoal doctor lint",
                        "version": version,
                        "informationUri": "https://paimon.apache.org",
                        "rules": [
                            {
                                "id": r.id,
                                "name": "".join(w.capitalize() for w in re.findall(r"\w+", r.name)),
                                "shortDescription": {"text": r.name},
                                "fullDescription": {"text": r.when},
                                "helpUri": r.uri,
                                "help": {"text": f"{r.when}. See {r.uri}"},
                                "defaultConfiguration": {"level": _LEVELS[r.severity]},
                            }
                            for r in rules
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, index[f.id]) for f in findings],
            }
        ],
    }


def _result(one: Finding, rule: int) -> dict[str, Any]:
    hint = "; ".join(one.change)
    result: dict[str, Any] = {
        "ruleId": one.id,
        "ruleIndex": rule,
        "level": _LEVELS[one.severity],
        "message": {"text": f"{one.says}. {hint}" if hint else one.says},
        "properties": {"confidence": one.confidence, "evidence": one.to_dict()["evidence"]},
    }
    if "file" in one.scope:
        region = {"startLine": one.scope["line"], "startColumn": one.scope["column"]}
        uri = str(one.scope["file"]).replace("\\", "/")
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]
    else:
        result["locations"] = [{"logicalLocations": [{"fullyQualifiedName": where_of(one), "kind": "resource"}]}]
    result["partialFingerprints"] = {
        "shoalFinding/v1": f"{one.id}:{one.scope.get('option', '')}:{where_of(one).split(':')[0]}"
    }
    return result


def rule_table() -> str:
    """All rules as a Markdown table, for docs/lint.md."""
    rows = ["| rule | severity | what it finds | when | source |", "|---|---|---|---|---|"]
    for r in all_rules():
        source = (r.page or r.source).rsplit("/", 1)[-1].removesuffix(".java").removesuffix(".mdx").removesuffix(".md")
        link = f"[{source}]({r.uri})" if source else ""
        rows.append(f"| {r.id} | {r.severity} | {r.name} | {r.when.replace('|', chr(92) + '|')} | {link} |")
    return "\n".join(rows) + "\n"


__all__ = ["SCHEMA", "find", "line", "rule_table", "summary", "to_json", "to_sarif", "where_of"]
