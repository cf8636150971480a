# SPDX-License-Identifier: Apache-2.0
"""What a schema must be before its file is written: names, types, keys, buckets, and then every combination of options.

`normal` is asked by a new table and by every ALTER. Agrees with: Schema.normalizeFields, TableSchema,
SchemaValidation.validateTableSchema (2.0.0). Invariant: what Java refuses is refused. Refused besides, because Java
takes it and then fails at the first write or read: key columns of type VARIANT or BLOB, lengths and precisions out of
range, a ROW without members, a VECTOR in an ARRAY or MAP, a default that its column's type cannot hold, a value of
an option that cannot be read, `bucket-function.type` on columns that it does not hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import BadRequest, near
from shoal.format.cast import default_value
from shoal.format.schema import KEY_PREFIX, Schema
from shoal.format.types import MAX_LENGTH, DataType, Field
from shoal.options import Options, problems
from shoal.table import schema_option_checks, schema_type_checks

# Names that Paimon gives to columns of its own.
RESERVED = ("_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID")

_VECTOR_ELEMENTS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE")
_NESTED = ("ARRAY", "MAP", "MULTISET", "ROW", "VECTOR")


def normal(name: str, schema: Schema) -> Schema:
    """The schema with its keys out of the options and NOT NULL; `BadRequest` says what Java would refuse."""
    schema = _with_keys(name, schema)
    _check_columns(name, schema)
    _check_key_columns(name, schema)
    _check_values(name, schema)
    options = Options(schema.options, strict=False)
    _check_upsert_key(name, schema, options)
    _check_buckets(name, schema, options)
    schema_option_checks.check(name, schema, options)
    schema_type_checks.check(name, schema, options)
    return schema


def _check_values(name: str, schema: Schema) -> None:
    """Every value can be read. Java reads an option where it needs it, and fails there."""
    for problem in problems(schema.options, has_primary_key=bool(schema.primary_keys)):
        if problem.kind == "bad-value":
            raise BadRequest(f"{name}: {problem.message}", hint=problem.hint)
    if schema.options.get("branch", "main") != "main":
        raise BadRequest(f"{name}: 'branch' is an option of a read, not of a table", hint="leave it out")


def _with_keys(name: str, schema: Schema) -> Schema:
    """Keys that are given as options, moved to where schemas keep them."""
    options = dict(schema.options)
    found = {}
    for key, given, what in (
        ("primary-key", schema.primary_keys, "primary key"),
        ("partition", schema.partition_keys, "partition"),
    ):
        text = options.pop(key, None)
        if text is not None and given:
            raise BadRequest(f"{name}: the {what} is given twice, and as option '{key}'", hint="leave the option out")
        found[key] = given if text is None else tuple(n.strip() for n in text.split(",") if n.strip())
    names, primary, partition = schema.names, found["primary-key"], found["partition"]
    if not names:
        raise BadRequest(f"{name}: a table needs columns")
    _unique(name, names, "column")
    for what, keys in (("partition", partition), ("primary key", primary)):
        _unique(name, keys, f"{what} column")
        for k in keys:
            if k not in names:
                raise BadRequest(f"{name}: {what} column '{k}' does not exist", hint=near(k, names))
    fields = tuple(
        replace(f, type=f.type.with_nullable(False)) if f.name in primary and f.type.nullable else f
        for f in schema.fields
    )
    return replace(schema, fields=fields, options=options, primary_keys=primary, partition_keys=partition)


def _unique(name: str, names: Sequence[str], what: str) -> None:
    for n in names:
        if names.count(n) > 1:
            raise BadRequest(f"{name}: {what} '{n}' is given twice")


# ---- columns


def _check_columns(name: str, schema: Schema) -> None:
    for f in schema.fields:
        if f.name in RESERVED or f.name.startswith(KEY_PREFIX):
            raise BadRequest(f"{name}: '{f.name}' is a name that Paimon uses itself", hint="rename the column")
        _check_field(name, f, f.name)
        if f.default is not None:
            default_value(f.default, f.type, f.name)


def _check_field(name: str, field: Field, path: str) -> None:
    if not field.name.strip():
        raise BadRequest(f"{name}: a column name is blank", hint="give it a name")
    _check_type(name, field.type, path)


def _check_type(name: str, t: DataType, path: str) -> None:
    wrong = None
    match t.root:
        case "CHAR" | "VARCHAR" | "BINARY" | "VARBINARY":
            if not 1 <= (t.length or 0) <= MAX_LENGTH:
                wrong = f"the length of {t} is not between 1 and {MAX_LENGTH}"
        case "DECIMAL":
            if not 1 <= (t.precision or 0) <= 38 or not 0 <= (t.scale or 0) <= (t.precision or 0):
                wrong = f"{t} is out of range: precision is 1 to 38, scale 0 to precision"
        case "TIME" | "TIMESTAMP" | "TIMESTAMP_LTZ":
            if not 0 <= (t.precision or 0) <= 9:
                wrong = f"the precision of {t} is not between 0 and 9"
        case "VECTOR":
            if path.endswith((".element", ".value")):
                wrong = "a VECTOR cannot lie in an ARRAY or MAP: Java does not read it there"
            elif (t.length or 0) < 1 or t.element is None or t.element.root not in _VECTOR_ELEMENTS:
                wrong = f"{t} is no vector: it has a length of at least 1 and numbers or booleans in it"
        case "ROW":
            _unique(name, [f.name for f in t.fields], f"member of '{path}':")
            if not t.fields:
                wrong = "a ROW needs members"
    if wrong:
        raise BadRequest(f"{name}: column '{path}': {wrong}")
    for f in t.fields:
        _check_field(name, f, f"{path}.{f.name}")
    for inner, step in ((t.element, "element"), (t.key, "key"), (t.value, "value")):
        if inner is not None:
            _check_type(name, inner, f"{path}.{step}")


# ---- keys and buckets


def _check_key_columns(name: str, schema: Schema) -> None:
    if schema.primary_keys and not schema.trimmed_keys:
        raise BadRequest(
            f"{name}: the primary key holds partition columns only, so a partition would have one row",
            hint="add a column that is not a partition column to the primary key",
        )
    _scalar(name, schema, schema.primary_keys, "primary key")
    _scalar(name, schema, schema.partition_keys, "partition")


def _scalar(name: str, schema: Schema, columns: Sequence[str], what: str) -> None:
    for n in columns:
        root = schema.field(n).type.root
        if root in (*_NESTED, "VARIANT", "BLOB"):
            raise BadRequest(f"{name}: {what} column '{n}' is a {root}", hint="keys are scalar columns")


def _check_upsert_key(name: str, schema: Schema, options: Options) -> None:
    key = tuple(str(options.raw.get("upsert-key", "")).split(",")) if options.raw.get("upsert-key") else ()
    for k in key:
        if k not in schema.names:
            raise BadRequest(f"{name}: 'upsert-key': column '{k}' does not exist", hint=near(k, schema.names))
    _scalar(name, schema, key, "upsert key")
    if key and schema.primary_keys:
        raise BadRequest(f"{name}: 'upsert-key' is for tables without a primary key", hint="leave one of them out")


def _check_buckets(name: str, schema: Schema, options: Options) -> None:
    text, keys, bucket = options.raw.get("bucket-key"), options.bucket_key, options.bucket
    if text is not None and text.strip():
        _check_bucket_key(name, schema, text)
    if bucket == -1:
        if text is not None:
            raise BadRequest(
                f"{name}: 'bucket-key' needs a fixed number of buckets", hint="set 'bucket', or leave 'bucket-key' out"
            )
        if not schema.primary_keys and options.is_set("full-compaction.delta-commits"):
            raise BadRequest(
                f"{name}: 'full-compaction.delta-commits' needs buckets on a table without a primary key",
                hint="leave it out",
            )
        return
    if bucket < 1 and not (bucket == -2 and schema.primary_keys):
        raise BadRequest(
            f"{name}: 'bucket' = {bucket} must be at least 1, or -1" + (", or -2" if schema.primary_keys else ""),
            hint="-1 lets the engine choose",
        )
    keys = keys if text and text.strip() else schema.trimmed_keys
    if not keys:
        raise BadRequest(
            f"{name}: a fixed number of buckets needs a bucket-key", hint="set bucket-key, or leave bucket out"
        )
    for k in keys:
        if schema.field(k).type.root in ("ARRAY", "MULTISET", "MAP", "ROW", "VARIANT", "BLOB"):
            raise BadRequest(f"{name}: bucket-key '{k}' is a {schema.field(k).type.root}", hint="take scalar columns")
    if bucket > 0:
        _check_bucket_function(name, options.bucket_function, [schema.field(k) for k in keys])


def _check_bucket_key(name: str, schema: Schema, text: str) -> None:
    _unique(name, text.split(","), "bucket-key")
    for k in text.split(","):
        if k not in schema.names:
            hint = "write the names without blanks" if k.strip() in schema.names else near(k, schema.names)
            raise BadRequest(f"{name}: bucket-key '{k}' is not a column", hint=hint)
        if k in schema.partition_keys:
            raise BadRequest(f"{name}: bucket-key '{k}' is a partition column", hint="use other columns")
        if schema.primary_keys and k not in schema.primary_keys:
            raise BadRequest(
                f"{name}: bucket-key '{k}' is not part of the primary key",
                hint=f"the key is {', '.join(schema.primary_keys)}",
            )


def _check_bucket_function(name: str, function: str, keys: Sequence[Field]) -> None:
    """Java asks this at the first write only."""
    if function == "mod" and (len(keys) != 1 or keys[0].type.root not in ("INT", "BIGINT")):
        shown = ", ".join(f"{k.name} {k.type}" for k in keys)
        raise BadRequest(
            f"{name}: 'bucket-function.type' = 'mod' takes one INT or BIGINT column, not {shown}",
            hint="choose another bucket-key, or the default function",
        )
    for k in keys:
        if function == "hive" and k.type.root.startswith("TIMESTAMP"):
            raise BadRequest(
                f"{name}: 'bucket-function.type' = 'hive' does not hash {k.name} {k.type}",
                hint="choose another bucket-key, or the default function",
            )
