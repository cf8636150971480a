# SPDX-License-Identifier: Apache-2.0
"""Compaction on demand: chosen partitions, several buckets at a time, interrupted, in conflict."""

from __future__ import annotations

import datetime
import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict
from shoal.store.memory import MemoryStore
from shoal.table.progress import Progress
from shoal.table.table import Table

HOUR = 3_600


def a_table(clock: ManualClock | None = None, *, keyed: bool = True, **options: str) -> Table:
    lake = Lake(MemoryStore(), clock=clock or ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    schema = pa.schema([pa.field("dt", pa.date32()), ("hh", pa.int32()), ("k", pa.int64()), ("v", pa.string())])
    given = {
        "bucket": "2" if keyed else "-1",
        "write-only": "true",
        **{k.replace("_", "-"): v for k, v in options.items()},
    }
    keys = ["dt", "hh", "k"] if keyed else []
    return lake.create_table("d.t", schema, primary_key=keys, partition_by=["dt", "hh"], options=given)


def write(table: Table, day: int, hour: int, value: str, rows: int = 40, checkpoint: int | None = None) -> None:
    data = pa.table(
        {
            "dt": pa.array([20_000 + day] * rows, pa.date32()), "hh": pa.array([hour] * rows, pa.int32()),
            "k": range(rows), "v": [value] * rows,
        }
    )  # fmt: skip
    with table.write("job" if checkpoint else None) as w:
        w.append(data)
        w.commit(checkpoint=checkpoint)


def four_partitions(clock: ManualClock | None = None, **more: Any) -> Table:
    table = a_table(clock, **more)
    for version in "abc":
        for day in (1, 2):
            for hour in (5, 6):
                write(table, day, hour, version)
                if clock:
                    clock.sleep(HOUR)
    return table


def planned(table: Table, **asked: Any) -> set[str]:
    report = table.maintain.compact(full=True, dry_run=True, **asked)
    return {p.partition for p in report.planned}


P15, P16, P25, P26 = (f"dt={20_000 + d}/hh={h}" for d in (1, 2) for h in (5, 6))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {P15, P16, P25, P26}),
        ({"partitions": [{"dt": "20001", "hh": "6"}]}, {P16}),
        ({"partitions": [{"hh": 5}, {"dt": "20002"}]}, {P15, P25, P26}),
        ({"where": "dt > DATE '2024-10-05'"}, {P25, P26}),
        ({"where": pc.field("hh") == 6}, {P16, P26}),
        ({"where": "hh = 6", "partitions": [{"dt": "20002"}]}, {P26}),
        ({"where": "hh = 7"}, set()),
    ],
)
def test_partitions_are_chosen_by_value(asked: dict[str, Any], expected: set[str]) -> None:
    assert planned(four_partitions(), **asked) == expected
    append = four_partitions(keyed=False).with_options({"compaction.min.file-num": "2"})
    assert planned(append, **asked) == expected


def test_partitions_at_rest_are_those_without_a_younger_file() -> None:
    clock = ManualClock()
    table = four_partitions(clock)  # the last files are 4, 3, 2 and 1 hours old
    assert planned(table, idle_time="150 min") == {P15, P16}
    assert planned(table, idle_time=3 * HOUR * 1000) == {P15}
    assert planned(table, idle_time="5 h") == set()


def test_what_is_not_chosen_stays_as_it_is() -> None:
    table = four_partitions()
    before = {f["file_path"] for f in table.inspect.files().to_pylist() if "hh=5" in f["file_path"]}
    report = table.maintain.compact(full=True, where="hh = 6")
    assert (report.files_before, report.files_after) == (12, 4)
    files = [f["file_path"] for f in table.inspect.files().to_pylist()]
    assert before == {f for f in files if "hh=5" in f}
    assert len([f for f in files if "hh=6" in f]) == 4


def test_a_condition_on_other_columns_is_refused() -> None:
    with pytest.raises(BadRequest, match="'k' is no partition column"):
        four_partitions().maintain.compact(where="k = 1")
    with pytest.raises(BadRequest, match="'x' is not a partition column"):
        four_partitions().maintain.compact(partitions=[{"x": 1}])
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    plain = lake.create_table("d.p", pa.schema([("k", pa.int64())]), primary_key=["k"], options={"bucket": "1"})
    with plain.write() as w:
        w.upsert(pa.table({"k": [1]}))
        w.commit()
    with pytest.raises(BadRequest, match="no partitions to choose from"):
        plain.maintain.compact(idle_time="1 h")


