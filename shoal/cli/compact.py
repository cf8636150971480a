# SPDX-License-Identifier: Apache-2.0
"""`shoal compact`: merges the files of tables. Readers see the same rows before and after.

Invariant: Ctrl-C leaves nothing behind: what is not committed is deleted, what is committed stays.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from textwrap import fill
from typing import TYPE_CHECKING

from shoal.cli.failure import report as report_failure
from shoal.cli.output import Cell, note, show_json, show_table, width
from shoal.cli.parser import Command, Parser, one_of, pair
from shoal.cli.progress import progress_of
from shoal.cli.warehouse import open_lake
from shoal.errors import BadRequest, Conflict, NotFound, ShoalError

if TYPE_CHECKING:
    from shoal.catalog.filesystem import Lake
    from shoal.table.compact_report import CompactionReport
    from shoal.table.rescale import Rescaled


def _run(args: Namespace) -> int:
    _check(args)
    lake = open_lake(args)
    if args.continuous:
        return _keep_on(args, lake)
    many, failed = "*" in args.table, 0
    reports: list[CompactionReport] = []
    for name in _names(args, lake):
        try:
            report = _compact(args, lake, name)
        except ShoalError as err:
            if not many:
                raise
            failed = max(failed, report_failure(err, debug=args.debug))  # the other tables are compacted all the same
            continue
        reports.append(report)
        if args.output != "json":
            _show(args, report)
    if args.output == "json":
        found = [{"dry_run": args.dry_run, **r.to_dict()} for r in reports]
        show_json({"tables": found} if many else found[0])
    return failed


def _check(args: Namespace) -> None:
    if args.full and args.strategy == "minor":
        raise BadRequest("--full and --strategy minor contradict each other", hint="leave one of them out")
    if args.continuous and (args.dry_run or args.output == "json" or args.partition_idle_time is not None):
        raise BadRequest(
            "--continuous goes with none of --dry-run, --partition-idle-time and -o json",
            hint="run the command without it, again and again where that is wanted",
        )
    if args.continuous and (args.order_strategy or args.order_by):
        raise BadRequest(
            "--continuous does not go with --order-strategy", hint="'clustering.incremental' sorts step by step"
        )
    if (args.include or args.exclude) and "*" not in args.table:
        raise BadRequest("--include and --exclude choose among tables", hint="name several tables, as in 'shop.*'")
    if args.threads < 1:
        raise BadRequest(f"--threads {args.threads} is not positive")


def _names(args: Namespace, lake: Lake) -> list[str]:
    """The tables that are meant; without a `*` the one that is named, whether it is there or not."""
    if "*" not in args.table:
        return [args.table]
    database, _, pattern = args.table.partition(".")
    databases = [d for d in lake.databases() if fnmatchcase(d, database)]
    found = [f"{d}.{t}" for d in databases for t in lake.tables(d) if fnmatchcase(t, pattern or "*")]
    names = [
        n
        for n in found
        if (not args.include or any(fnmatchcase(n, p) for p in args.include))
        and not any(fnmatchcase(n, p) for p in args.exclude)
    ]
    if not names:
        raise NotFound(
            f"no table in {lake.store.uri} fits '{args.table}'",
            hint="'shoal table list' names them; --include and --exclude are patterns over DB.TABLE",
        )
    return names


def _compact(args: Namespace, lake: Lake, name: str) -> CompactionReport:
    shown = None if args.dry_run else progress_of(name)
    table = lake.table(name)
    try:
        report = table.maintain.compact(
            full=args.full or args.strategy == "full",
            where=args.where,
            partitions=_partitions(args),
            idle_time=args.partition_idle_time,
            order_strategy=args.order_strategy,
            order_by=args.order_by,
            dry_run=args.dry_run,
            threads=args.threads,
            progress=shown,
        )
    finally:
        if shown is not None:
            shown.clear()
    if report.upkeep is not None and report.upkeep.failure is not None:
        note(f"shoal: upkeep failed after the commit, which stands: {report.upkeep.failure.message}")
    return report


def _partitions(args: Namespace) -> list[dict[str, object]] | None:
    """`--partition dt=1,hh=2` once for each partition; a part of the columns stands for all that fit."""
    specs: list[dict[str, object]] = [dict(pair(part) for part in text.split(",")) for text in args.partition]
    return specs or None


def _keep_on(args: Namespace, lake: Lake) -> int:
    """Look every so often, compact what has new snapshots, until Ctrl-C."""
    from shoal.option_values import parse_duration

    pause = parse_duration(args.interval, "--interval") / 1000
    seen: dict[str, int] = {}
    for _ in _rounds(lake.clock.sleep, pause):
        for name in _names(args, lake):
            newest = lake.table(name).metadata.latest_id()
            if newest is None or newest == seen.get(name):
                continue
            try:
                report = _compact(args, lake, name)
            except Conflict as err:
                note(f"{name}: {err}; trying again")
                continue
            seen[name] = newest if report.snapshot is None else report.snapshot
            if report.planned:
                print(report, flush=True)
    return 0


def _rounds(sleep: Callable[[float], None], seconds: float) -> Iterator[None]:
    while True:
        yield
        sleep(seconds)


def _show(args: Namespace, report: CompactionReport) -> None:
    from shoal.table.compact_report import RULES

    if args.dry_run and report.planned:
        heads = ["partition", "bucket", "files", "bytes", "to level", "why"]
        rows: list[list[Cell]] = [
            [p.partition, p.bucket, p.files, p.bytes, p.output_level, f"{p.rule}: {p.reason}"] for p in report.planned
        ]
        skip = 0 if any(p.partition for p in report.planned) else 1
        show_table(heads[skip:], [row[skip:] for row in rows])
        print()
    print(report)
    if args.dry_run:
        for rule in dict.fromkeys(p.rule for p in report.planned):
            note(fill(f"{rule}: {RULES[rule]}", width(sys.stderr), subsequent_indent="  ", break_on_hyphens=False))


def _arguments(parser: Parser) -> None:
    parser.add_argument("table", metavar="DB.TABLE")
    parser.add_argument("--full", action="store_true", help="merge every bucket into its highest level")
    parser.add_argument(
        "--strategy", metavar="HOW", type=one_of("a strategy", "full", "minor"),
        help="full (as --full) or minor: what the table's options ask for (default)",
    )  # fmt: skip
    parser.add_argument(
        "--partition", metavar="K=V[,K=V]", action="append", default=[], help="only this partition; may be repeated"
    )
    parser.add_argument("--where", metavar="SQL", help="only partitions for which this holds")
    parser.add_argument(
        "--partition-idle-time", metavar="TIME", help="only partitions without a new file for so long, e.g. '1 h'"
    )
    parser.add_argument(
        "--order-strategy", metavar="ORDER", type=one_of("an order", "order", "zorder", "hilbert"),
        help="write whole partitions of a table with bucket = -1 anew, sorted: order, zorder or hilbert",
    )  # fmt: skip
    parser.add_argument("--order-by", metavar="COLUMNS", help="the columns to sort by, as in a,b")
    parser.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        default=[],
        help="of several tables only these",
    )
    parser.add_argument("--exclude", metavar="PATTERN", action="append", default=[], help="of several not these")
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="buckets at a time (default: 1)")
    parser.add_argument("--continuous", action="store_true", help="go on until Ctrl-C, looking for new snapshots")
    parser.add_argument("--interval", metavar="TIME", default="10 s", help="how often --continuous looks (10 s)")
    parser.add_argument("--dry-run", action="store_true", help="only say which files would be merged, and why")


# ---- rescale, manifests


def _rescale(args: Namespace) -> int:
    table = open_lake(args).table(args.table)
    shown = None if args.dry_run else progress_of(args.table)
    try:
        done = table.maintain.rescale(
            args.buckets, partitions=_partitions(args), where=args.where, dry_run=args.dry_run, progress=shown
        )
    finally:
        if shown is not None:
            shown.clear()
    if done.upkeep is not None and done.upkeep.failure is not None:
        note(f"shoal: upkeep failed after the commit, which stands: {done.upkeep.failure.message}")
    if args.output == "json":
        show_json(done.to_dict())
    else:
        _show_rescaled(done)
    return 0


def _show_rescaled(done: Rescaled) -> None:
    if done.dry_run and any(p.partition for p in done.planned):
        rows: list[list[Cell]] = [[p.partition, p.buckets, done.buckets, p.files, p.bytes] for p in done.planned]
        show_table(["partition", "buckets", "would have", "files", "bytes"], rows)
        print()
    print(done)


def _rescale_arguments(parser: Parser) -> None:
    parser.add_argument("table", metavar="DB.TABLE")
    parser.add_argument(
        "--buckets", metavar="N", type=int, help="how many (default: as many as the table's option says)"
    )
    parser.add_argument(
        "--partition", metavar="K=V[,K=V]", action="append", default=[], help="only this partition; may be repeated"
    )
    parser.add_argument("--where", metavar="SQL", help="only partitions for which this holds")
    parser.add_argument("--dry-run", action="store_true", help="only say which partitions would be written again")


def _manifests(args: Namespace) -> int:
    snapshot = open_lake(args).table(args.table).maintain.compact_manifest()
    if args.output == "json":
        show_json({"table": args.table, "snapshot": snapshot})
    elif snapshot is None:
        print(f"{args.table}: nothing to merge")
    else:
        print(f"{args.table}: snapshot {snapshot}, its manifests are merged")
    return 0


def _manifests_arguments(parser: Parser) -> None:
    parser.add_argument("table", metavar="DB.TABLE")


COMMANDS = (
    Command(
        "compact run", "merge the files of a table's buckets that need it",
        "shoal compact run -w /data/warehouse shop.orders --dry-run\n"
        "shoal compact run -w /data/warehouse shop.orders --full\n"
        "shoal compact run -w /data shop.orders --where \"dt < '2026-11-01'\"\n"
        "shoal compact run -w /data d.log --order-strategy zorder --order-by day,user\n"
        "shoal compact run -w /data 'shop.*' --exclude 'shop.tmp_*' --continuous",
        _run, _arguments,
        about="Merge the files of the buckets that need it by the table's own options. Readers\n"
        "see the same rows before and after. Several tables are named by a pattern in\n"
        "quotes. Exit code 3 says that another writer compacted the same files\nfirst.",
    ),
    Command(
        "compact rescale", "give partitions another number of buckets",
        "shoal compact rescale -w /data/warehouse shop.orders --buckets 8 --dry-run\n"
        "shoal compact rescale -w /data/warehouse shop.orders --buckets 8\n"
        "shoal compact rescale -w /data shop.orders --partition dt=2026-11-01",
        _rescale, _rescale_arguments,
        about="Write partitions again with another number of buckets, and set the option of\n"
        "the table to it. Readers see the same rows before and after. Other partitions\n"
        "keep their number until they are rescaled too: they are read, and not written\n"
        "to. Stop the writers first; exit code 3 says that one wrote meanwhile, and that\n"
        "no row has moved.",
    ),
    Command(
        "compact manifests", "merge the manifests of a table's newest snapshot",
        "shoal compact manifests -w /data/warehouse shop.orders",
        _manifests, _manifests_arguments,
        about="Write the list of a table's files anew, in as few manifests as may be. Scans\n"
        "plan faster then; rows and data files stay as they are.",
    ),
)  # fmt: skip
