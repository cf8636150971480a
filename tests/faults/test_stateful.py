# SPDX-License-Identifier: Apache-2.0
"""A table driven at random against a plain dict: write, commit, crash, compact, overwrite, tag, branch, roll back, read.

The model knows rows and nothing of files. One long-lived job writes; other processes compact, overwrite, drop, tag and
branch beside it. A crash cuts the store off at a random change of the next call; afterwards a process starts anew and
makes the same call again, as a job or a person does. After every step the rows are those of the model, and at the end
so are all tags and branches, and nothing that any of them refers to is missing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.walk import missing

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
START = 1_767_225_600_000
KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 5))
VALUES = st.one_of(st.none(), st.integers(-(2**40), 2**40))
NAMES = st.sampled_from(["x", "y"])

Key = tuple[str, int]
Value = int | None
Rows = dict[Key, list[Value]]
"""The values of each key: one where the table has a key, else one of each row."""


def newest(old: Value, new: Value) -> Value:
    return new


def last_not_null(old: Value, new: Value) -> Value:
    return old if new is None else new


def added(old: Value, new: Value) -> Value:
    return new if old is None else old if new is None else old + new


def first(old: Value, new: Value) -> Value:
    return old


PLAIN: list[dict[str, object]] = [
    {}, {"write-only": True}, {"changelog-producer": "lookup"}, {"changelog-producer": "full-compaction"},
    {"deletion-vectors.enabled": True}, {"snapshot.num-retained.max": 3, "snapshot.num-retained.min": 1},
    {"deletion-vectors.enabled": True, "changelog-producer": "lookup", "snapshot.num-retained.max": 3,
     "snapshot.num-retained.min": 1},
]  # fmt: skip
# (fold, takes deletes, options)
ENGINES: dict[str, tuple[Callable[[Value, Value], Value], bool, list[dict[str, object]]]] = {
    "deduplicate": (newest, True, [*PLAIN, {"changelog-producer": "input"}]),
    "partial-update": (last_not_null, False, PLAIN),
    "aggregation": (added, False, [{"fields.v.aggregate-function": "sum"} | o for o in PLAIN]),
    "first-row": (first, False, [{"changelog-producer": "lookup"}, {}]),
    "append": (newest, False, [
        {}, {"compaction.min.file-num": 2}, {"snapshot.num-retained.max": 3, "snapshot.num-retained.min": 1},
        {"deletion-vectors.enabled": True, "compaction.min.file-num": 3}, {"row-tracking.enabled": True},
    ]),
}  # fmt: skip


class Machine(RuleBasedStateMachine):
    """One table. `visible` is what is committed, `pending` what the job has taken and not committed."""

    engines: tuple[str, ...] = ("deduplicate",)

    @initialize(data=st.data(), buckets=st.sampled_from([1, 2, -1]), seed=st.integers(0, 2**16))
    def create(self, data: st.DataObject, buckets: int, seed: int) -> None:
        self.store, self.clock, self.rng = MemoryStore(), ManualClock(START), random.Random(seed)
        self.visible: Rows = {}
        self.pending: list[tuple[Key, Value, bool]] = []
        self.handed = 0  # how many of them the writer has
        self.tags: dict[str, tuple[int, Rows]] = {}
        self.branches: dict[str, Rows] = {}
        self.silent: set[int] = set()  # snapshots that came back from a tag, without their changes
        self.checkpoint = 0
        self.writer: Any = None
        self.engine = data.draw(st.sampled_from(self.engines), "engine")
        self.fold, self.deletes, options = ENGINES[self.engine]
        self.keyed = self.engine != "append"
        self.options = data.draw(st.sampled_from(options), "options")
        o: dict[str, object] = {"bucket": buckets, "manifest.merge-min-count": 3, **self.options}
        if self.keyed:
            o |= {"num-sorted-run.compaction-trigger": 3, "merge-engine": self.engine}
        elif buckets > 0:
            o["bucket-key"] = "k"
            o.pop("row-tracking.enabled", None)
        self.dynamic = self.keyed and buckets == -1
        # where rows show once they are compacted, a death between the two snapshots of a commit hides them for a while
        self.late = self.engine == "first-row" or (self.keyed and "deletion-vectors.enabled" in self.options)
        self.lake(self.store).create_table(
            "d.t", SCHEMA, primary_key=["dt", "k"] if self.keyed else [], partition_by=["dt"], options=o
        )

    # ---- the table

    def lake(self, store: object) -> Lake:
        self.clock.sleep(1)
        return Lake(store, clock=self.clock, scheduler=ManualScheduler, rng=self.rng)  # type: ignore[arg-type]

    def table(self, store: object | None = None) -> Table:
        return self.lake(store or self.store).table("d.t")

    def close(self) -> None:
        writer, self.writer, self.handed = self.writer, None, 0
        if writer is not None:
            writer.close()

    def fill(self, writer: Any, start: int = 0) -> None:
        """Hand the pending rows to a writer, in order."""
        for (dt, k), v, gone in self.pending[start:]:
            if gone:
                writer.delete([{"dt": dt, "k": k}])
            else:
                (writer.upsert if self.keyed else writer.append)(rows_of({(dt, k): [v]}))

    def into(self, rows: Rows, key: Key, value: Value) -> None:
        if not self.keyed:
            rows[key] = [*rows.get(key, []), value]
        elif key in rows:
            rows[key] = [self.fold(rows[key][0], value)]
        else:
            rows[key] = [value]

    def committed(self) -> None:
        rows = dict(self.visible)
        for key, value, gone in self.pending:
            if gone:
                rows.pop(key, None)
            else:
                self.into(rows, key, value)
        self.visible, self.pending, self.handed = rows, [], 0

    def by_another(self, call: Callable[[Table], object], fault: Fault | None) -> None:
        """A call of a process of its own; one that is cut off is made again, until it is done."""
        if fault is not None:
            try:
                call(self.table(FaultyStore(self.store, fault)))
            except (Died, shoal.ShoalError):
                assert list(missing(self.table(), 1, silent=self.silent)) == []
            else:
                return
        call(self.table())

    # ---- the job

    @rule(key=KEYS, v=VALUES)
    def upsert(self, key: Key, v: Value) -> None:
        self.pending.append((key, v, False))

    @precondition(lambda self: self.deletes)
    @rule(key=KEYS)
    def delete(self, key: Key) -> None:
        self.pending.append((key, None, True))

    @rule()
    def flush(self) -> None:
        if self.writer is None:
            self.writer = self.table().write(commit_user="job")
        self.fill(self.writer, self.handed)
        self.handed = len(self.pending)
        self.writer.flush()

    @rule(compact=st.sampled_from([None, None, "minor", "full"]))
    def commit(self, compact: Any) -> None:
        if self.writer is None:
            self.writer = self.table().write(commit_user="job")
        self.fill(self.writer, self.handed)
        self.checkpoint += 1
        self.writer.commit(checkpoint=self.checkpoint, compact=compact if "write-only" not in self.options else None)
        self.committed()

    @rule()
    def background(self) -> None:
        if self.writer is not None:
            self.writer._scheduler.run_pending()

    @rule(at=st.integers(1, 14), action=st.sampled_from(["die", "die_after", "fail", "fail_after"]))
    def crash_in_a_commit(self, at: int, action: Any) -> None:
        self.close()
        self.checkpoint += 1
        faulty = FaultyStore(self.store, Fault(action, at))
        for store in (faulty, self.store):
            writer = None
            try:
                writer = self.table(store).write(commit_user="job")
                self.fill(writer)
                writer.commit(checkpoint=self.checkpoint)
                break
            except (Died, shoal.ShoalError):
                if store is self.store:
                    raise
            finally:
                with contextlib.suppress(Died, shoal.ShoalError):
                    if writer is not None:
                        writer.close()
        self.committed()
        if self.late:
            self.table().maintain.compact(full=True)

    @rule()
    def restart(self) -> None:
        self.close()

    # ---- others

    faults = st.one_of(st.none(), st.builds(
        Fault, st.sampled_from(["die", "die_after", "fail", "fail_after"]), st.integers(1, 12)
    ))  # fmt: skip

    @rule(full=st.booleans(), fault=faults)
    def compact(self, full: bool, fault: Fault | None) -> None:
        self.by_another(lambda t: t.maintain.compact(full=full), fault)

    @rule(fault=faults)
    def expire(self, fault: Fault | None) -> None:
        self.by_another(lambda t: t.maintain.expire(retain_max=2, retain_min=1), fault)

    @rule(
        partition=st.sampled_from([None, "a", "b"]), rows=st.dictionaries(KEYS, st.integers(0, 99), max_size=4),
        fault=faults,
    )  # fmt: skip
    def overwrite(self, partition: str | None, rows: dict[Key, int], fault: Fault | None) -> None:
        if self.dynamic:  # places of keys are known to one job at a time
            self.close()
        new: Rows = {key: [v] for key, v in rows.items() if partition is None or key[0] == partition}
        spec = {} if partition is None else {"dt": partition}
        self.by_another(lambda t: t.overwrite(rows_of(new), spec, dynamic=False), fault)
        kept = {} if partition is None else {key: v for key, v in self.visible.items() if key[0] != partition}
        self.visible = kept | new

    @rule(partition=st.sampled_from("ab"), fault=faults)
    def drop_partition(self, partition: str, fault: Fault | None) -> None:
        if self.dynamic:
            self.close()
        self.by_another(lambda t: t.drop_partitions([{"dt": partition}], missing_ok=True), fault)
        self.visible = {key: v for key, v in self.visible.items() if key[0] != partition}

    @precondition(lambda self: not self.keyed)
    @rule(k=st.integers(0, 5), fault=faults)
    def delete_where(self, k: int, fault: Fault | None) -> None:
        self.by_another(lambda t: t.delete(f"k = {k}"), fault)
        self.visible = {key: v for key, v in self.visible.items() if key[1] != k}

    @precondition(lambda self: self.newest_id() is not None)
    @rule(name=NAMES, fault=faults)
    def tag(self, name: str, fault: Fault | None) -> None:
        def make(t: Table) -> None:
            if name in self.tags and name in set(t.tags):
                t.tags.delete(name)
                self.tags.pop(name)
            if name not in set(t.tags):
                t.tags.create(name)

        self.by_another(make, fault)
        newest_id = self.newest_id()
        assert newest_id is not None
        self.tags[name] = newest_id, dict(self.visible)

    def newest_id(self) -> int | None:
        return self.table().metadata.latest_id()

    @precondition(lambda self: bool(self.tags))
    @rule(data=st.data(), fault=faults)
    def roll_back(self, data: st.DataObject, fault: Fault | None) -> None:
        self.close()
        name = data.draw(st.sampled_from(sorted(self.tags)))
        target, rows = self.tags[name]
        self.by_another(lambda t: t.rollback(tag=name), fault)
        assert self.newest_id() == target
        self.visible = dict(rows)
        self.silent.add(target)
        self.tags = {n: (at, r) for n, (at, r) in self.tags.items() if at <= target}
        assert set(self.table().tags) == set(self.tags)

    @precondition(lambda self: bool(self.tags))
    @rule(data=st.data(), name=NAMES, fault=faults)
    def branch(self, data: st.DataObject, name: str, fault: Fault | None) -> None:
        tag = data.draw(st.sampled_from(sorted(self.tags)))
        if self.branches.pop(name, None) is not None:
            self.by_another(lambda t: t.branches.delete(name) if name in set(t.branches) else None, fault)
        self.by_another(lambda t: t.branches.create(name, tag=tag) if name not in set(t.branches) else None, fault)
        self.branches[name] = dict(self.tags[tag][1])

    @precondition(lambda self: bool(self.branches))
    @rule(data=st.data(), key=KEYS, v=st.integers(0, 99))
    def write_to_a_branch(self, data: st.DataObject, key: Key, v: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        with self.table().branch(name).write() as w:
            (w.upsert if self.keyed else w.append)(rows_of({key: [v]}))
            w.commit()
        self.into(self.branches[name], key, v)

    # ---- what must hold

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if hasattr(self, "engine"):
            assert self.read(self.table()) == shown(self.visible)

    def read(self, table: Table, **when: Any) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in table.scan(**when).to_arrow().to_pylist()), key=repr)

    def teardown(self) -> None:
        if not hasattr(self, "dynamic"):
            return
        if "snapshot.num-retained.max" in self.options:  # one that the last call was cut off from
            self.table().maintain.expire()
        table = self.table()
        for name, (_, rows) in self.tags.items():
            assert self.read(table, tag=name) == shown(rows), f"tag {name}"
        for name, rows in self.branches.items():
            assert self.read(table.branch(name)) == shown(rows), f"branch {name}"
        assert list(missing(table, silent=self.silent)) == []
        self.close()


def rows_of(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"dt": dt, "k": k, "v": v} for (dt, k), vs in rows.items() for v in vs], schema=SCHEMA)


def shown(rows: Rows) -> list[tuple[Any, ...]]:
    return sorted(((*key, v) for key, values in rows.items() for v in values), key=repr)


def machine(*engines: str, examples: int, steps: int) -> Any:
    case = type("Of" + engines[0].title(), (Machine,), {"engines": engines}).TestCase  # type: ignore[attr-defined]
    case.settings = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return case


TestKeyed = machine("deduplicate", examples=6, steps=20)
TestEngines = machine("partial-update", "aggregation", "first-row", examples=4, steps=15)
TestAppend = machine("append", examples=4, steps=15)
TestLong = pytest.mark.slow(pytest.mark.timeout(900)(machine(*ENGINES, examples=300, steps=40)))
