# SPDX-License-Identifier: Apache-2.0
"""VARIANT values: semi-structured data as two byte strings, as JSON text, and put together again from shredded columns.

Agrees with: GenericVariant, GenericVariantUtil, GenericVariantBuilder, ShreddingUtils, PaimonShreddingUtils (2.0.0).
Invariant: a column is read as struct<value, metadata> whether its file is shredded or not, and a shredded one gives
byte for byte what Java puts together. A value is a tree, so the functions here walk it value by value.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt, Unsupported
from shoal.format.float_text import one_text

if TYPE_CHECKING:
    import pyarrow as pa

# Basic types, and type infos of primitives.
_PRIMITIVE, _SHORT, _OBJECT, _ARRAY = 0, 1, 2, 3
_NULL, _TRUE, _FALSE, _INT1, _INT2, _INT4, _INT8, _DOUBLE, _DEC4, _DEC8, _DEC16, _DATE, _TS, _TS_NTZ, _FLOAT = range(15)
_BINARY, _STRING, _UUID = 15, 16, 20
_INTS = {_INT1: 1, _INT2: 2, _INT4: 4, _INT8: 8}
_DECIMALS = {_DEC4: (4, 9), _DEC8: (8, 18), _DEC16: (16, 38)}
_SIZES = {
    _NULL: 1, _TRUE: 1, _FALSE: 1, _INT1: 2, _INT2: 3, _INT4: 5, _INT8: 9, _DOUBLE: 9, _DEC4: 6, _DEC8: 10, _DEC16: 18,
    _DATE: 5, _TS: 9, _TS_NTZ: 9, _FLOAT: 5, _UUID: 17,
}  # fmt: skip
_DAY_US = 86_400_000_000


def arrow_type() -> pa.DataType:
    """The Arrow type of a VARIANT column."""
    import pyarrow as pa

    return pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])


# ---- to JSON ---------------------------------------------------------------------------------------------


def to_json(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The JSON text of each value of a VARIANT column, as Java's `Variant.toJson` in UTC prints it."""
    import pyarrow as pa

    return pa.array(
        [None if v is None else json_of(v["value"], v["metadata"]) for v in column.to_pylist()], pa.string()
    )


def json_of(value: bytes, metadata: bytes) -> str:
    """The JSON text of one value."""
    out: list[str] = []
    try:
        _json(value, 0, _keys(metadata), out)
    except (IndexError, struct.error, RecursionError) as err:
        raise _malformed() from err
    return "".join(out)


def _json(b: bytes, at: int, keys: tuple[str, ...], out: list[str]) -> None:
    basic = b[at] & 3
    if basic == _OBJECT:
        out.append("{")
        for i, (key, place) in enumerate(_fields(b, at)):
            out.append(("," if i else "") + _quoted(keys[key]) + ":")
            _json(b, place, keys, out)
        out.append("}")
    elif basic == _ARRAY:
        out.append("[")
        for i, place in enumerate(_items(b, at)):
            if i:
                out.append(",")
            _json(b, place, keys, out)
        out.append("]")
    else:
        out.append(_scalar(b, at))


def _scalar(b: bytes, at: int) -> str:
    info = b[at] >> 2
    if b[at] & 3 == _SHORT:
        return _quoted(_slice(b, at + 1, info).decode("utf-8", "replace"))
    if info in (_NULL, _TRUE, _FALSE):
        return ("null", "true", "false")[info]
    if info in _INTS:
        return str(_signed(b, at + 1, _INTS[info]))
    if info in (_DOUBLE, _FLOAT):
        (number,) = struct.unpack_from("<d" if info == _DOUBLE else "<f", b, at + 1)
        text = one_text(np.float32(number) if info == _FLOAT else np.float64(number))
        return text if number - number == 0 else f'"{text}"'
    if info in _DECIMALS:
        return _decimal(b, at, *_DECIMALS[info])
    if info == _DATE:
        return f'"{_date(_signed(b, at + 1, 4))}"'
    if info in (_TS, _TS_NTZ):
        return f'"{_time(_signed(b, at + 1, 8))}{"+00:00" if info == _TS else ""}"'
    if info == _BINARY:
        return f'"{base64.b64encode(_slice(b, at + 5, _unsigned(b, at + 1, 4))).decode()}"'
    if info == _STRING:
        return _quoted(_slice(b, at + 5, _unsigned(b, at + 1, 4)).decode("utf-8", "replace"))
    if info == _UUID:
        return f'"{uuid.UUID(bytes=_slice(b, at + 1, 16))}"'
    raise _unknown(info)


