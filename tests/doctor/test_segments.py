# SPDX-License-Identifier: Apache-2.0
"""Cuts against an exhaustive dynamic program, and cadence against the clock that a job really had."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import File, Toy

from shoal.doctor.segments import change_points, cheapest_cuts, intervals_s, is_streaming, segments
from shoal.doctor.window import SnapshotFacts

DATA = Path(__file__).parent / "data"


def cost(values: list[float]) -> float:
    middle = median(values)
    return sum(abs(v - middle) for v in values)


def total(values: list[float], cuts: list[int], penalty: float) -> float:
    edges = [0, *cuts, len(values)]
    return sum(cost(values[a:b]) for a, b in pairwise(edges)) + penalty * len(cuts)


def cheapest(values: list[float], shortest: int, penalty: float) -> float:
    """The least total over all ways to cut, by dynamic programming over every last stretch."""
    best = [-penalty] + [math.inf] * len(values)
    for t in range(shortest, len(values) + 1):
        best[t] = min(best[s] + cost(values[s:t]) + penalty for s in range(t - shortest + 1))
    return best[-1]


SERIES = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=36) | st.lists(
    st.floats(-100, 100, allow_nan=False), min_size=1, max_size=36
)


@settings(deadline=None, max_examples=150)
@given(SERIES, st.integers(1, 8), st.floats(0.1, 60))
def test_cuts_cost_as_little_as_any_cuts_can(values: list[float], shortest: int, penalty: float) -> None:
    if len(values) < shortest:
        return
    cuts = cheapest_cuts(np.array(values), shortest, penalty)
    edges = [0, *cuts, len(values)]
    assert all(b - a >= shortest for a, b in pairwise(edges))
    assert total(values, cuts, penalty) == pytest.approx(cheapest(values, shortest, penalty), abs=1e-6)


def test_noise_alone_is_not_cut_and_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        assert change_points(rng.laplace(60, 2, 400)) == []
        values = np.r_[rng.normal(60, 2, 150), rng.normal(10, 0.5, 90), rng.normal(30, 2, 120)]
        assert change_points(np.log1p(values)) == [150, 240]


def test_constant_series_have_no_noise_to_measure_with() -> None:
    assert change_points([4.0] * 100) == []
    assert change_points([4.0] * 50 + [8.0] * 50) == [50]
    assert change_points([4.0] * 48 + [90.0] * 4 + [4.0] * 48) == []
    assert change_points([1.0, 2.0] * 15) == []


def test_a_new_interval_is_named_with_its_first_commit() -> None:
    toy = Toy()
    time = 0
    for n in range(1, 101):
        time += (60_000 if n <= 40 else 10_000) + (n * 37) % 200
        toy.commit(*[("flush", File(b, 5000)) for b in range(4)], at=time, identifier=n)
        toy.commit(at=time + 50, kind="COMPACT", identifier=n)
    found = segments(toy.window())
    assert found.streaming and [(s.first, s.last, s.commits) for s in found.segments] == [(1, 79, 40), (81, 199, 60)]
    changes = {c.signal: c for c in found.changes}
    assert set(changes) == {"commit_interval_s", "flush_per_minute"}
    assert changes["commit_interval_s"].ratio == pytest.approx(1 / 6, rel=0.01)
    assert changes["flush_per_minute"].ratio == pytest.approx(6, rel=0.01)
    assert changes["commit_interval_s"].snapshot == 81


def test_times_that_go_back_are_made_monotonic() -> None:
    steps = [facts(n, n, t) for n, t in enumerate([0, 10_000, 9_000, 20_000], 1)]
    assert intervals_s(steps)[1:].tolist() == [10, 0, 10]


def facts(number: int, identifier: int, time_ms: int, kind: str = "APPEND") -> SnapshotFacts:
    from shoal.doctor.window import Count

    return SnapshotFacts(
        number, 0, "job", identifier, kind, time_ms, None, None, None, None, None, ("", ""), {}, Count(), 0, 0, 0, True
    )


def test_bursts_after_failed_checkpoints_keep_the_cadence_of_the_clock() -> None:
    """A real job: 2 s between checkpoints, two of three fail, and their snapshots come in bursts."""
    rows = json.loads((DATA / "flink-failed-checkpoints.json").read_text())["snapshots"]
    commits = [facts(i, n, t, kind) for i, n, kind, t in rows if kind != "COMPACT" and n < 1 << 62]
    by_time = np.diff([c.time_ms for c in commits]) / 1000
    assert (by_time < 0.5).sum() >= 10  # told by their times, most commits would come within half a second
    assert is_streaming(commits)
    found = intervals_s(commits)[1:]
    assert float(np.median(found)) == pytest.approx(2, rel=0.1)
    assert float((found < 1).sum()) <= 2


def test_batch_commits_are_told_by_their_times() -> None:
    batch = (1 << 63) - 1
    steps = [facts(n, batch, n * 3_600_000) for n in range(1, 6)]
    assert not is_streaming(steps) and intervals_s(steps)[1:].tolist() == [3600] * 4


def test_a_job_that_ends_and_one_that_starts_anew_go_on() -> None:
    steps = [facts(n, i, n * 10_000) for n, i in enumerate([1, 2, 3, (1 << 63) - 1, 1, 2, 3], 1)]
    assert is_streaming(steps) and intervals_s(steps)[1:].tolist() == [10] * 6
    skipped = [facts(n, i, i * 10_000) for n, i in enumerate([1, 2, 5, 6, 9, 10], 1)]
    assert intervals_s(skipped)[1:].tolist() == [10] * 5


def test_a_table_without_commits_has_no_segments() -> None:
    assert segments(Toy().window()).to_dict() == {"user": None, "streaming": False, "segments": [], "changes": []}
