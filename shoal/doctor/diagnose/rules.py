# SPDX-License-Identifier: Apache-2.0
"""Every diagnosis, and the order in which their findings are told.

A diagnosis is a function of a `Case` that gives findings, none when the numbers don't show its cause. Each stands in a
module of its theme and is listed here once. Invariant: the same case gives the same findings in the same order; the
likeliest root cause comes first among those of one severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.doctor.diagnose.buffer import overflow
from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.conflict import conflict
from shoal.doctor.diagnose.fanin import fan_in
from shoal.doctor.diagnose.held import held
from shoal.doctor.diagnose.idle import idle
from shoal.doctor.diagnose.manifests import bloat
from shoal.doctor.diagnose.restart import restart_loop
from shoal.doctor.diagnose.target import too_small
from shoal.doctor.diagnose.visible import lost_after_commit
from shoal.doctor.finding import Finding, worst_first

Diagnose = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`id` and `name` as in every finding of it. `yields_to`: causes that explain it where they are found as well."""

    id: str
    name: str
    find: Diagnose
    yields_to: tuple[str, ...] = ()


def diagnose(case: Case, rules: Iterable[Diagnosis] | None = None) -> list[Finding]:
    """The findings of all diagnoses: worst first, and what another finding explains after that one."""
    known = tuple(RULES if rules is None else rules)
    found = {d.id: list(d.find(case)) for d in known}
    there = {i for i, fs in found.items() if any(f.severity != "info" for f in fs)}
    roots = [d for d in known if not there.intersection(d.yields_to)]
    rest = [d for d in known if there.intersection(d.yields_to)]
    return worst_first([f for d in (*roots, *rest) for f in found[d.id]])


RULES: tuple[Diagnosis, ...] = (
    Diagnosis("D9", "target or format too small", too_small),
    Diagnosis("D10", "compaction conflict", conflict),
    Diagnosis("D11", "manifest bloat", bloat),
    Diagnosis("D12", "freshness lost after commit", lost_after_commit, ("D5", "D7", "D16")),
    Diagnosis("D13", "buffer overflow", overflow),
    Diagnosis("D14", "idle commits", idle),
    Diagnosis("D15", "held by tag or branch", held),
    Diagnosis("D16", "restart loops", restart_loop, ("D10",)),
    Diagnosis("D17", "read fan-in", fan_in, ("D5", "D7", "D16")),
)
