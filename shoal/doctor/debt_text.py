# SPDX-License-Identifier: Apache-2.0
"""The whole debt of a table as text: counts, flows, stocks, who holds the past, cycles. Nothing is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.doctor.checkup_text import minutes_text, stocks_view
from shoal.doctor.debt import Limits
from shoal.doctor.model import Model
from shoal.doctor.physical import PhysicalCount
from shoal.doctor.report import counts, grid, number_text, size_text, spaced
from shoal.doctor.stock_rows import stock_rows

if TYPE_CHECKING:
    from rich.console import RenderableType


def debt_view(m: Model, limits: Limits | None, listed: PhysicalCount | None = None) -> RenderableType:
    """For a rich console."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [counts(m.debt, listed)]
    if m.debt.first is not None:
        parts.append(spaced(stocks_view(stock_rows(m, limits))))
        parts += [spaced(_flows(m)), *([spaced(_holders(m))] if m.retained.holders else [])]
        parts.append(Text("\n".join(_rhythm(m)), overflow="fold"))
    return Group(*parts)


def _flows(m: Model) -> RenderableType:
    table = grid("flow", "files", "bytes", "files a minute")
    for name, count in m.flows.made.items():
        table.add_row(name, f"{count.files:,}", size_text(count.bytes), number_text(m.flows.per_minute(name)))
    if m.flows.expired is not None:
        table.add_row("expired", f"{m.flows.expired.files:,}", size_text(m.flows.expired.bytes), "")
    return table


def _holders(m: Model) -> RenderableType:
    table = grid("held by", "from snapshot", "files", "bytes")
    for h in m.retained.holders:
        files, size = "not known", ""
        if h.least is not None and h.most is not None:
            same = h.least == h.most
            files = f"{h.most.files:,}" if same else f"{h.least.files:,} to {h.most.files:,}"
            size = size_text(h.most.bytes) if same else f"{size_text(h.least.bytes)} to {size_text(h.most.bytes)}"
        table.add_row(f"{h.kind} {h.name}".rstrip(), "" if h.snapshot is None else str(h.snapshot), files, size)
    return table


def _rhythm(m: Model) -> list[str]:
    lines = [""]
    if (c := m.cycles) is not None:
        every = "" if c.minutes is None else f", a cycle of {minutes_text(c.minutes)}"
        lines.append(
            f"{c.drains:,} drains, {c.fulls:,} full compactions{every}{' (provisional)' if c.provisional else ''}"
        )
        if c.next_full is not None:
            lines.append(str(c.next_full))
    if (s := m.sustainability) is not None:
        lines.append(f"{s.paid}, over {s.basis} of {s.buckets:,} buckets")
    for change in m.segments.changes:
        what = change.signal.replace("_", " ")
        lines.append(f"snapshot {change.snapshot}: {what} {number_text(change.before)} -> {number_text(change.after)}")
    if m.change is not None:
        lines.append(f"new files a minute, last stretch against the one before: {m.change}")
    return lines
