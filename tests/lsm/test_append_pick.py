# SPDX-License-Identifier: Apache-2.0
"""What append tables compact: readable cases, then 2,709 states under 9 option sets with the answers of Java 2.0.0.

`data/append-picks.jsonl.gz` has one line per option set (`set`, `options`, `effective`), then its states: `o` the
option set and `kind`. `unaware`: `add` the sizes of files newly seen in each round, `rounds` what Java's coordinator
made of them (`groups`, `rest`). `bucketed`: `f` the files as [bytes, least sequence], `auto` the picks until there are
none, each written as one file of the summed size, `full_pick` the files of a forced compaction. Java reads those in
the order of its heap array, so that rows of a bucket may change places: here they go by sequence, and Java's answer is
compared with the same rule on its order.
"""

from __future__ import annotations

import gzip
import heapq
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.format.datafile import DataFile, Stats
from shoal.lsm.append_pick import (
    AppendPolicy,
    Waiting,
    after,
    append_policy,
    in_order,
    pick_full,
    pick_next,
    pick_round,
    without_large_front,
    worth,
)

TRUTH = Path(__file__).parent / "data" / "append-picks.jsonl.gz"
MIB = 1 << 20


def a_file(name: int | str, size: int, sequence: int = 0, rows: int = 100) -> DataFile:
    none = Stats()
    return DataFile(str(name), size, rows, b"", b"", none, none, sequence, sequence + rows - 1, 0, 0)


def names(files: Any) -> list[int]:
    return [int(f.file_name) for f in files]


# ---- readable


def test_five_neighbours_merge_and_the_rest_waits() -> None:
    files = [a_file(i, MIB, 100 * i) for i in range(7)]
    picked, queue = pick_next(files[::-1], AppendPolicy())
    assert picked is not None
    assert (names(picked), names(queue)) == ([0, 1, 2, 3, 4], [5, 6])
    assert pick_next(queue, AppendPolicy()) == (None, queue)


def test_a_large_neighbour_is_passed_over_for_good() -> None:
    files = [a_file(0, 500 * MIB, 0), a_file(1, 100 * MIB, 1), a_file(2, MIB, 2)]
    assert pick_next(files, AppendPolicy()) == (None, (files[1], files[2]))


def test_a_forced_compaction_needs_three_files_or_deletion_vectors() -> None:
    files = [a_file(i, MIB, i) for i in range(2)]
    assert pick_full(files, AppendPolicy()) is None
    assert pick_full(files, AppendPolicy(vectors=True)) == tuple(files)
    assert pick_full(files, AppendPolicy(rewrite_all=True)) == tuple(files)


def test_large_files_in_front_stay_unless_rows_of_theirs_are_deleted() -> None:
    large, files = a_file("big", 300 * MIB, 0), [a_file(i, MIB, 10 + i) for i in range(3)]
    assert pick_full([large, *files], AppendPolicy()) == tuple(files)
    vectors = AppendPolicy(vectors=True)
    assert pick_full([large, *files], vectors) == tuple(files)
    assert pick_full([large, *files], vectors, {"big"}) == (large, *files)


def test_a_small_output_waits_again() -> None:
    small, large = a_file(0, MIB), a_file(1, 300 * MIB)
    assert after((), [large, small], AppendPolicy()) == (small,)
    assert after((), [small, large], AppendPolicy()) == ()


def test_a_file_is_worth_looking_at_when_it_is_small_or_many_rows_are_gone() -> None:
    small, large = a_file("s", MIB), a_file("l", 300 * MIB)
    policy = AppendPolicy(vectors=True)
    assert worth(small, policy)
    assert [worth(large, policy, lambda _, n=n: n) for n in (0, 20, 21, None)] == [False, False, True, True]


def test_files_that_share_an_index_file_stay_together() -> None:
    files = tuple(a_file(i, MIB) for i in range(4))
    shared = {"0": "index-a", "3": "index-a", "1": "index-b"}
    groups, left = pick_round(Waiting(files), AppendPolicy(vectors=True), shared)
    assert [sorted(names(g)) for g in groups] == [[0, 1, 3]]
    assert names(left.files) == [2]
    tiny = append_policy(target=MIB, vectors=True)
    groups, _ = pick_round(Waiting(files), tiny, shared)
    assert [names(g) for g in groups] == [[1, 0, 3]]


