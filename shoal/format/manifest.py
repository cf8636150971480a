# SPDX-License-Identifier: Apache-2.0
"""Manifest lists and manifests: which files a snapshot adds and removes, as columns.

Agrees with: ManifestFileMeta, ManifestEntry, DataFileMeta serializers (2.0.0). Invariant: readers resolve fields
by name, so files of any version since 0.4 decode; what is written equals Java's layout field by field.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt, Unsupported
from shoal.format import avro, columnar_manifest
from shoal.format.columnar_manifest import columns, is_avro
from shoal.format.datafile import DataFile, Entry, Stats
from shoal.format.row import Value, decode, encode, order_key
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2

_STATS = (
    '{{"type":"record","name":"{0}","fields":[{{"name":"_MIN_VALUES","type":"bytes"}},{{"name":"_MAX_VALUES","type":"bytes"}},'
    '{{"name":"_NULL_COUNTS","type":["null",{{"type":"array","items":["null","long"]}}],"default":null}}]}}'
)


def _field(name: str, kind: str, nullable: bool = False) -> str:
    kind = kind if kind.startswith("{") else f'"{kind}"'
    return (
        f'{{"name":"{name}","type":["null",{kind}],"default":null}}'
        if nullable
        else f'{{"name":"{name}","type":{kind}}}'
    )


def _record(name: str, fields: Sequence[str], namespace: str = "") -> str:
    space = f'"namespace":"{namespace}",' if namespace else ""
    return f'{{"type":"record","name":"{name}",{space}"fields":[{",".join(fields)}]}}'


_NAMESPACE = "org.apache.paimon.avro.generated"
_STRINGS = '{"type":"array","items":"string"}'

LIST_SCHEMA = _record(
    "record",
    [
        _field("_VERSION", "int"), _field("_FILE_NAME", "string"), _field("_FILE_SIZE", "long"),
        _field("_NUM_ADDED_FILES", "long"), _field("_NUM_DELETED_FILES", "long"),
        _field("_PARTITION_STATS", _STATS.format("record__PARTITION_STATS")), _field("_SCHEMA_ID", "long"),
        _field("_MIN_BUCKET", "int", True), _field("_MAX_BUCKET", "int", True), _field("_MIN_LEVEL", "int", True),
        _field("_MAX_LEVEL", "int", True), _field("_MIN_ROW_ID", "long", True), _field("_MAX_ROW_ID", "long", True),
    ],
    _NAMESPACE,
)  # fmt: skip

_FILE_SCHEMA = _record(
    "record__FILE",
    [
        _field("_FILE_NAME", "string"), _field("_FILE_SIZE", "long"), _field("_ROW_COUNT", "long"),
        _field("_MIN_KEY", "bytes"), _field("_MAX_KEY", "bytes"),
        _field("_KEY_STATS", _STATS.format("record__FILE__KEY_STATS")),
        _field("_VALUE_STATS", _STATS.format("record__FILE__VALUE_STATS")),
        _field("_MIN_SEQUENCE_NUMBER", "long"), _field("_MAX_SEQUENCE_NUMBER", "long"), _field("_SCHEMA_ID", "long"),
        _field("_LEVEL", "int"), _field("_EXTRA_FILES", _STRINGS),
        _field("_CREATION_TIME", '{"type":"long","logicalType":"timestamp-millis"}', True),
        _field("_DELETE_ROW_COUNT", "long", True), _field("_EMBEDDED_FILE_INDEX", "bytes", True),
        _field("_FILE_SOURCE", "int", True), _field("_VALUE_STATS_COLS", _STRINGS, True),
        _field("_EXTERNAL_PATH", "string", True), _field("_FIRST_ROW_ID", "long", True),
        _field("_WRITE_COLS", _STRINGS, True),
    ],
)  # fmt: skip

ENTRY_SCHEMA = _record(
    "record",
    [
        _field("_VERSION", "int"), _field("_KIND", "int"), _field("_PARTITION", "bytes"), _field("_BUCKET", "int"),
        _field("_TOTAL_BUCKETS", "int"), _field("_FILE", _FILE_SCHEMA),
    ],
    _NAMESPACE,
)  # fmt: skip

_CODECS = {
    "zstd": "zstandard",
    "zstandard": "zstandard",
    "null": "null",
    "none": "null",
    "snappy": "snappy",
    "deflate": "deflate",
    "bzip2": "bzip2",
    "xz": "xz",
}


def codec(compression: str) -> str:
    """Avro's name of a `manifest.compression` value."""
    if compression.lower() not in _CODECS:
        raise Unsupported(
            f"manifest.compression '{compression}' is not an Avro codec", hint="use zstd, snappy, deflate or null"
        )
    return _CODECS[compression.lower()]


