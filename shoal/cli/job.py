# SPDX-License-Identifier: Apache-2.0
"""`shoal job`: streams a source into a table, one commit a checkpoint.

Invariant: Ctrl-C and SIGTERM commit what was taken, with its position, before the job ends; a second one stops at once.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from shoal.cli.output import is_terminal, note, show_json
from shoal.cli.parser import Command, Parser, pair
from shoal.cli.warehouse import open_lake

if TYPE_CHECKING:
    from shoal.clock import Clock
    from shoal.flow.job import Progress

_LOG_S = 30.0  # between two progress lines in a log
_TERMINAL_S = 0.2


def _run(args: Namespace) -> int:
    lake = open_lake(args, may_create=not args.no_create)
    from shoal.flow.job import Job, parse_interval, parse_source, run

    source = parse_source(
        args.source, speed=args.speed, rows_per_second=args.rows_per_second, kind_column=args.kind_column,
        time_column=args.time_column, primary_key=args.primary_key or (), partition_by=args.partition_by or (),
    )  # fmt: skip
    job = Job(
        lake, source, args.into, args.name, checkpoint_s=parse_interval(args.checkpoint), create=not args.no_create,
        primary_key=args.primary_key, partition_by=args.partition_by, options=dict(args.option), start=args.start,
    )  # fmt: skip
    progress = ProgressLine(lake.clock)
    with stopping() as stop:
        result = run(job, on_progress=progress, stop=stop)
    progress.end()
    if args.output == "json":
        show_json(result.to_dict())
    else:
        print(result)
    return stop.exit_code


class Stop:
    """Whether the job is to stop: called by the job, set by a signal."""

    def __init__(self) -> None:
        self.by: int | None = None

    def __call__(self) -> bool:
        return self.by is not None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C. SIGTERM is how a service is told to end: it did, so 0."""
        return 130 if self.by == signal.SIGINT else 0

    def on_signal(self, number: int, _: FrameType | None) -> None:
        if self.by is not None:
            raise KeyboardInterrupt
        self.by = number
        note("\nshoal: stopping: committing what was taken; again to stop at once")


@contextmanager
def stopping() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask for a stop inside the block."""
    stop = Stop()
    before = {
        number: signal.signal(number, stop.on_signal)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's background job
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProgressLine:
    """Progress on stderr: one line that moves on a terminal, a line every half minute in a log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._terminal = is_terminal(sys.stderr)
        self._next = clock.monotonic() + (0.0 if self._terminal else _LOG_S)
        self._open = False
        self._failure: str | None = None

    def __call__(self, now: Progress) -> None:
        if now.upkeep_failure != self._failure:
            self._failure = now.upkeep_failure
            self.end()
            note(f"shoal: upkeep failed, the job goes on: {self._failure}")
        if self._clock.monotonic() < self._next:
            return
        self._next = self._clock.monotonic() + (_TERMINAL_S if self._terminal else _LOG_S)
        of = "" if now.total is None else f" of {now.total:,}"
        text = f"{now.position:,}{of} rows, {now.checkpoints:,} checkpoints, {now.snapshots:,} snapshots"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            note(text)

    def end(self) -> None:
        if self._open:
            note("")
            self._open = False


def _columns(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _above_zero(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a number") from None


def _position(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a number of rows")
    return int(text)


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "--from", dest="source", metavar="SOURCE", nargs="+", action="extend", required=True,
        help="files or globs (Parquet, CSV, JSON lines), or flights:FIRST..LAST, the demo's departures of 2013",
    )  # fmt: skip
    parser.add_argument("--into", metavar="DB.TABLE", required=True, help="made from the source where it is missing")
    parser.add_argument(
        "--checkpoint", metavar="TIME", default="1 min", help="time between two commits, e.g. 10s (default: 1 min)"
    )
    parser.add_argument("--primary-key", metavar="A,B", type=_columns, help="columns of a new table's primary key")
    parser.add_argument("--partition-by", metavar="A,B", type=_columns, help="columns of a new table's partition")
    parser.add_argument(
        "--option", metavar="K=V", type=pair, action="append", default=[],
        help="option of a new table, e.g. bucket=4; may be repeated",
    )  # fmt: skip
    parser.add_argument("--kind-column", metavar="COL", help="column with the row kind: +I -U +U -D, or c u d")
    parser.add_argument("--time-column", metavar="COL", help="rows come at this column's times; needs --speed")
    parser.add_argument(
        "--speed", metavar="X", type=_above_zero, help="times as fast as the times say; 3600: 1 h in 1 s"
    )
    parser.add_argument("--rows-per-second", metavar="N", type=_above_zero, help="rows come at this rate")
    parser.add_argument(
        "--name", metavar="NAME", default="shoal-job",
        help="finds the position again after a restart (default: shoal-job)",
    )  # fmt: skip
    parser.add_argument("--start", metavar="N", type=_position, help="row to begin at when the job has no position yet")
    parser.add_argument("--no-create", action="store_true", help="refuse when the table is missing")


COMMANDS = (
    Command(
        "job run", "stream files or the demo's flights into a table",
        "shoal job run -w lake --from 'events/*.parquet' --into shop.orders \\\n"
        "  --primary-key id --kind-column op --checkpoint 10s --option bucket=4\n"
        "shoal job run -w lake --from flights:2013-01-01..2013-01-08 \\\n"
        "  --into demo.flights --speed 3600 --checkpoint 10s --option bucket=4",
        _run, _arguments,
        about="Stream a source into a table, one commit a checkpoint, each row exactly once.\n"
        "Run it again and it goes on where it stood. Ctrl-C commits what was taken, then\nends the job.",
    ),
)  # fmt: skip
