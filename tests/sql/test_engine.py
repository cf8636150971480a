"""Queries over a small lake in memory: names, rows, what reaches the scan, values, errors."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from small_lake import SmallLake, SmallTable

from shoal.errors import BadRequest, Corrupt, NotFound, ShoalError, StorageFailed, Unsupported
from shoal.sql.encoding import jsonl
from shoal.sql.engine import Engine, split
from shoal.table.dataset import TableDataset

OLD = pa.table({"id": pa.array([1], pa.int32()), "name": ["a"], "total": pa.array([1.5])})
ORDERS = pa.table(
    {"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", None], "total": pa.array([1.5, float("nan"), 3.0])}
)
ITEMS = pa.table({"id": pa.array([1, 1, 3], pa.int32()), "item": ["x", "y", "z"]})


@pytest.fixture
def lake() -> SmallLake:
    return SmallLake(
        {
            "shop.orders": SmallTable([OLD, ORDERS]),
            "shop.items": SmallTable([ITEMS]),
            "shop.Odd Name": SmallTable([ITEMS]),
            "lab.orders": SmallTable([OLD]),
        }
    )


@pytest.fixture
def engine(lake: SmallLake) -> Engine:
    return Engine(lake, database="shop")


def rows(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for r in engine.query(sql).read_all().to_pylist()]


# ---- names


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM orders",
        "SELECT count(*) FROM shop.orders",
        "SELECT count(*) FROM paimon.shop.orders",
        "SELECT count(*) FROM `shop`.`orders`",
        'SELECT count(*) FROM "shop"."orders" AS o WHERE o.id > 0',
        "SELECT count(*) FROM ORDERS",
        "SELECT count(shop.orders.id) FROM shop.orders",
        "SELECT count(shop.orders.id) FROM orders",
        "SELECT count(`orders`.`id`) FROM orders",
        "FROM orders SELECT count(*)",
        "WITH o AS (SELECT * FROM orders) SELECT count(*) FROM o",
        "SELECT (SELECT count(*) FROM orders)",
        "SELECT n FROM (SELECT count(*) AS n FROM orders) AS items",
    ],
)
def test_a_table_is_found_by_every_spelling_of_its_name(engine: Engine, sql: str) -> None:
    assert rows(engine, sql) == [(3,)]


def test_the_only_database_is_the_default_one() -> None:
    assert rows(Engine(SmallLake({"d.t": SmallTable([OLD])})), "SELECT id FROM t") == [(1,)]


def test_a_bare_name_needs_a_database_when_there_are_several(lake: SmallLake) -> None:
    with pytest.raises(BadRequest) as caught:
        Engine(lake).query("SELECT * FROM orders")
    assert "lab, shop" in caught.value.message
    assert caught.value.hint is not None and "lab.orders" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["orders$files", "`orders$files`", "shop.orders$files", "shop.`orders$files`", "`orders$FILES` f"]
)
def test_system_tables_are_tables(engine: Engine, name: str) -> None:
    assert rows(engine, f"SELECT file_path FROM {name} WHERE level = 5") == [("b.parquet",)]


# ---- queries and what they give

_STEP = "SELECT 1 AS n UNION ALL SELECT n + 1 FROM orders WHERE n < 3"
_BOTH = "SELECT shop.orders.id, lab.orders.name FROM shop.orders, lab.orders WHERE shop.orders.id = lab.orders.id"
_FUNCTIONS = """SELECT date_format(TIMESTAMP '2024-02-03 04:05:06', 'yyyy-MM-dd HH:mm'), nvl(NULL, 1), size([1, 2]),
    list_transform([1, 2], x -> x + 1), CAST('a' AS STRING), CAST(x'61' AS BYTES), 5 // 2, 7 IN (VALUES (7))"""

