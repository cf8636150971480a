# SPDX-License-Identifier: Apache-2.0
"""Two writers where each remembers which bucket or partition a key is in: a key is never placed twice."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.table.staged import Staged

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int64()), ("v", pa.string())])
DYNAMIC, CROSSING = ["dt", "k"], ["k"]
KEYS = pytest.mark.parametrize("key", [DYNAMIC, CROSSING], ids=["dynamic", "cross-partition"])


def table(key: list[str], **options: object) -> Any:
    lake = Lake(MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    return lake.create_table(
        "d.t", SCHEMA, primary_key=key, partition_by=["dt"],
        options={"bucket": -1, "dynamic-bucket.target-row-num": 2, **options},
    )  # fmt: skip


def rows(v: str, keys: range, dt: str = "a") -> pa.Table:
    return pa.table([[dt] * len(keys), list(keys), [v] * len(keys)], schema=SCHEMA)


def read(t: Any) -> list[tuple[str, int, str]]:
    return sorted(tuple(r.values()) for r in t.scan().to_arrow().to_pylist())


def wanted(**values: range) -> list[tuple[str, int, str]]:
    return sorted(("a", k, v) for v, keys in values.items() for k in keys)


@KEYS
def test_the_later_of_two_writers_places_its_rows_again(key: list[str]) -> None:
    t = table(key)
    with t.write(commit_user="one") as one, t.write(commit_user="two") as two:
        one.upsert(rows("old", range(3)))
        one.commit(checkpoint=1)
        one.upsert(rows("one", range(2, 9)))  # placed in memory of what checkpoint 1 left
        one.flush()
        two.upsert(rows("two", range(9, 0, -1)))
        two.commit(checkpoint=1)
        with pytest.raises(shoal.Conflict, match=r"d\.t: .*(hash index|looked up)"):
            one.commit(checkpoint=2)
        assert read(t) == wanted(old=range(1), two=range(1, 10))
        one.upsert(rows("one", range(2, 9)))
        one.commit(checkpoint=2)
    assert read(t) == wanted(old=range(1), two=[1, 9], one=range(2, 9))  # type: ignore[arg-type]


@KEYS
def test_a_partition_that_another_job_replaced_is_looked_at_again(key: list[str]) -> None:
    t = table(key)
    with t.write(commit_user="one") as one:
        one.upsert(rows("old", range(6)))
        one.commit(checkpoint=1)
        one.upsert(rows("one", range(6)))  # every key has its bucket: no index file changes
        one.flush()
        t.overwrite(rows("new", range(5, -1, -1)), {"dt": "a"}, dynamic=False)
        with pytest.raises(shoal.Conflict):
            one.commit(checkpoint=2)
        assert read(t) == wanted(new=range(6))
        one.upsert(rows("one", range(6)))
        one.commit(checkpoint=2)
    assert read(t) == wanted(one=range(6))


@KEYS
@pytest.mark.parametrize("compacts", [False, True], ids=["at rest", "while it compacts"])
def test_a_row_is_newer_than_what_another_job_has_put_there(key: list[str], compacts: bool) -> None:
    t = table(key, **{"dynamic-bucket.target-row-num": 1000, "num-sorted-run.compaction-trigger": 2})
    with t.write(commit_user="one") as one:
        for n in range(1, 4 if compacts else 2):  # the third one begins a compaction that nobody waits for
            one.upsert(rows(f"old{n}", range(3)))
            one.commit(checkpoint=n)
        # its rows have larger sequence numbers than the writer gave so far
        t.overwrite(rows("new", range(50)), {"dt": "a"}, dynamic=False)
        one.upsert(rows("one", range(45, 50)))
        one.commit(checkpoint=9)
        assert read(t) == wanted(new=range(45), one=range(45, 50))
        one.upsert(rows("more", range(49, 50)))
        one.commit(checkpoint=10)
    assert read(t) == wanted(new=range(45), one=range(45, 49), more=range(49, 50))


@KEYS
def test_writers_that_take_turns_never_conflict(key: list[str]) -> None:
    t = table(key)
    written: set[int] = set()
    with t.write(commit_user="one") as one, t.write(commit_user="two") as two:
        for n in range(1, 6):
            for w, name in ((one, "one"), (two, "two")):
                keys = range(n, n + 9, 1 if name == "one" else 2)
                w.upsert(rows(f"{name}{n}", keys))
                w.commit(checkpoint=n)
                written.update(keys)
            t.maintain.compact()
            # whose row is the newer one is not promised to two writers
            assert [k for _, k, _ in read(t)] == sorted(written)


@KEYS
def test_compactions_and_dropped_partitions_of_others_are_no_conflict(key: list[str]) -> None:
    t = table(key)
    with t.with_options({"write-only": "true"}).write(commit_user="one") as one:
        for n in range(1, 4):
            one.upsert(pa.concat_tables([rows(f"v{n}", range(5)), rows(f"v{n}", range(5, 9), "b")]))
            one.commit(checkpoint=n)
        one.upsert(rows("last", range(5)))
        one.flush()
        t.maintain.compact(full=True)
        t.drop_partitions([{"dt": "b"}])
        one.commit(checkpoint=4)
        one.upsert(rows("again", range(5)))
        one.commit(checkpoint=5)
    assert read(t) == wanted(again=range(5))


@KEYS
def test_checkpoints_prepared_ahead_build_on_each_other(key: list[str]) -> None:
    t = table(key)
    w, committer = t.write(commit_user="job"), t.committer(commit_user="job")
    prepared = []
    for n in range(1, 5):
        w.upsert(rows(f"v{n}", range(n, 12 - n)))
        prepared.append(Staged.decode(w.prepare(n).encode()))
    assert [s.placed is not None for s in prepared] == [True] * 4
    for n, s in enumerate(prepared, 1):
        committer.commit(n, s)
    w.close()
    committer.close()
    expected = {k: n for n in range(1, 5) for k in range(n, 12 - n)}
    assert read(t) == sorted(("a", k, f"v{n}") for k, n in expected.items())


@KEYS
def test_two_writers_of_one_checkpoint_place_no_keys_of_one_partition(key: list[str]) -> None:
    t = table(key)
    one, two, committer = t.write(commit_user="job"), t.write(commit_user="job"), t.committer(commit_user="job")
    one.upsert(rows("one", range(4)))
    two.upsert(rows("two", range(4)))
    staged = [one.prepare(1), two.prepare(1)]
    with pytest.raises(shoal.Conflict, match="two writers placed keys"):
        committer.commit(1, *staged)
    assert read(t) == []
    committer.commit(1, staged[0])
    assert read(t) == wanted(one=range(4))
    committer.abort(staged[1])
    for w in (one, two, committer):
        w.close()


def test_expired_snapshots_of_its_own_are_not_missed() -> None:
    t = table(CROSSING, **{"snapshot.num-retained.min": 1, "snapshot.num-retained.max": 1})
    with t.write(commit_user="one") as one:
        for n in range(1, 9):
            one.upsert(rows(f"v{n}", range(5), "ab"[n % 2]))
            one.commit(checkpoint=n)
    assert t.metadata.earliest_id() > 2
    assert read(t) == wanted(v8=range(5))
