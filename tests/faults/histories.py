# SPDX-License-Identifier: Apache-2.0
"""Small histories of every kind of table, each with a model of its rows, run by a process that may die at any step.

Steps are text: `w` a checkpoint, `f` one whose rows are flushed half-way, `compact`, `full` and `sort` a compaction by
another process, `rescale n` one while the writer is away, `over a` an overwrite of a partition, `drop a`, `tag x`,
`delete` a DELETE, `update` an UPDATE.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.walk import left_over, missing

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64()), ("w", pa.int64())])
START = 1_767_225_600_000
USER = "job"

Row = tuple[str, int, int | None, int | None]
Rows = list[Row]
Key = tuple[Any, ...]


# ---- engines, as functions from the old row and the new one


def newest(old: Row | None, new: Row) -> Row:
    return new


def partial(old: Row | None, new: Row) -> Row:
    if old is None:
        return new
    return (new[0], new[1], *(o if n is None else n for o, n in zip(old[2:], new[2:])))  # type: ignore[return-value]


def added(old: Row | None, new: Row) -> Row:
    if old is None:
        return new
    v, w = [n if o is None else o if n is None else f(o, n) for f, o, n in zip((int.__add__, max), old[2:], new[2:])]
    return (*new[:2], v, w)


def first(old: Row | None, new: Row) -> Row:
    return new if old is None else old


@dataclass(frozen=True)
class Kind:
    """A kind of table: its options, what its rows become, and what happens to it."""

    name: str
    options: dict[str, object]
    steps: str
    key: tuple[str, ...] = ("dt", "k")
    partitions: tuple[str, ...] = ("dt",)
    fold: Callable[[Row | None, Row], Row] = newest
    deletes: bool = True
    changelog: str = ""
    """The producer, where the stream of changes is held against the rows."""
    told_by: Literal["each checkpoint", "others", "the end"] = "each checkpoint"
    """When the stream equals the rows: after each checkpoint, after each compaction of another process, at the end."""
    late: bool = False
    """After a death the changes of a bucket are told when it is compacted next: not with each checkpoint."""
    reads: dict[str, object] = field(default_factory=dict)

    @property
    def doings(self) -> list[str]:
        return [s.strip() for s in self.steps.split(",")]

    @property
    def expires(self) -> bool:
        return "snapshot.num-retained.max" in self.options

    def key_of(self, row: Row) -> Key:
        return tuple(row[SCHEMA.names.index(c)] for c in self.key)


def batch(kind: Kind, step: int) -> tuple[Rows, Rows]:
    """(rows, rows to delete) of a checkpoint: the same in every run. Every partition gets some."""
    rnd = random.Random(step)
    null = kind.fold is not newest and kind.fold is not first

    def value(v: int) -> int | None:
        return None if null and rnd.random() < 0.4 else v

    def some_row(dt: str, i: int) -> Row:
        return dt, rnd.randrange(4), value(step * 10 + i), value(rnd.randrange(100))

    rows = [some_row("ab"[i % 2], i) for i in range(4)]
    gone = [(rnd.choice("ab"), rnd.randrange(4), None, None)] if kind.deletes and kind.key else []
    return rows, gone


def as_table(rows: Rows) -> pa.Table:
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)


def replacement(step: int, dt: str) -> Rows:
    return [(dt, i, step * 10 + i, i) for i in (1, 7)]


Model = dict[Key, Row] | Rows


def after(kind: Kind, steps: int) -> Model:
    """The rows after so many steps: by key, or in a list where there is no key."""
    return after_each(kind)[steps]


def after_each(kind: Kind) -> list[Any]:
    rows: Any = {} if kind.key else []
    out = [rows.copy()]
    for n, doing in enumerate(kind.doings):
        rows = rows.copy()
        what, _, name = doing.partition(" ")
        if what in ("w", "f"):
            ups, gone = batch(kind, n)
            if kind.key:
                for r in ups:
                    rows[kind.key_of(r)] = kind.fold(rows.get(kind.key_of(r)), r)
                for r in gone:
                    rows.pop(kind.key_of(r), None)
            else:
                rows += ups
        elif what in ("over", "drop"):
            new = replacement(n, name) if what == "over" else []
            if kind.key:
                rows = {k: r for k, r in rows.items() if r[0] != name} | {kind.key_of(r): r for r in new}
            else:
                rows = [r for r in rows if r[0] != name] + new
        elif what == "delete":
            keep = [r for r in (rows.values() if kind.key else rows) if r[1] != 1]
            rows = {kind.key_of(r): r for r in keep} if kind.key else keep
        elif what == "update":
            changed = [(r[0], r[1], -n, r[3]) if r[1] == 2 else r for r in (rows.values() if kind.key else rows)]
            rows = {kind.key_of(r): r for r in changed} if kind.key else changed
        out.append(rows)
    return out


# ---- a process


class Names:
    """Unused names: a process that starts anew must not give a name away again."""

    def __init__(self) -> None:
        self.rng = random.Random(11)


class Process:
    """One process that works on the table until it dies: a writer over its checkpoints, other verbs between them."""

    def __init__(self, kind: Kind, store: Any, names: Names) -> None:
        self.kind = kind
        self.clock = ManualClock(START)
        self.lake = Lake(store, clock=self.clock, scheduler=ManualScheduler, rng=names.rng)
        self.table: Table = self.lake.table("d.t")
        self.writer: Any = None

    def step(self, n: int) -> None:
        self.clock.sleep(max(0, START + n * 60_000 - self.clock.now_ms()) / 1000)
        what, _, name = self.kind.doings[n].partition(" ")
        getattr(self, f"do_{what}")(n, name)

    def do_w(self, n: int, _: str, flushed: bool = False) -> None:
        if self.writer is None:
            self.writer = self.table.write(commit_user=USER)
        w = self.writer
        rows, gone = batch(self.kind, n)
        add = w.upsert if self.kind.key else w.append
        add(as_table(rows[:2]))
        if flushed:
            w.flush()
        add(as_table(rows[2:]))
        if gone:
            w.delete(as_table(gone).select([*dict.fromkeys([*self.kind.key, *self.kind.partitions])]))
        w._scheduler.run_pending()
        try:
            w.commit(checkpoint=n + 1)
        except shoal.CommitUnknown:
            w.commit(checkpoint=n + 1)

    def do_f(self, n: int, name: str) -> None:
        self.do_w(n, name, flushed=True)

    def do_sort(self, n: int, _: str) -> None:
        def sort() -> None:
            self.table.maintain.compact(order_strategy="zorder", order_by="v,k")

        try:
            sort()
        except shoal.BadRequest as err:  # a death between the two snapshots of a commit left changes untold
            assert "has not told yet" in err.message
            self.do_full(n, "")
            sort()

    def do_rescale(self, n: int, count: str) -> None:
        self.close()
        self.table.maintain.rescale(int(count))
        self.table = self.lake.table("d.t")

    def do_compact(self, n: int, _: str) -> None:
        self.table.maintain.compact()

    def do_full(self, n: int, _: str) -> None:
        self.table.maintain.compact(full=True)

    def do_over(self, n: int, name: str) -> None:
        self.table.overwrite(as_table(replacement(n, name)), {"dt": name}, dynamic=False)

    def do_drop(self, n: int, name: str) -> None:
        self.table.drop_partitions([{"dt": name}], missing_ok=True)

    def do_tag(self, n: int, name: str) -> None:
        if name not in set(self.table.tags):
            self.table.tags.create(name)

    def do_delete(self, n: int, _: str) -> None:
        self.table.delete("k = 1")

    def do_update(self, n: int, _: str) -> None:
        self.table.update({"v": -n}, "k = 2")

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()


class Struck(FaultyStore):
    """Remembers the call that the fault was at."""

    struck: tuple[str, str] | None = None

    def call(self, kind: str, path: str, *rest: Any) -> Any:
        try:
            return super().call(kind, path, *rest)
        except (Died, shoal.StorageFailed):
            self.struck = self.struck or (kind, path)
            raise


@dataclass
class Run:
    """A history that was run to its end."""

    store: MemoryStore
    mutations: int
    failed: list[BaseException]
    failed_at: int | None = None
    struck: tuple[str, str] | None = None


def empty(kind: Kind) -> MemoryStore:
    store = MemoryStore()
    lake = Lake(store, clock=ManualClock(START), scheduler=ManualScheduler, rng=random.Random(1))
    lake.create_table(
        "d.t", SCHEMA, primary_key=list(kind.key), partition_by=list(kind.partitions), options=dict(kind.options)
    )
    return store


def run(kind: Kind, fault: Fault | None = None, on_failure: Callable[[MemoryStore], None] | None = None) -> Run:
    """Every step until it is done. After a failure a new process commits the last checkpoint again, and goes on."""
    inner, names = empty(kind), Names()
    store: Any = Struck(inner, [fault] if fault else [])
    out = Run(inner, 0, [])
    done = 0
    while done < len(kind.doings):
        process = None
        try:
            process = Process(kind, store, names)
            if store is inner and done and kind.doings[done - 1] in ("w", "f"):
                before = process.table.metadata.latest_id()
                process.step(done - 1)
                assert process.table.metadata.latest_id() == before, "a checkpoint was committed again"
            while done < len(kind.doings):
                process.step(done)
                done += 1
            process.close()
        except (Died, shoal.ShoalError) as err:
            out.failed.append(err)
            out.failed_at = done
            assert len(out.failed) < 3, out.failed
            if process is not None:
                with contextlib.suppress(Died, shoal.ShoalError):
                    process.close()
            if on_failure is not None:
                on_failure(inner)
            out.struck, store = store.struck, inner
        else:
            if kind.expires:  # what the last commit could not do
                opened(kind, inner).maintain.expire()
            if store is not inner:
                out.mutations, out.struck = store.mutations, store.struck
    return out


# ---- what must hold


def opened(kind: Kind, store: MemoryStore) -> Table:
    lake = Lake(store, clock=ManualClock(START + 86_400_000), scheduler=ManualScheduler)
    table = lake.table("d.t")
    return table.with_options(kind.reads) if kind.reads else table


def read(kind: Kind, table: Table, **when: Any) -> Any:
    rows = [tuple(r.values()) for r in table.scan(**when).to_arrow().to_pylist()]
    if not kind.key:
        return sorted(rows, key=repr)
    out = {kind.key_of(r): r for r in rows}  # type: ignore[arg-type]
    assert len(out) == len(rows), "a key came twice"
    return out


def wanted(kind: Kind, steps: int) -> Any:
    model = after(kind, steps)
    return sorted(model, key=repr) if isinstance(model, list) else model


def check(kind: Kind, done: Run, what: str) -> Table:
    """The table, which holds the model, each checkpoint once and whatever it refers to."""
    table = opened(kind, done.store)
    assert read(kind, table) == wanted(kind, len(kind.doings)), what
    for n, doing in enumerate(kind.doings):
        if doing.startswith("tag "):
            assert read(kind, table, tag=doing[4:]) == wanted(kind, n), f"{what}: {doing}"
    assert list(missing(table)) == [], what
    meta = table.metadata
    snapshots = [meta.snapshot(i) for i in meta.snapshot_ids()]
    mine = [(s.commit_identifier, s.commit_kind) for s in snapshots if s.commit_user == USER]
    assert len(set(mine)) == len(mine), f"{what}: a checkpoint was committed twice"
    made = sorted({i for i, _ in mine})
    checkpoints = [n + 1 for n, d in enumerate(kind.doings) if d in ("w", "f")]
    assert made == checkpoints[len(checkpoints) - len(made) :], what
    if kind.changelog:
        each = kind.told_by == "each checkpoint" and not (kind.late and done.failed)
        told(kind, table, done.failed_at, what, each=each)
    return table


def told(
    kind: Kind, table: Table, failed_at: int | None, what: str, states: list[Any] | None = None, each: bool = True
) -> None:
    """The stream of changes, folded, equals the rows after every checkpoint; no change is told twice or left out.

    Without `each` it equals them at the end: what a death made late may be told later. Where others tell, it equals the
    rows of the last checkpoint after each of their compactions.
    """
    meta = table.metadata
    rows: dict[Key, Row] = {}
    states = states or after_each(kind)
    ids = meta.snapshot_ids()
    checkpoint = 0
    for i in ids:
        snap = meta.snapshot(i)
        if snap.changelog_manifest_list is not None:
            for kind_of, row in _changes(table, i):
                where = f"{what}: snapshot {i}, {kind_of} {row}"
                key = kind.key_of(row)
                if kind.changelog == "input":
                    rows.pop(key, None) if kind_of in (1, 3) else rows.update({key: kind.fold(rows.get(key), row)})
                elif kind_of in (1, 3):
                    assert rows.pop(key, None) == row, where
                else:
                    assert key not in rows, where
                    rows[key] = row
        last = i == ids[-1] or meta.snapshot(i + 1).commit_identifier != snap.commit_identifier
        if each and snap.commit_user == USER and last and failed_at != snap.commit_identifier - 1:
            assert rows == states[snap.commit_identifier], f"{what}: snapshot {i}"
        if snap.commit_user == USER:
            checkpoint = snap.commit_identifier
        elif kind.told_by == "others":
            assert rows == states[checkpoint], f"{what}: snapshot {i}"
    assert rows == states[-1], what


def _changes(table: Table, snapshot: int) -> Iterator[tuple[int, Row]]:
    for r in table.changes(snapshot - 1, snapshot, mode="changelog").to_arrow().to_pylist():
        yield r.pop("_VALUE_KIND"), tuple(r.values())  # type: ignore[misc]


def check_failure(kind: Kind) -> Callable[[MemoryStore], None]:
    """What must hold right after a process has died, before another one starts."""

    def look(store: MemoryStore) -> None:
        kept = [int(str(kind.options.get(f"{of}.num-retained.min", 0))) for of in ("snapshot", "changelog")]
        assert list(missing(opened(kind, store), *kept)) == []

    return look


__all__ = ["Kind", "Run", "check", "check_failure", "left_over", "run"]
