# SPDX-License-Identifier: Apache-2.0
"""Bitmap indexes: for each value of a column the rows that have it.

Agrees with: BitmapFileIndex, BitmapFileIndexMeta, BitmapFileIndexMetaV2 (2.0.0). Version 1 has one list of values,
version 2 sorts it into blocks with a directory. A value of one row has no bitmap: its offset is -1 minus the row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Unsupported
from shoal.format import roaring
from shoal.format.index_values import LAYOUT, Question, Reader, ordered
from shoal.format.types import DataType

if TYPE_CHECKING:
    from pyroaring import BitMap


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
