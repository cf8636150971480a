# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables sorted by other columns than the key: which files of a bucket are sorted or merged next.

New files, sorted by the key, wait on level 0; what has been sorted by the clustering columns lies on level 1 and may
overlap. Every compaction sorts the new files, each by itself, and merges neighbouring sorted files that meet or are
small. Agrees with: ClusteringFiles, ClusteringFileRewriter.pickMergeCandidates, ClusteringCompactManager (2.0.0).
Invariant: what a plan sorts it does not merge as well, so its sorted files are those of before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from shoal.errors import Conflict
from shoal.format.datafile import DataFile
from shoal.lsm.levels import Files, Key

SORTED = 1
"""The level of sorted files."""

Span = Callable[[DataFile], tuple[Key, Key] | None]
"""Least and greatest clustering columns of a sorted file; None where they are of other types than today's."""


@dataclass(frozen=True, slots=True)
class ClusteredFiles:
    """The live files of one bucket."""

    level0: Files
    """Sorted by the key, the oldest first."""
    sorted: Files

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> ClusteredFiles:
        every = tuple(files)
        return cls(_oldest_first(f for f in every if f.level == 0), tuple(f for f in every if f.level))

    def apply(self, removed: Iterable[DataFile], added: Iterable[DataFile]) -> ClusteredFiles:
        """The files after a change."""
        left = {f.file_name: f for f in self.files}
        for f in removed:
            if left.pop(f.file_name, None) is None:
                raise Conflict(
                    f"file {f.file_name} is not in this bucket any more",
                    hint="another writer changed the bucket; plan again from the newest snapshot",
                )
        return ClusteredFiles.of((*left.values(), *added))

    @property
    def files(self) -> Files:
        return (*self.level0, *self.sorted)

    @property
    def run_count(self) -> int:
        return len(self.level0) + len(self.sorted)

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)


@dataclass(frozen=True, slots=True)
class ClusteredPlan:
    """New files to be sorted each by itself, the oldest first, and groups of sorted files that become one each."""

    fresh: Files
    groups: tuple[Files, ...]
    rule: str
    reason: str
    output_level: int = SORTED

    @property
    def files(self) -> Files:
        return (*self.fresh, *chain.from_iterable(self.groups))


def pick_clustered(files: ClusteredFiles, target_size: int, span: Span, *, full: bool = False) -> ClusteredPlan | None:
    """What to sort and merge next; None when nothing is new and no sorted files go together. `full` merges them all."""
    groups = [files.sorted] if full else merge_groups(files.sorted, target_size, span)
    chosen = tuple(tuple(g) for g in groups if len(g) > 1)
    if not files.level0 and not chosen:
        return None
    merged = sum(map(len, chosen))
    said = []
    if files.level0:
        said.append(f"{len(files.level0)} new file{'s' if len(files.level0) > 1 else ''} to be sorted")
    if chosen:
        why = "of the bucket" if full else "that overlap or are small"
        said.append(f"{merged} sorted files {why} to be merged")
    rule = "asked for" if full else "level 0" if files.level0 else "clustered"
    return ClusteredPlan(files.level0, chosen, rule, ", ".join(said))


def merge_groups(files: Sequence[DataFile], target_size: int, span: Span) -> list[Files]:
    """Neighbouring sorted files that are merged: sections of several files, or of less than half the target size.

    A section holds files that meet, a shared end is enough. A large file that meets none stands between two groups.
    """
    if len(files) < 2:
        return []
    groups: list[list[DataFile]] = [[]]
    for section in _sections(files, span):
        if len(section) > 1 or sum(f.file_size for f in section) < target_size // 2:
            groups[-1] += section
        else:
            groups.append([])
    return [tuple(g) for g in groups if len(g) > 1]


def sorted_runs(files: Sequence[DataFile], span: Span) -> list[Files] | None:
    """The files as few runs, each sorted from its first file to its last; None where a file's order is not today's."""
    spans = [(span(f), f) for f in files]
    known = [(s[0], s[1], f) for s, f in spans if s is not None]
    if len(known) < len(spans):
        return None
    runs: list[list[DataFile]] = []
    ends: list[Key] = []
    for low, high, file in sorted(known, key=lambda s: (s[0], s[1])):
        # the run that ends last of those that end before this file: the others stay open for files to come
        fitting = [i for i, end in enumerate(ends) if end <= low]
        if fitting:
            at = max(fitting, key=lambda i: ends[i])
            runs[at].append(file)
            ends[at] = high
        else:
            runs.append([file])
            ends.append(high)
    return [tuple(r) for r in runs]


def _sections(files: Sequence[DataFile], span: Span) -> list[list[DataFile]]:
    """Files that meet, section by section. One that is not in today's order may meet all of them."""
    spans = [(span(f), f) for f in files]
    if any(s is None for s, _ in spans):
        return [list(files)]
    ordered = sorted(((s[0], s[1], f) for s, f in spans if s is not None), key=lambda s: s[0])
    out: list[list[DataFile]] = []
    end: Key = ()
    for low, high, file in ordered:
        if out and low <= end:
            out[-1].append(file)
            end = max(end, high)
        else:
            out.append([file])
            end = high
    return out


def _oldest_first(files: Iterable[DataFile]) -> Files:
    # as `Levels` has level 0, the other way round: two writers may hand out the same sequence numbers
    newest_first = sorted(files, key=lambda f: (-f.max_sequence, f.min_sequence, f.creation_ms or 0, f.file_name))
    return tuple(reversed(newest_first))
