# SPDX-License-Identifier: Apache-2.0
"""An Arrow table in the value encoding of Java's dumps, written a second time: nothing of shoal is used here.

Integers and finite floats are JSON numbers, NaN and infinities strings, decimals strings with their scale, binary hex,
dates and times ISO text without trailing zero fractions, instants with `Z`, maps sorted [key, value] pairs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as JSON values."""
    columns = [encode(c.combine_chunks()) for c in table.columns]
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


def encode(a: pa.Array) -> list[Any]:
    """A column as JSON values."""
    valid = a.is_valid().to_pylist()
    return [v if ok else None for v, ok in zip(_values(a), valid)]


def _values(a: pa.Array) -> Sequence[Any]:
    """One JSON value a row; what stands in null rows does not matter."""
    t, p = a.type, pa.types
    if p.is_struct(t):
        members = [encode(c) for c in a.flatten()]
        names = [f.name for f in t]
        return [dict(zip(names, r)) for r in zip(*members)]
    if p.is_list(t):
        items = encode(a.flatten())
        lengths = [0 if n is None else n for n in a.value_lengths().to_pylist()]
        return list(_cut(items, lengths))
    if p.is_map(t):
        lists = a.cast(pa.list_(pa.struct([("k", t.key_type), ("v", t.item_type)])))
        pairs = [[[e["k"], e["v"]] for e in row or ()] for row in encode(lists)]
        return [sorted(row, key=lambda kv: json.dumps(kv, ensure_ascii=False)) for row in pairs]
    if p.is_boolean(t) or p.is_integer(t) or p.is_string(t):
        return a.to_pylist()
    if p.is_floating(t):
        return [_float(v) for v in a.to_pylist()]
    if p.is_decimal(t):
        return [None if v is None else format(v, "f") for v in a.to_pylist()]
    if p.is_binary(t):
        return [None if v is None else v.hex() for v in a.to_pylist()]
    if p.is_date32(t):
        return [None if v is None else _date(v) for v in a.view(pa.int32()).to_pylist()]
    if p.is_time32(t):
        per = _PER_SECOND[t.unit]
        return [None if v is None else _time(*divmod(v, per), per) for v in a.view(pa.int32()).to_pylist()]
    if p.is_timestamp(t):
        zone = "Z" if t.tz else ""
        return [
            None if v is None else _timestamp(v, _PER_SECOND[t.unit]) + zone for v in a.view(pa.int64()).to_pylist()
        ]
    raise NotImplementedError(str(t))


def _cut(items: list[Any], lengths: list[int]) -> Iterable[list[Any]]:
    at = 0
    for n in lengths:
        yield items[at : at + n]
        at += n


def _float(v: float | None) -> float | str | None:
    if v is None or math.isfinite(v):
        return v
    return "NaN" if math.isnan(v) else "Infinity" if v > 0 else "-Infinity"


def _date(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _time(seconds: int, fraction: int, per: int) -> str:
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if not fraction:
        return text
    return text + "." + str(fraction).rjust(len(str(per)) - 1, "0").rstrip("0")


def _timestamp(v: int, per: int) -> str:
    seconds, fraction = divmod(v, per)
    at = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return f"{at.year:04d}-{at:%m-%d}T" + _time(at.hour * 3600 + at.minute * 60 + at.second, fraction, per)
