# SPDX-License-Identifier: Apache-2.0
"""Append tables sorted: whole partitions on demand, new files step by step, rows as they are written."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict, StorageFailed
from shoal.lsm import sort
from shoal.lsm.spill import Shelf
from shoal.store.memory import MemoryStore
from shoal.table import append_compact
from shoal.table.progress import Progress
from shoal.table.table import Table

ROWS = pa.schema([("id", pa.int32()), ("a", pa.int32()), ("b", pa.string())])
PARTS = pa.schema([("p", pa.string()), *ROWS])
CLUSTERED = {"clustering.incremental": True, "clustering.columns": "a", "num-sorted-run.compaction-trigger": 3}


def table(columns: pa.Schema = ROWS, *, clock: ManualClock | None = None, **options: object) -> Table:
    lake = Lake(MemoryStore(), clock=clock or ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    named = {k.replace("_", "-"): v for k, v in options.items()}
    parts = ["p"] if "p" in columns.names else []
    return lake.create_table("d.t", columns, partition_by=parts, options=named)


def commits(t: Table, count: int, rows: int = 50, *, start: int = 0, p: str | None = None) -> None:
    for i in range(start, start + count):
        rng = random.Random(i)
        with t.write() as w:
            new = [{"id": i * rows + j, "a": rng.randint(0, 999), "b": f"b{rng.randint(0, 99)}"} for j in range(rows)]
            w.append([{"p": p, **r} for r in new] if p is not None else new)
            w.commit()


def live(t: Table) -> list[dict[str, Any]]:
    return t.inspect.files().to_pylist()


def levels(t: Table) -> list[int]:
    return sorted(f["level"] for f in live(t))


def rows(t: Table) -> list[dict[str, Any]]:
    return sorted(t.scan().to_arrow().to_pylist(), key=lambda r: r["id"])


def column(t: Table, name: str) -> list[Any]:
    return t.scan().to_arrow().column(name).to_pylist()


def kinds(t: Table) -> list[str]:
    return t.inspect.snapshots().column("commit_kind").to_pylist()


def data_files(t: Table) -> list[str]:
    return sorted(f.path for f in t.store.list("") if "bucket-" in f.path)


# ---- sort compaction


def test_a_sort_compaction_writes_the_partitions_anew_in_order() -> None:
    t = table(PARTS)
    for i, p in enumerate(["x", "y", "x"]):
        commits(t, 1, start=i, p=p)
    before = rows(t)
    report = t.maintain.compact(order_strategy="order", order_by=["b", "a"], partitions=[{"p": "x"}])
    assert (report.files_before, report.files_after) == (2, 1)
    assert rows(t) == before
    x = [(r["b"], r["a"]) for r in t.scan(where="p = 'x'").to_arrow().to_pylist()]
    assert x == sorted(x) and len(x) == 100
    assert kinds(t) == ["APPEND"] * 3 + ["OVERWRITE"]
    assert len(live(t)) == 2


@pytest.mark.parametrize("strategy", ["order", "zorder", "hilbert"])
def test_sorted_files_let_a_reader_skip(strategy: str) -> None:
    t = table(**{"target-file-size": "4 kb", "file.block-size": "1 kb"})
    commits(t, 3, rows=8_000)
    before = rows(t)

    def read_files(where: str) -> int:
        return len([f for s in t.scan(where=where).plan().splits for f in s.files])

    t.maintain.compact(order_strategy=strategy, order_by=["a", "id"])
    assert rows(t) == before
    files = len(live(t))
    assert files > 8
    assert read_files("a = 500") <= files // 2
    if strategy != "order":
        assert read_files("id = 12000") <= files // 2


def test_a_dry_run_says_what_would_be_sorted_and_writes_nothing() -> None:
    t = table()
    commits(t, 2)
    files = data_files(t)
    report = t.maintain.compact(order_strategy="zorder", order_by=["a", "b"], dry_run=True)
    assert [(p.files, p.reason) for p in report.planned] == [(2, "sorted by zorder of a, b")]
    assert data_files(t) == files and report.snapshot is None


def test_rows_that_come_during_a_sort_compaction_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table()
    commits(t, 2)
    real = append_compact.carry_out

    def meanwhile(*args: Any) -> Any:
        commits(t, 1, start=9)
        return real(*args)

    monkeypatch.setattr("shoal.table.sort_compact.carry_out", meanwhile)
    t.maintain.compact(order_strategy="order", order_by=["a"])
    assert len(rows(t)) == 150 and len(live(t)) == 2


def test_a_sort_compaction_that_lost_its_files_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table()
    commits(t, 2)
    real = append_compact.carry_out

    def meanwhile(*args: Any) -> Any:
        done = real(*args)
        monkeypatch.undo()
        t.maintain.compact(order_strategy="order", order_by=["b"])
        return done

    monkeypatch.setattr("shoal.table.sort_compact.carry_out", meanwhile)
    with pytest.raises(Conflict):
        t.maintain.compact(order_strategy="order", order_by=["a"])
    assert column(t, "b") == sorted(column(t, "b"))
    assert len(data_files(t)) == 3  # two that snapshots hold, and the one of the winner


def test_deleted_rows_are_left_out_and_their_vectors_forgotten() -> None:
    t = table(**{"deletion-vectors.enabled": True})
    commits(t, 2)
    t.delete("id < 30")
    t.maintain.compact(order_strategy="order", order_by=["a"])
    assert [r["id"] for r in rows(t)] == list(range(30, 100))
    newest = t.metadata.latest()
    assert newest is not None and newest.index_manifest is not None
    assert t.metadata.index_entries(newest.index_manifest) == []


def test_rows_keep_their_ids_through_a_sort() -> None:
    t = table(**{"row-tracking.enabled": True})
    commits(t, 2)
    columns = ["id", "_ROW_ID", "_SEQUENCE_NUMBER"]
    before = sorted(t.scan(columns=columns).to_arrow().to_pylist(), key=lambda r: r["id"])
    t.maintain.compact(order_strategy="order", order_by=["a"])
    assert column(t, "a") == sorted(column(t, "a"))
    assert sorted(t.scan(columns=columns).to_arrow().to_pylist(), key=lambda r: r["id"]) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"order_strategy": "order"}, "columns to order by"),
        ({"order_by": ["a"]}, "order strategy"),
        ({"order_strategy": "snake", "order_by": ["a"]}, "no order 'snake'"),
        ({"order_strategy": "order", "order_by": ["z"]}, "no column 'z'"),
        ({"order_strategy": "order", "order_by": ["a"], "idle_time": "1 h"}, "idle time"),
    ],
)
def test_a_sort_that_makes_no_sense_is_refused(arguments: dict[str, Any], said: str) -> None:
    t = table(PARTS)
    commits(t, 1, p="x")
    with pytest.raises(BadRequest, match=said):
        t.maintain.compact(**arguments)


def test_tables_that_have_an_order_of_their_own_are_not_sorted() -> None:
    with pytest.raises(BadRequest, match=r"bucket = -1 .* fixed buckets \(2\)"):
        table(bucket=2, bucket_key="id").maintain.compact(order_strategy="order", order_by=["a"])


# ---- incremental clustering


def test_new_files_are_sorted_into_levels_step_by_step() -> None:
    t = table(**CLUSTERED)
    commits(t, 2)
    assert t.maintain.compact().planned == ()
    commits(t, 1, start=2)
    before = rows(t)
    report = t.maintain.compact()
    assert [(p.files, p.output_level) for p in report.planned] == [(3, 3)]
    assert report.planned[0].reason.endswith(": order of a")
    assert levels(t) == [3] and kinds(t)[-1] == "COMPACT"
    assert rows(t) == before and column(t, "a") == sorted(column(t, "a"))
    commits(t, 1, start=3)
    assert t.maintain.compact().planned == ()
    commits(t, 3, start=4, rows=20)
    t.maintain.compact()
    assert len([f for f in levels(t) if f == 0]) == 0
    assert len(rows(t)) == 50 * 4 + 20 * 3


def test_full_clustering_takes_everything_once_and_again_when_the_columns_change() -> None:
    t = table(**CLUSTERED)
    commits(t, 2)
    t.maintain.compact(full=True)
    assert levels(t) == [3] and column(t, "a") == sorted(column(t, "a"))
    assert t.maintain.compact(full=True).planned == ()
    t = t.alter(options={"clustering.columns": "b"})
    t.maintain.compact(full=True)
    assert levels(t) == [3] and column(t, "b") == sorted(column(t, "b"))


def test_partitions_nobody_writes_to_are_sorted_in_full_beside_the_chosen_ones() -> None:
    clock = ManualClock()
    t = table(PARTS, clock=clock, **CLUSTERED, **{
        "clustering.history-partition.idle-to-full-sort": "1 d", "clustering.history-partition.limit": 2,
    })  # fmt: skip
    for i, p in enumerate(["old", "older", "newer"]):
        commits(t, 1, start=i, p=p)
        clock.sleep(1)
    clock.sleep(2 * 86_400)
    commits(t, 1, start=3, p="today")
    assert t.maintain.compact(dry_run=True).planned == ()  # nothing is chosen, so nothing is beside it
    report = t.maintain.compact(where="p = 'today'", dry_run=True)
    assert [p.partition for p in report.planned] == ["p=old", "p=older"]
    t.maintain.compact(where="p = 'today'")
    assert [p.partition for p in t.maintain.compact(where="p = 'today'", dry_run=True).planned] == ["p=newer"]


def test_local_sort_orders_each_file_by_itself() -> None:
    t = table(**CLUSTERED, **{
        "clustering.incremental.mode": "local-sort", "target-file-size": "8 kb", "clustering.strategy": "zorder",
    })  # fmt: skip
    commits(t, 6, rows=1_000)
    before = rows(t)
    report = t.maintain.compact(full=True)
    assert "order of a" in report.planned[0].reason
    assert rows(t) == before and len(live(t)) > 1
    for split in t.scan().plan().splits:
        for f in split.files:
            a = column_of(t, f.file_name)
            assert a == sorted(a)
    assert column(t, "a") != sorted(column(t, "a"))


def column_of(t: Table, file_name: str) -> list[int]:
    import io

    import pyarrow.parquet as pq

    [path] = [f for f in data_files(t) if f.endswith(file_name)]
    return pq.read_table(io.BytesIO(t.store.read(path))).column("a").to_pylist()  # type: ignore[no-any-return]


def test_writers_of_buckets_cluster_beside_their_work() -> None:
    t = table(bucket=1, bucket_key="id", **CLUSTERED, **{"bucket-append-ordered": False})
    commits(t, 2)
    assert levels(t) == [0, 0]
    commits(t, 1, start=2)
    assert levels(t) == [3]
    assert column(t, "a") == sorted(column(t, "a")) and len(rows(t)) == 150
    assert kinds(t) == ["APPEND"] * 3 + ["COMPACT"]
    with t.write(commit_user="u") as w:
        for i in range(12):
            w.append([{"id": 1000 + i, "a": i, "b": "x"}])
            w.commit(checkpoint=i)
            w._scheduler.run_pending()  # type: ignore[attr-defined]
    assert len(rows(t)) == 162 and len(live(t)) <= 4
    assert t.maintain.compact(full=True).planned[0].output_level == 3
    assert levels(t) == [3]


def test_a_clustering_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table(**CLUSTERED)
    commits(t, 3)
    files = data_files(t)

    def broken(*_: object) -> None:
        raise StorageFailed("no room")

    monkeypatch.setattr(append_compact.SequenceBounds, "__init__", broken)
    monkeypatch.setattr("shoal.lsm.rolling.RollingWriter.close", broken)
    with pytest.raises(StorageFailed):
        t.maintain.compact()
    assert data_files(t) == files


def test_deletion_vectors_of_clustered_files_go() -> None:
    t = table(**CLUSTERED, **{"deletion-vectors.enabled": True})
    commits(t, 3)
    t.delete("id < 30")
    t.maintain.compact()
    assert [r["id"] for r in rows(t)] == list(range(30, 150))


# ---- sorted as they are written


def test_rows_of_a_commit_are_sorted_where_the_table_asks_for_it() -> None:
    t = table(**{"clustering.columns": "b,a", "clustering.strategy": "order"})
    commits(t, 1)
    pairs = list(zip(column(t, "b"), column(t, "a")))
    assert pairs == sorted(pairs) and len(pairs) == 50


def test_incremental_clustering_leaves_new_rows_alone_unless_told_otherwise() -> None:
    t = table(**CLUSTERED)
    commits(t, 1)
    assert column(t, "id") == list(range(50))
    t = table(**CLUSTERED, **{"clustering.incremental.optimize-write": True})
    commits(t, 1)
    assert column(t, "a") == sorted(column(t, "a"))


def test_rows_beyond_the_buffer_are_sorted_as_well() -> None:
    t = table(PARTS, **{"clustering.columns": "a", "write-buffer-size": "64 kb"})
    with t.write() as w:
        for i in range(20):
            rng = random.Random(i)
            w.append([{"p": str(j % 2), "id": i * 500 + j, "a": rng.randint(0, 10**6), "b": "x"} for j in range(500)])
        w.commit()
    for p in "01":
        a = t.scan(where=f"p = '{p}'").to_arrow().column("a").to_pylist()
        assert a == sorted(a) and len(a) == 5_000


# ---- disk


@pytest.mark.parametrize("how", ["on demand", "as rows are written", "keys in another order"])
def test_rows_put_aside_by_a_sort_are_compressed_as_the_table_says(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = pa.array(range(60_000), pa.int32())
    rows = pa.table({"id": ids, "a": ids[::-1], "b": ["the same text of each row " * 3] * len(ids)}, schema=ROWS)
    written: list[int] = []

    class Seen(Shelf):
        def close(self) -> None:
            written.append(self.size)
            super().close()

    monkeypatch.setattr(sort, "Shelf", Seen)
    options: dict[str, object] = {"clustering.columns": "a"} if how != "on demand" else {}
    key = ["id"] if how == "keys in another order" else []
    if key:
        options |= {"pk-clustering-override": True, "deletion-vectors.enabled": True, "bucket": 1}
    sizes = {}
    for codec in ("none", "lz4", "zstd"):
        lake = Lake(MemoryStore(), memory=2 << 20, clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
        named = {**options, "spill-compression": codec}
        t = lake.create_table("d.t", ROWS, primary_key=key, options=named)
        written.clear()
        with t.write() as w:
            w.upsert(rows) if key else w.append(rows)
            w.commit()
        if how == "on demand":
            t.maintain.compact(order_strategy="order", order_by=["a"])
        assert t.scan().to_arrow().num_rows == len(ids)
        sizes[codec] = max(written)
    assert sizes["none"] > 4_000_000
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"] / 2


# ---- progress


@pytest.mark.parametrize("strategy", [None, "order", "hilbert"])
def test_progress_goes_on_while_rows_are_sorted_on_disk(strategy: str | None) -> None:
    lake = Lake(MemoryStore(), memory=1 << 20, clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    t = lake.create_table("d.t", ROWS, options=CLUSTERED if strategy is None else {})
    for i in range(3):
        ids = pa.array(range(i, 30_000, 3), pa.int32())
        with t.write() as w:
            w.append(pa.table({"id": ids, "a": ids[::-1], "b": [f"b{i}"] * len(ids)}, schema=ROWS))
            w.commit()
    told: list[Progress] = []
    done = t.maintain.compact(
        full=strategy is None, order_strategy=strategy, order_by=["a", "id"] if strategy else None, progress=told.append
    )
    assert done.files_before == 3
    for a, b in pairwise(told):
        assert a.bytes_done <= b.bytes_done <= b.bytes and a.files_done <= b.files_done <= b.files == 3
    # reading is a third of it, what lies on disk is another, what is written the last: each moves
    for third in range(3):
        here = {p.bytes_done for p in told if third <= 3 * p.bytes_done / p.bytes < third + 1}
        assert len(here) >= 3
    assert (told[-1].bytes_done, told[-1].files_done) == (told[-1].bytes, 3)
    if strategy == "hilbert":
        assert [p.bytes_done for p in told[:4]] == [0] * 4  # the look at the columns' bounds
