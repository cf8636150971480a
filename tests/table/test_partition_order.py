# SPDX-License-Identifier: Apache-2.0
"""A commit lists its partitions as Java's writer walks over them, which is the order in which changes are read."""

from __future__ import annotations

import random

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.manifest import entries_of
from shoal.format.row import decode
from shoal.format.types import parse
from shoal.store.memory import MemoryStore

# As Java 2.0.0 has them in snapshot 7 of t0094 of the oracle's fuzz, seed s12.
IN_JAVA = ["k2", "a b=c/d", "", "a", "x,y"]


def test_partitions_come_in_javas_order_whatever_came_first() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    schema = pa.schema([pa.field("p", pa.string(), False), pa.field("k", pa.int32(), False)])
    for i, order in enumerate((IN_JAVA, IN_JAVA[::-1], sorted(IN_JAVA))):
        table = lake.create_table(
            f"d.t{i}", schema, primary_key=["p", "k"], partition_by=["p"], options={"bucket": "1"}
        )
        with table.write("w") as w:
            w.upsert(pa.table({"p": order, "k": pa.array(range(5), pa.int32())}))
            w.commit(checkpoint=1)
        snapshot = table.metadata.snapshot(1)
        entries = [e for m in table.metadata.delta(snapshot) for e in entries_of(table.metadata.entries(m))]
        at = [decode([parse("STRING")], e.partition)[0] for e in entries]
        assert at == [p.encode() for p in IN_JAVA]
