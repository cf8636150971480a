# SPDX-License-Identifier: Apache-2.0
"""What a change of the file rate is made of: factors whose ratios multiply, and whose parts add up.

Files a minute are a product: commits a minute x active buckets a commit x files an active bucket (x kinds of file a
flushed one, where changelog counts too). The log-mean (LMDI) split gives every factor its part of the difference.

Zero cases, as limits of the split: a factor that comes from or goes to zero takes the whole difference (several share
it evenly); a factor that has no meaning on a side (buckets of no commit) has not changed; two zeros have no parts.

Invariants: parts add up to the difference, ratios multiply to the ratio, whatever the two sides are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.states import class_is, ints
from shoal.doctor.window import CHANGELOG, FLUSH, Window

if TYPE_CHECKING:
    import pyarrow as pa

COMMITS, BUCKETS, FILES, KINDS = (
    "commits per minute", "active buckets per commit", "new files per active bucket", "files made per new file"
)  # fmt: skip
_SHORT = {COMMITS: "commits", BUCKETS: "buckets", FILES: "files", KINDS: "kinds"}


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor on both sides. `part` is its share of the difference a - b; None where a side has no such number."""

    name: str
    a: float | None
    b: float | None
    part: float

    @property
    def ratio(self) -> float:
        """a/b; 1 where a side has no such number, infinite where it came from nothing."""
        if self.a is None or self.b is None or self.a == self.b:
            return 1.0
        return self.a / self.b if self.b else math.inf

    def to_dict(self) -> dict[str, Any]:  # JSON
        ratio = self.ratio
        return {
            "name": self.name, "a": self.a, "b": self.b, "ratio": ratio if math.isfinite(ratio) else None,
            "part": self.part,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attribution:
    """The difference of a rate, a against b (after against before), over its factors."""

    a: float
    b: float
    factors: tuple[Factor, ...]

    @property
    def difference(self) -> float:
        return self.a - self.b

    def share(self, name: str) -> float | None:
        """A factor's share of the difference; more than 1 where others went the other way. None without difference."""
        return next((f.part / self.difference for f in self.factors if f.name == name and self.difference), None)

    @property
    def leading(self) -> Factor | None:
        """The factor with the largest part."""
        return max(self.factors, key=lambda f: abs(f.part), default=None)

    def __str__(self) -> str:
        """The ratios, as `x6.0 = x6.0 commits · x1.0 buckets · x1.0 files`."""
        if not self.factors:
            return "unknown"
        whole = Factor("", self.a, self.b, 0.0).ratio
        return f"{_times(whole)} = " + " · ".join(
            f"{_times(f.ratio)} {_SHORT.get(f.name, f.name)}" for f in self.factors
        )

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "a": self.a, "b": self.b, "difference": self.difference, "factors": [f.to_dict() for f in self.factors],
            "text": str(self),
        }  # fmt: skip


def _times(ratio: float) -> str:
    return f"x{ratio:.1f}" if math.isfinite(ratio) else "from 0"


def split(a: Mapping[str, float | None], b: Mapping[str, float | None]) -> Attribution:
    """Split the difference between two products of the same factors."""
    left, right = _filled(a, b), _filled(b, a)
    # one order for both products: equal factors then give equal wholes, to the last bit
    whole_a, whole_b = math.prod(left[n] for n in a), math.prod(right[n] for n in a)
    difference = whole_a - whole_b
    parts = dict.fromkeys(a, 0.0)
    if difference and not (whole_a and whole_b):
        empty = left if whole_a == 0 else right
        vanished = [name for name in a if empty[name] == 0]
        parts |= dict.fromkeys(vanished, difference / len(vanished))
    elif difference:
        weight = log_mean(whole_a, whole_b)
        parts = {name: weight * math.log(left[name] / right[name]) for name in a}
    return Attribution(whole_a, whole_b, tuple(Factor(n, a[n], b[n], parts[n]) for n in a))


def _filled(mine: Mapping[str, float | None], other: Mapping[str, float | None]) -> dict[str, float]:
    """Factors with what has no meaning on this side as it is on the other, where it then has not changed."""
    found = {name: other[name] if value is None else value for name, value in mine.items()}
    return {name: 1.0 if value is None else value for name, value in found.items()}


def log_mean(x: float, y: float) -> float:
    return x if math.isclose(x, y, rel_tol=1e-12) else (x - y) / math.log(x / y)


# ---- the factors of a stretch ----------------------------------------------------------------------------


def factors(
    window: Window, *, first: int | None = None, last: int | None = None, changelog: bool = False
) -> dict[str, float | None] | None:
    """The factors of files a minute over the snapshots `first` to `last`; with `changelog` its files count too.

    None where the stretch has fewer than two commits, so that it has no length.
    """
    low, high = -math.inf if first is None else first, math.inf if last is None else last
    commits = [s for s in window.steps if low <= s.id <= high and s.kind not in ("COMPACT", "ANALYZE")]
    minutes = minutes_of([s.time_ms for s in commits])
    if minutes is None:
        return None
    flushed, told, active = _counted(window.flows, low, high)
    out: dict[str, float | None] = {
        COMMITS: len(commits) / minutes,
        BUCKETS: active / len(commits),
        FILES: flushed / active if active else None,
    }
    if changelog:
        out[KINDS] = (flushed + told) / flushed if flushed else None
    return out


def minutes_of(times_ms: Sequence[int]) -> float | None:
    """The time that commits stand for: n of them span n - 1 intervals, and the first brought what came before it."""
    if len(times_ms) < 2 or max(times_ms) <= times_ms[0]:
        return None
    return (max(times_ms) - times_ms[0]) / 60_000 * len(times_ms) / (len(times_ms) - 1)


def _counted(flows: pa.Table, first: float, last: float) -> tuple[int, int, int]:
    """Flushed files, changelog files, and buckets that got a flushed file summed over the snapshots."""
    ids = ints(flows, "snapshot")
    inside = (ids >= first) & (ids <= last)
    files = ints(flows, "files")
    flushes = class_is(flows, FLUSH) & inside
    active = flows.filter(_mask(flushes)).group_by(["snapshot", "partition", "bucket"]).aggregate([]).num_rows
    return int(files[flushes].sum()), int(files[class_is(flows, CHANGELOG) & inside].sum()), int(active)


def _mask(values: Any) -> pa.Array:  # an array of bool
    import pyarrow as pa

    return pa.array(values)


def attribute(
    a: Window, b: Window, *, changelog: bool = False,
    a_span: tuple[int, int] | None = None, b_span: tuple[int, int] | None = None,
) -> Attribution | None:  # fmt: skip
    """What made the file rate of `a` differ from that of `b`: two windows, or two stretches of one (snapshot ids)."""
    sides = []
    for window, span in ((a, a_span), (b, b_span)):
        first, last = span or (None, None)
        sides.append(factors(window, first=first, last=last, changelog=changelog))
    left, right = sides
    return None if left is None or right is None else split(left, right)
