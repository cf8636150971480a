# SPDX-License-Identifier: Apache-2.0
"""What a table's metrics say, against manifests, report and a clock moved by hand."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict
from shoal.metrics import Registry
from shoal.store.base import Sink
from shoal.store.memory import MemoryStore
from shoal.table.table import Table

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.string())])
Values = dict[str, Any]


class SlowStore(MemoryStore):
    """Time passes when something is created: a quarter of a second a snapshot, a second a data file that compacts."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds_a_file = 0.0

    def create(self, path: str, data: bytes) -> bool:
        if "/snapshot/" in path:
            self.clock.sleep(0.25)
        return super().create(path, data)

    def sink(self, path: str) -> Sink:
        if "/data-" in path:
            self.clock.sleep(self.seconds_a_file)
        return super().sink(path)


def a_lake(**more: Any) -> tuple[Lake, SlowStore]:
    store = SlowStore(ManualClock())
    return Lake(store, clock=store.clock, scheduler=ManualScheduler, rng=random.Random(3), **more), store


def a_table(lake: Lake, name: str = "d.t", *, keyed: bool = True, **options: str) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    keys, key = (["p", "k"], {}) if keyed else ([], {"bucket-key": "k"})
    return lake.create_table(
        name, SCHEMA, primary_key=keys, partition_by=["p"], options={"bucket": "2", **key, **named}
    )


def rows(version: int, parts: str = "ab", count: int = 50) -> pa.Table:
    data = [{"p": p, "k": k, "v": f"{version} {k}"} for p in parts for k in range(count)]
    return pa.Table.from_pylist(data, SCHEMA)


def group(t: Table, name: str) -> Values:
    return t.metrics.to_dict()[name]


def listed(t: Table, snapshot: int) -> tuple[list[Values], list[Values]]:
    """(entries of the delta manifests, of the changelog manifests) of a snapshot."""
    snap = t.metadata.snapshot(snapshot)
    delta = [e for m in t.metadata.delta(snap) for e in t.metadata.entries(m).to_pylist()]
    return delta, [e for m in t.metadata.changelog(snap) for e in t.metadata.entries(m).to_pylist()]


def told(t: Table, snapshots: tuple[int, ...]) -> Values:
    """What commit metrics should say, from what the snapshots hold."""
    kinds: dict[str, tuple[list[Values], list[Values]]] = {"APPEND": ([], []), "COMPACT": ([], [])}
    for s in snapshots:
        kinds[t.metadata.snapshot(s).commit_kind] = listed(t, s)
    (new, changelog), (merged, compact_changelog) = kinds["APPEND"], kinds["COMPACT"]

    def number(entries: list[Values], field: str, *only: int) -> int:
        return sum(e[field] if field else 1 for e in entries if e["kind"] in (only or (0, 1)))

    both = [*new, *merged]
    return {
        "lastGeneratedSnapshots": len(snapshots), "lastCommittedSnapshotId": snapshots[-1],
        "lastTableFilesAdded": number(both, "", 0), "lastTableFilesDeleted": number(both, "", 1),
        "lastTableFilesAppended": len(new), "lastTableFilesCommitCompacted": len(merged),
        "lastChangelogFilesAppended": len(changelog), "lastChangelogFileCommitCompacted": len(compact_changelog),
        "lastDeltaRecordsAppended": number(new, "row_count"),
        "lastDeltaRecordsCommitCompacted": number(merged, "row_count"),
        "lastChangelogRecordsAppended": number(changelog, "row_count"),
        "lastChangelogRecordsCommitCompacted": number(compact_changelog, "row_count"),
        "lastPartitionsWritten": len({e["partition"] for e in both}),
        "lastBucketsWritten": len({(e["partition"], e["bucket"]) for e in both}),
        "lastCompactionInputFileSize": number(merged, "file_size", 1),
        "lastCompactionOutputFileSize": number(merged, "file_size", 0),
    }  # fmt: skip


# ---- commits


