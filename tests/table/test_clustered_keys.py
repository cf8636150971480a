# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables whose files are sorted by other columns than the key: written, compacted, read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.budget import Budget
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict, Corrupt, StorageFailed, Unsupported
from shoal.format.manifest import entries_of
from shoal.format.row import decode
from shoal.store.memory import MemoryStore
from shoal.table.key_index import KeyFile, fingerprints
from shoal.table.table import Table

ROWS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("w", pa.string()), ("v", pa.int32())])
MARKS = {"deletion-vectors.enabled": True}
FIRST = {"merge-engine": "first-row"}


def table(
    options: dict[str, Any] | None = None, *, by: str = "w", key: tuple[str, ...] = ("k",), columns: pa.Schema = ROWS,
    parts: tuple[str, ...] = (), memory: int = 16 << 20,
) -> Table:  # fmt: skip
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, memory=memory)  # type: ignore[arg-type]
    every = {"bucket": 1, "pk-clustering-override": True, "clustering.columns": by, **(options or MARKS)}
    return lake.create_table("d.t", columns, primary_key=list(key), partition_by=list(parts), options=every)


def late(t: Table) -> Table:
    return t.with_options({"write-only": True})


def row(k: int, w: str | None, v: int = 0, p: str = "x") -> dict[str, Any]:
    return {"p": p, "k": k, "w": w, "v": v}


def upsert(t: Table, *new: dict[str, Any], gone: tuple[int, ...] = ()) -> None:
    with t.write() as w:
        w.upsert(list(new))
        if gone:
            w.delete([{"k": k} for k in gone])
        w.commit()


def found(t: Table, **what: Any) -> dict[int, tuple[Any, ...]]:
    got = t.scan(**what).to_arrow().to_pylist()
    assert len({r["k"] for r in got}) == len(got)
    return {r["k"]: (r["w"], r["v"]) for r in got}


def live(t: Table) -> list[tuple[Any, ...]]:
    """Level, rows, least and greatest key, and marked rows of each file, the oldest first."""
    snapshot = t.metadata.latest()
    assert snapshot is not None
    marks = t.metadata.deletions(snapshot.index_manifest) if snapshot.index_manifest else {}
    out = []
    for e in entries_of(t.metadata.live(snapshot)):
        f = e.file
        mark = marks.get((e.partition, e.bucket), {}).get(f.file_name)
        types = [x.type for x in (t.clustered_fields if f.level else t.schema.key_fields)]
        ends = (tuple(decode(types, f.min_key)), tuple(decode(types, f.max_key)))
        out.append((f.min_sequence, f.level, f.row_count, *ends, mark.cardinality if mark else 0))
    return [entry[1:] for entry in sorted(out)]


def data_files(t: Table) -> list[str]:
    return sorted(f.path for f in t.store.list("") if "bucket-" in f.path or "index/" in f.path)


# ---- rows


@pytest.mark.parametrize(
    ("options", "by"),
    [
        (MARKS, "w"),
        (FIRST, "v,w"),
        ({**MARKS, **FIRST}, "w"),
        ({**MARKS, "bucket": -1, "dynamic-bucket.target-row-num": 30, "file.format": "orc"}, "k,v"),
        ({**MARKS, "changelog-producer": "input", "target-file-size": "2 kb", "file.format": "avro"}, "v"),
        ({**MARKS, "data-file.thin-mode": True, "deletion-vectors.bitmap64": True, "bucket": 2}, "w,v"),
    ],
)
def test_rows_are_those_of_a_dict(options: dict[str, Any], by: str) -> None:
    t, rng = table(options, by=by), random.Random(7)
    first = t.options.merge_engine == "first-row"
    model: dict[int, tuple[Any, ...]] = {}
    for step in range(10):
        waits = late(t) if step % 4 == 2 else t  # a job beside it is left to compact
        new = [row(rng.randrange(60), rng.choice([None, "", "a", "bb"]), rng.randrange(9)) for _ in range(20)]
        gone = () if first else tuple(rng.randrange(60) for _ in range(4))
        upsert(waits, *new, gone=gone)
        for r in new:
            if not first or r["k"] not in model:
                model[r["k"]] = r["w"], r["v"]
        for k in gone:
            model.pop(k, None)
        if waits is t:
            assert found(t) == model, step
    some = {k: r for k, r in model.items() if r[1] > 4}
    assert found(t, where="v > 4") == some
    t.maintain.compact(full=True)
    assert found(t) == model
    assert {f["level"] for f in t.inspect.files().to_pylist()} == {1}


