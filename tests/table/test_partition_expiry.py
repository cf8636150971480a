# SPDX-License-Identifier: Apache-2.0
"""Partitions by age: texts as times, which partitions go, and when a committer looks for them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.format.time_pattern import default_time, time_pattern
from shoal.options import Options
from shoal.store.faults import Fault, FaultyStore
from shoal.store.memory import MemoryStore
from shoal.table.partition_expiry import Candidate, Checks, choose, policy_of
from shoal.table.table import Table

START = 1_767_225_600_000  # 2026-01-01T00:00Z
DAY = 86_400_000
SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32())])
TRUTH = json.loads((Path(__file__).parent / "data" / "times.json").read_text())
OLD = {"partition.expiration-time": "7 d"}


# ---- texts as times --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", TRUTH)
def test_texts_are_the_times_that_java_makes_of_them(pattern: str) -> None:
    """`data/times.json` holds what java.time 17 made of random texts, by pattern; '' is Paimon's own default."""
    if TRUTH[pattern] == "bad":
        with pytest.raises(shoal.BadRequest, match="timestamp-formatter"):
            time_pattern(pattern, "partition.timestamp-formatter")
        return
    parse = default_time if not pattern else time_pattern(pattern, "partition.timestamp-formatter").parse
    for text, expected in TRUTH[pattern].items():
        found = parse(text)
        shown = None if found is None else f"{found // 10**9}.{found % 10**9:09d}"
        assert shown == expected, (pattern, text)


@pytest.mark.parametrize("pattern", ["MMM d yyyy", "yyyy-MM-dd HH:mm z", "h a"])
def test_patterns_with_words_are_refused(pattern: str) -> None:
    with pytest.raises(shoal.Unsupported, match="timestamp-formatter"):
        time_pattern(pattern, "partition.timestamp-formatter")


# ---- which and when --------------------------------------------------------------------------------------


def test_the_oldest_values_go_first_and_no_more_than_wanted() -> None:
    policy = policy_of(["dt"], Options(OLD | {"partition.expiration-max-num": "2"}, strict=True))
    days = ["2020-01-10", "2020-01-02", "x", "2020-01-1", "2030-01-01"]
    found = choose(policy, [Candidate(d.encode(), (d,), 0) for d in days], START)
    assert [c.values[0] for c in found] == ["2020-01-02", "2020-01-1"]
    updated = policy_of(["dt"], Options(OLD | {"partition.expiration-strategy": "update-time"}, strict=True))
    some = [
        Candidate(b"a", ("x",), 5),
        Candidate(b"b", (None,), 4),
        Candidate(b"c", ("y",), 6),
        Candidate(b"d", ("z",), None),
    ]
    assert [c.partition for c in choose(updated, some, 6)] == [b"b", b"a"]  # __DEFAULT_PARTITION__ comes before x


def test_a_committer_looks_once_an_interval() -> None:
    clock = ManualClock(START)
    policy = policy_of(["dt"], Options(OLD, strict=True))
    first = []
    for seed in range(50):
        checks = Checks(policy, clock, random.Random(seed))
        at = next(m for m in range(62) if checks.due(START + m * 60_000, 1))
        assert not checks.due(START + (at + 60) * 60_000, 1) and checks.due(START + (at + 61) * 60_000, 1)
        first.append(at)
    assert 1 <= min(first) < 10 and 50 < max(first) <= 60  # anywhere in the first hour
    assert not Checks(policy, clock, random.Random(1)).due(START, BATCH_IDENTIFIER)
    at_end = policy_of(["dt"], Options(OLD | {"end-input.check-partition-expire": "true"}, strict=True))
    assert Checks(at_end, clock, random.Random(1)).due(START, BATCH_IDENTIFIER)
    assert not Checks(at_end, clock, random.Random(1)).due(START, 1)
    always = policy_of(["dt"], Options(OLD | {"partition.expiration-check-interval": "0 s"}, strict=True))
    assert Checks(always, clock, random.Random(1)).due(START, 1)


# ---- on a table ------------------------------------------------------------------------------------------


def make(options: dict[str, object], store: MemoryStore | None = None) -> Table:
    clock = ManualClock(START)
    lake = Lake(store or MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    return lake.create_table(
        "d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"], options={"bucket": 1} | options
    )


def days(table: Table) -> list[str]:
    return sorted(set(table.scan(columns=["dt"]).to_arrow().column("dt").to_pylist()))


