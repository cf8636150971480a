# SPDX-License-Identifier: Apache-2.0
"""Format tables: folders that Java wrote, and folders written by hand that Java read (tests/golden/kinds.tar.xz).

The names tell what a folder holds: `ft_w_` is Java's own, `ft_c_` has texts that are hard to read.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kinds_truth import java_rows, same_rows

import shoal
from shoal.errors import BadRequest, Corrupt, ShoalError, Unsupported
from shoal.format.schema import Schema, decode
from shoal.format.types import Field, parse
from shoal.store.base import Store
from shoal.store.local import LocalStore
from shoal.store.memory import MemoryStore
from shoal.table.format_table import FormatTable, is_format_table

Golden = Callable[[str], Path]

WRITTEN = (
    "csv_deflate", "csv_gzip", "csv_lz4", "csv_none", "csv_none_only", "csv_snappy", "json_bzip2", "json_gzip",
    "json_none", "json_none_only", "orc_zstd", "parquet_zstd", "parquet_zstd_only",
)  # fmt: skip
BY_HAND = (
    "bom", "gz", "json", "json_ignore", "json_intmap", "line", "parts", "quotes", "quotes_drop", "semi", "tab", "text",
    "types",
)  # fmt: skip


def table_at(folder: Path) -> FormatTable:
    schema = decode((folder / "schema" / "schema-0").read_bytes(), str(folder))
    assert is_format_table(schema)
    return FormatTable(folder.name, LocalStore(str(folder)), schema)


@pytest.mark.parametrize("name", [*(f"ft_w_{n}" for n in WRITTEN), *(f"ft_c_{n}" for n in BY_HAND)])
def test_rows_are_those_that_java_reads(golden: Golden, name: str) -> None:
    folder = golden("kinds")
    found = table_at(folder / "kinds.db" / name).scan().to_arrow()
    mine, java = same_rows(found, java_rows(folder, name))
    assert mine == java


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("failfast", r"f\.csv: column 'a' \(INT\) holds 'bad'"),
        ("json_bad", r"f\.json: column 'a' \(INT\) holds 'x'"),
        ("json_empty", r"f\.json: the line '' is no JSON object"),
    ],
)
def test_what_java_refuses_is_refused(golden: Golden, name: str, says: str) -> None:
    folder = golden("kinds")
    assert "error" in java_rows(folder, f"ft_c_{name}")[-1]
    with pytest.raises(Corrupt, match=says):
        table_at(folder / "kinds.db" / f"ft_c_{name}").scan().to_arrow()


def test_the_catalog_gives_a_format_table(golden: Golden) -> None:
    folder = golden("kinds")
    table = shoal.open(folder).table("kinds.ft_c_tab")
    mine, java = same_rows(table.scan().to_arrow(), java_rows(folder, "ft_c_tab"))
    assert mine == java


def made(store: Store, fields: Mapping[str, str], options: Mapping[str, str], parts: Sequence[str] = ()) -> FormatTable:
    columns = tuple(Field(i, n, parse(t)) for i, (n, t) in enumerate(fields.items()))
    return FormatTable("db.t", store, Schema(0, columns, 9, tuple(parts), (), {"type": "format-table", **options}))


def test_a_filter_on_partitions_opens_only_their_files(golden: Golden) -> None:
    store = MemoryStore("format-prune")
    for p in range(5):
        store.put(f"p={p}/f.csv", b"1,x\n" if p == 3 else b"not a number,x\n")
    table = made(store, {"a": "INT", "b": "STRING", "p": "INT"}, {"file.format": "csv", "csv.mode": "failfast"}, ["p"])
    assert table.scan(where="p = 3").to_arrow().to_pylist() == [{"a": 1, "b": "x", "p": 3}]
    assert table.scan(where="p > 2 AND p < 4", columns=["b"]).to_arrow().to_pylist() == [{"b": "x"}]
    with pytest.raises(Corrupt, match=r"p=4/f\.csv"):
        table.scan(where="p = 4").to_arrow()


def test_columns_filters_and_limits() -> None:
    store = MemoryStore("format-query")
    store.put("d=1/f.csv", b"1,x\n2,y\n,z\n")
    store.put("d=2/f.csv", b"4,w\n")
    table = made(store, {"a": "INT", "d": "INT", "b": "STRING"}, {"file.format": "csv"}, ["d"])
    assert table.scan(columns=["d"]).to_arrow().to_pydict() == {"d": [1, 1, 1, 2]}
    assert table.scan(columns=["b", "d"], where="a >= 2").to_arrow().to_pydict() == {"b": ["y", "w"], "d": [1, 2]}
    assert table.scan(where="a IS NULL").to_arrow().to_pylist() == [{"a": None, "d": 1, "b": "z"}]
    assert [table.scan(limit=n).to_arrow().num_rows for n in (0, 2, 3, 9)] == [0, 2, 3, 4]
    with pytest.raises(BadRequest, match="no column 'c'"):
        table.scan(columns=["c"])


def test_parquet_files_are_matched_by_name_and_need_no_ending(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": ["x", "y"], "a": pa.array([1, 2], pa.int32())}), tmp_path / "000000_0")
    pq.write_table(pa.table({"a": pa.array([3], pa.int32()), "other": [1]}), tmp_path / "000001_0")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".000000_0.crc").write_bytes(b"x")
    table = made(LocalStore(str(tmp_path)), {"a": "INT", "b": "STRING", "c": "DOUBLE"}, {"file.format": "parquet"})
    assert [tuple(r.values()) for r in table.scan().to_arrow().to_pylist()] == [
        (1, "x", None), (2, "y", None), (3, None, None),
    ]  # fmt: skip
    assert table.scan(columns=["c"]).to_arrow().num_rows == 3
    (tmp_path / "bad").write_bytes(b"no parquet at all")
    with pytest.raises(Corrupt, match="bad cannot be read as parquet"):
        table.scan().to_arrow()


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_lines_that_cross_the_blocks_of_a_file(ending: str) -> None:
    store = MemoryStore(f"format-blocks-{len(ending)}-{ord(ending[0])}")
    rows = [f"{i},{'v' * (i % 977)}" for i in range(20_000)]
    store.put("f.csv", ending.join(rows).encode())
    table = made(store, {"a": "INT", "b": "STRING"}, {"file.format": "csv"})
    found = table.scan().to_arrow()
    assert found.column("a").to_pylist() == list(range(20_000))
    assert found.column("b").to_pylist() == [r.split(",")[1] or None for r in rows]


@pytest.mark.parametrize("seed", range(5))
def test_quoted_fields_come_back(seed: int) -> None:
    """Fields in quotes or bare, quotes doubled or escaped: what was written comes back."""
    rng = random.Random(seed)
    rows = [
        [rng.choice(["", "a", "a,b", ' x "', '"', "\\", '"",', "日,本", "a" * 9]) for _ in range(3)] for _ in range(500)
    ]

    def written(text: str) -> str:
        if '"' not in text and "," not in text and "\\" not in text and rng.random() < 0.5:
            return text
        inner = text.replace("\\", "\\\\").replace('"', rng.choice(['\\"', '""']))
        return f'"{inner}"'

    store = MemoryStore(f"format-quoted-{seed}")
    good = [r for r in rows if not any('"' in t for t in r)]  # see test_rows_are_those_that_java_reads for the others
    store.put("f.csv", "\n".join(",".join(map(written, r)) for r in good).encode())
    table = made(store, {"a": "STRING", "b": "STRING", "c": "STRING"}, {"file.format": "csv", "nullvalue": "NULL"})
    found = [list(r.values()) for r in table.scan().to_arrow().to_pylist()]
    assert len(good) > 50
    assert found == good


def test_a_damaged_archive_is_named() -> None:
    store = MemoryStore("format-damage")
    store.put("f.csv.gz", gzip.compress(b"1\n" * 9_000)[:-30])
    table = made(store, {"a": "INT"}, {"file.format": "csv"})
    with pytest.raises(Corrupt, match=r"f\.csv\.gz: cannot be decompressed"):
        table.scan().to_arrow()
    store.put("f.csv.gz", gzip.compress(b"1\n"))
    store.put("g.csv.lzo", b"x")
    with pytest.raises(Unsupported, match="LZO"):
        table.scan().to_arrow()


def test_there_is_no_history_and_no_writer() -> None:
    table = made(MemoryStore("format-history"), {"a": "INT"}, {"file.format": "csv"})
    assert table.scan(snapshot=None).to_arrow().num_rows == 0
    with pytest.raises(BadRequest, match="has no snapshot"):
        table.scan(snapshot=3)
    with pytest.raises(Unsupported, match="cannot be written"):
        table.write("me")


@pytest.mark.parametrize(
    "options",
    [
        {"file.format": "csv", "field-delimiter": '"'},
        {"file.format": "csv", "csv.quote-character": ""},
        {"file.format": "csv", "csv.quote-character": "\\"},
        {"file.format": "csv", "csv.mode": "gentle"},
        {"file.format": "mosaic"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ShoalError):
        made(MemoryStore("format-options"), {"a": "INT"}, options)


def test_a_folder_that_holds_no_partition_value_is_named() -> None:
    store = MemoryStore("format-folder")
    store.put("p=x/f.csv", b"1\n")
    table = made(store, {"a": "INT", "p": "INT"}, {"file.format": "csv"}, ["p"])
    with pytest.raises(Corrupt, match="folder 'p=x/' holds no value of p INT"):
        table.scan().to_arrow()


def test_memory_follows_the_block_not_the_file() -> None:
    """A JSON file of 60 MB comes in batches of a few megabytes."""
    store = MemoryStore("format-stream")
    line = json.dumps({"a": 1, "b": "x" * 2_000}).encode() + b"\n"
    store.put("f.json.gz", gzip.compress(line * 30_000, 1))
    table = made(store, {"a": "INT", "b": "STRING"}, {"file.format": "json"})
    sizes = [b.nbytes for b in table.scan().to_batches()]
    assert len(sizes) > 10 and max(sizes) < 6 << 20


def test_a_scan_ends_in_every_frame(golden: Golden) -> None:
    scan = table_at(golden("kinds") / "kinds.db" / "ft_w_csv_none").scan()
    rows = scan.to_arrow()
    assert rows.num_rows > 1
    assert scan.to_polars().to_arrow().num_rows == len(scan.to_pandas()) == rows.num_rows
    assert str(scan.to_duckdb().fetchall()) == str([tuple(r.values()) for r in rows.to_pylist()])  # NaN is not NaN
