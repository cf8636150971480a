# SPDX-License-Identifier: Apache-2.0
"""D8: rows that come late touch many old partitions, with a file of few rows in each.

What a commit writes most of its rows to is its main partition; what is older is late. Partitions are of time when their
values are dates, or when the main partition moves upwards as commits go on; regions or customers are never late.
Invariant: many rows in an old partition are a backfill, not late rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.pace import Pace, median_each, partition_codes
from shoal.doctor.finding import Evidence, Finding, Severity
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import FLUSH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "late partitions"
_MOST, _SOME = 0.5, 0.25  # of the new files, in late partitions
_FEW = 0.2  # rows of a late file for one of a file that came in time
_MAIN = 0.5  # of a commit's rows
_SEVERAL = 1.5  # late partitions a commit: the one before the main one alone is the change of day
_DATE = re.compile(r"(19|20)\d\d([-/.]?(0[1-9]|1[0-2]))([-/.]?([0-2]\d|3[01]))?([ T_-]?\d\d(:?\d\d)*)?")
_NAMED, _YEAR = 5, 400


@dataclass(frozen=True, slots=True)
class _Late:
    """Which rows of the flows are new files in late partitions, and which came in time."""

    late: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    commits: int  # with late files
    each_commit: float  # late partitions in a commit that has late files
    partitions: tuple[str, ...]  # late ones, those with the most files first
    key: str


def late_rows(case: Case) -> Iterable[Finding]:
    """D8, when most new files are small ones in partitions older than the one that is being filled."""
    pace, schema = case.pace, case.window.schema
    if pace is None or schema is None or not schema.partition_keys or not pace.telling:
        return
    found = _late(case, pace, schema.partition_keys)
    if found is None:
        return
    flows = case.window.flows
    files, rows = ints(flows, "files"), ints(flows, "rows")
    many = int(files[found.late | found.fresh].sum())
    share = int(files[found.late].sum()) / max(many, 1)
    each, usual = median_each(rows, files, found.late), median_each(rows, files, found.fresh)
    if share < _SOME or each > _FEW * usual or found.commits < pace.commits / 2:
        return
    severity: Severity = "warn" if share >= _MOST and found.each_commit >= _SEVERAL else "info"
    row_share = int(rows[found.late].sum()) / max(int(rows[found.late | found.fresh].sum()), 1)
    evidence: dict[str, Evidence] = {
        "late_share_of_files": round(share, 3), "late_share_of_rows": round(row_share, 4), "late_rows_per_file": each,
        "rows_per_file_in_time": usual, "late_partitions": len(found.partitions),
        "commits_with_late_files": found.commits,
        "commits": pace.commits, "partitions_per_commit": round(pace.partitions, 2), "partition_key": found.key,
        "late_partitions_per_commit": round(found.each_commit, 2),
        "most_touched": found.partitions[:_NAMED],
    }  # fmt: skip
    says = (
        f"{share:.0%} of the new files lie in {len(found.partitions)} partitions older than the one being filled, "
        f"{each:,.0f} rows each where files in time have {usual:,.0f}: {row_share:.1%} of the rows make "
        f"{'most of the files' if share >= _MOST else 'these files'}."
    )
    change = (
        "CALL sys.compact(`table` => 'db.t', partition_idle_time => '1 h') compacts partitions once they are quiet",
        "guard by event time: send rows older than a limit to a table of their own, and load them in one batch a day",
        "sort or bundle the source by partition, so that a checkpoint touches few of them",
    )
    per_minute = pace.flushed * pace.commits_per_day / 1440
    effect = f"{share:.0%} fewer new files: {per_minute * (1 - share):,.1f} a minute instead of {per_minute:,.1f}"
    yield Finding(
        "D8", NAME, severity, "supported" if severity == "warn" else "consistent with",
        {"class": "flush", "level": 0, "partition": found.partitions[0].rstrip("/")}, evidence, says, change, effect,
        (pace.first, pace.last),
    )  # fmt: skip


def _late(case: Case, pace: Pace, keys: Sequence[str]) -> _Late | None:
    import numpy as np

    flows = case.window.flows
    ids = ints(flows, "snapshot")
    flushes = class_is(flows, FLUSH) & (ids >= pace.first) & (ids <= pace.last)
    names, code = partition_codes(flows)
    if len(names) < 2 or not flushes.any():
        return None
    snapshots, at = np.unique(ids[flushes], return_inverse=True)
    for first in range(len(keys)):
        values = [_values(n)[first:] for n in names]
        distinct = sorted(set(values), key=_natural)
        place = {v: i for i, v in enumerate(distinct)}
        rank = np.array([place[v] for v in values], np.int64)
        main, clear = _main(at, rank[code[flushes]], ints(flows, "rows")[flushes], len(distinct))
        days = _days(case, snapshots)
        if not clear.any() or not _of_time([v[0] for v in distinct if v], main[clear], days[clear]):
            continue
        of_row = np.zeros(len(ids), np.int64)
        known = np.zeros(len(ids), np.bool_)
        of_row[flushes], known[flushes] = main[at], clear[at]
        late = flushes & known & (rank[code] < of_row)
        fresh = flushes & known & ~late
        if not late.any():
            return None
        touched = np.bincount(code[late], minlength=len(names))
        order = np.argsort(-touched, kind="stable")
        most = tuple(names[i] for i in order.tolist() if touched[i])
        commits = len(np.unique(ids[late]))
        pairs = len(np.unique(ids[late] * len(names) + code[late]))
        return _Late(late, fresh, commits, pairs / commits, most, keys[first])
    return None


def _main(
    at: NDArray[np.int64], rank: NDArray[np.int64], rows: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Of each snapshot the partition that got most rows, and whether that is most of its rows."""
    import numpy as np

    pairs, code = np.unique(at * n + rank, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, code, rows)
    order = np.lexsort((sums, pairs // n))  # the largest of each snapshot is its last
    last = np.flatnonzero(np.r_[np.diff(pairs // n) > 0, True])
    total = np.add.reduceat(sums, np.r_[0, last[:-1] + 1])
    best = order[last]
    return pairs[best] % n, sums[best] >= _MAIN * total


def _days(case: Case, snapshots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Days since 1970 of these snapshots."""
    import numpy as np

    steps = case.window.steps
    ids = np.array([s.id for s in steps], np.int64)
    times = np.array([s.time_ms for s in steps], np.int64)
    return times[np.minimum(np.searchsorted(ids, snapshots), len(ids) - 1)] // 86_400_000


def _values(partition: str) -> tuple[str, ...]:
    """The values of a partition's path: `dt=2026-01-01/h=7/` has two."""
    return tuple(part.partition("=")[2] for part in partition.rstrip("/").split("/"))


def _natural(values: Sequence[str]) -> list[list[tuple[int, int, str]]]:
    """Numbers in texts by their value, so that 9 comes before 10."""
    return [[(0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.findall(r"\d+|\D+", v)] for v in values]


def _of_time(values: Sequence[str], main: NDArray[np.int64], days: NDArray[np.int64]) -> bool:
    """Whether partitions follow time: dates, or a main partition that moves upwards and hardly ever back.

    A DATE is a number of days in the folders of most tables (`partition.legacy-name`).
    """
    if values and all(_DATE.fullmatch(v) for v in values):
        return True
    if values and all(v.isdigit() for v in values):
        ascending = sorted(int(v) for v in set(values))
        near = [abs(d - n) <= _YEAR for d in days[-1:].tolist() for n in (ascending[0], ascending[-1])]
        if all(near):
            return True
    moves = [b - a for a, b in pairwise(main.tolist()) if a != b]
    up = sum(m > 0 for m in moves)
    return up >= 2 and (len(moves) - up) <= up / 5
