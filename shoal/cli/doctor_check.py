# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor check`, `debt`, `forecast`: how deep a table is in small files, why, what comes of it. Reads only."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.cli.doctor_history import budget_arguments, budget_of, since_ms
from shoal.cli.failure import reads
from shoal.cli.output import has_colour, note, show_json, width
from shoal.cli.parser import Command, Parser, number_of, one_of, table_argument
from shoal.cli.warehouse import open_table
from shoal.clock import SystemClock
from shoal.errors import BadRequest, Corrupt

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.doctor.beside import Beside
    from shoal.doctor.checkup import Checkup
    from shoal.doctor.flink import Job
    from shoal.doctor.forecast import Planning, Prices
    from shoal.doctor.freshness import Freshness
    from shoal.doctor.physical import PhysicalCount
    from shoal.doctor.query_log import Query
    from shoal.doctor.window import Window
    from shoal.table.table import Table

# ---- looking ---------------------------------------------------------------------------------------------


def look_arguments(parser: Parser) -> None:
    parser.add_argument("--since", metavar="TIME", help="from a time on: 2h (before now), or 2026-11-01T12:00")
    parser.add_argument("--history", metavar="FILE", help="catch up this history, and take all that it keeps")
    budget_arguments(parser)


def look(args: Namespace, table: Table) -> Window:
    """What is known of a table: what it retains, or all that `--history` keeps, from `--since` on."""
    return look_beside(args, table)[0]


def look_beside(
    args: Namespace, table: Table, job: Job | None = None, queries: Sequence[Query] = ()
) -> tuple[Window, Job | None, Beside]:
    """The same, with the job that writes the table and what else the history has of it.

    What is known of job and queries now is kept in the history too, and comes out with what it had.
    """
    from shoal.doctor.beside import Beside
    from shoal.doctor.history_store import HistoryStore
    from shoal.doctor.take import take
    from shoal.doctor.watch import look_and_keep, metadata_of
    from shoal.table.history import History

    metadata, since, budget = metadata_of(table), since_ms(args.since, table.clock), budget_of(args)
    if args.history is not None:
        uri = metadata.store.uri
        with HistoryStore(args.history) as history:
            look_and_keep(table, history, clock=table.clock, budget=budget)
            if job is not None:
                history.keep_job(uri, table.name, job, table.clock.now_ms())
            history.keep_queries(uri, queries)
            return history.window(uri, since_ms=since), history.job(uri, since), history.beside(uri, since)
    before = None if since is None else History(metadata).before(since)
    window = take(metadata, name=table.name, clock=table.clock, since=before, budget=budget)
    return window, job, Beside(queries=tuple(q for q in queries if since is None or q.at_ms >= since))


def judge_arguments(parser: Parser) -> None:
    """What every judgement takes."""
    parser.add_argument("--slo", metavar="TIME", help="within what time rows must be seen, e.g. 10s")
    parser.add_argument(
        "--fail-on", metavar="SEVERITY", type=one_of("a severity", "error", "warn", "info"), default="warn",
        help="error, warn or info: exit code 1 from here on (default: warn)",
    )  # fmt: skip


def witness_arguments(parser: Parser) -> None:
    """What tells more of one table than its metadata."""
    parser.add_argument("--flink", metavar="URL|DIR", help="REST address of the writing job, or its saved answers")
    parser.add_argument("--job", metavar="ID", help="id or name of the job, where several run")
    parser.add_argument(
        "--event-time", metavar="COLUMN",
        help="a column of event times: reads it in the newest commits, for how old rows are when they are seen",
    )  # fmt: skip


def slo_of(args: Namespace) -> int | None:
    from shoal.option_values import parse_duration

    slo = None if args.slo is None else parse_duration(args.slo, "--slo")
    if slo is not None and slo <= 0:
        raise BadRequest(f"--slo '{args.slo}' is not a time above zero", hint="give a time, such as 10s or '5 min'")
    return slo


def job_of(args: Namespace, table: str) -> Job | None:
    from shoal.doctor.flink import LiveJob, Rest, saved_job

    if args.flink is None:
        if args.job is not None:
            raise BadRequest("--job needs --flink", hint="say --flink http://jobmanager:8081")
        return None
    if os.path.isdir(args.flink):
        return saved_job(args.flink)
    return LiveJob(Rest(args.flink), args.job, table).poll()


def checkup_of(args: Namespace, table: Table) -> Checkup:
    from shoal.doctor.checkup import checkup

    window, job, beside = look_beside(args, table, job_of(args, table.name))
    measured = measure(args, table, window)
    if measured is not None:  # what is so now says more than what was
        beside = replace(beside, probes={**beside.probes, **measured.probes()})
    return checkup(window, job=job, slo_ms=slo_of(args), fail_on=args.fail_on, beside=beside)


