# SPDX-License-Identifier: Apache-2.0
"""Columns of the system tables: what Java calls them, in Java's order, and the Arrow tables made of them.

Agrees with: the TABLE_TYPE of each class in org.apache.paimon.table.system (2.0.0). Invariant: a column that Java
declares NOT NULL is not nullable here; times are TIMESTAMP(3), local wall clock without a zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Column, type; `!` means that it is never null.
FILES = (
    "partition string, bucket int32!, file_path string!, file_format string!, schema_id int64!, level int32!, "
    "record_count int64!, file_size_in_bytes int64!, min_key string, max_key string, null_value_counts string!, "
    "min_value_stats string!, max_value_stats string!, min_sequence_number int64, max_sequence_number int64, "
    "creation_time time, deleteRowCount int64, file_source string, first_row_id int64, write_cols strings"
)
FILE_KEY_RANGES = (
    "partition string, bucket int32!, file_path string!, file_format string!, schema_id int64!, level int32!, "
    "record_count int64!, file_size_in_bytes int64!, min_key string, max_key string, first_row_id int64"
)
SNAPSHOTS = (
    "snapshot_id int64!, schema_id int64!, commit_user string!, commit_identifier int64!, commit_kind string!, "
    "commit_time time!, base_manifest_list string!, delta_manifest_list string!, changelog_manifest_list string, "
    "total_record_count int64, delta_record_count int64, changelog_record_count int64, watermark int64, "
    "next_row_id int64, operation string"
)
MANIFESTS = (
    "file_name string!, file_size int64!, num_added_files int64!, num_deleted_files int64!, schema_id int64!, "
    "min_partition_stats string, max_partition_stats string, min_row_id int64, max_row_id int64"
)
PARTITIONS = (
    "partition string, record_count int64!, file_size_in_bytes int64!, file_count int64!, last_update_time time, "
    "created_at time, created_by string, updated_by string, options string, total_buckets int32!, done bool_!, "
    "deleted_record_count int64"
)
BUCKETS = (
    "partition string, bucket int32!, record_count int64!, file_size_in_bytes int64!, file_count int64!, "
    "last_update_time time"
)
SCHEMAS = (
    "schema_id int64!, fields string!, partition_keys string!, primary_keys string!, options string!, comment string, "
    "update_time time!"
)
OPTIONS = "key string!, value string!"
AGGREGATION_FIELDS = "field_name string!, field_type string!, function string, function_options string, comment string"
STATISTICS = "snapshot_id int64!, schema_id int64!, mergedRecordCount int64, mergedRecordSize int64, colstat string"
TABLE_INDEXES = (
    "partition string, bucket int32!, index_type string!, file_name string!, file_size int64!, row_count int64!, "
    "dv_ranges ranges, row_range_start int64, row_range_end int64, index_field_id int32, index_field_name string"
)
TAGS = (
    "tag_name string!, snapshot_id int64!, schema_id int64!, commit_time time!, record_count int64, create_time time, "
    "time_retained string"
)
BRANCHES = "branch_name string!, create_time time!"
CONSUMERS = "consumer_id string!, next_snapshot_id int64!"
ALL_TABLE_OPTIONS = "database_name string, table_name string, key string, value string"
ALL_TABLES = (
    "database_name string, table_name string, table_type string, partitioned bool_, primary_key bool_, owner string, "
    "created_at int64, created_by string, updated_at int64, updated_by string, record_count int64, "
    "file_size_in_bytes int64, file_count int64, last_file_creation_time int64"
)
ALL_PARTITIONS = (
    "database_name string, table_name string, partition_name string, record_count int64, file_size_in_bytes int64, "
    "file_count int64, last_file_creation_time int64, done bool_"
)


def schema_of(columns: str) -> pa.Schema:
    """The Arrow schema of one of the texts above."""
    import pyarrow as pa

    special = {"time": pa.timestamp("ms"), "strings": pa.list_(pa.string()), "ranges": pa.list_(_range())}
    fields = []
    for column in columns.split(", "):
        name, kind = column.split(" ")
        bare = kind.rstrip("!")
        fields.append(pa.field(name, special[bare] if bare in special else getattr(pa, bare)(), kind == bare))
    return pa.schema(fields)


def _range() -> pa.DataType:
    """Where a file's deletion vector lies in an index file: Java gives these members no other names."""
    import pyarrow as pa

    return pa.struct([
        pa.field("f0", pa.string(), False), pa.field("f1", pa.int32(), False), pa.field("f2", pa.int32(), False),
        pa.field("_CARDINALITY", pa.int64()),
    ])  # fmt: skip


def table_of(columns: str, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """A system table from columns in order."""
    import pyarrow as pa

    schema = schema_of(columns)
    return pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema)], schema=schema)


def from_rows(columns: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """A system table from rows."""
    import pyarrow as pa

    schema = schema_of(columns)
    values = list(zip(*rows)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(values, schema)], schema=schema)


def hash_order(keys: Iterable[str]) -> list[str]:
    """The order in which Java's HashMap walks over these keys when they are put in one after the other.

    Java keeps the options of a schema in such a map, and prints them as it walks.
    """
    keys = list(keys)
    slots = 16
    while len(keys) > slots * 3 // 4:
        slots *= 2
    return sorted(keys, key=lambda k: _spread(k) & (slots - 1))  # stable: a slot keeps the order of arrival


def _spread(key: str) -> int:
    """HashMap.hash of String.hashCode."""
    h = 0
    units = key.encode("utf-16-be")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h ^ h >> 16
