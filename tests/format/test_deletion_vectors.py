# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors and hash indexes that Java 2.0.0 wrote: what they say, and the same bytes again.

Invariants: the rows that a vector keeps are the rows Java reads; both layouts encode to Java's bytes; damage ends in
`Corrupt` that names the file.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from shoal.errors import Corrupt
from shoal.format import hash_index
from shoal.format.deletion_vectors import (
    DeletionVector,
    DvRange,
    decode_file,
    decode_vector,
    encode_file,
    encode_vector,
    span,
)
from shoal.format.hashing import row_hashes
from shoal.format.index_manifest import IndexEntry, decode_index_manifest
from shoal.format.manifest import decode_entries, entries_of
from shoal.format.types import DataType

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def entries(table: Path) -> list[IndexEntry]:
    """The index entries of a table's latest snapshot."""
    last = (table / "snapshot/LATEST").read_text().strip()
    name = json.loads((table / f"snapshot/snapshot-{last}").read_text())["indexManifest"]
    return decode_index_manifest((table / "manifest" / name).read_bytes(), name)


def every(table: Path) -> Iterator[tuple[IndexEntry, bytes]]:
    """All index files that any snapshot of a table still names."""
    seen = set()
    for manifest in (table / "manifest").glob("index-manifest-*"):
        for e in decode_index_manifest(manifest.read_bytes(), manifest.name):
            file = table / "index" / e.file_name
            if e.file_name not in seen and file.exists():
                seen.add(e.file_name)
                yield e, file.read_bytes()


def live_files(table: Path) -> set[str]:
    """The data files that were added and not deleted since."""
    found = {0: set[str](), 1: set[str]()}
    for path in (table / "manifest").glob("manifest-[!l]*"):
        for e in entries_of(decode_entries(path.read_bytes(), path.name)):
            found[e.kind].add(e.file.file_name)
    return found[0] - found[1]


def test_index_files_encode_to_the_same_bytes(golden: Golden) -> None:
    checked = {True: 0, False: 0}
    for table in sorted((golden("dv") / "dv.db").iterdir()):
        if not (table / "index").exists():
            continue
        for e, data in every(table):
            assert e.dv_ranges is not None and e.row_count == len(e.dv_ranges) and e.file_size == len(data)
            vectors = decode_file(data, e.dv_ranges, e.file_name)
            assert encode_file({r.file_name: vectors[r.file_name] for r in e.dv_ranges}) == (data, e.dv_ranges)
            for r in e.dv_ranges:
                at, size = span(r, len(data))
                one = decode_vector(data[at : at + size], e.file_name, r.length)
                assert one.positions.tolist() == vectors[r.file_name].positions.tolist()
                assert one.cardinality == r.cardinality
                assert one.bits64 == (table.name == "pk_dv_bitmap64")
                checked[one.bits64] += 1
    assert checked[True] >= 2 and checked[False] >= 20


@pytest.mark.parametrize("name", ["ap_dv", "ap_dv_bucket", "ap_dv_part"])
def test_the_rows_kept_are_the_rows_java_reads(golden: Golden, expected: Expected, name: str) -> None:
    table = golden("dv") / "dv.db" / name
    vectors: dict[str, DeletionVector] = {}
    for e in entries(table):
        assert e.dv_ranges is not None
        vectors |= decode_file((table / "index" / e.file_name).read_bytes(), e.dv_ranges, e.file_name)
    got: Counter[tuple[object, ...]] = Counter()
    for file in (f for f in table.rglob("data-*.parquet") if f.name in live_files(table)):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=7):
            start = got[("at", file.name)]
            got[("at", file.name)] += batch.num_rows
            keep = vectors[file.name].keep(start, batch.num_rows) if file.name in vectors else [True] * batch.num_rows
            got.update((r["id"], r["v"], r["n"]) for r in batch.filter(pa.array(keep)).to_pylist())
    rows = Counter({k: v for k, v in got.items() if k[0] != "at"})
    assert rows == Counter((r["id"], r["v"], r["n"]) for r in expected(f"dv.{name}")[1])
    assert len(vectors) > 0


