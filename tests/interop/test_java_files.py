# SPDX-License-Identifier: Apache-2.0
"""Java reads the files that shoal wrote: every format, codec and type, keyed and not, rewritten by either."""

from __future__ import annotations

from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field, parse, to_arrow

ROWS = 1_500
SCALARS = [
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(9,2)",
    "DECIMAL(18,0)",
    "DECIMAL(38,10)",
    "CHAR(5)",
    "VARCHAR(9)",
    "STRING",
    "BINARY(4)",
    "VARBINARY(8)",
    "BYTES",
    "DATE",
    "TIME(3)",
    "TIMESTAMP(0)",
    "TIMESTAMP(3)",
    "TIMESTAMP(6)",
    "TIMESTAMP_LTZ(3)",
    "TIMESTAMP_LTZ(6)",
]
NANOS = ["TIMESTAMP(9)", "TIMESTAMP_LTZ(9)"]
NESTED: list[Any] = [
    {"type": "ARRAY", "element": "STRING"},
    {"type": "ARRAY", "element": {"type": "ARRAY", "element": "BIGINT"}},
    {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"},
    {"type": "MAP", "key": "INT NOT NULL", "value": {"type": "ARRAY", "element": "TIMESTAMP(6)"}},
    {"type": "ROW", "fields": [{"id": 100, "name": "a", "type": "DECIMAL(20,4)"},
                               {"id": 101, "name": "b", "type": {"type": "ARRAY", "element": {
                                   "type": "ROW", "fields": [{"id": 102, "name": "c", "type": "DATE"},
                                                             {"id": 103, "name": "d", "type": "DOUBLE"}]}}}]},
]  # fmt: skip
CODECS = {
    "orc": ["zstd", "zlib", "snappy", "lz4", "none"],
    "avro": ["zstd", "snappy", "deflate", "bzip2", "null"],
    "parquet": ["zstd", "snappy", "gzip", "lz4", "lz4_raw", "none"],
}
CASES = [
    (form, codec, keyed) for form, codecs in CODECS.items() for codec in codecs for keyed in (False, codec == "zstd")
]
CASES = list(dict.fromkeys(CASES))
MIXED = {"file.format.per.level": "0:avro,5:orc", "file.compression.per.level": "0:snappy,5:zlib"}


def name_of(form: str, codec: str, keyed: bool) -> str:
    return f"d.{'pk' if keyed else 'ap'}_{form}_{codec}"


def fields(form: str) -> list[Field]:
    texts = [*SCALARS, *([] if form == "avro" else NANOS), *NESTED]
    return [Field(0, "id", parse("INT NOT NULL")), *(Field(i, f"c{i}", parse(t)) for i, t in enumerate(texts, 1))]


def random_column(t: DataType, rows: int, rng: np.random.Generator, nulls: float = 0.2) -> pa.Array:
    """Values of every size, times before 1970, texts of other alphabets; a few of them often, so that they repeat."""
    missing = rng.random(rows) < (nulls if t.nullable else 0)
    mask, arrow = pa.array(missing), to_arrow(t)
    if t.root in ("ARRAY", "MAP", "ROW"):
        if t.root == "ROW":
            members = [random_column(f.type, rows, rng) for f in t.fields]
            return pa.StructArray.from_arrays(members, fields=list(arrow), mask=mask)
        counts = np.where(missing, 0, rng.integers(0, 4, rows))
        offsets, total = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32()), int(counts.sum())
        if t.root == "ARRAY":
            return pa.ListArray.from_arrays(offsets, random_column(t.element, total, rng), type=arrow, mask=mask)
        steps = pa.array(np.arange(total), pa.int32())
        keys = steps if t.key.root == "INT" else pa.array([f"k{i}" for i in range(total)])
        return pa.MapArray.from_arrays(offsets, keys, random_column(t.value, total, rng), type=arrow, mask=mask)
    wide = rng.integers(-(1 << 62), 1 << 62, rows) >> rng.integers(0, 62, rows)
    match t.root:
        case "BOOLEAN":
            values = pa.array(wide > 0)
        case "FLOAT" | "DOUBLE":
            values = pa.array((wide / 7e9).astype(arrow.to_pandas_dtype()))
        case "DECIMAL":
            most = 10**t.precision - 1
            factor = 10**19 if t.precision > 18 else 1
            exact = Context(prec=40)
            whole = [int(w) * (factor if i % 3 else 1) % (most + 1) * (-1 if i % 2 else 1) for i, w in enumerate(wide)]
            values = pa.array([Decimal(v).scaleb(-t.scale, exact) for v in whole], arrow)
        case "CHAR" | "VARCHAR":
            words = ["", "a", "é", "日本", "x y", "zz", "🙂"]
            texts = [words[w % 7] + ("" if w % 3 else str(w % 100)) for w in wide.tolist()]
            values = pa.array([v.rstrip(" ") for v in texts])
        case "BINARY" | "VARBINARY":
            size = t.length if t.root == "BINARY" else None
            values = pa.array([(w % (1 << 32)).to_bytes(4, "big")[: size or w % 5] for w in wide.tolist()])
        case "DATE":
            values = pa.array((wide % 40_000 - 20_000).astype(np.int32)).view(arrow)
        case "TIME":
            values = pa.array((wide % 86_400_000).astype(np.int32)).view(arrow)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            per = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[arrow.unit]
            # no moment of the last second before 1970, which ORC cannot hold
            ticks = wide % (4_000_000_000 * per) - 2_000_000_000 * per
            values = pa.array(np.where((ticks < 0) & (ticks > -per), 0, ticks)).view(arrow)
        case _:
            bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}[t.root]
            values = pa.array((wide >> (64 - bits)).astype(arrow.to_pandas_dtype()))
    return values.filter(pa.array(~missing)).take(pa.array(np.cumsum(~missing) - 1, mask=missing)).cast(arrow)


