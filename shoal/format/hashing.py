# SPDX-License-Identifier: Apache-2.0
"""Bucket hashes of whole columns: murmur over the BinaryRow of each row, without making the rows.

Agrees with: MurmurHashUtils, DefaultBucketFunction, ModBucketFunction, HiveBucketFunction (2.0.0).
Invariant: equal to hashing `row.encode` of every row; writers must agree on the bucket, so a wrong bit here
hides rows from every other engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.format.instants import parts
from shoal.format.row import bitset_width, is_wide
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

U32 = np.uint32
Words = np.ndarray[Any, np.dtype[np.uint32]]
Ints = np.ndarray[Any, np.dtype[Any]]

# Rows per pass: larger blocks fall out of the CPU cache and run five times slower.
CHUNK = 65_536
# Paimon fixes the seed at 42.
SEED = 42


def row_hashes(columns: Sequence[pa.Array], types: Sequence[DataType]) -> Ints:
    """Signed 32-bit murmur hash of each row's BinaryRow; one array per column, all of one length."""
    n = len(columns[0]) if columns else 0
    out = np.empty(n, np.int32)
    for start in range(0, n, CHUNK):
        part = [c.slice(start, CHUNK) for c in columns]
        out[start : start + CHUNK] = _hash_block(part, types)
    return out


def buckets(
    columns: Sequence[pa.Array], types: Sequence[DataType], count: int | Ints, function: str = "default"
) -> Ints:
    """The bucket of each row, int32. `count` is the number of buckets, of all rows or of each."""
    if function == "default":
        h = row_hashes(columns, types).astype(np.int64)
        return np.abs(np.fmod(h, count)).astype(np.int32)
    if function == "mod":
        if len(types) != 1 or types[0].root not in ("INT", "BIGINT"):
            raise BadRequest(
                "bucket-function.type 'mod' needs exactly one INT or BIGINT bucket key",
                hint="set bucket-key to one integer column or use the default bucket function",
            )
        return np.mod(_ints(columns[0]).astype(np.int64), count).astype(np.int32)
    if function == "hive":
        g: Ints = np.zeros(len(columns[0]), np.int32)
        for c, t in zip(columns, types):
            g = (g.astype(np.int64) * 31).astype(np.int32) + _hive(c, t)
        return ((g & 0x7FFFFFFF) % count).astype(np.int32)
    raise BadRequest(f"bucket-function.type '{function}' is unknown", hint="use default, mod or hive")


# ---- murmur ----------------------------------------------------------------------------------------------


def murmur_mix(h: Words, k: Words) -> Words:
    k = k * U32(0xCC9E2D51)
    k = (k << U32(15)) | (k >> U32(17))
    k *= U32(0x1B873593)
    h = h ^ k
    h = (h << U32(13)) | (h >> U32(19))
    h *= U32(5)
    h += U32(0xE6546B64)
    return h


def murmur_finish(h: Words, length: Words) -> Words:
    h = h ^ length
    h ^= h >> U32(16)
    h *= U32(0x85EBCA6B)
    h ^= h >> U32(13)
    h *= U32(0xC2B2AE35)
    h ^= h >> U32(16)
    return h


