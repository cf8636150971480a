# SPDX-License-Identifier: Apache-2.0
"""D1 to D8 drawn: tables that have the cause, and tables that only look like it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from drawing import KEYED, base, calm, inline, long_kept, with_options
from setting import APPEND, APPEND_FIXED, DYNAMIC, FIXED, Compactor, Setting, every

from shoal.table.table import Table

# ---- healthy tables of any kind --------------------------------------------------------------------------


def any_table(r: random.Random) -> tuple[str, Setting]:
    s = base(r)
    return f"{s.kind}, {s.interval_s} s", s


# ---- D1: checkpoint too frequent -------------------------------------------------------------------------


def often(r: random.Random) -> tuple[str, Setting]:
    s = replace(base(r, least=45), slo_s=None)
    how = r.choice(("fast", "faster", "asked"))
    if how == "fast":
        s = replace(s, interval_s=r.choice((1, 2, 3, 5, 8, 10)))
        return f"every {s.interval_s} s", s
    if how == "faster":
        slow, times = r.choice((60, 90, 120, 300)), r.choice((4, 6, 10))
        turn = r.choice((25, 40))
        s = replace(calm(s), intervals=lambda i: slow if i <= turn else slow / times, interval_s=slow / times,
                    checkpoints=turn + r.choice((30, 60, 100)))  # fmt: skip
        s = replace(s, pause=lambda _: 0.0)
        if slow / times >= 60:  # not faster than anybody needs
            s = replace(s, intervals=lambda i: slow if i <= turn else 10, interval_s=10)
        return f"{slow} s, then {slow / times} s", long_kept(s)
    s = replace(s, interval_s=r.choice((5, 10, 30, 60)))
    return f"{s.interval_s} s, asked", replace(s, slo_s=s.interval_s * r.choice((6, 10, 20)))


def not_often(r: random.Random) -> tuple[str, Setting]:
    s = replace(base(r), slo_s=None)
    how = r.choice(("asked", "slower", "few rows", "large", "young"))
    if how == "asked":
        fast = r.choice((1, 5, 10, 30))
        return f"{fast} s, asked", replace(s, interval_s=fast, slo_s=fast * r.choice((1.1, 1.5, 1.9)))
    if how == "slower":
        turn = r.choice((30, 50))
        s = replace(s, intervals=lambda i: 10 if i <= turn else 60, interval_s=60, checkpoints=turn + 40)
        return "slower now", long_kept(replace(s, pause=lambda _: 0.0))
    if how == "few rows":
        return "few rows", replace(s, interval_s=r.choice((60, 120, 600)), rows=2, share=lambda _: 1.0)
    if how == "large":
        s = replace(s, interval_s=10, rows=400 * s.buckets, share=lambda _: 1.0, checkpoints=min(s.checkpoints, 60),
                    partitions="none", keys=100_000, value_bytes=60)  # fmt: skip
        return "fast, but large files", with_options(s, target_file_size="128 kb")
    return "young", replace(s, interval_s=r.choice((5, 60)), checkpoints=r.choice((3, 8, 12)))


# ---- D2: too many active buckets -------------------------------------------------------------------------


def many(r: random.Random) -> tuple[str, Setting]:
    s = calm(base(r, kinds=(FIXED, FIXED, DYNAMIC, APPEND_FIXED), least=25))
    s = replace(s, checkpoints=min(s.checkpoints, 60), partitions=r.choice(("none", "none", "day")))
    n = r.choice((16, 24, 32, 50, 64, 100))
    s = replace(s, buckets=n, rows=n * r.choice((3, 8)), keys=100_000)
    if s.kind == DYNAMIC:
        s = replace(s, keys=n * 40, rows=n * 6)
        s = with_options(s, dynamic_bucket__target_row_num=40)
    return f"{n} buckets, {s.kind}", s


def not_many(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("few", "inactive", "large", "young"))
    if how == "few":
        s = base(r, kinds=(FIXED, APPEND_FIXED))
        return "eight", replace(s, buckets=r.choice((7, 8)), rows=60, keys=100_000)
    if how == "inactive":
        s = calm(base(r, kinds=(FIXED,), least=25))
        return "many, few of them active", replace(s, buckets=64, rows=2, keys=100_000, partitions="none")
    if how == "large":
        s = calm(base(r, kinds=(FIXED,), least=25))
        s = replace(inline(s), buckets=16, rows=16 * 60, keys=10**9, checkpoints=40, partitions="none", value_bytes=40)
        return "large ones", with_options(s, target_file_size="24 kb", compaction__size_ratio=1)
    s = base(r, kinds=(FIXED,))
    return "young", replace(s, buckets=40, rows=200, checkpoints=r.choice((2, 6, 10)))


# ---- D3: changelog doubling ------------------------------------------------------------------------------


def doubled(r: random.Random) -> tuple[str, Setting]:
    s = inline(base(r, kinds=KEYED, least=45))
    s = replace(s, reader=None, keys=max(s.keys, 2000))
    how = r.choice(("input", "lookup", "full-compaction"))
    s = with_options(s, changelog_producer=how)
    if how == "full-compaction":
        s = with_options(s, full_compaction__delta_commits=1)
    if how != "input":
        s = replace(s, checkpoints=min(s.checkpoints, 90))
    return f"{how}, {s.kind}", s


def not_doubled(r: random.Random) -> tuple[str, Setting]:
    name, s = doubled(r)
    how = r.choice(("read", "read", "kept", "told", "young"))
    if how == "read":
        return f"{name}, read", replace(s, reader=r.choice((0, 1, 2)))
    if how == "kept":
        return f"{name}, kept", with_options(s, changelog__time_retained="20 d", snapshot__time_retained="1 h")
    if how == "told":
        return f"{name}, a stream by its options", with_options(s, scan__mode="latest")
    return f"{name}, young", replace(s, checkpoints=r.choice((3, 8)))


# ---- D4: key skew ----------------------------------------------------------------------------------------


def skewed(r: random.Random) -> tuple[str, Setting]:
    s = calm(base(r, kinds=(FIXED, FIXED, APPEND_FIXED), least=45))
    n = r.choice((2, 3, 4, 6, 8))
    hot = r.choice((0.7, 0.8, 0.9)) if n < 4 else r.choice((0.5, 0.6, 0.8))
    # a share is told from 500 rows of a partition, or so many an hour; the largest partition may get half of them
    rows = max(n * r.choice((15, 40)), round(s.interval_s / 2.5))
    s = replace(s, buckets=n, hot=hot, rows=rows, keys=100_000)
    return f"{hot} to one of {n}, {s.kind}", s


def not_skewed(r: random.Random) -> tuple[str, Setting]:
    s = base(r, kinds=(FIXED, FIXED, APPEND_FIXED), least=25)
    if r.random() < 0.3:
        return "few keys", replace(s, buckets=4, keys=9, rows=30)
    n = r.choice((3, 4, 6))
    return "a little", replace(s, buckets=n, hot=r.choice((0.0, 0.05, 0.12)), rows=n * 40, keys=100_000)


# ---- D5: compaction starved ------------------------------------------------------------------------------


def starved(r: random.Random) -> tuple[str, Setting]:
    s = calm(inline(base(r, kinds=KEYED, least=45)))
    late = r.choice((9, 12, 16))
    s = replace(s, busy=every(late), checkpoints=max(s.checkpoints, 6 * late), keys=max(s.keys, 2000))
    stop = r.choice((None, 30, 1000))
    if stop is not None:
        s = with_options(s, num_sorted_run__stop_trigger=stop)
    return f"compaction after {late} checkpoints, stop {stop}", s


def not_starved(r: random.Random) -> tuple[str, Setting]:
    s = inline(base(r, kinds=KEYED, least=45))
    how = r.choice(("late", "trigger", "never waits"))
    if how == "late":
        return "a checkpoint late", replace(s, busy=every(2))
    if how == "trigger":
        trigger = r.choice((3, 4, 6, 7))
        return f"trigger {trigger}", with_options(s, num_sorted_run__compaction_trigger=trigger)
    return "never waits", with_options(s, num_sorted_run__stop_trigger=2147483647, sort_spill_threshold=10)


# ---- D6: expiry behind -----------------------------------------------------------------------------------


def looking_in_time(s: Setting) -> Setting:
    """Readers that look too seldom for what is asked would be a cause of their own."""
    return s if s.slo_s is None else with_options(s, continuous__discovery_interval=f"{int(s.interval_s * 200)} ms")


def behind(r: random.Random) -> tuple[str, Setting]:
    s = calm(base(r, least=60))
    options = {k: v for k, v in s.options.items() if not k.startswith("snapshot.")}
    s = replace(s, options=options, reader=None, stuck_at=0)
    kept = int(s.interval_s * r.choice((12, 20)))
    s = with_options(s, snapshot__time_retained=f"{kept} s")
    how = r.choice(("consumer", "consumer", "limit", "least"))
    if how == "consumer":
        return "a consumer stands", looking_in_time(replace(s, stuck_at=r.choice((5, 15))))
    if how == "limit":
        s = inline(replace(s, kind=FIXED, checkpoints=max(s.checkpoints, 90)))
        return "one at a time", with_options(s, snapshot__expire__limit=1)
    return "many at least", with_options(s, snapshot__num_retained__min=r.choice((500, 1000)))


def not_behind(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=45)
    options = {k: v for k, v in s.options.items() if not k.startswith("snapshot.")}
    s = replace(s, options=options)
    kept = int(s.interval_s * r.choice((12, 20)))
    s = with_options(s, snapshot__time_retained=f"{kept} s")
    how = r.choice(("follows", "stopped a moment ago", "paused", "few at least", "jobs"))
    if how == "follows":
        return "a consumer follows", looking_in_time(replace(s, reader=r.choice((0, 2, 5))))
    if how == "stopped a moment ago":
        return "a consumer stopped a moment ago", replace(s, stuck_at=s.checkpoints - 12)
    if how == "paused":
        at = s.checkpoints - r.choice((2, 3))
        return "paused", replace(calm(s), pause=lambda i: 60.0 if i == at else 0.0)
    if how == "few at least":
        return "few more at least", with_options(s, snapshot__num_retained__min=20)
    s = replace(
        inline(s), kind=FIXED, identifier=lambda _: None, user=lambda i: f"job-{i}", interval_s=3600, slo_s=None
    )
    return "hourly jobs", with_options(s, snapshot__time_retained="1 h")


# ---- D7: write-only and nobody compacts ------------------------------------------------------------------


def nobody(r: random.Random) -> tuple[str, Setting]:
    s = base(r, kinds=(FIXED, FIXED, DYNAMIC, APPEND, APPEND_FIXED), least=45)
    s = with_options(replace(s, compactors=()), write_only="true")
    if r.random() < 0.25:
        n, gone = r.choice((5, 10)), r.choice((24, 30))
        s = replace(calm(s), checkpoints=max(s.checkpoints, gone * 2), compactors=(Compactor(_until(n, gone)),))
        return f"the job died, {s.kind}", long_kept(s)
    return f"{s.kind}", s


def _until(n: int, gone: int) -> Callable[[int], bool]:
    return lambda i: i % n == 0 and i <= gone


def not_nobody(r: random.Random) -> tuple[str, Setting]:
    s = base(r, kinds=(FIXED, FIXED, DYNAMIC, APPEND), least=25)
    how = r.choice(("job", "job", "young", "load"))
    s = with_options(s, write_only="true")
    if how == "job":
        n = r.choice((3, 8, 15, 25))
        s = replace(s, compactors=(Compactor(every(n), batch=r.random() < 0.5, full=r.random() < 0.5),))
        # it ends somewhere between two runs
        return f"a job each {n}", replace(s, checkpoints=max(s.checkpoints, 4 * n) + r.randrange(n))
    if how == "young":
        return "young", replace(s, compactors=(), checkpoints=r.choice((4, 7)))
    return "one load", replace(s, compactors=(), checkpoints=1, rows=3000, identifier=lambda _: None)


# ---- D8: late partitions ---------------------------------------------------------------------------------


def late(r: random.Random) -> tuple[str, Setting]:
    s = calm(base(r, kinds=(FIXED, DYNAMIC, APPEND), least=25))
    share, days = r.choice((0.03, 0.06, 0.1)), r.choice((5, 8, 15))
    by = r.choice(("day", "day", "hour", "date and hour"))
    rows = round(max(days * 2 / share, 150))
    s = replace(s, late=share, late_days=days, partitions=by, rows=min(rows, 600), buckets=r.choice((1, 2)),
                keys=100_000, checkpoints=min(s.checkpoints, 60))  # fmt: skip
    return f"{share} to {days} {by}s back, {s.kind}", s


def not_late(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=25)
    how = r.choice(("days", "regions", "a little", "load"))
    if how == "days":
        return "days pass", replace(s, partitions=r.choice(("day", "hour")), event_speed=r.choice((1.0, 20.0)))
    if how == "regions":
        return "regions", replace(s, partitions="region")
    if how == "a little":
        return "a little late", replace(s, partitions="day", late=0.002, late_days=2, rows=100)
    s = replace(s, partitions="day", late=0.0)
    at = s.checkpoints // 2

    def load(table: Table, i: int) -> None:
        if i == at:
            n = 400
            rows = {"k": pa.array(range(n), pa.int64()), "g": pa.array([1] * n, pa.int32()), "v": ["x"] * n,
                    "n": pa.array([1] * n, pa.int64()), "dt": ["2025-12-20"] * n}  # fmt: skip
            with table.write() as write:
                write.write(pa.table(rows))
                write.commit()

    return "an old day loaded", replace(s, after=load)
