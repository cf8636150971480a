# SPDX-License-Identifier: Apache-2.0
"""The checkups of many tables, the sickest first: what to look at today.

Invariants: a table that cannot be read spoils no other and is told with its trouble; the exit code is that of the
worst table (cannot be read, then sick, then too little data, then well); order depends on the tables alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.clock import Scheduler
from shoal.doctor.checkup import BADNESS, CANNOT_READ, Checkup
from shoal.doctor.finding import SEVERITIES
from shoal.errors import ShoalError

SCHEMA = "shoal.doctor.fleet/1"


@dataclass(frozen=True)
class Patient:
    """One table: its checkup, or why there is none."""

    name: str
    checkup: Checkup | None
    trouble: ShoalError | None = None

    @property
    def code(self) -> int:
        return CANNOT_READ if self.checkup is None else self.checkup.verdict.code

    @property
    def debt(self) -> float:
        """Files that are too many, of any kind of live debt: what tables are ordered by among equals."""
        if self.checkup is None:
            return 0.0
        m = self.checkup.case.model
        merge = 0 if m.merge is None else m.merge.runs_to_merge.now
        return float(max(merge, 0 if m.excess is None else m.excess.excess.now))

    @property
    def _order(self) -> tuple[Any, ...]:
        counts = () if self.checkup is None else tuple(-self.checkup.counts[s] for s in SEVERITIES)
        return (-BADNESS.index(self.code), counts, -self.debt, self.name)

    def facts(self) -> dict[str, float | int | None]:
        """The numbers of its line."""
        if self.checkup is None:
            return dict.fromkeys(FACTS)
        m, d = self.checkup.case.model, self.checkup.case.model.debt
        r = m.retained
        return {
            "live_files": None if m.excess is None else m.excess.live.now,
            "merge_debt": None if m.merge is None else m.merge.runs_to_merge.now,
            "excess_files": None if m.excess is None else m.excess.excess.now,
            "retained_files": None if r.dead is None or r.changelog is None else r.dead.files + r.changelog.files,
            "manifests": None if m.metadata is None else m.metadata.manifests.files,
            "snapshots": r.snapshots,
            "files_per_minute": d.files_per_minute,
        }

    def to_dict(self) -> dict[str, Any]:  # JSON
        c = self.checkup
        return {
            "table": self.name,
            "code": self.code,
            "verdict": None if c is None else c.verdict.to_dict(),
            "error": None if self.trouble is None else {"code": self.trouble.code, "message": self.trouble.message},
            "counts": None if c is None else c.counts,
            **self.facts(),
            "findings": [] if c is None else [f.to_dict() for f in c.findings],
            "steps": [] if c is None else [{"id": s.id, "block": s.block, "title": s.title} for s in c.plan.steps],
        }


FACTS = ("live_files", "merge_debt", "excess_files", "retained_files", "manifests", "snapshots", "files_per_minute")


@dataclass(frozen=True)
class Fleet:
    """All patients, the sickest first."""

    patients: tuple[Patient, ...]

    @property
    def code(self) -> int:
        return max((p.code for p in self.patients), key=BADNESS.index, default=0)

    @property
    def headline(self) -> str:
        """How many need somebody."""
        bad = sum(p.code in (1, 3) for p in self.patients)
        if len(self.patients) == 1:
            return "it needs a look" if bad else "it needs no look"
        return f"{bad:,} of them need a look" if bad > 1 else "one of them needs a look" if bad else "none needs a look"

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"schema": SCHEMA, "code": self.code, "tables": [p.to_dict() for p in self.patients]}


def fleet(names: Sequence[str], look: Callable[[str], Checkup], scheduler: Scheduler) -> Fleet:
    """Look at every table on the scheduler's threads."""

    def one(name: str) -> Patient:
        try:
            return Patient(name, look(name))
        except ShoalError as err:
            return Patient(name, None, err)
        except OSError as err:  # a file that may not be read
            from shoal.errors import StorageFailed

            return Patient(name, None, StorageFailed(f"{name}: {err.strerror or err}"))

    futures = [scheduler.submit(lambda n=name: one(n)) for name in names]  # type: ignore[misc]
    found = [scheduler.wait(f) for f in futures]
    return Fleet(tuple(sorted(found, key=lambda p: p._order)))
