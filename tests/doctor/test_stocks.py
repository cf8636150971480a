# SPDX-License-Identifier: Apache-2.0
"""Stocks, flows and cycles against what Java's writer counted, and against tables whose cycles are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from make_facts import read
from toy import File, Toy, steady_table

from shoal.doctor.cycles import NextFull, cycles, of_bucket, table_phase
from shoal.doctor.debt import Limits, debt, replay
from shoal.doctor.model import Trend, model
from shoal.doctor.slope import Slope
from shoal.doctor.stock_rows import StockRow
from shoal.doctor.stocks import due_earliest, live_parts, merge_debt, retained_debt, sustainability
from shoal.doctor.window import Count, Holder, Window

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def none_10s() -> tuple[Window, dict[str, float]]:
    return read(DATA / "virtual-writer-none-10s.json.gz")


@pytest.fixture(scope="module")
def write_only() -> tuple[Window, dict[str, float]]:
    return read(DATA / "virtual-writer-write-only-10s.json.gz")


def upto(window: Window, identifier: int) -> Window:
    steps = tuple(s for s in window.steps if s.identifier <= identifier)
    stock = replace(window.stock, latest=steps[-1].id)
    flows = window.flows.filter(pc.less_equal(window.flows.column("snapshot"), steps[-1].id))
    return replace(window, steps=steps, flows=flows, stock=stock)


def test_a_real_table_has_the_numbers_that_its_writer_counted(none_10s: tuple[Window, dict[str, float]]) -> None:
    window, java = none_10s
    found = model(window)
    made = found.flows.made
    assert (made["flush"].files, made["flush"].bytes) == (java["flush_files"], java["flush_bytes"])
    assert (made["rewrite"].files, made["rewrite"].bytes) == (java["compact_files"], java["compact_bytes"])
    assert made["removal"].files == java["removed"] and made["changelog"].files == 0
    assert found.flows.write_amplification == pytest.approx(java["write_amp"], abs=0.001)
    assert found.excess is not None and found.merge is not None and found.cycles is not None
    assert found.excess.live.mean_per_snapshot == pytest.approx(java["mean_live"], abs=0.001)
    assert found.excess.live.mean_at_checkpoint_ends == pytest.approx(java["live_end_mean"], abs=0.001)
    assert found.excess.live.now == java["live"]
    assert max(b.max_runs for b in found.debt.buckets.top) == java["runs_max"]  # type: ignore[union-attr]
    # Nothing expired: what was made is on disk, but for two hints and a schema file.
    total = sum(made[n].files for n in ("flush", "rewrite", "changelog", "metadata"))
    assert total == java["objects"] - 3
    assert found.cycles.drains == java["compact_files"]
    assert not any(t.rising for t in found.trends.values()) and not found.stalls
    assert len(found.segments.segments) == 1 and found.change is None


def test_the_debt_of_a_table_that_compaction_keeps_up_with_is_paid(none_10s: tuple[Window, dict[str, float]]) -> None:
    found = model(none_10s[0]).sustainability
    assert found is not None and found.basis == "drains" and found.provisional
    assert found.ratio == pytest.approx(1, abs=0.03)


def test_full_cycles_grow_and_the_next_one_is_told(none_10s: tuple[Window, dict[str, float]]) -> None:
    window, _ = none_10s
    assert window.schema is not None
    limits = Limits.of(window.schema)
    states = replay(window, limits)
    assert states is not None
    found = cycles(states, limits)
    ends = [[states.steps[i].identifier for i in of_bucket(states, limits, found, b).fulls] for b in range(4)]
    assert ends[1] == [6, 11, 23, 43, 81, 148]
    for b, at in ((0, 60), (2, 60), (3, 60), (1, 120), (2, 130), (3, 130)):
        early = replay(upto(window, at), limits)
        assert early is not None
        told = of_bucket(early, limits, cycles(early, limits), b).next_full
        actual = next(e for e in ends[b] if e > at) - at
        assert told is not None and told.hours is not None
        assert 0.5 < told.hours * 360 / actual < 2.4
        assert told.least_gigabytes <= told.gigabytes


@pytest.mark.parametrize(
    ("size", "text"),
    [(5_090, "about 5.0 KiB / 2 h"), (3 << 30, "about 3.0 GiB / 2 h"), (0, "about 0 B / 2 h")],
)
def test_the_size_of_the_next_full_compaction_reads_well(size: int, text: str) -> None:
    assert str(NextFull(size / 1e9, 0.0, 2.0)) == f"next full compaction after {text}"


@pytest.mark.parametrize(
    ("slope", "word"),
    [((6.0, 4.3, 7.8), "rising slowly"), ((600.0, 430.0, 780.0), "rising"), ((-3.0, -5.0, -1.0), "falling"),
     ((0.5, -1.0, 2.0), "steady"), ((0.0, 0.0, 0.0), "steady")],
)  # fmt: skip
def test_a_trend_is_called_what_its_interval_says(slope: tuple[float, float, float], word: str) -> None:
    """A cycle of a minute in one bucket: more than 60 files an hour is more than one a cycle."""
    per_minute = Slope(*(v / 60 for v in slope), 10, True)
    trend = Trend(per_minute, "troughs", 1.0, 1, False)
    row = StockRow("excess_files", "excess files", 1, 1, 1, None, per_minute.over(60), trend.rising, "", "compaction")
    assert row.direction == word


def test_write_only_goes_straight_up_and_nobody_waits(write_only: tuple[Window, dict[str, float]]) -> None:
    window, java = write_only
    found = model(window)
    assert found.excess is not None and found.merge is not None and found.cycles is not None
    assert found.excess.live.mean_per_snapshot == pytest.approx(java["mean_live"])
    assert found.merge.runs_to_merge.now == 4 * (java["runs_max"] - 1) and found.merge.read_amplification == 90
    live = found.trends["live_files"]
    assert live.rising and live.basis == "checkpoint ends" and live.slope is not None
    assert live.slope.value == pytest.approx(24, rel=0.01)  # 4 buckets, 6 checkpoints a minute
    assert found.sustainability is not None and not found.sustainability.pays
    assert found.sustainability.ratio is None and found.sustainability.basis == "window"
    assert found.cycles.drains == 0 and found.cycles.provisional and not found.stalls
    stall = found.buckets[0].stall
    assert stall is not None and "never waits" in stall.assumption


def test_steady_cycles_are_steady() -> None:
    toy = steady_table(60, every=5)
    found = model(toy.window())
    assert found.cycles is not None and not found.cycles.provisional
    assert found.cycles.minutes == pytest.approx(50 / 60) and found.cycles.fulls == 24
    assert found.sustainability is not None and found.sustainability.basis == "full cycles"
    assert found.sustainability.ratio == pytest.approx(1)
    assert all(not t.rising for t in found.trends.values())


def test_growth_between_cycles_is_told_apart_from_the_saw() -> None:
    """Level 0 drains every fourth checkpoint, but each time one more file stays above it."""
    toy = Toy()
    for n in range(1, 121):
        toy.commit(("flush", File(0, 100)), at=n * 10_000)
        if n % 4 == 0:
            level0 = [f for f in toy.live if f.level == 0]
            merged = [File(0, 200, level=5), File(0, 200, level=5)]
            toy.commit(
                *[("removal", f) for f in level0], *[("rewrite", f) for f in merged], at=n * 10_000, kind="COMPACT"
            )
    window = toy.window()
    assert window.schema is not None
    limits = Limits.of(window.schema)
    states = replay(window, limits)
    assert states is not None
    found = cycles(states, limits)
    parts = live_parts(states)
    phase = table_phase(states, found, parts.before, parts.after, parts.start)
    assert phase.basis == "troughs" and phase.values.tolist() == [2.0 * k for k in range(1, 31)]
    trend = model(window).trends["live_files"]
    assert trend.rising and trend.slope is not None and trend.slope.value == pytest.approx(2 / (40 / 60))
    rho = sustainability(states, limits, found)
    assert rho is not None and rho.ratio == pytest.approx(2) and not rho.pays


def test_a_table_without_a_key_has_excess_files_and_no_merge_debt() -> None:
    toy = Toy({"bucket": "-1"}, keys=())
    for n in range(1, 41):
        toy.commit(("flush", File(0, 5000)), at=n * 10_000)
    found = model(toy.window())
    assert found.merge is None and found.excess is not None and found.excess.excess.now == 39
    assert "merge_debt" not in found.trends and found.trends["excess_files"].rising
    assert found.buckets[0].stall is None


# ---- what the past holds ---------------------------------------------------------------------------------


def test_retained_debt_by_holder() -> None:
    toy = steady_table(60, every=5, interval_ms=60_000, changelog=True, options={"snapshot.num-retained.min": "1"})
    # Snapshots 1 to 72; an hour at one checkpoint a minute, so expiry would keep all: cut to ten minutes.
    toy.options["snapshot.time-retained"] = "10 min"
    consumer = Holder("consumer", "bi", 40, None)
    window = toy.window(earliest=30, holders=(consumer, Holder("tag", "t", 20, None), Holder("tag", "u", 50, None)))
    due = due_earliest(window)
    newest = window.steps[-1].time_ms
    assert due == next(s.id for s in window.steps if newest - s.time_ms <= 600_000)

    def files(name: str, first: int, last: int) -> int:
        return sum(c == name for d in toy.done if first <= d.id <= last for c, *_ in d.rows)

    found = retained_debt(window, replay(window, Limits.of(window.schema)), complete=True)  # type: ignore[arg-type]
    assert found.snapshots == 43
    assert found.dead is not None and found.dead.files == files("removal", 31, 72)
    assert found.changelog is not None and found.changelog.files == files("changelog", 30, 72)
    held = {(h.kind, h.name): h for h in found.holders}
    least = {k: h.least.files for k, h in held.items() if h.least is not None}
    assert least["snapshots", ""] == files("removal", due + 1, 72) + files("changelog", due, 72)
    assert least["overdue snapshots", ""] == files("removal", 31, due) + files("changelog", 30, due - 1)
    assert least["consumer", "bi"] == files("removal", 41, due) + files("changelog", 40, due - 1)
    # What lived after snapshot 20 and went up to snapshot 30, told apart by the files themselves.
    gone = {id(f) for d in toy.done[20:30] for c, _, f, _ in d.rows if c == "removal"}
    truth = sum(id(f) in gone for f, _ in toy.done[19].live)
    tag = held["tag", "t"]
    assert tag.least is not None and tag.most is not None and tag.least.files <= truth <= tag.most.files
    assert held["tag", "u"].most == Count()  # its snapshot is still retained


def test_a_tag_before_the_window_is_not_guessed() -> None:
    toy = steady_table(30)
    window = toy.window(since=20, holders=(Holder("tag", "old", 3, None),))
    found = retained_debt(window, replay(window, Limits.of(window.schema)), complete=True)  # type: ignore[arg-type]
    old = next(h for h in found.holders if h.name == "old")
    assert old.least is None and old.most is None


def test_means_say_which_they_are() -> None:
    toy = steady_table(10, every=1)
    window = toy.window()
    states = replay(window, Limits.of(window.schema))  # type: ignore[arg-type]
    assert states is not None
    runs = merge_debt(states, Limits.of(window.schema)).runs_to_merge  # type: ignore[arg-type]
    assert runs.mean_at_checkpoint_ends == 0 and runs.mean_per_snapshot > 0
    assert debt(window).live is not None
