# SPDX-License-Identifier: Apache-2.0
"""`scan.partitions`: named partitions and the greatest ones, in batch, incremental and stream reads, as Flink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from options_truth import java, multiset, opened, rows

import shoal
from shoal.errors import BadRequest

Unpacked = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(unpacked: Unpacked) -> Path:
    return unpacked("options")


@pytest.mark.parametrize(
    ("dump", "choice"),
    [
        ("pt.max", "max_pt()"),
        ("pt.max_upper", "MAX_PT()"),
        ("pt.two", "max_two_pt()"),
        ("pt.one", "dt=2024-01-01,hh=10"),
        ("pt.some", "dt=2024-01-01,hh=10;hh=2,dt=2024-01-02 ; dt=nope,hh=3"),
        ("pt.level0", "dt=max_pt()"),
        ("pt.level1", "dt=max_pt(),hh=max_pt()"),
        ("pt.level_mixed", "dt=max_pt(),hh=2"),  # what stands beside max_pt() does not count
        ("pt.nulls", "dt=__DEFAULT_PARTITION__,hh=11"),
        ("pt.nulls2", "dt=2024-01-01,hh=__DEFAULT_PARTITION__"),
        ("flat.max", "max_pt()"),  # no partition columns: nothing to choose
        ("ptk.max", "max_pt()"),
        ("ptk.two", "max_two_pt()"),
        ("ptk.one", "d=2024-01-01"),
    ],
)
def test_batch_reads(folder: Path, dump: str, choice: str) -> None:
    table = opened(folder, f"late.{dump.split('.')[0]}", {"scan.partitions": choice})
    assert rows(table) == java(folder, dump)


def test_the_greatest_partition_is_that_of_the_snapshot(folder: Path) -> None:
    table = opened(folder, "late.ptk", {"scan.partitions": "max_pt()"})
    assert rows(table, snapshot=1) == java(folder, "ptk.past")


def test_a_filter_does_not_change_which_is_the_greatest(folder: Path) -> None:
    """Flink loses the filter here: its dump has 2024-03-01 too. The rows of a filter are those that match it."""
    table = opened(folder, "late.ptk", {"scan.partitions": "max_two_pt()"})
    found = rows(table, where="d < DATE '2024-02-15'")
    assert found == multiset([{"d": "2024-02-01", "k": 2, "v": "b"}])
    assert found < java(folder, "ptk.where")


def test_incremental_reads(folder: Path) -> None:
    table = opened(folder, "late.ptk", {"scan.partitions": "max_pt()", "incremental-between": "1,2"})
    assert rows(table, columns=["d", "k", "v"]) == java(folder, "ptk.between")
    dated = table.with_options({"scan.partitions": "d=2024-01-01", "incremental-between-scan-mode": "diff"})
    assert rows(dated, columns=["d", "k", "v"]) == multiset([{"d": "2024-01-01", "k": 1, "v": "a2"}])


def test_streams_choose_once_where_they_start(folder: Path) -> None:
    table = opened(folder, "late.ptk", {"scan.partitions": "max_pt()"})
    found = [r for c in table.follow(until="latest") for r in c.rows.to_pylist()]
    assert multiset(found) == java(folder, "ptk.stream")
    past = {"scan.partitions": "max_two_pt()", "scan.mode": "from-snapshot", "scan.snapshot-id": "1"}
    changes = [r for c in opened(folder, "late.ptk", past).follow(until="latest") for r in c.rows.to_pylist()]
    # Flink's planner makes the old row of the updated key out of its state, as -U; the table itself says +I
    old = multiset([{"d": "2024-01-01", "k": 1, "v": "a"}])
    assert multiset(changes) + old == java(folder, "ptk.stream_from") + old - old
    assert multiset(changes) == multiset([
        {"d": "2024-01-01", "k": 1, "v": "a"}, {"d": "2024-02-01", "k": 2, "v": "b"},
        {"d": "2024-01-01", "k": 1, "v": "a2"},
    ])  # fmt: skip


def test_a_new_partition_is_not_followed(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    columns = pa.schema([("p", pa.int32()), ("v", pa.string())])
    table = lake.create_table("db.t", columns, partition_by=["p"], options={"bucket": "-1"})

    def write(p: int) -> None:
        with table.write() as w:
            w.append([{"p": p, "v": f"of {p}"}])
            w.commit()

    early = opened_at(lake, "max_pt()").follow(until=3)
    write(1)
    write(2)
    late = opened_at(lake, "max_pt()").follow(until=3)
    write(3)
    assert [r["p"] for c in early for r in c.rows.to_pylist()] == [1, 2, 3]  # nothing was there to choose from
    assert [r["p"] for c in late for r in c.rows.to_pylist()] == [2]
    assert opened_at(lake, "max_pt()").scan().to_arrow().to_pylist() == [{"p": 3, "v": "of 3"}]


def opened_at(lake: shoal.Lake, choice: str) -> shoal.Table:
    return lake.table("db.t").with_options({"scan.partitions": choice})


def test_explain_says_what_was_left_out(folder: Path) -> None:
    scan = opened(folder, "late.pt", {"scan.partitions": "max_two_pt()"}).scan(where="hh = 9")
    assert scan.explain().dropped == {"scan.partitions": 5, "partition": 1}


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("dt=2024-01-01", "does not name a partition"),
        ("hh=max_pt()", "without a gap"),
        ("dt=2024-01-01,zz=1", "does not name a partition"),
        ("dt=2024-01-01,hh=x", "hh = 'x', which is no INT"),
        ("hello", "no column=value"),
        ("", "no column=value"),
    ],
)
def test_texts_that_name_nothing_are_refused(folder: Path, choice: str, says: str) -> None:
    """Java passes over most of these, and reads every partition."""
    with pytest.raises(BadRequest, match=says):
        opened(folder, "late.pt", {"scan.partitions": choice}).scan().to_arrow()


@pytest.mark.parametrize(("choice", "ids"), [("max_pt()", [3]), ("dt=20240101", [1]), ("max_two_pt()", [1, 3])])
def test_two_branches_are_one_list_of_partitions(golden: Callable[[str], Path], choice: str, ids: list[int]) -> None:
    table = shoal.open(str(golden("maint"))).table("maint.fallback").with_options({"scan.partitions": choice})
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == ids
