# SPDX-License-Identifier: Apache-2.0
"""Steps of a plan, done through the normal engine: what they change, and when they are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.checkup import checkup
from shoal.doctor.finding import Finding
from shoal.doctor.fix import Action, Plan, Step
from shoal.doctor.fix_apply import Treatment
from shoal.doctor.fix_plan import plan
from shoal.doctor.take import take
from shoal.errors import BadRequest, Conflict, Unsupported
from shoal.store import MemoryStore
from shoal.table import consumers
from shoal.table.commit import Commit
from shoal.table.table import Table

SCHEMA = pa.schema([pa.field("p", pa.string(), False), pa.field("k", pa.int64(), False), ("v", pa.int64())])


NOBODY = Finding("D7", "nobody compacts", "error", "supported", {}, {}, "nobody compacts")


class Patient:
    """d.t in memory: partitions by `p`, 8 commits, nobody compacts."""

    def __init__(self, *, partitioned: bool = True, **options: object) -> None:
        self.clock = ManualClock()
        self.lake = Lake(
            MemoryStore(clock=self.clock), clock=self.clock, scheduler=ManualScheduler, rng=random.Random(5)
        )
        asked = {"bucket": 2, "write-only": True, "num-sorted-run.compaction-trigger": 3, **options}
        keys = ["p", "k"] if partitioned else ["k"]
        self.lake.create_table(
            "d.t", SCHEMA, primary_key=keys, partition_by=["p"] if partitioned else [], options=asked
        )
        self.at = 0
        self.commits(8)

    @property
    def table(self) -> Table:
        return self.lake.table("d.t")

    def commits(self, count: int, user: str = "w") -> None:
        with self.table.write(commit_user=user) as w:
            for _ in range(count):
                self.clock.sleep(60)
                self.at += 1
                rows = [[f"d{self.at % 2}"] * 4, list(range(self.at, self.at + 4)), [self.at] * 4]
                w.upsert(pa.table(rows, schema=SCHEMA))
                w.commit(checkpoint=self.at)

    def plan(self, *steps: Step) -> Plan:
        """The plan that the doctor makes, with these steps instead of its own."""
        case = checkup(take(self.table.metadata, name="d.t", clock=self.clock)).case
        found = plan(case, [NOBODY])
        return replace(found, steps=steps) if steps else found

    def treatment(self, plan: Plan, replan: Callable[[], Plan] | None = None) -> Treatment:
        return Treatment(lambda: self.table, plan, replan or self.plan)

    def rows(self) -> list[dict[str, object]]:
        key = lambda r: (r["p"], r["k"])  # noqa: E731
        return sorted(self.table.scan().to_arrow().to_pylist(), key=key)


def step(kind: str, typed_name: bool = False, **arguments: object) -> Step:
    return Step("s", "root fix", "t", ("D1",), action=Action(kind, arguments), typed_name=typed_name)  # type: ignore[arg-type]


def test_compact_now_compacts_a_write_only_table() -> None:
    it = Patient()
    before, made = it.rows(), it.plan()
    wanted = next(s for s in made.steps if s.id == "compact-now")
    done = it.treatment(made).apply(wanted)
    newest = it.table.metadata.latest()
    assert newest is not None and newest.commit_kind == "COMPACT" and done.snapshot == newest.id
    assert it.rows() == before and done.step == "compact-now" and "became" in done.what


def test_alter_sets_and_resets_options() -> None:
    it = Patient()
    change = step("alter", **{"write-only": None, "snapshot.num-retained.min": "3"})
    done = it.treatment(it.plan(change)).apply(change)
    options = it.table.schema.options
    assert "write-only" not in options and options["snapshot.num-retained.min"] == "3"
    assert done.schema == it.table.schema.id == 1 and "write-only reset" in done.what


def test_steps_follow_each_other_without_a_new_look() -> None:
    it = Patient()
    steps = (step("compact"), step("alter", **{"write-only": "false"}), step("compact_manifest"), step("expire"))
    steps = tuple(replace(s, id=f"s{i}") for i, s in enumerate(steps))
    treatment = it.treatment(it.plan(*steps), lambda: pytest.fail("the table did not move"))
    before = it.rows()
    for s in steps:
        treatment.apply(s)
    assert it.rows() == before


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_rescale_keeps_every_row(partitioned: bool) -> None:
    it = Patient(partitioned=partitioned)
    before = it.rows()
    change = step("rescale", typed_name=True, buckets=1)
    treatment = it.treatment(it.plan(change))
    for wrong in (None, "", "t", "D.T"):
        with pytest.raises(BadRequest, match="not the table's name"):
            treatment.apply(change, typed=wrong)
    assert it.table.options.bucket == 2
    done = treatment.apply(change, typed="d.t")
    assert it.rows() == before and it.table.options.bucket == 1
    assert set(it.table.inspect.files()["bucket"].to_pylist()) == {0} and "1 buckets instead of 2" in done.what
    it.commits(1)


def test_a_rescale_that_another_writer_disturbs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Patient()
    change = step("rescale", typed_name=True, buckets=1)
    treatment = it.treatment(it.plan(change))
    real, other = Commit.overwrite, it.table

    def late(self: Commit, *args: object, **more: object) -> object:
        monkeypatch.setattr(Commit, "overwrite", real)
        # a writer that was started before the buckets changed
        with other.write(commit_user="other") as w:
            w.upsert(pa.table([["d0"], [999], [1]], schema=SCHEMA))
            w.commit(checkpoint=1)
        return real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Commit, "overwrite", late)
    with pytest.raises(Conflict):
        treatment.apply(change, typed="d.t")
    assert it.table.options.bucket == 2 and any(r["k"] == 999 for r in it.rows())
    it.commits(1)


def test_consumers_and_tags_are_moved_and_deleted() -> None:
    it = Patient()
    consumers.save(it.table.store, "bi", 2)
    it.table.tags.create("spring", snapshot=3)
    move = step("reset_consumer", typed_name=True, consumer="bi", snapshot=8)
    drop = replace(step("drop_tag", typed_name=True, tag="spring"), id="d")
    treatment = it.treatment(it.plan(move, drop))
    treatment.apply(move, typed="d.t")
    treatment.apply(drop, typed="d.t")
    assert consumers.progress(it.table.store, "bi") == 8 and list(it.table.tags) == []


def test_a_schema_that_moved_refuses_every_step() -> None:
    it = Patient()
    change = step("compact")
    treatment = it.treatment(it.plan(change))
    it.table.alter(options={"snapshot.num-retained.min": "4"})
    with pytest.raises(Conflict, match="the schema moved from 0 to 1"):
        treatment.apply(change)


def test_new_snapshots_ask_for_a_new_look() -> None:
    it = Patient()
    made = it.plan()
    wanted = next(s for s in made.steps if s.id == "compact-now")
    treatment = it.treatment(made)
    it.commits(1)
    treatment.apply(wanted)  # the table still needs it
    it.commits(1)
    with pytest.raises(Conflict, match="no longer what the table needs"):
        it.treatment(made, lambda: replace(made, steps=())).apply(wanted)
    with pytest.raises(Conflict):
        it.treatment(made, lambda: replace(made, schema=7)).apply(wanted)


def test_what_shoal_cannot_do_is_said() -> None:
    it = Patient()
    job = Step("longer-interval", "root fix", "t", ("D1",), job={"execution.checkpointing.interval": "1 min"})
    with pytest.raises(Unsupported, match="not one that shoal can do"):
        it.treatment(it.plan(job)).apply(job)