def _hash_block(columns: Sequence[pa.Array], types: Sequence[DataType]) -> Ints:
    n = len(columns[0])
    width = bitset_width(len(types))
    null_words = [np.zeros(n, U32) for _ in range(width // 4)]
    slots: list[tuple[Words, Words]] = []
    at = np.full(n, width + 8 * len(types), U32)
    variable: list[tuple[Words, Ints]] = []  # words (w, n) of one column and how many of them each row has
    for i, (c, t) in enumerate(zip(columns, types)):
        nulls = _nulls(c)
        if nulls is not None:
            bit = i + 8
            null_words[bit // 32] |= nulls.astype(U32) << U32(bit % 32)
        if t.is_bytes:
            low, high, words, counts = _byte_words(c, at)
        elif is_wide(t):
            low, words = _wide_decimal(c) if t.root == "DECIMAL" else _wide_timestamp(c)
            high, counts = at, np.full(n, words.shape[0], np.int64)
        else:
            low, high = _fixed(c, t)
            words = counts = None
        if nulls is not None:
            low = np.where(nulls, U32(0), low)
            if not is_wide(t):
                high = np.where(nulls, U32(0), high)
            elif words is not None:
                words = np.where(nulls, U32(0), words)
            if t.is_bytes and counts is not None:
                counts = np.where(nulls, 0, counts)
        slots.append((low, high))
        if words is not None and counts is not None:
            variable.append((words, counts))
            at = at + (counts * 4).astype(U32)
    h: Words = np.full(n, SEED, U32)
    for w in null_words:
        h = murmur_mix(h, w)
    for low, high in slots:
        h = murmur_mix(murmur_mix(h, low), high)
    for words, counts in variable:
        least, most = (int(counts.min()), int(counts.max())) if n else (0, 0)
        for j in range(most):
            if j < least:
                h = murmur_mix(h, words[j])
            else:
                some = np.flatnonzero(counts > j)
                h[some] = murmur_mix(h[some], words[j][some])
    return murmur_finish(h, at).view(np.int32)


def _nulls(c: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    if not c.null_count:
        return None
    mask: np.ndarray[Any, np.dtype[np.bool_]] = c.is_null().to_numpy(zero_copy_only=False)
    return mask


def _ints(c: pa.Array) -> Ints:
    """Values of a fixed-width column as integers of its own width; undefined where null."""
    import pyarrow as pa

    t = c.type
    if pa.types.is_boolean(t):
        return np.asarray(c.fill_null(False).to_numpy(zero_copy_only=False)).astype(np.int8)
    dtype = np.dtype(f"i{t.bit_width // 8}")
    values = np.frombuffer(c.buffers()[1], dtype)
    return values[c.offset : c.offset + len(c)]


def _timestamp_parts(c: pa.Array) -> tuple[Ints, Ints]:
    """Milliseconds (floor) and the nanoseconds within the millisecond."""
    seconds, nanos = parts(c)
    return seconds * 1000 + nanos // 1_000_000, nanos % 1_000_000


def _split64(v: Ints) -> tuple[Words, Words]:
    pair = np.ascontiguousarray(v.astype(np.int64)).view(U32).reshape(-1, 2)
    return pair[:, 0], pair[:, 1]


def _fixed(c: pa.Array, t: DataType) -> tuple[Words, Words]:
    n = len(c)
    if t.is_timestamp:
        return _split64(_timestamp_parts(c)[0])
    if t.root == "DECIMAL":
        raw = np.frombuffer(c.buffers()[1], np.int64).reshape(-1, 2)[c.offset : c.offset + n, 0]
        return _split64(raw)
    v = _ints(c)
    if t.root in ("BIGINT", "DOUBLE"):
        return _split64(v)
    if t.root in ("BOOLEAN", "TINYINT"):
        return v.view(np.uint8).astype(U32), np.zeros(n, U32)
    if t.root == "SMALLINT":
        return v.view(np.uint16).astype(U32), np.zeros(n, U32)
    if t.root in ("INT", "DATE", "TIME", "FLOAT"):
        return np.ascontiguousarray(v).view(U32), np.zeros(n, U32)
    raise Unsupported(f"a {t} column cannot be a bucket key")


def _wide_timestamp(c: pa.Array) -> tuple[Words, Words]:
    ms, rest = _timestamp_parts(c)
    low, high = _split64(ms)
    return rest.astype(U32), np.stack([low, high])


def _wide_decimal(c: pa.Array) -> tuple[Words, Words]:
    """(length, 4 words): the minimal big-endian two's complement, left-aligned in 16 bytes."""
    n = len(c)
    raw = np.frombuffer(c.buffers()[1], np.uint8).reshape(-1, 16)[c.offset : c.offset + n, ::-1]
    negative = raw[:, 0] >> 7
    fill = (negative * 255).astype(np.uint8)
    strip = np.zeros(n, np.int64)
    more = np.ones(n, bool)
    for j in range(15):
        more &= (raw[:, j] == fill) & ((raw[:, j + 1] >> 7) == negative)
        strip += more
    take = strip[:, None] + np.arange(16)
    out = np.where(take < 16, np.take_along_axis(raw, np.minimum(take, 15), 1), np.uint8(0))
    words = np.ascontiguousarray(out).view(U32).reshape(n, 4)
    return (16 - strip).astype(U32), np.ascontiguousarray(words.T)


def padded_bytes(c: pa.Array, width: int) -> tuple[Ints, Ints]:
    """(n, width) uint8 with every value zero-padded on the right, and the lengths. `width` fits the longest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, data = byte_buffers(c)
    n, lengths = len(c), np.diff(offsets)
    if n and int(lengths.min()) == int(lengths.max()):
        w = int(lengths[0])
        values = data[offsets[0] : offsets[0] + n * w].reshape(n, w)
        if w == width:
            return values, lengths
        out = np.zeros((n, width), np.uint8)
        out[:, :w] = values
        return out, lengths
    text = c.fill_null("") if pa.types.is_string(c.type) else c.fill_null(b"").view(pa.string())
    # Arrow pads bytes, not characters, in C++: its "ascii" functions look at bytes only
    wide = pc.ascii_rpad(text, width, "\0")
    o2, d2 = byte_buffers(wide)
    return d2[o2[0] : o2[0] + n * width].reshape(n, width), lengths


def byte_buffers(c: pa.Array) -> tuple[Ints, Ints]:
    """(offsets, data) of a string or binary array with 32-bit offsets."""
    n = len(c)
    _, offsets, data = c.buffers()
    if n == 0:
        return np.zeros(1, np.int32), np.zeros(1, np.uint8)
    o = np.frombuffer(offsets, np.int32)[c.offset : c.offset + n + 1]
    return o, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)


def _byte_words(c: pa.Array, at: Words) -> tuple[Words, Words, Words | None, Ints | None]:
    """Slot words of a string or binary column, and its variable part where a value is longer than 7 bytes."""
    lengths = np.diff(byte_buffers(c)[0]).astype(np.int64)
    nulls = _nulls(c)
    if nulls is not None:
        lengths = np.where(nulls, 0, lengths)
    longest = int(lengths.max()) if len(lengths) else 0
    buf, _ = padded_bytes(c, max(8, (longest + 7) // 8 * 8))
    inline = np.ascontiguousarray(buf[:, :8])
    big = lengths > 7
    if not big.any():
        inline[:, 7] = lengths.astype(np.uint8) | 0x80
        v = inline.view("<u4")
        return np.ascontiguousarray(v[:, 0]), np.ascontiguousarray(v[:, 1]), None, None
    words = np.ascontiguousarray(np.ascontiguousarray(buf).view("<u4").T)
    counts = np.where(big, (lengths + 7) // 8 * 2, 0)
    if big.all():
        return lengths.astype(U32), at, words, counts
    inline[:, 7] = np.where(big, 0, lengths | 0x80).astype(np.uint8)
    v = inline.view("<u4")
    return np.where(big, lengths, v[:, 0]).astype(U32), np.where(big, at, v[:, 1]).astype(U32), words, counts


# ---- hive ------------------------------------------------------------------------------------------------


def _hive(c: pa.Array, t: DataType) -> Ints:
    """Hive's hash of one column, int32; 0 where null."""
    n = len(c)
    if t.is_bytes:
        h = _hive_bytes(c)
    elif t.root in ("BIGINT",):
        h = _fold64(_ints(c).astype(np.int64))
    elif t.root in ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "DATE", "TIME"):
        h = _ints(c).astype(np.int32)
    elif t.root in ("FLOAT", "DOUBLE"):
        bits = _ints(c)
        sign = np.iinfo(bits.dtype).min
        bits = np.where(bits == sign, 0, bits)  # -0.0 hashes as 0.0
        nan = np.isnan(bits.view(np.dtype(f"f{bits.dtype.itemsize}")))
        bits = np.where(nan, 0x7FC00000 if t.root == "FLOAT" else 0x7FF8000000000000, bits)
        h = bits.astype(np.int32) if t.root == "FLOAT" else _fold64(bits.astype(np.int64))
    elif t.root == "DECIMAL":
        h = _hive_decimal(c, t)
    else:
        raise Unsupported(f"bucket-function.type 'hive' does not hash {t}", hint="Java refuses this type too")
    nulls = _nulls(c)
    out = h if nulls is None else np.where(nulls, np.int32(0), h)
    assert len(out) == n
    return out.astype(np.int32)


def _fold64(v: Ints) -> Ints:
    u = v.view(np.uint64)
    return (u ^ (u >> np.uint64(32))).astype(U32).view(np.int32)


def _hive_bytes(c: pa.Array) -> Ints:
    lengths = np.diff(byte_buffers(c)[0]).astype(np.int64)
    longest = int(lengths.max()) if len(lengths) else 0
    buf, _ = padded_bytes(c, max(1, longest))
    h = np.zeros(len(c), np.int32)
    for j in range(longest):
        step = (h.astype(np.int64) * 31).astype(np.int32) + buf[:, j].view(np.int8)
        h = np.where(lengths > j, step, h).astype(np.int32)
    return h


def _hive_decimal(c: pa.Array, t: DataType) -> Ints:
    """Java's BigDecimal.hashCode of the value without trailing zeros after the point."""
    from shoal.format.row import stored_values

    out = np.zeros(len(c), np.int32)
    # BigInteger.hashCode has no vector form for 128 bits; hive bucketing by a decimal is rare enough for a loop
    for i, v in enumerate(stored_values(c, t)):
        if v is None:
            continue
        u, scale = int(v), t.scale or 0
        if u == 0:
            continue
        while u % 10 == 0 and scale > 0:
            u, scale = u // 10, scale - 1
        h, m = 0, abs(u)
        for word in m.to_bytes((m.bit_length() + 31) // 32 * 4, "big").hex(" ", 4).split():
            h = (31 * h + int(word, 16)) & 0xFFFFFFFF
        h = (-h if u < 0 else h) & 0xFFFFFFFF
        h = (31 * h + scale) & 0xFFFFFFFF
        out[i] = h - (1 << 32) if h >= 1 << 31 else h
    return out