@pytest.mark.parametrize("producer", ["none", "input", "lookup"])
def test_the_last_commit_is_told_as_its_snapshots_hold_it(producer: str) -> None:
    lake, _ = a_lake()
    t = a_table(lake, changelog_producer=producer, num_sorted_run__compaction_trigger="3")
    durations = []
    with t.write("job") as w:
        for i in range(6):
            w.upsert(rows(i, "ab" if i % 2 else "a"))
            done = w.commit(i + 1, wait=True)
            found = group(t, "commit")
            took = 250 * len(done.snapshots)
            durations.append(took)
            assert found["lastCommitDuration"] == took
            assert found["lastCommitAttempts"] == len(done.snapshots)
            assert {k: found[k] for k in told(t, done.snapshots)} == told(t, done.snapshots)
    took = group(t, "commit")["commitDuration"]
    assert (took["count"], took["min"], took["max"]) == (6, min(durations), max(durations))
    assert took["mean"] == sum(durations) / 6


def test_attempts_count_the_tries_that_others_won() -> None:
    lake, _ = a_lake()
    t = a_table(lake, write_only="true")
    with t.write("slow") as w:
        w.upsert(rows(0))
        w.commit(1)
        w.upsert(rows(1))
        create, raced = MemoryStore.create, []

        def overtaken(store: MemoryStore, path: str, data: bytes) -> bool:
            if "/snapshot/" in path and len(raced) < 2:
                raced.append(path)
                with lake.table("d.t").write(f"fast {len(raced)}") as other:
                    other.upsert(rows(9))
                    raced.append(path)
                    other.commit(1)
            return create(store, path, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlowStore, "create", overtaken)
            w.commit(2)
    assert group(t, "commit")["lastCommitAttempts"] == 2
    assert group(t, "commit")["lastCommittedSnapshotId"] == 3


def test_an_overwrite_tells_its_new_files() -> None:
    lake, _ = a_lake()
    t = a_table(lake, write_only="true")
    with t.write() as w:
        w.upsert(rows(0))
        w.commit()
    t.overwrite(rows(1, "b"))
    found = group(t, "commit")
    # as in Java: the files that it replaces are not among them
    assert (found["lastTableFilesAdded"], found["lastTableFilesDeleted"], found["lastPartitionsWritten"]) == (2, 0, 1)


# ---- compactions


def test_inline_compactions_are_counted_while_they_wait_run_and_end() -> None:
    lake, store = a_lake()
    t = a_table(lake, num_sorted_run__compaction_trigger="3", bucket="1")
    scheduler = ManualScheduler()
    t.new_scheduler = lambda: scheduler
    with t.write("job") as w:
        for i in range(3):
            w.upsert(rows(i, "a"))
            w.commit(i + 1)
        assert group(t, "compaction") | {
            "compactionTotalCount": 1, "compactionQueuedCount": 1, "compactionCompletedCount": 0, "maxLevel0FileCount": 3,
            "avgLevel0FileCount": 3, "maxCompactionInputSize": 0, "avgCompactionTime": 0.0, "compactionThreadBusy": 0,
        } == group(t, "compaction")  # fmt: skip
        sizes = t.inspect.files().column("file_size_in_bytes").to_pylist()
        assert group(t, "compaction")["maxTotalFileSize"] == sum(sizes)
        store.seconds_a_file = 6.0
        scheduler.run_pending()
        found = group(t, "compaction")
        assert (found["compactionQueuedCount"], found["compactionCompletedCount"]) == (0, 1)
        assert (found["avgCompactionTime"], found["compactionThreadBusy"]) == (6_000, 10)
        assert found["maxCompactionInputSize"] == found["readBytes"] == found["freshBytes"] == sum(sizes)
        w.commit(4)
        (merged,) = t.inspect.files().column("file_size_in_bytes").to_pylist()
        found = group(t, "compaction")
        assert found["maxLevel0FileCount"] == 0
        assert found["maxTotalFileSize"] == found["maxCompactionOutputSize"] == found["writtenBytes"] == merged
        assert found["writeAmplification"] == merged / sum(sizes)
        store.clock.sleep(56.75)  # with the commit 57: 3 of the 6 seconds lie in the last minute
        assert group(t, "compaction")["compactionThreadBusy"] == 5
        store.clock.sleep(3)
        assert group(t, "compaction")["compactionThreadBusy"] == 0
    assert group(t, "compaction")["maxTotalFileSize"] == -1  # no writer is open
    assert group(t, "compaction")["compactionCompletedCount"] == 1


