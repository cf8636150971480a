# SPDX-License-Identifier: Apache-2.0
"""What was seen of tables, kept: windows go in as they are taken and come out equal, later and joined.

One file holds many tables (history_file.py); old history grows coarse (rollup.py). The state is kept where a chain of
looks begins and every few hundred snapshots, so a window from anywhere replays little.

Invariants: `window` gives what was sampled; two processes that look at one table leave what one would; nothing is
ever stored in the warehouse.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from shoal.doctor import history_jobs, rollup
from shoal.doctor.beside import Beside, Seen, probes_of
from shoal.doctor.history_file import connect, default_path, told, writing
from shoal.doctor.history_rows import (
    counts_of,
    counts_of_plain,
    counts_text,
    facts_of,
    plain_counts,
    plain_holder,
    row_of,
)
from shoal.doctor.query_log import Query
from shoal.doctor.take import Known
from shoal.doctor.window import (
    CHANGELOG,
    FLUSH,
    REMOVAL,
    REWRITE,
    UNSEEN,
    UPGRADE,
    Count,
    Event,
    FanIn,
    Gap,
    Holder,
    IndexFacts,
    Mark,
    Pins,
    SchemaFacts,
    SnapshotFacts,
    Stock,
    Window,
    advance,
    flow_fields,
    in_order,
    state_fields,
)
from shoal.errors import NotFound, near

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.flink import Job
    from shoal.doctor.freshness import Freshness

Kind = Literal["finding", "sentinel", "query_probe", "fix"]

_CLASSES = (FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG, UNSEEN)  # by number in the file: append only
# How many snapshots, or flow rows, are replayed at most from a kept state.
_STATE_EVERY, _STATE_EVERY_ROWS = 500, 20_000
_FLOW = (
    "class", "change", "partition", "bucket", "total_buckets", "level", "files", "bytes", "rows", "deleted_rows",
    "min_sequence", "max_sequence", "extras", "largest", "small",
)  # fmt: skip


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
            source = self._source(window.table, window.name)
            rolled = any(e.kind == "rollback" for e in window.events)
            if any(e.kind == "replaced" for e in window.events):
                self._cut(source, 0)
            if window.steps and not self._has_all(source, window):
                self._cut(source, _first(window))
                self._put_steps(db, source, window)
            elif not window.steps and (rolled or self._is_empty(source)):
                self._cut(source, _first(window))
                self._put_fresh(db, source, window)
            self._put_rest(db, source, window)

    def roll_up(self, now_ms: int) -> None:
        """Make coarse what is old by this time: see rollup.py."""
        with writing(self._db, self.path) as db:
            for (source,) in db.execute("SELECT id FROM source").fetchall():
                first = rollup.first_kept(db, source, now_ms)
                if first is not None:
                    # the end of one snapshot and the gaps after it: the state before the next that is kept
                    state = self._state_before(source, first)
                    after = self._mark_before(source, first)
                    db.execute("DELETE FROM start WHERE source = ? AND before <= ?", (source, first))
                    db.execute("DELETE FROM state WHERE source = ? AND before <= ?", (source, first))
                    self._put_start(db, source, first, state, after, {})
                    db.execute("DELETE FROM gap WHERE source = ? AND last < ?", (source, first))
                rollup.roll_up(db, source, first, now_ms)

    def record(self, table: str, kind: Kind, time_ms: int, key: str, value: object) -> None:
        """Keep a fact that no window holds, as JSON: a finding, a fix, a sentinel's or a probe's time."""
        self.record_all(table, kind, [(time_ms, key, value)])

    def record_all(self, table: str, kind: Kind, facts: Iterable[tuple[int, str, object]]) -> None:
        """Keep facts of one kind, each with its time and a key that no other of that time has."""
        with writing(self._db, self.path) as db:
            source = self._source(table, "")
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
            source = self._source(table, name)
            for e in history_jobs.put_job(db, source, job, now_ms):
                db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", (source, e.time_ms, e.kind, e.what, e.snapshot))

    def tell(self, table: str, name: str, events: Iterable[Event]) -> None:
        """Keep events that no look saw, such as a fix that was applied."""
        with writing(self._db, self.path) as db:
            source = self._source(table, name)
            db.executemany(
                "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
                [(source, e.time_ms, e.kind, e.what, e.snapshot) for e in events],
            )

    def forget(self, table: str) -> None:
        """Remove everything about a table."""
        with writing(self._db, self.path) as db:
            source = self._id(table)
            for name in (
                "snapshot", "flow", "start", "state", "schema", "stock", "event", "gap", "rolled_flow",
                "rolled_snapshot", "record", "flink_job", "flink_checkpoint",
            ):  # fmt: skip
                db.execute(f"DELETE FROM {name} WHERE source = ?", (source,))
            db.execute("DELETE FROM source WHERE id = ?", (source,))

    def _source(self, uri: str, name: str) -> int:
        self._db.execute(
            "INSERT INTO source (uri, name) VALUES (?, ?) ON CONFLICT (uri) DO UPDATE SET "
            "name = CASE WHEN excluded.name = '' THEN name ELSE excluded.name END",
            (uri, name),
        )
        return int(self._db.execute("SELECT id FROM source WHERE uri = ?", (uri,)).fetchone()[0])

    def _has_all(self, source: int, window: Window) -> bool:
        """Whether every step is here, so that another process saw them first."""
        wanted = {s.mark for s in window.steps}
        first, last = window.steps[0].id, window.steps[-1].id
        rows = self._db.execute(
            "SELECT id, base_list, delta_list FROM snapshot WHERE source = ? AND id BETWEEN ? AND ?",
            (source, first, last),
        )
        return wanted <= {Mark(i, (base, delta)) for i, base, delta in rows}

    def _cut(self, source: int, first: int) -> None:
        """Forget the snapshots from `first` on."""
        for table, column, at in (
            ("snapshot", "id", first), ("flow", "snapshot", first), ("gap", "first", first),
            ("start", "before", first + 1), ("state", "before", first + 1),
        ):  # fmt: skip
            self._db.execute(f"DELETE FROM {table} WHERE source = ? AND {column} >= ?", (source, at))

    def _put_steps(self, db: sqlite3.Connection, source: int, window: Window) -> None:
        """Steps, with the state before them unless what is kept leads to it."""
        stored = db.execute("SELECT max(id) FROM snapshot WHERE source = ?", (source,)).fetchone()[0]
        joins = stored is not None and window.after is not None and window.after.id == stored
        if not (joins and self._mark(source, stored) == window.after and self._knows_state(source, stored + 1)):
            self._put_fresh(db, source, window)
        db.executemany(
            f"INSERT INTO snapshot VALUES ({', '.join('?' * 21)})", [(source, *row_of(s)) for s in window.steps]
        )
        parts = self._partitions(db, [window.flows])
        names = ["snapshot", *_FLOW]
        columns = [self._coded(window.flows, n, parts) for n in names]
        db.executemany(
            f"INSERT INTO flow (source, {', '.join(names)}) VALUES ({source}, {', '.join('?' * len(names))})",
            zip(*columns),
        )
        self._put_state_sometimes(db, source, window)

    def _put_fresh(self, db: sqlite3.Connection, source: int, window: Window) -> None:
        first = window.steps[0].id if window.steps else _first(window)
        db.execute("DELETE FROM start WHERE source = ? AND before = ?", (source, first))
        db.execute("DELETE FROM state WHERE source = ? AND before = ?", (source, first))
        self._put_start(db, source, first, window.start, window.after, window.inherited)

    def _is_empty(self, source: int) -> bool:
        return self._db.execute("SELECT 1 FROM start WHERE source = ?", (source,)).fetchone() is None

    def _put_state_sometimes(self, db: sqlite3.Connection, source: int, window: Window) -> None:
        """The state after the last step, when many snapshots lie between it and the last one kept."""
        at = window.steps[-1].id + 1
        last = db.execute("SELECT max(before) FROM start WHERE source = ?", (source,)).fetchone()[0]
        rows = db.execute("SELECT count(*) FROM flow WHERE source = ? AND snapshot >= ?", (source, last)).fetchone()[0]
        if at - last >= _STATE_EVERY or rows >= _STATE_EVERY_ROWS:
            end = window.end
            if end is not None:
                self._put_start(db, source, at, end, window.steps[-1].mark, {})

    def _put_start(
        self, db: sqlite3.Connection, source: int, before: int, state: pa.Table | None, after: Mark | None,
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
            parts = self._partitions(db, [state])
            names = state_fields().names
            columns = [self._coded(state, n, parts) for n in names]
            db.executemany(
                f"INSERT INTO state (source, before, {', '.join(names)}) VALUES ({source}, {before}, "
                f"{', '.join('?' * len(names))})",
                zip(*columns),
            )

    def _put_rest(self, db: sqlite3.Connection, source: int, window: Window) -> None:
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

    def _partitions(self, db: sqlite3.Connection, tables: Sequence[pa.Table]) -> dict[str, int]:
        """Numbers of partitions, new ones too."""
        texts = {t for table in tables for t in table.column("partition").unique().to_pylist()}
        db.executemany("INSERT OR IGNORE INTO partition (text) VALUES (?)", [(t,) for t in sorted(texts)])
        found: dict[str, int] = {}
        for text in texts:
            found[text] = db.execute("SELECT id FROM partition WHERE text = ?", (text,)).fetchone()[0]
        return found

    @staticmethod
    def _coded(table: pa.Table, name: str, partitions: Mapping[str, int]) -> list[Any]:
        values: list[Any] = table.column(name).to_pylist()
        if name == "partition":
            return [partitions[v] for v in values]
        return [_CLASSES.index(v) for v in values] if name == "class" else values

    # ---- reading

    def tables(self) -> dict[str, str]:
        """Address and name of every table that has a history."""
        with told(self.path):
            return dict(self._db.execute("SELECT uri, name FROM source ORDER BY uri").fetchall())

    def known(self, table: str, *, than: Known | None = None) -> Known:
        """Where the looks at a table ended: what the next look goes on from; `than` when nothing was added to it."""
        with told(self.path), self._at_once():
            source = self._id(table, missing_ok=True)
            if source is None:
                return Known()
            row = self._db.execute(
                "SELECT id, time_ms FROM snapshot WHERE source = ? ORDER BY id DESC LIMIT 1", (source,)
            ).fetchone()
            schemas = self._schemas(source)
            if row is None:
                return Known(schemas=schemas)
            last, time = row
            if than is not None and than.last is not None and than.last == self._mark(source, last):
                return replace(than, mark_of=lambda i: self._mark(source, i))
            small = self._db.execute(
                "SELECT small FROM stock WHERE source = ? ORDER BY rowid DESC LIMIT 1", (source,)
            ).fetchone()
            state = self._state_before(source, last + 1)
            return Known(
                self._mark(source, last), time, state, schemas, None if small is None else small[0],
                lambda i: self._mark(source, i),
            )  # fmt: skip

    def window(
        self, table: str, first: int | None = None, last: int | None = None, *, since_ms: int | None = None
    ) -> Window:
        """What was seen of the snapshots from `first` to `last`, or from the time `since_ms` on."""
        with told(self.path), self._at_once():
            source = self._id(table)
            assert source is not None
            if since_ms is not None:
                found = self._db.execute(
                    "SELECT min(id) FROM snapshot WHERE source = ? AND time_ms >= ?", (source, since_ms)
                ).fetchone()[0]
                first = max(first or 0, found) if found is not None else (1 << 62)
            return self._window(source, table, first, last)

    def _window(self, source: int, table: str, first: int | None, last: int | None) -> Window:
        steps = self._steps(source, first, last)
        low = first
        if steps:
            low = steps[0].id
        elif first is None:
            row = self._db.execute("SELECT max(before) FROM start WHERE source = ?", (source,)).fetchone()
            low = row[0]
        flows = self._flows(source, steps)
        start = None if low is None else self._state_before(source, low)
        row = None
        if low is not None:
            row = self._db.execute(
                "SELECT after_id, after_lists, inherited FROM start WHERE source = ? AND before = ?", (source, low)
            ).fetchone()
        after, inherited = None if low is None else self._mark_before(source, low), {}
        if row is not None:
            inherited = counts_of(row[2])
            if after is None and row[0] is not None:
                after = Mark(row[0], None if row[1] is None else cast(Any, tuple(json.loads(row[1]))))
        stock, notes, small, taken = self._stock(source, last)
        name = self._db.execute("SELECT name FROM source WHERE id = ?", (source,)).fetchone()[0]
        from_ms = steps[0].time_ms if first is not None and steps else None
        gaps = self._gaps(source, low if first is not None else None, last)
        return Window(
            table, name, steps, flows, start, self._schemas(source), stock, after, gaps,
            self._events(source, from_ms, taken), notes, inherited, small,
        )  # fmt: skip

    def trend(self, table: str, since_ms: int | None = None) -> pa.Table:
        """Flows of all ages by time: raw ones summed to 5 minutes, older ones as they are kept.

        Columns: span_ms, at_ms, then those of a window's flows without the snapshot.
        """
        import pyarrow as pa

        with told(self.path), self._at_once():
            source = self._id(table)
            keys, sums = rollup.KEYS, rollup.SUMS
            at = f"s.time_ms / {rollup.FINE_SPAN} * {rollup.FINE_SPAN}"
            rows = self._db.execute(
                f"SELECT span_ms, at_ms, {keys}, {sums} FROM (SELECT span_ms, at_ms, {', '.join(_FLOW)} FROM "
                f"rolled_flow WHERE source = ? UNION ALL SELECT {rollup.FINE_SPAN}, {at}, {', '.join(_FLOW)} FROM flow "
                "JOIN snapshot s ON s.source = flow.source AND s.id = flow.snapshot WHERE flow.source = ?) "
                f"WHERE at_ms >= ? GROUP BY span_ms, at_ms, {keys} ORDER BY at_ms, {keys}",
                (source, source, since_ms if since_ms is not None else -(1 << 62)),
            ).fetchall()
            fields = [pa.field("span_ms", pa.int64()), pa.field("at_ms", pa.int64())]
            fields += [flow_fields().field(n) for n in _FLOW]
            return self._table(rows, pa.schema(fields))

    def records(self, table: str, kind: Kind, since_ms: int = 0) -> list[tuple[int, str, Any]]:
        """(time, key, value) of what `record` kept, oldest first."""
        with told(self.path):
            source = self._id(table, missing_ok=True)
            rows = self._db.execute(
                "SELECT time_ms, key, value FROM record WHERE source = ? AND kind = ? AND time_ms >= ? "
                "ORDER BY time_ms, key",
                (source, kind, since_ms),
            )
            return [(t, k, json.loads(v)) for t, k, v in rows]

    def job(self, table: str, since_ms: int | None = None) -> Job | None:
        """The Flink job that was seen to write the table last, with its checkpoints that are kept, since a time.

        Its metrics are left out where they are older than the last look by more than ten minutes.
        """
        with told(self.path), self._at_once():
            source = self._id(table, missing_ok=True)
            if source is None:
                return None
            query = "SELECT max(taken_ms) FROM stock WHERE source = ?"
            looked = self._db.execute(query, (source,)).fetchone()[0]
            return history_jobs.job_of(self._db, source, since_ms, looked)

    def beside(self, table: str, since_ms: int | None = None) -> Beside:
        """What is kept of a table beside its snapshots, since a time."""
        since = -(1 << 62) if since_ms is None else since_ms
        with told(self.path), self._at_once():
            source = self._id(table, missing_ok=True)
            looks = self._db.execute(
                "SELECT taken_ms, earliest, latest FROM stock WHERE source = ? AND taken_ms >= ? "
                "ORDER BY taken_ms, rowid",
                (source, since),
            ).fetchall()
            probes = probes_of(value for _, _, value in self.records(table, "sentinel", since))
            queries = tuple(Query(t, *value) for t, _, value in self.records(table, "query_probe", since))
        return Beside(tuple(Seen(*row) for row in looks), probes, queries)

    def _at_once(self) -> _Reading:
        return _Reading(self._db)

    def _id(self, table: str, *, missing_ok: bool = False) -> int | None:
        row = self._db.execute("SELECT id FROM source WHERE uri = ?", (table,)).fetchone()
        if row is not None:
            return int(row[0])
        if missing_ok:
            return None
        known = [u for (u,) in self._db.execute("SELECT uri FROM source")]
        raise NotFound(
            f"{self.path} has no history of {table}",
            hint=near(table, known)
            or "'shoal doctor history DB.TABLE --rebuild' makes one from what the table retains",
        )

    def _mark(self, source: int, snapshot: int) -> Mark | None:
        row = self._db.execute(
            "SELECT base_list, delta_list FROM snapshot WHERE source = ? AND id = ?", (source, snapshot)
        ).fetchone()
        return None if row is None else Mark(snapshot, (row[0], row[1]))

    def _mark_before(self, source: int, snapshot: int) -> Mark | None:
        row = self._db.execute(
            "SELECT max(id) FROM snapshot WHERE source = ? AND id < ?", (source, snapshot)
        ).fetchone()
        if row[0] is not None:
            return self._mark(source, row[0])
        row = self._db.execute(
            "SELECT after_id, after_lists FROM start WHERE source = ? AND before = ?", (source, snapshot)
        ).fetchone()
        if row is None or row[0] is None:
            return None
        return Mark(row[0], None if row[1] is None else cast(Any, tuple(json.loads(row[1]))))

    def _steps(self, source: int, first: int | None, last: int | None) -> tuple[SnapshotFacts, ...]:
        rows = self._db.execute(
            "SELECT * FROM snapshot WHERE source = ? AND id BETWEEN ? AND ? ORDER BY id",
            (source, -1 if first is None else first, (1 << 62) if last is None else last),
        )
        return tuple(facts_of(r[1:]) for r in rows)

    def _flows(self, source: int, steps: Sequence[SnapshotFacts]) -> pa.Table:
        if not steps:
            return flow_fields().empty_table()
        return self._flows_between(source, steps[0].id, steps[-1].id)

    def _flows_between(self, source: int, first: int, last: int) -> pa.Table:
        rows = self._db.execute(
            f"SELECT snapshot, {', '.join(_FLOW)} FROM flow WHERE source = ? AND snapshot BETWEEN ? AND ?",
            (source, first, last),
        ).fetchall()
        return in_order(self._table(rows, flow_fields()))

    def _table(self, rows: Sequence[Sequence[Any]], fields: pa.Schema) -> pa.Table:
        import pyarrow as pa

        if not rows:
            return fields.empty_table()
        columns = dict(zip(fields.names, zip(*rows)))
        if "class" in columns:
            columns["class"] = tuple(_CLASSES[c] for c in columns["class"])
        wanted = set(columns["partition"])
        texts = {}
        for i in wanted:
            texts[i] = self._db.execute("SELECT text FROM partition WHERE id = ?", (i,)).fetchone()[0]
        columns["partition"] = tuple(texts[i] for i in columns["partition"])
        return pa.table([pa.array(columns[f.name], f.type) for f in fields], fields)

    def _knows_state(self, source: int, before: int) -> bool:
        row = self._db.execute(
            "SELECT known FROM start WHERE source = ? AND before <= ? ORDER BY before DESC LIMIT 1", (source, before)
        ).fetchone()
        return row is not None and bool(row[0])

    def _state_at(self, source: int, before: int) -> pa.Table:
        names = state_fields().names
        rows = self._db.execute(
            f"SELECT {', '.join(names)} FROM state WHERE source = ? AND before = ?", (source, before)
        ).fetchall()
        return self._table(rows, state_fields()).sort_by([(n, "ascending") for n in names[:4]]).combine_chunks()

    def _state_before(self, source: int, snapshot: int) -> pa.Table | None:
        """The state before a snapshot, replayed from the last kept one; None when it is not known."""
        row = self._db.execute(
            "SELECT before, known FROM start WHERE source = ? AND before <= ? ORDER BY before DESC LIMIT 1",
            (source, snapshot),
        ).fetchone()
        if row is None or not row[1]:
            return None
        state = self._state_at(source, row[0])
        if row[0] == snapshot:
            return state
        return advance(state, self._flows_between(source, row[0], snapshot - 1))

    def _schemas(self, source: int) -> tuple[SchemaFacts, ...]:
        rows = self._db.execute(
            "SELECT id, time_ms, options, partition_keys, primary_keys, columns FROM schema WHERE source = ? "
            "AND present ORDER BY id",
            (source,),
        )
        return tuple(
            SchemaFacts(i, t, json.loads(o), *(tuple(json.loads(x)) for x in (part, keys, columns)))
            for i, t, o, part, keys, columns in rows
        )

    def _stock(self, source: int, last: int | None) -> tuple[Stock, dict[str, str], int | None, int | None]:
        """The look that saw `last`, or the newest one; its notes, its small size, and its time when it is not."""
        at = None
        if last is not None:
            at = self._db.execute(
                "SELECT min(rowid) FROM stock WHERE source = ? AND last >= ?", (source, last)
            ).fetchone()[0]
        newest = self._db.execute("SELECT max(rowid) FROM stock WHERE source = ?", (source,)).fetchone()[0]
        row = self._db.execute("SELECT * FROM stock WHERE rowid = ?", (newest if at is None else at,)).fetchone()
        if row is None:
            return Stock(0, None, None, (), IndexFacts({}, 0, 0), 0, 0), {}, None, None
        _, taken, earliest, latest, holders, index, requests, size, partial, notes, _, small = row
        facts = json.loads(index)
        stock = Stock(
            taken, earliest, latest, tuple(Holder(*h) for h in json.loads(holders)),
            IndexFacts(counts_of_plain(facts["files"]), facts["marked_rows"], facts["vectors"]), requests, size,
            bool(partial), msgspec.convert(facts.get("pins"), Pins | None),
            msgspec.convert(facts.get("fan_in"), FanIn | None),
        )  # fmt: skip
        return stock, json.loads(notes), small, None if at is None or at == newest else taken

    def _events(self, source: int, from_ms: int | None, until_ms: int | None) -> tuple[Event, ...]:
        rows = self._db.execute(
            "SELECT time_ms, kind, what, snapshot FROM event WHERE source = ? AND time_ms BETWEEN ? AND ? "
            "ORDER BY time_ms, rowid",
            (source, -(1 << 62) if from_ms is None else from_ms, (1 << 62) if until_ms is None else until_ms),
        )
        return tuple(Event(*r) for r in rows)

    def _gaps(self, source: int, first: int | None, last: int | None) -> tuple[Gap, ...]:
        rows = self._db.execute(
            "SELECT first, last, kind, what FROM gap WHERE source = ? AND last >= ? AND first <= ? ORDER BY first",
            (source, -1 if first is None else first, (1 << 62) if last is None else last),
        )
        return tuple(Gap(*r) for r in rows)


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


def _first(window: Window) -> int:
    """The id at which a window begins."""
    if window.steps:
        return window.steps[0].id if window.after is None else min(window.steps[0].id, window.after.id + 1)
    return 0 if window.after is None else window.after.id + 1
