# SPDX-License-Identifier: Apache-2.0
"""Following a table: nothing is missed, nothing comes twice, and what cannot be had is said."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal import BadRequest, NotFound
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table import consumers
from shoal.table.stream import Changes, Follow
from shoal.table.stream_async import follow_async
from shoal.table.table import Table

KV = pa.schema([("k", pa.int32()), ("v", pa.string())])
SECOND = 1000


class Clock(ManualClock):
    """A clock that runs an errand while its owner sleeps: what happens between two looks of a reader."""

    def __init__(self) -> None:
        super().__init__(1_700_000_000_000)
        self.errands: list[Callable[[], object]] = []
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += seconds
        if self.errands:
            self.errands.pop(0)()
        elif self.slept > 10_000:
            raise AssertionError("the reader waits for ever")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> Table:
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    return lake.create_table(
        "d.t", KV, primary_key=["k"], options={"bucket": 2, "num-sorted-run.compaction-trigger": 50}
    )


def put(table: Table, *rows: tuple[int, str], delete: Iterable[int] = ()) -> None:
    """One commit."""
    with table.write() as w:
        if rows:
            w.upsert([{"k": k, "v": v} for k, v in rows])
        if delete:
            w.delete([{"k": k} for k in delete])
        w.commit()


def rows(changes: Iterable[Changes]) -> list[tuple[int, str, int, str | None]]:
    """(snapshot, sign, k, v), sorted inside a snapshot: buckets come in any order."""
    return sorted((c.snapshot, *r) for c in changes for r in signed(c))


def signed(c: Changes) -> list[tuple[str, int, str | None]]:
    """(sign, k, v) in order; an upsert does not know whether its key is new, so +I and +U are both a plus."""
    return [(r["rowkind"][0], r["k"], r["v"]) for r in c.to_batch().to_pylist()]


def expire_before(table: Table, first: int) -> None:
    """What an expiry of another process does to the snapshot files."""
    for i in table.metadata.snapshot_ids():
        if i < first:
            table.store.delete(paths.snapshot(i))
    table.store.put(paths.EARLIEST, str(first).encode())


# ---- where it starts -------------------------------------------------------------------------------------


def test_it_begins_with_the_state_and_goes_on_with_what_is_committed(table: Table, clock: Clock) -> None:
    put(table, (1, "a"), (2, "b"))
    put(table, (1, "c"))
    clock.errands = [lambda: put(table, (3, "d")), lambda: None, lambda: put(table, delete=[2])]
    found = list(Follow(table, until=4, poll=0.1))
    assert rows(c for c in found if c.full) == [(2, "+", 1, "c"), (2, "+", 2, "b")]
    assert [(s, kind, k) for s, kind, k, _ in rows(c for c in found if not c.full)] == [(3, "+", 3), (4, "-", 2)]


def test_an_empty_table_is_waited_for(table: Table, clock: Clock) -> None:
    clock.errands = [lambda: None, lambda: put(table, (1, "a"))]
    assert rows(Follow(table, until=1, poll=1)) == [(1, "+", 1, "a")]


def test_a_stream_up_to_now_ends(table: Table, clock: Clock) -> None:
    assert list(Follow(table, until="latest")) == []
    put(table, (1, "a"))
    put(table, (2, "b"))
    assert rows(Follow(table, start=1, until="latest")) == [(1, "+", 1, "a"), (2, "+", 2, "b")]
    assert rows(Follow(table, start="earliest", until="latest")) == [(1, "+", 1, "a"), (2, "+", 2, "b")]
    assert list(Follow(table, start="latest", until="latest")) == []
    assert clock.slept == 0


def test_latest_takes_what_comes_after_and_all_of_a_table_that_was_empty(table: Table, clock: Clock) -> None:
    before = Follow(table, start="latest", until=2, poll=1)
    put(table, (1, "a"))
    after = Follow(table, start="latest", until=2, poll=1)
    clock.errands = [lambda: put(table, (2, "b"))]
    assert rows(after) == [(2, "+", 2, "b")]
    assert rows(before) == [(1, "+", 1, "a"), (2, "+", 2, "b")]


def test_it_starts_at_a_time_or_an_option(table: Table, clock: Clock) -> None:
    times = []
    for i in range(1, 5):
        clock.sleep(10)
        put(table, (i, "x"))
        times.append(table.metadata.snapshot(i).time_ms)
    at = datetime.fromtimestamp(times[2] / 1000, UTC)
    assert {s for s, *_ in rows(Follow(table, start=at, until="latest"))} == {3, 4}

    def seen(**options: object) -> list[int]:
        keys = {k.replace("_", "-").replace("scan-", "scan."): v for k, v in options.items()}
        found = Follow(table.with_options(keys), until="latest")
        return sorted({c.snapshot for c in found})

    assert seen(scan_mode="from-timestamp", scan_timestamp_millis=times[1] + 1) == [3, 4]
    assert seen(scan_mode="from-timestamp", scan_timestamp_millis=0) == [1, 2, 3, 4]
    assert seen(scan_snapshot_id=2) == [2, 3, 4]
    assert seen(scan_mode="latest") == []
    assert seen(scan_mode="latest-full") == [4]
    assert seen(scan_creation_time_millis=times[1]) == [2, 3, 4]
    full = list(Follow(table.with_options({"scan.mode": "from-snapshot-full", "scan.snapshot-id": 2}), until="latest"))
    assert sorted({(c.snapshot, c.full) for c in full}) == [(2, True), (3, False), (4, False)]
    assert [k for _, _, k, _ in rows(c for c in full if c.full)] == [1, 2]
    young = Follow(table.with_options({"scan.file-creation-time-millis": times[2]}), until="latest")
    assert [k for _, _, k, _ in rows(young)] == [3, 4]


def test_places_that_are_none_are_refused(table: Table) -> None:
    put(table, (1, "a"))
    for options, message in (
        ({"scan.tag-name": "x"}, "cannot start from a tag"),
        ({"scan.watermark": 5}, "cannot start from a tag or a watermark"),
        ({"incremental-between": "1,2"}, "an incremental read has an end"),
        ({"scan.mode": "from-timestamp"}, "needs exactly one of"),
        ({"scan.snapshot-id": 1, "scan.timestamp-millis": 5}, "cannot be set"),
    ):
        with pytest.raises(BadRequest, match=message):
            Follow(table.with_options(options))
    with pytest.raises(BadRequest, match="no place in a stream"):
        Follow(table, start="yesterday")
    with pytest.raises(BadRequest, match="says no end"):
        Follow(table, until="tomorrow")
    with pytest.raises(BadRequest, match="there is no snapshot 0"):
        next(Follow(table, start=0))


# ---- what it reads ---------------------------------------------------------------------------------------


def test_compactions_and_overwrites_are_passed_over(table: Table) -> None:
    put(table, (1, "a"), (2, "b"))
    put(table, (1, "c"))
    table.maintain.compact(full=True)
    put(table, (2, "d"))
    kinds = [table.metadata.snapshot(i).commit_kind for i in table.metadata.snapshot_ids()]
    assert "COMPACT" in kinds
    found = rows(Follow(table, start=1, until="latest"))
    assert [(k, v) for _, _, k, v in found] == [(1, "a"), (2, "b"), (1, "c"), (2, "d")]


def as_overwrite(table: Table, snapshot: int) -> None:
    snap = table.metadata.snapshot(snapshot)
    table.store.put(paths.snapshot(snapshot), replace(snap, commit_kind="OVERWRITE").encode())


def test_an_overwrite_can_be_read_as_what_went_and_what_came(table: Table) -> None:
    put(table, (1, "a"), (2, "b"))
    put(table, (1, "c"))
    table.maintain.compact(full=True)  # takes files away and puts one there, as an overwrite does
    as_overwrite(table, 3)
    plain = rows(Follow(table, start=3, until="latest"))
    assert plain == []
    found = list(Follow(table.with_options({"streaming-read-overwrite": True}), start=3, until="latest"))
    assert [sign for c in found for sign, _, _ in signed(c)] == ["-", "-", "+", "+"]
    assert rows(found) == [(3, "+", 1, "c"), (3, "+", 2, "b"), (3, "-", 1, "c"), (3, "-", 2, "b")]


def test_an_append_tables_overwrite_can_be_read(clock: Clock) -> None:
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    log = lake.create_table("d.log", KV)
    with log.write() as w:
        w.append([{"k": 1, "v": "a"}])
        w.commit()
    as_overwrite(log, 1)
    assert rows(Follow(log, start=1, until="latest")) == []
    reading = log.with_options({"streaming-read-append-overwrite": True})
    assert rows(Follow(reading, start=1, until="latest")) == [(1, "+", 1, "a")]


def test_columns_and_a_filter_apply_to_each_change(table: Table) -> None:
    put(table, (1, "a"), (2, "b"))
    put(table, (1, "b"), (3, "c"))
    found = list(Follow(table, start=1, until="latest", columns=["v"], where="v = 'b'"))
    assert [(c.snapshot, c.rows.to_pylist()) for c in found] == [(1, [{"v": "b"}]), (2, [{"v": "b"}])]
    with pytest.raises(BadRequest, match="no column 'x'"):
        Follow(table, columns=["x"])


def test_shares_of_a_table_are_disjoint_and_whole(table: Table) -> None:
    for i in range(6):
        put(table, *((k, f"{i}") for k in range(i, i + 5)))
    whole = rows(Follow(table, start=1, until="latest"))
    parts = [rows(Follow(table, start=1, until="latest", buckets=(i, 2))) for i in range(2)]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == whole
    assert rows(Follow(table, start=1, until="latest", buckets=[1])) == parts[1]
    with pytest.raises(BadRequest, match="is no share"):
        Follow(table, buckets=(3, 3))


def test_shares_of_a_table_without_buckets_go_by_files(clock: Clock) -> None:
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    log = lake.create_table("d.log", KV)
    for i in range(12):
        with log.write() as w:
            w.append([{"k": i, "v": "x"}])
            w.commit()
    parts = [rows(Follow(log, start=1, until="latest", buckets=(i, 3))) for i in range(3)]
    assert sorted(k for p in parts for _, _, k, _ in p) == list(range(12))
    assert sum(bool(p) for p in parts) > 1


def test_a_delay_holds_young_snapshots_back(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    begun = clock.now_ms()
    reader = Follow(table.with_options({"streaming.read.snapshot.delay": "30 s"}), start=1, until=1, poll=5)
    assert rows(reader) == [(1, "+", 1, "a")]
    assert clock.now_ms() - begun >= 30 * SECOND


def with_watermark(table: Table, snapshot: int, watermark: int) -> None:
    snap = table.metadata.snapshot(snapshot)
    table.store.put(paths.snapshot(snapshot), replace(snap, watermark=watermark).encode())


def test_a_watermark_ends_the_stream(table: Table) -> None:
    for i in range(1, 5):
        put(table, (i, "x"))
        with_watermark(table, i, i * 100)
    bounded = table.with_options({"scan.bounded.watermark": 200})
    reader = Follow(bounded, start=1)
    assert [k for _, _, k, _ in rows(reader)] == [1, 2]
    assert reader.watermark == 200
    # a state that has passed it is given whole, and nothing after it
    assert {c.full for c in Follow(bounded)} == {True}


# ---- progress --------------------------------------------------------------------------------------------


def progress(table: Table) -> int | None:
    return consumers.progress(table.store, "bi")


def test_a_consumers_progress_moves_when_more_is_asked_for(table: Table) -> None:
    for i in range(1, 4):
        put(table, (i, "x"))
    reader = Follow(table, start=1, consumer="bi", until="latest")
    assert progress(table) is None
    first = next(reader)
    assert (first.snapshot, first.last, progress(table)) == (1, True, 1)
    next(reader)
    assert (reader.next_snapshot, progress(table)) == (2, 2)
    reader.acknowledge()
    assert progress(table) == 3
    assert [c.snapshot for c in reader] == [3]
    assert progress(table) == 4
    assert json.loads(table.store.read("consumer/consumer-bi")) == {"nextSnapshot": 4}


@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once"])
def test_a_reader_that_dies_repeats_what_it_had_not_finished_and_misses_nothing(table: Table, mode: str) -> None:
    for i in range(1, 8):
        put(table, (i, "x"))
    reading = table.with_options({"consumer.mode": mode, "consumer-id": "bi"})
    done: list[int] = []
    for _ in range(40):
        reader = Follow(reading, start="earliest", until="latest")
        try:
            for taken, change in enumerate(reader):
                done.append(change.snapshot)
                if taken == 1:
                    raise KeyboardInterrupt  # with the second batch in its hands
        except KeyboardInterrupt:
            reader.close()
            if mode == "at-least-once" and len(done) > 12:
                break
            continue
        break
    if mode == "exactly-once":
        # each batch that was in hand when the reader died comes again, no other
        assert done == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    else:
        # progress is only written when there is nothing to do: all comes again
        assert done == [1, 2] * 7


def test_at_least_once_writes_its_progress_when_it_rests(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    put(table, (2, "b"))
    reading = table.with_options({"consumer.mode": "at-least-once"})
    clock.errands = [lambda: None, lambda: put(table, (3, "c"))]
    reader = Follow(reading, start=1, consumer="bi", poll=1)
    assert [next(reader).snapshot for _ in range(3)] == [1, 2, 3]
    assert progress(table) == 3


def test_the_state_is_taken_whole_before_progress_is_kept(table: Table) -> None:
    put(table, (1, "a"), (2, "b"))
    reader = Follow(table, consumer="bi", until="latest")
    first = next(reader)
    assert first.full and progress(table) is None
    list(reader)
    assert progress(table) == 2


def test_progress_can_be_left_aside(table: Table) -> None:
    put(table, (1, "a"))
    put(table, (2, "b"))
    consumers.save(table.store, "bi", 2)
    assert [c.snapshot for c in Follow(table, start=1, consumer="bi", until="latest")] == [2]
    consumers.save(table.store, "bi", 3)
    fresh = table.with_options({"consumer.ignore-progress": True})
    assert [c.snapshot for c in Follow(fresh, start=1, consumer="bi", until="latest")] == [1, 2]
    assert progress(table) == 3


def test_a_reader_that_waits_stays_alive_for_expiry(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    reader = Follow(table, start=1, consumer="bi", poll=10)
    next(reader)
    assert reader.poll() is None
    before = {f.path: f.modified_ms for f in table.store.list("consumer")}
    for _ in range(7):
        reader.rest()
        assert reader.poll() is None
    after = {f.path: f.modified_ms for f in table.store.list("consumer")}
    assert after["consumer/consumer-bi"] > before["consumer/consumer-bi"]


def test_consumers_are_listed_reset_and_dropped(table: Table) -> None:
    consumers.save(table.store, "a", 4)
    consumers.save(table.store, "b", 2)
    assert consumers.all_progress(table.store) == {"a": 4, "b": 2}
    assert consumers.least(table.store) == 2
    consumers.drop(table.store, "b")
    assert consumers.least(table.store) == 4
    with pytest.raises(BadRequest, match="cannot be a consumer id"):
        consumers.save(table.store, "a/b", 1)
    table.store.put("consumer/consumer-c", b'{"nextSnapshot": "x"}')
    with pytest.raises(shoal.Corrupt, match="nextSnapshot"):
        consumers.progress(table.store, "c")


# ---- what is gone ----------------------------------------------------------------------------------------


def test_a_place_that_expired_is_an_error_and_not_a_gap(table: Table) -> None:
    for i in range(1, 6):
        put(table, (i, "x"))
    consumers.save(table.store, "bi", 2)
    expire_before(table, 4)
    for reader in (Follow(table, start=2), Follow(table, consumer="bi")):
        with pytest.raises(NotFound, match=r"snapshot 2 has expired before it was read; the earliest .* is 4") as err:
            next(reader)
        assert "start=4" in str(err.value.hint)
    assert "'consumer.ignore-progress'" in str(err.value.hint)
    fresh = table.with_options({"consumer.ignore-progress": True})
    assert [c.snapshot for c in Follow(fresh, start=4, consumer="bi", until="latest")] == [4, 5]
    assert [c.snapshot for c in Follow(table, consumer="bi", until="latest")] == []
    # as in Java, the option begins with what there is
    old = table.with_options({"scan.snapshot-id": 1})
    assert [c.snapshot for c in Follow(old, until="latest")] == [4, 5]


def test_expiry_under_the_reader_is_an_error(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))

    def overtaken() -> None:
        for i in range(2, 6):
            put(table, (i, "x"))
        expire_before(table, 5)

    reader = Follow(table, start=1, poll=1)
    assert next(reader).snapshot == 1
    clock.errands = [overtaken]
    with pytest.raises(NotFound, match="snapshot 2 has expired before it was read"):
        for _ in range(40):
            next(reader)


def test_expiry_while_files_are_read_is_told_as_expiry(clock: Clock) -> None:
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    table = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 8})
    put(table, *((k, "a") for k in range(50)))
    put(table, (1, "b"))
    reader = Follow(table, start=1, consumer="bi")
    assert next(reader).last is False
    expire_before(table, 2)
    for f in list(table.store.list("")):
        if "/data-" in f.path:
            table.store.delete(f.path)
    with pytest.raises(NotFound, match="snapshot 1 has expired"):
        list(reader)
    assert reader.ended
    assert progress(table) == 1


def test_a_rollback_under_the_reader_is_an_error(table: Table, clock: Clock) -> None:
    for i in range(1, 4):
        put(table, (i, "x"))

    def back() -> None:
        table.store.delete(paths.snapshot(3))
        table.store.delete(paths.snapshot(2))
        table.store.put(paths.LATEST, b"1")

    reader = Follow(table, start=1, poll=1)
    assert [next(reader).snapshot for _ in range(3)] == [1, 2, 3]
    clock.errands = [back]
    with pytest.raises(NotFound, match="snapshot 3, which was read already, is not there any more"):
        next(reader)


def test_a_rollback_that_was_written_over_is_found_too(table: Table, clock: Clock) -> None:
    for i in range(1, 4):
        put(table, (i, "x"))

    def back_and_on() -> None:
        table.store.delete(paths.snapshot(3))
        table.store.put(paths.LATEST, b"2")
        clock.sleep(1)
        put(table, (7, "other"))
        put(table, (8, "other"))

    reader = Follow(table, start=1, poll=1)
    assert [next(reader).snapshot for _ in range(3)] == [1, 2, 3]
    clock.errands = [back_and_on]
    with pytest.raises(NotFound, match=r"snapshot 3, which was read already, .* is another one"):
        next(reader)


@pytest.mark.parametrize("kind", ["read", "open", "put"])
def test_after_any_failure_a_new_reader_goes_on_without_gap_or_repeat(clock: Clock, kind: str) -> None:
    store = MemoryStore(clock=clock)
    whole = Lake(store, clock=clock, scheduler=ManualScheduler)
    table = whole.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1})
    for i in range(1, 5):
        put(table, (i, "x"))
    failures = 0
    for at in range(1, 40):
        consumers.drop(table.store, "bi")
        taken: list[int] = []
        place: int | None = 1
        try:
            failing = Lake(FaultyStore(store, Fault("fail", at=at, kind=kind)), clock=clock).table("d.t")
            reader = Follow(failing, start=1, consumer="bi", until="latest")
            for c in reader:
                place = c.snapshot + 1
                taken.append(c.snapshot)
        except shoal.StorageFailed:
            failures += 1
        assert taken == list(range(1, len(taken) + 1))
        # the batch handed out last counts as taken by whoever keeps the place himself
        taken += [c.snapshot for c in Follow(table, start=place, until="latest")]
        assert taken == [1, 2, 3, 4]
        kept = progress(table)
        assert kept is None or kept <= place
        if failures < at:
            break
    assert failures >= 4


# ---- other processes' tables -----------------------------------------------------------------------------


@pytest.fixture
def decoupled(golden: Callable[[str], Path], tmp_path: Path) -> Table:
    shutil.copytree(golden("changelog") / "changelog.db" / "decoupled", tmp_path / "changelog.db" / "decoupled")
    return shoal.open(tmp_path).table("changelog.decoupled")


def test_changelogs_outlive_their_snapshots(decoupled: Table) -> None:
    assert decoupled.metadata.snapshot_ids() == [7]
    assert sorted({c.snapshot for c in Follow(decoupled, start="earliest", until="latest")}) == [3, 4, 5, 7]
    with pytest.raises(NotFound, match=r"snapshot 2 has expired .* is 3"):
        next(Follow(decoupled, start=2))
    alone = decoupled.with_options(
        {"changelog.num-retained.min": 1, "changelog.num-retained.max": 2, "changelog.time-retained": "1 ms"}
    )
    with pytest.raises(NotFound, match=r"snapshot 3 has expired .* is 7"):
        next(Follow(alone, start=3))


# ---- stopping --------------------------------------------------------------------------------------------


def test_a_closed_reader_says_nothing_more(table: Table) -> None:
    put(table, (1, "a"))
    put(table, (2, "b"))
    with Follow(table, start=1, consumer="bi") as reader:
        assert next(reader).snapshot == 1
    assert list(reader) == []
    assert progress(table) == 1  # the batch in hand does not count


def test_closing_ends_a_wait(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    reader = Follow(table, start=1, poll=10_000)
    next(reader)
    clock.errands = [reader.close]
    assert list(reader) == []
    assert clock.slept < 1


def test_async_iteration_gives_the_same(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    clock.errands = [lambda: None, lambda: put(table, (2, "b"))]

    async def read() -> list[Changes]:
        return [c async for c in follow_async(table, start=1, until=2, poll=1)]

    assert rows(asyncio.run(read())) == [(1, "+", 1, "a"), (2, "+", 2, "b")]


def test_a_cancelled_task_keeps_its_place(table: Table, clock: Clock) -> None:
    put(table, (1, "a"))
    put(table, (2, "b"))
    got: list[int] = []

    async def read() -> None:
        async for c in follow_async(table, start=1, consumer="bi", poll=1):
            got.append(c.snapshot)
            if len(got) == 2:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
    assert (got, progress(table)) == ([1, 2], 2)


def test_polling_by_hand(table: Table) -> None:
    reader: Follow = Follow(table, start="earliest")
    assert reader.poll() is None and not reader.ended
    put(table, (1, "a"))
    found: Any = reader.poll()
    assert found is not None and len(found) == 1
    assert reader.poll() is None
