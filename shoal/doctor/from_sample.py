# SPDX-License-Identifier: Apache-2.0
"""A sample that names files, as the window that judgements take.

Invariants: the state after the last step is the live entries; flows are the entries summed by snapshot, class,
partition, bucket and level; steps behind the last gap, or behind one whose lists do not add up, have flows only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.doctor.sample import Count, Sample, Step
from shoal.doctor.window import IndexFacts, SchemaFacts, SnapshotFacts, Stock, Window, flow_fields, state_fields
from shoal.format import paths
from shoal.format.schema import Schema
from shoal.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = ("snapshot", "class", "change", "partition", "bucket", "level")
_CELL = ("partition", "bucket", "level")


def window_of(taken: Sample, live: pa.Table | None) -> Window:
    """A sample and the live entries of its newest snapshot (None when they cannot be read) as a window."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = taken.schema
    small = _small_size(schema)
    entries = _with_text(taken.entries, schema)
    entries = entries.append_column("small", pc.cast(pc.less(entries.column("file_size"), small), pa.int64()))
    since = _unbroken(taken.steps)
    start = None
    if live is not None:
        moves = entries.filter(pc.not_equal(entries.column("class"), "changelog"))
        moves = moves.filter(pc.greater_equal(moves.column("snapshot"), since or 0))
        start = _before(_with_text(live, schema), moves, small)
    schemas = () if schema is None else (_schema_facts(schema),)
    latest = taken.newest.id if taken.newest is not None else None
    index = {"index": Count()} if taken.newest is not None and taken.newest.index_manifest else {}
    stock = Stock(0, taken.earliest, latest, (), IndexFacts(index, 0, 0), taken.requests, taken.bytes_read)
    return Window(
        taken.uri, taken.uri.rstrip("/").rpartition("/")[2], tuple(_facts(s) for s in taken.steps), _flows(entries),
        start, schemas, stock, taken.gaps, start_before=since, inherited=taken.inherited,
    )  # fmt: skip


def _small_size(schema: Schema | None) -> int:
    options = Options({} if schema is None else schema.options, strict=False)
    keys = schema.primary_keys if schema is not None else ()
    return int(options.target_file_size(bool(keys)) * options.small_file_ratio)


def _schema_facts(schema: Schema) -> SchemaFacts:
    columns = tuple(f.name for f in schema.fields)
    return SchemaFacts(
        schema.id, schema.time_ms or 0, schema.options, schema.partition_keys, schema.primary_keys, columns
    )


def _facts(step: Step) -> SnapshotFacts:
    snap = step.snapshot
    return SnapshotFacts(
        snap.id, snap.schema_id, snap.commit_user, snap.commit_identifier, snap.commit_kind, snap.time_ms,
        snap.total_record_count, snap.delta_record_count, snap.changelog_record_count, None, None, step.wrote,
        step.manifests, step.live_listed, 0, step.live_listed, step.holds,
    )  # fmt: skip


def _unbroken(steps: tuple[Step, ...]) -> int | None:
    """The earliest step from which no step is missing and every state can be told from the newest one."""
    for i in range(len(steps) - 1, 0, -1):
        if steps[i].snapshot.id != steps[i - 1].snapshot.id + 1 or not steps[i].holds:
            return steps[i].snapshot.id
    return steps[0].snapshot.id if steps else None


def _with_text(table: pa.Table, schema: Schema | None) -> pa.Table:
    """The same with partitions as text."""
    import pyarrow as pa

    coded = table.column("partition").combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    texts = pa.array([_text(schema, p) for p in coded.dictionary.to_pylist()], pa.string())
    return table.set_column(table.schema.get_field_index("partition"), "partition", texts.take(coded.indices))


def _text(schema: Schema | None, partition: bytes) -> str:
    if schema is None or not schema.partition_fields:
        return ""
    options = Options(schema.options, strict=False)
    return paths.partition_path(
        schema.partition_fields, partition, str(options.get("partition.default-name")),
        bool(options.get("partition.legacy-name")),
    )  # fmt: skip


def _flows(entries: pa.Table) -> pa.Table:
    sums = entries.group_by(list(_KEYS), use_threads=False).aggregate([
        ("file_name", "count"), ("file_size", "sum"), ("file_size", "max"), ("row_count", "sum"), ("extras", "sum"),
        ("small", "sum"),
    ])  # fmt: skip
    known: dict[str, Any] = {
        "files": sums.column("file_name_count"), "bytes": sums.column("file_size_sum"),
        "rows": sums.column("row_count_sum"), "extras": sums.column("extras_sum"), "small": sums.column("small_sum"),
        "largest": sums.column("file_size_max"), **{k: sums.column(k) for k in _KEYS},
    }  # fmt: skip
    return _filled(known, sums.num_rows, flow_fields())


def _before(live: pa.Table, moves: pa.Table, small: int) -> pa.Table:
    """The live entries, less what the moves brought, and what they took."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sign = pc.negate(moves.column("change").cast(pa.int64()))
    stood = {
        "files": pa.repeat(1, live.num_rows), "bytes": live.column("file_size"), "rows": live.column("row_count"),
        "extras": pc.coalesce(pc.list_value_length(live.column("extra_files")), 0),
        "small": pc.cast(pc.less(live.column("file_size"), small), pa.int64()),
    }  # fmt: skip
    moved = {
        "files": sign, "bytes": pc.multiply(moves.column("file_size"), sign),
        "rows": pc.multiply(moves.column("row_count"), sign),
        "extras": pc.multiply(moves.column("extras").cast(pa.int64()), sign),
        "small": pc.multiply(moves.column("small"), sign),
    }  # fmt: skip
    parts = []
    for table, numbers in ((live, stood), (moves, moved)):
        known = {**numbers, **{k: table.column(k) for k in _CELL}}
        parts.append(_filled(known, table.num_rows, state_fields()))
    names = ("files", "bytes", "rows", "extras", "small")
    sums = pa.concat_tables(parts).group_by(list(_CELL), use_threads=False).aggregate([(n, "sum") for n in names])
    known = {**{n: sums.column(f"{n}_sum") for n in names}, **{k: sums.column(k) for k in _CELL}}
    out = _filled(known, sums.num_rows, state_fields())
    return out.filter(pc.not_equal(out.column("files"), 0))


def _filled(known: dict[str, Any], rows: int, fields: pa.Schema) -> pa.Table:
    """A table of these columns; what is not known is null."""
    import pyarrow as pa

    columns = [known[f.name] if f.name in known else pa.nulls(rows, f.type) for f in fields]
    return pa.table(columns, fields.names).cast(fields)
