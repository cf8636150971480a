# SPDX-License-Identifier: Apache-2.0
"""Files by the row ids that they hold, where the columns of a row lie in several files.

Agrees with: RangeHelper, DataEvolutionUtils (2.0.0). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.errors import Corrupt
from shoal.format.blob import is_blob_file
from shoal.format.datafile import DataFile


def is_vector_file(name: str) -> bool:
    return ".vector." in name


def is_plain(f: DataFile) -> bool:
    """Whether a file holds whole rows, or some columns of them: no file of one large column."""
    return not is_blob_file(f.file_name) and not is_vector_file(f.file_name)


def anchor(files: Iterable[DataFile]) -> DataFile | None:
    """The file whose deletion vector is that of its range: the oldest plain one. Positions count from its start."""
    return min(filter(is_plain, files), key=lambda f: (f.max_sequence, f.file_name), default=None)


def first_row(f: DataFile) -> int:
    if f.first_row_id is None:
        raise Corrupt(
            f"{f.file_name} has no first row id, although data evolution is on",
            hint="it was committed by a writer that does not track rows",
        )
    return f.first_row_id


def together(files: Sequence[DataFile], *, gap: int) -> list[list[DataFile]]:
    """Files whose row ids overlap (gap 0) or also only follow each other (gap 1), in order of row ids.

    Files of one group stay in the order in which they were given.
    """
    order = sorted(range(len(files)), key=lambda i: (first_row(files[i]), first_row(files[i]) + files[i].row_count))
    groups: list[list[int]] = []
    end = 0
    for i in order:
        start = first_row(files[i])
        if groups and start < end + gap:
            groups[-1].append(i)
            end = max(end, start + files[i].row_count)
        else:
            groups.append([i])
            end = start + files[i].row_count
    return [[files[i] for i in sorted(g)] for g in groups]
