# SPDX-License-Identifier: Apache-2.0
"""Forecasts against facts: one word each, only over what came after the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy import File, Toy

from shoal.doctor.checkup import checkup
from shoal.doctor.finding import Finding
from shoal.doctor.fix import Forecast
from shoal.doctor.fix_plan import plan
from shoal.doctor.verify import Word, judged, verify
from shoal.doctor.window import Window

D1 = Finding("D1", "n", "warn", "supported", {}, {"longest_interval_s": 60.0, "slack": "slo"}, "s")


def life(toy: Toy, commits: int, every_ms: int) -> Toy:
    at = toy.done[-1].time_ms if toy.done else 0
    number = toy.done[-1].identifier if toy.done else 0
    for n in range(1, commits + 1):
        toy.commit(*[("flush", File(b, 9000)) for b in range(4)], at=at + n * every_ms, identifier=number + n)
    return toy


def taken(window: Window) -> Window:
    return replace(window, stock=replace(window.stock, taken_ms=window.steps[-1].time_ms))


@pytest.mark.parametrize(
    ("low", "high", "fact", "word"),
    [
        (3.0, 5.0, 4.0, "as forecast"), (3.0, 5.0, 2.0, "better"), (3.0, 5.0, 12.0, "short of it"),
        (3.0, 5.0, 24.0, "unmoved"), (3.0, 5.0, 30.0, "worse"), (None, 5.0, 0.0, "as forecast"),
        (None, 5.0, 9.0, "short of it"), (30.0, 50.0, 40.0, "as forecast"), (30.0, 50.0, 60.0, "better"),
        (30.0, 50.0, 28.0, "short of it"), (30.0, None, 10.0, "worse"), (0.0, 0.0, 0.0, "as forecast"),
        (3.0, 5.0, None, "not known"),
    ],
)  # fmt: skip
def test_one_word_for_a_forecast(low: float | None, high: float | None, fact: float | None, word: Word) -> None:
    assert judged(Forecast("flush_per_minute", 24.0, low, high), fact) == word


def test_a_longer_interval_is_seen_in_what_came_after() -> None:
    toy = life(Toy({"bucket": "4"}), 60, 10_000)
    before = checkup(taken(toy.window()), slo_ms=61_000).case
    made = plan(before, [D1])
    assert [s.id for s in made.steps] == ["longer-interval"]
    life(toy, 30, 60_000)
    found = verify(made, checkup(taken(toy.window(since=61))).case, cycles=0)
    assert {c.forecast.reading: c.word for c in found.checked} == {
        "commit_interval_s": "as forecast", "flush_per_minute": "as forecast"
    }  # fmt: skip
    assert found.holds and not found.too_early and found.minutes == 30


def test_nothing_done_is_unmoved() -> None:
    toy = life(Toy({"bucket": "4"}), 60, 10_000)
    made = plan(checkup(taken(toy.window()), slo_ms=61_000).case, [D1])
    life(toy, 60, 10_000)
    found = verify(made, checkup(taken(toy.window(since=61))).case, cycles=0)
    assert {c.word for c in found.checked} == {"unmoved"} and not found.holds
    lines = found.lines()
    assert lines[0].endswith("since snapshot 60") and lines[1].startswith("unmoved: longer-interval: commit_interval_s")


def test_it_is_too_early_before_enough_cycles() -> None:
    toy = life(Toy({"bucket": "4"}), 60, 10_000)
    made = replace(plan(checkup(taken(toy.window()), slo_ms=61_000).case, [D1]), cycle_minutes=5.0)
    assert verify(made, checkup(toy.window(since=61)).case).too_early  # no snapshot came
    life(toy, 9, 60_000)
    after = checkup(taken(toy.window(since=61))).case
    assert verify(made, after).too_early and verify(made, after).cycles == pytest.approx(9 / 5)
    assert not verify(made, after, cycles=1).too_early
    assert verify(made, after, cycles=1, since_ms=after.window.steps[-1].time_ms - 60_000).too_early


def test_only_steps_that_were_done_are_looked_at() -> None:
    toy = life(Toy({"bucket": "4", "write-only": "true"}), 60, 10_000)
    made = plan(checkup(taken(toy.window()), slo_ms=61_000).case, [D1, replace(D1, id="D7")])
    after = checkup(taken(life(toy, 9, 10_000).window(since=61))).case
    assert {c.step for c in verify(made, after).checked} == {"longer-interval", "compact-now", "writers-compact"}
    assert {c.step for c in verify(made, after, steps=["compact-now"]).checked} == {"compact-now"}
