# SPDX-License-Identifier: Apache-2.0
"""D14: most commits bring nothing: each still writes a snapshot, two manifest lists and what hangs on them.

A COMPACT snapshot has no new rows by nature and is not idle; a commit that only moved an index is not either. Agrees
with: FileStoreCommitImpl with `snapshot.ignore-empty-commit` (2.0.0). Invariant: a writer that leaves empty checkpoints
out makes no idle commit, and a table that is quiet at times is well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.doctor.diagnose.case import Case
from shoal.doctor.diagnose.pace import enough
from shoal.doctor.finding import Finding
from shoal.doctor.window import METADATA, NOTHING, SnapshotFacts

NAME = "idle commits"
_MOST = 0.5  # more than this share, and most metadata is written for nothing
_SOME = 0.2  # told as info; where few commits are retained, a warning is surely above this
_Z = 1.96


def idle(case: Case) -> Iterator[Finding]:
    """Commits of a writer without rows."""
    busy = set(case.window.flows.column("snapshot").unique().to_pylist())
    commits = [s for s in case.window.steps if s.kind == "APPEND"]
    empty = [s for s in commits if s.id not in busy and _says_nothing(s)]
    lived = case.window.steps[-1].id * len(commits) / len(case.window.steps) if commits else 0.0
    if not enough(len(commits), lived) or len(empty) < _SOME * len(commits):
        return
    share = len(empty) / len(commits)
    objects = [sum((s.wrote.get(kind, NOTHING).files for kind in METADATA), 0) for s in empty]
    each = sum(objects) / len(objects)
    minutes = (commits[-1].time_ms - commits[0].time_ms) / 60_000
    per_hour = len(empty) / minutes * 60 if minutes > 0 else None
    users = sorted({s.user for s in empty})
    marks = {s.watermark for s in empty if s.watermark is not None}
    wanted = case.options.get("tag.automatic-creation") == "watermark" or len(marks) > 1
    why = "; they carry the watermark on" if wanted else ""
    rate = "" if per_hour is None else f", {per_hour:,.0f} snapshots and {per_hour * each:,.0f} objects an hour less"
    yield Finding(
        "D14", NAME, "warn" if share > _MOST and _least(len(empty), len(commits)) > _SOME else "info", "supported",
        {"table": case.window.name or case.window.table, "user": ", ".join(users), "kind": "APPEND"},
        {"idle_commits": len(empty), "commits": len(commits), "share": round(share, 3),
         "objects_each": round(each, 1), "per_hour": None if per_hour is None else round(per_hour, 1),
         "with_watermark": len(marks) > 1},
        f"{len(empty):,} of {len(commits):,} commits ({share:.0%}) bring no rows, and each writes {each:.0f} metadata "
        f"files{why}",
        ("ALTER TABLE ... SET ('snapshot.ignore-empty-commit' = 'true')"
         + (", unless readers need the watermark of a quiet table" if wanted else ""),
         "lengthen execution.checkpointing.interval to the pace at which rows come"),
        f"{len(empty):,} of {len(case.window.steps):,} snapshots would not be{rate}",
        tuple(s.id for s in empty[-3:]),
    )  # fmt: skip


def _least(found: int, of: int) -> float:
    """The lower end of the 95 % interval (Wilson) of a share that `found` of `of` were seen of."""
    share, z = found / of, _Z**2 / of
    return (share + z / 2 - _Z * math.sqrt(share * (1 - share) / of + z / (4 * of))) / (1 + z)


def _says_nothing(step: SnapshotFacts) -> bool:
    return not step.delta_records and not step.changelog_records and not step.wrote.get("index-manifest", NOTHING).files
