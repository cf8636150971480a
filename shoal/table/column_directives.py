# SPDX-License-Identifier: Apache-2.0
"""Columns that SQL cannot declare, told by their comment: `__BLOB_FIELD; a picture`, `__VECTOR_FIELD;128`.

Agrees with: ColumnDirectiveUtils (2.0.0). Invariant: the schema keeps the real type and the rest of the comment; the
option that lists such columns names each one once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.errors import BadRequest
from shoal.format.types import DataType
from shoal.option_table import lookup

_VECTOR = "__VECTOR_FIELD"
_OPTIONS = {
    "__BLOB_VIEW_FIELD": "blob-view-field",
    "__BLOB_DESCRIPTOR_FIELD": "blob-descriptor-field",
    "__BLOB_FIELD": "blob-field",
    _VECTOR: "vector-field",
}
_BYTES = ("BINARY", "VARBINARY", "BLOB")
_OF_MAP = ("map.storage-layout", "map.shared-shredding.max-columns", "map.shared-shredding.column-placement-policy")


def directed(comment: str | None, column: str, t: DataType) -> tuple[DataType, str | None, str | None]:
    """(type, comment, option that must list the column or None) of a new column with this comment."""
    text = (comment or "").strip()
    if not text.startswith(("__BLOB", "__VECTOR")):
        return t, comment, None
    word, _, rest = text.partition(";")
    option = _OPTIONS.get(word)
    if option is None:
        raise BadRequest(
            f"column '{column}': no comment directive '{word}'", hint="directives are " + ", ".join(_OPTIONS)
        )
    if word != _VECTOR:
        return _blob(t, column, option), rest.strip() or None, option
    length, _, rest = rest.partition(";")
    if not length.strip().isdecimal() or int(length) < 1:
        raise BadRequest(
            f"column '{column}': '{text}' names no dimension", hint="write it as '__VECTOR_FIELD;128; my comment'"
        )
    if t.root != "ARRAY":
        raise BadRequest(f"column '{column}': a vector is declared as an ARRAY, not as {t}", hint="take ARRAY<FLOAT>")
    return replace(t, root="VECTOR", length=int(length)), rest.strip() or None, option


def _blob(t: DataType, column: str, option: str) -> DataType:
    inner = t.element if t.root == "ARRAY" else t.value if t.root == "MAP" else None
    if inner is None and t.root in _BYTES:
        return DataType("BLOB", t.nullable)
    if inner is not None and inner.root in _BYTES and option == "blob-field":
        blob = DataType("BLOB", inner.nullable)
        return replace(t, element=blob) if t.root == "ARRAY" else replace(t, value=blob)
    raise BadRequest(
        f"column '{column}': {t} cannot be listed in '{option}'",
        hint="take BYTES" + (", ARRAY<BYTES> or a MAP to BYTES" if option == "blob-field" else ""),
    )


def listed(options: Mapping[str, str], key: str, column: str) -> dict[str, str]:
    """The options with the column added to the list under `key`; a list under an older key moves there."""
    out = dict(options)
    spec = lookup(key)
    names = out.get(key) or ""
    for old in spec.old_keys if spec and not names else ():
        names = names or out.pop(old, "")
    out[key] = f"{names},{column}" if names else column
    return out


def undirected(options: Mapping[str, str], column: str, t: DataType) -> dict[str, str]:
    """The options after such a column is dropped."""
    out = dict(options)
    inner = t.element if t.root == "ARRAY" else t.value if t.root == "MAP" else t
    if t.root == "BLOB" or (t.root in ("ARRAY", "MAP") and inner is not None and inner.root == "BLOB"):
        keys = ["blob-field", "blob-descriptor-field", "blob-view-field"]
    elif t.root == "VECTOR":
        keys = ["vector-field"]
        out.pop(f"field.{column}.vector-dim", None)
    else:
        for end in _OF_MAP if t.root == "MAP" else ():
            out.pop(f"fields.{column}.{end}", None)
        return out
    for spec in map(lookup, keys):
        for key in (spec.key, *spec.old_keys) if spec else ():
            if key in out:
                left = [n.strip() for n in out[key].split(",") if n.strip() not in ("", column)]
                out[key] = ",".join(left)
                if not left:
                    del out[key]
    return out
