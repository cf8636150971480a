# SPDX-License-Identifier: Apache-2.0
"""Writers and committers apart: staged values travel, checkpoints are committed once, a successor goes on."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest
from shoal.store.memory import MemoryStore
from shoal.table.staged import Staged
from shoal.table.table import Table
from shoal.table.writer_state import WriterState

KV = pa.schema([("k", pa.int32()), ("v", pa.int32())])


def keyed(**options: str) -> Table:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    return lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": "2", **options})


def contents(table: Table) -> list[tuple[int, int]]:
    return sorted((r["k"], r["v"]) for r in table.scan().to_arrow().to_pylist())


def test_staged_values_survive_bytes_and_pickle() -> None:
    t = keyed()
    with t.write("job") as w:
        w.upsert([{"k": i, "v": i} for i in range(10)])
        staged = w.prepare(1, watermark=7, properties={"a": "b"})
        assert Staged.decode(staged.encode()) == staged
        assert pickle.loads(pickle.dumps(staged)) == staged
        with t.committer("job") as c:
            done = c.commit(1, Staged.decode(staged.encode()))
    assert done.rows == 10
    snap = t.metadata.latest()
    assert snap is not None
    assert (snap.commit_identifier, snap.watermark, snap.properties) == (1, 7, {"a": "b"})


def test_bytes_of_another_kind_or_version_are_refused() -> None:
    with pytest.raises(BadRequest, match="no staged value"):
        Staged.decode(b"\x00\x01")
    with pytest.raises(BadRequest, match="version 9"):
        Staged.decode(b'{"kind":"staged","version":9,"value":{}}')
    with pytest.raises(BadRequest, match="damaged"):
        Staged.decode(b'{"kind":"staged","version":1,"value":{"changes":3}}')


def test_two_writers_and_a_committer_make_one_snapshot() -> None:
    t = keyed()
    one, two = t.write("job"), t.write("job")
    with one, two, t.committer("job") as c:
        for checkpoint in (1, 2):
            one.upsert([{"k": 1, "v": checkpoint}])
            two.upsert([{"k": 2, "v": 10 * checkpoint}])
            values = [w.prepare(checkpoint) for w in (one, two)]
            assert len(c.commit(checkpoint, *values).snapshots) == 1
        assert c.commit(2, *values).replayed
        assert c.last_checkpoint() == 2
    assert contents(t) == [(1, 2), (2, 20)]


def test_recovered_values_are_committed_once() -> None:
    t = keyed()
    with t.write("job") as w:
        values = {}
        for checkpoint in (1, 2, 3):
            w.upsert([{"k": checkpoint, "v": checkpoint}])
            values[checkpoint] = w.prepare(checkpoint)
    with t.committer("job") as c:
        c.commit(1, values[1])
    with t.committer("job") as c:
        done = c.filter_and_commit({n: [s] for n, s in values.items()})
        assert [d.replayed for d in done] == [True, False, False]
        assert c.last_checkpoint() == 3
    assert contents(t) == [(1, 1), (2, 2), (3, 3)]


def test_an_aborted_value_leaves_no_file() -> None:
    t = keyed()
    with t.write("job") as w:
        w.upsert([{"k": 1, "v": 1}])
        staged = w.prepare(1)
        w.abort(staged)
    assert not [f for f in t.store.list("") if "data-" in str(f)]


def test_a_successor_keeps_sequence_numbers_and_staged_files() -> None:
    t = keyed(bucket="1")
    with t.committer("job") as c:
        w = t.write("job")
        w.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
        first = w.prepare(1)
        w.upsert([{"k": 1, "v": 3}])
        state = WriterState.decode(w.state().encode())
        assert state.buckets[0].next_sequence == 3
        c.commit(1, first)
        with t.write("job") as successor:
            successor.restore(state)
            successor.upsert([{"k": 2, "v": 4}])
            c.commit(2, successor.prepare(2))
    assert contents(t) == [(1, 3), (2, 4)]
    highest = max(f["max_sequence_number"] for f in t.inspect.files().to_pylist())
    assert highest == 3


def test_a_state_is_for_a_new_writer_of_the_same_user() -> None:
    t = keyed()
    with t.write("job") as w:
        w.upsert([{"k": 1, "v": 1}])
        state = w.state()
        with pytest.raises(BadRequest, match="has written already"):
            w.restore(state)
        with t.write("other") as o, pytest.raises(BadRequest, match="commit user 'job'"):
            o.restore(state)


# ---- rows in


def test_kinds_as_texts_numbers_and_columns() -> None:
    t = keyed()
    with t.write() as w:
        w.write([{"k": 1, "v": 1}, {"k": 2, "v": 2}, {"k": 3, "v": 3}], ["+I", "+u", "+I"])
        w.write([{"k": 1, "v": 1, "op": "-D"}, {"k": 2, "v": 5, "op": "+U"}], "op")
        w.write(pa.table({"k": pa.array([3], pa.int32()), "v": pa.array([3], pa.int32()), "_VALUE_KIND": [3]}))
        w.commit()
    assert contents(t) == [(2, 5)]


def test_a_kind_that_is_none_is_named() -> None:
    with keyed().write() as w:
        with pytest.raises(BadRequest, match="'\\+X'"):
            w.write([{"k": 1, "v": 1}], ["+X"])
        with pytest.raises(BadRequest, match="not one of 0"):
            w.write([{"k": 1, "v": 1}], [4])
        with pytest.raises(BadRequest, match="no column 'op'"):
            w.write([{"k": 1, "v": 1}], "op")


def test_a_rowkind_field_decides_and_stays_a_column(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("op", pa.string())])
    t = shoal.open(str(tmp_path)).create_table(
        "d.t", schema, primary_key=["k"], options={"bucket": "1", "rowkind.field": "op", "write-only": "true"}
    )
    with t.write() as w:
        w.upsert([{"k": 1, "v": 1, "op": "+I"}, {"k": 2, "v": 2, "op": "-D"}, {"k": 3, "v": 3, "op": "+U"}])
        w.delete([{"k": 3}])
        w.commit()
        with pytest.raises(BadRequest, match="column 'op' holds a null"):
            w.upsert([{"k": 1, "v": 1, "op": None}])
        with pytest.raises(BadRequest, match="column 'op' is 'x'"):
            w.upsert([{"k": 1, "v": 1, "op": "x"}])
    assert t.scan().to_arrow().to_pylist() == [{"k": 1, "v": 1, "op": "+I"}]


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, 4), ({"ignore-update-before": "true"}, 3), ({"ignore-delete": "true"}, 2)],
)
def test_kinds_that_are_ignored_take_no_number(options: dict[str, str], kept: int) -> None:
    t = keyed(**options, **{"write-only": "true", "bucket": "1"})
    with t.write() as w:
        w.write([{"k": i, "v": i} for i in range(4)], ["+I", "-U", "+U", "-D"])
        w.commit()
    (file,) = t.inspect.files().to_pylist()
    assert (file["record_count"], file["max_sequence_number"]) == (kept, kept - 1)


def test_append_tables_take_no_retractions_unless_they_ignore_them() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    t = lake.create_table("d.a", KV)
    with t.write() as w, pytest.raises(BadRequest, match="takes no -U or -D rows, and one is -D"):
        w.write([{"k": 1, "v": 1}], ["-D"])
    t = lake.create_table("d.b", KV, options={"ignore-delete": "true"})
    with t.write() as w:
        w.write([{"k": 1, "v": 1}, {"k": 2, "v": 2}], ["-D", "+U"])
        w.commit()
    assert contents(t) == [(2, 2)]


# ---- input changelog, spill


def test_an_input_changelog_holds_every_row_in_java_s_order(tmp_path: Path) -> None:
    t = shoal.open(str(tmp_path)).create_table(
        "d.t", KV, primary_key=["k"], options={"bucket": "1", "changelog-producer": "input"}
    )
    with t.write() as w:
        w.write([{"k": 2, "v": 1}, {"k": 1, "v": 1}, {"k": 2, "v": 1}, {"k": 2, "v": 2}], ["+I", "+I", "-U", "+U"])
        w.commit()
    (log,) = tmp_path.rglob("changelog-*.parquet")
    rows = [(r["k"], r["_SEQUENCE_NUMBER"], r["_VALUE_KIND"], r["v"]) for r in pq.ParquetFile(log).read().to_pylist()]
    assert rows == [(1, 1, 0, 1), (2, 0, 0, 1), (2, 2, 1, 1), (2, 3, 2, 2)]
    assert contents(t) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"changelog-producer": "input"},
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
        {"sequence.field": "v"},
        {"spill-compression": "zstd"},
        {"spill-compression": "none"},
    ],
)
def test_a_checkpoint_larger_than_the_buffer_is_one_run_a_bucket(tmp_path: Path, options: dict[str, str]) -> None:
    def write(name: str, **more: str) -> Table:
        t = shoal.open(str(tmp_path)).create_table(
            f"d.{name}", KV, primary_key=["k"], options={"bucket": "2", "write-only": "true", **options, **more}
        )
        with t.write() as w:
            for i in range(40):
                w.upsert(pa.table({"k": [(i * 7 + j) % 500 for j in range(300)], "v": [i] * 300}, KV))
            w.commit()
        return t

    whole, spilled = write("whole"), write("spilled", **{"write-buffer-size": "8 kb", "page-size": "1 kb"})
    files = [
        sorted((f["bucket"], f["record_count"], f["min_key"]) for f in t.inspect.files().to_pylist())
        for t in (whole, spilled)
    ]
    assert files[0] == files[1]
    assert len(files[1]) == 2
    assert contents(whole) == contents(spilled)
    several = write("several", **{"write-buffer-size": "8 kb", "page-size": "1 kb", "write-buffer-spillable": "false"})
    assert several.inspect.files().num_rows > 2
    assert contents(several) == contents(whole)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"changelog-producer": "input"},
        {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"},
        {"sequence.field": "n"},
    ],
)
def test_wide_rows_put_aside_in_small_batches_keep_the_versions_of_a_key_together(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """2 kB a row and a budget of 4 MB: a batch holds 64 rows, a key has hundreds of versions in a run."""
    schema = pa.schema([("k", pa.int32()), ("n", pa.int64()), ("s", pa.string())])
    lake = shoal.open(str(tmp_path), memory=4 << 20)
    t = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": "2", "write-only": "true", **options})
    rows = [(i % 3 if i % 5 else i % 40, i, f"{i:06d}" * 333) for i in range(3000)]
    with t.write() as w:
        for at in range(0, len(rows), 100):
            columns = list(zip(*rows[at : at + 100]))
            w.append(pa.table(dict(zip(schema.names, columns)), schema))
        w.commit()
    sums, last = {}, {}
    for k, n, s in rows:
        sums[k], last[k] = sums.get(k, 0) + n, s
    summed = "merge-engine" in options
    found = {r["k"]: (r["n"], r["s"]) for r in t.scan().to_arrow().to_pylist()}
    assert found == {k: (sums[k] if summed else int(s[:6]), s) for k, s in last.items()}
    if "changelog-producer" in options:
        told = t.changes(0, 1, mode="changelog").to_arrow()
        assert sorted(told["n"].to_pylist()) == list(range(3000))


@pytest.mark.parametrize("options", [{}, {"write-buffer-for-append": "true"}, {"write-max-writers-to-spill": "1"}])
def test_append_rows_keep_their_order_in_one_file_a_bucket(tmp_path: Path, options: dict[str, str]) -> None:
    t = shoal.open(str(tmp_path)).create_table(
        "d.t",
        KV,
        options={"bucket": "3", "bucket-key": "k", "write-buffer-size": "8 kb", "page-size": "1 kb", **options},
    )
    with t.write() as w:
        for i in range(40):
            w.append(pa.table({"k": list(range(100)), "v": [i] * 100}, KV))
        w.commit()
    files = t.inspect.files().to_pylist()
    assert len(files) == 3
    assert sum(f["record_count"] for f in files) == 4000
    for f in tmp_path.rglob("data-*.parquet"):
        assert (column := pq.ParquetFile(f).read().column("v").to_pylist()) == sorted(column)


def test_local_merge_writes_a_key_once_and_reads_the_same() -> None:
    plain, merged = keyed(), keyed(**{"local-merge-buffer-size": "1 mb", "changelog-producer": "input"})
    for t in (plain, merged):
        with t.write() as w:
            w.upsert([{"k": i % 10, "v": i} for i in range(100)])
            w.delete([{"k": 3}])
            w.commit()
    assert contents(plain) == contents(merged)
    snap = merged.metadata.latest()
    assert snap is not None
    assert snap.changelog_record_count == 10


# ---- what a row must be


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            pa.list_(pa.field("e", pa.int32(), nullable=False)),
            [[1], [2, None]],
            "an element of type INT NOT NULL is null",
        ),
        (pa.struct([pa.field("a", pa.int32(), nullable=False)]), [{"a": None}], "'a': None} does not fit"),
        (pa.int32(), [1, 2**40], "1099511627776 does not fit"),
        (pa.decimal128(4, 2), ["1.25", "123.45"], "123.45"),
        (pa.float32(), [1.5, 1e300], "1e\\+300 does not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_named(kind: pa.DataType, value: list[object], message: str) -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    t = lake.create_table(
        "d.t", pa.schema([("k", pa.int32()), ("v", kind)]), primary_key=["k"], options={"bucket": "1"}
    )
    loose = pa.array(value, pa.struct([("a", pa.int32())])) if pa.types.is_struct(kind) else pa.array(value)
    with t.write() as w, pytest.raises(BadRequest, match=f"column 'v'.*{message}"):
        w.upsert(pa.table({"k": list(range(len(value))), "v": loose}))
    assert not [f for f in t.store.list("") if "bucket-" in str(f)]


def test_the_examples_of_the_guide_run() -> None:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)
    schema = pa.schema([("id", pa.int64()), ("v", pa.int32())])
    table = lake.create_table("d.t", schema, primary_key=["id"], options={"bucket": "1"})
    batch = pa.table({"id": [1, 7], "v": [1, 1]}, schema)
    rows = [{"id": 2, "v": 2}, {"id": 1, "v": 1}]
    text = (Path(__file__).parents[2] / "docs" / "writing.md").read_text()
    names = {"table": table, "batch": batch, "rows": rows, "Staged": Staged}
    one, apart = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    exec(one, names)
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "v": 2}]
    exec(apart, names)
    assert table.scan().to_arrow().num_rows == 3
