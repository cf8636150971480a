# SPDX-License-Identifier: Apache-2.0
"""Plans of `shoal doctor fix` as somebody runs them: the printed SQL in real Flink, held against what `--apply` does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.checkup import checkup
from shoal.doctor.checkup_text import plan_lines
from shoal.doctor.finding import Finding
from shoal.doctor.fix import Plan, Step
from shoal.doctor.fix_apply import Treatment
from shoal.doctor.fix_plan import plan
from shoal.doctor.take import take
from shoal.format.manifest import entries_of
from shoal.store import LocalStore
from shoal.table import consumers

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

SCHEMA = pa.schema([pa.field("p", pa.string(), False), pa.field("k", pa.int64(), False), ("v", pa.int64())])


@dataclass(frozen=True)
class Patient:
    """A table with what a cause leaves in it, and the causes that its plan is for."""

    causes: str
    options: Mapping[str, Any] = field(default_factory=dict)
    key: bool = True
    partitioned: bool = True
    held: str = ""  # by a "consumer", by a "tag"
    expired: bool = False  # compacted, and but one snapshot is left
    slo_s: int | None = None


VECTORS = {"deletion-vectors.enabled": True}
DUE = {"snapshot.time-retained": "1 ms", "snapshot.num-retained.min": 2}
PATIENTS = {
    "clock": Patient("D1", slo_s=600),
    "buckets": Patient("D2"),
    "flat": Patient("D2", partitioned=False),
    "vectors": Patient("D2", VECTORS),
    "firsts": Patient("D2", {"merge-engine": "first-row"}),
    "appended": Patient("D2", {"bucket-key": "k"}, key=False),
    "grows": Patient("D2", {"bucket": -1}),
    "told": Patient("D3", {"changelog-producer": "input"}),
    "heard": Patient("D3", {"changelog-producer": "input"}, held="consumer"),
    "skewed": Patient("D4"),
    "starved": Patient("D5"),
    "overdue": Patient("D6", DUE, held="consumer tag"),
    "kept": Patient("D6", DUE),
    "alone": Patient("D7"),
    "late": Patient("D8"),
    "small": Patient("D9", {"target-file-size": "1 mb", "compaction.small-file-ratio": 0.2}),
    "rivals": Patient("D10"),
    "listed": Patient("D11", {"manifest.merge-min-count": 500, "manifest.target-file-size": "1 kb", "metadata.stats-mode": "full"}),
    "waits": Patient("D12"),
    "spills": Patient("D13", {"write-buffer-spillable": False, "write-buffer-size": "1 mb"}),
    "floods": Patient("D13"),
    "idle": Patient("D14"),
    "tagged": Patient("D15", held="tag", expired=True),
    "marked": Patient("D15", {"tag.automatic-creation": "process-time", "tag.creation-period": "daily"}, held="tag"),
    "restarts": Patient("D16"),
    "fanned": Patient("D17", {"num-sorted-run.compaction-trigger": 30}),
    "piled": Patient("X2"),
}  # fmt: skip


def make(lake: Lake, name: str, it: Patient) -> None:
    """Eight commits that nobody compacts, into two partitions."""
    keys = (["p", "k"] if it.partitioned else ["k"]) if it.key else []
    asked = {"bucket": 2, "write-only": True, "file.format": "avro", **it.options}
    table = lake.create_table(
        f"d.{name}", SCHEMA, primary_key=keys, partition_by=["p"] if it.partitioned else [], options=asked
    )
    with table.write(commit_user="w") as w:
        for n in range(8):
            lake.clock.sleep(60)
            rows = pa.table([[f"d{n % 2}"] * 6, list(range(n, n + 6)), [n] * 6], schema=SCHEMA)
            w.upsert(rows) if it.key else w.append(rows)
            w.commit(checkpoint=n)
    if "tag" in it.held:
        table.tags.create("spring's", snapshot=3)
    if "consumer" in it.held:
        consumers.save(table.store, "bi", 4)
    if it.expired:
        table.maintain.compact(full=True)
        table.maintain.expire(retain_min=1, retain_max=1)


def plan_of(lake: Lake, name: str, it: Patient) -> Plan:
    window = take(lake.table(f"d.{name}").metadata, name=f"d.{name}", clock=lake.clock)
    case = checkup(window, slo_ms=None if it.slo_s is None else it.slo_s * 1000).case
    return plan(case, [Finding(c, "n", "warn", "supported", {}, {}, "says") for c in it.causes.split()])  # type: ignore[arg-type]


def statements(lines: list[str]) -> list[str]:
    """SQL as a client takes it: comments left out, cut at the semicolons."""
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [s.strip() for s in f"{text}\n".split(";\n") if s.strip()]


def undo(step: Step) -> list[str]:
    return [u.partition(";")[0] for u in step.undo if u.partition(" --")[0].endswith(";")]


def script(found: Plan) -> list[str]:
    """The plan as it is printed; a consumer is put back, and moved again, while its snapshot is there."""
    out = statements(plan_lines(found))
    for step in found.steps:
        if step.id.startswith("move-consumer-"):
            (sql,) = statements(list(step.sql))
            at = out.index(sql)
            out[at:at] = [sql, *undo(step)]
    return out


def truth(it: Patient) -> list[str]:
    """The rows that `make` wrote, once everything is compacted."""
    every = [{"p": f"d{n % 2}", "k": k, "v": n} for n in range(8) for k in range(n, n + 6)]
    if it.options.get("merge-engine") == "first-row":
        every.reverse()
    last = {(r["p"] if it.partitioned else "", r["k"]): r for r in every}
    return sorted(map(str, last.values() if it.key else every))


def rows(lake: Lake, name: str) -> list[str]:
    return sorted(map(str, lake.table(f"d.{name}").scan().to_arrow().to_pylist()))


def state(lake: Lake, name: str) -> dict[str, Any]:
    """What a plan may change of a table."""
    t = lake.table(f"d.{name}")
    live = entries_of(t.metadata.live(t.metadata.latest()))
    return {
        "options": dict(t.schema.options), "rows": rows(lake, name), "tags": t.inspect.tags()["tag_name"].to_pylist(),
        "consumers": consumers.all_progress(t.store), "buckets": {(e.bucket, e.total_buckets) for e in live},
        "level 0": sum(e.file.level == 0 for e in live), "earliest": t.metadata.earliest_id(),
    }  # fmt: skip


def test_flink_does_what_a_plan_says(java: Any, tmp_path: Path) -> None:
    """Both ways from one warehouse: the printed SQL in Flink, and `--apply`. Then Flink takes the SQL back."""
    here, there = tmp_path / "shoal", tmp_path / "java"
    lake = Lake(LocalStore(here), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    for name, it in PATIENTS.items():
        make(lake, name, it)
    plans = {name: plan_of(lake, name, it) for name, it in PATIENTS.items()}
    printed = {s.id.replace("-bi", "").replace("-spring's", "") for p in plans.values() for s in p.steps if s.sql}
    assert printed == WITH_SQL
    before = {name: state(lake, name) for name in PATIENTS}
    shutil.copytree(here, there)
    flink = Lake(LocalStore(there), clock=lake.clock)

    java(there, [s for found in plans.values() for s in script(found)])
    for name, found in plans.items():
        treatment = Treatment(lambda name=name: lake.table(f"d.{name}"), found, lambda: pytest.fail("it moved"))  # type: ignore[misc]
        for step in found.steps:
            if step.action is not None:
                treatment.apply(step, typed=f"d.{name}")
        ours, theirs = state(lake, name), state(flink, name)
        if name == "fanned":  # vectors are switched on by hand alone
            put = {"deletion-vectors.modifiable": "true", "deletion-vectors.enabled": "true"}
            ours = {**ours, "options": {**ours["options"], **put}, "level 0": 0}
        assert theirs == ours, name
        if PATIENTS[name].causes == "D2" and name != "grows":
            assert {total for _, total in theirs["buckets"]} == {1} and theirs["options"]["bucket"] == "1"
            assert theirs["rows"] == truth(PATIENTS[name]), name  # of level 0 too
        if any(s.id in ("compact-now", "compact-idle-partitions") for s in found.steps):
            assert theirs["level 0"] == 0, name

    java(there, [s for found in plans.values() for step in reversed(found.steps)
                 if not step.id.startswith("move-consumer-") for s in undo(step)])  # fmt: skip
    for name, it in PATIENTS.items():
        again = state(flink, name)
        assert again["options"] == before[name]["options"] and again["rows"] == truth(it), name
        if it.causes == "D2":
            assert {total for _, total in again["buckets"]} == {total for _, total in before[name]["buckets"]}, name


WITH_SQL = {
    "fewer-buckets", "larger-dynamic-buckets", "no-changelog", "merge-changelogs", "merge-locally", "compact-now",
    "writers-compact", "move-consumer", "expire-consumers", "expire-now", "bound-tags", "drop-tag", "compact-manifests",
    "default-manifests", "compact-idle-partitions", "default-file-size", "larger-buffer", "look-sooner", "usual-trigger",
    "deletion-vectors", "skip-idle-commits",
}  # fmt: skip
