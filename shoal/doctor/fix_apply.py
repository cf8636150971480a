# SPDX-License-Identifier: Apache-2.0
"""The only part of the doctor that may write: it does one step of a plan through the normal engine.

Nothing else of the doctor holds a table that can be written to. Invariants: a step is done only while the schema is
the one that the plan was made for, and the newest snapshot too, unless a new look asks for the same step again; what
cannot be taken back needs the table's name, typed; a rescale fails rather than lose what another writer adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.doctor.fix import Plan, Step
from shoal.errors import BadRequest, Conflict, Unsupported
from shoal.table.table import Table

# Which steps a plan would have now, and for which snapshot and schema.
Replan = Callable[[], Plan]


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that was done: what came of it, and the newest snapshot and schema afterwards."""

    step: str
    time_ms: int
    what: str
    snapshot: int | None
    schema: int

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "step": self.step, "time_ms": self.time_ms, "what": self.what, "snapshot": self.snapshot,
            "schema_id": self.schema,
        }  # fmt: skip


class Treatment:
    """A table with the right to write, and the plan for it. `reopen` gives the table as it is now."""

    def __init__(self, reopen: Callable[[], Table], plan: Plan, replan: Replan) -> None:
        self._reopen = reopen
        self._replan = replan
        self.plan = plan
        self._snapshot, self._schema = plan.snapshot, plan.schema

    def apply(self, step: Step, *, typed: str | None = None) -> Applied:
        """Do one step. `typed` is what the user typed as the table's name."""
        if step.action is None:
            raise Unsupported(
                f"step '{step.id}' is not one that shoal can do", hint="run its SQL, or change the job, by hand"
            )
        if step.typed_name and typed != self.plan.name:
            raise BadRequest(
                f"step '{step.id}' cannot be taken back, and '{typed or ''}' is not the table's name",
                hint=f"type {self.plan.name} to do it",
            )
        table = self._reopen()
        self._same(table, step)
        what = _do(table, step.action.kind, dict(step.action.arguments))
        after = self._reopen()
        self._snapshot, self._schema = after.metadata.latest_id(), after.schema.id
        return Applied(step.id, table.clock.now_ms(), what, self._snapshot, self._schema)

    def _same(self, table: Table, step: Step) -> None:
        """Refuse when the table is no longer what the plan was made for."""
        again = f"look again: shoal doctor fix {self.plan.name}"
        if table.schema.id != self._schema:
            raise Conflict(
                f"{table.name}: the schema moved from {self._schema} to {table.schema.id} since the plan was made",
                hint=again,
            )
        latest = table.metadata.latest_id()
        if latest == self._snapshot:
            return
        now = self._replan()
        if now.schema != self._schema or not any(s.id == step.id and s.action == step.action for s in now.steps):
            raise Conflict(
                f"{table.name}: snapshot {latest} came after {self._snapshot}, and step '{step.id}' is no longer "
                "what the table needs", hint=again,
            )  # fmt: skip


def _do(table: Table, kind: str, arguments: dict[str, Any]) -> str:
    """Call the engine; what it did, in words."""
    from shoal.table import consumers

    match kind:
        case "alter":
            put = {k: v for k, v in arguments.items() if v is not None}
            gone = [k for k, v in arguments.items() if v is None]
            new = table.alter(options=put, reset=gone)
            return f"schema {new.schema.id}: " + ", ".join(
                [f"{k} = {v}" for k, v in put.items()] + [f"{k} reset" for k in gone]
            )
        case "compact":
            report = table.maintain.compact(full=arguments.get("full", False), idle_time=arguments.get("idle_time"))
            return str(report)
        case "expire":
            return str(table.maintain.expire())
        case "compact_manifest":
            made = table.maintain.compact_manifest()
            return "the manifests are merged already" if made is None else f"manifests merged in snapshot {made}"
        case "reset_consumer":
            consumers.reset(table.store, arguments["consumer"], arguments["snapshot"])
            return f"consumer '{arguments['consumer']}' goes on at snapshot {arguments['snapshot']}"
        case "drop_tag":
            gone_tag = table.tags.delete(arguments["tag"])
            return f"tag '{arguments['tag']}' " + ("is deleted" if gone_tag else "was gone already")
        case "rescale":
            return _rescale(table, arguments["buckets"])
    raise BadRequest(f"no step is of the kind '{kind}'")


def _rescale(table: Table, buckets: int) -> str:
    old = table.options.bucket
    done = table.maintain.rescale(buckets)
    if done.snapshot is None:
        return f"{buckets} buckets; there is no row yet"
    return f"{buckets} buckets instead of {old}, written in snapshot {done.snapshot}"
