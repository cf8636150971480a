# SPDX-License-Identifier: Apache-2.0
"""Options that exclude or need each other, or name columns.

Agrees with: SchemaValidation (2.0.0), one function here for each of its parts. Invariant: every refusal names the
option that is wrong. Refused besides, because Java takes it and fails at the first write: `record-level.expire-time`
without its field, a `rowkind.field` that is no text, aggregate functions on columns they cannot take, fewer than two
levels, a write buffer of less than three pages, `clustering.columns` that are no columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.errors import BadRequest, MissingExtra, near
from shoal.format.schema import Schema
from shoal.lsm.aggregation import function_of
from shoal.lsm.engines import engine_of
from shoal.options import Options

_UNORDERED = ("BOOLEAN", "ARRAY", "MAP", "ROW", "MULTISET", "VARIANT", "BLOB", "VECTOR")
_DEFAULT_FUNCTION = "default-aggregate-function"


def check(name: str, schema: Schema, options: Options) -> None:
    """Every check in Java's order; the first that fails is told."""
    for one in _CHECKS:
        one(name, schema, options)


def _refuse(wrong: bool, message: str, hint: str | None = None) -> None:
    if wrong:
        raise BadRequest(message, hint=hint)


def _column(name: str, schema: Schema, column: str, option: str) -> None:
    if column not in schema.names:
        raise BadRequest(f"{name}: '{option}': column '{column}' does not exist", hint=near(column, schema.names))


def _names(options: Options, key: str) -> tuple[str, ...]:
    """The columns that an option lists."""
    value = options.get(key)
    return tuple(n.strip() for n in ((value,) if isinstance(value, str) else value or ()) if n.strip())  # type: ignore[union-attr]


# ---- where reads start

_TIMES = ("scan.timestamp-millis", "scan.timestamp")
_SPANS = ("incremental-between", "incremental-between-timestamp", "incremental-to-auto-tag")
_FILE_TIME = "scan.file-creation-time-millis"
_SNAPSHOTS = ("scan.snapshot-id", "scan.tag-name")

# mode: (exactly one of these must be set, none of these may be)
_STARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "from-timestamp": (_TIMES, (*_SNAPSHOTS, _FILE_TIME, *_SPANS)),
    "from-snapshot": ((*_SNAPSHOTS, "scan.watermark"), (*_TIMES, _FILE_TIME, *_SPANS)),
    "incremental": (_SPANS, (*_SNAPSHOTS, *_TIMES, _FILE_TIME)),
    "from-snapshot-full": (("scan.snapshot-id",), (*_TIMES, _FILE_TIME, "scan.tag-name", *_SPANS)),
    "from-file-creation-time": ((_FILE_TIME,), (*_SNAPSHOTS, "scan.timestamp-millis", *_SPANS)),
}


def _start(options: Options) -> str:
    """The start of reads, where the mode leaves it to the other options."""
    mode = options.scan_mode
    if mode == "full":
        return "latest-full"
    if mode != "default":
        return mode
    for start, keys in (
        ("from-timestamp", _TIMES),
        ("from-snapshot", (*_SNAPSHOTS, "scan.watermark", "scan.version")),
        ("from-file-creation-time", (_FILE_TIME,)),
        ("from-creation-timestamp", ("scan.creation-time-millis",)),
        ("incremental", _SPANS[:2]),
    ):
        if any(options.is_set(k) for k in keys):
            return start
    return "latest-full"


def _scan_start(name: str, _: Schema, options: Options) -> None:
    start = _start(options)
    one, none = _STARTS.get(start, ((), (*_TIMES, _FILE_TIME, *_SNAPSHOTS, *_SPANS)))
    have = [k for k in one if options.is_set(k)]
    _refuse(
        bool(one) and len(have) != 1,
        f"{name}: reads that start '{start}' need exactly one of {', '.join(one)}; {len(have)} are set",
        "options of one read belong to the read, not to the table",
    )
    for k in none:
        _refuse(options.is_set(k), f"{name}: '{k}' does not go with reads that start '{start}'", f"leave '{k}' out")


# ---- columns that options name


