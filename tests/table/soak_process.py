# SPDX-License-Identifier: Apache-2.0
"""One long stream in a process of its own: `python -m tests.table.soak_process FOLDER OPTIONS CHECKPOINTS SEED`.

Upserts and deletes go to a table and to a dict; compactions come late, so that the brake has work; a new writer takes
over now and then; old snapshots expire on the virtual clock. Prints as JSON how many runs and files there were at most,
the resident memory as it went, and how the table and its folded changelog differ from the dict.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.local import LocalStore
from shoal.table.table import Table

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string()), ("n", pa.int64())])
INTERVAL, KEYS, ROWS = 10, 3_000, 60
Row = tuple[int, str, int]


def resident() -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))


def runs(table: Table) -> tuple[int, int]:
    """(most sorted runs of a bucket, live files) once a checkpoint is committed."""
    live = table.metadata.live(table.metadata.latest()).select(["bucket", "level"]).to_pydict()
    levels: dict[int, list[int]] = {}
    for bucket, level in zip(live["bucket"], live["level"]):
        levels.setdefault(bucket, []).append(level)
    return max(held.count(0) + len(set(held) - {0}) for held in levels.values()), len(live["level"])


def fold(table: Table, snapshot: int, rows: dict[int, Row]) -> None:
    """The changelog of a snapshot, taken into what those before it made."""
    for r in table.changes(snapshot - 1, snapshot, mode="changelog").to_arrow().to_pylist():
        if r["_VALUE_KIND"] in (0, 2):
            rows[r["k"]] = (r["k"], r["v"], r["n"])
        elif r["_VALUE_KIND"] == 3:
            rows.pop(r["k"], None)


def main(folder: str, options: dict[str, str], checkpoints: int, seed: int) -> dict[str, Any]:
    rng, clock, scheduler = random.Random(seed), ManualClock(), ManualScheduler()
    lake = Lake(LocalStore(folder), clock=clock, scheduler=lambda: scheduler, rng=rng, memory=16 << 20)
    table = lake.create_table("d.t", SCHEMA, primary_key=["k"], options={"bucket": "2", **options})
    model: dict[int, Row] = {}
    folded: dict[int, Row] = {}
    most_runs = most_files = 0
    memory = []
    w = table.write("w")
    for checkpoint in range(1, checkpoints + 1):
        clock.sleep(INTERVAL)
        if checkpoint % 250 == 0:
            w.close()
            w = table.write("w")
        keys = rng.sample(range(KEYS), ROWS)
        gone = keys[: rng.randrange(ROWS // 3)]
        kept = [(k, f"v{rng.randrange(10**9)}", checkpoint) for k in keys[len(gone) :]]
        w.upsert(pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*kept), SCHEMA)], schema=SCHEMA))
        model.update({r[0]: r for r in kept})
        if gone:
            w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            for k in gone:
                model.pop(k, None)
        if checkpoint % 3 == 0:
            scheduler.run_pending()
        done = w.commit(checkpoint=checkpoint)
        if "changelog-producer" in options:
            for snapshot in done.snapshots:
                fold(table, snapshot, folded)
        now_runs, now_files = runs(table)
        most_runs, most_files = max(most_runs, now_runs), max(most_files, now_files)
        if checkpoint % 50 == 0:
            memory.append(resident())
    for snapshot in w.commit(checkpoint=checkpoints + 1, wait=True).snapshots:  # what is still told late
        if "changelog-producer" in options:
            fold(table, snapshot, folded)
    w.close()
    rows = {r["k"]: (r["k"], r["v"], r["n"]) for r in table.scan().to_arrow().to_pylist()}
    newest = table.metadata.latest()
    return {
        "runs": most_runs, "files": most_files, "memory": memory, "rows": len(rows),
        "wrong_rows": len(rows.items() ^ model.items()),
        "wrong_changelog": len(folded.items() ^ model.items()) if "changelog-producer" in options else 0,
        "snapshots": newest.id if newest else 0, "kept": len(table.metadata.snapshot_ids()),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
