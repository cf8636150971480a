# SPDX-License-Identifier: Apache-2.0
"""Arrow columns as the columns of an ORC stripe: the tree of types, and the streams of each.

Agrees with: OrcTypeUtil, OrcFileFormat.refineDataType, FieldWriterFactory (2.0.0). Invariant: column numbers are those
of the type tree in pre-order; a null has no entry in any stream but PRESENT, and nothing below it has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Unsupported
from shoal.format import orc_streams as streams
from shoal.format.byte_columns import texts
from shoal.format.running_bounds import padded
from shoal.format.shape import list_parts, map_parts
from shoal.format.types import MAX_LENGTH, DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {
    "BOOLEAN": 0, "TINYINT": 1, "SMALLINT": 2, "INT": 3, "TIME": 3, "BIGINT": 4, "FLOAT": 5, "DOUBLE": 6, "BINARY": 8,
    "VARBINARY": 8, "BLOB": 8, "TIMESTAMP": 9, "ARRAY": 10, "MAP": 11, "MULTISET": 11, "ROW": 12, "DECIMAL": 14,
    "DATE": 15, "TIMESTAMP_LTZ": 18,
}  # fmt: skip
_STRING, _VARCHAR, _CHAR, _STRUCT = 7, 16, 17, 12
PRESENT, DATA, LENGTH, DICTIONARY, SECONDARY = 0, 1, 2, 3, 5
DIRECT, DIRECT_V2, DICTIONARY_V2 = 0, 2, 3
# Of so many first values, at most this share may be distinct for a dictionary to be tried.
_SAMPLE, _SHARE = 4096, 0.5


@dataclass(slots=True)
class Node:
    """One column of the file."""

    id: int
    type: DataType
    kind: int
    attribute: int | None
    """Paimon's field id; the row itself has none."""
    names: tuple[str, ...] = ()
    below: list[Node] = field(default_factory=list)

    def all(self) -> Iterator[Node]:
        yield self
        for n in self.below:
            yield from n.all()


def tree(fields: Sequence[Field]) -> Node:
    """The columns of files with these fields."""
    root = DataType("ROW", False, fields=tuple(fields))
    node = Node(0, root, _STRUCT, None, tuple(f.name for f in fields))
    at = 1
    for f in fields:
        node.below.append(_node(f.type, at, f.id, f.id, 0))
        at += sum(1 for _ in node.below[-1].all())
    return node


def _node(t: DataType, at: int, own: int, field_id: int, depth: int) -> Node:
    """`own` is the column's id for Paimon; `field_id` that of the field it lies in, at this depth."""
    node = Node(at, t, _kind(t), own)
    below: list[tuple[DataType, int, int, int]] = []
    depth += 1
    match t.root:
        case "ROW":
            node.names = tuple(f.name for f in t.fields)
            below = [(f.type, f.id, f.id, 0) for f in t.fields]
        case "ARRAY":
            assert t.element is not None
            below = [(t.element, 536870911 + field_id * 1024 + depth, field_id, depth)]
        case "MAP" | "MULTISET":
            key, value = map_parts(t)
            below = [
                (key, 536870911 - field_id * 1024 - depth, field_id, depth),
                (value, 536870911 + field_id * 1024 + depth, field_id, depth),
            ]
    at += 1
    for part in below:
        node.below.append(_node(part[0], at, *part[1:]))
        at += sum(1 for _ in node.below[-1].all())
    return node


def _kind(t: DataType) -> int:
    if t.root == "CHAR":
        return _CHAR
    if t.root == "VARCHAR":
        return _STRING if t.length == MAX_LENGTH else _VARCHAR
    if t.root not in _KINDS:
        raise Unsupported(f"ORC files take no {t}", hint="take another file.format, or another type")
    return _KINDS[t.root]


@dataclass(slots=True)
class Stripe:
    """What a stripe holds: streams as (column, kind, bytes), an encoding and its dictionary size by column, and how
    many values a column has and whether it has nulls."""

    streams: list[tuple[int, int, bytes]] = field(default_factory=list)
    encodings: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def add(self, node: Node, a: pa.Array) -> None:
        """The values of a column, as many as the column above has."""
        nulls = a.null_count > 0
        if nulls:
            self.streams.append((node.id, PRESENT, streams.bits(np.asarray(a.is_valid()))))
            a = a.drop_null()
        self.counts[node.id] = len(a), nulls
        self.encodings[node.id] = DIRECT, 0
        self._values(node, a)

    def _put(self, node: Node, *parts: tuple[int, bytes], encoding: int = DIRECT_V2, size: int = 0) -> None:
        self.encodings[node.id] = encoding, size
        self.streams += ((node.id, kind, raw) for kind, raw in parts)

    def _values(self, node: Node, a: pa.Array) -> None:
        import pyarrow as pa

        t = node.type
        match t.root:
            case "BOOLEAN":
                raw = streams.bits(a.cast(pa.uint8()).to_numpy())
                self._put(node, (DATA, raw), encoding=DIRECT)
            case "TINYINT":
                self._put(node, (DATA, streams.octets(a.to_numpy().view(np.uint8))), encoding=DIRECT)
            case "SMALLINT" | "INT" | "BIGINT":
                self._put(node, (DATA, streams.integers(a.to_numpy(), signed=True)))
            case "DATE" | "TIME":
                self._put(node, (DATA, streams.integers(a.view(pa.int32()).to_numpy(), signed=True)))
            case "FLOAT" | "DOUBLE":
                self._put(node, (DATA, a.to_numpy().tobytes()), encoding=DIRECT)
            case "TIMESTAMP" | "TIMESTAMP_LTZ":
                seconds, nanos = streams.timestamps(a)
                self._put(node, (DATA, seconds), (SECONDARY, nanos))
            case "DECIMAL":
                values, scales = streams.decimals(a, t.scale or 0)
                self._put(node, (DATA, values), (SECONDARY, scales))
            case "CHAR" | "VARCHAR":
                self._text(node, a)
            case "BINARY" | "VARBINARY" | "BLOB":
                flat, lengths = texts(a)
                self._put(node, (DATA, flat.tobytes()), (LENGTH, streams.integers(lengths, signed=False)))
            case "ROW":
                for i, below in enumerate(node.below):
                    self.add(below, a.field(i))
            case _:
                counts, members = list_parts(a)
                self._put(node, (LENGTH, streams.integers(counts, signed=False)))
                for below, member in zip(node.below, members):
                    self.add(below, member)

    def _text(self, node: Node, a: pa.Array) -> None:
        import pyarrow.compute as pc

        a = padded(a, node.type)
        sample = a.slice(0, _SAMPLE)
        if len(a) and pc.count_distinct(sample).as_py() <= _SHARE * len(sample):
            coded = pc.dictionary_encode(a)
            words = coded.dictionary
            if len(words) <= _SHARE * len(a):
                flat, lengths = texts(words)
                index = streams.integers(coded.indices.to_numpy(), signed=False)
                self._put(
                    node, (DATA, index), (LENGTH, streams.integers(lengths, signed=False)),
                    (DICTIONARY, flat.tobytes()), encoding=DICTIONARY_V2, size=len(words),
                )  # fmt: skip
                return
        flat, lengths = texts(a)
        self._put(node, (DATA, flat.tobytes()), (LENGTH, streams.integers(lengths, signed=False)))
