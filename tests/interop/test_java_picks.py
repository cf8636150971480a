# SPDX-License-Identifier: Apache-2.0
"""Thousands of buckets made up here, each with options of its own: what Java compacts in them, and what we do.

`PickTruth eval` of the oracle answers states in the columns of `tests/lsm/data/*-picks.jsonl.gz`.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from typing import Any

import pytest

from tests.interop.conftest import oracle_folder, why_not
from tests.lsm.test_append_pick import append_policy, check_bucketed, check_unaware
from tests.lsm.test_pick import answers, policy_for

pytestmark = pytest.mark.java

MIB = 1 << 20
UNIVERSAL, APPEND = 14_000, 6_000
SEED = int(os.environ.get("SHOAL_SEED", "2025"))
State = dict[str, Any]


def asked(states: list[State]) -> list[State]:
    """The states with Java's answers."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    lines = "".join(json.dumps(s) + "\n" for s in states)
    command = [str(oracle_folder() / "oracle-java"), "PickTruth", "eval"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(states)
    return found


# ---- primary-key tables


def universal_options(rng: random.Random) -> dict[str, str]:
    some: dict[str, Any] = {
        "num-sorted-run.compaction-trigger": lambda: rng.randint(1, 12),
        "num-sorted-run.stop-trigger": lambda: rng.randint(1, 16),
        "num-levels": lambda: rng.randint(2, 10),
        "compaction.size-ratio": lambda: rng.choice([0, 1, 5, 20, 60, 150]),
        "compaction.max-size-amplification-percent": lambda: rng.choice([0, 25, 100, 200, 350, 100_000]),
        "compaction.optimization-interval": lambda: rng.choice(["20 min", "1 h", "3 h"]),
        "compaction.total-size-threshold": lambda: f"{rng.choice([1, 50, 900])} mb",
        "compaction.incremental-size-threshold": lambda: f"{rng.choice([1, 50, 900])} mb",
        "compaction.small-file-ratio": lambda: rng.choice([0.1, 0.5, 0.9]),
        "target-file-size": lambda: f"{rng.choice([1, 16, 64, 256])} mb",
    }
    options = {key: str(made()) for key, made in some.items() if rng.random() < 0.2}
    if rng.random() < 0.15:
        options["compaction.offpeak.start.hour"] = str(rng.randrange(24))
        options["compaction.offpeak.end.hour"] = str(rng.randrange(24))
        options["compaction.offpeak-ratio"] = str(rng.choice([0, 30, 100, 500]))
    match rng.randrange(10):
        case 0 | 1:
            options["changelog-producer"] = "lookup"
            if rng.random() < 0.5:
                options["lookup-compact"] = "gentle"
                if rng.random() < 0.7:
                    options["lookup-compact.max-interval"] = str(rng.randint(1, 12))
        case 2:
            options["merge-engine"] = "first-row"
        case 3:
            options["deletion-vectors.enabled"] = "true"
        case 4:
            options["force-lookup"] = "true"
        case 5:
            options["compaction.force-up-level-0"] = "true"
    if rng.random() < 0.1:
        options["compaction.force-rewrite-all-files"] = "true"
    return options


def a_bucket(rng: random.Random, options: dict[str, str]) -> State:
    """Level-0 files with keys as they come, then levels whose files do not overlap, older the deeper they lie."""
    trigger = int(options.get("num-sorted-run.compaction-trigger", 5))
    levels = int(options.get("num-levels", trigger + 1))
    space = rng.choice([8, 300, 5_000])
    scale = math.exp(rng.uniform(math.log(10), math.log(5e8)))
    spread = rng.choice([0.0, 0.02, 1.0, 2.5])

    def size(factor: float = 1.0) -> int:
        return min(1 << 40, max(1, int(scale * factor * math.exp(rng.gauss(0, 1) * spread))))

    def deletes() -> int | None:
        return rng.choice([None, 0, 0, 0, 0, 3])

    files: list[list[Any]] = []
    sequence = 10_000_000
    for _ in range(rng.choice([0, 1, trigger - 1, trigger, rng.randint(0, 2 * trigger + 4)])):
        low = rng.randrange(space)
        count = rng.randint(1, 90)
        first = sequence if rng.random() > 0.05 else max(0, sequence - rng.randint(0, 90))  # two writers
        high = low + rng.randrange(space) if rng.random() < 0.7 else low
        files.append([0, size(), deletes(), low, high, first, sequence + count - 1, rng.randrange(4_000)])
        sequence += count
    growth = rng.uniform(0.3, 4.0)
    older = 9_000_000
    for level in range(1, levels + (2 if rng.random() < 0.04 else 0)):
        if rng.random() < 0.45 and level != levels - 1:
            continue
        low = rng.randrange(4)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            high = low + rng.randrange(max(1, space // 4))
            old = rng.choice([1_199, 1_200, 1_201, 3_600, rng.randrange(12_000)])
            files.append([level, size(growth**level), deletes(), low, high, older - 900, older, old])
            low = high + 1 + rng.randrange(3)
        older -= 1_000
    _on_a_threshold(rng, files, options)
    rng.shuffle(files)
    state: State = {"options": options, "f": files}
    if "compaction.offpeak-ratio" in options:
        state["hour"] = rng.randrange(24)
    if options.get("lookup-compact") == "gentle":
        state["calls"] = rng.randint(0, int(options.get("lookup-compact.max-interval", 2 * trigger)))
    if "deletion-vectors.enabled" in options:
        state["dv"] = [i for i in range(len(files)) if rng.random() < 0.25]
    if rng.random() < 0.1:
        state["full"] = True
    return state


def _on_a_threshold(rng: random.Random, files: list[list[Any]], options: dict[str, str]) -> None:
    """Now and then one file is exactly as large as makes the difference, or a byte beside it."""
    if len(files) < 2 or rng.random() < 0.7:
        return
    cut = rng.randint(1, len(files) - 1)
    before = sum(f[1] for f in files[:cut])
    ratio = int(options.get("compaction.size-ratio", 1))
    space = int(options.get("compaction.max-size-amplification-percent", 200))
    exact = int(before * (100.0 + ratio) / 100.0) if rng.random() < 0.5 or not space else before * 100 // space
    files[cut][1] = max(1, exact + rng.randint(-1, 1))


def test_buckets_of_primary_key_tables() -> None:
    rng = random.Random(SEED)
    states = asked([a_bucket(rng, universal_options(rng)) for _ in range(UNIVERSAL)])
    picked = 0
    for number, state in enumerate(states):
        ours = answers(state, policy_for(state["options"]))
        assert ours == {column: state[column] for column in ours}, f"state {number}: {state}"
        picked += state["task"] is not None
    assert picked > UNIVERSAL // 3


# ---- tables without a primary key


def append_options(rng: random.Random) -> dict[str, str]:
    options = {"target-file-size": f"{rng.choice([1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB])} b"}
    if rng.random() < 0.5:
        options["compaction.min.file-num"] = str(rng.randint(2, 12))
    if rng.random() < 0.3:
        options["source.split.open-file-cost"] = f"{rng.choice([0, 1, 4 * MIB, 40 * MIB])} b"
    if rng.random() < 0.3:
        options["compaction.small-file-ratio"] = str(rng.choice([0.1, 0.5, 0.95]))
    if rng.random() < 0.1:
        options["compaction.force-rewrite-all-files"] = "true"
    return options


def append_state(rng: random.Random) -> State:
    options = append_options(rng)
    target = int(options["target-file-size"].split()[0])
    scale = math.exp(rng.uniform(math.log(1e3), math.log(2 * target)))
    used: set[int] = set()

    def size() -> int:
        """Each once: among equal ones Java's order is that of a hash table."""
        edge = int(target * float(options.get("compaction.small-file-ratio", 0.7)))
        made = edge + rng.randint(-1, 1) if rng.random() < 0.08 else 1 + int(scale * math.exp(rng.gauss(0, 1)))
        while made in used:
            made += 1
        used.add(made)
        return made

    if rng.random() < 0.5:
        rounds = [[size() for _ in range(rng.choice([0, 1, 3, 6, 25]))] for _ in range(rng.randint(1, 5))]
        rounds += [[] for _ in range(rng.choice([0, 0, 3, 7, 12]))]
        return {"options": options, "kind": "unaware", "add": rounds}
    files = [[size(), 10 * i] for i in range(rng.choice([0, 1, 2, 3, 5, 12, 20]))]
    rng.shuffle(files)
    return {"options": options, "kind": "bucketed", "f": files}


def test_append_tables() -> None:
    rng = random.Random(SEED + 1)
    for state in asked([append_state(rng) for _ in range(APPEND)]):
        o = state["options"]
        policy = append_policy(
            min_files=int(o.get("compaction.min.file-num", 5)),
            target=int(o["target-file-size"].split()[0]),
            small_ratio=float(o.get("compaction.small-file-ratio", 0.7)),
            open_cost=int(o.get("source.split.open-file-cost", f"{4 * MIB} b").split()[0]),
            rewrite_all=o.get("compaction.force-rewrite-all-files") == "true",
        )
        check_unaware(state, policy) if state["kind"] == "unaware" else check_bucketed(state, policy)
