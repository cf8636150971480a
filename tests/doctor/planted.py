# SPDX-License-Identifier: Apache-2.0
"""The grid of lives: for each cause many tables that have it and no other, and tables that only look like it.

Parameters vary over intervals, buckets, rates, formats and seeds. The rules were mended while this grid was run: that it
passes says that nothing was lost, not that a table which nobody has seen is judged right. No threshold is there for one
table of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from incidents import Life, Phase, by_day

HOUR = 3600
REGIONS = ("region=eu/", "region=us/", "region=in/", "region=jp/", "region=za/")


@dataclass(frozen=True)
class Case:
    """A life, the cause planted in it, and the freshness that its user asked for."""

    name: str
    cause: str | None
    life: Life
    slo_ms: int | None = None


def planted() -> Iterator[Case]:
    """Every table with a cause."""
    for n, case in enumerate(
        itertools.chain(_often(), _many(), _changelog(), _skew(), _starved(), _expiry(), _nobody(), _late())
    ):
        yield replace(case, life=replace(case.life, seed=n))


def healthy() -> Iterator[Case]:
    """Every table without."""
    for n, case in enumerate(
        itertools.chain(
            _steady(), _not_often(), _not_many(), _not_changelog(), _not_skew(), _not_starved(), _not_expiry(),
            _not_nobody(), _not_late(),
        )
    ):  # fmt: skip
        yield replace(case, life=replace(case.life, seed=1000 + n))


def _options(**values: object) -> dict[str, str]:
    return {name.replace("__", ".").replace("_", "-"): str(value) for name, value in values.items()}


def _minutes(minutes: float, interval: float) -> int:
    return max(round(minutes * 60 / interval), 25)


# ---- D1 --------------------------------------------------------------------------------------------------


# What is over must still be there to be seen: the default is an hour.
_LONG = _options(snapshot__time_retained="10 d")


def _often() -> Iterator[Case]:
    for slow, fast in ((60, 10), (60, 5), (120, 20), (300, 30), (60, 20), (180, 15), (30, 3)):
        for buckets, rate, form in ((1, 20, "avro"), (4, 100, "parquet"), (8, 500, "orc")):
            phases = Phase(40, slow), Phase(120, fast)
            life = Life(phases, buckets, rate, format=form, options=_LONG)
            yield Case(f"d1 {slow}->{fast} s, {buckets} buckets", "D1", life)
    for interval, slo in ((10, 120), (10, 60), (30, 600), (5, 60)):
        yield Case(f"d1 {interval} s for {slo}", "D1", Life((Phase(90, interval),), 4), slo * 1000)
    for interval in (1, 2, 5, 10):
        yield Case(f"d1 {interval} s", "D1", Life((Phase(150, interval),), 4))
        yield Case(f"d1 {interval} s, append", "D1", Life((Phase(60, interval),), 1, 30, primary_key=False))
    phases = Phase(30, 60), Phase(20, 60, pause_s=1800), Phase(100, 10)
    yield Case("d1 after a restart", "D1", Life(phases, 4, options=_LONG))
    phases = Phase(40, 60, rate=100), Phase(60, 60, rate=300), Phase(100, 10, rate=300)
    yield Case("d1 after more rows", "D1", Life(phases, 4, options=_LONG))
    yield Case("d1 by day", "D1", Life((Phase(40, 120), Phase(100, 20)), 2, partitions=by_day, options=_LONG))


def _not_often() -> Iterator[Case]:
    yield Case("h1 10 s for 15", None, Life((Phase(120, 10),), 4), 15_000)
    yield Case("h1 60->10 s for 12", None, Life((Phase(40, 60), Phase(90, 10)), 4), 12_000)
    yield Case("h1 slower now", None, Life((Phase(60, 10), Phase(60, 60)), 4))
    yield Case("h1 more rows", None, Life((Phase(40, 60, rate=50), Phase(60, 60, rate=400)), 4))
    yield Case("h1 paused", None, Life((Phase(30, 60), Phase(40, 60, pause_s=1200)), 4))
    for interval in (60, 120, 300):
        yield Case(f"h1 {interval} s, few rows", None, Life((Phase(60, interval),), 2, rate=0.2, keys=200))
    big = _options(target_file_size="256 kb")
    yield Case("h1 10 s, busy", None, Life((Phase(100, 10),), 4, 2000, 10_000_000, options=big))
    busy = big | _options(deletion_vectors__enabled="true")
    yield Case("h1 10 s, busy, vectors", None, Life((Phase(100, 10),), 4, 2000, 400_000, options=busy))
    yield Case("h1 jobs", None, Life((Phase(30, 5),), 4, batch=True))
    yield Case("h1 young", None, Life((Phase(8, 10),), 4))


def _steady() -> Iterator[Case]:
    for buckets, interval, rate, form in itertools.product(
        (1, 2, 4, 6), (60, 90, 300), (5, 100, 2000), ("avro", "parquet")
    ):
        phases = (Phase(_minutes(60, interval), interval),)
        yield Case(f"h {buckets} buckets, {interval} s, {rate}/s", None, Life(phases, buckets, rate, format=form))
    yield Case("h a day", None, Life((Phase(1440, 60),), 2, 20))
    yield Case("h append", None, Life((Phase(60, 60),), 1, 50, primary_key=False))
    yield Case("h one load", None, Life((Phase(1, 60, rate=50_000),), 8, batch=True))
    yield Case("h load, then a stream", None, Life((Phase(1, 60, rate=50_000), Phase(60, 60)), 4))
    yield Case("h just made", None, Life((Phase(3, 60),), 4))


# ---- D2 --------------------------------------------------------------------------------------------------


def _many() -> Iterator[Case]:
    for buckets, interval, rate in itertools.product((16, 32, 64, 128, 500), (60, 120), (100, 1000)):
        rows = max(rate, buckets / 4)
        commits = 30 if buckets > 100 else 50
        life = Life((Phase(commits, interval),), buckets, rows, format=("avro", "parquet")[buckets % 3 == 0])
        yield Case(f"d2 {buckets} buckets, {interval} s, {rows}/s", "D2", life)
    yield Case("d2 by day", "D2", Life((Phase(60, 1800),), 32, 50, partitions=by_day))
    yield Case("d2 append", "D2", Life((Phase(40, 60),), 64, 100, primary_key=False))
    yield Case("d2 10 s", "D2", Life((Phase(40, 10),), 128, 400))


def _not_many() -> Iterator[Case]:
    small = _options(target_file_size="128 kb")
    yield Case("h2 large ones", None, Life((Phase(50, 60),), 64, 100_000, 1_000_000, options=small))
    yield Case("h2 few of them active", None, Life((Phase(60, 60),), 256, 0.03, 5000))
    yield Case("h2 eight", None, Life((Phase(60, 60),), 8, 100))
    yield Case("h2 just made", None, Life((Phase(10, 60),), 64, 100))
    yield Case("h2 many partitions", None, Life((Phase(60, 300),), 2, 400, spread=tuple(f"r={i}/" for i in range(12))))
    grows = Life((Phase(40, 60),), 32, 40_000, 10**10)
    yield Case("h2 grows to its size", None, grows)


# ---- D3 --------------------------------------------------------------------------------------------------


def _changelog() -> Iterator[Case]:
    for producer, buckets, interval in itertools.product(("input", "lookup"), (1, 2, 4, 8), (30, 60, 300)):
        options = _options(changelog_producer=producer)
        life = Life((Phase(50, interval),), buckets, 100, options=options)
        yield Case(f"d3 {producer}, {buckets} buckets, {interval} s", "D3", life)
    yield Case("d3 10 s", "D3", Life((Phase(100, 10),), 4, options=_options(changelog_producer="input")))


def _not_changelog() -> Iterator[Case]:
    for producer in ("input", "lookup"):
        options = _options(changelog_producer=producer)
        yield Case(f"h3 {producer}, read", None, Life((Phase(60, 60),), 4, options=options, consumer="bi"))
        kept = options | _options(changelog__time_retained="1 d")
        yield Case(f"h3 {producer}, kept", None, Life((Phase(60, 60),), 4, options=kept))
        few = Life((Phase(10, 60),), 4, options=options)
        yield Case(f"h3 {producer}, young", None, few)


# ---- D4 --------------------------------------------------------------------------------------------------


def _skew() -> Iterator[Case]:
    for buckets, hot, interval in itertools.product((2, 4, 8), (0.7, 0.9), (30, 60, 120)):
        life = Life((Phase(50, interval),), buckets, 50, hot=hot)
        yield Case(f"d4 {hot} of {buckets} buckets, {interval} s", "D4", life)
    yield Case("d4 by day", "D4", Life((Phase(60, 1800),), 4, 20, hot=0.7, partitions=by_day))
    yield Case("d4 16 buckets", "D4", Life((Phase(50, 60),), 16, 100, hot=0.5))
    yield Case("d4 append", "D4", Life((Phase(50, 60),), 8, 100, hot=0.6, primary_key=False))


def _not_skew() -> Iterator[Case]:
    for hot in (0.0, 0.1, 0.2):
        yield Case(f"h4 {hot}", None, Life((Phase(60, 60),), 6, 100, hot=hot))
    yield Case("h4 few keys", None, Life((Phase(60, 60),), 4, 2, 12, hot=0.6))
    yield Case("h4 few rows", None, Life((Phase(60, 60),), 4, 0.05, 400, hot=0.5))


# ---- D5 --------------------------------------------------------------------------------------------------


def _starved() -> Iterator[Case]:
    for slowness, buckets, interval in itertools.product((8, 15), (1, 4, 8), (60, 120)):
        for stop in (None, 30, 1000):
            options = {} if stop is None else {"num-sorted-run.stop-trigger": str(stop)}
            life = Life((Phase(150, interval),), buckets, 100, options=options, slowness=slowness)
            yield Case(f"d5 {slowness} late, stop {stop}, {buckets} buckets, {interval} s", "D5", life)
    options = _options(num_sorted_run__compaction_trigger=10, num_sorted_run__stop_trigger=200)
    yield Case("d5 trigger 10", "D5", Life((Phase(200, 60),), 4, options=options, slowness=25))
    yield Case("d5 10 s", "D5", Life((Phase(200, 10),), 4, slowness=12))


def _not_starved() -> Iterator[Case]:
    yield Case("h5 one late", None, Life((Phase(120, 60),), 4, slowness=1))
    for trigger in (3, 8, 10):
        options = _options(num_sorted_run__compaction_trigger=trigger)
        yield Case(f"h5 trigger {trigger}", None, Life((Phase(150, 60),), 4, options=options))
    options = _options(num_sorted_run__stop_trigger=2147483647, sort_spill_threshold=10)
    yield Case("h5 never waits", None, Life((Phase(150, 60),), 4, options=options))


# ---- D6 --------------------------------------------------------------------------------------------------


def _expiry() -> Iterator[Case]:
    for kept, minutes, interval in (("10 min", 60, 30), ("10 min", 60, 60), ("1 h", 240, 60), ("30 min", 180, 120)):
        options = _options(snapshot__time_retained=kept)
        commits = _minutes(minutes, interval)
        life = Life((Phase(commits, interval),), 2, 20, options=options, consumer_at=commits // 5)
        yield Case(f"d6 consumer, {kept}, {interval} s", "D6", life)
        one = replace(life, consumer_at=0, options=options | _options(snapshot__expire__limit=1))
        yield Case(f"d6 limit, {kept}, {interval} s", "D6", one)
        many = options | _options(snapshot__num_retained__min=commits)
        yield Case(f"d6 least, {kept}, {interval} s", "D6", replace(life, consumer_at=0, options=many))
        yield Case(f"d6 nobody, {kept}, {interval} s", "D6", replace(life, consumer_at=0, expires=False))
    logs = _options(snapshot__time_retained="10 min", changelog_producer="input")
    yield Case("d6 changelog", "D6", Life((Phase(100, 60),), 2, 20, options=logs, consumer_at=10))


def _not_expiry() -> Iterator[Case]:
    yield Case("h6 follows", None, Life((Phase(240, 60),), 2, 20, consumer="bi"))
    yield Case("h6 hourly jobs", None, Life((Phase(40, HOUR),), 2, 1, batch=True))
    yield Case("h6 daily jobs", None, Life((Phase(40, 24 * HOUR),), 2, 1, batch=True))
    soon = _options(snapshot__time_retained="10 min")
    yield Case("h6 stopped a moment ago", None, Life((Phase(60, 30),), 2, 20, options=soon, consumer_at=37))
    limit = soon | _options(snapshot__expire__limit=5)
    after = (Phase(120, 10), Phase(5, 10, pause_s=3600))
    yield Case("h6 works off a pause", None, Life(after, 2, 20, options=limit), 15_000)
    yield Case("h6 keeps many", None, Life((Phase(80, 60),), 2, 20, options=_options(snapshot__num_retained__min=50)))


# ---- D7 --------------------------------------------------------------------------------------------------


def _nobody() -> Iterator[Case]:
    alone = _options(write_only="true")
    for buckets, interval, commits in itertools.product((1, 4, 16), (10, 60, 300), (40, 150)):
        yield Case(
            f"d7 {buckets} buckets, {interval} s", "D7", Life((Phase(commits, interval),), buckets, options=alone)
        )
    yield Case("d7 append", "D7", Life((Phase(80, 60),), 1, 50, primary_key=False, options=alone))
    yield Case("d7 jobs", "D7", Life((Phase(60, 600),), 2, 50, batch=True, options=alone))
    died = Life((Phase(240, 60),), 2, 50, options=alone, compactor_every=20, compactor_dies_after=100)
    yield Case("d7 the job died", "D7", died)
    yield Case("d7 by day", "D7", Life((Phase(70, 3600),), 2, 1, partitions=by_day, options=alone))


def _not_nobody() -> Iterator[Case]:
    alone = _options(write_only="true")
    for every, interval, commits in ((60, 60, 200), (6, 60, 100), (20, 60, 90), (30, 120, 130), (12, 300, 100)):
        life = Life((Phase(commits, interval),), 2, 50, options=alone, compactor_every=every)
        yield Case(f"h7 compacted each {every}, {interval} s", None, life)
    yield Case("h7 young", None, Life((Phase(10, 60),), 4, options=alone))
    yield Case("h7 one load", None, Life((Phase(1, 60, rate=20_000),), 4, options=alone, batch=True))


# ---- D8 --------------------------------------------------------------------------------------------------


def _weekly(seconds: float) -> str:
    return f"week={int(seconds // (7 * 86_400)) + 100}/"


def _plain(seconds: float) -> str:
    return f"p=p{max(int(seconds // 86_400), -30) + 30:03d}/"


def _late() -> Iterator[Case]:
    for late, days, buckets, interval in (
        (0.05, 7, 2, 60), (0.02, 14, 4, 60), (0.1, 30, 1, 300), (0.01, 30, 2, 120), (0.2, 10, 4, 600), (0.05, 5, 8, 60)
    ):  # fmt: skip
        life = Life((Phase(60, interval),), buckets, 100, partitions=by_day, late=late, late_days=days)
        yield Case(f"d8 {late} of {days} days, {buckets} buckets, {interval} s", "D8", life)
        yield Case(f"d8 append {late} of {days}", "D8", replace(life, primary_key=False))
    plain = Life((Phase(100, 7200),), 2, 5, partitions=_plain, late=0.05, late_days=8, options=_LONG)
    yield Case("d8 no dates", "D8", plain)


def _not_late() -> Iterator[Case]:
    for interval in (60, 1800):
        yield Case(f"h8 by day, {interval} s", None, Life((Phase(70, interval),), 2, 50, partitions=by_day))
    yield Case("h8 regions", None, Life((Phase(60, 60),), 2, 100, spread=REGIONS))
    yield Case("h8 a little late", None, Life((Phase(60, 600),), 2, 50, partitions=by_day, late=0.001, late_days=1))
