# SPDX-License-Identifier: Apache-2.0
"""Postponed rows get their buckets: against a model of rows in order of arrival, and against Java's compacted tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commits import lake, snapshots
from options_truth import opened, rows

from shoal.errors import BadRequest, Conflict
from shoal.store.memory import MemoryStore
from shoal.table.progress import Progress
from shoal.table.table import Table

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64()), ("n", pa.int32())])
Row = dict[str, Any]


def late(store: MemoryStore | None = None, **options: str) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    return lake(store or MemoryStore()).create_table(
        "d.t", SCHEMA, primary_key=["p", "k"], partition_by=["p"], options={"bucket": "-2", **named}
    )


def batch(*rows: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist([{"p": p, "k": k, "v": v, "n": v} for p, k, v in rows], SCHEMA)


def postpone(table: Table, *commits: list[tuple[str, int, int]], user: str = "stream", at: int = 1) -> None:
    with table.write(commit_user=user) as w:
        for i, c in enumerate(commits):
            w.upsert(batch(*c))
            w.commit(at + i)


def found(table: Table) -> list[tuple[str, int, int]]:
    return sorted((r["p"], r["k"], r["v"]) for r in table.scan().to_arrow().to_pylist())


def places(table: Table) -> set[tuple[int, int]]:
    live = table.metadata.live(table.metadata.latest())
    return set(zip(live.column("bucket").to_pylist(), live.column("total_buckets").to_pylist()))


@pytest.mark.parametrize("options", [{}, {"postpone.default-bucket-num": "3"}, {"deletion-vectors.enabled": "true"}])
def test_rows_come_in_the_order_of_arrival(options: dict[str, str]) -> None:
    rng = random.Random(5)
    t = lake(MemoryStore()).create_table(
        "d.t", SCHEMA, primary_key=["p", "k"], partition_by=["p"], options={"bucket": "-2", **options}
    )
    model: dict[tuple[str, int], int] = {}
    at = 0
    for round_ in range(4):
        with t.write(commit_user="stream") as w:
            for _ in range(3):
                at += 1
                some = [(rng.choice("ab"), rng.randrange(20), rng.randrange(1000)) for _ in range(15)]
                gone = [(rng.choice("ab"), rng.randrange(20)) for _ in range(3)]
                w.upsert(batch(*some))
                w.delete([{"p": p, "k": k} for p, k in gone])  # the other columns are null in the file
                w.commit(at)
                model |= {(p, k): v for p, k, v in some}
                for key in gone:
                    model.pop(key, None)
        if round_ == 2:  # a batch goes to real buckets, and meets what is postponed after it
            with t.write() as w:
                w.upsert(batch(("a", 1, -1), ("b", 2, -2)))
                w.commit()
            t.maintain.compact()
            continue  # its rows came to their buckets first: the postponed ones count as newer
        before = snapshots(t)[-1].id
        report = t.maintain.compact(full=round_ == 3)
        assert report.snapshot == before + 1
        assert snapshots(t)[-1].commit_kind == "COMPACT"
        if round_ < 2:
            assert found(t) == sorted((p, k, v) for (p, k), v in model.items())
        assert not {b for b, _ in places(t)} & {-2}


def test_nothing_to_do_makes_no_snapshot() -> None:
    t = late()
    assert str(t.maintain.compact()) == "d.t: nothing to compact"
    postpone(t, [("a", 1, 1)])
    dry = t.maintain.compact(dry_run=True)
    assert [(p.partition, p.bucket, p.files) for p in dry.planned] == [("p=a", -2, 1)]
    assert t.maintain.compact().snapshot == 2
    assert t.maintain.compact().snapshot is None
    assert found(t) == [("a", 1, 1)]


@pytest.mark.parametrize(
    ("options", "rows", "count"),
    [
        ({}, 12, 1),
        ({"postpone.default-bucket-num": "3"}, 12, 3),
        ({"postpone.target-row-num-per-bucket": "5", "postpone.default-bucket-num": "9"}, 12, 3),
        ({"postpone.target-row-num-per-bucket": "12"}, 12, 1),
    ],
)
def test_a_partition_gets_as_many_buckets_as_its_options_say(options: dict[str, str], rows: int, count: int) -> None:
    t = late(**{k.replace(".", "__"): v for k, v in options.items()})
    postpone(t, [("a", k, k) for k in range(rows)])
    t.maintain.compact()
    assert {n for _, n in places(t)} == {count}
    # later rows keep the number, whatever the options say now
    postpone(t, [("a", k, -k) for k in range(50)], at=2)
    t.with_options({"postpone.default-bucket-num": "7", "postpone.target-row-num-per-bucket": "1"}).maintain.compact()
    assert {n for _, n in places(t)} == {count}
    assert found(t) == [("a", k, -k) for k in range(50)]


def test_a_number_of_buckets_must_be_positive() -> None:
    t = late(postpone__target_row_num_per_bucket="0")
    postpone(t, [("a", 1, 1)])
    with pytest.raises(BadRequest, match="target-row-num-per-bucket' = 0"):
        t.maintain.compact()


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_the_snapshot_tells_what_changed(producer: str) -> None:
    t = late(changelog_producer=producer)
    postpone(t, [("a", 1, 1), ("a", 2, 2)])
    t.maintain.compact(full=True)
    postpone(t, [("a", 1, 5), ("a", 3, 3)], at=2)
    t.maintain.compact(full=True)
    last = snapshots(t)[-1]
    assert last.changelog_record_count == 3  # -U +U of key 1, +I of key 3
    assert last.changelog_manifest_list is not None


def test_who_compacted_meanwhile_makes_it_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.table import postpone_compact

    store = MemoryStore()
    t = late(store)
    postpone(t, [("a", 1, 1)])
    replay = postpone_compact._replay
    other = lake(store).table("d.t")

    def late_one(*args: Any) -> None:
        monkeypatch.setattr(postpone_compact, "_replay", replay)
        other.maintain.compact()
        files.update(_files(store))
        replay(*args)

    files: set[str] = set()
    monkeypatch.setattr(postpone_compact, "_replay", late_one)
    with pytest.raises(Conflict):
        t.maintain.compact()
    assert found(t) == [("a", 1, 1)]
    assert set(_files(store)) == files


def test_rows_that_come_meanwhile_wait_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.table import postpone_compact

    store = MemoryStore()
    t = late(store)
    postpone(t, [("a", 1, 1)])
    replay = postpone_compact._replay

    def late_one(*args: Any) -> None:
        replay(*args)
        postpone(lake(store).table("d.t"), [("a", 1, 2)], user="other")

    monkeypatch.setattr(postpone_compact, "_replay", late_one)
    t.maintain.compact()
    assert found(t) == [("a", 1, 1)]
    monkeypatch.setattr(postpone_compact, "_replay", replay)
    t.maintain.compact()
    assert found(t) == [("a", 1, 2)]


def _files(store: MemoryStore) -> list[str]:
    return sorted(f.path for f in store.list("") if "bucket-" in f.path)


# without dd: there rows of two writers stand side by side for a read, and one after the other for a compaction
@pytest.mark.parametrize("table", ["seqf", "dv", "ig", "mb", "agg", "pu", "fr"])
def test_every_engine_gives_what_a_merging_read_gives(
    unpacked: Callable[[str], Path], tmp_path: Path, table: str
) -> None:
    """The read that merges postponed rows, which Java's results are held against, and the compaction agree."""
    import shutil

    shutil.copytree(unpacked("options") / "warehouse" / "late.db" / table, tmp_path / "warehouse" / "late.db" / table)
    t = opened(tmp_path, f"late.{table}")
    plain = t.with_options({"postpone.merge-on-read": "false"})
    expected = rows(t)
    plain.maintain.compact()
    assert rows(plain) == expected


