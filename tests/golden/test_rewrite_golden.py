# SPDX-License-Identifier: Apache-2.0
"""Shoal repeats Java's commits into an empty table of the same schema: same rows, buckets, keys and statistics."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal import ManualClock, Unsupported
from shoal.format.data_writer import ColumnBounds
from shoal.format.datafile import ADD, Entry
from shoal.format.manifest import entries_of
from shoal.format.schema import VALUE_KIND
from shoal.format.stats import file_bounds
from shoal.table.runs import BucketFiles
from shoal.table.table import Table

HERE = Path(__file__).parent
TABLES = (HERE / "tables.txt").read_text().split()
# Tables of plain appends and flushes, that is without a compaction by Java, an index, or an option not done yet.
REPEATED = (
    [
        t
        for t in TABLES
        if t.startswith(
            ("types.bkey_", "types.key_", "types.part_", "formats.append_manifest_", "formats.append_parquet_")
        )
    ]
    + """
    bucket_modes.ap_fixed bucket_modes.ap_fixed_2key bucket_modes.ap_fixed_unordered bucket_modes.ap_unaware
    bucket_modes.ap_unaware_part bucket_modes.pk_bucket_key bucket_modes.pk_fixed_1 bucket_modes.pk_fixed_4
    bucket_modes.pk_fixed_4_part bucket_modes.pk_hive bucket_modes.pk_hive_string bucket_modes.pk_mod
    bucket_modes.pk_mod_bigint dv.pk_plain engines.dd_ignore_delete engines.dd_plain engines.dd_seq engines.dd_seq2
    engines.dd_seq_desc evo.defaults formats.append_stats_counts formats.append_stats_full formats.append_stats_none
    formats.append_stats_not_dense formats.append_stats_per_field formats.append_stats_truncate16
    formats.append_stats_truncate3 formats.append_stats_first3 formats.manifest_merge formats.pk_parquet formats.pk_stats_none formats.pk_thin_mode formats.pk_thin_off
    formats.rolled maint.branched maint.forwarded types.append_parquet types.multiset_parquet types.pk_parquet
    types.pk_wide types.append_avro types.pk_avro types.multiset_avro formats.append_avro_bzip2 formats.append_avro_deflate formats.append_avro_null formats.append_avro_snappy formats.append_avro_zstd formats.pk_avro types.append_orc types.pk_orc types.multiset_orc formats.append_orc_lz4 formats.append_orc_none formats.append_orc_snappy formats.append_orc_zlib formats.append_orc_zstd formats.pk_orc
    formats.append_index_all formats.append_index_bitmap_embedded formats.append_index_bitmap_separate
    formats.append_index_bloom_filter_embedded formats.append_index_bloom_filter_separate
    formats.append_index_bsi_embedded formats.append_index_bsi_separate formats.append_index_range_bitmap_embedded
    formats.append_index_range_bitmap_separate
""".split()
)


def repeat(source: Table, to: Path) -> Table:
    """A table that shoal wrote: each of the source's commits again."""
    database, name = source.name.split(".")
    schema = to / f"{database}.db" / name / "schema"
    shutil.copytree(source.store.uri.removeprefix("file:") + "/schema", schema)
    table = shoal.open(str(to), clock=ManualClock()).table(source.name)
    meta = source.metadata
    with table.write(commit_user="repeat") as w:
        for i in meta.snapshot_ids():
            delta = meta.delta(meta.snapshot(i))
            for entry in (e for m in delta for e in entries_of(meta.entries(m)) if e.kind == ADD):
                for batch in rows(source, entry):
                    kinds = (
                        batch.column(VALUE_KIND.name)
                        if source.primary_key
                        else pa.array([0] * batch.num_rows, pa.int8())
                    )
                    w.write(batch.select(source.schema.names), kinds)
            w.commit(checkpoint=i)
    return table


