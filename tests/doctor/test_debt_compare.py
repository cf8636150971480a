# SPDX-License-Identifier: Apache-2.0
"""Two debts: the sentence, the ratios, and parts that multiply and add up to the whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from shoal.doctor.compare import attribute, compare, factors_of, seconds
from shoal.doctor.debt import Debt, debt, measure
from shoal.doctor.take import take
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata


@pytest.fixture(scope="module")
def debts(debt_db: Path) -> dict[str, Debt]:
    return {n.name: measure(Metadata(LocalStore(n), Cache())) for n in debt_db.iterdir()}


def test_the_sentence_says_what_the_faster_clock_cost(debts: dict[str, Debt]) -> None:
    sentence = (
        "Checkpoints 6.0x as often: 5.9x the files made (785 against 134), 5.2x the bytes written, "
        "write amplification 1.6 against 1.3, for data that is at most 1 s old instead of 6 s."
    )
    assert compare(debts["ckpt_1s"], debts["ckpt_6s"]).sentence == sentence
    assert compare(debts["ckpt_6s"], debts["ckpt_1s"]).sentence == sentence


def test_equal_clocks_are_not_called_faster(debts: dict[str, Debt]) -> None:
    found = compare(debts["ckpt_1s"], debts["ckpt_1s_append"])
    assert found.sentence.startswith("Both commit every 1 s: 3.6x the files made (785 against 219)")
    assert found.names == ("ckpt_1s", "ckpt_1s_append")


def test_different_stretches_of_time_are_compared_by_rate(debts: dict[str, Debt]) -> None:
    fast, slow = debts["ckpt_1s"], debts["ckpt_6s"]
    assert slow.covered_minutes is not None
    found = compare(fast, replace(slow, covered_minutes=slow.covered_minutes * 3))
    assert "the files made a minute (1,181 against 68)" in found.sentence


def test_factors_multiply_and_parts_add_up(debts: dict[str, Debt]) -> None:
    for a, b in permutations(debts.values(), 2):
        found = compare(a, b)
        assert len(found.factors) == 4 and a.files_per_minute and b.files_per_minute
        assert math.prod(f.a for f in found.factors) == pytest.approx(a.files_per_minute, rel=1e-12)
        ratio = found.ratios["files_per_minute"].ratio
        assert math.prod(f.ratio for f in found.factors) == pytest.approx(ratio, rel=1e-12)
        difference = a.files_per_minute - b.files_per_minute
        assert sum(f.part for f in found.factors) == pytest.approx(difference, rel=1e-9)


def test_the_same_debt_differs_by_nothing(debts: dict[str, Debt]) -> None:
    found = compare(debts["ckpt_3s"], debts["ckpt_3s"])
    assert all(f.part == 0 and f.ratio == 1 for f in found.factors)
    assert all(r.ratio in (1, None) for r in found.ratios.values())


def test_more_commits_explain_the_faster_clock(debts: dict[str, Debt]) -> None:
    parts = {f.name: f.part for f in attribute(debts["ckpt_1s"], debts["ckpt_6s"])}
    assert parts["commits per minute"] / sum(parts.values()) > 0.95


def test_a_table_without_snapshots_compares_gracefully(debts: dict[str, Debt]) -> None:
    empty = debt(replace(take(Metadata(MemoryStore("empty"), Cache())), start=None))
    found = compare(empty, debts["ckpt_1s"])
    assert found.sentence == "Nothing to compare: memory:empty has no snapshot."
    assert found.factors == () and factors_of(empty) is None
    assert found.ratios["live.files"].a is None and found.ratios["live.files"].ratio is None
    json.dumps(found.to_dict())


def test_an_unknown_interval_leaves_the_clock_out(debts: dict[str, Debt]) -> None:
    found = compare(replace(debts["ckpt_1s"], interval_s=None), debts["ckpt_6s"])
    assert found.sentence.startswith("ckpt_1s against ckpt_6s: 5.9x the files made")


@pytest.mark.parametrize(("value", "text"), [(1, "1 s"), (9.99, "10 s"), (60, "60 s"), (150, "2.5 min")])
def test_durations_read_well(value: float, text: str) -> None:
    assert seconds(value) == text
