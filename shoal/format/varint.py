# SPDX-License-Identifier: Apache-2.0
"""Integers of variable length: plain as in ORC, Thrift and Snappy, zigzag as in Avro; arrays of nullable ones of Avro,
which hold null counts."""

from __future__ import annotations

from collections.abc import Sequence


def read_unsigned(b: bytes, p: int) -> tuple[int, int]:
    """(value, next position); `IndexError` when the bytes end, `ValueError` when they make no 64 bits."""
    n = s = 0
    while True:
        x = b[p]
        p += 1
        n |= (x & 127) << s
        if x < 128:
            return n, p
        s += 7
        if s > 63:
            raise ValueError("a number of more than 64 bits")


def unsigned(n: int) -> bytes:
    """A number that is not negative."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def read_long(b: bytes, p: int) -> tuple[int, int]:
    """(value, next position); `IndexError` when the bytes end or make no long."""
    r = s = 0
    while True:
        x = b[p]
        p += 1
        r |= (x & 127) << s
        if x < 128:
            return (r >> 1) ^ -(r & 1), p
        s += 7
        if s > 63:
            raise IndexError


def varint(v: int) -> bytes:
    """A number of 64 bits, zigzag."""
    return unsigned((v << 1) ^ (v >> 63))


def nullable_longs(raw: bytes) -> tuple[int | None, ...]:
    """The items of an encoded array of nullable longs."""
    out: list[int | None] = []
    p = 0
    while True:
        n, p = read_long(raw, p)
        if n == 0:
            return tuple(out)
        if n < 0:
            n = -n
            _, p = read_long(raw, p)
        for _ in range(n):
            u, p = read_long(raw, p)
            if u == 0:
                out.append(None)
            else:
                v, p = read_long(raw, p)
                out.append(v)


def encode_nullable_longs(values: Sequence[int | None]) -> bytes:
    """An array of nullable longs as one block, the way Java writes it."""
    if not values:
        return b"\0"
    return varint(len(values)) + b"".join(b"\0" if v is None else b"\2" + varint(v) for v in values) + b"\0"
