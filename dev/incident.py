# SPDX-License-Identifier: Apache-2.0
"""The incident of docs/from-60s-to-10s.md: builds its table, runs the doctor on it, and writes the page's outputs.

dev/incident            rewrites the outputs and pictures of the page
dev/incident --check    changes nothing; exit code 1, with the differences, where the page is not current

A stream of updates into 8 buckets, one compaction thread, checkpoints of 60 s until 14:02 and of 10 s from then on.
Everything is real but the time: rows, files, compactions and commits are shoal's, on a clock that is moved by hand. A
compaction takes a fixed time on its thread, so that it can fall behind; a writer that must wait for one waits on the
same clock. The same script gives the same bytes each time.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import os
import random
import re
import shlex
import sys
import tempfile
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

import shoal.catalog.filesystem as filesystem
import shoal.store.uri as uri
from shoal.clock import ManualClock, ManualScheduler
from shoal.store import MemoryStore

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "from-60s-to-10s.md"
TABLE, DAY = "shop.orders", "2026-11-02"
START, SHORTER, END = (datetime.fromisoformat(f"{DAY}T{t}:00+00:00") for t in ("13:02", "14:02", "15:02"))
ROWS_A_SECOND, KEYS, BUCKETS = 40, 20_000, 8
COMPACTION_S = 3.0  # of the one compaction thread
OPTIONS = {"bucket": BUCKETS, "changelog-producer": "input", "snapshot.time-retained": "6 h"}
SCHEMA = pa.schema([
    pa.field("dt", pa.string(), False), pa.field("id", pa.int64(), False), ("state", pa.string()),
    ("total", pa.float64()),
])  # fmt: skip


class OneThread(ManualScheduler):
    """Compactions one after another, each for `COMPACTION_S` of the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.free = clock, clock.monotonic()

    def until(self, at: float) -> None:
        """Let the background work until then."""
        while self._queue and max(self.free, self.clock.monotonic()) + COMPACTION_S <= at:
            self._next()
        self.clock.sleep(at - self.clock.monotonic())

    def wait(self, future: Future) -> object:
        """A writer that waits: its clock goes on until the compaction is done."""
        while not future.done() and self._queue:
            self._next()
        return future.result(timeout=0)

    def _next(self) -> None:
        self.free = max(self.free, self.clock.monotonic()) + COMPACTION_S
        self.clock.sleep(self.free - self.clock.monotonic())
        self._run(*self._queue.popleft())


def build() -> tuple[MemoryStore, ManualClock]:
    """The table as it is at `END`."""
    clock = ManualClock(round(START.timestamp() * 1000))
    store = MemoryStore(clock=clock)
    thread = OneThread(clock)
    lake = filesystem.Lake(store, clock=clock, scheduler=lambda: thread, rng=random.Random(60))
    table = lake.create_table(TABLE, SCHEMA, primary_key=["dt", "id"], partition_by=["dt"], options=OPTIONS)
    rng, states = np.random.default_rng(10), np.array(["new", "paid", "sent", "done"])
    shorter, end = ((t - START).total_seconds() for t in (SHORTER, END))
    at, checkpoint = 0.0, 0
    with table.write(commit_user="orders-job") as writer:
        while at < end:
            interval = 60 if at < shorter else 10
            # the next checkpoint begins after its interval, or when a writer that waited is done with the last one
            at, checkpoint = max(at + interval, clock.monotonic()), checkpoint + 1
            count = ROWS_A_SECOND * interval
            ids = rng.integers(0, KEYS, count)
            rows = {
                "dt": np.repeat(DAY, count), "id": ids, "state": states[rng.integers(0, 4, count)],
                "total": np.round(rng.random(count) * 100, 2),
            }  # fmt: skip
            thread.until(at)
            writer.upsert(pa.table({n: pa.array(v) for n, v in rows.items()}, schema=SCHEMA))
            writer.commit(checkpoint=checkpoint)
    return store, clock


# ---- the page --------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"(<!-- shoal (?P<line>[^\n]*?) -->\n```text\n)(?P<out>.*?)(```\n)", re.DOTALL)
_PICTURE = re.compile(r"<!-- picture (?P<file>\S+) (?P<width>\d+)(?P<lanes>[^\n]*?) -->")


def run(line: str) -> str:
    """What a command prints, as it does into a pipe."""
    from shoal.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(shlex.split(line))
    return "".join(f"{row.rstrip()}\n" for row in out.getvalue().splitlines())


def pages(store: MemoryStore, clock: ManualClock) -> dict[Path, str]:
    """The page and its pictures as they should be, by their paths."""
    filesystem.Lake = functools.partial(filesystem.Lake, clock=clock)  # type: ignore[misc, assignment]
    uri.open_store = lambda *_, **__: store  # type: ignore[assignment]
    os.environ["SHOAL_WAREHOUSE"] = "memory:"
    text = PAGE.read_text(encoding="utf-8")
    out = {PAGE: _BLOCK.sub(lambda m: f"{m[1]}{run(m['line'])}{m[4]}", text)}
    from shoal.doctor.take import take
    from shoal.doctor.timeline import timeline
    from shoal.doctor.timeline_svg import svg

    found = timeline(take(filesystem.Lake(store).table(TABLE).metadata, name=TABLE, clock=clock))
    for m in _PICTURE.finditer(text):
        out[PAGE.parent / m["file"]] = svg(found, int(m["width"]), m["lanes"].split())
    return out


def main() -> int:
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_STATE_HOME"] = home  # no history of the reader's own
        wanted = pages(*build())
    code = 0
    for path, text in wanted.items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == there:
            continue
        code = 1
        if check:
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(difflib.unified_diff(
                there.splitlines(True), text.splitlines(True), name, f"{name} as it should be", n=1
            ))  # fmt: skip
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return code if check else 0


if __name__ == "__main__":
    sys.exit(main())
