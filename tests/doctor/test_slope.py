# SPDX-License-Identifier: Apache-2.0
"""Slopes against all pairs counted one by one, and intervals against how often they hold the truth."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.doctor.slope import EXACT, theil_sen

POINTS = st.lists(st.tuples(st.integers(0, 50), st.integers(-30, 30)), min_size=5, max_size=40)


@settings(deadline=None, max_examples=60)
@given(POINTS)
def test_the_slope_is_the_median_over_all_pairs(points: list[tuple[int, int]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    pairs = [
        (y[j] - y[i]) / (x[j] - x[i]) for i in range(len(x)) for j in range(i + 1, len(x)) if x[i] != x[j]
    ]  # fmt: skip
    found = theil_sen(x, y, rng=np.random.default_rng(0))
    if not pairs:
        assert found is None
        return
    assert found is not None and found.exact
    assert found.value == pytest.approx(median(pairs))
    assert min(pairs) <= found.low <= found.value + 1e-9 and found.value - 1e-9 <= found.high <= max(pairs)


@pytest.mark.parametrize("n", [30, 200])
def test_the_interval_holds_the_truth_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(7)
    x = np.arange(n) * 0.5
    held = 0
    for _ in range(300):
        found = theil_sen(x, 3 * x + rng.laplace(0, 20, n), rng=rng)
        assert found is not None
        held += found.low <= 3 <= found.high
    assert 0.91 <= held / 300 <= 0.99


def test_many_points_use_random_pairs_and_agree_with_all_of_them() -> None:
    rng = np.random.default_rng(3)
    x = np.arange(EXACT + 800) / 6
    y = 0.7 * x + rng.normal(0, 5, len(x))
    i, j = np.triu_indices(len(x), 1)
    whole = np.median((y[j] - y[i]) / (x[j] - x[i]))
    found = theil_sen(x, y, rng=np.random.default_rng(1))
    assert found is not None and not found.exact
    assert found.value == pytest.approx(whole, rel=0.02) and found.low < 0.7 < found.high
    assert found == theil_sen(x, y, rng=np.random.default_rng(1))


def test_a_flat_series_has_no_slope_and_few_points_have_none() -> None:
    found = theil_sen(range(20), [4] * 20, rng=np.random.default_rng(0))
    assert found is not None and (found.low, found.value, found.high) == (0, 0, 0) and not found.rising(10)
    assert theil_sen(range(4), range(4), rng=np.random.default_rng(0)) is None


def test_rising_needs_the_whole_interval_above_one_file_a_cycle() -> None:
    found = theil_sen(range(30), [0.5 * v for v in range(30)], rng=np.random.default_rng(0))
    assert found is not None and found.low == pytest.approx(0.5)
    assert found.rising(cycle_minutes=3) and not found.rising(cycle_minutes=1.9)
    noisy = theil_sen(range(8), [0, 9, 1, 8, 2, 7, 3, 9], rng=np.random.default_rng(0))
    assert noisy is not None and noisy.value > 0 and not noisy.rising(100)