def check(compression: str, form: str) -> None:
    """`Unsupported` when this `manifest.compression` is none of the format's, or the format is unknown."""
    if form == "avro":
        codec(compression)
    else:
        columnar_manifest.check(form, compression)


def file_of(schema: str, records: Sequence[bytes], compression: str, form: str) -> bytes:
    """A file of Avro records in a `manifest.format`, with a `manifest.compression` that this format has."""
    if form == "avro":
        return avro.write_container(schema, records, codec(compression))
    return columnar_manifest.write(columnar_manifest.of_records(schema, records), form, compression)


# ---- manifest lists --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestMeta:
    """One row of a manifest list. Sizes in bytes; partition bounds as BinaryRows with arity prefix."""

    file_name: str
    file_size: int
    added: int
    deleted: int
    partition_stats: Stats
    schema_id: int
    min_bucket: int | None = None
    max_bucket: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    min_row_id: int | None = None
    max_row_id: int | None = None


def decode_list(data: bytes, path: str) -> tuple[ManifestMeta, ...]:
    """The manifests of a list, in order."""
    n, c = avro.decode(data, path) if is_avro(data) else columns(data, path, LIST_SCHEMA)
    _check_version(c, path)

    def col(name: str) -> list[Any]:
        if name not in c and n and not name.startswith(("_MIN_", "_MAX_")):
            raise Corrupt(f"{path}: entries have no field {name}")
        return c.get(name) or [None] * n

    rows = zip(
        col("_FILE_NAME"), col("_FILE_SIZE"), col("_NUM_ADDED_FILES"), col("_NUM_DELETED_FILES"),
        col("_PARTITION_STATS._MIN_VALUES"), col("_PARTITION_STATS._MAX_VALUES"), col("_PARTITION_STATS._NULL_COUNTS"),
        col("_SCHEMA_ID"), col("_MIN_BUCKET"), col("_MAX_BUCKET"), col("_MIN_LEVEL"), col("_MAX_LEVEL"),
        col("_MIN_ROW_ID"), col("_MAX_ROW_ID"),
    )  # fmt: skip
    return tuple(ManifestMeta(_text(r[0], path), r[1], r[2], r[3], Stats(r[4], r[5], r[6]), *r[7:]) for r in rows)


def encode_list(metas: Sequence[ManifestMeta], compression: str, form: str = "avro") -> bytes:
    """A manifest list file. An empty one is a file too."""
    rows = [
        (
            VERSION, m.file_name, m.file_size, m.added, m.deleted, m.partition_stats.min_values,
            m.partition_stats.max_values, m.partition_stats.encoded_null_counts, m.schema_id, m.min_bucket,
            m.max_bucket, m.min_level, m.max_level, m.min_row_id, m.max_row_id,
        )
        for m in metas
    ]  # fmt: skip
    return file_of(LIST_SCHEMA, avro.encode_tuples(LIST_SCHEMA, rows), compression, form)


def _check_version(columns: avro.Columns, path: str) -> None:
    versions = set(columns.get("_VERSION", [VERSION]))
    if versions and versions != {VERSION}:
        hint = "upgrade shoal"
        if min(versions) < VERSION:
            hint = "version 1 was written before Paimon 0.4; Java does not read it either: write the table again"
        raise Corrupt(f"{path}: manifest version {sorted(versions)} where {VERSION} is read", hint=hint)


def _text(raw: bytes | None, path: str) -> str:
    if raw is None:
        raise Corrupt(f"{path}: an entry has no file name")
    try:
        return raw.decode()
    except UnicodeDecodeError as err:
        raise Corrupt(f"{path}: a name is not UTF-8", hint="the file is damaged") from err