def java_vector(positions: list[int], bits64: bool = False) -> bytes:
    """A vector by the format's description, without run containers."""
    if not bits64:
        body = struct.pack(">i", 1581511376) + BitMap(positions).serialize()
    else:
        keys = sorted({p >> 32 for p in positions})
        body = struct.pack("<iq", 1681511377, len(keys))
        for key in keys:
            low = BitMap([p & 0xFFFFFFFF for p in positions if p >> 32 == key])
            body += struct.pack("<i", key) + low.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@given(st.sets(st.integers(0, 200_000), max_size=60), st.integers(0, 150_000), st.integers(0, 3000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_keep_is_a_set_difference(positions: set[int], start: int, count: int, bits64: bool) -> None:
    vector = decode_vector(java_vector(sorted(positions), bits64), "x")
    assert vector.keep(start, count).tolist() == [p not in positions for p in range(start, start + count)]
    rows = np.arange(start, start + count)
    assert vector.contains(rows).tolist() == [p in positions for p in rows.tolist()]
    again = decode_vector(encode_vector(vector), "x")
    assert again.positions.tolist() == sorted(positions) and again.bits64 == bits64


def test_positions_beyond_32_bits_and_missing_keys() -> None:
    positions = [5, (1 << 33) + 7, (1 << 33) + 8, (3 << 32) + (1 << 32) - 1]
    vector = decode_vector(java_vector(positions, bits64=True), "x")
    assert vector.positions.tolist() == positions and vector.last == positions[-1]
    assert vector.keep((1 << 33) + 6, 4).tolist() == [True, False, False, True]
    dense = encode_vector(vector)
    assert struct.unpack_from("<q", dense, 8) == (4,)  # Java writes a bitmap for each key up to the last
    assert decode_vector(dense, "x").positions.tolist() == positions


def test_a_vector_of_runs_and_one_of_nothing() -> None:
    for bits64 in (False, True):
        vector = DeletionVector.of(range(10, 100_000), bits64)
        data = encode_vector(vector)
        assert len(data) < 60  # long runs are stored as runs
        assert decode_vector(data, "x").positions.tolist() == list(range(10, 100_000))
        assert decode_vector(encode_vector(DeletionVector.of([], bits64)), "x").cardinality == 0
    assert encode_file({}) == (b"\1", ())
    assert DeletionVector.of([7, 3, 7]).positions.tolist() == [3, 7]
    assert DeletionVector.of(np.array([9, 1])).cardinality == 2


def test_known_bytes() -> None:
    """Java's vectors of the rows 1, 5 and 70000 in both layouts, by their lengths and magic numbers."""
    v1, v2 = (encode_vector(DeletionVector.of([1, 5, 70000], b)) for b in (False, True))
    assert v1[:8].hex() == "000000225e43f2d0" and len(v1) == 42
    assert v2[:8].hex() == "0000002ed1d33964" and len(v2) == 54
    _, ranges = encode_file({"a": DeletionVector.of([1, 5, 70000]), "b": DeletionVector.of([1, 5, 70000], True)})
    assert ranges == (DvRange("a", 1, 34, 3), DvRange("b", 43, 54, 3))


def test_damage_names_the_file() -> None:
    for bits64 in (False, True):
        good = java_vector([1, 5, 70000], bits64)
        rng = random.Random(1)
        for _ in range(300):
            raw = bytearray(good)
            raw[rng.randrange(len(raw))] ^= rng.randrange(1, 256)
            with pytest.raises(Corrupt, match="index-9"):
                decode_vector(bytes(raw), "index-9")
        for cut in range(len(good)):
            with pytest.raises(Corrupt, match="index-9"):
                decode_vector(good[:cut], "index-9")
        with pytest.raises(Corrupt, match="the manifest says 1"):
            decode_vector(good, "index-9", 1)
    data, ranges = encode_file({"a": DeletionVector.of([1])})
    with pytest.raises(Corrupt, match="deletes 1 rows where the manifest says 2"):
        decode_file(data, [ranges[0]._replace(cardinality=2)], "index-9")
    with pytest.raises(Corrupt, match="version 02"):
        decode_file(b"\2" + data[1:], ranges, "index-9")


def test_hash_indexes_hold_the_hash_of_every_key(golden: Golden, expected: Expected) -> None:
    table = golden("bucket_modes") / "bucket_modes.db/pk_dynamic"
    found: list[int] = []
    for e in entries(table):
        data = (table / "index" / e.file_name).read_bytes()
        hashes = hash_index.decode(data, e.file_name)
        assert e.index_type == hash_index.INDEX_TYPE and e.row_count == len(hashes) and e.dv_ranges is None
        assert hash_index.encode(hashes) == data
        found += hashes.tolist()
    ids = pa.array([r["id"] for r in expected("bucket_modes.pk_dynamic")[1]], pa.int32())
    assert sorted(found) == sorted(row_hashes([ids], [DataType("INT")]).tolist())
    with pytest.raises(Corrupt, match="index-3"):
        hash_index.decode(b"12345", "index-3")
