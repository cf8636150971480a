# SPDX-License-Identifier: Apache-2.0
"""D12: rows are committed in time, and readers see them much later.

Where a freshness was asked for, it decides; without one, rows that wait after their commit for more than two intervals
(median) lose more there than a checkpoint gives. What readers wait for is counted from the snapshots, and what a
sentinel measured (`probes`) is taken as it is. Agrees with: CoreOptions.batchScanSkipLevel0, ContinuousFileStoreSource
(2.0.0). Invariants: compaction in the commit's own time is no wait; the default discovery interval is nobody's loss
where no stream reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Confidence, Evidence, Finding
from shoal.doctor.freshness import READERS, Reader, Waits, delay_ms, discovery_ms, waits_of
from shoal.doctor.report import brief

NAME = "freshness lost after commit"
_INTERVALS = 2  # that the median row may wait
_FILES = 10  # fewer say nothing
_SLOW = 5  # times the commit interval, for a pause that somebody chose
_ASKED = "continuous.discovery-interval"
_DELAY = "streaming.read.snapshot.delay"


def lost_after_commit(case: Case) -> Iterator[Finding]:
    """Stages behind the commit that take longer than the way to it."""
    interval = case.model.debt.interval_s
    pace = None if interval is None else interval * 1000
    yield from _probed(case, pace)
    if pace is None or pace <= 0:
        return
    told: set[str] = set()
    for reader in READERS:
        waits = waits_of(case.window, reader)
        if waits is not None and waits.until not in told:
            found = list(_waiting(case, pace, reader, waits))
            told.update(waits.until for _ in found)
            yield from found
    yield from _discovery(case, pace)


# A changelog by full compaction is asked to wait: ten commits are what its users choose, and one more until it is told.
_CHOSEN = 10


def _probed(case: Case, pace: float | None) -> Iterator[Finding]:
    commit, read = case.probes.get("commit", ()), case.probes.get("read", ())
    if not commit or not read:
        return
    early, late = median(commit), median(read)
    lost = late - early
    if case.slo_ms is not None:
        bad = _high(commit) <= case.slo_ms < _high(read)
    else:
        bad = lost > _INTERVALS * max(early, pace or 0)
    if not bad:
        return
    option, change = _cure(case, pace)
    yield _finding(
        case, "supported", {"class": "sentinel", "option": option},
        {"commit_p50_ms": early, "read_p50_ms": late, "commit_p99_ms": _high(commit), "read_p99_ms": _high(read),
         "lost_ms": lost, "slo_ms": case.slo_ms, "probes": len(read)},
        f"rows are committed {brief(early / 1000)} s after they are made and read after {brief(late / 1000)} s: "
        f"{brief(lost / 1000)} s are lost after the commit", change,
        f"rows show up to {brief(lost / 1000)} s earlier; a shorter checkpoint interval would not do that", (),
    )  # fmt: skip


def _high(values: tuple[float, ...]) -> float:
    import numpy as np

    return float(np.percentile(np.array(values, np.float64), 99))


def _waiting(case: Case, pace: float, reader: Reader, waits: Waits) -> Iterator[Finding]:
    spread = waits.spread
    if spread is None or spread.count < _FILES:
        return
    if case.slo_ms is not None:
        bad = pace <= case.slo_ms < pace + spread.p99 and spread.p99 > pace
    else:
        # A small table is compacted in full by itself too, before its turn: what was chosen is told by the option.
        chosen = int(str(case.options.get("full-compaction.delta-commits") or 1))
        asked = waits.until == "full compaction" and chosen <= _CHOSEN and spread.p99 <= (_CHOSEN + 1) * pace
        bad = spread.p50 > _INTERVALS * pace and not asked
    if not bad:
        return
    option, change = _cure(case, pace, waits.until)
    # Where no option makes rows wait, a compaction that is too slow may be all there is to it.
    decided = option != "lookup-wait" or not bool(case.options.get("lookup-wait"))
    kind = "streaming" if reader == "stream" else "batch"
    yield _finding(
        case, "supported" if decided else "consistent with", {"class": reader, "option": option},
        {"commit_interval_ms": pace, "wait_p50_ms": spread.p50, "wait_p99_ms": spread.p99, "wait_max_ms": spread.most,
         "files": spread.count, "waiting_now": waits.waiting, "slo_ms": case.slo_ms},
        f"{kind} readers see rows {brief(spread.p50 / 1000)} s after their commit "
        f"(median; 99 %: {brief(spread.p99 / 1000)} s), when {waits.until} has taken them up, while commits come every "
        f"{brief(pace / 1000)} s",
        change,
        f"rows show within {brief(pace / 1000)} s instead of {brief((pace + spread.p50) / 1000)} s; what a reader "
        "gains, commits pay in compaction",
        waits.snapshots,
    )  # fmt: skip


def _discovery(case: Case, pace: float) -> Iterator[Finding]:
    """The pause of streaming readers, where there are any."""
    schema, options = case.window.schema, case.options
    if schema is None:
        return
    look, delay = discovery_ms(options), delay_ms(options)
    chosen = [k for k in (_ASKED, _DELAY) if k in schema.options]
    reads = any(h.kind == "consumer" for h in case.window.stock.holders)
    pause = look + delay
    if case.slo_ms is not None:
        bad = bool(chosen or reads) and pace <= case.slo_ms < pace + pause and pause > pace
    else:
        bad = pause >= _SLOW * pace and bool(chosen or reads)
    if not bad:
        return
    option = _DELAY if delay > look else _ASKED
    yield _finding(
        case, "supported" if reads else "consistent with", {"class": "stream", "option": option},
        {"commit_interval_ms": pace, "discovery_interval_ms": look, "snapshot_delay_ms": delay, "consumers": reads,
         "slo_ms": case.slo_ms},
        f"streaming readers see a commit up to {brief(pause / 1000)} s later ('{option}'), while commits come every "
        f"{brief(pace / 1000)} s",
        (f"ALTER TABLE ... SET ('{option}' = '{max(round(pace / 2000), 1)} s')" if option == _ASKED
         else f"ALTER TABLE ... RESET ('{_DELAY}')",),
        f"a change is read {brief(pause / 2000)} s after its commit on average now, and "
        f"{brief(min(pause, pace) / 4000)} s then",
        (),
    )  # fmt: skip


def _cure(case: Case, pace: float | None, until: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The option that readers wait for, and what to do."""
    options = case.options
    if until == "full compaction" or (until is None and options.changelog_producer == "full-compaction"):
        return "full-compaction.delta-commits", (
            "ALTER TABLE ... SET ('full-compaction.delta-commits' = 'N') where N x interval is the freshness asked for",
            "or 'changelog-producer' = 'lookup', which tells changes at each commit",
        )  # fmt: skip
    steps: list[str] = []
    option = _ASKED
    if until is not None or options.needs_lookup:
        option = "lookup-wait"
        if options.write_only:
            option = "write-only"
            steps.append("compact more often: CALL sys.compact(...) in streaming mode, or write-only=false")
        elif not bool(options.get("lookup-wait")):
            steps.append("ALTER TABLE ... SET ('lookup-wait' = 'true'): commits wait for the compaction")
        else:
            steps.append("give compaction more tasks, so that it ends within the interval")
        if str(options.get("lookup-compact")).lower() == "gentle":
            option = "lookup-compact"
            steps.append("ALTER TABLE ... SET ('lookup-compact' = 'radical')")
        if options.deletion_vectors:
            steps.append("or 'deletion-vectors.merge-on-read' = 'true': readers merge what is not compacted yet")
    else:
        steps.append(f"ALTER TABLE ... SET ('{_ASKED}' = '{max(round((pace or 2000) / 2000), 1)} s')")
    return option, tuple(steps)


def _finding(
    case: Case, confidence: Confidence, scope: dict[str, str | int], evidence: dict[str, Evidence], says: str,
    change: tuple[str, ...], effect: str, snapshots: tuple[int, ...],
) -> Finding:  # fmt: skip
    where = {"table": case.window.name or case.window.table, **scope}
    return Finding("D12", NAME, "warn", confidence, where, evidence, says, change, effect, snapshots)
