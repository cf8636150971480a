# SPDX-License-Identifier: Apache-2.0
"""The real Java Paimon, run through the oracle folder: SQL in, rows out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# the independent encoder of the golden tests is the judge here too

_HEAD = """
CREATE CATALOG paimon WITH ('type'='paimon', 'warehouse'='{warehouse}');
USE CATALOG paimon;
SET 'execution.runtime-mode' = 'batch';
SET 'table.dml-sync' = 'true';
"""


@dataclass(frozen=True)
class Result:
    """What one statement gave."""

    sql: str
    columns: list[tuple[str, str]]
    rows: list[dict[str, Any]]
    changes: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    """(snapshot, kind, row) of a stream."""


Java = Callable[[Path, list[str]], list[Result]]


def oracle_folder() -> Path:
    return Path(os.environ.get("SHOAL_ORACLE", ROOT.parent / "shared" / "oracle"))


def why_not() -> str | None:
    """What is missing for these tests, or None."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is missing; these tests need Java 17 and Maven"
    if not (oracle_folder() / "oracle-sql").is_file():
        return f"no oracle-sql in {oracle_folder()}; set SHOAL_ORACLE to the oracle folder"
    return None


@pytest.fixture(scope="session")
def java() -> Java:
    """`java(warehouse, statements)`: the statements run by Java Paimon in one JVM; one result a statement."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)

    def run(warehouse: Path, statements: list[str]) -> list[Result]:
        script = _HEAD.format(warehouse=f"file:{warehouse}") + "".join(f"{s};\n" for s in statements)
        command = [str(oracle_folder() / "oracle-sql"), "-DREADER=core", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        results: dict[int, Result] = {}
        ended: list[int] = []
        current = 0
        for line in done.stdout.splitlines():
            said = json.loads(line)
            if "error" in said:
                raise AssertionError(f"Java failed: {said['sql']}\n" + "\n".join(said["error"]))
            if "columns" in said:
                current = said["stmt"]
                results[current] = Result(said["sql"], [(n, t) for n, t in said["columns"]], [])
            elif "row" in said:
                results[current].rows.append(said["row"])
                if "snapshot" in said:
                    results[current].changes.append((said["snapshot"], said["op"], said["row"]))
            elif "end" in said:
                ended.append(said["end"])
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        mine = ended[len(ended) - len(statements) :]
        return [results.get(n, Result(s, [], [])) for n, s in zip(mine, statements)]

    return run
