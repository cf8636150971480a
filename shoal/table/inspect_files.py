# SPDX-License-Identifier: Apache-2.0
"""System tables about the files of one snapshot: files, key ranges, partitions, buckets, manifests, indexes.

Only metadata is read. Agrees with: FilesTable, FileKeyRangesTable, PartitionsTable, BucketsTable, ManifestsTable,
TableIndexesTable (2.0.0). Invariant: everything that a snapshot's manifests hold is told, and nothing is told twice;
where Java fails to print a value, this shows null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format import paths
from shoal.format.data import format_of
from shoal.format.datafile import DELETE
from shoal.format.row import Value, decode
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.table.inspect_stats import key_texts, stats_texts
from shoal.table.refs import find_branch, root_of
from shoal.table.system_columns import (
    BUCKETS,
    FILE_KEY_RANGES,
    FILES,
    MANIFESTS,
    PARTITIONS,
    TABLE_INDEXES,
    from_rows,
    table_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.index_manifest import IndexEntry
    from shoal.table.table import Table

_POSTPONE = -2
_SOURCES = ("APPEND", "COMPACT")
_VECTORS = "DELETION_VECTORS"


def files(table: Table, snap: Snapshot | None) -> pa.Table:
    """Live data files with their keys and column bounds."""
    import pyarrow as pa

    live = _in_order(table, snap)
    return table_of(FILES, [
        *_places(table, live), *key_texts(table, live), *stats_texts(table, live), live.column("min_sequence"),
        live.column("max_sequence"), live.column("creation_ms"), live.column("delete_row_count"),
        pa.array(_SOURCES, pa.string()).take(live.column("file_source")), live.column("first_row_id"),
        live.column("write_cols"),
    ])  # fmt: skip


def key_ranges(table: Table, snap: Snapshot | None) -> pa.Table:
    """Live data files with their keys alone."""
    live = _in_order(table, snap)
    return table_of(FILE_KEY_RANGES, [*_places(table, live), *key_texts(table, live), live.column("first_row_id")])


def partitions(table: Table, snap: Snapshot | None) -> pa.Table:
    """Rows, bytes and files of each partition."""
    import pyarrow as pa

    sums = partition_sums(table, snap)
    n = sums.num_rows
    keys = sums.column("partition").to_pylist()
    deleted = {_raw_values(table, p): n for p, n in _deleted(table, snap).items()}
    # Java finds a partition by its name, in which a blank value is no value: so what it counts for a blank one
    # is what the partition of nulls has
    named = [tuple(None if _is_blank(v) else v for v in _raw_values(table, p)) for p in keys]
    nothing = pa.nulls(n)
    out = table_of(PARTITIONS, [
        pa.array([_partition_name(table, p) for p in keys], pa.string()), sums.column("row_count_sum"),
        sums.column("file_size_sum"), sums.column("file_count_sum"), sums.column("creation_ms_max"), nothing, nothing,
        nothing, nothing, sums.column("total_buckets_last"), pa.array(np.zeros(n, bool)),
        pa.array([deleted.get(v, 0) for v in named], pa.int64()),
    ])  # fmt: skip
    return out.sort_by("partition")


def buckets(table: Table, snap: Snapshot | None) -> pa.Table:
    """Rows, bytes and files of each bucket; -2 is the postponed one."""
    import pyarrow as pa

    sums = _sums(_entries(table, snap), ["partition", "bucket"])
    codes, keys = _distinct(sums.column("partition"))
    out = table_of(BUCKETS, [
        pa.array([_partition_text(table, p) for p in keys], pa.string()).take(codes), sums.column("bucket"),
        sums.column("row_count_sum"), sums.column("file_size_sum"), sums.column("file_count_sum"),
        sums.column("creation_ms_max"),
    ])  # fmt: skip
    return out.sort_by([("partition", "ascending"), ("bucket", "ascending")])


def manifests(table: Table, snap: Snapshot | None) -> pa.Table:
    """Manifests of a snapshot, those of its changelog too."""
    meta = table.metadata
    metas = [] if snap is None else [*meta.manifests(snap), *meta.changelog(snap)]
    text = partial(_partition_text, table)
    return from_rows(MANIFESTS, [
        (m.file_name, m.file_size, m.added, m.deleted, m.schema_id, text(m.partition_stats.min_values),
         text(m.partition_stats.max_values), m.min_row_id, m.max_row_id)
        for m in metas
    ])  # fmt: skip


def indexes(table: Table, snap: Snapshot | None) -> pa.Table:
    """Index files: hash indexes of dynamic buckets, deletion vectors, global indexes."""
    return from_rows(TABLE_INDEXES, [_index_row(table, e) for e in index_entries(table, snap)])


def index_entries(table: Table, snap: Snapshot | None) -> Sequence[IndexEntry]:
    """What the index manifest of a snapshot lists; nothing where the manifest is gone, as in Java."""
    if snap is None or snap.index_manifest is None:
        return ()
    meta = table.metadata
    return meta.index_entries(snap.index_manifest) if meta.exists(paths.manifest(snap.index_manifest)) else ()


def _index_row(table: Table, e: IndexEntry) -> tuple[Any, ...]:
    vectors = None
    if e.dv_ranges is not None:
        vectors = [
            {"f0": r.file_name, "f1": r.offset, "f2": r.length, "_CARDINALITY": r.cardinality} for r in e.dv_ranges
        ]
    g = e.global_index
    wide = (None,) * 4 if g is None else (g.row_range_start, g.row_range_end, g.field_id, _indexed(table.schema, g))
    where = (_partition_text(table, e.partition), e.bucket)
    return (*where, e.index_type, e.file_name, e.file_size, e.row_count, vectors, *wide)


def _indexed(schema: Schema, index: Any) -> str | None:
    """Names of the columns of a global index; null when one of them was dropped since."""
    names = {f.id: f.name for f in schema.fields}
    found = [names.get(i) for i in (index.field_id, *(index.extra_field_ids or ()))]
    return None if None in found else ",".join(str(n) for n in found)


def _deleted(table: Table, snap: Snapshot | None) -> dict[bytes, int | None]:
    """Rows that deletion vectors hide, by partition; None where a vector does not tell how many it holds."""
    out: dict[bytes, int | None] = {}
    if not table.options.deletion_vectors:
        return out
    for e in index_entries(table, snap):
        if e.index_type != _VECTORS or not e.dv_ranges:
            continue
        so_far = out.get(e.partition, 0)
        counts = [r.cardinality for r in e.dv_ranges]
        out[e.partition] = None if so_far is None or None in counts else so_far + sum(c or 0 for c in counts)
    return out


# ---- parts


def _real(table: Table, snap: Snapshot | None) -> pa.Table:
    """Live files; those that wait in the postponed bucket are not part of what a batch read sees."""
    import pyarrow.compute as pc

    live = table.metadata.live(snap)
    return live.filter(pc.greater_equal(live.column("bucket"), 0)) if table.options.bucket == _POSTPONE else live


def _in_order(table: Table, snap: Snapshot | None) -> pa.Table:
    live = _real(table, snap)
    by = ("partition", "bucket", "level", "min_sequence", "file_name")
    return live.sort_by([(n, "ascending") for n in by]).combine_chunks()


def _places(table: Table, live: pa.Table) -> list[pa.Array]:
    """The eight columns from partition to file size."""
    import pyarrow as pa

    codes, keys = _distinct(live.column("partition"))
    names = live.column("file_name").to_pylist()
    return [
        pa.array([_partition_text(table, p) for p in keys], pa.string()).take(codes), live.column("bucket"),
        _file_paths(table, live, codes, keys), pa.array([format_of(n) for n in names], pa.string()),
        live.column("schema_id"), live.column("level"), live.column("row_count"), live.column("file_size"),
    ]  # fmt: skip


def _file_paths(table: Table, live: pa.Table, codes: pa.Array, partitions: Sequence[bytes]) -> pa.Array:
    """Where the files lie, the warehouse included."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(partitions)
    where = pc.add(pc.multiply(live.column("bucket").cast(pa.int64()), count), codes).combine_chunks()
    places = where.dictionary_encode()
    uri = root_of(table.store).uri  # branches keep their files in the table's own folders
    folders = [f"{uri}/{table.bucket_folder(partitions[p % count], p // count)}" for p in places.dictionary.to_pylist()]
    inside = pc.binary_join_element_wise(
        pa.array(folders, pa.string()).take(places.indices), live.column("file_name"), ""
    )
    return pc.coalesce(live.column("external_path"), inside)


