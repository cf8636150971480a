# SPDX-License-Identifier: Apache-2.0
"""Rows of kilobytes: what is read or encoded at once follows the memory, whatever the number of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commits import lake
from pyarrow import orc

from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

MEMORY = 16 << 20
ROWS, WIDTH = 12_000, 1_500
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("n", pa.int32()), ("t", pa.string())])
FORMATS = ("parquet", "orc", "avro")


def wide(seed: int, rows: int = ROWS) -> pa.RecordBatch:
    """Rows of letters that compress to three quarters."""
    letters = np.random.default_rng(seed).integers(48, 112, rows * WIDTH, dtype=np.uint8)
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * WIDTH)
    texts = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(letters))
    keys = np.arange(rows)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array((keys % 7).astype(np.int32)), texts], schema=SCHEMA)


def table(store: MemoryStore, form: str, **options: str) -> Table:
    named = {k.replace("__", "."): v for k, v in options.items()}
    made = lake(store).create_table("d.t", SCHEMA, options={"bucket": "-1", "file.format": form, **named})
    made.memory = MEMORY
    return made


def add(t: Table, batch: pa.RecordBatch) -> None:
    with t.write() as w:
        w.append(batch)
        w.commit()


def files(t: Table) -> list[bytes]:
    found = []
    for e in entries_of(t.metadata.live(t.metadata.latest())):
        store, path = t.file_at(e.partition, e.bucket, e.file)
        found.append(store.read(path))
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_batches_follow_the_memory(form: str) -> None:
    t = table(MemoryStore(), form)
    add(t, wide(1))
    batches = list(t.scan().to_batches())
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([wide(1)]))
    # blocks of an Avro file are whole
    assert max(b.nbytes for b in batches) < MEMORY / 16 * 1.5


def test_batches_follow_the_memory_where_columns_lie_in_several_files() -> None:
    t = table(MemoryStore(), "parquet", **{"row-tracking__enabled": "true", "data-evolution__enabled": "true"})
    add(t, wide(1))
    t.update({"n": 5}, where="k < 10")
    batches = list(t.scan(columns=["k", "n", "t"]).to_batches())
    assert sum(b.num_rows for b in batches) == ROWS
    assert max(b.nbytes for b in batches) < MEMORY / 16 * 1.5


def test_stripes_and_row_groups_follow_the_memory_where_batches_are_larger() -> None:
    groups = {}
    for form in ("parquet", "orc"):
        t = table(MemoryStore(), form)
        add(t, wide(1))
        (data,) = files(t)
        if form == "orc":
            opened = orc.ORCFile(pa.BufferReader(data))
            groups[form] = [opened.read_stripe(i).nbytes for i in range(opened.nstripes)]
        else:
            footer = pq.ParquetFile(pa.BufferReader(data)).metadata
            row = wide(1).nbytes / ROWS
            groups[form] = [int(footer.row_group(i).num_rows * row) for i in range(footer.num_row_groups)]
        *full, last = groups[form]
        part = MEMORY / (64 if form == "orc" else 16)
        assert full and all(0.9 * part < size < 1.3 * part for size in full), groups
        assert last < 1.3 * part


@pytest.mark.parametrize("form", FORMATS)
def test_compaction_of_wide_rows_keeps_them(form: str) -> None:
    store = MemoryStore()
    t = table(store, form, **{"compaction.min.file-num": "2"})
    t.memory = MEMORY // 4
    for seed in (1, 2, 3):
        add(t, wide(seed, ROWS // 4))
    before = t.scan().to_arrow().sort_by([("k", "ascending"), ("t", "ascending")])
    assert before.nbytes > 3 * t.memory
    report = t.maintain.compact()
    assert report.files_before == 3 and report.files_after == 1
    assert t.scan().to_arrow().sort_by([("k", "ascending"), ("t", "ascending")]).equals(before)


def test_a_batch_of_one_wide_row_stays_whole() -> None:
    t = table(MemoryStore(), "orc")
    long = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3]), pa.array([1, 2, 3], pa.int32()), pa.array(["x" * (2 << 20), None, "y"])], schema=SCHEMA
    )
    add(t, long)
    assert t.scan().to_arrow().equals(pa.Table.from_batches([long]))
