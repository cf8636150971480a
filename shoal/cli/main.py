# SPDX-License-Identifier: Apache-2.0
"""The `shoal` command: finds the command's words, runs it, and turns whatever happens into one exit code.

Invariants: stdout holds results only; an error is one line with its code on stderr and, where there is one, a hint; a
traceback is printed with `--debug` only. Nothing heavy is imported here: a command imports what it needs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from shoal.cli.failure import EXIT_CODES, INTERRUPTED, report
from shoal.cli.interrupt import leave_if_busy
from shoal.cli.output import BOLD, note, paint
from shoal.cli.parser import Command, words_of
from shoal.errors import BadRequest, StorageFailed, near

# Each is a module with COMMANDS; those of one word are a command themselves.
NOUNS = ("sql", "tail", "table", "compact", "job", "doctor", "demo")
_ABOUT = "A complete Apache Paimon engine, and the doctor that keeps its tables healthy."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    if argv is None:
        _without_pandas()
    args = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug(args)
    try:
        try:
            _widen(sys.stdout)
            code = run(args)
            sys.stdout.flush()
            leave_if_busy(code)
            return code
        except SystemExit as stop:  # --help
            sys.stdout.flush()
            return stop.code if isinstance(stop.code, int) else 0
        except KeyboardInterrupt:
            note("shoal: interrupted")
            leave_if_busy(INTERRUPTED)
            return INTERRUPTED
        except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
            _let_go(sys.stdout)
            return 0
        except Exception as err:  # noqa: BLE001  the last place that can turn it into an exit code
            if isinstance(err, OSError):
                _let_go(sys.stdout)  # or the interpreter tries to write the rest again, and fails again
            return report(err, debug=debug)
    except BrokenPipeError:  # stderr is gone too
        _let_go(sys.stdout)
        _let_go(sys.stderr)
        return 0


class _NoPandas:
    """Nobody finds pandas. No command has a use for it, and Arrow imports it at the first list it is given."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no command of shoal uses pandas", name=fullname)


def _without_pandas() -> None:
    """A process of a command starts a third of a second sooner."""
    sys.meta_path.insert(0, _NoPandas())


def run(args: list[str]) -> int:
    """Run one command line; raises what goes wrong."""
    words, others = words_of(args, 1)
    if not words:
        return _without_words(others)
    if words[0] == "help":
        return _help(words_of(args, 3)[0][1:])
    if words[0] not in NOUNS:
        raise _no_command(words[0])
    commands = _commands(words[0])
    if commands[0].words != words[0]:
        words, others = words_of(args, 2)
        if len(words) < 2 and ("-h" in others or "--help" in others):
            print(_noun_help(words[0]), end="")
            return 0
        commands = [_verb(words, commands)]
    return commands[0].run(commands[0].parser().read(others))


def _commands(noun: str) -> list[Command]:
    return list(importlib.import_module(f"shoal.cli.{noun}").COMMANDS)


def _verb(words: list[str], commands: list[Command]) -> Command:
    noun, verbs = words[0], {c.words.split()[1]: c for c in commands}
    known = f"it has {', '.join(verbs)}"
    if len(words) < 2:
        raise BadRequest(f"shoal {noun} needs a verb", hint=f"{known}; see 'shoal {noun} --help'")
    if words[1] not in verbs:
        raise BadRequest(f"shoal {noun} has no verb '{words[1]}'", hint=near(words[1], verbs) or known)
    return verbs[words[1]]


def _no_command(word: str) -> BadRequest:
    """An unknown first word: a near noun, or the noun that has it as a verb."""
    owners = [c.words for noun in NOUNS for c in _commands(noun) if c.words.endswith(f" {word}")]
    hint = near(word, [*NOUNS, "help"])
    if hint is None and owners:
        hint = "did you mean " + " or ".join(f"'shoal {words}'" for words in owners) + "?"
    return BadRequest(f"shoal has no command '{word}'", hint=hint or "see 'shoal --help'")


