# SPDX-License-Identifier: Apache-2.0
"""Which files of a table without a primary key are written together: pure functions of values.

Buckets keep the order of their rows: neighbours in sequence merge, the oldest first. Without buckets any small files of
a partition merge, packed by size. Agrees with: BucketedAppendCompactManager, AppendCompactCoordinator, FileBin (2.0.0);
where Java walks its priority queue in the order of the heap array, files go by sequence here. Invariant: no file is in
two groups, and a group of a bucket is in order of sequence with nothing between its files that waits as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.format.datafile import DataFile

Files = tuple[DataFile, ...]

# A forced compaction of a bucket is not worth its work for fewer files.
_FULL_MIN_FILES = 3
# Rounds without new files after which what waits is compacted together, and after which it is forgotten.
_COMPACT_AGE = 5
_REMOVE_AGE = 10


@dataclass(frozen=True, slots=True)
class AppendPolicy:
    """The numbers a pick depends on. Sizes in bytes; a file of `enough` bytes is not small any more."""

    min_files: int = 5
    target: int = 256 << 20
    enough: int = 187_904_819
    open_cost: int = 4 << 20
    delete_ratio: float = 0.2
    file_limit: int = 100_000
    rewrite_all: bool = False
    vectors: bool = False


def append_policy(
    *,
    min_files: int = 5,
    target: int = 256 << 20,
    small_ratio: float = 0.7,
    open_cost: int = 4 << 20,
    delete_ratio: float = 0.2,
    file_limit: int = 100_000,
    rewrite_all: bool = False,
    vectors: bool = False,
) -> AppendPolicy:
    """Parsed option values to a policy; defaults are Paimon's."""
    enough = int(target * small_ratio)
    return AppendPolicy(min_files, target, enough, open_cost, delete_ratio, file_limit, rewrite_all, vectors)


# ---- buckets


def in_order(files: Iterable[DataFile]) -> Files:
    """Files of one bucket, the oldest rows first."""
    return tuple(sorted(files, key=lambda f: f.min_sequence))


def pick_next(queue: Sequence[DataFile], policy: AppendPolicy) -> tuple[Files | None, Files]:
    """(the neighbours to merge next or None, the queue afterwards).

    Files that are passed over because their neighbours are large leave the queue, and come back when a writer starts
    again: Java's writers do the same.
    """
    waiting = in_order(queue)
    candidates: list[DataFile] = []
    size = 0
    for i, f in enumerate(waiting):
        candidates.append(f)
        size += f.file_size
        if len(candidates) >= policy.min_files:
            return tuple(candidates), waiting[i + 1 :]
        if size >= 2 * policy.target:
            size -= candidates.pop(0).file_size
    return None, tuple(candidates)


def pick_full(queue: Sequence[DataFile], policy: AppendPolicy, deleted: Collection[str] = ()) -> Files | None:
    """The files that a forced compaction writes together; None, and the queue stays, when it is not worth it.

    Empty when it looked and found them large enough: the queue is empty then, too. `deleted` are names of files that
    have a deletion vector.
    """
    if not policy.rewrite_all and (not queue or (not policy.vectors and len(queue) < _FULL_MIN_FILES)):
        return None
    return without_large_front(in_order(queue), policy, deleted)


def without_large_front(files: Files, policy: AppendPolicy, deleted: Collection[str] = ()) -> Files:
    """The files from the first one on that is small or has deleted rows; none where most of those are large."""
    if not policy.rewrite_all:
        stay = 0
        while stay < len(files) and files[stay].file_size >= policy.enough and files[stay].file_name not in deleted:
            stay += 1
        files = files[stay:]
    if policy.vectors or policy.rewrite_all:
        return files
    small = sum(f.file_size < policy.enough for f in files)
    return files if small > len(files) - small and len(files) >= _FULL_MIN_FILES else ()


def after(queue: Sequence[DataFile], written: Sequence[DataFile], policy: AppendPolicy) -> Files:
    """The queue once a compaction has written these files: its last one waits again while it is small."""
    return (*queue, written[-1]) if written and written[-1].file_size < policy.enough else tuple(queue)


# ---- tables without buckets


def worth(file: DataFile, policy: AppendPolicy, deleted: Callable[[str], int | None] | None = None) -> bool:
    """Whether a file is to be looked at: it is small, or many of its rows are gone.

    `deleted` gives how many rows of a file are marked, 0 for none and None for a number that nobody noted.
    """
    if file.file_size < policy.enough:
        return True
    if deleted is None:
        return False
    count = deleted(file.file_name)
    return count is None or count > file.row_count * policy.delete_ratio


@dataclass(frozen=True, slots=True)
class Waiting:
    """Files of one partition that no round has taken yet, and for how many rounds nothing came of them."""

    files: Files = ()
    age: int = 0

    def seen(self, files: Sequence[DataFile]) -> Waiting:
        """With files that are new."""
        return Waiting((*self.files, *files), 0)

    @property
    def done(self) -> bool:
        """Whether the partition can be forgotten until there are new files."""
        return not self.files or self.age > _REMOVE_AGE


def pick_round(
    waiting: Waiting, policy: AppendPolicy, index_of: Mapping[str, str] | None = None
) -> tuple[list[Files], Waiting]:
    """(groups of files to write together, what waits for the next round).

    `index_of` names the index file that holds a data file's deletion vector: files that share one stay in one group,
    since a group rewrites the index files it touches.
    """
    groups = _with_vectors(waiting.files, policy, index_of) if policy.vectors else _packed(waiting.files, policy)
    if groups:
        taken = {f.file_name for g in groups for f in g}
        return groups, Waiting(tuple(f for f in waiting.files if f.file_name not in taken), waiting.age)
    age = waiting.age + 1
    if age > _COMPACT_AGE and len(waiting.files) > 1:
        return [waiting.files], Waiting((), age)
    return [], Waiting(waiting.files, age)


def _packed(files: Sequence[DataFile], policy: AppendPolicy) -> list[Files]:
    singles = [(f,) for f in sorted(files, key=lambda f: f.file_size)]
    return _bins(singles, policy, policy.min_files)


def _with_vectors(files: Sequence[DataFile], policy: AppendPolicy, index_of: Mapping[str, str] | None) -> list[Files]:
    together: dict[str, list[DataFile]] = {}
    rest = []
    for f in files:
        index = (index_of or {}).get(f.file_name)
        if index is None:
            rest.append(f)
        else:
            together.setdefault(index, []).append(f)
    sharing = sorted((tuple(g) for g in together.values()), key=lambda g: sum(f.file_size for f in g))
    groups = _bins(sharing, policy, 1)
    return [*groups, *_packed(rest, policy)] if len(rest) > 1 else groups


def _bins(groups: Sequence[Files], policy: AppendPolicy, least: int) -> list[Files]:
    """Groups in bins of about twice the target size; what is left is a bin if it has `least` files."""
    out: list[Files] = []
    bin_: list[DataFile] = []
    weight = 0
    for g in groups:
        bin_ += g
        weight += sum(f.file_size + policy.open_cost for f in g)
        if len(bin_) > 1 and weight >= 2 * policy.target:
            out.append(tuple(bin_))
            bin_, weight = [], 0
    if len(bin_) >= least:
        out.append(tuple(bin_))
    return out
