# SPDX-License-Identifier: Apache-2.0
"""Alternating measurements, and what a line reports.

A case is a function that gives the CPU seconds it took, all threads counted. Cases run a, b, c, a, b, c, so that a
busy machine slows all alike, and the least of each is kept.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Case = Callable[[], float]


def timed(work: Callable[[], Any], before: Callable[[], Any] | None = None) -> Case:
    """CPU seconds of `work` in this process; `before` is not counted."""

    def case() -> float:
        if before is not None:
            before()
        gc.collect()
        start = time.process_time()
        work()
        return time.process_time() - start

    return case


def alternate(cases: Mapping[str, Case | None], repeat: int) -> dict[str, float]:
    """The least CPU seconds of each case over `repeat` rounds; cases that are None are left out."""
    best: dict[str, float] = {}
    for _ in range(repeat):
        for name, case in cases.items():
            if case is not None:
                best[name] = min(best.get(name, float("inf")), case())
    return best


@dataclass(slots=True)
class Figure:
    """One measured case of a line. `value` is compared with `must` and `goal`; without them it is for information."""

    line: str
    case: str
    value: float
    unit: str
    must: float | None = None
    goal: float | None = None
    higher_is_better: bool = False
    shoal: float | None = None
    limit: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)

    def _meets(self, bar: float | None) -> bool:
        return bar is None or (self.value >= bar if self.higher_is_better else self.value <= bar)

    @property
    def ok(self) -> bool:
        return self._meets(self.must)

    @property
    def reaches_goal(self) -> bool:
        return self._meets(self.goal)

    def to_json(self) -> str:
        out: dict[str, Any] = {"line": self.line, "case": self.case, "value": self.value, "unit": self.unit}
        out |= {"shoal": self.shoal, "limit": self.limit, "must": self.must, "goal": self.goal}
        out |= {"ok": self.ok, "goal_met": self.reaches_goal} if self.must is not None else {}
        out |= {**self.peers, **self.detail}
        return json.dumps({k: _short(v) for k, v in out.items() if v is not None})


def ratio_figure(
    line: str, case: str, best: Mapping[str, float], must: float | None, goal: float | None, **detail: Any
) -> Figure:
    """A figure of `shoal` over `limit`; every other case becomes a peer, also over the limit."""
    limit = best["limit"]
    peers = {name: seconds / limit for name, seconds in best.items() if name not in ("shoal", "limit")}
    return Figure(
        line,
        case,
        best["shoal"] / limit,
        "x limit",
        must,
        goal,
        shoal=best["shoal"],
        limit=limit,
        peers=peers,
        detail=detail,
    )


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
