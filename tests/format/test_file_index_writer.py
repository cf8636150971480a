# SPDX-License-Identifier: Apache-2.0
"""File indexes built over the rows of files that Java 2.0.0 indexed: the containers are equal to the byte.

data/file_indexes.tar.xz has bloom filters, bitmaps of both versions with small blocks, bsi and range bitmaps with small
and with default chunks, over every type that an index takes, with NaN, both zeros, instants before 1970, an index over
a key of a map, columns of nulls and files of one row. Larger columns are read back with the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from shoal.errors import BadRequest
from shoal.format import file_index, predicate, roaring, schema
from shoal.format.file_index_writer import IndexWriter, specs
from shoal.format.manifest import decode_entries, entries_of
from shoal.format.types import DataType, Field, arrow_schema

DATA = Path(__file__).parent / "data"
TABLES = ("bloom", "bitmap", "bitmap_v1", "bsi", "rng", "rng_big")


@pytest.fixture(scope="module")
def folder(unpacked: Callable[[Path], Path]) -> Path:
    return unpacked(DATA / "file_indexes.tar.xz") / "ix.db"


def files(table: Path) -> list[tuple[str, pa.Table, bytes]]:
    """(name, rows in the schema's types, index) of each data file."""
    fields = schema.decode((table / "schema/schema-0").read_bytes(), "schema-0").fields
    out = []
    for path in sorted((table / "manifest").glob("manifest-[!l]*")):
        for entry in entries_of(decode_entries(path.read_bytes(), path.name)):
            name = entry.file.file_name
            index = entry.file.embedded_index
            if index is None:
                index = (table / "bucket-0" / entry.file.extra_files[0]).read_bytes()
            rows = pq.read_table(table / "bucket-0" / name).cast(arrow_schema(fields))
            out.append((name, rows, index))
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("batch", [1000, 7], ids=["at once", "in batches"])
def test_indexes_equal_javas(folder: Path, table: str, batch: int) -> None:
    s = schema.decode((folder / table / "schema/schema-0").read_bytes(), "schema-0")
    found = files(folder / table)
    assert len(found) == 4
    for name, rows, index in found:
        writer = IndexWriter(s.fields, s.options)
        for part in rows.to_batches(max_chunksize=batch):
            writer.write(part)
        made = writer.finish()
        assert made is not None
        mine = {(p.column, p.kind): p.data for p in file_index.decode(made, name)}
        theirs = {(p.column, p.kind): p.data for p in file_index.decode(index, name)}
        assert list(mine) == list(theirs)
        for part, data in theirs.items():
            if mine[part] != data:  # fifteen floats in one slot of Java's table, which became a tree
                assert part == ("f", "bitmap") and table in ("bitmap", "bitmap_v1")
                assert len(mine[part] or b"") == len(data or b"")
                for v in rows["f"].unique():
                    node = predicate.of(pc.field("f") == v, pa.schema([("f", pa.float32())]))
                    asked = {"f": DataType("FLOAT")}
                    assert file_index.rows(made, node, asked, len(rows), name) == file_index.rows(
                        index, node, asked, len(rows), name
                    )
        assert len(made) == len(index)
        assert made == index or mine["f", "bitmap"] != theirs["f", "bitmap"]


def written(fields: list[Field], options: dict[str, str], rows: pa.Table) -> bytes:
    writer = IndexWriter(fields, options)
    writer.write(rows)
    made = writer.finish()
    assert made is not None
    return made


def test_a_key_of_a_map_has_a_row_for_each_row_of_the_file() -> None:
    text = DataType("VARCHAR", length=20)
    fields = [Field(0, "m", DataType("MAP", key=DataType("VARCHAR", False, length=9), value=text))]
    maps = [[("a", "x"), ("b", "y")], None, [("b", "x")], [("a", None)], [], [("a", "x")]]
    rows = pa.table({"m": pa.array(maps, pa.map_(pa.string(), pa.string()))})
    index = written(fields, {"file-index.bitmap.columns": "m[a],m[nothing],m[b]"}, rows.slice(1))
    parts = {p.column: p.data for p in file_index.decode(index, "x")}
    assert parts["m[nothing]"] is None
    node = predicate.of(pc.field("m[b]") == "x", pa.schema([("m[b]", pa.string())]))
    assert set(file_index.rows(index, node, {"m[b]": text}, 5, "x") or ()) == {1}
    node = predicate.of(pc.field("m[a]").is_null(), pa.schema([("m[a]", pa.string())]))
    assert set(file_index.rows(index, node, {"m[a]": text}, 5, "x") or ()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "kind", ["bitmap", "range-bitmap"],
)  # fmt: skip
def test_large_columns_are_found_again(kind: str) -> None:
    """Many containers, runs, values of one row, text of many chunks and blocks."""
    rng = np.random.default_rng(5)
    n = 200_000
    values = np.where(rng.random(n) < 0.5, 7, rng.integers(0, 30_000, n))
    table = pa.table({
        "i": pa.array(values, pa.int64(), mask=rng.random(n) < 0.1),
        "s": pa.array(values).cast(pa.string()),
    })  # fmt: skip
    fields = [Field(0, "i", DataType("BIGINT")), Field(1, "s", DataType("VARCHAR", length=20))]
    index = written(fields, {f"file-index.{kind}.columns": "i,s"}, table)
    types = {f.name: f.type for f in fields}
    for v in (7, 12, 29_999, 31_000, int(values[-1])):
        for column, literal in (("i", v), ("s", str(v))):
            node = predicate.of(pc.field(column) == literal, table.schema)
            got = file_index.rows(index, node, types, n, "x")
            want = np.flatnonzero(pc.fill_null(pc.equal(table[column], literal), False).to_numpy())
            assert got is not None and np.array_equal(np.array(list(got)), want)


def test_groups_of_bitmaps_equal_single_ones() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        n = int(rng.choice([1, 5, 300, 20_000]))
        codes = np.sort(np.where(rng.random(n) < rng.random(), 0, rng.integers(0, 1 + int(rng.integers(1, 40)), n)))
        codes = np.unique(codes, return_inverse=True)[1]
        rows = np.sort(rng.choice(n * int(rng.choice([1, 2, 40])), n, replace=False))
        rows = rng.permutation(rows) if rng.random() < 0.3 else rows
        order = np.lexsort((rows, codes))
        rows, starts = rows[order], np.searchsorted(codes, np.arange(codes.max() + 2))
        data, at = roaring.encode_groups(rows, starts)
        for i in range(len(starts) - 1):
            assert data[at[i] : at[i + 1]] == roaring.encode(rows[starts[i] : starts[i + 1]])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"file-index.bitmap.columns": "nothing"}, "column 'nothing' does not exist"),
        ({"file-index.bitmap.columns": "d"}, "index 'bitmap' does not take 'd'"),
        ({"file-index.bloom-filter.columns": "b"}, "index 'bloom-filter' does not take 'b'"),
        ({"file-index.bsi.columns": "s"}, "index 'bsi' does not take 's'"),
        ({"file-index.range-bitmap.columns": "t9"}, "index 'range-bitmap' does not take 't9'"),
        ({"file-index.bitmap.columns": "s[a]"}, "needs a MAP with text keys"),
        ({"file-index.hash.columns": "s"}, "no index 'hash'"),
        ({"file-index.bitmap.columns": "s", "file-index.bitmap.s.version": "3"}, "a number from 1 to 2"),
        ({"file-index.bloom-filter.columns": "s", "file-index.bloom-filter.s.fpp": "2"}, "above 0 and up to 1"),
        ({"file-index.bloom-filter.columns": "s", "file-index.bloom-filter.s.items": "x"}, "a number from 1"),
    ],
)
def test_what_java_refuses_is_refused_before_anything_is_written(options: dict[str, str], says: str) -> None:
    fields = [
        Field(0, "s", DataType("VARCHAR", length=9)), Field(1, "d", DataType("DECIMAL", precision=9, scale=2)),
        Field(2, "b", DataType("BOOLEAN")), Field(3, "t9", DataType("TIMESTAMP", precision=9)),
    ]  # fmt: skip
    with pytest.raises(BadRequest, match=says.replace("[", r"\[")):
        specs(fields, options)