def _decimal(b: bytes, at: int, width: int, most: int) -> str:
    scale, unscaled = b[at + 1], _signed(b, at + 2, width)
    if scale > most or len(str(abs(unscaled))) > most:
        raise _malformed()
    while scale and unscaled % 10 == 0:
        scale, unscaled = scale - 1, unscaled // 10
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _date(days: int) -> str:
    """A date of any year, as Java's LocalDate prints it."""
    era, rest = divmod(days + 719_468, 146_097)
    year_of_era = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
    day = rest - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day + 2) // 153
    y = year_of_era + 400 * era + (month > 9)
    text = f"{y:04d}" if 0 <= y <= 9999 else f"+{y}" if y > 0 else f"-{-y:04d}"
    return f"{text}-{month + 3 if month < 10 else month - 9:02d}-{day - (153 * month + 2) // 5 + 1:02d}"


def _time(us: int) -> str:
    days, us = divmod(us, _DAY_US)
    seconds, fraction = divmod(us, 1_000_000)
    text = f"{_date(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


_ESCAPES = {c: f"\\u{c:04X}" for c in range(32)} | {
    34: '\\"', 92: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r",
}  # fmt: skip


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


# ---- parts of a value ------------------------------------------------------------------------------------


def _malformed() -> Corrupt:
    return Corrupt("a VARIANT value is malformed", hint="the value is damaged, or was not written as a variant")


def _unknown(info: int) -> Unsupported:
    return Unsupported(f"a VARIANT holds the primitive type {info}", hint="types 0 to 16 and 20 (UUID) are read")


def _unsigned(b: bytes, at: int, width: int) -> int:
    return int.from_bytes(_slice(b, at, width), "little")


def _signed(b: bytes, at: int, width: int) -> int:
    return int.from_bytes(_slice(b, at, width), "little", signed=True)


def _slice(b: bytes, at: int, length: int) -> bytes:
    if at + length > len(b):
        raise _malformed()
    return b[at : at + length]


@lru_cache(maxsize=1024)
def _keys(metadata: bytes) -> tuple[str, ...]:
    """The dictionary of field names. Rows of a file often share it."""
    if not metadata or metadata[0] & 15 != 1:
        raise _malformed()
    width = (metadata[0] >> 6) + 1
    n = _unsigned(metadata, 1, width)
    start = 1 + (n + 2) * width
    ends = [start + _unsigned(metadata, 1 + (i + 1) * width, width) for i in range(n + 1)]
    if any(a > b for a, b in pairwise(ends)) or ends[-1] > len(metadata):
        raise _malformed()
    return tuple(metadata[a:b].decode("utf-8", "replace") for a, b in pairwise(ends))


def _fields(b: bytes, at: int) -> list[tuple[int, int]]:
    """(key id, place of the value) of an object's fields."""
    info = b[at] >> 2
    count_width = 4 if info >> 4 & 1 else 1
    id_width, width = (info >> 2 & 3) + 1, (info & 3) + 1
    n = _unsigned(b, at + 1, count_width)
    ids = at + 1 + count_width
    offsets = ids + n * id_width
    data = offsets + (n + 1) * width
    return [
        (_unsigned(b, ids + i * id_width, id_width), data + _unsigned(b, offsets + i * width, width)) for i in range(n)
    ]


def _items(b: bytes, at: int) -> list[int]:
    """Places of an array's elements."""
    info = b[at] >> 2
    count_width, width = (4 if info >> 2 & 1 else 1), (info & 3) + 1
    n = _unsigned(b, at + 1, count_width)
    offsets = at + 1 + count_width
    data = offsets + (n + 1) * width
    return [data + _unsigned(b, offsets + i * width, width) for i in range(n)]


def _size(b: bytes, at: int) -> int:
    """Bytes of a scalar."""
    info = b[at] >> 2
    if b[at] & 3 == _SHORT:
        return 1 + info
    if info in (_BINARY, _STRING):
        return 5 + _unsigned(b, at + 1, 4)
    if info not in _SIZES:
        raise _unknown(info)
    return _SIZES[info]


# ---- putting shredded columns together -------------------------------------------------------------------


