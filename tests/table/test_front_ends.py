# SPDX-License-Identifier: Apache-2.0
"""Engines that read a table through Arrow, Polars, pandas or DuckDB: right rows, and no more files than they need."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.store.wrappers import CountingStore
from shoal.table.table import Table

SCHEMA = pa.schema([("day", pa.int32()), ("k", pa.int32()), ("v", pa.string()), ("w", pa.float64())])
DAYS, KEYS = 10, 20


@pytest.fixture(scope="module")
def opened() -> tuple[Table, CountingStore]:
    """Ten partitions of one file each, every key written twice."""
    store = CountingStore(MemoryStore())
    lake = Lake(store, clock=ManualClock(), scheduler=ManualScheduler)
    table = lake.create_table(
        "d.t", SCHEMA, primary_key=["day", "k"], partition_by=["day"], options={"bucket": 1, "write-only": "true"}
    )
    for version in ("old", "new"):
        with table.write() as w:
            for day in range(DAYS):
                rows = [{"day": day, "k": k, "v": f"{version}-{day}-{k}", "w": k / 2} for k in range(KEYS)]
                w.upsert(pa.Table.from_pylist(rows, schema=SCHEMA))
            w.commit()
    table.scan().to_arrow()  # metadata is in the cache from here on
    return table, store


def by_dataset(t: Table) -> list[tuple[object, ...]]:
    found = t.dataset().to_table(columns=["k", "v"], filter=(pc.field("day") == 3) & (pc.field("k") >= 18))
    return [tuple(r.values()) for r in found.to_pylist()]


def by_lazy(t: Table) -> list[tuple[object, ...]]:
    return t.lazy().filter((pl.col("day") == 3) & (pl.col("k") >= 18)).select("k", "v").collect().rows()


def by_polars_of_a_scan(t: Table) -> list[tuple[object, ...]]:
    return t.scan("day = 3 AND k >= 18", ["k", "v"]).to_polars().rows()


def by_pandas(t: Table) -> list[tuple[object, ...]]:
    return list(t.scan("day = 3 AND k >= 18", ["k", "v"]).to_pandas().itertuples(index=False, name=None))


def by_duckdb_relation(t: Table) -> list[tuple[object, ...]]:
    return t.scan("day = 3 AND k >= 18", ["k", "v"]).to_duckdb().fetchall()


def by_duckdb_over_the_dataset(t: Table) -> list[tuple[object, ...]]:
    rows = t.dataset()
    connection = duckdb.connect()
    connection.register("rows", rows)
    return connection.execute("SELECT k, v FROM rows WHERE day = 3 AND k >= 18").fetchall()


def by_a_scanner(t: Table) -> list[tuple[object, ...]]:
    scanner: ds.Scanner = t.dataset().scanner(columns=["k", "v"], filter=(pc.field("day") == 3) & (pc.field("k") > 17))
    return [tuple(r.values()) for r in scanner.to_table().to_pylist()]


@pytest.mark.parametrize(
    "read",
    [by_dataset, by_lazy, by_polars_of_a_scan, by_pandas, by_duckdb_relation, by_duckdb_over_the_dataset, by_a_scanner],
)
def test_filters_and_columns_reach_the_planner(
    opened: tuple[Table, CountingStore], read: Callable[[Table], list[tuple[object, ...]]]
) -> None:
    table, store = opened
    store.reset()
    assert sorted(read(table)) == [(18, "new-3-18"), (19, "new-3-19")]
    assert store.calls["open"] == 2  # the two versions of one partition, of ten


def test_a_lazy_frame_stops_at_the_rows_it_needs(opened: tuple[Table, CountingStore]) -> None:
    table, store = opened
    store.reset()
    assert table.lazy().head(5).collect().height == 5
    assert store.calls["open"] <= 4  # two partitions, of ten


def test_a_dataset_of_the_past_keeps_its_rows(opened: tuple[Table, CountingStore]) -> None:
    table, _ = opened
    old = table.dataset(snapshot=1)
    assert set(old.to_table(columns=["v"]).column("v").to_pylist()) == {
        f"old-{d}-{k}" for d in range(DAYS) for k in range(KEYS)
    }
    assert table.lazy(snapshot=1).select(pl.len()).collect().item() == DAYS * KEYS


def test_explain_tells_what_is_left_out_and_what_must_be_merged(opened: tuple[Table, CountingStore]) -> None:
    table, _ = opened
    found = table.scan("day = 3 OR day = 4").explain()
    assert found.dropped == {"partition": 2 * (DAYS - 2)}
    assert [(b.partition, b.bucket, b.files, b.runs) for b in found.by_bucket] == [
        ("day=3", 0, 2, 2),
        ("day=4", 0, 2, 2),
    ]
    assert "day=3 bucket 0: 2 runs in 2 files" in str(found)
