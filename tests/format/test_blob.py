# SPDX-License-Identifier: Apache-2.0
"""Blob files: what Java wrote byte by byte, what is written here, and damage."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import Corrupt, Unsupported
from shoal.format.blob import (
    NULL,
    PLACEHOLDER,
    Descriptor,
    decode_descriptor,
    decode_lengths,
    encode_file,
    encode_lengths,
    is_descriptor,
    is_view,
    read_index,
    read_records,
    resolve,
    value_column,
)
from shoal.format.types import DataType
from shoal.store.local import LocalStore
from shoal.store.memory import MemoryStore

Golden = Callable[[str], Path]


def values_of(store: MemoryStore | LocalStore, path: str, rows: Sequence[int] | None = None) -> list[bytes | None]:
    index = read_index(store, path)
    at = np.arange(len(index)) if rows is None else np.array(rows)
    return list(read_records(store, path, index.starts[at], index.lengths[at]))


def test_a_file_that_java_wrote_is_written_the_same(golden: Golden) -> None:
    """Values 010203, null and the empty one, of the golden table tracking.blobs."""
    folder = golden("tracking") / "tracking.db" / "blobs" / "bucket-0"
    path = next(folder.glob("*.blob"))
    assert path.read_bytes() == encode_file([b"\1\2\3", None, b""])
    assert values_of(LocalStore(str(folder)), path.name) == [b"\1\2\3", None, b""]


def test_placeholders_that_java_wrote(golden: Golden) -> None:
    folder = golden("kinds") / "kinds.db" / "blob_updated" / "bucket-0"
    store = LocalStore(str(folder))
    lengths = {tuple(read_index(store, p.name).lengths.tolist()) for p in folder.glob("*.blob")}
    newest, middle = (PLACEHOLDER, 16 + 6), (PLACEHOLDER, 16 + 4, PLACEHOLDER, NULL, 16 + 4)
    assert {newest, middle} <= lengths


def test_a_checksum_without_the_length_is_good_too() -> None:
    """pypaimon's checksum covers magic and value only."""
    framed = bytes.fromhex("cf114e58") + b"value"
    index = encode_lengths([16 + 5])
    data = framed + struct.pack("<qI", 21, zlib.crc32(framed)) + index + struct.pack("<ib", len(index), 1)
    store = MemoryStore("blob-crc")
    store.put("f.blob", data)
    assert values_of(store, "f.blob") == [b"value"]


def test_only_what_is_asked_for_is_read() -> None:
    store = MemoryStore("blob-reads")
    values = [bytes([i]) * 200_000 for i in range(20)]
    store.put("f.blob", encode_file(values))
    read: list[int] = []

    class Counting(MemoryStore):
        def size(self, path: str) -> int:
            return store.size(path)

        def read_range(self, path: str, start: int, length: int) -> bytes:
            read.append(length)
            return store.read_range(path, start, length)

    assert values_of(Counting("blob-counting"), "f.blob", [3, 4, 9]) == [values[3], values[4], values[9]]
    assert sum(read) < 700_000
    assert len(read) == 4  # footer, index, two neighbours together, one more


@pytest.mark.parametrize("seed", range(20))
def test_any_values_come_back(seed: int) -> None:
    rng = random.Random(seed)
    kinds: list[bytes | int | None] = [None, PLACEHOLDER, b"", b"x", b"y" * 300, bytes(rng.randbytes(70_000))]
    values = [rng.choice(kinds) for _ in range(rng.randrange(60))]
    store = MemoryStore(f"blob-{seed}")
    store.put("f.blob", encode_file(values))
    assert values_of(store, "f.blob") == [v if isinstance(v, bytes) else None for v in values]
    index = read_index(store, "f.blob")
    expected = [NULL if v is None else PLACEHOLDER if isinstance(v, int) else len(v) + 16 for v in values]
    assert index.lengths.tolist() == expected


def test_lengths_of_all_sizes_come_back() -> None:
    for lengths in ([], [0], [-1, -2, 1 << 40, 0, 127, 128, -1], list(range(-3, 300))):
        assert decode_lengths(encode_lengths(lengths), "p").tolist() == lengths


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d[:3], "no footer"),
        (lambda d: d[:-1] + b"\2", "version 2"),
        (lambda d: d[:-5] + struct.pack("<ib", 10_000, 1), "index of 10000 bytes"),
        (lambda d: d[:10] + d[20:], "counts other bytes"),
        (lambda d: d[:4] + b"?" + d[5:], "damaged"),
        (lambda d: b"?" + d[1:], "damaged"),
    ],
)
def test_damage_is_named(change: Callable[[bytes], bytes], says: str) -> None:
    store = MemoryStore("blob-damage")
    store.put("f.blob", change(encode_file([b"a value of some bytes", None])))
    with pytest.raises((Corrupt, Unsupported), match=rf"f\.blob.*{says}"):
        values_of(store, "f.blob")


def test_a_nested_value_that_is_cut_off_is_damaged() -> None:
    t = DataType("ARRAY", element=DataType("BLOB"))
    index = encode_lengths([2, NULL])
    good = struct.pack("<ibi", 1094861634, 1, 2) + b"ab" + index + struct.pack("<i", len(index))
    assert value_column([good, None], t, "f").to_pylist() == [[b"ab", None], None]
    for bad in (good[:8], good[:-6] + good[-4:], b"?" + good[1:]):
        with pytest.raises(Corrupt, match=r"f: a .* value is damaged"):
            value_column([bad], t, "f")


def test_descriptors_that_java_wrote_lead_to_their_bytes(golden: Golden) -> None:
    """A column of descriptors of another file: bytes 2 to 5 of it, and all from byte 4 on."""
    folder = golden("kinds") / "kinds.db"
    data = pq.read_table(next((folder / "blob_descriptor" / "bucket-0").glob("*.parquet")))
    column = data.column("d").combine_chunks()
    stored = column.to_pylist()
    assert [v is not None and is_descriptor(v) for v in stored] == [True, True, False]
    first, second = (decode_descriptor(v, "d") for v in stored[:2])
    assert (first.offset, first.length, second.offset, second.length) == (2, 3, 4, -1)
    assert [d.encode() for d in (first, second)] == stored[:2]

    def fetch(d: Descriptor) -> bytes:
        outside = (folder / Path(d.uri).name).read_bytes()
        return outside[d.offset :] if d.length < 0 else outside[d.offset : d.offset + d.length]

    assert resolve(column, fetch, "d").to_pylist() == [b"234", b"456789", None]


def test_bytes_that_are_no_descriptor_are_the_blob() -> None:
    def never(_: Descriptor) -> bytes:
        raise AssertionError

    plain = pa.array([b"", b"\2short", None, b"\2" + bytes(40)])
    assert resolve(plain, never, "d") == plain
    view = b"\1" + struct.pack("<q", 0x424C4F4256494557) + bytes(30)
    assert is_view(view) and not is_descriptor(view)
    with pytest.raises(Unsupported, match="another table"):
        resolve(pa.array([view]), never, "d")
    assert resolve(pa.array([view]), never, "d", views=False).to_pylist() == [view]
    with pytest.raises(Corrupt, match="d: a blob descriptor is damaged"):
        resolve(pa.array([Descriptor("file:/x", 1, 2).encode()[:-3]]), never, "d")
