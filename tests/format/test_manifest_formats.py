# SPDX-License-Identifier: Apache-2.0
"""Manifests in ORC and Parquet: what Java wrote, and Avro manifests of Java written again in the other formats."""

from __future__ import annotations

import io
import json
from datetime import UTC
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from shoal import Corrupt, Unsupported
from shoal.format import avro, manifest
from shoal.format.columnar_manifest import is_avro, table
from shoal.format.datafile import Stats
from shoal.format.index_manifest import SCHEMA, IndexEntry, decode_index_manifest, entries_of

FORMATS = ("orc", "parquet")


def manifests(golden: Any, name: str) -> tuple[list[Path], list[Path]]:
    """(manifest lists, manifests) of a table of `formats`."""
    files = sorted((golden("formats") / "formats.db" / name / "manifest").iterdir())
    lists = [f for f in files if f.name.startswith("manifest-list-")]
    return lists, [f for f in files if f.name.startswith("manifest-") and f not in lists]


def rewritten(data: bytes, form: str) -> bytes:
    """The records of an Avro file in another format."""
    schema, blocks = avro.container(data, "a")
    parsed = fastavro.parse_schema(json.loads(schema))
    raw = b"".join(block for _, block in blocks)
    rows = []
    source = io.BytesIO(raw)
    for count, _ in blocks:
        rows += [fastavro.schemaless_reader(source, parsed, None) for _ in range(count)]
    sink = pa.BufferOutputStream()
    whole = pa.Table.from_pylist([_without_zone(r) for r in rows], schema=_schema(parsed))
    (orc if form == "orc" else pq).write_table(whole, sink)
    return bytes(sink.getvalue())


def _without_zone(row: dict[str, Any]) -> dict[str, Any]:
    file = row.get("_FILE")
    if file and file.get("_CREATION_TIME"):
        file["_CREATION_TIME"] = file["_CREATION_TIME"].astimezone(UTC).replace(tzinfo=None)
    return row


def _schema(t: dict[str, Any]) -> pa.Schema:
    return pa.schema([pa.field(f["name"], _arrow(f["type"])) for f in t["fields"]])


def _arrow(t: Any) -> pa.DataType:
    if isinstance(t, list):
        return _arrow(t[1])
    if isinstance(t, dict) and t["type"] == "record":
        return pa.struct(list(_schema(t)))
    if isinstance(t, dict) and t["type"] == "array":
        return pa.list_(_arrow(t["items"]))
    if isinstance(t, dict):
        return pa.timestamp("ms") if "logicalType" in t else _arrow(t["type"])
    return {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "bytes": pa.binary()}[t]


@pytest.mark.parametrize("form", FORMATS)
def test_what_java_wrote(form: str, golden: Any) -> None:
    lists, files = manifests(golden, f"manifest_{form}")
    metas = [m for f in lists for m in manifest.decode_list(f.read_bytes(), f.name)]
    assert [(m.file_name, m.file_size, m.added, m.deleted) for m in metas] == [
        (f.name, f.stat().st_size, 1, 0) for f in files
    ]
    (entry,) = [e for f in files for e in manifest.entries_of(manifest.decode_entries(f.read_bytes(), f.name))]
    (data,) = (files[0].parents[1] / "bucket-0").iterdir()
    assert (entry.bucket, entry.total_buckets, entry.kind) == (0, -1, 0)
    file = entry.file
    assert (file.file_name, file.file_size, file.row_count) == (data.name, data.stat().st_size, 2)
    # Java sets the file's time within a second of writing it
    assert file.creation_ms is not None and 1_795_989_900_000 < file.creation_ms < 1_795_990_100_000
    assert file.value_stats.null_counts == (0, 0) and file.key_stats.null_counts == ()
    assert (file.extra_files, file.value_stats_cols, file.write_cols, file.external_path) == ((), None, None, None)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["manifest_merge", "append_index_all", "pk_stats_none", "append_stats_first3"])
