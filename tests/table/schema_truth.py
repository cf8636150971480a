"""CREATEs and ALTERs that were given to Java Paimon 2.0.0 through its catalog, and what it made of each.

A case has `java` (the text of the refusal) or `schema` (a digest of the schema file). `write` is the failure of the
first writes to a table that Java took. `taken`: shoal takes it although Java did not (why). `refused`: shoal refuses
it although Java did not. `modifies` were given to Flink SQL, the others to Java's catalog itself.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shoal.format.schema import Schema
from shoal.format.types import Field, parse
from shoal.table import schema_change as change
from shoal.table.create import schema_of

Case = Mapping[str, Any]


@cache
def cases() -> Mapping[str, Any]:
    path = Path(__file__).parent / "data" / "schema_cases.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))  # type: ignore[no-any-return]


def created(case: Case) -> Schema:
    fields = [
        Field(0, f[0], parse(f[1]), f[3] if len(f) > 3 else None, f[2] if len(f) > 2 else None) for f in case["fields"]
    ]
    return schema_of("t", fields, case["primary_key"], case["partition_by"], case["options"], None, 0)


def digest(schema: Schema) -> str:
    """Of the schema file's bytes, but for the time in it."""
    return hashlib.sha256(timeless(schema.encode())).hexdigest()[:16]


def timeless(data: bytes) -> bytes:
    return re.sub(rb'"timeMillis" : \d+', b'"timeMillis" : 0', data)


def change_of(d: Case) -> change.Change:
    path = tuple(d.get("path", ()))
    to = d.get("move")
    move = change.Move(to["to"], to.get("column")) if to else None
    match d["change"]:
        case "add_column":
            return change.AddColumn(path, parse(d["type"]), d.get("comment"), move)
        case "drop_column":
            return change.DropColumn(path)
        case "rename_column":
            return change.RenameColumn(path, d["to"])
        case "update_type":
            return change.UpdateType(path, parse(d["type"]), d["keep_nullability"])
        case "update_nullability":
            return change.UpdateNullability(path, d["nullable"])
        case "update_comment":
            return change.UpdateComment(path, d["comment"])
        case "update_position":
            assert move is not None
            return change.UpdatePosition(path[0], move)
        case "update_default":
            return change.UpdateDefault(path, d["default"])
        case "update_table_comment":
            return change.UpdateTableComment(d["comment"])
        case "drop_primary_key":
            return change.DropPrimaryKey()
        case "set_option":
            return change.SetOption(d["key"], d["value"])
    assert d["change"] == "remove_option"
    return change.RemoveOption(d["key"])
