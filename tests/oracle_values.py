# SPDX-License-Identifier: Apache-2.0
"""Arrow tables in the value encoding of Java's dumps, written a second time: no code of shoal is used here.

Integers and finite floats are JSON numbers, NaN and infinities strings, decimals strings with their scale, binary hex,
dates and times ISO text without trailing zero fractions, instants with `Z`, maps sorted [key, value] pairs. A column's
Paimon type is asked for where Arrow's does not tell: TIMESTAMP(9) may be read as DECIMAL(21, 9) (`wide_timestamps`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from shoal.format.types import DataType

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH = date(1970, 1, 1).toordinal()


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as JSON values."""
    columns = [encode(c) for c in table.columns]
    return [dict(zip(table.column_names, r)) for r in zip(*columns)] if columns else [{}] * table.num_rows


def multiset(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Counter[str]:
    """Rows as text, to be compared without order. Numbers of FLOAT columns become the nearest 32-bit value."""
    types = {f.name: f.type for f in schema}
    return Counter(json.dumps({n: canonical(v, types[n]) for n, v in row.items()}, ensure_ascii=False) for row in rows)


def canonical(value: Any, t: pa.DataType) -> Any:
    """A JSON value in one form: 1.1 may be read from a 32-bit or a 64-bit column, and 0.120 s is 0.12 s."""
    if isinstance(value, str) and pa.types.is_timestamp(t) and t.tz and "." in value:
        # Java prints an instant with three, six or nine digits
        return value.rstrip("Z").rstrip("0").rstrip(".") + "Z"
    if value is None or isinstance(value, str):
        return value
    if pa.types.is_float32(t):
        return float(np.float32(value))
    if pa.types.is_float64(t):
        return float(value)
    if pa.types.is_list(t):
        return [canonical(v, t.value_type) for v in value]
    if pa.types.is_map(t):
        return [[canonical(k, t.key_type), canonical(v, t.item_type)] for k, v in value]
    if pa.types.is_struct(t):
        return {f.name: canonical(value[f.name], f.type) for f in t}
    return value


def encode(a: pa.Array | pa.ChunkedArray, t: DataType | None = None) -> list[Any]:
    """A column as JSON values; `t` is its Paimon type, where the reader knows it."""
    if isinstance(a, pa.ChunkedArray):
        a = a.combine_chunks()
        if isinstance(a, pa.ChunkedArray):  # of no chunks, in some versions of pyarrow
            a = pa.concat_arrays(a.chunks) if a.num_chunks else pa.array([], a.type)
    valid = a.is_valid().to_pylist()
    return [v if ok else None for v, ok in zip(_values(a, t), valid)]


def _values(a: pa.Array, t: DataType | None) -> Sequence[Any]:
    """One value a row; what stands in null rows does not matter."""
    at, p = a.type, pa.types
    if p.is_dictionary(at):
        return _values(a.dictionary_decode(), t)
    if p.is_struct(at):
        kinds = {f.name: f.type for f in t.fields} if t is not None else {}
        members = [encode(a.field(i), kinds.get(at[i].name)) for i in range(at.num_fields)]
        names = [f.name for f in at]
        return [dict(zip(names, r)) for r in zip(*members)] if members else [{}] * len(a)
    if p.is_map(at):
        starts = a.offsets.to_pylist()
        key = t and (t.element if t.root == "MULTISET" else t.key)
        keys, items = encode(a.keys, key), encode(a.items, t and t.value)
        return [sorted(([keys[i], items[i]] for i in range(x, y)), key=text) for x, y in pairwise(starts)]
    if p.is_list(at) or p.is_large_list(at):
        starts, items = a.offsets.to_pylist(), encode(a.values, t and t.element)
        return [items[x:y] for x, y in pairwise(starts)]
    if p.is_fixed_size_list(at):
        items, n = encode(a.values, t and t.element), at.list_size
        return [items[i * n : i * n + n] for i in range(a.offset, a.offset + len(a))]
    if t is not None and t.is_timestamp:
        zone = "Z" if t.root == "TIMESTAMP_LTZ" else ""
        if p.is_decimal(at):
            return [None if v is None else instant(_units(v), 9) + zone for v in a.to_pylist()]
        assert (at.tz is not None) == bool(zone), f"{t} came as {at}"
    if p.is_timestamp(at):
        zone, digits = "Z" if at.tz else "", _DIGITS[at.unit]
        return [None if v is None else instant(v, digits) + zone for v in a.view(pa.int64()).to_pylist()]
    return _plain(a)


def _plain(a: pa.Array) -> Sequence[Any]:
    at, p = a.type, pa.types
    if p.is_boolean(at) or p.is_integer(at) or p.is_string(at) or p.is_large_string(at) or p.is_null(at):
        return a.to_pylist()
    if p.is_float32(at):
        # Java prints the shortest text of the 32 bits
        return [None if v is None else _float(float(str(np.float32(v)))) for v in a.to_pylist()]
    if p.is_floating(at):
        return [_float(v) for v in a.to_pylist()]
    if p.is_decimal(at):
        return [None if v is None else format(v, "f") for v in a.to_pylist()]
    if p.is_binary(at) or p.is_large_binary(at) or p.is_fixed_size_binary(at):
        return [None if v is None else v.hex() for v in a.to_pylist()]
    if p.is_date32(at):
        return [None if v is None else _date(v) for v in a.view(pa.int32()).to_pylist()]
    if p.is_time32(at):
        per = 10 ** _DIGITS[at.unit]
        return [
            None if v is None else _clock(v // per, v % per, _DIGITS[at.unit]) for v in a.view(pa.int32()).to_pylist()
        ]
    raise TypeError(f"no encoding of Arrow {at}")


def text(value: Any) -> str:
    """A value as the oracle writes it; pairs of a map are sorted by it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def instant(v: int, digits: int) -> str:
    """An ISO time of a count of 10^-digits seconds since 1970.

    >>> instant(-62135596800_000000001, 9), instant(1500, 3), instant(0, 0)
    ('0000-12-31T23:59:59.999999999', '1970-01-01T00:00:01.5', '1970-01-01T00:00:00')
    """
    seconds, fraction = divmod(v, 10**digits)
    days, seconds = divmod(seconds, 86_400)
    return f"{_date(days)}T{_clock(seconds, fraction, digits)}"


def _units(v: Decimal) -> int:
    sign, digits, _ = v.as_tuple()  # scaleb() would round to the context's 28 digits
    return (-1 if sign else 1) * int("".join(map(str, digits)))


def _date(days: int) -> str:
    if 1 <= _EPOCH + days <= date.max.toordinal():
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    return str(np.datetime64(days, "D"))


def _clock(seconds: int, fraction: int, digits: int) -> str:
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + ("." + str(fraction).rjust(digits, "0").rstrip("0") if fraction else "")


def _float(v: float | None) -> float | str | None:
    if v is None or math.isfinite(v):
        return v
    return "NaN" if math.isnan(v) else "Infinity" if v > 0 else "-Infinity"