def make(warehouse: Path, name: str, keyed: bool, form: str, options: dict[str, str]) -> pa.Table:
    """A table with random rows, written in three commits."""
    columns = fields(form)
    folder = warehouse / f"d.db/{name.split('.')[1]}/schema"
    folder.mkdir(parents=True)
    options = {"file.format": form, "bucket": "1" if keyed else "-1", "file.block-size": "256 kb", **options}
    schema = Schema(0, tuple(columns), 200, (), ("id",) if keyed else (), options)
    (folder / "schema-0").write_bytes(schema.encode())
    table = shoal.open(f"file:{warehouse}").table(name)
    rng = np.random.default_rng(len(name))
    ids = pa.array(rng.permutation(ROWS).astype(np.int32))
    arrays = [ids, *(random_column(f.type, ROWS, rng) for f in columns[1:])]
    rows = pa.Table.from_arrays(arrays, names=[f.name for f in columns])
    with table.write() as w:
        for start in (0, 1, ROWS // 2):
            end = {0: 1, 1: ROWS // 2}.get(start, ROWS)
            (w.upsert if keyed else w.append)(rows.slice(start, end - start))
            w.commit()
    return rows


def same(rows: list[dict[str, Any]], table: pa.Table) -> bool:
    return multiset(rows, table.schema) == multiset(rows_of(table), table.schema)


def test_what_is_written_in_any_format_is_read_back_here(tmp_path: Path) -> None:
    for form in CODECS:
        rows = make(tmp_path, f"d.{form}", False, form, {})
        assert same(rows_of(shoal.open(str(tmp_path)).table(f"d.{form}").scan().to_arrow()), rows)


@pytest.mark.java
@pytest.mark.timeout(900)
def test_java_reads_every_format_and_codec_and_rewrites_it(java, tmp_path: Path) -> None:
    made = {name_of(*c): make(tmp_path, name_of(*c), c[2], c[0], {"file.compression": c[1]}) for c in CASES}
    thin = {"data-file.thin-mode": "true", **MIXED}
    for name, extra in (("d.thin", thin), ("d.level", MIXED)):
        made[name] = make(tmp_path, name, True, "avro", {**extra, "num-sorted-run.compaction-trigger": "3"})
        shoal.open(str(tmp_path)).table(name).maintain.compact(full=True)
    results = java(tmp_path, [f"SELECT * FROM {n}" for n in made])
    wrong = [n for (n, rows), r in zip(made.items(), results) if not same(r.rows, rows)]
    assert not wrong
    keyed = [n for n in made if "ap_" not in n]
    calls = [f"CALL sys.compact(`table` => '{n}', compact_strategy => 'full')" for n in keyed[:3] + keyed[-2:]]
    java(tmp_path, calls)
    lake = shoal.open(str(tmp_path))
    assert not [n for n, rows in made.items() if not same(rows_of(lake.table(n).scan().to_arrow()), rows)]