def _prefixed(name: str, schema: Schema, options: Options) -> None:
    for key in options.raw:
        if not key.startswith("fields."):
            continue
        parts = key.split(".")
        columns = parts[1].split(",")
        for c in columns:
            if c != _DEFAULT_FUNCTION:
                _column(name, schema, c, key)
        if len(parts) > 3 and len(columns) == 1 and schema.field(columns[0]).type.root == "ROW":
            raise BadRequest(
                f"{name}: '{key}': options go to columns of the table, not to members of a ROW",
                hint=f"the column is '{columns[0]}'",
            )


def _sequence(name: str, schema: Schema, options: Options) -> None:
    text = options.raw.get("sequence.field")
    fields = () if text is None else tuple(f.strip() for f in text.split(","))
    for f in fields:
        _column(name, schema, f, "sequence.field")
        own = f"fields.{f}.aggregate-function"
        _refuse(own in options.raw, f"{name}: '{own}': '{f}' is a sequence field and has no function", "leave it out")
        _refuse(fields.count(f) > 1, f"{name}: 'sequence.field' names '{f}' twice")
        root = schema.field(f).type.root
        _refuse(root in ("VARIANT", "BLOB"), f"{name}: 'sequence.field' = '{f}' is a {root}, which has no order")
    if not fields:
        return
    _refuse(
        options.merge_engine == "first-row",
        f"{name}: 'sequence.field' does not go with merge-engine 'first-row'",
        "the first row wins whatever its sequence",
    )
    outside = [p for p in schema.partition_keys if schema.primary_keys and p not in schema.primary_keys]
    _refuse(
        bool(outside),
        f"{name}: 'sequence.field' needs all partition columns in the primary key, and '{''.join(outside[:1])}' is not",
        "add it to the primary key",
    )


def _engine(name: str, schema: Schema, options: Options) -> None:
    if not schema.primary_keys:
        return
    try:
        engine = engine_of(schema, options)
        if engine is not None:
            engine.needs(schema.names)
    except BadRequest as err:
        raise BadRequest(f"{name}: {err.message}", hint=err.hint) from err
    except MissingExtra:
        return  # the schema is right, only this Python cannot work with it


def _comparable(name: str, schema: Schema, options: Options) -> None:
    """Java finds out at the first merge of two rows."""
    if not schema.primary_keys or options.merge_engine not in ("aggregation", "partial-update"):
        return
    for f in schema.fields:
        function = function_of(f.name, options)
        own = f.name in schema.primary_keys or f.name in options.sequence_field
        _refuse(
            function in ("min", "max") and f.type.root in _UNORDERED and not own,
            f"{name}: column '{f.name}': aggregate function '{function}' cannot compare {f.type}",
            "take last_non_null_value",
        )


def _levels(name: str, schema: Schema, options: Options) -> None:
    if not schema.primary_keys:
        return
    _refuse(options.num_levels < 2, f"{name}: a table needs 2 levels, not {options.num_levels}", "raise 'num-levels'")
    page = int(options.get("page-size"))  # type: ignore[arg-type]
    _refuse(
        options.write_buffer_size < 3 * page,
        f"{name}: 'write-buffer-size' holds {options.write_buffer_size} bytes, less than 3 pages of {page}",
        "raise it, or lower 'page-size'",
    )


def _clustering_columns(name: str, schema: Schema, options: Options) -> None:
    for c in _names(options, "clustering.columns"):
        _column(name, schema, c, "clustering.columns")


def _row_kind(name: str, schema: Schema, options: Options) -> None:
    field = options.raw.get("rowkind.field")
    if field is None:
        return
    _column(name, schema, field, "rowkind.field")
    t = schema.field(field).type
    _refuse(t.root not in ("CHAR", "VARCHAR"), f"{name}: 'rowkind.field' = '{field}' is {t}, not text", "take a STRING")


def _record_age(name: str, schema: Schema, options: Options) -> None:
    field = options.raw.get("record-level.time-field")
    if field is None:
        _refuse(
            bool(schema.primary_keys) and options.is_set("record-level.expire-time"),
            f"{name}: 'record-level.expire-time' needs 'record-level.time-field'",
            "name the column that tells a row's age",
        )
        return
    _column(name, schema, field, "record-level.time-field")
    t = schema.field(field).type
    _refuse(
        t.root not in ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ"),
        f"{name}: 'record-level.time-field' = '{field}' is {t}",
        "take an INT, BIGINT or TIMESTAMP column",
    )


