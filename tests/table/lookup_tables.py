# SPDX-License-Identifier: Apache-2.0
"""Tables with stored lookup files: the same rows in every run, and what a lookup file of Java's format holds."""

from __future__ import annotations

import datetime as dt
import random
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from shoal.format.varint import read_unsigned

TEXT, LIST = pa.string(), pa.list_
ROW = pa.struct(
    [("x", pa.int32()), ("y", TEXT), ("d", pa.decimal128(30, 2)), ("t", pa.timestamp("us")), ("z", LIST(pa.int16()))]
)
PLAIN = pa.schema([
    pa.field("k", pa.int32(), False), ("s", TEXT), ("b", pa.bool_()), ("i1", pa.int8()), ("i2", pa.int16()),
    ("i8", pa.int64()), ("f4", pa.float32()), ("f8", pa.float64()), ("d9", pa.decimal128(9, 2)),
    ("d30", pa.decimal128(30, 5)), ("day", pa.date32()), ("t3", pa.timestamp("ms")), ("t6", pa.timestamp("us")),
    ("t9", pa.timestamp("ns", "UTC")), ("v", pa.binary()), ("time", pa.time32("ms")),
])  # fmt: skip
NESTED = pa.schema([
    pa.field("k", pa.int32(), False), ("a", LIST(pa.int32())), ("b", LIST(TEXT)), ("m", pa.map_(TEXT, pa.int64())),
    ("n", LIST(ROW)), ("aa", LIST(LIST(TEXT))), ("dd", LIST(pa.decimal128(30, 2))), ("dc", LIST(pa.decimal128(9, 2))),
    ("tt", LIST(pa.timestamp("us"))), ("t3", LIST(pa.timestamp("ms"))), ("mr", pa.map_(pa.int32(), LIST(pa.float64()))),
    ("bb", LIST(pa.bool_())), ("si", LIST(pa.int16())), ("f", LIST(pa.float32())), ("ti", LIST(pa.int8())),
    ("r", pa.struct([("p", LIST(pa.int64())), ("q", pa.map_(pa.int32(), TEXT))])), ("da", LIST(pa.date32())),
    ("vb", LIST(pa.binary())), ("t9", LIST(pa.timestamp("ns", "UTC"))),
])  # fmt: skip
PAIR = pa.schema([("p", TEXT), ("t", TEXT), ("k", pa.int64()), ("v", TEXT)])

STORED = {
    "bucket": 1, "lookup.remote-file.enabled": True, "lookup.cache-spill-compression": "none", "cache-page-size": "1 kb"
}  # fmt: skip
Table = tuple[pa.Schema, list[str], list[str], dict[str, object]]
KINDS: dict[str, Table] = {
    "value": (PLAIN, ["k"], [], {"changelog-producer": "lookup"}),
    "nested": (NESTED, ["k"], [], {"changelog-producer": "lookup", "lookup.cache.bloom.filter.fpp": "0.01"}),
    "two keys": (PAIR, ["p", "t", "k"], ["p"], {"changelog-producer": "lookup"}),
    "empty": (PAIR, ["t", "k"], [], {"merge-engine": "first-row", "lookup.cache.bloom.filter.enabled": False}),
    "position": (PAIR, ["t", "k"], [], {"deletion-vectors.enabled": True}),
    "position and value": (PAIR, ["k"], [], {"deletion-vectors.enabled": True, "changelog-producer": "lookup"}),
    "summed": (PAIR, ["k"], [], {"force-lookup": True, "merge-engine": "aggregation"}),
}


def rows_of(schema: pa.Schema, count: int) -> pa.Table:
    rnd = random.Random(len(schema))
    make = {f.name: maker(f.type, rnd) for f in schema}
    if schema is PAIR:
        texts = [
            {"p": "x", "t": f"t{k * 7 % 13}", "k": k, "v": None if k % 3 else "v" * (k % 60)} for k in range(count)
        ]
        return pa.Table.from_pylist(texts, schema=schema)
    rows = [{n: k if n == "k" else None if rnd.random() < 0.15 else f() for n, f in make.items()} for k in range(count)]
    return pa.Table.from_pylist(rows, schema=schema)


