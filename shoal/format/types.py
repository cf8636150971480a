# SPDX-License-Identifier: Apache-2.0
"""Paimon's data types: their text in schema files, and the Arrow type each is read and written as.

Agrees with: DataTypes, DataTypeJsonParser, ArrowFieldTypeConversion (2.0.0). Invariant: `parse(t.json())`
is `t`, and a type made from Arrow maps back to the same Arrow type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, Corrupt, Unsupported, near

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LENGTH = 2147483647
# Seconds of the years 1 to 9999 with nine decimals.
WIDE_DIGITS = 21

_PLAIN = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "VARIANT", "BLOB")
_ALIASES = {
    "INTEGER": "INT", "NUMERIC": "DECIMAL", "DEC": "DECIMAL", "DOUBLE PRECISION": "DOUBLE",
    "BYTES": "VARBINARY", "STRING": "VARCHAR", "TIMESTAMP_LTZ": "TIMESTAMP_LTZ",
}  # fmt: skip
_LENGTH = ("CHAR", "VARCHAR", "BINARY", "VARBINARY")


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a member of a ROW; `id` is what files are matched by."""

    id: int
    name: str
    type: DataType
    description: str | None = None
    default: str | None = None

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"id": self.id, "name": self.name, "type": self.type.json()}
        if self.description is not None:
            out["description"] = self.description
        if self.default is not None:
            out["defaultValue"] = self.default
        return out


@dataclass(frozen=True, slots=True)
class DataType:
    """One type. `root` is its name (`DECIMAL`, `TIMESTAMP_LTZ`, `ROW`); the rest applies where the root has it."""

    root: str
    nullable: bool = True
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    element: DataType | None = None
    key: DataType | None = None
    value: DataType | None = None
    fields: tuple[Field, ...] = ()
    wide: bool = False
    """Of a timestamp with more than six digits: read as DECIMAL seconds since 1970, which hold every year."""

    def with_nullable(self, nullable: bool) -> DataType:
        return replace(self, nullable=nullable)

    def same_as(self, other: DataType) -> bool:
        """Equal but for nullability: files need no cast between the two."""
        return self is other or self == other or self.with_nullable(True) == other.with_nullable(True)

    @property
    def is_nested(self) -> bool:
        return self.root in ("ARRAY", "MAP", "MULTISET", "ROW", "VECTOR", "VARIANT")

    @property
    def is_bytes(self) -> bool:
        return self.root in _LENGTH or self.root == "BLOB"

    @property
    def is_timestamp(self) -> bool:
        return self.root in ("TIMESTAMP", "TIMESTAMP_LTZ")

    def json(self) -> str | dict[str, Any]:
        """The form of schema files: text for plain types, an object for nested ones."""
        tail = "" if self.nullable else " NOT NULL"
        match self.root:
            case "ARRAY" | "MULTISET":
                assert self.element is not None
                return {"type": self.root + tail, "element": self.element.json()}
            case "VECTOR":
                assert self.element is not None
                return {"type": self.root + tail, "element": self.element.json(), "length": self.length}
            case "MAP":
                assert self.key is not None and self.value is not None
                return {"type": self.root + tail, "key": self.key.json(), "value": self.value.json()}
            case "ROW":
                return {"type": self.root + tail, "fields": [f.json() for f in self.fields]}
        return str(self)

    def __str__(self) -> str:
        tail = "" if self.nullable else " NOT NULL"
        match self.root:
            case "DECIMAL":
                return f"DECIMAL({self.precision}, {self.scale}){tail}"
            case "VARCHAR" if self.length == MAX_LENGTH:
                return "STRING" + tail
            case "VARBINARY" if self.length == MAX_LENGTH:
                return "BYTES" + tail
            case "CHAR" | "VARCHAR" | "BINARY" | "VARBINARY":
                return f"{self.root}({self.length}){tail}"
            case "TIME" | "TIMESTAMP":
                return f"{self.root}({self.precision}){tail}"
            case "TIMESTAMP_LTZ":
                return f"TIMESTAMP({self.precision}) WITH LOCAL TIME ZONE{tail}"
            case "ARRAY" | "MULTISET":
                return f"{self.root}<{self.element}>{tail}"
            case "VECTOR":
                return f"VECTOR<{self.element}, {self.length}>{tail}"
            case "MAP":
                return f"MAP<{self.key}, {self.value}>{tail}"
            case "ROW":
                return "ROW<" + ", ".join(f"`{f.name}` {f.type}" for f in self.fields) + f">{tail}"
        return self.root + tail


