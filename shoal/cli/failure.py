# SPDX-License-Identifier: Apache-2.0
"""From an exception to what the user sees: one line with a code, a hint, and the exit code.

Invariant: a `ShoalError` keeps its own code and exit code (see shoal/errors.py); whatever else arrives here is the
operating system's refusal or a defect of shoal, and says which.
"""

from __future__ import annotations

import errno
import sys
from argparse import Namespace
from collections.abc import Callable

from shoal.cli.output import RED, YELLOW, note, paint
from shoal.errors import Corrupt, NotFound, ShoalError, StorageFailed

DEFECT, INTERRUPTED = 70, 130
EXIT_CODES = (
    (0, "fine"),
    (1, "the doctor's verdict is bad"),
    (2, "your input: an option, SQL, an unknown name, what is not supported"),
    (3, "a commit came first, or storage failed: try again; doctor: unreadable"),
    (4, "a file of the table is corrupt; of the doctor: too little data"),
    (DEFECT, "a defect of shoal itself; please report it"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
)


# the doctor's exit code for a table, or a history, that cannot be read, whatever the reason
CANNOT_READ = 3


def reads(run: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """A command of the doctor: what cannot be read is `CANNOT_READ`; 4 says that there is too little of it."""

    def command(args: Namespace) -> int:
        try:
            return run(args)
        except Corrupt as err:
            report(err, debug=args.debug)
            return CANNOT_READ

    return command


class Defect(ShoalError):
    """An exception that nobody foresaw."""

    code = "SH-INTERNAL"
    exit_code = DEFECT


def report(err: Exception, *, debug: bool = False) -> int:
    """Say what went wrong on stderr; the exit code."""
    if debug:
        import traceback

        traceback.print_exception(err)
    known = known_error(err)
    note(paint("shoal: error:", RED, sys.stderr) + f" {_one_line(known.message)} [{known.code}]")
    if known.hint:
        note(paint("hint:", YELLOW, sys.stderr) + f" {_one_line(known.hint)}")
    return known.exit_code


def known_error(err: Exception) -> ShoalError:
    """The error as one of ours."""
    match err:
        case ShoalError():
            return err
        case FileNotFoundError():
            return NotFound(_of_system(err))
        case OSError():
            full = err.errno in (errno.ENOSPC, errno.EDQUOT)
            return StorageFailed(_of_system(err), hint="free disk space, then run it again" if full else None)
        case MemoryError():
            return StorageFailed("out of memory", hint="ask for fewer rows or columns, or give the process more memory")
    return Defect(
        f"{type(err).__name__}: {err}",
        hint="this is a defect of shoal; run it again with --debug and report what it prints",
    )


def _of_system(err: OSError) -> str:
    why = err.strerror or str(err)
    return f"{err.filename}: {why}" if err.filename else f"cannot write the output: {why}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
