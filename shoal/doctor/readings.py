# SPDX-License-Identifier: Apache-2.0
"""The few numbers that a fix is expected to move, by name: what a plan forecasts and `verify` measures again.

Invariants: a reading that the window cannot give is None; names are stable, since plans keep them.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.doctor.debt import data_commits
from shoal.doctor.diagnose.case import Case
from shoal.doctor.segments import Segment
from shoal.doctor.stocks import flows_of
from shoal.doctor.window import Window

# Name, unit and what it is. Those that end in "per minute" are flows, the others are stocks or means.
READINGS = {
    "commit_interval_s": "seconds between two commits of a writer, the median",
    "flush_per_minute": "new data files a minute",
    "rewrite_per_minute": "files that compaction writes a minute",
    "changelog_per_minute": "changelog files a minute",
    "metadata_per_minute": "metadata files a minute",
    "flush_bytes_median": "bytes of a new data file, the median",
    "active_buckets_per_commit": "buckets that get a new file in a commit, the mean",
    "files_per_active_bucket": "new files of such a bucket, the mean",
    "write_amplification": "data bytes written for each byte flushed",
    "most_runs": "sorted runs of the worst bucket, now",
    "merge_debt": "sorted runs beyond one, over all buckets, now",
    "excess_files": "live files beyond what the bytes need, now",
    "live_files": "live data files, now",
    "small_share": "share of the live files that are small, now",
    "retained_snapshots": "snapshots that are retained, now",
    "retained_files": "dead data files and changelog files that only the past holds, now",
    "manifests": "manifests that a reader of the newest snapshot opens",
    "dead_ratio": "manifest entries that only cancel others, for each live one",
    "idle_share": "share of the commits that bring no record",
}


def _today(window: Window, now: Segment) -> dict[str, float | None]:
    """The flows of the newest stretch, which the whole window's means don't tell of: it had another rhythm before."""
    import pyarrow.compute as pc

    steps = tuple(s for s in window.steps if s.id >= now.first)
    flows = window.flows.filter(pc.greater_equal(window.flows.column("snapshot"), now.first))
    made = flows_of(replace(window, steps=steps, flows=flows))
    rates = {f"{n}_per_minute": made.per_minute(n) for n in ("rewrite", "changelog", "metadata")}
    return rates | {n: v for n, v in now.medians.items() if n in ("commit_interval_s", "flush_per_minute")}


def readings(case: Case) -> dict[str, float | None]:
    """All readings of a case, in the order of READINGS."""
    m = case.model
    d, flows, held = m.debt, m.flows, m.retained
    commits = data_commits(case.window.steps)
    counted = [s.delta_records for s in commits if s.delta_records is not None]
    retained = None if held.dead is None or held.changelog is None else held.dead.files + held.changelog.files
    runs = None
    if d.buckets is not None and d.limits is not None and d.limits.primary_key:
        runs = max((b.runs for b in d.buckets.top), default=0)
    last = m.segments.segments[-1:]  # the rhythm of today, where it changed
    found: dict[str, float | int | None] = {
        "commit_interval_s": d.interval_s,
        **{f"{n}_per_minute": flows.per_minute(n) for n in ("flush", "rewrite", "changelog", "metadata")},
        "flush_bytes_median": d.flush_file_bytes,
        "active_buckets_per_commit": d.active_buckets,
        "files_per_active_bucket": d.files_per_active_bucket,
        "write_amplification": d.write_amplification,
        "most_runs": runs,
        "merge_debt": None if m.merge is None else m.merge.runs_to_merge.now,
        "excess_files": None if m.excess is None else m.excess.excess.now,
        "live_files": None if m.excess is None else m.excess.live.now,
        "small_share": None if m.excess is None else m.excess.small_share,
        "retained_snapshots": held.snapshots,
        "retained_files": retained,
        "manifests": None if m.metadata is None else m.metadata.manifests.files,
        "dead_ratio": None if m.metadata is None else m.metadata.dead_ratio,
        "idle_share": sum(n == 0 for n in counted) / len(counted) if counted else None,
    }
    if len(m.segments.segments) > 1 and last:
        found |= _today(case.window, last[0])
    return {name: None if found[name] is None else float(found[name] or 0) for name in READINGS}
