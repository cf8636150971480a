# SPDX-License-Identifier: Apache-2.0
"""`shoal demo`: real flights into two tables with two checkpoint clocks, and what the faster one costs."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from datetime import date

from shoal.cli.output import is_terminal, show_json
from shoal.cli.parser import Command, Parser

_FOLDER = "./shoal-demo"


def _run(args: Namespace) -> int:
    from shoal.flow.demo import demo

    # what is not said is the demo's own default
    given = {name: value for name in ("start", "end", "hours") if (value := getattr(args, name)) is not None}
    ask = _ask if is_terminal(sys.stdin) and is_terminal(sys.stderr) else None
    report = demo(args.folder, force=args.force, ask=ask, progress=sys.stderr, **given)
    if args.output == "json":
        show_json(report.to_dict())
    else:
        print(report, end="")
    return 0


def _ask(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a day like 2013-01-31") from None


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a number of hours") from None


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=_FOLDER, help=f"where the tables go (default: {_FOLDER})"
    )
    parser.add_argument("--start", metavar="DAY", type=_day, help="first day of flights (default: 2013-01-01)")
    parser.add_argument("--end", metavar="DAY", type=_day, help="day after the last one (default: 2013-02-01)")
    parser.add_argument("--hours", metavar="H", type=_hours, help="virtual hours to replay them in (default: 2)")
    parser.add_argument("--force", action="store_true", help="replace an earlier demo in the folder without asking")


COMMANDS = (
    Command(
        "demo", "real flights in two tables, two checkpoint clocks",
        "shoal demo\nshoal demo /tmp/flights --end 2013-01-08 --hours 0.5",
        _run, _arguments, needs_warehouse=False,
        about="Replay a month of real flights as a change stream into two tables that differ\n"
        "only in the time between checkpoints, and let the doctor compare their files.\n"
        "It takes under a minute; the clock is virtual.",
    ),
)  # fmt: skip
