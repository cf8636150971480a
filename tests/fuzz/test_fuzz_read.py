# SPDX-License-Identifier: Apache-2.0
"""Random tables that Java wrote (shared/oracle/fuzz): every view of them as Java's, and filters that change no merge.

data/made.tar.xz holds 60 tables of seeds 1 to 3, chosen by fuzz_choice.py so that every option, type, operation and
view of the 288 is there. More, of any seed: `dev/fuzz check DIR`, `dev/fuzz filters DIR`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_compare import difference
from fuzz_properties import check_table
from fuzz_views import Dump

import shoal

HERE = Path(__file__).parent
TABLES = (HERE / "data" / "made.txt").read_text().split()
FAST = TABLES[::5]


def shares(always: list[str]) -> list[Any]:
    return [t if t in always else pytest.param(t, marks=pytest.mark.slow) for t in TABLES]


@pytest.fixture(scope="module")
def made(unpacked: Callable[[Path], Path]) -> Path:
    return unpacked(HERE / "data" / "made.tar.xz")


@pytest.mark.parametrize("table", shares(FAST))
def test_every_view_is_what_java_reads(table: str, made: Path, tmp_path: Path) -> None:
    folder, name = made / table.split(".")[0], table.split(".")[1]
    history = json.loads((folder / "history" / f"{name}.json").read_text(encoding="utf-8"))
    dump = Dump(folder / "warehouse", tmp_path)
    dump.table(history)
    assert not dump.crashes, "\n".join(map(str, dump.crashes))
    wanted = sorted((folder / "expected").glob(f"{name}.*.jsonl"))
    assert {p.name for p in wanted} == {p.name for p in tmp_path.iterdir()}
    found = {p.name: difference(p, tmp_path / p.name, history) for p in wanted}
    assert not any(found.values()), "\n".join(f"{view}: {what}" for view, what in found.items() if what)


@pytest.mark.parametrize("table", shares(FAST))
def test_a_filter_or_projection_never_changes_which_version_wins(table: str, made: Path) -> None:
    lake = shoal.open(str(made / table.split(".")[0] / "warehouse"), wide_timestamps=True)
    done = list(check_table(lake.table(f"fuzz.{table.split('.')[1]}"), seed=1, count=20))
    assert done, "the table cannot be read"
    assert not [str(d) for d in done if d.problem]
