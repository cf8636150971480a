# SPDX-License-Identifier: Apache-2.0
"""The flights stream against a fold of the CSV that was written without it."""

from __future__ import annotations

import itertools
from datetime import date, datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from flights_model import csv_rows, independent_fold, missing
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadRequest
from shoal.flow.source import DELETE, INSERT, UPDATE_AFTER
from shoal.flow.sources.flights import KEY, SCHEMA, FlightsSource, _arrivals


@cache
def one_day():
    return FlightsSource(date(2013, 3, 1), date(2013, 3, 2), speed=3600.0)


@cache
def whole_day():
    return one_day().take(0, until_s=None, max_rows=10**9)


@pytest.fixture(scope="module")
def january():
    return FlightsSource(date(2013, 1, 1), date(2013, 2, 1), speed=3600.0)


@pytest.fixture(scope="module")
def january_events(january):
    return january.take(0, until_s=None, max_rows=10**9)


def keys_of(rows: pa.RecordBatch) -> list[tuple[object, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in KEY)))


def naive_fold(changes) -> list[dict[str, object]]:
    """Last row of a key wins; -D removes it."""
    table: dict[tuple[object, ...], int] = {}
    for at, (key, kind) in enumerate(zip(keys_of(changes.rows), changes.kinds.to_pylist(), strict=True)):
        if kind == DELETE:
            del table[key]
        else:
            assert (kind == INSERT) == (key not in table)
            table[key] = at
    return changes.rows.take(pa.array([table[key] for key in sorted(table)])).to_pylist()


def test_january_folds_to_what_the_csv_says(january_events):
    assert naive_fold(january_events) == independent_fold(date(2013, 1, 1), date(2013, 2, 1))


@pytest.mark.parametrize("day", [date(2013, 3, 9), date(2013, 3, 10), date(2013, 11, 2), date(2013, 11, 3)])
def test_days_on_which_clocks_change_fold_to_what_the_csv_says(day):
    end = date.fromordinal(day.toordinal() + 1)
    events = FlightsSource(day, end).take(0, until_s=None, max_rows=10**9)
    assert naive_fold(events) == independent_fold(day, end)


@pytest.mark.parametrize(
    "departed, shown, landed",
    [
        ("2013-11-03T04:30", 70, "2013-11-03T05:10"),  # 00:30, and 01:10 before clocks go back
        ("2013-11-03T05:30", 70, "2013-11-03T06:10"),  # 01:30, and 01:10 after they went back
        ("2013-11-03T06:30", 70, "2013-11-04T06:10"),  # 01:30 again, and 01:10 of the next day
        ("2013-03-10T05:41", 150, "2013-03-10T07:30"),  # 00:41, and 02:30 that clocks jump over
        ("2013-06-01T04:00", 1440, "2013-06-02T04:00"),  # midnight, and 24:00
    ],
)
def test_an_arrival_is_the_first_time_the_clock_there_shows_it(departed, shown, landed):
    at = np.array([departed], "datetime64[ms]").astype(np.int64)
    zone, dest = pa.array(["America/New_York"]), pa.chunked_array([["BUF"]])
    assert _arrivals(at, np.array([shown * 60_000]), zone, dest).astype("datetime64[ms]") == np.datetime64(landed)


def test_january_has_one_event_for_every_time_in_the_csv(january, january_events):
    rows = csv_rows(date(2013, 1, 1), date(2013, 2, 1))
    departed = sum(not missing(row["dep_time"]) for row in rows)
    arrived = sum(not missing(row["arr_time"]) for row in rows)
    counts = dict(zip(*(a.tolist() for a in np.unique(january_events.kinds.to_numpy(), return_counts=True))))
    assert counts == {INSERT: len(rows), UPDATE_AFTER: departed + arrived, DELETE: len(rows) - departed}
    assert january.total == len(january_events) == 80_476


def test_events_of_a_flight_never_go_back_in_time_and_come_in_stages(january_events):
    rows = january_events.rows
    times, statuses = rows["updated_at"].to_pylist(), rows["status"].to_pylist()
    assert times == sorted(times)
    seen: dict[tuple[object, ...], list[tuple[datetime, str]]] = {}
    for key, *event in zip(keys_of(rows), times, statuses, strict=True):
        seen.setdefault(key, []).append(tuple(event))
    orders = {tuple(status for _, status in events) for events in seen.values()}
    assert orders == {("scheduled", "departed", "arrived"), ("scheduled", "departed"), ("scheduled", "cancelled")}
    for events in seen.values():
        assert all(earlier < later for (earlier, _), (later, _) in itertools.pairwise(events))