def test_a_compaction_that_failed_is_no_completed_one() -> None:
    lake, store = a_lake()
    t = a_table(lake, num_sorted_run__compaction_trigger="2", bucket="1")
    with t.write("job") as w:
        w.upsert(rows(0, "a"))
        w.commit(1)
        w.upsert(rows(1, "a"))
        w.commit(2)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(store, "sink", lambda _: (_ for _ in ()).throw(RuntimeError))
            w.commit(3, wait=True)
    found = group(t, "compaction")
    assert found["compactionCompletedCount"] == found["compactionQueuedCount"] == 0
    assert found["compactionTotalCount"] == 1


def test_a_dropped_compaction_does_not_stay_in_the_queue() -> None:
    lake, _ = a_lake()
    t = a_table(lake, num_sorted_run__compaction_trigger="2", bucket="1")
    with t.write("job") as w:
        for i in range(2):
            w.upsert(rows(i, "a"))
            w.commit(i + 1)
        assert group(t, "compaction")["compactionQueuedCount"] == 1
    assert group(t, "compaction")["compactionQueuedCount"] == 0


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_tells_each_compaction(keyed: bool, threads: int) -> None:
    lake, store = a_lake()
    t = a_table(lake, keyed=keyed, write_only="true")
    for i in range(5):
        with t.write() as w:
            w.append(rows(i))
            w.commit()
    before: dict[tuple[str, int], list[int]] = {}
    files = "partition", "bucket", "file_size_in_bytes"
    for p, b, size in zip(*(t.inspect.files().column(c).to_pylist() for c in files)):
        before.setdefault((f"p={p.strip('{}')}", b), []).append(size)
    store.seconds_a_file = 2.0 if threads == 1 else 0.0
    report = t.maintain.compact(full=True, threads=threads)
    after = {
        (f"p={p.strip('{}')}", b): size for p, b, size in zip(*(t.inspect.files().column(c).to_pylist() for c in files))
    }
    assert {(c.partition, c.bucket): (c.inputs, c.outputs) for c in report.compactions} == dict.fromkeys(before, (5, 1))
    for c in report.compactions:
        size = sum(before[c.partition, c.bucket])
        assert (c.input_bytes, c.bytes_read, c.fresh_bytes) == (size, size, size)
        assert c.output_bytes == c.bytes_written == after[c.partition, c.bucket]
        assert c.write_amplification == c.bytes_written / size
        assert c.seconds == store.seconds_a_file
    told = report.to_dict()
    assert told["write_amplification"] == sum(after.values()) / sum(map(sum, before.values()))
    assert [c["write_amplification"] for c in told["compactions"]] == [  # type: ignore[attr-defined]
        c.write_amplification for c in report.compactions
    ]
    found = group(t, "compaction")
    assert found["compactionTotalCount"] == found["compactionCompletedCount"] == len(before)
    assert found["compactionQueuedCount"] == 0
    assert found["maxCompactionInputSize"] == max(map(sum, before.values()))
    assert found["avgCompactionOutputSize"] == sum(after.values()) / len(after)
    assert found["avgCompactionTime"] == 1000 * store.seconds_a_file
    if keyed:
        assert found["maxTotalFileSize"] == max(after.values())


def test_rewriting_what_lies_on_the_highest_level_has_no_amplification() -> None:
    lake, _ = a_lake()
    t = a_table(lake, bucket="1", write_only="true")
    for i in range(2):
        with t.write() as w:
            w.upsert(rows(i, "a"))
            w.commit()
        t.maintain.compact(full=True)
    again = t.with_options({"compaction.force-rewrite-all-files": True}).maintain.compact(full=True)
    (c,) = again.compactions
    assert (c.fresh_bytes, c.write_amplification, again.write_amplification) == (0, None, None)
    assert c.bytes_written > 0


def test_a_conflict_is_reported_as_a_commit_without_snapshots() -> None:
    lake, _ = a_lake()
    t = a_table(lake, bucket="1", write_only="true")
    for i in range(2):
        with t.write() as w:
            w.upsert(rows(i, "a"))
            w.commit()

    def overtaken(p: Any) -> None:
        if p.tasks_done == p.tasks:
            t.maintain.compact(full=True)

    with pytest.raises(Conflict):
        t.maintain.compact(full=True, progress=overtaken)
    found = group(t, "commit")
    assert (found["lastGeneratedSnapshots"], found["lastCommitAttempts"]) == (0, 0)


