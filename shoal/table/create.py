# SPDX-License-Identifier: Apache-2.0
"""The first schema of a new table.

Agrees with: Schema.Builder, CatalogUtils.validateCreateTable, ColumnDirectiveUtils.applyDirectives (2.0.0). Invariant:
a table that this makes can be opened, read and written by Java, and its schema file is the one that Java would write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, Unsupported
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field, from_arrow
from shoal.options import Options, check
from shoal.table import schema_checks
from shoal.table.column_directives import directed, listed
from shoal.table.field_ids import java_order, numbered
from shoal.table.schema_change import option_text

if TYPE_CHECKING:
    import pyarrow as pa


def first_schema(
    name: str,
    columns: pa.Schema,
    primary_key: tuple[str, ...],
    partition_by: tuple[str, ...],
    options: Mapping[str, object] | None,
    comment: str | None,
    time_ms: int,
) -> Schema:
    """Schema 0 of a new table; `BadRequest` says what Java would refuse."""
    fields = [Field(0, f.name, from_arrow(f.type, f.nullable, column=f.name)) for f in columns]
    opts = {k: option_text(v) for k, v in (options or {}).items()}
    check(opts, "create", has_primary_key=bool(primary_key or opts.get("primary-key", "").strip()))
    # Arrow has no type for them: bytes that 'blob-field' names are blobs, as in Flink
    blobs = {n.strip() for n in opts.get("blob-field", "").split(",")}
    fields = [
        replace(f, type=DataType("BLOB", f.type.nullable)) if f.name in blobs and f.type.root == "VARBINARY" else f
        for f in fields
    ]
    return schema_of(name, fields, primary_key, partition_by, opts, "" if comment is None else comment, time_ms)


def schema_of(
    name: str,
    columns: Sequence[Field],
    primary_key: Sequence[str],
    partition_by: Sequence[str],
    options: Mapping[str, str],
    comment: str | None,
    time_ms: int,
) -> Schema:
    """Schema 0 with these columns, whose ids are given anew."""
    _check_kind(name, Options(options, strict=False))
    highest, fields, opts, added = -1, [], dict(options), list(options)
    for c in columns:
        number = highest + 1
        t, highest = numbered(c.type, number)
        t, description, listing = directed(c.description, c.name, t)
        if listing is not None:
            opts = listed(opts, listing, c.name)
        fields.append(replace(c, id=number, type=t, description=description))
    schema = Schema(
        0, tuple(fields), highest, tuple(partition_by), tuple(primary_key), java_order(opts, added), comment, time_ms
    )
    return schema_checks.normal(name, schema)


def _check_kind(name: str, options: Options) -> None:
    kind = options.get("type")
    if kind not in ("table", "materialized-table"):
        raise Unsupported(f"{name}: tables of type '{kind}' are not made here", hint="leave 'type' out")
    if options.is_set("path"):
        raise BadRequest(f"{name}: 'path': a table lies in its warehouse", hint="leave it out")
    if options.get("auto-create"):
        raise BadRequest(f"{name}: 'auto-create' is not for tables of a warehouse", hint="leave it out")
    for key in ("scan.fallback-branch", "scan.primary-branch"):
        if str(options.get(key) or "").strip():
            raise BadRequest(f"{name}: '{key}': a new table has no branches", hint="set it when the branch is there")
