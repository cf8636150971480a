# SPDX-License-Identifier: Apache-2.0
"""States after each snapshot equal a replay of named files, whatever the table did."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Done, File, Toy, histogram, runs

from shoal.doctor.debt import Limits, debt
from shoal.doctor.states import states
from shoal.doctor.stocks import excess_files, merge_debt
from shoal.doctor.window import Window

TARGET = {"target-file-size": "1 kb", "num-sorted-run.compaction-trigger": "3"}


def random_table(seed: int, commits: int) -> Toy:
    """Flushes, rewrites, upgrades, removals at random, in two partitions and three buckets."""
    rng = random.Random(seed)
    toy = Toy(TARGET)
    for n in range(1, commits + 1):
        changes: list[tuple[str, File] | tuple[str, File, int]] = []
        for file in rng.sample(toy.live, rng.randint(0, min(3, len(toy.live)))):
            done = rng.choice(["removal", "upgrade"])
            changes.append((done, file) if done == "removal" else ("upgrade", file, rng.randint(1, 3)))
        for _ in range(rng.randint(0, 3)):
            file = File(rng.randrange(3), rng.randint(1, 5000), 0, rng.choice(["", "dt=1/"]))
            file.level = rng.choice([0, 0, 1, 3])
            changes.append(("flush" if file.level == 0 else "rewrite", file))
        toy.commit(*changes, at=n * 1000 + rng.randint(-1500, 1500), kind=rng.choice(["APPEND", "COMPACT"]))
    return toy


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 25), st.data())
def test_states_equal_a_replay_file_by_file(seed: int, commits: int, data: st.DataObject) -> None:
    toy = random_table(seed, commits)
    since = data.draw(st.integers(1, commits))
    window = toy.window(since=since)
    found = states(window, top=3)
    assert found is not None and len(found.steps) == commits - since + 1
    done = toy.done[since - 1 :]
    for b in range(found.count):
        partition, number = found.partitions[int(found.partition_of[b])], int(found.number[b])

        def of(d: Done) -> list[tuple[File, int]]:
            return [(f, n) for f, n in d.live if (f.partition, f.bucket) == (partition, number)]  # noqa: B023

        assert found.series(b, "files").tolist() == [len(of(d)) for d in done]
        assert found.series(b, "bytes").tolist() == [sum(f.size for f, _ in of(d)) for d in done]
        assert found.series(b, "level0").tolist() == [sum(n == 0 for _, n in of(d)) for d in done]
        assert found.series(b, "top_bytes").tolist() == [sum(f.size for f, n in of(d) if n == 3) for d in done]
        wanted = [runs(d, partition, number) for d in done]
        assert found.series(b, "runs").tolist() == wanted
        means, most = found.over_time("runs")
        assert means[b] == pytest.approx(sum(wanted) / len(wanted)) and most[b] == max(wanted)
    cells = zip(found.cell_bucket.tolist(), found.cell_level.tolist(), found.cell_end["files"].tolist())
    end = {(found.partitions[int(found.partition_of[b])], int(found.number[b]), level): n for b, level, n in cells if n}
    assert end == dict(histogram(done[-1]))
    assert found.sum_of("files").tolist() == [len(d.live) for d in done]
    assert (found.times_ms[1:] >= found.times_ms[:-1]).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_merge_debt_and_excess_files_equal_a_count_of_files(seed: int, commits: int) -> None:
    toy = random_table(seed, commits)
    window = toy.window()
    assert window.schema is not None
    limits = Limits.of(window.schema)
    found = states(window, top=3)
    assert found is not None
    merge, excess = merge_debt(found, limits), excess_files(found, limits)
    per_step, needed = [], []
    for d in toy.done:
        places = {(f.partition, f.bucket) for f, _ in d.live}
        per_step.append(sum(runs(d, *p) - 1 for p in places))
        sizes = [sum(f.size for f, _ in d.live if (f.partition, f.bucket) == p) for p in places]
        needed.append(sum(max(-(-s // 1024), 1) for s in sizes))
    assert merge.runs_to_merge.now == per_step[-1] and merge.runs_to_merge.most == max(per_step)
    assert merge.runs_to_merge.mean_per_snapshot == pytest.approx(sum(per_step) / len(per_step))
    ends = [i for i, d in enumerate(toy.done) if i + 1 == len(toy.done) or toy.done[i + 1].kind == "APPEND"]
    at_ends = [len(toy.done[i].live) for i in ends]
    assert excess.live.mean_at_checkpoint_ends == pytest.approx(sum(at_ends) / len(at_ends))
    places = {(f.partition, f.bucket) for f, _ in toy.done[-1].live}
    last = 0
    for p in places:
        mine = [f for f, _ in toy.done[-1].live if (f.partition, f.bucket) == p]
        last += max(len(mine) - max(-(-sum(f.size for f in mine) // 1024), 1), 0)
    assert excess.excess.now == last
    assert excess.small == sum(f.size < 1000 for f, _ in toy.done[-1].live)
    counted = debt(window)
    assert counted.live is not None and counted.live.data.files == len(toy.done[-1].live)
    assert counted.identity.holds


def test_without_a_start_state_only_flows_are_known() -> None:
    window = replace(random_table(1, 10).window(), start=None)
    assert states(window, top=3) is None
    found = debt(window)
    assert found.live is None and found.buckets is None and found.retained is None
    assert found.made["level0"].files > 0


def test_what_was_not_seen_moves_the_state_and_counts_as_nothing_done() -> None:
    from shoal.doctor.window import advance, difference, in_order

    toy = random_table(2, 12)
    window, later = toy.window(), toy.window(since=6)
    kept = window.flows.filter((window.flows.column("snapshot").to_numpy() < 3) | _after(window, 5))
    told = advance(window.start, window.flows.filter(window.flows.column("snapshot").to_numpy() < 3))  # type: ignore[arg-type]
    assert later.start is not None
    unseen = difference(later.start, told, 6)
    steps = tuple(s for s in window.steps if s.id < 3 or s.id > 5)
    gap = replace(window, steps=steps, flows=in_order(pa.concat_tables([kept, unseen])))
    found = states(gap, top=3)
    assert found is not None
    live = {d.id: len(d.live) for d in toy.done}
    assert found.sum_of("files").tolist() == [live[s.id] for s in steps]
    done = sum(int(found.moves.done[n].sum()) for n in ("flush", "rewrite"))
    seen = [d for d in toy.done if d.id < 3 or d.id > 5]
    assert done == sum(c in ("flush", "rewrite") for d in seen for c, *_ in d.rows)


def _after(window: Window, snapshot: int) -> object:
    return window.flows.column("snapshot").to_numpy() > snapshot
