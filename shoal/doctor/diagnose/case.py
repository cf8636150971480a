# SPDX-License-Identifier: Apache-2.0
"""All that a diagnosis may look at: a window, its model, and what else is known of job, freshness and store.

Invariant: a case is a value; a diagnosis is a function of it and reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shoal.doctor.beside import NOTHING_BESIDE, Beside
from shoal.doctor.debt import Limits
from shoal.doctor.diagnose.pace import Pace, pace
from shoal.doctor.finding import Evidence
from shoal.doctor.flink import Job
from shoal.doctor.model import Model, model
from shoal.doctor.states import States
from shoal.doctor.window import Window
from shoal.options import Options


@dataclass(frozen=True)
class Case:
    """One table that is looked at.

    `slo_ms`: within what time rows must be visible, None when nobody said. `beside`: what a history has beside
    snapshots.
    """

    window: Window
    model: Model
    states: States | None = None
    job: Job | None = None
    slo_ms: int | None = None
    beside: Beside = NOTHING_BESIDE
    now_ms: int = 0

    @property
    def probes(self) -> Mapping[str, tuple[float, ...]]:
        """Freshness that sentinels measured, by stage in ms (`commit`, `read`)."""
        return self.beside.probes

    @cached_property
    def options(self) -> Options:
        """The newest schema's options, defaults included."""
        schema = self.window.schema
        return Options({} if schema is None else dict(schema.options), strict=False)

    @cached_property
    def pace(self) -> Pace | None:
        """The rhythm that the table has now."""
        return pace(self.window, self.model.segments)

    @property
    def limits(self) -> Limits | None:
        return self.model.debt.limits


def per_hour(m: Model, stock: str) -> dict[str, Evidence]:
    """The slope of one stock as evidence; empty where it is not known."""
    trend = m.trends.get(stock)
    if trend is None or trend.slope is None:
        return {}
    names = (f"{stock}_per_hour", f"{stock}_per_hour_low", f"{stock}_per_hour_high")
    return {name: round(value, 3) for name, value in zip(names, trend.slope.over(60))}


def case(
    window: Window, *, job: Job | None = None, slo_ms: int | None = None, now_ms: int | None = None,
    beside: Beside = NOTHING_BESIDE,
) -> Case:  # fmt: skip
    """A case with its model computed."""
    from shoal.doctor.debt import replay

    schema = window.schema
    limits = None if schema is None else Limits.of(schema)
    found = model(window, looks=beside.looks)
    return Case(window, found, replay(window, limits), job, slo_ms, beside, now_ms or window.stock.taken_ms)
