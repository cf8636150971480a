# SPDX-License-Identifier: Apache-2.0
"""`-o jsonl` prints rows the way Java's dumps do, for every type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle_values import multiset

import shoal
from shoal.sql.encoding import jsonl

TABLES = [
    t
    for t in (Path(__file__).parent / "tables.txt").read_text().split()
    if t.startswith(("types.bkey_", "types.part_"))
    or t in ("types.append_parquet", "types.pk_parquet", "types.pk_wide", "types.multiset_parquet")
]


@pytest.mark.parametrize("name", TABLES)
def test_jsonl_equals_javas_dump(name: str, golden, expected) -> None:
    rows = shoal.open(str(golden("types"))).table(name).scan().to_arrow()
    printed = [json.loads(line) for text in jsonl(rows.to_reader()) for line in text.splitlines()]
    _, want = expected(name)
    assert multiset(printed, rows.schema) == multiset(want, rows.schema)
