# SPDX-License-Identifier: Apache-2.0
"""What only tags and branches keep, and what reads merge: against names and keys read without the doctor."""

from __future__ import annotations

from incidents_more import (
    Plan,
    World,
    forgotten_branch,
    grow,
    high_trigger,
    keys_that_never_meet,
    unlimited_tags,
    world,
)

from shoal.doctor.allowance import Allowance
from shoal.doctor.take import Known, take
from shoal.table.metadata import Metadata
from shoal.table.refs import tags

PLAN = Plan(checkpoints=45)


def names(metadata: Metadata, snapshot) -> dict[str, int]:
    live = metadata.live(snapshot)
    return dict(zip(live.column("file_name").to_pylist(), live.column("file_size").to_pylist()))


def reached(w: World) -> set[str]:
    """Every file that a retained snapshot lists."""
    metadata = w.table.metadata
    return {n for i in metadata.snapshot_ids() for n in names(metadata, metadata.snapshot(i))}


def test_tags_keep_what_no_retained_snapshot_lists() -> None:
    w = unlimited_tags(PLAN)
    pins = take(w.table.metadata, clock=w.clock).stock.pins
    there = reached(w)
    kept = {t.name: {n: s for n, s in names(w.table.metadata, t.snapshot).items() if n not in there}
            for t in tags(w.table.metadata)}  # fmt: skip
    assert pins is not None and pins.exact and len(pins.pins) == len(kept) == 4
    for pin in pins.pins:
        mine = kept[pin.name]
        others = {n for name, files in kept.items() if name != pin.name for n in files}
        assert (pin.holds.files, pin.holds.bytes) == (len(mine), sum(mine.values()))
        assert pin.alone.bytes == sum(s for n, s in mine.items() if n not in others)
    every = {n: s for files in kept.values() for n, s in files.items()}
    assert (pins.together.files, pins.together.bytes) == (len(every), sum(every.values()))


def test_a_branch_keeps_what_it_began_with_and_owns_what_it_wrote() -> None:
    w = forgotten_branch(PLAN)
    branch = w.table.branch("trial")
    with branch.write("trial") as write:
        write.write(w.rows(20))
        write.commit(1)
    found = take(w.table.metadata, clock=w.clock).stock.pins
    assert found is not None
    begun = names(w.table.metadata, next(t.snapshot for t in tags(w.table.metadata) if t.name == "start"))
    there = reached(w)
    pin = next(p for p in found.pins if p.kind == "branch")
    assert pin.holds.bytes == sum(s for n, s in begun.items() if n not in there) > 0
    assert pin.alone.bytes == 0  # the tag keeps the same
    own = {n: s for n, s in names(branch.metadata, branch.metadata.latest()).items() if n not in begun}
    assert pin.own.bytes == sum(own.values()) > 0


def test_a_later_look_and_a_cut_one_read_no_tags() -> None:
    w = unlimited_tags(PLAN)
    first = take(w.table.metadata, clock=w.clock)
    assert take(w.table.metadata, clock=w.clock, known=Known.of(first)).stock.pins is None
    cut = take(w.table.metadata, clock=w.clock, budget=Allowance(max_requests=first.stock.requests - 5)).stock
    assert cut.pins is None or not cut.pins.exact or cut.fan_in is None


def test_runs_merge_only_where_their_keys_meet() -> None:
    apart = take(keys_that_never_meet(PLAN).table.metadata).stock.fan_in
    assert apart is not None and apart.deepest == 1 and apart.merging_bytes == 0 and apart.sections == apart.files
    meeting = high_trigger(PLAN)
    window = take(meeting.table.metadata)
    fan = window.stock.fan_in
    assert fan is not None and fan.deepest > 8 and fan.merging_files == fan.files == window.steps[-1].live_files


def test_tables_that_merge_nothing_have_no_fan_in() -> None:
    assert take(grow(world(PLAN, {"deletion-vectors.enabled": "true"}), 3).table.metadata).stock.fan_in is None
    assert take(grow(world(PLAN, keyed=False), 3).table.metadata).stock.fan_in is None
