# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor timeline`: what happened to a table and when, beside what Flink and a query log say. Reads only."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from shoal.cli.doctor_history import history_argument, open_history, since_ms
from shoal.cli.output import BOLD, DIM, is_terminal, note, paint, show_json, width
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_table
from shoal.errors import BadRequest

if TYPE_CHECKING:
    from shoal.clock import Clock
    from shoal.doctor.flink import Job
    from shoal.doctor.window import Window
    from shoal.table.table import Table

_STYLES = {"head": BOLD, "title": BOLD, "plain": "", "dim": DIM}


def _timeline(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.query_log import query_log
    from shoal.doctor.timeline import BINS, timeline
    from shoal.doctor.timeline_text import columns, lines

    queries = query_log(args.query_log, table.name) if args.query_log else ()
    job = _job(args, table)  # first: what is polled for a while must lie before the look at the table
    since = since_ms(args.since, table.clock)
    window = _window(args, table, since)
    if since is not None:
        queries = tuple(q for q in queries if q.at_ms >= since)
    room = width() if is_terminal(sys.stdout) else 0
    text = args.output == "text"
    found = timeline(window, None, job, queries, bins=columns(room) if text and not args.svg else BINS)
    if args.svg:
        from pathlib import Path

        from shoal.doctor.timeline_svg import svg

        Path(args.svg).write_text(svg(found), encoding="utf-8")
        note(f"shoal: wrote {args.svg}")
    if not text:
        show_json(found.to_dict())
    else:
        for line in lines(found, room or 80):
            print(paint(line.text, _STYLES[line.style], sys.stdout) if _STYLES[line.style] else line.text)
    return 0


def _window(args: Namespace, table: Table, since: int | None) -> Window:
    """What the table retains, or what a history has kept of it."""
    from shoal.doctor.watch import look_and_keep, metadata_of

    metadata = metadata_of(table)
    if args.history:
        with open_history(args) as history:
            look_and_keep(table, history, clock=table.clock)
            return history.window(metadata.store.uri, since_ms=since)
    from shoal.doctor.take import take
    from shoal.table.history import History

    first = None if since is None else History(metadata).before(since)
    return take(metadata, name=table.name, clock=table.clock, since=first)


def _job(args: Namespace, table: Table) -> Job | None:
    from pathlib import Path

    from shoal.doctor.flink import LiveJob, Rest, follow, saved_job
    from shoal.option_values import parse_duration

    if args.flink is None:
        for name in ("job", "follow"):
            if getattr(args, name) is not None:
                raise BadRequest(f"--{name} needs --flink", hint="give the job manager's address or saved answers")
        return None
    if Path(args.flink).is_dir():
        if args.follow is not None:
            raise BadRequest(f"--follow: {args.flink} is a folder of saved answers, nothing comes there")
        return saved_job(args.flink)
    live = LiveJob(Rest(args.flink), args.job, table.name)
    for_s = 0.0 if args.follow is None else parse_duration(args.follow, "--follow") / 1000
    clock: Clock = table.clock
    return follow(live, clock=clock, for_s=for_s)


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--flink", metavar="URL|DIR", help="Flink's REST address, or a folder of its saved answers")
    parser.add_argument("--job", metavar="ID", help="the job's id or name, where several run")
    parser.add_argument("--follow", metavar="TIME", help="ask Flink again and again for so long, e.g. 5min, then draw")
    parser.add_argument("--query-log", metavar="FILE", help="timed queries, CSV or JSON: time, table, duration, files")
    parser.add_argument("--since", metavar="TIME", help="from a time on: 2h (before now), or 2026-11-01T12:00")
    parser.add_argument("--svg", metavar="FILE", help="also write a picture")
    history_argument(parser)


TIMELINE = Command(
    "doctor timeline", "what happened to a table and when, on one time axis",
    "shoal doctor timeline -w /data/warehouse shop.orders --since 3h\n"
    "shoal doctor timeline -w /data/lake shop.orders --flink jobs:8081",
    _timeline, _arguments,
    about="Nine lanes over one time axis: checkpoints, snapshots, files made, runs, stocks,\n"
    "durations, expiry and pins, changes of options, reads. Changes are told in their\n"
    "order, with their ratio, and after which of them a slope moved. With --flink,\n"
    "snapshots are joined with the job's checkpoints by their id.",
)  # fmt: skip