# ---- changelogs, snapshots, deletion vectors


def _changelog(name: str, schema: Schema, options: Options) -> None:
    producer, key = options.changelog_producer, bool(schema.primary_keys)
    overwrites = bool(options.get("streaming-read-overwrite"))
    _refuse(not key and producer != "none", f"{name}: 'changelog-producer' needs a primary key", "leave it out")
    _refuse(
        overwrites and producer in ("full-compaction", "lookup"),
        f"{name}: 'streaming-read-overwrite' reads changes twice with changelog-producer '{producer}'",
        "leave one of them out",
    )
    _refuse(
        options.is_set("full-compaction.delta-commits") and producer == "lookup",
        f"{name}: 'full-compaction.delta-commits' does not go with changelog-producer 'lookup'",
        "take changelog-producer 'full-compaction', or leave it out",
    )
    _refuse(
        overwrites and not key,
        f"{name}: 'streaming-read-overwrite' needs a primary key",
        "'streaming-read-append-overwrite' is for tables without",
    )
    _refuse(
        options.merge_engine == "first-row" and producer not in ("none", "lookup"),
        f"{name}: merge-engine 'first-row' has changelog-producer 'none' or 'lookup', not '{producer}'",
        "take 'lookup'",
    )


def _counts(name: str, _: Schema, options: Options) -> None:
    _refuse(int(options.get("target-file-row-num")) < 1, f"{name}: 'target-file-row-num' must be at least 1")  # type: ignore[arg-type]
    kept: dict[tuple[str, str], int] = {}
    for what in ("snapshot", "changelog"):
        for end in ("min", "max"):
            value = options.get(f"{what}.num-retained.{end}")
            kept[what, end] = kept["snapshot", end] if value is None else int(value)  # type: ignore[arg-type]
        low, high = kept[what, "min"], kept[what, "max"]
        _refuse(low < 1, f"{name}: '{what}.num-retained.min' must be at least 1")
        _refuse(
            low > high,
            f"{name}: '{what}.num-retained.min' ({low}) is above '{what}.num-retained.max' ({high})",
            "set both",
        )


def _deletion_vectors(name: str, _: Schema, options: Options) -> None:
    if not options.deletion_vectors:
        return
    _refuse(
        options.changelog_producer not in ("none", "input", "lookup"),
        f"{name}: 'deletion-vectors.enabled' does not go with changelog-producer '{options.changelog_producer}'",
        "take 'none', 'input' or 'lookup'",
    )
    _refuse(
        options.merge_engine == "first-row" and not options.get("pk-clustering-override"),
        f"{name}: 'deletion-vectors.enabled' does not go with merge-engine 'first-row'",
        "first-row never deletes a row",
    )


def _snapshot_ordering(name: str, schema: Schema, options: Options) -> None:
    key = "sequence.snapshot-ordering"
    if not options.get(key):
        return
    _refuse(not schema.primary_keys, f"{name}: '{key}' needs a primary key", "leave it out")
    _refuse(bool(options.sequence_field), f"{name}: '{key}' and 'sequence.field' exclude each other")
    _refuse(not options.write_only, f"{name}: '{key}' needs 'write-only' = 'true'", "compact in a job of its own")


# ---- kinds of tables


def _row_tracking(name: str, schema: Schema, options: Options) -> None:
    if options.row_tracking:
        _refuse(bool(schema.primary_keys), f"{name}: 'row-tracking.enabled' is for tables without a primary key")
        _refuse(options.bucket != -1, f"{name}: 'row-tracking.enabled' needs bucket = -1", "leave 'bucket' out")
    if options.data_evolution:
        _refuse(
            not options.row_tracking,
            f"{name}: 'data-evolution.enabled' needs 'row-tracking.enabled' = 'true'",
            "set both",
        )
        _refuse(
            bool(options.get("clustering.incremental")),
            f"{name}: 'data-evolution.enabled' does not go with 'clustering.incremental'",
        )