QUERIES: list[tuple[str, str, list[tuple[Any, ...]]]] = [
    ("an odd name needs quotes", "SELECT count(*) FROM `odd name`", [(3,)]),
    ("a CTE hides a table of its name", "WITH orders AS (SELECT 7 AS id) SELECT * FROM orders", [(7,)]),
    ("a CTE reads the table that it hides", "WITH orders AS (SELECT id FROM orders WHERE id = 2) FROM orders", [(2,)]),
    ("but not one named with its database", "WITH orders AS (SELECT 7) SELECT count(*) FROM shop.orders", [(3,)]),
    ("a CTE is known to later ones and to inner queries",
     "WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM a) SELECT x FROM b WHERE EXISTS (SELECT 1 FROM a)", [(1,)]),
    ("but not outside of the inner query",
     "SELECT (WITH items AS (SELECT 9 AS n) SELECT n FROM items) AS n, count(*) FROM items", [(9, 3)]),
    ("a recursive CTE reads itself", f"WITH RECURSIVE orders AS ({_STEP}) SELECT max(n) FROM orders", [(3,)]),
    ("tables of one name in two databases join", _BOTH, [(1, "a")]),
    ("functions of DuckDB, Flink and Spark", _FUNCTIONS, [("2024-02-03 04:05", 1, 2, [2, 3], "a", b"a", 2, True)]),
    ("NaN is above all numbers", "SELECT id FROM orders WHERE total > 100", [(2,)]),
    ("NaN is below none", "SELECT id FROM orders WHERE total < 100 ORDER BY id", [(1,), (3,)]),
    ("join hints of Spark are ignored", "SELECT /*+ BROADCAST(o) */ count(*) FROM orders o", [(3,)]),
    ("DESCRIBE", "DESCRIBE orders", [("id", "INT", True), ("name", "STRING", True), ("total", "DOUBLE", True)]),
    ("DESC of a system table", "DESC TABLE shop.`orders$files`", [("file_path", "STRING", True), ("level", "INT", True)]),
    ("SHOW TABLES", "SHOW TABLES", [("Odd Name",), ("items",), ("orders",)]),
    ("SHOW TABLES of a database", "SHOW TABLES IN lab", [("orders",)]),
    ("SHOW TABLES by pattern", "show tables like 'i%'", [("items",)]),
    ("SHOW DATABASES", "SHOW DATABASES", [("lab",), ("shop",)]),
    ("VALUES", "VALUES (1, 'a')", [(1, "a")]),
    ("a union", "(SELECT id FROM orders) UNION SELECT 9 ORDER BY 1 DESC LIMIT 1", [(9,)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "found"), [q[1:] for q in QUERIES], ids=[q[0].replace(" ", "-") for q in QUERIES])
def test_a_query_gives_these_rows(engine: Engine, sql: str, found: list[tuple[Any, ...]]) -> None:
    assert rows(engine, sql) == found


def test_pivot_describe_and_summarize_begin_a_query(engine: Engine) -> None:
    assert sorted(rows(engine, "PIVOT items ON item USING count(*) GROUP BY id")) == [(1, 1, 1, 0), (3, 0, 0, 1)]
    assert rows(engine, "DESCRIBE SELECT id FROM orders")[0][:2] == ("id", "INTEGER")
    assert [r[0] for r in rows(engine, "SUMMARIZE orders")] == ["id", "name", "total"]


# ---- what reaches the scan


def test_columns_and_filters_reach_the_scan(lake: SmallLake, engine: Engine) -> None:
    assert rows(engine, "SELECT name FROM orders WHERE id > 1 AND name IS NOT NULL") == [("b",)]
    (call,) = lake.held["shop.orders"].calls
    assert call["columns"] == ["name"]
    assert "(id > 1)" in call["where"] and "is_null(name" in call["where"]


def test_a_count_reads_one_column(lake: SmallLake, engine: Engine) -> None:
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]
    assert len(lake.held["shop.orders"].calls[0]["columns"]) == 1


def test_limit_stops_the_scan(lake: SmallLake, engine: Engine) -> None:
    many = SmallTable([pa.table({"n": list(range(1000))})], batch_rows=10)
    lake.held["shop.many"] = many
    assert len(rows(engine, "SELECT n FROM many LIMIT 3")) == 3
    assert many.given < 20


def test_a_result_is_streamed(lake: SmallLake, engine: Engine) -> None:
    wide = pa.table({"n": list(range(300_000)), "s": ["x" * 40] * 300_000})
    many = lake.held["shop.many"] = SmallTable([wide], batch_rows=1000)
    reader = engine.query("SELECT * FROM many")
    reader.read_next_batch()
    assert many.given < 300


def test_columns_that_differ_in_case_are_both_there(lake: SmallLake, engine: Engine) -> None:
    lake.held["shop.cases"] = SmallTable([pa.table({"a": [1, 2], "A": [3, 4], "a_1": [5, 6]})])
    assert rows(engine, "SELECT * FROM cases WHERE a = 2") == [(2, 4, 6)]
    assert rows(engine, "SELECT a_1, A_2 FROM cases WHERE A_2 = 3 OR A_1 = 5") == [(5, 3)]


# ---- values


