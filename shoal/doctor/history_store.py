# SPDX-License-Identifier: Apache-2.0
"""What was seen of tables, kept: windows go in as they are taken and come out equal, later and joined.

One file holds many tables (history_file.py); looks go in by history_writes.py and come out by history_reads.py; old
history grows coarse (rollup.py). Here is who may do so, and each in one transaction.

Invariants: `window` gives what was sampled; two processes that look at one table leave what one would; nothing is
ever stored in the warehouse.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.doctor import history_jobs, history_reads, history_writes, rollup
from shoal.doctor.beside import Beside
from shoal.doctor.history_file import connect, default_path, told, writing
from shoal.doctor.query_log import Query
from shoal.doctor.take import Known
from shoal.doctor.window import Event, Window
from shoal.errors import NotFound, near

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.flink import Job
    from shoal.doctor.freshness import Freshness

Kind = Literal["finding", "sentinel", "query_probe", "fix"]


class HistoryStore:
    """The history at `path`, or the user's own. A context manager; one for each thread."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self._db = connect(self.path)

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # ---- writing

    def append(self, window: Window) -> None:
        """Keep what a look saw. Snapshots that it shows to be rolled back go; what is there already stays."""
        with writing(self._db, self.path) as db:
            history_writes.put_window(db, history_writes.source_of(db, window.table, window.name), window)

    def roll_up(self, now_ms: int) -> None:
        """Make coarse what is old by this time: see rollup.py."""
        with writing(self._db, self.path) as db:
            for (source,) in db.execute("SELECT id FROM source").fetchall():
                first = rollup.first_kept(db, source, now_ms)
                if first is not None:
                    history_writes.begin_at(db, source, first)
                rollup.roll_up(db, source, first, now_ms)

    def record(self, table: str, kind: Kind, time_ms: int, key: str, value: object) -> None:
        """Keep a fact that no window holds, as JSON: a finding, a fix, a sentinel's or a probe's time."""
        self.record_all(table, kind, [(time_ms, key, value)])

    def record_all(self, table: str, kind: Kind, facts: Iterable[tuple[int, str, object]]) -> None:
        """Keep facts of one kind, each with its time and a key that no other of that time has."""
        with writing(self._db, self.path) as db:
            source = history_writes.source_of(db, table, "")
            rows = [(source, kind, time, key, json.dumps(value)) for time, key, value in facts]
            db.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?)", rows)

    def keep_freshness(self, table: str, found: Freshness, now_ms: int) -> None:
        """Keep how old rows were at their commit and when they were read, where that was measured."""
        from shoal.doctor.beside import sentinel_of

        measured = sentinel_of(found)
        if measured:
            self.record(table, "sentinel", now_ms, "rows", measured)

    def keep_queries(self, table: str, queries: Iterable[Query]) -> None:
        """Keep timed queries; the same query twice is one."""
        facts = [(q.at_ms, f"{q.duration_ms:g} {q.files}", [q.duration_ms, q.files]) for q in queries]
        self.record_all(table, "query_probe", facts)

    def keep_job(self, table: str, name: str, job: Job, now_ms: int) -> None:
        """Keep what a Flink job that writes the table said by `now_ms`."""
        with writing(self._db, self.path) as db:
            source = history_writes.source_of(db, table, name)
            history_writes.put_events(db, source, history_jobs.put_job(db, source, job, now_ms))

    def tell(self, table: str, name: str, events: Iterable[Event]) -> None:
        """Keep events that no look saw, such as a fix that was applied."""
        with writing(self._db, self.path) as db:
            history_writes.put_events(db, history_writes.source_of(db, table, name), events)

    def forget(self, table: str) -> None:
        """Remove everything about a table."""
        with writing(self._db, self.path) as db:
            history_writes.forget(db, self._id(table))

    # ---- reading

    def tables(self) -> dict[str, str]:
        """Address and name of every table that has a history."""
        with told(self.path):
            return dict(self._db.execute("SELECT uri, name FROM source ORDER BY uri").fetchall())

    def known(self, table: str, *, than: Known | None = None) -> Known:
        """Where the looks at a table ended: what the next look goes on from; `than` when nothing was added to it."""
        with told(self.path), self._at_once():
            source = self._found(table)
            return Known() if source is None else history_reads.known_of(self._db, source, than)

    def window(
        self, table: str, first: int | None = None, last: int | None = None, *, since_ms: int | None = None
    ) -> Window:
        """What was seen of the snapshots from `first` to `last`, or from the time `since_ms` on."""
        with told(self.path), self._at_once():
            source = self._id(table)
            if since_ms is not None:
                first = max(first or 0, history_reads.first_since(self._db, source, since_ms))
            return history_reads.window_of(self._db, source, table, first, last)

    def trend(self, table: str, since_ms: int | None = None) -> pa.Table:
        """Flows of all ages by time: raw ones summed to 5 minutes, older ones as they are kept.

        Columns: span_ms, at_ms, then those of a window's flows without the snapshot.
        """
        with told(self.path), self._at_once():
            return history_reads.trend_of(self._db, self._id(table), since_ms)

    def records(self, table: str, kind: Kind, since_ms: int = 0) -> list[tuple[int, str, Any]]:
        """(time, key, value) of what `record` kept, oldest first."""
        with told(self.path):
            source = self._found(table)
            return [] if source is None else history_reads.records_of(self._db, source, kind, since_ms)

    def job(self, table: str, since_ms: int | None = None) -> Job | None:
        """The Flink job that was seen to write the table last, with its checkpoints that are kept, since a time.

        Its metrics are left out where they are older than the last look by more than ten minutes.
        """
        with told(self.path), self._at_once():
            source = self._found(table)
            if source is None:
                return None
            query = "SELECT max(taken_ms) FROM stock WHERE source = ?"
            looked = self._db.execute(query, (source,)).fetchone()[0]
            return history_jobs.job_of(self._db, source, since_ms, looked)

    def beside(self, table: str, since_ms: int | None = None) -> Beside:
        """What is kept of a table beside its snapshots, since a time."""
        with told(self.path), self._at_once():
            source = self._found(table)
            if source is None:
                return Beside()
            return history_reads.beside_of(self._db, source, -(1 << 62) if since_ms is None else since_ms)

    def _at_once(self) -> _Reading:
        return _Reading(self._db)

    def _found(self, table: str) -> int | None:
        row = self._db.execute("SELECT id FROM source WHERE uri = ?", (table,)).fetchone()
        return None if row is None else int(row[0])

    def _id(self, table: str) -> int:
        source = self._found(table)
        if source is not None:
            return source
        known = [u for (u,) in self._db.execute("SELECT uri FROM source")]
        raise NotFound(
            f"{self.path} has no history of {table}",
            hint=near(table, known)
            or "'shoal doctor history DB.TABLE --rebuild' makes one from what the table retains",
        )


class _Reading:
    """One read transaction, so that a writer beside it changes nothing halfway."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")
