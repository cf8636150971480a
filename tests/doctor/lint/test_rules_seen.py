# SPDX-License-Identifier: Apache-2.0
"""Rules that need snapshots: each speaks of a window that shows its case, and not of the look-alike beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from test_rules import COLUMNS, pairs, schema

from shoal.doctor.finding import Finding
from shoal.doctor.lint.rules import all_rules, lint
from shoal.doctor.lint.seen import Seen
from shoal.doctor.lint.subject import Around, Subject, settings_of
from shoal.doctor.window import Count, Holder, IndexFacts, SnapshotFacts, Stock, Window, flow_fields, state_fields

MB = 1 << 20
assert COLUMNS


def step(
    number: int, user: str, kind: str, *, identifier: int | None = None, every: int = 10_000, size: int = 1000, entries: int = 10,
) -> SnapshotFacts:  # fmt: skip
    return SnapshotFacts(
        id=number, schema_id=0, user=user, identifier=number if identifier is None else identifier, kind=kind,
        time_ms=number * every, total_records=None, delta_records=None, changelog_records=None, watermark=None, operation=None,
        lists=("b", "d"), wrote={}, manifests=Count(2, size), entries=entries, dead_entries=0, live_files=1, identity_holds=True,
    )  # fmt: skip


def flow(snapshot: int, kind: str, **more: Any) -> dict[str, Any]:
    row = {
        "snapshot": snapshot,
        "class": kind,
        "change": 1,
        "partition": "",
        "bucket": 0,
        "total_buckets": 1,
        "level": 0,
    }
    row |= {"files": 1, "bytes": MB, "rows": 1000, "deleted_rows": 0, "extras": 0, "largest": MB, "small": 0}
    return {**row, **more}


def window(steps: list[SnapshotFacts], flows: list[dict[str, Any]], *, holders: tuple[Holder, ...] = (), now: int = 0, start: Any = ()) -> Window:  # fmt: skip
    stock = Stock(now or steps[-1].time_ms, steps[0].id, steps[-1].id, holders, IndexFacts({}, 0, 0), 1, 1)
    before = pa.Table.from_pylist(list(start), schema=state_fields())
    return Window("file:/t", "d.t", tuple(steps), pa.Table.from_pylist(flows, schema=flow_fields()), before, (), stock)


def said(
    rule: str, options: str, seen: Window, *, keys: str = "id,dt", partitions: str = "dt", store: str = "file"
) -> list[Finding]:
    table = schema(keys, partitions, **pairs(options))
    subject = Subject("table", "d.t", settings_of(pairs(options)), table, around=Around(store=store), seen=Seen(seen))
    return [f for f in lint(subject) if f.id == rule]


def writes(
    count: int, users: tuple[str, ...] = ("w",), **more: Any
) -> tuple[list[SnapshotFacts], list[dict[str, Any]]]:
    """Commits by the users in turn, each with one flushed file."""
    steps = [step(i, users[i % len(users)], "APPEND") for i in range(1, count + 1)]
    return steps, [flow(s.id, "flush", **more) for s in steps]


def with_compactions(user: str, count: int = 8, **more: Any) -> Window:
    steps, flows = writes(count, **more)
    done = step(count + 1, user, "COMPACT", identifier=count)
    return window([*steps, done], [*flows, flow(done.id, "rewrite", level=5, **more)])


ALONE = window(*writes(8))
DEDICATED = with_compactions("c")
INLINE = with_compactions("w")


def consumer(snapshot: int) -> tuple[Holder, ...]:
    return (Holder("consumer", "bi", snapshot, 0),)


def slow(snapshot: int, count: int = 400) -> Window:
    """A window of 400 commits, an hour and more, with a consumer that reads `snapshot` next."""
    steps, flows = writes(count)
    return window(steps, flows, holders=consumer(snapshot))


def skewed(*rows: int) -> Window:
    steps, _ = writes(1)
    return window(steps, [flow(1, "flush", bucket=b, rows=r, total_buckets=len(rows)) for b, r in enumerate(rows)])


def sized(*sizes: int, count: int = 25, rows: int = 1000) -> Window:
    steps, flows = writes(count, bytes=1)
    live = [{"partition": "", "bucket": b, "total_buckets": len(sizes), "level": 5, "files": 1, "bytes": s, "rows": rows, "max_sequence": 1, "extras": 0, "small": 0} for b, s in enumerate(sizes)]  # fmt: skip
    flows = [
        flow(f["snapshot"], "flush", bucket=b, bytes=1, total_buckets=len(sizes))
        for f in flows
        for b in range(len(sizes))
    ]
    return window(steps, flows, start=live)


def changelogs(files: int) -> Window:
    steps, flows = writes(6)
    return window(steps, [*flows, *(flow(s.id, "changelog", bucket=b) for s in steps for b in range(files))])


def manifests(size: int) -> Window:
    return window([step(1, "w", "APPEND", size=size, entries=10)], [])


def postponed(compacted: bool) -> Window:
    steps, flows = writes(3, bucket=-2, total_buckets=-2)
    return window([*steps, step(4, "c", "COMPACT")] if compacted else steps, flows)


WRITE_ONLY = "write-only=true"
CASES = [
    ("L-06", "error", "bucket=4", sized(MB, MB), sized(MB, MB, MB, MB), {}),
    ("L-09", "error", "bucket=-1", window(*writes(4, ("a", "b"))), window(*writes(4)), {}),
    ("L-10", "error", WRITE_ONLY, ALONE, DEDICATED, {}),
    ("L-10", "error", WRITE_ONLY, ALONE, window(*writes(3)), {}),
    ("L-13", "warn", "bucket=1", window([step(1, "a", "COMPACT"), step(2, "b", "COMPACT"), step(3, "a", "COMPACT")], [flow(1, "rewrite"), flow(2, "rewrite"), flow(3, "rewrite")]), INLINE, {}),
    ("L-20", "error", f"changelog-producer=lookup; {WRITE_ONLY}", ALONE, DEDICATED, {}),
    ("L-21", "warn", "bucket=1", slow(400), ALONE, {}),
    ("L-22", "error", f"merge-engine=first-row; {WRITE_ONLY}", ALONE, DEDICATED, {}),
    ("L-24", "warn", "bucket=3", skewed(1000, 1000, 9000), skewed(1000, 1000, 2900), {}),
    ("L-25", "warn", "bucket=2", sized(100 * MB, 100 * MB), sized(300 * MB, 300 * MB), {}),
    ("L-25", "warn", "bucket=1", sized(2000 * MB), sized(100 * MB), {}),
    ("L-25", "info", "bucket=2", sized(MB, MB, count=3), sized(300 * MB, 300 * MB), {}),
    ("L-26", "warn", "bucket=1", slow(200), slow(390), {}),
    ("L-28", "warn", "bucket=1", slow(10), slow(200), {}),
    ("L-28", "warn", "bucket=1", window(*writes(8), holders=consumer(-5)), window(*writes(8), holders=consumer(9)), {}),
    ("L-31", "info", "target-file-size=512 mb", ALONE, window(*writes(8, bytes=100 * MB)), {}),
    ("L-35", "warn", "snapshot.expire.limit=2", window([step(i, "w", k, identifier=i // 2) for i, k in enumerate(("APPEND", "COMPACT") * 4)], []), window(*writes(4)), {}),
    ("L-36", "warn", "bucket=1", manifests(40_000), manifests(30_000), {}),
    ("L-37", "warn", "snapshot.num-retained.max=20", ALONE, window([step(i, "w", "APPEND", every=600_000) for i in range(1, 9)], []), {}),
    ("L-40", "warn", "continuous.discovery-interval=20 s", ALONE, window([step(i, "w", "APPEND", every=60_000) for i in range(1, 9)], []), {}),
    ("L-41", "warn", "precommit-compact=true; changelog-producer=input", changelogs(2), changelogs(4), {}),
    ("L-47", "warn", "snapshot.time-retained=1 min", window(*writes(200)), window(*writes(15)), {}),
    ("L-49", "warn", "dynamic-bucket.target-row-num=2000", sized(MB), sized(MB * 8000), {}),
    ("L-50", "warn", "bucket=-2", postponed(False), postponed(True), {}),
    ("L-51", "warn", "bucket=1", window(*writes(4, ("a", "b"))), window(*writes(4)), {"store": "s3"}),
    ("L-52", "warn", "commit.force-compact=true", ALONE, window([step(i, "w", "APPEND", every=60_000) for i in range(1, 9)], []), {}),
    ("L-58", "warn", "source.split.open-file-cost=1 kb", sized(MB), None, {}),
    ("L-60", "warn", "num-sorted-run.stop-trigger=2147483647", INLINE, DEDICATED, {}),
    ("L-67", "error", f"full-compaction.delta-commits=5; {WRITE_ONLY}", ALONE, DEDICATED, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "severity", "options", "bad", "good", "known"),
    CASES,
    ids=lambda v: str(v)[:30] if isinstance(v, str) else "",
)
def test_a_rule_speaks_of_one_window_and_not_of_the_other(rule, severity, options, bad, good, known):
    found = said(rule, options, bad, **known)
    assert [f.severity for f in found] == [severity]
    assert found[0].evidence and found[0].change
    assert good is None or said(rule, options, good, **known) == []


def test_every_rule_that_needs_snapshots_has_a_case():
    assert {r.id for r in all_rules() if r.samples} <= {c[0] for c in CASES} | {"L-44"}


def test_a_rule_that_needs_snapshots_is_silent_without():
    for rule, _, options, _, _, _ in CASES:
        table = schema(**pairs(options))
        found = [f for f in lint(Subject("table", "t", settings_of(pairs(options)), table)) if f.id == rule]
        assert all(f.severity != "error" for f in found), rule


def test_partitions_whose_values_are_no_time():
    named = [window(*writes(3, partition=p)) for p in ("dt=north/", "dt=2024-05-01/")]
    options = "partition.expiration-time=7 d"
    assert [len(said("L-44", options, w)) for w in named] == [1, 0]


def test_a_dedicated_compactor_quiets_what_options_alone_would_say():
    quiet = f"changelog-producer=lookup; deletion-vectors.enabled=true; {WRITE_ONLY}; num-sorted-run.stop-trigger=5000; sort-spill-threshold=9"
    table = schema(**pairs(quiet))
    subject = Subject("table", "t", settings_of(pairs(quiet)), table)
    assert {f.id for f in lint(subject) if f.severity != "info"} == {"L-20", "L-22", "L-60"}
    assert [f for f in lint(replace(subject, seen=Seen(DEDICATED))) if f.severity != "info"] == []


def test_the_interval_is_counted_on_checkpoints_not_on_snapshots():
    assert Seen(ALONE).interval_ms == 10_000
    # every second checkpoint had no rows, and each commit made two snapshots
    steps = [step(i, "w", ("APPEND", "COMPACT")[i % 2], identifier=i // 2 * 2, every=10_000) for i in range(2, 22)]
    assert Seen(window(steps, [])).interval_ms == 10_000
    assert Seen(window(*writes(4))).interval_ms is None
    batch = [step(i, "w", "APPEND", identifier=2**63 - 1) for i in range(1, 20)]
    assert Seen(window(batch, [])).interval_ms is None and Seen(window(batch, [])).commits == 19


def test_users_one_after_the_other_do_not_share():
    """Every batch job has a user of its own."""
    steps, flows = writes(4, ("a", "b", "c", "d"))
    assert said("L-09", "bucket=-1", window(steps, flows)) == []
    assert said("L-51", "bucket=1", window(steps, flows), store="oss") == []
    # a batch job between two commits of a stream
    steps, flows = [step(1, "s", "APPEND"), step(2, "b", "APPEND"), step(3, "s", "APPEND")], []
    found = said("L-09", "bucket=-1", window(steps, [flow(i, "flush") for i in (1, 2, 3)]))
    assert [f.evidence["users"] for f in found] == [("b", "s")]
