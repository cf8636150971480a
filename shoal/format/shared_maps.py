# SPDX-License-Identifier: Apache-2.0
"""Maps that lie in a file as a row of shared columns (`map.storage-layout` = `shared-shredding`), put together again.

The file numbers the keys it has seen. Each row says which key each of its few columns holds; what finds no column lies
in an overflow map from key number to value. The numbers stand in the metadata of the file's Arrow schema. Agrees with:
MapSharedShreddingUtils, MapSharedShreddingReadPlan (2.0.0). Invariant: a file decides by its metadata, not by the
table's options; entries of a map come in the order of the columns, then of the overflow; unknown numbers are left out.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt, Unsupported
from shoal.format.codecs import unpacked
from shoal.format.types import DataType, Field, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

_LAYOUT = b"paimon.map.storage-layout"
_PREFIX = "paimon.map.shared-shredding."
_VERSION = 1
_MAPPING, _OVERFLOW = "__field_mapping", "__overflow"
_LARGEST_NAMES = 1 << 28
_MOST_COLUMNS = 1 << 16
ARROW_SCHEMA = b"ARROW:schema"


@dataclass(frozen=True, slots=True)
class SharedMap:
    """One map column of a file. `stored` is the ROW that lies in the file instead of it."""

    type: DataType
    stored: DataType
    columns: int
    names: Mapping[int, str]
    path: str
    column: str

    def restored(self, a: pa.Array) -> pa.Array:
        """An array of the stored rows as maps."""
        import pyarrow as pa

        n = len(a)
        mapping, *shared, overflow = a.flatten()  # nulls of the row are nulls of its members now
        there = np.ones(n, bool) if not a.null_count else ~np.asarray(a.is_null())
        numbers = self._mapping(mapping, there)
        rows = [np.repeat(np.arange(n), self.columns), _parents(overflow)]
        keys = [numbers.reshape(-1), _children(overflow.keys, overflow).to_numpy()]
        sources = [
            (np.arange(self.columns)[None, :] * n + np.arange(n)[:, None]).reshape(-1),
            self.columns * n + np.arange(len(rows[1])),
        ]
        row, key, source = (np.concatenate(x) for x in (rows, keys, sources))
        known = np.isin(key, list(self.names))
        row, key, source = row[known], key[known], source[known]
        order = np.argsort(row, kind="stable")  # inside a row: columns first, in their order
        values = pa.concat_arrays([*shared, _children(overflow.items, overflow)])
        ids = np.array(sorted(self.names), np.int64)
        texts = pa.array([self.names[i] for i in ids.tolist()], pa.string())
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int32)
        target = to_arrow(self.type)
        items = values.take(pa.array(source[order]))
        if items.type != target.item_type:
            items = items.cast(target.item_type)
        return pa.MapArray.from_arrays(
            pa.array(offsets), texts.take(pa.array(np.searchsorted(ids, key[order]))), items, type=target,
            mask=None if there.all() else pa.array(~there),
        )  # fmt: skip

    def _mapping(self, mapping: pa.Array, there: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
        """The key numbers of the shared columns of each row; -1 for none."""
        flat = mapping.flatten()
        out = np.full((len(there), self.columns), -1, np.int64)
        if len(flat) != int(there.sum()) * self.columns or flat.null_count:
            raise Corrupt(
                f"{self.path}: column '{self.column}' does not say for each of {self.columns} columns what it holds",
                hint="the file is damaged",
            )
        out[there] = flat.to_numpy().reshape(-1, self.columns)
        return out


def _parents(lists: pa.Array) -> Any:
    """The row of each entry of a map array."""
    offsets = lists.offsets.to_numpy()
    sizes = np.diff(offsets)
    if lists.null_count:
        sizes = np.where(np.asarray(lists.is_null()), 0, sizes)
    return np.repeat(np.arange(len(lists)), sizes)


def _children(values: pa.Array, lists: pa.Array) -> pa.Array:
    """The keys or items of a map array that may be a slice, without those below a null."""
    import pyarrow as pa

    offsets = lists.offsets.to_numpy()
    sizes = np.diff(offsets)
    if not lists.null_count or not sizes[np.asarray(lists.is_null())].any():
        return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    starts = np.repeat(offsets[:-1], sizes)
    inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    alive = np.repeat(~np.asarray(lists.is_null()), sizes)
    return values.take(pa.array((starts + inside)[alive]))


def layouts(schema: pa.Schema, fields: Iterable[Field], path: str) -> dict[str, SharedMap]:
    """The map columns of a file that lie in it as shared columns, by name. `schema` is the file's Arrow schema."""
    out = {}
    for f in fields:
        at = schema.get_field_index(f.name) if f.type.root == "MAP" else -1
        found = schema.field(at).metadata if at >= 0 else None
        if found and found.get(_LAYOUT) == b"shared-shredding":
            out[f.name] = _layout(f, found, path)
    return out


def schema_of_text(text: bytes) -> pa.Schema | None:
    """The Arrow schema that a file keeps in its metadata; None when it is none, as in Java."""
    import pyarrow as pa
    import pyarrow.ipc as ipc

    try:
        return ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError):
        return None


def _layout(f: Field, metadata: Mapping[bytes, bytes], path: str) -> SharedMap:
    def text(name: str) -> str:
        return metadata[(_PREFIX + name).encode()].decode()

    try:
        if int(text("version")) != _VERSION:
            raise Unsupported(
                f"{path}: column '{f.name}' has version {text('version')} of the shared-shredding layout",
                hint="read it with the version of Paimon that wrote it",
            )
        # compressed bytes stand there as the text that they are in Latin-1
        raw = text("field-dict").encode("latin-1")
        numbers = json.loads(_decompressed(raw, text("field-dict-compression"), int(text("field-dict-original-size"))))
        columns = int(text("num-columns"))
        if not 0 <= columns <= _MOST_COLUMNS:
            raise ValueError(f"{columns} columns")
        names = {int(i): str(name) for name, i in numbers.items()}
    except (KeyError, ValueError, AttributeError, TypeError, OSError) as err:
        raise Corrupt(
            f"{path}: the metadata of map column '{f.name}' cannot be read: {err}", hint="the file is damaged"
        ) from err
    assert f.type.value is not None
    return SharedMap(f.type, _stored(f.type.value.with_nullable(True), columns), columns, names, path, f.name)


def _stored(value: DataType, columns: int) -> DataType:
    """The ROW that a file holds."""
    number = DataType("INT")
    members = [
        (_MAPPING, DataType("ARRAY", element=number)),
        *((f"__col_{i}", value) for i in range(columns)),
        (_OVERFLOW, DataType("MAP", key=number.with_nullable(False), value=value)),
    ]
    return DataType("ROW", fields=tuple(Field(i, name, t) for i, (name, t) in enumerate(members)))


def _decompressed(raw: bytes, kind: str, size: int) -> bytes:
    if kind == "none":
        return raw
    if size > _LARGEST_NAMES:
        raise ValueError(f"it claims {size} bytes")
    if kind == "lz4":
        raw = raw[8:]  # behind the lengths of both forms
    return unpacked(kind, raw, size)
