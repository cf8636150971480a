"""Overwrites, truncation and dropped partitions: what goes, what stays, and the snapshots that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from shoal.errors import BadRequest, Conflict, NotFound
from shoal.format.statistics import Statistics
from shoal.format.statistics import decode as decode_statistics
from shoal.store.memory import MemoryStore
from shoal.table.commit import Commit
from shoal.table.table import Table
from tests.table.commits import (
    file,
    hashes,
    indexes,
    lake,
    metadata_files,
    named_files,
    names,
    part,
    snapshots,
    staged,
    table,
)  # fmt: skip

A, B = part("a"), part("b")
Rows = list[dict[str, Any]]


def row(p: str | None, k: int, v: int = 0) -> dict[str, Any]:
    return {"p": p, "k": k, "v": v}


def filled(**options: object) -> Table:
    t = table(**options)
    with t.write() as w:
        w.upsert([row("a", 1), row("a", 2), row("b", 1)])
        w.commit()
    return t


def content(t: Table) -> list[tuple[Any, ...]]:
    rows = t.scan().to_arrow().to_pylist()
    return sorted((tuple(r.values()) for r in rows), key=str)


def test_the_partitions_of_the_rows_are_replaced() -> None:
    t = filled()
    t.overwrite([row("a", 7, 7), row("c", 1)])
    assert content(t) == [("a", 7, 7), ("b", 1, 0), ("c", 1, 0)]
    newest = snapshots(t)[-1]
    assert (newest.commit_kind, newest.operation, newest.commit_identifier) == ("OVERWRITE", None, (1 << 63) - 1)
    assert (newest.total_record_count, newest.delta_record_count) == (3, 0)
    assert metadata_files(t) == named_files(t)


def test_without_rows_a_dynamic_overwrite_does_nothing() -> None:
    t = filled()
    assert t.overwrite([]).snapshots == ()
    assert t.overwrite([], {"p": "a"}).snapshots == ()
    assert len(content(t)) == 3


@pytest.mark.parametrize(
    ("partition", "rows", "left"),
    [
        ({"p": "a"}, [row("a", 9)], [("a", 9, 0), ("b", 1, 0)]),
        ({"p": "a"}, [], [("b", 1, 0)]),
        (None, [row("c", 1)], [("c", 1, 0)]),
        (None, [], []),
    ],
)
def test_a_static_overwrite_replaces_what_is_named(partition: Any, rows: Rows, left: Any) -> None:
    t = filled()
    t.overwrite(rows, partition, dynamic=False)
    assert content(t) == left


def test_the_option_says_what_an_overwrite_is() -> None:
    t = filled(dynamic_partition_overwrite="false")
    t.overwrite([row("c", 1)])
    assert content(t) == [("c", 1, 0)]


@pytest.mark.parametrize("dynamic", [True, False])
def test_rows_must_lie_in_the_partition_that_is_named(dynamic: bool) -> None:
    t = filled()
    before = {i.path for i in t.store.list("")}
    with pytest.raises(BadRequest, match=r"rows of p=b/ do not belong to the partition \{'p': 'a'\}"):
        t.overwrite([row("b", 9)], {"p": "a"}, dynamic=dynamic)
    with pytest.raises(BadRequest, match="'k' is not a partition column"):
        t.overwrite([row("a", 9)], {"k": 1}, dynamic=dynamic)
    assert {i.path for i in t.store.list("")} == before


@pytest.mark.parametrize("keyed", [True, False])
def test_a_table_without_partitions_is_replaced_as_a_whole(keyed: bool) -> None:
    t = table(keyed=keyed, parts=False)
    for rows in ([row("x", 1), row("x", 2)], [row("y", 3)], []):
        t.overwrite(rows)
        assert content(t) == sorted(tuple(r.values()) for r in rows)
    assert [(s.commit_kind, s.total_record_count, s.delta_record_count) for s in snapshots(t)] == [
        ("OVERWRITE", 2, 2), ("OVERWRITE", 1, -1), ("OVERWRITE", 0, -1),
    ]  # fmt: skip


def test_new_files_go_to_the_last_level() -> None:
    """Snapshot 2 of the golden table `overwritten` has its file at level 5 of 6."""
    t = filled()
    t.overwrite([row("a", 1), row("b", 1), row("b", 2)])
    assert {n.split("@")[1] for n in names(t)} == {"5"}
    plain = filled(overwrite_upgrade="false")
    plain.overwrite([row("a", 1), row("b", 1)])
    assert {n.split("@")[1] for n in names(plain)} == {"0"}


def test_files_that_hold_the_same_keys_stay_at_level_0() -> None:
    t = table()
    new = [file("data-1", 0, 5), file("data-2", 5, 9)]
    apart = [file("data-3", 7, 9), file("data-4", 0, 5)]
    Commit(t, "x").overwrite(staged(A, new_files=new), 1)
    Commit(t, "x").overwrite(staged(B, new_files=apart), 2)
    assert names(t) == ["data-1@0", "data-2@0", "data-3@5", "data-4@5"]


def test_the_compaction_of_an_overwrite_is_a_second_snapshot() -> None:
    t = filled()
    new = [file("data-1", 0, 5, rows=3), file("data-2", 5, 9, rows=3)]
    made = Commit(t, "x").overwrite(
        staged(A, new_files=new, compact_before=new, compact_after=[file("data-3", 0, 9, level=5, rows=5)]), 4
    )
    assert made.snapshots == (2, 3)
    assert [(s.commit_kind, s.commit_identifier, s.delta_record_count) for s in snapshots(t)[1:]] == [
        ("OVERWRITE", 4, 4), ("COMPACT", 4, -1),
    ]  # fmt: skip


def test_changelog_files_of_an_overwrite_are_deleted() -> None:
    t = table()
    for name in ("data-1", "changelog-1"):
        t.store.put(f"p=a/bucket-0/{name}", b"")
    Commit(t, "x").overwrite(staged(A, new_files=[file("data-1")], changelog_files=[file("changelog-1")]), 1)
    assert snapshots(t)[0].changelog_manifest_list is None
    assert [i.path for i in t.store.list("p=a")] == ["p=a/bucket-0/data-1"]


def test_index_files_go_with_their_partition() -> None:
    t = table()
    c = Commit(t, "x")
    c.commit(staged(A, new_files=[file("data-1")], new_indexes=[hashes("index-1", A)]), 1)
    c.commit(staged(B, new_files=[file("data-2")], new_indexes=[hashes("index-2", B)]), 2)
    c.overwrite(staged(A, new_files=[file("data-3")], new_indexes=[hashes("index-3", A)]), 3)
    assert indexes(t) == ["index-2", "index-3"]
    c.truncate([{"p": "b"}], 4)
    assert indexes(t) == ["index-3"]


def test_postponed_rows_stay() -> None:
    t = table()
    c = Commit(t, "x")
    c.commit(staged(A, -2, -2, new_files=[file("data-1")]), 1)
    c.commit(staged(A, 0, 1, new_files=[file("data-2")]), 2)
    c.truncate()
    assert names(t) == ["data-1@0"]
    postponed = t.with_schema(table(bucket=-2).schema)
    Commit(postponed, "y").truncate()
    assert names(t) == []


# ---- truncate and drop -----------------------------------------------------------------------------------


def test_truncate() -> None:
    t = filled()
    assert t.truncate([{"p": "a"}]).snapshots == (2,)
    assert content(t) == [("b", 1, 0)]
    t.truncate()
    assert content(t) == []
    assert [(s.commit_kind, s.operation, s.delta_record_count, s.total_record_count) for s in snapshots(t)[1:]] == [
        ("OVERWRITE", "TRUNCATE", -2, 1), ("OVERWRITE", "TRUNCATE", -1, 0),
    ]  # fmt: skip
    with pytest.raises(BadRequest, match="no partition is named"):
        t.truncate([])


def test_the_expiry_of_partitions_names_no_operation() -> None:
    t = filled()
    Commit(t, "x").drop_partitions([{"p": "a"}], 12)
    newest = snapshots(t)[-1]
    assert (newest.commit_kind, newest.operation, newest.commit_identifier) == ("OVERWRITE", None, 12)


def two_keys() -> Table:
    schema = pa.schema([("dt", pa.date32()), ("hh", pa.int32()), ("k", pa.int32())])
    t = lake(MemoryStore()).create_table("d.t", schema, partition_by=["dt", "hh"], options={"bucket": "-1"})
    days = [19_000, 19_001, None]
    with t.write() as w:
        w.append(pa.table({
            "dt": pa.array([d for d in days for _ in range(3)], pa.date32()), "hh": pa.array([1, 2, None] * 3, pa.int32()),
            "k": pa.array(range(9), pa.int32()),
        }))  # fmt: skip
        w.commit()
    return t


@pytest.mark.parametrize(
    ("specs", "left"),
    [
        ([{"dt": "2022-01-08"}], [3, 4, 5, 6, 7, 8]),
        ([{"hh": "2"}], [0, 2, 3, 5, 6, 8]),
        ([{"hh": 2}, {"dt": "2022-01-08", "hh": 1}], [2, 3, 5, 6, 8]),
        ([{"dt": "__DEFAULT_PARTITION__"}], [0, 1, 2, 3, 4, 5]),
        ([{"dt": None, "hh": None}], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([{}], []),
    ],
)
def test_partitions_are_named_in_part(specs: list[dict[str, object]], left: list[int]) -> None:
    t = two_keys()
    t.drop_partitions(specs)
    assert sorted(r["k"] for r in t.scan().to_arrow().to_pylist()) == left


def test_a_partition_that_is_not_there() -> None:
    t = two_keys()
    with pytest.raises(NotFound, match=r"d.t has no partition \{'dt': '2030-01-01'\}") as caught:
        t.drop_partitions([{"dt": "2022-01-08"}, {"dt": "2030-01-01"}])
    assert "there are 9, such as dt=19000/hh=1" in str(caught.value.hint)
    assert len(snapshots(t)) == 1
    assert t.drop_partitions([{"dt": "2030-01-01"}], missing_ok=True).snapshots == (2,)
    assert snapshots(t)[-1].delta_record_count == 0
    with pytest.raises(BadRequest, match="dt = 'None' is no DATE"):
        t.drop_partitions([{"dt": "None"}])
    with pytest.raises(BadRequest, match="hh = 'x' is no INT"):
        t.truncate([{"hh": "x"}])


# ---- against others --------------------------------------------------------------------------------------


class Racing:
    """A store on which somebody else is faster at the first snapshots that are created."""

    def __init__(self, inner: MemoryStore, others: list[Callable[[], object]]) -> None:
        self._inner = inner
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> bool:
        if "snapshot-" in path and self._others:
            self._others.pop(0)()
        return self._inner.create(path, data)


def test_an_overwrite_that_lost_the_race_replaces_what_the_winner_wrote() -> None:
    store = MemoryStore()
    t = table(store)
    Commit(t, "x").commit(staged(A, new_files=[file("data-1")], new_indexes=[hashes("index-1", A)]), 1)

    def other() -> None:
        change = staged(A, new_files=[file("data-2", 5, 5)], new_indexes=[hashes("index-2", A)])
        Commit(lake(store).table("d.t"), "other").commit(change, 1)
        Commit(lake(store).table("d.t"), "other").commit(staged(B, new_files=[file("data-3")]), 2)

    raced = lake(Racing(store, [other])).table("d.t")
    Commit(raced, "y").overwrite(staged(A, new_files=[file("data-9")], new_indexes=[hashes("index-9", A)]), 1)
    assert names(t) == ["data-3@0", "data-9@5"]
    assert indexes(t) == ["index-9"]
    assert metadata_files(t) == named_files(t)


def test_the_bucket_number_changes_by_an_overwrite_alone() -> None:
    """Keys of one partition are never split over two layouts, with and without a writer that looks first."""
    store = MemoryStore()
    t = table(store)
    with t.write() as w:
        w.upsert([row("a", k) for k in range(8)])
        w.commit()
    wider = t.alter(options={"bucket": 4})
    for only in ("false", "true"):
        with (
            wider.with_options({"write-only": only}).write() as w,
            pytest.raises((BadRequest, Conflict), match="buckets"),
        ):
            w.upsert([row("a", k) for k in range(8)])
            w.commit()
    with wider.write() as w:
        w.upsert([row("b", 1)])
        w.commit()
    wider.overwrite([row("a", k, 1) for k in range(8)])
    with wider.write() as w:
        w.upsert([row("a", k, 2) for k in range(8)])
        w.commit()
    assert content(wider) == [*(("a", k, 2) for k in range(8)), ("b", 1, 0)]


# ---- snapshots without rows ------------------------------------------------------------------------------


def test_statistics_stay_until_the_schema_changes() -> None:
    t = filled()
    made = Commit(t, "x").statistics(Statistics(1, 0, 3, 99, {"k": {"colId": 1, "distinctCount": 2}}))
    assert made.snapshots == (2,)
    with t.write() as w:
        w.upsert([row("a", 5)])
        w.commit()
    t.alter(options={"snapshot.time-retained": "2 h"})
    with t.write() as w:
        w.upsert([row("a", 6)])
        w.commit()
    _, analyzed, kept, after = snapshots(t)
    assert (analyzed.commit_kind, analyzed.delta_record_count) == ("ANALYZE", 0)
    assert analyzed.statistics is not None
    assert decode_statistics(t.store.read(f"statistics/{analyzed.statistics}"), "s").merged_record_count == 3
    assert (kept.statistics, after.statistics) == (analyzed.statistics, None)
    assert after.schema_id == 1  # the newest schema, whatever the writer's is


def test_manifests_alone_are_compacted() -> None:
    t = filled()
    for k in range(3):
        with t.write() as w:
            w.upsert([row("a", k, k)])
            w.commit(watermark=50 + k, properties={"n": str(k)})
    before, rows = snapshots(t)[-1], content(t)
    assert t.maintain.compact_manifest() == before.id + 1
    after = snapshots(t)[-1]
    assert (after.commit_kind, after.commit_identifier, after.delta_record_count) == ("COMPACT", (1 << 63) - 1, 0)
    assert (after.watermark, after.properties, after.total_record_count) == (52, {"n": "2"}, before.total_record_count)
    assert len(t.metadata.manifests(after)) == 1
    assert content(t) == rows
    assert t.maintain.compact_manifest() is None
    assert metadata_files(t) == named_files(t)
    assert table().maintain.compact_manifest() is None
