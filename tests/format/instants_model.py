# SPDX-License-Identifier: Apache-2.0
"""Timestamps as exact decimal seconds, from Java's dumps and from Arrow: nothing of shoal is used here."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from oracle_values import multiset, rows_of

__all__ = ["DATA", "dumped", "multiset", "read", "rows_of", "seconds"]

DATA = Path(__file__).parent / "data" / "timestamps"
_TEXT = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z?")
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def seconds(text: str) -> Decimal:
    """`1969-12-31T23:59:59.5` -> -0.5"""
    m = _TEXT.fullmatch(text)
    assert m, text
    year, month, day, hour, minute, second = (int(v) for v in m.groups()[:6])
    if year == 0:  # what Java's own reader makes of the year 1
        days = date(400, month, day).toordinal() - date(401, 1, 1).toordinal()
    else:
        days = date(year, month, day).toordinal() - 1
    days -= date(1970, 1, 1).toordinal() - 1
    return days * 86400 + hour * 3600 + minute * 60 + second + Decimal(m[7] or 0)


def dumped(name: str) -> dict[int, dict[str, Any]]:
    """The rows of a dump by id, timestamps as decimal seconds and maps as lists of pairs."""
    rows = [json.loads(line)["row"] for line in (DATA / name).read_text().splitlines()[1:]]
    return {r["id"]: _plain_json(r) for r in rows}


def _plain_json(v: Any) -> Any:
    if isinstance(v, str):
        return seconds(v)
    if isinstance(v, list):
        return [_plain_json(x) for x in v]
    if isinstance(v, dict):
        return {k: _plain_json(x) for k, x in v.items()}
    return v


def read(batches: list[pa.RecordBatch]) -> dict[int, dict[str, Any]]:
    """The rows of batches by id, in the same form."""
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    columns = [[_plain(v) for v in column] for column in table.columns]
    return {r[0]: dict(zip(table.column_names, r)) for r in zip(*columns)}


def _plain(v: pa.Scalar) -> Any:
    if not v.is_valid:
        return None
    if pa.types.is_timestamp(v.type):
        return Decimal(v.value).scaleb(-_UNITS[v.type.unit])
    if pa.types.is_map(v.type):
        return [[_plain(e["key"]), _plain(e["value"])] for e in v.values]
    if pa.types.is_list(v.type):
        return [_plain(e) for e in v.values]
    if pa.types.is_struct(v.type):
        return {k: _plain(e) for k, e in v.items()}
    return v.as_py()
