# SPDX-License-Identifier: Apache-2.0
"""Thrift's compact protocol, as far as a Parquet footer needs it: any struct to values and back.

A struct is a dict from field number to `Value`, which keeps the wire type, so that fields nobody knows here survive.
Invariant: reading then writing gives a struct that means the same; bytes that end early raise `IndexError`, types that
do not exist `ValueError`, and nesting is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.format.varint import read_unsigned, unsigned, varint

# Wire types.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_MOST_DEPTH = 32


@dataclass(slots=True)
class Value:
    """One field: its wire type and what it holds."""

    kind: int
    value: Any


@dataclass(slots=True)
class Items:
    """A list or set: the wire type of its items, and the items themselves (structs are dicts)."""

    kind: int
    items: list[Any]


@dataclass(slots=True)
class Pairs:
    """A map."""

    key: int
    value: int
    items: list[tuple[Any, Any]]


Struct = dict[int, Value]


def i32(value: int) -> Value:
    return Value(I32, value)


def read_struct(b: bytes, p: int, depth: int = 0) -> tuple[Struct, int]:
    """The struct at `p`, and where it ends."""
    if depth > _MOST_DEPTH:
        raise ValueError("nested too deep")
    out: Struct = {}
    number = 0
    while True:
        head = b[p]
        p += 1
        if head == 0:
            return out, p
        kind, delta = head & 15, head >> 4
        if delta:
            number += delta
        else:
            number, p = _zigzag(b, p)
        if kind in (TRUE, FALSE):
            out[number] = Value(TRUE, kind == TRUE)
        else:
            value, p = _read(b, p, kind, depth)
            out[number] = Value(kind, value)


def _read(b: bytes, p: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        return _zigzag(b, p)
    if kind == BINARY:
        n, p = read_unsigned(b, p)
        return _slice(b, p, n), p + n
    if kind == STRUCT:
        return read_struct(b, p, depth + 1)
    if kind in (LIST, SET):
        return _read_list(b, p, depth)
    if kind in (BYTE, TRUE, FALSE):
        return b[p], p + 1
    if kind == DOUBLE:
        return _slice(b, p, 8), p + 8
    if kind == MAP:
        return _read_map(b, p, depth)
    raise ValueError(f"no such type: {kind}")


def _read_list(b: bytes, p: int, depth: int) -> tuple[Items, int]:
    head = b[p]
    p += 1
    n, kind = head >> 4, head & 15
    if n == 15:
        n, p = read_unsigned(b, p)
    if n > len(b) or depth > _MOST_DEPTH:
        raise IndexError
    items = []
    for _ in range(n):
        item, p = _read(b, p, kind, depth + 1)
        items.append(item)
    return Items(kind, items), p


def _read_map(b: bytes, p: int, depth: int) -> tuple[Pairs, int]:
    n, p = read_unsigned(b, p)
    if n == 0:
        return Pairs(0, 0, []), p
    if n > len(b) or depth > _MOST_DEPTH:
        raise IndexError
    kinds = b[p]
    p += 1
    pairs = []
    for _ in range(n):
        key, p = _read(b, p, kinds >> 4, depth + 1)
        value, p = _read(b, p, kinds & 15, depth + 1)
        pairs.append((key, value))
    return Pairs(kinds >> 4, kinds & 15, pairs), p


def _zigzag(b: bytes, p: int) -> tuple[int, int]:
    n, p = read_unsigned(b, p)
    return (n >> 1) ^ -(n & 1), p


def _slice(b: bytes, p: int, n: int) -> bytes:
    if p + n > len(b):
        raise IndexError
    return b[p : p + n]


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct; fields in the order of their numbers."""
    out = bytearray()
    last = 0
    for number in sorted(struct):
        v = struct[number]
        kind = v.kind if v.kind != TRUE or v.value else FALSE
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += varint(number)
        if v.kind != TRUE:
            out += _written(v.value, v.kind)
        last = number
    out.append(0)
    return bytes(out)


def _written(value: Any, kind: int) -> bytes:
    if kind in (I16, I32, I64):
        return varint(value)
    if kind == BINARY:
        return unsigned(len(value)) + bytes(value)
    if kind == STRUCT:
        return write_struct(value)
    if kind in (LIST, SET):
        n = len(value.items)
        head = bytes([n << 4 | value.kind]) if n < 15 else bytes([0xF0 | value.kind]) + unsigned(n)
        return head + b"".join(_written(v, value.kind) for v in value.items)
    if kind in (BYTE, TRUE, FALSE):
        return bytes([value])
    if kind == DOUBLE:
        return bytes(value)
    kinds = bytes([value.key << 4 | value.value]) if value.items else b""
    body = b"".join(_written(k, value.key) + _written(v, value.value) for k, v in value.items)
    return unsigned(len(value.items)) + kinds + body
