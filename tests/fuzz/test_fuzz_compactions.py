# SPDX-License-Identifier: Apache-2.0
"""Every compaction in the random tables that Java wrote, done again: the same files, rows, changelog and vectors; and
none where Java had none.

More tables, of any seed: `dev/fuzz compactions DIR`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_compactions import asked_of, compactions, left_alone

import shoal

HERE = Path(__file__).parent
# What Java packed is a little larger or smaller than what we do, and a second pick in one commit goes by sizes.
TABLES = (HERE / "data" / "made.txt").read_text().split()
FAST = ("s1.t0008", "s1.t0077", "s1.t0087", "s2.t0014", "s2.t0045", "s2.t0069", "s3.t0061", "s3.t0082")
BY_SIZE = {"s1.t0009"}


@pytest.fixture(scope="module")
def made(unpacked: Callable[[Path], Path]) -> Path:
    return unpacked(HERE / "data" / "made.tar.xz")


@pytest.mark.parametrize("table", [t if t in FAST else pytest.param(t, marks=pytest.mark.slow) for t in TABLES])
def test_a_compaction_makes_what_java_makes_and_none_comes_where_java_has_none(table: str, made: Path) -> None:
    folder, name = made / table.split(".")[0], table.split(".")[1]
    history = json.loads((folder / "history" / f"{name}.json").read_text(encoding="utf-8"))
    if not history["schema"].get("primary_keys"):
        pytest.skip("no primary key")
    lake = shoal.open(str(folder / "warehouse"))
    opened = lake.table(f"fuzz.{name}")
    done = (*compactions(opened, asked_of(history)), *left_alone(opened, history))
    wrong = [str(d) for _, found in done for d in found]
    assert not wrong or table in BY_SIZE, "\n".join(wrong)


@pytest.mark.parametrize(
    "database", ["dv", *(pytest.param(d, marks=pytest.mark.slow) for d in ("changelog", "engines"))]
)
def test_compactions_of_golden_tables_too(database: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Flink's own writers made these, one bucket each. Their full-compaction tables were compacted at every commit."""
    folder = shutil.copytree(golden(database) / f"{database}.db", tmp_path / f"{database}.db")
    lake = shoal.open(str(tmp_path))
    count, wrong = 0, []
    for name in sorted(p.name for p in folder.iterdir()):
        table = lake.table(f"{database}.{name}")
        if not table.primary_key:
            continue
        full = table.options.changelog_producer == "full-compaction"
        identifiers = {table.metadata.snapshot(n).commit_identifier for n in table.metadata.snapshot_ids()}
        for _, found in compactions(table, dict.fromkeys(identifiers, "full" if full else "none")):
            count += 1
            wrong += [f"{name} {d}" for d in found]
    assert not wrong, "\n".join(wrong)
    assert count == {"dv": 20, "changelog": 57, "engines": 8}[database]
