# SPDX-License-Identifier: Apache-2.0
"""What a history knows of a table beside its snapshots, as one value: earlier looks, measured freshness, timed queries.

Looks tell how the past was held at other times than now; sentinels how old rows were when they were committed and when
they were read; query probes how long reads took. A `Window` has none of it, so whoever judges takes both. Invariant:
nothing in it is a judgement, and an empty one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from shoal.doctor.query_log import Query
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import CHANGELOG, REMOVAL, Window

if TYPE_CHECKING:
    from shoal.doctor.freshness import Freshness
    from shoal.doctor.states import Ints

# Of a sentinel's times so many quantiles are kept: its median and its 99th percentile are among them.
QUANTILES = 101


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look saw of the retained past."""

    taken_ms: int
    earliest: int | None  # snapshot ids
    latest: int | None


@dataclass(frozen=True)
class Beside:
    """`probes`: freshness by stage in ms (`commit`, `read`), as `Freshness.probes` gives it. Looks, queries by time."""

    looks: tuple[Seen, ...] = ()
    probes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()


NOTHING_BESIDE = Beside()


def sentinel_of(found: Freshness) -> dict[str, list[float]]:
    """What a history keeps of measured freshness: quantiles, evenly spaced, by stage. Empty where none was measured."""
    import numpy as np

    at = np.linspace(0, 100, QUANTILES)
    return {stage: np.percentile(values, at).tolist() for stage, values in found.probes().items() if len(values)}


def probes_of(sentinels: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, tuple[float, ...]]:
    """The times of several sentinels by stage."""
    out: dict[str, list[float]] = {}
    for sentinel in sentinels:
        for stage, values in sentinel.items():
            out.setdefault(stage, []).extend(float(v) for v in values)
    return {stage: tuple(values) for stage, values in out.items()}


def retained_then(window: Window, looks: Sequence[Seen]) -> tuple[Ints, Ints]:
    """(time in ms, files) of the looks: dead data files and changelog that the snapshots retained by then held.

    A look counts where the window has every snapshot that it saw retained.
    """
    import numpy as np

    ids = np.array([s.id for s in window.steps], np.int64)
    told = [s for s in looks if s.earliest is not None and s.latest is not None and s.latest >= s.earliest]
    if not len(ids) or not told:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    earliest = np.array([s.earliest for s in told], np.int64)
    latest = np.array([s.latest for s in told], np.int64)
    first, last = np.searchsorted(ids, earliest), np.searchsorted(ids, latest)
    whole = (last < len(ids)) & (ids[np.minimum(first, len(ids) - 1)] == earliest)
    whole &= ids[np.minimum(last, len(ids) - 1)] == latest
    whole &= last - first == latest - earliest  # no gap between
    dead, log = (np.r_[0, np.cumsum(_per_step(window, ids, kind))] for kind in (REMOVAL, CHANGELOG))
    first, last = first[whole], last[whole]
    # The earliest snapshot's own removals are gone with the one before it.
    files = dead[last + 1] - dead[first + 1] + log[last + 1] - log[first]
    return np.array([s.taken_ms for s in told], np.int64)[whole], files


def _per_step(window: Window, ids: Ints, kind: str) -> Ints:
    import numpy as np

    out = np.zeros(len(ids), np.int64)
    mine = class_is(window.flows, kind)
    np.add.at(out, np.searchsorted(ids, ints(window.flows, "snapshot")[mine]), ints(window.flows, "files")[mine])
    return out


def just_expired(looks: Sequence[Seen], times: Ints) -> Ints:
    """Positions in `times` of the looks that were the first to see a later earliest snapshot: expiry had just run."""
    import numpy as np

    pairs = [(a, b) for a, b in pairwise(looks) if a.earliest is not None and b.earliest is not None]
    moved = {b.taken_ms for a, b in pairs if (b.earliest or 0) > (a.earliest or 0)}
    return np.flatnonzero(np.isin(times, np.array(sorted(moved), np.int64)))


def unmoved(looks: Sequence[Seen]) -> tuple[Seen, Seen] | None:
    """The first and the last look of those that end with the newest and saw one earliest snapshot: nothing expired.

    None where only one look did.
    """
    if not looks:
        return None
    last = first = looks[-1]
    for seen in reversed(looks):
        if seen.earliest != last.earliest:
            break
        first = seen
    return (first, last) if first is not last else None
