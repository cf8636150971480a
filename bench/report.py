# SPDX-License-Identifier: Apache-2.0
"""Figures as one table, a row for every line, unit and pair of bars: the worst case stands for the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.measure import Figure

_HEAD = ("line", "path", "must", "goal", "shoal", "worst case", "rust", "pypaimon", "")


def goal_table(figures: Sequence[Figure], titles: Mapping[str, str]) -> str:
    """Markdown. A column of several cases shows the least and the most."""
    groups: dict[tuple[object, ...], list[Figure]] = {}
    for f in figures:
        groups.setdefault((f.line, f.unit, f.must, f.goal), []).append(f)
    lines = [_HEAD, ("---",) * len(_HEAD)]
    for (line, unit, must, goal), some in groups.items():
        higher = some[0].higher_is_better
        worst = min(some, key=lambda f: f.value) if higher else max(some, key=lambda f: f.value)
        sign = "≥" if higher else "≤"
        bars = [f"{sign} {bar:g} {unit}" if isinstance(bar, float | int) else "" for bar in (must, goal)]
        peers = [_span([f.peers[p] for f in some if p in f.peers]) for p in ("rust", "pypaimon")]
        verdict = "" if must is None else _verdict(some)
        lines.append((str(line), titles[str(line)], *bars, _span([f.value for f in some]), worst.case, *peers, verdict))
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _verdict(some: Sequence[Figure]) -> str:
    if not all(f.ok for f in some):
        return "MISSED"
    return "goal" if all(f.reaches_goal for f in some) else "ok"


def _span(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