def _clustering(name: str, schema: Schema, options: Options) -> None:
    key = "clustering.incremental"
    if not options.get(key):
        return
    _refuse(bool(schema.primary_keys), f"{name}: '{key}' is for tables without a primary key")
    if options.bucket != -1:
        _refuse(
            bool(options.get("bucket-append-ordered")),
            f"{name}: '{key}' with a fixed number of buckets needs 'bucket-append-ordered' = 'false'",
        )
        _refuse(options.deletion_vectors, f"{name}: '{key}' with a fixed number of buckets has no deletion vectors")


def _chain(name: str, schema: Schema, options: Options) -> None:
    if not options.get("chain-table.enabled"):
        return
    say = f"{name}: a chain table ('chain-table.enabled')"
    _refuse(options.get("type") != "table", f"{say} is of type 'table'")
    _refuse(not schema.primary_keys, f"{say} needs a primary key")
    _refuse(not schema.partition_keys, f"{say} needs partitions")
    _refuse(options.bucket < 1, f"{say} needs a fixed number of buckets")
    _refuse(not options.sequence_field, f"{say} needs 'sequence.field'")
    _refuse(options.changelog_producer not in ("none", "input"), f"{say} has changelog-producer 'none' or 'input'")
    _refuse(
        options.deletion_vectors and options.merge_engine != "deduplicate",
        f"{say} has deletion vectors with merge-engine 'deduplicate' only",
    )
    for key in ("partition.timestamp-pattern", "partition.timestamp-formatter"):
        _refuse(options.get(key) is None, f"{say} needs '{key}'")
    _refuse(
        options.get("partition.expiration-time") is not None
        and options.get("partition.expiration-strategy") != "values-time",
        f"{say} expires partitions by 'values-time' only",
    )
    chain = _names(options, "chain-table.chain-partition-keys")
    _refuse(
        bool(chain) and schema.partition_keys[-len(chain) :] != chain,
        f"{name}: 'chain-table.chain-partition-keys' must be the last of the partition columns",
        f"they are {', '.join(schema.partition_keys)}",
    )


def _sequence_numbers(name: str, schema: Schema, options: Options) -> None:
    key = "table-read.sequence-number.enabled"
    _refuse(bool(options.get(key)) and not schema.primary_keys, f"{name}: '{key}' needs a primary key", "leave it out")


def _clustered_key(name: str, _: Schema, options: Options) -> None:
    if not options.get("pk-clustering-override"):
        return
    say, engine = f"{name}: 'pk-clustering-override'", options.merge_engine
    _refuse(not _names(options, "clustering.columns"), f"{say} needs 'clustering.columns'")
    _refuse(not options.deletion_vectors and engine != "first-row", f"{say} needs 'deletion-vectors.enabled' = 'true'")
    _refuse(options.is_set("record-level.expire-time"), f"{say} does not go with 'record-level.expire-time'")
    _refuse(engine not in ("deduplicate", "first-row"), f"{say} does not go with merge-engine '{engine}'")
    _refuse(bool(options.sequence_field), f"{say} does not go with 'sequence.field'")
    producer = options.changelog_producer
    _refuse(producer not in ("none", "input"), f"{say} does not go with changelog-producer '{producer}'")


def _manifest_sort(name: str, schema: Schema, options: Options) -> None:
    if not options.get("manifest-sort.enabled"):
        return
    _refuse(
        not options.data_evolution and not schema.partition_keys,
        f"{name}: 'manifest-sort.enabled' needs partitions",
        "leave it out",
    )
    field = options.raw.get("manifest-sort.partition-field")
    _refuse(
        bool(field) and field not in schema.partition_keys,
        f"{name}: 'manifest-sort.partition-field' = '{field}' is no partition column",
        f"they are {', '.join(schema.partition_keys)}" if schema.partition_keys else "leave it out",
    )


# ---- indexes beside the merge tree

_SORTED = (
    "CHAR", "VARCHAR", "BOOLEAN", "DECIMAL", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME",
    "TIMESTAMP", "TIMESTAMP_LTZ",
)  # fmt: skip
_INDEXES = ("pk-vector", "pk-btree", "pk-bitmap", "pk-full-text")