def test_threads_and_a_commit_user_make_the_same_rows() -> None:
    told: list[Progress] = []
    tables = [late(postpone__default_bucket_num="4", changelog_producer="lookup") for _ in range(3)]
    for t in tables:
        for i in range(3):
            postpone(t, [(p, k, k * (i + 1)) for p in "ab" for k in range(i * 40, i * 40 + 80)], at=i + 1)
    one = tables[0].maintain.compact(full=True, progress=told.append)
    many = tables[1].maintain.compact(full=True, threads=3, commit_user="compactor", checkpoint=7, progress=told.append)
    plain = tables[2].maintain.compact(full=True)
    assert found(tables[0]) == found(tables[1]) == found(tables[2])
    assert one.planned == many.planned == plain.planned
    for report in (one, many):
        assert (report.files_before, report.files_after) == (plain.files_before, plain.files_after)
        assert {(c.partition, c.bucket, c.inputs, c.outputs) for c in report.compactions} == {
            (c.partition, c.bucket, c.inputs, c.outputs) for c in plain.compactions
        }
        assert len(report.compactions) == 8 and report.write_amplification is not None
    snap = snapshots(tables[1])[-1]
    assert (snap.commit_user, snap.commit_identifier) == ("compactor", 7)
    assert tables[1].metrics.to_dict()["compaction"]["compactionCompletedCount"] == 8
    assert tables[1].metrics.to_dict()["compaction"]["maxLevel0FileCount"] == 0
    ends = [p for p in told if p.tasks_done == p.tasks]
    assert ends and all((p.bytes_done, p.files_done) == (p.bytes, p.files) for p in ends)
    assert told[0].bytes_done == 0 and any(0 < p.bytes_done < p.bytes for p in told)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_an_interrupted_job_leaves_nothing_behind(threads: int, when: int) -> None:
    store = MemoryStore()
    t = late(store)
    postpone(t, [("a", k, 1) for k in range(50)], [("b", k, 2) for k in range(50)])
    before = sorted(f.path for f in store.list(""))

    def interrupt(p: Progress) -> None:
        if p.tasks_done >= when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        t.maintain.compact(full=True, threads=threads, progress=interrupt)
    assert sorted(f.path for f in store.list("")) == before
    assert t.maintain.compact(full=True).files_before == 2
    assert len(found(t)) == 100


def test_this_job_expires_snapshots_which_a_postponing_writer_never_does() -> None:
    t = late(snapshot__num_retained__min="1", snapshot__time_retained="1 s")
    for i in range(1, 6):
        postpone(t, [("a", i, i)], at=i)
        t.clock.sleep(10)
    assert len(snapshots(t)) == 5
    done = t.maintain.compact()
    assert done.upkeep is not None and done.upkeep.expired is not None
    assert not {1, 2, 3, 4} & {s.id for s in snapshots(t)}
    assert found(t) == [("a", i, i) for i in range(1, 6)]
