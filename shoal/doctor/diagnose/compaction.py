# SPDX-License-Identifier: Apache-2.0
"""D5 and D7: compaction cannot keep up, or nobody compacts at all.

A writer's own compaction starts at `num-sorted-run.compaction-trigger` runs and, done before the next checkpoint, lets
a bucket rise two runs above it; what rises further waits for compaction, and above the stop trigger the writer waits
too. Where a job of its own compacts, buckets rise for as long as its pauses are, and only a rise from cycle to cycle is
debt. Invariants: how high buckets rise is told just before drains, never in between; a pause of a compacting job is
held against its own earlier pauses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from shoal.doctor.cycles import checkpoint_ends
from shoal.doctor.debt import POSTPONED, Limits, in_tree
from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.pace import ENOUGH, Pace
from shoal.doctor.finding import Evidence, Finding
from shoal.doctor.states import States, class_is, ints
from shoal.doctor.window import FLUSH, Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STARVED, NOBODY = "compaction starved", "write-only and nobody compacts"
_KEEPING_UP = 2  # runs above the trigger that a bucket reaches while compaction keeps up
_WAITED = 0.2  # of the drains, that found the writer waiting
_HIGH = 0.25  # of the checkpoints, that found a bucket above what keeping up allows
_ASKED = 200  # buckets that are asked one by one, those that rose highest
_FEW, _ENOUGH_DRAINS = 3, 10  # drains that a crest is told from; so many that only the newer half is asked
_HOUR_MS = 3_600_000
_PAUSES = 3.0  # times its usual pause: then a compacting job has stopped
_KNOWN, _LONGEST = 2, 2.0  # so many pauses tell its longest one as well, and a turn missed after that is enough


# ---- D5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Crests:
    """How high buckets rose before their newest drains."""

    runs: NDArray[np.int64]
    at: NDArray[np.int64]  # the steps of these drains
    undrained: NDArray[np.int64]  # buckets above the stop trigger that were never drained
    worst: int  # the bucket that rose highest
    highest: int  # its runs then
    above: float  # share of the checkpoints that found a bucket above what keeping up allows

    def share_above(self, runs: int) -> float:
        """Of the drains; none where it was fewer than three commits, which are loads and not how the table lives."""
        above = self.runs > runs
        return float(above.mean()) if len(set(self.at[above].tolist())) >= _FEW else 0.0


def starved(case: Case) -> Iterable[Finding]:
    """D5, when buckets rise beyond what a compaction that keeps up allows."""
    import numpy as np

    pace, limits, states = case.pace, case.limits, case.states
    if pace is None or limits is None or states is None or not limits.primary_key or not pace.telling:
        return
    if not compactors(case.window) and limits.write_only:
        return  # D7
    crests = _crests(case, pace, limits, states)
    inline = not limits.write_only
    c, p = limits.compaction_trigger, limits.stop_trigger
    middle = float(np.median(crests.runs)) if len(crests.runs) >= _FEW else None
    # Where drains are too rare to tell, how high buckets stand for how long.
    high = crests.highest if middle is None else middle
    stalled = [b.stall for b in case.model.buckets if b.stall is not None and b.stall.stalled]
    waited = crests.share_above(max(p, c + _KEEPING_UP)) if len(crests.runs) >= _FEW else 0.0
    rho, trends = case.model.sustainability, case.model.trends
    unpaid = rho is not None and not rho.pays
    # A young tree fills its levels, each of them a run: what rises to where a bucket may stand is no debt.
    rises = unpaid and crests.highest > c + _KEEPING_UP
    rises = rises and any(n in trends and trends[n].rising for n in ("merge_debt", "crests"))
    late = inline and high >= max(c + 2 * _KEEPING_UP, 2 * c) and crests.above >= _HIGH
    signs = {
        "writers wait": inline and (bool(stalled) or waited >= _WAITED),
        "never compacted": inline and len(crests.undrained) > 0,
        "rises from cycle to cycle": rises,
        "compaction comes late": late,
    }
    found = [name for name, seen in signs.items() if seen]
    if not found:
        return
    busy = [] if case.job is None else case.job.metric("compactionThreadBusy")
    end = states.end
    evidence: dict[str, Evidence] = {
        "signs": tuple(found), "crest_runs_median": middle, "most_runs": crests.highest,
        "share_of_time_above_the_trigger": round(crests.above, 3),
        "runs_now_most": int(end["runs"].max(initial=0)), "compaction_trigger": c, "stop_trigger": p,
        "drains_that_found_the_writer_waiting": round(waited, 3), "buckets_stalled": len(stalled),
        "buckets_never_drained": len(crests.undrained),
        "sustainability": None if rho is None or rho.ratio is None else round(rho.ratio, 3),
        "flush_per_minute": None if rho is None else round(rho.flush_per_minute, 3),
        "paid_per_minute": None if rho is None else round(rho.paid_per_minute, 3),
        "compaction_thread_busy": max(busy) if busy else None, "commits": pace.commits,
    }  # fmt: skip
    yield Finding(
        "D5", STARVED, "warn", "supported", _where(states, crests.worst), evidence,
        _starved_says(crests, limits, high, waited, len(stalled)), _starved_change(case, inline),
        _starved_effect(case, limits), (pace.first, pace.last),
    )  # fmt: skip


def _crests(case: Case, pace: Pace, limits: Limits, states: States) -> _Crests:
    """The crests of the present pace, of its second half where that has enough of them."""
    import numpy as np

    moves, found = states.moves, case.model.cycles
    ids = np.array([s.id for s in states.steps], np.int64)
    begin, end = np.searchsorted(ids, [pace.first, pace.last])
    half = (int(begin) + int(end)) // 2
    treed = in_tree(states, limits)
    drain = np.zeros(len(moves), np.bool_) if found is None else found.drain
    mine = drain & (moves.at >= begin) & treed[moves.bucket]
    newer = mine & (moves.at >= half)
    chosen = newer if newer.sum() >= _ENOUGH_DRAINS else mine
    flushes = (moves.at >= begin) & (moves.done["flush"] > 0)
    commits = np.bincount(moves.bucket[flushes], minlength=states.count)
    drained = np.bincount(moves.bucket[drain], minlength=states.count) > 0
    runs = states.end["runs"]
    bound = max(limits.stop_trigger, limits.compaction_trigger + _KEEPING_UP)
    undrained = np.flatnonzero(treed & ~drained & (commits >= ENOUGH) & (runs > bound))
    crest = moves.before["runs"][chosen]
    active = np.flatnonzero(treed & (commits > 0))
    _, most = states.over_time("runs")
    worst = int(active[most[active].argmax()]) if len(active) else 0
    ends = checkpoint_ends(states)
    ends = ends[ends >= begin]
    asked = active[np.argsort(-most[active], kind="stable")][:_ASKED]
    allowed = limits.compaction_trigger + _KEEPING_UP
    above = [float((states.series(b, "runs")[ends] > allowed).mean()) for b in asked.tolist()] if len(ends) else []
    share = sum(above) / len(active) if len(active) else 0.0
    return _Crests(crest, moves.at[chosen], undrained, worst, int(most[active].max(initial=0)), share)


def _where(states: States, bucket: int) -> dict[str, str | int]:
    if not states.count:
        return {}
    partition = states.partitions[int(states.partition_of[bucket])].rstrip("/")
    return {"partition": partition, "bucket": int(states.number[bucket]), "kind": "COMPACT"}


def _starved_says(crests: _Crests, limits: Limits, high: float, waited: float, stalled: int) -> str:
    c, p = limits.compaction_trigger, limits.stop_trigger
    parts = [f"buckets rise to {high:,.0f} runs before they are compacted (trigger {c}, stop {p})"]
    if stalled or waited >= _WAITED:
        parts.append(f"{waited:.0%} of the compactions found the writer waiting" if not stalled else
                     f"{stalled} buckets make the writer wait now")  # fmt: skip
    if len(crests.undrained):
        parts.append(f"{len(crests.undrained)} buckets above {p} runs were never compacted")
    return f"Compaction does not keep up: {'; '.join(parts)}."


def _starved_change(case: Case, inline: bool) -> tuple[str, ...]:
    if not inline:
        return (
            "run the compacting job more often, or as a stream: CALL sys.compact(`table` => 'db.t') in streaming mode",
            "give it more parallelism (sink.parallelism), up to the number of buckets",
        )
    return (
        "more writer tasks, up to the number of buckets: each has one compaction thread",
        "a longer checkpoint interval: fewer files come in for the same rows",
        "move compaction out: 'write-only' = 'true' and a job of its own (CALL sys.compact in streaming mode)",
        "a higher num-sorted-run.compaction-trigger merges less often, readers then merge more",
        "compaction.offpeak.start.hour, .end.hour and .ratio leave the large merges for quiet hours",
    )


def _starved_effect(case: Case, limits: Limits) -> str:
    bound = limits.compaction_trigger + _KEEPING_UP
    text = f"a compaction that keeps up holds buckets at {bound} runs and less"
    merge = case.model.merge
    if merge is not None and merge.read_amplification is not None:
        text += (
            f"; a read opens {merge.files_opened:,} files now and {merge.files_after_full:,} after a full compaction"
        )
    later = [s for s in case.model.stalls if not s.stalled and s.minutes.value is not None]
    if later:
        text += f"; unchanged, bucket {later[0].bucket} makes its writer wait in {later[0].minutes.value:,.0f} minutes"
    return text


# ---- D7 --------------------------------------------------------------------------------------------------


def compactors(window: Window) -> frozenset[str]:
    """Users that made COMPACT snapshots."""
    return frozenset(s.user for s in window.steps if s.kind == "COMPACT")


def nobody(case: Case) -> Iterable[Finding]:
    """D7, when a write-only table's files are not merged by anybody."""
    import numpy as np

    window, limits, states = case.window, case.limits, case.states
    if limits is None or states is None or not limits.write_only or not window.steps:
        return
    done = [s for s in window.steps if s.kind == "COMPACT"]
    last = done[-1].id if done else None
    unmerged = _commits_since(window, last)
    treed = in_tree(states, limits)
    runs, level0, files = states.end["runs"], states.end["level0"], states.held("small")
    # What no compaction took up: level 0, the files of a table without a primary key, and rows without a bucket yet.
    waits = states.number == POSTPONED
    stand = np.where(treed, level0, np.where(waits, states.end["files"], 0)) if limits.primary_key else files
    depth = int(stand.max(initial=0))
    bound = limits.stop_trigger if limits.primary_key else 2 * limits.min_file_num
    if unmerged < ENOUGH or depth <= bound or not overdue(window):
        return
    worst = int(stand.argmax())
    span_min = (window.steps[-1].time_ms - (done[-1] if done else window.steps[0]).time_ms) / 60_000
    per_commit = float(ints(window.flows, "files")[class_is(window.flows, FLUSH)].sum()) / max(
        case.model.debt.commits, 1
    )
    trend = case.model.trends.get("merge_debt" if limits.primary_key else "excess_files")
    slope = None if trend is None or trend.slope is None else trend.slope
    evidence: dict[str, Evidence] = {
        "commits_without_compaction": unmerged, "minutes_without_compaction": round(span_min, 1),
        "last_compact_snapshot": last, "unmerged_files_of_worst_bucket": depth,
        "live_files": int(states.end["files"].sum()), "new_files_per_commit": round(per_commit, 2),
        "files_per_minute": None if slope is None else round(slope.value, 3),
        "files_per_minute_low": None if slope is None else round(slope.low, 3),
        "compacting_users": len(compactors(window)), "most_runs": int(runs.max(initial=0)),
    }  # fmt: skip
    since = f"since snapshot {last}" if last is not None else "in all that is retained"
    what = "level-0 files" if limits.primary_key else "small files"
    if waits[worst]:
        says = (
            f"Rows are postponed ('bucket' = -2) and nobody gave them their buckets {since}: {unmerged:,} commits in "
            f"{span_min:,.0f} minutes, and readers see nothing of {depth:,} files."
        )
    else:
        says = (
            f"The table is write-only and nobody compacted it {since}: {unmerged:,} commits in {span_min:,.0f} "
            f"minutes, and a reader of bucket {int(states.number[worst])} opens {depth:,} {what}."
        )
    change = [
        "first aid: CALL sys.compact(`table` => 'db.t') now",
        "then a compacting job that stays: the same call in streaming mode, or on a schedule, by one user only",
        *(
            ()
            if waits[worst]
            else ("or let the writer compact: ALTER TABLE t SET ('write-only' = 'false'), and restart it",)
        ),
        "a write-only writer expires no snapshots, partitions, tags and consumers either: that job does it too",
    ]
    effect = f"about {per_commit:,.1f} files more with each commit, if nothing changes"
    merge, excess = case.model.merge, case.model.excess
    if merge is not None:
        effect = f"a read opens {merge.files_after_full:,} files instead of {merge.files_opened:,}; {effect}"
    elif excess is not None:
        effect = f"{excess.excess.now:,} of {excess.live.now:,} live files are more than the bytes need; {effect}"
    yield Finding(
        "D7", NOBODY, "error", "supported",
        {**_where(states, worst), "kind": "APPEND", "level": 0, "option": "bucket" if waits[worst] else "write-only"},
        evidence, says, tuple(change),
        effect, (window.steps[0].id, window.steps[-1].id),
    )  # fmt: skip


def _commits_since(window: Window, last: int | None) -> int:
    """Commits with new files after a snapshot."""
    import numpy as np

    ids = ints(window.flows, "snapshot")
    mine = class_is(window.flows, FLUSH) & (ids > (-1 if last is None else last))
    return len(np.unique(ids[mine]))


def overdue(window: Window) -> bool:
    """Whether a compacting job, where there is one, pauses longer than it used to.

    Its pauses are those between its bursts of snapshots. Where one run alone is seen, it may be hourly.
    """
    done = [s for s in window.steps if s.kind == "COMPACT"]
    if not done:
        return True
    begin, end = window.steps[0].time_ms, window.steps[-1].time_ms
    pauses = [b.time_ms - a.time_ms for a, b in pairwise(done) if b.time_ms > a.time_ms]
    pauses = [p for p in pauses if p > median(pauses) / 10] if pauses else []
    since = end - done[-1].time_ms
    if len(pauses) >= _KNOWN:
        longest = sorted(pauses)[(9 * len(pauses) - 1) // 10]  # but for a tenth: it may have been down before
        return since > _LONGEST * longest
    usual = median(pauses) if pauses else max(done[0].time_ms - begin, _HOUR_MS)
    return since > _PAUSES * usual
