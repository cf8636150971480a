# SPDX-License-Identifier: Apache-2.0
"""Planted incidents: the cause is named first, over a grid of tables that no threshold was made for.

Default runs take a few of each; `slow` runs take them all, and write some with shoal's own writer.
"""

from __future__ import annotations

import pytest
from incidents import Life, Phase, by_day, live
from planted import Case, healthy, planted
from written import written

from shoal.doctor.diagnose import case as cases
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.finding import Finding
from shoal.doctor.window import Window

SICK, WELL = tuple(planted()), tuple(healthy())
FEW_SICK, FEW_WELL = SICK[::9], WELL[::5]


def told(window: Window, slo_ms: int | None = None) -> list[Finding]:
    return diagnose(cases.case(window, slo_ms=slo_ms))


def check(case: Case, window: Window) -> None:
    found = told(window, case.slo_ms)
    loud = [f.id for f in found if f.severity != "info"]
    if case.cause is None:
        assert not loud, [f.says for f in found]
    else:
        assert loud == [case.cause], [(f.id, f.severity, f.says) for f in found]


@pytest.mark.parametrize("case", FEW_SICK, ids=lambda c: c.name)
def test_the_planted_cause_alone_is_named(case: Case) -> None:
    check(case, live(case.life))


@pytest.mark.parametrize("case", FEW_WELL, ids=lambda c: c.name)
def test_tables_that_only_look_like_it_are_left_alone(case: Case) -> None:
    check(case, live(case.life))


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in (*SICK, *WELL) if c not in (*FEW_SICK, *FEW_WELL)], ids=lambda c: c.name)
def test_the_whole_grid(case: Case) -> None:
    check(case, live(case.life))


LONG = {"snapshot.time-retained": "1 d"}
SOON = {"snapshot.time-retained": "10 min"}
ALONE = {"write-only": "true"}
WRITTEN = (
    Case("d1", "D1", Life((Phase(22, 60), Phase(30, 10)), 2, options=LONG)),
    Case("d2", "D2", Life((Phase(22, 60),), 24)),
    Case("d3", "D3", Life((Phase(25, 60),), 2, options={"changelog-producer": "input"})),
    Case("d3 lookup", "D3", Life((Phase(25, 60),), 2, options={"changelog-producer": "lookup"})),
    Case("d4", "D4", Life((Phase(30, 60),), 4, hot=0.8)),
    Case("d5", "D5", Life((Phase(60, 60),), 1, slowness=12, options={"num-sorted-run.stop-trigger": "50"})),
    Case("d6", "D6", Life((Phase(50, 60),), 1, options=SOON, consumer_at=8)),
    Case("d7", "D7", Life((Phase(30, 60),), 2, options=ALONE)),
    Case("d8", "D8", Life((Phase(25, 60),), 1, partitions=by_day, late=0.15, late_days=9)),
    Case("h", None, Life((Phase(60, 60),), 2)),
    Case("h2", None, Life((Phase(25, 300),), 4, options=LONG, format="parquet")),
    Case("h7", None, Life((Phase(40, 60),), 1, options=ALONE, compactor_every=10)),
    Case("h8", None, Life((Phase(25, 7200),), 1, partitions=by_day, options=LONG)),
)
QUICK = ("d3", "d7", "h7")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c.name in QUICK else pytest.mark.slow) for c in WRITTEN], ids=lambda c: c.name
)
def test_tables_that_shoal_wrote(case: Case) -> None:
    check(case, written(case.life))
