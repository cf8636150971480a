# SPDX-License-Identifier: Apache-2.0
"""How long rows wait for their readers, against a count file by file; event times against the rows that were written."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC

import pyarrow as pa
import pytest
from incidents_more import VECTORS, Plan, grow, world
from toy import File, Toy

from shoal.doctor.freshness import epoch_ms, event_lags, freshness, waits_of
from shoal.doctor.take import take
from shoal.errors import BadRequest

HOUR = 3_600_000


def skipping(seed: int, checkpoints: int = 60) -> tuple[Toy, dict[File, int], dict[File, int]]:
    """A table whose readers skip level 0, and when each file came and was taken up."""
    rng = random.Random(seed)
    toy = Toy({"deletion-vectors.enabled": "true"})
    came: dict[File, int] = {}
    gone: dict[File, int] = {}
    for n in range(1, checkpoints + 1):
        files = [File(b, 100, partition=p) for b in range(3) for p in ("a/", "b/") if rng.random() < 0.7]
        toy.commit(*[("flush", f) for f in files], at=n * 60_000, identifier=n)
        came |= dict.fromkeys(files, n * 60_000)
        waiting = [f for f in toy.live if f.level == 0]
        taken = {(f.bucket, f.partition) for f in waiting if rng.random() < 0.15}
        mine = [f for f in waiting if (f.bucket, f.partition) in taken]
        if mine:
            out = [File(b, 100, level=5, partition=p) for b, p in sorted(taken)]
            up = [("upgrade", f, 4) for f in mine[:1]]
            rest = [("removal", f) for f in mine[1:]]
            toy.commit(*up, *rest, *[("rewrite", f) for f in out], at=n * 60_000 + 20, kind="COMPACT", identifier=n)
            gone |= dict.fromkeys(mine, n * 60_000 + 20)
    return toy, came, gone


@pytest.mark.parametrize("seed", range(4))
def test_each_file_waits_until_compaction_takes_it_up(seed: int) -> None:
    toy, came, gone = skipping(seed)
    found = waits_of(toy.window(taken_ms=HOUR * 2), "batch")
    assert found is not None
    assert sorted(found.ms) == sorted(float(gone.get(f, HOUR * 2) - t) for f, t in came.items())
    assert found.waiting == len(came) - len(gone) and found.until == "compaction"


def test_a_window_that_begins_later_knows_what_stood_before_it() -> None:
    toy, came, gone = skipping(9)
    window = toy.window(since=31, taken_ms=HOUR * 2)
    begin = window.steps[0].time_ms
    found = waits_of(window, "batch")
    late = {f: t for f, t in came.items() if t >= begin}
    assert found is not None
    assert sorted(found.ms) == sorted(float(gone.get(f, HOUR * 2) - t) for f, t in late.items())


def test_readers_that_skip_nothing_wait_for_nothing() -> None:
    toy, _, _ = skipping(1)
    for options in ({}, {**VECTORS, "deletion-vectors.merge-on-read": "true"}):
        toy.options = options
        assert waits_of(toy.window(), "batch") is None and waits_of(toy.window(), "stream") is None


def test_a_changelog_by_full_compaction_comes_with_it() -> None:
    toy = Toy({"changelog-producer": "full-compaction"})
    for n in range(1, 41):
        toy.commit(("flush", File(0, 100)), at=n * 1000, identifier=n)
        if n % 10 == 0:
            changes = [("removal", f) for f in toy.live]
            toy.commit(*changes, ("changelog", File(0, 50)), ("rewrite", File(0, 100, level=5)), at=n * 1000 + 5,
                       kind="COMPACT", identifier=n)  # fmt: skip
    found = waits_of(toy.window(taken_ms=41_000), "stream")
    assert found is not None and not found.waiting
    assert sorted(found.ms) == sorted(float((-(-n // 10)) * 10_000 + 5 - n * 1000) for n in range(1, 41))
    assert waits_of(toy.window(), "batch") is None


def test_event_times_are_held_against_commits() -> None:
    w = world(Plan())
    written: list[int] = []

    def rows(i: int) -> pa.Table:
        table = w.rows(5, ascending=True)
        written.extend(w.clock.now_ms() - t for t in table.column("t").cast(pa.int64()).to_pylist())
        return table

    grow(w, 8, rows=rows)
    window = take(w.table.metadata, clock=w.clock)
    lags = event_lags(w.table, "t", window.steps)
    assert sorted(lags) == sorted(map(float, written))
    found = freshness(window, lags=lags, slo_ms=600_000)
    assert found.event_to_commit is not None and found.event_to_commit.count == 40
    assert found.total_ms("stream") == pytest.approx(found.event_to_commit.p99 + 10_000)
    assert found.meets("batch") and found.meets("stream")
    assert replace(found, slo_ms=300).meets("stream") is False
    assert found.probes()["read"] == found.probes()["commit"]
    with pytest.raises(BadRequest, match="no column 'x'"):
        event_lags(w.table, "x", window.steps)


def test_event_times_of_other_types() -> None:
    assert epoch_ms(pa.array([1_700_000_000, None]), "e", UTC).tolist() == [1_700_000_000_000]
    assert epoch_ms(pa.array([1_700_000_000_123]), "e", UTC).tolist() == [1_700_000_000_123]
    with pytest.raises(BadRequest, match="e is string"):
        epoch_ms(pa.array(["2024"]), "e", UTC)


def test_a_table_without_snapshots_has_no_stage() -> None:
    found = freshness(take(world(Plan()).table.metadata)).to_dict()
    assert found["snapshot"] is None and found["total_p99_ms"] == {"batch": None, "stream": None}
