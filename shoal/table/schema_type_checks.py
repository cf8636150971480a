# SPDX-License-Identifier: Apache-2.0
"""Which columns a file format, a compression, an index or a storage layout can take.

Agrees with: SchemaValidation, AvroSchemaConverter, OrcTypeUtil, FileIndexOptions, the factories of file indexes
(2.0.0). Invariant: a table that passes can write files of every format its options name. Refused besides, because
Java takes it and fails at the first write: a compression that the format does not know (`avro` with `lz4`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from shoal.errors import BadRequest, near
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field
from shoal.option_table import lookup
from shoal.options import Options

# lance, vortex and mosaic are plug-ins that Java finds in jars of their own
_FORMATS = ("parquet", "orc", "avro", "csv", "json", "text", "row", "blob")
_CODECS = {
    "parquet": ("none", "uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"),
    "orc": ("none", "zlib", "snappy", "lzo", "lz4", "zstd"),
    "avro": ("null", "deflate", "snappy", "bzip2", "xz", "zstandard", "zstd"),
}
_MANIFESTS = ("avro", "orc", "parquet")
_SINGLE = {"blob": ("BLOB", "BLOB NOT NULL"), "text": ("STRING", "STRING NOT NULL")}
_BLOB_OPTIONS = ("blob-field", "blob-descriptor-field", "blob-view-field")
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TIMES = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")
_NUMBERS = (*_INTEGERS, "FLOAT", "DOUBLE")
# What each file index takes; nested columns of a MAP are indexed by their value type.
_INDEXES = {
    "bloom-filter": (*_NUMBERS, *_TIMES, "CHAR", "VARCHAR", "BINARY", "VARBINARY"),
    "bitmap": (*_NUMBERS, *_TIMES, "CHAR", "VARCHAR", "BOOLEAN"),
    "bsi": (*_INTEGERS, *_TIMES, "DECIMAL"),
    "range-bitmap": (*_NUMBERS, *_TIMES, "CHAR", "VARCHAR", "BOOLEAN", "DECIMAL"),
}


def check(name: str, schema: Schema, options: Options) -> None:
    """Every check; the first that fails is told."""
    _check_blobs(name, schema, options)
    _check_vectors(name, schema, options)
    _check_formats(name, schema, options)
    _check_compressions(name, options)
    _check_layouts(name, schema, options)
    _check_indexes(name, schema, options)


def inside(t: DataType) -> Iterator[DataType]:
    """The type and every type in it."""
    yield t
    for inner in (*(f.type for f in t.fields), t.element, t.key, t.value):
        if inner is not None:
            yield from inside(inner)


def _has(t: DataType, root: str) -> bool:
    return any(i.root == root for i in inside(t))


def _listed(options: Options, key: str) -> tuple[str, ...]:
    return tuple(n for n in cast("tuple[str, ...]", options.get(key)) if n)


def _per_level(options: Options, key: str) -> Mapping[str, str]:
    return cast("Mapping[str, str]", options.get(key))


def _text(options: Options, key: str) -> str | None:
    value = options.get(key)
    return None if value is None else str(value)


# ---- blobs and vectors


def is_blob_file(t: DataType) -> bool:
    """Whether a column of this type has files of its own."""
    inner = t.element if t.root == "ARRAY" else t.value if t.root == "MAP" else t
    return inner is not None and inner.root == "BLOB"


def _managed(schema: Schema, options: Options) -> list[Field]:
    """BLOB columns whose bytes lie in files of their own."""
    inline = {n for key in _BLOB_OPTIONS[1:] for n in _listed(options, key)}
    return [f for f in schema.fields if is_blob_file(f.type) and f.name not in inline]


def _check_blobs(name: str, schema: Schema, options: Options) -> None:
    for f in schema.fields:
        shared = options.get(f"fields.{f.name}.map.storage-layout") == "shared-shredding"
        if not shared and not is_blob_file(f.type) and _has(f.type, "BLOB"):
            raise BadRequest(
                f"{name}: column '{f.name}' holds a BLOB inside {f.type}", hint="take BLOB, ARRAY<BLOB> or MAP<X, BLOB>"
            )
    for key in _BLOB_OPTIONS:
        for n in _listed(options, key):
            fits = n in schema.names and (
                is_blob_file(schema.field(n).type) if key == "blob-field" else schema.field(n).type.root == "BLOB"
            )
            if not fits:
                raise BadRequest(f"{name}: '{key}' names '{n}', which is no BLOB column", hint=near(n, schema.names))
    both = set(_listed(options, "blob-view-field")) & set(_listed(options, "blob-descriptor-field"))
    if both:
        raise BadRequest(
            f"{name}: '{min(both)}' is in 'blob-view-field' and in 'blob-descriptor-field'", hint="take one"
        )
    blobs = [f.name for f in schema.fields if is_blob_file(f.type)]
    if blobs:
        if not schema.primary_keys and not options.data_evolution:
            raise BadRequest(
                f"{name}: BLOB column '{blobs[0]}' needs 'data-evolution.enabled' = 'true'",
                hint="set it, with 'row-tracking.enabled'",
            )
        if len(blobs) == len(schema.fields):
            raise BadRequest(f"{name}: a table needs a column that is no BLOB", hint="add a key or a name")
        for n in blobs:
            if n in schema.partition_keys:
                raise BadRequest(f"{name}: partition column '{n}' is a BLOB", hint="take another column")
    if schema.primary_keys and (managed := _managed(schema, options)):
        _check_key_blobs(name, schema, options, [f.name for f in managed])


def _check_key_blobs(name: str, schema: Schema, options: Options, blobs: Sequence[str]) -> None:
    for what, columns in (
        ("primary key", schema.primary_keys),
        ("bucket key", options.bucket_key),
        ("sequence field", options.sequence_field),
    ):
        for n in blobs:
            if n in columns:
                raise BadRequest(f"{name}: {what} column '{n}' is a BLOB", hint="take another column")
    say = f"{name}: a primary-key table with BLOB column '{blobs[0]}'"
    for wrong, why in (
        (options.merge_engine != "deduplicate", "has merge-engine 'deduplicate'"),
        (options.changelog_producer != "none", "has changelog-producer 'none'"),
        (options.is_set("data-file.external-paths"), "does not go with 'data-file.external-paths'"),
        (bool(options.get("pk-clustering-override")), "does not go with 'pk-clustering-override'"),
    ):
        if wrong:
            raise BadRequest(f"{say} {why}", hint="'blob-descriptor-field' keeps references instead")


def _check_vectors(name: str, schema: Schema, options: Options) -> None:
    for n in _listed(options, "vector-field"):
        if n not in schema.names:
            raise BadRequest(f"{name}: 'vector-field' names '{n}', which is no column", hint=near(n, schema.names))
        if schema.field(n).type.root != "VECTOR":
            raise BadRequest(
                f"{name}: 'vector-field' names '{n}', which is {schema.field(n).type}", hint="take a VECTOR"
            )
    if not options.is_set("vector.file.format"):
        return
    vectors = [f.name for f in schema.fields if f.type.root == "VECTOR"]
    for wrong, why in (
        (len(vectors) == len(schema.fields), "needs a column that is no VECTOR"),
        (any(v in schema.partition_keys for v in vectors), "does not take a VECTOR as partition column"),
        (not options.data_evolution, "needs 'data-evolution.enabled' = 'true'"),
    ):
        if wrong:
            raise BadRequest(f"{name}: a table with 'vector.file.format' {why}")


# ---- formats


def _formats(options: Options, unused: bool = False) -> Iterator[tuple[str, str]]:
    """(option, format in lower case) of every format that files of rows may have; `unused` ones too."""
    yield "file.format", options.file_format.lower()
    for level, value in _per_level(options, "file.format.per.level").items():
        yield f"file.format.per.level' level '{level}", value.lower()
    changelog = _text(options, "changelog-file.format")
    if changelog and (unused or options.changelog_producer != "none"):
        yield "changelog-file.format", changelog.lower()


def _check_formats(name: str, schema: Schema, options: Options) -> None:
    for level in _per_level(options, "file.format.per.level"):
        if not level.isdecimal():
            raise BadRequest(
                f"{name}: 'file.format.per.level': '{level}' is no level", hint="write it as '0:avro,5:orc'"
            )
    manifests = str(options.get("manifest.format")).lower()
    if manifests not in _MANIFESTS:
        raise BadRequest(f"{name}: 'manifest.format' = '{manifests}'", hint="take " + ", ".join(_MANIFESTS))
    own = {f.name for f in _managed(schema, options)}
    if vectors := _text(options, "vector.file.format"):
        apart = [f for f in schema.fields if f.type.root == "VECTOR"]
        own |= {f.name for f in apart}
        _check_format(name, "vector.file.format", vectors.lower(), apart)
    for option, form in _formats(options):
        _check_format(name, option, form, [f for f in schema.fields if f.name not in own])


def _check_format(name: str, option: str, form: str, fields: Sequence[Field]) -> None:
    if form not in _FORMATS:
        raise BadRequest(f"{name}: '{option}': no format '{form}'", hint=near(form, _FORMATS))
    if form in ("blob", "text") and (len(fields) != 1 or str(fields[0].type) not in _SINGLE[form]):
        raise BadRequest(f"{name}: '{option}' = '{form}' takes one {form.upper()} column", hint="take another format")
    takes = _TAKES.get(form)
    for f in fields:
        if takes is not None and (wrong := takes(f.type)):
            raise BadRequest(f"{name}: '{option}' = '{form}' does not take column '{f.name}': {wrong}", hint=_ELSE)


_ELSE = "take another format, or another type"


def _avro(t: DataType) -> str | None:
    for i in inside(t):
        if i.is_timestamp and (i.precision or 0) > 6:
            return f"{i} has more than 6 digits"
        if i.root == "TIME" and (i.precision or 0) > 3:
            return f"{i} has more than 3 digits"
        if i.root == "VARIANT":
            return "it holds a VARIANT"
    return None


def _orc(t: DataType) -> str | None:
    return next((f"it holds a {r}" for r in ("VECTOR", "VARIANT") if _has(t, r)), None)


def _csv(t: DataType) -> str | None:
    return f"it is a {t.root}" if t.is_nested or t.root == "BLOB" else None


def _json(t: DataType) -> str | None:
    return f"it is a {t.root}" if t.root in ("MULTISET", "VARIANT", "BLOB") else None


_TAKES: dict[str, Callable[[DataType], str | None]] = {"avro": _avro, "orc": _orc, "csv": _csv, "json": _json}


def _check_compressions(name: str, options: Options) -> None:
    """Java asks this at the first write only."""
    own = options.raw.get("file.compression", "zstd")
    base, levels = options.file_format.lower(), _per_level(options, "file.format.per.level")
    codecs, modes = _per_level(options, "file.compression.per.level"), lookup("metadata.stats-mode")
    for key in ("file.format.per.level", "file.compression.per.level", "metadata.stats-mode.per.level"):
        for level, value in _per_level(options, key).items():
            if not level.isdecimal():
                raise BadRequest(f"{name}: '{key}': '{level}' is no level", hint="write it as '0:a,5:b'")
            if key.startswith("metadata") and modes is not None:
                modes.parse(value, key)
    for level in {*levels, *codecs}:
        form, codec = levels.get(level, base).lower(), codecs.get(level, own)
        _check_codec(name, "file.compression", form, codec)
    _check_codec(name, "file.compression", base, own)
    if options.changelog_producer != "none":
        form = (_text(options, "changelog-file.format") or base).lower()
        _check_codec(name, "changelog-file.compression", form, _text(options, "changelog-file.compression") or own)
    form = str(options.get("manifest.format")).lower()
    _check_codec(name, "manifest.compression", form, options.raw.get("manifest.compression", "zstd"))


def _check_codec(name: str, option: str, form: str, codec: str) -> None:
    known = _CODECS.get(form)
    exact = form == "avro" and codec.lower() != "zstd"  # Avro's own names are in lower case
    if known is not None and (codec if exact else codec.lower()) not in known:
        raise BadRequest(
            f"{name}: '{option}' = '{codec}': {form} has no such compression", hint="it has " + ", ".join(known)
        )


# ---- layouts of maps


def _check_layouts(name: str, schema: Schema, options: Options) -> None:
    shared = []
    for key in options.raw:
        if not (key.startswith("fields.") and key.endswith(".map.storage-layout")):
            continue
        column = key[len("fields.") : -len(".map.storage-layout")]
        if column not in schema.names:
            raise BadRequest(f"{name}: '{key}': column '{column}' does not exist", hint=near(column, schema.names))
        t = schema.field(column).type
        if t.root != "MAP" or t.key is None or t.value is None:
            raise BadRequest(f"{name}: '{key}': column '{column}' is {t}, not a MAP", hint=f"leave '{key}' out")
        if options.get(key) != "shared-shredding":
            continue
        if t.key.root != "VARCHAR" or t.key.nullable:
            raise BadRequest(f"{name}: '{key}': the keys of '{column}' are {t.key}, not STRING NOT NULL")
        shared.append((column, key, t.value))
        most = options.get(f"fields.{column}.map.shared-shredding.max-columns")
        if most is not None and int(str(most)) < 1:
            raise BadRequest(f"{name}: 'fields.{column}.map.shared-shredding.max-columns' must be at least 1")
    if not shared:
        return
    say = f"{name}: '{shared[0][1]}' = 'shared-shredding'"
    _check_shared_files(say, options)
    for f in schema.fields:
        for root in ("VARIANT", "MULTISET"):
            if _has(f.type, root):
                raise BadRequest(f"{say} does not go with {root} column '{f.name}'")
    for column, _, value in shared:
        for root in ("BLOB", "VECTOR"):
            if _has(value, root):
                raise BadRequest(f"{say}: the values of '{column}' hold a {root}")
    if options.bucket == -2:
        raise BadRequest(f"{say} does not go with postponed buckets")


def _check_shared_files(say: str, options: Options) -> None:
    for option, form in _formats(options, unused=True):
        if form not in ("parquet", "orc"):
            raise BadRequest(f"{say} takes parquet or orc, and '{option}' is '{form}'")
    codecs = {"file.compression": options.file_compression, "changelog-file.compression": None}
    codecs["changelog-file.compression"] = _text(options, "changelog-file.compression")
    codecs |= {f"level {k}": v for k, v in _per_level(options, "file.compression.per.level").items()}
    for option, codec in codecs.items():
        if codec and codec.lower() not in ("none", "lz4", "zstd"):
            raise BadRequest(f"{say} takes compression none, lz4 or zstd, and '{option}' is '{codec}'")


# ---- file indexes


def _check_indexes(name: str, schema: Schema, options: Options) -> None:
    declared: set[tuple[str, str]] = set()
    for key, value in options.raw.items():
        if not (key.startswith("file-index.") and key.endswith(".columns")):
            continue
        kind = key[len("file-index.") : -len(".columns")]
        for column in value.rstrip(",").split(","):
            if not column.strip():
                raise BadRequest(f"{name}: '{key}' names an empty column", hint="write it as 'a,b'")
            declared |= _check_index(name, schema, options, key, kind, column.strip())
    for key in options.raw:
        parts = key.removeprefix("file-index.").split(".")
        if key.startswith("file-index.") and len(parts) == 3 and (parts[0], parts[1]) not in declared:
            raise BadRequest(
                f"{name}: '{key}': column '{parts[1]}' has no such index",
                hint=f"name it in 'file-index.{parts[0]}.columns'",
            )


def _check_index(name: str, schema: Schema, options: Options, key: str, kind: str, column: str) -> set[tuple[str, str]]:
    """The (index, column) pairs that options may go to."""
    top, bracket, _ = column.partition("[")
    nested = bool(bracket) and column.endswith("]")
    top = top if nested else column
    if top not in schema.names:
        raise BadRequest(f"{name}: '{key}': column '{top}' does not exist", hint=near(top, schema.names))
    t = schema.field(top).type
    if nested:
        if t.root != "MAP" or t.key is None or t.value is None or t.key.root not in ("CHAR", "VARCHAR"):
            raise BadRequest(f"{name}: '{key}': '{column}' needs a MAP with text keys, and '{top}' is {t}")
        if options.get(f"fields.{top}.map.storage-layout") == "shared-shredding":
            raise BadRequest(f"{name}: '{key}': '{top}' is stored with shared shredding, which has no such index")
        t = t.value
    takes = _INDEXES.get(kind)
    if takes is None:
        raise BadRequest(f"{name}: '{key}': no index '{kind}'", hint=near(kind, _INDEXES))
    if kind == "range-bitmap" and t.is_timestamp and (t.precision or 0) > 6:
        raise BadRequest(f"{name}: '{key}': index '{kind}' takes timestamps of up to 6 digits, and '{column}' is {t}")
    if t.root not in takes:
        raise BadRequest(f"{name}: '{key}': index '{kind}' does not take '{column}', which is {t}", hint="leave it out")
    return {(kind, column), (kind, top)}
