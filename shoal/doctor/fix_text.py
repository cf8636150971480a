# SPDX-License-Identifier: Apache-2.0
"""SQL of a fix's steps, as Flink reads it, with the statements that undo it.

Invariant: names and values are quoted, whatever is in them; a reset option is undone by its old value, a set one by it
or by a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.doctor.fix import Action, Block, Forecast, Step
from shoal.doctor.report import size_text as size
from shoal.options import Options

__all__ = ["Sql", "duration", "size"]


def duration(seconds: float) -> str:
    """Seconds as a duration that Flink and Paimon read; what was measured is rounded to two digits.

    >>> duration(60), duration(10.026), duration(2.5), duration(3600), duration(0.25)
    ('1 min', '10 s', '2500 ms', '1 h', '250 ms')
    """
    ms = round(float(f"{seconds:.2g}") * 1000)
    for unit, length in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms and ms % length == 0:
            return f"{ms // length} {unit}"
    return f"{ms} ms"


class Sql:
    """Statements about one table. `options` are all, `set_options` those that its newest schema sets."""

    def __init__(self, name: str, options: Options, set_options: Mapping[str, str] | None) -> None:
        self.name = name
        self.options = options
        self.set_options = dict(set_options or {})
        self.table = ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))

    def call(self, procedure: str, **arguments: Any) -> str:
        """`CALL sys.procedure(`table` => 'db.t', ...);`"""
        given = [f"`table` => {_text(self.name)}"]
        given += [f"{k} => {v if isinstance(v, int) else _text(str(v))}" for k, v in arguments.items()]
        return f"CALL sys.{procedure}({', '.join(given)});"

    def alter_text(self, changes: Mapping[str, str | None]) -> tuple[str, ...]:
        """SET and RESET statements."""
        put = ", ".join(f"{_text(k)} = {_text(v)}" for k, v in changes.items() if v is not None)
        gone = ", ".join(_text(k) for k, v in changes.items() if v is None)
        out = [f"ALTER TABLE {self.table} SET ({put});"] if put else []
        return (*out, f"ALTER TABLE {self.table} RESET ({gone});") if gone else tuple(out)

    def alter(
        self, step_id: str, block: Block, title: str, findings: tuple[str, ...], changes: Mapping[str, str | None], *,
        effect: str, probe: str, loses: str = "nothing", notes: tuple[str, ...] = (),
        forecasts: tuple[Forecast, ...] = (),
    ) -> Step:  # fmt: skip
        """A step that changes options; jobs that run take them over when they are started again."""
        old = {k: self.set_options.get(k) for k in changes}
        return Step(
            step_id, block, title, findings, self.alter_text(changes),
            notes=(*notes, "jobs that run take it over when they are started again"), undo=self.alter_text(old),
            loses=loses, effect=effect, probe=probe, forecasts=forecasts, action=Action("alter", dict(changes)),
        )  # fmt: skip


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
