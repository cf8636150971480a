# SPDX-License-Identifier: Apache-2.0
"""Roaring bitmaps of 32-bit numbers in the portable format: deletion vectors, file indexes, sketches.

A container holds the numbers that share their upper 16 bits, as an array, as bits, or as runs. Agrees with:
RoaringBitmap32 (2.0.0) on RoaringBitmap 1.2.1, RoaringFormatSpec. Invariant: what is written is what Java's library
writes, to the byte; a bitmap knows its own length, so one can be read out of a larger block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pyroaring import BitMap

from shoal.errors import Corrupt

Array = np.ndarray[Any, np.dtype[Any]]

RUN, BITS, ARRAY = 0, 1, 2
# Values up to which a container is an array.
_FEW = 4096
_PLAIN_COOKIE, _RUN_COOKIE = 12346, 12347
# Containers from which a bitmap with runs says where each of them starts.
_OFFSETS_FROM = 4


@dataclass
class Container:
    kind: int
    values: Array  # uint16, ascending

    @property
    def runs(self) -> Array:
        """Start and length - 1 of each run, as they are written."""
        v = self.values.astype(np.int32)
        first = np.flatnonzero(np.diff(v, prepend=-2) != 1)
        last = np.append(first[1:], len(v)) - 1
        return np.stack([v[first], v[last] - v[first]], axis=1).astype("<u2")

    def body(self) -> bytes:
        if self.kind == RUN:
            runs = self.runs
            return len(runs).to_bytes(2, "little") + runs.tobytes()
        if self.kind == ARRAY:
            return self.values.astype("<u2").tobytes()
        bits = np.zeros(65536, bool)
        bits[self.values] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def optimized(self, run_stays: bool = False) -> Container:
        """As a run container where that is smaller; one that is a run already stays so at equal size, or always."""
        n, size = len(self.values), 2 + 4 * len(self.runs)
        if self.kind != RUN:
            return Container(RUN, self.values) if size < (2 * n if n <= _FEW else 8192) else self
        if run_stays or size <= min(8192, 2 * n + 2):  # Java counts two bytes more for an array that may come to be
            return self
        return _plain(self.values)

    def union(self, x: Container) -> Container:
        values = np.union1d(self.values, x.values)
        n = len(values)
        if n == 65536:
            return Container(RUN, values)
        if RUN in (self.kind, x.kind) and BITS not in (self.kind, x.kind):
            return Container(RUN, values).optimized()
        return Container(ARRAY if n <= _FEW and BITS not in (self.kind, x.kind) else BITS, values)


def _plain(values: Array) -> Container:
    return Container(ARRAY if len(values) <= _FEW else BITS, values)


class Reader:
    """Walks over the bytes of a bitmap; `ValueError` when they end too early or make no sense."""

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, n: int) -> bytes:
        part = bytes(self.data[self.at : self.at + n])
        if len(part) != n:
            raise ValueError(f"the bitmap ends at byte {len(self.data)}, {self.at + n} are needed")
        self.at += n
        return part

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def skip(self, kind: int, count: int) -> None:
        """A container of so many values."""
        self.take(4 * self.number(2) if kind == RUN else 2 * count if kind == ARRAY else 8192)

    def container(self, kind: int, count: int) -> Container:
        if kind == RUN:
            runs = np.frombuffer(self.take(4 * self.number(2)), "<u2").reshape(-1, 2).astype(np.int64)
            lengths = runs[:, 1] + 1
            begin = np.repeat(runs[:, 0] - (np.cumsum(lengths) - lengths), lengths)
            return Container(RUN, (begin + np.arange(len(begin))).astype(np.uint16))
        if kind == ARRAY:
            return Container(ARRAY, np.frombuffer(self.take(2 * count), "<u2"))
        if kind == BITS:
            bits = np.unpackbits(np.frombuffer(self.take(8192), np.uint8), bitorder="little")
            return Container(BITS, np.flatnonzero(bits).astype(np.uint16))
        raise ValueError(f"no container of kind {kind}")


class _Heads(NamedTuple):
    keys: list[int]
    kinds: list[int]
    counts: list[int]
    offsets: Array | None  # where each container starts; bitmaps of few containers with runs leave them out


def _heads(r: Reader) -> _Heads:
    cookie = r.number(4)
    if cookie & 0xFFFF == _RUN_COOKIE:
        n = (cookie >> 16) + 1
        flags = np.frombuffer(r.take((n + 7) // 8), np.uint8)
        runs = np.unpackbits(flags, count=n, bitorder="little").astype(bool)
    elif cookie == _PLAIN_COOKIE:
        n = r.number(4)
        runs = None
    else:
        raise ValueError(f"it begins with {cookie}, which no roaring bitmap does")
    heads = np.frombuffer(r.take(4 * n), "<u2").reshape(n, 2)
    counts = heads[:, 1].astype(np.int64) + 1
    kinds = np.where(counts <= _FEW, ARRAY, BITS)
    if runs is not None:
        kinds[runs] = RUN
    offsets = np.frombuffer(r.take(4 * n), "<u4") if runs is None or n >= _OFFSETS_FROM else None
    return _Heads(heads[:, 0].tolist(), kinds.tolist(), counts.tolist(), offsets)


def read(data: bytes | memoryview, at: int, path: str) -> tuple[BitMap, int]:
    """(the bitmap that starts at `at`, where it ends)."""
    try:
        end = _end(data, at)
        return BitMap.deserialize(bytes(data[at:end])), end
    except ValueError as err:
        raise Corrupt(f"{path}: the bitmap at byte {at} is damaged", hint="the file is damaged") from err


def _end(data: bytes | memoryview, at: int) -> int:
    r = Reader(data, at)
    _, kinds, counts, offsets = _heads(r)
    if offsets is not None and len(offsets):  # where the last container starts is written down
        r.at = at + int(offsets[-1])
        r.skip(kinds[-1], counts[-1])
    else:
        for kind, count in zip(kinds, counts):
            r.skip(kind, count)
    return r.at


def containers(data: bytes) -> dict[int, Container]:
    """The containers of a bitmap by their upper 16 bits."""
    r = Reader(data)
    keys, kinds, counts, _ = _heads(r)
    return {key: r.container(kind, count) for key, kind, count in zip(keys, kinds, counts)}


def written(found: Mapping[int, Container]) -> bytes:
    """The bytes of a bitmap of these containers, whose keys ascend."""
    n = len(found)
    runs = [c.kind == RUN for c in found.values()]
    bodies = [c.body() for c in found.values()]
    if any(runs):
        out = ((n - 1) << 16 | _RUN_COOKIE).to_bytes(4, "little") + np.packbits(runs, bitorder="little").tobytes()
    else:
        out = _PLAIN_COOKIE.to_bytes(4, "little") + n.to_bytes(4, "little")
    for key, c in found.items():
        out += key.to_bytes(2, "little") + (len(c.values) - 1).to_bytes(2, "little")
    if not any(runs) or n >= _OFFSETS_FROM:
        at = len(out) + 4 * n
        for body in bodies:
            out += at.to_bytes(4, "little")
            at += len(body)
    return out + b"".join(bodies)


def encode(values: Array) -> bytes:
    """The bytes of a bitmap of ascending numbers below 2^32, its long runs stored as runs."""
    upper = values >> 16
    keys, starts = np.unique(upper, return_index=True)
    parts = np.split((values & 0xFFFF).astype(np.uint16), starts[1:])
    return written({key: _plain(part).optimized() for key, part in zip(keys.tolist(), parts)})


def united32(a: bytes, b: bytes) -> bytes:
    """The union of two serialised RoaringBitmaps."""
    mine = containers(a)
    for key, container in containers(b).items():
        mine[key] = mine[key].union(container) if key in mine else container
    return written({key: mine[key].optimized() for key in sorted(mine)})


def encode_groups(rows: Array, starts: Array) -> tuple[bytes, Array]:
    """(the bytes of many bitmaps behind each other, where each begins and the last ends).

    Bitmap `i` holds `rows[starts[i]:starts[i + 1]]`, ascending and at least one. The bytes are those of `encode`, made
    for all bitmaps at once: an index over a column has one for each value.
    """
    groups = len(starts) - 1
    if not groups:
        return b"", np.zeros(1, np.int64)
    size = np.diff(starts)
    group = np.repeat(np.arange(groups), size)
    upper, lower = rows >> 16, rows & 0xFFFF
    opens = np.ones(len(rows), bool)
    opens[1:] = (group[1:] != group[:-1]) | (upper[1:] != upper[:-1])
    at = np.flatnonzero(opens)  # where each container begins
    owner, key = group[at], upper[at]
    count = np.diff(np.append(at, len(rows)))
    run_opens = opens.copy()
    run_opens[1:] |= lower[1:] != lower[:-1] + 1
    run_at = np.flatnonzero(run_opens)
    container = np.cumsum(opens) - 1
    runs = np.bincount(container[run_at], minlength=len(at))
    kind = np.where(count <= _FEW, ARRAY, BITS)
    plain = np.where(kind == ARRAY, 2 * count, 8192)
    kind = np.where(2 + 4 * runs < plain, RUN, kind)
    body = np.where(kind == RUN, 2 + 4 * runs, plain)

    first = np.searchsorted(owner, np.arange(groups))  # the first container of each bitmap
    held = np.diff(np.append(first, len(at)))
    nth = np.arange(len(at)) - first[owner]
    with_runs = np.bincount(owner[kind == RUN], minlength=groups) > 0
    with_offsets = ~with_runs | (held >= _OFFSETS_FROM)
    flags = np.where(with_runs, 4 + (held + 7) // 8, 8)
    head = flags + 4 * held + np.where(with_offsets, 4 * held, 0)
    before = np.cumsum(body) - body
    bodies = np.bincount(owner, body, groups).astype(np.int64)
    begin = np.append(0, np.cumsum(head + bodies))
    body_at = begin[owner] + head[owner] + before - before[first][owner]

    out = np.zeros(int(begin[-1]), np.uint8)
    _put(out, begin[:-1], np.where(with_runs, (held - 1) << 16 | _RUN_COOKIE, _PLAIN_COOKIE), 4)
    _put(out, begin[:-1][~with_runs] + 4, held[~with_runs], 4)
    is_run = kind == RUN
    np.bitwise_or.at(out, begin[owner][is_run] + 4 + nth[is_run] // 8, (1 << (nth[is_run] % 8)).astype(np.uint8))
    heads = begin[owner] + flags[owner] + 4 * nth
    _put(out, heads, key, 2)
    _put(out, heads + 2, count - 1, 2)
    told = with_offsets[owner]
    _put(out, (heads + 4 * held[owner])[told], (body_at - begin[owner])[told], 4)

    in_array = (kind == ARRAY)[container]
    place = body_at[container] + 2 * (np.arange(len(rows)) - at[container])
    _put(out, place[in_array], lower[in_array], 2)
    _put(out, body_at[is_run], runs[is_run], 2)
    run_end = np.append(run_at[1:], len(rows)) - 1
    mine = is_run[container[run_at]]
    run_at, run_end = run_at[mine], run_end[mine]
    run_of = container[run_at]
    nth_run = np.arange(len(run_at)) - np.searchsorted(run_of, run_of)
    _put(out, body_at[run_of] + 2 + 4 * nth_run, lower[run_at], 2)
    _put(out, body_at[run_of] + 4 + 4 * nth_run, lower[run_end] - lower[run_at], 2)
    for c in np.flatnonzero(kind == BITS):  # each stands for more than 4096 rows
        bits = np.zeros(65536, bool)
        bits[lower[at[c] : at[c] + count[c]]] = True
        out[body_at[c] : body_at[c] + 8192] = np.packbits(bits, bitorder="little")
    return out.tobytes(), begin


def _put(out: Array, at: Array, values: Array, width: int) -> None:
    """Little-endian numbers at places of their own."""
    for i in range(width):
        out[at + i] = (values >> (8 * i)) & 0xFF
