# SPDX-License-Identifier: Apache-2.0
"""Tables without a fixed number of buckets: every row lies where Java puts it, and keys find their rows again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, StorageFailed
from shoal.format.hashing import row_hashes
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.lsm.rolling import RollingWriter
from shoal.store.memory import MemoryStore
from shoal.table.commit import Commit
from shoal.table.write import Write
from tests.table.bucket_truth import placed

TRUTH: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "buckets.json").read_text())
ARROW = {"INT": pa.int32(), "BIGINT": pa.int64(), "STRING": pa.string()}


def memory_lake() -> Lake:
    return Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]


def create(t: dict[str, Any], **options: str) -> Any:
    schema = pa.schema([(n, ARROW[k]) for n, k in t["columns"].items()])
    return memory_lake().create_table(
        "d.t", schema, primary_key=t["key"], partition_by=t["partition"], options={**t["options"], **options}
    )


def rows_of(t: dict[str, Any], commit: dict[str, Any]) -> pa.Table:
    names = list(t["columns"])
    return pa.table([pa.array(c, ARROW[t["columns"][n]]) for n, c in zip(names, zip(*commit["rows"]))], names)


@pytest.mark.parametrize("name", TRUTH)
def test_rows_lie_where_java_puts_them(name: str) -> None:
    t = TRUTH[name]
    table = create(t)
    for commit in t["commits"]:
        rows = rows_of(t, commit)
        with Write(table, ignore_previous=commit["overwrite"]) as w:
            w.append(rows)
            if commit["overwrite"]:
                Commit(table, "u", table.rng).overwrite(w.prepare(), BATCH_IDENTIFIER)
            else:
                w.commit()
    got, wanted = placed(table), t["java"]
    if name == "parts":
        # Flink's overwrite keeps the old bucket of a key, Spark's (and ours) fills the buckets from the first on
        rows = [sorted(r for k, b in p.items() if k.startswith("p=1/") for r in b["rows"]) for p in (got, wanted)]
        assert rows[0] == rows[1]
        assert [len(b["hashes"]) for k, b in sorted(got.items()) if k.startswith("p=1/")] == [5, 5, 4]
        got, wanted = ({k: b for k, b in p.items() if not k.startswith("p=1/")} for p in (got, wanted))
    assert got == wanted


@pytest.mark.parametrize("name", ["plain", "parts", "capped"])
def test_every_key_keeps_its_bucket(name: str) -> None:
    """Whatever writer comes, in one checkpoint or many: a hash lies in one index file, and rows where it says."""
    t = TRUTH[name]
    table = create(t, **{"dynamic-bucket.target-row-num": "3"})
    writer = table.write("u")
    for i, commit in enumerate(t["commits"]):
        if i % 3 == 2:
            writer.close()
            writer = table.write("u")
        writer.append(rows_of(t, commit))
        if i % 2:
            writer.flush()
            writer.append(rows_of(t, commit))
        writer.commit(i)
    writer.close()
    got = placed(table)
    assert sorted(r for b in got.values() for r in b["rows"]) == table_rows(table)
    for place, bucket in got.items():
        assert len(bucket["hashes"]) == len(bucket["rows"]), place
        keys = [
            pa.array([r[list(t["columns"]).index(k)] for r in bucket["rows"]], ARROW[t["columns"][k]]) for k in ["k"]
        ]
        assert sorted(row_hashes(keys, [table.schema.field("k").type]).tolist()) == bucket["hashes"]


def table_rows(table: Any) -> list[list[Any]]:
    return sorted([*r.values()] for r in table.scan().to_arrow().to_pylist())


def test_keys_that_moved_are_found_by_a_new_writer() -> None:
    t = TRUTH["x_dedup"]
    table = create(t)
    model: dict[int, list[int]] = {}
    for round_ in range(4):
        with table.write("u") as w:
            for i in range(3):
                rows = [[(k + round_ + i) % 4, k, round_ * 10 + i] for k in range(0, 30, i + 1)]
                w.upsert(rows_of(t, {"rows": rows}))
                w.commit(round_ * 3 + i)
                model |= {r[1]: r for r in rows}
    assert table_rows(table) == sorted(model.values())


def test_a_failed_commit_leaves_no_key_behind() -> None:
    """Its rows are gone, so the keys are new again; nothing that was staged stays in the table's folder."""
    for name in ("plain", "x_dedup"):
        t = TRUTH[name]
        table = create(t)
        with table.write("u") as w:
            w.append(rows_of(t, t["commits"][0]))
            w.commit(0)
            files = {f.path for f in table.store.list("")}
            w.append(rows_of(t, t["commits"][1]))
            w.flush()
        assert {f.path for f in table.store.list("")} == files
        again = create(t)
        for one in (table, again):
            with one.write("v") as w:
                if one is again:
                    w.append(rows_of(t, t["commits"][0]))
                    w.commit(0)
                w.append(rows_of(t, t["commits"][2]))
                w.commit(1)
        assert placed(table) == placed(again)