# ---- help ------------------------------------------------------------------------------------------------


def _without_words(options: list[str]) -> int:
    if "--version" in options:
        import shoal

        print(f"shoal {shoal.__version__}")
        return 0
    for option in options:
        if option.startswith("-") and option not in ("-h", "--help"):
            known = ["--help", "--version", "--warehouse", "--output", "--store-option", "--debug"]
            if option in known or option[:2] in ("-w", "-o"):
                raise BadRequest("the command is missing", hint="see 'shoal --help'")
            raise BadRequest(f"shoal has no option {option}", hint=near(option, known) or "see 'shoal --help'")
    print(_top_help(), end="")
    return 0


def _help(words: list[str]) -> int:
    """`shoal help`, `shoal help exit-codes`, `shoal help table show`."""
    if not words:
        print(_top_help(), end="")
    elif words[0] == "exit-codes":
        print(_exit_codes(), end="")
    elif words[0] not in NOUNS:
        raise _no_command(words[0])
    elif len(words) == 1 and _commands(words[0])[0].words != words[0]:
        print(_noun_help(words[0]), end="")
    else:
        commands = _commands(words[0])
        command = commands[0] if commands[0].words == words[0] else _verb(words, commands)
        print(command.parser().format_help(), end="")
    return 0


def _top_help() -> str:
    listed = [(f"shoal {c.words}", c.summary) for noun in NOUNS for c in _commands(noun)]
    return (
        f"usage: shoal COMMAND [options]\n\n{_ABOUT}\n\n{_heading('commands')}\n{_columns(listed)}\n"
        f"{_heading('options of every command')}\n"
        + _columns([
            ("-w WAREHOUSE", "folder or s3://bucket/prefix; else $SHOAL_WAREHOUSE"),
            ("-o FORMAT", "text or json; 'shoal sql' has more"),
            ("--store-option K=V", "option of the store; may be repeated"),
            ("--debug", "show the traceback of an error"),
            ("--help", "what a command takes, with an example"),
            ("--version", "the version of shoal"),
        ])
        + f"\n{_heading('exit codes')}\n{_exit_codes()}\n"
        + f"{_heading('example')}\n  shoal sql -w /data/warehouse 'SELECT count(*) FROM shop.orders'\n"
    )  # fmt: skip


def _noun_help(noun: str) -> str:
    commands = _commands(noun)
    listed = _columns([(f"shoal {c.words}", c.summary) for c in commands])
    examples = "\n".join(f"  {c.example.splitlines()[0]}" for c in commands)
    return (
        f"usage: shoal {noun} VERB [options]\n\n{_heading('verbs')}\n{listed}\n{_heading('examples')}\n{examples}\n\n"
        f"'shoal {noun} VERB --help' says what a verb takes.\n"
    )


def _heading(text: str) -> str:
    return paint(f"{text}:", BOLD, sys.stdout)


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    room = max(len(left) for left, _ in rows)
    return "".join(f"  {left.ljust(room)}  {right}\n" for left, right in rows)


def _exit_codes() -> str:
    return _columns([(str(code), meaning) for code, meaning in EXIT_CODES])


# ---- the line and its streams -----------------------------------------------------------------------------


def _take_debug(args: list[str]) -> bool:
    """Remove `--debug` wherever it stands before a `--`."""
    end = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:end]
    args[:end] = [a for a in args[:end] if a != "--debug"]
    return debug


def _widen(stream: TextIO | None) -> None:
    """File names need not be text: print their bytes rather than fail."""
    if stream is None:
        raise StorageFailed("stdout is closed")
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _let_go(stream: TextIO | None) -> None:
    """Point a stream that cannot be written at nothing, so that the exit does not write to it again."""
    try:
        if stream is not None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
    except (OSError, ValueError):  # a stream without a file, as in tests
        return