def maker(t: pa.DataType, rnd: random.Random) -> Callable[[], Any]:
    """A maker of values of a type: nulls within lists, texts around the seven bytes of a slot, times before 1970."""
    if pa.types.is_map(t):
        key, value = maker(t.key_type, rnd), maker(t.item_type, rnd)
        return lambda: list({repr(k := key()): (k, value()) for _ in range(rnd.randrange(4))}.values())
    if pa.types.is_list(t):
        item = maker(t.value_type, rnd)
        return lambda: [None if rnd.random() < 0.2 else item() for _ in range(rnd.choice([0, 1, 2, 5, 40]))]
    if pa.types.is_struct(t):
        members = {f.name: maker(f.type, rnd) for f in t}
        return lambda: {n: None if rnd.random() < 0.3 else f() for n, f in members.items()}
    if pa.types.is_timestamp(t):
        zone, step = (dt.UTC if t.tz else None), 1000 if t.unit == "ms" else 1
        start = dt.datetime(1970, 1, 1, tzinfo=zone)
        return lambda: start + dt.timedelta(microseconds=rnd.randrange(-(10**12), 10**12) * step)
    if pa.types.is_decimal(t):
        return lambda: Decimal(rnd.choice([-1, 1]) * rnd.randrange(10 ** rnd.randrange(1, t.precision))).scaleb(
            -t.scale
        )
    if pa.types.is_integer(t):
        top = 2 ** (t.bit_width - 1)
        return lambda: rnd.randrange(-top, top)
    if pa.types.is_floating(t):
        return lambda: rnd.random() * 1000 - 500
    if pa.types.is_boolean(t):
        return lambda: rnd.random() < 0.5
    if pa.types.is_date(t):
        return lambda: dt.date(1950, 1, 1) + dt.timedelta(days=rnd.randrange(40_000))
    if pa.types.is_time(t):
        return lambda: dt.time(rnd.randrange(24), rnd.randrange(60), 1, rnd.randrange(1000) * 1000)
    if pa.types.is_binary(t):
        return lambda: bytes(rnd.randrange(256) for _ in range(rnd.randrange(20)))
    return lambda: "xé"[rnd.randrange(2)] * rnd.randrange(20)


# ---- the file, as its readers go through it

_MAGIC, _FOOTER, _TRAILER = 1481571681, 36, 5


def number(b: bytes, at: int, width: int = 4) -> int:
    return int.from_bytes(b[at : at + width], "little")


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a lookup file, in order; its checksums and its index must hold."""
    footer = data[-_FOOTER:]
    assert number(footer, 32) == _MAGIC
    for last, handle in block(data, number(footer, 20, 8), number(footer, 28)):
        offset, at = read_unsigned(handle, 0)
        found = list(block(data, offset, read_unsigned(handle, at)[0]))
        assert found[-1][0] == last
        yield from found


def block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    raw, kind = data[offset : offset + size], data[offset + size]
    assert zlib.crc32(raw + bytes([kind])) == number(data, offset + size + 1)
    if kind:
        whole, at = read_unsigned(raw, 0)
        codec = {1: "zstd", 2: "lz4_raw"}[kind]
        raw = pa.Codec(codec).decompress(raw[at + (8 if kind == 2 else 0) :], whole, asbytes=True)
    count, aligned = number(raw, len(raw) - _TRAILER), raw[-1] == 0
    end = len(raw) - _TRAILER - (0 if aligned else 4 * count)
    at, starts = 0, []
    while at < end:
        starts.append(at)
        size, at = read_unsigned(raw, at)
        key, at = raw[at : at + size], at + size
        size, at = read_unsigned(raw, at)
        value, at = raw[at : at + size], at + size
        yield key, value
    assert at == end
    if aligned:
        assert starts == list(range(0, end, count))
    else:
        assert starts == [number(raw, end + 4 * i) for i in range(count)]
