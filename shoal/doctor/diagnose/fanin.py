# SPDX-License-Identifier: Apache-2.0
"""D17: reads merge many sorted runs, although compaction does what it was told.

With default options a writer waits above 8 runs, so a bucket that has more most of the time reads worse than any table
left alone. Timed queries, where a history has them, say what that costs: where those took longer that met more files,
reads pay for it. Runs whose keys don't meet are not merged: where key ranges are known, those count. Agrees with:
MergeTreeSplitGenerator, IntervalPartition, CoreOptions.numSortedRunStopTrigger (2.0.0). Invariant: readers that skip
level 0 merge nothing, and a table just compacted, or not settled, is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.debt import in_tree
from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.compaction import compactors
from shoal.doctor.finding import Evidence, Finding, Severity
from shoal.doctor.slope import theil_sen
from shoal.options import Options

NAME = "read fan-in"
_BUCKETS = 0.5  # of the bytes must lie in such buckets
# How often a compaction job runs is its owner's choice, up to where readers run out of memory or spill (lint L-17).
_DEEP = 50


def fan_in(case: Case) -> Iterator[Finding]:
    """Buckets with more runs, over time, than a default table ever has."""
    import numpy as np

    states, limits, options = case.states, case.limits, case.options
    if states is None or limits is None or not limits.primary_key or case.pace is None:
        return
    if not case.pace.telling:
        return
    skips = options.deletion_vectors and not options.deletion_vectors_merge_on_read
    if skips or options.merge_engine == "first-row":
        return
    if limits.write_only and not compactors(case.window):
        return  # D7
    usual = Options({}, strict=False).stop_trigger
    treed = in_tree(states, limits)
    half = len(states.steps) // 2
    end, size = states.end, states.end["bytes"]
    busy = np.flatnonzero(treed & (size > 0))
    if not len(busy):
        return
    late = np.array([states.series(int(b), "runs")[half:].mean() for b in busy[:1000]])
    busy, many = busy[:1000], late > usual
    share = float(size[busy][many].sum()) / float(size[busy].sum())
    if share < _BUCKETS:
        return
    worst = int(busy[int(np.argmax(late))])
    mean, now = float(late.max()), int(end["runs"][worst])
    seen = case.window.stock.fan_in
    if seen is not None:
        most = int(end["runs"][busy][many].max())
        # Keys are known of the runs of now. Few may be left by a compaction of late: those before met as these do.
        if (most > usual and seen.deepest <= usual) or (most > 1 and mean * seen.deepest / most <= usual):
            return  # the keys of these runs don't meet
    partition = states.partitions[int(states.partition_of[worst])].rstrip("/")
    merge = case.model.merge
    evidence: dict[str, Evidence] = {
        "mean_runs": round(mean, 1), "runs_now": now, "usual_most": usual, "share_of_bytes": round(share, 3),
        "compaction_trigger": limits.compaction_trigger, "buckets": int(many.sum()),
        "files_opened": None if merge is None else merge.files_opened,
        "files_after_full": None if merge is None else merge.files_after_full,
    }  # fmt: skip
    if seen is not None:
        evidence |= {
            "sections": seen.sections, "deepest_section": seen.deepest, "merging_bytes": seen.merging_bytes,
            "mean_runs_of_a_byte": round(seen.mean_runs, 1),
        }  # fmt: skip
    timed, slower = _timed(case)
    evidence |= timed
    high = limits.compaction_trigger > usual
    why = f": 'num-sorted-run.compaction-trigger' is {limits.compaction_trigger}" if high else ""
    trigger = Options({}, strict=False).compaction_trigger
    steps = [f"ALTER TABLE ... SET ('num-sorted-run.compaction-trigger' = '{trigger}')"] if high else []
    if limits.write_only:
        steps = ["run the compaction job more often: CALL sys.compact(`table` => '...')"]
    severity: Severity = "warn" if not limits.write_only or mean > _DEEP else "info"
    yield Finding(
        "D17", NAME, severity,
        "supported" if slower or (high and (seen is None or seen.deepest > usual)) else "consistent with",
        {"table": case.window.name or case.window.table, "partition": partition, "bucket": int(states.number[worst])},
        evidence,
        f"bucket {int(states.number[worst])} has {mean:.1f} sorted runs on average, where a default writer waits above "
        f"{usual}, so reads of {share:.0%} of the bytes merge that many{why}",
        (*steps, "for reads: 'deletion-vectors.enabled' = 'true', so that nothing is merged",
         "or 'compaction.optimization-interval' = '1 h' and the table's $ro for readers that may lag"),
        _effect(case, mean),
        (states.steps[-1].id,),
    )  # fmt: skip


def _timed(case: Case) -> tuple[dict[str, Evidence], bool]:
    """What timed queries say, and whether those that met more live files took longer: by the slope over files."""
    import numpy as np

    steps, queries = case.window.steps, case.beside.queries
    times = np.array([s.time_ms for s in steps], np.int64)
    met = [(int(np.searchsorted(times, q.at_ms, side="right")) - 1, q.duration_ms) for q in queries]
    known = [(steps[at].live_files, ms) for at, ms in met if at >= 0]
    if not known:
        return {}, False
    files, durations = np.array(known, np.float64).T
    slope = theil_sen(files, durations, rng=np.random.default_rng(0))
    p50, p99 = np.percentile(durations, [50, 99])
    evidence: dict[str, Evidence] = {
        "queries": len(known), "query_p50_ms": round(float(p50), 1), "query_p99_ms": round(float(p99), 1),
        "query_ms_per_file": None if slope is None else round(slope.value, 3),
    }  # fmt: skip
    return evidence, slope is not None and slope.low > 0


def _effect(case: Case, mean: float) -> str:
    merge = case.model.merge
    if merge is None or not merge.files_after_full:
        return f"{mean:.0f} runs become one"
    return (
        f"a read of everything opens about {merge.files_after_full:,} files instead of {merge.files_opened:,} after a "
        f"full compaction, and merges nothing"
    )
