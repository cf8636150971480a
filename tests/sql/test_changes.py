# SPDX-License-Identifier: Apache-2.0
"""Statements that change rows, over a lake in memory: what they leave, what they say, what they refuse."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, NotFound, ShoalError, Unsupported
from shoal.sql.engine import Engine
from shoal.store.memory import MemoryStore

COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("total", pa.float64()), ("day", pa.string())])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"options": {"bucket": "-1"}},
    "parts": {"options": {"bucket": "-1"}, "partition_by": ["day"]},
    "marks": {"options": {"bucket": "-1", "deletion-vectors.enabled": "true"}},
    "wide": {
        "options": {
            "bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true",
            "deletion-vectors.enabled": "true",
        }
    },
    "keyed": {"options": {"bucket": "2"}, "primary_key": ["id"]},
}  # fmt: skip


def engine(**how: Any) -> Engine:
    """An engine over a store of its own that holds both tables."""
    store = MemoryStore()
    for path, data in made(json.dumps(how)).items():
        store.put(path, data)
    return over(store)


def over(store: MemoryStore) -> Engine:
    return Engine(Lake(store, clock=ManualClock(), scheduler=ManualScheduler), database="shop")  # type: ignore[arg-type]


@cache
def made(kind: str) -> dict[str, bytes]:
    """The files of the tables, written once for each kind."""
    how, store = json.loads(kind), MemoryStore()
    e = over(store)
    lake = e.lake
    lake.create_table("shop.t", COLUMNS, **how)
    lake.create_table("shop.news", pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())]))
    say(e, "INSERT INTO news VALUES (2, 'two', 20), (4, 'four', 40), (9, 'nine', NULL)")
    say(
        e,
        "INSERT INTO t VALUES (1, 'a', 1.5, 'mon'), (2, 'b', 2, 'mon'), (3, NULL, 3.25, 'tue'), (4, 'd', NULL, 'tue')",
    )
    return {f.path: store.read(f.path) for f in store.list("")}


def say(e: Engine, sql: str) -> dict[str, Any]:
    (row,) = e.query(sql).read_all().to_pylist()
    return row


def held(e: Engine, columns: str = "id, name, total, day") -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for r in e.query(f"SELECT {columns} FROM t ORDER BY id").read_all().to_pylist()]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest) -> Engine:
    return engine(**KINDS[request.param])


def test_rows_go_in_by_position_by_name_and_from_a_query(shop: Engine) -> None:
    assert say(shop, "INSERT INTO t (day, id) VALUES ('wed', 5)") == {"inserted": 1, "snapshot": 2}
    assert say(shop, "INSERT INTO t SELECT id + 100, upper(name), qty / 8, 'x' FROM news") == {
        "inserted": 3, "snapshot": 3,
    }  # fmt: skip
    assert say(shop, "INSERT INTO t BY NAME SELECT 'sun' AS day, 7 AS id")["inserted"] == 1
    assert say(shop, "WITH w AS (SELECT 8 AS i) INSERT INTO t SELECT i, NULL, NULL, 'w' FROM w")["inserted"] == 1
    assert held(shop)[4:] == [
        (5, None, None, "wed"), (7, None, None, "sun"), (8, None, None, "w"),
        (102, "TWO", 2.5, "x"), (104, "FOUR", 5.0, "x"), (109, "NINE", None, "x"),
    ]  # fmt: skip


def test_rows_go_by_conditions_of_every_kind(shop: Engine) -> None:
    assert say(shop, "DELETE FROM t AS x WHERE x.id = 1 OR total > 3")["deleted"] == 2
    assert say(shop, "DELETE FROM shop.t WHERE id IN (SELECT n.id FROM news n WHERE n.qty > 30)")["deleted"] == 1
    assert [r[0] for r in held(shop)] == [2]
    assert say(shop, "DELETE FROM t WHERE EXISTS (SELECT 1 FROM news n WHERE n.id = t.id AND n.qty = 0)") == {
        "deleted": 0, "snapshot": None,
    }  # fmt: skip
    assert say(shop, "DELETE FROM t WHERE levenshtein(name, 'c') = 1")["deleted"] == 1
    assert held(shop) == []


def test_columns_are_set_to_what_duckdb_computes(shop: Engine) -> None:
    done = say(shop, "UPDATE t SET total = coalesce(total, 0) + id, name = concat(t.name, '!') WHERE id >= 3")
    assert done["updated"] == 2
    assert held(shop, "id, name, total")[2:] == [(3, "!", 6.25), (4, "d!", 4.0)]
    say(shop, "UPDATE t AS x SET total = (SELECT max(qty) FROM news WHERE news.id = x.id), name = NULL WHERE id < 4")
    assert held(shop, "id, name, total") == [(1, None, None), (2, None, 20.0), (3, None, None), (4, "d!", 4.0)]
    assert say(shop, "UPDATE t SET total = -1")["updated"] == 4


def test_rows_are_merged(shop: Engine) -> None:
    done = say(
        shop,
        """MERGE INTO t AS a USING (SELECT * FROM news WHERE id < 100) AS b ON a.id = b.id
        WHEN MATCHED AND b.qty > 30 AND a.day = 'tue' THEN UPDATE SET a.name = b.name, total = a.id * b.qty
        WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED AND b.qty IS NULL THEN INSERT (id, name, day) VALUES (b.id, b.name || '?', 'new')
        WHEN NOT MATCHED BY SOURCE AND a.id = 3 THEN UPDATE SET name = 'three'""",
    )
    assert {k: done[k] for k in ("inserted", "updated", "deleted")} == {"inserted": 1, "updated": 2, "deleted": 1}
    assert held(shop) == [
        (1, "a", 1.5, "mon"), (3, "three", 3.25, "tue"), (4, "four", 160.0, "tue"), (9, "nine?", None, "new"),
    ]  # fmt: skip
    same = "SELECT CAST(id + 1 AS INT) AS id, name, 0 AS total, 'm' AS day FROM news"
    shop.query(
        f"MERGE INTO t USING ({same}) s ON s.id - 1 + 1 = t.id WHEN MATCHED THEN UPDATE SET name = s.name "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert [r[:2] for r in held(shop)] == [
        (1, "a"), (3, "two"), (4, "four"), (5, "four"), (9, "nine?"), (10, "nine"),
    ]  # fmt: skip


def test_partitions_are_replaced() -> None:
    e = engine(**KINDS["parts"])
    say(e, "INSERT OVERWRITE t SELECT 5, 'e', 5, 'tue'")
    assert [r[0] for r in held(e)] == [1, 2, 5]
    say(e, "INSERT OVERWRITE t PARTITION (day = 'mon') SELECT id, name, qty FROM news WHERE id = 2")
    assert held(e) == [(2, "two", 20.0, "mon"), (5, "e", 5.0, "tue")]
    say(e, "INSERT INTO t PARTITION (day = 'wed') (name, id) VALUES ('w', 6)")
    assert held(e)[-1] == (6, "w", None, "wed")
    say(e, "INSERT OVERWRITE t /*+ OPTIONS('dynamic-partition-overwrite' = 'false') */ SELECT 1, 'only', 0, 'mon'")
    assert held(e) == [(1, "only", 0.0, "mon")]
    assert say(e, "TRUNCATE TABLE t")["deleted"] is None
    assert held(e) == []


def test_what_a_row_id_matches() -> None:
    e = engine(**KINDS["wide"])
    e.query(
        "MERGE INTO t USING (SELECT 2 AS r, 'by id' AS n) s ON t._ROW_ID = s.r WHEN MATCHED THEN UPDATE SET name = s.n"
    )
    assert held(e, "id, name")[2] == (3, "by id")


@pytest.mark.parametrize(
    ("sql", "error", "says"),
    [
        ("INSERT INTO t VALUES (1)", BadRequest, "needs 4 columns"),
        ("INSERT INTO t (idd) VALUES (1)", NotFound, "unknown column 'idd'"),
        ("INSERT INTO t VALUES ('x', 'y', 1, 'z')", BadRequest, "column 'id'"),
        ("INSERT INTO nothing VALUES (1)", NotFound, "unknown table"),
        ("INSERT INTO t$files VALUES (1)", BadRequest, "cannot be changed"),
        ("INSERT INTO t SELECT 1, 'a', 1, 'b' ON CONFLICT DO NOTHING", Unsupported, "ON CONFLICT"),
        ("INSERT INTO t DEFAULT VALUES", Unsupported, "default"),
        ("INSERT INTO t PARTITION (name = 'x') SELECT 1, 2, 3", NotFound, "unknown partition column 'name'"),
        ("DELETE FROM t USING news WHERE t.id = news.id", Unsupported, "news is not supported"),
        ("DELETE FROM t WHERE idd = 1", NotFound, "unknown column 'idd'"),
        ("DELETE FROM t WHERE o.id = 1", BadRequest, "unknown table 'o'"),
        ("DELETE FROM t WHERE id = 1 RETURNING id", Unsupported, "RETURNING"),
        ("UPDATE t SET id = 1, id = 2", BadRequest, "twice"),
        ("UPDATE t SET idd = 1", NotFound, "unknown column 'idd'"),
        ("UPDATE t SET total = name", BadRequest, "column 'total'"),
        ("UPDATE t SET name = 'x' FROM news", Unsupported, "FROM news is not supported"),
        ("MERGE INTO t USING news n ON t.id > n.id WHEN MATCHED THEN DELETE", Unsupported, "ON t.id > n.id"),
        ("MERGE INTO t USING news n ON t.id = n.id WHEN MATCHED THEN UPDATE SET name = id", BadRequest, "in both tables"),
        ("MERGE INTO t USING news AS t ON t.id = t.id WHEN MATCHED THEN DELETE", BadRequest, "called 't'"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(sql: str, error: type[ShoalError], says: str) -> None:
    e = engine(**KINDS["parts"])
    before = held(e)
    with pytest.raises(error, match=says.replace("(", r"\(")):
        e.query(sql)
    assert held(e) == before
