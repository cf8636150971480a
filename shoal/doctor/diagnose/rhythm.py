# SPDX-License-Identifier: Apache-2.0
"""D1: checkpoints come more often than anybody needs, so that each brings little and all files are small.

How much slack there is comes from the freshness that was asked for, else from the slower clock that the table had
before, else from an assumption that the finding states. Invariant: what an assumption decides is "consistent with", and
steps back where another cause is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.doctor.attribution import COMMITS, Attribution, attribute
from shoal.doctor.compare import seconds
from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.pace import Pace, interval_of, slower_before
from shoal.doctor.finding import Confidence, Evidence, Finding, Severity
from shoal.doctor.report import size_text

NAME = "checkpoint too frequent"
# A factor that makes this share of the difference explains it.
MOST = 0.8
# Where nobody says how fresh rows must be. A minute is Paimon's own advice for tables that need no less.
ASSUMED_S = 60.0
# New files under this share of the target size are small; a clock that is only assumed to be too fast needs the second.
SMALL, TINY = 1 / 10, 1 / 30
# A longer interval is worth a warning when it at least halves what is made.
_HALF = 2.0
# MOST of the objects go with five times the interval. A clock so fast that this is so even if rows are needed four
# times as fresh as assumed is too fast whatever the assumption.
_FIVE, _SURELY = 1 / (1 - MOST), 4.0


@dataclass(frozen=True, slots=True)
class _Slack:
    """How long the interval may be, and who says so."""

    longest_s: float
    why: str
    kind: str  # slo, before, assumed
    change: Attribution | None = None
    since: int | None = None  # the snapshot from which on the clock is as it is
    before: tuple[int, int] | None = None


def too_frequent(case: Case) -> Iterable[Finding]:
    """D1, when new files are small for their target and the clock could be slower."""
    pace, limits = case.pace, case.limits
    if pace is None or limits is None or not pace.telling or not pace.streaming or pace.interval_s <= 0:
        return
    small = pace.flush_bytes / limits.target_size
    slack = _slack(case, pace)
    times = slack.longest_s / pace.interval_s
    if small >= SMALL or times < _HALF:
        return
    avoided = 1 - 1 / times
    severity: Severity = "warn"
    confidence: Confidence = "consistent with"
    if slack.kind == "before":
        share = None if slack.change is None else slack.change.share(COMMITS)
        grew = slack.change is not None and slack.change.difference > 0
        if share is not None and share >= MOST and grew:
            confidence = "supported"
        if pace.interval_s >= ASSUMED_S:
            severity = "info"
    elif slack.kind == "slo":
        confidence = "supported" if avoided >= MOST else confidence
    elif avoided < MOST or small >= TINY:
        severity = "info"
    elif times >= _SURELY * _FIVE:
        confidence = "supported"
    yield _finding(case, pace, slack, severity, confidence)


def _slack(case: Case, pace: Pace) -> _Slack:
    if case.slo_ms is not None:
        late = _after_commit_s(case)
        longest = case.slo_ms / 1000 - late
        text = f"rows must be visible within {seconds(case.slo_ms / 1000)}"
        if late:
            text += f", of which commit and reader take {seconds(late)}"
        change, since, before = _change(case)
        return _Slack(longest, text, "slo", change, since, before)
    slower = slower_before(case.model.segments)
    if slower:
        was = interval_of(slower[-1]) or 0.0
        change, since, before = _change(case)
        text = f"until snapshot {pace.first} checkpoints came every {seconds(was)}"
        if was / pace.interval_s >= _HALF:
            return _Slack(was, text, "before", change, since, before)
    text = f"nobody said how fresh rows must be; {seconds(ASSUMED_S)} is assumed to do"
    return _Slack(ASSUMED_S, text, "assumed")


def _after_commit_s(case: Case) -> float:
    """What passes between a checkpoint and a reader that sees its rows: the commit, and a stream's next look."""
    commit = max(case.probes.get("commit", ()), default=0.0) / 1000
    if case.job is not None and not commit:
        commit = case.job.durations.get("p99", 0.0) / 1000
    streams = any(h.kind == "consumer" for h in case.window.stock.holders)
    look = case.options.get("continuous.discovery-interval") if streams else None
    return commit + (int(str(look)) / 1000 if look is not None else 0.0)


def _change(case: Case) -> tuple[Attribution | None, int | None, tuple[int, int] | None]:
    """What the file rate did when the clock became faster."""
    slower, pace = slower_before(case.model.segments), case.pace
    if not slower or pace is None:
        return None, None, None
    span = slower[0].first, slower[-1].last
    window = case.window
    return attribute(window, window, a_span=(pace.first, pace.last), b_span=span), pace.first, span


def _finding(case: Case, pace: Pace, slack: _Slack, severity: Severity, confidence: Confidence) -> Finding:
    assert case.limits is not None
    longest, now = slack.longest_s, pace.interval_s
    times = longest / now
    evidence: dict[str, Evidence] = {
        "checkpoint_interval_s": round(now, 3), "longest_interval_s": round(longest, 3), "slack": slack.kind,
        "assumption": slack.why if slack.kind == "assumed" else None, "commits": pace.commits,
        "flush_bytes_median": pace.flush_bytes, "flush_rows_median": pace.flush_rows,
        "target_file_size": case.limits.target_size, "objects_per_commit": round(pace.objects, 2),
        "avoidable_share": round(1 - 1 / times, 3),
    }  # fmt: skip
    moved = ""
    snapshots = [pace.first, pace.last]
    if slack.change is not None and slack.before is not None:
        share = slack.change.share(COMMITS)
        evidence |= {
            "files_per_minute": round(slack.change.a, 3), "files_per_minute_before": round(slack.change.b, 3),
            "commits_share": None if share is None else round(share, 3), "since_snapshot": slack.since,
        }  # fmt: skip
        moved = f"; since snapshot {slack.since} new files a minute are {slack.change}"
        snapshots = [*slack.before, *snapshots]
    day = pace.objects * pace.commits_per_day
    says = (
        f"Checkpoints come every {seconds(now)} and bring files of {size_text(round(pace.flush_bytes))} "
        f"({pace.flush_rows:,.0f} rows) where {size_text(case.limits.target_size)} is the target, but "
        f"{slack.why}{moved}."
    )
    steps = [
        f"set the job's execution.checkpointing.interval to {seconds(longest)} (a shoal job: its checkpoint clock); "
        f"rows are then visible after up to {seconds(longest)} instead of {seconds(now)}",
        "watch new files a minute and the length of checkpoints over two compaction cycles",
    ]
    if slack.kind != "slo":
        steps.insert(0, f"settle how fresh rows must be: {slack.why}")
    effect = (
        f"objects made go from about {day:,.0f} a day to {day / times:,.0f} ({1 - 1 / times:.0%} less), files of level "
        f"0 grow to about {size_text(round(pace.flush_bytes * times))}"
    )
    scope: dict[str, str | int] = {
        "user": case.model.segments.user or "",
        "kind": "APPEND",
        "class": "flush",
        "level": 0,
    }
    return Finding(
        "D1", NAME, severity, confidence, scope, evidence, says, tuple(steps), effect, tuple(dict.fromkeys(snapshots))
    )  # fmt: skip
