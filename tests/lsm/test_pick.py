# SPDX-License-Identifier: Apache-2.0
"""What a bucket compacts: readable cases, then 12,160 states under 38 option sets with the answers of Java 2.0.0.

`data/universal-picks.jsonl.gz` has one line per option set (`set`, `options`, `effective`), then its states: `o` the
option set; `f` the files, each [level, bytes, deleteRows or null, minKey, maxKey, minSeq, maxSeq, age in seconds];
`hour`, `calls` (gentle lookup: picks without result made before), `dv` (files with a deletion vector) and `full`
(asked for by a person) where they matter; and Java's answers `runs`, `levels`, `wait`, `pick`, `task`, `full_noted`.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import BadRequest
from shoal.format.datafile import DataFile, Stats
from shoal.lsm.levels import Files, Key, Levels
from shoal.lsm.pick import Memory, OffPeak, Policy, choose, pick, policy_of, should_wait, task

NOW = 1_800_000_000_000
MIB = 1 << 20
TRUTH = Path(__file__).parent / "data" / "universal-picks.jsonl.gz"


def bounds(f: DataFile) -> tuple[Key, Key]:
    return (int(f.min_key),), (int(f.max_key),)


def a_file(
    name: str,
    level: int,
    size: int,
    *,
    deletes: int | None = 0,
    keys: tuple[int, int] = (0, 9),
    seq: tuple[int, int] = (0, 0),
    age: int = 0,
) -> DataFile:
    none = Stats()
    return DataFile(
        name,
        size,
        1,
        b"%d" % keys[0],
        b"%d" % keys[1],
        none,
        none,
        *seq,
        0,
        level,
        creation_ms=NOW - age * 1000,
        delete_row_count=deletes,
    )


def bucket(text: str, num_levels: int = 6) -> Levels:
    """A bucket in words, newest run first: `0:10 0:20 5:400` is two level-0 files and one on level 5, sizes in MiB."""
    specs = [spec.split(":") for spec in text.split()]
    count = len(specs)
    files = [a_file(f"f{i}", int(lv), int(mb) * MIB, seq=(count - i, count - i)) for i, (lv, mb) in enumerate(specs)]
    return Levels.of(files, num_levels, bounds)


LOOKUP = policy_of(need_lookup=True)
HOURLY = policy_of(optimization_interval_ms=3_600_000)


@pytest.mark.parametrize(
    ("runs", "policy", "taken", "level", "reason"),
    [
        ("", Policy(), None, None, "healthy"),
        ("0:9 0:9 0:9 0:9", Policy(), None, None, "healthy"),
        ("0:9 0:9 0:9 0:9 5:9", Policy(), 5, 5, "size amplification 400 % over 200 %"),
        ("0:9 0:9 0:9 0:9 5:37", Policy(), 4, 4, "4 newest runs of similar size, ratio 1 %"),
        ("0:9 0:99 3:999 4:9999 5:99999", Policy(), None, None, "healthy"),
        ("0:9 0:99 0:999 3:9999 4:99999 5:999999", Policy(), 4, 3, "6 runs over trigger 5"),
        ("0:9 0:99 1:999 3:9999 4:99999 5:999999", Policy(), 3, 1, "6 runs over trigger 5"),
        ("0:9 5:99", LOOKUP, 1, 4, "1 level-0 file forced up"),
        ("0:9 0:9 1:99 2:999", LOOKUP, 3, 1, "2 level-0 files forced up"),
        ("3:9 5:99", LOOKUP, None, None, "healthy"),
        ("0:9 5:99", HOURLY, 2, 5, "no full compaction known"),
        ("0:9 0:9 5:99", policy_of(total_size_threshold=200 * MIB), 3, 5, "bucket of 117 MiB is under 200 MiB"),
        ("0:9 5:99", policy_of(incremental_size_threshold=8 * MIB), 2, 5, "9 MiB outside the last level, over 8 MiB"),
    ],
)
def test_pick(runs, policy, taken, level, reason):
    plan, _ = pick(bucket(runs), policy, Memory(), now_ms=NOW, hour=12)
    if plan is None:
        assert (taken, reason) == (None, "healthy")
    else:
        assert (len(plan.files), plan.output_level, plan.reason) == (taken, level, reason)


def test_deletes_are_dropped_only_when_nothing_older_is_left_or_old_rows_are_marked():
    runs = "0:9 0:9 0:9 0:9 5:37"
    assert not pick(bucket(runs), Policy(), Memory(), now_ms=NOW, hour=0).plan.drop_delete
    assert pick(bucket(runs), Policy(deletion_vectors=True), Memory(), now_ms=NOW, hour=0).plan.drop_delete
    assert pick(bucket(runs), Policy(), Memory(), now_ms=NOW, hour=0, full=True).plan.drop_delete
    assert not pick(bucket(runs), Policy(keep_deletes=True), Memory(), now_ms=NOW, hour=0, full=True).plan.drop_delete


def test_the_optimization_interval_starts_at_the_newest_file_of_the_top_level_and_again_at_every_full_compaction():
    levels = Levels.of([a_file("new", 0, MIB), a_file("top", 5, 99 * MIB, age=3600)], 6, bounds)
    memory = Memory.at_start(levels.files, HOURLY)
    assert memory == Memory(last_full_ms=NOW - 3_600_000)
    assert pick(levels, HOURLY, memory, now_ms=NOW, hour=0) == (None, memory)
    plan, after = pick(levels, HOURLY, memory, now_ms=NOW + 60_000, hour=0)
    assert (plan.output_level, plan.reason) == (5, "last full compaction 61 min ago, over 60 min")
    assert after == Memory(last_full_ms=NOW + 60_000)


def test_gentle_lookup_forces_level_0_up_at_every_nth_call_without_a_pick():
    policy = policy_of(trigger=3, need_lookup=True, lookup_gentle=True, lookup_max_interval=3)
    memory, picked = Memory(), []
    for _ in range(6):
        plan, memory = pick(bucket("0:9 3:99", 4), policy, memory, now_ms=NOW, hour=0)
        picked.append(plan is not None)
    assert picked == [False, False, True, False, False, True]


def test_off_peak_hours_may_wrap_midnight():
    night = OffPeak(22, 4, 50)
    assert [hour for hour in range(24) if night.ratio_at(hour)] == [0, 1, 2, 3, 22, 23]
    assert policy_of(offpeak_start=3, offpeak_ratio=50).offpeak is None


def test_a_full_compaction_of_a_full_bucket_rewrites_only_what_has_rows_to_drop():
    tops = [a_file(f"top{i}", 5, 9, keys=(10 * i, 10 * i + 9)) for i in range(4)]
    levels = Levels.of(tops, 6, bounds)
    assert pick(levels, Policy(), Memory(), now_ms=NOW, hour=0, full=True).plan is None
    plan = pick(levels, Policy(), Memory(), now_ms=NOW, hour=0, full=True, deleted_in=["top1"], expired=["top3"]).plan
    assert plan.reason == "full compaction asked for: 2 of 4 files to rewrite"
    assert task(plan, levels, Policy()).rewrites == ((((tops[1],),),), (((tops[3],),),))


def test_large_files_that_overlap_nothing_move_and_cut_the_merges_beside_them():
    small = [a_file(f"small{i}", 0, 1, keys=(k, k), seq=(i, i)) for i, k in enumerate((10, 11, 30, 31))]
    large = a_file("large", 0, 100 * MIB, keys=(20, 21), seq=(9, 9))
    dirty = a_file("dirty", 0, 100 * MIB, keys=(40, 41), seq=(8, 8), deletes=None)
    levels = Levels.of([*small, large, dirty], 6, bounds)
    plan = pick(levels, Policy(), Memory(), now_ms=NOW, hour=0, full=True).plan
    done = task(plan, levels, Policy())
    assert [names(group) for group in done.rewrites] == [
        [["small0"], ["small1"]],
        [["small2"], ["small3"]],
        [["dirty"]],
    ]
    assert done.upgrades == (large,)
    assert task(plan, levels, Policy(), expired=["large"]).upgrades == ()


def names(group: Any) -> list[list[str]]:
    return [[f.file_name for run in section for f in run] for section in group]


def test_back_pressure_starts_above_the_stop_trigger():
    flags = [tuple(should_wait(bucket("0:9 " * runs), Policy())) for runs in (8, 9, 10)]
    assert flags == [(False, False, False), (True, False, False), (True, True, False)]
    assert should_wait(bucket("0:9"), LOOKUP).unfinished


def test_a_trigger_of_zero_is_refused():
    with pytest.raises(BadRequest, match="compaction-trigger is 0"):
        policy_of(trigger=0)


# ---------------------------------------------------------------- Java's answers


@cache
def truth() -> dict[str, list[str]]:
    """The lines of each option set, not parsed: names are needed to collect the tests, states only where they run."""
    sets: dict[str, list[str]] = {}
    with gzip.open(TRUTH, "rt") as lines:
        for line in lines:
            sets.setdefault(line.split('"', 4)[3], []).append(line)  # {"set":"name",... or {"o":"name",...
    return sets


UNITS = {"min": 60_000, "h": 3_600_000, "mb": MIB, "gb": MIB << 10}


def parsed(text: str) -> int:
    number, _, unit = text.partition(" ")
    return int(number) * (UNITS[unit] if unit else 1)


ARGUMENTS = {
    "num-sorted-run.compaction-trigger": ("trigger", parsed),
    "num-sorted-run.stop-trigger": ("stop_trigger", parsed),
    "num-levels": ("num_levels", parsed),
    "compaction.size-ratio": ("size_ratio", parsed),
    "compaction.max-size-amplification-percent": ("max_size_amplification", parsed),
    "compaction.optimization-interval": ("optimization_interval_ms", parsed),
    "compaction.total-size-threshold": ("total_size_threshold", parsed),
    "compaction.incremental-size-threshold": ("incremental_size_threshold", parsed),
    "compaction.offpeak.start.hour": ("offpeak_start", parsed),
    "compaction.offpeak.end.hour": ("offpeak_end", parsed),
    "compaction.offpeak-ratio": ("offpeak_ratio", parsed),
    "compaction.force-up-level-0": ("force_up_level0", bool),
    "compaction.force-rewrite-all-files": ("force_rewrite_all", bool),
    "compaction.small-file-ratio": ("small_file_ratio", float),
    "target-file-size": ("target_file_size", parsed),
    "lookup-compact": ("lookup_gentle", lambda mode: mode == "gentle"),
    "lookup-compact.max-interval": ("lookup_max_interval", parsed),
    "deletion-vectors.enabled": ("deletion_vectors", bool),
}
ASKS_FOR_LOOKUP = {"changelog-producer", "merge-engine", "force-lookup", "deletion-vectors.enabled"}


def policy_for(options: dict[str, str]) -> Policy:
    assert options.keys() <= ARGUMENTS.keys() | ASKS_FOR_LOOKUP
    known = {name: read(options[key]) for key, (name, read) in ARGUMENTS.items() if key in options}
    return policy_of(**known, need_lookup=not ASKS_FOR_LOOKUP.isdisjoint(options))


@pytest.mark.parametrize("name", truth())
def test_policy_derives_the_numbers_java_does(name):
    line = json.loads(truth()[name][0])
    p = policy_for(line["options"])
    assert line["effective"] == {
        "trigger": p.trigger,
        "stop": p.stop_trigger,
        "num_levels": p.num_levels,
        "size_amp": p.max_size_amplification,
        "size_ratio": p.size_ratio,
        "min_file_size": p.min_file_size,
        "need_lookup": p.need_lookup,
        "gentle_interval": p.gentle_interval,
    }


def indexes(files: Files) -> list[int]:
    return [int(f.file_name[1:]) for f in files]


def answers(state: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """What we decide about one state, in the columns of the truth file."""
    files = [
        a_file(f"f{i:03}", level, size, deletes=deletes, keys=(low, high), seq=(first, last), age=age)
        for i, (level, size, deletes, low, high, first, last, age) in enumerate(state["f"])
    ]
    levels = Levels.of(files, policy.num_levels, bounds)
    memory = Memory.at_start(files, policy)
    at = {"now_ms": NOW, "hour": state.get("hour", 12)}
    for _ in range(state.get("calls", 0)):
        memory = choose(Levels.of([], policy.num_levels, bounds), policy, memory, **at).memory
    full = state.get("full", False)
    plan, after = pick(levels, policy, memory, **at, full=full, deleted_in=[f"f{i:03}" for i in state.get("dv", ())])
    out: dict[str, Any] = {
        "runs": [indexes(run.files) for run in levels.runs()],
        "levels": levels.num_levels,
        "wait": [int(flag) for flag in should_wait(levels, policy)],
        "task": None,
    }
    if not full:
        chosen = choose(levels, policy, memory, **at).plan
        out["pick"] = chosen and [chosen.output_level, indexes(chosen.files)]
    if "full_noted" in state:
        out["full_noted"] = int(after.last_full_ms == NOW != memory.last_full_ms)
    if plan is not None:
        done = task(plan, levels, policy)
        rewrites = [[sorted(map(indexes, section)) for section in group] for group in done.rewrites]
        if rewrites or done.upgrades:
            drop = {"drop": int(done.drop_delete)} if rewrites else {}
            out["task"] = {**drop, "rewrite": rewrites, "up": indexes(done.upgrades)}
    return out


@pytest.mark.parametrize("name", truth())
def test_every_state_gets_the_answers_of_java(name):
    line, *states = map(json.loads, truth()[name])
    policy = policy_for(line["options"])
    assert line["set"] == name and {state["o"] for state in states} == {name}
    assert len(states) == 320
    for number, state in enumerate(states):
        ours = answers(state, policy)
        assert ours == {column: state[column] for column in ours}, f"state {number} of {name}"
        assert state.keys() - ours.keys() <= {"o", "f", "hour", "calls", "dv", "full"}
