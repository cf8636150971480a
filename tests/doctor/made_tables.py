# SPDX-License-Identifier: Apache-2.0
"""Small tables on a manual clock, a commit at a time, and their live files summed without the doctor."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.take import UNKNOWN, Known, take
from shoal.doctor.window import Window
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata

CELL = ("partition", "bucket", "total_buckets", "level")


def reader(table: Path) -> Metadata:
    return Metadata(LocalStore(table), Cache())


def look(metadata: Metadata, **more: object) -> Window:
    return take(metadata, name="t", clock=ManualClock(), **more)  # type: ignore[arg-type]


def files(state: pa.Table | None) -> dict[tuple[object, ...], tuple[int, int, int]]:
    """(files, bytes, rows) by cell."""
    assert state is not None
    rows = state.to_pylist()
    return {tuple(r[k] for k in CELL): (r["files"], r["bytes"], r["rows"]) for r in rows}


def live(metadata: Metadata, partition: Callable[[bytes], str]) -> dict[tuple[object, ...], tuple[int, int, int]]:
    """The same from the live entries, summed without the doctor."""
    out: dict[tuple[object, ...], tuple[int, int, int]] = {}
    for e in metadata.live(metadata.latest()).to_pylist():
        key = (partition(e["partition"]), e["bucket"], e["total_buckets"], e["level"])
        n, size, rows = out.get(key, (0, 0, 0))
        out[key] = (n + 1, size + e["file_size"], rows + e["row_count"])
    return out


SCHEMA = pa.schema([pa.field("p", pa.string(), False), pa.field("k", pa.int64(), False), ("v", pa.int64())])


class Made:
    """A table of shoal's on a manual clock, a commit at a time."""

    def __init__(self, seed: int = 7, **options: object) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.lake = Lake(self.store, clock=self.clock, scheduler=ManualScheduler, rng=random.Random(seed))
        asked = {"bucket": 2, "num-sorted-run.compaction-trigger": 3, **options}
        self.table = self.lake.create_table(
            "d.t", SCHEMA, primary_key=["p", "k"], partition_by=["p"], options=asked
        )  # fmt: skip
        self.at = 0

    def commits(self, count: int, rows: int = 20) -> None:
        with self.table.write(commit_user="w") as w:
            for _ in range(count):
                self.clock.sleep(10)
                self.at += 1
                keys = [(self.at * 7 + i) % 50 for i in range(rows)]
                parts = [f"d{self.at % 2}"] * rows
                w.upsert(pa.table([parts, keys, keys], schema=SCHEMA))
                w.commit(checkpoint=self.at)

    def look(self, known: Known = UNKNOWN, **more: Any) -> Window:
        return take(self.table.metadata, name="d.t", clock=self.clock, known=known, **more)

    def live(self) -> dict[tuple[object, ...], tuple[int, int, int]]:
        return live(self.table.metadata, lambda p: f"p={p[-8:-6].decode()}/")