_ATOMIC = re.compile(
    r"^\s*(?P<root>[A-Z_]+(?:\s+PRECISION)?)\s*(?:\(\s*(?P<a>\d+)\s*(?:,\s*(?P<b>\d+)\s*)?\))?"
    r"(?P<zone>\s+WITH\s+LOCAL\s+TIME\s+ZONE|\s+WITHOUT\s+TIME\s+ZONE)?(?P<null>\s+NOT\s+NULL|\s+NULL)?\s*$",
    re.IGNORECASE,
)


def parse_atomic(text: str) -> DataType:
    """A plain type from its text, e.g. `DECIMAL(10, 2) NOT NULL`; `BadRequest` when it is none."""
    m = _ATOMIC.match(text)
    if not m:
        raise BadRequest(
            f"cannot read the type '{text}'", hint="types are written like INT, DECIMAL(10, 2), TIMESTAMP(3)"
        )
    root = " ".join(m["root"].upper().split())
    a = int(m["a"]) if m["a"] else None
    b = int(m["b"]) if m["b"] else None
    nullable = not (m["null"] and "NOT" in m["null"].upper())
    if root in ("STRING", "BYTES"):
        a = MAX_LENGTH
    root = _ALIASES.get(root, root)
    if m["zone"] and "LOCAL" in m["zone"].upper() and root == "TIMESTAMP":
        root = "TIMESTAMP_LTZ"
    if root in _PLAIN:
        return DataType(root, nullable)
    if root == "DECIMAL":
        p, s = (10 if a is None else a), (0 if b is None else b)
        if not 1 <= p <= 38 or not 0 <= s <= p:
            raise BadRequest(f"DECIMAL({p}, {s}) is out of range", hint="precision is 1 to 38, scale 0 to precision")
        return DataType(root, nullable, precision=p, scale=s)
    if root in _LENGTH:
        return DataType(root, nullable, length=1 if a is None else a)
    if root in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
        p = (0 if root == "TIME" else 6) if a is None else a
        if not 0 <= p <= 9:
            raise BadRequest(f"{root}({p}): precision is 0 to 9")
        return DataType(root, nullable, precision=p)
    known = [*_PLAIN, *_ALIASES, *_LENGTH, "DECIMAL", "TIME", "TIMESTAMP", "ARRAY", "MAP", "ROW", "MULTISET"]
    raise BadRequest(f"unknown type '{text}'", hint=near(root, known))


def parse(value: object, path: str = "schema") -> DataType:
    """A type from its form in a schema file (text or object)."""
    if isinstance(value, str):
        try:
            return parse_atomic(value)
        except BadRequest as err:
            raise Corrupt(f"{path}: {err.message}") from err
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise Corrupt(f"{path}: cannot read the type {value!r}")
    head = str(value["type"]).upper().split()
    root, nullable = head[0], head[1:] != ["NOT", "NULL"]
    if root in ("ARRAY", "MULTISET"):
        return DataType(root, nullable, element=parse(value.get("element"), path))
    if root == "VECTOR":
        return DataType(root, nullable, element=parse(value.get("element"), path), length=int(value.get("length", 0)))
    if root == "MAP":
        return DataType(root, nullable, key=parse(value.get("key"), path), value=parse(value.get("value"), path))
    if root == "ROW":
        fields = value.get("fields")
        if not isinstance(fields, Sequence):
            raise Corrupt(f"{path}: a ROW type without fields")
        return DataType(root, nullable, fields=tuple(parse_field(f, path) for f in fields))
    raise Corrupt(f"{path}: unknown type '{value['type']}'")


def parse_field(value: object, path: str = "schema") -> Field:
    if not isinstance(value, Mapping) or not isinstance(value.get("id"), int) or not isinstance(value.get("name"), str):
        raise Corrupt(f"{path}: a field needs id, name and type, found {value!r}")
    return Field(
        value["id"], value["name"], parse(value.get("type"), path), value.get("description"), value.get("defaultValue")
    )


def unit(precision: int) -> str:
    """Arrow's time unit of a timestamp precision: 0 s, 1-3 ms, 4-6 us, 7-9 ns."""
    return "s" if precision == 0 else "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


