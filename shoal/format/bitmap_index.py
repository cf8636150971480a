# SPDX-License-Identifier: Apache-2.0
"""Bitmap indexes: for each value of a column the rows that have it.

Agrees with: BitmapFileIndex, BitmapFileIndexMeta, BitmapFileIndexMetaV2 (2.0.0). Version 1 has one list of values,
version 2 sorts it into blocks with a directory. A value of one row has no bitmap: its offset is -1 minus the row.
What is written has its bitmaps, and the list of version 1, in the order of Java's HashMap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.format import roaring
from shoal.format.index_values import LAYOUT, Question, Reader, ordered
from shoal.format.indexed_column import Distinct, canonical
from shoal.format.types import DataType

if TYPE_CHECKING:
    from pyroaring import BitMap


_Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class _Head:
    rows: int
    values: int
    nulls: int | None
    """Offset of the bitmap of nulls."""


def rows(q: Question, index: Reader) -> BitMap | None:
    """The rows that answer the question; comparisons by order are not answered."""
    from pyroaring import BitMap

    if q.op in ("<", "<=", ">", ">=") or not (q.type.root in LAYOUT or q.type.is_bytes):
        return None
    version = index.number(">b")
    if version not in (1, 2):
        raise Unsupported(f"{index.path} has version {version} where 1 and 2 are read", hint="upgrade shoal")
    head = _head(index, version)
    if version == 1:
        offsets, body = _find_in_list(q, head, index)
    else:
        offsets, body = _find_in_blocks(q, index)
    nulls = BitMap() if head.nulls is None else _bitmap(head.nulls, body, index)
    everything = BitMap(range(head.rows))
    if q.op == "null":
        return nulls
    if q.op == "valid":
        return everything - nulls
    found = BitMap()
    for offset in offsets:
        found |= _bitmap(offset, body, index)
    return found if q.op == "=" else everything - nulls - found


def _head(index: Reader, version: int) -> _Head:
    count, values, has_null = index.number(">i"), index.count(), index.number(">b")
    if index.row_count >= 0 and count != index.row_count:
        raise ValueError(f"{count} rows in the index of a file of {index.row_count}")
    nulls = index.number(">i") if has_null else None
    if has_null and version == 2:
        index.number(">i")  # length of the bitmap, which knows it itself
    return _Head(count, values, nulls)


def _bitmap(offset: int, body: int, index: Reader) -> BitMap:
    from pyroaring import BitMap

    if offset < 0:
        return BitMap([-1 - offset])
    return roaring.read(index.data, body + offset, index.path)[0]


def _find_in_list(q: Question, head: _Head, index: Reader) -> tuple[list[int], int]:
    """(offsets of the values' bitmaps, where the bitmaps start) in version 1."""
    return _lookup(q, index, head.values, 1), index.at


def _find_in_blocks(q: Question, index: Reader) -> tuple[list[int], int]:
    """The same in version 2: the directory has the first value of each block."""
    n = index.count()
    firsts, starts = [], []
    for _ in range(n):  # a block has up to 16 KB, so there are few
        firsts.append(ordered(q.type, index.value(q.type)))
        starts.append(index.number(">i"))
    body_at = index.number(">i")
    blocks = index.at
    wanted: dict[int, list[Any]] = {}
    for v in q.values:
        at = bisect_right(firsts, ordered(q.type, v)) - 1
        if at >= 0:
            wanted.setdefault(at, []).append(v)
    offsets: list[int] = []
    for at, values in wanted.items():
        block = index.goto(blocks + starts[at])
        part = Question(q.op, q.column, q.type, tuple(values))
        offsets += _lookup(part, block, block.count(), 2)
    return offsets, blocks + body_at


def _lookup(q: Question, at: Reader, n: int, numbers: int) -> list[int]:
    """The offsets of the question's values among `n` entries, which are read to their end."""
    table = at.table(q.type, n, numbers)
    if table is None:  # text has no fixed width: one entry after the other
        wanted = set(q.values)
        found = []
        for _ in range(n):
            value, offset = at.value(q.type), at.number(">i")
            if numbers == 2:
                at.number(">i")
            if value in wanted:
                found.append(offset)
        return found
    if not q.values:
        return []
    return [int(o) for o in table["n0"][_matches(q.type, table["value"], q.values)]]


def _matches(t: DataType, column: np.ndarray[Any, Any], values: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Which entries have one of the values. Both zeros are asked for where one is, so `==` is right for them."""
    out = np.zeros(len(column), np.bool_)
    for v in values:
        out |= np.isnan(column) if isinstance(v, float) and v != v else column == v
    return out


# ---- writing ---------------------------------------------------------------------------------------------


def encode(found: Distinct, version: int, block_size: int) -> bytes:
    """The index of a column."""
    if found.numbers is not None:
        found = replace(found, numbers=canonical(found.numbers))
    nulls = np.setdiff1d(np.arange(found.rows), found.at, assume_unique=True)
    null_bitmap = roaring.encode(nulls)
    null_offset = -1 - int(nulls[0]) if len(nulls) == 1 else 0
    body_start = len(null_bitmap) if len(nulls) > 1 else 0
    offsets, lengths, bitmaps, walk = _bitmaps(found, body_start)
    head = b"".join((
        version.to_bytes(1, "big"), found.rows.to_bytes(4, "big"), len(found).to_bytes(4, "big"),
        (1 if len(nulls) else 0).to_bytes(1, "big"),
    ))  # fmt: skip
    if len(nulls):
        head += null_offset.to_bytes(4, "big", signed=True)
        head += len(null_bitmap).to_bytes(4, "big") if version == 2 else b""
    listed = _list(found, offsets, walk) if version == 1 else _blocks(found, offsets, lengths, block_size)
    return head + listed + (null_bitmap if len(nulls) > 1 else b"") + bitmaps


def _bitmaps(found: Distinct, start: int) -> tuple[_Ints, _Ints, bytes, _Ints]:
    """(offset and length for each value, the bitmaps, the order of the values' list); one row is its own offset."""
    counts = np.bincount(found.codes, minlength=len(found))
    walk = found.hash_order()
    rows = found.at[np.argsort(found.codes, kind="stable")]
    ends = np.cumsum(counts)
    offsets = np.where(counts == 1, -1 - found.at[found.firsts], 0)
    lengths = np.full(len(found), -1, np.int64)
    many = walk[counts[walk] > 1]
    sizes = counts[many]
    begins = np.append(0, np.cumsum(sizes))
    # the rows of those values, in the order of the walk
    picked = np.repeat(ends[many] - sizes - begins[:-1], sizes) + np.arange(begins[-1])
    bitmaps, at = roaring.encode_groups(rows[picked], begins)
    offsets[many] = start + at[:-1]
    lengths[many] = np.diff(at)
    return offsets, lengths, bitmaps, walk


def _list(found: Distinct, offsets: _Ints, walk: _Ints) -> bytes:
    numbers = None if found.numbers is None else found.numbers[walk]
    listed = replace(found, numbers=numbers, text=tuple(found.text[i] for i in walk) if numbers is None else ())
    return listed.encoded(0, len(found), offsets[walk])


def _blocks(found: Distinct, offsets: _Ints, lengths: _Ints, block_size: int) -> bytes:
    """The directory and the blocks of version 2: as many values in each as fit, in the order of the values."""
    sizes = found.widths + 8
    if len(sizes) and int(sizes.max()) + 4 > block_size:
        raise BadRequest(
            f"a value of {int(sizes.max()) - 8} bytes does not fit a bitmap index block of {block_size} bytes",
            hint="raise the index's 'index-block-size'",
        )
    ends = np.cumsum(sizes)
    directory, blocks, start, size = [], [], 0, 0
    while start < len(found):
        before = int(ends[start] - sizes[start])
        end = int(np.searchsorted(ends, before + block_size - 4, side="right"))
        directory.append(found.encoded(start, start + 1) + size.to_bytes(4, "big"))
        blocks.append((end - start).to_bytes(4, "big") + found.encoded(start, end, offsets, lengths))
        size += len(blocks[-1])
        start = end
    return b"".join((len(blocks).to_bytes(4, "big"), *directory, size.to_bytes(4, "big"), *blocks))
