# SPDX-License-Identifier: Apache-2.0
"""The merge against a dict: any number of runs, any budget, any overlap of sequence numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.budget import Budget
from shoal.lsm.merge import KIND, SEQUENCE, Rules, RunInput, merge_runs
from shoal.lsm.versions import Folded, Versions

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), (SEQUENCE, pa.int64()), (KIND, pa.int8())])
Row = tuple[int, str, int, int]  # key, value, sequence, kind


def run_of(rows: Sequence[Row], row_bytes: float = 40.0) -> RunInput:
    rows = sorted(rows)
    table = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=count)

    sequences = [r[2] for r in rows]
    return RunInput(batches, row_bytes, (min(sequences), max(sequences)), len(rows))


def made(runs: int, each: int, keys: int, seed: int, *, overlap: bool, deletes: float = 0.2) -> list[list[Row]]:
    """Runs of distinct keys each. With `overlap`, sequence numbers of all runs are mixed."""
    rng = np.random.default_rng(seed)
    count = runs * each
    numbers = rng.permutation(count) if overlap else np.arange(count)
    out = []
    for r in range(runs):
        chosen = rng.permutation(keys)[:each]
        kinds = np.where(rng.random(each) < deletes, 3, 0)
        own = numbers[r * each : (r + 1) * each]
        out.append([(int(k), f"v{s}", int(s), int(d)) for k, s, d in zip(chosen, own, kinds)])
    return out


def newest(runs: Sequence[Sequence[Row]]) -> dict[int, Row]:
    best: dict[int, Row] = {}
    for row in (r for run in runs for r in run):
        if row[0] not in best or row[2] > best[row[0]][2]:
            best[row[0]] = row
    return best


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, str]]:
    return [pair for b in batches for pair in zip(b.column("k").to_pylist(), b.column("v").to_pylist())]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("runs", "budget"), [(2, 1 << 20), (30, 1 << 16), (130, 1 << 16), (130, 1 << 30)])
def test_the_newest_version_of_each_key_comes_out(runs: int, budget: int, overlap: bool) -> None:
    rows = made(runs, 300, 2_000, runs, overlap=overlap)
    merged = merge_runs(
        [run_of(r) for r in rows], Rules(("k",)), ["k", "v"], Budget(budget), drop_deletes=True, ordered=True
    )
    assert rows_of(merged) == sorted((k, v) for k, v, _, kind in newest(rows).values() if kind == 0)


class Concatenate:
    """An engine that shows every version in the order in which it meets them, deletes in brackets."""

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(columns)

    def fold(self, versions: Versions, columns: Sequence[str]) -> Folded:
        values = versions.table.column("v").to_pylist()
        kinds = versions.kinds
        ends = np.flatnonzero(np.append(versions.first[1:], True))
        starts = np.flatnonzero(versions.first)
        texts = []
        for a, b in zip(starts, ends):
            parts = [
                f"[{values[i]}]" if kinds is not None and kinds[i] else values[i] for i in versions.order[a : b + 1]
            ]
            texts.append("+".join(parts))
        last = versions.order[ends]
        out = {"v": pa.array(texts), "k": versions.table.column("k").combine_chunks().take(pa.array(last))}
        return Folded([out[c] for c in columns], np.zeros(len(starts), np.int8), last)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [1 << 14, 1 << 16, 1 << 30])
def test_an_engine_meets_all_versions_in_order_however_many_passes_it_takes(budget: int, overlap: bool) -> None:
    rows = made(120, 60, 300, 5, overlap=overlap)
    model: dict[int, list[Row]] = {}
    for row in sorted((r for run in rows for r in run), key=lambda r: r[2]):
        model.setdefault(row[0], []).append(row)
    rules = Rules(("k",), engine=Concatenate())
    merged = merge_runs([run_of(r) for r in rows], rules, ["k", "v"], Budget(budget), drop_deletes=False, ordered=True)
    found = dict(rows_of(merged))
    # a key that one run has alone in its block passes as it is, as a key with one version does in any engine
    wanted = {k: "+".join(f"[{v}]" if kind else v for _, v, _, kind in vs) for k, vs in model.items()}
    alone = {k for k, vs in model.items() if len(vs) == 1}
    assert found.keys() == wanted.keys()
    assert {k: v for k, v in found.items() if k not in alone} == {k: v for k, v in wanted.items() if k not in alone}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 60), st.integers(0, 1_000), st.booleans(), st.booleans())
def test_any_runs_in_a_tiny_budget(runs: int, each: int, keys: int, seed: int, overlap: bool, ordered: bool) -> None:
    rows = made(runs, min(each, keys), keys, seed, overlap=overlap)
    budget = Budget(4_096)
    merged = merge_runs(
        [run_of(r) for r in rows], Rules(("k",)), ["k", "v"], budget, drop_deletes=True, ordered=ordered
    )
    assert sorted(rows_of(merged)) == sorted((k, v) for k, v, _, kind in newest(rows).values() if kind == 0)
    assert budget.used == 0


def test_many_large_runs_stay_within_a_share_of_the_budget() -> None:
    rows = made(120, 2_000, 50_000, 3, overlap=False)
    budget = Budget(2 << 20)
    merged = merge_runs([run_of(r) for r in rows], Rules(("k",)), ["v"], budget, drop_deletes=True, ordered=False)
    count = sum(b.num_rows for b in merged)
    assert count == sum(kind == 0 for *_, kind in newest(rows).values())
    assert budget.peak < budget.total
