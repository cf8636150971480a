# SPDX-License-Identifier: Apache-2.0
"""Writers of several kinds of table on a local disk, killed with SIGKILL at 200 random moments all in all.

After every kill the newest snapshots are whole; at the end the table equals the model, each checkpoint was committed
once, changes were told once, and nothing that a snapshot refers to is missing.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal
from tests.faults.histories import SCHEMA, USER, batch, read, told
from tests.faults.kill_writer import kind_named
from tests.faults.walk import missing

SCRIPT = Path(__file__).with_name("kill_writer.py")
KILLS = 25
NAMES = [
    "fixed buckets, expiry", "dynamic buckets", "partial update", "lookup changelog", "full-compaction changelog",
    "deletion vectors and lookup", "append, expiry", "append, buckets",
]  # fmt: skip


def start(warehouse: Path, name: str, *last: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(warehouse), name, *last], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_writer_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    kind, rnd = kind_named(name), random.Random(name)
    shoal.open(str(tmp_path)).create_table(
        "d.t", SCHEMA, primary_key=list(kind.key), partition_by=list(kind.partitions), options=dict(kind.options)
    )
    seen = [0]
    for _ in range(KILLS):
        process = start(tmp_path, name)
        assert process.stdout is not None
        for _ in range(rnd.randrange(9)):
            assert process.stdout.readline(), "the writer ended by itself"
        time.sleep(rnd.uniform(0.0, 0.1))  # anywhere in the next one
        assert process.poll() is None, "the writer ended by itself"
        process.kill()
        process.wait()
        process.stdout.close()
        table = shoal.open(str(tmp_path)).table("d.t")
        newest = table.metadata.latest_id() or 0
        assert newest >= seen[-1]
        seen.append(newest)
        assert list(missing(table, 2, 2)) == []
    assert len(set(seen)) > KILLS // 2, "the kills left no time to commit anything"

    with shoal.open(str(tmp_path)).table("d.t").write(commit_user=USER) as w:
        last = (w.last_checkpoint() or 0) + 3
    with start(tmp_path, name, str(last)) as process:
        assert process.stdout is not None and process.stdout.read().endswith("ended\n")
    assert process.returncode == 0
    table = shoal.open(str(tmp_path)).table("d.t")
    table.maintain.compact(full=True)

    rows: dict[object, tuple[object, ...]] = {}
    heap = []
    for c in range(1, last + 1):
        new, gone = batch(kind, c)
        heap += new
        for r in new if kind.key else ():
            rows[kind.key_of(r)] = kind.fold(rows.get(kind.key_of(r)), r)  # type: ignore[arg-type]
        for r in gone:
            rows.pop(kind.key_of(r), None)
    assert read(kind, table) == (rows if kind.key else sorted(heap, key=repr))
    assert list(missing(table)) == []
    meta = table.metadata
    snapshots = [meta.snapshot(i) for i in meta.snapshot_ids()]
    appended = [s.commit_identifier for s in snapshots if s.commit_user == USER and s.commit_kind == "APPEND"]
    assert appended == list(range(last - len(appended) + 1, last + 1))
    if not kind.expires:
        assert len(appended) == last
    if kind.changelog:
        told(kind, table, None, name, [rows], each=False)
