# SPDX-License-Identifier: Apache-2.0
"""Levels of a bucket and sections of overlapping files: cases, and properties that hold for any files."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadRequest, Conflict, Corrupt
from shoal.format.datafile import DataFile, Stats
from shoal.lsm.levels import Key, Levels, Run
from shoal.lsm.sections import sections


def bounds(f: DataFile) -> tuple[Key, Key]:
    return (int(f.min_key),), (int(f.max_key),)


def a_file(
    name: str, level: int, low: int, high: int, *, seq: tuple[int, int] = (0, 0), ms: int | None = 0
) -> DataFile:
    return DataFile(
        file_name=name,
        file_size=100,
        row_count=1,
        min_key=b"%d" % low,
        max_key=b"%d" % high,
        key_stats=Stats(),
        value_stats=Stats(),
        min_sequence=seq[0],
        max_sequence=seq[1],
        schema_id=0,
        level=level,
        creation_ms=ms,
    )


def names(files: tuple[DataFile, ...]) -> str:
    return " ".join(f.file_name for f in files)


def test_level_0_comes_newest_first_and_each_level_above_is_one_run():
    files = [
        a_file("top-b", 5, 50, 90),
        a_file("old", 0, 1, 9, seq=(10, 19)),
        a_file("top-a", 5, 1, 49),
        a_file("new", 0, 1, 9, seq=(20, 29)),
        a_file("mid", 3, 1, 9),
    ]
    runs = Levels.of(files, 6, bounds).runs()
    assert [(run.level, names(run.files)) for run in runs] == [
        (0, "new"),
        (0, "old"),
        (3, "mid"),
        (5, "top-a top-b"),
    ]
    assert runs[-1].size == 200


def test_files_of_two_writers_with_equal_sequences_keep_a_total_order():
    files = [
        a_file("d", 0, 1, 9, seq=(5, 9), ms=2),
        a_file("c", 0, 1, 9, seq=(5, 9), ms=2),
        a_file("b", 0, 1, 9, seq=(5, 9), ms=1),
        a_file("a", 0, 1, 9, seq=(6, 9), ms=0),
    ]
    assert names(Levels.of(files, 6, bounds).files) == "b c d a"


def test_a_file_above_num_levels_makes_more_levels_and_they_stay():
    high = a_file("high", 7, 1, 9)
    levels = Levels.of([high], 6, bounds)
    assert (levels.num_levels, levels.max_level, levels.non_empty_highest_level) == (8, 7, 7)
    emptied = levels.apply([high], [])
    assert (emptied.num_levels, emptied.non_empty_highest_level, emptied.files) == (8, -1, ())


def test_an_empty_bucket_starts_at_sequence_zero():
    assert Levels.of([], 6, bounds).max_sequence == -1
    assert Levels.of([a_file("a", 0, 1, 2, seq=(3, 7))], 6, bounds).max_sequence == 7


def test_an_upgrade_moves_a_file_and_keeps_the_value_it_came_from():
    flushed = a_file("a", 0, 1, 9)
    before = Levels.of([flushed], 6, bounds)
    after = before.apply([flushed], [flushed.upgraded(5)])
    assert after.runs() == (Run(5, (flushed.upgraded(5),)),)
    assert before.runs() == (Run(0, (flushed,)),)


def test_a_change_of_a_file_that_is_gone_is_a_conflict():
    a = a_file("a", 0, 1, 9)
    with pytest.raises(Conflict, match="a is not at level 0"):
        Levels.of([], 6, bounds).apply([a], [a.upgraded(5)])


def test_overlapping_files_on_a_level_are_refused():
    with pytest.raises(Corrupt, match="level 2: files a and b overlap"):
        Levels.of([a_file("b", 2, 5, 9), a_file("a", 2, 1, 5)], 6, bounds)


def test_a_file_that_is_there_twice_is_refused():
    with pytest.raises(Corrupt, match="twice"):
        Levels.of([a_file("a", 0, 1, 2), a_file("a", 0, 1, 2)], 6, bounds)


def test_one_level_is_too_few():
    with pytest.raises(BadRequest, match="at least 2 levels"):
        Levels.of([], 1, bounds)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[DataFile], list[DataFile]]]:
    """Changes of one bucket: flushes, upgrades of level-0 files, and rewrites of some files into free places."""
    changes: list[tuple[list[DataFile], list[DataFile]]] = []
    live: dict[str, DataFile] = {}
    for n in range(draw(st.integers(0, 12))):
        removed = draw(st.lists(st.sampled_from(sorted(live)), unique=True, max_size=4)) if live else []
        dropped = [live.pop(name) for name in removed]
        if draw(st.booleans()):  # a flush beside it; every file above level 0 has a key range of its own
            top = draw(st.integers(0, 50))
            added = [a_file(f"f{n}", 0, 1, 9, seq=(top, top), ms=draw(st.integers(0, 2)))]
        else:
            level = draw(st.integers(1, 7))
            added = [a_file(f"f{n}-{i}", level, 100 * n + 10 * i, 100 * n + 10 * i + 9) for i in range(3)]
        live.update((f.file_name, f) for f in added)
        changes.append((dropped, added))
    return changes


@given(histories())
def test_applying_changes_gives_the_same_levels_as_building_from_the_result(history):
    levels = Levels.of([], 6, bounds)
    live: dict[str, DataFile] = {}
    for removed, added in history:
        levels = levels.apply(removed, added)
        for f in removed:
            del live[f.file_name]
        live.update((f.file_name, f) for f in added)
        assert levels == Levels.of(live.values(), levels.num_levels, bounds)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(1, 5), (6, 9)], [["1-5"], ["6-9"]], id="disjoint files are sections of their own"),
        pytest.param([(1, 5), (5, 9)], [["1-5", "5-9"]], id="one shared key is an overlap"),
        pytest.param([(1, 9), (2, 3), (4, 6)], [["1-9", "2-3 4-6"]], id="a run goes on behind its end"),
        pytest.param([(1, 9), (2, 3), (10, 12)], [["1-9", "2-3"], ["10-12"]], id="the longest file ends a section"),
        pytest.param([(3, 3), (3, 3), (3, 3)], [["3-3", "3-3", "3-3"]], id="equal files are runs of their own"),
    ],
)
def test_sections(spans, expected):
    files = [a_file(f"{low}-{high}", 0, low, high) for low, high in spans]
    assert [[names(run) for run in section] for section in sections(files, bounds)] == expected


spans = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(spans, max_size=40))
def test_sections_are_disjoint_ordered_and_hold_the_fewest_runs(pairs):
    files = [a_file(f"f{i}", 0, low, high) for i, (low, high) in enumerate(pairs)]
    parts = sections(files, bounds)
    assert sorted(f.file_name for part in parts for run in part for f in run) == sorted(f.file_name for f in files)
    for part in parts:
        assert all(bounds(left)[1] < bounds(right)[0] for run in part for left, right in pairwise(run))
        members = [bounds(f) for run in part for f in run]
        depth = max(sum(low <= point <= high for low, high in members) for point, _ in members)
        assert len(part) == depth
    ranges = [[bounds(f) for run in part for f in run] for part in parts]
    assert all(max(h for _, h in left) < min(low for low, _ in right) for left, right in pairwise(ranges))


@pytest.mark.parametrize("width", [1, 300, 10_000_000])
def test_sections_of_20_000_files_take_well_under_a_second(width):
    rng = random.Random(7)
    files = [
        a_file(f"f{i}", 0, low, low + rng.randrange(width)) for i in range(20_000) for low in [rng.randrange(10**6)]
    ]
    known = {f.file_name: bounds(f) for f in files}
    start = time.process_time()
    parts = sections(files, lambda f: known[f.file_name])
    assert time.process_time() - start < 1
    assert sum(len(run) for part in parts for run in part) == 20_000


def test_following_a_thousand_commits_of_a_bucket_with_hundreds_of_files_is_cheap():
    files = [a_file(f"f{i}", 5, 10 * i, 10 * i + 9) for i in range(500)]
    known = {f.min_key: bounds(f) for f in files}
    levels = Levels.of(files, 6, lambda f: known[f.min_key])
    start = time.process_time()
    for i in range(1000):
        flushed = a_file(f"n{i}", 0, 0, 9, seq=(i, i))
        levels = levels.apply([], [flushed]).apply([flushed, files[i % 500]], [files[i % 500]])
    assert time.process_time() - start < 2
    assert len(levels.files) == 500
