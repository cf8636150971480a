# SPDX-License-Identifier: Apache-2.0
"""A table's history as Parquet files, one for each kind of fact, for whatever reads Parquet.

Invariant: files appear whole; nothing is written into the table or the warehouse that it is part of.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.doctor.history_file import check_outside
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.window import METADATA, NOTHING, Window
from shoal.errors import StorageFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.flink import Job


def export(history: HistoryStore, table: str, folder: Path, *, since_ms: int | None = None) -> dict[str, int]:
    """Write the history of the table at an address; rows by file name."""
    import pyarrow.parquet as pq

    check_outside(folder / "x", table)
    window = history.window(table, since_ms=since_ms)
    tables = tables_of(window) | {"trend": history.trend(table, since_ms)}
    job = history.job(table, since_ms)
    if job is not None:
        tables["checkpoint"] = checkpoints_of(job)
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            path = folder / f"{name}.parquet"
            part = folder / f".{name}.parquet.{os.getpid()}"
            try:
                pq.write_table(rows, part, compression="zstd")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            written[path.name] = rows.num_rows
    except OSError as err:
        raise StorageFailed(f"cannot write to {folder}: {err}", hint="name another folder") from err
    return written


def tables_of(window: Window) -> dict[str, pa.Table]:
    """The parts of a window as tables."""
    import pyarrow as pa

    ms, text = pa.timestamp("ms", "UTC"), pa.string()
    count = pa.int64()
    snapshots: list[dict[str, Any]] = []
    for s in window.steps:
        row: dict[str, Any] = {
            "id": s.id, "schema_id": s.schema_id, "user": s.user, "identifier": s.identifier, "kind": s.kind,
            "time": s.time_ms, "total_records": s.total_records, "delta_records": s.delta_records,
            "changelog_records": s.changelog_records, "watermark": s.watermark, "operation": s.operation,
            "manifests": s.manifests.files, "manifest_bytes": s.manifests.bytes, "entries": s.entries,
            "dead_entries": s.dead_entries, "live_files": s.live_files, "identity_holds": s.identity_holds,
        }  # fmt: skip
        for word in METADATA:
            made = s.wrote.get(word, NOTHING)
            row |= {f"wrote_{word.replace('-', '_')}": made.files, f"wrote_{word.replace('-', '_')}_bytes": made.bytes}
        snapshots.append(row)
    words = [w.replace("-", "_") for w in METADATA]
    fields = [
        ("id", count), ("schema_id", count), ("user", text), ("identifier", count), ("kind", text), ("time", ms),
        ("total_records", count), ("delta_records", count), ("changelog_records", count), ("watermark", count),
        ("operation", text), ("manifests", count), ("manifest_bytes", count), ("entries", count),
        ("dead_entries", count), ("live_files", count), ("identity_holds", pa.bool_()),
        *((f"wrote_{w}{end}", count) for w in words for end in ("", "_bytes")),
    ]  # fmt: skip
    holders = [(h.kind, h.name, h.snapshot, h.time_ms, h.expires_ms) for h in window.stock.holders]
    out = {
        "snapshot": pa.Table.from_pylist(snapshots, pa.schema(fields)),
        "flow": window.flows,
        "event": _rows(
            [(e.time_ms, e.kind, e.what, e.snapshot) for e in window.events],
            [("time", ms), ("kind", text), ("what", text), ("snapshot", count)],
        ),
        "gap": _rows(
            [(g.first, g.last, g.kind, g.what) for g in window.gaps],
            [("first", count), ("last", count), ("kind", text), ("what", text)],
        ),
        "schema": _rows(
            [(s.id, s.time_ms, list(s.options.items())) for s in window.schemas],
            [("id", count), ("time", ms), ("options", pa.map_(text, text))],
        ),
        "holder": _rows(
            holders, [("kind", text), ("name", text), ("snapshot", count), ("time", ms), ("expires", ms)]
        ),
    }  # fmt: skip
    end = window.end
    if end is not None:
        out["state"] = end
    return out


def checkpoints_of(job: Job) -> pa.Table:
    """The checkpoints of a Flink job as a table."""
    import pyarrow as pa

    ms, text, count = pa.timestamp("ms", "UTC"), pa.string(), pa.int64()
    return _rows(
        [
            (job.id, c.id, c.status, c.trigger_ms, c.ack_ms, c.duration_ms, c.state_size, c.savepoint, c.failed_ms,
             c.failure)
            for c in job.checkpoints
        ],
        [("job", text), ("id", count), ("status", text), ("triggered", ms), ("acknowledged", ms),
         ("duration_ms", count), ("state_size", count), ("savepoint", pa.bool_()), ("failed", ms), ("failure", text)],
    )  # fmt: skip


def _rows(rows: list[tuple[Any, ...]], fields: list[tuple[str, pa.DataType]]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema(fields)
    if not rows:
        return schema.empty_table()
    return pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows), schema)], schema)