def test_one_key_in_two_partitions_is_told() -> None:
    t = TRUTH["x_dedup"]
    table = create(t)
    with table.write("a") as a, table.write("b") as b, table.committer("a") as commits:
        a.append(rows_of(t, {"rows": [[0, 1, 1], [0, 2, 1]]}))
        b.append(rows_of(t, {"rows": [[1, 1, 2]]}))
        # both look at an empty table and, as in Java, tell the committer nothing of it
        for n, staged in enumerate([replace(w.prepare(1), placed=None) for w in (a, b)]):
            commits.commit(n, staged)
    with table.write("c") as w, pytest.raises(BadRequest, match="1 keys are in two partitions"):
        w.append(rows_of(t, {"rows": [[0, 1, 3]]}))
        w.flush()


def test_old_buckets_are_forgotten_after_the_ttl() -> None:
    t = TRUTH["x_dedup"]
    table = create(t, **{"cross-partition-upsert.index-ttl": "1 h"})
    for at, row in enumerate([[0, 1, 1], [1, 1, 2], [2, 1, 3]]):
        with table.write("u") as w:
            w.upsert(rows_of(t, {"rows": [row]}))
            w.commit(at)
        table.clock.sleep(10.0 if at == 0 else 4000.0)
    # the second row moved the key, the third came too late to know where it was
    assert table_rows(table) == [[1, 1, 2], [2, 1, 3]]


# ---- the postponed bucket


def test_a_stream_is_postponed_and_a_batch_is_not() -> None:
    t = TRUTH["late_fixed"]
    table = create(t)
    rows = rows_of(t, t["commits"][0])
    with table.write("stream") as w:
        w.append(rows)
        w.commit(1)
    live = table.metadata.live(table.metadata.latest())
    assert set(live.column("bucket").to_pylist()) == {-2}
    assert all("data--u-stream-s-0-w-" in n for n in live.column("file_name").to_pylist())
    with table.write() as w:
        w.append(rows)
        w.commit()
    live = table.metadata.live(table.metadata.latest())
    assert set(zip(live.column("bucket").to_pylist(), live.column("total_buckets").to_pylist())) == {(-2, -2), (0, 1)}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"postpone.target-row-num-per-bucket": "3"}, 4),
        ({"postpone.target-row-num-per-bucket": "3", "postpone.batch-write-fixed-bucket.max-parallelism": "2"}, 2),
        ({"postpone.target-row-num-per-bucket": "100"}, 1),
        ({"postpone.target-size-per-bucket": "1 b", "postpone.batch-write-fixed-bucket.max-parallelism": "7"}, 7),
    ],
)
def test_a_new_partition_gets_buckets_for_its_rows(options: dict[str, str], count: int) -> None:
    t = TRUTH["late_fixed"]
    table = create({**t, "options": {"bucket": "-2"}}, **options)
    for _ in range(2):  # the second batch keeps the number
        rows = [[0, f"k{i}", i] for i in range(12)]
        with table.write() as w:
            w.append(rows_of(t, {"rows": rows}))
            w.commit()
    live = table.metadata.live(table.metadata.latest())
    assert set(live.column("total_buckets").to_pylist()) == {count}
    assert table_rows(table) == sorted(rows)


