# SPDX-License-Identifier: Apache-2.0
"""File indexes: which rows of a data file may meet a filter, told without opening it.

Agrees with: FileIndexFormat, FileIndexPredicate, FileIndexResult (2.0.0). A result is the set of rows that may match,
or None when the index cannot tell. Invariant: no row that matches is left out; where Java would drop one (a literal
finer than the index, a CHAR whose blanks were cut) the index says less instead. Unknown kinds of index are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import Corrupt, Unsupported
from shoal.format import bitmap_index, bloom_index, bsi_index, range_bitmap_index
from shoal.format.index_values import Question, Reader, question
from shoal.format.predicate import Always, And, Node, Opaque, Or

if TYPE_CHECKING:
    from pyroaring import BitMap

    from shoal.format.types import DataType

_MAGIC = 1493475289347502
_VERSION = 1
_NOTHING = -1  # start of an index over a column that had no value to index

_KINDS: dict[str, Callable[[Question, Reader], BitMap | None]] = {
    "bloom-filter": bloom_index.rows,
    "bitmap": bitmap_index.rows,
    "bsi": bsi_index.rows,
    "range-bitmap": range_bitmap_index.rows,
}


class Part(NamedTuple):
    """One index over one column; `data` is None when the column had no value to index."""

    column: str
    kind: str
    data: memoryview | None


def keep(index: bytes, node: Node, fields: Mapping[str, DataType], row_count: int, path: str) -> bool:
    """Whether the data file of this index may hold a match; see `rows`."""
    found = rows(index, node, fields, row_count, path)
    return found is None or len(found) > 0


def rows(index: bytes, node: Node, fields: Mapping[str, DataType], row_count: int, path: str) -> BitMap | None:
    """The positions in the data file that may match; None when the index cannot tell.

    `index` is an index file or what a manifest embeds. `fields` are the columns of the data file with the types it was
    written with, under the names that `node` uses; a column that has another type now must not be among them.
    """
    parts: dict[str, list[Part]] = {}
    for part in decode(index, path):
        parts.setdefault(part.column, []).append(part)
    return _rows(node, parts, fields, row_count, path)


def decode(index: bytes, path: str) -> list[Part]:
    """The indexes in a container. The column of an index over one key of a map is named `column[key]`."""
    view = memoryview(index)
    try:
        parts = _head(Reader(view, path))
    except (struct_error, ValueError) as err:
        raise Corrupt(f"{path}: the head of the file index is cut off", hint="the file is damaged") from err
    out = []
    for column, kind, start, length in parts:
        if start == _NOTHING:
            out.append(Part(column, kind, None))
        elif start < 0 or length < 0 or start + length > len(view):
            raise Corrupt(f"{path}: the index of column '{column}' lies outside of the file", hint="it is cut off")
        else:
            out.append(Part(column, kind, view[start : start + length]))
    return out


def _head(head: Reader) -> list[tuple[str, str, int, int]]:
    """(column, kind, start, length) of each index; positions count from the start of the file."""
    if head.number(">q") != _MAGIC:
        raise Corrupt(f"{head.path}: not a file index", hint="the file is damaged")
    version = head.number(">i")
    if version != _VERSION:
        raise Unsupported(f"{head.path}: file index version {version} where {_VERSION} is read", hint="upgrade shoal")
    head.number(">i")  # length of the head
    parts = []
    for _ in range(head.count()):
        column = head.utf()
        parts += [(column, head.utf(), head.number(">i"), head.number(">i")) for _ in range(head.count())]
    return parts


def _rows(
    node: Node, parts: Mapping[str, list[Part]], fields: Mapping[str, DataType], row_count: int, path: str
) -> BitMap | None:
    from pyroaring import BitMap

    out: BitMap | None
    match node:
        case Always(value):
            return None if value else BitMap()
        case Opaque():
            return None
        case And(inner):
            out = None
            for p in inner:
                found = _rows(p, parts, fields, row_count, path)
                if found is not None:
                    out = found if out is None else out & found
                if out is not None and not out:
                    break
            return out
        case Or(inner):
            out = BitMap()
            for p in inner:
                found = _rows(p, parts, fields, row_count, path)
                if found is None:
                    return None
                out |= found
            return out
    asked = question(node, fields)
    return None if asked is None else _leaf(asked, parts.get(asked.column, []), row_count, path)


def _leaf(asked: Question, parts: list[Part], row_count: int, path: str) -> BitMap | None:
    """What all indexes of a column say together."""
    from pyroaring import BitMap

    out: BitMap | None = None
    for part in parts:
        if part.kind not in _KINDS:
            continue
        what = f"{path}: the {part.kind} index of column '{part.column}'"
        if part.data is None:
            found = BitMap() if asked.op in ("=", "<", "<=", ">", ">=", "valid") else None
        else:
            try:
                found = _KINDS[part.kind](asked, Reader(part.data, what, row_count))
            except (struct_error, IndexError, ValueError, OverflowError) as err:
                raise Corrupt(f"{what} is damaged", hint="the file is damaged") from err
        if found is not None:
            out = found if out is None else out & found
    return out
