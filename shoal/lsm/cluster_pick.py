# SPDX-License-Identifier: Apache-2.0
"""Which files of a clustered append table are sorted together next, and to which level they go: pure functions.

A new file lies on level 0 and is a run by itself; the files of a higher level were sorted together and are one run,
though they may overlap once a level got two lots. The strategy is that of merge trees. Agrees with:
IncrementalClusterStrategy, IncrementalClusterManager, HistoryPartitionCluster, BucketedAppendLevels (2.0.0).
Invariant: a plan takes whole runs, the lowest levels first, and never leaves its files on level 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from shoal.format.datafile import DataFile
from shoal.lsm.levels import Run
from shoal.lsm.pick import Plan, Policy, choose_runs

ASKED = "full clustering was asked for"


def runs_of(files: Iterable[DataFile]) -> tuple[Run, ...]:
    """Level-0 files one by one, the oldest first, then each level that has files."""
    ordered = sorted(files, key=lambda f: (f.level, f.min_sequence))
    upper: dict[int, list[DataFile]] = {}
    for f in ordered:
        if f.level:
            upper.setdefault(f.level, []).append(f)
    return (
        *(Run(0, (f,)) for f in ordered if not f.level),
        *(Run(level, tuple(files)) for level, files in upper.items()),
    )


def pick_cluster(
    files: Iterable[DataFile], policy: Policy, done: Callable[[DataFile], bool], *, full: bool, reason: str = ASKED
) -> Plan | None:
    """What to sort together next; with `full` everything, unless it is `done`: sorted once by the same columns."""
    runs = runs_of(files)
    if not full:
        return choose_runs(runs, policy.num_levels, policy)
    highest = policy.num_levels - 1
    if not runs or (len(runs) == 1 and runs[0].level == highest and done(runs[0].files[0])):
        return None
    return Plan(
        highest, tuple(f for run in runs for f in run.files), False, "asked for" if reason == ASKED else "idle", reason
    )


def idle_partitions(
    files: Mapping[bytes, Sequence[DataFile]], policy: Policy, before_ms: int, chosen: Iterable[bytes], limit: int
) -> list[bytes]:
    """Partitions beside the chosen ones that got no file since, and are not sorted in full: those idle longest first.

    Files of the highest level do not count, they are sorted. Creation times are local wall clock, as `before_ms`.
    """
    highest, left_out = policy.num_levels - 1, set(chosen)
    newest: dict[bytes, int] = {}
    for partition, there in files.items():
        made = [f.creation_ms or 0 for f in there if f.level < highest]
        if made and max(made) < before_ms and partition not in left_out:
            newest[partition] = max(made)
    return sorted(newest, key=lambda p: (newest[p], p))[:limit]


def packs(files: Sequence[DataFile], size: int) -> list[tuple[DataFile, ...]]:
    """The files in neighbouring groups of about this size, to be sorted each by itself."""
    out: list[list[DataFile]] = []
    held = size
    for f in files:
        if held >= size:
            out.append([])
            held = 0
        out[-1].append(f)
        held += f.file_size
    return [tuple(group) for group in out]