def unshredded(column: pa.Array) -> pa.Array:
    """A VARIANT column as struct<value, metadata>, whatever columns its file has for it."""
    import pyarrow as pa

    t = column.type
    if t.get_field_index("metadata") < 0:
        raise Corrupt(f"a VARIANT column without metadata: {t}", hint="the file is damaged or from another format")
    if t.get_field_index("typed_value") < 0:
        parts = [column.field("value"), column.field("metadata")]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(arrow_type()), mask=mask)
    build = _builder_of(t)
    rows: list[dict[str, bytes] | None] = []
    for row in column.to_pylist():
        if row is None:
            rows.append(None)
            continue
        b = Builder()
        try:
            build(row, _keys(row["metadata"]), b)
        except (IndexError, struct.error, KeyError, TypeError) as err:
            raise _malformed() from err
        rows.append({"value": bytes(b.value), "metadata": b.metadata()})
    return pa.array(rows, arrow_type())


_Build = Callable[[dict[str, Any], tuple[str, ...], "Builder"], None]


def _builder_of(t: pa.DataType) -> _Build:
    """How to put together one level of shredded columns: from `typed_value` where it holds something, else `value`."""
    import pyarrow as pa

    at = t.get_field_index("typed_value")
    if at < 0:
        return _from_value
    typed = t.field(at).type
    if pa.types.is_struct(typed):
        return _object_builder(typed)
    if pa.types.is_list(typed):
        inner = _builder_of(typed.value_type)

        def array(row: dict[str, Any], keys: tuple[str, ...], out: Builder) -> None:
            items = row["typed_value"]
            if items is None:
                return _from_value(row, keys, out)
            start, offsets = len(out.value), []
            for item in items:
                offsets.append(len(out.value) - start)
                inner(item, keys, out)
            out.finish_array(start, offsets)

        return array
    write = _scalar_writer(typed)

    def scalar(row: dict[str, Any], keys: tuple[str, ...], out: Builder) -> None:
        if row["typed_value"] is None:
            return _from_value(row, keys, out)
        out.value += write(row["typed_value"])

    return scalar


def _object_builder(typed: pa.StructType) -> _Build:
    members = [(f.name, _builder_of(f.type)) for f in typed]
    names = {name for name, _ in members}

    def build(row: dict[str, Any], keys: tuple[str, ...], out: Builder) -> None:
        typed_row = row["typed_value"]
        if typed_row is None:
            return _from_value(row, keys, out)
        start = len(out.value)
        fields: list[tuple[str, int, int]] = []
        for name, inner in members:
            member = typed_row[name]
            if member.get("typed_value") is not None or member.get("value") is not None:
                fields.append((name, out.key(name), len(out.value) - start))
                inner(member, keys, out)
        rest = row.get("value")
        if rest is not None:
            if rest[0] & 3 != _OBJECT:
                raise _malformed()
            for key, place in _fields(rest, 0):
                if keys[key] in names:
                    raise _malformed()
                fields.append((keys[key], out.key(keys[key]), len(out.value) - start))
                out.append(rest, place, keys)
        out.finish_object(start, fields)

    return build


def _from_value(row: dict[str, Any], keys: tuple[str, ...], out: Builder) -> None:
    value = row.get("value")
    if value is None:
        raise _malformed()
    out.append(value, 0, keys)


