# SPDX-License-Identifier: Apache-2.0
"""`shoal tail`: a table's changes as they are committed, a line for each row.

Invariant: a line is printed before the consumer's progress moves past its snapshot, so a reader that dies sees the
snapshot again and never misses one.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.cli.output import note
from shoal.cli.parser import Command, Parser, pair, table_argument
from shoal.cli.warehouse import open_table

if TYPE_CHECKING:
    from shoal.table.stream import Changes


def _run(args: Namespace) -> int:
    table = open_table(args)
    if args.option:
        table = table.with_options(dict(args.option))
    start = int(args.start) if args.start and args.start.isdecimal() else args.start
    until = int(args.until) if args.until and args.until.isdecimal() else args.until
    columns = [c.strip() for c in args.columns.split(",")] if args.columns else None
    rows = 0
    with table.follow(start=start, consumer=args.consumer, where=args.where, columns=columns, until=until) as changes:
        heads = True
        for c in changes:
            _print(c, args.output, heads)
            rows += len(c)
            heads = False
    count = f"{rows:,} row{'s' if rows > 1 else ''}" if rows else "no rows"
    note(f"{count}, up to snapshot {changes.next_snapshot - 1}" if rows and changes.next_snapshot else count)
    return 0


def _print(c: Changes, output: str, heads: bool) -> None:
    import pyarrow as pa

    from shoal.sql.encoding import csv, jsonl

    batch = c.to_batch()
    snapshots = pa.repeat(pa.scalar(c.snapshot, pa.int64()), batch.num_rows)
    batch = batch.add_column(0, pa.field("snapshot", pa.int64(), False), snapshots)
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    text: Iterator[str] = jsonl(reader) if output == "jsonl" else csv(reader)
    if output == "csv" and not heads:
        next(text)
    for part in text:
        sys.stdout.write(part)
    sys.stdout.flush()


def _arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument(
        "--start", metavar="WHERE",
        help="a snapshot id, or latest-full (the state first; the default), latest, earliest, compacted-full",
    )  # fmt: skip
    parser.add_argument("--consumer", metavar="NAME", help="go on where this consumer was, and keep its progress")
    parser.add_argument("--where", metavar="SQL", help="only rows for which this holds")
    parser.add_argument("--columns", metavar="A,B", help="only these columns")
    parser.add_argument("--until", metavar="END", help="end after this snapshot id; latest: after today's newest")
    parser.add_argument(
        "--option", metavar="K=V", type=pair, action="append", default=[],
        help="option of this read, e.g. streaming-read-overwrite=true; may be repeated",
    )  # fmt: skip


COMMANDS = (
    Command(
        "tail", "print a table's changes as they are committed",
        "shoal tail -w /data/warehouse shop.orders --start latest\n"
        "shoal tail -w /data/warehouse shop.orders --consumer bi --where 'total > 9'",
        _run, _arguments, outputs=("jsonl", "csv"),
        about="Print a table's changes, a line for each row: its snapshot, its kind (+I, -U,\n"
        "+U or -D) and its columns. Goes on until Ctrl-C, or to the --until.",
    ),
)  # fmt: skip
