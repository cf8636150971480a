# SPDX-License-Identifier: Apache-2.0
"""Values of the oracle's encoding as Arrow: the literals of random filters, the rows of histories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.format.types import DataType

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH = date(1970, 1, 1).toordinal()


def scalar(value: Any, t: DataType, arrow: pa.DataType) -> pa.Scalar:
    """A value of the oracle's encoding as an Arrow scalar of a column's type. Plain types only."""
    if value is None:
        return pa.scalar(None, arrow)
    match t.root:
        case "FLOAT" | "DOUBLE":
            return pa.scalar(float(np.float32(value)) if t.root == "FLOAT" else float(value), arrow)
        case "DECIMAL":
            return pa.scalar(Decimal(value), arrow)
        case "BINARY" | "VARBINARY":
            return pa.scalar(bytes.fromhex(value), arrow)
        case "DATE":
            return pa.scalar(date.fromisoformat(value), arrow)
        case "TIME":
            seconds, nanos = _parse_clock(value)
            return pa.scalar(seconds * 1000 + nanos // 1_000_000, pa.int32()).cast(arrow)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            nanos = nanos_of(value)
            if pa.types.is_decimal(arrow):
                return pa.scalar(Decimal(f"{nanos}e-9"), arrow)
            count, rest = divmod(nanos, 10 ** (9 - _DIGITS[arrow.unit]))
            assert not rest, f"{value} does not fit {t}"
            return pa.scalar(count, pa.int64()).cast(arrow)
    if t.root in ("CHAR", "VARCHAR") and not isinstance(
        value, str
    ):  # a number in a column that became a text meanwhile
        return pa.scalar(json.dumps(value), arrow)
    return pa.scalar(value, arrow)


def column(values: Sequence[Any], t: DataType, arrow: pa.DataType) -> pa.Array:
    """Values of the oracle's encoding as an Arrow array of a Paimon type, nested ones too."""
    if t.root == "ROW":
        members = [
            column([None if v is None else v.get(f.name) for v in values], f.type, arrow.field(i).type)
            for i, f in enumerate(t.fields)
        ]
        fields = [pa.field(f.name, m.type) for f, m in zip(t.fields, members)]
        return pa.StructArray.from_arrays(
            members, fields=fields, mask=pa.array([v is None for v in values], pa.bool_())
        )
    if t.root in ("ARRAY", "MAP", "MULTISET"):
        offsets = [0]
        for v in values:
            offsets.append(offsets[-1] + len(v or ()))
        items = [x for v in values for x in v or ()]
        starts = pa.array([None if v is None else at for v, at in zip(values, offsets)] + [offsets[-1]], pa.int32())
        if t.root == "ARRAY":
            inner = column(items, t.element, arrow.value_type)
            return pa.ListArray.from_arrays(starts, inner)
        key, value = (t.element, DataType("INT", False)) if t.root == "MULTISET" else (t.key, t.value)
        keys = column([k for k, _ in items], key, arrow.key_type)
        return pa.MapArray.from_arrays(starts, keys, column([v for _, v in items], value, arrow.item_type))
    return pa.array([scalar(v, t, arrow) for v in values], arrow)


def nanos_of(text: str) -> int:
    """Nanoseconds since 1970 of an ISO time, with or without `Z`."""
    day, _, clock = text.rstrip("Z").partition("T")
    seconds, nanos = _parse_clock(clock)
    return ((date.fromisoformat(day).toordinal() - _EPOCH) * 86_400 + seconds) * 10**9 + nanos


def _parse_clock(text: str) -> tuple[int, int]:
    whole, _, fraction = text.partition(".")
    hours, minutes, *more = (int(x) for x in whole.split(":"))
    return hours * 3600 + minutes * 60 + (more[0] if more else 0), int(fraction.ljust(9, "0")) if fraction else 0
