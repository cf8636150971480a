# SPDX-License-Identifier: Apache-2.0
"""`partition.end-input-to-done`: which partitions are marked, with the file that Java 2.0.0 wrote in the same place.

Java was asked with INSERT INTO (two partition columns, a null, a space in a value; the same partition twice), a
write-only table with a primary key, INSERT OVERWRITE of another partition (marks that one alone) and a full compaction
(marks nothing).
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Unsupported
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

START = 1_796_075_229_055
SCHEMA = pa.schema([("k", pa.int32()), ("dt", pa.string()), ("h", pa.int32())])


def make(options: dict[str, object], key: tuple[str, ...] = (), schema: pa.Schema = SCHEMA) -> Table:
    clock = ManualClock(START)
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    by = [n for n in schema.names if n != "k"]
    all_options = {"partition.end-input-to-done": True} | options
    return lake.create_table("d.t", schema, primary_key=key, partition_by=by, options=all_options)


def marks(table: Table) -> dict[str, tuple[int, int]]:
    found = {}
    for f in table.store.list(""):
        if f.path.endswith("/_SUCCESS"):
            text = json.loads(table.store.read(f.path))
            found[f.path.removesuffix("/_SUCCESS")] = text["creationTime"] - START, text["modificationTime"] - START
    return found


def test_a_batch_marks_the_partitions_it_wrote() -> None:
    table = make({"bucket": -1})
    for rows in ([("a b", 1), (None, 2)], [("a b", 1), ("x", 2)]):
        with table.write() as w:
            w.append([{"k": 1, "dt": dt, "h": h} for dt, h in rows])
            done = w.commit()
        assert done.upkeep is not None and done.upkeep.failure is None and len(done.upkeep.partitions_done) == 2
        table.clock.sleep(1)
    assert marks(table) == {
        "dt=a b/h=1": (0, 1000), "dt=__DEFAULT_PARTITION__/h=2": (0, 0), "dt=x/h=2": (1000, 1000),
    }  # fmt: skip
    text = f'{{\n  "creationTime" : {START},\n  "modificationTime" : {START}\n}}'
    assert table.store.read("dt=__DEFAULT_PARTITION__/h=2/_SUCCESS") == text.encode()
    assert table.scan().to_arrow().num_rows == 4


def test_overwrites_mark_what_they_wrote_and_compactions_nothing() -> None:
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), pa.field("dt", pa.string(), nullable=False)])
    table = make({"bucket": 1, "write-only": True}, ("dt", "k"), schema)
    for dt in ("a", "b"):
        with table.write() as w:
            w.upsert([{"k": 1, "dt": dt}])
            w.commit()
    table.clock.sleep(1)
    table.overwrite([{"k": 1, "dt": "c"}])
    assert marks(table) == {"dt=a": (0, 0), "dt=b": (0, 0), "dt=c": (1000, 1000)}
    table.clock.sleep(1)
    table.maintain.compact(full=True)
    assert marks(table)["dt=a"] == (0, 0)


def test_a_checkpoint_marks_nothing() -> None:
    table = make({"bucket": -1})
    with table.write(commit_user="job") as w:
        w.append([{"k": 1, "dt": "a", "h": 1}])
        w.commit(checkpoint=1)
    assert marks(table) == {}


@pytest.mark.parametrize(
    "option, value",
    [
        ("partition.mark-done-action", "success-file,mark-event"), ("partition.mark-done-action", "done-partition"),
        ("partition.mark-done-action.mode", "watermark"),
    ],
)  # fmt: skip
def test_other_ways_to_mark_are_refused_by_name(option: str, value: str) -> None:
    table = make({"bucket": -1, option: value})
    with pytest.raises(Unsupported, match=f"{option} '{value}' is not supported"):
        table.write()
    # where nothing is marked it does not matter
    with table.with_options({"partition.end-input-to-done": False}).write() as w:
        w.append([{"k": 1, "dt": "a", "h": 1}])
        w.commit()
