# SPDX-License-Identifier: Apache-2.0
"""Avro data files: what Java wrote, what fastavro writes, and damage."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from instants_model import multiset, rows_of

from shoal import Corrupt, ShoalError, Unsupported
from shoal.format import schema
from shoal.format.avro_data import AvroReader
from shoal.format.types import DataType, Field, arrow_schema, parse_atomic

P = parse_atomic
ARRAY_OF_INTS = DataType("ARRAY", element=P("INT"))
PAIR = DataType("ROW", fields=(Field(0, "b", P("STRING")), Field(1, "a", P("BIGINT"))))


def opened(data: bytes | Path, fields: Any) -> AvroReader:
    raw = data if isinstance(data, bytes) else data.read_bytes()
    return AvroReader(pa.BufferReader(raw), fields, "some/a.avro")


def table(data: bytes | Path, fields: Any, rows: int = 1_000) -> pa.Table:
    got = pa.Table.from_batches(list(opened(data, fields).batches([f.name for f in fields], rows)))
    got.validate(full=True)
    assert got.schema.types == arrow_schema(fields).types
    return got


def written(record: dict[str, Any], rows: list[Any], codec: str = "null", **options: Any) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(record), rows, codec=codec, **options)
    return out.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def container(avro: Any, *blocks: tuple[int, bytes]) -> bytes:
    """A file of these blocks as they are."""
    text = json.dumps(avro).encode()
    out = b"Obj\x01\x02" + b"\x16avro.schema" + number(len(text)) + text + b"\0" + b"s" * 16
    return out + b"".join(number(n) + number(len(b)) + b + b"s" * 16 for n, b in blocks)


def number(n: int) -> bytes:
    n = n << 1 ^ n >> 63
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


# ---- Java's files


@pytest.mark.parametrize(
    "name", [*(f"formats.append_avro_{c}" for c in ("null", "snappy", "zstd", "deflate", "bzip2")), "types.append_avro"]
)
def test_golden_tables(name: str, golden: Any, expected: Any) -> None:
    db, of = name.split(".")
    folder = golden(db) / f"{db}.db" / of
    fields = schema.decode((folder / "schema" / "schema-0").read_bytes(), "schema-0").fields
    (file,) = folder.glob("bucket-0/*.avro")
    got = table(file, fields, 30)
    assert multiset(rows_of(got), got.schema) == multiset(expected(name)[1], got.schema)
    assert opened(file, fields).rows == got.num_rows and opened(file, fields).names == tuple(got.column_names)


# ---- another writer


def everything(rng: random.Random, i: int) -> dict[str, Any]:
    def some(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    def pair() -> dict[str, Any]:
        return {
            "a": rng.randrange(-(2**63), 2**63),
            "skipped": ["x" * rng.randrange(9)] * rng.randrange(3),
            "b": some("é" * i),
        }

    day = timedelta(microseconds=rng.randrange(-(6 * 10**16), 10**17))
    return {
        "id": i,
        "small": some(rng.randrange(-128, 128)),
        "long": some(rng.choice([2**63 - 1, -(2**63), 0, -1, 63, 64, -65, 8191, 8192, 2**20, 2**21, 2**27])),
        "float": some(rng.choice([1.5, -0.0, 3.0e38])),
        "double": rng.random(),
        "flag": some(rng.random() < 0.5),
        "text": some("中文🐋"[: rng.randrange(4)] * rng.randrange(60)),
        "bytes": rng.randbytes(rng.randrange(200)),
        "money": some(Decimal(rng.randrange(-(10**38) + 1, 10**38) if rng.random() < 0.5 else -i).scaleb(-10)),
        "ms": some(datetime(2001, 1, 1, tzinfo=UTC) + timedelta(milliseconds=rng.randrange(-(6 * 10**13), 10**14))),
        "us": some(datetime(1970, 1, 1, tzinfo=UTC) + day),
        "local": datetime(1970, 1, 1) + day,
        "date": some(date(1, 1, 1) + timedelta(days=rng.randrange(3_652_058))),
        "time": time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.randrange(1000) * 1000),
        "list": some([some(rng.randrange(-(2**31), 2**31)) for _ in range(rng.randrange(4))]),
        "map": some({f"k{k}": some(pair()) for k in range(rng.randrange(4))}),
        "pairs": some([{"key": k, "value": some(rng.random())} for k in range(rng.randrange(4))]),
        "bag": some({f"{k}": k for k in range(rng.randrange(4))}),
        "row": some(pair()),
    }


PAIR_AVRO = record("pair", a="long", skipped={"type": "array", "items": "string"}, b=["null", "string"])
EVERYTHING = record(
    "record", id="int", small=["null", "int"], long=["null", "long"], float=["null", "float"], double="double",
    flag=["null", "boolean"], text=["null", "string"], bytes="bytes",
    money=["null", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}],
    ms=["null", {"type": "long", "logicalType": "timestamp-millis"}],
    us=["null", {"type": "long", "logicalType": "timestamp-micros"}],
    local={"type": "long", "logicalType": "local-timestamp-micros"},
    date=["null", {"type": "int", "logicalType": "date"}], time={"type": "int", "logicalType": "time-millis"},
    list=["null", {"type": "array", "items": ["null", "int"]}],
    map=["null", {"type": "map", "values": ["null", PAIR_AVRO]}],
    pairs=["null", {"type": "array", "items": record("entry", key="int", value=["null", "double"])}],
    bag=["null", {"type": "map", "values": "int"}], row=["null", "pair"],
)  # fmt: skip
MULTISET = DataType("MULTISET", element=P("STRING"))
FIELDS = [
    Field(i, n, t)
    for i, (n, t) in enumerate(
        {
            "id": P("INT NOT NULL"), "small": P("TINYINT"), "long": P("BIGINT"), "float": P("FLOAT"),
            "double": P("DOUBLE"), "flag": P("BOOLEAN"), "text": P("STRING"), "bytes": P("BYTES"),
            "money": P("DECIMAL(38, 10)"), "ms": P("TIMESTAMP(3)"), "us": P("TIMESTAMP(6)"),
            "local": P("TIMESTAMP_LTZ(6)"), "date": P("DATE"), "time": P("TIME(3)"), "list": ARRAY_OF_INTS,
            "map": DataType("MAP", key=P("STRING NOT NULL"), value=PAIR),
            "pairs": DataType("MAP", key=P("INT NOT NULL"), value=P("DOUBLE")), "bag": MULTISET, "row": PAIR,
        }.items()
    )
]  # fmt: skip
ROWS = [everything(random.Random(i), i) for i in range(300)]


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Arrow's Python values: instants without zone where Paimon's type has none, maps as pairs."""

    def member(p: Any) -> Any:
        return None if p is None else {"b": p["b"], "a": p["a"]}

    out = dict(row)
    out["ms"], out["us"] = (row[k] and row[k].replace(tzinfo=None) for k in ("ms", "us"))
    out["local"] = row["local"].replace(tzinfo=UTC)
    out["map"] = None if row["map"] is None else [(k, member(v)) for k, v in row["map"].items()]
    out["pairs"] = None if row["pairs"] is None else [(e["key"], e["value"]) for e in row["pairs"]]
    out["bag"] = None if row["bag"] is None else list(row["bag"].items())
    out["row"] = member(row["row"])
    return out


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_all_types_and_codecs(codec: str) -> None:
    got = table(written(EVERYTHING, ROWS, codec, sync_interval=5_000), FIELDS, 100)
    want = [as_read(r) for r in ROWS]
    floats = [None if r["float"] is None else pa.scalar(r["float"], pa.float32()).as_py() for r in want]
    assert got.column("float").to_pylist() == floats
    assert got.drop_columns("float").to_pylist() == [{k: v for k, v in r.items() if k != "float"} for r in want]


