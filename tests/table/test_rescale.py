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
from shoal.table import evolve_table, untold
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


def test_options_that_were_given_count_and_newer_columns_stay() -> None:
    t = make()
    add(t, 0, 20)
    held_open = t.with_options({"file.format": "orc"})
    t.alter(add={"extra": "INT"})
    with now(t).write() as w:
        w.upsert([{"dt": "a", "k": 2, "v": 7, "w": "x", "extra": 9}])
        w.commit()
    held_open.maintain.rescale(3)
    t = now(t)
    assert {f["file_path"].rsplit(".", 1)[-1] for f in t.inspect.files().to_pylist()} == {"orc"}
    assert [r["extra"] for r in held(t) if r["k"] == 2] == [9]
    assert (t.options.bucket, "file.format" in t.schema.options) == (3, False)


TOLD: dict[str, dict[str, object]] = {
    "input": {"changelog_producer": "input"},
    "lookup": {"changelog_producer": "lookup"},
    "lookup, gentle": {"changelog_producer": "lookup", "lookup_compact": "gentle", "lookup_wait": False},
    "lookup and marks": {"changelog_producer": "lookup", "deletion_vectors__enabled": True},
    "lookup, first row": {"changelog_producer": "lookup", "merge_engine": "first-row"},
    "lookup, sums": {"changelog_producer": "lookup", "merge_engine": "aggregation", "fields__v__aggregate_function": "sum"},
    "lookup, postponed": {"changelog_producer": "lookup", "bucket": -2},
    "lookup, small buffer": {"changelog_producer": "lookup", "write_buffer_size": "3 kb", "page_size": "1 kb",
                             "write_buffer_spillable": False},
    "full-compaction": {"changelog_producer": "full-compaction"},
    "full-compaction, now and then": {"changelog_producer": "full-compaction", "full_compaction__delta_commits": 5},
    "full-compaction, small buffer": {"changelog_producer": "full-compaction", "write_buffer_size": "3 kb",
                                      "page_size": "1 kb", "write_buffer_spillable": False},
    "full-compaction, partial update": {"changelog_producer": "full-compaction", "merge_engine": "partial-update"},
}  # fmt: skip


def followed(t: Table) -> list[dict[str, Any]]:
    """What whoever follows the table from its first snapshot on holds; a change that is told twice is seen."""
    raw = t.options.changelog_producer == "input"
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    with t.follow(start=1, until="latest") as stream:
        for changes in stream:
            for r, kind in zip(changes.rows.to_pylist(), changes.kinds.to_pylist()):
                key = r["dt"], r["k"]
                if kind in (1, 3):
                    assert rows.pop(key) == r or raw
                else:
                    assert raw or key not in rows, (key, r, rows[key])
                    rows[key] = r
    return sorted(rows.values(), key=lambda r: (r["dt"], r["k"], str(r)))


@pytest.mark.parametrize(
    ("wrote", "partition"),
    [
        pytest.param("write-only", None, id="write-only-all"),
        pytest.param("stream", "a", id="stream-one partition"),
        pytest.param("write-only", "a", id="write-only-one partition", marks=pytest.mark.slow),
        pytest.param("stream", None, id="stream-all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", TOLD)
def test_who_follows_the_table_is_told_every_change_once(name: str, wrote: str, partition: str | None) -> None:
    """Java writes the rows of level 0 into the new buckets, and who follows the table never hears of them."""
    t = make(**TOLD[name])
    retracts = "merge_engine" not in TOLD[name]
    add(t, 0, 120)
    if name == "lookup, postponed":
        t.maintain.compact()
    t.maintain.compact(full=True)
    assert len(followed(t)) == 120
    late = t.with_options({"write-only": True}) if wrote == "write-only" else t
    with late.write(commit_user="job") as w:
        for checkpoint in (1, 2):
            rows = [{"dt": "ab"[i % 2], "k": i, "v": checkpoint, "w": "z"} for i in range(110, 124)]
            w.upsert(rows)
            if retracts:
                w.delete([{"dt": "a", "k": 2 * checkpoint}])
            w.commit(checkpoint=checkpoint)
    waits = wrote == "write-only" and name not in ("input", "lookup, postponed")
    assert not waits or len(followed(t)) == 120
    said = t.maintain.rescale(5, partitions=None if partition is None else [{"dt": partition}])
    assert not waits or (said.untold > 0 and said.told is not None and said.snapshot == said.told + 1)
    assert not waits or f"snapshot {said.told} tells changes of {said.untold} files" in str(said)
    t = now(t)
    if partition is None:
        assert followed(t) == held(t)
        again = t.maintain.rescale(2)
        assert (again.untold, again.told) == (0, None)
        t = now(t)
    else:
        mine = [r for r in held(t) if r["dt"] == "a"]
        assert [r for r in followed(t) if r["dt"] == "a"] == mine
        t.maintain.rescale(5)
    assert followed(t) == held(t)
    # and goes on
    add(t, 115, 130, v=99)
    t.maintain.compact(full=True)
    assert followed(t) == held(t)
    assert len(held(t)) >= 128
    assert left_over(t) == []
    assert list(missing(t)) == []


def test_postponed_tables_tell_what_batch_jobs_wrote_into_buckets_and_keep_late_rows() -> None:
    t = make(changelog_producer="lookup", bucket=-2)
    add(t, 0, 20)
    t.maintain.compact()
    add(t, 10, 24, v=1)  # into the buckets that are there, at level 0
    with t.write(commit_user="job") as w:
        w.upsert([{"dt": "a", "k": 100, "v": 1, "w": "late"}])
        w.commit(checkpoint=1)
    assert len(followed(t)) == 20
    said = t.maintain.rescale(3)
    assert (said.untold, said.schema) == (2, None)
    assert totals(t) == {"dt=a": {-2, 3}, "dt=b": {3}}
    assert followed(t) == held(t)
    assert len(held(t)) == 24
    t.maintain.compact()
    assert followed(t) == held(t)
    assert len(held(t)) == 25
    assert left_over(t) == []


def test_a_dry_run_counts_what_is_not_told() -> None:
    t = make(changelog_producer="lookup", write_only=True)
    add(t, 0, 10)
    said = t.maintain.rescale(4, where="dt = 'a'", dry_run=True)
    assert (said.untold, said.told) == (2, None)
    assert str(said).startswith("d.t: would first tell changes of 2 files that waited for a compaction; would write")
    assert t.metadata.latest_id() == 1
    # nothing to rescale is nothing to tell
    assert t.maintain.rescale(2).untold == 0
    assert t.metadata.latest_id() == 1


def test_rows_that_come_while_changes_are_told_end_a_rescale(monkeypatch: pytest.MonkeyPatch) -> None:
    t = make(changelog_producer="lookup", write_only=True)
    add(t, 0, 20)
    publish = untold.publish

    def meanwhile(*args: Any) -> Any:
        add(t, 18, 22, v=5)
        return publish(*args)

    with monkeypatch.context() as patched:
        patched.setattr(untold, "publish", meanwhile)
        with pytest.raises(Conflict, match="others write to these partitions"):
            t.maintain.rescale(3)
    assert totals(t) == {"dt=a": {2}, "dt=b": {2}}
    assert len(followed(t)) == 20
    t.maintain.rescale(3)
    assert followed(now(t)) == held(now(t))
    assert len(held(now(t))) == 22
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