def test_files_lie_in_the_order_of_the_columns_and_say_so() -> None:
    t = table(by="w,v")
    upsert(t, row(1, "b", 2), row(2, None, 9), row(3, "b", 1), row(4, "a", 7))
    assert live(t) == [(1, 4, (None, 9), (b"b", 2), 0)]
    got = t.scan().to_arrow()
    assert got.column("k").to_pylist() == [2, 4, 3, 1]
    shown = t.inspect.files().to_pylist()[0]
    assert (shown["min_key"], shown["max_key"]) == ("[null, 9]", "[b, 2]")
    assert shown["min_value_stats"] == "{k=1, p=x, v=1, w=a}"
    assert t.inspect.snapshots().column("commit_kind").to_pylist() == ["APPEND", "COMPACT"]


def test_old_rows_are_marked_and_go_with_the_next_merge() -> None:
    t = table()
    upsert(t, row(1, "a"), row(2, "b"), row(3, "c"))
    upsert(t, row(2, "z"), row(4, "d"))
    assert live(t) == [(1, 3, (b"a",), (b"c",), 1), (1, 2, (b"d",), (b"z",), 0)]
    upsert(t, row(2, "b"), gone=(3, 99))
    # two files of before became one without what was marked; deletes are rows, even of keys that were never there
    assert live(t) == [(1, 2, (b"a",), (b"d",), 0), (1, 3, (None,), (b"b",), 0)]
    assert found(t) == {1: ("a", 0), 2: ("b", 0), 4: ("d", 0)}


def test_first_row_leaves_out_what_is_there() -> None:
    t = table(FIRST)
    upsert(t, row(1, "a"), row(2, "b"))
    upsert(t, row(1, "z"), row(2, "y"))
    assert live(t) == [(1, 2, (b"a",), (b"b",), 0)]
    upsert(t, row(2, "x"), row(3, "c"))
    assert found(t) == {1: ("a", 0), 2: ("b", 0), 3: ("c", 0)}
    assert [f[:2] for f in live(t)] == [(1, 2), (1, 1)]


def test_a_job_compacts_what_writers_leave() -> None:
    t = table()
    for i in range(3):
        upsert(late(t), *(row(k, f"w{(k + i) % 3}", i) for k in range(i, 6)))
    assert found(t) == {} and [f[0] for f in live(t)] == [0, 0, 0]
    report = t.maintain.compact(dry_run=True)
    assert [(p.files, p.output_level, p.rule, p.reason) for p in report.planned] == [
        (3, 1, "level 0", "3 new files to be sorted")
    ]
    report = t.maintain.compact()
    # each new file is sorted by itself, then what came of it is worth a merge
    assert [(c.inputs, c.outputs) for c in report.compactions] == [(3, 3), (3, 1)]
    assert found(t) == {k: (f"w{(k + min(k, 2)) % 3}", min(k, 2)) for k in range(6)}
    assert live(t) == [(1, 6, (b"w0",), (b"w2",), 0)]
    assert t.maintain.compact().planned == () == t.maintain.compact(full=True).planned
    upsert(late(t), row(9, "q"))
    t.maintain.compact(full=True)
    assert len(live(t)) == 1


def test_two_compactions_of_one_bucket_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table()
    upsert(late(t), row(1, "a"))
    upsert(late(t), row(1, "b"), row(2, "c"))
    other = t.with_schema(t.schema)
    from shoal.table import maintain

    publish = maintain.publish

    def after_the_other(*a: Any) -> Any:
        monkeypatch.setattr(maintain, "publish", publish)
        other.maintain.compact()
        return publish(*a)

    monkeypatch.setattr(maintain, "publish", after_the_other)
    with pytest.raises(Conflict):
        t.maintain.compact()
    assert found(t) == {1: ("b", 0), 2: ("c", 0)}
    left = data_files(t)
    t.maintain.expire(retain_max=1, retain_min=1)
    assert set(data_files(t)) < set(left)  # what the loser wrote was gone already: expiry takes the old ones
    assert len([f for f in data_files(t) if "bucket-" in f]) == 1


def test_a_compaction_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    t = table()
    upsert(t, row(1, "a"))
    upsert(t, row(2, "b"))
    upsert(late(t), row(1, "c"))
    files = data_files(t)

    def broken(*_: object) -> None:
        raise StorageFailed("no room")

    monkeypatch.setattr("shoal.table.clustered_compact.merged_rows", broken)
    with pytest.raises(StorageFailed):
        t.maintain.compact()
    assert data_files(t) == files
    monkeypatch.undo()
    t.maintain.compact()
    assert found(t) == {1: ("c", 0), 2: ("b", 0)}


def test_an_open_writer_keeps_its_marks_over_checkpoints() -> None:
    t = table()
    with t.write(commit_user="u") as w:
        for i in range(8):
            w.upsert([row(k, "abc"[(k + i) % 3], i) for k in range(i % 3, 9, 2)])
            w.flush()
            w.upsert([row(3, "x", i)])
            w.commit(checkpoint=i)
            assert found(t)[3] == ("x", i)
    assert len(found(t)) == 9 and len(live(t)) <= 3