def measure(args: Namespace, table: Table, window: Window) -> Freshness | None:
    """How old rows were by `--event-time`, kept in `--history` too; None where it was not asked for."""
    from shoal.doctor.freshness import event_lags, freshness
    from shoal.doctor.history_store import HistoryStore

    if args.event_time is None:
        return None
    there = [s for s in window.steps if s.id >= (window.stock.earliest or 0)]  # a history has older ones too
    found = freshness(window, now_ms=table.clock.now_ms(), lags=event_lags(table, args.event_time, there))
    if args.history is not None:
        with HistoryStore(args.history) as history:
            history.keep_freshness(window.table, found, table.clock.now_ms())
    return found


def show(view: RenderableType) -> None:
    """Something for a rich console; without colour into a pipe."""
    if has_colour(sys.stdout):
        from rich.console import Console

        Console(width=width(), highlight=False, emoji=False, markup=False).print(view)
    else:
        from shoal.doctor.report import plain_text

        print(plain_text(view, width()), end="")


def write_text(path: str, text: str) -> None:
    """A file of the user's, or stdout for `-`. A file is there as a whole or not at all."""
    from pathlib import Path

    if path == "-":
        print(text, end="")
        return
    beside = Path(f"{path}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as err:
        raise BadRequest(
            f"cannot write {path}: {err.strerror}", hint="name a file in a folder that is there, and yours to write to"
        ) from err
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def one_to_stdout(args: Namespace, *options: str) -> None:
    """Refuse several outputs on stdout, where none could be read any more."""
    there = [f"--{o}" for o in options if getattr(args, o) == "-"]
    if there and (args.output == "json" or args.json):
        there.append("the JSON")
    if len(there) > 1:
        raise BadRequest(f"{' and '.join(there)} cannot both go to stdout", hint="write one of them to a file")


def check_metric_arguments(args: Namespace) -> None:
    """Refuse what would be ignored: options of metrics that nobody asked for."""
    if args.prometheus is None and (args.per_bucket or args.catalog is not None):
        option = "--per-bucket" if args.per_bucket else "--catalog"
        raise BadRequest(f"{option} is about metrics, and there are none", hint="say --prometheus FILE too")


# ---- check -----------------------------------------------------------------------------------------------


def _check(args: Namespace) -> int:
    one_to_stdout(args, "html", "prometheus")
    check_metric_arguments(args)
    try:
        table = open_table(args)
        found = checkup_of(args, table)
    except Corrupt:
        if args.prometheus is not None:  # else the file would go on saying what the last look saw
            write_metrics(args, (), (args.table,), SystemClock().now_ms())
        raise
    if args.html is not None:
        from shoal.doctor.html import page

        write_text(args.html, page(found))
    if args.prometheus is not None:
        write_metrics(args, (found,), (), table.clock.now_ms())
    if "-" in (args.html, args.prometheus):
        return found.verdict.code
    if args.output == "json" or args.json:
        show_json(found.to_dict())
    else:
        from shoal.doctor.checkup_text import checkup_view

        show(checkup_view(found))
    return found.verdict.code


def write_metrics(args: Namespace, checkups: Iterable[Checkup], unread: Iterable[str], now_ms: int) -> None:
    """`--prometheus`: metrics of tables, and that others could not be read."""
    from shoal.doctor.prometheus import text_of

    catalog = str(args.catalog or args.warehouse or os.environ.get("SHOAL_WAREHOUSE") or "")
    text = text_of(checkups, catalog=catalog, per_bucket=args.per_bucket, unread=unread, now_ms=now_ms)
    write_text(args.prometheus, text)


def output_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as -o json")
    parser.add_argument(
        "--prometheus", metavar="FILE", help="also write metrics for a text file collector; - is stdout"
    )
    parser.add_argument("--per-bucket", action="store_true", help="metrics of the 20 worst buckets too")
    parser.add_argument("--catalog", metavar="NAME", help="the label 'catalog' of metrics (default: the warehouse)")


def _check_arguments(parser: Parser) -> None:
    table_argument(parser)
    judge_arguments(parser)
    witness_arguments(parser)
    look_arguments(parser)
    output_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page with plots, one file; - is stdout")


# ---- debt ------------------------------------------------------------------------------------------------


def _debt(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.checkup import TOO_LITTLE, WELL
    from shoal.doctor.debt import Limits
    from shoal.doctor.model import model

    window, listed = _listed(args, table) if args.list else (look(args, table), None)
    found = model(window)
    if args.output == "json" or args.json:
        out = {"schema": "shoal.doctor.debt/1", **found.to_dict()}
        show_json(out if listed is None else {**out, "on_disk": listed.to_dict()})
    else:
        from shoal.doctor.debt_text import debt_view

        show(debt_view(found, None if window.schema is None else Limits.of(window.schema), listed))
    return TOO_LITTLE if found.debt.first is None else WELL


def _listed(args: Namespace, table: Table) -> tuple[Window, PhysicalCount]:
    """What is known of a table, and its files on disk by who made them."""
    from shoal.doctor.physical import physical
    from shoal.doctor.take import take_named
    from shoal.doctor.watch import metadata_of

    window, files = take_named(metadata_of(table), name=table.name, clock=table.clock, budget=budget_of(args))
    listed = physical(table.store, window.schema, files)
    # A history keeps no names, and a part of the snapshots does not know all files: then it is another look.
    return look(args, table) if args.history is not None or args.since is not None else window, listed


def _debt_arguments(parser: Parser) -> None:
    table_argument(parser)
    look_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the same as -o json")
    parser.add_argument("--list", action="store_true", help="also count the files on disk by listing all of them")


# ---- forecast --------------------------------------------------------------------------------------------


def _forecast(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.checkup import TOO_LITTLE, WELL
    from shoal.doctor.checkup_text import forecast_lines
    from shoal.doctor.model import model

    window, prices = look(args, table), _prices(args)
    found = model(window, prices=prices)
    planning = None if args.plan_limit is None else _planning(args, table, window)
    if args.output == "json" or args.json:
        show_json({
            "schema": "shoal.doctor.forecast/1", "table": table.name, "address": window.table,
            "stalls": [s.to_dict() for s in found.stalls],
            "requests": None if found.requests is None else found.requests.to_dict(),
            "steady": None if found.steady is None else found.steady.to_dict(),
            "planning": None if planning is None else planning.to_dict(),
        })  # fmt: skip
    elif found.requests is not None:
        print("\n".join(forecast_lines(found.stalls, found.requests, found.steady, planning)))
    if found.requests is None:
        note(f"{table.name}: too little data for a forecast: fewer than two commits")
        return TOO_LITTLE
    return WELL


def _prices(args: Namespace) -> Prices | None:
    from shoal.doctor.forecast import Prices

    given = (args.put_price, args.delete_price, args.storage_price)
    if all(p is None for p in given):
        return None
    put, delete, storage = (0.0 if p is None else p for p in given)
    return Prices(put_per_1000=put, delete_per_1000=delete, gigabyte_month=storage)


def _planning(args: Namespace, table: Table, window: Window) -> Planning | None:
    """Read the manifests of a few retained snapshots, with a clock beside it."""
    from shoal.doctor.plan_times import measured_planning
    from shoal.option_values import parse_duration

    limit = parse_duration(args.plan_limit, "--plan-limit") / 1000
    return measured_planning(table.metadata, window, table.clock, limit_s=limit)


_PRICE = number_of("a price", below=1e9)


def _forecast_arguments(parser: Parser) -> None:
    table_argument(parser)
    look_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the same as -o json")
    parser.add_argument("--put-price", metavar="P", type=_PRICE, help="of 1,000 objects that are put")
    parser.add_argument("--delete-price", metavar="P", type=_PRICE, help="of 1,000 objects that are deleted")
    parser.add_argument("--storage-price", metavar="P", type=_PRICE, help="of a GB for a month")
    parser.add_argument(
        "--plan-limit", metavar="TIME", help="when planning a read takes longer: times a few readings of manifests"
    )


CHECK_COMMANDS = (
    Command(
        "doctor check", "judge a table: small files, causes, cures",
        "shoal doctor check -w /data/warehouse shop.orders --slo 10s\n"
        "shoal doctor check -w /data shop.orders --flink http://flink:8081\n"
        "shoal doctor check -w /data shop.orders --html orders.html\n"
        "shoal doctor check -w /data/warehouse shop.orders -o json | jq .verdict",
        reads(_check), _check_arguments,
        about="Judge a table by what its snapshots tell: four stocks of debt with their slope,\n"
        "the causes with their numbers, what would mend them. Exit codes: 0 well, 1 a\n"
        "finding of --fail-on or worse, 3 it cannot be read, 4 too little data.",
    ),
    Command(
        "doctor debt", "count files made, live and retained",
        "shoal doctor debt -w /data/warehouse shop.orders\n"
        "shoal doctor debt -w /data/warehouse shop.orders --list -o json",
        reads(_debt), _debt_arguments,
        about="Count the files that a table made, holds and retains, and their flows and\n"
        "cycles, without judging them.",
    ),
    Command(
        "doctor forecast", "what comes of it if nothing changes",
        "shoal doctor forecast -w /data/warehouse shop.orders\n"
        "shoal doctor forecast -w /data shop.orders --put-price 0.005",
        reads(_forecast), _forecast_arguments,
        about="When writers must wait, how many objects a day are made and what they cost, what\n"
        "lies in the folder once expiry keeps up: each with its interval and what it\n"
        "assumes.",
    ),
)  # fmt: skip
