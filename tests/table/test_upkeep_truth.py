# SPDX-License-Identifier: Apache-2.0
"""Partitions and tags that are left after the commits of a table, against what Java left (upkeep_truth.py)."""

from __future__ import annotations

import json
from datetime import date, datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from upkeep_truth import COMMITS, FACTS, PARTITIONS, TAGS

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.table.refs import tags

_TYPES = {"STRING": pa.string(), "INT": pa.int32(), "DATE": pa.date32(), "TIMESTAMP(3)": pa.timestamp("ms")}


# Java finds these TIMESTAMP partitions old and fails to drop them, after each commit: it writes their values as
# "2020-01-01T05:06" and cannot read that ("Executing maintain encountered an error", DateTimeParseException).
JAVA_CANNOT: dict[str, dict[str, Any]] = {
    "moments": {
        "kinds": ["APPEND", "OVERWRITE"],
        "partitions": ["{2020-01-01 05:06:07.500}", "{2099-01-01 00:00:00.000}"],
    }
}


@cache
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FACTS.read_text())
    return found


def value(text: Any, type_: str) -> Any:
    if text is None or type_ in ("STRING", "INT"):
        return text
    return date.fromisoformat(text) if type_ == "DATE" else datetime.fromisoformat(text)


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_go_as_in_java(name: str) -> None:
    java, (columns, options, batches) = facts()["parts"][name], PARTITIONS[name]
    clock = ManualClock(facts()["began_ms"])
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    key = tuple(options.get("primary-key", "").split(",")) if "primary-key" in options else ()
    fields = [pa.field(c, _TYPES[t], nullable=c not in key) for c, t in columns.items()]
    schema = pa.schema([pa.field("k", pa.int32(), nullable="k" not in key), *fields])
    table = lake.create_table(
        "d.t", schema, primary_key=key, partition_by=list(columns),
        options={"bucket": -1} | {k: v for k, v in options.items() if k != "primary-key"},
    )  # fmt: skip
    for batch in batches:
        rows = [{"k": 1} | {c: value(v, t) for v, (c, t) in zip(row, columns.items())} for row in batch]
        with table.write() as w:
            (w.upsert if key else w.append)(rows)
            w.flush()  # files are older than the commit
            clock.sleep(1)
            done = w.commit()
        assert done.upkeep is None or done.upkeep.failure is None
        clock.sleep(1)
    java = JAVA_CANNOT.get(name, java)
    kinds = [table.metadata.snapshot(i).commit_kind for i in table.metadata.snapshot_ids()]
    assert [k for k in kinds if k != "COMPACT"] == [k for k in java["kinds"] if k != "COMPACT"]
    assert sorted(set(table.inspect.files().column("partition").to_pylist())) == java["partitions"]


@pytest.mark.parametrize("name", TAGS)
def test_tags_are_made_and_go_as_in_java(name: str) -> None:
    java = facts()["tags"][name]
    times = java["commits"]
    clock = ManualClock(times[0])
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    table = lake.create_table("d.t", pa.schema([("k", pa.int32())]), options={"bucket": -1} | TAGS[name])
    for i in range(COMMITS):
        clock.sleep((times[i] - clock.now_ms()) / 1000)
        with table.write() as w:
            w.append([{"k": i}])
            done = w.commit()
        assert done.upkeep is None or done.upkeep.failure is None
    assert {t.name: t.snapshot.id for t in tags(table.metadata)} == java["tags"]
    assert table.metadata.snapshot_ids() == sorted(map(int, java["snapshots"]))
    assert sorted(f.path for f in table.store.list("tag")) == java["files"]
    assert len([f for f in table.store.list("bucket-0") if "/data-" in f.path]) == java["data_files"]
