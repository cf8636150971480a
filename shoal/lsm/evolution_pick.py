# SPDX-License-Identifier: Apache-2.0
"""Which files of a table whose columns lie in several files are written together: a pure function of values.

Ranges of row ids that follow each other without a gap are packed by size into one file; blob files go with them, or by
themselves, where that is wanted. Agrees with: DataEvolutionCompactCoordinator.CompactPlanner (2.0.0). Java plans
100,000 files at a time, here all of them are planned at once. Invariant: no file is picked twice, and the plain files
of a pick hold one stretch of row ids.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.errors import Corrupt
from shoal.format.blob import is_blob_file
from shoal.format.datafile import DataFile
from shoal.lsm.row_ranges import anchor, first_row, is_plain, together

Files = tuple[DataFile, ...]

# What is done with a pick: the plain files become one with the same row ids, the blob files of one column do, or the
# rows that are not deleted are written again and get new ids.
ROWS, BLOBS, LIVE = "rows", "blobs", "live rows"

_MIN_BLOB_FILES = 2


@dataclass(frozen=True, slots=True)
class EvolutionPolicy:
    """The numbers a pick depends on; sizes in bytes. `new_ids`: deleted rows go, and the others get new row ids."""

    min_files: int = 5
    target: int = 256 << 20
    blob_target: int = 256 << 20
    open_cost: int = 4 << 20
    blobs: bool = False
    new_ids: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """Files of one partition and what is done with them."""

    what: str
    files: Files


# The column that a blob file holds, by its id; None for one that the table has no more.
BlobField = Callable[[DataFile], int | None]


def pick(
    files: Sequence[DataFile], policy: EvolutionPolicy, blob_field: BlobField, deleted: Mapping[str, int | None]
) -> Iterator[Picked]:
    """What there is to do with the files of one partition.

    `deleted` says how many rows the deletion vector of a file marks, None where nobody counted them.
    """
    for stretch in together(files, gap=1):
        plain = [f for f in stretch if is_plain(f)]
        beside = _beside(plain, [f for f in stretch if is_blob_file(f.file_name)])
        bin_ = _Bin()
        for ranged in together(plain, gap=0):
            _check_same(ranged)
            held = anchor(ranged)
            assert held is not None
            marked = policy.new_ids and held.file_name in deleted
            weight = _weight(ranged, held, deleted.get(held.file_name) if marked else None, policy.open_cost)
            if weight > policy.target:
                yield from _picks(bin_, policy, beside, blob_field)
                bin_ = _Bin()
                yield from _picks(_Bin(list(ranged), weight, marked), policy, beside, blob_field)
                continue
            bin_.files += ranged
            bin_.weight += weight
            bin_.marked |= marked
            if bin_.weight > policy.target:
                yield from _picks(bin_, policy, beside, blob_field)
                bin_ = _Bin()
        yield from _picks(bin_, policy, beside, blob_field)


@dataclass(slots=True)
class _Bin:
    """Files that become one, their weight, and whether rows of them are marked and are to go."""

    files: list[DataFile] = field(default_factory=list)
    weight: int = 0
    marked: bool = False


def _picks(
    found: _Bin,
    policy: EvolutionPolicy,
    beside: Mapping[str, list[DataFile]],
    blob_field: BlobField,
) -> Iterator[Picked]:
    if found.marked:
        blobs = [b for f in found.files for b in beside.get(f.file_name, ())]
        yield Picked(LIVE, (*found.files, *blobs))
        return
    enough = len(found.files) >= policy.min_files
    if found.files and enough:
        yield Picked(ROWS, tuple(found.files))
    if not policy.blobs:
        return
    groups = [found.files] if enough else [[f] for f in found.files]
    for group in groups:
        mine = [b for f in group for b in beside.get(f.file_name, ())]
        yield from (Picked(BLOBS, g) for g in _blob_groups(mine, policy, blob_field))


def _check_same(files: Sequence[DataFile]) -> None:
    for f in files[1:]:
        if (f.first_row_id, f.row_count) != (files[0].first_row_id, files[0].row_count):
            raise Corrupt(
                f"{f.file_name} and {files[0].file_name} overlap in row ids, but not exactly",
                hint="files of one range of rows must have the same rows",
            )


def _beside(plain: Sequence[DataFile], blobs: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    """The blob files that begin in the range of a plain file, by its name: of several the last one's."""
    at = {first_row(f): f for f in plain}
    starts = sorted(at)
    out: dict[str, list[DataFile]] = {}
    for f in blobs:
        i = bisect_right(starts, first_row(f)) - 1
        if i >= 0 and first_row(f) < starts[i] + at[starts[i]].row_count:
            out.setdefault(at[starts[i]].file_name, []).append(f)
    return out


def _weight(files: Sequence[DataFile], held: DataFile, deleted: int | None, open_cost: int) -> int:
    """The size that a range will have, by the share of rows that stay."""
    share = 1.0
    if deleted is not None and held.row_count > 0:
        share = max(0, held.row_count - deleted) / held.row_count
    return sum(max(math.ceil(f.file_size * share), open_cost) for f in files)


# ---- blob files ------------------------------------------------------------------------------------------


def _blob_groups(files: Sequence[DataFile], policy: EvolutionPolicy, blob_field: BlobField) -> Iterator[Files]:
    """Blob files of each column that become one file."""
    columns: dict[int, list[DataFile]] = {}
    for f in files:
        column = blob_field(f)
        if column is not None:
            columns.setdefault(column, []).append(f)
    for column_files in columns.values():
        found: list[Files] = []
        single: list[DataFile] = []
        in_order = sorted(column_files, key=_place)
        for group in together(in_order, gap=0):
            if len(group) >= _MIN_BLOB_FILES:  # versions of the same rows
                found.append(tuple(sorted(group, key=_place)))
            else:
                single += group
        found += _small_blobs(single, policy.blob_target)
        yield from sorted(found, key=lambda g: first_row(g[0]))


def _place(f: DataFile) -> tuple[int, int]:
    return first_row(f), f.max_sequence


def _small_blobs(files: Sequence[DataFile], target: int) -> Iterator[Files]:
    """Small files whose rows follow each other, up to about the target size."""
    run: list[DataFile] = []
    for f in files:
        large = f.file_size >= target
        if run and (large or first_row(f) != first_row(run[-1]) + run[-1].row_count):
            yield from _filled(run, target)
            run = []
        if not large:
            run.append(f)
    yield from _filled(run, target)


def _filled(run: Sequence[DataFile], target: int) -> Iterator[Files]:
    if len(run) < _MIN_BLOB_FILES:
        return
    out: list[DataFile] = []
    size = 0
    for f in run:
        out.append(f)
        size += f.file_size
        if size >= target and len(out) >= _MIN_BLOB_FILES:
            yield tuple(out)
            out, size = [], 0
    if len(out) >= _MIN_BLOB_FILES:
        yield tuple(out)
