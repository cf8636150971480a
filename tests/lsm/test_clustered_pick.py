# SPDX-License-Identifier: Apache-2.0
"""Which sorted files of a table in another order than its key's are merged: Java's rule, case by case."""

from __future__ import annotations

import pytest

from shoal.errors import Conflict
from shoal.format.datafile import EMPTY_ROW, DataFile, Stats
from shoal.lsm.clustered_pick import ClusteredFiles, merge_groups, pick_clustered, sorted_runs
from shoal.lsm.levels import Key

TARGET = 100


def file(name: str, size: int = 10, level: int = 1, sequences: tuple[int, int] = (0, 9)) -> DataFile:
    return DataFile(name, size, 10, EMPTY_ROW, EMPTY_ROW, Stats(), Stats(), *sequences, 0, level)


def span(f: DataFile) -> tuple[Key, Key] | None:
    """`a3-7` goes from 3 to 7; `a?` is in no order that is known."""
    ends = f.file_name.lstrip("abcdefgh")
    return None if ends == "?" else ((int(ends.split("-")[0]),), (int(ends.split("-")[1]),))


# files as name/size; groups as names
CASES = {
    "": "",
    "a1-2/10": "",
    "a1-2/10 b3-4/10": "a b",  # small neighbours
    "a1-2/49 b3-4/50": "",  # half the target size is not small; one alone is no group
    "a1-2/50 b3-4/90": "",
    "a1-3/90 b3-4/90": "a b",  # a shared end is enough to meet
    "a1-3/90 b4-5/90 c5-9/90": "b c",
    "a1-9/90 b2-3/90 c4-5/90": "a b c",  # one that reaches over all
    "a1-2/10 b3-4/90 c5-6/10 d7-8/10": "c d",  # a large one stands between them
    "a1-2/10 b3-4/10 c5-6/60 d7-8/10 e9-9/10": "a b, d e",
    "d7-8/10 b3-4/90 a1-2/10 c5-6/10": "c d",  # whatever the order they are named in
    "a1-2/60 b2-3/60 c4-5/10": "a b c",
    "a?/60 b1-2/60": "a b",
}


@pytest.mark.parametrize("files", CASES)
def test_groups_that_are_merged(files: str) -> None:
    given = [file(name, int(size)) for name, size in (f.split("/") for f in files.split())]
    groups = merge_groups(given, TARGET, span)
    assert ", ".join(" ".join(sorted(f.file_name[0] for f in g)) for g in groups) == CASES[files]


def test_new_files_are_sorted_alone_the_oldest_first() -> None:
    new = [file("n", level=0, sequences=(20, 29)), file("m", level=0, sequences=(10, 19))]
    plan = pick_clustered(ClusteredFiles.of([*new, file("a1-2", 60)]), TARGET, span)
    assert plan is not None and [f.file_name for f in plan.fresh] == ["m", "n"]
    assert (plan.groups, plan.rule, plan.reason, plan.output_level) == ((), "level 0", "2 new files to be sorted", 1)
    assert pick_clustered(ClusteredFiles.of([file("a1-2")]), TARGET, span) is None
    assert pick_clustered(ClusteredFiles.of([file("a1-2")]), TARGET, span, full=True) is None
    plan = pick_clustered(ClusteredFiles.of([file("a1-2", 60), file("b5-6", 60)]), TARGET, span, full=True)
    assert plan is not None and len(plan.groups) == 1
    assert (plan.rule, plan.reason) == ("asked for", "2 sorted files of the bucket to be merged")


def test_a_change_takes_files_away_and_adds_others() -> None:
    files = ClusteredFiles.of([file("n", level=0), file("a1-2")])
    after = files.apply(files.level0, [file("b1-2"), file("b3-4")])
    assert [f.file_name for f in after.files] == ["a1-2", "b1-2", "b3-4"]
    assert (after.run_count, after.size) == (3, 30)
    with pytest.raises(Conflict, match="n is not in this bucket any more"):
        after.apply(files.level0, ())


def test_files_that_follow_each_other_are_one_run() -> None:
    given = [file(n) for n in ("b3-5", "a1-3", "c5-5", "d2-4", "e6-9", "f6-7")]
    runs = sorted_runs(given, span)
    assert runs is not None
    assert sorted(" ".join(f.file_name[0] for f in r) for r in runs) == ["a b c f", "d e"]
    assert sorted_runs([*given, file("g?")], span) is None
