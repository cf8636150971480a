# SPDX-License-Identifier: Apache-2.0
"""New data and changelog files: their names, their bounds by level, and what their metadata says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.errors import Unsupported
from shoal.format.datafile import APPEND, COMPACT, EMPTY_ROW, DataFile
from shoal.format.row import decode
from shoal.format.schema import Schema
from shoal.format.stats import file_bounds
from shoal.format.types import DataType, Field, to_arrow
from shoal.lsm.merge import KIND, SEQUENCE
from shoal.lsm.rolling import RollingWriter
from shoal.options import Options
from shoal.table.new_files import NewFiles
from shoal.table.placement import entropy, murmur3
from shoal.table.table import Table

COLUMNS = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string()), ("w", pa.float64())])


def keyed(to: Path, **options: str) -> Table:
    options = {"bucket": "1", **{k.replace("_", "-"): v for k, v in options.items()}}
    return shoal.open(str(to)).create_table("d.t", COLUMNS, primary_key="k", options=options)


def rows(keys: list[int], kinds: list[int] | None = None) -> pa.RecordBatch:
    n = len(keys)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.int32()), pa.array([f"value {k}" for k in keys]), pa.array([k / 2 for k in keys]),
            pa.array(range(10, 10 + n), pa.int64()), pa.array(kinds or [0] * n, pa.int8()),
        ],
        names=["k", "v", "w", SEQUENCE, KIND],
    )  # fmt: skip


def written(table: Table, batch: pa.RecordBatch, **how: object) -> DataFile:
    writer = RollingWriter(NewFiles(table).spec(EMPTY_ROW, 0), **how)
    writer.write(batch)
    (file,) = writer.close()
    return file


def test_changelog_files_have_their_own_names_compression_and_bounds(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{
        "changelog-file.prefix": "cl-", "changelog-file.compression": "snappy", "changelog-file.stats-mode": "counts",
        "file.compression": "gzip",
    })  # fmt: skip
    batch = rows([1, 1, 2, 2, 3], [1, 2, 1, 2, 3])
    file = written(table, batch, changelog=True)
    assert file.file_name.startswith("cl-") and file.file_name.endswith("-0.parquet")
    path = tmp_path / "d.db" / "t" / "bucket-0" / file.file_name
    footer = pq.read_metadata(path)
    assert footer.row_group(0).column(0).compression == "SNAPPY"
    assert pq.read_table(path)["_VALUE_KIND"].to_pylist() == [1, 2, 1, 2, 3]
    assert (file.row_count, file.delete_row_count, file.level, file.file_source) == (5, 3, 0, APPEND)
    assert (file.min_sequence, file.max_sequence) == (10, 14)
    assert [decode(table.schema.key_types, k) for k in (file.min_key, file.max_key)] == [[1], [3]]
    bounds = file_bounds(table.schema.fields, file.value_stats, file.value_stats_cols, "f")
    assert [(b.low, b.high, b.nulls) for b in bounds.values()] == [(None, None, 0)] * 3


def test_a_level_without_options_of_its_own_has_those_of_the_table(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{
        "file.compression.per.level": "0:snappy", "file.suffix.include.compression": "true",
        "metadata.stats-mode.per.level": "0:none",
    })  # fmt: skip
    low, high = (written(table, rows([1, 2]), level=at, source=COMPACT) for at in (0, 5))
    # Java names the table's codec, whatever the level has
    assert low.file_name.endswith(".zst.parquet") and high.file_name.endswith(".zst.parquet")
    folder = tmp_path / "d.db" / "t" / "bucket-0"
    codecs = [pq.read_metadata(folder / f.file_name).row_group(0).column(0).compression for f in (low, high)]
    assert codecs == ["SNAPPY", "ZSTD"]
    assert (low.value_stats_cols, high.value_stats_cols) == ((), None)
    assert (low.level, high.level, high.file_source) == (0, 5, COMPACT)


def test_only_the_first_columns_keep_bounds_and_keys_do_not_count(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"metadata.stats-keep-first-n-columns": "1", "fields.w.stats-mode": "full"})
    assert written(table, rows([1, 2])).value_stats_cols == ("k", "w")


@pytest.mark.parametrize("mode", ["none", "full"])
def test_thin_files_hold_keys_once_and_bound_them_always(tmp_path: Path, mode: str) -> None:
    table = keyed(tmp_path, **{"data-file.thin-mode": "true", "metadata.stats-mode": mode})
    file = written(table, rows([1, 2, 9]))
    names = pq.read_schema(tmp_path / "d.db" / "t" / "bucket-0" / file.file_name).names
    assert names == ["_SEQUENCE_NUMBER", "_VALUE_KIND", "k", "v", "w"]
    assert file.value_stats_cols == (("k",) if mode == "none" else None)
    assert decode(table.schema.key_types, file.key_stats.max_values) == [9]
    with table.write() as w:
        for _ in range(6):
            w.upsert([{"k": 5, "v": "a", "w": 1.0}, {"k": 6, "v": "b", "w": None}])
            w.commit()
    table.maintain.compact(full=True)
    assert table.scan().to_arrow().sort_by("k").to_pydict() == {"k": [5, 6], "v": ["a", "b"], "w": [1.0, None]}


# ---- formats


@pytest.mark.parametrize("form", ["parquet", "orc", "avro"])
def test_a_keyed_table_of_any_format_is_written_compacted_and_read(tmp_path: Path, form: str) -> None:
    table = keyed(tmp_path, **{"file.format": form, "num-sorted-run.compaction-trigger": "3"})
    for n in range(5):
        with table.write() as w:
            w.upsert([{"k": k, "v": f"{n}", "w": float(n)} for k in range(n, 50)])
            w.delete([{"k": 49 - n}])
            w.commit()
    table.maintain.compact(full=True)
    names = {f.rpartition(".")[2] for f in table.inspect.files()["file_path"].to_pylist()}
    assert names == {form}
    got = table.scan().to_arrow().sort_by("k")
    assert got["v"].to_pylist() == ["0", "1", "2", "3", *["4"] * 45]


def test_levels_have_formats_of_their_own(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"file.format.per.level": "0:avro,5:orc", "file.compression.per.level": "5:zlib"})
    files = [written(table, rows([1, 2]), level=at).file_name for at in (0, 1, 5)]
    assert [f.rpartition(".")[2] for f in files] == ["avro", "parquet", "orc"]


@pytest.mark.parametrize(
    ("form", "codec"),
    [("parquet", "lzo"), ("parquet", "brotli"), ("orc", "lzo"), ("avro", "zlib"), ("avro", "SNAPPY")],
)
def test_a_codec_that_a_format_lacks_is_refused_by_name(tmp_path: Path, form: str, codec: str) -> None:
    table = keyed(tmp_path, **{"file.format.per.level": f"0:{form}"})
    raw = Options({**table.options.raw, "file.compression.per.level": f"0:{codec}"}, strict=False)
    with pytest.raises(Unsupported, match=codec):
        RollingWriter(NewFiles(table, raw).spec(EMPTY_ROW, 0))


def test_columns_have_codecs_and_dictionaries_of_their_own(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{
        "parquet.compression": "snappy", "parquet.compression#v": "gzip", "parquet.enable.dictionary": "false",
        "parquet.enable.dictionary#v": "true",
    })  # fmt: skip
    file = written(table, rows(list(range(2000))))
    group = pq.read_metadata(tmp_path / "d.db" / "t" / "bucket-0" / file.file_name).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {n: c.compression for n, c in columns.items()} == {n: "GZIP" if n == "v" else "SNAPPY" for n in columns}
    assert {n for n, c in columns.items() if c.has_dictionary_page} == {"v"}


# ---- sizes


@pytest.mark.parametrize("form", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("batches", [1, 40])
def test_files_are_closed_near_their_target_size(tmp_path: Path, form: str, batches: int) -> None:
    table = keyed(tmp_path, **{"file.format": form, "target-file-size": "200 kb", "file.compression": "snappy"})
    rng = np.random.default_rng(0)
    n = 40_000
    batch = rows(list(range(n))).set_column(2, "w", pa.array(rng.random(n)))
    writer = RollingWriter(NewFiles(table).spec(EMPTY_ROW, 0))
    for start in range(0, n, n // batches):
        writer.write(batch.slice(start, n // batches))
    files = writer.close()
    assert len(files) > 2 and sum(f.row_count for f in files) == n
    assert all(190_000 < f.file_size < 300_000 for f in files[:-1])
    assert [decode(table.schema.key_types, f.min_key)[0] for f in files] == [
        sum(f.row_count for f in files[:i]) for i in range(len(files))
    ]


def test_writers_close_files_at_a_number_of_rows_and_compactions_do_not(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"target-file-row-num": "30"})
    for source, counts in ((APPEND, [30, 30, 30, 10]), (COMPACT, [100])):
        writer = RollingWriter(NewFiles(table).spec(EMPTY_ROW, 0), source=source)
        writer.write(rows(list(range(70))))
        writer.write(rows(list(range(70, 100))))
        assert [f.row_count for f in writer.close()] == counts


# ---- places


@pytest.mark.parametrize("strategy", ["round-robin", "entropy-inject", "specific-fs", "weight-robin"])
def test_new_files_lie_in_external_folders(tmp_path: Path, strategy: str) -> None:
    roots = [f"file://{tmp_path}/a/", f"file:{tmp_path}/b"]
    key = "data-file.external-paths"
    table = keyed(tmp_path / "lake", **{
        key: ",".join(roots), f"{key}.strategy": strategy, f"{key}.specific-fs": "FILE", f"{key}.weights": "1,3",
        "num-sorted-run.compaction-trigger": "3",
    })  # fmt: skip
    for n in range(8):
        with table.write() as w:
            w.upsert([{"k": k, "v": f"{n}", "w": None} for k in range(n, n + 3)])
            w.commit()
    found = table.inspect.files()["file_path"].to_pylist()
    assert found and all(f.startswith((f"file:{tmp_path}/a/", f"file:{tmp_path}/b/")) for f in found)
    assert not list((tmp_path / "lake").glob("**/bucket-*/data-*"))
    assert {p.name for p in tmp_path.glob("[ab]/**/data-*")} >= {f.rpartition("/")[2] for f in found}
    assert len(list(tmp_path.glob("a/**/data-*"))) > 0 < len(list(tmp_path.glob("b/**/data-*")))
    assert table.scan().to_arrow().sort_by("k")["v"].to_pylist() == [*"01234567", "7", "7"]
    before = set(tmp_path.glob("[ab]/**/data-*"))
    writer = RollingWriter(NewFiles(table).spec(EMPTY_ROW, 0))
    writer.write(rows([1]))
    writer.close()
    assert set(tmp_path.glob("[ab]/**/data-*")) != before
    writer.abort()
    assert set(tmp_path.glob("[ab]/**/data-*")) == before


def test_entropy_folders_are_javas() -> None:
    # HashFunction murmur3_32 of Guava, as EntropyInjectExternalPathProvider 2.0.0 asks it
    assert murmur3(b"", 0) == 0 and murmur3(b"hello", 0) == 0x248BFA47 and murmur3(b"hello, world", 0) == 0x149BBB7F
    parts = entropy("data-1.parquet").split("/")
    assert [len(p) for p in parts] == [4, 4, 4, 8] and set("".join(parts)) <= {"0", "1"}


def test_variants_are_written_whole_with_javas_field_ids(tmp_path: Path) -> None:
    fields = (Field(0, "id", DataType("INT")), Field(1, "v", DataType("VARIANT")))
    folder = tmp_path / "d.db" / "t" / "schema"
    folder.mkdir(parents=True)
    (folder / "schema-0").write_bytes(Schema(0, fields, 1, (), (), {"bucket": "-1"}).encode())
    table = shoal.open(str(tmp_path)).table("d.t")
    five = {"value": b"\x0c\x05", "metadata": b"\x01\x00\x00"}
    variants = pa.array([five, None], to_arrow(fields[1].type))
    with table.write() as w:
        w.append(pa.table({"id": pa.array([1, 2], pa.int32()), "v": variants}))
        w.commit()
    assert table.scan().to_arrow()["v"].to_pylist() == [five, None]
    (path,) = (tmp_path / "d.db" / "t" / "bucket-0").glob("data-*")
    group = pq.read_schema(path).field("v").type
    assert [(f.name, f.nullable, f.metadata[b"PARQUET:field_id"]) for f in group] == [
        ("value", False, b"0"), ("metadata", False, b"1"),
    ]  # fmt: skip
