# SPDX-License-Identifier: Apache-2.0
"""Index manifests: the deletion vectors, key hashes and global indexes of a snapshot, all of them in one file.

Agrees with: IndexManifestEntry, IndexManifestEntrySerializer, IndexFileMeta, DeletionVectorMeta, GlobalIndexMeta
(2.0.0). Invariant: readers resolve fields by name, so files from before `_CARDINALITY`, `_EXTERNAL_PATH` and
`_GLOBAL_INDEX` decode; what is written equals Java's layout field by field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.errors import Corrupt, Unsupported
from shoal.format import avro, columnar_manifest
from shoal.format.deletion_vectors import DvRange
from shoal.format.manifest import codec
from shoal.format.varint import read_long, varint

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
ADD, DELETE = 0, 1


class GlobalIndex(NamedTuple):
    """Which rows and columns a global index file covers; `meta` and `source_meta` belong to its kind of index."""

    row_range_start: int
    row_range_end: int
    field_id: int
    extra_field_ids: tuple[int, ...] | None = None
    meta: bytes | None = None
    source_meta: bytes | None = None


class IndexEntry(NamedTuple):
    """One index file. `partition` is a BinaryRow with arity prefix; `dv_ranges` only of deletion vectors."""

    kind: int
    partition: bytes
    bucket: int
    index_type: str
    file_name: str
    file_size: int
    row_count: int
    dv_ranges: tuple[DvRange, ...] | None = None
    external_path: str | None = None
    global_index: GlobalIndex | None = None


def _null(kind: str) -> str:
    return f'["null",{kind}],"default":null'


SCHEMA = (
    '{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":['
    '{"name":"_VERSION","type":"int"},{"name":"_KIND","type":"int"},{"name":"_PARTITION","type":"bytes"},'
    '{"name":"_BUCKET","type":"int"},{"name":"_INDEX_TYPE","type":"string"},{"name":"_FILE_NAME","type":"string"},'
    '{"name":"_FILE_SIZE","type":"long"},{"name":"_ROW_COUNT","type":"long"},'
    '{"name":"_DELETIONS_VECTORS_RANGES","type":["null",{"type":"array","items":["null",'
    '{"type":"record","name":"record__DELETIONS_VECTORS_RANGES","fields":[{"name":"f0","type":"string"},'
    '{"name":"f1","type":"int"},{"name":"f2","type":"int"},{"name":"_CARDINALITY","type":' + _null('"long"') + "}]}]}"
    '],"default":null},{"name":"_EXTERNAL_PATH","type":' + _null('"string"') + "},"
    '{"name":"_GLOBAL_INDEX","type":["null",{"type":"record","name":"record__GLOBAL_INDEX","fields":['
    '{"name":"_ROW_RANGE_START","type":"long"},{"name":"_ROW_RANGE_END","type":"long"},'
    '{"name":"_INDEX_FIELD_ID","type":"int"},{"name":"_EXTRA_FIELD_IDS","type":'
    + _null('{"type":"array","items":"int"}')
    + '},{"name":"_INDEX_META","type":'
    + _null('"bytes"')
    + '},{"name":"_SOURCE_META","type":'
    + _null('"bytes"')
    + '}]}],"default":null}]}'
)


# ---- reading ---------------------------------------------------------------------------------------------


def decode_index_manifest(data: bytes, path: str) -> list[IndexEntry]:
    """The entries of an index manifest in any of the manifest formats, in order."""
    if not columnar_manifest.is_avro(data):
        return entries_of(columnar_manifest.table(data, path, SCHEMA), path)
    schema, blocks = avro.container(data, path)
    try:
        read = _reader(json.loads(schema))
    except Unsupported as err:
        raise Unsupported(f"{path}: {err.message}") from err
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise Corrupt(f"{path}: the Avro schema in its header makes no sense", hint="the file is damaged") from err
    rows: list[Mapping[str, Any]] = []
    for count, block in blocks:
        at = 0
        try:
            for _ in range(count):
                row, at = read(block, at)
                rows.append(row)
        except (IndexError, UnicodeDecodeError) as err:
            raise Corrupt(f"{path}: a record does not fit the file's schema", hint="the file is damaged") from err
        if at != len(block):
            raise Corrupt(f"{path}: a block of {len(block)} bytes ends at {at}", hint="the file is damaged")
    return _entries(rows, path)


def entries_of(table: pa.Table, path: str) -> list[IndexEntry]:
    """The entries of an index manifest whose file (ORC or Parquet) was read as a table."""
    return _entries(table.to_pylist(), path)


def _entries(rows: Iterable[Mapping[str, Any]], path: str) -> list[IndexEntry]:
    out = []
    try:
        for r in rows:
            if r["_VERSION"] != VERSION:
                raise Corrupt(
                    f"{path}: index manifest version {r['_VERSION']} where {VERSION} is read", hint="upgrade shoal"
                )
            ranges = r.get("_DELETIONS_VECTORS_RANGES")
            out.append(
                IndexEntry(
                    r["_KIND"], r["_PARTITION"], r["_BUCKET"], r["_INDEX_TYPE"], r["_FILE_NAME"], r["_FILE_SIZE"],
                    r["_ROW_COUNT"],
                    None if ranges is None else tuple(
                        DvRange(v["f0"], v["f1"], v["f2"], v.get("_CARDINALITY")) for v in ranges
                    ),
                    r.get("_EXTERNAL_PATH"), _global_index(r.get("_GLOBAL_INDEX")),
                )
            )  # fmt: skip
    except (KeyError, TypeError) as err:
        raise Corrupt(f"{path}: an entry lacks a field ({err})", hint="the file is damaged") from err
    return out


def _global_index(g: Mapping[str, Any] | None) -> GlobalIndex | None:
    if g is None:
        return None
    extra = g.get("_EXTRA_FIELD_IDS")
    return GlobalIndex(
        g["_ROW_RANGE_START"], g["_ROW_RANGE_END"], g["_INDEX_FIELD_ID"], None if extra is None else tuple(extra),
        g.get("_INDEX_META"), g.get("_SOURCE_META"),
    )  # fmt: skip


_Read = Callable[[bytes, int], tuple[Any, int]]


def _reader(schema: Any) -> _Read:
    """A function that reads one value of an Avro schema. The columns of `avro` lose which list a record was in."""
    if isinstance(schema, list):
        return _union([None if s == "null" else _reader(s) for s in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        return _reader(kind)
    if kind == "record":
        return _record([(f["name"], _reader(f["type"])) for f in schema["fields"]])
    if kind == "array":
        return _array(_reader(schema["items"]))
    if kind in ("int", "long"):
        return read_long
    if kind == "bytes":
        return _bytes
    if kind == "string":
        return _string
    raise Unsupported(f"Avro type {kind} in an index manifest")


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise IndexError
    return data[at : at + size], at + size


def _string(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _bytes(data, at)
    return raw.decode(), at


def _union(kinds: Sequence[_Read | None]) -> _Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        which, at = read_long(data, at)
        if which < 0:
            raise IndexError
        kind = kinds[which]
        return (None, at) if kind is None else kind(data, at)

    return read


def _record(fields: Sequence[tuple[str, _Read]]) -> _Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row = {}
        for name, kind in fields:
            row[name], at = kind(data, at)
        return row, at

    return read


def _array(item: _Read) -> _Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        out: list[Any] = []
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return out, at
            if count < 0:  # the block's size in bytes follows
                count = -count
                _, at = read_long(data, at)
            if count > len(data):
                raise IndexError
            for _ in range(count):
                value, at = item(data, at)
                out.append(value)

    return read


# ---- writing ---------------------------------------------------------------------------------------------


def encode_index_manifest(entries: Iterable[IndexEntry], compression: str, form: str = "avro") -> bytes:
    """An index manifest in a `manifest.format`; `compression` is that of `manifest.compression`."""
    if form != "avro":
        fields = columnar_manifest.arrow_fields(SCHEMA)
        import pyarrow as pa

        rows = pa.Table.from_pylist([_row(e) for e in entries], schema=fields)
        return columnar_manifest.write(rows, form, compression)
    return avro.write_container(SCHEMA, [encode_entry(e) for e in entries], codec(compression))


def _row(e: IndexEntry) -> dict[str, Any]:
    ranges, g = e.dv_ranges, e.global_index
    return {
        "_VERSION": VERSION, "_KIND": e.kind, "_PARTITION": e.partition, "_BUCKET": e.bucket,
        "_INDEX_TYPE": e.index_type, "_FILE_NAME": e.file_name, "_FILE_SIZE": e.file_size, "_ROW_COUNT": e.row_count,
        "_DELETIONS_VECTORS_RANGES": None if ranges is None else [
            {"f0": r.file_name, "f1": r.offset, "f2": r.length, "_CARDINALITY": r.cardinality} for r in ranges
        ],
        "_EXTERNAL_PATH": e.external_path,
        "_GLOBAL_INDEX": None if g is None else {
            "_ROW_RANGE_START": g.row_range_start, "_ROW_RANGE_END": g.row_range_end, "_INDEX_FIELD_ID": g.field_id,
            "_EXTRA_FIELD_IDS": g.extra_field_ids, "_INDEX_META": g.meta, "_SOURCE_META": g.source_meta,
        },
    }  # fmt: skip


def encode_entry(e: IndexEntry) -> bytes:
    """The Avro bytes of one entry."""
    return b"".join((
        varint(VERSION), varint(e.kind), _put(e.partition), varint(e.bucket), _put(e.index_type.encode()),
        _put(e.file_name.encode()), varint(e.file_size), varint(e.row_count),
        _optional(e.dv_ranges, lambda ranges: _list([b"\2" + _range(r) for r in ranges])),
        _optional(e.external_path, lambda p: _put(p.encode())), _optional(e.global_index, _put_global),
    ))  # fmt: skip


def _put(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def _optional(value: Any, put: Callable[[Any], bytes]) -> bytes:
    return b"\0" if value is None else b"\2" + put(value)


def _list(items: Sequence[bytes]) -> bytes:
    return varint(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _range(r: DvRange) -> bytes:
    return _put(r.file_name.encode()) + varint(r.offset) + varint(r.length) + _optional(r.cardinality, varint)


def _put_global(g: GlobalIndex) -> bytes:
    return b"".join((
        varint(g.row_range_start), varint(g.row_range_end), varint(g.field_id),
        _optional(g.extra_field_ids, lambda ids: _list([varint(i) for i in ids])),
        _optional(g.meta, _put), _optional(g.source_meta, _put),
    ))  # fmt: skip
