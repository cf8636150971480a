# SPDX-License-Identifier: Apache-2.0
"""System tables about a table's history and its names: snapshots, schemas, options, statistics, tags, branches.

Agrees with: SnapshotsTable, SchemasTable, OptionsTable, AggregationFieldsTable, StatisticTable, TagsTable,
BranchesTable, ConsumersTable (2.0.0). Invariant: only small JSON files are read, each once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.clock import local_ms
from shoal.errors import NotFound
from shoal.format import paths, statistics
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.table import consumers, refs
from shoal.table.system_columns import (
    AGGREGATION_FIELDS,
    BRANCHES,
    CONSUMERS,
    OPTIONS,
    SCHEMAS,
    SNAPSHOTS,
    STATISTICS,
    TAGS,
    from_rows,
    hash_order,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


def snapshots(table: Table) -> pa.Table:
    """Every snapshot there is, oldest first."""
    meta = table.metadata
    rows = []
    for i in meta.snapshot_ids():
        try:
            s = meta.snapshot(i)
        except NotFound:
            continue  # expired since the folder was listed
        rows.append((
            s.id, s.schema_id, s.commit_user, s.commit_identifier, s.commit_kind, local_ms(table.clock, s.time_ms),
            s.base_manifest_list, s.delta_manifest_list, s.changelog_manifest_list, s.total_record_count,
            s.delta_record_count, s.changelog_record_count, s.watermark, s.next_row_id, s.operation,
        ))  # fmt: skip
    return from_rows(SNAPSHOTS, rows)


def schemas(table: Table) -> pa.Table:
    """Every version of the schema, oldest first."""
    ids = paths.schema_ids(table.store.list_dir(paths.SCHEMA)[1])
    return from_rows(SCHEMAS, [
        (s.id, _flat([f.json() for f in s.fields]), _flat(s.partition_keys), _flat(s.primary_keys),
         _flat({k: s.options[k] for k in hash_order(s.options)}), s.comment, local_ms(table.clock, s.time_ms))
        for s in map(table.metadata.schema, ids)
    ])  # fmt: skip


def options(table: Table) -> pa.Table:
    """Options that are set in the newest schema."""
    found = _newest(table).options
    return from_rows(OPTIONS, [(k, found[k]) for k in hash_order(found)])


def aggregation_fields(table: Table) -> pa.Table:
    """Columns of the newest schema with the options that say how each is merged."""
    schema = _newest(table)
    of: dict[str, list[str]] = {}
    for key in hash_order(schema.options):
        parts = key.split(".")
        if len(parts) > 2 and parts[0] == "fields":
            of.setdefault(parts[1], []).append(key)
    rows = []
    for f in schema.fields:
        keys = of.get(f.name, [])
        values = [schema.options[k] for k in keys]
        rows.append((f.name, str(f.type), _listed(values), _listed(keys), f.description))
    return from_rows(AGGREGATION_FIELDS, rows)


def table_statistics(table: Table, snap: Snapshot | None) -> pa.Table:
    """What ANALYZE found last, as of a snapshot."""
    if snap is None or snap.statistics is None:
        return from_rows(STATISTICS, [])
    path = f"{statistics.FOLDER}/{snap.statistics}"
    s = statistics.decode(table.metadata.read(path), f"{table.store.uri}/{path}")
    row = (s.snapshot_id, s.schema_id, s.merged_record_count, s.merged_record_size, s.columns_text)
    return from_rows(STATISTICS, [row])


# ---- names that point at snapshots


def tags(table: Table) -> pa.Table:
    """Tags by name."""
    rows = []
    for t in sorted(refs.tags(table.metadata), key=lambda t: t.name):
        s = t.snapshot
        at = t.created and t.created.replace(microsecond=t.created.microsecond // 1000 * 1000)
        rows.append((
            t.name, s.id, s.schema_id, local_ms(table.clock, s.time_ms), s.total_record_count, at,
            _duration(t.retained_ms),
        ))  # fmt: skip
    return from_rows(TAGS, rows)


def branches(table: Table) -> pa.Table:
    """Branches by name; the time is that of their oldest file, where Java shows the folder's."""
    root = refs.root_of(table.store)
    rows = []
    for name in refs.branch_names(root):
        times = [f.modified_ms for f in root.list(f"{paths.BRANCH}/branch-{name}")]
        if times:
            rows.append((name, local_ms(table.clock, min(times))))
    return from_rows(BRANCHES, rows)


def consumer_positions(table: Table) -> pa.Table:
    """Consumers and the snapshot each reads next."""
    return from_rows(CONSUMERS, list(consumers.all_progress(table.store).items()))


# ---- parts


def _newest(table: Table) -> Schema:
    """The newest schema, which need not be the one the table was opened with."""
    newest = table.metadata.latest_schema_id()
    return table.schema if newest is None else table.metadata.schema(newest)


def _flat(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _listed(texts: Sequence[str]) -> str:
    """A Java list as text."""
    return "[" + ", ".join(texts) + "]"


def _duration(ms: int | None) -> str | None:
    """A retention the way Java's Duration prints it: `PT24H`, `PT1H30M`, `PT0.5S`."""
    if ms is None:
        return None
    if not ms:
        return "PT0S"
    hours, rest = divmod(ms, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".")
    return "PT" + (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{seconds}S" if rest else "")
