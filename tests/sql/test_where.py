"""Filters as text: DuckDB is the judge of which rows they keep."""

from __future__ import annotations

from functools import cache

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadRequest
from shoal.table.where import columns_of, parse

NAN, INF = float("nan"), float("inf")
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int32()),
        "tiny": pa.array([1, -128, 127, None, 0, 5], pa.int8()),
        "big": pa.array([2**63 - 1, -(2**63), 0, None, 7, 8], pa.int64()),
        "f": pa.array([1.5, NAN, -INF, None, 0.1, INF], pa.float32()),
        "d": pa.array([1.5, 0.1, -INF, None, NAN, INF], pa.float64()),
        "dec": pa.array(["1.25", "-0.01", None, "0.00", "99.99", "1.26"]).cast(pa.decimal128(9, 2)),
        "s": pa.array(["abc", "a%c", "a_c", None, "", "äb\nc"]),
        "b": pa.array([b"\x00a", b"", None, b"a", b"b", b"\xff"]),
        "flag": pa.array([True, False, None, True, False, None]),
        "day": pa.array([19782, -25567, None, 0, 2932896, 19783], pa.date32()),  # 2024-02-29, 1900-01-01, ...
        "ts": pa.array([0, 1, -1, None, 1_709_209_696_123, 1_709_209_696_120], pa.timestamp("ms")),
        "micro": pa.array([0, 1, -1, None, 1_709_209_696_123_456, 5], pa.timestamp("us")),
        "nano": pa.array([0, 1, -1, None, 1_709_209_696_123_456_789, 5], pa.timestamp("ns")),
        "ltz": pa.array([0, 1, -1, None, 1_709_209_696_123_456, 5], pa.timestamp("us", "UTC")),
        "t": pa.array([0, 1, 86_399_999, None, 45_296_000, 5], pa.time32("ms")),
        "r": pa.array([{"a": 1, "x": "p"}, None, {"a": None, "x": "q"}, {"a": 2, "x": None}, {"a": 1, "x": "r"}, None]),
        "Case": pa.array([1, 2, 3, 4, 5, 6], pa.int32()),
    }
)  # fmt: skip