# ---- manifests -------------------------------------------------------------------------------------------

# Column of the entry table, its Avro path, its Arrow type. Null counts stay encoded (see avro._RAW_ARRAYS).
_COLUMNS = (
    ("kind", "_KIND", "int8"), ("partition", "_PARTITION", "binary"), ("bucket", "_BUCKET", "int32"),
    ("total_buckets", "_TOTAL_BUCKETS", "int32"), ("file_name", "_FILE._FILE_NAME", "string"),
    ("file_size", "_FILE._FILE_SIZE", "int64"), ("row_count", "_FILE._ROW_COUNT", "int64"),
    ("min_key", "_FILE._MIN_KEY", "binary"), ("max_key", "_FILE._MAX_KEY", "binary"),
    ("key_min", "_FILE._KEY_STATS._MIN_VALUES", "binary"), ("key_max", "_FILE._KEY_STATS._MAX_VALUES", "binary"),
    ("key_nulls", "_FILE._KEY_STATS._NULL_COUNTS", "binary"), ("value_min", "_FILE._VALUE_STATS._MIN_VALUES", "binary"),
    ("value_max", "_FILE._VALUE_STATS._MAX_VALUES", "binary"),
    ("value_nulls", "_FILE._VALUE_STATS._NULL_COUNTS", "binary"),
    ("min_sequence", "_FILE._MIN_SEQUENCE_NUMBER", "int64"), ("max_sequence", "_FILE._MAX_SEQUENCE_NUMBER", "int64"),
    ("schema_id", "_FILE._SCHEMA_ID", "int64"), ("level", "_FILE._LEVEL", "int32"),
    ("extra_files", "_FILE._EXTRA_FILES", "strings"), ("creation_ms", "_FILE._CREATION_TIME", "int64"),
    ("delete_row_count", "_FILE._DELETE_ROW_COUNT", "int64"),
    ("embedded_index", "_FILE._EMBEDDED_FILE_INDEX", "binary"),
    ("file_source", "_FILE._FILE_SOURCE", "int8"), ("value_stats_cols", "_FILE._VALUE_STATS_COLS", "strings"),
    ("external_path", "_FILE._EXTERNAL_PATH", "string"), ("first_row_id", "_FILE._FIRST_ROW_ID", "int64"),
    ("write_cols", "_FILE._WRITE_COLS", "strings"),
)  # fmt: skip
_WANTED = frozenset([c[1] for c in _COLUMNS] + ["_VERSION"])
# Fields that every version has; the others may be absent and read as null.
_REQUIRED_PATHS = frozenset(c[1] for c in _COLUMNS[: [c[0] for c in _COLUMNS].index("extra_files") + 1]) | {"_VERSION"}


@cache
def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.string()) if kind == "strings" else getattr(pa, kind)()


@cache
def entry_schema() -> pa.Schema:
    """The Arrow schema of an entry table: one row per manifest entry, stats as BinaryRows."""
    import pyarrow as pa

    return pa.schema([(name, _arrow_type(kind)) for name, _, kind in _COLUMNS])


def decode_entries(data: bytes, path: str) -> pa.RecordBatch:
    """All entries of a manifest as an entry table (see `entry_schema`)."""
    return decode_many([(data, path)])[1][0]


