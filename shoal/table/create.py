# SPDX-License-Identifier: Apache-2.0
"""The first schema of a new table, checked the way Java checks it.

Agrees with: SchemaValidation, Schema.normalize, ReassignFieldId (2.0.0). Invariant: a table that this makes can be
opened, read and written by Java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, near
from shoal.format.schema import KEY_PREFIX, Schema
from shoal.format.types import DataType, Field, from_arrow
from shoal.options import Options, check
from shoal.table.table import option_map

if TYPE_CHECKING:
    import pyarrow as pa

# Names that Paimon gives to columns of its own.
_RESERVED = {"_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID"}


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
    opts = option_map(options)
    primary_key = primary_key or _listed(opts.pop("primary-key", ""))
    partition_by = partition_by or _listed(opts.pop("partition", ""))
    check(opts, "create", has_primary_key=bool(primary_key))
    names = list(columns.names)
    if not names:
        raise BadRequest(f"{name}: a table needs columns")
    for n in names:
        if names.count(n) > 1:
            raise BadRequest(f"{name}: column '{n}' is given twice")
        if n in _RESERVED or n.startswith(KEY_PREFIX):
            raise BadRequest(f"{name}: '{n}' is a name that Paimon uses itself", hint="rename the column")
    for what, keys in (("primary key", primary_key), ("partition", partition_by)):
        for k in keys:
            if k not in names:
                raise BadRequest(f"{name}: {what} column '{k}' does not exist", hint=near(k, names))
        if len(set(keys)) < len(keys):
            raise BadRequest(f"{name}: a {what} column is given twice")
    fields, highest = _number(columns, primary_key)
    schema = Schema(
        0, fields, highest, partition_by, primary_key, opts, comment if comment is not None else "", time_ms
    )
    _check_keys(name, schema)
    _check_buckets(name, schema, Options(opts, strict=True))
    return schema


def _listed(text: str) -> tuple[str, ...]:
    return tuple(p.strip() for p in text.split(",") if p.strip())


def _number(columns: pa.Schema, primary_key: Sequence[str]) -> tuple[tuple[Field, ...], int]:
    """Fields with ids: columns first come 0, 1, ..., members of a ROW right after their column."""
    counter = -1

    def next_id() -> int:
        nonlocal counter
        counter += 1
        return counter

    def inner(t: DataType) -> DataType:
        if t.root == "ROW":
            return replace(t, fields=tuple(replace(f, id=next_id(), type=inner(f.type)) for f in t.fields))
        if t.element is not None:
            t = replace(t, element=inner(t.element))
        if t.key is not None and t.value is not None:
            t = replace(t, key=inner(t.key), value=inner(t.value))
        return t

    fields = []
    for f in columns:
        t = from_arrow(f.type, f.nullable and f.name not in primary_key, column=f.name)
        number = next_id()
        fields.append(Field(number, f.name, inner(t)))
    return tuple(fields), counter


def _check_keys(name: str, schema: Schema) -> None:
    if not schema.primary_keys:
        return
    if not schema.trimmed_keys:
        raise BadRequest(
            f"{name}: the primary key holds partition columns only, so a partition would have one row",
            hint="add a column that is not a partition column to the primary key",
        )
    for f in (*schema.key_fields, *schema.partition_fields):
        if f.type.is_nested:
            raise BadRequest(f"{name}: key column '{f.name}' is a {f.type.root}", hint="keys are scalar columns")


def _check_buckets(name: str, schema: Schema, options: Options) -> None:
    keys = options.bucket_key
    for k in keys:
        if k not in schema.names:
            raise BadRequest(f"{name}: bucket-key '{k}' is not a column", hint=near(k, schema.names))
        if k in schema.partition_keys:
            raise BadRequest(f"{name}: bucket-key '{k}' is a partition column", hint="use other columns")
        if schema.primary_keys and k not in schema.primary_keys:
            raise BadRequest(
                f"{name}: bucket-key '{k}' is not part of the primary key",
                hint=f"the key is {', '.join(schema.primary_keys)}",
            )
    if options.bucket > 0:
        if not schema.primary_keys and not keys:
            raise BadRequest(
                f"{name}: a fixed number of buckets needs a bucket-key", hint="set bucket-key, or leave bucket out"
            )
        outside = [k for k in schema.partition_keys if schema.primary_keys and k not in schema.primary_keys]
        if outside:
            raise BadRequest(
                f"{name}: partition column '{outside[0]}' is not in the primary key",
                hint="a fixed number of buckets needs it there: add it to the primary key",
            )
    for k in options.sequence_field:
        if k not in schema.names:
            raise BadRequest(f"{name}: sequence.field '{k}' is not a column", hint=near(k, schema.names))
