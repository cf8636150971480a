# SPDX-License-Identifier: Apache-2.0
"""Every diagnosis, and the order in which their findings are told.

A diagnosis is a function of a `Case` that gives findings, none when the numbers don't show its cause. Each stands in a
module of its theme and is listed here once. Invariant: the same case gives the same findings in the same order; the
likeliest root cause comes first among those of one severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shoal.doctor.diagnose import (
    buckets,
    buffer,
    changelog,
    compaction,
    conflict,
    expiry,
    fanin,
    held,
    idle,
    manifests,
    partitions,
    restart,
    rhythm,
    target,
    visible,
)
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import CONFIDENCES, Finding, worst_first

Diagnose = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`id` and `name` as in every finding of it.

    `yields_to`: causes that explain it where they are found as well, supported and at least as sure. `doubted_by`:
    causes that make it superfluous where they are surer than it, but that it may stand beside when it is as sure.
    """

    id: str
    name: str
    find: Diagnose
    yields_to: tuple[str, ...] = ()
    doubted_by: tuple[str, ...] = ()


def diagnose(case: Case, rules: Iterable[Diagnosis] | None = None) -> list[Finding]:
    """The findings of all diagnoses: worst first, the surer before the less sure, then in the order of the rules.

    What another finding explains is told too, as info, with the id of that one in its evidence (`explained_by`).
    """
    known = tuple(RULES if rules is None else rules)
    found = [(d, f) for d in known for f in d.find(case)]
    sure: dict[str, int] = {}
    for d, f in found:
        if f.severity != "info":
            sure[d.id] = max(sure.get(d.id, -1), _sureness(f))
    told = []
    for d, f in found:
        cause = next((c for c in d.yields_to if sure.get(c, -1) >= max(_sureness(f), _SUPPORTED)), None)
        cause = cause or next((c for c in d.doubted_by if sure.get(c, -1) > _sureness(f)), None)
        if cause is not None:
            f = replace(f, severity="info", evidence={**f.evidence, "explained_by": cause})
        told.append(replace(f, says=_sentence(f.says)))
    return worst_first(sorted(told, key=lambda f: -_sureness(f)))


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a name such as `changelog-producer`, and with a full stop."""
    first = text.partition(" ")[0]
    head = text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text
    return head if head.endswith(".") else head + "."


_SUPPORTED = CONFIDENCES.index("supported")


def _sureness(finding: Finding) -> int:
    return CONFIDENCES.index(finding.confidence)


# What a single decision or mistake makes comes before what any busy table shows a little of, and both before what
# follows from them. Numbers of a job that does not run say little about its table: debt steps back behind restarts.
RULES: tuple[Diagnosis, ...] = (
    Diagnosis("D16", restart.NAME, restart.restart_loop, yields_to=("D10",)),
    Diagnosis("D10", conflict.NAME, conflict.conflict),
    Diagnosis("D7", compaction.NOBODY, compaction.nobody),
    Diagnosis("D8", partitions.NAME, partitions.late_rows),
    Diagnosis("D4", buckets.SKEW, buckets.skewed),
    Diagnosis("D9", target.NAME, target.too_small),
    Diagnosis("D13", buffer.NAME, buffer.overflow),
    Diagnosis("D14", idle.NAME, idle.idle),
    Diagnosis("D15", held.NAME, held.held),
    Diagnosis("D11", manifests.NAME, manifests.bloat),
    Diagnosis("D12", visible.NAME, visible.lost_after_commit, yields_to=("D16", "D7"), doubted_by=("D5",)),
    Diagnosis(
        "D1", rhythm.NAME, rhythm.too_frequent, yields_to=("D16",),
        doubted_by=("D2", "D3", "D4", "D5", "D6", "D7", "D8", "D14"),
    ),
    Diagnosis("D3", changelog.NAME, changelog.doubling),
    Diagnosis("D2", buckets.MANY, buckets.too_many, yields_to=("D16", "D13"), doubted_by=("D4", "D7", "D8")),
    Diagnosis("D6", expiry.NAME, expiry.behind, yields_to=("D7", "D16")),
    Diagnosis("D17", fanin.NAME, fanin.fan_in, yields_to=("D16", "D7", "D5", "D4", "D8", "D9", "D13")),
    Diagnosis("D5", compaction.STARVED, compaction.starved, yields_to=("D16", "D1", "D2", "D4", "D8", "D9", "D13")),
)  # fmt: skip
