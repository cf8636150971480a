# SPDX-License-Identifier: Apache-2.0
"""Tables that Java wrote, each with one planted cause or none: the cause is named first, the healthy give no warning."""

from __future__ import annotations

import pytest
from make_facts import read
from make_incidents import FOLDER, INCIDENTS, Java

from shoal.doctor.diagnose.case import case
from shoal.doctor.diagnose.rules import diagnose

PLANTED = [n for n, i in INCIDENTS.items() if i.cause is not None]
HEALTHY = [n for n, i in INCIDENTS.items() if i.cause is None]


def found(name: str, java: Java) -> list[tuple[str, str]]:
    window, _ = read(FOLDER / f"{name}.json.gz")
    return [(f.id, f.severity) for f in diagnose(case(window, slo_ms=java.slo_ms))]


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_named_first(name: str) -> None:
    told = found(name, INCIDENTS[name])
    assert told and told[0] == (INCIDENTS[name].cause, "error" if INCIDENTS[name].cause == "D7" else "warn"), told
    assert all(severity == "info" for _, severity in told[1:]), told


@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_give_no_warning(name: str) -> None:
    assert all(severity == "info" for _, severity in found(name, INCIDENTS[name]))
