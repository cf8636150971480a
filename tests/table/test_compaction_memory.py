# SPDX-License-Identifier: Apache-2.0
"""A bucket of twenty times the memory is compacted within one and a half times of it."""

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
}


def child(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.table.memory_process", *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_bucket_of_twenty_times_the_memory(name: str, tmp_path: Path) -> None:
    options, budget = json.dumps({"bucket": "1", **CASES[name]}), str(BUDGET)
    child("make", str(tmp_path / "lake"), options, budget, str(20 * BUDGET // ROW_BYTES), "5")
    seen = json.loads(child("compact", str(tmp_path / "lake"), options, budget))
    assert seen["files"] >= 5
    assert seen["above"] <= 1.5 * BUDGET, {key: f"{value / BUDGET:.2f}" for key, value in seen.items()}
