# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor freshness`: how old rows are when readers see them, stage by stage. Reads only."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.cli.doctor_check import look, look_arguments, measure, slo_of
from shoal.cli.failure import reads
from shoal.cli.output import show_json
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_table

if TYPE_CHECKING:
    from shoal.doctor.freshness import Freshness, Spread, Waits

TOO_LITTLE = 4


def _freshness(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.freshness import freshness

    slo, window = slo_of(args), look(args, table)
    measured = measure(args, table, window) or freshness(window, now_ms=table.clock.now_ms())
    found = replace(measured, slo_ms=slo)
    if args.output == "json":
        show_json(found.to_dict())
    else:
        print("\n".join(lines(found, args.event_time)))
    if found.snapshot is None:
        return TOO_LITTLE
    return int(any(found.meets(reader) is False for reader in ("batch", "stream")))


def lines(found: Freshness, column: str | None) -> list[str]:
    """The stages as text, in the order that a row goes through them."""
    if found.snapshot is None:
        return [f"{found.table}: no snapshot yet"]
    out = [f"{found.table}: snapshot {found.snapshot} is {_time(found.age_ms or 0)} old"]
    if found.watermark_lag_ms is not None:
        out.append(f"  watermark            {_time(found.watermark_lag_ms)} behind its snapshot")
    if found.event_to_commit is not None:
        out.append(f"  event to commit      {_spread(found.event_to_commit)} ({column})")
    if found.interval is not None:
        out.append(f"  between commits      {_spread(found.interval)}")
    out.append(f"  commit to batch      {_waits(found.batch)}")
    stream = f"then up to {_time(found.discovery_ms)} (continuous.discovery-interval)"
    if found.delay_ms:
        stream += f" and {_time(found.delay_ms)} (streaming.read.snapshot.delay)"
    out.append(f"  commit to stream     {_waits(found.stream)}, {stream}")
    for reader in ("batch", "stream"):
        total = found.total_ms(reader)
        if total is not None:
            meets = found.meets(reader)
            judged = "" if meets is None else f", {'within' if meets else 'over'} {_time(found.slo_ms or 0)}"
            out.append(f"  visible to {reader:<9} within {_time(total)} (99 of 100 rows, at most){judged}")
    if column is None:
        out.append("  --event-time COLUMN tells how old rows are at their commit")
    return out


def _waits(waits: Waits | None) -> str:
    if waits is None or waits.spread is None:
        return "at once"
    waiting = f", {waits.waiting:,} files wait now" if waits.waiting else ""
    return f"{_spread(waits.spread)}, until {waits.until}{waiting}"


def _spread(spread: Spread) -> str:
    return f"{_time(spread.p50)} (99 of 100: {_time(spread.p99)})"


def _time(ms: float) -> str:
    from shoal.doctor.report import brief

    if abs(ms) < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if abs(seconds) < 120:
        return f"{brief(seconds)} s"
    return f"{brief(seconds / 60)} min" if abs(seconds) < 7200 else f"{brief(seconds / 3600)} h"


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument(
        "--event-time", metavar="COLUMN", help="a column of event times: timestamps, or integers of epoch s or ms"
    )
    look_arguments(parser)
    parser.add_argument("--slo", metavar="TIME", help="how soon rows must be visible, e.g. 10s; exit code 1 when later")


FRESHNESS = Command(
    "doctor freshness", "tell how old rows are when readers see them",
    "shoal doctor freshness -w /data/warehouse shop.orders --event-time updated_at\n"
    "shoal doctor freshness -w /data/warehouse shop.orders --slo 30s -o json",
    reads(_freshness), _arguments,
    about="Tell stage by stage how old rows are when readers see them: from the event to\n"
    "the commit (by a column), from the commit until batch and streaming readers see\nit. "
    "Nothing is written. Exit code 1 says that --slo is not met, 4 that there is\nno snapshot.",
)  # fmt: skip
