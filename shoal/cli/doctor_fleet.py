# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor fleet`: the tables of a database, or of a warehouse, by debt. Reads only."""

from __future__ import annotations

import os
from argparse import Namespace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shoal.cli.doctor_check import (
    check_metric_arguments,
    judge_arguments,
    one_to_stdout,
    output_arguments,
    slo_of,
    write_metrics,
    write_text,
)
from shoal.cli.doctor_history import budget_arguments, budget_of
from shoal.cli.output import Cell, note, show_json, show_table
from shoal.cli.parser import Command, Parser
from shoal.cli.warehouse import open_lake
from shoal.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from shoal.catalog.filesystem import Lake
    from shoal.doctor.checkup import Checkup
    from shoal.doctor.fleet import Fleet

_EVERYTHING = "*"


def _fleet(args: Namespace) -> int:
    from shoal.clock import ThreadScheduler
    from shoal.doctor.checkup import checkup
    from shoal.doctor.fleet import fleet
    from shoal.doctor.take import take
    from shoal.doctor.watch import metadata_of

    one_to_stdout(args, "prometheus")
    check_metric_arguments(args)
    lake = open_lake(args)
    names, slo, budget = _names(args, lake), slo_of(args), budget_of(args)

    def look(name: str) -> Checkup:
        table = lake.table(name)
        window = take(metadata_of(table), name=name, clock=lake.clock, budget=budget)
        return checkup(window, slo_ms=slo, fail_on=args.fail_on)

    scheduler = ThreadScheduler(args.threads)
    try:
        found = fleet(names, look, scheduler)
    finally:
        scheduler.close()
    _write(args, found, lake.clock.now_ms())
    if args.prometheus == "-":
        return found.code
    if args.output == "json" or args.json:
        show_json(found.to_dict())
    else:
        _show(found)
    return found.code


def _names(args: Namespace, lake: Lake) -> list[str]:
    """`DB`, `DB.*`, any pattern over DB.TABLE, or every table of the warehouse."""
    asked = args.tables if "." in args.tables or args.tables == _EVERYTHING else f"{args.tables}.*"
    database, _, pattern = asked.partition(".")
    found = [
        f"{d}.{t}"
        for d in lake.databases() if fnmatchcase(d, database)
        for t in lake.tables(d) if fnmatchcase(t, pattern or "*")
    ]  # fmt: skip
    if not found:
        raise NotFound(f"no table in {lake.store.uri} fits '{args.tables}'", hint="'shoal table list' names them")
    return found


def _write(args: Namespace, found: Fleet, now_ms: int) -> None:
    if args.html is not None:
        from shoal.doctor.html import index_page, page, page_name

        try:
            os.makedirs(args.html, exist_ok=True)
        except OSError as err:
            raise BadRequest(
                f"cannot make the folder {args.html}: {err.strerror}", hint="name another folder with --html"
            ) from err
        for p in found.patients:
            if p.checkup is not None:
                write_text(os.path.join(args.html, page_name(p.name)), page(p.checkup))
        write_text(os.path.join(args.html, "index.html"), index_page(found))
    if args.prometheus is not None:
        checkups = [p.checkup for p in found.patients if p.checkup is not None]
        write_metrics(args, checkups, [p.name for p in found.patients if p.checkup is None], now_ms)


def _show(found: Fleet) -> None:
    rows: list[list[Cell]] = []
    for p in found.patients:
        facts = p.facts()
        if p.checkup is None:
            word, why = "cannot be read", p.trouble.message if p.trouble is not None else ""
        else:
            word = p.checkup.verdict.word
            why = ", ".join(dict.fromkeys(f"{f.id} {f.name}" for f in p.checkup.findings if f.severity != "info"))
        numbers: list[Cell] = [
            "-" if facts[k] is None else int(facts[k] or 0)
            for k in ("live_files", "merge_debt", "excess_files", "retained_files", "snapshots")
        ]
        rows.append([p.name, word, *numbers, why])
    show_table(["table", "verdict", "live", "runs over", "excess", "retained", "snapshots", "why"], rows)
    count = len(found.patients)
    note(f"{count:,} table{'s' if count > 1 else ''}, {found.headline}")


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise BadRequest(f"'{text}' is not a number of threads")
    return int(text)


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "tables", metavar="DB|DB.*", nargs="?", default=_EVERYTHING, help="a database or a pattern; default: all tables"
    )
    judge_arguments(parser)
    budget_arguments(parser)
    parser.add_argument("--threads", metavar="N", type=_threads, default=4, help="tables at a time (default: 4)")
    output_arguments(parser)
    parser.add_argument("--html", metavar="DIR", help="also write index.html and a page for each table")


FLEET_COMMANDS = (
    Command(
        "doctor fleet", "judge many tables, the sickest first",
        "shoal doctor fleet -w /data/warehouse shop\n"
        "shoal doctor fleet -w /data/warehouse 'shop.orders_*' --threads 8 -o json\n"
        "shoal doctor fleet -w /data/warehouse --html /tmp/fleet",
        _fleet, _arguments,
        about="Judge all tables of a database, or of the warehouse: the sickest first, by what\n"
        "was found and by debt. A table that cannot be read stops no other. The exit code\n"
        "is that of the worst: 3 cannot be read, 1 sick, 4 too little data, 0 well.",
    ),
)  # fmt: skip
