# SPDX-License-Identifier: Apache-2.0
"""Manifests that `manifest.format` made ORC or Parquet files, as the columns that Avro ones decode to.

Agrees with: ManifestFile, ManifestList, IndexManifestFile with FileFormat.manifestFormat (2.0.0), except that Java
goes by the table's option and cannot read what another format wrote; here the first bytes of a file tell. Invariant:
what comes out is what `avro.decode` gives for the same entries: columns by dotted path, text as bytes, null counts
encoded. What is written has the fields of the Avro schema, in its order and with its nullability.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt, Unsupported
from shoal.format import avro
from shoal.format.types import MAX_LENGTH, DataType, Field
from shoal.format.varint import encode_nullable_longs, nullable_longs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

FORMATS = ("orc", "parquet")
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


# ---- writing ---------------------------------------------------------------------------------------------

# Names of `manifest.compression` to pyarrow's. Java's lz4 of Parquet has a frame of Hadoop's that pyarrow does not
# write; lzo and brotli need libraries that neither brings.
_PARQUET_CODECS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_ORC_CODECS = {"none": "uncompressed", "zlib": "zlib", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}


def check(form: str, compression: str) -> None:
    """`Unsupported` when manifests cannot be written like that."""
    _codec(form, compression)


def _codec(form: str, compression: str) -> str:
    if form not in FORMATS:
        raise Unsupported(f"manifest.format '{form}' is unknown", hint="use avro, orc or parquet")
    known = _ORC_CODECS if form == "orc" else _PARQUET_CODECS
    if compression.lower() not in known:
        raise Unsupported(
            f"manifest.compression '{compression}' with manifest.format '{form}' is not supported",
            hint=f"use {', '.join(known)}",
        )
    return known[compression.lower()]


def write(rows: pa.Table, form: str, compression: str) -> bytes:
    """An ORC or Parquet file of a table that has the fields of a manifest (see `arrow_fields`)."""
    import pyarrow as pa

    codec = _codec(form, compression)
    sink = pa.BufferOutputStream()
    if form == "orc":
        from pyarrow import orc

        orc.write_table(rows, sink, compression=codec)
    else:
        import pyarrow.parquet as pq

        pq.write_table(rows, sink, compression=codec, store_schema=False)
    return bytes(sink.getvalue())


def arrow_fields(schema: str) -> pa.Schema:
    """The Arrow fields of an Avro schema."""
    import pyarrow as pa

    return pa.schema([_arrow_field(f["name"], f["type"]) for f in json.loads(schema)["fields"]])


def _arrow_field(name: str, t: Any) -> pa.Field:
    import pyarrow as pa

    nullable = isinstance(t, list)
    t = next(x for x in t if x != "null") if nullable else t
    kind = t["type"] if isinstance(t, dict) else t
    if kind == "record":
        return pa.field(name, pa.struct([_arrow_field(f["name"], f["type"]) for f in t["fields"]]), nullable)
    if kind == "array":
        return pa.field(name, pa.list_(_arrow_field("element", t["items"])), nullable)
    if isinstance(t, dict) and t.get("logicalType") == "timestamp-millis":
        return pa.field(name, pa.timestamp("ms"), nullable)
    plain = {"int": pa.int32(), "long": pa.int64(), "bytes": pa.binary(), "string": pa.string()}
    return pa.field(name, plain[kind], nullable)


def of_records(schema: str, records: Sequence[bytes]) -> pa.Table:
    """Avro records as a table. For schemas whose records lie in no array: their columns know no owner there."""
    import pyarrow as pa

    n, columns_ = avro.decode(avro.write_container(schema, records, "null"), "a new manifest")
    fields = arrow_fields(schema)
    return pa.Table.from_arrays([_assembled(columns_, f.name, f, n) for f in fields], schema=fields)


def _assembled(found: avro.Columns, path: str, f: pa.Field, n: int) -> pa.Array:
    """The inverse of `_flatten`."""
    import pyarrow as pa

    t = f.type
    if pa.types.is_struct(t):
        parts = [_assembled(found, f"{path}.{inner.name}", inner, n) for inner in t]
        return pa.StructArray.from_arrays(parts, fields=list(t))
    values = found.get(path) or [None] * n
    if pa.types.is_list(t) and pa.types.is_int64(t.value_type):
        values = [None if v is None else nullable_longs(v) for v in values]
    elif pa.types.is_list(t):
        return pa.array(values, pa.list_(pa.binary())).cast(t)
    elif pa.types.is_string(t):
        return pa.array(values, pa.binary()).cast(t)
    return pa.array(values, t)
