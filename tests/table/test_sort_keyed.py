# SPDX-License-Identifier: Apache-2.0
"""Tables with dynamic buckets sorted: the same rows, each bucket a narrow span of the columns, every key found again."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict, StorageFailed
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.walk import left_over, missing

COLUMNS = pa.schema([("p", pa.string()), ("id", pa.int32()), ("a", pa.int64()), ("b", pa.string())])
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "write only": {"write-only": True},
    "first row": {"merge-engine": "first-row"},
    "partial update": {"merge-engine": "partial-update"},
    "sums": {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"},
    "newest by column": {"sequence.field": "a"},
    "marks": {"deletion-vectors.enabled": True},
    "input changelog": {"changelog-producer": "input"},
    "lookup changelog": {"changelog-producer": "lookup"},
    "full changelog": {"changelog-producer": "full-compaction"},
    "lookup and marks": {"changelog-producer": "lookup", "deletion-vectors.enabled": True},
    "small buffer": {"write-buffer-size": "3 kb", "page-size": "1 kb", "write-buffer-spillable": False},
    "left at level 0": {"overwrite-upgrade": False},
    "old records": {"record-level.expire-time": "1 d", "record-level.time-field": "a"},
    "kinds in a column": {"rowkind.field": "b"},
}

OFTEN = ("plain", "sums", "newest by column", "marks", "lookup changelog", "small buffer", "kinds in a column")


def opened(store: Any) -> Lake:
    return Lake(store, clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)


def table(store: Any = None, **options: object) -> Table:
    named = {"bucket": -1, "dynamic-bucket.target-row-num": 8, **options}
    lake = opened(MemoryStore() if store is None else store)
    return lake.create_table("d.t", COLUMNS, primary_key=["p", "id"], partition_by=["p"], options=named)


def some(seed: int, count: int = 24, p: str = "xy") -> list[dict[str, Any]]:
    rng = random.Random(seed)
    ids = rng.sample(range(40), count)
    return [{"p": rng.choice(p), "id": i, "a": rng.randint(0, 999), "b": rng.choice(["+I", "+U"])} for i in ids]


def write(t: Table, rows: list[dict[str, Any]]) -> None:
    with t.write() as w:
        w.upsert(rows)
        w.commit()


def filled(t: Table, commits: int = 2) -> Table:
    for n in range(commits):
        write(t, some(n))
    return t


def held(t: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in t.scan().to_arrow().to_pylist())


def live(t: Table) -> list[dict[str, Any]]:
    return t.inspect.files().to_pylist()


def spans(t: Table, p: str, column: str) -> list[tuple[Any, Any]]:
    """Least and greatest value of each bucket of a partition, bucket after bucket."""
    buckets = sorted({f["bucket"] for f in live(t) if f["partition"] == f"{{{p}}}"})
    out = []
    for bucket in buckets:
        values = t.with_options({"scan.bucket": bucket}).scan(f"p = '{p}'").to_arrow().column(column).to_pylist()
        out.append((min(values), max(values)))
    return out


def sort(t: Table, **more: Any) -> Any:
    return t.maintain.compact(**{"order_strategy": "order", "order_by": "a", **more})


def once(action: Callable[[], object]) -> Callable[[Any], None]:
    """For `progress`: the action when the job begins."""
    left = [action]
    return lambda _: left.pop()() if left else None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_the_same_rows_in_buckets_that_follow_each_other(name: str) -> None:
    t = filled(table(**KINDS[name]))
    if name == "full changelog":
        t.maintain.compact(full=True)
    before, counts = held(t), len(live(t))
    report = sort(t)
    assert held(t) == before and list(missing(t)) == [] and left_over(t) == []
    assert (report.files_before, report.files_after) == (counts, len(live(t)))
    for p in "xy":
        bounds = spans(t, p, "a")
        assert len(bounds) > 1
        assert all(high <= low for (_, high), (low, _) in pairwise(bounds)), bounds
    assert {f["level"] for f in live(t)} == {5}
    newest = t.metadata.latest()
    assert newest is not None and (newest.commit_kind, newest.changelog_manifest_list) == ("OVERWRITE", None)
    if name == "old records":
        return
    # each key is found again: writing every row once more changes no count
    write(t, t.scan().to_arrow().to_pylist())
    t.maintain.compact(full=True)
    found = {r[:2] for r in held(t)}
    assert len(held(t)) == len(found) == len(before) and found == {r[:2] for r in before}


def test_other_partitions_stay_as_they_are() -> None:
    t = filled(table())
    before, files = held(t), {f["file_path"] for f in live(t) if f["partition"] == "{y}"}
    report = sort(t, partitions=[{"p": "x"}])
    assert {p.partition for p in report.planned} == {"p=x"} and [c.bucket for c in report.compactions] == [None]
    assert held(t) == before
    assert {f["file_path"] for f in live(t) if f["partition"] == "{y}"} == files
    assert sort(t, where="p = 'z'").planned == ()


@pytest.mark.parametrize("strategy", ["order", "zorder", "hilbert"])
def test_sorted_buckets_let_a_reader_skip(strategy: str) -> None:
    t = table(**{"dynamic-bucket.target-row-num": 50})
    rng = random.Random(5)
    write(
        t, [{"p": "x", "id": i, "a": rng.randint(0, 10**6), "b": f"b{rng.randint(0, 10**6):07}"} for i in range(1000)]
    )

    def read_files(where: str) -> int:
        return len([f for s in t.scan(where=where).plan().splits for f in s.files])

    everything = read_files("a = 500000")
    sort(t, order_strategy=strategy, order_by=["a", "b"])
    assert everything == len(live(t)) == 20
    assert read_files("a = 500000") <= 5
    if strategy != "order":
        assert read_files("b = 'b0500000'") <= 5


def test_sorting_again_and_with_several_threads_gives_the_same() -> None:
    one, two = filled(table()), filled(table())
    seen: list[Any] = []
    sort(one, progress=seen.append)
    sort(two, threads=2)
    sort(two, threads=2)
    assert held(one) == held(two)
    for p in "xy":
        assert spans(one, p, "a") == spans(two, p, "a")
    assert (seen[-1].tasks, seen[-1].tasks_done) == (2, 2)
    assert seen[-1].files_done == seen[-1].files and seen[-1].bytes_done == seen[-1].bytes


def test_a_dry_run_says_what_would_be_sorted_and_writes_nothing() -> None:
    t = filled(table())
    files = sorted(f.path for f in t.store.list(""))
    report = sort(t, order_strategy="zorder", order_by=["a", "b"], dry_run=True)
    assert sum(p.files for p in report.planned) == len(live(t)) and report.snapshot is None
    assert {(p.rule, p.reason, p.output_level) for p in report.planned} == {("sorted", "sorted by zorder of a, b", 5)}
    assert sorted(f.path for f in t.store.list("")) == files


def test_an_empty_table_has_nothing_to_sort() -> None:
    assert sort(table()).planned == ()


def test_a_partition_without_rows_left_is_gone() -> None:
    t = table(**{"write-only": True})
    write(t, some(1))
    gone = [r for r in some(1) if r["p"] == "x"]
    with t.write() as w:
        w.delete(gone)
        w.commit()
    sort(t)
    assert {r[0] for r in held(t)} == {"y"}
    assert {f["partition"] for f in live(t)} == {"{y}"}


def test_no_more_buckets_than_a_partition_may_have() -> None:
    t = filled(table(**{"dynamic-bucket.max-buckets": 2}))
    before = held(t)
    sort(t)
    assert held(t) == before
    assert {f["bucket"] for f in live(t)} == {0, 1}
    write(t, t.scan().to_arrow().to_pylist())
    assert held(t) == before


# ---- others at work


MEANWHILE: dict[str, Callable[[Table], object]] = {
    "new rows": lambda t: write(t, some(9)),
    "a compaction": lambda t: t.maintain.compact(full=True),
    "an overwrite": lambda t: t.overwrite(pa.Table.from_pylist(some(8, p="x"), COLUMNS), {"p": "x"}, dynamic=False),
    "a dropped partition": lambda t: t.drop_partitions([{"p": "x"}]),
    "another sort": lambda t: sort(t, order_by="b"),
}


@pytest.mark.parametrize("name", MEANWHILE)
def test_who_changes_a_partition_meanwhile_makes_it_a_conflict(name: str) -> None:
    t = filled(table())
    after: list[Any] = []

    def meanwhile() -> None:
        MEANWHILE[name](t)
        after.append(held(t))

    with pytest.raises(Conflict) as err:
        sort(t, progress=once(meanwhile))
    assert "nothing has happened" in (err.value.hint or "")
    assert [held(t)] == after and list(missing(t)) == [] and left_over(t) == []
    sort(t)
    assert [held(t)] == after


def test_who_writes_to_another_partition_is_in_nobodys_way() -> None:
    t = filled(table())
    new = [{"p": "z", "id": 1, "a": 1, "b": "+I"}]
    before = held(t)
    sort(t, progress=once(lambda: write(t, new)), where="p in ('x', 'y')")
    assert held(t) == sorted([*before, ("z", 1, 1, "+I")])


def test_a_writer_that_stays_open_finds_the_new_buckets() -> None:
    t = table()
    rows = {(r["p"], r["id"]): r for r in some(1, 30)}
    with t.write(commit_user="job") as w:
        w.upsert(some(1, 30))
        w.commit(checkpoint=1)
        sort(t)
        again = [{**r, "a": -r["a"]} for r in rows.values()]
        w.upsert(again)
        w.commit(checkpoint=2)
        assert held(t) == sorted(tuple(r.values()) for r in again)
        w.upsert(some(2, 30))
        w.flush()  # placed by what checkpoint 2 left
        sort(t)
        with pytest.raises(Conflict):
            w.commit(checkpoint=3)
        assert held(t) == sorted(tuple(r.values()) for r in again)
        w.upsert(some(2, 30))
        w.commit(checkpoint=3)
    rows = {(r["p"], r["id"]): r for r in [*again, *some(2, 30)]}
    assert held(t) == sorted(tuple(r.values()) for r in rows.values())


def test_a_failure_leaves_nothing_behind() -> None:
    inner = MemoryStore()
    before = held(filled(table(inner)))
    at = 1
    while True:  # every fifth change of the store
        t = opened(FaultyStore(inner, [Fault("fail", at)])).table("d.t")
        try:
            sort(t)
        except StorageFailed:
            t = opened(inner).table("d.t")
            assert held(t) == before and left_over(t) == [], at
            at += 5
        else:
            break
    assert at > 10 and held(opened(inner).table("d.t")) == before


# ---- rows that are not shown or told yet


@pytest.mark.parametrize("options", [{"merge-engine": "first-row"}, {"deletion-vectors.enabled": True}], ids=str)
def test_rows_that_no_compaction_has_shown_come_along(options: dict[str, object]) -> None:
    t = table(**options)
    write(t, some(1))
    shown = held(t)
    write(t.with_options({"write-only": True}), [{"p": "x", "id": 999, "a": 5, "b": "+I"}])
    assert held(t) == shown
    sort(t)
    assert held(t) == sorted([*shown, ("x", 999, 5, "+I")])


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_changes_that_are_not_told_yet_are_told_first(producer: str) -> None:
    t = table(**{"changelog-producer": producer})
    write(t, some(1, p="x"))
    late = t.with_options({"write-only": True})
    write(late, [{"p": "x", "id": 999, "a": 5, "b": "+I"}])
    first = t.metadata.latest_id()
    assert first is not None
    with pytest.raises(BadRequest, match=rf"'{producer}' has not told yet: 1 files of p=x wait") as err:
        sort(t)
    assert "shoal compact run d.t --full" in (err.value.hint or "")
    assert sort(t, dry_run=True).planned
    t.maintain.compact(full=True)
    sort(t)
    write(t, [{"p": "x", "id": 999, "a": 6, "b": "+U"}])
    told = t.changes(first, t.metadata.latest_id() or 0, mode="changelog").to_arrow().to_pylist()
    assert sorted((r["_VALUE_KIND"], r["id"], r["a"]) for r in told) == [(0, 999, 5), (1, 999, 5), (2, 999, 6)]


def test_a_handle_from_before_a_column_was_added_keeps_its_values() -> None:
    old = filled(table())
    new = old.alter(add={"c": "INT"})
    write(new, [{"p": "x", "id": 5000, "a": 1, "b": "+I", "c": 7}])
    sort(old)
    assert new.scan("id = 5000", ["c"]).to_arrow().to_pylist() == [{"c": 7}]
    sort(old.with_options({"dynamic-bucket.target-row-num": 1000}))  # what is asked for on top still counts
    assert {f["bucket"] for f in live(new)} == {0}


# ---- what is refused


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"options": {"bucket": 2}}, "fixed buckets .2."),
    ({"options": {"bucket": -2}}, "postpones buckets"),
    ({"primary_key": ["id"]}, "keys that move between partitions"),
    ({"primary_key": [], "options": {"bucket": 2, "bucket-key": "id"}}, "fixed buckets .2."),
]


@pytest.mark.parametrize(("how", "said"), OTHERS, ids=[s for _, s in OTHERS[:3]] + ["append"])
def test_tables_whose_rows_have_their_place_are_refused(how: dict[str, Any], said: str) -> None:
    wanted: dict[str, Any] = {"primary_key": ["p", "id"], "partition_by": ["p"], **how}
    t = opened(MemoryStore()).create_table("d.t", COLUMNS, **wanted)
    with pytest.raises(BadRequest, match=rf"bucket = -1 .* this one .*{said}") as err:
        sort(t)
    assert "compact run d.t --full" in (err.value.hint or "") and "copy the rows" in (err.value.hint or "")


def test_a_sort_by_no_column_of_the_table_is_refused() -> None:
    with pytest.raises(BadRequest, match="no column 'z'"):
        sort(filled(table()), order_by="z")
