# SPDX-License-Identifier: Apache-2.0
"""What a commit does besides: tags, old tags, consumers and snapshots, in Java's order, at no cost when nothing is due."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table import consumers
from shoal.table.refs import tag, tag_names
from shoal.table.table import Table

START = 1_767_225_600_000  # 2026-01-01T00:00Z
HOUR = 3_600_000
SCHEMA = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.int64())])
SHORT = {"snapshot.num-retained.min": 1, "snapshot.num-retained.max": 3}


def make(options: dict[str, object] | None = None, store: MemoryStore | None = None) -> Table:
    clock = ManualClock(START)
    lake = Lake(store or MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    return lake.create_table("d.t", SCHEMA, primary_key=["k"], options={"bucket": 1, **(options or {})})


def commit(table: Table, writer: Any, checkpoint: int | None = None, hours: float = 0) -> Any:
    writer.upsert([{"k": (checkpoint or 0) % 5, "v": 1}])
    table.clock.sleep(hours * 3600)
    return writer.commit(checkpoint=checkpoint)


def test_old_snapshots_go_with_the_commits() -> None:
    table = make(SHORT)
    with table.write() as w:
        for i in range(1, 8):
            done = commit(table, w, i)
            assert done.upkeep.failure is None
    assert table.metadata.snapshot_ids() == [done.snapshots[-1] - 2, done.snapshots[-1] - 1, done.snapshots[-1]]
    assert done.upkeep.expired.snapshots == (done.snapshots[-1] - 3,)
    assert "removed 1 snapshots" in str(done.upkeep) and done.to_dict()["upkeep"]["failure"] is None


def test_an_hour_is_kept_by_default_and_ten_at_least() -> None:
    table = make()
    with table.write() as w:
        for i in range(1, 15):
            commit(table, w, i, hours=0.25)
    ids, newest = table.metadata.snapshot_ids(), table.metadata.latest_id() or 0
    assert ids == list(range(newest - 9, newest + 1))


def test_batches_compactions_and_overwrites_are_kept_up_too() -> None:
    table = make(SHORT | {"num-sorted-run.compaction-trigger": 9})
    for _ in range(5):
        with table.write() as w:
            commit(table, w)
    report = table.maintain.compact(full=True)
    assert report.upkeep is not None and report.upkeep.expired is not None and report.upkeep.expired.snapshots
    assert report.to_dict()["upkeep"]["failure"] is None  # type: ignore[index]
    assert len(table.metadata.snapshot_ids()) == 3


def test_a_write_only_table_is_left_to_the_job_that_compacts_it() -> None:
    table = make(SHORT | {"write-only": True, "num-sorted-run.compaction-trigger": 9})
    for _ in range(5):
        with table.write() as w:
            assert commit(table, w).upkeep is None
    assert table.metadata.snapshot_ids() == [1, 2, 3, 4, 5]
    table.maintain.compact(full=True)
    assert len(table.metadata.snapshot_ids()) == 3


def test_a_replayed_checkpoint_does_nothing_more() -> None:
    table = make(SHORT)
    with table.write(commit_user="u") as w:
        commit(table, w, 1)
    with table.write(commit_user="u") as w:
        done = commit(table, w, 1)
    assert done.replayed and done.upkeep is None


def test_a_tag_holds_what_would_go_in_the_same_commit() -> None:
    """Tags come first: the snapshot that a tag is due on is not expired before it has it."""
    table = make(
        {"tag.automatic-creation": "process-time", "snapshot.num-retained.min": 1, "snapshot.num-retained.max": 1}
    )
    with table.write() as w:
        commit(table, w, 1)
        done = commit(table, w, 2, hours=30)
    assert done.upkeep.tags.created == ("2026-01-01",)
    assert tag(table.metadata, "2026-01-01").snapshot.id in done.snapshots
    assert tag_names(table.metadata) == ["2025-12-31", "2026-01-01"]
    assert table.scan(tag="2025-12-31").to_arrow().num_rows == 1


def test_tags_go_when_their_time_is_over() -> None:
    table = make({"tag.default-time-retained": "90 min"})
    with table.write() as w:
        commit(table, w, 1)
        table.tags.create("mine")
        assert commit(table, w, 2, hours=1.4).upkeep.expired_tags == ()
        assert commit(table, w, 3, hours=0.2).upkeep.expired_tags == ("mine",)
        table.tags.create("kept")
        table.tags.create("replaced")
        assert commit(table, w, 4, hours=0.1).upkeep.expired_tags == ()
        table.tags.replace("replaced", keep=None)
        assert commit(table, w, 5, hours=2).upkeep.expired_tags == ("kept",)
    assert list(table.tags) == ["replaced"]
    off = make({"tag.default-time-retained": "90 min", "tag.time-expire-enabled": False})
    with off.write() as w:
        commit(off, w, 1)
        off.tags.create("mine")
        commit(off, w, 2, hours=9)
    assert list(off.tags) == ["mine"]


def test_idle_consumers_make_way_for_expiry_in_the_same_commit() -> None:
    table = make(SHORT | {"consumer.expiration-time": "1 h"})
    with table.write() as w:
        commit(table, w, 1)
        consumers.save(table.store, "dead", 1)
        for i in range(2, 6):
            commit(table, w, i)
        assert table.metadata.snapshot_ids()[0] == 1
        done = commit(table, w, 6, hours=2)
    assert done.upkeep.consumers == ("dead",) and done.upkeep.expired.snapshots[0] == 1


@pytest.mark.parametrize("write_only", [False, True])
def test_a_batch_tags_what_it_made(write_only: bool) -> None:
    table = make({"tag.automatic-creation": "batch", "tag.num-retained-max": 2, "write-only": write_only})
    for day in range(4):
        with table.write() as w:
            done = commit(table, w, hours=24 * bool(day))
    assert done.upkeep.tags.created == ("batch-write-2026-01-04",)
    assert tag_names(table.metadata) == ["batch-write-2026-01-03", "batch-write-2026-01-04"]
    with table.write() as w:
        commit(table, w, 1, hours=24)  # a checkpoint is no batch
    assert len(tag_names(table.metadata)) == 2


def test_a_tag_that_is_due_makes_a_snapshot_without_rows() -> None:
    table = make({"tag.automatic-creation": "process-time"})
    with table.write() as w:
        commit(table, w, 1)
        table.clock.sleep(3600)
        assert w.commit(checkpoint=2).snapshots == ()
        table.clock.sleep(24 * 3600)
        done = w.commit(checkpoint=3)
    assert done.snapshots and done.upkeep is not None and done.upkeep.tags.created == ("2026-01-01",)
    quiet = make()
    with quiet.write() as w:
        commit(quiet, w, 1)
        quiet.clock.sleep(48 * 3600)
        assert w.commit(checkpoint=2).snapshots == ()


def test_an_idle_writer_still_expires_what_gets_old() -> None:
    table = make({"snapshot.num-retained.min": 1})
    with table.write(commit_user="a") as w:
        for i in range(1, 4):
            commit(table, w, i)
        assert table.metadata.snapshot_ids()[0] == 1
        table.clock.sleep(7200)
        done = w.commit(checkpoint=9)
    assert done.snapshots == () and done.upkeep is not None and done.upkeep.expired is not None
    assert done.upkeep.expired.snapshots[0] == 1
    with table.write(commit_user="b") as w:  # one that has not committed yet
        done = w.commit(checkpoint=1)
    assert done.upkeep is not None and done.upkeep.failure is None


def test_a_failure_does_not_fail_the_commit_and_is_tried_again() -> None:
    clock = ManualClock(START)
    inner = MemoryStore(clock=clock)
    make(SHORT, inner)
    faulty = FaultyStore(inner, Fault("fail", at=1, kind="delete", times=10_000))
    broken = Lake(faulty, clock=clock, scheduler=ManualScheduler).table("d.t")
    with broken.write() as w:
        done = [commit(broken, w, i) for i in range(1, 6)]
        assert all(d.snapshots for d in done)
        assert isinstance(done[-1].upkeep.failure, shoal.ShoalError)
        assert "upkeep failed" in str(done[-1].upkeep) and done[-1].to_dict()["upkeep"]["failure"]
        assert w.keeper.last is done[-1].upkeep
    ids = broken.metadata.snapshot_ids()
    assert ids[0] == 1 and len(ids) > 4
    whole = Lake(inner, clock=clock, scheduler=ManualScheduler).table("d.t")
    with whole.write() as w:
        done = commit(whole, w, 6)
    assert done.upkeep.failure is None and len(whole.metadata.snapshot_ids()) == 3


def test_expiry_beside_the_writer_tells_with_a_later_commit() -> None:
    table = make(SHORT | {"snapshot.expire.execution-mode": "async"})
    scheduler = ManualScheduler()
    table.new_scheduler = lambda: scheduler
    with table.write() as w:
        first = [commit(table, w, i) for i in range(1, 6)]
        assert [d.upkeep for d in first] == [None] * 5
        before = len(table.metadata.snapshot_ids())
        scheduler.run_pending()
        assert len(table.metadata.snapshot_ids()) <= 3 < before
        done = commit(table, w, 6)
        assert done.upkeep.expired.snapshots and w.keeper.last is done.upkeep


class Counting:
    """A store that counts its calls by name."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner, self.uri = inner, inner.uri
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("tags", [{}, {"tag.automatic-creation": "process-time"}])
def test_a_commit_after_which_nothing_is_due_costs_no_call(tags: dict[str, object]) -> None:
    counts = []
    for write_only in (False, True):
        clock = ManualClock(START)
        inner = MemoryStore(clock=clock)
        make({"write-only": write_only, "num-sorted-run.compaction-trigger": 99} | tags, inner)
        store = Counting(inner)
        table = Lake(store, clock=clock, scheduler=ManualScheduler).table("d.t")  # type: ignore[arg-type]
        with table.write() as w:
            for i in range(1, 13):
                commit(table, w, i)
            store.calls.clear()
            for i in range(13, 33):
                commit(table, w, i, hours=0.0005)
        counts.append(dict(store.calls))
    mine, without = counts
    more = {k: n - without.get(k, 0) for k, n in mine.items() if n != without.get(k, 0)}
    # each snapshot that could be due for a tag is read once; nothing else
    assert more == ({"read": 20} if tags else {})
