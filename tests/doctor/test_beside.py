# SPDX-License-Identifier: Apache-2.0
"""What a history has beside snapshots, and what judgements make of it: slopes over looks, sentinels, timed queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from incidents import Life, Phase, live
from incidents_more import Plan, high_trigger, measured_late
from made_tables import Made

from shoal.doctor.beside import Beside, Seen, retained_then
from shoal.doctor.checkup import checkup
from shoal.doctor.diagnose.case import case
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.freshness import freshness
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.model import model
from shoal.doctor.query_log import Query
from shoal.doctor.stock_rows import stock_rows
from shoal.doctor.take import take
from shoal.doctor.watch import look_and_keep
from shoal.doctor.window import Window

MINUTE = 60_000


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryStore]:
    with HistoryStore(tmp_path / "h.sqlite") as store:
        yield store


def dead_on_disk(made: Made) -> int:
    """Data files that lie in the folder and are not live, and changelog files: told by their names."""
    top = made.table.store
    names = [f.path.rpartition("/")[2] for f in top.list("") if "/bucket-" in f.path]
    alive = set(made.table.metadata.live(made.table.metadata.latest())["file_name"].to_pylist())
    return sum(n.startswith("changelog-") or (n.startswith("data-") and n not in alive) for n in names)


def watched(made: Made, history: HistoryStore, commits: list[int], expire: set[int]) -> list[tuple[int, int]]:
    """Looks between commits, and (time, dead files on disk) at each."""
    out = []
    for i, count in enumerate(commits):
        made.commits(count)
        if i in expire:
            made.table.maintain.expire(retain_min=1, retain_max=6, older_than=made.clock.now_ms() + 1)
        look_and_keep(made.table, history, clock=made.clock)
        out.append((made.clock.now_ms(), dead_on_disk(made)))
    return out


@pytest.mark.parametrize("producer", ["none", "input"])
def test_looks_tell_what_was_retained_at_each(history: HistoryStore, producer: str) -> None:
    made = Made(**{"changelog-producer": producer})
    truth = watched(made, history, [3, 2, 4, 2, 3, 1, 4, 2], {2, 4, 5})
    uri = made.table.store.uri
    times, files = retained_then(history.window(uri), history.beside(uri).looks)
    assert list(zip(times.tolist(), files.tolist())) == truth
    late = history.window(uri, first=8)  # looks that saw what is not in the window don't count
    seen = {s.id for s in late.steps}
    times, files = retained_then(late, history.beside(uri).looks)
    kept = [look.taken_ms for look in history.beside(uri).looks if look.earliest in seen]
    assert times.tolist() == kept and list(zip(times.tolist(), files.tolist())) == [t for t in truth if t[0] in kept]


def test_the_slope_of_retained_debt_is_over_the_looks(history: HistoryStore) -> None:
    made = Made(**{"changelog-producer": "input"})
    truth = watched(made, history, [2] * 9, set())
    uri = made.table.store.uri
    found = model(history.window(uri), looks=history.beside(uri).looks).trends["retained_files"]
    slopes = [(b - a) / ((t - s) / MINUTE) for (s, a), (t, b) in combinations(truth, 2)]
    assert found.slope is not None and found.slope.value == pytest.approx(median(slopes))
    assert (found.basis, found.slope.points) == ("looks", 9) and found.rising
    row = next(r for r in stock_rows(model(history.window(uri), looks=history.beside(uri).looks), None)
               if r.key == "retained_files")  # fmt: skip
    assert row.direction == "rising" and row.per_hour is not None
    assert row.per_hour[0] == pytest.approx(60 * median(slopes))
    alone = model(history.window(uri)).trends["retained_files"]
    assert alone.slope is None  # one look is no trend


def test_what_expiry_left_is_compared_at_equal_phase(history: HistoryStore) -> None:
    made = Made()
    commits = [2, 2, 3] * 7
    truth = watched(made, history, commits, set(range(2, len(commits), 3)))
    uri = made.table.store.uri
    found = model(history.window(uri), looks=history.beside(uri).looks).trends["retained_files"]
    after = [t for i, t in enumerate(truth) if i % 3 == 2][1:]  # the first expiry may find nothing to delete
    assert found.basis == "after expiry" and found.slope is not None and found.slope.points in (6, 7)
    slopes = [(b - a) / ((t - s) / MINUTE) for (s, a), (t, b) in combinations(after, 2)]
    if found.slope.points == 6:
        assert found.slope.value == pytest.approx(median(slopes))
    assert not found.rising


def test_manifests_are_compared_where_commits_have_just_merged_them() -> None:
    made = Made(**{"manifest.merge-min-count": 5})
    made.commits(60)
    window = made.look()
    merged = [s for s in window.steps if s.wrote["merged-manifest"].files]
    slopes = [(b.manifests.files - a.manifests.files) / ((b.time_ms - a.time_ms) / MINUTE)
              for a, b in combinations(merged, 2)]  # fmt: skip
    found = model(window).trends["manifests"]
    assert found.slope is not None and found.slope.value == pytest.approx(median(slopes))
    assert found.slope.points == len(merged) >= 5 and not found.rising


# ---- expiry ----------------------------------------------------------------------------------------------


def looked(window: Window, every: int) -> Beside:
    """Looks after every so many snapshots, that saw the earliest which is there now."""
    seen = [Seen(s.time_ms, window.stock.earliest, s.id) for s in window.steps[::every]]
    return Beside(tuple(seen))


def test_looks_that_saw_nothing_expire_make_d6_sure() -> None:
    options = {"snapshot.time-retained": "10 min"}
    window = live(Life((Phase(60, 60),), 2, 20, options=options, expires=False))
    alone = next(f for f in diagnose(case(window)) if f.id == "D6")
    assert (alone.scope["holder"], alone.confidence) == ("nobody expires", "consistent with")
    assert "looks" not in alone.evidence
    found = next(f for f in diagnose(case(window, beside=looked(window, 5))) if f.id == "D6")
    assert (found.scope["holder"], found.confidence) == ("nobody expires", "supported")
    appends = [s for s in window.steps if s.kind == "APPEND"]
    assert found.evidence["looks"] == len(window.steps[::5])
    last = window.steps[::5][-1].id
    assert found.evidence["commits_without_expiry"] == sum(window.steps[0].id < s.id <= last for s in appends)
    assert found.evidence["retained_files_per_hour_low"] > 0


def test_a_backlog_that_looks_saw_standing_still_is_not_worked_off() -> None:
    """After a pause a backlog is due to go; that it does not is what looks tell."""
    options = {"snapshot.time-retained": "10 min", "snapshot.expire.limit": "8"}
    pause = (Phase(60, 30), Phase(12, 30, pause_s=1200))
    window = live(Life(pause, 2, 20, options=options, expires=False))
    drains = "a backlog that commits work off"
    assert [f.scope["holder"] for f in diagnose(case(window)) if f.id == "D6"] == [drains]
    after = [s for s in window.steps if s.time_ms > window.steps[-1].time_ms - 12 * 30_000]
    seen = Beside(tuple(Seen(s.time_ms, window.stock.earliest, s.id) for s in (window.steps[60], *after)))
    found = next(f for f in diagnose(case(window, beside=seen)) if f.id == "D6")
    assert found.scope["holder"] == "nobody expires" and found.confidence == "supported"
    moving = replace(seen, looks=tuple(replace(s, earliest=i + 1) for i, s in enumerate(seen.looks)))
    assert [f.scope["holder"] for f in diagnose(case(window, beside=moving)) if f.id == "D6"] == [drains]


# ---- sentinels and queries -------------------------------------------------------------------------------


def test_freshness_that_was_measured_is_kept_and_decides_d12(history: HistoryStore) -> None:
    w = measured_late(Plan())
    window = take(w.table.metadata, name=w.table.name, clock=w.clock)
    look_and_keep(w.table, history, clock=w.clock)
    lags = tuple(float(300 + i % 7) for i in range(400))
    found = freshness(window, lags=lags)
    waits = replace(found, batch=None, stream=None)
    assert waits.probes()["read"] == lags
    history.keep_freshness(window.table, waits, w.clock.now_ms())
    kept = history.beside(window.table)
    assert median(kept.probes["commit"]) == median(lags) and max(kept.probes["commit"]) == max(lags)
    assert not [
        f for f in diagnose(case(history.window(window.table), beside=kept)) if f.scope.get("class") == "sentinel"
    ]
    for stage, lag in (("commit", 500.0), ("read", 400_000.0)):  # somebody's own sentinel
        history.record(window.table, "sentinel", w.clock.now_ms(), stage, {stage: [lag] * 300})
    kept = history.beside(window.table)
    assert len(kept.probes["read"]) == 101 + 300
    told = [
        f for f in checkup(history.window(window.table), beside=kept).findings if f.scope.get("class") == "sentinel"
    ]
    assert [(f.id, f.confidence) for f in told] == [("D12", "supported")]
    assert told[0].evidence["probes"] == 401 and told[0].evidence["read_p50_ms"] == 400_000


def test_nothing_that_was_not_measured_is_kept(history: HistoryStore) -> None:
    made = Made()
    made.commits(3)
    look_and_keep(made.table, history, clock=made.clock)
    uri = made.table.store.uri
    history.keep_freshness(uri, freshness(made.look()), made.clock.now_ms())
    assert history.records(uri, "sentinel") == [] and history.beside(uri).probes == {}


def test_queries_are_kept_once_and_come_back_by_time(history: HistoryStore) -> None:
    uri = "memory:t"
    queries = (Query(2000, 7.5), Query(1000, 3.0, 12), Query(1000, 3.0, 12))
    history.keep_queries(uri, queries)
    history.keep_queries(uri, queries[:1])
    assert history.beside(uri).queries == (Query(1000, 3.0, 12), Query(2000, 7.5))
    assert history.beside(uri, since_ms=1500).queries == (Query(2000, 7.5),)


def test_queries_that_take_longer_where_more_files_live_make_d17_sure() -> None:
    found = high_trigger(Plan()).case()
    window = found.window
    fast = found.beside
    slower = tuple(Query(s.time_ms + 1, 10.0 + 4 * s.live_files) for s in window.steps[20:])
    same = tuple(Query(s.time_ms + 1, 10.0 + (i * 7) % 5) for i, s in enumerate(window.steps[20:]))

    def fan_in(queries: tuple[Query, ...]):
        mine = replace(found, beside=replace(fast, queries=queries))
        return next(f for f in diagnose(mine) if f.id == "D17")

    told = fan_in(slower)
    durations = [q.duration_ms for q in slower]
    assert told.evidence["queries"] == len(slower) and told.evidence["query_p50_ms"] == median(durations)
    assert told.evidence["query_ms_per_file"] == pytest.approx(4) and told.confidence == "supported"
    unmoved = fan_in(same)
    assert unmoved.evidence["query_ms_per_file"] == pytest.approx(0, abs=0.2)
    assert unmoved.confidence == fan_in(()).confidence and "queries" not in fan_in(()).evidence
