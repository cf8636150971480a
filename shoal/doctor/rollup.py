# SPDX-License-Identifier: Apache-2.0
"""History that grows coarse with age: snapshots for 48 hours, 5-minute sums for 30 days, hourly sums for a year.

Invariant: what is kept is a function of what was put in and of the time, not of how often this ran in between: all
sums are of whole spans, and a sum of sums is the sum.
"""

from __future__ import annotations

import sqlite3

from shoal.doctor.history_jobs import forget_old

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
RAW_MS = 48 * HOUR
FINE_SPAN, FINE_MS = 5 * MINUTE, 30 * DAY
COARSE_SPAN, COARSE_MS = HOUR, 365 * DAY

KEYS = "class, change, partition, bucket, total_buckets, level"
SUMS = (
    "sum(files), sum(bytes), sum(rows), sum(deleted_rows), min(min_sequence), max(max_sequence), sum(extras), "
    "max(largest), sum(small)"
)


def cut_of(now_ms: int, age_ms: int, span_ms: int) -> int:
    """Everything earlier is older than `age_ms`, in whole spans."""
    return (now_ms - age_ms) // span_ms * span_ms


def first_kept(db: sqlite3.Connection, source: int, now_ms: int) -> int | None:
    """The first snapshot that stays one; None when there is nothing to do.

    The newest snapshot stays whatever its age: the next look goes on from it. Times may run backwards where clocks
    differ: only what lies before every younger snapshot goes.
    """
    cut = cut_of(now_ms, RAW_MS, FINE_SPAN)
    oldest, newest = db.execute("SELECT min(id), max(id) FROM snapshot WHERE source = ?", (source,)).fetchone()
    first: int | None = db.execute(
        "SELECT min(id) FROM snapshot WHERE source = ? AND (time_ms >= ? OR id = ?)", (source, cut, newest)
    ).fetchone()[0]
    return None if first is None or first == oldest else first


def roll_up(db: sqlite3.Connection, source: int, first: int | None, now_ms: int) -> None:
    """Make coarse what is old: snapshots before `first`, 5-minute sums of 30 days ago; forget what is a year old."""
    if first is not None:
        _raw(db, source, first)
    _coarser(db, source, cut_of(now_ms, FINE_MS, COARSE_SPAN))
    end = cut_of(now_ms, COARSE_MS, COARSE_SPAN)
    for table in ("rolled_flow", "rolled_snapshot"):
        db.execute(f"DELETE FROM {table} WHERE source = ? AND span_ms = ? AND at_ms < ?", (source, COARSE_SPAN, end))
    for table, column in (("stock", "taken_ms"), ("event", "time_ms"), ("record", "time_ms")):
        db.execute(f"DELETE FROM {table} WHERE source = ? AND {column} < ?", (source, end))
    cut = cut_of(now_ms, RAW_MS, FINE_SPAN)
    forget_old(db, source, cut, end)
    _thin_stock(db, source, cut)


def _raw(db: sqlite3.Connection, source: int, first: int) -> None:
    """Snapshots before `first` as sums of 5 minutes."""
    at = f"s.time_ms / {FINE_SPAN} * {FINE_SPAN}"
    db.execute(
        f"INSERT INTO rolled_flow SELECT f.source, {FINE_SPAN}, {at} AS at_ms, {KEYS}, {SUMS} FROM flow f "
        f"JOIN snapshot s ON s.source = f.source AND s.id = f.snapshot WHERE f.source = ? AND f.snapshot < ? "
        f"GROUP BY at_ms, {KEYS}",
        (source, first),
    )
    db.execute(
        f"INSERT INTO rolled_snapshot SELECT source, {FINE_SPAN}, {at} AS at_ms, kind, user, count(*), min(id), "
        f"max(id), min(time_ms), max(time_ms), sum(delta_records), sum(changelog_records), max(live_files), "
        f"sum(live_files), max(manifests), sum(NOT identity_holds) FROM snapshot s WHERE source = ? AND id < ? "
        f"GROUP BY at_ms, kind, user",
        (source, first),
    )
    query = f"SELECT min({at}) FROM snapshot s WHERE source = ? AND id < ?"
    since = db.execute(query, (source, first)).fetchone()[0]
    db.execute("DELETE FROM flow WHERE source = ? AND snapshot < ?", (source, first))
    db.execute("DELETE FROM snapshot WHERE source = ? AND id < ?", (source, first))
    _merge(db, source, FINE_SPAN, since)


def _coarser(db: sqlite3.Connection, source: int, cut: int) -> None:
    """Sums of 5 minutes before `cut` as sums of an hour."""
    for table in ("rolled_flow", "rolled_snapshot"):
        old = f"FROM {table} WHERE source = ? AND span_ms = {FINE_SPAN} AND at_ms < ?"
        since = db.execute(f"SELECT min(at_ms) {old}", (source, cut)).fetchone()[0]
        if since is not None:
            db.execute(
                f"UPDATE {table} SET span_ms = {COARSE_SPAN}, at_ms = at_ms / {COARSE_SPAN} * {COARSE_SPAN} "
                f"WHERE source = ? AND span_ms = {FINE_SPAN} AND at_ms < ?",
                (source, cut),
            )
            _merge(db, source, COARSE_SPAN, since // COARSE_SPAN * COARSE_SPAN)


def _merge(db: sqlite3.Connection, source: int, span: int, since: int) -> None:
    """One row for each span from `since` on and key."""
    where = f"WHERE source = {source} AND span_ms = {span} AND at_ms >= {since}"
    flows = f"SELECT source, span_ms, at_ms, {KEYS}, {SUMS} FROM rolled_flow {where} GROUP BY at_ms, {KEYS}"
    snapshots = (
        "SELECT source, span_ms, at_ms, kind, user, sum(snapshots), min(first_id), max(last_id), min(first_ms), "
        "max(last_ms), sum(delta_records), sum(changelog_records), max(most_live_files), sum(live_file_sum), "
        f"max(most_manifests), sum(broken) FROM rolled_snapshot {where} GROUP BY at_ms, kind, user"
    )
    for table, query in (("rolled_flow", flows), ("rolled_snapshot", snapshots)):
        db.execute(f"CREATE TEMP TABLE merged AS {query}")
        db.execute(f"DELETE FROM {table} {where}")
        db.execute(f"INSERT INTO {table} SELECT * FROM merged")
        db.execute("DROP TABLE merged")


def _thin_stock(db: sqlite3.Connection, source: int, cut: int) -> None:
    """Of the looks before `cut`, the last of each 5 minutes."""
    db.execute(
        f"DELETE FROM stock WHERE source = ? AND taken_ms < ? AND rowid NOT IN (SELECT max(rowid) FROM stock "
        f"WHERE source = ? GROUP BY taken_ms / {FINE_SPAN})",
        (source, cut, source),
    )
