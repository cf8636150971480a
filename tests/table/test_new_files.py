# SPDX-License-Identifier: Apache-2.0
"""New data and changelog files: their names, their bounds by level, and what their metadata says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.format.datafile import APPEND, COMPACT, EMPTY_ROW, DataFile
from shoal.format.row import decode
from shoal.format.stats import file_bounds
from shoal.lsm.merge import KIND, SEQUENCE
from shoal.lsm.rolling import RollingWriter
from shoal.table.new_files import NewFiles
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
