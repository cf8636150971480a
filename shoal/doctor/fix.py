# SPDX-License-Identifier: Apache-2.0
"""A fix as a value: steps in two blocks, what each is expected to do, how to undo it, and what shows that it worked.

First aid is reversible and says what freshness it loses; a root fix wants a proof on a shadow table first. A step is
SQL for whoever runs Flink, and an `Action` where shoal's own engine can do the same; what belongs to a job can only be
told. Invariants: nothing here reads or writes a table; a plan goes to JSON and back unchanged; ids of steps are stable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shoal.doctor.report import number_text
from shoal.errors import Corrupt

SCHEMA = "shoal.doctor.fix/1"
Block = Literal["first aid", "root fix"]
BLOCKS: tuple[Block, ...] = ("first aid", "root fix")

# What shoal's engine can do for a step, each with its arguments.
Kind = Literal[
    "alter", "compact", "expire", "compact_manifest", "reset_consumer", "drop_tag", "rescale"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """What the engine does. `alter`: option -> value, None resets; others: keyword arguments."""

    kind: Kind
    arguments: Mapping[str, Any] = field(default_factory=dict)  # JSON values


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one reading (`readings.py`) should be once the step has worked; a bound that is None is open."""

    reading: str
    before: float | None
    low: float | None
    high: float | None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        was = "" if self.before is None else f" (now {number_text(self.before)})"
        if self.low is None and self.high is None:
            return f"{self.reading} changes{was}"
        if self.low is None:
            return f"{self.reading} at most {number_text(self.high)}{was}"
        if self.high is None:
            return f"{self.reading} at least {number_text(self.low)}{was}"
        return f"{self.reading} {number_text(self.low)} to {number_text(self.high)}{was}"


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `typed_name`: it is only done when somebody types the table's name, since it cannot be taken back."""

    id: str
    block: Block
    title: str
    findings: tuple[str, ...]
    sql: tuple[str, ...] = ()
    job: Mapping[str, str] = field(default_factory=dict)  # settings of the writing job, which nobody can set from here
    notes: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    loses: str = ""  # freshness, or what else is given up
    effect: str = ""
    probe: str = ""  # what will confirm it
    forecasts: tuple[Forecast, ...] = ()
    action: Action | None = None
    typed_name: bool = False

    def to_dict(self) -> dict[str, Any]:  # JSON
        out = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in out.items()}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Step:
        """A step from its JSON."""
        known = dict(value)
        for name in ("findings", "sql", "notes", "undo"):
            known[name] = tuple(known[name])
        known["forecasts"] = tuple(Forecast(**f) for f in known["forecasts"])
        known["action"] = None if known["action"] is None else Action(**known["action"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one table as it was at one snapshot and schema, and its readings then."""

    table: str  # address
    name: str
    snapshot: int | None
    schema: int | None
    taken_ms: int
    slo_ms: int | None
    cycle_minutes: float | None
    steps: tuple[Step, ...]
    readings: Mapping[str, float | None]

    def block(self, name: Block) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.block == name)

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "schema": SCHEMA, "table": self.name, "address": self.table, "snapshot": self.snapshot,
            "schema_id": self.schema, "taken_ms": self.taken_ms, "slo_ms": self.slo_ms,
            "cycle_minutes": self.cycle_minutes, "steps": [s.to_dict() for s in self.steps],
            "readings": dict(self.readings),
        }  # fmt: skip

    @classmethod
    def of(cls, value: object, where: str) -> Plan:
        """A plan from its JSON; `Corrupt` for anything else."""
        try:
            assert isinstance(value, dict)
            if value["schema"] != SCHEMA:
                raise Corrupt(f"{where}: not a plan of this shoal ('{value['schema']}', not '{SCHEMA}')")
            return cls(
                value["address"], value["table"], value["snapshot"], value["schema_id"], value["taken_ms"],
                value["slo_ms"], value["cycle_minutes"], tuple(Step.of(s) for s in value["steps"]),
                dict(value["readings"]),
            )  # fmt: skip
        except (AssertionError, KeyError, TypeError, AttributeError) as err:
            raise Corrupt(f"{where}: not a plan", hint="'shoal doctor fix DB.T --plan FILE' writes one") from err
