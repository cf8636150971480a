# SPDX-License-Identifier: Apache-2.0
"""What compactions tell: changelogs by lookup and by full compaction, first rows, deletion vectors, against a dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict, Corrupt
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.store.memory import MemoryStore
from shoal.table.commit import Commit
from shoal.table.compact_job import bucket_tasks, run_bucket
from shoal.table.new_files import NewFiles
from shoal.table.staged import Staged
from shoal.table.table import Table

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string()), ("n", pa.int64())])
KINDS = ("+I", "-U", "+U", "-D")
Row = tuple[Any, ...]


def a_table(options: dict[str, str], scheduler: ManualScheduler | None = None) -> Table:
    lake = Lake(
        MemoryStore(), clock=ManualClock(), scheduler=lambda: scheduler or ManualScheduler(), rng=random.Random(3)
    )
    return lake.create_table("d.t", SCHEMA, primary_key=["k"], options={"bucket": "1", **options})


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)


def told(table: Table, snapshot: int) -> list[tuple[str, Row]]:
    """The changelog of one snapshot, in its order."""
    scan = table.changes(snapshot - 1, snapshot, mode="changelog")
    return [(KINDS[r["_VALUE_KIND"]], (r["k"], r["v"], r["n"])) for r in scan.to_arrow().to_pylist()]


def rows_of(table: Table) -> dict[int, Row]:
    return {r["k"]: (r["k"], r["v"], r["n"]) for r in table.scan().to_arrow().to_pylist()}


def history(seed: int, commits: int, keys: int, size: int) -> Iterator[tuple[list[Row], list[int]]]:
    """(rows to upsert, keys to delete) of each commit."""
    rng = random.Random(seed)
    for _ in range(commits):
        chosen = rng.sample(range(keys), size)
        gone = chosen[: rng.randrange(size // 2)]
        yield [(k, rng.choice("abc"), rng.randrange(3)) for k in chosen[len(gone) :]], gone


def changes(before: dict[int, Row], after: dict[int, Row], touched: list[int], *, same: bool) -> list[tuple[str, Row]]:
    out: list[tuple[str, Row]] = []
    for k in sorted(touched):
        was, now = before.get(k), after.get(k)
        if was and now and (same or was != now):
            out += [("-U", was), ("+U", now)]
        elif was and not now:
            out.append(("-D", was))
        elif now and not was:
            out.append(("+I", now))
    return out


LOOKUPS = {
    "lookup": {"changelog-producer": "lookup"},
    "lookup, unchanged rows left out": {
        "changelog-producer": "lookup", "changelog-producer.row-deduplicate": "true",
    },
    "lookup and vectors": {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
    "full compaction": {"changelog-producer": "full-compaction"},
    "lookup, three levels": {"changelog-producer": "lookup", "num-levels": "3", "num-sorted-run.compaction-trigger": "2"},
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_every_checkpoint_tells_what_it_changed(name: str) -> None:
    options = LOOKUPS[name]
    table, model = a_table(options), dict[int, Row]()
    w = table.write("w")
    for i, (rows, gone) in enumerate(history(7, 14, 60, 12), 1):
        if i % 5 == 0:  # a writer that starts anew knows nothing but the table
            w.close()
            w = table.write("w")
        before = dict(model)
        w.upsert(batch(rows))
        if gone:
            w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
        model.update({r[0]: r for r in rows})
        for k in gone:
            model.pop(k, None)
        done = w.commit(checkpoint=i)
        same = "changelog-producer.row-deduplicate" not in options
        expected = changes(before, model, [*gone, *(r[0] for r in rows)], same=same)
        assert [c for s in done.snapshots for c in told(table, s)] == expected, f"checkpoint {i}"
        assert rows_of(table) == model
    w.close()


SHAPES: dict[str, tuple[list[pa.DataType], Callable[[int], tuple[Any, ...]]]] = {
    "a text": ([pa.string()], lambda i: ("ab"[i % 2] * (i // 2),)),
    "a long text": ([pa.string()], lambda i: ("a long way/" * 30 + str(i),)),
    "texts that begin alike, and a number": ([pa.string(), pa.int32()], lambda i: (f"customer-{i % 9}", i // 9)),
}


@pytest.mark.parametrize("vectors", ["false", "true"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_looked_up_by_keys_of_every_shape(shape: str, vectors: str) -> None:
    types, key = SHAPES[shape]
    names = [f"k{i}" for i in range(len(types))]
    schema = pa.schema([*(pa.field(n, t, False) for n, t in zip(names, types)), ("v", pa.int64())])
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    options = {"bucket": "1", "changelog-producer": "lookup", "deletion-vectors.enabled": vectors}
    table = lake.create_table("d.t", schema, primary_key=names, options=options)
    rng, model = random.Random(5), dict[tuple[Any, ...], int]()
    with table.write("w") as w:
        for i in range(1, 9):
            rows = {key(k): rng.randrange(10**6) for k in rng.sample(range(90), 30)}
            arrays = [pa.array(c, f.type) for c, f in zip(zip(*((*k, v) for k, v in rows.items())), schema)]
            w.upsert(pa.RecordBatch.from_arrays(arrays, schema=schema))
            done = w.commit(checkpoint=i)
            expected: list[tuple[Any, ...]] = []
            for k in sorted(rows):
                old = model.get(k)
                expected += [("+I", *k, rows[k])] if old is None else [("-U", *k, old), ("+U", *k, rows[k])]
            model |= rows
            scans = [table.changes(s - 1, s, mode="changelog").to_arrow() for s in done.snapshots]
            columns = ["_VALUE_KIND", *schema.names]
            found = [tuple(r[c] for c in columns) for t in scans for r in t.to_pylist()]
            assert [(KINDS[kind], *row) for kind, *row in found] == expected, f"checkpoint {i}"
    assert {tuple(r[n] for n in names): r["v"] for r in table.scan().to_arrow().to_pylist()} == model


def test_full_compactions_come_every_so_many_commits_and_tell_all_since_the_last() -> None:
    table, model = a_table({"changelog-producer": "full-compaction", "full-compaction.delta-commits": "3"}), {}
    known: dict[int, Row] = {}
    for i, (rows, gone) in enumerate(history(8, 13, 40, 8), 1):
        # a new writer every time: which buckets are due is read back from the snapshots
        with table.write("w") as w:
            w.upsert(batch(rows))
            if gone:
                w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            model.update({r[0]: r for r in rows})
            for k in gone:
                model.pop(k, None)
            done = w.commit(checkpoint=i)
        found = [c for s in done.snapshots for c in told(table, s)]
        if i % 3:
            assert found == []
            continue
        state = dict(known)
        for kind, row in found:
            if kind in ("-U", "-D"):
                assert state.pop(row[0]) == row
            else:
                assert row[0] not in state
                state[row[0]] = row
        assert state == model
        known = dict(model)


def test_first_rows_stay_and_are_told_once() -> None:
    table, model = a_table({"merge-engine": "first-row", "changelog-producer": "lookup"}), dict[int, Row]()
    with table.write("w") as w:
        for i, (rows, _) in enumerate(history(9, 12, 40, 8), 1):
            new = [r for r in sorted(rows) if r[0] not in model]
            w.append(batch(rows))
            model.update({r[0]: r for r in new})
            done = w.commit(checkpoint=i)
            assert [c for s in done.snapshots for c in told(table, s)] == [("+I", r) for r in new]
            assert rows_of(table) == model


@pytest.mark.parametrize("wait", ["true", "false"])
def test_old_rows_are_marked_as_deleted(wait: str) -> None:
    options = {"deletion-vectors.enabled": "true", "lookup-wait": wait, "num-sorted-run.compaction-trigger": "3"}
    scheduler = ManualScheduler()
    table, model = a_table(options, scheduler), dict[int, Row]()
    marked = 0
    with table.write("w") as w:
        for i, (rows, gone) in enumerate(history(10, 20, 300, 8), 1):
            w.upsert(batch(rows))
            if gone:
                w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            model.update({r[0]: r for r in rows})
            for k in gone:
                model.pop(k, None)
            w.commit(checkpoint=i)
            scheduler.run_pending()
            newest = table.metadata.latest()
            assert newest is not None
            if newest.index_manifest:
                marked += sum(len(e.dv_ranges or ()) for e in table.metadata.index_entries(newest.index_manifest))
            if wait == "true":
                assert rows_of(table) == model
        w.commit(checkpoint=99)
    table.maintain.compact(full=True)
    assert rows_of(table) == model
    assert marked


def test_a_dedicated_compaction_tells_what_a_write_only_writer_left() -> None:
    table, model = a_table({"changelog-producer": "lookup", "write-only": "true"}), dict[int, Row]()
    with table.write("w") as w:
        for i, (rows, gone) in enumerate(history(11, 6, 40, 10), 1):
            before = dict(model)
            w.upsert(batch(rows))
            if gone:
                w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            model.update({r[0]: r for r in rows})
            for k in gone:
                model.pop(k, None)
            w.commit(checkpoint=i)
            done = table.maintain.compact(full=i % 2 == 0)
            assert done.snapshot is not None
            touched = [*gone, *(r[0] for r in rows)]
            assert told(table, done.snapshot) == changes(before, model, touched, same=True)


def test_a_row_that_stands_for_looked_up_ones_is_merged_once_more() -> None:
    """The row of level 5 holds that of level 6, so only it is read, but as one of several: Java builds its array anew.

    Members without a key and with -2 share a slot of Java's hash table, so each merge turns them round. Values and
    orders are those of a table of Java 2.0.0 (seed 23 of the fuzz, table 6, snapshots 18 to 21).
    """
    nested = pa.list_(pa.struct([("nk", pa.int32()), ("nv", pa.string())]))
    schema = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string()), ("a", nested)])
    options = {
        "bucket": "1", "merge-engine": "aggregation", "changelog-producer": "lookup",
        "fields.a.aggregate-function": "nested_partial_update", "fields.a.nested-key": "nk",
    }  # fmt: skip
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    table = lake.create_table("d.t", schema, primary_key=["k"], options=options)
    noise = random.Random(1)
    many = [{"k": k, "v": noise.randbytes(50).hex(), "a": None} for k in range(2, 300)]
    with table.write("w") as w:
        w.upsert(pa.Table.from_pylist([{"k": 1, "v": "x", "a": [{"nk": n} for n in (5, 1, None)]}, *many], schema))
        w.commit(checkpoint=1)
        w.upsert(pa.Table.from_pylist([{"k": 1, "v": "y", "a": [{"nk": -2}]}], schema))
        (last,) = w.commit(checkpoint=2).snapshots[-1:]
    assert sorted(table.inspect.files().column("level").to_pylist()) == [4, 5]
    changelog = table.changes(last - 1, last, mode="changelog").to_arrow().to_pylist()
    assert [[e["nk"] for e in r["a"]] for r in changelog] == [[5, 1, None], [5, 1, -2, None]]
    (row,) = table.scan(where="k = 1").to_arrow().to_pylist()
    assert [e["nk"] for e in row["a"]] == [5, 1, None, -2]


def test_old_records_expire_in_compactions_only() -> None:
    table = a_table({"record-level.expire-time": "1 h", "record-level.time-field": "n", "changelog-producer": "lookup"})
    now = table.clock.now_ms() // 1000
    with table.write("w") as w:
        w.upsert(batch([(1, "young", now), (2, "old", now - 4000), (3, "none", None)]))
        w.commit(checkpoint=1)
        # level 0 went up whole: nothing was merged, but its oldest row made it worth reading
        assert sorted(rows_of(table)) == [1, 3]
        table.clock.sleep(5000)
        w.upsert(batch([(1, "again", now + 5000)]))
        done = w.commit(checkpoint=2)
    assert [c for s in done.snapshots for c in told(table, s)] == [("+I", (1, "again", now + 5000))]
    table.maintain.compact(full=True)
    assert sorted(rows_of(table)) == [1, 3]


def files_of(table: Table) -> set[str]:
    return {f.path for f in table.store.list("") if "/bucket-" in f"/{f.path}" or "index" in f.path}


def test_the_loser_of_two_compactors_leaves_nothing_behind() -> None:
    table = a_table({"changelog-producer": "lookup", "deletion-vectors.enabled": "true", "write-only": "true"})
    with table.write("w") as w:
        w.upsert(batch([(k, "a", k) for k in range(5000)]))
        w.commit(checkpoint=1)
        table.maintain.compact(full=True)
        w.upsert(batch([(k, "b", k) for k in range(0, 50, 7)]))
        w.commit(checkpoint=2)
        w.upsert(batch([(7, "b", 7)]))
        w.commit(checkpoint=3)
    compacting = table.with_schema(replace(table.schema, options={**table.schema.options, "write-only": "false"}))
    newest = table.metadata.latest()
    assert newest is not None
    (task,) = bucket_tasks(compacting, newest, compacting.metadata.live(newest), full=False)
    before = files_of(table)
    staged = run_bucket(compacting, NewFiles(compacting), task, table.budget()).changes
    assert staged is not None and staged.compact_changelog and staged.compact_new_indexes
    assert len(files_of(table) - before) == 3
    table.maintain.compact()
    winner = files_of(table)
    with pytest.raises(Conflict):
        Commit(table, "late", random.Random(1)).commit(Staged((staged,), newest.id), BATCH_IDENTIFIER)
    assert files_of(table) < winner
    assert len(winner - files_of(table)) == 3
    assert rows_of(table) == {k: (k, "b" if k < 50 and k % 7 == 0 else "a", k) for k in range(5000)}


def test_a_compaction_that_fails_deletes_what_it_wrote() -> None:
    store = MemoryStore()
    lake = Lake(store, clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    table = lake.create_table(
        "d.t", SCHEMA, primary_key=["k"], options={"bucket": "1", "changelog-producer": "lookup", "write-only": "true"}
    )
    with table.write("w") as w:
        for i in range(3):
            w.upsert(batch([(k, "a", k) for k in range(i, 50 + i)]))
            w.commit(checkpoint=i + 1)
    before = files_of(table)
    first = min(p for p in before if "data-" in p)
    kept = table.store.read(first)
    table.store.delete(first)
    with pytest.raises(Corrupt):
        table.maintain.compact(full=True)
    assert files_of(table) == before - {first}
    assert kept
