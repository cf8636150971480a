# SPDX-License-Identifier: Apache-2.0
"""Unions of serialised roaring bitmaps, 32 and 64 bits, byte for byte as Java's library writes them.

The 64-bit form is the one of Java's Roaring64Bitmap alone: an adaptive radix tree of the upper 48 bits, whose nodes
remember in which order they filled, then the containers. Agrees with: RoaringBitmap32, RoaringBitmap64 (2.0.0) on
RoaringBitmap 1.2.1. Invariant: the result is what deserialize, or, runOptimize, serialize give.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.lsm.versions import Array

_RUN, _BITMAP, _ARRAY = 0, 1, 2
# Values up to which a container is an array.
_FEW = 4096
_PLAIN_COOKIE, _RUN_COOKIE = 12346, 12347
# Containers from which a file with runs has offsets.
_OFFSETS_FROM = 4


@dataclass
class _Container:
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
        if self.kind == _RUN:
            runs = self.runs
            return len(runs).to_bytes(2, "little") + runs.tobytes()
        if self.kind == _ARRAY:
            return self.values.astype("<u2").tobytes()
        bits = np.zeros(65536, bool)
        bits[self.values] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def optimized(self, run_stays: bool) -> _Container:
        """As a run container where that is smaller; one that is a run already stays so at equal size, or always."""
        n, size = len(self.values), 2 + 4 * len(self.runs)
        if self.kind != _RUN:
            return _Container(_RUN, self.values) if size < (2 * n if n <= _FEW else 8192) else self
        if run_stays or size <= min(8192, 2 * n + 2):  # Java counts two bytes more for an array that may come to be
            return self
        return _Container(_ARRAY if n <= _FEW else _BITMAP, self.values)

    def union(self, x: _Container) -> _Container:
        values = np.union1d(self.values, x.values)
        n = len(values)
        if n == 65536:
            return _Container(_RUN, values)
        if _RUN in (self.kind, x.kind) and _BITMAP not in (self.kind, x.kind):
            return _Container(_RUN, values).optimized(False)
        return _Container(_ARRAY if n <= _FEW and _BITMAP not in (self.kind, x.kind) else _BITMAP, values)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        part = self.data[self.at : self.at + n]
        if len(part) != n:
            raise ValueError(f"the bitmap ends at byte {len(self.data)}, {self.at + n} are needed")
        self.at += n
        return part

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def container(self, kind: int, count: int) -> _Container:
        if kind == _RUN:
            runs = np.frombuffer(self.take(4 * self.number(2)), "<u2").reshape(-1, 2).astype(np.int64)
            lengths = runs[:, 1] + 1
            begin = np.repeat(runs[:, 0] - (np.cumsum(lengths) - lengths), lengths)
            return _Container(_RUN, (begin + np.arange(len(begin))).astype(np.uint16))
        if kind == _ARRAY:
            return _Container(_ARRAY, np.frombuffer(self.take(2 * count), "<u2"))
        if kind == _BITMAP:
            bits = np.unpackbits(np.frombuffer(self.take(8192), np.uint8), bitorder="little")
            return _Container(_BITMAP, np.flatnonzero(bits).astype(np.uint16))
        raise ValueError(f"no container of kind {kind}")


# ---- 32 bits ---------------------------------------------------------------------------------------------


def united32(a: bytes, b: bytes) -> bytes:
    """The union of two serialised RoaringBitmaps."""
    mine, theirs = _read32(a), _read32(b)
    for key, container in theirs.items():
        mine[key] = mine[key].union(container) if key in mine else container
    return _write32({key: mine[key].optimized(False) for key in sorted(mine)})


def _read32(data: bytes) -> dict[int, _Container]:
    r = _Reader(data)
    cookie = r.number(4)
    runs = b""
    if cookie & 0xFFFF == _RUN_COOKIE:
        n = (cookie >> 16) + 1
        runs = r.take((n + 7) // 8)
    elif cookie == _PLAIN_COOKIE:
        n = r.number(4)
    else:
        raise ValueError(f"it begins with {cookie}, which no roaring bitmap does")
    head = [(r.number(2), r.number(2) + 1) for _ in range(n)]
    if not runs or n >= _OFFSETS_FROM:
        r.take(4 * n)
    out = {}
    for i, (key, count) in enumerate(head):
        is_run = bool(runs) and runs[i // 8] >> i % 8 & 1
        out[key] = r.container(_RUN if is_run else _ARRAY if count <= _FEW else _BITMAP, count)
    return out


def _write32(containers: dict[int, _Container]) -> bytes:
    n = len(containers)
    runs = [c.kind == _RUN for c in containers.values()]
    bodies = [c.body() for c in containers.values()]
    if any(runs):
        out = ((n - 1) << 16 | _RUN_COOKIE).to_bytes(4, "little") + np.packbits(runs, bitorder="little").tobytes()
    else:
        out = _PLAIN_COOKIE.to_bytes(4, "little") + n.to_bytes(4, "little")
    for key, c in containers.items():
        out += key.to_bytes(2, "little") + (len(c.values) - 1).to_bytes(2, "little")
    if not any(runs) or n >= _OFFSETS_FROM:
        at = len(out) + 4 * n
        for body in bodies:
            out += at.to_bytes(4, "little")
            at += len(body)
    return out + b"".join(bodies)


# ---- 64 bits ---------------------------------------------------------------------------------------------

_KEY = 6  # bytes of a leaf's key
_SIZES = (4, 16, 48, 256)
_LEAF = 4


@dataclass
class _Leaf:
    key: bytes
    container: int


@dataclass
class _Node:
    kind: int  # index into _SIZES
    prefix: bytes
    children: dict[int, _Leaf | _Node] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)  # of a node of 48: key byte of each slot, in order of arrival

    def put(self, byte: int, child: _Leaf | _Node) -> None:
        if len(self.children) == _SIZES[self.kind]:
            self.kind += 1
            if self.kind == 2:
                self.slots = sorted(self.children)
        if self.kind == 2:
            self.slots.append(byte)
        self.children[byte] = child


@dataclass
class _Bitmap64:
    root: _Leaf | _Node | None = None
    containers: list[_Container | None] = field(default_factory=list)
    last: int = -1  # the slot filled last
    keys: dict[bytes, int] = field(default_factory=dict)

    def add(self, key: bytes, container: _Container) -> None:
        self.last += 1
        n = len(self.containers)
        if self.last >= n:
            self.containers += [None] * (max(n + n // 2, self.last + 1) - n)
        self.containers[self.last] = container
        self.keys[key] = self.last
        self.root = _inserted(self.root, _Leaf(key, self.last), 0)


def _inserted(node: _Leaf | _Node | None, leaf: _Leaf, depth: int) -> _Leaf | _Node:
    if node is None:
        return leaf
    key = leaf.key
    path = node.key[depth:] if isinstance(node, _Leaf) else node.prefix
    common = 0
    while common < len(path) and path[common] == key[depth + common]:
        common += 1
    if isinstance(node, _Leaf) or common < len(path):
        parent = _Node(0, path[:common])
        if isinstance(node, _Node):
            node.prefix = path[common + 1 :]
        parent.put(path[common], node)
        parent.put(key[depth + common], leaf)
        return parent
    depth += common
    child = node.children.get(key[depth])
    if child is None:
        node.put(key[depth], leaf)
    else:
        node.children[key[depth]] = _inserted(child, leaf, depth + 1)
    return node


def united64(a: bytes, b: bytes) -> bytes:
    """The union of two serialised Roaring64Bitmaps."""
    mine, theirs = _read64(a), _read64(b)
    for key in sorted(theirs.keys):
        container = theirs.containers[theirs.keys[key]]
        assert container is not None
        if key not in mine.keys:
            mine.add(key, container)
            continue
        at = mine.keys[key]
        known = mine.containers[at]
        assert known is not None
        mine.containers[at] = known.union(container)
    mine.containers = [c and c.optimized(True) for c in mine.containers]
    return _write64(mine)


def _read64(data: bytes) -> _Bitmap64:
    r = _Reader(data)
    out = _Bitmap64()
    if not r.number(1):
        return out
    r.number(8)
    out.root = _read_node(r, out.keys)
    if r.number(4) != 1:
        raise ValueError("it holds more containers than fit one array")
    r.number(1)
    for _ in range(r.number(4)):
        out.containers.append(r.container(r.number(1), r.number(4)) if r.number(1) else None)
    r.take(8 + 4)
    out.last = r.number(4)
    return out


def _read_node(r: _Reader, keys: dict[bytes, int]) -> _Leaf | _Node:
    kind, count = r.number(1), r.number(2)
    prefix = r.take(r.number(1))
    if kind == _LEAF:
        leaf = _Leaf(r.take(_KEY), r.number(8))
        keys[leaf.key] = leaf.container
        return leaf
    node = _Node(kind, prefix)
    if kind == 0:
        order = list(r.take(4)[::-1][:count])
    elif kind == 1:
        order = list((r.take(8)[::-1] + r.take(8)[::-1])[:count])
    elif kind == 2:
        index = b"".join(r.take(8)[::-1] for _ in range(32))
        order = [byte for byte in range(256) if index[byte] != 0xFF]
        node.slots = sorted(order, key=lambda byte: index[byte])
    elif kind == 3:
        order = np.flatnonzero(np.unpackbits(np.frombuffer(r.take(32), np.uint8), bitorder="little")).tolist()
    else:
        raise ValueError(f"no tree node of kind {kind}")
    for byte in order:
        node.children[byte] = _read_node(r, keys)
    return node


def _write64(bitmap: _Bitmap64) -> bytes:
    if bitmap.root is None:
        return b"\0"
    out = [b"\1", len(bitmap.keys).to_bytes(8, "little")]
    _write_node(bitmap.root, out)
    out.append((1).to_bytes(4, "little") + b"\xfe" + len(bitmap.containers).to_bytes(4, "little"))
    for c in bitmap.containers:
        out.append(b"\0" if c is None else bytes([1, c.kind]) + len(c.values).to_bytes(4, "little") + c.body())
    out.append(len(bitmap.keys).to_bytes(8, "little") + bytes(4) + bitmap.last.to_bytes(4, "little"))
    return b"".join(out)


def _write_node(node: _Leaf | _Node, out: list[bytes]) -> None:
    if isinstance(node, _Leaf):
        out.append(bytes([_LEAF, 0, 0, 0]) + node.key + node.container.to_bytes(8, "little"))
        return
    count = len(node.children)
    out.append(bytes([node.kind]) + count.to_bytes(2, "little") + bytes([len(node.prefix)]) + node.prefix)
    order = sorted(node.children)
    if node.kind < 2:
        keys = bytes(order).ljust(_SIZES[node.kind], b"\0")
        words = (keys[i : i + 8] for i in range(0, len(keys), 8))
        out += [word[::-1] for word in words]
    elif node.kind == 2:
        index = bytearray(b"\xff" * 256)
        for slot, byte in enumerate(node.slots):
            index[byte] = slot
        out += [bytes(index[i : i + 8][::-1]) for i in range(0, 256, 8)]
    else:
        bits = np.zeros(256, bool)
        bits[order] = True
        out.append(np.packbits(bits, bitorder="little").tobytes())
    for byte in order:
        _write_node(node.children[byte], out)
