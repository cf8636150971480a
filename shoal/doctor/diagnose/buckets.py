# SPDX-License-Identifier: Apache-2.0
"""D2 and D4: a table has more buckets than its bytes need, or one of them gets what others should.

Paimon advises 200 MB to 1 GB a bucket, which is a little more than one and a half files of the default target size up;
a table with a smaller target needs as much less. What fewer buckets would save is counted against all that a commit
makes, its metadata too, so a few small buckets are no finding. Skew is told from sequence numbers, which count rows
before the buffer merged them. Invariant: buckets are compared within one partition, never across partitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.pace import Pace, partition_codes
from shoal.doctor.diagnose.rhythm import MOST, SMALL
from shoal.doctor.finding import Evidence, Finding, Severity
from shoal.doctor.report import size_text
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import FLUSH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MANY, SKEW = "too many active buckets", "key skew"
_LEAST_BYTES, _DEFAULT_TARGET = 200 << 20, 128 << 20
# Of a commit's objects: what makes it two and a half times as many is worth a warning, what nearly doubles it a word.
_MOSTLY, _SOME = 0.6, 0.45
_DAY_MS = 86_400_000
# Rows of the hottest bucket for one of the others' median: the lint's L-24.
_HOT, _WARM = 3.0, 2.0
# Rows that a share is told from, or so many an hour where less is retained: a few an hour harm nobody. Keys a bucket
# below which hashing cannot be even.
_ROWS, _KEYS, _HOUR_S = 500, 20, 3600.0
_SIGMA = 6.0


# ---- D2 --------------------------------------------------------------------------------------------------


def too_many(case: Case) -> Iterable[Finding]:
    """D2, when most of what a commit makes comes from buckets that its bytes don't need."""
    pace, limits = case.pace, case.limits
    if pace is None or limits is None or case.states is None or not pace.telling:
        return
    if pace.flush_bytes >= SMALL * limits.target_size or pace.buckets < 2:
        return
    least = min(_LEAST_BYTES, limits.target_size * _LEAST_BYTES // _DEFAULT_TARGET)
    size, grown = _partition_bytes(case, pace)
    needed = max(math.ceil(max(size, grown) / least), 1)
    excess = pace.buckets / needed
    if excess <= 1:
        return
    now, then = pace.objects_with(buckets=1.0), pace.objects_with(buckets=excess)
    avoided = 1 - then / now
    if avoided < _SOME:
        return
    severity: Severity = "warn" if avoided >= _MOSTLY else "info"
    evidence: dict[str, Evidence] = {
        "active_buckets": pace.buckets, "needed_buckets": needed, "partition_bytes": size,
        "partition_bytes_expected": grown, "bucket_bytes": round(size / pace.buckets), "least_bucket_bytes": least,
        "flush_rows_median": pace.flush_rows, "flush_bytes_median": pace.flush_bytes,
        "objects_per_commit": round(pace.objects, 2), "avoidable_share": round(avoided, 3), "commits": pace.commits,
    }  # fmt: skip
    says = (
        f"Each commit writes to {pace.buckets:,.0f} buckets of a partition that holds {size_text(size)}, "
        f"{size_text(round(size / pace.buckets))} a bucket, and brings {pace.flush_rows:,.0f} rows to each: "
        f"{avoided:.0%} of the objects it makes are there for buckets beyond the {needed} that these bytes need."
    )
    effect = (
        f"objects a commit go from about {now:,.0f} to {then:,.0f} for a partition (±40 % until files of this schema "
        f"are calibrated)"
    )
    effect += f", about {pace.objects * pace.commits_per_day * avoided:,.0f} fewer a day"
    yield Finding(
        "D2", MANY, severity, "supported" if avoided >= MOST else "consistent with",
        {"class": "flush", "level": 0, "option": "bucket"}, evidence, says, _fewer(case, needed), effect,
        (pace.first, pace.last),
    )  # fmt: skip


def _fewer(case: Case, needed: int) -> tuple[str, ...]:
    if not fixed_buckets(case):
        return (
            "raise dynamic-bucket.target-row-num, so that a bucket takes more keys before the next one is begun",
            f"write the table anew to put the keys it holds into about {needed} buckets",
        )
    return (
        f"stop the writer; CALL sys.rescale(`table` => 'db.t', bucket_num => {needed}); ALTER TABLE t SET ('bucket' = "
        f"'{needed}')",
        "start the writer again with no more sink tasks than buckets",
        "or let a new table choose by itself: 'bucket' = '-1'",
    )


def fixed_buckets(case: Case) -> bool:
    return int(str(case.options.get("bucket"))) > 0


def _partition_bytes(case: Case, pace: Pace) -> tuple[int, int]:
    """Bytes of the largest partition, and what the largest will hold after a day where the window saw it begin."""
    import numpy as np

    states = case.states
    assert states is not None
    end = np.zeros(max(len(states.partitions), 1), np.int64)
    np.add.at(end, states.partition_of, states.end["bytes"])
    size = int(end.max())
    times = states.times_ms
    moves = states.moves
    if len(times) < 2 or not len(moves):
        return size, size
    largest = int(end.argmax())
    start = int(states.start["bytes"][states.partition_of == largest].sum())
    mine = states.partition_of[moves.bucket] == largest
    change = np.zeros(len(times), np.int64)
    np.add.at(change, moves.at[mine], (moves.after["bytes"] - moves.before["bytes"])[mine])
    series = start + np.cumsum(change)
    begun = int(moves.at[mine].min()) if mine.any() else 0
    age = int(times[-1] - times[begun])
    if start or age <= 0 or age >= _DAY_MS:
        return size, size
    # Its second half tells how it grows: the first fills the levels, and new keys are new only once.
    middle = begun + (len(times) - begun) // 2
    gained, took = int(series[-1] - series[middle]), int(times[-1] - times[middle])
    growth = max(gained, 0) / took if took > 0 else 0.0
    return size, size + round(growth * (_DAY_MS - age))


# ---- D4 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Rows by bucket in one partition."""

    partition: str
    buckets: NDArray[np.int64]  # their numbers
    rows: NDArray[np.int64]
    total: int  # buckets that the partition has
    exact: bool  # told by sequence numbers


def skewed(case: Case) -> Iterable[Finding]:
    """D4, when one bucket gets several times what the others do."""
    import numpy as np

    pace = case.pace
    if pace is None or not pace.telling or not fixed_buckets(case):
        return
    found = _arrivals(case, pace)
    hours = min(pace.commits * pace.interval_s / _HOUR_S, 1.0)
    if found is None or found.total < 2 or found.rows.sum() < _ROWS * hours:
        return
    top = int(found.rows.argmax())
    hot = int(found.rows[top])
    others = np.r_[np.delete(found.rows, top), np.zeros(found.total - len(found.rows), np.int64)]
    usual = max(float(np.median(others)), float(others.mean()))
    ratio = hot / max(usual, 1.0)
    if ratio < _WARM or hot - usual < _SIGMA * math.sqrt(hot):
        return
    bucket, share = int(found.buckets[top]), hot / int(found.rows.sum())
    few = _live_rows(case, found.partition) < _KEYS * found.total
    severity: Severity = "warn" if ratio >= _HOT and not few else "info"
    runs, others_runs, size, others_size = _crest(case, found.partition, bucket)
    gini = _gini(np.r_[found.rows, np.zeros(found.total - len(found.rows), np.int64)])
    where = f" of partition {found.partition}" if found.partition else ""
    evidence: dict[str, Evidence] = {
        "rows": hot, "share": round(share, 3), "times_the_others": round(ratio, 2), "gini": round(gini, 3),
        "buckets": found.total, "by_sequence_numbers": found.exact, "most_runs": runs,
        "most_runs_of_others": others_runs, "bytes": size, "bytes_of_others_median": others_size, "few_keys": few,
    }  # fmt: skip
    says = (
        f"Bucket {bucket}{where} got {share:.0%} of the rows, {ratio:.1f} times what another of the {found.total} "
        f"buckets gets (Gini {gini:.2f})."
    )
    schema = case.window.schema
    key = case.options.get("bucket-key") if case.options.is_set("bucket-key") else None
    change = [
        f"the bucket key is {key or 'the primary key'}: choose columns of the primary key that spread rows "
        "(bucket-key, only with a new table or INSERT OVERWRITE)",
        "where few keys get most changes: local-merge-buffer-size = 64 mb merges them before they are shuffled (not "
        "for CDC ingestion)",
    ]
    if schema is not None and schema.partition_keys:
        change.append("give the hot partition more buckets of its own, or partition it further")
    even = found.rows.sum() / found.total
    effect = (
        f"an even spread brings {even:,.0f} rows to each bucket in this window instead of {hot:,} to bucket {bucket}: "
        f"its task has {1 - even / hot:.0%} less to write and to compact"
    )
    yield Finding(
        "D4", SKEW, severity, "supported" if severity == "warn" and found.exact else "consistent with",
        {"partition": found.partition.rstrip("/"), "bucket": bucket}, evidence, says, tuple(change), effect,
        (pace.first, pace.last),
    )  # fmt: skip


def _arrivals(case: Case, pace: Pace) -> _Arrivals | None:
    """The rows of the partition that got most of them, by bucket."""
    import numpy as np

    flows = case.window.flows
    ids = ints(flows, "snapshot")
    chosen = class_is(flows, FLUSH) & (ids >= pace.first) & (ids <= pace.last) & (ints(flows, "bucket") >= 0)
    if not chosen.any():
        return None
    names, partition = partition_codes(flows)
    rows = ints(flows, "rows")
    spread = ints(flows, "max_sequence") - ints(flows, "min_sequence") + 1
    known = flows.column("min_sequence").null_count == 0 or not _any_null(flows, chosen)
    # Numbers that are no counter, as times are, span far more than rows.
    exact = (
        known and bool((spread[chosen] >= rows[chosen]).all()) and bool(_plausible(ints(flows, "max_sequence")[chosen]))
    )
    count = np.where(exact, spread, rows)
    by_partition = np.zeros(len(names), np.int64)
    np.add.at(by_partition, partition[chosen], rows[chosen])
    best = int(by_partition.argmax())
    mine = chosen & (partition == best)
    buckets, place = np.unique(ints(flows, "bucket")[mine], return_inverse=True)
    sums = np.zeros(len(buckets), np.int64)
    np.add.at(sums, place, count[mine])
    total = max(int(ints(flows, "total_buckets")[mine].max()), len(buckets))
    return _Arrivals(names[best], buckets, sums, total, exact)


def _any_null(flows: object, chosen: NDArray[np.bool_]) -> bool:
    import numpy as np

    nulls = np.asarray(flows.column("min_sequence").is_null().to_numpy(), np.bool_)  # type: ignore[attr-defined]
    return bool((nulls & chosen).any())


_MOST_ROWS = 10**12  # sequence numbers beyond are no counts: epoch milliseconds begin here


def _plausible(sequence: NDArray[np.int64]) -> bool:
    return int(sequence.max()) < _MOST_ROWS


def _live_rows(case: Case, partition: str) -> int:
    import pyarrow.compute as pc

    end = case.window.end
    if end is None:
        return 0
    mine = end.filter(pc.equal(end.column("partition"), partition))
    return int(ints(mine, "rows").sum())


def _crest(case: Case, partition: str, bucket: int) -> tuple[int | None, int | None, int | None, int | None]:
    """Most runs and bytes now: of the bucket, and the median of the others in its partition."""
    import numpy as np

    states = case.states
    if states is None or partition not in states.partitions:
        return None, None, None, None
    inside = states.partition_of == states.partitions.index(partition)
    hot = inside & (states.number == bucket)
    rest = inside & ~hot
    if not hot.any() or not rest.any():
        return None, None, None, None
    _, runs = states.over_time("runs")
    size = states.end["bytes"]
    return int(runs[hot].max()), int(np.median(runs[rest])), int(size[hot].sum()), int(np.median(size[rest]))


def _gini(rows: NDArray[np.int64]) -> float:
    """0 where all are equal, towards 1 where one has everything."""
    import numpy as np

    n, total = len(rows), float(rows.sum())
    if n < 2 or not total:
        return 0.0
    ranked = np.sort(rows).astype(np.float64)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ranked / (n * total))
