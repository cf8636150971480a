# SPDX-License-Identifier: Apache-2.0
"""Nested values as text, and texts (of default values) as nested values.

Agrees with: ArrayToStringCastRule, MapToStringCastRule, RowToStringCastRule, StringToArrayCastRule,
StringToMapCastRule, StringToRowCastRule (2.0.0). What stands inside is cast by the rule for it. Invariant: splitting a
text never looks into brackets or quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.format.cast_change import Cast, Change, nulls_of
from shoal.format.types import MAX_LENGTH, DataType

if TYPE_CHECKING:
    import pyarrow as pa

STRING = DataType("VARCHAR", length=MAX_LENGTH)

Rule = Callable[[DataType, DataType], "Cast | None"]

_BLANKS = "".join(map(chr, range(33)))  # what Java's trim takes off
_FORMS = {
    "ARRAY": (re.compile(r"\[(.*)\]"), re.compile(r"ARRAY\s*\((.*)\)", re.IGNORECASE)),
    "MAP": (re.compile(r"\{(.*)\}"), re.compile(r"MAP\s*\((.*)\)", re.IGNORECASE)),
    "ROW": (re.compile(r"\{(.*)\}"), re.compile(r"STRUCT\s*\((.*)\)", re.IGNORECASE)),
}
_ENTRY = re.compile(r"(.+?)\s*->\s*(.+)")


def members(t: DataType) -> list[DataType]:
    return [m for m in (t.element, t.key, t.value) if m is not None] + [f.type for f in t.fields]


def text_to_nested(rule: Rule, a: pa.Array, change: Change) -> pa.Array:
    """`[a, b]` or `ARRAY(a, b)`; `{k -> v}` or `MAP(k, v)`; `{a, b}` or `STRUCT(a, b)`. `null` is null.

    Quotes stay in the values of arrays and rows, and are taken off those of maps.
    """
    import pyarrow as pa

    t, kind = change.target, change.arrow
    # one by one: only defaults are written so, and their grammar is not a regular one
    rows = [None if v is None else _split(v, change) for v in a.to_pylist()]
    mask = pa.array([r is None for r in rows], pa.bool_())
    if t.root == "ROW":
        width = len(t.fields)
        for text, r in zip(a.to_pylist(), rows):
            if r is not None and len(r) not in (0, width):
                raise change.refuse(text, f"the row has {width} members")
        made = [_member(rule, [r[i] if r else None for r in rows], f.type, change) for i, f in enumerate(t.fields)]
        return pa.StructArray.from_arrays(made, fields=list(kind), mask=mask)
    flat = [token for r in rows for token in r or []]
    per = 1 if t.root == "ARRAY" else 2
    offsets = pa.array(np.concatenate([[0], np.cumsum([len(r or []) // per for r in rows])]), pa.int32())
    if t.root == "ARRAY":
        assert t.element is not None
        return pa.ListArray.from_arrays(offsets, _member(rule, flat, t.element, change), type=kind, mask=mask)
    assert t.key is not None and t.value is not None
    keys, values = _member(rule, flat[::2], t.key, change), _member(rule, flat[1::2], t.value, change)
    return pa.MapArray.from_arrays(offsets, keys, values, type=kind, mask=mask)


def _member(rule: Rule, tokens: Sequence[str | None], t: DataType, change: Change) -> pa.Array:
    import pyarrow as pa

    cast = rule(STRING, t)
    assert cast is not None  # asked for when the rule was looked up
    texts = pa.array([None if v == "null" else v for v in tokens], pa.string())
    return cast(texts, Change(STRING, t, change.column, change.zone))


def _split(text: str, change: Change) -> list[str] | None:
    """The texts inside, of a map keys and values in turn; an empty list for an empty text."""
    root, trimmed = change.target.root, text.strip(_BLANKS)
    if root == "MAP" and trimmed.upper() == "NULL":
        return None
    short, call = _FORMS[root]
    m = short.fullmatch(trimmed)
    found = m or call.fullmatch(trimmed)
    if not found:
        raise change.refuse(text, f"it is not written like {short.pattern} or {call.pattern}".replace("\\", ""))
    tokens = [v.strip(_BLANKS) for v in _tokens(found[1].strip(_BLANKS), keep=root != "MAP")]
    if root != "MAP":
        return tokens
    if m:
        entries = [_ENTRY.fullmatch(v) for v in tokens]
        pairs = [(e[1].strip(_BLANKS), e[2].strip(_BLANKS)) for e in entries if e]
        if len(pairs) < len(tokens):
            raise change.refuse(text, "an entry is written like key -> value")
    elif len(tokens) % 2:
        raise change.refuse(text, "a key lacks its value")
    else:
        pairs = list(zip(tokens[::2], tokens[1::2]))
    return [v for pair in dict(pairs).items() for v in pair]


def _tokens(text: str, *, keep: bool) -> list[str]:
    """Parts between commas outside brackets and quotes; `keep` keeps quotes and escapes, else Java drops them."""
    parts, current, depth = [], "", 0
    quoted = escaped = False
    for c in text:
        special = escaped or c in ("\\", '"')
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == '"':
            quoted = not quoted
        elif not quoted:
            depth += (c in "[{(") - (c in ")}]" and depth > 0)
            if c == "," and depth == 0:
                parts.append(current)
                current = ""
                continue
        if keep or not special:
            current += c
    return [p for p in (*parts, current) if p]


def nested_to_text(rule: Rule, a: pa.Array, change: Change) -> pa.Array:
    """`[1, null]`, `{k -> v}`, `{a, b}`: values as their own cast to STRING gives them, without quotes, never cut."""
    import pyarrow.compute as pc

    t = change.source
    if t.root == "ROW":
        parts = [_member_text(rule, c, f.type, change) for c, f in zip(a.flatten(), t.fields)]
        body = parts[0] if parts else pc.fill_null(pc.if_else(a.is_valid(), "", None), "")
        for part in parts[1:]:
            body = pc.binary_join_element_wise(body, part, ", ")
        return _wrapped("{", body, "}", a)
    if t.root == "ARRAY":
        assert t.element is not None
        offsets, values = list_parts(a)
        return _wrapped("[", _joined(offsets, _member_text(rule, values, t.element, change)), "]", a)
    assert t.key is not None and t.value is not None
    offsets, entries = list_parts(a)
    keys, values = entries.flatten()
    pairs = pc.binary_join_element_wise(
        _member_text(rule, keys, t.key, change), _member_text(rule, values, t.value, change), " -> "
    )
    return _wrapped("{", _joined(offsets, pairs), "}", a)


def _member_text(rule: Rule, a: pa.Array, t: DataType, change: Change) -> pa.Array:
    import pyarrow.compute as pc

    cast = None if t.root == "VARCHAR" else rule(t, STRING)
    made = a if cast is None else cast(a, Change(t, STRING, change.column, change.zone))
    return pc.fill_null(made, "null")


def _joined(offsets: pa.Array, texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ", ")


def _wrapped(head: str, body: pa.Array, tail: str, a: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    made = pc.binary_join_element_wise(pc.binary_join_element_wise(head, body, ""), tail, "")
    nulls = nulls_of(a)
    return made if nulls is None else pc.if_else(pa.array(nulls), None, made)


def list_parts(a: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(offsets from 0, values) of a list or map column, without what lies under nulls or outside a slice."""
    import pyarrow as pa

    if pa.types.is_map(a.type):
        entry = pa.struct([a.type.key_field, a.type.item_field])
        kind = pa.list_(pa.field("entries", entry, False))
        entries = pa.StructArray.from_arrays([a.keys, a.items], fields=list(entry))
        nulls = nulls_of(a)
        valid = None if nulls is None else pa.array(~nulls).buffers()[1]
        offsets = pa.array(a.offsets.to_numpy(zero_copy_only=False))
        a = pa.Array.from_buffers(kind, len(a), [valid, offsets.buffers()[1]], children=[entries])
    lengths = pa.compute.fill_null(pa.compute.list_value_length(a), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.array(ends), a.flatten()
