# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor timeline`: what happened to a table and when, beside what Flink and a query log say. Reads only."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from shoal.cli.doctor_check import look_arguments, look_beside, one_to_stdout, write_text
from shoal.cli.failure import reads
from shoal.cli.output import BOLD, DIM, is_terminal, note, paint, show_json, width
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_table
from shoal.errors import BadRequest

if TYPE_CHECKING:
    from shoal.doctor.flink import Job
    from shoal.table.table import Table

_STYLES = {"head": BOLD, "title": BOLD, "plain": "", "dim": DIM}


def _timeline(args: Namespace) -> int:
    one_to_stdout(args, "svg", "html")
    table = open_table(args)
    from shoal.doctor.checkup import TOO_LITTLE, WELL
    from shoal.doctor.query_log import query_log
    from shoal.doctor.timeline import BINS, timeline
    from shoal.doctor.timeline_text import columns, lines

    queries = query_log(args.query_log, table.name) if args.query_log else ()
    job = _job(args, table)  # first: what is polled for a while must lie before the look at the table
    window, job, beside = look_beside(args, table, job, queries)
    queries = beside.queries
    room = width() if is_terminal(sys.stdout) else 80
    text = args.output == "text" and not args.json
    found = timeline(window, None, job, queries, bins=columns(room) if text else BINS)
    if args.svg or args.html:
        from shoal.doctor.timeline_svg import html, svg

        fine = timeline(window, None, job, queries) if text else found
        for path, drawn in ((args.svg, svg), (args.html, html)):
            if path:
                write_text(path, drawn(fine))
                if path == "-":
                    return WELL
                note(f"shoal: wrote {path}")
    if not text:
        show_json(found.to_dict())
    else:
        for line in lines(found, room):
            print(paint(line.text, _STYLES[line.style], sys.stdout) if _STYLES[line.style] else line.text)
    return TOO_LITTLE if found.first is None else WELL


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
    for_s = 0.0 if args.follow is None else parse_duration(args.follow, "--follow") / 1000
    return follow(LiveJob(Rest(args.flink), args.job, table.name), clock=table.clock, for_s=for_s)


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--flink", metavar="URL|DIR", help="REST address of the writing job, or its saved answers")
    parser.add_argument("--job", metavar="ID", help="id or name of the job, where several run")
    parser.add_argument("--follow", metavar="TIME", help="ask Flink again and again for so long, e.g. 5min, then draw")
    parser.add_argument("--query-log", metavar="FILE", help="timed queries, CSV or JSON: time, table, duration, files")
    look_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the same as -o json")
    parser.add_argument("--svg", metavar="FILE", help="also write a picture; - is stdout")
    parser.add_argument("--html", metavar="FILE", help="also write a page with it, one file; - is stdout")


TIMELINE = Command(
    "doctor timeline", "what happened to a table and when, on one time axis",
    "shoal doctor timeline -w /data/warehouse shop.orders --since 3h\n"
    "shoal doctor timeline -w /data/lake shop.orders --flink jobs:8081",
    reads(_timeline), _arguments,
    about="Nine lanes over one time axis: checkpoints, snapshots, files made, runs, stocks,\n"
    "durations, expiry and pins, changes of options, reads. Changes are told in their\n"
    "order, with their ratio, and after which of them a slope moved. With --flink,\n"
    "snapshots are joined with the job's checkpoints by their id.",
)  # fmt: skip
