# SPDX-License-Identifier: Apache-2.0
"""D10: two jobs compact the same bucket in turns, so each finds files gone that it wanted to rewrite.

Java's committer fails a compaction whose inputs another one removed: the job restarts, which shows as checkpoints left
out. The sources of Paimon decide that, so turns on one bucket support it without restarts too. Agrees with:
ConflictDetection, the page on dedicated compaction (2.0.0). Invariants: writers that compact nothing are no part of it;
a job that was started anew under another name, and a compaction by hand, are not "in turns".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.doctor.checkpoints import BATCH, restarts
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding
from shoal.doctor.states import class_is
from shoal.doctor.window import FLUSH, REMOVAL, REWRITE, UPGRADE

NAME = "compaction conflict"
_RETURNS = 3  # so often must one come back after the other: once or twice is somebody's hand
_NEAR = 3  # snapshots after a foreign compaction in which a restart is laid to it
_BY_HAND = "batch compactions"


@dataclass(frozen=True, slots=True)
class _Turns:
    """Who compacted one bucket, in order."""

    partition: str
    bucket: int
    returns: int
    by: Counter[str]
    foreign: tuple[int, ...]  # snapshots where one took over from another


def conflict(case: Case) -> Iterator[Finding]:
    """Buckets that several jobs compact in turns."""
    turns = [t for t in _turns(case) if t.returns >= _RETURNS and len(_often(t)) > 1]
    if not turns:
        return
    worst = max(turns, key=lambda t: t.returns)
    users = sorted(_often(worst))
    writers = _users(case, FLUSH)
    inline = [u for u in users if u in writers]
    taken = {s for t in turns for s in t.foreign}
    lost = [r for r in restarts(case.window.steps) if any(0 <= r.snapshot - s <= _NEAR for s in taken)]
    counts = ", ".join(f"{u} {worst.by[u]}" for u in users)
    partitions = len({t.partition for t in turns})
    dedicated = [u for u in users if u not in writers]
    if dedicated:
        first = (
            f"ALTER TABLE ... SET ('write-only' = 'true') and restart the writer{'s' if len(inline) > 1 else ''} "
            f"({', '.join(inline)}): only the dedicated job compacts then",
            "or stop the dedicated compaction: the writer compacts by itself",
        ) if inline else (f"stop all compaction jobs but one of {', '.join(dedicated)}",)  # fmt: skip
    else:
        first = (
            "ALTER TABLE ... SET ('write-only' = 'true') and restart all writers",
            "start one compaction job: CALL sys.compact(`table` => '...') in streaming mode",
        )
    yield Finding(
        "D10", NAME, "error" if len(lost) >= _RETURNS else "warn", "supported",
        {"table": case.window.name or case.window.table, "partition": worst.partition.rstrip("/"),
         "bucket": worst.bucket, "user": ", ".join(users), "kind": "COMPACT"},
        {"users": tuple(users), "turns": worst.returns, **{f"compactions_by_{u}": worst.by[u] for u in users},
         "partitions": partitions, "buckets": len(turns), "restarts_after_it": len(lost),
         "restart_snapshots": tuple(r.snapshot for r in lost)},
        f"{len(users)} jobs compact bucket {worst.bucket}"
        f"{' of ' + worst.partition.rstrip('/') if worst.partition else ''} in turns ({counts} compactions, "
        f"{worst.returns} times one after the other)"
        + (f", and {len(lost)} times checkpoints are missing right after" if lost else ""),
        first,
        f"none of {sum(worst.by.values())} compactions of this bucket is done for nothing, and no job restarts because "
        "the files that it rewrote are gone",
        worst.foreign[-5:],
    )  # fmt: skip


def _often(turns: _Turns) -> list[str]:
    return [u for u, n in turns.by.items() if n >= _RETURNS]


def _users(case: Case, *classes: str) -> set[str]:
    flows = case.window.flows
    ids = set(flows.filter(class_is(flows, *classes)).column("snapshot").to_pylist())
    return {s.user for s in case.window.steps if s.id in ids and s.kind == "APPEND"}


def _turns(case: Case) -> Iterator[_Turns]:
    """For each bucket that was compacted: by whom, and how often one came back after another."""
    flows, steps = case.window.flows, case.window.steps
    writers = _users(case, FLUSH)
    compactions = Counter(s.user for s in steps if s.kind == "COMPACT")
    by_id = {}
    for s in steps:
        if s.kind == "COMPACT":
            # a batch compaction takes a new name each time
            hand = s.user not in writers and (s.identifier == BATCH or compactions[s.user] == 1)
            by_id[s.id] = _BY_HAND if hand else s.user
    mine = flows.filter(class_is(flows, REWRITE, REMOVAL, UPGRADE))
    pairs = mine.group_by(["partition", "bucket", "snapshot"]).aggregate([])
    pairs = pairs.sort_by([(n, "ascending") for n in ("partition", "bucket", "snapshot")])
    buckets: dict[tuple[str, int], list[int]] = {}
    for partition, bucket, snapshot in zip(*pairs.to_pydict().values()):
        if snapshot in by_id:
            buckets.setdefault((partition, bucket), []).append(snapshot)
    for (partition, bucket), ids in buckets.items():
        seen: set[str] = set()
        foreign: list[int] = []
        last, returns = None, 0
        for i in ids:
            user = by_id[i]
            if user != last:
                returns += user in seen
                foreign += [i] if last is not None else []
            seen.add(user)
            last = user
        yield _Turns(partition, bucket, returns, Counter(by_id[i] for i in ids), tuple(foreign))
