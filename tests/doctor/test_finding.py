# SPDX-License-Identifier: Apache-2.0
"""Findings: their order, the exit code they give, and what scripts read."""

from __future__ import annotations

import json

from shoal.doctor.finding import Finding, at_least, exit_code, worst_first


def _finding(name: str, severity: str) -> Finding:
    return Finding(name, "n", severity, "supported", {"bucket": 3}, {"files": 7, "ids": (1, 2)}, "7 files.", ("do it",))  # type: ignore[arg-type]


def test_the_worst_come_first_and_equals_keep_their_order():
    found = [_finding(i, s) for i, s in (("a", "info"), ("b", "warn"), ("c", "error"), ("d", "warn"))]
    assert [f.id for f in worst_first(found)] == ["c", "b", "d", "a"]


def test_the_exit_code_follows_the_bar():
    found = [_finding("a", "warn")]
    assert [exit_code(found, s) for s in ("error", "warn", "info")] == [0, 1, 1]  # type: ignore[arg-type]
    assert exit_code([], "info") == 0
    assert at_least("error", "error") and not at_least("info", "warn")


def test_a_finding_is_json():
    told = json.loads(json.dumps(_finding("D1", "error").to_dict()))
    assert told["evidence"] == {"files": 7, "ids": [1, 2]} and told["change"] == ["do it"]
