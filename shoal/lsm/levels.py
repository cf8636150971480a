# SPDX-License-Identifier: Apache-2.0
"""The sorted runs of one bucket, and what a commit does to them.

Agrees with: Levels, SortedRun (2.0.0). Invariant: a `Levels` is a value: level-0 files newest first, one run per
non-empty level above, the files of a run disjoint with ascending keys; `apply` gives the same value as building from
the files that result. Keys are decoded by the caller and arrive through `Bounds`; nothing here reads bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from shoal.errors import BadRequest, Conflict, Corrupt
from shoal.format.datafile import DataFile

# One decoded key, column by column. The column types differ from table to table, hence Any.
Key = tuple[Any, ...]
Bounds = Callable[[DataFile], tuple[Key, Key]]
Files = tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted run: its files do not overlap, and their keys ascend."""

    level: int
    files: Files

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)


@dataclass(frozen=True, slots=True)
class Levels:
    """The live files of one bucket by level. Build it with `Levels.of`, follow a commit with `apply`."""

    num_levels: int
    level0: Files  # newest first, each file a run of its own
    upper: tuple[Run, ...]  # the non-empty levels above 0, ascending
    bounds: Bounds

    @classmethod
    def of(cls, files: Iterable[DataFile], num_levels: int, bounds: Bounds) -> Levels:
        """The levels of these live files; there are more than `num_levels` when a file sits higher."""
        levels = cls(num_levels, (), (), bounds).apply((), files)
        if levels.num_levels < 2:
            raise BadRequest(
                f"a merge tree needs at least 2 levels, not {levels.num_levels}", hint="set num-levels to 2 or more"
            )
        return levels

    def apply(self, removed: Iterable[DataFile], added: Iterable[DataFile]) -> Levels:
        """The levels after a change. An upgrade removes the file at its old level and adds it at the new one.

        Only the levels the change names are sorted again. The number of levels never shrinks: a Java writer keeps
        it for as long as it lives, and the highest level decides what a pick means.
        """
        by_level = {run.level: run.files for run in self.upper}
        by_level[0] = self.level0
        drop, add = _by_level(removed), _by_level(added)
        for level in drop.keys() | add.keys():
            files = _replaced(level, by_level.get(level, ()), drop.get(level, ()), add.get(level, ()))
            by_level[level] = _sorted_run(level, files, self.bounds) if level else _newest_first(files)
        upper = tuple(Run(level, files) for level, files in sorted(by_level.items()) if level and files)
        num_levels = max(self.num_levels, upper[-1].level + 1 if upper else 1)
        return Levels(num_levels, by_level[0], upper, self.bounds)

    def runs(self) -> tuple[Run, ...]:
        """Every sorted run, newest first: level-0 files one by one, then each non-empty level."""
        return (*(Run(0, (f,)) for f in self.level0), *self.upper)

    @property
    def run_count(self) -> int:
        return len(self.level0) + len(self.upper)

    @property
    def files(self) -> Files:
        """Every live file, in the order of `runs`."""
        return (*self.level0, *chain.from_iterable(run.files for run in self.upper))

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.files)

    @property
    def max_level(self) -> int:
        return self.num_levels - 1

    @property
    def non_empty_highest_level(self) -> int:
        """The highest level that holds a file; -1 for an empty bucket."""
        if self.upper:
            return self.upper[-1].level
        return 0 if self.level0 else -1

    @property
    def max_sequence(self) -> int:
        """The highest sequence number in the bucket; -1 for an empty one, so that its first row gets 0."""
        return max((f.max_sequence for f in self.files), default=-1)


def _by_level(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    out: dict[int, list[DataFile]] = {}
    for f in files:
        out.setdefault(f.level, []).append(f)
    return out


def _replaced(level: int, files: Files, drop: Sequence[DataFile], add: Sequence[DataFile]) -> list[DataFile]:
    """`files` without `drop` and with `add`; Java would let both mistakes below pass in silence."""
    live = {f.file_name: f for f in files}
    for f in drop:
        if live.pop(f.file_name, None) is None:
            raise Conflict(
                f"file {f.file_name} is not at level {level} of this bucket any more",
                hint="another writer changed the bucket; plan again from the newest snapshot",
            )
    for f in add:
        if f.file_name in live:
            raise Corrupt(f"file {f.file_name} is at level {level} of this bucket twice")
        live[f.file_name] = f
    return list(live.values())


def _newest_first(files: Iterable[DataFile]) -> Files:
    # Two writers may hand out the same sequence numbers: time, then name, keep the order total.
    return tuple(sorted(files, key=lambda f: (-f.max_sequence, f.min_sequence, f.creation_ms or 0, f.file_name)))


def _sorted_run(level: int, files: Iterable[DataFile], bounds: Bounds) -> Files:
    keyed = [(*bounds(f), f) for f in files]
    keyed.sort(key=lambda span: span[0])
    for (_, left_max, left), (right_min, _, right) in pairwise(keyed):
        if not left_max < right_min:
            raise Corrupt(
                f"level {level}: files {left.file_name} and {right.file_name} overlap",
                hint="two compactions of this bucket were committed; keep one compactor per bucket",
            )
    return tuple(f for _, _, f in keyed)
