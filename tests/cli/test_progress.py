# SPDX-License-Identifier: Apache-2.0
"""Progress of a long command: a line on a terminal of any width, plain lines elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.cli.output import columns_of
from shoal.cli.progress import ProgressLines, bar, progress_of
from shoal.table.progress import Progress

GIB = 1 << 30


def at(share: float, seconds: float, *, done: int = 0) -> Progress:
    return Progress(4, done, 1_200, int(1_200 * share), 30 * GIB, int(30 * GIB * share), seconds)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (119, "shop.orders  [#####...............]   25 %    300/1,200 files   7.5/30.0 GiB  3 min 0 s left"),
        (79, "shop.orders  [#.....]   25 %    300/1,200 files   7.5/30.0 GiB  3 min 0 s left"),
        (65, "shop.o…   25 %    300/1,200 files   7.5/30.0 GiB  3 min 0 s left"),
        (30, " 25 %    300/1,200 files   7.…"),
    ],
)
def test_the_line_fits_the_terminal(columns: int, line: str) -> None:
    assert bar("shop.orders", at(0.25, 60), columns) == line


@pytest.mark.parametrize("name", ["d.t", "shop.ördersöfthëyear", "表.表表表表表表表表表"])
def test_no_line_is_wider_than_its_terminal(name: str) -> None:
    for p in (at(0, 0), at(0.01, 5), at(0.5, 100_000), at(1, 600), at(1, 600, done=4), Progress(1, 0, 1, 0, 0, 0, 1)):
        for columns in range(1, 140):
            assert columns_of(bar(name, p, columns)) <= columns


def test_what_is_left_when_all_is_read() -> None:
    assert bar("d.t", at(1, 10), 120).endswith("30.0/30.0 GiB  finishing")
    assert bar("d.t", at(1, 10, done=4), 120).endswith("30.0/30.0 GiB  committing")


def test_a_log_gets_a_plain_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress_of("d.t")
    assert isinstance(shown, ProgressLines)
    for tenth in range(1, 260):
        shown(at(tenth / 300, tenth / 10))
    shown.clear()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "d.t: 33 %, 400 of 1,200 files, 10.0 of 30.0 GiB, 20 s left",
        "d.t: 66 %, 800 of 1,200 files, 20.0 of 30.0 GiB, 10 s left",
    ]


# ---- the command itself


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    options = {"bucket": "1", "write-only": "true"}
    table = shoal.open(str(tmp_path)).create_table("d.t", schema, primary_key=["k"], options=options)
    for i in range(2):
        with table.write() as w:
            w.upsert(pa.table({"k": range(20_000), "v": [f"{i}"] * 20_000}))
            w.commit()
    return tmp_path


COMPACT = [sys.executable, "-m", "shoal.cli", "compact", "run", "d.t", "--full", "-w"]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_sees_a_bar_and_then_the_result(warehouse: Path, columns: int) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm"}
    with subprocess.Popen([*COMPACT, str(warehouse)], stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                more = os.read(leader, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            seen += more
    os.close(leader)
    assert process.returncode == 0
    *frames, last = seen.decode().split("\r\x1b[K")
    assert last.startswith("d.t: snapshot 3, 2 files became 1 in 1 buckets")
    bars = [f for f in frames if f.startswith("d.t")]
    assert len(bars) >= 2 and all(len(b) < columns and "\n" not in b for b in bars)
    assert "  0 %  0/2 files" in bars[0] and bars[-1].endswith("committing")
    assert not re.search(r"\x1b", last)


def test_a_pipe_sees_no_control_codes(warehouse: Path) -> None:
    ran = subprocess.run([*COMPACT, str(warehouse)], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert re.fullmatch(
        r"d\.t: snapshot 3, 2 files became 1 in 1 buckets, .* write amplification 0\.\d\d\n", ran.stdout
    )


def test_json_has_every_compaction(warehouse: Path) -> None:
    import json

    ran = subprocess.run([*COMPACT, str(warehouse), "-o", "json"], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    (done,) = found["compactions"]
    assert (done["inputs"], done["outputs"], done["bucket"], done["output_level"]) == (2, 1, 0, 5)
    assert done["bytes_written"] == done["output_bytes"] == found["bytes_written"]
    assert done["write_amplification"] == found["write_amplification"] == done["bytes_written"] / done["bytes_read"]
    assert done["seconds"] == found["seconds"] > 0
