# SPDX-License-Identifier: Apache-2.0
"""Blocks of ORC and Avro files, compressed and decompressed. The codecs are pyarrow's and Python's own.

Invariant: at most `limit` bytes come out of a block, whatever it claims; damage is `ValueError`, `OSError` or an Arrow
error, for the reader that knows the file's name to turn into `Corrupt`.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from functools import lru_cache
from typing import Any

from shoal.format.varint import read_unsigned

# Bytes that a stream is asked for, first and then: one read of the limit would allocate the limit.
_FIRST_STEP, _STEP = 1 << 16, 1 << 22


def unpacked(kind: str, raw: bytes, limit: int) -> bytes:
    """The bytes of a block of at most `limit`. `kind`: deflate (without header), snappy, zstd, lz4, bzip2, xz."""
    match kind:
        case "deflate":
            out = _inflated(raw, limit)
        case "zstd":
            out = _unzstd(raw, limit)
        case "snappy":
            out = _known("snappy", raw, snappy_size(raw), limit)
        case "lz4":
            out = _known("lz4_raw", raw, _lz4_size(raw), limit)
        case "bzip2":
            out = bz2.BZ2Decompressor().decompress(raw, limit + 1)
        case "xz":
            out = _unxz(raw, limit)
        case _:
            raise ValueError(f"no codec {kind}")
    if len(out) > limit:
        raise ValueError(f"it decompresses to more than {limit} bytes")
    return out


@lru_cache(maxsize=8)
def codec(name: str) -> Any:
    """pyarrow's codec of this name."""
    import pyarrow as pa

    return pa.Codec(name)


@lru_cache(maxsize=32)
def _levelled(name: str, level: int | None) -> Any:
    import pyarrow as pa

    return pa.Codec(name, compression_level=level)


def packed(kind: str, raw: bytes | memoryview, level: int | None = None, *, checked: bool = False) -> bytes:
    """A block compressed: the codecs of `unpacked`, and none. `level` is that of zstd; `checked` snappy blocks end with
    a checksum, as Avro's do."""
    match kind:
        case "none":
            return bytes(raw)
        case "deflate":
            c = zlib.compressobj(wbits=-15)
            return c.compress(raw) + c.flush()
        case "bzip2":
            return bz2.compress(raw)
        case "xz":
            return lzma.compress(raw)
        case "snappy" if checked:
            return packed("snappy", raw) + zlib.crc32(raw).to_bytes(4, "big")
        case "zstd":
            out: bytes = _levelled("zstd", level).compress(raw, asbytes=True)
            return out
        case "snappy" | "lz4":
            out = codec("lz4_raw" if kind == "lz4" else kind).compress(raw, asbytes=True)
            return out
    raise ValueError(f"no codec {kind}")


def _known(name: str, raw: bytes, size: int, limit: int) -> bytes:
    if size > limit:
        raise ValueError(f"it claims {size} bytes where at most {limit} fit")
    out: bytes = codec(name).decompress(raw, size, asbytes=True) if size else b""
    return out


def _inflated(raw: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(-15)
    try:
        out = stream.decompress(raw, limit + 1)
    except zlib.error as err:
        raise ValueError(str(err)) from err
    if not stream.eof and len(out) <= limit:
        raise ValueError("it ends too early")
    return out


def _unxz(raw: bytes, limit: int) -> bytes:
    try:
        return lzma.LZMADecompressor(memlimit=1 << 28).decompress(raw, limit + 1)
    except lzma.LZMAError as err:
        raise ValueError(str(err)) from err


def _unzstd(raw: bytes, limit: int) -> bytes:
    import pyarrow as pa

    size = zstd_size(raw)
    if size is not None:
        return _known("zstd", raw, size, limit)
    parts: list[bytes] = []
    total, step = 0, _FIRST_STEP
    with pa.CompressedInputStream(pa.BufferReader(raw), "zstd") as stream:
        while total <= limit and (part := stream.read(min(step, limit + 1 - total))):
            parts.append(part)
            total += len(part)
            step = _STEP
    return b"".join(parts)


def zstd_size(raw: bytes) -> int | None:
    """The content size that a zstd frame's header tells (RFC 8878, 3.1.1.1), or None: Java's writers leave it out."""
    if raw[:4] != b"\x28\xb5\x2f\xfd" or len(raw) < 14:
        return None
    descriptor = raw[4]
    flag, single = descriptor >> 6, descriptor >> 5 & 1
    if flag == 0 and not single:
        return None
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    width = (1, 2, 4, 8)[flag]
    return int.from_bytes(raw[at : at + width], "little") + (256 if width == 2 else 0)


def snappy_size(raw: bytes) -> int:
    """What a snappy block decompresses to: the number it begins with."""
    try:
        return read_unsigned(raw, 0)[0]
    except IndexError as err:
        raise ValueError("it has no length") from err


def _lz4_size(raw: bytes) -> int:
    """What a raw LZ4 block decompresses to: the block does not say, its sequences add up to it."""
    p = total = 0
    end = len(raw)
    try:
        while p < end:
            token = raw[p]
            p += 1
            literals, p = _lz4_length(raw, p, token >> 4)
            p += literals
            total += literals
            if p >= end:
                break  # the last sequence is literals only
            match, p = _lz4_length(raw, p + 2, token & 15)
            total += match + 4
    except IndexError as err:
        raise ValueError("it ends too early") from err
    return total


def _lz4_length(raw: bytes, p: int, n: int) -> tuple[int, int]:
    if n == 15:
        while True:
            more = raw[p]
            p += 1
            n += more
            if more < 255:
                break
    return n, p
