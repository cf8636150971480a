# SPDX-License-Identifier: Apache-2.0
"""Rescaled tables: the same rows in other buckets, the option with them, and nothing lost to whoever writes meanwhile."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict, NotFound, StorageFailed
from shoal.format.manifest import entries_of
from shoal.store.memory import MemoryStore
from shoal.table import evolve_table
from shoal.table import rescale as verb
from shoal.table.table import Table
from tests.faults.walk import left_over, missing

COLUMNS = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64()), ("w", pa.string())])


def make(store: Any = None, *, key: bool = True, parts: bool = True, **options: object) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): str(v) for k, v in options.items()}
    keys = (["dt", "k"] if parts else ["k"]) if key else []
    lake = Lake(store or MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    return lake.create_table(
        "d.t", COLUMNS, primary_key=keys, partition_by=["dt"] if parts else [],
        options={"bucket": "2", **({} if key else {"bucket-key": "k"}), **named},
    )  # fmt: skip


def add(t: Table, start: int, stop: int, **more: Any) -> None:
    rows = [{"dt": "ab"[i % 2], "k": i, "v": i * 10, "w": f"w{i}"} | more for i in range(start, stop)]
    with t.write() as w:
        w.upsert(rows) if t.primary_key else w.append(rows)
        w.commit()


def held(t: Table) -> list[dict[str, Any]]:
    return sorted(t.scan().to_arrow().to_pylist(), key=lambda r: (r["dt"], r["k"], str(r)))


def totals(t: Table) -> dict[str, set[int]]:
    out: dict[str, set[int]] = {}
    for e in entries_of(t.metadata.live(t.metadata.latest())):
        out.setdefault(t.partition_path(e.partition).rstrip("/"), set()).add(e.total_buckets)
    return out


def now(t: Table) -> Table:
    """The table with its newest schema."""
    newest = t.metadata.latest_schema_id()
    assert newest is not None
    return t.with_schema(t.metadata.schema(newest))


def routed(t: Table) -> None:
    """Each key is where a writer would put it: writing every row again changes no count."""
    before = held(t)
    t = now(t)
    with t.write() as w:
        w.upsert(t.scan().to_arrow())
        w.commit()
    t.maintain.compact(full=True)
    assert held(t) == before


def test_a_table_in_more_and_in_fewer_buckets() -> None:
    t = make(parts=False)
    add(t, 0, 40)
    add(t, 30, 50, v=-1)
    with t.write() as w:
        w.delete([{"k": 3}])
        w.commit()
    before = held(t)
    assert len(before) == 49
    said = t.maintain.rescale(5)
    assert (said.buckets, said.rows, said.others, said.schema) == (5, 49, 0, 1)
    assert [(p.partition, p.buckets) for p in said.planned] == [("", 2)]
    t = now(t)
    assert t.options.bucket == 5
    assert totals(t) == {"": {5}}
    assert {e.bucket for e in entries_of(t.metadata.live(t.metadata.latest()))} == set(range(5))
    assert held(t) == before
    newest = t.metadata.latest()
    assert (newest.commit_kind, newest.id, newest.total_record_count) == ("OVERWRITE", said.snapshot, 49)
    routed(t)
    add(t, 60, 64)
    now(t).maintain.rescale(1)
    assert totals(t) == {"": {1}}
    assert len(held(now(t))) == 53
    routed(t)
    assert list(missing(t)) == []
    assert left_over(t) == []


def test_nothing_to_do_is_nothing_done() -> None:
    t = make()
    add(t, 0, 10)
    said = t.maintain.rescale(2)
    assert (said.planned, said.snapshot, said.schema) == ((), None, None)
    assert t.maintain.rescale().planned == ()
    assert t.metadata.latest_id() == 1
    assert str(said) == "d.t: nothing to rescale, there are 2 buckets"


def test_a_dry_run_says_what_would_happen() -> None:
    t = make()
    add(t, 0, 10)
    said = t.maintain.rescale(4, where="dt = 'a'", dry_run=True)
    assert [(p.partition, p.buckets, p.files) for p in said.planned] == [("dt=a", 2, 2)]
    assert (said.schema, said.others, said.snapshot) == (1, 1, None)
    assert (t.metadata.latest_id(), t.metadata.latest_schema_id()) == (1, 0)


def test_partitions_that_are_not_chosen_keep_their_number() -> None:
    t = make()
    add(t, 0, 40)
    before = held(t)
    said = t.maintain.rescale(4, partitions=[{"dt": "a"}])
    assert said.others == 1
    assert totals(t) == {"dt=a": {4}, "dt=b": {2}}
    t = now(t)
    assert t.options.bucket == 4
    assert held(t) == before
    with pytest.raises(BadRequest, match="has 2 buckets") as told:
        add(t, 1, 2)
    assert "shoal compact rescale" in (told.value.hint or "")
    with t.write() as w:
        w.upsert([{"dt": "a", "k": 100, "v": 1, "w": "x"}])
        w.commit()
    # without a number: those that have another one than the table
    said = t.maintain.rescale()
    assert [p.partition for p in said.planned] == ["dt=b"]
    assert (said.schema, said.others) == (None, 0)
    assert totals(t) == {"dt=a": {4}, "dt=b": {4}}
    assert len(held(t)) == 41


def test_an_altered_table_is_made_whole() -> None:
    t = make()
    add(t, 0, 10)
    t = t.alter(options={"bucket": "3"})
    with pytest.raises(BadRequest, match="option says 3"):
        add(t, 10, 12)
    t.maintain.rescale()
    add(t, 10, 12)
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    assert [r["k"] for r in held(t)] == [*range(0, 12, 2), *range(1, 12, 2)]


def test_append_tables_with_buckets() -> None:
    t = make(key=False)
    add(t, 0, 30)
    add(t, 0, 30)
    before = held(t)
    t.maintain.rescale(3)
    assert held(now(t)) == before
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    add(now(t), 30, 32)
    assert len(held(now(t))) == 62


def test_append_tables_with_deleted_rows() -> None:
    t = make(key=False, deletion_vectors__enabled=True)
    add(t, 0, 30)
    t.delete("k IN (2, 3, 5)")
    before = held(t)
    t.maintain.rescale(3)
    assert held(now(t)) == before
    assert len(before) == 27
    assert list(t.metadata.index_entries(t.metadata.latest().index_manifest)) == []


HIDDEN: dict[str, dict[str, object]] = {
    "first row": {"merge_engine": "first-row"},
    "deletion vectors": {"deletion_vectors__enabled": True},
    "deletion vectors, gentle": {"deletion_vectors__enabled": True, "lookup_compact": "gentle", "lookup_wait": False},
}


@pytest.mark.parametrize("name", HIDDEN)
def test_rows_that_no_compaction_has_shown_are_not_lost(name: str) -> None:
    """Java reads compacted files alone there, and writes no others."""
    t = make(**HIDDEN[name])
    first = name == "first row"
    add(t, 0, 20)
    t.maintain.compact(full=True)
    late = t.with_options({"write-only": True})
    add(late, 10, 30, v=-5)
    seen = held(t)
    t.maintain.rescale(3)
    t = now(t)
    after = held(t)
    assert len(seen) == 20
    assert [r["k"] for r in after] == [*range(0, 30, 2), *range(1, 30, 2)]
    assert {r["v"] for r in after if 10 <= r["k"] < 20} == ({r * 10 for r in range(10, 20)} if first else {-5})
    assert all(e.file.level > 0 for e in entries_of(t.metadata.live(t.metadata.latest())))
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    add(t, 30, 34)
    assert left_over(t) == []
    assert list(missing(t)) == []


ENGINES: dict[str, dict[str, object]] = {
    "partial update": {"merge_engine": "partial-update", "fields__v__sequence-group": "w"},
    "aggregation": {"merge_engine": "aggregation", "fields__v__aggregate_function": "sum", "fields__w__aggregate_function": "last_value"},
    "lookup changelog": {"changelog_producer": "lookup"},
    "input changelog": {"changelog_producer": "input"},
    "full-compaction changelog": {"changelog_producer": "full-compaction"},
    "sequence field": {"sequence__field": "v"},
    "write only": {"write_only": True},
    "many small files": {"num_sorted_run__compaction_trigger": 2, "write_buffer_size": "1 mb", "target_file_size": "10 kb"},
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_merged_rows_are_what_is_written(name: str) -> None:
    options = {k.replace("-", "_"): v for k, v in ENGINES[name].items()}
    t = make(**options)
    for start in (0, 10, 5):
        add(t, start, start + 20)
    if name == "partial update":
        with t.write() as w:
            w.upsert(pa.table({"dt": ["a"], "k": pa.array([50], pa.int32()), "w": ["only"]}))
            w.commit()
    before = held(t)
    said = t.maintain.rescale(3)
    assert held(now(t)) == before
    newest = t.metadata.snapshot(said.snapshot or 0)
    assert newest.commit_kind == "OVERWRITE"
    assert newest.changelog_manifest_list is None
    assert t.metadata.latest_id() == said.snapshot
    add(now(t), 40, 44)
    assert left_over(t) == []


def test_a_partition_without_rows_left() -> None:
    t = make(write_only=True)
    add(t, 0, 10)
    with t.write() as w:
        w.delete([{"dt": "a", "k": i} for i in range(0, 10, 2)])
        w.commit()
    t.maintain.rescale(3)
    assert totals(t) == {"dt=b": {3}}
    assert [r["k"] for r in held(now(t))] == [1, 3, 5, 7, 9]
    assert now(t).options.bucket == 3


def test_a_table_without_rows_gets_the_option() -> None:
    t = make()
    said = t.maintain.rescale(7)
    assert (said.planned, said.snapshot, said.schema) == ((), None, 1)
    assert now(t).options.bucket == 7


def test_postponed_tables_keep_their_option_and_their_late_rows() -> None:
    t = make(bucket=-2)
    add(t, 0, 20)
    t.maintain.compact()
    assert totals(t) == {"dt=a": {1}, "dt=b": {1}}
    with t.with_options({"postpone.batch-write-fixed-bucket": False}).write() as w:
        w.upsert([{"dt": "a", "k": 100, "v": 1, "w": "late"}])
        w.commit()
    with pytest.raises(BadRequest, match="say how many"):
        t.maintain.rescale()
    said = t.maintain.rescale(3)
    assert (said.schema, now(t).options.bucket) == (None, -2)
    assert totals(t) == {"dt=a": {-2, 3}, "dt=b": {3}}
    assert len(held(t)) == 20
    t.maintain.compact()
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    assert len(held(t)) == 21


def test_what_is_refused() -> None:
    t = make()
    add(t, 0, 4)
    with pytest.raises(BadRequest, match="no number of buckets"):
        t.maintain.rescale(0)
    with pytest.raises(NotFound, match="nothing to rescale"):
        t.maintain.rescale(3, partitions=[{"dt": "zz"}])
    with pytest.raises(BadRequest, match="whole partitions"):
        t.maintain.rescale(3, where="v = 10")
    for dynamic, what in ((make(bucket=-1), "dynamic buckets"), (unaware(), "no buckets")):
        for count in (3, None):
            with pytest.raises(BadRequest, match=what):
                dynamic.maintain.rescale(count)
    assert (t.metadata.latest_id(), t.metadata.latest_schema_id()) == (1, 0)


def unaware() -> Table:
    lake = Lake(MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    return lake.create_table("d.t", COLUMNS, options={"bucket": "-1"})


@pytest.mark.parametrize("what", ["append", "delete", "compact", "drop"])
def test_who_changes_a_partition_meanwhile_wins(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    t = make(num_sorted_run__compaction_trigger=9)
    add(t, 0, 20)
    add(t, 0, 20)
    read = verb.rows_of
    other = t.with_schema(t.schema)

    def meanwhile(*args: Any, **more: Any) -> Any:
        yield from read(*args, **more)
        monkeypatch.setattr(verb, "rows_of", read)
        if what == "append":
            add(other, 100, 101)
        elif what == "delete":
            with other.write() as w:
                w.delete([{"dt": "a", "k": 2}])
                w.commit()
        elif what == "compact":
            other.maintain.compact(full=True)
        else:
            other.drop_partitions([{"dt": "a"}])

    monkeypatch.setattr(verb, "rows_of", meanwhile)
    with pytest.raises(Conflict):
        t.maintain.rescale(3)
    rows = held(t)
    assert totals(t).get("dt=b") == {2}
    assert t.metadata.latest_schema_id() == 0
    assert left_over(t) == []
    t.maintain.rescale(3)
    assert held(now(t)) == rows
    assert set().union(*totals(t).values()) == {3}


def test_others_may_write_to_other_partitions_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    t = make()
    add(t, 0, 20)
    read = verb.rows_of
    other = t.with_schema(t.schema)

    def meanwhile(*args: Any, **more: Any) -> Any:
        yield from read(*args, **more)
        with other.write() as w:
            w.upsert([{"dt": "b", "k": 101, "v": 1, "w": "x"}])
            w.commit()

    monkeypatch.setattr(verb, "rows_of", meanwhile)
    t.maintain.rescale(3, partitions=[{"dt": "a"}])
    assert totals(t) == {"dt=a": {3}, "dt=b": {2}}
    assert len(held(now(t))) == 21


def test_a_writer_of_before_is_told() -> None:
    t = make()
    add(t, 0, 20)
    with t.write(commit_user="job") as w:
        w.upsert([{"dt": "a", "k": 2, "v": 1, "w": "x"}])
        w.commit(checkpoint=1)
        t.maintain.rescale(3)
        w.upsert([{"dt": "a", "k": 4, "v": 1, "w": "x"}])
        with pytest.raises((Conflict, BadRequest), match="buckets"):
            w.commit(checkpoint=2)
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    assert {r["v"] for r in held(now(t)) if r["k"] in (2, 4)} == {1, 40}


def test_an_option_that_could_not_be_set_is_set_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    t = make()
    add(t, 0, 20)
    before = held(t)

    def fails(*_: Any) -> bool:
        raise StorageFailed("the store is away", definite=True)

    with monkeypatch.context() as patched:
        patched.setattr(evolve_table, "_create", fails)
        with pytest.raises(StorageFailed, match="have 3 buckets now") as told:
            t.maintain.rescale(3)
    assert "rescale to 3 again" in (told.value.hint or "")
    assert totals(t) == {"dt=a": {3}, "dt=b": {3}}
    assert held(now(t)) == before
    with pytest.raises(BadRequest, match="has 3 buckets and the table's bucket option says 2"):
        add(now(t), 0, 4)
    said = t.maintain.rescale(3)
    assert (said.planned, said.snapshot, said.schema) == ((), None, 1)
    add(now(t), 20, 24)
    assert len(held(now(t))) == 24


def test_progress_counts_partitions_and_what_is_read_of_them() -> None:
    t = make()
    add(t, 0, 20)
    told: list[tuple[int, int, int]] = []
    t.maintain.rescale(3, progress=lambda p: told.append((p.tasks_done, p.tasks, p.files_done)))
    assert list(dict.fromkeys(told)) == [(0, 2, 0), (0, 2, 1), (0, 2, 2), (1, 2, 2), (1, 2, 3), (1, 2, 4), (2, 2, 4)]
