# SPDX-License-Identifier: Apache-2.0
"""A stream at several checkpoint intervals, bucket counts and changelog producers, beside Java's writer on the same rows.

`data/writer-tiers.json` has for each tier its spec and, for two seeds, what the writer of Java 2.0.0 made of it on a
virtual clock: files of level 0, changelog files, files rewritten and moved up, snapshots, bytes. A compaction runs
between the checkpoint that started it and the next one, as it does here on a `ManualScheduler`. The rows are the same,
number by number; sizes differ by what encoders make of them, so what depends on sizes is held to 5 %.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.datafile import ADD
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.table.java_random import JavaRandom, digits, doubles

TIERS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "writer-tiers.json").read_text())
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("ts", pa.int64()), ("s", pa.string()), ("amt", pa.float64())])
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
START_MS = 1_793_577_600_000
QUICK = ("none_60", "lookup_60", "skew_60")


def rows(spec: dict[str, Any], seed: int) -> Iterator[pa.RecordBatch]:
    """The rows of each checkpoint."""
    rng, rate, keys, width = JavaRandom(seed), spec["rate"], spec["keys"], spec["value_bytes"]
    kind, _, number = str(spec.get("dist", "uniform")).partition(":")
    shares = np.cumsum(1 / np.arange(1, keys + 1) ** float(number or 1)) if kind == "zipf" else None
    interval = spec["interval"]
    for start in range(0, spec["minutes"] * 60, interval):
        count = rate * interval
        drawn = rng.states(count, 2 + width + 2)
        u = doubles(drawn[:, 0], drawn[:, 1])
        if shares is not None:
            key = np.minimum(np.searchsorted(shares / shares[-1], u), keys - 1)
        else:
            key = u ** float(number or 1) * keys
        text = HEX[digits(drawn[:, 2:-2])].reshape(-1).tobytes()
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * width)
        columns = [
            pa.array(key.astype(np.int64)),
            pa.array(np.repeat(np.arange(start + 1, start + interval + 1, dtype=np.int64), rate)),
            pa.StringArray.from_buffers(count, offsets, pa.py_buffer(text)),
            pa.array(doubles(drawn[:, -2], drawn[:, -1])),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def told(table: Table, snapshot: int) -> Counter[str]:
    """What the files of one snapshot add to the figures."""
    metadata = table.metadata
    snap = metadata.snapshot(snapshot)
    out = Counter({f"snap_{snap.commit_kind}": 1})
    kinds: dict[str, set[str]] = {"new": set(), "gone": set()}
    sizes: dict[str, int] = {}
    for meta in metadata.delta(snap):
        for e in metadata.entries(meta).select(["kind", "file_name", "file_size"]).to_pylist():
            kinds["new" if e["kind"] == ADD else "gone"].add(e["file_name"])
            sizes[e["file_name"]] = e["file_size"]
    moved = kinds["new"] & kinds["gone"]
    written = kinds["new"] - moved
    what = "compact" if snap.commit_kind == "COMPACT" else "flush"
    out[f"{what}_files"], out[f"{what}_bytes"] = len(written), sum(sizes[n] for n in written)
    out["upgrades"], out["removed"] = len(moved), len(kinds["gone"] - moved)
    for meta in metadata.changelog(snap):
        out["changelog_files"] += metadata.entries(meta).num_rows
        out["changelog_bytes"] += sum(metadata.entries(meta).column("file_size").to_pylist())
    return out


def written(spec: dict[str, Any], seed: int) -> dict[str, float]:
    clock, scheduler = ManualClock(START_MS), ManualScheduler()
    lake = Lake(MemoryStore(), clock=clock, scheduler=lambda: scheduler, rng=random.Random(seed))
    options = {
        "bucket": str(spec["buckets"]), "file.format": spec["format"],
        "snapshot.num-retained.min": "100000000", "snapshot.num-retained.max": "2147483647",
    }  # fmt: skip
    if "producer" in spec:
        options["changelog-producer"] = spec["producer"]
    if "delta_commits" in spec:
        options["full-compaction.delta-commits"] = str(spec["delta_commits"])
    if not spec.get("compaction", True):
        options["write-only"] = "true"
    table = lake.create_table("d.t", SCHEMA, primary_key=["id"], options=options)
    sums: Counter[str] = Counter()
    checkpoints = 0
    with table.write("writer") as w:
        for checkpoints, batch in enumerate(rows(spec, seed), 1):
            clock.sleep(spec["interval"])
            w.append(batch)
            scheduler.run_pending()
            for snapshot in w.commit(checkpoint=checkpoints).snapshots:
                sums += told(table, snapshot)
            scheduler.run_pending()
    figures: dict[str, float] = {**sums, "checkpoints": checkpoints}
    figures["write_amp"] = (sums["flush_bytes"] + sums["compact_bytes"]) / sums["flush_bytes"]
    return figures


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(n, s, marks=() if n in QUICK and s == 42 else pytest.mark.slow, id=f"{n}-{s}")
        for n in TIERS
        for s in (42, 43)
    ],
)
def test_a_stream_makes_the_files_that_javas_writer_makes(name: str, seed: int) -> None:
    java, figures = TIERS[name][f"seed_{seed}"], written(TIERS[name]["spec"], seed)
    for exact in ("checkpoints", "flush_files", "changelog_files", "snap_APPEND"):
        assert figures.get(exact, 0) == java[exact], exact
    for near in ("compact_files", "removed", "write_amp"):
        assert figures.get(near, 0) == pytest.approx(java[near], rel=0.05), near