# ---- scans and buffers


def test_a_scan_tells_manifests_and_files() -> None:
    lake, _ = a_lake()
    t = a_table(lake, write_only="true")
    for i in range(3):
        with t.write() as w:
            w.upsert(rows(i, "ab"[: 1 + i % 2]))
            w.commit()
    fresh = Lake(lake.store, clock=lake.clock).table("d.t")  # with an empty cache
    assert fresh.scan().to_arrow().num_rows == 100
    first = group(fresh, "scan")
    assert (first["lastScannedSnapshotId"], first["lastScannedManifests"]) == (3, 3)
    assert (first["lastScanResultedTableFiles"], first["lastScanSkippedTableFiles"]) == (8, 0)
    assert (first["manifestHitCache"], first["manifestMissedCache"]) == (0, 3)
    fresh.scan(where="p = 'b'").to_arrow()
    second = group(fresh, "scan")
    assert (second["lastScanResultedTableFiles"], second["lastScanSkippedTableFiles"]) == (2, 6)
    assert (second["manifestHitCache"], second["manifestMissedCache"]) == (3, 3)
    assert second["scanDuration"]["count"] == 2
    cold = Lake(lake.store, clock=lake.clock).table("d.t")
    cold.scan(where="p = 'b'").to_arrow()
    third = group(cold, "scan")  # the two manifests without partition b are not read
    assert (third["lastScannedManifests"], third["lastScanSkippedTableFiles"]) == (1, 6)
    assert (third["manifestHitCache"], third["manifestMissedCache"]) == (0, 1)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_write_buffer_is_told_while_rows_wait(keyed: bool) -> None:
    lake, _ = a_lake()
    t = a_table(lake, keyed=keyed, write_only="true", write_buffer_size="64 kb", page_size="8 kb")
    assert "writerBuffer" not in t.metrics.to_dict()
    with t.write("a") as one, t.write("b") as two:
        one.append(rows(0))
        two.append(rows(0, "c"))
        found = group(t, "writerBuffer")
        assert found["numWriters"] == found["bufferPreemptCount"] == 0  # buckets are found at the flush
        assert found["usedWriteBufferSizeByte"] > 150 * 8
        assert found["totalWriteBufferSizeByte"] == 2 * (64 << 10)
        one.commit(1)
        two.commit(1)
        found = group(t, "writerBuffer")
        assert (found["numWriters"], found["usedWriteBufferSizeByte"]) == (6, 0)
        one.append(rows(1, "a", 5_000))
        assert group(t, "writerBuffer")["bufferPreemptCount"] == 1
    found = group(t, "writerBuffer")
    assert (found["numWriters"], found["totalWriteBufferSizeByte"], found["bufferPreemptCount"]) == (0, 0, 1)


# ---- whose they are


def test_tables_of_a_lake_share_a_registry_and_lakes_may() -> None:
    registry = Registry()
    lake, _ = a_lake(metrics=registry)
    other, _ = a_lake(metrics=registry)
    for where, name in ((lake, "d.t"), (lake, "d.u"), (other, "e.t")):
        with a_table(where, name).write() as w:
            w.upsert(rows(0))
            w.commit()
    commits = [g for g in registry.to_dict() if g["group"] == "commit"]
    assert [(g["table"], g["lastCommittedSnapshotId"]) for g in commits] == [("d.t", 1), ("d.u", 1), ("e.t", 1)]
    assert lake.table("d.t").with_options({"scan.mode": "latest"}).metrics.commit is lake.table("d.t").metrics.commit
    assert 'paimon_commit_lastCommittedSnapshotId{table="d.u"} 1\n' in registry.prometheus()
    assert set(lake.table("d.u").metrics.to_dict()) == {"compaction", "writerBuffer", "commit"}
    assert "lastCommittedSnapshotId" in str(lake.table("d.u").metrics)


def test_tables_on_their_own_have_a_registry_each() -> None:
    first, second = a_lake()[0], a_lake()[0]
    with a_table(first).write() as w:
        w.upsert(rows(0))
        w.commit()
        assert w.metrics.to_dict()["commit"]["lastCommittedSnapshotId"] == 1
    assert a_table(second).metrics.to_dict() == {}
