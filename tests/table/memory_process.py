# SPDX-License-Identifier: Apache-2.0
"""Memory of one compaction in a process of its own.

`python -m tests.table.memory_process make FOLDER OPTIONS BUDGET ROWS RUNS` writes a table of one bucket (without a primary
key where OPTIONS says `"primary-key": ""`);
`... compact FOLDER OPTIONS BUDGET [WORK]` compacts it in full with that budget, or does other WORK that writes the rows
again (see `WORK`), and prints bytes as JSON: the peak resident set above
what was there after the imports, and the most that Arrow had allocated. Pages of files that the kernel may drop at any
moment count as well.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import shoal
from shoal.table.table import Table

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), False), ("a", pa.int64()), ("b", pa.float64()), ("s", pa.string()), ("t", pa.string())]
)
ROW_BYTES = 8 + 8 + 8 + 4 + 36 + 4 + 460
"""Of a row in memory."""
_BATCH = 20_000


def _peak() -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def letters(count: int) -> np.ndarray:
    """Four letters: they compress to a quarter."""
    return np.random.default_rng(5).integers(97, 101, count, dtype=np.uint8)


def rows(keys: np.ndarray, rng: np.random.Generator, pool: np.ndarray) -> pa.RecordBatch:
    count = len(keys)

    def text(width: int) -> pa.Array:
        start = int(rng.integers(0, len(pool) - count * width))  # batches overlap, files hardly see it
        offsets = np.arange(count + 1, dtype=np.int32) * width
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(pool[start:]))

    columns = [pa.array(keys), pa.array(rng.integers(0, 1000, count)), pa.array(rng.random(count)), text(36), text(460)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def created(lake: shoal.Lake, options: dict[str, str]) -> Table:
    key = options.pop("primary-key", "k")
    return lake.create_table("d.t", SCHEMA, primary_key=[key] if key else [], options=options)


def add(w: Any, batch: pa.RecordBatch) -> None:
    w.upsert(batch) if w.table.primary_key else w.append(batch)


def make(folder: str, options: dict[str, str], budget: int, count: int, runs: int) -> None:
    rng, pool = np.random.default_rng(7), letters(64 << 20)
    table = created(shoal.open(folder, memory=budget), {"write-only": "true", "write-buffer-size": "2 gb", **options})
    each = count // runs
    for _ in range(runs):
        keys = np.sort(rng.choice(2 * count, each, replace=False))
        with table.write() as w:
            for at in range(0, each, _BATCH):
                add(w, rows(keys[at : at + _BATCH], rng, pool))
            w.commit()


WORK: dict[str, Callable[[Table], Any]] = {
    "full": lambda t: t.maintain.compact(full=True),
    "order": lambda t: t.maintain.compact(order_strategy="order", order_by=["a", "s"]),
    "zorder": lambda t: t.maintain.compact(order_strategy="zorder", order_by=["a", "s"]),
    "hilbert": lambda t: t.maintain.compact(order_strategy="hilbert", order_by=["a", "b"]),
    "rescale": lambda t: t.maintain.rescale(4),
    "update": lambda t: t.update({"a": pa.scalar(1)}, where="a < 20"),
}


def _files(table: Table) -> int:
    return table.metadata.live(table.metadata.latest()).num_rows


def compact(folder: str, options: dict[str, str], budget: int, work: str = "full") -> dict[str, int]:
    for module in ("pyarrow.compute", "pyarrow.parquet", "shoal.table.maintain", "shoal.table.scan"):
        importlib.import_module(module)
    warm = created(shoal.open(f"{folder}-warm", memory=budget), options)
    for _ in range(2):  # what is imported late counts as code, not as memory of the compaction
        with warm.write() as w:
            add(w, rows(np.arange(10), np.random.default_rng(1), letters(10_000)))
            w.commit()
    WORK[work](warm)
    table = shoal.open(folder, memory=budget).table("d.t")
    before = _peak()
    files = _files(table)
    WORK[work](table)
    above = _peak() - before
    arrow = pa.default_memory_pool().max_memory()
    return {"above": above, "arrow": int(arrow or 0), "files": files, "after": _files(table)}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], json.loads(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        print(json.dumps(compact(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])))