def test_values_that_an_index_cannot_hold_are_told() -> None:
    wide = [Field(0, "d", DataType("DECIMAL", precision=38, scale=0))]
    rows = pa.table({"d": pa.array([10**30], pa.decimal128(38, 0))})
    with pytest.raises(BadRequest, match="column 'd'"):
        written(wide, {"file-index.bsi.columns": "d"}, rows)
    least = pa.table({"d": pa.array([-(2**63)], pa.int64())})
    with pytest.raises(BadRequest, match="column 'd'"):
        written([Field(0, "d", DataType("BIGINT"))], {"file-index.bsi.columns": "d"}, least)
    text = pa.table({"d": ["x" * 100]})
    options = {"file-index.bitmap.columns": "d", "file-index.bitmap.d.index-block-size": "64 b"}
    with pytest.raises(BadRequest, match="bitmap index block"):
        written([Field(0, "d", DataType("VARCHAR", length=200))], options, text)


def test_timestamps_beyond_64_bits_of_nanoseconds_are_rounded_down() -> None:
    t = DataType("TIMESTAMP", precision=9, wide=True)
    seconds = ["253402300799.999999999", "-62135596800.000000001", "-0.000000001", "0.000001999"]
    rows = pa.table({"t": pa.array(seconds).cast(pa.decimal128(38, 9))})
    index = written([Field(0, "t", t)], {"file-index.bsi.columns": "t"}, rows)
    narrow = DataType("BIGINT")
    for i, micros in enumerate([253402300799999999, -62135596800000001, -1, 1]):
        node = predicate.of(pc.field("t") == micros, pa.schema([("t", pa.int64())]))
        assert set(file_index.rows(index, node, {"t": narrow}, 4, "x") or ()) == {i}
