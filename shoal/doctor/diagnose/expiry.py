# SPDX-License-Identifier: Apache-2.0
"""D6: snapshots stay longer than the options ask for, and who holds them.

Expiry runs after commits, so a table is judged at the time of its last commit: one that nobody writes to is not behind.
Earlier looks, where a history has them, tell whether expiry moves at all: one that leaves the earliest snapshot alone
over ten commits is not working anything off. Agrees with: ExpireSnapshotsImpl (2.0.0), which lets the number of
snapshots win over their age, stops at the first snapshot that a consumer still needs, and deletes at most
`snapshot.expire.limit` at once. Invariant: a backlog that the next commits will delete is no finding above info.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.doctor.beside import unmoved
from shoal.doctor.compare import seconds
from shoal.doctor.debt import data_commits, postpones
from shoal.doctor.diagnose.case import Case, per_hour
from shoal.doctor.finding import Confidence, Evidence, Finding, Severity
from shoal.doctor.report import size_text
from shoal.doctor.states import class_is, ints
from shoal.doctor.stocks import retention
from shoal.doctor.window import CHANGELOG, REMOVAL, Count, Holder, SnapshotFacts, Window

NAME = "expiry behind"
# Snapshots beyond those that are due to stay: fewer are the delay of one commit or of a background expiry.
_LEAST, _SHARE = 10, 0.1
# Times the retention: a reader that is a little behind may be; one that is this much is no longer reading.
_LONG, _LATE = 1.5, 1.25
# Where nothing in the table says why; and where a compacting job is the one to expire, which it does when it runs.
_UNTOLD, _SELDOM = 2.0, 6.0
_DEFAULT_LEAST = 10
_RAISED = 5 * _DEFAULT_LEAST  # a least number under this is somebody's caution


@dataclass(frozen=True, slots=True)
class _Behind:
    """What is there and should not be."""

    earliest: int
    due: int  # the earliest if expiry had done its work at the last commit
    young: int  # the earliest by age alone
    age_ms: int  # of the earliest, at the last commit
    keep_ms: int
    snapshots_per_commit: float


def behind(case: Case) -> Iterable[Finding]:
    """D6, when snapshots that should be gone are there."""
    found = _behind(case.window)
    if found is None:
        return
    counted = _by_count(case, found)
    if counted is not None:
        yield counted
        return
    late = found.due - found.earliest
    kept = (case.window.stock.latest or 0) - found.due + 1
    if late < max(_LEAST, _SHARE * kept) or found.age_ms < _LATE * found.keep_ms:
        return
    name, holder, change, severity, confidence = _holder(case, found)
    yield _finding(case, found, name, holder, change, severity, confidence)


def _behind(window: Window) -> _Behind | None:
    earliest, latest = window.stock.earliest, window.stock.latest
    steps = [s for s in window.steps if s.id >= (earliest or 0)]
    if earliest is None or latest is None or not steps:
        return None
    keep = retention(window).snapshots
    now = max(s.time_ms for s in steps)
    young = next((s.id for s in steps if now - s.time_ms <= keep.time_ms), latest)
    due = max(min(max(young, latest - keep.most + 1), latest - keep.least + 1), earliest)
    commits = len(data_commits(steps))
    return _Behind(earliest, due, young, now - steps[0].time_ms, keep.time_ms, len(steps) / max(commits, 1))


def _by_count(case: Case, found: _Behind) -> Finding | None:
    """A least number that somebody raised keeps snapshots far longer than the time that was asked for."""
    keep = retention(case.window).snapshots
    latest = case.window.stock.latest or 0
    held = found.young - max(latest - keep.least + 1, found.earliest)
    if keep.least <= _DEFAULT_LEAST or held < _LEAST or found.age_ms < 2 * found.keep_ms or found.due > found.earliest:
        return None
    change = (
        f"lower snapshot.num-retained.min from {keep.least} (default {_DEFAULT_LEAST}): ALTER TABLE t SET "
        f"('snapshot.num-retained.min' = '{_DEFAULT_LEAST}')",
        "or raise snapshot.time-retained, if that long is meant",
    )
    severity: Severity = "warn" if keep.least >= _RAISED else "info"
    return _finding(case, found, "snapshot.num-retained.min", None, change, severity, "supported")


def _holder(
    case: Case, found: _Behind
) -> tuple[str, Holder | None, tuple[str, ...], Severity, Confidence]:  # fmt: skip
    """Who keeps the snapshots, and what to do about it."""
    window, options = case.window, case.options
    expire = "CALL sys.expire_snapshots(`table` => 'db.t') deletes the backlog at once"
    consumers = sorted((h for h in window.stock.holders if h.kind == "consumer"), key=lambda h: h.snapshot)
    if consumers and consumers[0].snapshot < found.due and retention(window).consumers_hold_snapshots:
        slowest = consumers[0]
        severity: Severity = "warn" if found.age_ms >= _LONG * found.keep_ms else "info"
        steps = [
            f"find out whether consumer '{slowest.name}' is still read with; if not: CALL sys.reset_consumer(`table` "
            f"=> 'db.t', consumer_id => '{slowest.name}') removes it, with next_snapshot_id it moves on",
        ]
        if options.get("consumer.expiration-time") is None:
            steps.append("SET ('consumer.expiration-time' = '1 d') lets consumers go that nobody moves")
        return f"consumer {slowest.name}", slowest, (*steps, expire), severity, "supported"
    if options.write_only or (window.schema is not None and postpones(window.schema)):
        steps = [
            "a write-only writer, or one of postponed rows, expires nothing: let a compacting job run, or schedule "
            "CALL sys.expire_snapshots"
        ]
        seldom = any(s.kind == "COMPACT" for s in window.steps) and found.age_ms < _SELDOM * found.keep_ms
        return "write-only", None, (*steps, expire), "info" if seldom else "warn", "supported"
    limit = int(str(options.get("snapshot.expire.limit")))
    if limit <= found.snapshots_per_commit:
        need = max(10, round(2 * found.snapshots_per_commit))
        steps = [
            f"each commit makes {found.snapshots_per_commit:.1f} snapshots and may expire {limit}: SET "
            f"('snapshot.expire.limit' = '{max(need, 50)}')"
        ]
        return "snapshot.expire.limit", None, (*steps, expire), "warn", "supported"
    stuck = commits_unmoved(case) >= _LEAST
    if not stuck and _drains(window, found, limit):
        steps = ["nothing: expiry is working off what piled up while nobody committed"]
        return "a backlog that commits work off", None, tuple(steps), "info", "consistent with"
    if str(options.get("snapshot.expire.execution-mode")) == "async":
        steps = ["SET ('snapshot.expire.execution-mode' = 'sync'), or give the committer time before it ends"]
        return "snapshot.expire.execution-mode", None, (*steps, expire), "warn", "consistent with"
    steps = ["find out why the committer expires nothing: its log names the file that fails; a job whose options "
             "differ from the table's may keep more"]  # fmt: skip
    severity = "warn" if found.age_ms >= _UNTOLD * found.keep_ms else "info"
    return "nobody expires", None, (*steps, expire), severity, "supported" if stuck else "consistent with"


def commits_unmoved(case: Case) -> int:
    """Commits of data that earlier looks saw come while the earliest snapshot stayed the same, up to the last look."""
    still = unmoved(case.beside.looks)
    if still is None:
        return 0
    first, last = (seen.latest or 0 for seen in still)
    return sum(first < s.id <= last for s in data_commits(case.window.steps))


def _drains(window: Window, found: _Behind, limit: int) -> bool:
    """Whether a pause made the backlog, and the commits since could not yet have deleted all of it."""
    steps: list[SnapshotFacts] = [s for s in window.steps if s.id >= found.earliest]
    pause = max(range(1, len(steps)), key=lambda i: steps[i].time_ms - steps[i - 1].time_ms, default=0)
    if not pause or steps[pause].time_ms - steps[pause - 1].time_ms < found.keep_ms / 2:
        return False
    since = len(data_commits(steps[pause:]))
    return (found.due - found.earliest) > since * (limit - found.snapshots_per_commit) / 2 and limit > 1


def _finding(
    case: Case, found: _Behind, name: str, holder: Holder | None, change: tuple[str, ...], severity: Severity,
    confidence: Confidence,
) -> Finding:  # fmt: skip
    window = case.window
    latest = window.stock.latest or 0
    due = max(found.due, found.young)
    held = _held(window, found.earliest, due)
    extra = "" if holder is None else f", whose next snapshot is {holder.snapshot}"
    evidence: dict[str, Evidence] = {
        "holder": name, "earliest_snapshot": found.earliest, "due_earliest": due, "latest_snapshot": latest,
        "overdue_snapshots": due - found.earliest, "earliest_age_s": found.age_ms // 1000,
        "time_retained_s": found.keep_ms // 1000, "snapshots_per_commit": round(found.snapshots_per_commit, 2),
        "expire_limit": int(str(case.options.get("snapshot.expire.limit"))), "held_files": held.files,
        "held_bytes": held.bytes, "consumer_next_snapshot": None if holder is None else holder.snapshot,
        "tags": sum(h.kind == "tag" for h in window.stock.holders),
    }  # fmt: skip
    if case.beside.looks:
        evidence |= {"looks": len(case.beside.looks), "commits_without_expiry": commits_unmoved(case)}
    evidence |= per_hour(case.model, "retained_files")
    says = (
        f"The oldest snapshot ({found.earliest}) was {seconds(found.age_ms / 1000)} old at the last commit where "
        f"{seconds(found.keep_ms / 1000)} are to be kept: {due - found.earliest:,} snapshots too many, held by "
        f"{name}{extra}."
    )
    late = due - found.earliest
    effect = f"{late:,} snapshots with {held.files:,} dead files ({size_text(held.bytes)}) and their metadata go"
    scope: dict[str, str | int] = {"holder": name, "snapshot": found.earliest}
    if holder is not None:
        scope["consumer"] = holder.name
    elif name.startswith("snapshot.") or name == "write-only":
        scope["option"] = name
    return Finding(
        "D6", NAME, severity, confidence, scope, evidence, says, change, effect, (found.earliest, due, latest)
    )  # fmt: skip


def _held(window: Window, earliest: int, due: int) -> Count:
    """Dead data files and changelog files that go with the snapshots from `earliest` to before `due`."""
    ids = ints(window.flows, "snapshot")
    dead = class_is(window.flows, REMOVAL) & (ids > earliest) & (ids <= due)
    told = class_is(window.flows, CHANGELOG) & (ids >= earliest) & (ids < due)
    chosen = dead | told
    return Count(*(int(ints(window.flows, n)[chosen].sum()) for n in ("files", "bytes", "rows")))
