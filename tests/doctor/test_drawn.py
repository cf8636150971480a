# SPDX-License-Identifier: Apache-2.0
"""Tables drawn at random and written by shoal: the planted cause is named first, the healthy get no warning.

Of twenty draws for each cause and as many look-alikes a few run by default, all with `slow`.
"""

from __future__ import annotations

import pytest
from drawn import PLANTS, Drawn, sick, well
from setting import lived

from shoal.doctor.checkup import Checkup

DRAWS = 20
CAUSES = [c for c in PLANTS if c != "any"]
SICK = {f"{c} {n}": sick(c, n) for c in CAUSES for n in range(DRAWS)}
WELL = {f"like {c} {n}": well(c, n) for c in PLANTS for n in range(DRAWS)}
# Those that cost about a second each, or less.
QUICK = ("D2 11", "D7 1", "D7 2", "D8 2", "D8 8", "D9 5", "D9 6", "D14 0", "like D7 2", "like D16 2")


def said(drawn: Drawn, found: Checkup) -> str:
    return "\n".join([f"{drawn.name}: {drawn.setting}", *(f"{f.id} {f.severity}: {f.says}" for f in found.findings)])


def chosen(tables: dict[str, Drawn]) -> list[object]:
    """All of them, those that are not quick as slow ones."""
    return [pytest.param(d, id=n, marks=() if n in QUICK else pytest.mark.slow) for n, d in tables.items()]


@pytest.mark.parametrize("drawn", chosen(SICK))
@pytest.mark.timeout(1200)
def test_the_planted_cause_comes_first(drawn: Drawn) -> None:
    found = lived(drawn.setting)
    loud = [f.id for f in found.findings if f.severity != "info"]
    assert loud[:1] == [drawn.cause], said(drawn, found)
    assert found.findings[0].id == drawn.cause


@pytest.mark.parametrize("drawn", chosen(WELL))
@pytest.mark.timeout(1200)
def test_a_look_alike_gets_no_warning(drawn: Drawn) -> None:
    found = lived(drawn.setting)
    assert all(f.severity == "info" for f in found.findings), said(drawn, found)
