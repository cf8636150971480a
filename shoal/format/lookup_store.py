# SPDX-License-Identifier: Apache-2.0
"""Java's sorted lookup files: blocks of keys and values, a bloom filter, an index of the blocks' last keys, a footer.

Agrees with: SortLookupStoreWriter, SstFileWriter, BlockWriter, BloomFilter (2.0.0). Invariant: keys come in the order
of Java's comparator; without compression the bytes equal those of Java, with it what the blocks unpack to.
"""

from __future__ import annotations

import zlib
from math import ceil, floor, log
from typing import IO

import numpy as np

from shoal.errors import Unsupported
from shoal.format.byte_columns import Array, Pieces, side_by_side, varints
from shoal.format.codecs import packed
from shoal.format.hashing import SEED, murmur_finish, murmur_mix
from shoal.format.varint import read_unsigned, unsigned

_MAGIC = 1481571681
_CODECS = {"none": 0, "zstd": 1, "lz4": 2}
_ALIGNED, _UNALIGNED = b"\0", b"\1"
_TAIL = 5  # of a block: what says how its entries are found


def check_codec(name: str) -> str:
    """The name of a codec that blocks can be packed with."""
    if name.lower() not in _CODECS:
        raise Unsupported(
            f"'lookup.cache-spill-compression' = '{name}' is not supported for stored lookup files",
            hint="use zstd, lz4 or none; every reader of Java reads them",
        )
    return name.lower()


class LookupStoreWriter:
    """Writes entries to `file`, blocks of about `block_size` bytes; with `fpp`, a bloom filter of `entries` keys."""

    def __init__(
        self, file: IO[bytes], entries: int, *, block_size: int, codec: str, level: int | None, fpp: float | None
    ) -> None:
        self._file = file
        self._at = 0
        self._block_size = block_size
        self._codec = codec
        self._level = level
        self._bloom = None if fpp is None else Bloom(entries, fpp)
        self._waiting: Pieces = (np.empty(0, np.uint8), np.empty(0, np.int64))
        self._index: list[bytes] = []

    def add(self, keys: Pieces, values: Pieces) -> None:
        """Entries behind those that came before."""
        rows = len(keys[1])
        if self._bloom is not None:
            self._bloom.add(keys)
        sized = [(varints(p[1].astype(np.uint64)), p) for p in (keys, values)]
        flat, lengths = side_by_side([part for pair in sized for part in pair], rows)
        if len(self._waiting[1]):
            flat, lengths = np.concatenate((self._waiting[0], flat)), np.concatenate((self._waiting[1], lengths))
        self._waiting = self._blocks(flat, lengths)

    def close(self) -> int:
        """The bytes of the file."""
        if len(self._waiting[1]):
            self._data_block(*self._waiting)
        bloom = bytes(20)
        if self._bloom is not None:
            bits = self._bloom.bits.tobytes()
            bloom = self._long(self._at) + _int(len(bits)) + self._long(self._bloom.entries)
            self._put(bits)
        lengths = np.array([len(e) for e in self._index], np.int64)
        offset, size = self._block(np.frombuffer(b"".join(self._index), np.uint8), lengths)
        self._put(bloom + self._long(offset) + _int(size) + _int(_MAGIC))
        return self._at

    # ---- blocks

    def _blocks(self, flat: Array, lengths: Array) -> Pieces:
        """Write the blocks that are full; what is left."""
        ends = np.cumsum(lengths)
        placed = ends + 4 * np.arange(len(ends))  # with the position that each entry of unequal ones has
        changes = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
        limit, first, base = self._block_size - _TAIL, 0, 0
        while first < len(ends):
            # entries of one length need no positions; the first of another length brings those of all before it
            following = int(np.searchsorted(changes, first, "right"))
            unequal = int(changes[following]) if following < len(changes) else len(ends)
            last = int(np.searchsorted(ends, base + limit, "right"))
            if last >= unequal:
                last = max(unequal, int(np.searchsorted(placed, base + limit - 4 + 4 * first, "right")))
            if last >= len(ends):
                break
            end = int(ends[last])
            self._data_block(flat[base:end], lengths[first : last + 1])
            first, base = last + 1, end
        return flat[base:].copy(), lengths[first:].copy()

    def _data_block(self, flat: Array, lengths: Array) -> None:
        raw = flat[len(flat) - int(lengths[-1]) :].tobytes()
        size, start = read_unsigned(raw, 0)
        offset, length = self._block(flat, lengths)
        handle = unsigned(offset) + unsigned(length)
        self._index.append(unsigned(size) + raw[start : start + size] + unsigned(len(handle)) + handle)

    def _block(self, flat: Array, lengths: Array) -> tuple[int, int]:
        """Where the block begins, and how long it is."""
        if len(lengths) and (lengths == lengths[0]).all():
            tail = _int(int(lengths[0])) + _ALIGNED
        else:
            tail = (np.cumsum(lengths) - lengths).astype("<i4").tobytes() + _int(len(lengths)) + _UNALIGNED
        data, kind = flat.tobytes() + tail, _CODECS["none"]
        if self._codec != "none":
            small = packed(self._codec, data, self._level)
            if self._codec == "lz4":
                small = _int(len(small)) + _int(len(data)) + small
            small = unsigned(len(data)) + small
            if len(small) < len(data) - len(data) // 8:
                data, kind = small, _CODECS[self._codec]
        offset = self._at
        self._put(data + bytes([kind]) + (zlib.crc32(data + bytes([kind]))).to_bytes(4, "little"))
        return offset, len(data)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    @staticmethod
    def _long(n: int) -> bytes:
        return n.to_bytes(8, "little")


def _int(n: int) -> bytes:
    return n.to_bytes(4, "little")


class Bloom:
    """Which keys may be there, as Java sizes and fills it."""

    def __init__(self, entries: int, fpp: float) -> None:
        bits = int(-entries * log(fpp) / (log(2) * log(2)))
        self.entries = entries
        self.bits = np.zeros(max(1, ceil(bits / 8)), np.uint8)
        self._hashes = max(1, floor(8 * len(self.bits) / entries * log(2) + 0.5))

    def add(self, keys: Pieces) -> None:
        one = key_hashes(keys)
        two = one >> np.uint32(16)
        for i in range(1, self._hashes + 1):
            both = (one + np.uint32(i) * two).view(np.int32)
            at = np.where(both < 0, ~both, both).astype(np.int64) % (8 * len(self.bits))
            np.bitwise_or.at(self.bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))


def key_hashes(keys: Pieces) -> Array:
    """The murmur hash (uint32) of each key's bytes."""
    flat, lengths = keys
    start = np.cumsum(lengths) - lengths
    words = lengths // 4
    h = np.full(len(lengths), SEED, np.uint32)
    shifts = np.array([0, 8, 16, 24], np.uint32)
    for j in range(int(words.max()) if len(words) else 0):
        some = np.flatnonzero(words > j)
        four = flat[(start[some] + 4 * j)[:, None] + np.arange(4)].astype(np.uint32)
        h[some] = murmur_mix(h[some], (four << shifts).sum(axis=1, dtype=np.uint32))
    for j in range(3):
        some = np.flatnonzero(lengths % 4 > j)
        last = flat[start[some] + 4 * words[some] + j].view(np.int8).astype(np.int32).view(np.uint32)
        h[some] = murmur_mix(h[some], last)
    return murmur_finish(h, lengths.astype(np.uint32))
