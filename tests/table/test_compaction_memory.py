# SPDX-License-Identifier: Apache-2.0
"""What is twenty times the memory is compacted, clustered and sorted within one and a half times of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.table.memory_process import ROW_BYTES

BUDGET = 256 << 20
LOOKUP = {"changelog-producer": "lookup"}
CASES = {
    "parquet": {"file.format": "parquet"},
    "parquet, lookup": {"file.format": "parquet", **LOOKUP},
    "orc": {"file.format": "orc"},
    "avro": {"file.format": "avro"},
    "in another order": {
        "deletion-vectors.enabled": "true", "pk-clustering-override": "true", "clustering.columns": "s",
    },
}  # fmt: skip


def child(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.table.memory_process", *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def above(folder: Path, budget: int, options: dict[str, str], work: str = "full") -> dict[str, float]:
    """Parts of the budget that a compaction takes of a table of twenty times the budget, and its files."""
    text = json.dumps(options)
    child("make", str(folder), text, str(budget), str(20 * budget // ROW_BYTES), "5")
    seen = json.loads(child("compact", str(folder), text, str(budget), work))
    assert seen["files"] >= 5
    return {"above": seen["above"] / budget, "arrow": seen["arrow"] / budget}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_bucket_of_twenty_times_the_memory(name: str, tmp_path: Path) -> None:
    seen = above(tmp_path / "lake", BUDGET, {"bucket": "1", **CASES[name]})
    assert seen["above"] <= 1.5, seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_clustered_table_of_twenty_times_the_memory(tmp_path: Path) -> None:
    options = {"clustering.incremental": "true", "clustering.columns": "a,s"}
    seen = above(tmp_path / "lake", BUDGET, {"bucket": "-1", "primary-key": "", **options})
    assert seen["above"] <= 1.5, seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", ["order", "zorder", "hilbert"])
def test_a_sort_of_twenty_times_half_the_memory(work: str, tmp_path: Path) -> None:
    seen = above(tmp_path / "lake", BUDGET // 2, {"bucket": "-1", "primary-key": ""}, work)
    assert seen["above"] <= 1.5, seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_keys_sorted_into_buckets_of_twenty_times_the_memory(tmp_path: Path) -> None:
    seen = above(tmp_path / "lake", BUDGET, {"bucket": "-1", "dynamic-bucket.target-row-num": "1000000"}, "order")
    assert seen["above"] <= 1.5, seen
