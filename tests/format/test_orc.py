# SPDX-License-Identifier: Apache-2.0
"""ORC data files: what Java wrote, what pyarrow writes, and damage."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from instants_model import DATA, dumped, multiset, read, rows_of
from pyarrow import orc

from shoal import Corrupt, ShoalError, Unsupported
from shoal.format import schema
from shoal.format.orc import OrcReader
from shoal.format.types import DataType, Field, arrow_schema, parse_atomic, widened

FIELDS = schema.decode((DATA / "schema-0").read_bytes(), "schema-0").fields
CODECS = ("uncompressed", "snappy", "zlib", "lz4", "zstd")
# The first day of the Gregorian calendar.
GREGORIAN = Decimal(-141_427 * 86_400)


def opened(data: bytes | Path, fields: Any, **options: Any) -> OrcReader:
    raw = data if isinstance(data, bytes) else data.read_bytes()
    return OrcReader(pa.BufferReader(raw), fields, "some/a.orc", **options)


def rows(data: bytes | Path, fields: Any, **options: Any) -> dict[int, dict[str, Any]]:
    return read(list(opened(data, fields, **options).batches([f.name for f in fields], 4)))


def wide(fields: Any) -> list[Field]:
    return [Field(f.id, f.name, widened(f.type)) for f in fields]


def plain(*types: str) -> list[Field]:
    return [Field(i, f"c{i}", parse_atomic(t)) for i, t in enumerate(types)]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def last_second_later(v: Any, only: str = "", name: str = "") -> Any:
    """What ORC makes of the last second before 1970 (but its first millisecond): it stores it like the one after."""
    if isinstance(v, Decimal):
        return v + 1 if Decimal("-0.999") <= v < 0 and (not only or name[0] in only) else v
    if isinstance(v, list):
        return [last_second_later(x, only, name) for x in v]
    if isinstance(v, dict):
        return {k: last_second_later(x, only, str(k)) for k, x in v.items()}
    return v


# ---- Java's files


@pytest.mark.parametrize("zone", ["utc", "utc_plain", "shanghai", "new_york"])
def test_java_wrote_every_year_in_its_own_zone(zone: str) -> None:
    inserted = dumped("inserted.jsonl")
    # elsewhere that second lies in an hour of the zone that is not before 1970 in UTC
    want = {k: last_second_later(v) for k, v in inserted.items()} if zone.startswith("utc") else inserted
    assert rows(DATA / f"{zone}.orc", wide(FIELDS)) == want


def test_instants_of_tables_that_are_not_legacy_need_no_zone() -> None:
    # columns z3, z9 and u are instants; the others are wall clocks of New York
    want = {k: last_second_later(v, "zu") for k, v in dumped("inserted.jsonl").items()}
    assert rows(DATA / "new_york_instants.orc", wide(FIELDS), legacy_ltz=False) == want


def test_java_reads_the_same_but_for_what_it_moves() -> None:
    got, java = rows(DATA / "utc.orc", wide(FIELDS)), dumped("java_orc_utc.jsonl")
    same = moved = 0
    for i, row in java.items():
        for name in ("ts0", "ts3", "ts6", "ts9", "z3", "z9"):
            ours, theirs = got[i][name], row[name]
            if ours is None or ours >= GREGORIAN:
                assert ours == theirs
                same += 1
            else:
                assert ours != theirs and ours % 86_400 == theirs % 86_400
                moved += 1
    assert (same, moved) == (84, 30)


def test_a_time_that_nanoseconds_cannot_hold_is_an_error_that_names_the_column() -> None:
    reader = opened(DATA / "utc.orc", FIELDS)
    with pytest.raises(Unsupported, match=r"some/a\.orc: column 'ts9' holds a time outside the years 1677 to 2262"):
        list(reader.batches(["id", "ts9"], 10))
    assert sum(b.num_rows for b in reader.batches(["ts6", "ts3", "ts0", "z3", "m"], 10)) == reader.rows == 19


@pytest.mark.parametrize("codec", ["none", "snappy", "zlib", "lz4", "zstd"])
def test_golden_codecs(codec: str, golden: Any, expected: Any) -> None:
    check_golden(golden, expected, f"formats.append_orc_{codec}")


def test_golden_types(golden: Any, expected: Any) -> None:
    got = check_golden(golden, expected, "types.append_orc")
    # CHAR(5) without its blanks, as Java reads it from ORC
    assert got.column("c_char").to_pylist() == ["ab", "", "zzzzz", None, ""]


def check_golden(golden: Any, expected: Any, name: str) -> pa.Table:
    db, table = name.split(".")
    folder = golden(db) / f"{db}.db" / table
    fields = schema.decode((folder / "schema" / "schema-0").read_bytes(), "schema-0").fields
    (file,) = folder.glob("bucket-0/*.orc")
    batches = list(opened(file, fields).batches([f.name for f in fields], 30))
    got = pa.Table.from_batches(batches)
    assert got.schema.types == arrow_schema(fields).types
    assert multiset(rows_of(got), got.schema) == multiset(expected(name)[1], got.schema)
    return got


# ---- another writer: all kinds of runs, stripes, nested columns


@pytest.mark.parametrize("codec", CODECS)
def test_integer_runs_of_all_kinds(codec: str) -> None:
    rng = random.Random(codec)
    nanos: list[int | None] = []
    while len(nanos) < 8_000:
        start, n = rng.randrange(-(2**60), 2**60), rng.randrange(1, 700)
        step = rng.choice([0, 1, 10**9, 86_400 * 10**9, -(10**6)])
        spread = rng.choice([1, 10**3, 10**9, 10**15])
        match rng.randrange(5):
            case 0:
                nanos += [start + i * step for i in range(n)]
            case 1:
                nanos += [start + rng.randrange(spread) for _ in range(n)]
            case 2:  # few values far from the others
                nanos += [start + (rng.randrange(2**40) if rng.random() < 0.05 else rng.randrange(9)) for _ in range(n)]
            case 3:
                nanos += [start] * rng.randrange(1, 12)
            case _:
                nanos += [None if rng.random() < 0.5 else start + 10 ** rng.randrange(10) for _ in range(n)]
    column = pa.array([*nanos, -1, -999_000_000, -(10**9)], pa.timestamp("ns"))
    data = written(pa.table({"c0": column}), compression=codec, stripe_size=30_000)
    reader = opened(data, plain("TIMESTAMP(9)"))
    got = pa.Table.from_batches(list(reader.batches(["c0"], 1_000)))
    assert got.column("c0").combine_chunks().equals(column)


def test_stripes_are_groups_and_batches_are_no_longer_than_asked() -> None:
    n = 50_000
    table = pa.table({"c0": pa.array(range(n), pa.int64()), "c1": [f"text {i * 7919 % n}" for i in range(n)]})
    reader = opened(written(table, stripe_size=60_000, batch_size=1_024), plain("BIGINT", "STRING"))
    assert reader.names == ("c0", "c1") and reader.rows == sum(reader.groups) == n and len(reader.groups) > 3
    sizes = [b.num_rows for b in reader.batches(["c1"], 1_000)]
    assert max(sizes) <= 1_000 and sum(sizes) == n
    third = pa.Table.from_batches(list(reader.batches(["c1", "c0"], 700, [2])))
    start = sum(reader.groups[:2])
    assert third.column_names == ["c1", "c0"]
    assert third.equals(table.select(["c1", "c0"]).slice(start, reader.groups[2]))
    assert sum(b.num_rows for b in reader.batches([], 700)) == n


def test_a_dot_in_a_name_is_no_path() -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"b": "x"}, {"b": "y"}], "0": ["p", "q"]})
    fields = [
        Field(0, "a.b", parse_atomic("BIGINT")),
        Field(1, "a", DataType("ROW", fields=(Field(2, "b", parse_atomic("STRING")),))),
        Field(3, "0", parse_atomic("STRING")),
    ]
    for names in (["a.b"], ["a"], ["0", "a.b", "a"]):
        (batch,) = opened(written(table), fields).batches(names, 10)
        assert batch.to_pylist() == table.select(names).to_pylist()


def test_nested_columns_with_nulls_at_every_level() -> None:
    rng = random.Random(2)

    def some(make: Any) -> Any:
        return None if rng.random() < 0.3 else make()

    def instant() -> int:
        return rng.randrange(0, 2**62)

    def member() -> dict[str, Any]:
        return {"t": some(instant), "l": some(lambda: [some(instant) for _ in range(rng.randrange(4))])}

    t9 = DataType("TIMESTAMP_LTZ", precision=9)
    row = DataType("ROW", fields=(Field(7, "t", t9), Field(8, "l", DataType("ARRAY", element=t9))))
    fields = [
        Field(0, "m", DataType("MAP", key=DataType("INT", False), value=row)),
        Field(1, "a", DataType("ARRAY", element=row)),
        Field(2, "s", DataType("MULTISET", element=parse_atomic("CHAR(3)"))),
    ]
    target = arrow_schema(fields)
    columns = {
        "m": [some(lambda: [(i, some(member)) for i in range(rng.randrange(4))]) for _ in range(3_000)],
        "a": [some(lambda: [some(member) for _ in range(rng.randrange(4))]) for _ in range(3_000)],
        "s": [some(lambda: [("x" * i, i) for i in range(rng.randrange(4))]) for _ in range(3_000)],
    }
    table = pa.table({f.name: pa.array(columns[f.name], f.type) for f in target}, schema=target)
    got = pa.Table.from_batches(list(opened(written(table), fields).batches(["m", "a", "s"], 999)))
    got.validate(full=True)
    assert got.schema.types == target.types and got.equals(table.cast(got.schema))


# ---- damage


def damaged(data: bytes, at: int, value: int) -> bytes:
    out = bytearray(data)
    out[at] = value
    return bytes(out)


def test_a_length_that_would_end_the_process_is_corrupt(golden: Any) -> None:
    """pyarrow's reader trusts the lengths of strings: this byte of a length stream made it crash."""
    folder = golden("formats") / "formats.db" / "append_orc_lz4"
    fields = schema.decode((folder / "schema" / "schema-0").read_bytes(), "schema-0").fields
    (file,) = folder.glob("bucket-0/*.orc")
    with pytest.raises(Corrupt, match=r"some/a\.orc: the ORC file cannot be read"):
        list(opened(damaged(file.read_bytes(), 874, 107), fields).batches(["s"], 100))