@pytest.mark.parametrize("keyed", [True, False])
def test_threads_do_the_same_and_tell_how_far_they_are(keyed: bool) -> None:
    told: list[Progress] = []
    one, many = four_partitions(keyed=keyed), four_partitions(keyed=keyed)
    if not keyed:
        one, many = (t.with_options({"compaction.min.file-num": "2"}) for t in (one, many))
    expected = one.maintain.compact(full=True)
    report = many.maintain.compact(full=True, threads=3, progress=told.append)
    assert (report.files_before, report.files_after) == (expected.files_before, expected.files_after)
    assert (
        many.scan()
        .to_arrow()
        .sort_by([(c, "ascending") for c in ("dt", "hh", "k", "v")])
        .equals(one.scan().to_arrow().sort_by([(c, "ascending") for c in ("dt", "hh", "k", "v")]))
    )
    assert told[0].tasks_done == 0
    assert (told[-1].tasks_done, told[-1].files_done, told[-1].bytes_done) == (
        told[-1].tasks, told[-1].files, told[-1].bytes,
    )  # fmt: skip
    assert told[-1].files == report.files_before
    assert told[-1].seconds_left == 0


def data_files(table: Table) -> set[str]:
    return {p for p in names(table, "") if "/data-" in p}


def names(table: Table, folder: str) -> set[str]:
    folders, files = table.store.list_dir(folder)
    found = {f"{folder}/{f}" for f in files}
    for f in folders:
        found |= names(table, f"{folder}/{f}".strip("/"))
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupted_job_leaves_nothing_behind(threads: int) -> None:
    table = four_partitions()
    before, snapshot = data_files(table), table.metadata.latest_id()

    def interrupt(p: Progress) -> None:
        if p.tasks_done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.maintain.compact(full=True, threads=threads, progress=interrupt)
    assert data_files(table) == before
    assert table.metadata.latest_id() == snapshot
    assert table.maintain.compact(full=True).files_before == 24


def test_the_second_of_two_jobs_gets_a_conflict_and_its_files_are_gone() -> None:
    table = four_partitions()

    def overtaken(p: Progress) -> None:
        if p.tasks_done == p.tasks:
            table.maintain.compact(full=True, partitions=[{"hh": 5}])

    with pytest.raises(Conflict):
        table.maintain.compact(full=True, progress=overtaken)
    live = {f["file_path"].rpartition("/")[2] for f in table.inspect.files().to_pylist()}
    old = {p.rpartition("/")[2] for p in data_files(table)}
    assert live <= old and len(old) == 24 + 4
    assert planned(table) == {P16, P26}


def test_postponed_rows_of_chosen_partitions_only() -> None:
    table = a_table(bucket="-2")
    for hour in (5, 6):
        write(table, 1, hour, "a", checkpoint=hour)
    report = table.maintain.compact(where="hh = 5")
    assert {p.partition for p in report.planned} == {P15}
    assert planned(table) >= {P16}
    assert set(table.scan().to_arrow().column("hh").to_pylist()) == {5}


# ---- progress


def one_bucket(keyed: bool = True, **options: str) -> Table:
    table = a_table(keyed=keyed, **({"bucket": "1"} if keyed else {"compaction.min.file-num": "2"}) | options)
    for version in range(3):
        write(table, 1, 5, f"{version}", rows=30_000)
    return table


@pytest.mark.parametrize(
    ("keyed", "options"),
    [
        (True, {}),
        (False, {}),
        (True, {"changelog-producer": "lookup"}),
        (True, {"deletion-vectors.enabled": "true", "merge-engine": "deduplicate"}),
        (True, {"merge-engine": "first-row"}),
        (True, {"bucket": "-2"}),
        (False, {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}),
    ],
)
def test_progress_moves_inside_a_bucket(keyed: bool, options: dict[str, str]) -> None:
    table = one_bucket(keyed, **options)
    files = table.inspect.files().num_rows if options.get("bucket") != "-2" else 3
    told: list[Progress] = []
    report = table.maintain.compact(full=True, progress=told.append)
    assert report.files_before == files == 3
    assert (told[0].bytes_done, told[0].files_done, told[0].tasks_done) == (0, 0, 0)
    inside = {p.bytes_done for p in told if not p.tasks_done}
    assert len(inside) >= 4  # each file has more than a batch
    for a, b in pairwise(told):
        assert a.bytes_done <= b.bytes_done <= b.bytes and a.files_done <= b.files_done <= b.files == 3
    assert (told[-1].bytes_done, told[-1].files_done, told[-1].tasks_done) == (told[-1].bytes, 3, told[-1].tasks)
    assert told[-1].bytes == sum(p.bytes for p in report.planned)


def test_files_that_only_move_up_count_when_their_bucket_is_done() -> None:
    table = a_table(bucket="1", **{"target-file-size": "1 kb"})
    write(table, 1, 5, "a", rows=500)
    told: list[Progress] = []
    report = table.maintain.compact(full=True, progress=told.append)
    assert report.bytes_written == 0
    assert [(p.bytes_done, p.files_done) for p in told] == [(0, 0), (told[0].bytes, 1)]


def test_who_listens_is_called_once_a_batch_at_most_and_in_the_caller_s_thread() -> None:
    import threading

    table, threads = one_bucket(), set()
    told: list[Progress] = []

    def tell(p: Progress) -> None:
        threads.add(threading.get_ident())
        told.append(p)

    table.maintain.compact(full=True, threads=2, progress=tell)
    assert threads == {threading.get_ident()}
    again: list[Progress] = []
    one_bucket().maintain.compact(full=True, progress=again.append)
    assert len(again) <= 3 * 30_000 // 512 + 2


