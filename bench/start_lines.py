# SPDX-License-Identifier: Apache-2.0
"""T1: CPU of a whole `shoal` process, interpreter start included. The limit is Python that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import tables
from bench.context import Context
from bench.measure import Case, Figure, alternate


def start(ctx: Context) -> Iterator[Figure]:
    """T1: `shoal --help` and `shoal table list`."""
    shoal = str(Path(sys.executable).with_name("shoal"))
    tables.append_table(ctx.root, "bigint", 1_000, 1)
    listing = [shoal, "table", "list", "--warehouse", ctx.root]
    cases = {
        "limit": _process([sys.executable, "-c", ""]),
        "help": _process([shoal, "--help"]),
        "list": _process(listing),
    }
    for command in ([shoal, "--help"], listing):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            print(f"T1: `{' '.join(command[1:])}` fails, so it is not measured", file=sys.stderr)
            del cases["help" if command[1] == "--help" else "list"]
    best = alternate(cases, 2 * ctx.repeat)
    for name, case, must, goal in (("help", "shoal --help", 0.25, 0.1), ("list", "shoal table list", 0.5, 0.2)):
        if name in best:
            yield Figure("T1", case, best[name], "s", must, goal, shoal=best[name], limit=best["limit"])


def _process(command: Sequence[str]) -> Case:
    def case() -> float:
        before = _children()
        subprocess.run(command, capture_output=True, check=False)
        return _children() - before

    return case


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