def test_the_same_entries_as_in_avro(name: str, form: str, golden: Any) -> None:
    lists, files = manifests(golden, name)
    for f in lists:
        want = manifest.decode_list(f.read_bytes(), "a")
        assert manifest.decode_list(rewritten(f.read_bytes(), form), "a") == want
    avro_files = [(f.read_bytes(), f.name) for f in files]
    others = [(rewritten(data, form), path) for data, path in avro_files]
    want_each = manifest.decode_many(avro_files)[1]
    assert manifest.decode_many(others)[1] == want_each
    # a table whose manifest.format was altered has both
    mixed = [(b if i % 2 else a) for i, (a, b) in enumerate(zip(avro_files, others))]
    assert manifest.decode_many(mixed)[1] == want_each


@pytest.mark.parametrize("form", FORMATS)
def test_index_manifests_are_read_as_tables(form: str, golden: Any) -> None:
    files = list((golden("dv") / "dv.db" / "ap_dv" / "manifest").glob("index-manifest-*"))
    assert files
    for f in files:
        want = decode_index_manifest(f.read_bytes(), f.name)
        got = entries_of(table(rewritten(f.read_bytes(), form), f.name, SCHEMA), f.name)
        assert got == want and all(isinstance(e, IndexEntry) for e in got)


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_ones_are_corrupt(form: str, golden: Any) -> None:
    _, (file,) = manifests(golden, f"manifest_{form}")
    data = file.read_bytes()
    for bad in (data[:200], data[:-1], data[:100] + bytes(len(data) - 100)):
        with pytest.raises(Corrupt, match="some/manifest-1"):
            manifest.decode_entries(bad, "some/manifest-1")
    # another file of the same format
    sink = pa.BufferOutputStream()
    (orc if form == "orc" else pq).write_table(pa.table({"id": [1]}), sink)
    with pytest.raises(Corrupt, match="some/manifest-1"):
        manifest.decode_entries(bytes(sink.getvalue()), "some/manifest-1")
    with pytest.raises(Corrupt, match="some/manifest-1"):
        manifest.decode_list(bytes(sink.getvalue()), "some/manifest-1")


CODECS = {"avro": ("zstd", "snappy", "deflate", "bzip2", "xz", "null"), "orc": ("zstd", "zlib", "snappy", "lz4", "none"),
          "parquet": ("zstd", "snappy", "gzip", "none")}  # fmt: skip


@pytest.mark.parametrize(("form", "codec"), [(f, c) for f, codecs in CODECS.items() for c in codecs])
def test_manifests_are_read_as_they_were_written(form: str, codec: str, golden: Any) -> None:
    entries, metas = [], []
    for name in ("manifest_parquet", "manifest_orc"):
        lists, files = manifests(golden, name)
        metas += [m for f in lists for m in manifest.decode_list(f.read_bytes(), f.name)]
        entries += [e for f in files for e in manifest.entries_of(manifest.decode_entries(f.read_bytes(), f.name))]
    assert entries and metas
    unusual = entries[0].file._replace(
        extra_files=("a", "ł"), value_stats_cols=("x",), write_cols=(), embedded_index=b"\0", first_row_id=7,
        external_path="file:/x/ł", delete_row_count=None, file_source=None, creation_ms=-1,
        value_stats=Stats.of(b"\0\0\0\1x", b"\0\0\0\1y", (None, 5, 2**40)),
    )  # fmt: skip
    entries += [entries[0]._replace(file=unusual, kind=1)]
    data = manifest.write_entries(manifest.encode_entries(entries), codec, form)
    assert is_avro(data) == (form == "avro")
    assert manifest.entries_of(manifest.decode_entries(data, "m")) == entries
    assert manifest.decode_list(manifest.encode_list(metas, codec, form), "l") == tuple(metas)
    assert manifest.decode_list(manifest.encode_list([], codec, form), "l") == ()


@pytest.mark.parametrize(
    ("form", "codec"), [("orc", "gzip"), ("parquet", "lz4"), ("parquet", "brotli"), ("csv", "zstd")]
)
def test_what_cannot_be_written_is_named(form: str, codec: str) -> None:
    with pytest.raises(Unsupported, match=r"manifest\."):
        manifest.encode_list([], codec, form)
