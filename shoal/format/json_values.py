# SPDX-License-Identifier: Apache-2.0
"""JSON documents as columns: every scalar through its text, nested values level by level.

Agrees with: JsonFileReader.convertJsonValue (2.0.0). Invariant: a value that does not fit its type is null or an
error, as the caller says; an object or array where a scalar is due has the empty text, as Jackson's asText gives it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shoal.format.float_text import one_text
from shoal.format.text_values import parsed
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa


class JsonError(Exception):
    """A value that does not fit; the reader of the file says where."""


def _no_constant(text: str) -> NoReturn:
    raise JsonError(f"the number {text}")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def loads(line: str) -> Any:
    """The first JSON value of a line; what follows it is not looked at."""
    start = len(line) - len(line.lstrip(" \t\r\n"))
    return _decoder.raw_decode(line, start)[0]


def column(nodes: Sequence[Any], t: DataType, *, strict: bool) -> pa.Array:
    """A column of JSON values; one that does not fit is an error when `strict`, else null."""
    if t.root in ("ARRAY", "VECTOR"):
        return _arrays(nodes, t, strict)
    if t.root in ("MAP", "MULTISET"):
        return _maps(nodes, t, strict)
    if t.root == "ROW":
        return _rows(nodes, t, strict)
    import pyarrow as pa

    texts = pa.array([_text(n) for n in nodes], pa.string())
    values, bad = parsed(texts, t)
    if strict and bad.any():
        raise JsonError(f"'{texts[int(np.argmax(bad))]}'")
    return values


def _text(node: Any) -> str | None:
    """A value's text as Jackson has it."""
    match node:
        case None:
            return None
        case str():
            return node if node.isascii() else node.encode("utf-8", "replace").decode()
        case bool():
            return "true" if node else "false"
        case float():
            return one_text(np.float64(node))
        case int():
            return str(node)
    return ""


def _checked(nodes: Sequence[Any], kind: type, what: str, strict: bool) -> list[Any]:
    if strict:
        for n in nodes:
            if n is not None and not isinstance(n, kind):
                raise JsonError(f"'{_text(n)}' where {what} is due")
    return [n if isinstance(n, kind) else None for n in nodes]


def _offsets(nodes: Sequence[Any]) -> pa.Array:
    """Where each list begins among all elements; null for a null list."""
    import pyarrow as pa

    ends = np.cumsum([0, *(0 if n is None else len(n) for n in nodes)]).astype(np.int32)
    return pa.array(ends, pa.int32(), mask=np.array([*(n is None for n in nodes), False]))


def _arrays(nodes: Sequence[Any], t: DataType, strict: bool) -> pa.Array:
    import pyarrow as pa

    assert t.element is not None
    lists = _checked(nodes, list, "an array", strict)
    values = column([x for n in lists if n is not None for x in n], t.element, strict=strict)
    made = pa.ListArray.from_arrays(_offsets(lists), values)
    try:
        return made.cast(to_arrow(t))
    except pa.ArrowException as err:
        raise JsonError(f"an array that is no {t}") from err


def _maps(nodes: Sequence[Any], t: DataType, strict: bool) -> pa.Array:
    import pyarrow as pa

    key, value = (t.key, t.value) if t.root == "MAP" else (t.element, DataType("INT"))
    assert key is not None and value is not None
    maps = _checked(nodes, dict, "an object", strict)
    pairs = [kv for n in maps if n is not None for kv in n.items()]
    keys = column([k for k, _ in pairs], key, strict=strict)
    values = column([v for _, v in pairs], value, strict=strict)
    offsets = _offsets(maps)
    if keys.null_count:  # keys that do not fit: their entries go
        valid = keys.is_valid()
        kept = np.append(0, np.cumsum(valid.to_numpy(zero_copy_only=False)))
        ends = kept[np.cumsum([0, *(0 if n is None else len(n) for n in maps)])].astype(np.int32)
        offsets = pa.array(ends, pa.int32(), mask=np.array([*(n is None for n in maps), False]))
        keys, values = keys.filter(valid), values.filter(valid)
    return pa.MapArray.from_arrays(offsets, keys, values).cast(to_arrow(t))


def _rows(nodes: Sequence[Any], t: DataType, strict: bool) -> pa.Array:
    import pyarrow as pa

    rows = _checked(nodes, dict, "an object", strict)
    members = [column([None if r is None else r.get(f.name) for r in rows], f.type, strict=strict) for f in t.fields]
    mask = pa.array([r is None for r in rows])
    return pa.StructArray.from_arrays(members, fields=[to_arrow(t).field(i) for i in range(len(members))], mask=mask)