def rows(table: Table, entry: Entry):
    fields = (*table.schema.fields, VALUE_KIND) if table.primary_key else table.schema.fields
    return BucketFiles(table, entry.partition, entry.bucket, fields).batches((entry.file,), 100_000)


def facts(table: Table, without: set[str]) -> Counter[str]:
    """What manifests say of each live file, but for names, sizes, times and the bounds of the columns `without`."""
    found: list[Any] = []
    for e in entries_of(table.metadata.live(table.metadata.latest())):
        f = e.file
        bounds = file_bounds(table.metadata.schema(f.schema_id).fields, f.value_stats, f.value_stats_cols, f.file_name)
        found.append((
            e.partition, e.bucket, e.total_buckets, f.level, f.row_count, f.delete_row_count, f.file_source, f.min_key,
            f.max_key, None if without else f.key_stats, f.value_stats_cols,
            indexes(table, e), f.external_path, f.first_row_id, f.write_cols,
            {n: positive_zero(b) for n, b in bounds.items() if n not in without},
        ))  # fmt: skip
    return Counter(map(repr, found))


def indexes(table: Table, entry: Entry) -> tuple[list[str], bytes | None]:
    """The file's indexes, in the manifest or beside it; of large ones a checksum will do."""
    f = entry.file
    folder = table.bucket_folder(entry.partition, entry.bucket)
    beside = [table.store.read(folder + name) for name in f.extra_files]
    assert [name.removeprefix(f.file_name) for name in f.extra_files] == [".index"] * len(beside)
    return [hashlib.sha256(b).hexdigest() for b in beside], f.embedded_index


def positive_zero(b: ColumnBounds) -> ColumnBounds:
    """Arrow's Parquet rounds a lower bound of zero down to -0.0, as the Parquet format asks; Java's does not."""
    return replace(b, low=0.0) if isinstance(b.low, float) and b.low == 0 else b


def with_nan(table: Table) -> set[str]:
    """Columns that hold NaN: Java bounds them by it, shoal does not bound them."""
    names = [f.name for f in table.schema.fields if f.type.root in ("FLOAT", "DOUBLE")]
    rows = table.scan(columns=names).to_arrow()
    return {n for n in names if pc.any(pc.is_nan(rows[n])).as_py()}


@pytest.mark.parametrize("name", REPEATED)
def test_files_of_repeated_commits_have_javas_rows_and_statistics(name: str, golden, expected, tmp_path: Path) -> None:
    java = shoal.open(str(golden(name.split(".")[0]))).table(name)
    ours = repeat(java, tmp_path)
    without = with_nan(java)
    assert facts(ours, without) == facts(java, without)
    _, want = expected(name)
    got = ours.scan().to_arrow()
    assert multiset(rows_of(got), got.schema) == multiset(want, got.schema)


def test_a_time_that_nanoseconds_cannot_hold_is_refused_and_never_wraps(tmp_path: Path) -> None:
    """Java may write the year 9999 into a TIMESTAMP(9); here such a file is made by declaring the precision later."""
    lake = shoal.open(str(tmp_path))
    columns = pa.schema([("id", pa.int32()), ("far", pa.timestamp("us")), ("fine", pa.timestamp("ns"))])
    table = lake.create_table("d.t", columns)
    with table.write() as w:
        w.append([{"id": 1, "far": datetime(9999, 12, 31), "fine": datetime(2200, 1, 1)}])
        w.commit()
    assert table.scan().to_arrow()["far"].to_pylist() == [datetime(9999, 12, 31)]
    schema = tmp_path / "d.db" / "t" / "schema" / "schema-0"
    schema.write_text(schema.read_text().replace("TIMESTAMP(6)", "TIMESTAMP(9)"))
    changed = shoal.open(str(tmp_path)).table("d.t")
    assert changed.scan(columns=["id", "fine"]).to_arrow().num_rows == 1
    with pytest.raises(Unsupported, match="column 'far' holds a time outside the years 1677 to 2262"):
        changed.scan().to_arrow()