def decode_many(
    files: Sequence[tuple[bytes, str]], partitions: Mapping[bytes, bool] | None = None
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """(all entries in few tables, the entry table of each manifest).

    Both share their Arrow buffers: many small manifests cost little more than one large one. With `partitions`, entries
    of those that it says no to are left out where that saves time.
    """
    import pyarrow as pa

    def apart() -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        each = [decode_many([file], partitions)[1][0] for file in files]
        return each, each

    found: avro.Columns = {}
    try:
        with _collector_paused():
            if all(is_avro(data) for data, _ in files):
                only = None if partitions is None else ("_PARTITION", partitions)
                counts = avro.decode_onto(found, files, _WANTED, only)
            elif len(files) > 1:
                return apart()
            else:
                n, found = columns(*files[0], ENTRY_SCHEMA)
                counts = [n]
    except avro.OtherColumns:  # several versions wrote them
        return apart()
    if any(counts):
        # what is wrong with one file is found once for all; then each by itself says which one it is
        missing = _REQUIRED_PATHS - found.keys()
        if len(files) > 1 and (missing or set(found["_VERSION"]) != {VERSION}):
            return apart()
        for name in sorted(missing):
            raise Corrupt(f"{files[0][1]}: entries have no field {name}")
        _check_version(found, files[0][1])
    total = sum(counts)
    arrays = []
    for _, source, kind in _COLUMNS:
        try:
            arrays.append(pa.array(found.get(source) or [None] * total, _arrow_type(kind)))
        except (pa.ArrowException, OverflowError, UnicodeDecodeError) as err:
            if len(files) > 1:
                return apart()  # the one at fault names itself
            raise Corrupt(
                f"{files[0][1]}: field {source} holds a value that does not fit ({err})", hint="it is damaged"
            ) from err
    whole = pa.RecordBatch.from_arrays(arrays, schema=entry_schema())
    starts = accumulate(counts, initial=0)
    return [whole], [whole.slice(at, n) for at, n in zip(starts, counts)]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic garbage collector, which would walk 100,000 new objects that have no cycles."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def encode_entries(entries: Iterable[Entry]) -> list[bytes]:
    """Each entry's Avro bytes; `write_entries` makes a file of them."""
    rows = []
    for e in entries:
        f, k, v = e.file, e.file.key_stats, e.file.value_stats
        rows.append((
            VERSION, e.kind, e.partition, e.bucket, e.total_buckets, f.file_name, f.file_size, f.row_count, f.min_key,
            f.max_key, k.min_values, k.max_values, k.encoded_null_counts, v.min_values, v.max_values,
            v.encoded_null_counts,
            f.min_sequence, f.max_sequence, f.schema_id, f.level, f.extra_files, f.creation_ms, f.delete_row_count,
            f.embedded_index, f.file_source, f.value_stats_cols, f.external_path, f.first_row_id, f.write_cols,
        ))  # fmt: skip
    return avro.encode_tuples(ENTRY_SCHEMA, rows)


def write_entries(encoded: Sequence[bytes], compression: str, form: str = "avro") -> bytes:
    """A manifest file of encoded entries in a `manifest.format`."""
    return file_of(ENTRY_SCHEMA, encoded, compression, form)


_NAMES = tuple(c[0] for c in _COLUMNS)


def entries_of(table: pa.RecordBatch | pa.Table) -> list[Entry]:
    """Entry objects of an entry table. For the rows that survived planning, not for whole tables."""
    (kinds, partitions, buckets, totals, names, sizes, rows, min_keys, max_keys, k0, k1, kn, v0, v1, vn, s0, s1,
     schemas, levels, extra, created, deletes, index, source, covered, external, row_ids, write_cols) = (
        table.column(n).to_pylist() for n in _NAMES
    )  # fmt: skip
    files = map(
        DataFile, names, sizes, rows, min_keys, max_keys, map(Stats, k0, k1, kn), map(Stats, v0, v1, vn), s0, s1,
        schemas, levels, map(_some, extra), created, deletes, index, source, map(_tuple, covered), external, row_ids,
        map(_tuple, write_cols),
    )  # fmt: skip
    with _collector_paused():
        return list(map(Entry, kinds, partitions, buckets, totals, files))


def _some(values: list[str] | None) -> tuple[str, ...]:
    return tuple(values) if values else ()


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def partition_stats(partitions: Sequence[bytes], types: Sequence[DataType]) -> Stats:
    """Bounds over partition rows; nulls are counted and do not bound."""
    rows = {p: decode(types, p, "partition") for p in set(partitions)}
    lows: list[Value] = []
    highs: list[Value] = []
    nulls: list[int | None] = []
    for i, t in enumerate(types):
        values = [r[i] for r in rows.values() if r[i] is not None]
        lows.append(min(values, key=lambda v: order_key(t, v), default=None))
        highs.append(max(values, key=lambda v: order_key(t, v), default=None))
        nulls.append(sum(rows[p][i] is None for p in partitions) if len(values) < len(rows) else 0)
    return Stats.of(encode(types, lows), encode(types, highs), tuple(nulls))
