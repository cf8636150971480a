# SPDX-License-Identifier: Apache-2.0
"""The prompt of `shoal sql`: lines until a `;`, a few commands with a dot, history and completion.

Invariant: an error or Ctrl-C ends the statement, never the session; Ctrl-D and `.quit` end the session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.cli.failure import report
from shoal.cli.output import note
from shoal.errors import BadRequest, ShoalError, near

if TYPE_CHECKING:
    from shoal.catalog.filesystem import Lake

HELP = """\
  SELECT ...;   a statement ends with ; and may take several lines
  .tables       the tables of the warehouse
  .help         this text
  .quit         leave; Ctrl-D does too
Ctrl-C drops what was typed, or stops the statement that runs. Tab completes names."""
_DOTS = (".help", ".quit", ".tables")
_HISTORY = 1000
_WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "WITH", "UNION ALL",
    "DISTINCT", "COUNT", "DESCRIBE", "SHOW TABLES", "SHOW DATABASES", "EXPLAIN",
)  # fmt: skip


def prompt(lake: Lake, execute: Callable[[str], None], *, debug: bool = False) -> None:
    """Read statements from the terminal and execute them until the user leaves."""
    with _line_editing(lake):
        typed = ""
        while True:
            try:
                line = input("   ...> " if typed else "shoal> ")
                if not typed and line.strip().lower().rstrip(";") in (".quit", ".exit", "quit", "exit"):
                    return
                if not typed and line.lstrip().startswith("."):
                    _dot(line.strip(), lake)
                    continue
                typed += line + "\n"
                statements, typed = ended(typed)
                for statement in statements:
                    execute(statement)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                typed = ""
            except BrokenPipeError:  # the terminal is gone
                raise
            except Exception as err:  # noqa: BLE001  as in main(): whatever it is, the session goes on
                report(err, debug=debug)
                typed = ""


def ended(text: str) -> tuple[list[str], str]:
    """The statements of a text that have their `;`, and what is left to go on with.

    >>> ended("SELECT 1; SELECT")
    (['SELECT 1'], 'SELECT')
    >>> ended("SELECT ';'"), ended("SELECT 1; -- done")
    (([], "SELECT ';'"), (['SELECT 1'], ''))
    """
    from shoal.sql.syntax import split

    mark = "\nx"  # a statement of its own only when the text before it has ended
    *before, last = split(text + mark)
    rest = "" if last == mark.strip() else last.removesuffix(mark)
    return before, rest if split(rest) else ""


def _dot(line: str, lake: Lake) -> None:
    match line.lower():
        case ".help":
            note(HELP)
        case ".tables":
            for name in table_names(lake):
                print(name)
        case _:
            raise BadRequest(f"no command '{line}'", hint=near(line, _DOTS) or f"there are {', '.join(_DOTS)}")


def table_names(lake: Lake) -> list[str]:
    return [f"{database}.{table}" for database in lake.databases() for table in lake.tables(database)]


@contextmanager
def _line_editing(lake: Lake) -> Iterator[None]:
    """History between sessions and completion, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = history_path()
    try:
        readline.read_history_file(path)
    except OSError:
        pass  # the first session, or a file that cannot be read: there is no history then
    readline.set_history_length(_HISTORY)
    readline.set_completer(_completer(lake))
    readline.set_completer_delims(" \t\n(),;=<>+-*/")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            readline.write_history_file(path)
        except OSError as err:
            note(f"the history was not kept: {path}: {err.strerror}")


def history_path() -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "shoal", "sql_history")


def _completer(lake: Lake) -> Callable[[str, int], str | None]:
    names: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if not number:
            try:
                names[:] = [*_DOTS, *table_names(lake), *_WORDS]
            except ShoalError:
                names[:] = [*_DOTS, *_WORDS]  # completing is no time to complain
        found = [
            n if not text.islower() or n not in _WORDS else n.lower()
            for n in names
            if n.lower().startswith(text.lower())
        ]
        return found[number] if number < len(found) else None

    return complete
