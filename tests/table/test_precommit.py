# SPDX-License-Identifier: Apache-2.0
"""Small files of one checkpoint become fewer before the commit: the same rows and changes in fewer files."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.debt import debt
from shoal.doctor.physical import physical
from shoal.doctor.take import take_named
from shoal.format.compacted_changelog import slice_name, slice_of
from shoal.lsm.precommit_pick import gathered
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table import precommit
from shoal.table.staged import Staged
from tests.faults.walk import left_over, missing, there

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), ("p", pa.int32()), ("v", pa.string())])
NOW = 1_700_000_000_000
Row = tuple[Any, ...]


def lake(store: Any = None, seed: int = 7) -> Lake:
    made = MemoryStore(clock=ManualClock(NOW)) if store is None else store
    return Lake(made, clock=ManualClock(NOW), scheduler=ManualScheduler, rng=random.Random(seed))


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)


def keyed(at: Lake, name: str = "t", partitions: Sequence[str] = (), **options: object) -> Any:
    given = {"bucket": 4, "changelog-producer": "lookup", **{k.replace("_", "-"): v for k, v in options.items()}}
    return at.create_table(
        f"d.{name}", SCHEMA, primary_key=[*partitions, "k"], partition_by=list(partitions), options=given
    )


def append(at: Lake, name: str = "t", **options: object) -> Any:
    given = {"precommit-compact": True, **{k.replace("_", "-"): v for k, v in options.items()}}
    return at.create_table(f"d.{name}", SCHEMA, partition_by=["p"], options=given)


def history(table: Any, seed: int = 1, commits: int = 5) -> None:
    rng = random.Random(seed)
    with table.write("w") as w:
        for i in range(1, commits + 1):
            w.upsert(batch([(k, rng.randrange(2), rng.choice("abc")) for k in rng.sample(range(50), 15)]))
            w.commit(checkpoint=i)


def changes(table: Any) -> list[tuple[int, int, str]]:
    out = []
    for c in table.follow(start=1, until="latest"):
        out += [(c.snapshot, k, repr(r)) for k, r in zip(c.kinds.to_pylist(), c.rows.to_pylist())]
    return out


def shared(table: Any) -> list[str]:
    return [p for p in there(table) if "/compacted-changelog-" in p]


def alone(table: Any) -> list[str]:
    return [p for p in there(table) if "/changelog-" in p and "bucket-" in p]


# ---- which files


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [  # as Java's coordinators take them apart, in MB of a target of 8 MB
        ([3, 2, 5, 4, 3, 3, 2, 2], [(0, 1, 2), (3, 4, 5), (6, 7)]),
        ([3, 5, 2], [(0, 1)]),
        ([3, 10, 5, 9], [(0, 2)]),
        ([8, 3, 5, 9], [(1, 2)]),
        ([3, 5, 1, 2, 3], [(0, 1), (2, 3, 4)]),
        ([4], []),
        ([], []),
    ],
)
def test_small_files_are_gathered_up_to_the_target(sizes: list[int], groups: list[tuple[int, ...]]) -> None:
    assert gathered([s << 20 for s in sizes], enough=int((8 << 20) * 0.7), target=8 << 20) == groups


def test_names_say_where_the_bytes_lie() -> None:
    whole = "compacted-changelog-1-2$3-40.cc-parquet"
    first, second = slice_of(slice_name(whole, 0, 40)), slice_of(slice_name(whole, 40, 7))
    assert first is not None and (first.bucket, first.name, first.offset, first.length) == (3, whole, 0, 40)
    assert second is not None and (second.bucket, second.name, second.offset, second.length) == (3, whole, 40, 7)
    assert slice_of("changelog-1-2-3.parquet") is None
    with pytest.raises(shoal.Corrupt, match="where its bytes lie"):
        slice_of("compacted-changelog-1.cc-orc")


# ---- changelog files


@pytest.mark.parametrize(
    ("producer", "format_name"),
    [
        *((p, "parquet") for p in ("lookup", "full-compaction", "input")), ("lookup", "orc"), ("full-compaction", "avro"),
        *(pytest.param(p, f, marks=pytest.mark.slow) for p, f in (
            ("full-compaction", "orc"), ("input", "orc"), ("lookup", "avro"), ("input", "avro"))),
    ],
)  # fmt: skip
def test_a_stream_sees_the_same_in_fewer_files(producer: str, format_name: str) -> None:
    at = lake()
    options = {"changelog-producer": producer, "file.format": format_name}
    plain, few = keyed(at, "plain", **options), keyed(at, "few", precommit_compact=True, **options)
    for t in (plain, few):
        history(t)
    assert changes(few) == changes(plain) != []
    assert few.scan().to_arrow() == plain.scan().to_arrow()
    made = {i: few.metadata.snapshot(i) for i in few.metadata.snapshot_ids()}
    told = [i for i, s in made.items() if s.changelog_manifest_list is not None]
    assert len(shared(few)) == len(told) and not alone(few)
    assert len(alone(plain)) > 3 * len(told) and not shared(plain)
    assert list(missing(few)) == left_over(few) == []


def test_each_partition_has_a_file_of_its_own() -> None:
    table = keyed(lake(), partitions=["p"], changelog_producer="input", precommit_compact=True)
    with table.write("w") as w:
        w.upsert(batch([(k, k % 2, "a") for k in range(40)]))
        w.commit(checkpoint=1)
    assert sorted(p.split("/")[0] for p in shared(table)) == ["p=0", "p=1"]
    assert len(changes(table)) == 40


def test_large_files_stay_alone_and_the_target_closes_a_file() -> None:
    at = lake()
    table = keyed(at, changelog_producer="input", precommit_compact=True, bucket=6,
                  **{"changelog.precommit-compact.buffer-size": "1 b"})  # fmt: skip
    history(table, commits=1)
    assert len(alone(table)) == 6 and not shared(table)
    keyed(at, "u", changelog_producer="input", precommit_compact=True, bucket=6)
    table = at.table("d.u").with_options({"target-file-size": "2200 b"})  # of two files, more or less
    history(table, commits=1)
    assert 2 <= len(shared(table)) <= 3
    assert len(changes(table)) == 15


def test_files_that_lie_elsewhere_share_one_there(tmp_path: Path) -> None:
    at = shoal.open(f"file:{tmp_path}/lake")
    places = {"data-file.external-paths": f"file:{tmp_path}/one,file:{tmp_path}/two",
              "data-file.external-paths.strategy": "round-robin"}  # fmt: skip
    table = keyed(at, changelog_producer="input", precommit_compact=True, **places)
    history(table, commits=3)
    names = [p for p in tmp_path.glob("*/**/bucket-*/*") if p.name.startswith(("compacted-", "changelog-"))]
    assert len(names) == 3 and all(p.name.startswith("compacted-") and "lake" not in p.parts for p in names)
    assert len(changes(table)) == 45
    table.maintain.expire(retain_min=1, retain_max=1, older_than="2999-01-01 00:00:00")
    assert [p.exists() for p in names].count(True) == 1


def test_a_decoupled_changelog_keeps_the_file_it_shares() -> None:
    table = keyed(lake(), changelog_producer="input", precommit_compact=True,
                  **{"changelog.num-retained.max": 3, "changelog.num-retained.min": 3, "write-only": True,
                     "snapshot.num-retained.max": 1, "snapshot.num-retained.min": 1})  # fmt: skip
    history(table, commits=6)
    whole = changes(table)
    table.maintain.expire()
    kept = sorted({s for s, _, _ in whole})[-len(shared(table)) :]
    assert 1 < len(kept) < 6
    told = [
        (c.snapshot, k, repr(r))
        for c in table.follow(start=kept[0], until="latest")
        for k, r in zip(c.kinds.to_pylist(), c.rows.to_pylist())
    ]
    assert told == [c for c in whole if c[0] in kept]
    assert list(missing(table)) == []


def test_many_writers_and_one_committer_share_one_file() -> None:
    table = keyed(lake(), changelog_producer="input", precommit_compact=True, **{"write-only": True})
    staged = []
    for n in range(3):
        with table.write(f"w{n}") as w:
            w.upsert(batch([(k, 0, f"{n}") for k in range(n * 10, n * 10 + 10)]))
            staged.append(Staged.decode(w.prepare(1).encode()))
    assert len(alone(table)) == sum(len(c.changelog_files) for s in staged for c in s.changes) > 4
    with table.committer("job") as c:
        c.commit(1, *staged)
    assert len(shared(table)) == 1 and not alone(table)
    assert len(changes(table)) == 30
    assert left_over(table) == []


def test_the_bytes_are_copied_in_order_whatever_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    store = MemoryStore()
    files = [rng.randbytes(rng.randrange(1, 5000)) for _ in range(30)]
    for i, data in enumerate(files):
        store.put(f"f{i}", data)
    monkeypatch.setattr(precommit, "_PIECE", 1000)
    # a byte at a time, each by a task of its own, takes long: of a few files
    for buffer, threads, count in ((1, 1, 2), (700, 4, 30), (4000, 3, 30), (1 << 20, 8, 30)):
        sink = store.sink(f"out{buffer}")
        sources = [(store, f"f{i}", len(d)) for i, d in enumerate(files[:count])]
        precommit.copy(sources, sink, threads=threads, buffer=buffer)
        sink.close()
        assert store.read(f"out{buffer}") == b"".join(files[:count])
    with pytest.raises(shoal.Corrupt, match="f3 is shorter"):
        precommit.copy([(store, "f3", len(files[3]) + 1)], store.sink("short"), threads=2, buffer=100)


@pytest.mark.parametrize("name", ["j_lookup", "j_orc", "j_avro"])
def test_javas_shared_files_are_read(name: str, tmp_path: Path) -> None:
    """Tables that Flink wrote for tests/interop/test_java_precommit.py, expired there, with Java's stream of each."""
    with tarfile.open(Path(__file__).parent / "data" / "shared-changelogs.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    _, *said = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    table = shoal.open(f"file:{tmp_path}").table(f"d.{name}")
    assert len(shared(table)) == 2
    newest = table.metadata.latest_id()
    rows = table.changes(newest - 1, newest, mode="changelog").to_arrow().to_pylist()
    ours = [(["+I", "-U", "+U", "-D"][r.pop("_VALUE_KIND")], repr(r)) for r in rows]
    assert sorted(ours) == sorted((s["op"], repr(s["row"])) for s in said) != []


# ---- death and failure


def test_a_checkpoint_whose_commit_died_is_committed_later() -> None:
    """Whatever the process was at: what was staged is there until the commit is."""
    inner = MemoryStore(clock=ManualClock(NOW))
    table = keyed(lake(inner), changelog_producer="input", precommit_compact=True)
    with table.write("w") as w:
        w.upsert(batch([(k, 0, "a") for k in range(20)]))
        state = w.prepare(1).encode()
    start = {i.path: inner.read(i.path) for i in inner.list("")}
    for action in ("die", "die_after"):
        at = 1
        while True:
            store = MemoryStore(clock=ManualClock(NOW))
            for path, data in start.items():
                store.put(path, data)
            faulty = FaultyStore(store, Fault(action, at))
            try:
                lake(faulty, 8).table("d.t").committer("w").filter_and_commit({1: [Staged.decode(state)]})
            except Died:
                pass
            struck = faulty.mutations >= at
            again = lake(store, 9).table("d.t")
            again.committer("w").filter_and_commit({1: [Staged.decode(state)]})
            assert len(changes(again)) == 20 and list(missing(again)) == [], (action, at)
            assert [again.metadata.snapshot(i).commit_kind for i in again.metadata.snapshot_ids()] == ["APPEND"]
            if not struck:
                break
            at += 1
        assert at > 6


@pytest.mark.parametrize("keyed_table", [True, False])
def test_a_merge_that_fails_fails_the_commit_and_leaves_nothing(keyed_table: bool) -> None:
    inner = MemoryStore(clock=ManualClock(NOW))
    made = lake(inner)
    keyed(made, changelog_producer="input", precommit_compact=True) if keyed_table else append(made)
    path = "compacted-changelog" if keyed_table else "bucket-0/data-"
    # the append files written together come third
    store = FaultyStore(inner, Fault("fail", 1 if keyed_table else 3, "sink", path))
    table = lake(store, 8).table("d.t")
    with table.write("w") as w:
        for n in range(2):
            (w.upsert if keyed_table else w.append)(batch([(n * 10 + k, 0, "a") for k in range(10)]))
            w.flush()
        with pytest.raises(shoal.StorageFailed):
            w.commit(checkpoint=1)
        assert table.metadata.latest() is None and not shared(table)
        assert left_over(table) == []
        (w.upsert if keyed_table else w.append)(batch([(k, 0, "b") for k in range(10)]))
        w.commit(checkpoint=2)
    assert table.scan().to_arrow().num_rows == 10
    assert left_over(table) == []


def test_an_unclear_commit_goes_on_with_the_files_it_had() -> None:
    inner = MemoryStore(clock=ManualClock(NOW))
    keyed(lake(inner), changelog_producer="input", precommit_compact=True)
    # neither the create nor the look at what became of it is answered
    store = FaultyStore(inner, [Fault("fail_after", 1, "create", "snapshot/snapshot-1"),
                                Fault("fail", 1, "read", "snapshot/snapshot-1", times=20)])  # fmt: skip
    table = lake(store, 8).table("d.t")
    with table.write("w") as w:
        w.upsert(batch([(k, 0, "a") for k in range(20)]))
        with pytest.raises(shoal.CommitUnknown):
            w.commit(checkpoint=1)
        store.plan = ()
        store._seen = []
        w.commit(checkpoint=1)
    again = lake(inner).table("d.t")
    assert len(shared(again)) == 1 and len(changes(again)) == 20
    assert left_over(again) == []


# ---- new files of append tables


def test_new_files_are_written_together_before_the_commit() -> None:
    table = append(lake())
    with table.write("w") as w:
        for n in range(4):
            w.append(batch([(n * 10 + k, k % 2, "a") for k in range(10)]))
            w.flush()
        committed = w.commit(checkpoint=1)
    assert committed.rows == 40
    snap = table.metadata.latest()
    assert snap.commit_kind == "APPEND"
    files = table.inspect.files().to_pylist()
    assert [f["record_count"] for f in files] == [20, 20]
    rows = table.scan().to_arrow()
    assert sorted(rows.column("k").to_pylist()) == list(range(40))
    assert left_over(table) == list(missing(table)) == []


def test_rows_written_together_get_their_ids_from_the_commit() -> None:
    """Java calls the file a compaction's, so that its rows stay without ids."""
    table = append(lake(), **{"row-tracking.enabled": True})
    with table.write("w") as w:
        for c in (1, 2):
            for n in range(3):
                w.append(batch([(c * 100 + n * 10 + k, 0, "a") for k in range(10)]))
                w.flush()
            w.commit(checkpoint=c)
    files = table.inspect.files().to_pylist()
    assert [(f["record_count"], f["first_row_id"]) for f in files] == [(30, 0), (30, 30)]
    assert [(f["min_sequence_number"], f["max_sequence_number"]) for f in files] == [(1, 1), (2, 2)]


def test_an_overwrite_writes_its_new_files_together_too() -> None:
    table = append(lake())
    with table.write("w") as w:
        w.append(batch([(k, 0, "a") for k in range(10)]))
        w.commit(checkpoint=1)
    with table.write("o") as w:
        for n in range(3):
            w.append(batch([(n * 10 + k, 0, "b") for k in range(10)]))
            w.flush()
        staged = w.prepare(1)
        w.committer.overwrite(staged, 1, {"p": 0})
    assert [f["record_count"] for f in table.inspect.files().to_pylist()] == [30]


def test_files_of_a_data_evolution_table_are_refused() -> None:
    table = append(lake(), **{"row-tracking.enabled": True, "data-evolution.enabled": True})
    with pytest.raises(shoal.Unsupported, match="precommit-compact"):
        table.write()


# ---- what comes after


def test_expiry_takes_a_shared_file_once_with_all_that_share_it() -> None:
    table = keyed(lake(), precommit_compact=True)
    history(table, commits=6)
    before = there(table)
    expired = table.maintain.expire(retain_min=1, retain_max=1, older_than=NOW + 1_000_000)
    gone = sorted(p for p in before if p not in there(table) and not p.startswith("snapshot/"))
    assert len([p for p in gone if "/compacted-changelog-" in p]) == 5 and len(shared(table)) == 1
    assert sorted(expired.files) == gone
    assert left_over(table) == list(missing(table)) == []


def test_the_doctor_counts_a_shared_file_once() -> None:
    table = keyed(lake(), precommit_compact=True)
    history(table)
    window, files = take_named(table.metadata)
    found, disk = debt(window), physical(table.store, window.schema, files)
    assert found.made["changelog"].files == disk.kinds["changelog"].files == len(shared(table)) == 5
    assert found.made["changelog"].bytes == disk.kinds["changelog"].bytes
    assert found.retained is not None and found.retained["changelog"].files == 5
