# SPDX-License-Identifier: Apache-2.0
"""Tags, branches, rollback and expiry as a user calls them; what they do in detail is tested beside each."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from shoal import BadRequest, NotFound
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.memory import MemoryStore
from shoal.table.table import Table


@pytest.fixture
def table() -> Table:
    """Four commits of one key, a minute apart."""
    clock = ManualClock()
    lake = Lake(MemoryStore(), clock=clock, scheduler=ManualScheduler)
    t = lake.create_table(
        "d.t", pa.schema([("k", pa.int32()), ("v", pa.string())]), primary_key=["k"],
        options={"bucket": 1, "write-only": True},
    )  # fmt: skip
    with t.write() as w:
        for i in range(1, 5):
            w.upsert([{"k": 1, "v": f"v{i}"}])
            w.commit()
            clock.sleep(60)
    return t


def value(t: Table, **when: object) -> str:
    return t.scan(columns=["v"], **when).to_arrow().column("v")[0].as_py()  # type: ignore[arg-type]


def test_a_tag_is_made_read_renamed_replaced_and_deleted(table: Table) -> None:
    made = table.tags.create("two", snapshot=2, keep=timedelta(days=1))
    assert (made.snapshot.id, made.retained_ms) == (2, 86_400_000)
    assert list(table.tags) == ["two"] and "two" in table.tags
    assert value(table, tag="two") == "v2"
    table.tags.rename("two", "three")
    table.tags.replace("three", snapshot=3)
    assert table.tags["three"].snapshot.id == 3
    assert table.tags.delete("three") and not table.tags.delete("three")
    with pytest.raises(NotFound):
        table.scan(tag="three")


def test_a_branch_goes_its_own_way_until_it_is_brought_back(table: Table) -> None:
    table.tags.create("two", snapshot=2)
    branch = table.branches.create("b", tag="two")
    with branch.write() as w:
        w.upsert([{"k": 1, "v": "on the branch"}])
        w.commit()
    assert (value(table), value(table.branch("b"))) == ("v4", "on the branch")
    table.branches.fast_forward("b")
    assert value(table) == "on the branch"
    table.branches.delete("b")
    assert list(table.branches) == []


def test_a_rollback_forgets_what_came_later(table: Table) -> None:
    assert str(table.rollback(snapshot=2)) == "d.t: rolled back from snapshot 4 to 2"
    assert value(table) == "v2"
    assert table.metadata.snapshot_ids() == [1, 2]


def test_expiry_keeps_what_a_tag_needs(table: Table) -> None:
    table.tags.create("one", snapshot=1)
    planned = table.maintain.expire(retain_max=1, retain_min=1, dry_run=True)
    assert table.metadata.snapshot_ids() == [1, 2, 3, 4]
    done = table.maintain.expire(retain_max=1, retain_min=1)
    assert planned.to_dict()["snapshots"] == done.to_dict()["snapshots"]
    assert table.metadata.snapshot_ids() == [4]
    assert (value(table), value(table, tag="one")) == ("v4", "v1")
    with pytest.raises(BadRequest):
        table.maintain.expire(retain_max=1, retain_min=5)
