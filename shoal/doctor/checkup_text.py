# SPDX-License-Identifier: Apache-2.0
"""A checkup, a plan, a forecast, a verification as text for a terminal.

Invariants: the verdict is the first line; every line fits the width; what is printed is in the JSON too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from shoal.doctor.checkup import Checkup
from shoal.doctor.finding import Finding
from shoal.doctor.fix import BLOCKS, Plan, Step
from shoal.doctor.forecast import Interval, Planning, Requests, Stall, Steady
from shoal.doctor.report import brief, grid, number_text, signed, size_text, spaced, window_text
from shoal.doctor.stock_rows import StockRow, stock_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 5  # findings told in full
STYLES = {"error": "bold red", "warn": "yellow", "info": "dim", "sick": "bold red", "well": "bold green"}


def checkup_view(c: Checkup) -> RenderableType:
    """Verdict, stocks with their slopes, findings with their numbers, what would mend it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(c.verdict.text, style=STYLES.get(c.verdict.word, "bold yellow"))]
    parts.append(Text(window_text(c.case.model.debt), overflow="fold"))
    if c.case.model.debt.first is not None:
        parts.append(spaced(stocks_view(stock_rows(c.case.model, c.case.limits))))
        parts += _pace(c)
    for one in c.findings[:SHOWN]:
        parts += _finding(one)
    if len(c.findings) > SHOWN:
        parts.append(Text(f"\n{len(c.findings) - SHOWN} more findings: -o json names them"))
    parts += [Text(line) for line in _fix_summary(c)]
    return Group(*parts)


def stocks_view(rows: Iterable[StockRow]) -> RenderableType:
    """The stocks as a table, their notes below it."""
    table = grid("stock", "now", "mean", "most", "an hour, 95 %", "")
    notes = []
    for r in rows:
        slope = "-"
        if r.per_hour is not None:
            value, low, high = (signed(v, 2) for v in r.per_hour)
            slope = f"{value} ({low} to {high})"
        table.add_row(r.name, *(number_text(v) for v in (r.now, r.mean, r.most)), slope, r.direction)
        notes.append(f"{r.name}: {r.note}" + (f", {size_text(r.bytes)}" if r.bytes else "")) if r.note else None
    from rich.console import Group
    from rich.text import Text

    return Group(table, Text("\n".join(notes), overflow="fold"))


def _pace(c: Checkup) -> list[RenderableType]:
    """Who makes the files, and whether the debt is paid."""
    from rich.text import Text

    d, m, lines = c.case.model.debt, c.case.model, []
    if d.files_per_minute is not None and d.files_per_commit is not None:
        lines.append(f"{brief(d.files_per_minute)} files a minute, {brief(d.files_per_commit)} a commit")
    if m.sustainability is not None:
        s = m.sustainability
        lines.append(f"{s.paid} (over {s.basis}{', provisional' if s.provisional else ''})")
    if m.change is not None and abs(m.change.difference) > 0.1 * max(m.change.b, 1e-9):
        lines.append(f"new files a minute changed: {m.change}")
    for stall in m.stalls[:1]:
        if stall.stalled:
            lines.append(f"bucket {stall.bucket}: its writer already waits, with {stall.runs} sorted runs")
        elif stall.minutes.value is not None and stall.minutes.high is not None:
            eta = minutes_text(stall.minutes.value)
            lines.append(f"bucket {stall.bucket}: its writer waits in about {eta} at this rate")
    return [Text("\n".join(lines), overflow="fold")] if lines else []


def minutes_text(minutes: float) -> str:
    """Minutes for people.

    >>> minutes_text(5), minutes_text(300), minutes_text(10_000)
    ('5 min', '5 h', '6.9 days')
    """
    if minutes < 120:
        return f"{brief(minutes)} min"
    return f"{brief(minutes / 60)} h" if minutes < 2880 else f"{brief(minutes / 1440, 2)} days"


def _finding(f: Finding) -> list[RenderableType]:
    from rich.text import Text

    head = Text("\n").append(f.severity, style=STYLES[f.severity]).append(f" {f.id} {f.name}", style="bold")
    head.append(f" ({f.confidence})")
    where = ", ".join(f"{k} {v}" for k, v in f.scope.items() if k != "table" and v != "")
    lines = _indented(f"in {where}") if where else []
    lines += _indented(f.says)
    if f.snapshots:
        ids = ", ".join(map(str, f.snapshots[:3])) + (" ..." if len(f.snapshots) > 3 else "")
        lines += _indented(f"seen in snapshot{'s' if len(f.snapshots) > 1 else ''} {ids}")
    for step in f.change:
        lines += _indented(f"-> {step}", hang=3)
    if f.effect:
        lines += _indented(f"so that {f.effect}")
    return [head, Text("\n".join(lines), overflow="fold")]


def _indented(text: str, *, hang: int = 0, indent: int = 2, width: int = 78) -> list[str]:
    pad = " " * indent
    return wrap(text, width, initial_indent=pad, subsequent_indent=pad + " " * hang, break_on_hyphens=False) or []


