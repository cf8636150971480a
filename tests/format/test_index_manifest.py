# SPDX-License-Identifier: Apache-2.0
"""Index manifests that Java 2.0.0 wrote: the entries Java lists, and the same bytes again.

Invariants: what is written equals Java's record bytes under Java's schema; files of older versions, without
cardinalities, external paths and global indexes, decode; damage ends in `Corrupt`.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import Corrupt, ShoalError
from shoal.format import avro
from shoal.format.deletion_vectors import DvRange
from shoal.format.index_manifest import (
    SCHEMA,
    GlobalIndex,
    IndexEntry,
    decode_index_manifest,
    encode_index_manifest,
    entries_of,
)
from shoal.format.varint import varint

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]

ENTRIES = [
    IndexEntry(0, b"\0\0\0\0" + bytes(8), 3, "HASH", "index-1", 40, 10),
    IndexEntry(
        1, bytes(12), 0, "DELETION_VECTORS", "index-2", 99, 2,
        (DvRange("data-1.parquet", 1, 34, 3), DvRange("data-2.parquet", 43, 54, None)), "oss://bucket/index-2",
    ),
    IndexEntry(
        0, bytes(12), 0, "btree", "index-3", 7, 1, None, None, GlobalIndex(0, 9, 2, (4, 5), b"meta", b"source"),
    ),
    IndexEntry(0, bytes(12), 0, "bitmap", "index-4", 7, 1, (), None, GlobalIndex(-1, 1 << 40, 0)),
]  # fmt: skip


def manifests(golden: Golden) -> Iterator[Path]:
    for db in ("dv", "bucket_modes"):
        yield from sorted((golden(db) / f"{db}.db").glob("*/manifest/index-manifest-*"))


def blocks(data: bytes) -> tuple[str, bytes]:
    schema, parts = avro.container(data, "x")
    return schema, b"".join(raw for _, raw in parts)


def test_manifests_encode_to_the_same_bytes(golden: Golden) -> None:
    checked = 0
    for path in manifests(golden):
        data = path.read_bytes()
        entries = decode_index_manifest(data, path.name)
        assert blocks(encode_index_manifest(entries, "zstandard")) == blocks(data)
        assert blocks(data)[0] == SCHEMA
        checked += 1
    assert checked > 15


@pytest.mark.parametrize("name", [
    "dv.pk_dv", "dv.pk_dv_bitmap64", "dv.ap_dv", "dv.ap_dv_part", "dv.ap_dv_bucket", "bucket_modes.pk_dynamic",
])  # fmt: skip
def test_entries_are_those_that_java_lists(golden: Golden, expected: Expected, name: str) -> None:
    db, table = name.split(".")
    folder = golden(db) / f"{db}.db" / table
    last = (folder / "snapshot/LATEST").read_text().strip()
    manifest = json.loads((folder / f"snapshot/snapshot-{last}").read_text())["indexManifest"]
    got = [
        (e.bucket, e.index_type, e.file_name, e.file_size, e.row_count, ranges_of(e))
        for e in decode_index_manifest((folder / "manifest" / manifest).read_bytes(), manifest)
    ]
    want = [
        (r["bucket"], r["index_type"], r["file_name"], r["file_size"], r["row_count"], r["dv_ranges"])
        for r in expected(f"{name}.table_indexes")[1]
    ]
    assert sorted(got, key=lambda r: r[2]) == sorted(want, key=lambda r: r[2])


def ranges_of(e: IndexEntry) -> list[dict[str, Any]] | None:
    if e.dv_ranges is None:
        return None
    return [{"f0": r.file_name, "f1": r.offset, "f2": r.length, "_CARDINALITY": r.cardinality} for r in e.dv_ranges]


@pytest.mark.parametrize("codec", ["zstd", "null", "snappy"])
@pytest.mark.parametrize("form", ["avro", "orc", "parquet"])
def test_every_field_comes_back(codec: str, form: str) -> None:
    if form != "avro" and codec == "null":
        codec = "none"
    assert decode_index_manifest(encode_index_manifest(ENTRIES, codec, form), "x") == ENTRIES
    assert decode_index_manifest(encode_index_manifest([], codec, form), "x") == []


def test_files_from_before_cardinalities_and_paths() -> None:
    """The layout of 0.9: ranges of three fields, nothing behind them."""
    schema = (
        '{"type":"record","name":"record","fields":[{"name":"_VERSION","type":"int"},{"name":"_KIND","type":"int"},'
        '{"name":"_PARTITION","type":"bytes"},{"name":"_BUCKET","type":"int"},{"name":"_INDEX_TYPE","type":"string"},'
        '{"name":"_FILE_NAME","type":"string"},{"name":"_FILE_SIZE","type":"long"},{"name":"_ROW_COUNT","type":"long"},'
        '{"name":"_DELETIONS_VECTORS_RANGES","type":["null",{"type":"array","items":{"type":"record","name":"r",'
        '"fields":[{"name":"f0","type":"string"},{"name":"f1","type":"int"},{"name":"f2","type":"int"}]}}]}]}'
    )

    def text(s: bytes) -> bytes:
        return varint(len(s)) + s

    record = (
        varint(1) + varint(0) + text(bytes(12)) + varint(4) + text(b"DELETION_VECTORS") + text(b"index-7")
        + varint(80) + varint(1) + varint(1) + varint(1) + text(b"data-1.orc") + varint(1) + varint(26) + varint(0)
    )  # fmt: skip
    data = avro.write_container(schema, [record], "null")
    assert decode_index_manifest(data, "x") == [
        IndexEntry(0, bytes(12), 4, "DELETION_VECTORS", "index-7", 80, 1, (DvRange("data-1.orc", 1, 26, None),))
    ]


def test_entries_of_a_table() -> None:
    """Index manifests in Parquet or ORC come as tables."""
    rows = [
        {
            "_VERSION": 1, "_KIND": e.kind, "_PARTITION": e.partition, "_BUCKET": e.bucket, "_INDEX_TYPE": e.index_type,
            "_FILE_NAME": e.file_name, "_FILE_SIZE": e.file_size, "_ROW_COUNT": e.row_count,
            "_DELETIONS_VECTORS_RANGES": ranges_of(e), "_EXTERNAL_PATH": e.external_path,
            "_GLOBAL_INDEX": None if (g := e.global_index) is None else {
                "_ROW_RANGE_START": g.row_range_start, "_ROW_RANGE_END": g.row_range_end, "_INDEX_FIELD_ID": g.field_id,
                "_EXTRA_FIELD_IDS": g.extra_field_ids, "_INDEX_META": g.meta, "_SOURCE_META": g.source_meta,
            },
        }
        for e in ENTRIES
    ]  # fmt: skip
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert entries_of(pq.read_table(file), "x") == ENTRIES
    assert decode_index_manifest(file.getvalue(), "x") == ENTRIES
    with pytest.raises(Corrupt, match=r"m-1.*version 2"):
        entries_of(pa.Table.from_pylist([{**rows[0], "_VERSION": 2}]), "m-1")
    with pytest.raises(Corrupt, match=r"m-1.*_BUCKET"):
        entries_of(pa.Table.from_pylist(rows).drop_columns(["_BUCKET"]), "m-1")


def test_damage_ends_in_a_typed_error() -> None:
    good = encode_index_manifest(ENTRIES, "null")
    rng = random.Random(4)
    failed = 0
    for _ in range(400):
        raw = bytearray(good)
        if rng.random() < 0.3:
            raw = raw[: rng.randrange(len(raw))]
        else:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            decode_index_manifest(bytes(raw), "m-1")
        except ShoalError as err:
            assert "m-1" in str(err)
            failed += 1
    assert failed > 100
