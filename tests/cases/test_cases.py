# SPDX-License-Identifier: Apache-2.0
"""Faults that others had, from the R-* cases: the tables as Java wrote them, read as the case says.

data/R-nnn holds the case (case.md, input.sql, expected.json); data/cases.tar.xz its tables, once for each state that
the case looks at (`dev/make-cases`). R-067 (types of a MySQL source) is not here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from case_checks import DATA, EVERY, QUERIES, REFUSED, REFUSED_WRITES, Tables, assert_check

import shoal


@pytest.fixture(scope="module")
def warehouses(unpacked: Callable[[Path], Path]) -> Path:
    return unpacked(DATA / "cases.tar.xz") / "cases"


def tables(folder: Path, case: str) -> Tables:
    lake = shoal.open(str(folder))
    return lambda name: lake.table(f"{case.lower().replace('-', '')}.{name}")


@pytest.mark.parametrize("case, state, check", QUERIES, ids=map("-".join, QUERIES))
def test_a_case_reads_as_java_reads_it(case: str, state: str, check: str, warehouses: Path) -> None:
    assert_check(case, state, check, tables(warehouses / case / state, case))


@pytest.mark.parametrize("case, state, check", REFUSED, ids=map("-".join, REFUSED))
def test_a_read_that_has_no_answer_is_refused_by_name(case: str, state: str, check: str, warehouses: Path) -> None:
    assert_check(case, state, check, tables(warehouses / case / state, case))


@pytest.mark.parametrize("case, state, check", REFUSED_WRITES, ids=map("-".join, REFUSED_WRITES))
def test_a_write_that_would_spoil_a_table_of_java_is_refused_and_leaves_nothing(
    case: str, state: str, check: str, warehouses: Path, tmp_path: Path
) -> None:
    shutil.copytree(warehouses / case / state, tmp_path / "lake")
    before = sorted(p for p in (tmp_path / "lake").rglob("*"))
    assert_check(case, state, check, tables(tmp_path / "lake", case))
    assert sorted(p for p in (tmp_path / "lake").rglob("*")) == before


def test_every_check_of_the_cases_is_made() -> None:
    here = {(case, check) for case, _, check in EVERY}
    there = {(p.name, c) for p in DATA.glob("R-*") for c in json.loads((p / "expected.json").read_text())["checks"]}
    assert here == there
