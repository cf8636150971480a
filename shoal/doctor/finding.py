# SPDX-License-Identifier: Apache-2.0
"""One thing the doctor has to say: what it is, how bad, how sure, where, the numbers behind it, and what to change.

Diagnoses and lint rules both give findings, so that reports, exit codes and SARIF know one value.

Invariants: `says` is one sentence that holds the numbers it rests on and they are in `evidence` too; `change` are
steps in the order to take them; ids are stable, since scripts and ignore comments name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warn", "info"]
# consistent with: the numbers fit this cause and others; supported: one cause explains most of it (factor split of 80 %
# or more), or the sources of Paimon decide it together with what was seen; proven: replayed, or Java itself refuses
Confidence = Literal["consistent with", "supported", "proven"]
Evidence = int | float | str | bool | None | tuple[int, ...] | tuple[str, ...]  # a tuple of ints: snapshot ids

CONFIDENCES: tuple[Confidence, ...] = ("consistent with", "supported", "proven")  # the surest last
SEVERITIES: tuple[Severity, ...] = ("error", "warn", "info")  # the worst first


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `scope` says where: table, partition, bucket, level, class, user, kind, option, file, line, ..."""

    id: str  # D1..D17, L-01..
    name: str  # a few words, the same for every finding of this id
    severity: Severity
    confidence: Confidence
    scope: Mapping[str, str | int]
    evidence: Mapping[str, Evidence]
    says: str  # one sentence
    change: tuple[str, ...] = ()
    effect: str = ""  # what the change is expected to do, with numbers where there are some
    snapshots: tuple[int, ...] = field(default=())  # ids that the evidence was seen in

    def to_dict(self) -> dict[str, object]:
        """For JSON: every field, tuples as lists."""
        return {
            "id": self.id,
            "name": self.name,
            "severity": self.severity,
            "confidence": self.confidence,
            "scope": dict(self.scope),
            "evidence": {k: list(v) if isinstance(v, tuple) else v for k, v in self.evidence.items()},
            "says": self.says,
            "change": list(self.change),
            "effect": self.effect,
            "snapshots": list(self.snapshots),
        }


def at_least(severity: Severity, bar: Severity) -> bool:
    """Whether a severity reaches the bar.

    >>> at_least("warn", "error"), at_least("warn", "info")
    (False, True)
    """
    return SEVERITIES.index(severity) <= SEVERITIES.index(bar)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity; those of one severity keep their order."""
    return sorted(findings, key=lambda f: SEVERITIES.index(f.severity))


def exit_code(findings: Iterable[Finding], fail_on: Severity) -> int:
    """1 when a finding reaches `fail_on`, else 0."""
    return int(any(at_least(f.severity, fail_on) for f in findings))