def test_rows_sorted_by_another_type_are_sorted_again() -> None:
    t = table(by="v")
    upsert(t, row(1, "a", 9), row(2, "b", 10))
    upsert(t, row(3, "c", 100))
    t = t.alter(types={"v": "STRING"})
    with t.write() as w:
        w.upsert([{"p": "x", "k": 4, "w": "d", "v": "1"}])
        w.commit()
    t.maintain.compact(full=True)
    assert t.scan().to_arrow().column("v").to_pylist() == ["1", "10", "100", "9"]
    assert live(t) == [(1, 4, (b"1",), (b"9",), 0)]


def test_statements_and_overwrites() -> None:
    t = table(key=("p", "k"), parts=("p",))
    upsert(t, *(row(k, "ab"[k % 2], k, p) for k in range(10) for p in "xy"))
    t.delete("w = 'a' AND p = 'x'")
    assert {r["k"] for r in t.scan(where="p = 'x'").to_arrow().to_pylist()} == {1, 3, 5, 7, 9}
    t.overwrite([row(7, "q")], partition={"p": "x"})
    got = t.scan().to_arrow().to_pylist()
    assert len(got) == 11 and [r["w"] for r in got if r["p"] == "x"] == ["q"]


def test_rescaled_rows_are_sorted() -> None:
    t = table({**MARKS, "bucket": 2})
    for i in range(3):
        upsert(t, *(row(k, "abc"[(k + i) % 3], i) for k in range(i, 20)))
    before = found(t)
    t.maintain.rescale(3)
    assert found(t) == before
    assert {f[0] for f in live(t)} == {1} and sum(f[1] for f in live(t)) == 20


def test_postponed_rows_are_sorted_into_their_buckets() -> None:
    t = table({**MARKS, "bucket": -2, "postpone.default-bucket-num": 2})
    for i in range(2):
        with t.write(commit_user="u") as w:
            w.upsert([row(k, "abc"[(k + i) % 3], i) for k in range(5 * i, 10)])
            w.commit(checkpoint=i)
        t.maintain.compact()
    assert found(t) == {k: ("abc"[(k + k // 5) % 3], k // 5) for k in range(10)}
    assert {f[0] for f in live(t)} == {1}


# ---- limits


def test_columns_without_an_order_are_refused_before_there_are_rows() -> None:
    columns = pa.schema([("k", pa.int32()), ("m", pa.list_(pa.int32()))])
    t = table(by="m", columns=columns)
    with pytest.raises(Unsupported, match=r"'clustering.columns' 'm' \(ARRAY<INT>\)"):
        t.write()
    with late(t).write() as w:
        w.upsert([{"k": 1, "m": [1]}])
        w.commit()
    with pytest.raises(Unsupported, match="cannot be sorted by"):
        t.maintain.compact()


def test_many_rows_pass_little_memory() -> None:
    """Rows of several times the memory: sorted, merged and looked up within it."""
    memory, count = 1 << 20, 15_000
    t, rng = table(memory=memory, by="w,v"), np.random.default_rng(3)
    keys = np.arange(count)
    for i in range(2):
        rng.shuffle(keys)
        words = pa.array([f"word {n:030d}" for n in rng.integers(0, 2_000, count)])
        new = pa.table({"p": pa.array(["x"] * count), "k": pa.array(keys, pa.int32()), "w": words,
                        "v": pa.array([i] * count, pa.int32())})  # fmt: skip
        with late(t).write() as w:
            w.upsert(new)
            w.commit()
    budgets: list[Budget] = []
    make = Table.budget

    def noted(self: Table) -> Budget:
        budgets.append(make(self))
        return budgets[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "budget", noted)
        t.maintain.compact(full=True)
    assert max(b.peak for b in budgets) < memory
    got = t.scan().to_arrow()
    assert sorted(got.column("k").to_pylist()) == list(range(count)) and set(got.column("v").to_pylist()) == {1}
    assert got.column("w").to_pylist() == sorted(words.to_pylist())


def test_keys_of_a_file_are_found_where_they_are() -> None:
    keys = pa.array([f"key {i * 7919 % 10_007}" for i in range(10_007)])
    parts = [(s, keys.slice(s, 1_000)) for s in range(0, len(keys), 1_000)]

    def made(parts: list[tuple[int, pa.Array]]) -> KeyFile:
        given = ((fingerprints([p]), np.arange(s, s + len(p))) for s, p in parts)
        return KeyFile(given, Budget(), 1, "f")

    file = made(parts)
    assert file.bytes == 24 * len(keys)
    wanted = fingerprints([pa.array(["key 0", "none", "key 7919", "key 1"])])
    order = wanted.order()
    at = dict(zip(order.tolist(), file.find(wanted.take(order)).tolist()))
    assert (at[0], at[1], at[2]) == (0, -1, 1) and keys[at[3]].as_py() == "key 1"
    assert made([]).find(wanted.take(order)).tolist() == [-1] * 4
    with pytest.raises(Corrupt, match="f: 1000 keys are in the file more than once"):
        made([*parts, parts[0]])
