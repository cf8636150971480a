# SPDX-License-Identifier: Apache-2.0
"""What a comparison of dumps excuses, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_compare import order_of_maps

ROW = {"k0": "b", "a0": [["a", 5], ["k2", 6]]}


def dump(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(head), *(json.dumps({"op": "+I", "row": r}) for r in rows), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("column", "before", "ours", "excused"),
    [
        ("MAP<STRING NOT NULL, INT>", ROW, [], True),  # Java: the entries have another order, so the row changed
        ("MAP<STRING NOT NULL, INT>", {**ROW, "a0": [["a", 4], ["k2", 6]]}, [], False),
        ("MAP<STRING NOT NULL, INT>", ROW, [{"k0": "c", "a0": None}], False),
        ("ARRAY<INT>", ROW, [], False),
    ],
)
def test_a_row_told_by_java_alone_is_excused_if_both_ends_hold_it(
    column: str, before: dict[str, Any], ours: list[dict[str, Any]], excused: bool, tmp_path: Path
) -> None:
    head = {
        "view": "between-0-diff", "mode": "diff", "from_snapshot": 12, "to_snapshot": 14,
        "columns": [["k0", "STRING NOT NULL"], ["a0", column]],
    }  # fmt: skip
    (tmp_path / "java").mkdir()
    (tmp_path / "shoal").mkdir()
    java = dump(tmp_path / "java" / "t0001.between-0-diff.jsonl", head, [ROW])
    dump(tmp_path / "java" / "t0001.snapshot-12.jsonl", {"view": "snapshot-12"}, [before])
    dump(tmp_path / "java" / "t0001.snapshot-14.jsonl", {"view": "snapshot-14"}, [ROW])
    got = dump(tmp_path / "shoal" / "t0001.between-0-diff.jsonl", head, ours)
    assert order_of_maps(java, got) is excused
