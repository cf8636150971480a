# SPDX-License-Identifier: Apache-2.0
"""From findings to a plan: which steps, in which order, with what numbers of this very table.

The order is that of an incident: the job first when it restarts, then how fresh rows must be, then the commit interval,
buckets and skew, changelog producers, compaction, what expiry waits for, manifests, readers. A pure function of a case
and its findings; no step without a finding that asks for it, and none whose numbers the window cannot give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from shoal.doctor.debt import Limits
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding, at_least
from shoal.doctor.fix import BLOCKS, Action, Forecast, Plan, Step
from shoal.doctor.fix_text import Sql, duration, size
from shoal.doctor.fix_upkeep import UPKEEP
from shoal.doctor.freshness import skips_level0
from shoal.doctor.readings import readings
from shoal.doctor.report import brief

MIB = 1 << 20
HEALTHY_BUCKET = 512 * MIB  # Paimon's pages ask for 200 MB to 1 GB
_LAG_S = 1.0  # from a checkpoint's last answer to the commit, where nobody measured it

Make = Callable[[Case, Sql, tuple[str, ...]], Iterable[Step]]


def plan(case: Case, findings: Iterable[Finding]) -> Plan:
    """The steps that the findings of at least a warning ask for; notes of those below are not worth a change."""
    asked = [f for f in findings if at_least(f.severity, "warn")]
    ids = tuple(dict.fromkeys(f.id for f in asked))
    w = case.window
    sql = Sql(w.name or w.table, case.options, None if w.schema is None else dict(w.schema.options))
    steps: list[Step] = []
    told = next((f.evidence for f in asked if f.id == "D1"), {})
    for wanted, make in (*rhythm(told), *UPKEEP):
        causes = tuple(i for i in ids if i in wanted)
        if causes:
            steps += make(case, sql, causes)
    known: dict[str, Step] = {}
    for s in steps:
        if s.id not in known:
            # what holds already would confirm nothing
            telling = tuple(f for f in s.forecasts if f.before is not None and not f.holds(f.before))
            known[s.id] = replace(s, forecasts=telling)
    ordered = [s for block in BLOCKS for s in known.values() if s.block == block]
    found = case.model.cycles
    return Plan(
        w.table, w.name, case.model.debt.last, None if w.schema is None else w.schema.id, w.stock.taken_ms, case.slo_ms,
        None if found is None else found.minutes, tuple(ordered), readings(case),
    )  # fmt: skip


# ---- the job and its clock -------------------------------------------------------------------------------


def _job_first(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    yield Step(
        "stop-restarts", "first aid", "stop the job's restarts before anything else", causes,
        notes=("find why the job restarts: its exceptions, checkpoint time-outs, task managers that were lost",),
        undo=("nothing to undo",), effect="each restart flushes again; other findings may go with it",
        probe="commit identifiers go on without gaps or repeats for two cycles",
    )  # fmt: skip


def _interval(
    case: Case, sql: Sql, causes: tuple[str, ...], *, told: Mapping[str, object] = MappingProxyType({})
) -> Iterable[Step]:
    """`told`: the evidence of D1, where it was found."""
    now = case.model.debt.interval_s
    if not now:
        return
    before = next(
        (c.before for c in reversed(case.model.segments.changes)
         if c.signal == "commit_interval_s" and c.after < c.before), None,
    )  # fmt: skip
    if before is not None and before > now:
        late = case.slo_ms is not None and before * 1000 > case.slo_ms
        loses = f"rows become visible up to {duration(before)} after they came, instead of {duration(now)}"
        if late:
            loses += f"; that breaks the {duration((case.slo_ms or 0) / 1000)} that were asked for"
        yield _longer(
            case, before, Step(
                "restore-interval", "first aid", f"go back to the commit interval of {duration(before)}", causes,
                loses=loses,
            )
        )  # fmt: skip
    known = case.slo_ms is not None or told.get("slack") == "assumed"
    longest = told.get("longest_interval_s")
    if not known:
        yield Step(
            "say-slo", "root fix", "say how late rows may be seen, then take the longest interval that allows it",
            causes, notes=(f"shoal doctor fix {sql.name} --slo TIME computes it; there is no number for all tables",),
            undo=("nothing to undo",), effect="new files a minute fall as the interval grows",
            probe="readings commit_interval_s and flush_per_minute",
        )  # fmt: skip
        return
    if not isinstance(longest, int | float):
        lag = max(case.probes.get("commit", (_LAG_S * 1000,))) / 1000
        longest = (case.slo_ms or 0) / 1000 - lag
    longest = float(math.floor(longest)) if longest > 1 else longest
    if longest <= 1.1 * now:
        return
    why = f"the longest that shows rows within {duration((case.slo_ms or 0) / 1000)}"
    notes = ["readers that poll add their own 'continuous.discovery-interval'"]
    if case.slo_ms is None:
        why = "if that is fresh enough"
        notes.append(f"nobody said how fresh rows must be: shoal doctor fix {sql.name} --slo TIME computes it")
    yield _longer(
        case, longest, Step(
            "longer-interval", "root fix", f"commit every {duration(longest)}: {why}", causes, notes=tuple(notes),
            loses=f"rows become visible up to {duration(longest)} after they came, instead of {duration(now)}",
        )
    )  # fmt: skip


def _longer(case: Case, interval: float, step: Step) -> Step:
    """A step with the setting of the job, and what a longer interval does to the flows."""
    d, now = case.model.debt, case.model.debt.interval_s or interval
    forecasts = [Forecast("commit_interval_s", now, 0.9 * interval, 1.1 * interval)]
    effect = f"{brief(interval / now)}x fewer commits"
    if d.active_buckets is not None and d.files_per_active_bucket is not None and d.buckets is not None:
        # Between two commits that are further apart more buckets get rows, up to all of them.
        most = min(max(d.buckets.count, d.active_buckets), d.active_buckets * interval / now)
        files = d.files_per_active_bucket * 60 / interval
        was = readings(case)["flush_per_minute"]
        forecasts.append(Forecast("flush_per_minute", was, 0.8 * d.active_buckets * files, 1.2 * most * files))
        low = d.active_buckets * files
        effect += f", about {brief(low)} new files a minute" + ("" if was is None else f" instead of {brief(was)}")
    job = {"execution.checkpointing.interval": duration(interval)}
    undo = (f"SET 'execution.checkpointing.interval' = '{duration(now)}';",)
    return Step(
        step.id, step.block, step.title, step.findings, job=job, notes=step.notes, undo=undo, loses=step.loses,
        effect=effect, probe="readings commit_interval_s and flush_per_minute after two cycles",
        forecasts=tuple(forecasts),
    )  # fmt: skip


def _idle(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    yield sql.alter(
        "skip-idle-commits", "root fix", "make no snapshot for a commit without rows", causes,
        {"snapshot.ignore-empty-commit": "true"}, effect="idle checkpoints leave nothing in the table",
        loses="watermarks move only with data", probe="reading idle_share",
        forecasts=(Forecast("idle_share", readings(case)["idle_share"], None, 0.05),),
    )  # fmt: skip


# ---- buckets and skew ------------------------------------------------------------------------------------


def _buckets(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    states, now = case.states, case.options.bucket
    if states is None or now < 1:
        if now == -1:
            yield sql.alter(
                "larger-dynamic-buckets", "root fix", "let each dynamic bucket take more rows", causes,
                {"dynamic-bucket.target-row-num": str(4 * 2_000_000)},
                effect="new keys fill a quarter as many buckets; those that are there stay",
                probe="reading active_buckets_per_commit",
            )  # fmt: skip
        return
    import numpy as np

    size_of = np.zeros(len(states.partitions), np.int64)
    np.add.at(size_of, states.partition_of, states.end["bytes"])
    largest = int(size_of.max(initial=0))
    fewer = max(1, math.ceil(largest / HEALTHY_BUCKET))
    if fewer >= now:
        return
    r, ratio = readings(case), fewer / now
    # A commit need not reach every bucket: of fewer ones it reaches a larger share.
    names = ("active_buckets_per_commit", "flush_per_minute")
    forecasts = tuple(Forecast(n, was, None, 1.4 * ratio * was) for n in names if (was := r[n]) is not None)
    # A rescale of Paimon reads what readers of the newest snapshot see, and overwrites everything.
    keyed = case.window.schema is not None and bool(case.window.schema.primary_keys)
    first = (sql.call("compact", compact_strategy="full"),) if skips_level0(case.options, primary_key=keyed) else ()

    def to(count: int) -> tuple[str, ...]:
        return (*first, sql.call("rescale", bucket_num=count), *sql.alter_text({"bucket": str(count)}))

    notes = (
        "stop the writers before, and start them again after the last statement",
        f"the largest partition holds {size(largest)}: {size(largest / fewer)} a bucket then",
        "a rescale fails, and changes nothing, when somebody commits meanwhile; INSERT OVERWRITE of the table from "
        "itself, for Paimon without sys.rescale, would lose that commit",
        *(("rows that are not compacted would be lost: hence the full compaction first",) if first else ()),
    )
    yield Step(
        "fewer-buckets", "root fix", f"rescale to {fewer} bucket{'s' if fewer > 1 else ''} instead of {now}", causes,
        to(fewer), notes=notes,
        undo=to(now), loses="nothing; every row is rewritten once, and writers must stop",
        effect=f"a commit writes up to {brief(now / fewer)}x fewer files", forecasts=forecasts,
        probe="readings active_buckets_per_commit and flush_per_minute; until a replay has shown it, within 40 %",
        action=Action("rescale", {"buckets": fewer}), typed_name=True,
    )  # fmt: skip


def _skew(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    yield sql.alter(
        "merge-locally", "root fix", "merge rows of one key before they are sent to their bucket", causes,
        {"local-merge-buffer-size": "64 mb"},
        effect="the hot bucket gets one row a key and checkpoint instead of every change of it",
        loses="64 MB of memory in each source task; not used by CDC pipelines",
        notes=("a bucket key that spreads the hot key needs a new table: 'bucket-key' cannot be changed",),
        probe="the hot bucket's share of the sequence numbers, and reading flush_bytes_median",
    )  # fmt: skip


# ---- changelogs ------------------------------------------------------------------------------------------


def _producer(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    consumers = [h.name for h in case.window.stock.holders if h.kind == "consumer"]
    was = readings(case)["changelog_per_minute"]
    producer = case.options.changelog_producer
    if producer == "none":
        return
    if not consumers:
        yield sql.alter(
            "no-changelog", "root fix", "write no changelog: no consumer of it is registered", causes,
            {"changelog-producer": "none"},
            loses="stream readers get keys without old values; those without a consumer id cannot be seen from here",
            effect="half of the files of a commit are gone" if was else "no changelog files",
            probe="reading changelog_per_minute", forecasts=(Forecast("changelog_per_minute", was, 0.0, 0.0),),
        )  # fmt: skip
        return
    readers = ", ".join(consumers[:5])
    if case.options.raw.get("precommit-compact", "").lower() != "true":
        yield sql.alter(
            "merge-changelogs", "root fix", f"merge the changelog files of a commit: {readers} read them", causes,
            {"precommit-compact": "true"},
            loses="each changelog file is written twice, so requests go up; the checkpoint waits for the copy",
            effect="one changelog file a partition and commit stays", probe="reading changelog_per_minute",
            forecasts=(Forecast("changelog_per_minute", was, None, None if was is None else 0.6 * was),),
        )  # fmt: skip


# ---- compaction ------------------------------------------------------------------------------------------


def _compact_now(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    limits, r = case.limits, readings(case)
    forecasts = []
    if limits is not None and (r["most_runs"] or 0) > _busy(limits):
        forecasts.append(Forecast("most_runs", r["most_runs"], None, _busy(limits)))
    elif r["most_runs"] is None and r["excess_files"]:
        forecasts.append(Forecast("excess_files", r["excess_files"], None, 0.5 * r["excess_files"]))
    live = case.model.debt.live
    cost = "" if live is None else f"; reads and writes up to {size(live.data.bytes)}"
    yield Step(
        "compact-now", "first aid", "compact once, now", causes, (sql.call("compact"),),
        undo=("nothing to undo: rows stay the same",), loses=f"no freshness{cost}",
        effect="readers open fewer files at once; without a root fix the debt comes back",
        probe="readings most_runs and excess_files in the snapshots right after it", forecasts=tuple(forecasts),
        action=Action("compact", {"full": True}),  # as CALL sys.compact does in a batch
    )  # fmt: skip


def _busy(limits: Limits) -> float:
    """Sorted runs that a healthy bucket has at most: what comes while a compaction runs is on top of the trigger."""
    return float(min(limits.stop_trigger, limits.compaction_trigger + 3))


def _who_compacts(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    limits, r = case.limits, readings(case)
    if limits is None or not limits.write_only:
        return
    most = _busy(limits)
    yield sql.alter(
        "writers-compact", "root fix", "let the writers compact again", causes, {"write-only": "false"},
        loses="writers spend time on merging, and wait above "
        f"{limits.stop_trigger} sorted runs of a bucket",
        effect="each bucket is merged as soon as it has too many runs",
        notes=("or run a dedicated job instead, and keep 'write-only': in streaming mode "
               f"{sql.call('compact')} goes on for ever; shoal compact run {sql.name} --continuous does the same",),
        probe="COMPACT snapshots come again; reading most_runs",
        forecasts=(Forecast("most_runs", r["most_runs"], None, most),) if (r["most_runs"] or 0) > most else (),
    )  # fmt: skip


def _keep_up(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    buckets = case.options.bucket
    most = f", at most {buckets}" if buckets > 0 else ""
    job = {} if buckets == 1 else {"sink.parallelism": f"more than now{most}"}
    first = "more writer tasks compact more buckets at a time, and multiply requests to the store"
    if buckets == 1:
        first = "one bucket is compacted by one task: give it more time, or spread the rows over more buckets"
    yield Step(
        "more-writers", "root fix", "give compaction more threads, or less to do", causes,
        job=job,
        notes=(first, "a longer commit interval and fewer buckets give compaction less to do: see those steps",
               "'compaction.offpeak.start.hour' and '.end.hour' move large compactions to quiet hours"),
        undo=("set the old parallelism",), loses="nothing; more tasks",
        effect="files paid a minute reach the files flushed a minute",
        probe="the sustainability ratio is at most 1 over two cycles",
    )  # fmt: skip


def _one_compactor(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    users = sorted({s.user for s in case.window.steps if s.kind == "COMPACT"})
    named = ", ".join(users[:5])
    yield Step(
        "one-compactor", "root fix", "leave compaction to one job", causes,
        job={"write-only": "true, in every job but one"},
        notes=(f"these users compact now: {named}",
               f"in a job's SQL: INSERT INTO {sql.table} /*+ OPTIONS('write-only' = 'true') */ SELECT ..."),
        undo=("take the hint out again",), loses="nothing while the one that compacts lives",
        effect="commits no longer fail because another one compacted the same files",
        probe="COMPACT snapshots of one user only",
    )  # fmt: skip


def rhythm(told: Mapping[str, object]) -> tuple[tuple[frozenset[str], Make], ...]:
    """What makes the steps about job, clock, buckets, changelogs and compaction, for which findings."""
    return (
        (frozenset({"D16"}), _job_first),
        (frozenset({"D1", "D5", "D14"}), partial(_interval, told=told)),
        (frozenset({"D14"}), _idle),
        (frozenset({"D2"}), _buckets),
        (frozenset({"D4"}), _skew),
        (frozenset({"D3"}), _producer),
        (frozenset({"D5", "D7", "X2"}), _compact_now),
        (frozenset({"D7", "X2"}), _who_compacts),
        (frozenset({"D5"}), _keep_up),
        (frozenset({"D10"}), _one_compactor),
    )