def test_what_waits_long_is_compacted_together_and_one_file_is_forgotten() -> None:
    waiting = Waiting().seen([a_file(0, MIB), a_file(1, MIB)])
    for _ in range(5):
        groups, waiting = pick_round(waiting, AppendPolicy())
        assert groups == []
    groups, waiting = pick_round(waiting, AppendPolicy())
    assert [names(g) for g in groups] == [[0, 1]]
    assert waiting.done
    waiting = Waiting().seen([a_file(0, MIB)])
    for _ in range(10):
        groups, waiting = pick_round(waiting, AppendPolicy())
        assert groups == [] and not waiting.done
    assert pick_round(waiting, AppendPolicy())[1].done


# ---- Java's answers


@cache
def truth() -> tuple[dict[str, AppendPolicy], list[dict[str, Any]]]:
    policies, states = {}, []
    with gzip.open(TRUTH, "rt") as lines:
        for line in lines:
            state = json.loads(line)
            if "set" in state:
                policies[state["set"]] = policy(state["options"], state["effective"])
            else:
                states.append(state)
    return policies, states


def policy(options: dict[str, str], effective: dict[str, int]) -> AppendPolicy:
    made = append_policy(
        min_files=int(options.get("compaction.min.file-num", 5)),
        target=effective["target_file_size"],
        small_ratio=float(options.get("compaction.small-file-ratio", 0.7)),
        open_cost=effective["open_file_cost"],
        rewrite_all=options.get("compaction.force-rewrite-all-files") == "true",
    )
    assert (made.min_files, made.enough) == (effective["min_file_num"], effective["compaction_file_size"])
    return made


def javas_heap(files: list[DataFile]) -> tuple[DataFile, ...]:
    """The files as Java's priority queue holds them: a binary heap, not sorted. Forced compactions walk it as it is."""
    heap: list[tuple[int, int]] = []
    for i, f in enumerate(files):
        heapq.heappush(heap, (f.min_sequence, i))
    return tuple(files[i] for _, i in heap)


def check_unaware(state: dict[str, Any], policy: AppendPolicy) -> None:
    """A state of a table without buckets, with the rounds of Java."""
    waiting, next_name = Waiting(), 0
    for sizes, expected in zip(state["add"], state["rounds"], strict=True):
        new = [a_file(next_name + i, size) for i, size in enumerate(sizes)]
        next_name += len(new)
        waiting = waiting.seen([f for f in new if worth(f, policy)]) if new else waiting
        groups, waiting = pick_round(waiting, policy)
        waiting = Waiting() if waiting.done else waiting
        assert sorted(sorted(names(g)) for g in groups) == sorted(expected["groups"]), state
        assert sorted(names(waiting.files)) == expected["rest"], state


def check_bucketed(state: dict[str, Any], policy: AppendPolicy) -> None:
    """A state of a bucket, with the picks of Java."""
    files = [a_file(i, size, sequence) for i, (size, sequence) in enumerate(state["f"])]
    picks, queue = [], tuple(files)
    picked, queue = pick_next(queue, policy)
    while picked is not None:
        picks.append(names(picked))
        output = a_file(len(files) + len(picks) - 1, sum(f.file_size for f in picked), picked[0].min_sequence)
        queue = after(queue, [output], policy)
        picked, queue = pick_next(queue, policy)
    assert picks == state["auto"], state
    full = pick_full(files, policy)
    assert full is None or full == in_order(full)
    heap = javas_heap(files)
    as_java = without_large_front(heap, policy) if full is not None else ()
    assert names(as_java) == (state["full_pick"] or []), state
    if heap == in_order(heap):
        assert full == as_java or not (full or as_java)


OPTION_SETS = (
    "default", "min2", "min10", "target16m", "target64m_min3", "opencost0", "opencost32m", "small_ratio03",
    "force_rewrite",
)  # fmt: skip


@pytest.mark.parametrize("name", OPTION_SETS)
def test_tables_without_buckets_pack_as_java(name: str) -> None:
    policies, states = truth()
    count = 0
    for state in states:
        if (state["o"], state["kind"]) != (name, "unaware"):
            continue
        count += 1
        check_unaware(state, policies[name])
    assert count > 50


@pytest.mark.parametrize("name", OPTION_SETS)
def test_buckets_merge_neighbours_as_java(name: str) -> None:
    policies, states = truth()
    count = 0
    for state in states:
        if (state["o"], state["kind"]) != (name, "bucketed"):
            continue
        count += 1
        check_bucketed(state, policies[name])
    assert count > 50
