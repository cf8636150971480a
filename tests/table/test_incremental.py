# SPDX-License-Identifier: Apache-2.0
"""Changes between two places: deltas as they were written, diffs as a dictionary would tell them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import BadRequest, NotFound, Unsupported
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.lsm.equality import equal_values
from shoal.options import Options
from shoal.store.memory import MemoryStore
from shoal.table.incremental import auto_tag_time, changes, from_options
from shoal.table.scan import Scan
from shoal.table.table import Table
from shoal.table.travel import scan

ROWS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.string()), ("x", pa.float64())])
SIGNS = "+-+-"


def new_table(**options: object) -> Table:
    clock = ManualClock(1_700_000_000_000)
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    return lake.create_table("d.t", ROWS, primary_key=["p", "k"], partition_by=["p"], options={"bucket": 2, **options})


def commit(t: Table, rows: list[dict[str, Any]], delete: list[dict[str, Any]] | None = None) -> None:
    with t.write() as w:
        if rows:
            w.upsert(rows)
        if delete:
            w.delete(delete)
        w.commit()
    t.clock.sleep(10)


def row(k: int, v: str | None, x: float = 0.0, p: str = "a") -> dict[str, Any]:
    return {"p": p, "k": k, "v": v, "x": x}


def told(scan: Scan) -> list[tuple[str, Any, Any, Any]]:
    """(sign, partition, key, value), sorted."""
    return sorted((SIGNS[r["_VALUE_KIND"]], r["p"], r["k"], r["v"]) for r in scan.to_arrow().to_pylist())


@pytest.fixture
def table() -> Table:
    t = new_table()
    commit(t, [row(1, "a"), row(2, "b"), row(3, "c")])
    commit(t, [row(1, "A")], delete=[{"p": "a", "k": 2}])
    commit(t, [row(1, "a"), row(4, "d", p="b")])
    commit(t, [row(3, "c")])
    return t


def test_a_delta_is_what_the_commits_wrote(table: Table) -> None:
    assert told(changes(table, 1, 3, mode="delta")) == told(changes(table, 1, 3)) == [
        ("+", "a", 1, "A"), ("+", "a", 1, "a"), ("+", "b", 4, "d"), ("-", "a", 2, None),
    ]  # fmt: skip
    assert len(told(changes(table, 0, 4))) == 8


@pytest.fixture
def settled() -> tuple[Table, dict[int, int]]:
    """The same commits, each compacted fully: its state lies in files of its own. With the snapshot of each state."""
    t = new_table()
    at = {}
    for i, (rows, gone) in enumerate(
        [
            ([row(1, "a"), row(2, "b"), row(3, "c")], None),
            ([row(1, "A")], [{"p": "a", "k": 2}]),
            ([row(1, "a"), row(4, "d", p="b")], None),
            ([row(3, "c")], None),
        ],
        1,
    ):
        commit(t, rows, gone)
        t.maintain.compact(full=True)
        at[i] = t.metadata.snapshot_ids()[-1]
    return t, at


def test_a_diff_is_what_became_of_each_key(settled: tuple[Table, dict[int, int]]) -> None:
    t, at = settled
    assert told(changes(t, at[1], at[2], mode="diff")) == [("+", "a", 1, "A"), ("-", "a", 2, "b")]
    # key 1 went to A and back, key 3 was written again as it was
    assert told(changes(t, at[1], at[4], mode="diff")) == [("+", "b", 4, "d"), ("-", "a", 2, "b")]
    assert told(changes(t, at[1], at[4], mode="diff", deletes=False)) == [("+", "b", 4, "d")]


def test_a_filter_sees_the_rows_of_the_diff(settled: tuple[Table, dict[int, int]]) -> None:
    t, at = settled
    # in the old state key 1 matched, in the new one it does not: no row of the result matches
    assert told(changes(t, at[1], at[2], mode="diff", where="v = 'a'")) == []
    assert told(changes(t, at[1], at[2], mode="diff", where="v = 'A'")) == [("+", "a", 1, "A")]
    assert told(changes(t, at[1], at[4], mode="diff", where="p = 'b'")) == [("+", "b", 4, "d")]
    assert told(changes(t, at[1], at[4], mode="diff", where="k = 2")) == [("-", "a", 2, "b")]
    only = changes(t, at[1], at[4], mode="diff", where="k = 4", columns=["v"])
    assert only.to_arrow().column_names == ["_VALUE_KIND", "v"]
    assert only.to_arrow().column("v").to_pylist() == ["d"]


def test_a_diff_leaves_out_files_that_both_states_have(table: Table) -> None:
    # as in Java: the first commit's file is in both states, so what was written over it counts as new
    assert told(changes(table, 1, 2, mode="diff")) == [("+", "a", 1, "A"), ("-", "a", 2, None)]
    assert told(changes(table, 1, 4, mode="diff", deletes=False)) == [
        ("+", "a", 1, "a"), ("+", "a", 3, "c"), ("+", "b", 4, "d"),
    ]  # fmt: skip


def test_a_scan_with_incremental_options_is_a_scan_of_the_changes(settled: tuple[Table, dict[int, int]]) -> None:
    t, at = settled
    for mode in ("delta", "diff"):
        reading = t.with_options({"incremental-between": f"{at[1]},{at[4]}", "incremental-between-scan-mode": mode})
        whole = scan(reading)
        assert told(whole) == told(changes(t, at[1], at[4], mode=mode, deletes=False))  # as Java's plain read
        assert scan(reading, columns=["v", "k"]).to_arrow().column_names == ["v", "k"]
        assert scan(reading, columns=["_VALUE_KIND", "k"]).to_arrow().column_names == ["_VALUE_KIND", "k"]
        assert scan(reading, limit=1).to_arrow().num_rows == 1
        assert scan(reading, limit=0).to_arrow().num_rows == 0


def test_a_changelog_of_a_table_without_one_is_empty(table: Table) -> None:
    assert told(changes(table, 1, 4, mode="changelog")) == []


def test_compactions_change_nothing(table: Table) -> None:
    table.maintain.compact(full=True)
    last = table.metadata.latest_id()
    assert last is not None and last > 4
    assert told(changes(table, 4, last)) == []
    assert told(changes(table, 4, last, mode="diff")) == []
    # all files are new now, so the states are compared whole
    assert told(changes(table, 1, last, mode="diff")) == [("+", "b", 4, "d"), ("-", "a", 2, "b")]


def test_ranges_that_are_not_there(table: Table) -> None:
    assert told(changes(table, 2, 2)) == []
    with pytest.raises(BadRequest, match="end at snapshot 1, before their start 3"):
        changes(table, 3, 1)
    with pytest.raises(NotFound, match="after snapshot 2 up to 9 are not all there") as err:
        changes(table, 2, 9)
    assert "snapshots 1 to 4 are there" in str(err.value.hint)
    for i in (1, 2):
        table.store.delete(paths.snapshot(i))
    table.store.put(paths.EARLIEST, b"3")
    assert len(told(changes(table, 2, 4))) == 3
    with pytest.raises(NotFound, match="not all there"):
        changes(table, 1, 4)
    with pytest.raises(NotFound, match="snapshot 2"):
        changes(table, 2, 4, mode="diff")
    with pytest.raises(BadRequest, match="mode 'sum'"):
        changes(table, 2, 4, mode="sum")


def tag(t: Table, name: str, snapshot: int) -> None:
    t.store.put(f"tag/tag-{name}", t.store.read(paths.snapshot(snapshot)))


def test_between_tags_the_states_are_compared(table: Table) -> None:
    tag(table, "one", 1)
    tag(table, "two", 2)
    expected = [("+", "a", 1, "A"), ("-", "a", 2, None)]
    for i in (1, 2):
        table.store.delete(paths.snapshot(i))
    assert told(changes(table, "one", "two")) == expected
    assert told(from_options(table.with_options({"incremental-between": "one,two"}))) == expected
    with pytest.raises(BadRequest, match="before tag 'two'"):
        changes(table, "two", "one")
    with pytest.raises(NotFound, match="neither two tags nor two snapshot ids"):
        changes(table, "one", "three")
    with pytest.raises(NotFound, match="neither two tags"):
        changes(table, "one", 3)


def test_tags_can_stand_for_their_snapshots(table: Table) -> None:
    tag(table, "one", 1)
    tag(table, "three", 3)
    options = {"incremental-between": "one,three", "incremental-between-tag-to-snapshot": True}
    delta = told(changes(table, 1, 3))
    assert told(from_options(table.with_options(options))) == delta
    assert told(changes(table, "one", "three", mode="delta")) == delta


def test_between_times(table: Table) -> None:
    times = {i: table.metadata.snapshot(i).time_ms for i in range(1, 5)}

    def between(a: int, b: int, mode: str = "auto") -> list[Any]:
        options = {"incremental-between-timestamp": f"{a},{b}", "incremental-between-scan-mode": mode}
        return told(from_options(table.with_options(options)))

    assert between(times[1], times[3]) == told(changes(table, 1, 3))
    assert between(times[1] + 1, times[3] + 1) == told(changes(table, 1, 3))
    assert between(0, times[2]) == told(changes(table, 0, 2))
    assert between(0, times[2], "diff") == told(changes(table, 1, 2, mode="diff"))
    assert between(times[4] + 1, times[4] + 2) == between(0, times[1] - 1) == between(5, 5) == []
    with pytest.raises(BadRequest, match="before their start"):
        between(5, 4)
    a, b = (datetime.fromtimestamp(times[i] / 1000, UTC) for i in (1, 3))
    assert told(changes(table, a, b)) == told(changes(table, 1, 3))
    text = ",".join(f"{t:%Y-%m-%d %H:%M:%S}" for t in (a, b))
    assert told(from_options(table.with_options({"incremental-between-timestamp": text}))) == told(changes(table, 1, 3))
    with pytest.raises(BadRequest, match="between a time and 3"):
        changes(table, a, 3)
    for wrong in ("5", "1,2,3"):
        with pytest.raises(BadRequest, match="needs a start and an end"):
            from_options(table.with_options({"incremental-between-timestamp": wrong}))


def test_up_to_an_automatic_tag(table: Table) -> None:
    tag(table, "2026-11-28", 1)
    tag(table, "2026-11-29", 2)
    tag(table, "2026-11-30", 3)
    tag(table, "by-hand", 4)

    def to(name: str) -> list[Any]:
        return told(from_options(table.with_options({"incremental-to-auto-tag": name})))

    assert to("2026-11-30") == told(changes(table, 2, 3, mode="diff"))
    assert to("2026-11-28") == to("2026-12-24") == []
    with pytest.raises(BadRequest, match="'by-hand' is not the name of an automatic tag"):
        to("by-hand")


@pytest.mark.parametrize(
    ("options", "good", "time", "bad"),
    [
        ({}, "2026-11-28", datetime(2026, 11, 28), "20261128"),
        ({"tag.period-formatter": "without_dashes"}, "20261128", datetime(2026, 11, 28), "2026-11-28"),
        ({"tag.creation-period": "hourly"}, "2026-11-28 07", datetime(2026, 11, 28, 7), "2026-11-28"),
        ({"tag.creation-period": "two-hours"}, "2026-11-28 08", datetime(2026, 11, 28, 8), "2026-11-28 25"),
        (
            {"tag.creation-period": "hourly", "tag.period-formatter": "without_dashes_and_spaces"},
            "2026112807",
            datetime(2026, 11, 28, 7),
            "20261128 07",
        ),
        ({"tag.creation-period-duration": "5 min"}, "202611280705", datetime(2026, 11, 28, 7, 5), "202613010000"),
    ],
)
def test_names_of_automatic_tags(options: dict[str, str], good: str, time: datetime, bad: str) -> None:
    parsed = Options(options, strict=True)
    assert auto_tag_time(parsed, good) == time
    assert auto_tag_time(parsed, bad) is None


def test_a_rescale_stands_between_states(table: Table) -> None:
    wider = replace(table.schema, id=1, options={**table.schema.options, "bucket": "3"})
    table.store.put(paths.schema(1), wider.encode())
    snap = replace(table.metadata.snapshot(4), schema_id=1)
    table.store.put(paths.snapshot(4), snap.encode())
    with pytest.raises(Unsupported, match="snapshot 1 has 2 buckets and snapshot 4 has 3"):
        changes(table.with_schema(wider), 1, 4, mode="diff")


def test_an_append_table_tells_new_rows_only() -> None:
    clock = ManualClock()
    t = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler).create_table("d.log", ROWS)
    for i in range(4):
        with t.write() as w:
            w.append([row(i, str(i))])
            w.commit()
    assert told(changes(t, 1, 3)) == told(changes(t, 1, 3, mode="diff")) == [("+", "a", 1, "1"), ("+", "a", 2, "2")]


# ---- against a dictionary --------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_random_histories_differ_as_their_dictionaries_do(whole: bool) -> None:
    rng = random.Random(5)
    t = new_table(**{"num-sorted-run.compaction-trigger": 3})
    states: list[dict[tuple[str, int], Any]] = [{}]
    ids = [0]
    for _ in range(12):
        state = dict(states[-1])
        rows = [
            row(rng.randrange(40), rng.choice("ab"), rng.choice([0.0, -0.0, float("nan")]), rng.choice("ab"))
            for _ in range(rng.randrange(1, 25))
        ]
        gone = [{"p": p, "k": k} for p, k in rng.sample(sorted(state), min(len(state), 3))]
        written = {(r["p"], r["k"]) for r in rows}
        gone = [g for g in gone if (g["p"], g["k"]) not in written]
        commit(t, rows, gone)
        if whole:
            t.maintain.compact(full=True)
        for r in rows:
            state[r["p"], r["k"]] = (r["v"], np.float64(r["x"]).tobytes())
        for g in gone:
            del state[g["p"], g["k"]]
        states.append(state)
        ids.append(t.metadata.snapshot_ids()[-1])
    for a, b in [(1, 2), (1, 12), (3, 9), (8, 9), (11, 12), (2, 12)]:
        found = changes(t, ids[a], ids[b], mode="diff").to_arrow().to_pylist()
        got = {(r["p"], r["k"]): (r["_VALUE_KIND"] in (0, 2), r["v"], np.float64(r["x"]).tobytes()) for r in found}
        assert len(got) == len(found)
        old, new = states[a], states[b]
        patched = {**old, **{key: value for key, (there, *value) in got.items() if there}}
        patched = {k: tuple(v) for k, v in patched.items() if k not in got or got[k][0]}
        assert patched == new
        differ = {k for k in old.keys() | new.keys() if old.get(k) != new.get(k)}
        # without a full compaction the states share files, and a key that was written again may come unchanged
        assert differ == set(got) if whole else differ <= set(got)


def test_a_large_diff_stays_within_the_budget() -> None:
    clock = ManualClock()
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler, memory=1 << 20)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    t = lake.create_table("d.big", schema, primary_key=["k"], options={"bucket": 1})
    n, ids = 60_000, []
    for shift in (0, 1):
        with t.write() as w:
            w.upsert(pa.table({"k": np.arange(n), "v": np.arange(n) // 2 * (1 + shift * (np.arange(n) % 3 == 0))}))
            w.commit()
        t.maintain.compact(full=True)
        ids.append(t.metadata.snapshot_ids()[-1])
    batches: Iterator[pa.RecordBatch] = changes(t, ids[0], ids[1], mode="diff").to_batches()
    keys = []
    largest = 0
    for b in batches:
        keys.append(b.column("k").to_numpy())
        largest = max(largest, b.num_rows)
    found = np.concatenate(keys)
    expected = np.arange(n)[(np.arange(n) % 3 == 0) & (np.arange(n) // 2 > 0)]
    assert np.array_equal(found, expected)
    assert largest < n / 4


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-3, 3),
    pa.string(): st.sampled_from(["", "a", "é"]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, float("nan")]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf")]),
    pa.bool_(): st.booleans(),
    pa.decimal128(10, 2): st.decimals(-5, 5, places=2),
    pa.binary(): st.sampled_from([b"", b"x"]),
}


def nested(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    t, values = inner
    maybe = st.none() | values
    return st.sampled_from([
        (pa.list_(t), st.lists(maybe, max_size=2)),
        (pa.struct([("a", t), ("b", pa.int32())]), st.fixed_dictionaries({"a": maybe, "b": st.none() | st.just(1)})),
        (pa.map_(pa.string(), t), st.dictionaries(st.sampled_from("ab"), maybe, max_size=2).map(lambda d: list(d.items()))),
    ])  # fmt: skip


TYPES = st.sampled_from(sorted(VALUES.items(), key=str)).flatmap(
    lambda leaf: st.just(leaf) | nested(leaf) | nested(leaf).flatmap(nested)
)


def canonical(t: pa.DataType, v: Any) -> Any:
    """The value as Python compares it as a diff should: floats by bits, maps without order."""
    if v is None:
        return None
    if pa.types.is_floating(t):
        return (np.float32 if pa.types.is_float32(t) else np.float64)(v).tobytes()
    if pa.types.is_map(t):
        return sorted((k, repr(canonical(t.item_type, x))) for k, x in v)
    if pa.types.is_list(t):
        return [canonical(t.value_type, x) for x in v]
    if pa.types.is_struct(t):
        return [canonical(f.type, v[f.name]) for f in t]
    return v


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_are_equal_as_python_says(data: st.DataObject) -> None:
    t, values = data.draw(TYPES)
    pairs = data.draw(st.lists(st.tuples(st.none() | values, st.none() | values), min_size=1, max_size=6))
    left, right = ([p[i] for p in pairs] for i in range(2))
    expected = [canonical(t, a) == canonical(t, b) for a, b in pairs]
    assert equal_values(pa.array(left, t), pa.array(right, t)).tolist() == expected
    # the same inside larger columns
    padded = [pa.array([None, *side, None], t).slice(1, len(side)) for side in (left, right)]
    rows = pa.array(range(len(pairs)))
    assert equal_values(padded[0].take(rows), padded[1].take(rows)).tolist() == expected