def _key_indexes(name: str, schema: Schema, options: Options) -> None:
    owner: dict[str, str] = {}
    for kind in _INDEXES:
        key = f"{kind}.index.columns"
        text = options.raw.get(key)
        columns = () if text is None else tuple(c.strip() for c in text.split(","))
        for c in columns:
            _refuse(columns.count(c) > 1, f"{name}: '{key}' names '{c}' twice")
            _refuse(c in owner, f"{name}: column '{c}' has two primary-key indexes", f"'{key}' and '{owner.get(c)}'")
            owner[c] = key
        if text is not None:
            _key_index(name, schema, options, kind, columns)


def _key_index(name: str, schema: Schema, options: Options, kind: str, columns: Sequence[str]) -> None:
    key = f"{kind}.index.columns"
    single = kind in ("pk-vector", "pk-full-text")
    first_row = single and options.merge_engine == "first-row"
    _refuse(single and len(columns) != 1, f"{name}: '{key}' takes exactly one column")
    _refuse(not schema.primary_keys, f"{name}: '{key}' needs a primary key")
    _refuse(
        not options.deletion_vectors and not first_row, f"{name}: '{key}' needs 'deletion-vectors.enabled' = 'true'"
    )
    late = options.deletion_vectors_merge_on_read and (options.deletion_vectors or not single)
    _refuse(late, f"{name}: '{key}' needs 'deletion-vectors.merge-on-read' = 'false'")
    _refuse(options.bucket < 1 and options.bucket != -2, f"{name}: '{key}' needs fixed or postponed buckets")
    _refuse(bool(options.get("pk-clustering-override")), f"{name}: '{key}' does not go with 'pk-clustering-override'")
    for c in columns:
        _column(name, schema, c, key)
        t = schema.field(c).type
        if kind == "pk-full-text":
            _refuse(t.root not in ("CHAR", "VARCHAR"), f"{name}: '{key}': '{c}' is {t}, not text")
        elif kind == "pk-vector":
            floats = t.root == "VECTOR" and t.element is not None and t.element.root == "FLOAT"
            _refuse(not floats, f"{name}: '{key}': '{c}' is {t}, not a VECTOR of FLOAT")
            own = f"fields.{c}.pk-vector"
            _refuse(not options.raw.get(f"{own}.index.type", "").strip(), f"{name}: '{key}' needs '{own}.index.type'")
            metric = options.raw.get(f"{own}.distance.metric", "inner_product").lower().replace("-", "_")
            known = ("l2", "cosine", "inner_product")
            _refuse(metric not in known, f"{name}: '{own}.distance.metric' is not one of {', '.join(known)}")
        else:
            _refuse(t.root not in _SORTED, f"{name}: '{key}': '{c}' is {t}", "take a scalar")


# ---- shredding of variants


def _variants(name: str, _: Schema, options: Options) -> None:
    prefix = "variant.shredding."

    def number(key: str) -> float:
        return float(options.get(prefix + key))  # type: ignore[arg-type]

    rows, ratio = "maxInferBufferRow", "minFieldCardinalityRatio"
    _refuse(number(rows) < 1, f"{name}: '{prefix}{rows}' must be at least 1")
    _refuse(not 0 <= number(ratio) <= 1, f"{name}: '{prefix}{ratio}' must be between 0 and 1")
    if options.get(prefix + "inferenceMode") != "adaptive":
        return
    rows, kept = "adaptive.maxInferBufferRow", "adaptive.retentionRatio"
    _refuse(number(rows) < 1, f"{name}: '{prefix}{rows}' must be at least 1")
    _refuse(not 0 <= number(kept) <= number(ratio), f"{name}: '{prefix}{kept}' must be between 0 and '{prefix}{ratio}'")


_CHECKS: tuple[Callable[[str, Schema, Options], None], ...] = (
    _scan_start, _prefixed, _sequence, _engine, _comparable, _changelog, _counts, _levels, _record_age, _row_kind,
    _deletion_vectors, _snapshot_ordering, _key_indexes, _variants, _row_tracking, _clustering_columns, _clustering,
    _chain, _sequence_numbers, _clustered_key, _manifest_sort,
)  # fmt: skip