def test_values_survive(lake: SmallLake, engine: Engine) -> None:
    table = pa.table(
        {
            "dec": pa.array([Decimal("1234567890123456789012345678.0123456789")], pa.decimal128(38, 10)),
            "ns": pa.array([1_709_210_096_123_456_789], pa.timestamp("ns")),
            "ltz": pa.array([1_709_210_096_123_456_789], pa.timestamp("ns", "UTC")),
            "ltz3": pa.array([-1], pa.timestamp("ms", "UTC")),
            "s": pa.array([253_402_300_799], pa.timestamp("s")),
            "t": pa.array([86_399_999], pa.time32("ms")),
            "b": pa.array([b"\x00\xff"]),
            "f": pa.array([0.1], pa.float32()),
            "day": pa.array([dt.date(9999, 12, 31)]),
            "l": pa.array([[1, None]], pa.list_(pa.int32())),
            "m": pa.array([[("k", {"x": [1.5]})]], pa.map_(pa.string(), pa.struct([("x", pa.list_(pa.float64()))]))),
            "n": pa.array([None], pa.int8()),
        }
    )
    lake.held["shop.types"] = SmallTable([table])
    assert "".join(jsonl(engine.query("SELECT * FROM types"))) == "".join(jsonl(table.to_reader()))
    assert rows(engine, "SELECT count(*) FROM types WHERE ltz > '2024-02-29 12:34:56.123456788Z'") == [(1,)]


def test_sums_of_integers_are_written_as_numbers(engine: Engine) -> None:
    assert (
        "".join(jsonl(engine.query("SELECT sum(id) AS s, CAST(1 AS DECIMAL(38, 0)) AS d FROM orders")))
        == '{"s":6,"d":"1"}\n'
    )


# ---- other statements


def test_explain_shows_the_plan_without_reading(lake: SmallLake, engine: Engine) -> None:
    ((_, plan),) = rows(engine, "EXPLAIN SELECT name FROM orders WHERE id = 1")
    assert "name" in plan and "id" in plan
    assert lake.held["shop.orders"].calls == []


def test_split_takes_a_script_apart() -> None:
    script = "SELECT ';' -- one; two\n; SELECT `a;b`, \"c;d\" /* ; */;\n-- the end;\n;SELECT 'it''s;'"
    assert split(script) == ["SELECT ';' -- one; two", 'SELECT `a;b`, "c;d" /* ; */', "SELECT 'it''s;'"]
    assert split(" ;; -- nothing\n") == []
    assert split("SELECT 'open; SELECT 2") == ["SELECT 'open; SELECT 2"]


# ---- errors


@pytest.mark.parametrize(
    ("sql", "error", "says", "hint"),
    [
        ("SELECT * FROM order", NotFound, "unknown table 'shop.order'", "'orders'"),
        ("SELECT * FROM lab.items", NotFound, "unknown table 'lab.items'", "shop.items"),
        ("SELECT * FROM shopp.orders", NotFound, "unknown database 'shopp'", "'shop'"),
        ("SELECT * FROM other.shop.orders", NotFound, "unknown catalog 'other'", "paimon"),
        ("SELECT * FROM orders$file", NotFound, "unknown system table 'orders$file'", "'files'"),
        ("SELECT idd FROM orders", BadRequest, 'Referenced column "idd" not found', '"id"'),
        ("SELECT lowr(name) FROM orders", BadRequest, "lowr does not exist", '"lower"'),
        ("SELECT id FROM orders WHERE name = 5", BadRequest, "Could not convert string", None),
        ("SELECT\n  FROM WHERE", BadRequest, "line 2", None),
        ("SELECT (1", BadRequest, "line 1, column 9", None),
        ("SELCT 1", BadRequest, "'SELCT' does not begin a statement", "'SELECT'"),
        ("SELECT 'a", BadRequest, "cannot read the query", None),
        ("", BadRequest, "there is no statement", "SELECT"),
        ("-- nothing", BadRequest, "there is no statement", "SELECT"),
        ("SELECT 1; SELECT 2", BadRequest, "one statement at a time", "split"),
        ("UPSERT INTO orders VALUES (1)", Unsupported, "UPSERT is not a query", "INSERT"),
        ("SELECT * INTO x FROM orders", Unsupported, "INTO", "INSERT INTO t SELECT"),
        ("CREATE TABLE x (a INT)", Unsupported, "CREATE is not a query", "create_table"),
        ("CALL sys.compact('t')", Unsupported, "CALL is not a query", "maintain"),
        ("COPY orders TO 'x.csv'", Unsupported, "COPY is not a query", "csv"),
        ("SET memory_limit = '1TB'", Unsupported, "SET is not a query", "OPTIONS"),
        ("INSTALL httpfs", Unsupported, "INSTALL is not a query", "warehouse"),
        ("SHOW COLUMNS FROM orders", Unsupported, "SHOW COLUMNS", "DESCRIBE"),
        ("SELECT * FROM 'x.parquet'", NotFound, "unknown table 'x.parquet'", "files cannot be queried"),
        ("SELECT * FROM read_csv('/etc/passwd')", Unsupported, "/etc/passwd", "warehouse"),
        ("SELECT * FROM glob('/*')", Unsupported, "Cannot access", "warehouse"),
        ("SELECT * FROM OLD", NotFound, "unknown table 'shop.OLD'", None),
        ("SELECT id FROM orders FOR UPDATE", Unsupported, "FOR UPDATE", None),
        ("EXPLAIN", BadRequest, "EXPLAIN needs a query", None),
        ("DESCRIBE nothing", NotFound, "unknown table", None),
    ],
)
def test_a_statement_that_cannot_run_says_why_in_one_line(
    engine: Engine, sql: str, error: type[ShoalError], says: str, hint: str | None
) -> None:
    with pytest.raises(error) as caught:
        engine.query(sql).read_all()
    assert says in caught.value.message
    assert "\n" not in caught.value.message and "__shoal" not in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_an_error_of_the_scan_comes_out_as_it_is(lake: SmallLake, engine: Engine) -> None:
    lake.held["shop.orders"].fails = Corrupt("data-1.parquet is cut short")
    for sql in ("SELECT * FROM orders", "SELECT count(*) FROM orders", "SELECT max(id) FROM orders GROUP BY name"):
        with pytest.raises(Corrupt, match="cut short"):
            engine.query(sql).read_all()


