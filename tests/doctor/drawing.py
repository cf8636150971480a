# SPDX-License-Identifier: Apache-2.0
"""How a table is drawn: `base` is a healthy one of any kind, the rest changes one thing of it.

Buckets, partitions, format, clock, rhythm, retention, engine, who compacts and who reads vary. What they may be is
written from Paimon's documents and from how jobs are run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from setting import APPEND, APPEND_FIXED, DYNAMIC, FIXED, POSTPONE, Compactor, Setting, every

from shoal.table.table import Table


@dataclass(frozen=True)
class Drawn:
    """One table: the cause in it (None: well), what it is, and its setting."""

    cause: str | None
    name: str
    setting: Setting


Draw = Callable[[random.Random], tuple[str, Setting]]


def base(r: random.Random, *, kinds: tuple[str, ...] = (), least: int = 10, **fixed: Any) -> Setting:
    """A healthy table."""
    kind = r.choice(kinds or (FIXED, FIXED, FIXED, DYNAMIC, APPEND, APPEND_FIXED, POSTPONE))
    buckets = r.choice((1, 1, 2, 3, 4, 6))
    options: dict[str, object] = {}
    s = Setting(
        kind=kind, interval_s=r.choice((60, 75, 90, 120, 180, 300, 600)), buckets=buckets,
        rows=r.choice((5, 15, 40, 120)) * buckets, keys=r.choice((200, 2000, 100_000)),
        checkpoints=r.choice([n for n in (10, 25, 32, 45, 45, 60, 90) if n >= least]),
        format=r.choice(("avro", "parquet", "orc")), partitions=r.choice(("none", "none", "region", "day")),
    )  # fmt: skip
    if r.random() < 0.15:  # rows are needed at once
        fast = r.choice((1, 2, 5, 10, 20))
        s = replace(s, interval_s=fast, slo_s=fast * 1.5)
    if s.keyed:
        s = replace(s, deletes=r.choice((0, 0, 0.2)))
        engine = r.choice(("deduplicate", "deduplicate", "partial-update", "aggregation"))
        if engine != "deduplicate":
            s = replace(s, deletes=0.0)
            options["merge-engine"] = engine
    retained = r.choice(("", "", "", "10 min", "1 d", "most"))
    if retained == "most":
        options["snapshot.num-retained.max"] = "30"
    elif retained:
        options["snapshot.time-retained"] = retained
    if kind == POSTPONE:
        options["postpone.default-bucket-num"] = str(buckets)
        n = r.choice((1, 2, 4))
        s = replace(s, compactors=(Compactor(every(n)),))
    elif kind in (APPEND, APPEND_FIXED):
        s = replace(s, compactors=(Compactor(every(r.choice((4, 8)))),))
        if r.random() < 0.5 or kind == APPEND_FIXED:
            options["write-only"] = "true"
    elif r.random() < 0.25:
        options["write-only"] = "true"
        s = replace(s, compactors=(Compactor(every(r.choice((1, 2, 5, 10))), batch=r.random() < 0.4),))
    rhythm = r.choice(("steady", "steady", "night", "bursts", "backfill", "pauses"))
    if rhythm == "night":
        day = r.choice((24, 36))
        s = replace(s, share=lambda i: 0.0 if i % day < day // 3 else 1.3)
    elif rhythm == "bursts":
        often, more = r.choice((7, 11)), r.choice((4, 10))
        s = replace(s, share=lambda i: more if i % often == 0 else 0.8)
    elif rhythm == "backfill":
        s = replace(s, share=lambda i: 40.0 if i == 1 else 1.0)
    elif rhythm == "pauses":
        often, long = r.choice((23, 31)), r.choice((3, 12, 200))
        s = replace(s, pause=lambda i: float(long) if i % often == 0 else 0.0)
    if r.random() < 0.2:
        s = replace(s, reader=r.choice((0, 1, 3)))
        if s.slo_s is not None:
            options["continuous.discovery-interval"] = f"{int(s.interval_s * 200)} ms"
    if r.random() < 0.15:
        s = replace(s, after=ending_tags)
    if r.random() < 0.3:
        s = replace(s, watermark=True)
    return replace(s, options=options, **fixed)


def ending_tags(table: Table, i: int) -> None:
    if i % 20 == 0:
        table.tags.create(f"day-{i}", keep=timedelta(days=1))


def with_options(s: Setting, **options: object) -> Setting:
    """More options, with `_` for `-` and `__` for `.`."""
    return replace(s, options={**s.options, **{k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}})


def without(s: Setting, *names: str) -> Setting:
    """These options at their defaults."""
    return replace(s, options={k: v for k, v in s.options.items() if k not in names})


def long_kept(s: Setting) -> Setting:
    """Its snapshots reach back to its beginning."""
    return without(with_options(s, snapshot__time_retained="30 d"), "snapshot.num-retained.max")


def calm(s: Setting) -> Setting:
    """The same rows at every checkpoint."""
    return replace(s, share=lambda _: 1.0, pause=lambda _: 0.0)


def inline(s: Setting) -> Setting:
    """Its writer compacts."""
    options = {k: v for k, v in s.options.items() if k != "write-only"}
    return replace(s, options=options, compactors=())


KEYED = (FIXED, FIXED, DYNAMIC)
