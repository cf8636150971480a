# SPDX-License-Identifier: Apache-2.0
"""What is compacted of a table whose columns lie in several files, as Java's planner decides it: cases of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shoal.errors import Corrupt
from shoal.format.datafile import DataFile
from shoal.lsm.evolution_pick import BLOBS, LIVE, ROWS, EvolutionPolicy, pick
from tests.table.commits import plain

# sizes are 100 bytes a file unless told; one more file costs nothing
POLICY = {"min_files": 2, "target": 1_000, "blob_target": 250, "open_cost": 1}


def f(name: str, first: int, rows: int, *, size: int = 100, seq: int = 1) -> DataFile:
    made = plain(name, rows, first_row_id=first, min_sequence=seq, max_sequence=seq)
    return made._replace(file_size=size, write_cols=(name[0],) if name.endswith(".blob") else None)


def picked(
    files: list[DataFile], deleted: Mapping[str, int | None] | None = None, **policy: Any
) -> list[tuple[str, str]]:
    columns = {"x": 7, "y": 8, "z": None}  # z is no column of the table any more
    found = pick(files, EvolutionPolicy(**(POLICY | policy)), lambda b: columns[b.file_name[0]], deleted or {})
    return [(p.what, " ".join(f.file_name for f in p.files)) for p in found]


def test_ranges_that_follow_each_other_become_one_file() -> None:
    files = [f("b", 10, 5), f("a", 0, 10), f("c", 15, 1)]
    assert picked(files) == [(ROWS, "a b c")]
    assert picked(files, min_files=4) == []
    assert picked(files[:2], min_files=2) == [(ROWS, "a b")]


def test_a_gap_divides() -> None:
    assert picked([f("a", 0, 10), f("b", 10, 5), f("c", 16, 4), f("d", 20, 1)]) == [(ROWS, "a b"), (ROWS, "c d")]
    assert picked([f("a", 0, 10), f("c", 16, 4)]) == []


def test_files_of_one_range_count_each_and_stay_together() -> None:
    files = [f("a", 0, 10), f("a2", 0, 10, seq=3), f("b", 10, 5), f("a1", 0, 10, seq=2)]
    assert picked(files, min_files=4) == [(ROWS, "a a2 a1 b")]
    assert picked(files, min_files=3, target=250) == [(ROWS, "a a2 a1")]  # heavier than the target: by itself
    assert picked(files, target=250) == [(ROWS, "a a2 a1")]  # b alone is no work


def test_a_bin_is_full_beyond_the_target() -> None:
    files = [f(n, 10 * i, 10) for i, n in enumerate("abcdefg")]
    assert picked(files, target=199) == [(ROWS, "a b"), (ROWS, "c d"), (ROWS, "e f")]
    assert picked(files, target=200) == [(ROWS, "a b c"), (ROWS, "d e f")]
    assert picked(files, target=700) == [(ROWS, "a b c d e f g")]
    assert picked(files, target=700, open_cost=400) == [(ROWS, "a b"), (ROWS, "c d"), (ROWS, "e f")]
    large = [f("a", 0, 10), f("b", 10, 10), f("c", 20, 10, size=900), f("d", 30, 10), f("e", 40, 10)]
    assert picked(large, target=800) == [(ROWS, "a b"), (ROWS, "d e")]
    assert picked(large, target=800, min_files=1) == [(ROWS, "a b"), (ROWS, "c"), (ROWS, "d e")]


def test_ranges_that_overlap_by_a_part_are_damage() -> None:
    with pytest.raises(Corrupt, match="overlap in row ids"):
        picked([f("a", 0, 10), f("b", 5, 10)])
    with pytest.raises(Corrupt, match="no first row id"):
        picked([plain("a")])


def test_blobs_are_left_alone_unless_asked() -> None:
    files = [f("a", 0, 10), f("b", 10, 5), f("x0.blob", 0, 10), f("x1.blob", 10, 5)]
    assert picked(files) == [(ROWS, "a b")]
    assert picked(files, blobs=True) == [(ROWS, "a b"), (BLOBS, "x0.blob x1.blob")]


def test_blobs_of_each_column_by_themselves() -> None:
    files = [f("a", 0, 10), f("b", 10, 5), *(f(f"{c}{i}.blob", 10 * i, 10 - 5 * i) for i in (0, 1) for c in "yxz")]
    assert picked(files, blobs=True) == [(ROWS, "a b"), (BLOBS, "y0.blob y1.blob"), (BLOBS, "x0.blob x1.blob")]


def test_blobs_without_their_rows_stay_within_a_range() -> None:
    files = [f("a", 0, 10), f("b", 10, 5)]
    blobs = [f("x0.blob", 0, 4), f("x1.blob", 4, 6), f("x2.blob", 10, 5)]
    assert picked(files + blobs, blobs=True, min_files=5) == [(BLOBS, "x0.blob x1.blob")]
    assert picked(files + blobs, blobs=True) == [(ROWS, "a b"), (BLOBS, "x0.blob x1.blob x2.blob")]


def test_versions_of_blobs_merge_whatever_their_size() -> None:
    a = f("a", 0, 10)
    versions = [f("x1.blob", 0, 10, size=999, seq=2), f("x0.blob", 0, 4, size=999), f("x2.blob", 4, 6, size=999)]
    assert picked([a, *versions], blobs=True) == [(BLOBS, "x0.blob x1.blob x2.blob")]
    assert picked([a, *versions[1:]], blobs=True) == []


def test_small_blobs_up_to_their_target() -> None:
    a = f("a", 0, 60)
    small = [f(f"x{i}.blob", 10 * i, 10) for i in range(6)]
    assert picked([a, *small], blobs=True) == [(BLOBS, "x0.blob x1.blob x2.blob"), (BLOBS, "x3.blob x4.blob x5.blob")]
    assert picked([a, *small[:4]], blobs=True) == [(BLOBS, "x0.blob x1.blob x2.blob")]
    small[2] = f("x2.blob", 20, 10, size=250)
    assert picked([a, *small], blobs=True) == [(BLOBS, "x0.blob x1.blob"), (BLOBS, "x3.blob x4.blob x5.blob")]
    del small[1]
    assert picked([a, *small], blobs=True) == [(BLOBS, "x3.blob x4.blob x5.blob")]


def test_rows_that_are_deleted_go_when_ids_may_change() -> None:
    files = [f("a", 0, 10), f("a1", 0, 10, seq=2), f("b", 10, 5), f("x0.blob", 0, 10), f("x1.blob", 10, 5)]
    assert picked(files, {"a": 3}, min_files=9) == []
    assert picked(files, {"a": 3}, min_files=9, new_ids=True) == [(LIVE, "a a1 b x0.blob x1.blob")]
    assert picked(files, {"a": None}, min_files=9, new_ids=True) == [(LIVE, "a a1 b x0.blob x1.blob")]
    # only the oldest file of a range tells
    assert picked(files, {"a1": 3}, min_files=9, new_ids=True) == []
    assert picked(files, {"b": 3}, min_files=9, new_ids=True, target=150) == [(LIVE, "b x1.blob")]
    # a range weighs what is left of it
    assert picked(files, {"a": 8}, min_files=9, new_ids=True, target=140) == [(LIVE, "a a1 b x0.blob x1.blob")]
    assert picked(files, {"a": 2}, min_files=9, new_ids=True, target=140) == [(LIVE, "a a1 x0.blob")]
