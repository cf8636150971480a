# SPDX-License-Identifier: Apache-2.0
"""`shoal sql`: statements from the line, a file, a pipe or a prompt; results in the format that was asked for.

Invariant: statements run in order and the first error ends them; bytes never go to a terminal.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from shoal.cli.interrupt import interruptible
from shoal.cli.output import is_terminal, note, width
from shoal.cli.parser import Command, Parser
from shoal.cli.warehouse import open_lake
from shoal.errors import BadRequest, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.sql.engine import Engine

_FORMATS = ("table", "jsonl", "csv", "json", "arrow", "parquet")
_BYTES = ("arrow", "parquet")
# Rows of a drawn table: a screen or two, and elsewhere what is still drawn in a second.
_ROWS_SCREEN, _ROWS_ELSEWHERE = 100, 10_000


def _run(args: Namespace) -> int:
    lake = open_lake(args)
    if args.output in _BYTES and is_terminal(sys.stdout):
        raise BadRequest(
            f"{args.output} is bytes, not for a terminal", hint=f"send it to a file: shoal sql ... > rows.{args.output}"
        )
    text = _text(args)
    from shoal.sql.engine import Engine

    engine = Engine(lake, database=args.database)

    def execute(statement: str) -> None:
        shown = _Shown(args.output, args.rows)
        interruptible(lambda: shown.show(engine.query(statement)), lambda: shown.cancel(engine))

    if text is None:
        from shoal.cli.prompt import prompt

        note(f"{lake.store.uri}: end statements with ;  .help says more")
        prompt(lake, execute, debug=args.debug)
    else:
        _all(text, execute, args.output)
    return 0


def _all(text: str, execute: Callable[[str], None], output: str) -> None:
    from shoal.sql.engine import split

    statements = split(text)
    if not statements:
        raise BadRequest("there is no statement", hint="such as shoal sql 'SELECT * FROM db.t'")
    if len(statements) > 1 and output in (*_BYTES, "json"):
        raise BadRequest(
            f"{output} holds the rows of one statement, here are {len(statements)}",
            hint="run them one by one, or choose jsonl",
        )
    for statement in statements:
        execute(statement)


class _Shown:
    """One result on its way to stdout, as it comes."""

    def __init__(self, output: str, rows: int | None) -> None:
        self._output = output
        self._screen = is_terminal(sys.stdout)
        self._limit = rows if rows is not None else _ROWS_SCREEN if self._screen else _ROWS_ELSEWHERE
        self._rows = 0
        self._cancelled = False

    def show(self, reader: pa.RecordBatchReader) -> None:
        import pyarrow as pa

        from shoal.sql.encoding import write

        sys.stdout.flush()
        watched = pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))
        write(
            watched, sys.stdout.buffer, self._output, rows=self._limit or None, width=width() if self._screen else None
        )
        sys.stdout.buffer.flush()
        if self._output == "table" and not self._screen and 0 < self._limit < self._rows:
            note(f"drew {self._limit:,} of {self._rows:,} rows: --rows 0 draws all, -o csv or jsonl streams them")

    def cancel(self, engine: Engine) -> None:
        """Stop at once."""
        self._cancelled = True
        engine.interrupt()

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            if self._cancelled:
                raise BadRequest("the statement was interrupted")
            self._rows += batch.num_rows
            yield batch


def _text(args: Namespace) -> str | None:
    """The SQL from the line, the file or the pipe; None asks for a prompt."""
    if args.sql is not None:
        if args.file is not None:
            raise BadRequest("SQL was given on the line and with -f", hint="give one of them")
        return str(args.sql)
    if args.file not in (None, "-"):
        return _file(args.file)
    if sys.stdin is None or sys.stdin.closed:
        raise BadRequest("there is no SQL, and stdin is closed", hint="give the SQL on the line or with -f")
    if args.file is None and is_terminal(sys.stdin):
        if is_terminal(sys.stdout):
            return None
        note("reading SQL from the terminal; Ctrl-D ends it")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as err:
        raise BadRequest(f"the SQL on stdin is not UTF-8: byte {err.start}") from err


def _file(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except FileNotFoundError as err:
        raise NotFound(f"no file {path}", hint="-f names a file with SQL; - is stdin") from err
    except UnicodeDecodeError as err:
        raise BadRequest(f"{path} is not UTF-8: byte {err.start}") from err
    except OSError as err:
        raise BadRequest(f"cannot read {path}: {err.strerror}") from err


def _rows(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a number of rows")
    return int(text)


def _arguments(parser: Parser) -> None:
    parser.add_argument("sql", metavar="SQL", nargs="?", help="statements, ended by ;")
    parser.add_argument("-f", "--file", metavar="FILE", help="a file with statements; - is stdin")
    parser.add_argument("-d", "--database", metavar="DB", help="where names without a database are looked up")
    parser.add_argument(
        "--rows", metavar="N", type=_rows,
        help=f"rows of a drawn table; 0: all (default: {_ROWS_SCREEN} on a terminal, else {_ROWS_ELSEWHERE:,})",
    )  # fmt: skip


COMMANDS = (
    Command(
        "sql", "ask the tables with SQL; a prompt when given none",
        "shoal sql -w /data/warehouse 'SELECT count(*) FROM shop.orders'\n"
        "shoal sql -w /data/warehouse -d shop -f report.sql -o csv > report.csv\n"
        "shoal sql -w /data/warehouse",
        _run, _arguments, outputs=_FORMATS,
        about="Run SQL over the tables of a warehouse: from the line, a file, a pipe, or at a\n"
        "prompt when given none of them on a terminal.",
    ),
)  # fmt: skip