def _fix_summary(c: Checkup) -> list[str]:
    if not c.plan.steps:
        return []
    lines = ["", f"what would mend it ('shoal doctor fix {c.name}' says how):"]
    for block in BLOCKS:
        for step in c.plan.block(block):
            lines += _indented(f"{block}: {step.title}", hang=len(block) + 2)
    return lines


# ---- fix -------------------------------------------------------------------------------------------------


def plan_lines(p: Plan) -> list[str]:
    """The plan as SQL with comments, in two blocks: it may be piped into a file and read there."""
    if not p.steps:
        return [f"-- {p.name}: nothing to mend"]
    out = [f"-- {p.name or p.table}, as it was at snapshot {p.snapshot} with schema {p.schema}"]
    sql = [q for s in p.steps for q in s.sql]
    if sql:
        out += _comment("Flink SQL, with the table's catalog as the current one")
    if any(not q.startswith("ALTER ") for q in sql):
        out += ["SET 'execution.runtime-mode' = 'batch';", "SET 'table.dml-sync' = 'true';"]
        out += _comment("a stream would compact for ever; each statement waits for the one before")
    heads = {
        "first aid": "FIRST AID: reversible; says what freshness it loses",
        "root fix": "ROOT FIX: prove it on a shadow of the table first",
    }
    for block in BLOCKS:
        steps = p.block(block)
        if steps:
            out += ["", f"-- ==== {heads[block]} ===="]
        for number, step in enumerate(steps, 1):
            out += ["", *step_lines(step, f"{number}. ")]
    return out


def step_lines(s: Step, number: str = "") -> list[str]:
    out = _comment(f"{number}{s.title}  [{s.id}, for {', '.join(s.findings)}]")
    for word, text in (("loses", s.loses), ("effect", s.effect)):
        out += _comment(f"{word}: {text}") if text else []
    for f in s.forecasts:
        out += _comment(f"forecast: {f}")
    out += _comment(f"confirmed by: {s.probe}") if s.probe else []
    for note in s.notes:
        out += _comment(f"note: {note}")
    for key, value in s.job.items():
        out += _comment(f"in the job, which the doctor cannot set: {key}: {value}")
    out += list(s.sql)
    for text in s.undo:
        out += [f"-- undo: {text}"] if text.endswith(";") else _comment(f"undo: {text}")
    return out


def _comment(text: str) -> list[str]:
    return wrap(text, 100, initial_indent="-- ", subsequent_indent="--    ", break_on_hyphens=False)


# ---- forecast --------------------------------------------------------------------------------------------


def forecast_lines(
    stalls: Sequence[Stall], requests: Requests | None, steady: Steady | None, planning: Planning | None, *,
    width: int = 78,
) -> list[str]:  # fmt: skip
    """What will be if nothing changes, each with its interval and what it assumes, in lines of a width."""
    out: list[str] = []
    for s in stalls[:SHOWN]:
        where = f"{s.partition}/{s.bucket}" if s.partition else str(s.bucket)
        if s.stalled:
            out += [f"bucket {where}: the writer already waits, {s.runs} sorted runs (stop at {s.stop_trigger})"]
        else:
            out += [f"bucket {where}: the writer waits in {_interval(s.minutes, ' min')} ({s.runs} runs now)"]
        out += _indented(s.assumption, width=width)
    if not stalls:
        out.append("no writer has to wait at this rate")
    if requests is not None:
        out += ["", f"objects made: {brief(requests.per_commit)} a commit, {_interval(requests.puts_per_day)} a day"]
        out += [f"objects deleted: {_interval(requests.deletes_per_day)} a day"]
        if requests.cost_per_day is not None and requests.cost_per_day.value:
            out.append(f"requests cost: {_interval(requests.cost_per_day)} a day")
        out += _indented(requests.assumption, width=width)
    if steady is not None:
        out += ["", "once expiry deletes as fast as commits make:"]
        for name, value in (
            ("snapshots", steady.snapshots), ("dead data files", steady.dead_files),
            ("changelog files", steady.changelog_files), ("metadata files", steady.metadata_files),
            ("objects in all", steady.objects), ("name-node objects", steady.namenode_objects),
            ("storage", steady.storage_gb.times(1e9)), ("storage cost a month", steady.cost_per_month),
        ):  # fmt: skip
            if value is not None and (value.value or "cost" not in name):
                out.append(f"  {name}: {_interval(value, form=size_text if name == 'storage' else brief)}")
        out += _indented(steady.assumption, width=width)
    if planning is not None:
        out += ["", f"planning a read takes {_interval(planning.now, ' s')} now"]
        if planning.days.value is not None:
            out.append(f"it takes more than {brief(planning.limit_s)} s in {_interval(planning.days, ' days')}")
        else:
            out.append(f"it does not reach {brief(planning.limit_s)} s at this rate")
        out += _indented(planning.assumption, width=width)
    return out


def _interval(i: Interval, unit: str = "", *, form: Callable[[float], str] = brief) -> str:
    if i.value is None:
        return "not at this rate"
    text = f"{form(i.value)}{unit}"
    if i.low is None and i.high is None:
        return text
    return f"{text} ({'?' if i.low is None else form(i.low)} to {'?' if i.high is None else form(i.high)})"
