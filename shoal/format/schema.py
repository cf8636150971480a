# SPDX-License-Identifier: Apache-2.0
"""One schema file: the columns, keys and options of a table at one version.

Agrees with: TableSchema, SchemaSerializer (2.0.0). Invariant: a schema file is written once and never changed;
data files name the schema id that decodes them, and columns match across schemas by field id only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shoal.errors import Corrupt
from shoal.format import jackson
from shoal.format.types import DataType, Field, parse_field

VERSION = 3

# Field ids of the columns that Paimon adds to data files of primary-key tables.
KEY_FIELD_OFFSET = 1073741823
SEQUENCE_NUMBER = Field(2147483646, "_SEQUENCE_NUMBER", DataType("BIGINT", False))
VALUE_KIND = Field(2147483645, "_VALUE_KIND", DataType("TINYINT", False))
# Never stored: which level of the merge tree a row comes from.
LEVEL = Field(2147483644, "_LEVEL", DataType("INT", False))
KEY_PREFIX = "_KEY_"


@dataclass(frozen=True)
class Schema:
    """A table schema. `primary_keys` includes partition keys; files are keyed by `trimmed_keys` only."""

    id: int
    fields: tuple[Field, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: Mapping[str, str]
    comment: str | None = None
    time_ms: int = 0

    def field(self, name: str) -> Field:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {f.name: f for f in self.fields}

    @property
    def names(self) -> list[str]:
        return [f.name for f in self.fields]

    @cached_property
    def partition_fields(self) -> tuple[Field, ...]:
        return tuple(self.field(n) for n in self.partition_keys)

    @cached_property
    def trimmed_keys(self) -> tuple[str, ...]:
        """Primary keys that are not partition keys, in primary-key order: what files are sorted by."""
        return tuple(k for k in self.primary_keys if k not in self.partition_keys)

    @cached_property
    def key_fields(self) -> tuple[Field, ...]:
        return tuple(self.field(n) for n in self.trimmed_keys)

    @cached_property
    def key_types(self) -> tuple[DataType, ...]:
        return tuple(f.type for f in self.key_fields)

    @cached_property
    def partition_types(self) -> tuple[DataType, ...]:
        return tuple(f.type for f in self.partition_fields)

    @cached_property
    def file_fields(self) -> tuple[Field, ...]:
        """Columns of a data file in their order: keys, sequence number, row kind, then the table's columns."""
        if not self.primary_keys:
            return self.fields
        keys = tuple(
            Field(KEY_FIELD_OFFSET + f.id, KEY_PREFIX + f.name, f.type.with_nullable(False)) for f in self.key_fields
        )
        return (*keys, SEQUENCE_NUMBER, VALUE_KIND, *self.fields)

    def encode(self) -> bytes:
        """The schema file's bytes."""
        out: dict[str, jackson.Json] = {
            "version": VERSION,
            "id": self.id,
            "fields": [f.json() for f in self.fields],
            "highestFieldId": self.highest_field_id,
            "partitionKeys": list(self.partition_keys),
            "primaryKeys": list(self.primary_keys),
            "options": dict(self.options),
        }
        if self.comment is not None:
            out["comment"] = self.comment
        out["timeMillis"] = self.time_ms
        return jackson.dumps(out).encode()


def decode(data: bytes, path: str) -> Schema:
    """A schema from its file. Older versions get the defaults their writers meant."""
    raw = jackson.loads(data, path)
    version = raw.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise Corrupt(
            f"{path}: schema version {version} is newer than this shoal reads ({VERSION})", hint="upgrade shoal"
        )
    fields, options = raw.get("fields"), raw.get("options", {})
    if not isinstance(fields, Sequence) or isinstance(fields, str) or not isinstance(options, Mapping):
        raise Corrupt(f"{path}: a schema needs fields and options")
    opts = {str(k): str(v) for k, v in options.items()}
    if version <= 1:
        opts.setdefault("bucket", "1")
    if version <= 2:
        opts.setdefault("file.format", "orc")
    schema_id, highest = raw.get("id"), raw.get("highestFieldId", -1)
    if not isinstance(schema_id, int) or not isinstance(highest, int):
        raise Corrupt(f"{path}: a schema needs an id")
    comment, time_ms = raw.get("comment"), raw.get("timeMillis", 0)
    schema = Schema(
        schema_id,
        tuple(parse_field(f, path) for f in fields),
        highest,
        _names(raw.get("partitionKeys", []), path),
        _names(raw.get("primaryKeys", []), path),
        opts,
        comment if isinstance(comment, str) else None,
        time_ms if isinstance(time_ms, int) else 0,
    )
    for key in (*schema.partition_keys, *schema.primary_keys):
        if key not in schema.names:
            raise Corrupt(f"{path}: key column '{key}' is not a column")
    return schema


def _names(value: jackson.Json, path: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) for v in value):
        raise Corrupt(f"{path}: expected a list of column names, found {value!r}")
    return tuple(str(v) for v in value)