def test_lengths_beyond_what_the_stripe_holds_are_corrupt() -> None:
    table = pa.table({"c0": [["ab", "c"], ["d"]] * 200, "c1": ["abc", "d"] * 200})
    data = written(table, compression="uncompressed", dictionary_key_size_threshold=0)
    array = Field(0, "c0", DataType("ARRAY", element=parse_atomic("STRING")))
    fields = [array, Field(1, "c1", parse_atomic("STRING"))]
    refused = 0
    for at in range(3, len(data)):
        if data[at] in (1, 2, 3, 4):  # among them the base and the steps of runs of lengths
            for value in (0x7F, 0xFF):
                try:
                    for name in ("c0", "c1"):
                        for batch in opened(damaged(data, at, value), fields).batches([name], 500):
                            batch.validate()
                except ShoalError as err:
                    assert "some/a.orc" in err.message
                    refused += 1
    assert refused > 20


@pytest.mark.parametrize("name", ["utc.orc", "utc_plain.orc"])
def test_flipped_bits_are_corrupt_or_unseen_but_nothing_else(name: str) -> None:
    data, rng, seen = (DATA / name).read_bytes(), random.Random(name), 0
    for _ in range(80):
        at = rng.randrange(len(data))
        try:
            rows(damaged(data, at, data[at] ^ 1 << rng.randrange(8)), wide(FIELDS))
        except ShoalError as err:
            assert "some/a.orc" in err.message and err.hint
            seen += 1
    assert seen > 15


@pytest.mark.parametrize("kept", [0, 3, 500, 2_000, -1])
def test_cut_off_files_are_corrupt(kept: int) -> None:
    data = (DATA / "utc.orc").read_bytes()[:kept]
    with pytest.raises(Corrupt, match=r"some/a\.orc"):
        rows(data, wide(FIELDS))


def test_a_zone_that_nobody_knows_says_so() -> None:
    data = (DATA / "utc_plain.orc").read_bytes()
    assert data.count(b"UTC") == 1
    with pytest.raises(ShoalError, match=r"some/a\.orc.*XYZ"):
        rows(data.replace(b"UTC", b"XYZ"), wide(FIELDS))


def test_a_column_of_another_type_is_corrupt_and_never_plain_numbers() -> None:
    wrong = [Field(f.id, f.name, DataType("BIGINT")) for f in FIELDS]
    with pytest.raises(Corrupt, match="is not the BIGINT that the schema says"):
        list(opened(DATA / "utc.orc", wrong).batches(["ts3"], 10))
    with pytest.raises(Corrupt, match="has no column 'zz'"):
        list(opened(DATA / "utc.orc", [*FIELDS, Field(99, "zz", DataType("INT"))]).batches(["zz"], 10))
