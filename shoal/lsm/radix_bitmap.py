# SPDX-License-Identifier: Apache-2.0
"""Unions of serialised bitmaps of 64-bit numbers, byte for byte as Java's library writes them.

The form is the one of Java's Roaring64Bitmap alone: an adaptive radix tree of the upper 48 bits, whose nodes remember
in which order they filled, then the containers. Agrees with: RoaringBitmap64 (2.0.0) on RoaringBitmap 1.2.1.
Invariant: the result is what deserialize, or, runOptimize, serialize give.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.format.roaring import Container, Reader

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
    containers: list[Container | None] = field(default_factory=list)
    last: int = -1  # the slot filled last
    keys: dict[bytes, int] = field(default_factory=dict)

    def add(self, key: bytes, container: Container) -> None:
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
    r = Reader(data)
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


def _read_node(r: Reader, keys: dict[bytes, int]) -> _Leaf | _Node:
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
