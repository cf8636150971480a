# SPDX-License-Identifier: Apache-2.0
"""What a look saw, put into a history file: snapshots and flows once, a state where a chain of looks begins.

A state is kept every few hundred snapshots too, so that a window from anywhere replays little. Functions of a
connection that writes (`history_file.writing`). Invariant: two processes that look at one table leave what one would.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.doctor.history_reads import knows_state, mark, mark_before, state_before
from shoal.doctor.history_rows import CLASSES, FLOW, counts_text, plain_counts, plain_holder, row_of
from shoal.doctor.window import Count, Event, Mark, Window, state_fields

if TYPE_CHECKING:
    import pyarrow as pa

# How many snapshots, or flow rows, are replayed at most from a kept state.
_STATE_EVERY, _STATE_EVERY_ROWS = 500, 20_000


def put_window(db: sqlite3.Connection, source: int, window: Window) -> None:
    """What a look saw. Snapshots that it shows to be rolled back go; what is there already stays."""
    rolled = any(e.kind == "rollback" for e in window.events)
    if any(e.kind == "replaced" for e in window.events):
        _cut(db, source, 0)
    if window.steps and not _has_all(db, source, window):
        _cut(db, source, _first(window))
        _put_steps(db, source, window)
    elif not window.steps and (rolled or _is_empty(db, source)):
        _cut(db, source, _first(window))
        _put_fresh(db, source, window)
    _put_rest(db, source, window)


def begin_at(db: sqlite3.Connection, source: int, first: int) -> None:
    """Make `first` the snapshot that the chain of looks begins at: those before it grow coarse."""
    # the end of one snapshot and the gaps after it: the state before the next that is kept
    state = state_before(db, source, first)
    after = mark_before(db, source, first)
    db.execute("DELETE FROM start WHERE source = ? AND before <= ?", (source, first))
    db.execute("DELETE FROM state WHERE source = ? AND before <= ?", (source, first))
    _put_start(db, source, first, state, after, {})
    db.execute("DELETE FROM gap WHERE source = ? AND last < ?", (source, first))


def forget(db: sqlite3.Connection, source: int) -> None:
    """Remove everything about a table."""
    for name in (
        "snapshot", "flow", "start", "state", "schema", "stock", "event", "gap", "rolled_flow",
        "rolled_snapshot", "record", "flink_job", "flink_checkpoint",
    ):  # fmt: skip
        db.execute(f"DELETE FROM {name} WHERE source = ?", (source,))
    db.execute("DELETE FROM source WHERE id = ?", (source,))


def put_events(db: sqlite3.Connection, source: int, events: Iterable[Event]) -> None:
    db.executemany(
        "INSERT INTO event VALUES (?, ?, ?, ?, ?)", [(source, e.time_ms, e.kind, e.what, e.snapshot) for e in events]
    )


def source_of(db: sqlite3.Connection, uri: str, name: str) -> int:
    db.execute(
        "INSERT INTO source (uri, name) VALUES (?, ?) ON CONFLICT (uri) DO UPDATE SET "
        "name = CASE WHEN excluded.name = '' THEN name ELSE excluded.name END",
        (uri, name),
    )
    return int(db.execute("SELECT id FROM source WHERE uri = ?", (uri,)).fetchone()[0])


def _has_all(db: sqlite3.Connection, source: int, window: Window) -> bool:
    """Whether every step is here, so that another process saw them first."""
    wanted = {s.mark for s in window.steps}
    first, last = window.steps[0].id, window.steps[-1].id
    rows = db.execute(
        "SELECT id, base_list, delta_list FROM snapshot WHERE source = ? AND id BETWEEN ? AND ?",
        (source, first, last),
    )
    return wanted <= {Mark(i, (base, delta)) for i, base, delta in rows}


def _cut(db: sqlite3.Connection, source: int, first: int) -> None:
    """Forget the snapshots from `first` on."""
    for table, column, at in (
        ("snapshot", "id", first), ("flow", "snapshot", first), ("gap", "first", first),
        ("start", "before", first + 1), ("state", "before", first + 1),
    ):  # fmt: skip
        db.execute(f"DELETE FROM {table} WHERE source = ? AND {column} >= ?", (source, at))


def _put_steps(db: sqlite3.Connection, source: int, window: Window) -> None:
    """Steps, with the state before them unless what is kept leads to it."""
    stored = db.execute("SELECT max(id) FROM snapshot WHERE source = ?", (source,)).fetchone()[0]
    joins = stored is not None and window.after is not None and window.after.id == stored
    if not (joins and mark(db, source, stored) == window.after and knows_state(db, source, stored + 1)):
        _put_fresh(db, source, window)
    db.executemany(f"INSERT INTO snapshot VALUES ({', '.join('?' * 21)})", [(source, *row_of(s)) for s in window.steps])
    parts = _partitions(db, [window.flows])
    names = ["snapshot", *FLOW]
    columns = [_coded(window.flows, n, parts) for n in names]
    db.executemany(
        f"INSERT INTO flow (source, {', '.join(names)}) VALUES ({source}, {', '.join('?' * len(names))})",
        zip(*columns),
    )
    _put_state_sometimes(db, source, window)


def _put_fresh(db: sqlite3.Connection, source: int, window: Window) -> None:
    first = window.steps[0].id if window.steps else _first(window)
    db.execute("DELETE FROM start WHERE source = ? AND before = ?", (source, first))
    db.execute("DELETE FROM state WHERE source = ? AND before = ?", (source, first))
    _put_start(db, source, first, window.start, window.after, window.inherited)


def _is_empty(db: sqlite3.Connection, source: int) -> bool:
    return db.execute("SELECT 1 FROM start WHERE source = ?", (source,)).fetchone() is None


def _put_state_sometimes(db: sqlite3.Connection, source: int, window: Window) -> None:
    """The state after the last step, when many snapshots lie between it and the last one kept."""
    at = window.steps[-1].id + 1
    last = db.execute("SELECT max(before) FROM start WHERE source = ?", (source,)).fetchone()[0]
    rows = db.execute("SELECT count(*) FROM flow WHERE source = ? AND snapshot >= ?", (source, last)).fetchone()[0]
    if at - last >= _STATE_EVERY or rows >= _STATE_EVERY_ROWS:
        end = window.end
        if end is not None:
            _put_start(db, source, at, end, window.steps[-1].mark, {})


def _put_start(
    db: sqlite3.Connection, source: int, before: int, state: pa.Table | None, after: Mark | None,
    inherited: Mapping[str, Count],
) -> None:  # fmt: skip
    db.execute(
        "INSERT OR REPLACE INTO start VALUES (?, ?, ?, ?, ?, ?)",
        (
            source, before, state is not None, None if after is None else after.id,
            None if after is None or after.lists is None else json.dumps(after.lists), counts_text(inherited),
        ),
    )  # fmt: skip
    if state is not None:
        parts = _partitions(db, [state])
        names = state_fields().names
        columns = [_coded(state, n, parts) for n in names]
        db.executemany(
            f"INSERT INTO state (source, before, {', '.join(names)}) VALUES ({source}, {before}, "
            f"{', '.join('?' * len(names))})",
            zip(*columns),
        )


def _put_rest(db: sqlite3.Connection, source: int, window: Window) -> None:
    db.execute("UPDATE schema SET present = 0 WHERE source = ?", (source,))
    db.executemany(
        "INSERT OR REPLACE INTO schema VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
        [
            (source, s.id, s.time_ms, json.dumps(dict(s.options)), json.dumps(s.partition_keys),
             json.dumps(s.primary_keys), json.dumps(s.columns))
            for s in window.schemas
        ],
    )  # fmt: skip
    k = window.stock
    last = window.steps[-1].id if window.steps else (None if window.after is None else window.after.id)
    db.execute(
        f"INSERT INTO stock VALUES ({', '.join('?' * 12)})",
        (
            source, k.taken_ms, k.earliest, k.latest, json.dumps([plain_holder(h) for h in k.holders]),
            json.dumps({"files": plain_counts(k.index.files), "marked_rows": k.index.marked_rows,
                        "vectors": k.index.vectors, "pins": msgspec.to_builtins(k.pins),
                        "fan_in": msgspec.to_builtins(k.fan_in)}),
            k.requests, k.bytes_read, k.partial, json.dumps(dict(window.notes)), last, window.small_size,
        ),
    )  # fmt: skip
    db.executemany(
        "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
        [(source, e.time_ms, e.kind, e.what, e.snapshot) for e in window.events],
    )
    db.executemany(
        "INSERT OR REPLACE INTO gap VALUES (?, ?, ?, ?, ?)",
        [(source, g.first, g.last, g.kind, g.what) for g in window.gaps],
    )


def _partitions(db: sqlite3.Connection, tables: Sequence[pa.Table]) -> dict[str, int]:
    """Numbers of partitions, new ones too."""
    texts = {t for table in tables for t in table.column("partition").unique().to_pylist()}
    db.executemany("INSERT OR IGNORE INTO partition (text) VALUES (?)", [(t,) for t in sorted(texts)])
    found: dict[str, int] = {}
    for text in texts:
        found[text] = db.execute("SELECT id FROM partition WHERE text = ?", (text,)).fetchone()[0]
    return found


def _coded(table: pa.Table, name: str, partitions: Mapping[str, int]) -> list[Any]:
    values: list[Any] = table.column(name).to_pylist()
    if name == "partition":
        return [partitions[v] for v in values]
    return [CLASSES.index(v) for v in values] if name == "class" else values


def _first(window: Window) -> int:
    """The id at which a window begins."""
    if window.steps:
        return window.steps[0].id if window.after is None else min(window.steps[0].id, window.after.id + 1)
    return 0 if window.after is None else window.after.id + 1
