# SPDX-License-Identifier: Apache-2.0
"""How long planning takes, measured: the manifests of a few retained snapshots are read beside a clock.

Invariant: each reading has a cache of its own, so that a manifest that two snapshots share is read twice, as two
planners would.
"""

from __future__ import annotations

from shoal.clock import Clock
from shoal.doctor.forecast import DAY_MINUTES, Plan, Planning, planning
from shoal.doctor.window import Window
from shoal.errors import NotFound
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata

_READINGS = 6  # snapshots, spread over what is retained


def measured_planning(metadata: Metadata, window: Window, clock: Clock, *, limit_s: float) -> Planning | None:
    """None where fewer than three snapshots are retained, or the window has no length."""
    there = [s for s in window.steps if s.id >= (window.stock.earliest or 0)]
    if len(there) < 3:
        return None
    count = min(_READINGS, len(there))
    plans = []
    for step in (there[i * (len(there) - 1) // (count - 1)] for i in range(count)):
        reader = Metadata(metadata.store, Cache())
        begin = clock.monotonic()
        try:
            reader.live(reader.snapshot(step.id))
        except NotFound:  # it expired meanwhile
            continue
        plans.append(Plan(step.manifests.bytes, step.entries, clock.monotonic() - begin))
    first, last = there[0], there[-1]
    days = (last.time_ms - first.time_ms) / 60_000 / DAY_MINUTES
    if days <= 0:
        return None
    return planning(
        plans, manifest_bytes=last.manifests.bytes, entries=last.entries,
        bytes_per_day=max(last.manifests.bytes - first.manifests.bytes, 0) / days,
        entries_per_day=max(last.entries - first.entries, 0) / days, limit_s=limit_s,
    )  # fmt: skip
