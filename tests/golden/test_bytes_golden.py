# SPDX-License-Identifier: Apache-2.0
"""Metadata that Java wrote decodes and encodes again to the same bytes; rows lie in the bucket that shoal computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shoal
from shoal.format import avro, manifest, paths, schema, snapshot
from shoal.table.runs import BucketFiles

HERE = Path(__file__).parent
TABLES = (HERE / "tables.txt").read_text().split()
DATABASES = sorted({t.split(".")[0] for t in TABLES})
# manifest.format is not avro: refused for now
OTHER_MANIFESTS = {"formats.manifest_orc", "formats.manifest_parquet"}
BUCKETED = (
    """
    bucket_modes.ap_fixed bucket_modes.ap_fixed_2key bucket_modes.ap_fixed_unordered bucket_modes.pk_bucket_key
    bucket_modes.pk_fixed_4 bucket_modes.pk_fixed_4_part bucket_modes.pk_hive bucket_modes.pk_hive_string
    bucket_modes.pk_mod bucket_modes.pk_mod_bigint bucket_modes.pk_rescaled bucket_modes.pk_rescaled_proc
    debt.ckpt_1s debt.ckpt_3s maint.wo_pk types.part_pk types.pk_parquet types.pk_wide
""".split()
    + [t for t in TABLES if t.startswith("types.bkey_")]
)


def files(golden, database: str, pattern: str) -> list[tuple[str, bytes]]:
    """(path, bytes) of a database's metadata files, branches and tags too."""
    top = golden(database) / f"{database}.db"
    found = sorted(
        p for p in top.glob(f"*/**/{pattern}") if f"{database}.{p.relative_to(top).parts[0]}" not in OTHER_MANIFESTS
    )
    return [(str(p.relative_to(top)), p.read_bytes()) for p in found]


def uncompressed(data: bytes, path: str) -> tuple[object, bytes]:
    """(the writer's schema, the records) of an Avro file."""
    writer, blocks = avro.container(data, path)
    return json.loads(writer), b"".join(block for _, block in blocks)


@pytest.mark.parametrize("database", DATABASES)
def test_snapshots_and_schemas_encode_to_javas_bytes(database: str, golden) -> None:
    found = files(golden, database, "snapshot-*")
    for path, data in found:
        assert snapshot.decode(data, path).encode() == data, path
    schemas = files(golden, database, "schema-*")
    for path, data in schemas:
        assert schema.decode(data, path).encode() == data, path
    assert found and schemas


@pytest.mark.parametrize("database", DATABASES)
def test_manifest_lists_encode_to_javas_bytes(database: str, golden) -> None:
    found = files(golden, database, "manifest-list-*")
    for path, data in found:
        again = manifest.encode_list(manifest.decode_list(data, path), "null")
        assert uncompressed(again, path) == uncompressed(data, path), path
    assert found


@pytest.mark.parametrize("database", DATABASES)
def test_manifests_encode_to_javas_bytes(database: str, golden) -> None:
    found = [(p, d) for p, d in files(golden, database, "manifest-*") if "/manifest-list-" not in p]
    for path, data in found:
        entries = manifest.entries_of(manifest.decode_entries(data, path))
        again = manifest.write_entries(manifest.encode_entries(entries), "null")
        assert uncompressed(again, path) == uncompressed(data, path), path
    assert found


@pytest.mark.parametrize("name", BUCKETED)
def test_rows_lie_in_the_bucket_that_their_hash_says(name: str, golden) -> None:
    from shoal.format.hashing import buckets

    table = shoal.open(str(golden(name.split(".")[0]))).table(name)
    fields = [table.schema.field(k) for k in table.bucket_key]
    rows = 0
    for entry in manifest.entries_of(table.metadata.live(table.metadata.latest())):
        batches = BucketFiles(table, entry.partition, entry.bucket, fields).batches((entry.file,), 10_000)
        for batch in batches:
            got = buckets(batch.columns, [f.type for f in fields], entry.total_buckets, table.options.bucket_function)
            assert set(got.tolist()) == {entry.bucket}
            rows += batch.num_rows
    assert rows


@pytest.mark.parametrize("name", [t for t in TABLES if t not in OTHER_MANIFESTS and t != "engines.ag_max_no_retract"])
def test_bucket_folders_have_javas_names(name: str, golden) -> None:
    top = golden(name.split(".")[0])
    table = shoal.open(str(top)).table(name)
    folder = top / f"{name.replace('.', '.db/')}"
    for entry in manifest.entries_of(table.metadata.live(table.metadata.latest())):
        assert (folder / table.file_at(entry.partition, entry.bucket, entry.file)[1]).is_file()
    assert paths.snapshot_ids([p.name for p in (folder / "snapshot").iterdir()])
