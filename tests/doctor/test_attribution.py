# SPDX-License-Identifier: Apache-2.0
"""Parts that add up and ratios that multiply, from any two sides; zeros as the module defines them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import File, Toy, steady_table

from shoal.doctor.attribution import BUCKETS, COMMITS, FILES, KINDS, attribute, factors, split

NUMBER = st.floats(1e-3, 1e4)
SIDE = st.fixed_dictionaries({n: st.one_of(st.none(), st.just(0.0), NUMBER) for n in (COMMITS, BUCKETS, FILES, KINDS)})


@settings(deadline=None, max_examples=100)
@given(SIDE, SIDE)
def test_parts_add_up_whatever_the_sides(a: dict[str, float | None], b: dict[str, float | None]) -> None:
    found = split(a, b)
    rounding = 1e-12 * max(found.a, found.b)  # of the products, whose difference can be any number of digits smaller
    assert sum(f.part for f in found.factors) == pytest.approx(found.difference, rel=1e-9, abs=rounding)
    json.dumps(found.to_dict(), allow_nan=False)
    str(found)


def test_the_same_factors_in_another_order_differ_by_nothing() -> None:
    a = {COMMITS: None, BUCKETS: None, FILES: None, KINDS: 4586.677792550975}
    b = {COMMITS: None, BUCKETS: 31.0, KINDS: None, FILES: 59.0}
    found = split(a, b)
    assert found.difference == 0 and [f.part for f in found.factors] == [0, 0, 0, 0]


@settings(deadline=None, max_examples=100)
@given(st.lists(NUMBER, min_size=3, max_size=3), st.lists(NUMBER, min_size=3, max_size=3))
def test_ratios_multiply(a: list[float], b: list[float]) -> None:
    names = (COMMITS, BUCKETS, FILES)
    found = split(dict(zip(names, a)), dict(zip(names, b)))
    assert math.prod(f.ratio for f in found.factors) == pytest.approx(found.a / found.b)
    for f in found.factors:
        assert (f.a is not None and f.b is not None and (f.part > 0) == (f.a > f.b)) or f.part == 0


def test_a_faster_clock_is_all_commits() -> None:
    slow, fast = steady_table(40, interval_ms=60_000), steady_table(240, interval_ms=10_000)
    found = attribute(fast.window(), slow.window())
    assert found is not None
    assert str(found) == "x6.0 = x6.0 commits · x1.0 buckets · x1.0 files"
    assert found.share(COMMITS) == pytest.approx(1) and found.leading is not None and found.leading.name == COMMITS


def test_two_stretches_of_one_window_and_the_changelog() -> None:
    toy = Toy()
    for n in range(1, 31):
        buckets = 2 if n <= 15 else 6
        toy.commit(*[("flush", File(b, 100)) for b in range(buckets)], at=n * 10_000)
    for n in range(31, 46):
        files = [File(b, 100) for b in range(6)]
        toy.commit(*[(c, f) for f in files for c in ("flush", "changelog")], at=n * 10_000)
    window = toy.window()
    found = attribute(window, window, a_span=(16, 30), b_span=(1, 15))
    assert found is not None and str(found) == "x3.0 = x1.0 commits · x3.0 buckets · x1.0 files"
    found = attribute(window, window, a_span=(31, 45), b_span=(16, 30), changelog=True)
    assert found is not None and found.share(KINDS) == pytest.approx(1)
    assert (found.a, found.b) == (pytest.approx(72), pytest.approx(36))


def test_zero_cases() -> None:
    idle, busy = {COMMITS: 6.0, BUCKETS: 0.0, FILES: None}, {COMMITS: 6.0, BUCKETS: 4.0, FILES: 1.0}
    found = split(busy, idle)
    assert {f.name: f.part for f in found.factors} == {COMMITS: 0, BUCKETS: 24, FILES: 0}
    assert str(found) == "from 0 = x1.0 commits · from 0 buckets · x1.0 files"
    assert all(f.part == 0 for f in split(idle, idle).factors)


def test_a_stretch_without_length_has_no_factors() -> None:
    toy = Toy()
    toy.commit(("flush", File(0, 1)), at=5)
    assert factors(toy.window()) is None
    assert attribute(toy.window(), toy.window()) is None