def to_arrow(t: DataType) -> pa.DataType:
    """The Arrow type of a column of this type."""
    import pyarrow as pa

    plain = {
        "BOOLEAN": pa.bool_, "TINYINT": pa.int8, "SMALLINT": pa.int16, "INT": pa.int32, "BIGINT": pa.int64,
        "FLOAT": pa.float32, "DOUBLE": pa.float64, "DATE": pa.date32, "CHAR": pa.string, "VARCHAR": pa.string,
        "BINARY": pa.binary, "VARBINARY": pa.binary, "BLOB": pa.binary,
    }  # fmt: skip
    if t.root in plain:
        return plain[t.root]()
    match t.root:
        case "DECIMAL":
            return pa.decimal128(t.precision or 10, t.scale or 0)
        case "TIME":
            return pa.time32("ms")
        case "TIMESTAMP" | "TIMESTAMP_LTZ" if t.wide and (t.precision or 0) > 6:
            return pa.decimal128(WIDE_DIGITS, 9)
        case "TIMESTAMP":
            return pa.timestamp(unit(t.precision or 0))
        case "TIMESTAMP_LTZ":
            return pa.timestamp(unit(t.precision or 0), "UTC")
        case "ARRAY":
            assert t.element is not None
            return pa.list_(pa.field("element", to_arrow(t.element), t.element.nullable))
        case "MULTISET":
            assert t.element is not None
            return pa.map_(to_arrow(t.element), pa.field("value", pa.int32(), False))
        case "MAP":
            assert t.key is not None and t.value is not None
            return pa.map_(to_arrow(t.key), pa.field("value", to_arrow(t.value), t.value.nullable))
        case "ROW":
            return pa.struct([arrow_field(f) for f in t.fields])
        case "VARIANT":
            return pa.struct([pa.field(n, pa.binary(), False) for n in ("value", "metadata")])
        case "VECTOR":
            assert t.element is not None
            return pa.list_(pa.field("element", to_arrow(t.element), t.element.nullable), t.length or 0)
    raise Unsupported(f"columns of type {t} are not supported")


def widened(t: DataType) -> DataType:
    """The same type, its timestamps of more than six digits (nested ones too) read as decimal seconds."""
    if t.is_timestamp:
        return replace(t, wide=True) if (t.precision or 0) > 6 else t
    if not t.is_nested:
        return t
    return replace(
        t,
        element=t.element and widened(t.element),
        key=t.key and widened(t.key),
        value=t.value and widened(t.value),
        fields=tuple(replace(f, type=widened(f.type)) for f in t.fields),
    )


def arrow_field(f: Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(f.name, to_arrow(f.type), f.type.nullable)


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([arrow_field(f) for f in fields])


def from_arrow(t: pa.DataType, nullable: bool = True, *, column: str = "?") -> DataType:
    """The Paimon type of an Arrow type; `BadRequest` names the column when there is none."""
    import pyarrow as pa

    p = pa.types
    simple = {
        pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
        pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.date32(): "DATE", pa.date64(): "DATE",
    }  # fmt: skip
    if t in simple:
        return DataType(simple[t], nullable)
    if p.is_string(t) or p.is_large_string(t) or p.is_string_view(t):
        return DataType("VARCHAR", nullable, length=MAX_LENGTH)
    if p.is_binary(t) or p.is_large_binary(t) or p.is_binary_view(t):
        return DataType("VARBINARY", nullable, length=MAX_LENGTH)
    if p.is_fixed_size_binary(t):
        return DataType("BINARY", nullable, length=t.byte_width)
    if p.is_decimal(t) and t.precision <= 38:
        return DataType("DECIMAL", nullable, precision=t.precision, scale=t.scale)
    if p.is_time(t):
        return DataType("TIME", nullable, precision={"s": 0, "ms": 3, "us": 6, "ns": 9}[t.unit])
    if p.is_timestamp(t):
        root = "TIMESTAMP" if t.tz is None else "TIMESTAMP_LTZ"
        return DataType(root, nullable, precision={"s": 0, "ms": 3, "us": 6, "ns": 9}[t.unit])
    if p.is_dictionary(t):
        return from_arrow(t.value_type, nullable, column=column)
    if p.is_list(t) or p.is_large_list(t):
        return DataType("ARRAY", nullable, element=from_arrow(t.value_type, t.value_field.nullable, column=column))
    if p.is_map(t):
        key = from_arrow(t.key_type, False, column=column)
        return DataType("MAP", nullable, key=key, value=from_arrow(t.item_type, t.item_field.nullable, column=column))
    if p.is_struct(t):
        fields = tuple(
            Field(i, f.name, from_arrow(f.type, f.nullable, column=f"{column}.{f.name}")) for i, f in enumerate(t)
        )
        return DataType("ROW", nullable, fields=fields)
    hint = "cast it to a signed integer first" if p.is_unsigned_integer(t) else "cast it to a type that Paimon has"
    raise BadRequest(f"column '{column}': Arrow type {t} has no Paimon type", hint=hint)
