# SPDX-License-Identifier: Apache-2.0
"""A filter, a projection or a limit never changes which rows come out: random ones against reading everything.

The judge of an Arrow expression is Arrow over all rows, that of SQL text is DuckDB over all rows. More with
SHOAL_PRUNING_SEEDS=500.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from filters import expression, rows, sql

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

SEEDS = int(os.environ.get("SHOAL_PRUNING_SEEDS", "8"))
FILTERS = 12
_PREFIX = "a prefix longer than statistics keep "
_T0 = datetime(2024, 1, 1)

# What a column may hold: Arrow type, and a value by a number that grows from row to row.
_KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random, int], Any]]] = {
    "small": (pa.int8(), lambda r, i: i % 100 - 50),
    "int": (pa.int32(), lambda r, i: i),
    "long": (pa.int64(), lambda r, i: i << 40),
    "float": (pa.float32(), lambda r, i: r.choice([float("nan"), -0.0, 0.0, float("-inf"), i / 4, i / 4])),
    "double": (pa.float64(), lambda r, i: float(i) if i % 700 else float("nan")),
    "money": (pa.decimal128(9, 2), lambda r, i: Decimal(i).scaleb(-2)),
    "huge": (pa.decimal128(38, 10), lambda r, i: Decimal(i * 10**20).scaleb(-10)),
    "text": (pa.string(), lambda r, i: f"{i:05}"),
    "long_text": (pa.string(), lambda r, i: f"{_PREFIX}{i:05}"),
    "few": (pa.string(), lambda r, i: r.choice(["", " ", "ä", "z", "\U0001f389", "%_"])),
    "bytes": (pa.binary(), lambda r, i: i.to_bytes(3, "big")),
    "day": (pa.date32(), lambda r, i: date(2024, 1, 1) + timedelta(i)),
    "ms": (pa.timestamp("ms"), lambda r, i: _T0 + timedelta(milliseconds=i)),
    "us": (pa.timestamp("us"), lambda r, i: _T0 + timedelta(microseconds=i)),
    "ns": (pa.timestamp("ns"), lambda r, i: _T0 + timedelta(hours=i)),
    "ltz": (pa.timestamp("us", "UTC"), lambda r, i: (_T0 + timedelta(hours=i)).replace(tzinfo=UTC)),
    "flag": (pa.bool_(), lambda r, i: i > 500),
    "nothing": (pa.int32(), lambda r, i: None),
    "row": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda r, i: {"a": i, "b": None if i % 3 else "x"}),
}


def _batch(rng: random.Random, schema: pa.Schema, kinds: dict[str, str], keys: list[int]) -> pa.Table:
    columns = []
    for f in schema:
        if f.name == "k":
            columns.append(pa.array(keys, f.type))
        elif f.name == "p":
            columns.append(pa.array([rng.choice(["a", "b", " "]) for _ in keys], f.type))
        else:
            make, shift = _KINDS[kinds[f.name]][1], rng.choice([0, 0, 1_000])
            values = [None if rng.random() < 0.1 else make(rng, k + shift) for k in keys]
            columns.append(pa.array(values, _KINDS[kinds[f.name]][0]).cast(f.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _change_schema(rng: random.Random, table: Table) -> None:
    """One schema version more: value columns swap names, go, come back empty, are new, or get wider."""
    found = json.loads(table.store.read(f"schema/schema-{table.schema.id}"))
    fields = found["fields"]
    values = [f for f in fields if f["name"].startswith("v")]
    a, b = rng.sample(values, 2)
    change = rng.choice(["swap", "return", "add", "widen", "widen"])
    if change == "swap":
        a["name"], b["name"] = b["name"], a["name"]
    if change in ("return", "add"):
        found["highestFieldId"] += 1
        new = {"id": found["highestFieldId"], "name": a["name"] if change == "return" else f"v_{found['id']}"}
        fields.append({**new, "type": a["type"]})
        if change == "return":
            fields.remove(a)
    wider = {"TINYINT": "INT", "INT": "BIGINT", "DECIMAL(9, 2)": "DECIMAL(13, 4)", "FLOAT": "DOUBLE", "DATE": "STRING"}
    for f in values if change == "widen" else ():
        if isinstance(f["type"], str):
            f["type"] = wider.get(f["type"], f["type"])
    found["id"] += 1
    table.store.create(f"schema/schema-{found['id']}", json.dumps(found).encode())


def _make(rng: random.Random, lake: Lake) -> Table:
    """A table of several commits, some of them large enough for several row groups."""
    names = [f"v{i}" for i in range(rng.randrange(3, 7))]
    kinds = {n: rng.choice(list(_KINDS)) for n in names}
    keyed, split = rng.random() < 0.5, rng.random() < 0.5
    schema = pa.schema([("k", pa.int32()), *([("p", pa.string())] if split else []),
                        *((n, _KINDS[kinds[n]][0]) for n in names)])  # fmt: skip
    options = {
        "bucket": rng.choice([1, 1, 3]) if keyed else rng.choice([-1, 2]), "file.block-size": "1kb",
        "metadata.stats-mode": rng.choice(["truncate(16)", "full", "counts", "truncate(2)"]),
        "num-sorted-run.compaction-trigger": rng.choice([3, 50]),
    }  # fmt: skip
    if not keyed and options["bucket"] == 2:
        options["bucket-key"] = "k"
    table = lake.create_table(
        "d.t", schema, primary_key=(["p", "k"] if split else ["k"]) if keyed else (),
        partition_by=["p"] if split else (), options=options,
    )  # fmt: skip
    for commit in range(rng.randrange(3, 7)):
        if commit and rng.random() < 0.4:
            _change_schema(rng, table)
            table = lake.table("d.t")
        for f in table.arrow_schema:
            if f.name not in ("k", "p") and (f.name not in kinds or _KINDS[kinds[f.name]][0] != f.type):
                fits = [k for k, (t, _) in _KINDS.items() if t == f.type]
                kinds[f.name] = rng.choice(fits or (["text"] if pa.types.is_string(f.type) else ["small"]))
        keys = sorted(rng.sample(range(6_000), rng.choice([1, 20, 300, 3_000])))
        with table.write() as w:
            part = _batch(rng, table.arrow_schema, kinds, keys)
            w.upsert(part) if keyed else w.append(part)
            if keyed and rng.random() < 0.5:
                w.delete(part.slice(0, 1 + len(keys) // 3))
            w.commit()
    return table


@cache
def _duck() -> duckdb.DuckDBPyConnection:
    """One for all tables: to open it takes longer than to ask it."""
    duck = duckdb.connect()
    duck.execute("SET TimeZone='UTC'")
    return duck


def _check(rng: random.Random, table: Table, filters: int) -> int:
    """How many filters agreed."""
    whole = table.scan(columns=list(table.readable)).to_arrow()
    names, done = whole.column_names, 0
    duck = _duck()
    duck.register("t", whole.append_column("the row", pa.array(range(whole.num_rows), pa.int64())))
    for i in range(filters):
        some = rng.sample(names, min(len(names), rng.choice([1, 2, 3, 8])))
        where: Any
        if i % 3:
            where = expression(rng, whole, some)
            try:
                wanted = whole.filter(where)
            except pa.ArrowException:
                continue  # Arrow has no such comparison
        else:
            where = sql(rng, whole, some)
            found = duck.execute(f'SELECT "the row" FROM t WHERE {where}').fetchall()
            wanted = whole.take(pa.array([r for (r,) in found], pa.int64()))
        columns = rng.choice([None, [rng.choice(names) for _ in range(rng.randrange(4))]])
        wanted = wanted.select(table.schema.names if columns is None else columns)
        got = table.scan(where=where, columns=columns).to_arrow()
        told = f"{table!r} where {where} columns {columns}"
        due = rows(wanted)
        assert rows(got) == due, told
        limit = rng.randrange(0, 40)
        first = table.scan(where=where, columns=columns, limit=limit).to_arrow()
        assert first.num_rows == min(limit, wanted.num_rows), f"{told} limit {limit}"
        assert not set(rows(first)) - set(due), f"{told} limit {limit}"
        done += 1
    return done


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_filters_over_tables_of_our_own(seed: int) -> None:
    rng = random.Random(f"own {seed}")
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, wide_timestamps=False)
    table = _make(rng, lake)
    assert _check(rng, table, FILTERS) > FILTERS // 2


def _tables(warehouse: Path, db: str) -> Iterator[tuple[str, Table]]:
    lake = shoal.open(str(warehouse))
    for name in lake.tables(db):
        yield name, lake.table(f"{db}.{name}")


@pytest.mark.parametrize("db", ["evo", "dv", "engines", "formats", "tracking"])
def test_random_filters_over_tables_of_java(golden: Callable[[str], Path], db: str) -> None:
    done = 0
    for name, table in _tables(golden(db), db):
        rng = random.Random(f"java {db} {name}")
        try:
            if table.scan(columns=list(table.readable)).to_arrow().num_rows > 5_000:
                continue
        except shoal.ShoalError:
            continue  # what cannot be read at all is the matter of other tests
        done += _check(rng, table, 2 if SEEDS < 50 else 40)
    assert done > 0


def test_an_old_version_never_comes_back_for_its_values() -> None:
    """The old file has row groups that match, the new one has none: both must be read where their keys meet."""
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32())])
    options = {"bucket": 1, "file.block-size": "1kb", "num-sorted-run.compaction-trigger": 50}
    table = _lake().create_table("d.t", schema, primary_key=["k"], options=options)
    keys = pa.array(range(4_000), pa.int32())
    for values in (keys, pc.add(keys, pa.scalar(10_000, pa.int32()))):
        with table.write() as w:
            w.upsert(pa.Table.from_arrays([keys, values], schema=schema))
            w.commit()
    for where in ("v = 1500", "v < 4000", "v IN (3, 3999)", "k < 100 AND v < 5000", "v <= 3999 OR v IS NULL"):
        assert table.scan(where=where).to_arrow().num_rows == 0, where
    assert table.scan(where="v = 11500 OR v = 1500").to_arrow().to_pylist() == [{"k": 1500, "v": 11500}]
    with table.write() as w:
        w.delete(pa.Table.from_arrays([keys, keys], schema=schema).slice(0, 2_000))
        w.commit()
    assert table.scan(where="v = 11500 OR v = 1500").to_arrow().num_rows == 0
    assert table.scan(where="v < 12010", limit=50).to_arrow().num_rows == 10


# ---- columns ---------------------------------------------------------------------------------------------


def _lake(**more: Any) -> Lake:
    return Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, **more)


@pytest.mark.parametrize("keys", [(), ("k",), ("p", "k")])
def test_rows_are_counted_without_columns(keys: tuple[str, ...]) -> None:
    schema = pa.schema([("k", pa.int32()), ("p", pa.string()), ("r", pa.list_(pa.int32()))])
    options = {"bucket": 1 if keys else -1}
    parts = ["p"] if "p" in keys else []
    table = _lake().create_table("d.t", schema, primary_key=keys, partition_by=parts, options=options)
    assert table.scan(columns=[]).to_arrow().num_rows == 0
    for start in (0, 3):
        with table.write() as w:
            some = [{"k": start + i, "p": "ab"[i % 2], "r": [i]} for i in range(5)]
            w.upsert(some) if keys else w.append(some)
            w.commit()
    n = 10 if not keys else 8 if keys == ("k",) else table.scan().to_arrow().num_rows
    found = table.scan(columns=[]).to_arrow()
    assert (found.num_rows, found.num_columns) == (n, 0)
    assert table.scan(columns=[], where="k >= 7").to_arrow().num_rows == 1
    assert table.scan(columns=[], limit=4).to_arrow().num_rows == 4
    assert table.scan(columns=[]).to_reader().read_all().num_rows == n
    assert table.dataset().count_rows() == n
    duck = duckdb.connect()
    duck.register("t", table.dataset())
    assert duck.execute("SELECT count(*) FROM t").fetchall() == [(n,)]
    assert table.scan(columns=["p", "k", "p"]).to_arrow().column_names == ["p", "k", "p"]


def test_a_projection_does_not_bring_removed_rows_back(golden: Callable[[str], Path]) -> None:
    table = shoal.open(str(golden("engines"))).table("engines.pu_remove_group")
    whole = table.scan().to_arrow()
    for name in whole.column_names:
        assert table.scan(columns=[name]).to_arrow().column(name).to_pylist() == whole.column(name).to_pylist(), name


def test_changes_of_columns_that_came_later(golden: Callable[[str], Path]) -> None:
    """Java gives the columns a commit wrote, the others null; its diff of such a table fails."""
    table = shoal.open(str(golden("tracking"))).table("tracking.de")
    rows_of = table.changes(2, 3, mode="delta", columns=["id", "w"]).to_arrow()
    assert rows_of.column("w").to_pylist() == [10, 222, 30, 444]
    assert rows_of.column("id").null_count == 4
    assert table.changes(2, 3, mode="delta", where="w > 100").to_arrow().num_rows == 2
    assert table.changes(2, 3, mode="delta", where="id > 0").to_arrow().num_rows == 0
    with pytest.raises(shoal.Unsupported, match="data evolution"):
        table.changes(2, 3, mode="diff")


def test_columns_by_number_are_refused() -> None:
    table = _lake().create_table("d.t", pa.schema([("k", pa.int32()), ("v", pa.int32())]), primary_key=["k"])
    with pytest.raises(shoal.BadRequest, match="by number"):
        table.scan(where=pc.field(0) > 1)
    with pytest.raises(shoal.BadRequest, match="by number"):
        table.scan(where=(pc.field("v") > 1) & (pc.field(0) > 1), columns=["v"])
    assert table.scan(where="v > 1").to_arrow().num_rows == 0


def test_a_bucket_key_of_another_type_now_prunes_no_bucket() -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32())])
    lake = _lake()
    table = lake.create_table("d.t", schema, options={"bucket": 4, "bucket-key": "k"})
    with table.write() as w:
        w.append([{"k": k, "v": k} for k in range(-20, 20)])
        w.commit()
    found = json.loads(table.store.read("schema/schema-0"))
    found["id"], found["fields"][0]["type"] = 1, "BIGINT"
    table.store.create("schema/schema-1", json.dumps(found).encode())
    table = lake.table("d.t")
    for k in range(-20, 20):
        assert table.scan(where=f"k = {k}").to_arrow().column("v").to_pylist() == [k]


# ---- timestamps of any year ------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "where, wanted",
    [
        ("w > '2020-01-01'", [2, 3]), ("w = TIMESTAMP '2020-01-01 00:00:00.000001'", [2]), ("w > d", [0, 1, 2, 3]),
        ("m > w", []), ("w = z", [0, 1, 2, 3]), ("r.w < '2020-01-01'", [0, 1]), ("w <> m", [0, 1, 2, 3]),
        ("z <= '2020-01-01T01:00:00.000001+01:00'", [0, 1, 2]), ("w BETWEEN '2019-01-01' AND DATE '2021-01-01'", [1, 2]),
        ("w IN (" + ", ".join(f"'20{y}-01-01 00:00:00.000001'" for y in range(19, 30)) + ")", [1, 2, 3]),
        ("NOT w >= '2019-01-01 00:00:00.0000010005'", [0]), ("w IS NULL", []),
    ],
)  # fmt: skip
def test_text_about_timestamps_of_nanoseconds(where: str, wanted: list[int], wide: bool) -> None:
    ns = pa.timestamp("ns")
    schema = pa.schema([
        ("k", pa.int32()), ("w", ns), ("m", pa.timestamp("ms")), ("d", pa.date32()), ("z", pa.timestamp("ns", "UTC")),
        ("r", pa.struct([("w", ns)])),
    ])  # fmt: skip
    store = MemoryStore()
    made = Lake(store, clock=ManualClock(), scheduler=ManualScheduler).create_table("d.t", schema)
    at = [datetime(2018 + i, 1, 1, 0, 0, 0, 1) for i in range(4)]
    with made.write() as w:
        w.append([{"k": i, "w": t, "m": t.replace(microsecond=0), "d": t.date(), "z": t.replace(tzinfo=UTC),
                   "r": {"w": t}} for i, t in enumerate(at)])  # fmt: skip
        w.commit()
    table = Lake(store, clock=ManualClock(), scheduler=ManualScheduler, wide_timestamps=wide).table("d.t")
    if "0000010005" in where:
        with pytest.raises(shoal.BadRequest, match=r"column 'w' of type TIMESTAMP\(9\)"):
            table.scan(where=where)
        return
    assert table.scan(where=where, columns=["k"]).to_arrow().column("k").to_pylist() == wanted
