# SPDX-License-Identifier: Apache-2.0
"""What a history file has of one table, read back as it was sampled: windows, the state before a snapshot, trends.

A state is replayed from the last one that is kept before it. Functions of an open connection, in whatever transaction
it is. Invariant: what comes out equals what a look saw, rows in the same order.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from shoal.doctor import rollup
from shoal.doctor.beside import Beside, Seen, probes_of
from shoal.doctor.history_rows import CLASSES, FLOW, counts_of, counts_of_plain, facts_of
from shoal.doctor.query_log import Query
from shoal.doctor.take import Known
from shoal.doctor.window import (
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
)  # fmt: skip

if TYPE_CHECKING:
    import pyarrow as pa


def mark(db: sqlite3.Connection, source: int, snapshot: int) -> Mark | None:
    row = db.execute(
        "SELECT base_list, delta_list FROM snapshot WHERE source = ? AND id = ?", (source, snapshot)
    ).fetchone()
    return None if row is None else Mark(snapshot, (row[0], row[1]))


def mark_before(db: sqlite3.Connection, source: int, snapshot: int) -> Mark | None:
    row = db.execute("SELECT max(id) FROM snapshot WHERE source = ? AND id < ?", (source, snapshot)).fetchone()
    if row[0] is not None:
        return mark(db, source, row[0])
    row = db.execute(
        "SELECT after_id, after_lists FROM start WHERE source = ? AND before = ?", (source, snapshot)
    ).fetchone()
    if row is None or row[0] is None:
        return None
    return Mark(row[0], None if row[1] is None else cast(Any, tuple(json.loads(row[1]))))


def steps_of(db: sqlite3.Connection, source: int, first: int | None, last: int | None) -> tuple[SnapshotFacts, ...]:
    rows = db.execute(
        "SELECT * FROM snapshot WHERE source = ? AND id BETWEEN ? AND ? ORDER BY id",
        (source, -1 if first is None else first, (1 << 62) if last is None else last),
    )
    return tuple(facts_of(r[1:]) for r in rows)


def flows_of(db: sqlite3.Connection, source: int, steps: Sequence[SnapshotFacts]) -> pa.Table:
    if not steps:
        return flow_fields().empty_table()
    return flows_between(db, source, steps[0].id, steps[-1].id)


def flows_between(db: sqlite3.Connection, source: int, first: int, last: int) -> pa.Table:
    rows = db.execute(
        f"SELECT snapshot, {', '.join(FLOW)} FROM flow WHERE source = ? AND snapshot BETWEEN ? AND ?",
        (source, first, last),
    ).fetchall()
    return in_order(table_of(db, rows, flow_fields()))


def table_of(db: sqlite3.Connection, rows: Sequence[Sequence[Any]], fields: pa.Schema) -> pa.Table:
    import pyarrow as pa

    if not rows:
        return fields.empty_table()
    columns = dict(zip(fields.names, zip(*rows)))
    if "class" in columns:
        columns["class"] = tuple(CLASSES[c] for c in columns["class"])
    wanted = set(columns["partition"])
    texts = {}
    for i in wanted:
        texts[i] = db.execute("SELECT text FROM partition WHERE id = ?", (i,)).fetchone()[0]
    columns["partition"] = tuple(texts[i] for i in columns["partition"])
    return pa.table([pa.array(columns[f.name], f.type) for f in fields], fields)


def knows_state(db: sqlite3.Connection, source: int, before: int) -> bool:
    row = db.execute(
        "SELECT known FROM start WHERE source = ? AND before <= ? ORDER BY before DESC LIMIT 1", (source, before)
    ).fetchone()
    return row is not None and bool(row[0])


def _state_at(db: sqlite3.Connection, source: int, before: int) -> pa.Table:
    names = state_fields().names
    rows = db.execute(
        f"SELECT {', '.join(names)} FROM state WHERE source = ? AND before = ?", (source, before)
    ).fetchall()
    return table_of(db, rows, state_fields()).sort_by([(n, "ascending") for n in names[:4]]).combine_chunks()


def state_before(db: sqlite3.Connection, source: int, snapshot: int) -> pa.Table | None:
    """The state before a snapshot, replayed from the last kept one; None when it is not known."""
    row = db.execute(
        "SELECT before, known FROM start WHERE source = ? AND before <= ? ORDER BY before DESC LIMIT 1",
        (source, snapshot),
    ).fetchone()
    if row is None or not row[1]:
        return None
    state = _state_at(db, source, row[0])
    if row[0] == snapshot:
        return state
    return advance(state, flows_between(db, source, row[0], snapshot - 1))


def schemas_of(db: sqlite3.Connection, source: int) -> tuple[SchemaFacts, ...]:
    rows = db.execute(
        "SELECT id, time_ms, options, partition_keys, primary_keys, columns FROM schema WHERE source = ? "
        "AND present ORDER BY id",
        (source,),
    )
    return tuple(
        SchemaFacts(i, t, json.loads(o), *(tuple(json.loads(x)) for x in (part, keys, columns)))
        for i, t, o, part, keys, columns in rows
    )


def _stock(
    db: sqlite3.Connection, source: int, last: int | None
) -> tuple[Stock, dict[str, str], int | None, int | None]:
    """The look that saw `last`, or the newest one; its notes, its small size, and its time when it is not."""
    at = None
    if last is not None:
        at = db.execute("SELECT min(rowid) FROM stock WHERE source = ? AND last >= ?", (source, last)).fetchone()[0]
    newest = db.execute("SELECT max(rowid) FROM stock WHERE source = ?", (source,)).fetchone()[0]
    row = db.execute("SELECT * FROM stock WHERE rowid = ?", (newest if at is None else at,)).fetchone()
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


def _events(db: sqlite3.Connection, source: int, from_ms: int | None, until_ms: int | None) -> tuple[Event, ...]:
    rows = db.execute(
        "SELECT time_ms, kind, what, snapshot FROM event WHERE source = ? AND time_ms BETWEEN ? AND ? "
        "ORDER BY time_ms, rowid",
        (source, -(1 << 62) if from_ms is None else from_ms, (1 << 62) if until_ms is None else until_ms),
    )
    return tuple(Event(*r) for r in rows)


def _gaps(db: sqlite3.Connection, source: int, first: int | None, last: int | None) -> tuple[Gap, ...]:
    rows = db.execute(
        "SELECT first, last, kind, what FROM gap WHERE source = ? AND last >= ? AND first <= ? ORDER BY first",
        (source, -1 if first is None else first, (1 << 62) if last is None else last),
    )
    return tuple(Gap(*r) for r in rows)


def window_of(db: sqlite3.Connection, source: int, table: str, first: int | None, last: int | None) -> Window:
    steps = steps_of(db, source, first, last)
    low = first
    if steps:
        low = steps[0].id
    elif first is None:
        row = db.execute("SELECT max(before) FROM start WHERE source = ?", (source,)).fetchone()
        low = row[0]
    flows = flows_of(db, source, steps)
    start = None if low is None else state_before(db, source, low)
    row = None
    if low is not None:
        row = db.execute(
            "SELECT after_id, after_lists, inherited FROM start WHERE source = ? AND before = ?", (source, low)
        ).fetchone()
    after, inherited = None if low is None else mark_before(db, source, low), {}
    if row is not None:
        inherited = counts_of(row[2])
        if after is None and row[0] is not None:
            after = Mark(row[0], None if row[1] is None else cast(Any, tuple(json.loads(row[1]))))
    stock, notes, small, taken = _stock(db, source, last)
    name = db.execute("SELECT name FROM source WHERE id = ?", (source,)).fetchone()[0]
    from_ms = steps[0].time_ms if first is not None and steps else None
    gaps = _gaps(db, source, low if first is not None else None, last)
    return Window(
        table, name, steps, flows, start, schemas_of(db, source), stock, after, gaps,
        _events(db, source, from_ms, taken), notes, inherited, small,
    )  # fmt: skip


def known_of(db: sqlite3.Connection, source: int, than: Known | None) -> Known:
    """Where the looks at a table ended; `than` when nothing was added to it."""
    row = db.execute("SELECT id, time_ms FROM snapshot WHERE source = ? ORDER BY id DESC LIMIT 1", (source,)).fetchone()
    schemas = schemas_of(db, source)
    if row is None:
        return Known(schemas=schemas)
    last, time = row
    if than is not None and than.last is not None and than.last == mark(db, source, last):
        return replace(than, mark_of=lambda i: mark(db, source, i))
    small = db.execute("SELECT small FROM stock WHERE source = ? ORDER BY rowid DESC LIMIT 1", (source,)).fetchone()
    state = state_before(db, source, last + 1)
    return Known(
        mark(db, source, last), time, state, schemas, None if small is None else small[0],
        lambda i: mark(db, source, i),
    )  # fmt: skip


def first_since(db: sqlite3.Connection, source: int, since_ms: int) -> int:
    """The first snapshot from a time on; an id that none has where there is none."""
    found = db.execute("SELECT min(id) FROM snapshot WHERE source = ? AND time_ms >= ?", (source, since_ms)).fetchone()[
        0
    ]
    return (1 << 62) if found is None else int(found)


def trend_of(db: sqlite3.Connection, source: int, since_ms: int | None) -> pa.Table:
    """Flows of all ages by time: see `HistoryStore.trend`."""
    import pyarrow as pa

    keys, sums = rollup.KEYS, rollup.SUMS
    at = f"s.time_ms / {rollup.FINE_SPAN} * {rollup.FINE_SPAN}"
    rows = db.execute(
        f"SELECT span_ms, at_ms, {keys}, {sums} FROM (SELECT span_ms, at_ms, {', '.join(FLOW)} FROM "
        f"rolled_flow WHERE source = ? UNION ALL SELECT {rollup.FINE_SPAN}, {at}, {', '.join(FLOW)} FROM flow "
        "JOIN snapshot s ON s.source = flow.source AND s.id = flow.snapshot WHERE flow.source = ?) "
        f"WHERE at_ms >= ? GROUP BY span_ms, at_ms, {keys} ORDER BY at_ms, {keys}",
        (source, source, since_ms if since_ms is not None else -(1 << 62)),
    ).fetchall()
    fields = [pa.field("span_ms", pa.int64()), pa.field("at_ms", pa.int64())]
    fields += [flow_fields().field(n) for n in FLOW]
    return table_of(db, rows, pa.schema(fields))


def records_of(db: sqlite3.Connection, source: int, kind: str, since_ms: int) -> list[tuple[int, str, Any]]:
    """(time, key, value) of one kind of facts, oldest first."""
    rows = db.execute(
        "SELECT time_ms, key, value FROM record WHERE source = ? AND kind = ? AND time_ms >= ? ORDER BY time_ms, key",
        (source, kind, since_ms),
    )
    return [(t, k, json.loads(v)) for t, k, v in rows]


def beside_of(db: sqlite3.Connection, source: int, since_ms: int) -> Beside:
    """What is kept of a table beside its snapshots, from a time on."""
    looks = db.execute(
        "SELECT taken_ms, earliest, latest FROM stock WHERE source = ? AND taken_ms >= ? ORDER BY taken_ms, rowid",
        (source, since_ms),
    ).fetchall()
    probes = probes_of(value for _, _, value in records_of(db, source, "sentinel", since_ms))
    queries = tuple(Query(t, *value) for t, _, value in records_of(db, source, "query_probe", since_ms))
    return Beside(tuple(Seen(*row) for row in looks), probes, queries)
