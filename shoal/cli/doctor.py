# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor`: how deep a table is in small files, and whether that is bad. Reads only."""

from __future__ import annotations

import sys
from argparse import Namespace

from shoal.cli.doctor_freshness import FRESHNESS
from shoal.cli.doctor_history import HISTORY_COMMANDS
from shoal.cli.doctor_lint import LINT
from shoal.cli.doctor_timeline import TIMELINE
from shoal.cli.output import has_colour, show_json, width
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_table


def _check(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.debt import debt
    from shoal.doctor.physical import physical
    from shoal.doctor.report import check, check_text, judge, to_json
    from shoal.doctor.sample import sample
    from shoal.doctor.take import take

    found = debt(take(table.metadata))
    listed = physical(table.store, sample(table.metadata)) if args.list else None
    verdict = judge(found)
    if args.output == "json":
        import json

        facts = json.loads(to_json(found, verdict))
        show_json(facts if listed is None else {**facts, "on_disk": listed.to_dict()})
    elif has_colour(sys.stdout):
        from rich.console import Console

        Console(width=width(), highlight=False, emoji=False, markup=False).print(check(found, listed))
    else:
        print(check_text(found, listed, width=width()), end="")
    return verdict.exit_code


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--list", action="store_true", help="also count the files on disk by listing all of them")


COMMANDS = (
    Command(
        "doctor check", "count a table's small files and judge them",
        "shoal doctor check -w /data/warehouse shop.orders\n"
        "shoal doctor check -w /data/warehouse shop.orders -o json | jq .verdict",
        _check, _arguments,
        about="Count the files that a table made, holds and retains, from its metadata, and\n"
        "judge them. Exit code 0 says that the table is well, 1 that it is not.",
    ),
    *HISTORY_COMMANDS,
    LINT,
    FRESHNESS,
    TIMELINE,
)  # fmt: skip