@pytest.mark.parametrize("column", [f.name for f in FIELDS[1:]])
def test_columns_that_are_not_asked_for_are_skipped(column: str) -> None:
    data = written(EVERYTHING, ROWS[:50])
    reader = opened(data, FIELDS)
    (batch,) = reader.batches([column, "id"], 100)
    assert batch.schema.names == [column, "id"] and batch.column(1).to_pylist() == list(range(50))
    assert batch.column(0).equals(table(data, FIELDS).column(column).combine_chunks())


def test_batches_are_no_longer_than_asked_and_blocks_are_put_together() -> None:
    data = written(record("r", n="int"), [{"n": i} for i in range(10_000)], sync_interval=400)
    fields = [Field(0, "n", P("INT"))]
    reader = opened(data, fields)
    sizes = [b.num_rows for b in reader.batches(["n"], 1_000)]
    assert max(sizes) <= 1_000 and min(sizes[:-1]) > 500 and sum(sizes) == reader.rows == 10_000
    assert [b.num_rows for b in opened(data, fields).batches(["n"], 7)] != sizes
    assert table(data, fields, 7).column("n").to_pylist() == list(range(10_000))
    assert sum(b.num_rows for b in reader.batches([], 300)) == 10_000
    with pytest.raises(Unsupported, match="no row groups"):
        list(reader.batches(["n"], 10, [1]))


def test_shapes_that_other_writers_give_a_schema() -> None:
    fields = [
        Field(0, "x", P("INT")),
        Field(1, "y", DataType("ROW", fields=(Field(2, "z", P("INT")), Field(3, "new", P("INT"))))),
    ]
    inner = {"type": "record", "name": "a.b.Inner", "fields": [{"name": "z", "type": ["int", "null"]}]}
    avro = record("r", x=["int", "null"], first=inner, y=["null", "a.b.Inner"])
    # x = 3, first.z = null, y = {z: -1}; then x = null, first.z = 1, y = null
    body = b"\x00\x06" + b"\x02" + b"\x02\x00\x01" + b"\x02" + b"\x00\x02" + b"\x00"
    want = [{"x": 3, "y": {"z": -1, "new": None}}, {"x": None, "y": None}]
    assert table(container(avro, (2, body)), fields).to_pylist() == want
    # rows as the second type of a union, as Java's converter gives a nullable row type
    body = b"\x02" + body[:6] + b"\x02" + body[6:]
    assert table(container(["null", avro], (2, body)), fields).to_pylist() == want