def test_a_value_that_fails_late_is_a_bad_request(lake: SmallLake, engine: Engine) -> None:
    lake.held["shop.texts"] = SmallTable([pa.table({"s": ["1"] * 200_000 + ["x"]})], batch_rows=50_000)
    with pytest.raises(BadRequest, match="Could not convert string 'x'"):
        engine.query("SELECT CAST(s AS INT) FROM texts").read_all()


def test_the_memory_limit_holds(lake: SmallLake) -> None:
    with pytest.raises(StorageFailed) as caught:
        Engine(lake, memory_limit="20MB").query("SELECT list(x) FROM range(10000000) AS t(x)").read_all()
    assert caught.value.hint is not None and "memory_limit" in caught.value.hint
    with pytest.raises(BadRequest):
        Engine(lake, memory_limit="much").query("SELECT 1")


def test_queries_of_one_engine_do_not_see_each_other(lake: SmallLake, engine: Engine) -> None:
    lake.held["shop.many"] = SmallTable([pa.table({"id": range(200_000)})], batch_rows=50_000)
    slow = engine.query("SELECT id FROM many")
    assert rows(engine, "SELECT count(*) FROM items") == [(ITEMS.num_rows,)]
    assert slow.read_all().num_rows == 200_000
    with pytest.raises(BadRequest):
        engine.query("SELECT CAST('x' AS INT)").read_all()
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]


def test_an_engine_whose_duckdb_takes_no_query_any_more_opens_another(engine: Engine) -> None:
    assert rows(engine, "SELECT 1") == [(1,)]
    assert engine._database is not None
    engine._database.close()
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]


# ---- the dataset by itself


def test_a_dataset_serves_anyone_who_takes_one(lake: SmallLake) -> None:
    table = lake.held["shop.orders"]
    found = TableDataset(table)  # type: ignore[arg-type]
    assert found.schema == ORDERS.schema
    assert found.to_table(columns=["name"], filter=pc.field("id") > 1).to_pydict() == {"name": ["b", None]}
    assert table.calls[-1]["columns"] == ["name"] and table.calls[-1]["where"] == "(id > 1)"
    assert found.count_rows() == 3 and found.head(2).num_rows == 2
    assert found.to_table(columns={"twice": pc.field("id") * 2}).to_pydict() == {"twice": [2, 4, 6]}
    assert found.filter(pc.field("id") > 1).filter(pc.field("id") < 3).to_table().column("id").to_pylist() == [2]
    assert TableDataset(table, snapshot=1).count_rows() == 1  # type: ignore[arg-type]


def test_polars_pushes_columns_and_filters_into_a_dataset(lake: SmallLake) -> None:
    pl = pytest.importorskip("polars")
    table = lake.held["shop.orders"]
    lazy = pl.scan_pyarrow_dataset(TableDataset(table))  # type: ignore[arg-type]
    assert lazy.filter(pl.col("id") > 2).select("total").collect().rows() == [(3.0,)]
    assert "id > 2" in table.calls[-1]["where"]


@pytest.mark.parametrize("call", ["get_fragments()", "sort_by('id')", "replace_schema(None)", "join(None, 'id')"])
def test_what_a_dataset_cannot_do_raises(lake: SmallLake, call: str) -> None:
    name, _, arguments = call.rstrip(")").partition("(")
    with pytest.raises(Unsupported, match=name):
        getattr(TableDataset(lake.held["shop.orders"]), name)(*[a for a in arguments.split(",") if a])  # type: ignore[arg-type]
