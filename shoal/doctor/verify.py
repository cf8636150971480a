# SPDX-License-Identifier: Apache-2.0
"""A plan's forecasts against what came of it, some cycles later. Pure functions of a plan and a new case.

Invariant: only snapshots after the plan's are looked at; a reading that did not move is called that, not a success.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from shoal.doctor.diagnose.case import Case
from shoal.doctor.fix import Forecast, Plan
from shoal.doctor.readings import readings
from shoal.doctor.report import brief, number_text

SCHEMA = "shoal.doctor.verify/1"
CYCLES = 2  # that a plan is given to work
_FELT = 0.1  # a change of less is none

Word = Literal["as forecast", "better", "short of it", "unmoved", "worse", "not known"]
GOOD: tuple[Word, ...] = ("as forecast", "better")


@dataclass(frozen=True, slots=True)
class Checked:
    """One forecast beside the fact."""

    step: str
    title: str
    forecast: Forecast
    fact: float | None
    word: Word

    def to_dict(self) -> dict[str, Any]:  # JSON
        f = self.forecast
        return {
            "step": self.step, "title": self.title, "reading": f.reading, "before": f.before, "low": f.low,
            "high": f.high, "fact": self.fact, "word": self.word,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verification:
    """All forecasts of the steps in question. `cycles`: that went by since; None where no cycle is known."""

    plan: Plan
    minutes: float
    cycles: float | None
    wanted: float
    checked: tuple[Checked, ...]

    @property
    def too_early(self) -> bool:
        return self.minutes <= 0 or (self.cycles is not None and self.cycles < self.wanted)

    @property
    def holds(self) -> bool:
        return all(c.word in GOOD for c in self.checked if c.word != "not known")

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "schema": SCHEMA, "table": self.plan.name, "address": self.plan.table, "snapshot": self.plan.snapshot,
            "minutes": self.minutes, "cycles": self.cycles, "wanted_cycles": self.wanted, "too_early": self.too_early,
            "holds": self.holds, "checked": [c.to_dict() for c in self.checked],
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For people: one line a forecast."""
        since = f"{brief(self.minutes)} minutes" + ("" if self.cycles is None else f", {brief(self.cycles, 2)} cycles")
        out = [f"{self.plan.name}: {since} since snapshot {self.plan.snapshot}"]
        if self.too_early:
            out.append(f"too early: wait for {self.wanted:g} cycles")
        if not self.checked:
            out.append("no step of the plan has a forecast")
        for c in self.checked:
            fact = "not known" if c.fact is None else number_text(c.fact)
            out.append(f"{c.word}: {c.step}: {c.forecast}; it is {fact}")
        return out


def verify(
    plan: Plan, after: Case, *, steps: Iterable[str] | None = None, since_ms: int | None = None, cycles: float = CYCLES
) -> Verification:
    """Compare. `steps`: those that were done, else all; `since_ms`: when the last of them was, else the plan's time."""
    wanted = None if steps is None else set(steps)
    facts = readings(after)
    checked = []
    for step in plan.steps:
        if wanted is None or step.id in wanted:
            checked += [
                Checked(step.id, step.title, f, facts.get(f.reading), judged(f, facts.get(f.reading)))
                for f in step.forecasts
            ]
    times = [s.time_ms for s in after.window.steps]
    minutes = (times[-1] - (plan.taken_ms if since_ms is None else since_ms)) / 60_000 if times else 0.0
    went = minutes / plan.cycle_minutes if plan.cycle_minutes else None
    return Verification(plan, max(minutes, 0.0), went, cycles, tuple(checked))


def judged(f: Forecast, fact: float | None) -> Word:
    """One word for one forecast.

    >>> f = Forecast("flush_per_minute", 24.0, 3.0, 5.0)
    >>> judged(f, 4.0), judged(f, 2.0), judged(f, 12.0), judged(f, 24.5), judged(f, 40.0), judged(f, None)
    ('as forecast', 'better', 'short of it', 'unmoved', 'worse', 'not known')
    """
    if fact is None:
        return "not known"
    if f.holds(fact):
        return "as forecast"
    if f.before is None:
        return "not known"
    goal = f.high if f.high is not None and f.before > f.high else f.low
    goal = f.high if goal is None else goal
    assert goal is not None
    falls = f.before > goal
    beyond = fact < (f.low if f.low is not None else goal) if falls else fact > (f.high if f.high is not None else goal)
    if beyond:
        return "better"
    if abs(fact - f.before) <= _FELT * max(abs(f.before), 1e-9):
        return "unmoved"
    return "short of it" if (fact < f.before) == falls else "worse"
