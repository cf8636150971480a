# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor watch`, `history`, `export`: look at tables again and again, and at what was seen. Read tables only."""

from __future__ import annotations

import json
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.cli.failure import CANNOT_READ, reads
from shoal.cli.output import BOLD, paint, show_json, show_pairs, show_table
from shoal.cli.parser import Command, Parser, number_of, table_argument
from shoal.cli.warehouse import open_lake, open_table
from shoal.errors import BadRequest, Corrupt

if TYPE_CHECKING:
    from shoal.clock import Clock
    from shoal.doctor.allowance import Allowance
    from shoal.doctor.flink import JobLog
    from shoal.doctor.history_store import HistoryStore
    from shoal.doctor.rebuild import Past
    from shoal.doctor.window import Window
    from shoal.table.table import Table


def history_argument(parser: Parser) -> None:
    parser.add_argument(
        "--history", metavar="FILE", help="where looks are kept; else $XDG_STATE_HOME/shoal/doctor.sqlite"
    )


def budget_arguments(parser: Parser) -> None:
    parser.add_argument("--max-requests", metavar="N", type=_count, help="end a look after so many requests")
    parser.add_argument("--max-bytes", metavar="SIZE", help="end a look after reading so much, e.g. 64mb")
    parser.add_argument(
        "--rps",
        metavar="N",
        type=number_of("a number of requests a second", below=1e6),
        help="at most so many requests a second",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise BadRequest(f"'{text}' is not a number")
    return int(text)


def budget_of(args: Namespace, stopped: Callable[[], bool] = lambda: False) -> Allowance:
    from shoal.doctor.allowance import Allowance
    from shoal.option_values import parse_memory

    size = None if args.max_bytes is None else parse_memory(args.max_bytes, "--max-bytes")
    return Allowance(args.max_requests, size, args.rps, stopped)


def open_history(args: Namespace) -> HistoryStore:
    from shoal.doctor.history_store import HistoryStore

    return HistoryStore(args.history)


def since_ms(text: str | None, clock: Clock) -> int | None:
    """`--since` as a time: a duration before now (`2h`), or a time of ISO 8601 in the clock's zone."""
    from datetime import datetime

    from shoal.option_values import parse_duration

    if text is None:
        return None
    if re.match(r"^\d{4}-", text):
        try:
            at = datetime.fromisoformat(text)
        except ValueError as err:
            raise BadRequest(f"--since '{text}' is no time", hint="write 2h, or 2026-11-01T12:00") from err
        return round((at if at.tzinfo else at.replace(tzinfo=clock.zone)).timestamp() * 1000)
    try:
        return clock.now_ms() - parse_duration(text, "--since")
    except BadRequest as err:
        raise BadRequest(f"--since '{text}' is no time", hint="write 2h, or 2026-11-01T12:00") from err


# ---- watch -----------------------------------------------------------------------------------------------


def _watch(args: Namespace) -> int:
    from shoal.clock import ThreadScheduler
    from shoal.doctor.watch import watch
    from shoal.option_values import parse_duration

    lake = open_lake(args)
    every = parse_duration(args.every, "--every") / 1000
    database = args.table.removesuffix(".*")

    def tables() -> list[Table]:
        if database == args.table:
            return [lake.table(args.table)]
        return [lake.table(f"{database}.{name}") for name in lake.tables(database)]

    tables()  # a name that is wrong ends it here
    jobs = _jobs(args, only=database == args.table)
    scheduler, code, stop = ThreadScheduler(4), 0, threading.Event()
    try:
        with open_history(args) as history:
            for look in watch(
                tables, history, clock=lake.clock, scheduler=scheduler, every_s=every, once=args.once,
                budget=budget_of(args, stop.is_set), jobs=jobs,
            ):  # fmt: skip
                if look.trouble is not None:
                    code = max(code, CANNOT_READ if isinstance(look.trouble, Corrupt) else look.trouble.exit_code)
                text = json.dumps(look.to_dict(), ensure_ascii=False) if args.output == "json" else look.line()
                print(text, flush=True)
    finally:
        stop.set()  # after Ctrl-C looks are under way: they end at their next request
        scheduler.close()
    return code


def _jobs(args: Namespace, *, only: bool) -> JobLog | None:
    from pathlib import Path

    from shoal.doctor.flink import JobLog, Rest, saved_job

    if args.flink is None:
        if args.job is not None:
            raise BadRequest("--job needs --flink", hint="say --flink http://jobmanager:8081")
        return None
    if not Path(args.flink).is_dir():
        return JobLog(Rest(args.flink), args.job, only=only)
    if not only:
        raise BadRequest("saved answers are about one table", hint="name it: shoal doctor watch DB.T --flink DIR")
    return JobLog(saved_job(args.flink))


def _watch_arguments(parser: Parser) -> None:
    parser.add_argument("table", metavar="DB.TABLE|DB.*")
    parser.add_argument("--every", metavar="TIME", default="10s", help="time from look to look (default: 10s)")
    parser.add_argument("--once", action="store_true", help="one look, then end")
    parser.add_argument("--flink", metavar="URL|DIR", help="keep the checkpoints of the jobs at this REST address too")
    parser.add_argument("--job", metavar="ID", help="id or name of the job, where several run")
    history_argument(parser)
    budget_arguments(parser)


# ---- history ---------------------------------------------------------------------------------------------


def _history(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.history_file import check_outside
    from shoal.doctor.rebuild import rebuild
    from shoal.doctor.watch import look_and_keep, metadata_of

    metadata = metadata_of(table)
    since, past = since_ms(args.since, table.clock), None
    with open_history(args) as history:
        check_outside(history.path, metadata.store.uri)
        if args.rebuild:
            past = rebuild(metadata, name=table.name, clock=table.clock, budget=budget_of(args))
            if metadata.store.uri in history.tables():
                history.forget(metadata.store.uri)
            history.append(past.window)
        else:
            look_and_keep(table, history, clock=table.clock, budget=budget_of(args))
        window = history.window(metadata.store.uri, since_ms=since)
        if args.output == "json":
            out = {"version": 1, **_facts(window), "spans": _spans(history, window, since)}
            show_json(out if past is None else {**out, "past": past.to_dict()})
        else:
            _show(history, window, since)
            if past is not None:
                _show_past(past)
    return 0


def _facts(w: Window) -> dict[str, object]:
    steps = w.steps
    return {
        "table": w.name,
        "address": w.table,
        "snapshots": len(steps),
        "first": steps[0].id if steps else None,
        "last": steps[-1].id if steps else None,
        "first_ms": steps[0].time_ms if steps else None,
        "last_ms": steps[-1].time_ms if steps else None,
        "looked_ms": w.stock.taken_ms,
        "live_files": steps[-1].live_files if steps else None,
        "gaps": [{"first": g.first, "last": g.last, "kind": g.kind, "what": g.what} for g in w.gaps],
        "events": [{"time_ms": e.time_ms, "kind": e.kind, "what": e.what, "snapshot": e.snapshot} for e in w.events],
        "holders": [{"kind": h.kind, "name": h.name, "snapshot": h.snapshot} for h in w.stock.holders],
    }


_WORDS = ("flush", "rewrite", "upgrade", "removal", "changelog")


def _spans(history: HistoryStore, window: Window, since: int | None) -> list[dict[str, object]]:
    """Files made and removed, by span of time."""
    import pyarrow.compute as pc

    trend = history.trend(window.table, since)
    gained = trend.filter(
        pc.or_(pc.equal(trend.column("change"), 1), pc.equal(trend.column("class"), "removal"))
    )  # fmt: skip
    sums = gained.group_by(["at_ms", "span_ms", "class"]).aggregate([("files", "sum"), ("bytes", "sum")])
    out: dict[tuple[int, int], dict[str, object]] = {}
    for row in sums.to_pylist():
        here = out.setdefault((row["at_ms"], row["span_ms"]), {"at_ms": row["at_ms"], "span_ms": row["span_ms"]})
        here[row["class"]] = {"files": row["files_sum"], "bytes": row["bytes_sum"]}
    return [out[key] for key in sorted(out)]


def _time(ms: int | None) -> str:
    from datetime import UTC, datetime

    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _show(history: HistoryStore, w: Window, since: int | None) -> None:
    from shoal.doctor.report import size_text

    steps = w.steps
    show_pairs({
        "table": w.name or w.table,
        "kept in": str(history.path),
        "snapshots": f"{len(steps):,}, {steps[0].id} to {steps[-1].id}" if steps else "none",
        "from": _time(steps[0].time_ms) if steps else None,
        "to": _time(steps[-1].time_ms) if steps else None,
        "last look": _time(w.stock.taken_ms),
        "live files": steps[-1].live_files if steps else None,
        "not seen": ", ".join(f"{g.first} to {g.last} ({g.kind})" for g in w.gaps) or None,
    })  # fmt: skip
    rows = []
    for span in _spans(history, w, since):
        counts = [span.get(word) for word in _WORDS]
        at, length = span["at_ms"], span["span_ms"]
        assert isinstance(at, int) and isinstance(length, int)
        files = [c["files"] if isinstance(c, dict) else 0 for c in counts]
        size = sum(c["bytes"] for c in (*counts[:2], counts[4]) if isinstance(c, dict))
        rows.append([_time(at), f"{length // 60_000} min", *files, size_text(size)])
    if rows:
        print()
        show_table(["from", "span", "flush", "rewrite", "upgrade", "removed", "changelog", "written"], rows)
    if w.events:
        print()
        show_table(["time", "event", "what"], [[_time(e.time_ms), e.kind, e.what] for e in w.events])


def _show_past(p: Past) -> None:
    """The past as lines, each with how far it can be trusted."""
    from shoal.doctor.rebuild import UNKNOWABLE
    from shoal.doctor.report import size_text

    steps = p.window.steps
    print(f"\n{paint('What the table tells of its past', BOLD, sys.stdout)}")
    if steps:
        print(f"  exact    snapshots {steps[0].id} to {steps[-1].id}: every file, flow and commit")
    if p.dead.files:
        made = ", ".join(f"{n:,} by {w}" for w, n in p.dead_sources.items() if n)
        print(f"  exact    {p.dead.files:,} dead files ({size_text(p.dead.bytes)}) before them, still named: {made}")
    for t in p.points:
        files = "its files could not be read" if t.live is None else f"{t.live.files:,} live files"
        print(f"  exact    tag {t.tag}, snapshot {t.snapshot}, {_time(t.time_ms)}: {files}")
    if p.changelogs:
        print(f"  exact    {len(p.changelogs):,} snapshots whose changelog outlives them, from {p.changelogs[0][0]}")
    for time, schema, changed in p.options:
        what = ", ".join(f"{k} {old} -> {new}" for k, (old, new) in changed.items())
        print(f"  exact    {_time(time)} schema {schema}: {what}")
    if p.lifetime_trust == "exact" and p.lifetimes:
        living = sum(b.live_rows for b in p.lifetimes)
        ratio = f", {p.records_ever / living:.2f} for each that lives" if living and p.records_ever else ""
        print(f"  exact    {p.records_ever:,} records ever written{ratio}; largest bucket {max(p.shares):.0%} of them")
    for why in p.voids:
        print(f"  {'void    ' if p.lifetime_trust == 'void' else 'provided'} records ever written: {why}")
    if p.commits_per_hour is not None:
        print(f"  average  {p.snapshots_ever:,} snapshots ever, {p.commits_per_hour:,.1f} an hour over its whole life")
    for user, at in p.checkpoints.items():
        print(f"  exact    checkpoint {at:,} of user {user}")
    if p.survivors:
        count = sum(c.files for c in p.survivors.values())
        print(f"  biased   {count:,} live files of {len(p.survivors):,} days of creation: only what lived")
    for what in UNKNOWABLE:
        print(f"  unknown  {what}")


def _history_arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument(
        "--rebuild", action="store_true", help="begin anew from what the table retains, and tell of its past"
    )
    parser.add_argument("--since", metavar="TIME", help="from a time on: 2h (before now), or 2026-11-01T12:00")
    history_argument(parser)
    budget_arguments(parser)


# ---- export ----------------------------------------------------------------------------------------------


def _export(args: Namespace) -> int:
    from pathlib import Path

    table = open_table(args)
    from shoal.doctor.export import export
    from shoal.doctor.watch import look_and_keep, metadata_of

    since = since_ms(args.since, table.clock)
    with open_history(args) as history:
        look_and_keep(table, history, clock=table.clock, budget=budget_of(args))
        written = export(history, metadata_of(table).store.uri, Path(args.parquet), since_ms=since)
    if args.output == "json":
        show_json({"folder": args.parquet, "rows": written})
    else:
        show_table(["file", "rows"], [[name, rows] for name, rows in written.items()])
    return 0


def _export_arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--parquet", metavar="DIR", required=True, help="the folder for the files")
    parser.add_argument("--since", metavar="TIME", help="from a time on: 2h (before now), or 2026-11-01T12:00")
    history_argument(parser)
    budget_arguments(parser)


HISTORY_COMMANDS = (
    Command(
        "doctor watch", "look at tables again and again, a line a look",
        "shoal doctor watch -w /data/warehouse shop.orders --every 10s\n"
        "shoal doctor watch -w /data/warehouse shop.orders --flink http://jobs:8081\n"
        "shoal doctor watch -w /data/warehouse 'shop.*' --once -o json",
        reads(_watch), _watch_arguments,
        about="Look at a table, or at all tables of a database, until Ctrl-C: what new\n"
        "snapshots made and removed. Looks are kept in a history outside the warehouse,\n"
        "with --flink the checkpoints of the job too, which Flink soon forgets.",
    ),
    Command(
        "doctor history", "what was seen of a table, or can still be",
        "shoal doctor history -w /data/warehouse shop.orders --since 2h\n"
        "shoal doctor history -w /data/warehouse shop.orders --rebuild",
        reads(_history), _history_arguments,
        about="Catch up with a table and show all that is kept of it. With --rebuild, begin\n"
        "anew from what it retains, and tell what else its past was, and how surely.",
    ),
    Command(
        "doctor export", "write a table's history as Parquet files",
        "shoal doctor export -w /data/warehouse shop.orders --parquet /tmp/orders",
        reads(_export), _export_arguments,
        about="Catch up with a table, then write all that is kept of it: snapshots, flows, the\n"
        "state, events, gaps, schemas, holders, and the trend of all ages.",
    ),
)  # fmt: skip
