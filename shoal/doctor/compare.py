# SPDX-License-Identifier: Apache-2.0
"""Two debts side by side: every ratio, what the difference is made of, and one sentence that says it.

The sentence is about the faster of two checkpoint clocks over the same stream. Invariants: the factors' ratios multiply
to the ratio of files per minute, and their parts add up to its difference; what one side lacks is left out, not
guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.doctor.attribution import BUCKETS, COMMITS, FILES, KINDS, Factor, split
from shoal.doctor.debt import VERSION, Debt

# Clocks nearer than this are one clock; windows nearer than this hold the same stream, so their counts compare.
_SAME_CLOCK, _SAME_WINDOW = 1.05, 1.25


@dataclass(frozen=True, slots=True)
class Ratio:
    """One number on both sides; `ratio` is a/b, None where it means nothing."""

    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        return self.a / self.b if self.a is not None and self.b else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Debt `a` against debt `b`."""

    a: Debt
    b: Debt
    names: tuple[str, str]
    ratios: Mapping[str, Ratio]
    factors: tuple[Factor, ...]  # empty when a side made no files
    sentence: str

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "version": VERSION,
            "sentence": self.sentence,
            "names": list(self.names),
            "ratios": {k: {"a": r.a, "b": r.b, "ratio": r.ratio} for k, r in self.ratios.items()},
            "factors": [f.to_dict() for f in self.factors],
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
        }


def compare(a: Debt, b: Debt, *, names: tuple[str, str] | None = None) -> Comparison:
    """Compare two debts; `names` head the columns (else the two intervals, or the tables' names)."""
    names = names or _names(a, b)
    left, right = numbers(a), numbers(b)
    ratios = {key: Ratio(left.get(key), right.get(key)) for key in left | right}
    return Comparison(a, b, names, ratios, attribute(a, b), _sentence(a, b, names))


def numbers(d: Debt) -> dict[str, float | None]:
    """The numbers of a debt that compare, by stable key."""
    out: dict[str, float | None] = {"checkpoint_interval_s": d.interval_s, "commits": d.commits}
    out["snapshots"] = sum(d.snapshots.values())
    for kind, count in {**d.made, "total": d.files_made}.items():
        out |= {f"made.{kind}.files": count.files, f"made.{kind}.bytes": count.bytes}
    out |= {"upgraded.files": d.upgraded.files, "removed.files": d.removed.files}
    out |= {"files_per_minute": d.files_per_minute, "files_per_commit": d.files_per_commit}
    out |= {"write_amplification": d.write_amplification, "flush_file_bytes_median": d.flush_file_bytes}
    if d.live is not None:
        out |= {"live.files": d.live.data.files, "live.bytes": d.live.data.bytes, "live.rows": d.live.data.rows}
        out |= {"live.level0.files": d.live.level0.files, "live.mean_files": d.live.mean_files}
    for kind, count in (d.retained or {}).items():
        out |= {f"retained.{kind}.files": count.files, f"retained.{kind}.bytes": count.bytes}
    if d.buckets is not None:
        out |= {"buckets.mean_runs": d.buckets.mean_runs, "buckets.max_runs": d.buckets.max_runs}
        out |= {"buckets.mean_files": d.buckets.mean_files, "buckets.max_files": d.buckets.max_files}
    return out


def factors_of(d: Debt) -> dict[str, float | None] | None:
    """Files per minute as a product; None when one factor is unknown or zero."""
    flushed = None if d.per_minute is None else d.per_minute["level0"]
    found = {
        COMMITS: d.commits_per_minute,
        BUCKETS: d.active_buckets,
        FILES: d.files_per_active_bucket,
        KINDS: (d.files_per_minute or 0) / flushed if flushed else None,
    }
    return found if all(found.values()) else None


def attribute(a: Debt, b: Debt) -> tuple[Factor, ...]:
    """Split the difference in files per minute over its factors; nothing is left over."""
    left, right = factors_of(a), factors_of(b)
    return () if left is None or right is None else split(left, right).factors


# ---- the sentence ----------------------------------------------------------------------------------------


def _names(a: Debt, b: Debt) -> tuple[str, str]:
    tables = a.table.rstrip("/").rpartition("/")[2], b.table.rstrip("/").rpartition("/")[2]
    if a.interval_s is not None and b.interval_s is not None:
        intervals = seconds(a.interval_s), seconds(b.interval_s)
        return intervals if intervals[0] != intervals[1] else tables
    return tables


def _sentence(a: Debt, b: Debt, names: tuple[str, str]) -> str:
    for d, name in ((a, names[0]), (b, names[1])):
        if d.first is None:
            return f"Nothing to compare: {name} has no snapshot."
    if not (a.interval_s and b.interval_s):
        return f"{names[0]} against {names[1]}: {_costs(a, b)}."
    fast, slow = (a, b) if a.interval_s <= b.interval_s else (b, a)
    assert fast.interval_s is not None and slow.interval_s is not None
    often = slow.interval_s / fast.interval_s
    if often < _SAME_CLOCK:
        return f"Both commit every {seconds(a.interval_s)}: {_costs(a, b)}."
    age = f"for data that is at most {seconds(fast.interval_s)} old instead of {seconds(slow.interval_s)}"
    return f"Checkpoints {often:.1f}x as often: {_costs(fast, slow)}, {age}."


def _costs(fast: Debt, slow: Debt) -> str:
    """What `fast` spent against `slow`: totals over the same stretch of time, rates where the stretches differ."""
    spans = fast.covered_minutes, slow.covered_minutes
    made, made_slow, unit = float(fast.files_made.files), float(slow.files_made.files), ""
    written, written_slow = float(fast.files_made.bytes), float(slow.files_made.bytes)
    if spans[0] and spans[1] and max(spans[0], spans[1]) / min(spans[0], spans[1]) > _SAME_WINDOW:
        made, written = made / spans[0], written / spans[0]
        made_slow, written_slow = made_slow / spans[1], written_slow / spans[1]
        unit = " a minute"
    parts = [f"{_times(made, made_slow)}the files made{unit} ({made:,.0f} against {made_slow:,.0f})"]
    if written and written_slow:
        parts.append(f"{_times(written, written_slow)}the bytes written")
    wa, wa_slow = fast.write_amplification, slow.write_amplification
    if wa is not None and wa_slow is not None:
        parts.append(f"write amplification {wa:.1f} against {wa_slow:.1f}")
    return ", ".join(parts)


def _times(a: float, b: float) -> str:
    return f"{a / b:.1f}x " if b else ""


def seconds(s: float) -> str:
    """A duration for people: under ten seconds with one digit where it matters.

    >>> seconds(0.038), seconds(0.9985), seconds(2.9), seconds(60.02), seconds(600)
    ('38 ms', '1 s', '2.9 s', '60 s', '10 min')
    """
    if 0 < s < 0.0995:
        return f"{s * 1000:.2g} ms"
    if s >= 120:
        return f"{s / 60:.1f}".removesuffix(".0") + " min"
    return (f"{s:.1f}".removesuffix(".0") if s < 10 else f"{s:.0f}") + " s"
