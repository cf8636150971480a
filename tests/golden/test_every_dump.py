# SPDX-License-Identifier: Apache-2.0
"""No dump of Java's is left out: each of the 500 is a case of some test in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import test_inspect_golden
import test_read_golden
import test_streams_golden

HERE = Path(__file__).parent
DUMPS = (HERE / "dumps.txt").read_text().split()
# What there is to compare with only in part, and where that is done.
APART = {
    "engines.ag_max_no_retract.write_error": "Java refuses a write: for the writer's tests",
    "evo.cast_all.files": "Java crashes; test_inspect_golden compares the bounds with Java's rows",
}


def cases(module: ModuleType) -> Iterator[str]:
    """Every string that a test of the module is called with."""
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", ()):
            if mark.name == "parametrize":
                yield from _strings(mark.args[1])


def _strings(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, (list, tuple, set, dict)):
        for v in values:
            yield from _strings(v)


def test_every_dump_is_compared() -> None:
    modules = (test_read_golden, test_streams_golden, test_inspect_golden)
    compared = {c for m in modules for c in cases(m)}
    text = "".join(Path(str(m.__file__)).read_text() for m in modules)
    compared |= {d for d in DUMPS if f'"{d}"' in text}  # a test of its own
    compared |= {d for d in DUMPS if d.rsplit(".", 1)[1] in test_inspect_golden.APART}
    assert sorted(set(DUMPS) - compared - APART.keys()) == []
    assert len(DUMPS) == 500