SAME_AS_DUCKDB = """
tiny = 1
1 < tiny
tiny >= 1.5
tiny < 1.5
tiny = 1.5
NOT tiny = 1.5
tiny > 300
tiny < 300
tiny <> 300
tiny > -1000
big = 9223372036854775807
big >= -9223372036854775808
big > 9223372036854775808
big < 1e3
dec = 1.25
dec > 1.255
dec = 1.255
dec <= -0.01
dec BETWEEN 0 AND 1.25
dec NOT BETWEEN 0 AND 1.25
dec IN (1.25, 99.99, 5)
f = 1.5
f > 1
f >= 1.5
f < 1
f <= 1.5
f <> 1.5
NOT (f > 1)
f = CAST('NaN' AS FLOAT)
f < CAST('NaN' AS FLOAT)
f >= CAST('NaN' AS FLOAT)
f = 0.1
d = 0.1
d > 1e300
d <> CAST('Infinity' AS DOUBLE)
d IN (0.1, 1.5, CAST('NaN' AS DOUBLE))
f = d
f <> d
f > d
f >= d
f < d
f <= d
d > tiny
s = 'abc'
s > 'a'
s <> ''
s IN ('abc', '', 'zz')
s NOT IN ('abc', 'zz')
s NOT IN ('abc', NULL)
s IN ('abc', NULL)
s LIKE 'abc'
s LIKE 'a%'
s LIKE '%c'
s LIKE '%b%'
s LIKE 'a_c'
s LIKE '_b_c'
s LIKE '%'
s LIKE ''
s LIKE '__c'
s NOT LIKE 'a%'
s LIKE 'a\\%c'
s LIKE 'a!%c' ESCAPE '!'
s LIKE 'a!_%' ESCAPE '!'
s LIKE 'a$' OR s LIKE '.*'
s ILIKE 'A%C'
s = 'it''s'
flag
NOT flag
flag = TRUE
flag <> TRUE
flag IS TRUE
flag IS NOT TRUE
flag IS FALSE
flag = (tiny = 1)
TRUE
FALSE
NULL
1 = 1
2 < 1 OR tiny = 1
NULL = NULL
tiny = NULL
tiny IS NULL
tiny IS NOT NULL
NOT tiny IS NULL
(tiny > 0) IS NULL
tiny IS DISTINCT FROM 1
tiny IS NOT DISTINCT FROM NULL
r IS NULL
r.a = 1
r.a IS NULL
r.x IN ('p', 'q')
day = '2024-02-29'
day >= DATE '2024-02-29'
day < '1970-01-01'
day > TIMESTAMP '2024-02-29 12:00:00'
day BETWEEN '1900-01-01' AND '1970-01-01'
CAST('2024-03-01' AS DATE) = day
ts = '1970-01-01 00:00:00.001'
ts < '1970-01-01'
ts > TIMESTAMP '2024-02-29 12:28:16.12'
ts >= DATE '2024-02-29'
micro = '2024-02-29 12:28:16.123456'
micro <= TIMESTAMP '1970-01-01 00:00:00'
nano = '1970-01-01T00:00:00.000000001'
ltz = '1970-01-01 00:00:00Z'
ltz >= '1970-01-01 01:00:00+01:00'
ltz > '1970-01-01'
day < ts
ts < micro
t = '00:00:00.001'
t > TIME '12:00:00'
t < '12:34:56'
b = x'0061'
b > x'61'
b IN (x'', x'FF')
`tiny` = 1 AND "tiny" > 0
((tiny = 1))
tiny = 1 OR tiny = 5 AND s = 'abc'
NOT (tiny = 1 OR s = 'abc')
id IN (0, 1, 2, 3, 7, 8, 9, 10, 11, 12)
id NOT IN (0, 1, 2, 3, 7, 8, 9, 10, 11, 12)
tiny NOT IN (0, 1, 2, 3, 7, 8, 9, 10, 11, NULL)
tiny IN (0, 1.5, 300, 3, 7, 8, 9, 10, 11, 12, 5)
s IN ('abc', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j')
tiny = CAST('5' AS INT)
tiny = id
big > tiny
dec > tiny
-1 < tiny AND tiny < +5
s NOT LIKE 'a!%%' ESCAPE '!'
s NOT ILIKE 'A%'
tiny ISNULL
tiny NOTNULL
NOT tiny IS NOT NULL
tiny = 1 -- a comment
""".strip().splitlines()


@cache
def judge() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", ROWS)
    return connection


def kept(text: str) -> list[int]:
    return ROWS.filter(parse(text, ROWS.schema)).column("id").to_pylist()


def wanted(text: str) -> list[int]:
    text = text.replace("`", '"')
    return [r[0] for r in judge().sql(f"SELECT id FROM rows WHERE {text}\n ORDER BY id").fetchall()]


@pytest.mark.parametrize("text", SAME_AS_DUCKDB)
def test_a_filter_keeps_the_rows_that_duckdb_keeps(text: str) -> None:
    assert kept(text) == wanted(text)


ATOMS = [t for t in SAME_AS_DUCKDB if len(t) < 40 and "--" not in t]
CONDITIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        inner.map(lambda c: f"NOT ({c})"),
        inner.map(lambda c: f"({c}) IS NOT TRUE"),
    ),
    max_leaves=6,
)


@settings(max_examples=120, deadline=None)
@given(CONDITIONS)
def test_any_combination_keeps_the_rows_that_duckdb_keeps(text: str) -> None:
    assert kept(text) == wanted(text)


def test_a_literal_finer_than_its_column_is_not_rounded() -> None:
    assert kept("ts = '1970-01-01 00:00:00.0011'") == []
    assert kept("ts > '1970-01-01 00:00:00.0009'") == [1, 4, 5]
    assert kept("day = TIMESTAMP '2024-02-29 00:00:01'") == []


def test_an_offset_moves_a_literal_to_utc() -> None:
    assert kept("ltz = '1969-12-31 20:00:00-04:00'") == [0]
    assert kept("ts = '1970-01-01T08:00:00+08'") == [0]


def test_numbers_beyond_all_types_are_compared_without_being_built() -> None:
    assert kept("tiny < 1e999999999") == [0, 1, 2, 4, 5]
    assert kept("tiny = CAST(1e999999999 AS INT)") == []
    assert kept("tiny > 1e-999999999") == [0, 2, 5]


