# SPDX-License-Identifier: Apache-2.0
"""Arrow columns as Avro records: Paimon's schema of them, and the bytes of whole batches at a time.

Agrees with: AvroSchemaConverter, FieldWriterFactory (2.0.0). Invariant: bytes equal those of Java's encoder: a nullable
value is a union with null first, arrays and maps are one block, numbers are as short as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Unsupported
from shoal.format.byte_columns import (
    Array,
    Pieces,
    fixed,
    minimal_decimals,
    runs_of,
    side_by_side,
    texts,
    varints,
    zigzag,
)
from shoal.format.shape import list_parts, map_parts
from shoal.format.types import DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa

_ROOT, _SPACE = "record", "org.apache.paimon.avro.generated"
_PLAIN = {
    "BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long", "FLOAT": "float",
    "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string", "BINARY": "bytes", "VARBINARY": "bytes", "BLOB": "bytes",
}  # fmt: skip


# ---- schema ----------------------------------------------------------------------------------------------


def avro_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """The Avro schema of files with these columns."""
    return {"type": "record", "name": _ROOT, "namespace": _SPACE, "fields": [_member(f, _ROOT) for f in fields]}


def _member(f: Field, row: str) -> dict[str, Any]:
    out = {"name": f.name, "type": _schema(f.type, f"{row}_{f.name}")}
    return out | {"default": None} if f.type.nullable else out


def _schema(t: DataType, name: str) -> Any:
    inner = _inner(t, name)
    return ["null", inner] if t.nullable else inner


def _inner(t: DataType, name: str) -> Any:
    if t.root in _PLAIN:
        return _PLAIN[t.root]
    p = t.precision or 0
    match t.root:
        case "DATE":
            return {"type": "int", "logicalType": "date"}
        case "TIME" if p <= 3:
            return {"type": "int", "logicalType": "time-millis"}
        case "TIMESTAMP" | "TIMESTAMP_LTZ" if p <= 6:
            # Paimon has these two the other way round than the Avro specification
            local = "local-" if t.root == "TIMESTAMP_LTZ" else ""
            return {"type": "long", "logicalType": f"{local}timestamp-{'millis' if p <= 3 else 'micros'}"}
        case "DECIMAL":
            return {"type": "bytes", "logicalType": "decimal", "precision": t.precision, "scale": t.scale}
        case "ROW":
            return {"type": "record", "name": name, "fields": [_member(f, name) for f in t.fields]}
        case "ARRAY" | "VECTOR":
            assert t.element is not None
            return {"type": "array", "items": _schema(t.element, name)}
        case "MAP" | "MULTISET":
            key, value = _pair(t)
            if _is_text(key):
                return {"type": "map", "values": _schema(value, name)}
            entry = [{"name": "key", "type": _schema(key, f"{name}_key")}, _member(Field(0, "value", value), name)]
            return {
                "type": "array", "items": {"type": "record", "name": name, "fields": entry}, "logicalType": "map"
            }  # fmt: skip
    raise Unsupported(f"Avro files take no {t}", hint="take another file.format, or another type")


def _pair(t: DataType) -> tuple[DataType, DataType]:
    key, value = map_parts(t)
    return key, value.with_nullable(True) if t.root == "MULTISET" else value


def _is_text(t: DataType) -> bool:
    return t.root in ("CHAR", "VARCHAR")


# ---- bytes -----------------------------------------------------------------------------------------------


def records(columns: Sequence[pa.Array], fields: Sequence[Field], rows: int) -> Pieces:
    """The bytes of each record."""
    parts = [part for a, f in zip(columns, fields) for part in _parts(a, f.type, f.name)]
    return side_by_side(parts, rows)


def _parts(a: pa.Array, t: DataType, column: str) -> list[Pieces]:
    """The bytes of each value as parts that lie behind one another."""
    if not t.nullable:
        if a.null_count:
            raise BadRequest(f"column '{column}' holds nulls and is {t}")
        return _values(a, t, column)
    if not a.null_count:
        return [_repeated(2, len(a)), *_values(a, t, column)]
    valid = np.asarray(a.is_valid())
    return [_nth(2 * valid), *(_spread(p, valid) for p in _values(a.drop_null(), t, column))]


def _spread(p: Pieces, valid: Array) -> Pieces:
    """Values of the valid rows as values of all rows; the others have no bytes."""
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = p[1]
    return p[0], lengths


def _nth(v: Array) -> Pieces:
    return v.astype(np.uint8), np.ones(len(v), np.int64)


def _repeated(byte: int, count: int) -> Pieces:
    return _nth(np.full(count, byte, np.uint8))


def _values(a: pa.Array, t: DataType, column: str) -> list[Pieces]:
    """The parts of an array without nulls."""
    import pyarrow as pa

    match t.root:
        case "BOOLEAN":
            return [_nth(a.cast(pa.uint8()).to_numpy())]
        case "TINYINT" | "SMALLINT" | "INT" | "BIGINT":
            return [varints(zigzag(a.to_numpy()))]
        case "DATE" | "TIME":
            return [varints(zigzag(a.view(pa.int32()).to_numpy()))]
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            unit = "ms" if (t.precision or 0) <= 3 else "us"
            return [varints(zigzag(a.cast(pa.timestamp(unit, a.type.tz)).view(pa.int64()).to_numpy()))]
        case "FLOAT" | "DOUBLE":
            return [fixed(a.to_numpy(), 4 if t.root == "FLOAT" else 8)]
        case "CHAR" | "VARCHAR" | "BINARY" | "VARBINARY" | "BLOB":
            return _sized(texts(a))
        case "DECIMAL":
            return _sized(minimal_decimals(a))
        case "ROW":
            return [p for i, f in enumerate(t.fields) for p in _parts(a.field(i), f.type, column)]
        case "ARRAY" | "VECTOR":
            assert t.element is not None
            counts, (values,) = list_parts(a)
            return _items(counts, _parts(values, t.element, column), len(values))
        case "MAP" | "MULTISET":
            counts, (keys, items) = list_parts(a)
            key, value = _pair(t)
            as_map = _is_text(key)
            parts = _parts(keys, key.with_nullable(False) if as_map else key, column)
            return _items(counts, [*parts, *_parts(items, value, column)], len(keys))
    raise Unsupported(f"column '{column}': Avro files take no {t}", hint="take another file.format, or another type")


def _sized(p: Pieces) -> list[Pieces]:
    """Bytes with their length before them."""
    return [varints(zigzag(p[1])), p]


def _items(counts: Array, parts: list[Pieces], items: int) -> list[Pieces]:
    """Arrays and maps: a block of items with its count before it, and a zero; nothing but the zero when empty."""
    flat, lengths = side_by_side(parts, items) if parts else _repeated(0, 0)
    some = counts > 0
    head = varints(zigzag(counts[some]))
    return [_spread(head, some), runs_of(flat, lengths, counts), _repeated(0, len(counts))]
