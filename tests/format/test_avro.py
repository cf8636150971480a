"""The Avro codec against fastavro, and against damage."""

from __future__ import annotations

import io
import random

import fastavro
import pytest

import shoal
from shoal.format import avro, manifest
from shoal.format.datafile import ADD, DELETE, DataFile, Entry, Stats
from shoal.format.manifest import ManifestMeta


def entry(i: int) -> Entry:
    stats = Stats.of(bytes([i % 256]) * 12, b"x" * 20, (None, 0, i * 1000))
    file = DataFile(
        f"data-{i}.parquet", 10**i, i, b"k" * 12, b"", stats, Stats(encoded_null_counts=None), -1, 2**62, i, i % 6,
        extra_files=("a.index",) * (i % 3), creation_ms=None if i % 2 else 1_700_000_000_000, delete_row_count=i,
        embedded_index=None if i % 3 else b"\0\1", file_source=i % 2, value_stats_cols=None if i % 2 else ("ä", "b"),
        external_path=None, first_row_id=i, write_cols=(),
    )  # fmt: skip
    return Entry(DELETE if i % 4 == 0 else ADD, b"p" * i, i - 2, -1, file)


ENTRIES = [entry(i) for i in range(18)]


def written(codec: str = "null") -> bytes:
    return manifest.write_entries(manifest.encode_entries(ENTRIES), codec)


def test_fastavro_reads_what_is_written() -> None:
    records = list(fastavro.reader(io.BytesIO(written())))
    assert [r["_FILE"]["_FILE_NAME"] for r in records] == [e.file.file_name for e in ENTRIES]
    assert [r["_FILE"]["_FILE_SIZE"] for r in records] == [e.file.file_size for e in ENTRIES]
    assert [r["_FILE"]["_MIN_SEQUENCE_NUMBER"] for r in records] == [-1] * len(ENTRIES)
    assert [r["_FILE"]["_MAX_SEQUENCE_NUMBER"] for r in records] == [2**62] * len(ENTRIES)
    assert [r["_FILE"]["_KEY_STATS"]["_NULL_COUNTS"] for r in records] == [[None, 0, i * 1000] for i in range(18)]
    assert [r["_FILE"]["_VALUE_STATS_COLS"] for r in records][:2] == [["ä", "b"], None]


@pytest.mark.parametrize("codec", ["null", "zstd", "snappy", "deflate", "bzip2"])
def test_entries_survive_every_codec(codec: str) -> None:
    assert manifest.entries_of(manifest.decode_entries(written(codec), "m")) == ENTRIES


def test_what_fastavro_writes_is_read_with_fields_resolved_by_name() -> None:
    schema = {
        "type": "record", "name": "record", "fields": [
            {"name": "_NUM_DELETED_FILES", "type": "long"}, {"name": "_EXTRA", "type": ["null", "string"]},
            {"name": "_FILE_NAME", "type": "string"}, {"name": "_VERSION", "type": "int"}, {"name": "_FILE_SIZE", "type": "long"},
            {"name": "_NUM_ADDED_FILES", "type": "long"}, {"name": "_SCHEMA_ID", "type": "long"},
            {"name": "_PARTITION_STATS", "type": {"type": "record", "name": "s", "fields": [
                {"name": "_MIN_VALUES", "type": "bytes"}, {"name": "_MAX_VALUES", "type": "bytes"},
                {"name": "_NULL_COUNTS", "type": ["null", {"type": "array", "items": ["null", "long"]}]}]}},
        ],
    }  # fmt: skip
    stats = {"_MIN_VALUES": b"a", "_MAX_VALUES": b"b", "_NULL_COUNTS": [3, None]}
    row = {
        "_VERSION": 2, "_FILE_NAME": "manifest-x", "_FILE_SIZE": 5, "_NUM_ADDED_FILES": 1, "_NUM_DELETED_FILES": 2,
        "_EXTRA": "later", "_SCHEMA_ID": 0, "_PARTITION_STATS": stats,
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.writer(out, schema, [row, row])
    meta = ManifestMeta("manifest-x", 5, 1, 2, Stats.of(b"a", b"b", (3, None)), 0)
    assert manifest.decode_list(out.getvalue(), "l") == (meta, meta)


def test_an_empty_list_is_a_file_without_rows() -> None:
    data = manifest.encode_list([], "zstd")
    assert manifest.decode_list(data, "l") == ()
    assert list(fastavro.reader(io.BytesIO(manifest.encode_list([], "null")))) == []


def test_numbers_of_every_width_survive() -> None:
    schema = '{"type":"record","name":"r","fields":[{"name":"n","type":"long"}]}'
    values = [0, -1, 63, 64, -64, -65, 2**31, -(2**31), 2**63 - 1, -(2**63)]
    data = avro.write_container(schema, avro.encode_tuples(schema, [(v,) for v in values]), "null")
    assert avro.decode(data, "f") == (len(values), {"n": values})
    assert [r["n"] for r in fastavro.reader(io.BytesIO(data))] == values


@pytest.mark.parametrize("codec", ["null", "zstd", "snappy", "deflate"])
def test_every_truncation_is_reported_with_the_file_name(codec: str) -> None:
    data = written(codec)
    header_end = data.index(b"\0", data.index(b"avro.codec")) + 17
    for cut in [*range(0, header_end, 37), *range(header_end + 1, len(data), 5)]:
        with pytest.raises(shoal.Corrupt, match="the-manifest"):
            manifest.decode_entries(data[:cut], "the-manifest")


@pytest.mark.parametrize("codec", ["null", "zstd", "snappy", "deflate"])
def test_bit_flips_end_in_an_error_or_in_the_same_entries(codec: str) -> None:
    """Avro has no checksum: a flip inside an uncompressed value cannot be seen, but nothing hangs or blows up."""
    data, rnd = written(codec), random.Random(5)
    seen = 0
    for _ in range(200):
        bad = bytearray(data)
        at = rnd.randrange(len(bad))
        bad[at] ^= 1 << rnd.randrange(8)
        try:
            got = manifest.entries_of(manifest.decode_entries(bytes(bad), "the-manifest"))
        except (shoal.Corrupt, shoal.Unsupported) as err:
            assert "the-manifest" in str(err) or isinstance(err, shoal.Unsupported) or "Avro" in str(err)
            seen += 1
        else:
            assert len(got) <= len(data)
    assert seen > 20
