# SPDX-License-Identifier: Apache-2.0
"""Queries that somebody timed: a log of their times, durations and files, as CSV or JSON, for the timeline.

Columns: `time` (ISO 8601, taken for UTC without an offset, or epoch seconds or ms), `table` (may be left out),
`duration` (with a unit, or in seconds; or `duration_ms`), `files` (may be left out). JSON is a list, or an object a
line. Invariant: a row that cannot be read is refused with its line, never skipped.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import BadRequest, NotFound

_SECONDS_UNTIL = 100_000_000_000  # a bare number of time below it is in seconds (the year 5138), else in ms


@dataclass(frozen=True, slots=True)
class Query:
    """One query: when it began, how long it took, and how many files it read where that is known."""

    at_ms: int
    duration_ms: float
    files: int | None = None


def query_log(path: str | Path, table: str) -> tuple[Query, ...]:
    """The queries of `table` (`db.t`, or `t`) and those that name no table, by time."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as err:
        raise NotFound(f"no query log at {path}") from err
    except (OSError, UnicodeDecodeError) as err:
        raise BadRequest(f"{path} cannot be read as a query log: {err}") from err
    found = [_query(row, f"{path}, row {n}") for n, row in enumerate(_rows(text, str(path)), 1) if _is_of(row, table)]
    return tuple(sorted(found, key=lambda q: q.at_ms))


def _rows(text: str, path: str) -> Iterable[Mapping[str, Any]]:
    start = text.lstrip()[:1]
    if start not in ("[", "{"):
        table = csv.DictReader(io.StringIO(text))
        names = set(table.fieldnames or ())
        if "time" not in names or not names & {"duration", "duration_ms"}:
            raise BadRequest(
                f"{path}: no columns 'time' and 'duration' in its first line",
                hint="begin with a line like time,table,duration,files",
            )
        return list(table)
    try:
        rows = json.loads(text) if start == "[" else [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as err:
        raise BadRequest(f"{path}: not JSON ({err})", hint="write a list, or an object a line") from err
    if not all(isinstance(row, dict) for row in rows):
        raise BadRequest(f"{path}: a row is no object", hint='write {"time": ..., "duration": ...}')
    return list(rows)


def _is_of(row: Mapping[str, Any], table: str) -> bool:
    named = str(row.get("table") or "").strip()
    return not named or named == table or named.rpartition(".")[2] == table or table.endswith(f".{named}")


def _query(row: Mapping[str, Any], where: str) -> Query:
    files = row.get("files")
    try:
        count = None if files in (None, "") else int(str(files))
    except ValueError as err:
        raise BadRequest(f"{where}: files '{files}' is not a number") from err
    return Query(_time(row.get("time"), where), _duration(row, where), count)


def _time(value: Any, where: str) -> int:
    text = str(value if value is not None else "").strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        return round(number * 1000 if number < _SECONDS_UNTIL else number)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as err:
        raise BadRequest(f"{where}: '{text}' is no time", hint="write 2026-11-01T12:00:00Z, or epoch ms") from err
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|min)?")
_UNITS = {"ms": 1.0, "s": 1000.0, "min": 60_000.0}


def _duration(row: Mapping[str, Any], where: str) -> float:
    in_ms = str(row.get("duration_ms") or "").strip()
    text = in_ms or str(row.get("duration") or "").strip()
    if not text:
        raise BadRequest(f"{where}: no duration", hint="name a column duration (seconds, or 350 ms) or duration_ms")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadRequest(f"{where}: '{text}' is no duration", hint="write 1.5 (seconds), 350 ms, or 2 min")
    return float(found[1]) * _UNITS[found[2] or ("ms" if in_ms else "s")]