def test_names_match_exactly_or_else_by_case_when_only_one_does() -> None:
    assert kept("`case` = 1 OR CASE = 2".replace("CASE", '"CASE"')) == [0, 1]
    both = pa.schema([("ab", pa.int32()), ("AB", pa.int32())])
    assert str(parse("AB = 1", both)) == "(AB == 1)"
    with pytest.raises(BadRequest, match="could be ab or AB"):
        parse("Ab = 1", both)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("tinny = 1", "unknown column 'tinny'", "did you mean 'tiny'?"),
        ("r.b = 1", "unknown member of 'r' 'b'", "there are a, x"),
        ("tiny.a = 1", "it has no member 'a'", None),
        ("lower(s) = 'abc'", "the function LOWER is not supported", "query"),
        ("my_function(s)", "the function MY_FUNCTION is not supported", "query"),
        ("tiny + 1 = 2", "'tiny + 1' is not supported", None),
        ("tiny = 'abc'", "'abc' does not fit column 'tiny' of type TINYINT", None),
        ("tiny = DATE '2024-01-01'", "does not fit column 'tiny'", None),
        ("day = 'yesterday'", "'yesterday' does not fit column 'day' of type DATE", "2026-11-01"),
        ("day = '2023-02-29'", "'2023-02-29' does not fit", None),
        ("day = '2024-02-29 10:00:00'", "does not fit column 'day'", None),
        ("ts = 5", "5 does not fit column 'ts' of type TIMESTAMP(3)", None),
        ("t = '25:00:00'", "'25:00:00' does not fit column 't'", None),
        ("s = 5", "5 does not fit column 's' of type STRING", "in quotes: '5'"),
        ("b = 'a'", "'a' does not fit column 'b' of type BYTES", "x'0aff'"),
        ("flag = 1", "1 does not fit column 'flag' of type BOOLEAN", None),
        ("r = 1", "1 does not fit column 'r'", "members of a ROW"),
        ("tiny LIKE 'a'", "LIKE needs a column of strings", None),
        ("tiny", "column 'tiny' is TINYINT, not BOOLEAN", "compare"),
        ("s = day", "cannot compare 's' of type STRING with 'day' of type DATE", None),
        ("tiny IN (SELECT 1)", "IN takes a list of literals", "query"),
        ("tiny = ", "line 1, column 6", None),
        ("tiny = 1 AND\n  (s = 'a'", "line 2", None),
        ("tiny = 1 tiny", "line 1, column 13", None),
        ("s = 'a", "cannot read the filter", None),
        ("tiny = 1; DROP TABLE t", "cannot read the filter", None),
        ("tiny = 1; tiny = 2", "one condition", None),
        ("", "one condition", None),
        ("(" * 2000 + "tiny = 1" + ")" * 2000, "nested too deeply", None),
    ],
)
def test_a_wrong_filter_says_what_is_wrong(text: str, says: str, hint: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(text, ROWS.schema)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_long_lists_and_long_chains_stay_shallow() -> None:
    many = ", ".join(str(i) for i in range(2, 3000))
    assert kept(f"id IN ({many})") == [2, 3, 4, 5]
    assert kept(" OR ".join(f"id = {i}" for i in range(2, 500))) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("tiny = 1", ["tiny"]),
        ("s LIKE 'tiny%' AND big > 0", ["big", "s"]),
        ("r.a = 1 OR flag", ["flag", "r"]),
        ("TRUE", []),
        ("d > 1 AND f IS NULL", ["f", "d"]),
    ],
)
def test_columns_of_names_what_a_filter_reads(text: str, columns: list[str]) -> None:
    assert columns_of(parse(text, ROWS.schema), ROWS.schema) == columns


def test_columns_of_knows_odd_names() -> None:
    schema = pa.schema([("a b", pa.int32()), ("a", pa.int32()), ('q"\\\n', pa.int32()), ("é", pa.int32())])
    assert columns_of((pc.field("a b") > 1) & (pc.field('q"\\\n') == 2), schema) == ["a b", 'q"\\\n']
    with pytest.raises(BadRequest, match="does not fit the columns"):
        columns_of(pc.field("gone") > 1, schema)
