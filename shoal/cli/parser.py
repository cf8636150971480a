# SPDX-License-Identifier: Apache-2.0
"""What a command is, and how its line is read: argparse with our errors, our help and "did you mean".

Invariants: a wrong line raises `BadRequest`, it never exits by itself; options may stand before, between or after the
command's words; no option can be abbreviated, so adding one never changes what a script means.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from shoal.errors import BadRequest, near

# Options with a value that may stand before the command's words.
_WITH_VALUE = ("-w", "--warehouse", "-o", "--output", "--store-option")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words after `shoal`, what it is for, what it takes, and what it does."""

    words: str
    summary: str
    example: str
    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[Parser], None] | None = None
    outputs: tuple[str, ...] = ("text", "json")  # the first is the default
    about: str = ""
    needs_warehouse: bool = True

    def parser(self) -> Parser:
        parser = Parser(
            prog=f"shoal {self.words}",
            description=self.about or f"{self.summary[0].upper()}{self.summary[1:]}.",
            epilog="example:\n" + "\n".join(f"  {line}" for line in self.example.splitlines()),
        )
        if self.arguments is not None:
            self.arguments(parser)
        common = parser.add_argument_group("options of every command")
        if self.needs_warehouse:
            common.add_argument("-w", "--warehouse", metavar="WAREHOUSE", help="folder or URI; else $SHOAL_WAREHOUSE")
            common.add_argument(
                "--store-option", metavar="K=V", type=pair, action="append", default=[],
                help="option of the store, e.g. s3.endpoint=URL; may be repeated",
            )  # fmt: skip
        common.add_argument(
            "-o", "--output", metavar="FORMAT", type=one_of("an output format", *self.outputs), default=self.outputs[0],
            help=f"{', '.join(self.outputs[:-1])} or {self.outputs[-1]} (default: {self.outputs[0]})",
        )  # fmt: skip
        common.add_argument("--debug", action="store_true", help="show the traceback of an error")
        common.add_argument("-h", "--help", action="help", help="show this text")
        parser.usage = f"{parser.prog} {''.join(f'{word} ' for word in parser.needed())}[options]"
        return parser


class Parser(argparse.ArgumentParser):
    """argparse that raises `BadRequest` and knows near words."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog, description=description, epilog=epilog, formatter_class=_Help, add_help=False,
            allow_abbrev=False,
        )  # fmt: skip

    def needed(self) -> list[str]:
        """What a line of this command has to have, as the usage shows it."""
        out = []
        for action in self._actions:
            name = action.metavar if isinstance(action.metavar, str) else action.dest
            if not action.option_strings:
                out.append(f"[{name}]" if action.nargs == "?" else name)
            elif action.required:
                out.append(f"{action.option_strings[-1]} {name}")
        return out

    def error(self, message: str) -> NoReturn:
        if missing := re.match(r"the following arguments are required: (.*)", message):
            message = f"{self.prog} needs {missing[1]}"
        raise BadRequest(message.removeprefix("argument "), hint=f"see '{self.prog} --help'")

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """The arguments; an option or word that nobody knows is refused with the nearest one."""
        found, extra = self.parse_known_args(list(args))
        if not extra:
            return found
        word = extra[0].partition("=")[0]
        if not word.startswith("-") or word == "-":
            raise BadRequest(
                f"{self.prog} does not take '{extra[0]}'",
                hint=f"a name or SQL with spaces needs quotes; see '{self.prog} --help'",
            )
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        raise BadRequest(
            f"{self.prog} has no option {word}", hint=near(word, known) or f"it has {', '.join(sorted(known))}"
        )


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal, 80 columns elsewhere, and at most 100."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(shutil.get_terminal_size().columns, 100))


def words_of(args: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """The first `count` words of a line and everything else; the values of options are not words.

    >>> words_of(["-w", "lake", "table", "-o", "json", "list", "shop"], 2)
    (['table', 'list'], ['-w', 'lake', '-o', 'json', 'shop'])
    """
    words: list[str] = []
    others: list[str] = []
    at = 0
    while at < len(args) and len(words) < count and args[at] != "--":
        if not args[at].startswith("-"):
            words.append(args[at])
        else:
            others.append(args[at])
            if args[at] in _WITH_VALUE and at + 1 < len(args):
                at += 1
                others.append(args[at])
        at += 1
    return words, [*others, *args[at:]]


def one_of(what: str, *values: str) -> Callable[[str], str]:
    """A type for an option with a few values."""

    def check(text: str) -> str:
        if text not in values:
            raise BadRequest(f"'{text}' is not {what}", hint=near(text, values) or f"it is {', '.join(values)}")
        return text

    return check


def number_of(what: str, *, below: float) -> Callable[[str], float]:
    """A type for a number from 0 to below a bound."""

    def check(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < below:
            raise BadRequest(f"'{text}' is not {what}", hint=f"it is from 0 to under {below:,.0f}")
        return value

    return check


def pair(text: str) -> tuple[str, str]:
    """A type for `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadRequest(f"'{text}' is not KEY=VALUE")
    return key.strip(), value.strip()


def table_argument(parser: Parser) -> None:
    parser.add_argument("table", metavar="DB.TABLE")
