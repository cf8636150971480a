# SPDX-License-Identifier: Apache-2.0
"""Chain tables: full partitions of one branch and changes of another, put together as Flink's batch reads do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from options_truth import java, multiset, opened, rows

from shoal.errors import BadRequest, NotFound, Unsupported
from shoal.table.chain import _chained, _links
from shoal.table.travel import view

Unpacked = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(unpacked: Unpacked) -> Path:
    return unpacked("options")


# days; days and hours; a chain of days in each region; deletion vectors, which delete from the anchor too
@pytest.mark.parametrize("table", ["d", "h", "g", "v"])
def test_whole_tables(folder: Path, table: str) -> None:
    assert rows(opened(folder, f"chain.{table}")) == java(folder, f"chain.{table}")


@pytest.mark.parametrize(
    ("dump", "what"),
    [
        ("d.where_p", {"where": "dt = '20250811'"}),
        ("d.where_k", {"where": "k = 1"}),
        # a version that matches is older than one that does not
        ("d.where_v", {"where": "v = 'd13 old' OR v = 's12'"}),
        ("d.where_more", {"where": "dt > '20250812' AND k < 5", "columns": ["k", "v"]}),
        ("d.past", {"snapshot": 1}),
        ("g.where", {"where": "region = 'us'"}),
    ],
)
def test_filters_and_the_past(folder: Path, dump: str, what: dict[str, object]) -> None:
    assert rows(opened(folder, f"chain.{dump[0]}"), **what) == java(folder, f"chain.{dump}")


@pytest.mark.parametrize(("table", "branch"), [("d", "delta"), ("d", "snapshot"), ("v", "delta")])
def test_the_branches_are_plain_tables(folder: Path, table: str, branch: str) -> None:
    opened_branch = opened(folder, f"chain.{table}$branch_{branch}")
    assert rows(opened_branch) == java(folder, f"chain.{table}.{branch}")
    assert list(opened_branch.follow(until="latest"))


def test_rows_carry_the_partition_they_are_read_for(folder: Path) -> None:
    """Key 1 lies in the snapshot branch's 20250812, and is read for 20250815."""
    found = opened(folder, "chain.d").scan(where="dt = '20250815' AND k = 1").to_arrow()
    assert found.to_pylist() == [{"k": 1, "s": 2, "v": "s12", "dt": "20250815"}]


def test_limits_again_and_explain(folder: Path) -> None:
    table = opened(folder, "chain.d")
    whole = table.scan().to_arrow().num_rows
    for limit in (0, 1, 2, 5, whole + 1):
        assert table.scan(limit=limit).to_arrow().num_rows == min(limit, whole)
    again = table.scan().again("dt = '20250811'", ["k"]).to_arrow()
    assert sorted(again.column("k").to_pylist()) == [1, 2, 3, 4]
    one = table.scan(where="dt = '20250811'").explain()
    assert one.files < table.scan().explain().files


def test_only_some_partitions(folder: Path) -> None:
    table = opened(folder, "chain.d", {"scan.partitions": "max_two_pt()"})
    expected = opened(folder, "chain.d").scan(where="dt > '20250812'").to_arrow().to_pylist()
    assert rows(table) == multiset(expected)


def test_what_a_chain_does_not_do(folder: Path) -> None:
    table = opened(folder, "chain.d")
    with pytest.raises(Unsupported, match="a stream cannot read it"):
        table.follow()
    with pytest.raises(Unsupported, match=r"scan\.mode 'incremental'"):
        table.with_options({"incremental-between": "1,2"}).scan()


def test_wrong_options_are_told(folder: Path) -> None:
    with pytest.raises(NotFound, match="names a branch 'dleta' that does not exist"):
        opened(folder, "chain.d", {"scan.fallback-delta-branch": "dleta"}).scan()


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("partition.timestamp-formatter", "yyyyDDD", Unsupported, "'DDD', which is unknown here"),
        ("partition.timestamp-formatter", "yyyy-MM-dd", BadRequest, "is no time"),
        ("chain-table.chain-partition-keys", "k", BadRequest, "is no tail of dt"),
    ],
)
def test_wrong_options_of_the_delta_branch_are_told(
    folder: Path, key: str, value: str, error: type[Exception], says: str
) -> None:
    full, delta = (opened(folder, f"chain.d$branch_{b}") for b in ("snapshot", "delta"))
    with pytest.raises(error, match=says):
        list(_chained(delta.with_options({key: value}), _links(view(full)), _links(view(delta))))


def test_without_branches_it_is_a_plain_table(folder: Path) -> None:
    table = opened(folder, "chain.d$branch_delta", {"scan.fallback-snapshot-branch": "delta"})
    assert rows(table) == java(folder, "chain.d.delta")
