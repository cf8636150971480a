# SPDX-License-Identifier: Apache-2.0
"""D9 to D17: the planted cause comes first, and nothing above info is said of tables that only look alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from incidents_more import HEALTHY, PLANTED, Plan, World, closed_too_early, high_trigger, keys_that_never_meet

from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.finding import Finding

# Intervals, buckets, rows, formats and seeds: every table is made by each, the first one by default.
GRID = (
    Plan(checkpoints=40),
    Plan(),
    Plan(interval_s=120, buckets=2, rows=12, seed=2),
    Plan(interval_s=300, buckets=3, format="orc", seed=3, checkpoints=100),
    Plan(interval_s=60, buckets=1, rows=30, keys=1000, format="parquet", seed=4),
    Plan(interval_s=90, buckets=4, rows=4, keys=5000, seed=5, checkpoints=90),
    Plan(interval_s=30, buckets=2, rows=20, keys=400, seed=6, checkpoints=130),
)
CAUSES = [(d, table) for d, tables in PLANTED.items() for table in tables]


def loud(found: list[Finding]) -> list[str]:
    return [f.id for f in found if f.severity != "info"]


def said(found: list[Finding]) -> str:
    return "\n".join(f"{f.id} {f.severity}: {f.says}" for f in found)


@pytest.mark.parametrize(("cause", "table"), CAUSES, ids=[t.__name__ for _, t in CAUSES])
def test_the_planted_cause_comes_first(cause: str, table: Callable[[Plan], World]) -> None:
    found = diagnose(table(GRID[0]).case())
    assert loud(found)[:1] == [cause], said(found)
    first = found[0]
    assert first.change and first.effect and first.evidence and first.scope and first.says


def test_files_closed_before_compression_are_told_from_a_small_target() -> None:
    first = diagnose(closed_too_early(GRID[0]).case())[0]
    assert (first.id, first.scope["option"]) == ("D9", "file.format")
    # no less than the default: what the bytes need is told by that
    assert first.change[0] == "ALTER TABLE ... SET ('target-file-size' = '128 mb')"


@pytest.mark.parametrize("table", HEALTHY, ids=[t.__name__ for t in HEALTHY])
def test_a_table_that_looks_alike_is_well(table: Callable[[Plan], World]) -> None:
    found = diagnose(table(GRID[0]).case())
    assert not loud(found), said(found)


@pytest.mark.parametrize("checkpoints", [54, 56, 79])
def test_keys_that_never_meet_are_seen_in_the_few_runs_after_a_compaction(checkpoints: int) -> None:
    found = diagnose(keys_that_never_meet(replace(GRID[0], checkpoints=checkpoints)).case())
    assert not loud(found), said(found)
    met = diagnose(high_trigger(replace(GRID[0], checkpoints=checkpoints)).case())
    assert loud(met) == ["D17"], said(met)


@pytest.mark.slow
@pytest.mark.parametrize("plan", GRID[1:], ids=[f"seed{p.seed}" for p in GRID[1:]])
@pytest.mark.parametrize(("cause", "table"), CAUSES, ids=[t.__name__ for _, t in CAUSES])
def test_the_planted_cause_comes_first_on_the_grid(cause: str, table: Callable[[Plan], World], plan: Plan) -> None:
    found = diagnose(table(plan).case())
    assert loud(found)[:1] == [cause], said(found)


@pytest.mark.slow
@pytest.mark.parametrize("plan", GRID[1:], ids=[f"seed{p.seed}" for p in GRID[1:]])
@pytest.mark.parametrize("table", HEALTHY, ids=[t.__name__ for t in HEALTHY])
def test_a_table_that_looks_alike_is_well_on_the_grid(table: Callable[[Plan], World], plan: Plan) -> None:
    found = diagnose(table(plan).case())
    assert not loud(found), said(found)
