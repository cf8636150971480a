# SPDX-License-Identifier: Apache-2.0
"""Reading the past: every way to name a snapshot finds the one Java would find, or says what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

import shoal
from shoal import BadRequest, NotFound
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format import paths
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.store.memory import MemoryStore
from shoal.table.history import History
from shoal.table.table import Table
from shoal.table.travel import moment, scan

KV = pa.schema([("k", pa.int32()), ("v", pa.string())])
ZONE = timezone(timedelta(hours=2))
START = 1_700_000_000_000


@pytest.fixture
def table() -> Table:
    """Five snapshots, ten seconds apart; snapshot n holds the keys 1 to n."""
    clock = ManualClock(START, ZONE)
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    t = lake.create_table("d.t", KV, primary_key=["k"], options={"bucket": 1, "num-sorted-run.compaction-trigger": 50})
    for i in range(1, 6):
        with t.write() as w:
            w.upsert([{"k": i, "v": "x"}])
            w.commit()
        change(t, i, time_ms=START + 10_000 * i)
        clock.sleep(10)
    return t


def change(t: Table, snapshot: int, **fields: object) -> None:
    """A snapshot file with other values, as another writer would have made it."""
    t.store.put(paths.snapshot(snapshot), replace(t.metadata.snapshot(snapshot), **fields).encode())  # type: ignore[arg-type]


def tag(t: Table, name: str, snapshot: int) -> None:
    t.store.put(f"tag/tag-{name}", t.store.read(paths.snapshot(snapshot)))


def keys(t: Table, options: Mapping[str, object] | None = None, **place: object) -> list[int]:
    reading = t.with_options(options or {})
    return sorted(r["k"] for r in scan(reading, **place).to_arrow().to_pylist())  # type: ignore[arg-type]


def test_a_snapshot_by_its_id(table: Table) -> None:
    assert keys(table, snapshot=2) == keys(table, {"scan.snapshot-id": 2}) == [1, 2]
    assert keys(table, {"scan.mode": "from-snapshot-full", "scan.snapshot-id": 3}) == [1, 2, 3]
    assert keys(table, {"scan.snapshot-id": 2}, snapshot=4) == [1, 2, 3, 4]
    table.store.delete(paths.snapshot(1))
    for wanted in (1, 6):
        with pytest.raises(NotFound, match=f"snapshot {wanted} .* does not exist") as err:
            scan(table, snapshot=wanted)
        assert "snapshots 2 to 5 are there" in str(err.value.hint)


def test_the_newest_is_read_without_a_place(table: Table) -> None:
    for mode in ("latest", "latest-full", "full", "default"):
        assert keys(table, {"scan.mode": mode}) == [1, 2, 3, 4, 5]


def test_a_time_finds_the_newest_snapshot_not_after_it(table: Table) -> None:
    def at(ms: int) -> list[int]:
        return keys(table, timestamp=ms)

    assert at(START + 30_000) == [1, 2, 3]
    assert at(START + 39_999) == [1, 2, 3]
    assert at(START + 40_000) == [1, 2, 3, 4]
    assert at(START + 10**9) == [1, 2, 3, 4, 5]
    with pytest.raises(NotFound, match="no snapshot at or before") as err:
        at(START)
    assert str(START + 10_000) in str(err.value.hint)


def test_every_time_agrees_with_a_search_one_by_one(table: Table) -> None:
    for i, ms in enumerate((5, 5, 9, 9, 30), 1):
        change(table, i, time_ms=ms)
    history = History(table.metadata)
    for t in range(5, 33):
        found = history.not_after(t)
        assert found is not None
        assert found.time_ms == max(ms for ms in (5, 9, 30) if ms <= t)
        before = history.before(t)
        assert before == sum(ms < t for ms in (5, 5, 9, 9, 30))
    assert history.not_after(4) is None


def test_a_time_is_a_number_a_datetime_or_local_text(table: Table) -> None:
    local = datetime.fromtimestamp((START + 30_000) / 1000, ZONE)
    assert keys(table, timestamp=local) == [1, 2, 3]
    assert keys(table, timestamp=local.replace(tzinfo=None)) == [1, 2, 3]
    assert keys(table, timestamp=local.astimezone(UTC)) == [1, 2, 3]
    text = local.strftime("%Y-%m-%d %H:%M:%S")
    assert keys(table, timestamp=text) == keys(table, {"scan.timestamp": text}) == [1, 2, 3]
    assert keys(table, {"scan.timestamp-millis": START + 30_000}) == [1, 2, 3]
    clock = table.clock
    assert moment(clock, "1970-01-01 02:00:00.1239", "t") == 123
    assert moment(clock, "1970-1-1 2:0:1", "t") == 1000
    assert moment(clock, "1970-01-02", "t") == 22 * 3_600_000
    for wrong in ("1970-01-01T02:00:00", "yesterday", "1970-13-01", "1970-01-01 25:00:00", ""):
        with pytest.raises(BadRequest, match="is not a time"):
            moment(clock, wrong, "scan.timestamp")


def test_a_tag_stays_readable_after_its_snapshot_expired(table: Table) -> None:
    tag(table, "monthly", 2)
    tag(table, "4", 1)
    for i in (1, 2, 3):
        table.store.delete(paths.snapshot(i))
    assert keys(table, tag="monthly") == keys(table, {"scan.tag-name": "monthly"}) == [1, 2]
    with pytest.raises(NotFound, match="no tag 'montly'") as err:
        scan(table, tag="montly")
    assert "did you mean 'monthly'" in str(err.value.hint)


def test_a_version_is_a_tag_then_a_watermark_then_an_id(table: Table) -> None:
    tag(table, "monthly", 2)
    tag(table, "5", 1)
    change(table, 3, watermark=7)
    change(table, 4, watermark=9)
    change(table, 5, watermark=9)
    assert keys(table, version="monthly") == [1, 2]
    assert keys(table, version="4") == [1, 2, 3, 4]
    assert keys(table, {"scan.version": "5"}) == [1]  # the tag hides the snapshot
    assert keys(table, version="watermark-8") == [1, 2, 3, 4]
    for wrong in ("nothing", "watermark-x"):
        with pytest.raises(NotFound, match=f"no version '{wrong}'"):
            scan(table, version=wrong)


def test_a_watermark_finds_the_first_snapshot_that_reached_it(table: Table) -> None:
    with pytest.raises(NotFound, match="watermark reached 5"):
        scan(table, watermark=5)
    for i, mark in enumerate((None, 10, 20, None, 40), 1):
        change(table, i, watermark=mark)
    assert keys(table, watermark=5) == [1, 2]
    assert keys(table, watermark=10) == [1, 2]
    assert keys(table, {"scan.watermark": 11}) == [1, 2, 3]
    assert keys(table, watermark=21) == [1, 2, 3, 4, 5]
    with pytest.raises(NotFound, match="watermark reached 41"):
        scan(table, watermark=41)


def test_a_compacted_read_takes_the_newest_compaction(table: Table) -> None:
    mode = {"scan.mode": "compacted-full"}
    assert keys(table, mode) == [1, 2, 3, 4, 5]  # none yet: the newest of all
    change(table, 2, commit_kind="COMPACT", commit_identifier=6)
    change(table, 4, commit_kind="COMPACT", commit_identifier=7)
    assert keys(table, mode) == [1, 2, 3, 4]
    # only every third commit compacts fully
    assert keys(table, {**mode, "full-compaction.delta-commits": 3}) == [1, 2]
    change(table, 4, commit_identifier=BATCH_IDENTIFIER)
    assert keys(table, {**mode, "full-compaction.delta-commits": 3}) == [1, 2, 3, 4]


def test_files_since_a_time_go_by_the_writers_local_clock(table: Table) -> None:
    # the files were made at START + 0, 10, ... seconds
    assert keys(table, {"scan.file-creation-time-millis": START + 20_000}) == [3, 4, 5]
    assert keys(table, {"scan.file-creation-time-millis": START + 20_001}) == [4, 5]
    # a snapshot after the last earlier one, where there is one; else files
    assert keys(table, {"scan.creation-time-millis": START + 30_000}) == [1, 2, 3]
    assert keys(table, {"scan.creation-time-millis": START + 10_000}) == [2, 3, 4, 5]
    assert keys(table, {"scan.creation-time-millis": START + 60_000}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan.snapshot-id": 1, "scan.tag-name": "a"}, "exactly one of"),
        ({"scan.snapshot-id": 1, "scan.timestamp-millis": 5}, "'scan.snapshot-id' cannot be set"),
        ({"scan.mode": "latest", "scan.snapshot-id": 1}, "'scan.snapshot-id' cannot be set"),
        ({"scan.mode": "from-timestamp"}, "needs exactly one of scan.timestamp-millis, scan.timestamp; none is set"),
        ({"scan.mode": "from-timestamp", "scan.timestamp-millis": 1, "scan.timestamp": "1970-01-01"}, "exactly one"),
        ({"scan.mode": "from-snapshot-full", "scan.tag-name": "a"}, "'scan.tag-name' cannot be set"),
        ({"scan.mode": "incremental"}, "needs exactly one of incremental-between"),
        ({"scan.timestamp": "soon"}, "'soon' is not a time"),
    ],
)
def test_contradicting_options_are_refused(table: Table, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        scan(table.with_options(options))


def test_two_places_at_once_are_refused(table: Table) -> None:
    with pytest.raises(BadRequest, match="snapshot and tag both say"):
        scan(table, snapshot=1, tag="x")


def test_a_named_snapshot_is_read_with_its_own_columns(table: Table) -> None:
    tag(table, "old", 5)
    schema = table.schema
    wider = replace(
        schema, id=1, fields=(*schema.fields, replace(schema.fields[1], id=2, name="w")), highest_field_id=2
    )
    table.store.put(paths.schema(1), wider.encode())
    today = table.with_schema(wider)
    with today.write() as w:
        w.upsert([{"k": 6, "v": "x", "w": "new"}])
        w.commit()
    assert scan(today).to_arrow().column_names == ["k", "v", "w"]
    for place in ({"snapshot": 5}, {"tag": "old"}, {"version": "old"}, {"timestamp": START + 45_000}):
        assert scan(today, **place).to_arrow().column_names == ["k", "v"]  # type: ignore[arg-type]
    assert scan(today.with_options({"scan.mode": "compacted-full"})).to_arrow().column_names == ["k", "v", "w"]
    with pytest.raises(BadRequest, match="no column 'w'"):
        scan(today, columns=["w"], snapshot=5)


def test_an_empty_table_is_read_as_empty() -> None:
    t = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler).create_table("d.e", KV)
    assert scan(t).to_arrow().num_rows == 0
    assert scan(t.with_options({"scan.mode": "compacted-full"})).to_arrow().num_rows == 0
    for place in ({"snapshot": 1}, {"timestamp": 5}, {"watermark": 5}, {"tag": "x"}):
        with pytest.raises(shoal.NotFound):
            scan(t, **place)  # type: ignore[arg-type]
