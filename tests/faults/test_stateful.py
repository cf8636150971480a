# SPDX-License-Identifier: Apache-2.0
"""A table driven at random against a plain dict: write, commit, crash, compact, overwrite, tag, branch, roll back, read.

The model knows rows and nothing of files. A crash cuts the store off at a random change of the next call; afterwards
the process starts anew and commits the same checkpoint again, as a job does.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
KEYS = st.tuples(st.sampled_from("ab"), st.integers(0, 5))
Rows = dict[tuple[str, int], int]


class Machine(RuleBasedStateMachine):
    """One primary-key table. `visible` is what is committed, `pending` what the open writer holds beside it."""

    @initialize(
        buckets=st.sampled_from([1, 2, -1]),
        options=st.sampled_from([
            {}, {"changelog-producer": "input"}, {"changelog-producer": "lookup"}, {"deletion-vectors.enabled": "true"},
            {"snapshot.num-retained.max": "3", "snapshot.num-retained.min": "1"}, {"write-only": "true"},
        ]),
        seed=st.integers(0, 2**16),
    )  # fmt: skip
    def create(self, buckets: int, options: dict[str, str], seed: int) -> None:
        self.store = MemoryStore()
        self.rng = random.Random(seed)
        self.lake(self.store).create_table(
            "d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"],
            options={"bucket": buckets, "num-sorted-run.compaction-trigger": 3, "manifest.merge-min-count": 3, **options},
        )  # fmt: skip
        self.visible: Rows = {}
        self.pending: list[tuple[str, int, int | None]] = []
        self.tags: dict[str, Rows] = {}
        self.branches: dict[str, Rows] = {}
        self.checkpoint = 0
        self.writer: Any = None

    # ---- the table

    def lake(self, store: object) -> Lake:
        return Lake(store, clock=ManualClock(), scheduler=ManualScheduler, rng=self.rng)  # type: ignore[arg-type]

    def table(self, store: object | None = None) -> Table:
        return self.lake(store or self.store).table("d.t")

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()

    def fill(self, writer: Any) -> None:
        """Hand the pending rows to a writer, in order."""
        for dt, k, v in self.pending:
            row = [{"dt": dt, "k": k} if v is None else {"dt": dt, "k": k, "v": v}]
            (writer.delete if v is None else writer.upsert)(row)

    def after(self) -> Rows:
        rows = dict(self.visible)
        for dt, k, v in self.pending:
            rows.pop((dt, k), None)
            if v is not None:
                rows[dt, k] = v
        return rows

    # ---- rules

    @rule(key=KEYS, v=st.integers(-(2**40), 2**40))
    def upsert(self, key: tuple[str, int], v: int) -> None:
        self.pending.append((*key, v))

    @rule(key=KEYS)
    def delete(self, key: tuple[str, int]) -> None:
        self.pending.append((*key, None))

    @rule()
    def commit(self) -> None:
        if self.writer is None:
            self.writer = self.table().write(commit_user="job")
        self.fill(self.writer)
        self.checkpoint += 1
        self.writer.commit(checkpoint=self.checkpoint)
        self.visible, self.pending = self.after(), []

    @rule(at=st.integers(1, 12), action=st.sampled_from(["die", "die_after", "fail", "fail_after"]))
    def crash_in_a_commit(self, at: int, action: Any) -> None:
        self.close()
        self.checkpoint += 1
        faulty = FaultyStore(self.store, Fault(action, at))
        for store in (faulty, self.store):
            try:
                with self.table(store).write(commit_user="job") as w:
                    self.fill(w)
                    w.commit(checkpoint=self.checkpoint)
                break
            except (Died, shoal.ShoalError):
                continue
        self.visible, self.pending = self.after(), []

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.close()
        self.table().maintain.compact(full=full)

    @rule(partition=st.sampled_from([None, "a", "b"]), rows=st.dictionaries(KEYS, st.integers(0, 99), max_size=4))
    def overwrite(self, partition: str | None, rows: Rows) -> None:
        self.close()
        rows = {key: v for key, v in rows.items() if partition is None or key[0] == partition}
        data = pa.Table.from_pylist([{"dt": dt, "k": k, "v": v} for (dt, k), v in rows.items()], schema=SCHEMA)
        self.table().overwrite(data, {} if partition is None else {"dt": partition}, dynamic=False)
        kept = {} if partition is None else {key: v for key, v in self.visible.items() if key[0] != partition}
        self.visible = kept | rows

    @rule(partition=st.sampled_from("ab"))
    def drop_partition(self, partition: str) -> None:
        self.close()
        self.table().drop_partitions([{"dt": partition}])
        self.visible = {key: v for key, v in self.visible.items() if key[0] != partition}

    @precondition(lambda self: self.checkpoint > 0)
    @rule(name=st.sampled_from(["t1", "t2"]))
    def tag(self, name: str) -> None:
        self.close()
        if name in self.tags:
            self.table().tags.delete(name)
        if self.table().metadata.latest() is not None:
            self.table().tags.create(name)
            self.tags[name] = dict(self.visible)

    @precondition(lambda self: bool(self.tags))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.close()
        name = data.draw(st.sampled_from(sorted(self.tags)))
        self.table().rollback(tag=name)
        self.visible = dict(self.tags[name])
        meta = self.table().metadata
        left = set(self.table().tags)
        self.tags = {n: r for n, r in self.tags.items() if n in left}
        newest = meta.latest()
        assert newest is not None
        self.checkpoint += 1000  # a restarted job goes on with a number of its own

    @precondition(lambda self: bool(self.tags))
    @rule(data=st.data(), name=st.sampled_from(["b1", "b2"]))
    def branch(self, data: st.DataObject, name: str) -> None:
        tag = data.draw(st.sampled_from(sorted(self.tags)))
        if name in self.branches:
            self.table().branches.delete(name)
        self.table().branches.create(name, tag=tag)
        self.branches[name] = dict(self.tags[tag])

    @precondition(lambda self: bool(self.branches))
    @rule(data=st.data(), key=KEYS, v=st.integers(0, 99))
    def write_to_a_branch(self, data: st.DataObject, key: tuple[str, int], v: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        with self.table().branch(name).write() as w:
            w.upsert([{"dt": key[0], "k": key[1], "v": v}])
            w.commit()
        self.branches[name][key] = v

    @rule()
    def restart(self) -> None:
        self.close()

    # ---- what must hold

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert read(self.table().scan().to_arrow()) == shown(self, self.visible)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for name, rows in self.tags.items():
            assert read(self.table().scan(tag=name).to_arrow()) == shown(self, rows)
        for name, rows in self.branches.items():
            assert read(self.table().branch(name).scan().to_arrow()) == shown(self, rows)
        self.close()


def shown(machine: Machine, rows: Rows) -> Rows:
    return copy.copy(rows)


def read(table: pa.Table) -> Rows:
    rows = table.to_pylist()
    out = {(r["dt"], r["k"]): r["v"] for r in rows}
    assert len(out) == len(rows), "a key came twice"
    return out


TestTable = Machine.TestCase
TestTable.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