def _scalar_writer(t: pa.DataType) -> Callable[[Any], bytes]:
    import pyarrow as pa

    p = pa.types
    if p.is_boolean(t):
        return lambda v: bytes([(_TRUE if v else _FALSE) << 2])
    if p.is_signed_integer(t):
        return _long
    if p.is_float64(t):
        return lambda v: bytes([_DOUBLE << 2]) + struct.pack("<d", v)
    if p.is_float32(t):
        return lambda v: bytes([_FLOAT << 2]) + struct.pack("<f", v)
    if p.is_string(t) or p.is_large_string(t):
        return _text
    if p.is_binary(t) or p.is_fixed_size_binary(t):
        return lambda v: bytes([_BINARY << 2]) + struct.pack("<I", len(v)) + v
    if p.is_decimal(t):
        return _packed_decimal
    if p.is_date32(t):
        return lambda v: bytes([_DATE << 2]) + struct.pack("<i", v.toordinal() - 719_163)
    if p.is_timestamp(t) and t.unit in ("ms", "us"):
        from datetime import UTC, datetime, timedelta

        kind, epoch = (_TS_NTZ, datetime(1970, 1, 1)) if t.tz is None else (_TS, datetime(1970, 1, 1, tzinfo=UTC))
        return lambda v: bytes([kind << 2]) + struct.pack("<q", (v - epoch) // timedelta(microseconds=1))
    raise Unsupported(f"a VARIANT shredded as {t}", hint="Paimon shreds booleans, numbers, text, bytes and dates")


def _long(v: int) -> bytes:
    kind, width = next((k, w) for k, w in _INTS.items() if w == 8 or -(1 << 8 * w - 1) <= v < 1 << 8 * w - 1)
    return bytes([kind << 2]) + v.to_bytes(width, "little", signed=True)


def _text(v: str) -> bytes:
    data = v.encode()
    head = bytes([len(data) << 2 | _SHORT]) if len(data) < 64 else bytes([_STRING << 2]) + struct.pack("<I", len(data))
    return head + data


def _packed_decimal(v: Decimal) -> bytes:
    sign, digits, exponent = v.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    scale, precision = -exponent, len(str(abs(unscaled)))
    fitting = ((k, w) for k, (w, most) in _DECIMALS.items() if scale <= most and precision <= most)
    kind, width = next(fitting, (_DEC16, 16))
    return bytes([kind << 2, scale]) + unscaled.to_bytes(width, "little", signed=True)


class Builder:
    """A value as it grows, with its own dictionary of field names in the order they were met."""

    def __init__(self) -> None:
        self.value = bytearray()
        self._ids: dict[str, int] = {}

    def key(self, name: str) -> int:
        return self._ids.setdefault(name, len(self._ids))

    def append(self, b: bytes, at: int, keys: tuple[str, ...]) -> None:
        """A value of another dictionary: objects and arrays are laid out anew, scalars copied."""
        basic = b[at] & 3
        start = len(self.value)
        if basic == _OBJECT:
            fields = []
            for key, place in _fields(b, at):
                fields.append((keys[key], self.key(keys[key]), len(self.value) - start))
                self.append(b, place, keys)
            self.finish_object(start, fields)
        elif basic == _ARRAY:
            offsets = []
            for place in _items(b, at):
                offsets.append(len(self.value) - start)
                self.append(b, place, keys)
            self.finish_array(start, offsets)
        else:
            self.value += _slice(b, at, _size(b, at))

    def finish_object(self, start: int, fields: list[tuple[str, int, int]]) -> None:
        """Put the header before the values written since `start`; fields (name, id, offset) go by name."""
        fields.sort(key=lambda f: f[0].encode("utf-16-be", "surrogatepass"))
        if len({f[0] for f in fields}) < len(fields):
            raise _malformed()
        size, data = len(fields), len(self.value) - start
        large, id_width, width = size > 255, _width(max((f[1] for f in fields), default=0)), _width(data)
        head = bytearray([(large << 4 | id_width - 1 << 2 | width - 1) << 2 | _OBJECT])
        head += size.to_bytes(4 if large else 1, "little")
        head += b"".join(f[1].to_bytes(id_width, "little") for f in fields)
        head += b"".join(n.to_bytes(width, "little") for n in (*(f[2] for f in fields), data))
        self.value[start:start] = head

    def finish_array(self, start: int, offsets: list[int]) -> None:
        size, data = len(offsets), len(self.value) - start
        large, width = size > 255, _width(data)
        head = bytearray([(large << 2 | width - 1) << 2 | _ARRAY])
        head += size.to_bytes(4 if large else 1, "little")
        head += b"".join(n.to_bytes(width, "little") for n in (*offsets, data))
        self.value[start:start] = head

    def metadata(self) -> bytes:
        names = [n.encode() for n in self._ids]
        width = _width(max(len(names), sum(map(len, names))))
        out = bytearray([width - 1 << 6 | 1]) + len(names).to_bytes(width, "little")
        end = 0
        out += end.to_bytes(width, "little")
        for n in names:
            end += len(n)
            out += end.to_bytes(width, "little")
        return bytes(out) + b"".join(names)


def _width(value: int) -> int:
    """Bytes for an unsigned number; 4 above three bytes."""
    return 1 if value < 1 << 8 else 2 if value < 1 << 16 else 3 if value < 1 << 24 else 4