def test_a_running_writer_drops_old_partitions_and_goes_on() -> None:
    table = make(OLD | {"partition.expiration-check-interval": "1 h", "num-sorted-run.compaction-trigger": 2})
    with table.write(commit_user="job") as w:
        for day in range(14):
            dt = datetime.fromtimestamp((START + day * DAY) / 1000, UTC).date().isoformat()
            for i in range(3):
                w.upsert([{"dt": dt, "k": i}, {"dt": "2026-01-08", "k": day * 10 + i}])
                done = w.commit(checkpoint=day * 10 + i)
                assert done.upkeep is not None and done.upkeep.failure is None
            table.clock.sleep(86_400)
    assert days(table) == [f"2026-01-{d:02d}" for d in range(7, 15)]
    assert table.scan(where="dt = '2026-01-08'").to_arrow().num_rows == 42
    dropped = done.upkeep.partitions
    assert dropped is None or not dropped.partitions  # the last commits of a day had nothing to drop
    # a late row of a dropped partition makes it anew, and the next check takes it away again
    with table.write(commit_user="job") as w:
        w.upsert([{"dt": "2026-01-01", "k": 1}])
        w.commit(checkpoint=999)
        assert "2026-01-01" in days(table)
        table.clock.sleep(3700)
        w.upsert([{"dt": "2026-01-14", "k": 1}])
        done = w.commit(checkpoint=1000)
    assert done.upkeep is not None and done.upkeep.partitions is not None
    assert done.upkeep.partitions.partitions[0] == "dt=2026-01-01"
    assert "dropped" in str(done.upkeep) and done.to_dict()["upkeep"]


def test_on_demand() -> None:
    table = make({})
    with table.write() as w:
        w.upsert([{"dt": d, "k": 1} for d in ("2025-11-01", "2025-12-01", "20251101", "2026-01-01")])
        w.commit()
    with pytest.raises(shoal.BadRequest, match="nothing says when"):
        table.maintain.expire_partitions()
    before = table.metadata.latest_id()
    report = table.maintain.expire_partitions(older_than="2025-12-15", dry_run=True)
    assert report.partitions == ("dt=2025-11-01", "dt=2025-12-01") and table.metadata.latest_id() == before
    assert str(report) == "d.t: would drop 2 partitions: dt=2025-11-01, dt=2025-12-01"
    report = table.maintain.expire_partitions(older_than="2025-12-15", max_expires=1)
    assert report.partitions == ("dt=2025-11-01",) and report.snapshots == ((before or 0) + 1,)
    report = table.maintain.expire_partitions(older_than="2025-12-15", timestamp_formatter="yyyyMMdd")
    assert report.partitions == ("dt=20251101",)
    assert days(table) == ["2025-12-01", "2026-01-01"]
    table.clock.sleep(10)
    report = table.maintain.expire_partitions(older_than=table.clock.now_ms(), strategy="update-time")
    assert len(report.partitions) == 2 and days(table) == [] and report.to_dict()["dry_run"] is False
    assert str(table.maintain.expire_partitions(older_than="2025-12-15")) == "d.t: no partition is old enough"
    # the past is still there
    assert table.scan(snapshot=before).to_arrow().num_rows == 4
    with pytest.raises(shoal.Unsupported, match="expiration-strategy 'custom'"):
        table.maintain.expire_partitions(older_than=1, strategy="custom")


def test_a_writer_refuses_what_it_cannot_expire_by() -> None:
    with pytest.raises(shoal.Unsupported, match="expiration-strategy"):
        make(OLD | {"partition.expiration-strategy": "custom"}).write()


def test_a_store_that_fails_drops_nothing_and_is_asked_again() -> None:
    clock = ManualClock(START)
    inner = MemoryStore(clock=clock)
    options: dict[str, object] = OLD | {"partition.expiration-check-interval": "0 s"}
    with make(options | {"write-only": True}, inner).write() as w:
        w.upsert([{"dt": "2020-01-01", "k": 1}, {"dt": "2026-01-01", "k": 1}])
        w.commit()
    lake = Lake(
        FaultyStore(inner, Fault("fail", at=2, kind="create", path="snapshot-", times=3)),
        clock=clock,
        scheduler=ManualScheduler,
    )
    table = lake.table("d.t").with_options({"write-only": False})
    with table.write() as w:
        seen = []
        for i in range(4):
            w.upsert([{"dt": "2026-01-01", "k": i}])
            seen.append(w.commit(checkpoint=i).upkeep)
    failed, then = seen[:2]
    assert failed is not None and isinstance(failed.failure, shoal.ShoalError) and failed.partitions is None
    assert then is not None and then.failure is None and then.partitions is not None
    assert then.partitions.partitions == ("dt=2020-01-01",) and days(table) == ["2026-01-01"]


def test_values_that_are_no_time_are_refused_where_that_is_wanted() -> None:
    strict: dict[str, object] = {"partition.timestamp-format.strict": True, "partition.timestamp-formatter": "yyyyMMdd"}
    table = make(strict)
    with table.write() as w:
        w.upsert([{"dt": "20260101", "k": 1}])
        w.commit()
    for wrong in ("2026-01-01", "20261301"):
        with table.write() as w:
            w.upsert([{"dt": wrong, "k": 1}])
            with pytest.raises(shoal.BadRequest, match=f"dt={wrong} does not match"):
                w.commit()
    assert days(table) == ["20260101"]
    with make({"partition.timestamp-format.strict": True}).write() as w:  # as in Java: nothing to hold it against
        w.upsert([{"dt": "x", "k": 1}])
        w.commit()
