"""The store dies, fails, or fails after the fact at every mutating call of a small history; the table equals the model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
CHECKPOINTS = 6
NAMES = random.Random(7)

Row = dict[str, object]
Model = dict[tuple[str, int], Row]


def batch(checkpoint: int) -> tuple[list[Row], list[Row]]:
    """(upserts, deletes) of a checkpoint: the same for every run."""
    rnd = random.Random(checkpoint)
    ups = [{"dt": rnd.choice("ab"), "k": rnd.randint(0, 7), "v": checkpoint * 100 + i} for i in range(6)]
    dels = [{"dt": rnd.choice("ab"), "k": rnd.randint(0, 7)} for _ in range(1)]
    return ups, dels


def model(checkpoints: int = CHECKPOINTS) -> Model:
    out: Model = {}
    for c in range(1, checkpoints + 1):
        ups, dels = batch(c)
        for r in ups:
            out[str(r["dt"]), int(str(r["k"]))] = r
        for r in dels:
            out.pop((str(r["dt"]), int(str(r["k"]))), None)
    return out


def lake(store: object) -> Lake:
    # one source of names for all runs: a restarted process must not give a name away again
    return Lake(store, clock=ManualClock(), scheduler=ManualScheduler, rng=NAMES)  # type: ignore[arg-type]


def make_table(store: MemoryStore) -> None:
    lake(store).create_table(
        "d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"],
        options={"bucket": 1, "num-sorted-run.compaction-trigger": 3, "manifest.merge-min-count": 4},
    )  # fmt: skip


def run(store: object) -> None:
    """Every checkpoint in order; ones that were committed before are no-ops, as after a restart."""
    table = lake(store).table("d.t")
    with table.write(commit_user="job") as w:
        for c in range(1, CHECKPOINTS + 1):
            ups, dels = batch(c)
            w.upsert(ups)
            w.delete(dels)
            w._scheduler.run_pending()  # type: ignore[attr-defined]
            w.commit(checkpoint=c)


def read(store: object) -> Model:
    rows = lake(store).table("d.t").scan().to_arrow().to_pylist()
    out = {(r["dt"], r["k"]): r for r in rows}
    assert len(out) == len(rows), "a key came twice"
    return out


@cache
def calls() -> FaultyStore:
    """What a run without faults calls."""
    store = MemoryStore()
    make_table(store)
    counted = FaultyStore(store, [])
    run(counted)
    assert read(store) == model()
    return counted


def restart_until_done(store: MemoryStore, action: str, at: int) -> int:
    """Runs with one fault, then clean ones until the history is whole; the number of failed runs."""
    failed = 0
    plan = [Fault(action, at=at)]
    while True:
        try:
            run(FaultyStore(store, plan))
            return failed
        except (Died, shoal.ShoalError):
            failed += 1
            plan = []
            assert failed < 5


def orphans(store: MemoryStore) -> Iterator[str]:
    """Data files of the table folder that no snapshot ever names."""
    table = lake(store).table("d.t")
    meta = table.metadata
    named = set()
    for i in meta.snapshot_ids():
        for m in meta.manifests(meta.snapshot(i)):
            named |= set(meta.entries(m).column("file_name").to_pylist())
    for f in store.list("d.db/t"):
        name = f.path.rsplit("/", 1)[-1]
        if name.startswith("data-") and name not in named:
            yield f.path


@pytest.mark.parametrize(
    "action, step",
    [
        ("die_after", 1),
        ("fail", 3),
        *(pytest.param(a, 1, marks=pytest.mark.slow) for a in ("die", "fail", "fail_after")),
    ],
)
def test_a_fault_at_any_mutating_call_loses_and_doubles_nothing(action: str, step: int) -> None:
    total = calls().mutations
    assert total > 50
    for at in range(1, total + 1, step):
        store = MemoryStore()
        make_table(store)
        restart_until_done(store, action, at)
        assert read(store) == model(), f"{action} at call {at}"
        meta = lake(store).table("d.t").metadata
        identifiers = [
            (s.commit_identifier, s.commit_kind)
            for s in map(meta.snapshot, meta.snapshot_ids())
            if s.commit_user == "job"
        ]
        assert len(set(identifiers)) == len(identifiers), f"{action} at call {at}: a checkpoint was committed twice"
        assert [i for i, kind in identifiers if kind == "APPEND"] == list(range(1, CHECKPOINTS + 1))


def test_a_failed_commit_leaves_no_file_behind() -> None:
    """A store that refuses every write at some call: what was written for the failed commit is deleted again."""
    sinks = calls().calls["sink"]
    assert sinks > 10
    for at in range(1, sinks + 1):
        store = MemoryStore()
        make_table(store)
        try:
            run(FaultyStore(store, [Fault("fail", at=at, kind="sink")]))
        except shoal.CommitUnknown:
            continue
        except shoal.ShoalError:
            pass
        assert list(orphans(store)) == []


def test_a_replayed_checkpoint_adds_no_snapshot() -> None:
    store = MemoryStore()
    make_table(store)
    run(store)
    before = store_snapshot_ids(store)
    run(store)
    assert store_snapshot_ids(store) == before
    assert list(orphans(store)) == []


def store_snapshot_ids(store: MemoryStore) -> list[int]:
    return lake(store).table("d.t").metadata.snapshot_ids()
