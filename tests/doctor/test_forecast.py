# SPDX-License-Identifier: Apache-2.0
"""Forecasts against tables that go on to do what was forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import File, Toy, steady_table

from shoal.doctor.cycles import cycles
from shoal.doctor.debt import Limits, replay
from shoal.doctor.forecast import Plan, Prices, Stall, planning, rate, requests, stall, steady
from shoal.doctor.model import model
from shoal.doctor.window import Count, Window


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def stall_of(window: Window, bucket: int = 0) -> Stall:
    assert window.schema is not None
    limits = Limits.of(window.schema)
    states = replay(window, limits)
    assert states is not None
    found = stall(states, limits, cycles(states, limits), bucket, rng=rng())
    assert found is not None
    return found


def starving(checkpoints: int, extra: int = 0) -> Toy:
    """Every fifth checkpoint a compaction takes all level-0 files but one more than the last time."""
    toy, kept = Toy({"num-sorted-run.stop-trigger": "30"}), 0
    for n in range(1, checkpoints + 1):
        toy.commit(("flush", File(0, 100)), at=n * 60_000)
        if n % 5 == 0:
            kept += 1
            level0 = [f for f in toy.live if f.level == 0]
            upper = [f for f in toy.live if f.level]
            merged = File(0, 100 * n, level=5)
            taken = level0[: len(level0) - kept] + upper
            toy.commit(*[("removal", f) for f in taken], ("rewrite", merged), at=n * 60_000, kind="COMPACT")
    return toy


def test_crests_that_climb_reach_the_stop_trigger_when_told() -> None:
    found = stall_of(starving(60).window())
    assert not found.stalled and found.stop_trigger == 30
    assert found.minutes.value is not None and found.minutes.low is not None and found.minutes.high is not None
    assert found.minutes.low <= found.minutes.value <= found.minutes.high
    # One more run each five minutes: the same table goes on until its crest is there.
    longer = starving(200)
    window = longer.window()
    limits = Limits.of(window.schema)  # type: ignore[arg-type]
    states = replay(window, limits)
    assert states is not None
    runs = states.series(0, "runs")
    there = next(s.time_ms for s, r in zip(states.steps, runs.tolist()) if r >= 30)
    assert found.minutes.value == pytest.approx((there - 60 * 60_000) / 60_000, abs=6)


def test_a_writer_that_waits_is_stalled_not_forecast() -> None:
    toy = Toy()  # stop-trigger 8: the writer holds at 9 and 10 runs
    for n in range(1, 60):
        toy.commit(("flush", File(0, 100)), at=n * 10_000)
        if len(toy.live) >= 10:
            taken = [f for f in toy.live if f.level] + [f for f in toy.live if f.level == 0][:2]
            toy.commit(
                *[("removal", f) for f in taken], ("rewrite", File(0, 200, level=3)), at=n * 10_000, kind="COMPACT"
            )
    found = stall_of(toy.window())
    assert found.stalled and found.minutes.value == 0
    assert model(toy.window()).stalls[0].stalled


def test_a_healthy_bucket_has_no_stall_ahead() -> None:
    found = stall_of(steady_table(100).window())
    assert not found.stalled and found.minutes.value is None and found.minutes.low is None


def test_little_s_law_holds_on_a_table_that_expires() -> None:
    """The stocks that are told equal those of the same table once expiry has run for hours."""
    options = {"snapshot.time-retained": "30 min", "snapshot.num-retained.min": "1"}
    toy = steady_table(1200, interval_ms=10_000, every=6, buckets=4, changelog=True, options=options)
    window = toy.window()
    early = replace(window, steps=window.steps[:140])
    early = replace(early, flows=early.flows.filter(_before(early, window)))
    told = steady(early, Count(4, 2400), 4)
    assert told is not None
    newest = window.steps[-1].time_ms
    kept = {s.id for s in window.steps if newest - s.time_ms <= 30 * 60_000}
    dead = sum(c == "removal" for d in toy.done if d.id in kept for c, *_ in d.rows)
    logs = sum(c == "changelog" for d in toy.done if d.id in kept for c, *_ in d.rows)
    assert told.changelog_files.value == pytest.approx(logs, rel=0.02)
    assert told.changelog_files.value == pytest.approx(4 * 6 * 30)
    assert told.dead_files.value == pytest.approx(dead, rel=0.05)
    assert told.snapshots.value == pytest.approx(len(kept), rel=0.03)
    for part in (told.dead_files, told.snapshots):
        assert part.low is not None and part.high is not None and part.value is not None
        assert part.low <= part.value <= part.high
    assert "30 minutes" in told.assumption


def _before(early: Window, whole: Window) -> object:
    import pyarrow.compute as pc

    return pc.less_equal(whole.flows.column("snapshot"), early.steps[-1].id)


def test_counts_win_over_time_in_retention() -> None:
    few = {"snapshot.num-retained.max": "12", "snapshot.num-retained.min": "1"}
    told = steady(steady_table(100, options=few, every=1000).window(), Count(), 2)
    assert told is not None and told.snapshots.value == pytest.approx(12)
    many = {"snapshot.time-retained": "1 s", "snapshot.num-retained.min": "50"}
    told = steady(steady_table(100, options=many, every=1000).window(), Count(), 2)
    assert told is not None and told.snapshots.value == pytest.approx(50)


def test_requests_and_money_are_what_a_day_of_commits_makes() -> None:
    window = steady_table(600, every=6, buckets=4, changelog=True).window()
    found = requests(window, Prices(put_per_1000=0.005, delete_per_1000=0.001))
    assert found is not None
    # Each checkpoint: 4 new files, 4 of changelog, and with every sixth 4 merged ones; a snapshot has 4 metadata
    # files and a hint.
    per_commit = 8 + 4 / 6 + 5 * (1 + 1 / 6)
    assert found.per_commit == pytest.approx(per_commit)
    assert found.puts_per_day.value == pytest.approx(per_commit * 6 * 1440)
    assert found.puts_per_day.low is not None and found.puts_per_day.high is not None
    assert found.puts_per_day.low <= per_commit * 6 * 1440 * 1.001
    deletes = (per_commit - 7 / 6) * 6 * 1440
    assert found.cost_per_day is not None
    assert found.cost_per_day.value == pytest.approx(per_commit * 8640 * 5e-6 + deletes * 1e-6)
    assert requests(window).cost_per_day is None  # type: ignore[union-attr]


def test_rates_have_an_interval_that_narrows_with_the_window() -> None:
    random = np.random.default_rng(1)
    times = [n * 10_000 for n in range(1, 2001)]
    counts = random.poisson(5, 2000).tolist()
    long, short = rate(times, counts), rate(times[:60], counts[:60])
    assert long is not None and short is not None and long.low is not None and long.high is not None
    assert long.low < 30 < long.high and short.high is not None and short.low is not None
    assert long.high - long.low < short.high - short.low
    assert rate([5], [1.0]) is None and rate([5, 5], [1.0, 1.0]) is None


def test_planning_time_is_fitted_and_its_limit_dated() -> None:
    random = np.random.default_rng(2)
    plans = [
        Plan(b, e, 0.05 + 2e-8 * b + 3e-6 * e + random.normal(0, 0.002))
        for b in (10**5, 10**6, 10**7)
        for e in (10**3, 10**4, 10**5)
    ]
    found = planning(
        plans, manifest_bytes=10**7, entries=10**5, bytes_per_day=10**6, entries_per_day=10**4, limit_s=2.0
    )
    assert found is not None
    assert found.fixed == pytest.approx(0.05, abs=0.01)
    assert found.per_byte == pytest.approx(2e-8, rel=0.1) and found.per_entry == pytest.approx(3e-6, rel=0.1)
    assert found.now.value == pytest.approx(0.55, rel=0.05)
    assert found.days.value == pytest.approx(1.45 / 0.05, rel=0.1)
    assert found.days.low is not None and found.days.high is not None and found.days.low < found.days.value  # type: ignore[operator]
    flat = planning(plans, manifest_bytes=10**7, entries=10**5, bytes_per_day=0, entries_per_day=0, limit_s=2.0)
    assert flat is not None and flat.days.value is None
    assert planning(plans[:2], manifest_bytes=1, entries=1, bytes_per_day=1, entries_per_day=1, limit_s=1) is None


def test_planning_never_says_that_more_metadata_is_faster() -> None:
    plans = [Plan(10**5, 10, 0.3), Plan(10**6, 20, 0.2), Plan(10**7, 30, 0.1)]
    found = planning(plans, manifest_bytes=10**7, entries=30, bytes_per_day=1, entries_per_day=1, limit_s=1)
    assert found is not None and min(found.fixed, found.per_byte, found.per_entry) >= 0
    assert found.fixed == pytest.approx(0.2)
