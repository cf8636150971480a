# SPDX-License-Identifier: Apache-2.0
"""The past of a table that nobody watched: what is exact is exact, what means nothing is void and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_tables import SCHEMA, Made, reader

from shoal.clock import ManualClock
from shoal.doctor.rebuild import Past, rebuild


def past_of(made: Made) -> Past:
    return rebuild(made.table.metadata, name="d.t", clock=made.clock)


def expire_to(made: Made, keep: int) -> None:
    made.table.maintain.expire(retain_min=keep, retain_max=keep, older_than=made.clock.now_ms() + 1, max_deletes=1000)


def test_records_ever_written_are_exact_when_nearly_all_snapshots_are_gone() -> None:
    made = Made()
    made.commits(169, rows=10)
    expire_to(made, 3)
    past = past_of(made)
    assert len(past.window.steps) == 3 and past.window.stock.earliest != 1
    assert past.lifetime_trust == "exact" and past.records_ever == 1690
    live = sum(b.live_rows for b in past.lifetimes)
    assert live == pc.sum(made.table.metadata.live(made.table.metadata.latest())["row_count"]).as_py()
    assert all(b.update_ratio and b.update_ratio > 1 for b in past.lifetimes)
    assert sum(past.shares) == pytest.approx(1)
    assert any("before snapshot" in note for note in past.voids)
    assert past.snapshots_ever == past.window.steps[-1].id and past.commits_per_hour is not None
    assert past.checkpoints == {"w": 169}


def test_java_numbered_the_records_of_the_debt_tables(debt_db: Path) -> None:
    past = rebuild(reader(debt_db / "ckpt_3s"), clock=ManualClock())
    assert past.records_ever == 1200 and past.lifetime_trust == "exact"


def test_dead_files_that_old_manifests_still_name_are_those_that_were_made_and_went() -> None:
    made = Made()
    made.commits(24)
    whole = made.look()
    expire_to(made, 4)
    past = past_of(made)
    earliest = past.window.steps[0].id
    before = whole.flows.filter(pc.less(whole.flows["snapshot"], earliest))
    kinds = before["class"]
    new = before.filter(pc.or_(pc.equal(kinds, "flush"), pc.equal(kinds, "rewrite")))
    gone = before.filter(pc.equal(kinds, "removal"))
    assert past.dead.files == pc.sum(gone["files"]).as_py() > 0
    assert past.dead.bytes == pc.sum(gone["bytes"]).as_py() and past.dead.rows == pc.sum(gone["rows"]).as_py()
    assert sum(past.dead_sources.values()) == past.dead.files
    assert past.window.start is not None
    assert pc.sum(new["files"]).as_py() - past.dead.files == pc.sum(past.window.start["files"]).as_py()
    assert past.dead_from_ms is not None and past.dead_from_ms <= whole.steps[1].time_ms


def test_tags_are_points_of_the_past_and_schemas_tell_every_change() -> None:
    made = Made()
    made.commits(3)
    tagged = sum(f for f, *_ in made.live().values())
    at = made.table.metadata.latest()
    assert at is not None
    made.table.tags.create("then", snapshot=at.id)
    made.clock.sleep(60)
    made.table = made.table.alter(options={"num-sorted-run.compaction-trigger": 5})
    made.commits(6)
    expire_to(made, 2)
    past = past_of(made)
    (point,) = past.points
    assert (point.tag, point.snapshot, point.time_ms) == ("then", at.id, at.time_ms)
    assert point.live is not None and point.live.files == tagged == sum(point.levels.values())
    ((_, schema, changed),) = past.options
    assert schema == 1 and changed == {"num-sorted-run.compaction-trigger": ("3", "5")}
    assert sum(c.files for c in past.survivors.values()) == sum(f for f, *_ in made.live().values())
    assert json.loads(json.dumps(past.to_dict()))["tags"]["points"][0]["tag"] == "then"


def test_an_overwrite_makes_the_numbers_void() -> None:
    made = Made()
    made.commits(2)
    made.table.overwrite(pa.table([["d0"], [1], [1]], schema=SCHEMA))
    assert "overwritten in snapshot" in _void(past_of(made))


def test_several_writers_at_once_make_the_numbers_void() -> None:
    made = Made(**{"write-only": True})
    made.commits(1)
    batch = pa.table([["d0"] * 9, list(range(9)), list(range(9))], schema=SCHEMA)
    with made.table.write(commit_user="a") as a, made.table.write(commit_user="b") as b:
        for writer in (a, b):
            writer.upsert(batch)
            writer.flush()
        for writer in (a, b):
            writer.commit()
    assert "several writers at one time in p=d0/bucket" in _void(past_of(made))


def test_one_writer_after_another_is_fine() -> None:
    made = Made(**{"write-only": True})
    made.commits(1, rows=9)
    for user in ("a", "b"):
        with made.table.write(commit_user=user) as w:
            w.upsert(pa.table([["d1"] * 9, list(range(9)), list(range(9))], schema=SCHEMA))
            w.commit()
    past = past_of(made)
    assert past.lifetime_trust == "exact" and past.records_ever == 27


def test_snapshot_ordering_and_rescaled_buckets_make_the_numbers_void() -> None:
    made = Made(**{"sequence.snapshot-ordering": True, "write-only": True})
    made.commits(2)
    assert "sequence.snapshot-ordering" in _void(past_of(made))
    made = Made()
    made.commits(2)
    made.table = made.table.alter(options={"bucket": 4})
    assert "rescaled" in _void(past_of(made))


def test_a_table_without_key_has_no_records_to_count() -> None:
    made = Made()
    table = made.lake.create_table("d.a", SCHEMA)
    with table.write() as w:
        w.append(pa.table([["d0"], [1], [1]], schema=SCHEMA))
        w.commit()
    past = rebuild(table.metadata, clock=made.clock)
    assert past.lifetime_trust == "void" and past.records_ever is None and "primary key" in past.voids[0]


def _void(past: Past) -> str:
    assert past.lifetime_trust == "void" and past.records_ever is None
    return " ".join(past.voids)
