# SPDX-License-Identifier: Apache-2.0
"""The file that a history lives in: SQLite, one writer and many readers, with a version.

Invariants: the file is never inside a warehouse; what this version does not understand (a newer file, a damaged one,
another program's) is refused with a typed error and left as it is.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import BadRequest, Corrupt, ShoalError, StorageFailed, Unsupported

VERSION = 2
_OURS = 0x53484F4C  # "SHOL": SQLite keeps a number for the program that a file belongs to
# Flows name classes, partitions and tables by number: the names would be most of the file.
_TABLES = """
CREATE TABLE source (id INTEGER PRIMARY KEY, uri TEXT NOT NULL UNIQUE, name TEXT NOT NULL);
CREATE TABLE partition (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE snapshot (
    source INTEGER NOT NULL, id INTEGER NOT NULL, schema_id INTEGER NOT NULL, user TEXT NOT NULL,
    identifier INTEGER NOT NULL, kind TEXT NOT NULL, time_ms INTEGER NOT NULL, total_records INTEGER,
    delta_records INTEGER, changelog_records INTEGER, watermark INTEGER, operation TEXT, base_list TEXT NOT NULL,
    delta_list TEXT NOT NULL, wrote TEXT NOT NULL, manifests INTEGER NOT NULL, manifest_bytes INTEGER NOT NULL,
    entries INTEGER NOT NULL, dead_entries INTEGER NOT NULL, live_files INTEGER NOT NULL,
    identity_holds INTEGER NOT NULL, PRIMARY KEY (source, id)) WITHOUT ROWID;
CREATE INDEX snapshot_time ON snapshot (source, time_ms);
CREATE TABLE flow (
    source INTEGER NOT NULL, snapshot INTEGER NOT NULL, class INTEGER NOT NULL, change INTEGER NOT NULL,
    partition INTEGER NOT NULL, bucket INTEGER NOT NULL, total_buckets INTEGER, level INTEGER NOT NULL,
    files INTEGER NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL, deleted_rows INTEGER, min_sequence INTEGER,
    max_sequence INTEGER, extras INTEGER, largest INTEGER, small INTEGER);
CREATE INDEX flow_snapshot ON flow (source, snapshot);
CREATE TABLE start (
    source INTEGER NOT NULL, before INTEGER NOT NULL, known INTEGER NOT NULL, after_id INTEGER,
    after_lists TEXT, inherited TEXT NOT NULL, PRIMARY KEY (source, before)) WITHOUT ROWID;
CREATE TABLE state (
    source INTEGER NOT NULL, before INTEGER NOT NULL, partition INTEGER NOT NULL, bucket INTEGER NOT NULL,
    total_buckets INTEGER, level INTEGER NOT NULL, files INTEGER NOT NULL, bytes INTEGER NOT NULL,
    rows INTEGER NOT NULL, max_sequence INTEGER, extras INTEGER, small INTEGER);
CREATE INDEX state_before ON state (source, before);
CREATE TABLE schema (
    source INTEGER NOT NULL, id INTEGER NOT NULL, time_ms INTEGER NOT NULL, options TEXT NOT NULL,
    partition_keys TEXT NOT NULL, primary_keys TEXT NOT NULL, columns TEXT NOT NULL, present INTEGER NOT NULL,
    PRIMARY KEY (source, id)) WITHOUT ROWID;
CREATE TABLE stock (
    source INTEGER NOT NULL, taken_ms INTEGER NOT NULL, earliest INTEGER, latest INTEGER, holders TEXT NOT NULL,
    index_files TEXT NOT NULL, requests INTEGER NOT NULL, bytes_read INTEGER NOT NULL, partial INTEGER NOT NULL,
    notes TEXT NOT NULL, last INTEGER, small INTEGER);
CREATE INDEX stock_taken ON stock (source, taken_ms);
CREATE TABLE event (source INTEGER NOT NULL, time_ms INTEGER NOT NULL, kind TEXT NOT NULL, what TEXT NOT NULL,
    snapshot INTEGER);
CREATE INDEX event_time ON event (source, time_ms);
CREATE TABLE gap (source INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, kind TEXT NOT NULL,
    what TEXT NOT NULL, PRIMARY KEY (source, first)) WITHOUT ROWID;
CREATE TABLE rolled_flow (
    source INTEGER NOT NULL, span_ms INTEGER NOT NULL, at_ms INTEGER NOT NULL, class INTEGER NOT NULL,
    change INTEGER NOT NULL, partition INTEGER NOT NULL, bucket INTEGER NOT NULL, total_buckets INTEGER,
    level INTEGER NOT NULL, files INTEGER NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL,
    deleted_rows INTEGER, min_sequence INTEGER, max_sequence INTEGER, extras INTEGER, largest INTEGER, small INTEGER);
CREATE INDEX rolled_flow_at ON rolled_flow (source, span_ms, at_ms);
CREATE TABLE rolled_snapshot (
    source INTEGER NOT NULL, span_ms INTEGER NOT NULL, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, user TEXT NOT NULL,
    snapshots INTEGER NOT NULL, first_id INTEGER NOT NULL, last_id INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, delta_records INTEGER, changelog_records INTEGER, most_live_files INTEGER NOT NULL,
    live_file_sum INTEGER NOT NULL, most_manifests INTEGER NOT NULL, broken INTEGER NOT NULL);
CREATE INDEX rolled_snapshot_at ON rolled_snapshot (source, span_ms, at_ms);
CREATE TABLE record (source INTEGER NOT NULL, kind TEXT NOT NULL, time_ms INTEGER NOT NULL, key TEXT NOT NULL,
    value TEXT NOT NULL, PRIMARY KEY (source, kind, time_ms, key)) WITHOUT ROWID;
"""
# What a version has beyond the one before it, by its number: a new file gets all of them, an older one those it lacks.
_SINCE = {
    2: """
CREATE TABLE flink_job (
    source INTEGER NOT NULL, id TEXT NOT NULL, seen_ms INTEGER NOT NULL, name TEXT, state TEXT, started_ms INTEGER,
    flink TEXT, address TEXT NOT NULL, config TEXT NOT NULL, counts TEXT NOT NULL, durations TEXT NOT NULL,
    metrics TEXT NOT NULL, backpressure TEXT NOT NULL, dropped INTEGER NOT NULL, forgotten INTEGER,
    PRIMARY KEY (source, id)) WITHOUT ROWID;
CREATE TABLE flink_checkpoint (
    source INTEGER NOT NULL, job TEXT NOT NULL, id INTEGER NOT NULL, status TEXT NOT NULL, trigger_ms INTEGER NOT NULL,
    ack_ms INTEGER, duration_ms INTEGER, state_size INTEGER, savepoint INTEGER NOT NULL, failed_ms INTEGER,
    failure TEXT, PRIMARY KEY (source, job, id)) WITHOUT ROWID;
CREATE INDEX flink_checkpoint_trigger ON flink_checkpoint (source, trigger_ms);
""",
}


def default_path() -> Path:
    """Where a user's history lives: `$XDG_STATE_HOME/shoal/doctor.sqlite`, or the same below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME")
    top = Path(state) if state and os.path.isabs(state) else Path.home() / ".local" / "state"
    return top / "shoal" / "doctor.sqlite"


def check_outside(path: Path, uri: str) -> None:
    """`BadRequest` for a history file inside the warehouse of the table at `uri`: the doctor writes nothing there."""
    if uri.startswith("file:"):
        root = Path("/" + uri.removeprefix("file:").lstrip("/")).resolve()
        if root.parent.suffix == ".db":
            root = root.parent.parent
        if path.resolve().is_relative_to(root):
            raise BadRequest(
                f"the history file {path} lies inside {root}, where the doctor writes nothing",
                hint="name a file elsewhere with --history, or leave it out",
            )


def connect(path: Path) -> sqlite3.Connection:
    """The file, made when it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as err:
        raise StorageFailed(f"cannot open the history {path}: {err}", hint="name another file with --history") from err
    try:
        with told(path):
            _prepare(db, path)
    except ShoalError:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (version,), (owner,) = db.execute("PRAGMA user_version").fetchone(), db.execute("PRAGMA application_id").fetchone()
    if version > VERSION and owner == _OURS:
        raise Unsupported(
            f"the history {path} has version {version}, this shoal reads up to {VERSION}",
            hint="upgrade shoal, or name another file with --history",
        )
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != _OURS and tables:
        raise BadRequest(f"{path} is a SQLite file of another program", hint="name another file with --history")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if owner == _OURS and version == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    with contextlib.closing(db.execute("PRAGMA user_version")) as found:
        has = found.fetchone()[0]  # another process may have been faster
    missing = [] if has else [_TABLES]
    for script in [*missing, *(text for since, text in _SINCE.items() if since > has)]:
        for statement in script.split(";"):
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {_OURS}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as shoal's."""
    try:
        yield
    except sqlite3.OperationalError as err:
        raise StorageFailed(f"the history {path}: {err}", hint="another process may hold it; try again") from err
    except sqlite3.DatabaseError as err:
        raise Corrupt(
            f"the history {path} is damaged: {err}",
            hint="move it away; 'shoal doctor history --rebuild' fills a new one from what the table retains",
        ) from err


@contextlib.contextmanager
def writing(db: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction of the one writer: all of it or nothing."""
    with told(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
