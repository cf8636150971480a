# SPDX-License-Identifier: Apache-2.0
"""A look gives every snapshot with its flows, goes on where the last one ended, and notices what went wrong between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import independent_count as independent
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_tables import SCHEMA, Made, files, live, look, reader

from shoal.doctor.allowance import Allowance
from shoal.doctor.take import UNKNOWN, Known, take
from shoal.doctor.window import UNSEEN, Window
from shoal.errors import BadRequest
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata

GOLDEN = Path(__file__).parents[1] / "golden" / "tables.txt"


def unpartitioned(_: bytes) -> str:
    return ""


def test_every_snapshot_has_the_flows_of_an_independent_count(table: Path, metadata: Metadata) -> None:
    window = look(metadata)
    wanted = independent.per_snapshot(table)
    assert [s.id for s in window.steps] == [w["id"] for w in wanted]
    rows = window.flows.to_pylist()
    for step, want in zip(window.steps, wanted):
        here = [r for r in rows if r["snapshot"] == step.id]
        for word in ("flush", "rewrite", "upgrade", "removal", "changelog"):
            found = sum(r["files"] for r in here if r["class"] == word and (word, r["change"]) != ("upgrade", -1))
            assert found == want[word], (step.id, word)
        assert step.live_files == sum(want["live"].values()) and step.identity_holds
        assert sum(r["bytes"] for r in here if r["class"] == "rewrite") == want["rewrite_bytes"]
    assert files(window.end) == live(metadata, unpartitioned)
    assert window.complete and not window.events and window.after is None


def test_two_looks_see_what_one_sees(table: Path) -> None:
    whole = look(reader(table))
    cut = len(whole.steps) // 2
    part = Window(
        whole.table, whole.name, whole.steps[:cut], whole.flows.filter(pc.less_equal(whole.flows["snapshot"], cut)),
        whole.start, whole.schemas, whole.stock,
    )  # fmt: skip
    metadata = Metadata(CountingStore(LocalStore(table)), Cache())
    rest = look(metadata, known=Known.of(part))
    assert rest.steps == whole.steps[cut:] and rest.after == part.steps[-1].mark
    assert rest.flows.equals(whole.flows.filter(pc.greater(whole.flows["snapshot"], cut)))
    assert rest.start is not None and rest.start.equals(part.end)
    assert rest.end is not None and rest.end.equals(whole.end) and not rest.events
    nothing = look(metadata, known=Known.of(rest))
    assert not nothing.steps and nothing.end is not None and nothing.end.equals(whole.end)
    assert nothing.after == whole.steps[-1].mark


def test_a_later_look_reads_no_old_manifest(debt_db: Path) -> None:
    first = look(reader(debt_db / "ckpt_1s"))
    store = CountingStore(LocalStore(debt_db / "ckpt_1s"))
    look(Metadata(store, Cache()), known=Known.of(first))
    assert not any(kind in store.calls for kind in ("open", "read_range"))
    assert store.calls.total() <= 12 and store.mutations == 0


# ---- tables made here -------------------------------------------------------------------------------------


def test_partitions_are_told_by_name_and_buckets_apart() -> None:
    made = Made()
    made.commits(6)
    window = made.look()
    assert set(window.flows["partition"].to_pylist()) == {"p=d0/", "p=d1/"}
    assert files(window.end) == made.live() and set(window.flows["bucket"].to_pylist()) == {0, 1}


def test_a_look_after_every_commit_sees_what_one_look_sees() -> None:
    made = Made()
    known, parts = UNKNOWN, []
    for _ in range(12):
        made.commits(1)
        window = made.look(known)
        assert not window.gaps and not window.events
        assert files(window.end) == made.live()
        known = Known.of(window)
        parts.append(window)
    whole = made.look()
    assert tuple(s for w in parts for s in w.steps) == whole.steps
    assert pa.concat_tables([w.flows for w in parts]).combine_chunks().equals(whole.flows)
    assert parts[-1].end is not None and parts[-1].end.equals(whole.end)


def test_a_latest_hint_that_lags_hides_nothing() -> None:
    made = Made()
    made.commits(3)
    first = made.look()
    made.commits(4)
    made.table.store.put("snapshot/LATEST", b"2")
    last = max(made.table.metadata.snapshot_ids())
    assert made.look(Known.of(first)).steps[-1].id == last
    assert made.look().steps[-1].id == last


def test_snapshots_that_expired_unseen_are_a_gap_and_the_state_is_read_again() -> None:
    made = Made()
    made.commits(3)
    first = made.look()
    made.commits(10)
    made.table.maintain.expire(retain_min=1, retain_max=4, older_than=made.clock.now_ms() + 1)
    window = made.look(Known.of(first))
    earliest = window.stock.earliest
    assert earliest is not None and first.steps[-1].id + 1 < earliest
    assert [(g.first, g.last, g.kind) for g in window.gaps] == [(first.steps[-1].id + 1, earliest - 1, "expired")]
    assert [e.kind for e in window.events] == ["resync"]
    assert files(window.end) == made.live()
    unseen = window.flows.filter(pc.equal(window.flows["class"], UNSEEN))
    assert unseen.num_rows and set(unseen["snapshot"].to_pylist()) == {earliest}


def test_expiry_that_keeps_the_next_snapshot_costs_no_second_read_of_the_live_files() -> None:
    made = Made()
    made.commits(3)
    first = made.look()
    made.commits(2)
    last = first.steps[-1].id
    for i in range(1, last + 1):
        made.table.store.delete(f"snapshot/snapshot-{i}")
    window = made.look(Known.of(first))
    assert window.steps[0].id == last + 1 and not window.gaps and not window.events
    assert files(window.end) == made.live()


def test_a_rollback_that_gives_ids_away_again_is_noticed() -> None:
    made = Made()
    made.commits(6)
    first = made.look()
    last = first.steps[-1].id
    made.table.rollback(snapshot=3)
    made.commits(6)
    assert max(made.table.metadata.snapshot_ids()) >= last  # the ids are there, as others
    window = made.look(Known.of(first))
    assert [(e.kind, e.snapshot) for e in window.events] == [("rollback", 3)]
    assert window.after == first.steps[2].mark and window.steps[0].id == 4
    assert files(window.end) == made.live()
    again = made.look(Known.of(window))
    assert not again.steps and not again.events


def test_a_rollback_without_a_new_commit_is_noticed_too() -> None:
    made = Made()
    made.commits(6)
    first = made.look()
    made.table.rollback(snapshot=3)
    window = made.look(Known.of(first))
    assert not window.steps and [e.kind for e in window.events] == ["rollback"]
    assert window.after == first.steps[2].mark and files(window.end) == made.live()
    made.commits(2)
    rest = made.look(Known.of(window))
    assert rest.steps[0].id == 4 and not rest.events and files(rest.end) == made.live()


def test_a_table_made_anew_under_the_same_name_is_another_table() -> None:
    made, other = Made(), Made(seed=8)
    made.commits(4)
    other.clock.sleep(1000)
    other.commits(2)
    window = other.look(Known.of(made.look()))
    assert [e.kind for e in window.events] == ["replaced"]
    assert window.after is None and window.steps[0].id == 1 and files(window.end) == other.live()


def test_a_base_list_that_was_replaced_is_noticed_and_the_state_read_again(own_table: Path) -> None:
    from shoal.format.manifest import decode_list, encode_list

    first = look(reader(own_table))
    cut = Window(
        first.table, "t", first.steps[:9], first.flows.filter(pc.less_equal(first.flows["snapshot"], 9)), first.start,
        first.schemas, first.stock,
    )  # fmt: skip
    path = own_table / "manifest" / first.steps[-1].lists[0]
    path.write_bytes(encode_list(decode_list(path.read_bytes(), "list")[1:], "zstd"))
    snapshot = own_table / "snapshot" / "snapshot-29"
    text = snapshot.read_text()
    size = str(path.stat().st_size)
    import re

    snapshot.write_text(re.sub(r'("baseManifestListSize" : )\d+', rf"\g<1>{size}", text))
    metadata = reader(own_table)
    window = look(metadata, known=Known.of(cut))
    assert [s.id for s in window.steps if not s.identity_holds] == [29]
    assert [(e.kind, e.snapshot) for e in window.events] == [("resync", 29)]
    assert files(window.end) == live(metadata, unpartitioned)


def test_a_missing_snapshot_file_in_the_middle_is_a_missing_gap() -> None:
    made = Made()
    made.commits(8)
    made.table.store.delete("snapshot/snapshot-4")
    window = made.look()
    assert [(g.first, g.last, g.kind) for g in window.gaps] == [(4, 4, "missing")]
    assert not window.complete and files(window.end) == made.live()


def test_an_allowance_cuts_between_snapshots_and_looks_catch_up() -> None:
    made = Made()
    made.commits(20)
    whole = made.look()
    known, parts = UNKNOWN, []
    for _ in range(60):
        window = made.look(known, budget=Allowance(max_requests=30))
        assert window.steps or not window.stock.partial
        parts += window.steps
        known = Known.of(window)
        if not window.stock.partial:
            break
        assert [e.kind for e in window.events] == ["cut"]
    assert tuple(parts) == whole.steps and len(parts) > 5
    assert window.end is not None and window.end.equals(whole.end)
    one = made.look(budget=Allowance(max_bytes=1))
    assert len(one.steps) == 1 and one.stock.partial


def test_requests_keep_to_the_rate_on_the_clock() -> None:
    made = Made()
    made.commits(5)
    start = made.clock.monotonic()
    window = made.look(budget=Allowance(rps=10))
    took = made.clock.monotonic() - start
    assert took == pytest.approx((window.stock.requests - 1) / 10, abs=0.3)
    with pytest.raises(BadRequest, match="rps"):
        Allowance(rps=0)


def test_a_look_since_an_id_follows_it() -> None:
    made = Made()
    made.commits(6)
    window = made.look(since=3)
    assert window.steps[0].id == 4 and window.after is not None and window.after.id == 3
    assert files(window.end) == made.live()
    assert not made.look(since=window.steps[-1].id).steps


def test_an_empty_table_is_an_empty_window() -> None:
    made = Made()
    window = made.look()
    assert not window.steps and window.start is not None and not window.start.num_rows and window.complete
    assert len(window.schemas) == 1 and window.stock.latest is None
    made.commits(1)
    assert files(made.look(Known.of(window)).end) == made.live()


def test_a_new_size_of_small_files_is_counted_anew() -> None:
    made = Made()
    made.commits(3)
    first = made.look()
    assert first.end is not None and pc.sum(first.end["small"]).as_py() == pc.sum(first.end["files"]).as_py()
    made.table = made.table.alter(options={"target-file-size": "1 kb"})
    quiet = made.look(Known.of(first))
    assert quiet.small_size == first.small_size and len(quiet.schemas) == 2
    made.commits(1)
    window = made.look(Known.of(quiet))
    assert [e.kind for e in window.events] == ["resync"]
    assert files(window.end) == made.live()
    fresh = made.look()
    assert window.end is not None and fresh.end is not None
    want = made.table.metadata.live(made.table.metadata.latest())
    assert pc.sum(window.end["small"]).as_py() == sum(s < 716 for s in want["file_size"].to_pylist())


def test_tags_consumers_branches_and_schemas_stand_beside_the_snapshots() -> None:
    made = Made()
    made.commits(4)
    made.table.tags.create("keep", snapshot=2)
    made.table.branches.create("b", tag="keep")
    made.table.store.put("consumer/consumer-bi", b'{"nextSnapshot": 3}')
    window = made.look()
    assert [(h.kind, h.name, h.snapshot) for h in window.stock.holders] == [
        ("branch", "b", 2), ("consumer", "bi", 3), ("tag", "keep", 2),
    ]  # fmt: skip
    store = CountingStore(made.table.store)
    take(Metadata(store, made.table.metadata.cache), clock=made.clock, known=Known.of(window))
    assert store.calls["read"] <= 5  # the last snapshot, hints, the consumer: the tag and its schema are known


def test_a_branch_has_its_own_snapshots() -> None:
    made = Made()
    made.commits(4)
    made.table.tags.create("keep", snapshot=2)
    made.table.branches.create("b", tag="keep")
    branch = made.table.branch("b")
    with branch.write() as w:
        w.upsert(pa.table([["d0"], [99], [1]], schema=SCHEMA))
        w.commit()
    window = take(branch.metadata, name=branch.name, clock=made.clock)
    assert window.steps[-1].id >= 3 and window.table.endswith("branch/branch-b")
    assert files(window.end) == live(branch.metadata, lambda p: f"p={p[-8:-6].decode()}/")


# ---- every table that Java wrote ---------------------------------------------------------------------------


@pytest.mark.parametrize("database", sorted({t.partition(".")[0] for t in GOLDEN.read_text().split()}))
def test_every_golden_table_adds_up(database: str, golden: Callable[[str], Path]) -> None:
    """Identity at each snapshot, and the state equal to a count that shares no code."""
    root = golden(database) / f"{database}.db"
    names = sorted(t.partition(".")[2] for t in GOLDEN.read_text().split() if t.startswith(f"{database}."))
    for name in names:
        window = look(reader(root / name))
        bad = [s.id for s in window.steps if not s.identity_holds]
        assert not bad and not window.gaps and not window.events, (name, bad)
        assert window.end is not None, name
        assert files_by(window.end) == independent.live_cells(root / name), name
        for step, made in zip(window.steps, independent.deltas(root / name), strict=True):
            assert (step.id, counts(window, step.id)) == made, name
        if len(window.steps) > 1:  # what a look that spares lists sees after the first snapshot is the same
            only = pc.equal(window.flows["snapshot"], window.steps[0].id)
            first = replace(window, steps=window.steps[:1], flows=window.flows.filter(only))
            rest = look(reader(root / name), known=Known.of(first))
            assert rest.steps == window.steps[1:] and not rest.events, name
            assert rest.flows.equals(window.flows.filter(pc.invert(only))), name
            assert rest.end is not None and rest.end.equals(window.end), name


def files_by(state: pa.Table) -> dict[tuple[object, ...], tuple[int, int, int]]:
    out: dict[tuple[object, ...], tuple[int, int, int]] = {}
    for r in state.to_pylist():
        key = (r["bucket"], r["total_buckets"], r["level"])
        n, size, rows = out.get(key, (0, 0, 0))
        out[key] = (n + r["files"], size + r["bytes"], rows + r["rows"])
    return out


def counts(window: Window, snapshot: int) -> dict[str, int]:
    rows = window.flows.filter(pc.equal(window.flows["snapshot"], snapshot)).to_pylist()
    return {
        "added": sum(r["files"] for r in rows if r["change"] == 1 and r["class"] != "changelog"),
        "removed": sum(r["files"] for r in rows if r["change"] == -1),
        "changelog": sum(r["files"] for r in rows if r["class"] == "changelog"),
        "moved": sum(r["files"] for r in rows if r["class"] == "upgrade" and r["change"] == 1),
    }
