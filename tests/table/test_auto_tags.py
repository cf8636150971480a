# SPDX-License-Identifier: Apache-2.0
"""Tags that make themselves: Java's choice for 37 option sets over one history, and what the decision is made of."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import crashes
import pyarrow as pa
import pytest
import refs_truth as truth

from shoal import BadRequest
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.snapshot import Snapshot
from shoal.options import Options
from shoal.store.memory import MemoryStore
from shoal.table.auto_tags import (
    Progress,
    batch_surplus,
    make_batch_tag,
    make_due_tags,
    needs_snapshot,
    period_of,
    policy_of,
    progress,
    zone_of,
)  # fmt: skip
from shoal.table.refs import tag, tag_names, tags
from shoal.table.table import Table

CASES: list[dict[str, Any]] = truth.truth()["auto"]


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return truth.unpack(tmp_path_factory.mktemp("refs"))


@pytest.mark.parametrize("case", CASES, ids=[str(i) for i in range(len(CASES))])
def test_the_tags_that_java_makes(warehouse: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    root = tmp_path / "d.db" / "t"
    for part in ("schema", "snapshot"):
        shutil.copytree(warehouse / "d.db" / "a" / part, root / part)
    schema = json.loads((root / "schema" / "schema-0").read_text())
    schema["options"] |= case["options"]
    (root / "schema" / "schema-0").write_text(json.dumps(schema))
    (root / "tag").mkdir()
    for name, snapshot in case["before"].items():
        shutil.copy(root / "snapshot" / f"snapshot-{snapshot}", root / "tag" / f"tag-{name}")
    table = truth.lake_of(tmp_path).table("d.t")
    if case["error"]:
        with pytest.raises(BadRequest):
            make_due_tags(table)
    else:
        made, _ = make_due_tags(table)
        assert set(made.created) - set(made.deleted) >= case["after"].keys() - case["before"].keys()
    assert {t.name: t.snapshot.id for t in tags(table.metadata)} == case["after"]
    for name, snapshot in case["after"].items():  # byte for byte: these tags have no retention
        assert (root / "tag" / f"tag-{name}").read_bytes() == (root / "snapshot" / f"snapshot-{snapshot}").read_bytes()


def hourly(**more: str) -> Options:
    return Options({"tag.automatic-creation": "process-time", "tag.creation-period": "hourly"} | more, strict=True)


def test_names_are_told_from_other_names() -> None:
    days = period_of(Options({}, strict=True))
    assert days.time("2024-02-29") == datetime(2024, 2, 29)
    assert days.time("2024-02-29 17 and more") == datetime(2024, 2, 29)  # Java takes the first word
    for name in ("2023-02-29", "24-02-28", "2024-2-28", "x2024-02-28", " 2024-02-28", "", " ", "２０２４-02-28"):
        assert days.time(name) is None, name
    hours = period_of(hourly(**{"tag.period-formatter": "without_dashes_and_spaces"}))
    assert hours.time("2024022905") == datetime(2024, 2, 29, 5)
    assert hours.time("2024022924") is None
    assert hours.name(datetime(987, 1, 2, 3)) == "0987010203"
    minutes = period_of(Options({"tag.creation-period-duration": "7 min"}, strict=True))
    assert minutes.time("202402290507") == datetime(2024, 2, 29, 5, 7)


def test_a_period_before_1970_is_cut_towards_zero_as_in_java() -> None:
    hours = period_of(hourly())
    assert hours.before(datetime(1969, 12, 31, 22, 30)) == datetime(1969, 12, 31, 22)
    assert hours.before(datetime(1970, 1, 1, 2, 30)) == datetime(1970, 1, 1, 1)


def test_zones_as_java_writes_them() -> None:
    assert zone_of("+08:00", "k") == zone_of("UTC+8", "k") == zone_of("GMT+08:00", "k") == timezone(timedelta(hours=8))
    assert zone_of("-03:30", "k") == timezone(-timedelta(hours=3, minutes=30))
    assert zone_of("Z", "k") is UTC
    assert str(zone_of("Asia/Shanghai", "k")) == "Asia/Shanghai"
    for bad in ("Mars/Base", "+19:00", "../etc/passwd", ""):
        with pytest.raises(BadRequest, match="is not a time zone"):
            zone_of(bad, "sink.process-time-zone")


def snapshot(watermark: int | None = None) -> Snapshot:
    return Snapshot(1, 0, "b", "d", "u", 1, "APPEND", 0, watermark=watermark)


def test_an_idle_writer_makes_a_snapshot_when_a_tag_waits() -> None:
    day = 86_400_000
    policy = policy_of(hourly(**{"tag.creation-delay": "10 min"}), UTC)
    assert policy is not None
    at = Progress(5, datetime(1970, 1, 2, 3))  # the tag of 03:00 is due at 04:10
    assert not needs_snapshot(policy, at, None, day + 4 * 3_600_000 + 599_999)
    assert needs_snapshot(policy, at, None, day + 4 * 3_600_000 + 600_000)
    assert needs_snapshot(policy, Progress(1), None, 0)
    marks = {"tag.automatic-creation": "watermark"}
    idle = policy_of(Options(marks | {"snapshot.watermark-idle-timeout": "5 s"}, strict=True), UTC)
    assert idle is not None
    assert not needs_snapshot(idle, at, snapshot(10_000), 14_999)
    assert needs_snapshot(idle, at, snapshot(10_000), 15_000)
    assert not needs_snapshot(idle, at, snapshot(None), 15_000)
    assert not needs_snapshot(idle, at, None, 15_000)
    never = policy_of(Options(marks, strict=True), UTC)
    assert never is not None
    assert not needs_snapshot(never, at, snapshot(0), 1 << 50)


# ---- on a table ------------------------------------------------------------------------------------------


def make(options: dict[str, object], start: str = "2024-05-01T00:00:00+00:00") -> Table:
    clock = ManualClock(int(datetime.fromisoformat(start).timestamp() * 1000))
    lake = Lake(MemoryStore(clock=clock), clock=clock, scheduler=ManualScheduler)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.string())])
    return lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1, **options})


def put(table: Table, hours: float = 0) -> None:
    """A commit whose upkeep is left to the test."""
    with table.with_options({"write-only": True, "tag.automatic-creation": "none"}).write() as w:
        w.upsert([{"k": 1, "v": "x"}])
        w.commit()
    table.clock.sleep(hours * 3600)


def test_a_writer_goes_on_where_it_was() -> None:
    table = make({"tag.automatic-creation": "process-time", "tag.default-time-retained": "90 min"})
    put(table, 13)
    made, at = make_due_tags(table)
    assert made.created == ("2024-04-30",)
    assert str(made) == "made 2024-04-30"
    assert make_due_tags(table, at) == (type(made)(), at)
    put(table, 13)
    put(table, 24)
    again, at = make_due_tags(table, at)
    assert again.created == ("2024-05-01",)  # on the first snapshot of the second of May, its third
    put(table)
    assert make_due_tags(table, at)[0].created == ("2024-05-02",)
    assert [t.snapshot.id for t in tags(table.metadata)] == [1, 3, 4]
    assert tag(table.metadata, "2024-05-02").retained_ms == 5_400_000
    # another writer, which reads the tags, comes to the same point
    policy = policy_of(table.options, UTC)
    assert policy is not None
    assert progress(table, policy) == Progress(5, datetime(2024, 5, 3))


def test_snapshots_that_expired_before_they_were_seen_are_passed() -> None:
    table = make({"tag.automatic-creation": "process-time"})
    for _ in range(3):
        put(table, 24)
    for i in (1, 2):
        table.store.delete(f"snapshot/snapshot-{i}")
    assert make_due_tags(table)[0].created == ("2024-05-02",)


def test_a_batch_names_its_day_and_keeps_few() -> None:
    table = make({"tag.automatic-creation": "batch", "tag.num-retained-max": "2"})
    assert make_batch_tag(table).created == ()
    put(table)
    assert make_batch_tag(table).created == ("batch-write-2024-05-01",)
    put(table, 24)
    assert make_batch_tag(table).created == ("batch-write-2024-05-01",)
    assert tag(table.metadata, "batch-write-2024-05-01").snapshot.id == 2
    for _ in range(2):
        put(table, 24)
        make_batch_tag(table)
    assert tag_names(table.metadata) == ["batch-write-2024-05-02", "batch-write-2024-05-03"]


def test_a_batch_may_name_its_tag_itself() -> None:
    table = make({"tag.automatic-creation": "batch", "tag.batch.customized-name": "nightly"})
    for expected in (1, 2):
        put(table, 24)
        assert make_batch_tag(table).created == ("nightly",)
        assert [(t.name, t.snapshot.id) for t in tags(table.metadata)] == [("nightly", expected)]


def test_the_oldest_tags_of_a_batch_go_first() -> None:
    assert batch_surplus([("new", 9, 1), ("b", 1, 20), ("a", 1, 10), ("mid", 5, 5)], 2) == ["a", "b"]
    assert batch_surplus([("b", 1, 20), ("a", 1, 10)], 2) == []


def test_tables_without_automatic_tags_get_none() -> None:
    table = make({})
    put(table, 48)
    put(table)
    assert make_due_tags(table) == (type(make_batch_tag(table))(), None)
    assert tag_names(table.metadata) == []


def test_a_cut_off_run_makes_the_rest_when_it_runs_again() -> None:
    """Tags beyond the most that are kept go when the next tag is made, as in Java."""
    options: dict[str, object] = {"tag.automatic-creation": "process-time", "tag.num-retained-max": "2"}
    table = make(options)
    for _ in range(4):
        put(table, 24)
    start = MemoryStore()
    for info in table.store.list(""):
        start.put(f"d.db/t/{info.path}", table.store.read(info.path))
    kept = ["2024-05-02", "2024-05-03"]
    for what, store in crashes.cut_off(start, make_due_tags):
        late = crashes.open_table(store)
        make_due_tags(late)
        names = tag_names(late.metadata)
        assert names[-2:] == kept and names[:-2] in ([], ["2024-05-01"]), what
        late.clock.sleep((table.clock.now_ms() - late.clock.now_ms()) / 1000)
        put(late)
        make_due_tags(late)
        assert tag_names(late.metadata) == ["2024-05-03", "2024-05-04"], what


def test_a_batch_tag_is_the_old_or_the_new_one() -> None:
    table = make({"tag.automatic-creation": "batch", "tag.batch.customized-name": "nightly"})
    put(table)
    make_batch_tag(table)
    put(table)
    start = MemoryStore()
    for info in table.store.list(""):
        start.put(f"d.db/t/{info.path}", table.store.read(info.path))
    for what, store in crashes.cut_off(start, make_batch_tag):
        again = crashes.open_table(store)
        assert tag(again.metadata, "nightly").snapshot.id in (1, 2), what
        make_batch_tag(again)
        assert tag(again.metadata, "nightly").snapshot.id == 2, what
