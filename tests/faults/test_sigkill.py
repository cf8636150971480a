# SPDX-License-Identifier: Apache-2.0
"""A real job on the real clock, killed with SIGKILL at 30 random moments: the table ends as if nothing had happened."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

import shoal
from shoal.flow.checkpoint import POSITION
from shoal.flow.sources.flights import KEY

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("flights_model", HERE.parent / "flow" / "flights_model.py")
_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_model)
independent_fold = _model.independent_fold

FIRST, END = date(2013, 1, 1), date(2013, 1, 3)
# About 58 hours of flights in 35 seconds: the kills end before the stream does, a last run takes the rest.
SPEED = 6_000
KILLS = 30
SEED = 2013


def start(warehouse: Path) -> subprocess.Popen[str]:
    """A running job; returns when it is about to take its first row."""
    command = [sys.executable, str(HERE / "kill_job.py"), str(warehouse), str(FIRST), str(END), str(SPEED), "1s"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def moments() -> list[float]:
    """Seconds after the start: half of them anywhere, half of them in the tenth after a checkpoint's tick."""
    rnd = random.Random(SEED)
    anywhere = [rnd.uniform(0.0, 2.2) for _ in range(KILLS // 2)]
    in_a_commit = [rnd.choice([1, 1, 2]) + rnd.uniform(0.0, 0.1) for _ in range(KILLS - KILLS // 2)]
    return rnd.sample(anywhere + in_a_commit, KILLS)


def check_snapshots(warehouse: Path) -> int:
    """Every snapshot is whole: it parses, its ids have no hole, and every file that it refers to is there."""
    table = shoal.open(str(warehouse)).table("d.flights")
    root = warehouse / "d.db" / "flights"
    ids = sorted(int(path.name.removeprefix("snapshot-")) for path in root.glob("snapshot/snapshot-*"))
    assert ids == list(range(1, len(ids) + 1))
    position, identifiers = 0, []
    for snapshot_id in ids:
        raw = json.loads((root / "snapshot" / f"snapshot-{snapshot_id}").read_text())
        snapshot = table.metadata.snapshot(snapshot_id)
        metas = table.metadata.manifests(snapshot)
        for name in (raw["baseManifestList"], raw["deltaManifestList"], *(m.file_name for m in metas)):
            assert (root / "manifest" / name).is_file(), f"snapshot {snapshot_id} refers to {name}"
        live = table.metadata.live(snapshot).select(["partition", "bucket", "file_name", "file_size"])
        for entry in live.to_pylist():
            file = root / table.bucket_folder(entry["partition"], entry["bucket"]) / entry["file_name"]
            assert file.stat().st_size == entry["file_size"], f"snapshot {snapshot_id} refers to {file.name}"
        assert int(raw["properties"][POSITION]) >= position
        position = int(raw["properties"][POSITION])
        if raw["commitKind"] == "APPEND":
            identifiers.append(raw["commitIdentifier"])
    assert identifiers == sorted(set(identifiers))
    return position


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_killed_at_thirty_random_moments_ends_with_each_row_once(tmp_path):
    committed = []
    for moment in moments():
        process = start(tmp_path)
        time.sleep(moment)
        assert process.poll() is None, "the stream ended before the last kill"
        process.kill()
        process.wait()
        process.stdout.close()
        if (tmp_path / "d.db" / "flights" / "snapshot").exists():
            committed.append(check_snapshots(tmp_path))
    assert committed == sorted(committed)
    assert len(set(committed)) > 5, "the kills left no time to commit anything"

    with start(tmp_path) as last:
        assert last.stdout.read().endswith("ended\n")
    assert last.returncode == 0
    check_snapshots(tmp_path)
    found = shoal.open(str(tmp_path)).table("d.flights").scan().to_arrow()
    assert found.sort_by([(name, "ascending") for name in KEY]).to_pylist() == independent_fold(FIRST, END)
