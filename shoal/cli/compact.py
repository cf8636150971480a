# SPDX-License-Identifier: Apache-2.0
"""`shoal compact`: merges the files of a table. Readers see the same rows before and after."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from shoal.cli.output import Cell, is_terminal, note, show_json, show_table
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_table

if TYPE_CHECKING:
    from shoal.table.maintain import CompactionReport


def _run(args: Namespace) -> int:
    maintain = open_table(args).maintain
    if not args.dry_run and is_terminal(sys.stderr):
        note(str(maintain.compact(full=args.full, dry_run=True)).replace("would compact", "compacting"))
    report = maintain.compact(full=args.full, dry_run=args.dry_run)
    if report.upkeep is not None and report.upkeep.failure is not None:
        note(f"shoal: upkeep failed after the commit, which stands: {report.upkeep.failure.message}")
    if args.output == "json":
        show_json({"dry_run": args.dry_run, **report.to_dict()})
        return 0
    if args.dry_run and report.planned:
        _show_plan(report)
    print(report)
    return 0


def _show_plan(report: CompactionReport) -> None:
    heads = ["partition", "bucket", "files", "bytes", "to level", "why"]
    rows: list[list[Cell]] = [
        [p.partition, p.bucket, p.files, p.bytes, p.output_level, p.reason] for p in report.planned
    ]
    skip = 0 if any(p.partition for p in report.planned) else 1
    show_table(heads[skip:], [row[skip:] for row in rows])
    print()


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--full", action="store_true", help="merge every bucket into its highest level")
    parser.add_argument("--dry-run", action="store_true", help="only say which files would be merged, and why")


COMMANDS = (
    Command(
        "compact run", "merge the files of a table's buckets that need it",
        "shoal compact run -w /data/warehouse shop.orders --dry-run\n"
        "shoal compact run -w /data/warehouse shop.orders --full",
        _run, _arguments,
        about="Merge the files of the buckets that need it by the table's own options. Readers\n"
        "see the same rows before and after. Exit code 3 says that another writer\ncompacted the same files first.",
    ),
)  # fmt: skip
