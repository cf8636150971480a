# SPDX-License-Identifier: Apache-2.0
"""Each file that Java wrote, written again from its rows: the metadata is the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

import shoal
from shoal.format.datafile import ADD, APPEND, DataFile, Entry, Stats
from shoal.format.manifest import entries_of
from shoal.format.stats import file_bounds
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.store.memory import MemoryStore
from shoal.table.new_files import NewFiles
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles
from shoal.table.table import Table

TABLES = (Path(__file__).parent / "tables.txt").read_text().split()


def entries(table: Table) -> Iterator[tuple[Entry, bool]]:
    """Every data and changelog file that a snapshot added and that is of today's schema, once."""
    meta = table.metadata
    seen = set()
    for i in meta.snapshot_ids():
        snapshot = meta.snapshot(i)
        for manifests, changelog in ((meta.delta(snapshot), False), (meta.changelog(snapshot), True)):
            for e in (e for m in manifests for e in entries_of(meta.entries(m))):
                f = e.file
                ours = f.schema_id == table.schema.id and f.write_cols is None and e.bucket != -2
                if e.kind == ADD and ours and f.file_name not in seen and exists(table, e):
                    seen.add(f.file_name)
                    yield e, changelog


def exists(table: Table, e: Entry) -> bool:
    store, path = table.file_at(e.partition, e.bucket, e.file)
    try:
        return store.size(path) == e.file.file_size
    except shoal.NotFound:
        return False


def again(table: Table, e: Entry, changelog: bool) -> DataFile:
    """The file's rows written by shoal, into memory."""
    spec = in_memory(NewFiles(table).spec(e.partition, e.bucket))
    f = e.file
    # a file that was lifted to its level was written to level 0
    level = 0 if f.file_source == APPEND and not changelog else f.level
    writer = RollingWriter(
        spec, level=level, source=f.file_source or 0, first_sequence=f.min_sequence, changelog=changelog
    )
    fields = (*table.schema.fields, *SYSTEM_FIELDS) if table.primary_key else table.schema.fields
    for batch in BucketFiles(table, e.partition, e.bucket, fields).batches((f,), 100_000):
        writer.write(batch)
    (made,) = writer.close()
    return made._replace(level=f.level)


def in_memory(spec: FileSpec) -> FileSpec:
    store = MemoryStore()
    return replace(spec, store=store, place=lambda name: (store, name, None), recent=None, target_size=1 << 40)


def facts(table: Table, f: DataFile) -> dict[str, object]:
    """Everything of a file but what differs from writer to writer; bounds of floats by column."""
    out = f._replace(file_name="", file_size=0, creation_ms=0, extra_files=tuple(".index" for _ in f.extra_files))
    if table.options.row_tracking:  # a commit says what these are
        out = out._replace(first_row_id=None, min_sequence=0, max_sequence=0)
    floats = {c.name for c in table.schema.fields if c.type.root in ("FLOAT", "DOUBLE")}
    if floats.intersection(table.schema.trimmed_keys):
        out = out._replace(key_stats=Stats())
    if not floats:
        return out._asdict()
    bounds = file_bounds(table.schema.fields, f.value_stats, f.value_stats_cols, f.file_name)
    # Arrow's Parquet writes a lower bound of zero as -0.0; columns with NaN have no bounds here, or part of them
    kept = {n: b for n, b in bounds.items() if n not in floats or b.low not in (0, None)}
    nulls = f.value_stats.encoded_null_counts
    return out._replace(value_stats=Stats())._asdict() | {"bounds": {n: str(b) for n, b in kept.items()}, "nulls": nulls}


def has_nan(table: Table, e: Entry) -> bool:
    names = [f for f in table.schema.fields if f.type.root in ("FLOAT", "DOUBLE")]
    batches = BucketFiles(table, e.partition, e.bucket, names).batches((e.file,), 100_000) if names else []
    return any(pc.any(pc.is_nan(c)).as_py() for b in batches for c in b.columns)


@pytest.mark.parametrize("name", TABLES)
def test_a_file_written_again_has_javas_metadata(name: str, golden) -> None:
    table = shoal.open(str(golden(name.split(".")[0]))).table(name)
    for e, changelog in entries(table):
        if not has_nan(table, e):
            assert facts(table, again(table, e, changelog)) == facts(table, e.file), (changelog, e.file.file_name)
