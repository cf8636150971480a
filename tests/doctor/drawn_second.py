# SPDX-License-Identifier: Apache-2.0
"""D9 to D17 drawn: tables that have the cause, and tables that only look like it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from drawing import KEYED, base, calm, ending_tags, inline, long_kept, with_options, without
from setting import APPEND, APPEND_FIXED, DYNAMIC, FIXED, Compactor, Setting, every, rows_of

from shoal.doctor.flink import CheckpointConfig, Job
from shoal.table.table import Table

# ---- D9: target or format too small ----------------------------------------------------------------------


def small(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("target", "target", "append target", "rows", "append rows", "ratio", "format"))
    if how in ("append target", "append rows", "ratio"):
        s = calm(base(r, kinds=(APPEND, APPEND_FIXED), least=45))
        s = replace(s, rows=60 * s.buckets, partitions=r.choice(("none", "region")))
        if how == "append target":
            return f"{how}, {s.kind}", with_options(s, target_file_size=r.choice(("2 kb", "4 kb")))
        if how == "ratio":
            s = replace(s, kind=APPEND, partitions="none", rows=200, value_bytes=80, keys=10**6)
            return how, with_options(s, target_file_size="64 kb", compaction__small_file_ratio=r.choice((0.02, 0.05)))
        return f"{how}, {s.kind}", with_options(s, target_file_row_num=r.choice((20, 50)))
    s = calm(inline(base(r, kinds=KEYED, least=25)))
    s = replace(s, checkpoints=40, buckets=r.choice((1, 2, 3)), partitions=r.choice(("none", "region")), format="avro")
    s = replace(s, rows=s.buckets * 1000, keys=s.buckets * 20_000, interval_s=r.choice((60, 300)), slo_s=None)
    if s.partitions == "region":
        s = replace(s, rows=2 * s.rows)
    if how == "target":
        return how, with_options(s, target_file_size=r.choice(("8 kb", "16 kb", "32 kb")))
    if how == "format":
        s = _compressible(replace(s, closed_early=True), r)
        return "closed before compression", with_options(s, target_file_size=r.choice(("192 kb", "256 kb")))
    return how, with_options(s, target_file_row_num=r.choice((300, 1000)))


def _compressible(s: Setting, r: random.Random) -> Setting:
    """Rows that take a tenth of their size in a Parquet file."""
    return replace(s, format="parquet", value_bytes=16, repeats=r.choice((40, 60)), keys=s.buckets * 8000)


def not_small(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("load", "one file", "append", "format"))
    if how == "format":
        s = calm(inline(base(r, kinds=KEYED, least=25)))
        s = replace(s, buckets=r.choice((1, 2, 3)), partitions="none", checkpoints=30, slo_s=None)
        s = _compressible(replace(s, rows=s.buckets * 1000), r)
        return "closed by what they take on disk", with_options(s, target_file_size=r.choice(("192 kb", "256 kb")))
    if how == "load":
        s = calm(inline(base(r, kinds=(FIXED,), least=25)))
        s = replace(s, share=lambda i: 100.0 if i == 1 else 1.0, rows=40 * s.buckets, keys=10**6, value_bytes=40)
        return "a load of several files", with_options(s, target_file_size="64 kb")
    if how == "one file":
        s = inline(base(r, kinds=KEYED, least=25))
        return "target lowered, a few files", with_options(s, target_file_size=r.choice(("32 mb", "8 mb")))
    s = base(r, kinds=(APPEND,), least=45)
    return "append, target lowered", with_options(s, target_file_size=r.choice(("64 mb", "16 mb")))


# ---- D10: compaction conflict ----------------------------------------------------------------------------


def conflict(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("job", "job", "batch job", "two jobs", "two writers"))
    s = inline(base(r, kinds=(FIXED, FIXED, DYNAMIC), least=60))
    s = long_kept(s)
    n = r.choice((7, 9, 12, 16))  # so seldom that the writer compacts in between
    s = replace(calm(s), checkpoints=max(s.checkpoints, 6 * n))
    if how == "job":
        return f"writer and job each {n}", replace(s, compactors=(Compactor(every(n), full=True),))
    if how == "batch job":
        return f"writer and batch job each {n}", replace(s, compactors=(Compactor(every(n), batch=True, full=True),))
    if how == "two jobs":
        s = with_options(s, write_only="true")
        jobs = Compactor(every(n), full=True), Compactor(every(n, n // 2), user="another", full=True)
        return f"two jobs each {n}", replace(s, compactors=jobs)
    s = replace(s, kind=FIXED)
    return "two writers", replace(s, after=_second_writer(s))


def _second_writer(s: Setting) -> Callable[[Table, int], None]:
    """Another job that writes the same buckets. Each third time it compacts what is there; in between so many runs come
    that the first one does."""

    def write(table: Table, i: int) -> None:
        if i % 3:
            return
        rng = np.random.default_rng(i)
        rows = rows_of(s, rng, max(s.rows, 4), s.interval_s * i, i)
        own = {"write-only": "true"} if i % 9 else {"num-sorted-run.compaction-trigger": "2"}
        with table.with_options(own).write("second") as other:
            other.upsert(rows)
            other.commit(i, wait=True)

    return write


def not_conflict(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("job", "by hand", "renamed", "partitions"))
    s = base(r, kinds=(FIXED, FIXED, DYNAMIC), least=60)
    if how == "job":
        s = with_options(s, write_only="true")
        return "write-only and one job", replace(s, compactors=(Compactor(every(3)),))
    s = inline(s)
    if how == "by hand":
        at = (s.checkpoints // 3, s.checkpoints // 2)
        return "twice by hand", replace(s, compactors=(Compactor(lambda i: i in at, batch=True, full=True),))
    turn = s.checkpoints // 2
    if how == "renamed":
        return "another name", replace(s, user=lambda i: "old" if i <= turn else "new")
    return "inline", s


# ---- D11: manifest bloat ---------------------------------------------------------------------------------


def bloated(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("apart", "apart", "tiny", "full"))
    s = replace(base(r, least=60), checkpoints=90)
    if how == "apart":
        return "merged from 300 on", with_options(s, manifest__merge_min_count=r.choice((300, 1000)))
    if how == "tiny":
        s = with_options(s, manifest__target_file_size=r.choice(("1 kb", "2 kb")))
        return "full at 1 kb", s
    # ORC keeps no bounds of long texts, and postponed files have none
    s = replace(base(r, kinds=(FIXED, DYNAMIC, APPEND), least=60), format=r.choice(("avro", "parquet")))
    s = replace(s, value_bytes=r.choice((1500, 4000)), rows=min(s.rows, 20), checkpoints=60)
    return "whole values as bounds", with_options(s, metadata__stats_mode="full")


def not_bloated(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=25)
    how = r.choice(("swing", "a little", "truncated"))
    if how == "swing":
        return "just before a merge", replace(s, checkpoints=r.choice((14, 19, 28, 29)))
    if how == "a little":
        return "merged from 40 on", with_options(s, manifest__merge_min_count=40)
    return "long values, truncated", replace(s, value_bytes=1500, rows=min(s.rows, 20))


# ---- D12: freshness lost after commit --------------------------------------------------------------------

VECTORS = {"deletion-vectors.enabled": "true"}


def stale(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(
        ("vectors", "vectors by a job", "lookup", "first row", "full", "full", "discovery", "delay", "probes")
    )
    s = calm(inline(base(r, kinds=KEYED, least=60)))
    s = replace(s, reader=0, deletes=0.0)
    s = long_kept(without(s, "merge-engine"))
    seldom = r.choice((8, 12, 20))
    if how == "vectors":
        s = replace(s, busy=every(seldom))
        return f"vectors, compaction after {seldom}", with_options(s, lookup_wait="false", **VECTORS)
    if how == "vectors by a job":
        s = replace(s, kind=FIXED, compactors=(Compactor(every(seldom)),))
        return f"vectors, a job each {seldom}", with_options(s, write_only="true", **VECTORS)
    if how == "lookup":
        s = replace(s, busy=every(seldom))
        return f"lookup, compaction after {seldom}", with_options(s, lookup_wait="false", changelog_producer="lookup")
    if how == "first row":
        s = replace(s, busy=every(seldom))
        return f"first row, compaction after {seldom}", with_options(s, lookup_wait="false", merge_engine="first-row")
    if how == "full":
        n = r.choice((16, 20, 30))
        s = replace(s, checkpoints=max(s.checkpoints, 3 * n))
        return f"a changelog each {n}", with_options(
            s, changelog_producer="full-compaction", full_compaction__delta_commits=n
        )
    if how == "discovery":
        look = int(s.interval_s * r.choice((6, 15, 40)))
        return "streams look seldom", with_options(s, continuous__discovery_interval=f"{look} s")
    if how == "delay":
        look = int(s.interval_s * r.choice((6, 15)))
        return "streams wait", with_options(s, streaming__read__snapshot__delay=f"{look} s")
    late = s.interval_s * 1000
    return "measured", replace(
        s, probes={"commit": (late * 0.3, late * 0.6, late), "read": (late * 6, late * 9, late * 12)}
    )


def not_stale(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("vectors", "merge on read", "full", "discovery", "probes", "lookup"))
    s = calm(inline(base(r, kinds=KEYED, least=45)))
    s = replace(s, reader=0, deletes=0.0, checkpoints=min(s.checkpoints, 60))
    if s.slo_s is not None:
        s = with_options(s, continuous__discovery_interval=f"{int(s.interval_s * 200)} ms")
    s = without(s, "merge-engine")
    if how == "vectors":
        return "vectors that wait", with_options(s, **VECTORS)
    if how == "merge on read":
        s = replace(s, busy=every(2))
        return how, with_options(s, lookup_wait="false", deletion_vectors__merge_on_read="true", **VECTORS)
    if how == "full":
        n = r.choice((1, 3, 5, 10))
        return f"a changelog each {n}", with_options(
            s, changelog_producer="full-compaction", full_compaction__delta_commits=n
        )
    if how == "discovery":
        return "streams look often", with_options(
            s, continuous__discovery_interval=f"{max(int(s.interval_s / 3), 1)} s"
        )
    if how == "probes":
        late = s.interval_s * 1000
        return "measured", replace(s, probes={"commit": (late * 0.4, late), "read": (late * 0.6, late * 1.4)})
    return "lookup that waits", with_options(s, changelog_producer="lookup")


# ---- D13: buffer overflow --------------------------------------------------------------------------------


def overflowing(r: random.Random) -> tuple[str, Setting]:
    s = calm(inline(base(r, kinds=KEYED, least=25)))
    s = replace(s, checkpoints=r.choice((24, 30)), rows=s.buckets * r.choice((100, 250)), parts=r.choice((5, 10)),
                value_bytes=r.choice((600, 1500)), keys=100_000, partitions=r.choice(("none", "none", "region")))  # fmt: skip
    size = r.choice((96, 128))
    s = replace(s, rows=max(s.rows, s.buckets * 3 * size * 1024 // s.value_bytes))  # several buffers a bucket
    s = with_options(s, write_buffer_size=f"{size} kb", page_size="16 kb")
    if r.random() < 0.6:
        return f"{size} kb, not spilled, {s.kind}", with_options(s, write_buffer_spillable="false")
    s = with_options(replace(s, value_bytes=1500), write_buffer_spill__max_disk_size="32 kb")
    return f"{size} kb, spilled to a full disk, {s.kind}", s


def not_overflowing(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("spilled", "loads", "catch-up"))
    _, s = overflowing(r)
    options = {k: v for k, v in s.options.items() if not k.startswith("write-buffer-spill")}
    if how == "spilled":
        return "spilled", replace(s, options=options)
    if how == "loads":  # of files that are full
        s = replace(s, options={**options, "target-file-size": "64 kb", "write-buffer-size": "64 mb"})
        s = replace(s, rows=s.buckets * 30, share=lambda i: 100.0 if i in (4, 9) else 1.0, value_bytes=100)
        return "two large loads", replace(s, checkpoints=24, partitions="none")
    at = s.checkpoints // 2
    usual = min(0.05, 40 / s.rows)  # what fits the buffer
    return "one catch-up", replace(s, share=lambda i: 1.0 if i in (at, at + 1) else usual)


# ---- D14: idle commits -----------------------------------------------------------------------------------


def idle(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=60)
    nth = r.choice((3, 5, 10, 20))
    how = r.choice(("even", "nights"))
    s = replace(s, force_empty=True, pause=lambda _: 0.0, checkpoints=max(s.checkpoints, 60))
    if how == "nights":
        s = long_kept(s)
    if how == "even":
        return f"rows with each {nth}th", replace(s, share=lambda i: 1.0 if i % nth == 0 else 0.0)
    return "rows by day only", replace(s, share=lambda i: 1.0 if i % 40 < 10 else 0.0)


def not_idle(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=60)
    how = r.choice(("some", "skips", "skips"))
    s = replace(s, pause=lambda _: 0.0)
    if how == "some":
        nth = r.choice((3, 4, 8))
        return "some are empty", replace(s, force_empty=True, share=lambda i: 0.0 if i % nth == 0 else 1.0)
    nth = r.choice((2, 3, 6))
    return "empty ones are left out", replace(s, share=lambda i: 1.0 if i % nth == 0 else 0.0, checkpoints=120)


# ---- D15: held by tag or branch --------------------------------------------------------------------------


def held(r: random.Random) -> tuple[str, Setting]:
    s = calm(inline(base(r, kinds=KEYED, least=60, partitions="none")))
    s = replace(s, keys=s.rows * 2, reader=None)
    s = with_options(s, snapshot__time_retained=f"{int(s.interval_s * 5)} s", snapshot__num_retained__min=2)
    s = without(s, "snapshot.num-retained.max")
    how = r.choice(("tags", "one tag", "branch", "overwritten"))
    if how == "tags":
        n = r.choice((6, 10, 15))
        return "tags without an end", replace(s, after=lambda t, i: t.tags.create(f"t{i}") if i % n == 0 else None)
    at = s.checkpoints // 3
    if how == "one tag":
        return "an old tag", replace(s, after=lambda t, i: t.tags.create("release") if i == at else None)
    if how == "branch":

        def branch(t: Table, i: int) -> None:
            if i == at:
                t.tags.create("start")
                t.branches.create("trial", tag="start")

        return "a branch", replace(s, after=branch)
    s = with_options(replace(s, kind=FIXED), num_sorted_run__compaction_trigger=3)
    return "tags of a table replaced", replace(s, after=lambda t, i: t.tags.create(f"t{i}") if i % 20 == 5 else None)


def not_held(r: random.Random) -> tuple[str, Setting]:
    how = r.choice(("ending", "live", "deleted", "long", "automatic"))
    s = base(r, least=45)
    if how == "ending":
        return "tags that end", replace(s, after=ending_tags)
    if how == "live":
        at = s.checkpoints
        return "a tag of now", replace(s, after=lambda t, i: t.tags.create("release") if i == at else None)
    if how == "deleted":

        def brief(t: Table, i: int) -> None:
            if i == 20:
                t.tags.create("brief")
            if i == 24:
                t.tags.delete("brief")

        return "a tag that was deleted", replace(s, after=brief)
    if how == "long":
        s = long_kept(s)
        return "tags of snapshots that are still there", replace(
            s, after=lambda t, i: t.tags.create(f"t{i}") if i % 10 == 0 else None
        )
    s = with_options(s, tag__automatic_creation="process-time", tag__creation_period="hourly", tag__num_retained_max=3)
    return "automatic ones, three at most", s


# ---- D16: restart loops ----------------------------------------------------------------------------------


def restarting(r: random.Random) -> tuple[str, Setting]:
    s = calm(base(r, least=60))
    s = long_kept(s)
    s = replace(s, checkpoints=max(s.checkpoints, 60))
    how = r.choice(("time lost", "time lost", "backlog", "names", "flink", "fallback"))
    nth = r.choice((6, 9, 13))
    if how == "time lost":
        skipped, lost = r.choice((1, 2, 3)), r.choice((2, 5, 10))
        return f"each {nth}th time {lost} intervals lost", replace(
            s, identifier=lambda i: i + skipped * (i // nth),
            pause=lambda i: float(skipped + lost) if i % nth == 0 else 0.0,
        )  # fmt: skip
    if how == "backlog":
        missed = r.choice((2, 4))
        return f"each {nth}th time {missed} missed", replace(
            s, identifier=lambda i: i + missed * (i // nth),
            pause=lambda i: float(missed) if i % nth == 0 else 0.0,
            share=lambda i: float(missed + 1) if i % nth == 0 else 1.0,
        )  # fmt: skip
    if how == "names":
        return f"a new name each {nth}", replace(
            s, user=lambda i: f"job-{i // nth}", identifier=lambda i: i % nth + 1,
            pause=lambda i: 2.0 if i % nth == 0 else 0.0,
        )  # fmt: skip
    if how == "fallback":
        return f"a name that counts from 1 again each {nth}", replace(
            s, told_as=lambda i: (i - 1) % nth + 1, pause=lambda i: 1.5 if i % nth == 1 and i > 1 else 0.0
        )
    job = Job("http://flink", "j", config=CheckpointConfig(interval_ms=round(s.interval_s * 1000)),
              started_ms=1_767_225_600_000, counts={"restored": r.choice((5, 12)), "failed": 9, "completed": 50})  # fmt: skip
    return "Flink counts restores", replace(s, job=job)


def not_restarting(r: random.Random) -> tuple[str, Setting]:
    s = base(r, least=60)
    how = r.choice(("once", "skips", "night", "flink", "jobs", "twice a day"))
    s = long_kept(s)
    if how == "once":
        at = s.checkpoints // 2
        return "one restart", replace(
            s, identifier=lambda i: i + 2 * (i >= at), pause=lambda i: 5.0 if i == at else 0.0
        )
    if how == "skips":
        drop = random.Random(r.random())
        gone = {i for i in range(400) if drop.random() < 0.4}
        return "empty checkpoints are left out", replace(s, share=lambda i: 0.0 if i in gone else 1.0)
    if how == "night":
        return "quiet at night", replace(s, share=lambda i: 0.0 if i % 30 < 10 else 1.0, checkpoints=130)
    if how == "flink":
        job = Job("http://flink", "j", config=CheckpointConfig(interval_ms=round(s.interval_s * 1000)),
                  started_ms=1_767_225_600_000, counts={"restored": 1, "failed": 1, "completed": 50})  # fmt: skip
        return "Flink counts one restore", replace(s, job=job)
    if how == "jobs":
        s = replace(inline(s), kind=FIXED, interval_s=1800, slo_s=None)
        return "batch jobs", replace(s, identifier=lambda _: None, user=lambda i: f"load-{i}")
    far = max(int(12 * 3600 / s.interval_s), 60)
    s = replace(s, checkpoints=min(3 * far, 220) if far < 80 else 130)
    return "two deployments, far apart", replace(
        s, user=lambda i: "v1" if i < 66 else "v2", pause=lambda i: 1.5 if i == 66 else 0.0
    )


# ---- D17: read fan-in ------------------------------------------------------------------------------------


def deep(r: random.Random) -> tuple[str, Setting]:
    s = calm(inline(base(r, kinds=KEYED, least=60)))
    s = replace(s, keys=max(s.keys, 2000), rows=max(s.rows, 15 * s.buckets))  # files of one row don't meet
    if r.random() < 0.6:
        trigger = r.choice((16, 25, 40))
        return f"trigger {trigger}", with_options(s, num_sorted_run__compaction_trigger=trigger)
    n = r.choice((110, 130))
    s = replace(
        s, kind=FIXED, checkpoints=int(n * 2.2), compactors=(Compactor(every(n), full=True),), partitions="none"
    )
    s = long_kept(with_options(s, write_only="true"))
    return f"a job each {n}", replace(s, rows=min(s.rows, 20))


def not_deep(r: random.Random) -> tuple[str, Setting]:
    s = inline(base(r, kinds=KEYED, least=60))
    how = r.choice(("never meet", "default", "young", "vectors", "trigger"))
    if how == "never meet":
        s = replace(s, ascending=True, deletes=0.0)
        return how, with_options(s, num_sorted_run__compaction_trigger=25)
    if how == "young":
        return "young", replace(s, checkpoints=r.choice((4, 8, 10)))
    if how == "vectors":
        s = replace(s, deletes=0.0, checkpoints=60)
        s = without(s, "merge-engine")
        return how, with_options(s, **VECTORS)
    if how == "trigger":
        return "a little higher", with_options(s, num_sorted_run__compaction_trigger=r.choice((6, 7)))
    return how, s