def test_the_key_is_unique_over_the_whole_year():
    year = FlightsSource(date(2013, 1, 1), date(2014, 1, 1), speed=float("inf"))
    events = year.take(0, until_s=None, max_rows=10**9)
    added = pa.Table.from_batches([events.rows]).filter(pa.array(events.kinds.to_numpy() == INSERT))
    assert added.num_rows == 336_776
    assert added.group_by(list(KEY)).aggregate([([], "count_all")]).num_rows == 336_776
    assert year.total == len(events) == 1_001_615


def test_one_flight_reads_like_a_departure_board(january_events):
    rows = pa.Table.from_batches([january_events.rows]).append_column("kind", january_events.kinds)
    mine = [r for r in rows.slice(0, 5000).to_pylist() if (r["carrier"], r["flight"]) == ("UA", 1545)][:3]
    assert [(r["kind"], r["status"], r["updated_at"], r["dep_delay"], r["arr_delay"], r["air_time"]) for r in mine] == [
        (0, "scheduled", datetime(2013, 1, 1, 8, 15), None, None, None),
        (2, "departed", datetime(2013, 1, 1, 10, 17), 2, None, None),
        (2, "arrived", datetime(2013, 1, 1, 14, 30), 2, 11, 227),  # 08:30 in Houston
    ]
    assert {r["sched_dep"] for r in mine} == {datetime(2013, 1, 1, 5, 15)}


def test_a_cancelled_flight_leaves_with_its_last_values(january_events):
    kinds = january_events.kinds.to_numpy()
    row = january_events.rows.take(pa.array(np.flatnonzero(kinds == DELETE)[:1])).to_pylist()[0]
    assert row["status"] == "cancelled"
    assert row["dep_delay"] is None and row["distance"] > 0 and row["dest"]


def test_a_take_gives_what_is_due_and_says_when_the_next_row_is():
    first = one_day().take(0, until_s=0.0, max_rows=100)
    assert first.at_s == 0.0 and first.next_s > 0.0 and not first.ended
    before = one_day().take(first.position, until_s=first.next_s - 1e-9, max_rows=100)
    assert len(before) == 0 and before.position == first.position and before.next_s == first.next_s
    assert before.rows.schema == SCHEMA
    then = one_day().take(first.position, until_s=first.next_s, max_rows=1)
    assert len(then) == 1 and then.at_s == first.next_s


def test_speed_divides_the_time_between_events():
    slow = FlightsSource(one_day().start, one_day().end, speed=60.0)
    assert slow.take(0, until_s=None, max_rows=10**9).at_s == pytest.approx(whole_day().at_s * 60)
    minute = (whole_day().rows["updated_at"][-1].as_py() - whole_day().rows["updated_at"][0].as_py()).total_seconds()
    assert whole_day().at_s == pytest.approx(minute / 3600)


def test_the_end_is_an_empty_take_that_says_so():
    end = one_day().take(one_day().total, until_s=None, max_rows=5)
    assert len(end) == 0 and end.ended and end.position == one_day().total and end.at_s == whole_day().at_s


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 12)), max_size=20))
def test_takes_at_any_cuts_join_to_one_take(cuts):
    rows, kinds, position = [], [], 0
    for max_rows, until in [*cuts, (10**9, None)]:
        part = one_day().take(position, until_s=until, max_rows=max_rows)
        assert part.position == position + len(part) and len(part) <= max_rows
        rows.append(part.rows)
        kinds += part.kinds.to_pylist()
        position = part.position
    assert pa.Table.from_batches(rows).combine_chunks() == pa.Table.from_batches([whole_day().rows])
    assert kinds == whole_day().kinds.to_pylist()


def test_a_new_process_reads_the_same_rows_from_a_kept_position():
    again = FlightsSource(one_day().start, one_day().end, speed=1.0)
    assert again.fingerprint == one_day().fingerprint
    assert again.take(1234, until_s=None, max_rows=50).rows == whole_day().rows.slice(1234, 50)


def test_other_days_have_another_fingerprint():
    assert FlightsSource(date(2013, 3, 1), date(2013, 3, 3)).fingerprint != one_day().fingerprint


@pytest.mark.parametrize(
    "start, end",
    [
        (date(2013, 1, 2), date(2013, 1, 2)),
        (date(2012, 12, 31), date(2013, 1, 2)),
        (date(2013, 12, 31), date(2014, 1, 2)),
    ],
)
def test_days_without_flights_are_refused(start, end):
    with pytest.raises(BadRequest, match="no flights from"):
        FlightsSource(start, end)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_time_that_stands_still_or_runs_back_is_refused(speed):
    with pytest.raises(BadRequest, match="speed is"):
        FlightsSource(date(2013, 1, 1), date(2013, 1, 2), speed)


@pytest.mark.parametrize("position, max_rows", [(-1, 1), (None, 1), (0, 0)])
def test_a_take_outside_the_stream_is_refused(position, max_rows):
    with pytest.raises(BadRequest):
        one_day().take(one_day().total + 1 if position is None else position, until_s=None, max_rows=max_rows)
