# SPDX-License-Identifier: Apache-2.0
"""The lives of `incidents`, written for real: by shoal's own writer into memory, on a clock and a scheduler by hand.

Rows are few, since each commit costs a test its time; the clock and the number of buckets are what a life asks for.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from incidents import Life

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.take import take
from shoal.doctor.window import Window
from shoal.store.memory import MemoryStore
from shoal.table import consumers
from shoal.table.table import Table

_ROWS = 60  # a commit writes at most


def written(life: Life) -> Window:
    """The window of a table that was written as `life` says."""
    clock, scheduler, rng = ManualClock(), ManualScheduler(), np.random.default_rng(life.seed)
    lake = Lake(MemoryStore(), clock=clock, scheduler=lambda: scheduler)
    table = _table(lake, life)
    event, number, behind = 0.0, 0, 0
    with table.write("writer") as writer:
        for phase in life.phases:
            clock.sleep(phase.pause_s)
            for _ in range(phase.commits):
                number += 1
                rate = life.rate if phase.rate is None else phase.rate
                count = max(min(round(rate * phase.interval_s), _ROWS), 4)
                writer.upsert(_rows(life, rng, count, event))
                behind += 1
                if behind > life.slowness:  # compaction beside the writer gets its turn
                    scheduler.run_pending()
                    behind = 0
                clock.sleep(phase.interval_s)
                event += phase.interval_s
                writer.commit(checkpoint=number)
                if life.compactor_every and number % life.compactor_every == 0:
                    table.maintain.compact(full=True, commit_user="compactor")
                if number == life.consumer_at:
                    latest = table.metadata.latest_id()
                    assert latest is not None
                    consumers.save(table.store, "stuck", latest + 1)
    return take(table.metadata, name="d.t", clock=clock)


def _table(lake: Lake, life: Life) -> Table:
    keys, fields = ["id"], [("id", pa.int64()), ("v", pa.string())]
    if life.hot:
        keys, fields = ["g", *keys], [("g", pa.int32()), *fields]
    parted = ["dt"] if life.partitions is not None else []
    if parted:
        keys, fields = [*parted, *keys], [("dt", pa.string()), *fields]
    options = {"bucket": str(life.buckets), "file.format": life.format, **life.options}
    if life.hot:
        options["bucket-key"] = "g"
    return lake.create_table("d.t", pa.schema(fields), primary_key=keys, partition_by=parted, options=options)


def _rows(life: Life, rng: np.random.Generator, count: int, event: float) -> pa.Table:
    columns: dict[str, object] = {
        "id": rng.integers(0, min(life.keys, 20 * count), count),
        "v": pa.array([f"value {n}" for n in rng.integers(0, 1000, count).tolist()]),
    }
    if life.hot:
        columns["g"] = pa.array(np.where(rng.random(count) < life.hot, 7, rng.integers(0, 200, count)), pa.int32())
    if life.partitions is not None:
        days = np.where(rng.random(count) < life.late, rng.integers(1, life.late_days + 1, count), 0)
        names = [life.partitions(event - day * 86_400) for day in days.tolist()]
        columns["dt"] = pa.array([n.partition("=")[2].rstrip("/") for n in names])
    return pa.table(columns)