def _raw_values(table: Table, partition: bytes) -> tuple[Value, ...]:
    return tuple(decode(table.schema.partition_types, partition, "partition"))


def _is_blank(value: Value) -> bool:
    return isinstance(value, bytes) and not value.decode("utf-8", "replace").strip()


def _partition_values(table: Table, partition: bytes) -> list[str | None]:
    """Partition values cast to STRING."""
    fields = table.schema.partition_fields
    values = decode([f.type for f in fields], partition, "partition")
    return [None if v is None else paths.value_text(f.type, v, legacy=False) for f, v in zip(fields, values)]


def _partition_text(table: Table, partition: bytes) -> str:
    """`{20240101, 1}`."""
    return "{" + ", ".join("null" if v is None else v for v in _partition_values(table, partition)) + "}"


def _partition_name(table: Table, partition: bytes) -> str:
    """`dt=20240101/h=1`."""
    unnamed = table.options.partition_default_name
    values = [v if v is not None and v.strip() else unnamed for v in _partition_values(table, partition)]
    return "/".join(f"{k}={v}" for k, v in zip(table.schema.partition_keys, values))


def partition_sums(table: Table, snap: Snapshot | None) -> pa.Table:
    """Rows, bytes and files of each partition, without postponed buckets: columns `partition`, `row_count_sum`...

    In the newest state a branch stands in for the partitions that the table lacks, where an option names one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    sums = _partition_sums(table, snap)
    o = table.options
    fallback, primary = o.get("scan.fallback-branch"), o.get("scan.primary-branch")
    if not (fallback or primary) or snap != table.metadata.latest():
        return sums
    other = find_branch(table, str(fallback or primary))
    if other is None:
        return sums
    theirs = _partition_sums(other, other.metadata.latest())
    first, second = (sums, theirs) if fallback else (theirs, sums)
    rest = second.filter(pc.invert(pc.is_in(second.column("partition"), first.column("partition").combine_chunks())))
    return pa.concat_tables([first, rest]).combine_chunks()


def _partition_sums(table: Table, snap: Snapshot | None) -> pa.Table:
    import pyarrow.compute as pc

    entries = _entries(table, snap)
    if table.options.bucket == _POSTPONE:
        entries = entries.filter(pc.greater_equal(entries.column("bucket"), 0))
    return _sums(entries, ["partition"])


def all_partition_sums(table: Table, snap: Snapshot | None) -> pa.Table:
    """Of this branch alone, with the rows that are postponed."""
    return _sums(_entries(table, snap), ["partition"])


def _entries(table: Table, snap: Snapshot | None) -> pa.Table:
    """Every entry of the snapshot's manifests, DELETE entries first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.format.manifest import entry_schema

    metas = [] if snap is None else table.metadata.manifests(snap)
    names = ("kind", "partition", "bucket", "total_buckets", "row_count", "file_size", "creation_ms")
    empty = entry_schema().empty_table().select(names)
    parts = [pa.Table.from_batches([table.metadata.entries(m)]).select(names) for m in metas]
    entries = pa.concat_tables([empty, *(p.cast(empty.schema) for p in parts)])
    gone = pc.equal(entries.column("kind"), DELETE)
    return pa.concat_tables([entries.filter(gone), entries.filter(pc.invert(gone))])


def _sums(entries: pa.Table, by: list[str]) -> pa.Table:
    """What is left of each group. As in Java, the newest file may be one that is deleted since."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sign = pc.if_else(pc.equal(entries.column("kind"), DELETE), pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
    counted = entries.select([*by, "creation_ms", "total_buckets"]).append_column("file_count", sign)
    for name in ("row_count", "file_size"):
        counted = counted.append_column(name, pc.multiply(entries.column(name), sign))
    sums = [("row_count", "sum"), ("file_size", "sum"), ("file_count", "sum"), ("creation_ms", "max")]
    out = counted.group_by(by, use_threads=False).aggregate([*sums, ("total_buckets", "last")])
    return out.filter(pc.greater(out.column("file_count_sum"), 0)).combine_chunks()


def _distinct(column: pa.ChunkedArray) -> tuple[pa.Array, list[bytes]]:
    """(index of each row's value, the distinct values)."""
    import pyarrow as pa

    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.cast(pa.int64()), encoded.dictionary.to_pylist()
