# SPDX-License-Identifier: Apache-2.0
"""JSON text the way Paimon's writer prints it, so that metadata files compare equal byte by byte.

Agrees with: Jackson's default pretty printer: two spaces, `"key" : value`, arrays on one line, objects
inside arrays opened on the array's line, empty containers as `[ ]` and `{ }`, no final newline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shoal.errors import Corrupt

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def dumps(value: Json, indent: int = 0) -> str:
    """`value` as text; mapping order is kept.

    >>> dumps({"a": [1, 2], "b": {}})
    '{\\n  "a" : [ 1, 2 ],\\n  "b" : { }\\n}'
    """
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        pad = "  " * (indent + 1)
        body = ",\n".join(
            f"{pad}{json.dumps(str(k), ensure_ascii=False)} : {dumps(v, indent + 1)}" for k, v in value.items()
        )
        return "{\n" + body + "\n" + "  " * indent + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        if not value:
            return "[ ]"
        return "[ " + ", ".join(dumps(v, indent) for v in value) + " ]"
    return json.dumps(value)


def loads(data: bytes, path: str) -> dict[str, Json]:
    """The JSON object in `data`; anything else is `Corrupt` and names `path`."""
    try:
        value = json.loads(data)
    except ValueError as err:
        raise Corrupt(f"{path}: not a whole JSON document ({err})", hint="the file is cut off or damaged") from err
    if not isinstance(value, dict):
        raise Corrupt(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
