# SPDX-License-Identifier: Apache-2.0
"""Hours of small checkpoints under each changelog producer: the table stays healthy, and says what a dict says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
CHECKPOINTS = 2_000
# A flush may leave one run more than the stop trigger, the trigger and three: from there on it waits.
MOST_RUNS = 5 + 3 + 1
PRODUCERS = {
    "none": {},
    "input": {"changelog-producer": "input"},
    "lookup": {"changelog-producer": "lookup"},
    "lookup-late": {"changelog-producer": "lookup", "lookup-wait": "false"},
    "full-compaction": {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "10"},
    "vectors": {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
}


def soaked(folder: Path, options: dict[str, str], checkpoints: int) -> dict[str, object]:
    arguments = [str(folder), json.dumps(options), str(checkpoints), "5"]
    command = [sys.executable, "-m", "tests.table.soak_process", *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCERS)
def test_hours_of_checkpoints_leave_a_healthy_table(name: str, tmp_path: Path) -> None:
    seen = soaked(tmp_path, PRODUCERS[name], CHECKPOINTS)
    print(name, seen)
    assert (seen["wrong_rows"], seen["wrong_changelog"]) == (0, 0)
    assert seen["runs"] <= MOST_RUNS
    # two buckets of those runs, and what a rolled level holds: never a file a checkpoint
    assert seen["files"] <= 2 * (MOST_RUNS + 1)
    memory = seen["memory"]
    assert isinstance(memory, list)
    half = len(memory) // 2
    # heaps creep; what would be kept for each checkpoint (90 kB once, of cached metadata) adds up to far more
    assert max(memory[half:]) <= max(memory[half // 2 : half]) + 24 * MIB
