# SPDX-License-Identifier: Apache-2.0
"""What a name in a query may mean besides a table: a snapshot of the past, a branch, a system table, a table of sys."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal import BadRequest, NotFound, ShoalError, Unsupported
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.sql.engine import Engine
from shoal.store.memory import MemoryStore

ORDERS = pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.fixture
def lake() -> Lake:
    """shop.orders: order 1 is of 00:00:01, orders 2 and 3 of 00:00:02; the tag spring is the first snapshot."""
    clock = ManualClock(1_000, UTC)
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    t = lake.create_table("shop.orders", ORDERS, primary_key=["id"], options={"bucket": 1})
    for part in ([1], [2, 3]):
        with t.write() as w:
            w.upsert([{"id": i, "name": f"n{i}"} for i in part])
            w.commit()
        clock.sleep(1)
    t.store.put("tag/tag-spring", t.store.read(paths.snapshot(1)))
    return lake


def rows(lake: Any, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for r in Engine(lake, database="shop").query(sql).read_all().to_pylist()]


PAST = [
    "orders FOR VERSION AS OF 1",
    "orders VERSION AS OF 'spring'",
    "orders FOR SYSTEM_TIME AS OF TIMESTAMP '1970-01-01 00:00:01.5'",
    "orders TIMESTAMP AS OF '1970-01-01 00:00:01'",
    "orders TIMESTAMP AS OF 1",
    "orders /*+ OPTIONS('scan.snapshot-id' = '1') */",
    "orders /*+ OPTIONS('scan.tag-name'='spring') */ AS o",
    "shop.orders /*+ OPTIONS('scan.timestamp'='1970-01-01 00:00:01') */",
    "orders /*+ OPTIONS('scan.timestamp-millis' = '1999') */",
]


@pytest.mark.parametrize("source", PAST)
def test_an_older_snapshot_is_read_when_asked_for(lake: Lake, source: str) -> None:
    assert rows(lake, f"SELECT * FROM {source}") == [(1, "n1")]


def test_a_tag_outlives_its_snapshot(lake: Lake) -> None:
    lake.table("shop.orders").store.delete(paths.snapshot(1))
    assert rows(lake, "SELECT id FROM orders VERSION AS OF 'spring'") == [(1,)]
    assert rows(lake, "SELECT id FROM orders /*+ OPTIONS('scan.tag-name'='spring') */") == [(1,)]


def test_one_table_stands_for_several_states_in_a_query(lake: Lake) -> None:
    old = "orders FOR VERSION AS OF 1 AS old"
    sql = "SELECT count(*) FROM orders AS new LEFT JOIN {} USING (id) WHERE old.id IS NULL"
    assert rows(lake, sql.format(old)) == [(2,)]
    assert rows(lake, sql.format("orders /*+ OPTIONS('scan.snapshot-id' = '1') */ AS old")) == [(2,)]


def test_a_query_sees_one_snapshot_of_a_table_though_others_commit(lake: Lake) -> None:
    # more rows than one batch, so that the rest is read after the commit
    table = lake.table("shop.orders")
    with table.write() as w:
        w.upsert(pa.table({"id": pa.array(range(200_000), pa.int32()), "name": ["x"] * 200_000}))
        w.commit()
    reader = Engine(lake, database="shop").query("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id")
    with table.write() as w:
        w.delete(pa.table({"id": pa.array(range(200_000), pa.int32())}))
        w.commit()
    assert reader.read_all().num_rows == 200_000


def test_a_hint_reaches_the_read_it_is_given_for(lake: Lake) -> None:
    hint = "/*+ OPTIONS('scan.file-creation-time-millis' = '{}') */"
    assert rows(lake, f"SELECT id FROM orders {hint.format(1500)} ORDER BY id") == [(2,), (3,)]
    assert rows(lake, f"SELECT id FROM orders {hint.format(5000)}") == []


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("orders VERSION AS OF 'autumn'", NotFound, "no version 'autumn'"),
        ("orders /*+ OPTIONS('scan.tag-name' = 'autumn') */", NotFound, "no tag 'autumn'"),
        ("orders TIMESTAMP AS OF '1969-01-01'", NotFound, "no snapshot at or before"),
        ("orders TIMESTAMP AS OF 'noon'", BadRequest, "'noon' is not a time"),
        ("orders TIMESTAMP AS OF now()", Unsupported, "after AS OF is not supported"),
        ("orders /*+ OPTIONS('scan.moed' = 'full') */", BadRequest, "no option 'scan.moed'"),
        ("orders /*+ OPTIONS('incremental-between' = '1,2') */", Unsupported, "what kind of change"),
        ("orders /*+ OPTIONS(scan.mode) */", BadRequest, "cannot read the hint"),
        ("orders VERSION AS OF 1 /*+ OPTIONS('scan.snapshot-id'='2') */", BadRequest, "two snapshots"),
        ("orders /*+ OPTIONS('scan.snapshot-id'='2', 'scan.version'='1') */", BadRequest, "exactly one of"),
        ("orders$files VERSION AS OF 'autumn'", NotFound, "no version 'autumn'"),
        ("orders$branch_b", NotFound, "no branch 'b'"),
        ("sys.table_s", NotFound, "no table 'sys.table_s'"),
        ("sys.tables VERSION AS OF 1", BadRequest, "has no snapshots"),
    ],
)
def test_what_cannot_be_read_raises(lake: Lake, source: str, error: type[ShoalError], says: str) -> None:
    with pytest.raises(error, match=says):
        rows(lake, f"SELECT * FROM {source}")


def test_system_tables_know_the_past(lake: Lake) -> None:
    assert rows(lake, "SELECT sum(record_count) FROM orders$files") == [(3,)]
    assert rows(lake, "SELECT sum(record_count) FROM orders$files VERSION AS OF 1") == [(1,)]
    assert rows(lake, "SELECT record_count FROM orders$files /*+ OPTIONS('scan.tag-name' = 'spring') */") == [(1,)]
    assert rows(lake, "SELECT id FROM orders$audit_log TIMESTAMP AS OF '1970-01-01 00:00:01'") == [(1,)]


def test_tables_of_sys_are_tables(lake: Lake) -> None:
    assert rows(lake, "SELECT database_name, table_name, primary_key FROM sys.tables") == [("shop", "orders", True)]
    assert rows(lake, "SELECT value FROM sys.all_table_options WHERE key = 'bucket'") == [("1",)]
    assert rows(lake, "SELECT count(*) FROM SYS.PARTITIONS") == [(0,)]
    assert rows(lake, "SHOW TABLES IN sys") == [("all_table_options",), ("partitions",), ("tables",)]
    assert rows(lake, "DESCRIBE sys.tables")[0][:2] == ("database_name", "STRING")


@pytest.mark.parametrize("branch", ["from_tag", "empty_branch"])
def test_branches_of_java_are_tables(golden: Any, expected: Any, branch: str) -> None:
    engine = Engine(shoal.open(golden("maint")))
    columns, java = expected(f"maint.branched.branch_{branch}")
    got = engine.query(f"SELECT * FROM branched$branch_{branch}").read_all()
    order = lambda r: str(sorted(r.items()))  # noqa: E731
    assert got.column_names == [n for n, _ in columns]
    assert sorted(got.to_pylist(), key=order) == sorted(java, key=order)
    sums = engine.query(f"SELECT coalesce(sum(record_count), 0) AS n FROM maint.branched$branch_{branch}$files")
    assert int(sums.read_all().to_pylist()[0]["n"]) == len(java)


def test_format_tables_are_tables(golden: Any) -> None:
    lake = shoal.open(golden("kinds"))
    name = "kinds.ft_w_csv_none"
    rows = lake.table(name).scan().to_arrow()
    column = rows.column_names[0]
    found = Engine(lake).query(f"SELECT a.{column} FROM {name} a, (SELECT count(*) AS n FROM {name}) WHERE n > 1")
    assert sorted(map(str, found.read_all().column(0))) == sorted(map(str, rows.column(0)))
