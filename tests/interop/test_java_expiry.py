# SPDX-License-Identifier: Apache-2.0
"""Random histories with tags, branches and changelogs, expired by Java and by shoal: the same snapshots and files stay.

Two differences are allowed, and counted. Java does not look at branches: shoal may keep a file that a snapshot, tag or
changelog of a branch names, and no other. After a fast-forward, snapshots before the EARLIEST hint are dead files to
Java, left for ever: in those tables shoal may remove such a snapshot and what no branch names of its files.
With the seed below: 100 tables, 41 with tags, 8 with branches, 33 with changelog files; 2,352 files removed by both, none
kept for branches, 18 removed by shoal alone, in two of the three tables with a fast-forward.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Java, oracle_folder, why_not

import shoal
from shoal.format import paths
from shoal.store.branch import BranchStore
from shoal.table import refs
from shoal.table.expire_guard import changelog_names, live_names, metadata_names
from shoal.table.expire_run import expire
from shoal.table.metadata import Metadata
from shoal.table.table import Table

pytestmark = [pytest.mark.java, pytest.mark.timeout(2400)]

SEED, COUNT = "expiry", 140
TABLES = 100


def tree(folder: Path) -> set[str]:
    return {os.path.relpath(os.path.join(at, n), folder) for at, _, names in os.walk(folder) for n in names}


def of_branches(table: Table) -> set[str]:
    """Names of all files that the branches of a table refer to."""
    out: set[str] = set()
    for name in refs.branch_names(table.store):
        meta = Metadata(BranchStore(table.store, name), table.metadata.cache)
        for snap in [*map(meta.snapshot, meta.snapshot_ids()), *(t.snapshot for t in refs.tags(meta))]:
            out |= metadata_names(meta, snap) | set(live_names(meta, snap).to_pylist())
            if meta.exists(paths.snapshot(snap.id)):
                out |= changelog_names(meta, snap)
                out |= {n for m in meta.changelog(snap) for n in meta.entries(m).column("file_name").to_pylist()}
    return out


def arguments(name: str, newest: int) -> dict[str, Any]:
    """What is asked of both: by count, by age, with a limit."""
    rnd = random.Random(name)
    most = rnd.randint(1, max(1, newest - 1))
    out: dict[str, Any] = {"retain_max": most, "retain_min": rnd.randint(1, most)}
    if rnd.random() < 0.5:
        out["older_than"] = "2099-01-01 00:00:00"
    if rnd.random() < 0.2:
        out["max_deletes"] = rnd.randint(1, 4)
    return out


def call(name: str, asked: dict[str, Any]) -> str:
    shown = ", ".join(f"{k} => '{v}'" if isinstance(v, str) else f"{k} => {v}" for k, v in asked.items())
    return f"CALL sys.expire_snapshots(`table` => 'fuzz.{name}', {shown})"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    at = tmp_path_factory.mktemp("histories") / "made"
    command = [str(oracle_folder() / "fuzz"), "make", "--seed", SEED, "--count", str(COUNT), "--out", str(at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return at


def test_a_hundred_histories_expire_as_java_expires_them(made: Path, java: Java, tmp_path: Path) -> None:
    for side in ("java", "shoal"):
        shutil.copytree(made / "warehouse", tmp_path / side)
    tables: dict[str, tuple[Table, dict[str, Any]]] = {}
    lake = shoal.open(str(tmp_path / "shoal"))
    for folder in sorted((made / "warehouse" / "fuzz.db").iterdir()):
        if not (folder / "snapshot").is_dir():
            continue
        table = lake.table(f"fuzz.{folder.name}")
        ids = table.metadata.snapshot_ids()
        if len(ids) > 2:
            tables[folder.name] = table, arguments(folder.name, len(ids))
    # those with something in the way first
    held = sorted(tables, key=lambda n: (not list(tables[n][0].tags) and not list(tables[n][0].branches), n))[:TABLES]
    assert len(held) == TABLES
    java(tmp_path / "java", [call(n, tables[n][1]) for n in held])
    wrong: list[tuple[Any, ...]] = []
    counted = {"tags": 0, "branches": 0, "changelogs": 0, "removed": 0, "kept for branches": 0, "dead files": 0}
    for name in held:
        table, asked = tables[name]
        history = json.loads((made / "history" / f"{name}.json").read_text())
        forwarded = any(op["op"] == "fast_forward" and not op.get("refused") for op in history["ops"])
        needs = of_branches(table)
        was = tree(made / "warehouse" / "fuzz.db" / name)
        expire(table, **asked)
        mine, theirs = (tree(tmp_path / side / "fuzz.db" / name) for side in ("shoal", "java"))
        more, missing = mine - theirs, theirs - mine
        counted["kept for branches"] += len(more)
        counted["dead files"] += len(missing)
        if any(os.path.basename(f) not in needs for f in more) or (
            missing and (not forwarded or {os.path.basename(f) for f in missing} & needs)
        ):
            wrong.append((name, asked, sorted(more)[:4], sorted(missing)[:4]))
        counted["tags"] += bool(list(table.tags))
        counted["branches"] += bool(list(table.branches))
        counted["changelogs"] += any(os.path.basename(f).startswith("changelog-") for f in was)
        counted["removed"] += len(was - mine)
    sys.stdout.write(f"{counted}\n")
    assert not wrong, wrong[:5]
    assert counted["tags"] >= 20 and counted["removed"] > 500 and counted["changelogs"] >= 20, counted
    assert counted["kept for branches"] + counted["dead files"] < counted["removed"] // 50, counted
