# SPDX-License-Identifier: Apache-2.0
"""The model as one value: its JSON, what is null in it, and that it is a function of the window alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from make_facts import read
from toy import File, Toy, steady_table

from shoal.doctor.debt import debt
from shoal.doctor.forecast import Prices
from shoal.doctor.model import VERSION, model
from shoal.doctor.take import take
from shoal.table.metadata import Metadata

KEYS = [
    "version", "table", "name", "debt", "stocks", "flows", "sustainability", "cycles", "trends", "buckets", "segments",
    "change", "requests", "steady",
]  # fmt: skip


def test_json_is_versioned_and_has_only_plain_numbers(metadata: Metadata) -> None:
    window = take(metadata)
    found = model(window, prices=Prices(put_per_1000=0.005))
    out = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(out) == KEYS and out["version"] == VERSION
    assert list(out["stocks"]) == ["merge", "excess", "retained", "metadata"]
    assert out["debt"] == json.loads(json.dumps(debt(window).to_dict()))
    assert found.excess is not None and found.excess.live.now == out["debt"]["live"]["data"]["files"]
    assert (found.merge is not None) == bool(window.schema and window.schema.primary_keys)


def test_the_same_window_has_the_same_model() -> None:
    window, _ = read(Path(__file__).parent / "data" / "virtual-writer-none-10s.json.gz")
    assert model(window).to_dict() == model(window).to_dict()


@pytest.mark.parametrize("snapshots", [0, 1, 2])
def test_tables_that_hardly_exist_have_a_model_with_nulls(snapshots: int) -> None:
    toy = Toy()
    for n in range(snapshots):
        toy.commit(("flush", File(0, 100)), at=n)
    out = model(toy.window()).to_dict()
    json.dumps(out, allow_nan=False)
    assert out["sustainability"] is None and out["change"] is None
    if snapshots < 2:
        assert out["requests"] is None and out["flows"]["live_net_per_minute"] is None
    assert all(t["slope"] is None for t in out["trends"].values())


def test_a_window_without_state_has_flows_and_changes_only() -> None:
    found = model(replace(steady_table(50).window(), start=None))
    assert found.merge is None and found.excess is None and found.trends == {} and found.steady is None
    assert found.flows.made["flush"].files == 100 and found.requests is not None and len(found.segments.segments) == 1


def test_the_change_between_the_last_two_stretches_is_split() -> None:
    toy = Toy()
    for n in range(1, 121):
        at = n * 60_000 if n <= 60 else 60 * 60_000 + (n - 60) * 10_000
        toy.commit(*[("flush", File(b, 9000)) for b in range(4)], at=at, identifier=n)
    found = model(toy.window()).change
    assert found is not None and str(found).startswith("x6.") and "· x1.0 buckets · x1.0 files" in str(found)
