# SPDX-License-Identifier: Apache-2.0
"""Watches as processes: Ctrl-C leaves a whole history, and two of them share one."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from made_tables import files, live

from shoal.catalog.filesystem import Lake
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.take import take
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata
from shoal.table.table import Table

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
# A shell that runs tests in the background makes its children deaf to Ctrl-C.
WATCH = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from shoal.cli.main import main; sys.exit(main(['doctor', 'watch', *sys.argv[1:]]))"
)


def made(folder: Path, names: tuple[str, ...], commits: int) -> list[Table]:
    lake = Lake(LocalStore(folder))
    tables = [
        lake.create_table(f"d.{n}", SCHEMA, primary_key=["k"], options={"bucket": "2", "write-only": "true"})
        for n in names
    ]
    for table in tables:
        committed(table, commits, 0)
    return tables


def committed(table: Table, count: int, first: int) -> None:
    with table.write(commit_user="w") as w:
        for i in range(first, first + count):
            w.upsert(pa.table({"k": list(range(i, i + 5)), "v": [i] * 5}, schema=SCHEMA))
            w.commit(checkpoint=i)


def watching(lake: Path, history: Path, *more: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", WATCH, "d.*", "-w", str(lake), "--history", str(history), *more]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def check_whole(history: Path, tables: list[Table], *, complete: bool) -> list[int]:
    """What is kept is what one look sees, up to where it was kept. How many snapshots of each table there are."""
    with sqlite3.connect(history) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    counts = []
    with HistoryStore(history) as store:
        kept = store.tables()
        for table in tables:
            uri = table.metadata.store.uri
            if uri not in kept:
                counts.append(0)
                continue
            window, whole = store.window(uri), take(Metadata(table.store, Cache()), name=table.name)
            steps = whole.steps[: len(window.steps)]
            assert window.steps == steps and not window.gaps and not window.events
            ids = {s.id for s in steps}
            wanted = [r for r in whole.flows.to_pylist() if r["snapshot"] in ids]
            assert window.flows.to_pylist() == wanted
            last = table.metadata.snapshot(steps[-1].id)
            alive = table.metadata.live(last)
            assert sum(n for n, *_ in files(window.end).values()) == alive.num_rows
            if complete:
                assert len(window.steps) == len(whole.steps)
                assert files(window.end) == live(table.metadata, lambda _: "")
            counts.append(len(window.steps))
    return counts


def test_ctrl_c_leaves_a_whole_history(tmp_path: Path) -> None:
    """Looks of three tables are under way, each takes seconds at this rate: none is kept by half."""
    lake, history = tmp_path / "lake", tmp_path / "h.sqlite"
    tables = made(lake, ("a", "b", "c"), 6)
    watch = watching(lake, history, "--every", "50 ms", "--rps", "40")
    try:
        seen = lines(watch, 4)  # the first round, and one look of the second: others are under way
        watch.send_signal(signal.SIGINT)
        out, err = watch.communicate(timeout=60)
    finally:
        watch.kill()
    assert watch.returncode == 130 and err == "shoal: interrupted\n"
    told = [line for line in (*seen, *out.splitlines(keepends=True)) if line.strip()]
    assert all(line.endswith("]\n") for line in told)
    assert check_whole(history, tables, complete=True) == [6, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("after_ms", range(0, 2000, 100))
def test_ctrl_c_at_any_time_leaves_a_whole_history(tmp_path: Path, after_ms: int) -> None:
    lake, history = tmp_path / "lake", tmp_path / "h.sqlite"
    tables = made(lake, ("a", "b", "c"), 12)
    HistoryStore(history).close()
    watch = watching(lake, history, "--every", "10 ms", "--rps", "100")
    try:
        lines(watch, 1)
        with pytest.raises(subprocess.TimeoutExpired):
            watch.wait(after_ms / 1000 + 0.001)
        for table in tables:
            committed(table, 1, 12)
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=60)
    finally:
        watch.kill()
    assert watch.returncode == 130
    assert sum(check_whole(history, tables, complete=False)) >= 12
    again = watching(lake, history, "--once")
    assert again.wait(60) == 0
    again.communicate()
    assert check_whole(history, tables, complete=True) == [13, 13, 13]


@pytest.mark.slow
def test_two_watches_share_one_history_while_a_writer_commits(tmp_path: Path) -> None:
    lake, history = tmp_path / "lake", tmp_path / "h.sqlite"
    tables = made(lake, ("a", "b"), 2)
    pair = [watching(lake, history, "--every", "20 ms") for _ in range(2)]
    try:
        for watch in pair:
            lines(watch, 1)
        for i in range(2, 40):
            for table in tables:
                committed(table, 1, i)
        for watch in pair:
            lines(watch, 4)
            watch.send_signal(signal.SIGINT)
        ended = [watch.communicate(timeout=60) for watch in pair]
    finally:
        for watch in pair:
            watch.kill()
    assert [watch.returncode for watch in pair] == [130, 130], [err for _, err in ended]
    again = watching(lake, history, "--once")
    assert again.wait(60) == 0
    again.communicate()
    assert check_whole(history, tables, complete=True) == [40, 40]
