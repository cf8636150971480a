# SPDX-License-Identifier: Apache-2.0
"""System tables as Arrow: what a table consists of, told from its metadata alone.

`table.inspect.files()` has the columns of Java's `t$files`, and so on. No data file is opened, so this works on tables
whose rows shoal cannot read yet. Agrees with: FilesTable, SnapshotsTable, ManifestsTable, PartitionsTable,
BucketsTable, SchemasTable, OptionsTable, TagsTable, BranchesTable, ConsumersTable (2.0.0). Invariant: columns, types
and texts are Java's; times are local wall clock without a zone, as Java shows them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.clock import local_ms
from shoal.errors import NotFound, Unsupported
from shoal.format import jackson, paths
from shoal.format import snapshot as snapshots
from shoal.format.data import format_of
from shoal.format.row import decode
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.format.types import DataType, Field
from shoal.format.varint import nullable_longs
from shoal.table.row_text import list_text, map_text, text_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

Rows = np.ndarray[Any, np.dtype[np.int64]]

_POSTPONE = -2
_SOURCES = ("APPEND", "COMPACT")
# Column, type; `!` means that it is never null.
_FILES = (
    "partition string, bucket int32!, file_path string!, file_format string!, schema_id int64!, level int32!, "
    "record_count int64!, file_size_in_bytes int64!, min_key string, max_key string, null_value_counts string!, "
    "min_value_stats string!, max_value_stats string!, min_sequence_number int64, max_sequence_number int64, "
    "creation_time time, deleteRowCount int64, file_source string, first_row_id int64, write_cols strings"
)
_SNAPSHOTS = (
    "snapshot_id int64!, schema_id int64!, commit_user string!, commit_identifier int64!, commit_kind string!, "
    "commit_time time!, base_manifest_list string!, delta_manifest_list string!, changelog_manifest_list string, "
    "total_record_count int64, delta_record_count int64, changelog_record_count int64, watermark int64, "
    "next_row_id int64, operation string"
)
_MANIFESTS = (
    "file_name string!, file_size int64!, num_added_files int64!, num_deleted_files int64!, schema_id int64!, "
    "min_partition_stats string, max_partition_stats string, min_row_id int64, max_row_id int64"
)
_PARTITIONS = (
    "partition string, record_count int64!, file_size_in_bytes int64!, file_count int64!, last_update_time time, "
    "created_at time, created_by string, updated_by string, options string, total_buckets int32!, done bool_!, "
    "deleted_record_count int64"
)
_BUCKETS = (
    "partition string, bucket int32!, record_count int64!, file_size_in_bytes int64!, file_count int64!, "
    "last_update_time time"
)
_SCHEMAS = (
    "schema_id int64!, fields string!, partition_keys string!, primary_keys string!, options string!, comment string, "
    "update_time time!"
)
_TAGS = (
    "tag_name string!, snapshot_id int64!, schema_id int64!, commit_time time!, record_count int64, create_time time, "
    "time_retained string"
)


class Inspect:
    """`table.inspect`. Arguments named `snapshot` are ids; None means the newest one."""

    def __init__(self, table: Table) -> None:
        self.table = table

    # ---- files of a snapshot

    def files(self, snapshot: int | None = None) -> pa.Table:
        """Live data files with their keys and column bounds (`t$files`); postponed buckets are left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        snap, table = self._snapshot(snapshot), self.table
        live = self._live(snap)
        live = live.filter(pc.not_equal(live.column("bucket"), _POSTPONE))
        live = live.sort_by([(n, "ascending") for n in ("partition", "bucket", "level", "min_sequence", "file_name")])
        live = live.combine_chunks()
        codes, partitions = _distinct(live.column("partition"))
        texts = [self._partition_text(p) for p in partitions]
        names, created = live.column("file_name").to_pylist(), live.column("creation_ms")
        today = table.schema if snap is None or snapshot is None else table.metadata.schema(snap.schema_id)
        return _table(_FILES, [
            pa.array(texts, pa.string()).take(codes), live.column("bucket"), self._file_paths(live, codes, partitions),
            pa.array([format_of(n) for n in names], pa.string()), live.column("schema_id"), live.column("level"),
            live.column("row_count"), live.column("file_size"), *self._keys(live), *self._stats(live, today),
            live.column("min_sequence"), live.column("max_sequence"), created, live.column("delete_row_count"),
            pa.array(_SOURCES, pa.string()).take(live.column("file_source")), live.column("first_row_id"),
            live.column("write_cols"),
        ])  # fmt: skip

    def partitions(self, snapshot: int | None = None) -> pa.Table:
        """Rows, bytes and files of each partition (`t$partitions`); postponed buckets are left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        live = self._live(self._snapshot(snapshot))
        live = live.filter(pc.not_equal(live.column("bucket"), _POSTPONE))
        sums = _sums(live, ["partition"], [("total_buckets", "last"), ("delete_row_count", "sum")])
        n = sums.num_rows
        names = pa.array([self._partition_name(p) for p in sums.column("partition").to_pylist()], pa.string())
        nothing = pa.nulls(n)
        out = _table(_PARTITIONS, [
            names, sums.column("row_count_sum"), sums.column("file_size_sum"), sums.column("file_name_count"),
            sums.column("creation_ms_max"), nothing, nothing, nothing, nothing, sums.column("total_buckets_last"),
            pa.array(np.zeros(n, bool)), sums.column("delete_row_count_sum"),
        ])  # fmt: skip
        return out.sort_by("partition")

    def buckets(self, snapshot: int | None = None) -> pa.Table:
        """Rows, bytes and files of each bucket (`t$buckets`); -2 is the postponed one."""
        import pyarrow as pa

        sums = _sums(self._live(self._snapshot(snapshot)), ["partition", "bucket"])
        codes, partitions = _distinct(sums.column("partition"))
        out = _table(_BUCKETS, [
            pa.array([self._partition_text(p) for p in partitions], pa.string()).take(codes), sums.column("bucket"),
            sums.column("row_count_sum"), sums.column("file_size_sum"), sums.column("file_name_count"),
            sums.column("creation_ms_max"),
        ])  # fmt: skip
        return out.sort_by([("partition", "ascending"), ("bucket", "ascending")])

    def manifests(self, snapshot: int | None = None) -> pa.Table:
        """Manifests of a snapshot, those of its changelog too (`t$manifests`)."""
        snap, meta = self._snapshot(snapshot), self.table.metadata
        self._need_avro()
        metas = [] if snap is None else list(meta.manifests(snap))
        if snap is not None and snap.changelog_manifest_list is not None:
            metas += meta.manifest_list(snap.changelog_manifest_list)
        text = self._partition_text
        return _from_rows(_MANIFESTS, [
            (m.file_name, m.file_size, m.added, m.deleted, m.schema_id, text(m.partition_stats.min_values),
             text(m.partition_stats.max_values), m.min_row_id, m.max_row_id)
            for m in metas
        ])  # fmt: skip

    # ---- the table's history

    def snapshots(self) -> pa.Table:
        """Every snapshot there is, oldest first (`t$snapshots`)."""
        meta = self.table.metadata
        rows = []
        for i in meta.snapshot_ids():
            try:
                s = meta.snapshot(i)
            except NotFound:
                continue  # expired since the folder was listed
            rows.append((
                s.id, s.schema_id, s.commit_user, s.commit_identifier, s.commit_kind, self._local(s.time_ms),
                s.base_manifest_list, s.delta_manifest_list, s.changelog_manifest_list, s.total_record_count,
                s.delta_record_count, s.changelog_record_count, s.watermark, s.next_row_id, s.operation,
            ))  # fmt: skip
        return _from_rows(_SNAPSHOTS, rows)

    def schemas(self) -> pa.Table:
        """Every version of the schema, oldest first (`t$schemas`)."""
        ids = paths.schema_ids(self.table.store.list_dir(paths.SCHEMA)[1])
        schemas = [self.table.metadata.schema(i) for i in ids]
        return _from_rows(_SCHEMAS, [
            (s.id, _flat([f.json() for f in s.fields]), _flat(s.partition_keys), _flat(s.primary_keys),
             _flat(dict(s.options)), s.comment, self._local(s.time_ms))
            for s in schemas
        ])  # fmt: skip

    def options(self) -> pa.Table:
        """Options that are set (`t$options`)."""
        return _from_rows("key string!, value string!", list(self.table.schema.options.items()))

    # ---- names that point at snapshots

    def tags(self) -> pa.Table:
        """Tags by name (`t$tags`)."""
        store = self.table.store
        rows = []
        for file in store.list_dir(paths.TAG)[1]:
            if not file.startswith("tag-"):
                continue
            path = f"{paths.TAG}/{file}"
            data = store.read(path)
            s, raw = snapshots.decode(data, path), jackson.loads(data, path)
            rows.append((
                file.removeprefix("tag-"), s.id, s.schema_id, self._local(s.time_ms), s.total_record_count,
                _created(raw.get("tagCreateTime")), _retained(raw.get("tagTimeRetained")),
            ))  # fmt: skip
        return _from_rows(_TAGS, rows)

    def branches(self) -> pa.Table:
        """Branches by name (`t$branches`); the time is that of their oldest file, where Java shows the folder's."""
        store = self.table.store
        rows = []
        for folder in store.list_dir(paths.BRANCH)[0]:
            times = [f.modified_ms for f in store.list(f"{paths.BRANCH}/{folder}")]
            if folder.startswith("branch-") and times:
                rows.append((folder.removeprefix("branch-"), self._local(min(times))))
        return _from_rows("branch_name string!, create_time time!", rows)

    def consumers(self) -> pa.Table:
        """Consumers and the snapshot each reads next (`t$consumers`)."""
        store = self.table.store
        rows = []
        for file in store.list_dir(paths.CONSUMER)[1]:
            if file.startswith("consumer-"):
                path = f"{paths.CONSUMER}/{file}"
                rows.append((file.removeprefix("consumer-"), jackson.loads(store.read(path), path).get("nextSnapshot")))
        return _from_rows("consumer_id string!, next_snapshot_id int64!", rows)

    # ---- parts

    def _snapshot(self, snapshot: int | None) -> Snapshot | None:
        meta = self.table.metadata
        return meta.latest() if snapshot is None else meta.snapshot(snapshot)

    def _live(self, snap: Snapshot | None) -> pa.Table:
        self._need_avro()
        return self.table.metadata.live(snap)

    def _need_avro(self) -> None:
        kind = self.table.options.get("manifest.format")
        if kind != "avro":
            raise Unsupported(
                f"{self.table.name}: manifests in {kind} are not supported yet", hint="only Avro is, so far"
            )

    def _local(self, epoch_ms: int) -> int:
        return local_ms(self.table.clock, epoch_ms)

    def _partition_values(self, partition: bytes) -> list[str | None]:
        """Partition values cast to STRING."""
        fields = self.table.schema.partition_fields
        values = decode([f.type for f in fields], partition, "partition")
        return [None if v is None else paths.value_text(f.type, v, legacy=False) for f, v in zip(fields, values)]

    def _partition_text(self, partition: bytes) -> str:
        """`{20240101, 1}`."""
        return "{" + ", ".join("null" if v is None else v for v in self._partition_values(partition)) + "}"

    def _partition_name(self, partition: bytes) -> str:
        """`dt=20240101/h=1`."""
        unnamed = self.table.options.partition_default_name
        values = [v if v is not None and v.strip() else unnamed for v in self._partition_values(partition)]
        return "/".join(f"{k}={v}" for k, v in zip(self.table.schema.partition_keys, values))

    def _file_paths(self, live: pa.Table, codes: pa.Array, partitions: Sequence[bytes]) -> pa.Array:
        """Where the files lie, the warehouse included."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count = len(partitions)
        where = pc.add(pc.multiply(live.column("bucket").cast(pa.int64()), count), codes).combine_chunks()
        places = where.dictionary_encode()
        uri = self.table.store.uri
        folders = [
            f"{uri}/{self.table.bucket_folder(partitions[p % count], p // count)}"
            for p in places.dictionary.to_pylist()
        ]
        inside = pc.binary_join_element_wise(
            pa.array(folders, pa.string()).take(places.indices), live.column("file_name"), ""
        )
        return pc.coalesce(live.column("external_path"), inside)

    def _keys(self, live: pa.Table) -> list[pa.Array]:
        """Least and greatest key as `[1, a]`; null in append tables."""
        import pyarrow as pa

        if not self.table.primary_key:
            return [pa.nulls(live.num_rows)] * 2

        def keys(schema_id: int, rows: pa.Table) -> list[pa.Array]:
            types = self.table.metadata.schema(schema_id).key_types
            bounds = (rows.column(n).combine_chunks() for n in ("min_key", "max_key"))
            return [list_text(text_columns(types, b, f"{self.table.name}: a key")) for b in bounds]

        ids = live.column("schema_id").to_pylist()
        return _grouped(live, ids, keys, 2)

    def _stats(self, live: pa.Table, today: Schema) -> list[pa.Array]:
        """Null counts, lower and upper bounds as `{a=1, b=null}`, by the columns of the schema `today`."""

        def stats(key: tuple[int, tuple[str, ...] | None, tuple[str, ...] | None], rows: pa.Table) -> list[pa.Array]:
            schema_id, written, covered = key
            return _stats_texts(rows, self.table.metadata.schema(schema_id), written, covered, today)

        ids, written, covered = (live.column(n).to_pylist() for n in ("schema_id", "write_cols", "value_stats_cols"))
        keys = [
            (i, None if w is None else tuple(w), None if c is None else tuple(c))
            for i, w, c in zip(ids, written, covered)
        ]
        return _grouped(live, keys, stats, 3)


def _stats_texts(
    rows: pa.Table, schema: Schema, written: tuple[str, ...] | None, covered: tuple[str, ...] | None, today: Schema
) -> list[pa.Array]:
    """Stats of files that agree in schema, in written columns and in columns that have statistics."""
    import pyarrow as pa

    fields = [f for f in schema.fields if written is None or f.name in written]
    kept = fields if covered is None else [f for c in covered for f in fields if f.name == c]
    slots = [f.type if not f.type.is_nested else DataType("INT") for f in kept]
    what = "column bounds"
    lows, highs = (text_columns(slots, rows.column(n).combine_chunks(), what) for n in ("value_min", "value_max"))
    counts = _null_counts(rows.column("value_nulls").combine_chunks(), len(kept))
    place = {f.id: i for i, f in enumerate(kept)}
    in_file = {f.id: f for f in fields}
    nothing = pa.nulls(rows.num_rows, pa.string())
    every = rows.column("row_count").combine_chunks().cast(pa.string())
    texts: list[list[pa.Array]] = [[], [], []]
    for f in today.fields:
        i = place.get(f.id)
        bounded = i is not None and _same_text(in_file[f.id], f)
        # a column that the file does not have is null in all its rows
        texts[0].append(counts[i] if i is not None else nothing if f.id in in_file else every)
        texts[1].append(lows[i] if i is not None and bounded else nothing)
        texts[2].append(highs[i] if i is not None and bounded else nothing)
    return [map_text([f.name for f in today.fields], t) for t in texts]


_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def _same_text(old: Field, new: Field) -> bool:
    """Whether a bound of the old type reads the same in the new one; other casts are left to the reader of the data."""
    a, b = old.type.with_nullable(True), new.type.with_nullable(True)
    return a == b or (a.root in _WHOLE and b.root in _WHOLE and _WHOLE.index(a.root) <= _WHOLE.index(b.root))


def _null_counts(raw: pa.Array, columns: int) -> list[pa.Array]:
    """Null counts a column, as text. Files repeat them, so each distinct list is decoded once."""
    import pyarrow as pa

    encoded = raw.dictionary_encode()
    lists = [nullable_longs(r) for r in encoded.dictionary.to_pylist()]
    out = []
    for i in range(columns):
        texts = [None if i >= len(c) or c[i] is None else str(c[i]) for c in lists]
        out.append(pa.array(texts, pa.string()).take(encoded.indices))
    return out


def _grouped(
    live: pa.Table, keys: Sequence[Any], texts: Callable[[Any, pa.Table], list[pa.Array]], width: int
) -> list[pa.Array]:
    """`texts` of the rows of each key, put back into the order of the rows."""
    import pyarrow as pa

    numbers = {k: i for i, k in enumerate(dict.fromkeys(keys))}
    if len(numbers) <= 1:
        return texts(keys[0], live) if numbers else [pa.array([], pa.string())] * width
    code = np.array([numbers[k] for k in keys])
    parts: list[list[pa.Array]] = []
    order: list[Rows] = []
    for k, i in numbers.items():
        at = np.flatnonzero(code == i)
        order.append(at)
        parts.append(texts(k, live.take(pa.array(at))))
    back = pa.array(np.argsort(np.concatenate(order)))
    return [pa.concat_arrays([p[c] for p in parts]).take(back) for c in range(width)]


def _sums(live: pa.Table, by: list[str], more: Sequence[tuple[str, str]] = ()) -> pa.Table:
    wanted = [("row_count", "sum"), ("file_size", "sum"), ("file_name", "count"), ("creation_ms", "max"), *more]
    return live.group_by(by, use_threads=False).aggregate(wanted).combine_chunks()


def _distinct(column: pa.ChunkedArray) -> tuple[pa.Array, list[bytes]]:
    """(index of each row's value, the distinct values)."""
    import pyarrow as pa

    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.cast(pa.int64()), encoded.dictionary.to_pylist()


# ---- Arrow


def _schema(columns: str) -> pa.Schema:
    import pyarrow as pa

    special = {"time": pa.timestamp("ms"), "strings": pa.list_(pa.string())}
    fields = []
    for column in columns.split(", "):
        name, kind = column.split(" ")
        bare = kind.rstrip("!")
        fields.append(pa.field(name, special[bare] if bare in special else getattr(pa, bare)(), kind == bare))
    return pa.schema(fields)


def _table(columns: str, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    import pyarrow as pa

    schema = _schema(columns)
    return pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema)], schema=schema)


def _from_rows(columns: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    import pyarrow as pa

    schema = _schema(columns)
    values = list(zip(*rows)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(values, schema)], schema=schema)


# ---- texts


def _flat(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _created(value: object) -> datetime | None:
    """A tag's creation time, written as `[2026, 11, 29, 21, 26, 11, 342519]` with nanoseconds last."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    year, month, day, hour, minute, second, nanos = [*(int(str(v)) for v in value), 0, 0, 0][:7]
    return datetime(year, month, day, hour, minute, second, nanos // 1_000_000 * 1000)


def _retained(value: object) -> str | None:
    """A retention, written as seconds, the way Java's Duration prints it: `PT24H`, `PT1H30M`, `PT0.5S`."""
    if not isinstance(value, (int, float)):
        return None
    ms = round(value * 1000)
    if not ms:
        return "PT0S"
    hours, rest = divmod(ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".")
    return "PT" + (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{seconds}S" if rest else "")