@pytest.mark.parametrize("keyed", [True, False])
def test_an_interrupt_inside_a_bucket_leaves_nothing_behind(keyed: bool) -> None:
    table = one_bucket(keyed)
    before = data_files(table)

    def interrupt(p: Progress) -> None:
        if p.bytes_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.maintain.compact(full=True, progress=interrupt)
    assert data_files(table) == before
    assert table.maintain.compact(full=True).files_before == 3


# ---- why


def reasons(table: Table, **asked: Any) -> set[tuple[str, str]]:
    from shoal.table.compact_report import RULES

    planned = table.maintain.compact(dry_run=True, **asked).planned
    assert {p.rule for p in planned} <= set(RULES)
    return {(p.rule, p.reason) for p in planned}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"num-sorted-run.compaction-trigger": "3"}, ("space", "size amplification 201 % over 100 %")),
        ({"num-sorted-run.compaction-trigger": "2"}, ("size ratio", "3 newest runs of similar size, ratio 1 %")),
        ({"compaction.force-up-level-0": "true"}, ("level 0", "3 level-0 files forced up")),
        ({"compaction.optimization-interval": "1 h"}, ("early full", "no full compaction known")),
    ],
)
def test_a_dry_run_names_the_rule_of_each_pick(options: dict[str, str], rule: tuple[str, str]) -> None:
    table = a_table(bucket="1")
    for _ in range(3):
        write(table, 1, 5, "a")  # the same rows and sizes
    amplification = {"compaction.max-size-amplification-percent": "100" if rule[0] == "space" else "1000"}
    assert reasons(table.with_options({**amplification, **options})) == {rule}
    assert reasons(table) == set()
    assert reasons(table, full=True) == {("asked for", "full compaction asked for")}


def test_a_dry_run_names_the_rule_of_append_tables() -> None:
    table = a_table(keyed=False)
    for _ in range(6):
        write(table, 1, 5, "a")
    assert reasons(table) == {("small files", "6 small files")}
    buckets = a_table(keyed=False, bucket="1", **{"bucket-key": "k"})
    for _ in range(6):
        write(buckets, 1, 5, "a")
    assert reasons(buckets) == {("neighbours", "5 neighbouring files, 5 are enough")}
    assert reasons(buckets, full=True) == {("asked for", "full compaction asked for, 6 small files")}
    marked = a_table(keyed=False, **{"deletion-vectors.enabled": "true"})
    for _ in range(3):
        write(marked, 1, 5, "a")
    marked.delete("k < 30")
    assert reasons(marked) == {("deleted rows", "3 of 3 files have deleted rows")}


def test_a_dry_run_names_the_rule_of_postponed_rows() -> None:
    table = a_table(bucket="-2", **{"postpone.default-bucket-num": "3", "postpone.batch-write-fixed-bucket": "true"})
    write(table, 1, 5, "a", rows=1_500, checkpoint=1)
    assert reasons(table) == {("postponed", "1,500 rows wait for 3 buckets")}
    table.maintain.compact()
    assert reasons(table) == set()  # three buckets with a file each at level 0: nothing is due
    assert str(table.maintain.compact()) == "d.t: nothing to compact"
    assert reasons(table, full=True) == {("asked for", "full compaction asked for")}
    sooner = table.with_options({"num-sorted-run.compaction-trigger": "1"})
    write(table, 1, 5, "b", rows=1)  # a batch: level 0 of one real bucket
    assert reasons(sooner, where="hh = 5") == {("run count", "2 runs over trigger 1")}
    write(table, 1, 5, "c", rows=2, checkpoint=2)
    assert reasons(sooner) == {
        ("postponed", "2 rows wait for 3 buckets"), ("level 0", "2 files at level 0"), ("level 0", "1 files at level 0"),
    }  # fmt: skip
    assert {p.bucket for p in sooner.maintain.compact().planned} >= {-2}
    assert table.scan(where="k < 2").to_arrow().column("v").to_pylist() == ["c", "c"]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append"])
def test_who_opened_the_table_before_a_column_was_added_keeps_its_values(keyed: bool) -> None:
    old = a_table(keyed=keyed)
    write(old, 1, 1, "a", rows=2)
    new = old.alter(add={"c": "INT"})
    with new.write() as w:
        w.append([{"dt": datetime.date(2024, 10, 5), "hh": 1, "k": 9, "v": "b", "c": 7}])
        w.commit()
    # options on top of the table's own count all the same
    report = old.with_options({"compaction.min.file-num": "2"}).maintain.compact(full=True)
    assert report.snapshot is not None and report.files_before > report.files_after
    assert new.scan("k = 9", ["v", "c"]).to_arrow().to_pylist() == [{"v": "b", "c": 7}]
