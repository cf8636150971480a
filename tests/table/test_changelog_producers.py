# SPDX-License-Identifier: Apache-2.0
"""What compactions tell: changelogs by lookup and by full compaction, first rows, deletion vectors, against a dict."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
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
    with table.write("w") as w:
        for i, (rows, gone) in enumerate(history(7, 14, 60, 12), 1):
            before = dict(model)
            w.upsert(batch(rows))
            if gone:
                w.delete(pa.table({"k": pa.array(gone, pa.int32())}))
            model.update({r[0]: r for r in rows})
            for k in gone:
                model.pop(k, None)
            done = w.commit(checkpoint=i)
            same = "row-deduplicate" not in str(options)
            touched = [*gone, *(r[0] for r in rows)]
            expected = changes(before, model, touched, same=same)
            if name == "full compaction":  # what level 0 brings in one go, whether or not it differs
                expected = changes(before, model, touched, same=True)
            found = [c for s in done.snapshots for c in told(table, s)]
            assert found == expected, f"checkpoint {i}"
            assert rows_of(table) == model


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
