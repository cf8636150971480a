# SPDX-License-Identifier: Apache-2.0
"""Manifests that `manifest.format` made ORC or Parquet files, as the columns that Avro ones decode to.

Agrees with: ManifestFile, ManifestList, IndexManifestFile with FileFormat.manifestFormat (2.0.0), except that Java
goes by the table's option and cannot read what another format wrote; here the first bytes of a file tell. Invariant:
what comes out is what `avro.decode` gives for the same entries: columns by dotted path, text as bytes, null counts
encoded.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt
from shoal.format import avro
from shoal.format.types import MAX_LENGTH, DataType, Field
from shoal.format.varint import encode_nullable_longs

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET, _ORC = b"PAR1", b"ORC"
_PLAIN = {
    "int": DataType("INT"),
    "long": DataType("BIGINT"),
    "bytes": DataType("VARBINARY", length=MAX_LENGTH),
    "string": DataType("VARCHAR", length=MAX_LENGTH),
}


def is_avro(data: bytes) -> bool:
    """Avro, or damage that is best reported as such."""
    return not data.startswith((_PARQUET, _ORC))


def table(data: bytes, path: str, schema: str) -> pa.Table:
    """The rows of an ORC or Parquet manifest of the fields that an Avro schema names; the file may lack newer ones."""
    import pyarrow as pa

    fields = _fields(schema)
    file = pa.BufferReader(data)
    try:
        found = _orc(file, fields, path) if data.startswith(_ORC) else _parquet(file, fields, path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        text = str(err).split("\n")[0][:200]
        raise Corrupt(f"{path}: the manifest cannot be read ({text})", hint="it is damaged or cut off") from err
    if not found.num_columns:
        raise Corrupt(f"{path}: has none of a manifest's fields", hint="it is another kind of file")
    return found


def _orc(file: pa.NativeFile, fields: tuple[Field, ...], path: str) -> pa.Table:
    import pyarrow as pa

    from shoal.format.orc import OrcReader
    from shoal.format.types import arrow_schema

    reader = OrcReader(file, fields, path)
    present = [f for f in fields if f.name in reader.names]
    batches = list(reader.batches([f.name for f in present], max(1, reader.rows)))
    return pa.Table.from_batches(batches, None if batches else arrow_schema(present))


def _parquet(file: pa.NativeFile, fields: tuple[Field, ...], path: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = pq.ParquetFile(file).read().combine_chunks()
    columns = {}
    for f in fields:
        if f.name in raw.column_names:
            chunks = raw.column(f.name).chunks
            a = chunks[0] if chunks else pa.array([], raw.schema.field(f.name).type)
            columns[f.name] = _restored(a, f, path)
    return pa.table(columns)


def _restored(a: pa.Array, f: Field, path: str) -> pa.Array:
    from shoal.format.shape import as_stored, rebuilt

    return rebuilt(a, f.type, lambda leaf, t: as_stored(leaf, t, path, f.name))


def columns(data: bytes, path: str, schema: str) -> tuple[int, avro.Columns]:
    """(entries, columns by dotted path) as `avro.decode` gives them, of an ORC or Parquet manifest."""
    rows = table(data, path, schema)
    out: avro.Columns = {}
    for name, column in zip(rows.column_names, rows.columns):
        _flatten(out, name, column.combine_chunks())
    return rows.num_rows, out


def _flatten(out: avro.Columns, path: str, a: pa.Array) -> None:
    import pyarrow as pa

    t = a.type
    if pa.types.is_struct(t):
        for i, f in enumerate(t):
            _flatten(out, f"{path}.{f.name}", a.field(i))
    elif pa.types.is_list(t) and pa.types.is_int64(t.value_type):
        # null counts stay encoded in entry tables; a manifest of this kind is too rare to write another encoder for it
        out[path] = [None if v is None else encode_nullable_longs(v) for v in a.to_pylist()]
    elif pa.types.is_list(t):
        out[path] = a.cast(pa.list_(pa.binary())).to_pylist()
    elif pa.types.is_string(t):
        out[path] = a.cast(pa.binary()).to_pylist()
    else:
        out[path] = (a.view(pa.int64()) if pa.types.is_timestamp(t) else a).to_pylist()


@lru_cache(maxsize=8)
def _fields(schema: str) -> tuple[Field, ...]:
    return _type(json.loads(schema)).fields


def _type(schema: Any) -> DataType:
    """The Paimon type that a manifest's Avro schema stands for."""
    if isinstance(schema, list):
        return _type(next(s for s in schema if s != "null"))
    if isinstance(schema, str):
        return _PLAIN[schema]
    if schema["type"] == "record":
        return DataType(
            "ROW", fields=tuple(Field(i, f["name"], _type(f["type"])) for i, f in enumerate(schema["fields"]))
        )
    if schema["type"] == "array":
        return DataType("ARRAY", element=_type(schema["items"]))
    if schema.get("logicalType") == "timestamp-millis":
        return DataType("TIMESTAMP", precision=3)
    return _type(schema["type"])
