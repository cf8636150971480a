# SPDX-License-Identifier: Apache-2.0
"""DELETE, UPDATE and MERGE: every kind of table holds the rows that a plain list of dicts holds after the same changes."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Conflict, Unsupported
from shoal.store.memory import MemoryStore
from shoal.table.merge_into import Clause, Clauses, merge_clauses
from shoal.table.table import Table

Rows = list[dict[str, Any]]
COLUMNS = pa.schema([
    ("id", pa.int32()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int64()),
    ("tags", pa.list_(pa.string())),
])  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"bucket": -1},
    "buckets": {"bucket": 2, "bucket-key": "id"},
    "parts": {"bucket": -1, "parts": ["p"]},
    "marks": {"bucket": -1, "deletion-vectors.enabled": True},
    "marked buckets": {"bucket": 2, "bucket-key": "id", "deletion-vectors.enabled": True},
    "marked parts": {"bucket": -1, "parts": ["p"], "deletion-vectors.enabled": True},
    "ids": {"bucket": -1, "row-tracking.enabled": True},
    "columns": {
        "bucket": -1,
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "columns of parts": {
        "bucket": -1,
        "parts": ["p"],
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "key": {"bucket": 2, "key": ["id"]},
    "key in parts": {"bucket": 2, "key": ["id", "p"], "parts": ["p"]},
}


def table(store: MemoryStore | None = None, /, **options: Any) -> Table:
    lake = Lake(store or MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    key, parts = options.pop("key", []), options.pop("parts", [])
    return lake.create_table("d.t", COLUMNS, primary_key=key, partition_by=parts, options=options)


def row(i: int) -> dict[str, Any]:
    return {"id": i, "p": "ab"[i % 2], "v": None if i % 7 == 0 else f"v{i}", "n": i, "tags": ["x"] * (i % 3)}


def filled(**options: Any) -> tuple[Table, Rows]:
    store = MemoryStore()
    for path, data in made(json.dumps(options)).items():
        store.put(path, data)
    lake = Lake(store, clock=ManualClock(), scheduler=ManualScheduler)  # type: ignore[arg-type]
    return lake.table("d.t"), [row(i) for i in range(30)]


@cache
def made(options: str) -> dict[str, bytes]:
    """The files of a table with three commits, written once for each kind."""
    store = MemoryStore()
    t = table(store, **json.loads(options))
    for start in (0, 10, 20):
        with t.write() as w:
            w.append(pa.Table.from_pylist([row(i) for i in range(start, start + 10)], COLUMNS))
            w.commit()
    return {f.path: store.read(f.path) for f in store.list("")}


def held(t: Table) -> Rows:
    return sorted(t.scan().to_arrow().to_pylist(), key=lambda r: r["id"])


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest) -> tuple[Table, Rows]:
    return filled(**KINDS[request.param])


def test_deleted_rows_are_gone_and_null_is_not_true(both: tuple[Table, Rows]) -> None:
    t, rows = both
    done = t.delete("v > 'v2' AND n < 25")
    gone = [r["id"] for r in rows if r["v"] is not None and r["v"] > "v2" and r["n"] < 25]
    assert held(t) == [r for r in rows if r["id"] not in gone]
    assert done.deleted == len(gone)
    assert str(t.delete("id = 1000")) == "d.t: nothing changed"


def test_updated_rows_have_new_values_and_keep_the_others(both: tuple[Table, Rows]) -> None:
    t, rows = both
    done = t.update({"n": pc.multiply(pc.field("n"), 10), "v": "new"}, where="id >= 8 AND id < 12")
    assert held(t) == [{**r, "n": r["n"] * 10, "v": "new"} if 8 <= r["id"] < 12 else r for r in rows]
    assert done.updated == 4
    t.update({"tags": ["all"]})
    assert {tuple(r["tags"]) for r in held(t)} == {("all",)}


def test_a_merge_updates_deletes_and_inserts_at_once(both: tuple[Table, Rows]) -> None:
    t, rows = both
    source = [{"id": i, "p": "ab"[i % 2], "v": "gone" if i == 3 else f"m{i}", "n": -i} for i in (2, 3, 5, 50, 51)]
    done = t.merge(
        source,
        on="id",
        when_matched_delete=pc.field("source.v") == "gone",
        when_matched_update={"v": pc.field("source.v"), "n": pc.add(pc.field("n"), pc.field("source.n"))},
        when_not_matched_insert=True,
        when_not_matched_by_source_delete=pc.field("id") >= 25,
    )
    expected = []
    for r in rows:
        if r["id"] in (2, 5):
            expected.append({**r, "v": f"m{r['id']}", "n": 0})
        elif r["id"] != 3 and r["id"] < 25:
            expected.append(r)
    expected += [{"id": i, "p": "ab"[i % 2], "v": f"m{i}", "n": -i, "tags": None} for i in (50, 51)]
    assert held(t) == expected
    assert (done.deleted, done.updated, done.inserted) == (6, 2, 2)


def test_many_changes_one_after_the_other(both: tuple[Table, Rows]) -> None:
    t, rows = both
    rng = random.Random(3)
    for step in range(12):
        low = rng.randrange(30)
        high = low + rng.randrange(1, 6)
        hit = [r["id"] for r in rows if low <= r["id"] < high]
        if step % 3 == 0:
            t.delete(f"id >= {low} AND id < {high}")
            rows = [r for r in rows if r["id"] not in hit]
        elif step % 3 == 1:
            t.update({"v": f"s{step}"}, f"id >= {low} AND id < {high}")
            rows = [{**r, "v": f"s{step}"} if r["id"] in hit else r for r in rows]
        else:
            source = [row(i) | {"v": f"m{step}"} for i in range(low, high)]
            t.merge(source, on="id", when_matched_update={"v": pc.field("source.v")}, when_not_matched_insert=True)
            kept = {r["id"]: r for r in rows}
            new = {r["id"]: kept.get(r["id"], r) | {"v": r["v"]} for r in source}
            rows = sorted((kept | new).values(), key=lambda r: r["id"])
        assert held(t) == rows, step
    if t.data_evolution:
        return
    t.maintain.compact(full=True)
    assert held(t) == rows


def test_a_filter_on_partitions_alone_drops_them() -> None:
    for kind in ("parts", "marked parts", "key in parts"):
        t, rows = filled(**KINDS[kind])
        files = t.inspect.files().num_rows
        assert t.delete("p = 'a'").deleted is None
        assert held(t) == [r for r in rows if r["p"] == "b"]
        assert t.inspect.files().num_rows < files
        assert t.inspect.snapshots().column("commit_kind").to_pylist()[-1] == "OVERWRITE"
        assert t.delete("p = 'zzz'").snapshot is None


def test_all_rows_go_without_a_filter(both: tuple[Table, Rows]) -> None:
    t, _ = both
    t.delete()
    assert held(t) == []
    assert t.inspect.files().num_rows == 0


def test_a_delete_that_must_make_a_changelog_is_by_key() -> None:
    t, rows = filled(**KINDS["key in parts"], **{"delete.force-produce-changelog": True})
    assert t.delete("p = 'a'").deleted == 15
    assert held(t) == [r for r in rows if r["p"] == "b"]
    kinds = t.changes(3, t.metadata.latest_id() or 0, mode="delta").to_arrow().column("_VALUE_KIND").to_pylist()
    assert kinds == [3] * 15


def test_rows_move_when_their_partition_changes() -> None:
    for kind in ("parts", "marked parts"):
        t, rows = filled(**KINDS[kind])
        t.update({"p": "c"}, "id < 4")
        assert held(t) == [{**r, "p": "c"} if r["id"] < 4 else r for r in rows]
        assert len(t.scan("p = 'c'").to_arrow()) == 4


def test_rows_of_a_bucket_keep_their_order() -> None:
    t, _ = filled(bucket=1, **{"bucket-key": "id"})
    t.update({"v": "x"}, "id IN (3, 14)")
    t.delete("id IN (5, 25)")
    assert t.scan().to_arrow().column("id").to_pylist() == [i for i in range(30) if i not in (5, 25)]


def test_rows_keep_their_ids_and_changed_ones_get_the_sequence_of_the_commit() -> None:
    t, _ = filled(**KINDS["ids"])
    t.delete("id = 0")
    t.update({"v": "x"}, "id IN (3, 14)")
    found = t.scan(columns=["id", "_ROW_ID", "_SEQUENCE_NUMBER"]).to_arrow().to_pylist()
    assert all(r["id"] == r["_ROW_ID"] for r in found)
    assert {r["id"]: r["_SEQUENCE_NUMBER"] for r in found} == {
        i: 5 if i in (3, 14) else i // 10 + 1 for i in range(1, 30)
    }
    t.with_options({"compaction.min.file-num": 2}).maintain.compact()
    assert t.inspect.files().num_rows == 1
    again = t.scan(columns=["id", "_ROW_ID", "_SEQUENCE_NUMBER"]).to_arrow().to_pylist()
    assert sorted(again, key=str) == sorted(found, key=str)


def test_untouched_files_stay_and_deletion_vectors_rewrite_none() -> None:
    t, _ = filled(**KINDS["plain"])
    before = set(t.inspect.files().column("file_path").to_pylist())
    t.delete("id = 15")
    assert len(before & set(t.inspect.files().column("file_path").to_pylist())) == 2
    t, _ = filled(**KINDS["marks"])
    before = set(t.inspect.files().column("file_path").to_pylist())
    t.delete("id = 15")
    assert before == set(t.inspect.files().column("file_path").to_pylist())
    t.maintain.compact(full=True)
    assert len(held(t)) == 29
    snap = t.metadata.latest()
    assert snap is not None and snap.index_manifest is not None
    assert not any(e.dv_ranges for e in t.metadata.index_entries(snap.index_manifest))


# ---- merges


def test_several_source_rows_for_one_row_are_refused(both: tuple[Table, Rows]) -> None:
    t, rows = both
    source = [{"id": 4, "v": "a"}, {"id": 4, "v": "b"}]
    with pytest.raises(BadRequest, match=r"several source rows match the row with \{'id': 4\}"):
        t.merge(source, on="id", when_matched_update={"v": pc.field("source.v")})
    assert held(t) == rows
    more = [{"id": 99, "p": "b", "v": c} for c in "ab"]
    if not t.primary_key:
        assert t.merge(more, on="id", when_not_matched_insert=True).inserted == 2


def test_keys_of_several_columns_meet_and_null_meets_nothing() -> None:
    t = table(bucket=-1)
    with t.write() as w:
        w.append([{"id": 1, "p": "a", "v": "1a"}, {"id": 1, "p": "b", "v": "1b"}, {"id": 1, "p": None, "v": "1-"}])
        w.commit()
    source = pa.table({"k": [1, 1, 2], "q": ["b", None, "a"], "v": ["new", "null", "two"]})
    done = t.merge(source, on={"id": "k", "p": "q"}, when_matched_update={"v": pc.field("source.v")},
                   when_not_matched_insert={"id": pc.field("source.k"), "v": pc.field("source.v")})  # fmt: skip
    assert (done.updated, done.inserted) == (1, 2)
    found = {(r["id"], r["p"], r["v"]) for r in t.scan().to_arrow().to_pylist()}
    assert found == {(1, "a", "1a"), (1, "b", "new"), (1, None, "1-"), (1, None, "null"), (2, None, "two")}


def test_the_first_clause_that_holds_counts() -> None:
    t, _ = filled(**KINDS["plain"])
    small = pc.field("n") < 3
    clauses = Clauses((Clause({"v": "small"}, small), Clause(None, pc.field("n") < 5), Clause({"v": "large"})))
    merge_clauses(t, [{"id": i} for i in range(8)], "id", clauses)
    assert {r["id"]: r["v"] for r in held(t) if r["id"] < 8} == {
        **dict.fromkeys(range(3), "small"), **dict.fromkeys(range(5, 8), "large"),
    }  # fmt: skip


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"merge-engine": "first-row"}, "merge engine 'first-row' does not support DELETE"),
        ({"merge-engine": "partial-update"}, "merge engine 'partial-update' does not support DELETE"),
        ({"merge-engine": "aggregation"}, "merge engine 'aggregation' does not support DELETE"),
        ({"ignore-delete": True}, "with 'ignore-delete' a DELETE does nothing"),
        ({"merge-engine": "partial-update", "partial-update.remove-record-on-delete": True}, None),
        ({"merge-engine": "aggregation", "aggregation.remove-record-on-delete": True}, None),
    ],
)
def test_engines_that_keep_deleted_rows_refuse(options: dict[str, Any], refused: str | None) -> None:
    from shoal.table.delete import refuse_engine

    t = table(bucket=1, key=["id"]).with_options(options)
    if refused is None:
        refuse_engine(t)
    else:
        with pytest.raises(Unsupported, match=refused):
            refuse_engine(t)


def test_what_makes_no_sense_is_refused() -> None:
    keyed, plain = table(bucket=1, key=["id"]), table(bucket=-1)
    with pytest.raises(BadRequest, match="primary-key column 'id' cannot be updated"):
        keyed.update({"id": 5})
    with pytest.raises(BadRequest, match="has no column 'vv'"):
        plain.update({"vv": 5})
    with pytest.raises(BadRequest, match="names no column"):
        plain.update({})
    with pytest.raises(BadRequest, match=r"column 'n' \(int64\) takes no 'text'"):
        t, _ = filled(bucket=-1)
        t.update({"n": "text"})
    with pytest.raises(BadRequest, match="says nothing to do"):
        plain.merge([{"id": 1}], on="id")
    with pytest.raises(BadRequest, match="the source has no column 'id'"):
        plain.merge([{"ix": 1}], on="id", when_matched_delete=True)
    with pytest.raises(BadRequest, match="leaves nothing for those after it"):
        plain.merge([{"id": 1}], on="id", when_matched_delete=True, when_matched_update={"v": "x"})


def test_a_change_that_meets_another_one_is_a_conflict_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    t, rows = filled(**KINDS["plain"])
    once = []

    def late(batch: pa.RecordBatch) -> pa.Array:
        if not once:
            once.append(t.delete("id = 15"))
        return pc.equal(batch.column("id"), 16)

    with pytest.raises(Conflict):
        t.delete(late)  # type: ignore[arg-type]
    assert held(t) == [r for r in rows if r["id"] != 15]
    names = {f.path.rsplit("/", 1)[-1] for f in t.store.list("") if "bucket-" in f.path}
    assert len(names) == 4  # three of the start, one of the delete that won


def test_rows_marked_in_a_bucket_stay_away_when_its_writer_compacts() -> None:
    t, rows = filled(bucket=1, **{"bucket-key": "id", "deletion-vectors.enabled": True})
    t.delete("id IN (3, 14)")
    for i in (30, 31):
        with t.write() as w:
            w.append(pa.Table.from_pylist([row(i)], COLUMNS))
            w.commit()
    assert t.inspect.files().num_rows == 1
    assert held(t) == [r for r in [*rows, row(30), row(31)] if r["id"] not in (3, 14)]
    snap = t.metadata.latest()
    assert snap is not None and snap.index_manifest is not None
    assert not any(e.dv_ranges for e in t.metadata.index_entries(snap.index_manifest))


@pytest.mark.parametrize("marks", [False, True])
def test_rows_keep_their_ids_in_another_partition(marks: bool) -> None:
    options = {"bucket": -1, "parts": ["p"], "row-tracking.enabled": True, "deletion-vectors.enabled": marks}
    t, rows = filled(**options)
    names = [*COLUMNS.names, "_ROW_ID", "_SEQUENCE_NUMBER"]
    before = {r["id"]: r for r in t.scan(columns=names).to_arrow().to_pylist()}
    done = t.update({"p": "new", "n": -1}, where="id IN (3, 4, 25)")
    t.update({"p": pc.if_else(pc.equal(pc.field("id"), 4), "b", pc.field("p"))}, where="id < 6")
    after = {r["id"]: r for r in t.scan(columns=names).to_arrow().to_pylist()}
    moved = {3: "new", 4: "b", 25: "new"}
    assert done.updated == 3
    assert held(t) == [{**r, "p": moved[r["id"]], "n": -1} if r["id"] in moved else r for r in rows]
    assert {i: r["_ROW_ID"] for i, r in after.items()} == {i: r["_ROW_ID"] for i, r in before.items()}
    assert {i for i, r in after.items() if r["_SEQUENCE_NUMBER"] != before[i]["_SEQUENCE_NUMBER"]} == {*range(6), 25}
    assert t.metadata.latest().next_row_id == 30
    assert held(t.with_options({})) == sorted(
        t.scan("p IN ('a', 'b', 'new')").to_arrow().to_pylist(), key=lambda r: r["id"]
    )
