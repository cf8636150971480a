# SPDX-License-Identifier: Apache-2.0
"""Which way a stock goes, with the interval that says how sure: Theil-Sen, the median of the slopes of all pairs.

The interval is Sen's, from the variance of Kendall's S with ties. Points must be taken at equal phase (`cycles`), or
the sawtooth of compactions is taken for growth.

Invariants: up to `EXACT` points every pair counts; above, `PAIRS` random ones do, drawn from the generator that the
caller gives, so the same generator gives the same slope. "Rising" needs the whole interval above 0 and above one file a
cycle and bucket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

EXACT, PAIRS, FEWEST = 400, 50_000, 5
_Z = 1.959963984540054  # two-sided 95 %


@dataclass(frozen=True, slots=True)
class Slope:
    """Change per minute: the median, and the 95 % interval."""

    value: float
    low: float
    high: float
    points: int
    exact: bool  # all pairs, not a random choice of them

    def over(self, minutes: float) -> tuple[float, float, float]:
        """Value, low and high as a change over a stretch of time, say a cycle or an hour."""
        return self.value * minutes, self.low * minutes, self.high * minutes

    def rising(self, cycle_minutes: float, buckets: int = 1) -> bool:
        """Whether the whole interval lies above 0 and above one file a cycle, in each of `buckets` that it sums."""
        return self.low > 0 and self.low * cycle_minutes > buckets

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "per_minute": self.value, "low": self.low, "high": self.high, "points": self.points, "exact": self.exact
        }  # fmt: skip


def theil_sen(x: ArrayLike, y: ArrayLike, *, rng: np.random.Generator) -> Slope | None:
    """The slope of y over x (minutes), None for fewer than five points or where all lie at one x."""
    import numpy as np

    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    n = len(xs)
    if n < FEWEST:
        return None
    exact = n <= EXACT
    if exact:
        i, j = np.triu_indices(n, 1)
    else:
        i = rng.integers(0, n, PAIRS)
        j = (i + rng.integers(1, n, PAIRS)) % n
    apart = xs[i] != xs[j]
    i, j = i[apart], j[apart]
    if not len(i):
        return None
    slopes = np.sort((ys[j] - ys[i]) / (xs[j] - xs[i]))
    # Half the width of the interval, as a share of all pairs: the same share holds for a random choice of them.
    share = _Z * math.sqrt(_kendall_variance(ys)) / (n * (n - 1) / 2)
    count = len(slopes)
    low = max(round(count * (1 - share) / 2) - 1, 0)
    high = min(round(count * (1 + share) / 2), count - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), n, exact)


def _kendall_variance(y: Any) -> float:  # an array of floats
    """Variance of Kendall's S without trend, smaller by the ties."""
    import numpy as np

    n = len(y)
    _, ties = np.unique(y, return_counts=True)
    t = ties[ties > 1].astype(np.float64)
    return float(n * (n - 1) * (2 * n + 5) - (t * (t - 1) * (2 * t + 5)).sum()) / 18