def test_arrays_in_several_blocks_with_their_sizes() -> None:
    fields = [Field(0, "l", ARRAY_OF_INTS)]
    avro = record("r", skipped={"type": "array", "items": "int"}, l={"type": "array", "items": "int"})
    # two items with their size (a negative count), then one without, then the end
    items = number(-2) + number(2) + b"\x02\x04" + number(1) + b"\x06" + b"\0"
    assert table(container(avro, (2, (items + items) * 2)), fields).to_pylist() == [{"l": [1, 2, 3]}] * 2


# ---- damage


def refused(data: bytes, fields: Any, match: str) -> None:
    with pytest.raises(Corrupt, match=match) as error:
        table(data, fields)
    assert "some/a.avro" in error.value.message


def test_blocks_that_do_not_add_up_are_corrupt() -> None:
    ints, fields = record("r", n="int"), [Field(0, "n", P("INT"))]
    assert table(container(ints, (2, b"\x02\x04")), fields).to_pylist() == [{"n": 1}, {"n": 2}]
    refused(container(ints, (3, b"\x02\x04")), fields, "claims 3 records in 2 bytes")
    refused(container(ints, (-1, b"\x02\x04")), fields, "claims -1 records")
    refused(container(ints, (1, b"\x02\x04")), fields, "a block of 2 bytes ends at 1")
    refused(container(ints, (2, b"\x02\x84")), fields, "does not fit the file's schema|ends at")
    refused(container(ints, (1, b"\xff" * 12 + b"\x01")), fields, "does not fit the file's schema|ends at")
    refused(
        container(ints, (1, b"\xfe\xff\xff\xff\x7f")), fields, "column 'n' holds a value that is no INT|holds int64"
    )
    refused(container(ints, (2, b"\x02\x04"))[:-1], fields, "ends in the middle of a block")
    refused(container(ints, (2, b"\x02\x04")).replace(b"s" * 16 + b"\x04", b"t" * 16 + b"\x04"), fields, "marker")


def test_lengths_are_bounded_by_the_block() -> None:
    texts, fields = record("r", s="string"), [Field(0, "s", P("STRING"))]
    refused(container(texts, (1, number(2**40) + b"abc")), fields, "does not fit|ends at")
    refused(container(texts, (1, number(-3) + b"abc")), fields, "does not fit|ends at")
    refused(container(texts, (1, b"\x04\xff\xfe")), fields, "column 's' holds")
    lists, fields = record("r", l={"type": "array", "items": "int"}), [Field(0, "l", ARRAY_OF_INTS)]
    refused(container(lists, (1, number(2**50) + b"\0")), fields, "does not fit|ends at")
    refused(container(lists, (1, number(-(2**50)) + b"\0\0")), fields, "does not fit|ends at")
    # values without bytes could be as many as a number can say
    nothing = record("r", l={"type": "array", "items": record("empty")})
    rows = [Field(0, "l", DataType("ARRAY", element=DataType("ROW")))]
    with pytest.raises(Unsupported, match=r"some/a\.avro: .* without bytes"):
        table(container(nothing, (1, number(2**50) + b"\0")), rows)


def test_a_schema_that_does_not_fit_is_corrupt() -> None:
    fields = [Field(0, "n", P("INT"))]
    refused(container(record("r", m="int"), (1, b"\0")), fields, "has no column 'n'")
    refused(container("int", (1, b"\0")), fields, "is no record")
    refused(
        container(record("r", n={"type": "array", "items": "int"}), (1, b"\0")), fields, "the Avro type 'array' where"
    )
    refused(container(record("r", n="string"), (1, b"\2x")), fields, "column 'n'")
    refused(container(record("r", n="nobody"), (1, b"\2x")), fields, "an unknown type 'nobody'")
    with pytest.raises(Unsupported, match="a union of 3 types"):
        table(container(record("r", n=["null", "int", "long"]), (1, b"\0")), fields)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_flipped_bits_are_corrupt_or_unseen_but_nothing_else(codec: str) -> None:
    data, rng, seen = written(EVERYTHING, ROWS[:60], codec, sync_interval=4_000), random.Random(codec), 0
    for _ in range(120):
        bad = bytearray(data)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        try:
            table(bytes(bad), FIELDS)
        except ShoalError as err:
            assert "some/a.avro" in err.message and err.hint
            seen += 1
    assert seen > {"null": 20, "deflate": 30, "snappy": 90}[codec]