def test_postponed_deletes_are_refused_when_the_merge_would() -> None:
    t = TRUTH["late"]
    table = create({**t, "options": {**t["options"], "merge-engine": "partial-update"}})
    with table.write("u") as w, pytest.raises(BadRequest, match="takes no row of kind"):
        w.delete(rows_of(t, {"rows": [[0, "k", 1]]}))
        w.flush()


# ---- fixed buckets


@pytest.mark.parametrize("function", ["mod", "hive", "default"])
def test_rows_are_found_in_the_bucket_of_their_function(function: str) -> None:
    """A filter on the key looks into one bucket only: the one that other engines look into, too."""
    options = {"bucket": "2", "bucket-key": "k", "bucket-function.type": function}
    kv = {"columns": {"k": "INT", "v": "INT"}, "key": [], "partition": [], "options": options}
    table = create(kv)
    for keys in ([1, 2, 3, -5], [1]):
        with table.write() as w:
            w.append(rows_of(kv, {"rows": [[k, 0] for k in keys]}))
            w.commit()
    live = table.metadata.live(table.metadata.latest())
    assert table.scan("k = 1").to_arrow().num_rows == 2
    if function != "default":
        rows = {0: 0, 1: 0}
        for b, n in zip(live.column("bucket").to_pylist(), live.column("row_count").to_pylist()):
            rows[b] += n
        assert rows == {0: 1, 1: 4}  # -5: floorMod is 1, and its bits without the sign are odd


@pytest.mark.parametrize(
    ("columns", "function", "error"),
    [
        ({"k": "INT", "k2": "INT"}, "mod", "takes one INT or BIGINT column"),
        ({"k": "STRING"}, "mod", "takes one INT or BIGINT column"),
        ({"k": "TIMESTAMP"}, "hive", "does not hash k TIMESTAMP"),
    ],
)
def test_bucket_keys_that_a_function_cannot_take(columns: dict[str, str], function: str, error: str) -> None:
    options = {"bucket": "2", "bucket-key": ",".join(columns), "bucket-function.type": function}
    schema = pa.schema([(n, ARROW.get(k, pa.timestamp("us"))) for n, k in columns.items()])
    with pytest.raises(BadRequest, match=error):  # Java makes the table and cannot write it
        memory_lake().create_table("d.t", schema, options=options)


def test_a_flush_tried_again_moves_a_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    t = TRUTH["x_dedup"]
    table = create(t)
    with table.write("u") as w:
        w.upsert(rows_of(t, {"rows": [[0, 1, 1]]}))
        w.commit(1)
        w.upsert(rows_of(t, {"rows": [[1, 1, 2]]}))
        with monkeypatch.context() as m:
            m.setattr(RollingWriter, "close", failing)
            with pytest.raises(StorageFailed):
                w.flush()
        w.upsert(rows_of(t, {"rows": [[2, 2, 3]]}))
        w.commit(2)
    assert table_rows(table) == [[1, 1, 2], [2, 2, 3]]


def failing(writer: RollingWriter) -> Any:
    writer.abort()
    raise StorageFailed("no room", hint="none")


def test_a_key_that_moves_leaves_its_row_where_deletes_are_ignored() -> None:
    """As in Java, whose filter of `ignore-delete` leaves out the deletes of rows that moved too (fuzz 21, t0013)."""
    schema = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int32())])
    table = memory_lake().create_table(
        "d.t", schema, primary_key=["k"], partition_by=["p"], options={"bucket": "-1", "ignore-delete": "true"}
    )
    for p in "ab":
        with table.write() as w:
            w.upsert([{"p": p, "k": 1, "v": ord(p)}])
            w.commit()
    assert sorted(r["p"] for r in table.scan().to_arrow().to_pylist()) == ["a", "b"]
    assert table.changes(1, 2).to_arrow().to_pylist() == [{"_VALUE_KIND": 2, "p": "b", "k": 1, "v": ord("b")}]
    with table.write() as w, pytest.raises(BadRequest, match="1 keys are in two partitions"):  # as in Java
        w.upsert([{"p": "b", "k": 1, "v": 3}])
        w.flush()
