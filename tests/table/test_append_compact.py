# SPDX-License-Identifier: Apache-2.0
"""Small files of tables without a primary key become larger ones, inline and on demand; no row changes its place."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict, StorageFailed
from shoal.store.memory import MemoryStore
from shoal.table import append_compact
from shoal.table.table import Table

ROWS = pa.schema([("id", pa.int32()), ("v", pa.string())])
PARTS = pa.schema([("p", pa.string()), ("id", pa.int32())])


def table(store: MemoryStore | None = None, columns: pa.Schema = ROWS, **options: object) -> Table:
    lake = Lake(store or MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    named = {k.replace("_", "-"): v for k, v in options.items()}
    parts = ["p"] if "p" in columns.names else []
    return lake.create_table("d.t", columns, partition_by=parts, options=named)


def data_files(t: Table) -> list[str]:
    """Names of the data files that lie in the store, live or not."""
    return sorted(f.path for f in t.store.list("") if "bucket-" in f.path)


def live(t: Table) -> list[dict[str, Any]]:
    return t.inspect.files().to_pylist()


def ids(t: Table) -> list[int]:
    return t.scan().to_arrow().column("id").to_pylist()


def commits(t: Table, count: int, rows: int = 10, start: int = 0) -> None:
    for i in range(start, start + count):
        with t.write() as w:
            w.append([{"id": i * rows + j, "v": f"row {i * rows + j}"} for j in range(rows)])
            w.commit()


# ---- inline


def test_a_bucket_merges_its_small_neighbours_and_keeps_the_order() -> None:
    t = table(bucket=1, bucket_key="id")
    commits(t, 4)
    assert len(live(t)) == 4
    commits(t, 1, start=4)
    assert len(live(t)) == 1
    assert ids(t) == list(range(50))
    kinds = t.inspect.snapshots().column("commit_kind").to_pylist()
    assert kinds == ["APPEND"] * 5 + ["COMPACT"]
    file = live(t)[0]
    assert (file["min_sequence_number"], file["max_sequence_number"], file["file_source"]) == (0, 49, "COMPACT")


def test_one_writer_goes_on_with_what_it_wrote() -> None:
    t = table(bucket=1, bucket_key="id", **{"compaction.min.file-num": 3})
    with t.write(commit_user="u") as w:
        for i in range(12):
            w.append([{"id": i, "v": "x"}])
            w.commit(checkpoint=i)
            w._scheduler.run_pending()  # type: ignore[attr-defined]
    assert ids(t) == list(range(12))
    assert len(live(t)) <= 4


def test_what_a_second_compaction_of_a_checkpoint_takes_never_becomes_visible() -> None:
    t = table(bucket=1, bucket_key="id", **{"compaction.min.file-num": 2})
    commits(t, 1)
    with t.write() as w:
        w.append([{"id": 10, "v": "a"}])
        w.flush()
        writer = next(iter(w._open.writers))
        writer.trigger(w._scheduler, w._budget)
        writer.wait(w._scheduler)
        w.append([{"id": 11, "v": "b"}])
        w.commit()
    assert ids(t) == [*range(10), 10, 11]
    assert len(live(t)) == 1
    # two level-0 files of the checkpoint, the first commit's and the result; the intermediate file is gone
    assert len(data_files(t)) == 4


def test_a_writer_that_only_writes_leaves_the_files() -> None:
    t = table(bucket=1, bucket_key="id", **{"write-only": True})
    commits(t, 6)
    assert len(live(t)) == 6
    unaware = table(bucket=-1)
    commits(unaware, 12)
    assert len(live(unaware)) == 12


# ---- on demand


def test_a_table_without_buckets_packs_its_small_files() -> None:
    t = table(bucket=-1)
    commits(t, 12)
    told = t.maintain.compact(dry_run=True)
    assert [(p.files, p.reason) for p in told.planned] == [(12, "12 small files")]
    assert len(live(t)) == 12
    done = t.maintain.compact()
    assert (done.files_before, done.files_after, done.snapshot) == (12, 1, 13)
    assert sorted(ids(t)) == list(range(120))
    assert str(t.maintain.compact()) == "d.t: nothing to compact"


def test_few_files_wait_until_fewer_are_enough() -> None:
    t = table(bucket=-1)
    commits(t, 3)
    assert t.maintain.compact().snapshot is None
    assert t.maintain.compact(full=True).snapshot is None
    t = t.with_options({"compaction.min.file-num": 2})
    assert t.maintain.compact().files_after == 1
    assert sorted(ids(t)) == list(range(30))
    assert t.maintain.compact().snapshot is None


def test_partitions_are_packed_apart() -> None:
    t = table(columns=PARTS, bucket=-1, **{"compaction.min.file-num": 2})
    for i in range(3):
        with t.write() as w:
            w.append([{"p": "a", "id": i}, *([{"p": "b", "id": 10 + i}] if i else [])])
            w.commit()
    done = t.maintain.compact()
    assert sorted((p.partition, p.files) for p in done.planned) == [("p=a", 3), ("p=b", 2)]
    assert sorted(f["partition"] for f in live(t)) == ["{a}", "{b}"]
    assert sorted(ids(t)) == [0, 1, 2, 11, 12]


def test_a_forced_compaction_of_buckets_takes_three_files() -> None:
    t = table(bucket=2, bucket_key="id", **{"write-only": True})
    commits(t, 2)
    assert t.maintain.compact(full=True).snapshot is None
    commits(t, 1, start=2)
    before = t.scan().to_arrow()
    done = t.maintain.compact(full=True)
    assert (done.files_before, done.files_after) == (6, 2)
    assert t.scan().to_arrow() == before


def test_rolling_keeps_the_rows_in_order() -> None:
    t = table(bucket=1, bucket_key="id", **{"target-file-size": "2 kb", "write-only": True})
    rng = random.Random(7)
    for i in range(6):
        with t.write() as w:
            w.append([{"id": i * 200 + j, "v": str(rng.random())} for j in range(200)])
            w.commit()
    t.maintain.compact(full=True)
    assert ids(t) == list(range(1200))
    files = sorted(live(t), key=lambda f: f["min_sequence_number"])
    ends = [f["max_sequence_number"] + 1 for f in files]
    assert [f["min_sequence_number"] for f in files] == [0, *ends[:-1]]


# ---- what goes wrong


def test_the_loser_of_two_compactions_gets_a_conflict_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table(bucket=-1)
    commits(t, 5)
    carry_out, other = append_compact.carry_out, []

    def slow(task: append_compact.Task, *more: Any) -> Any:
        result = carry_out(task, *more)
        if not other:
            other.append(True)
            other.append(t.maintain.compact().snapshot)
        return result

    monkeypatch.setattr(append_compact, "carry_out", slow)
    with pytest.raises(Conflict):
        t.maintain.compact()
    assert sorted(ids(t)) == list(range(50))
    assert len(data_files(t)) == 6


def test_a_compaction_that_fails_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table(columns=PARTS, bucket=-1, **{"compaction.min.file-num": 2})
    for i in range(2):
        with t.write() as w:
            w.append([{"p": "a", "id": i}, {"p": "b", "id": i}])
            w.commit()
    carry_out, done = append_compact.carry_out, []

    def failing(task: append_compact.Task, *more: Any) -> Any:
        if done:
            raise StorageFailed("disk full")
        done.append(carry_out(task, *more))
        return done[0]

    monkeypatch.setattr(append_compact, "carry_out", failing)
    before = data_files(t)
    with pytest.raises(StorageFailed, match="disk full"):
        t.maintain.compact()
    assert data_files(t) == before
