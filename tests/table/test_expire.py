# SPDX-License-Identifier: Apache-2.0
"""Expiry: the same snapshots and the same files as Java leaves, and nothing at all where something is in doubt.

The truth of `expire.tar.xz` is Java's: tables of random histories before `CALL sys.expire_snapshots`, or before three
commits' upkeep with decoupled changelogs, and the files it removed and made (data files are empty here).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expire_model import HOUR, START, build, copy, files, lake, needed_of, open_table, rows, tag, write

import shoal
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.snapshot import Snapshot
from shoal.options import Options
from shoal.store.branch import BranchStore
from shoal.store.memory import MemoryStore
from shoal.table import consumers, refs
from shoal.table.expire import Keep, plan_changelogs, plan_snapshots, retention_of
from shoal.table.expire_guard import added_names, changelog_names, live_names, metadata_names
from shoal.table.expire_run import expire, expire_consumers
from shoal.table.metadata import Metadata
from shoal.table.staged import Committed
from shoal.table.table import Table
from shoal.table.upkeep import Keeper

# ---- which snapshots -------------------------------------------------------------------------------------

AGE = 1_000
SCHEMA_ONE = pa.schema([("k", pa.int32())])


def times(**at: int) -> Callable[[int], int | None]:
    """Snapshot i was made at i * 1000, unless `at` says otherwise."""
    return lambda i: at.get(f"s{i}", i * AGE)


@pytest.mark.parametrize(
    "earliest, latest, keep, before, consumer, end",
    [
        (1, 10, Keep(100, 1, 0, 50), 99_000, None, 10),  # all old: the newest stays
        (1, 10, Keep(100, 3, 0, 50), 99_000, None, 8),
        (1, 10, Keep(100, 10, 0, 50), 99_000, None, 1),
        (1, 10, Keep(100, 11, 0, 50), 99_000, None, 1),
        (1, 10, Keep(100, 1, 0, 4), 99_000, None, 5),  # the limit
        (1, 10, Keep(100, 1, 0, 0), 99_000, None, 1),
        (1, 10, Keep(100, 1, 0, 50), 6_000, None, 5),  # snapshot 6 is not older than 6000, so 5 stays
        (1, 10, Keep(100, 1, 0, 50), 6_001, None, 6),
        (1, 10, Keep(4, 1, 0, 50), 0, None, 7),  # beyond the maximum whatever their age
        (1, 10, Keep(4, 2, 0, 3), 0, None, 4),  # but not past the limit
        (1, 10, Keep(4, 1, 0, 50), 0, 3, 3),  # nor past a consumer
        (1, 10, Keep(100, 1, 0, 50), 99_000, 4, 4),
        (5, 10, Keep(100, 1, 0, 50), 99_000, 2, 5),  # the consumer is behind the oldest
        (5, 5, Keep(1, 1, 0, 50), 99_000, None, 5),
    ],
)
def test_snapshots_that_go(earliest: int, latest: int, keep: Keep, before: int, consumer: int | None, end: int) -> None:
    plan = plan_snapshots(earliest, latest, times(), keep, before, consumer)
    assert (plan.begin, plan.end) == (earliest, end)


def test_a_snapshot_that_is_gone_does_not_stop_the_search() -> None:
    gone = lambda i: None if i in (3, 4) else i * AGE  # noqa: E731
    assert plan_snapshots(1, 10, gone, Keep(100, 1, 0, 50), 7_000).end == 6


@pytest.mark.parametrize(
    "earliest, last, keep, before, consumer, end",
    [
        (1, 6, Keep(100, 1, 0, 50), 99_000, None, 6),  # the newest changelog stays
        (1, 6, Keep(100, 6, 0, 50), 99_000, None, 5),
        (1, 6, Keep(100, 1, 0, 50), 4_000, None, 4),  # by its own age, not by its successor's
        (1, 6, Keep(5, 1, 0, 50), 0, None, 6),
        (3, 6, Keep(8, 1, 0, 50), 0, None, 3),
        (1, 6, Keep(100, 1, 0, 2), 99_000, None, 3),
        (1, 6, Keep(100, 1, 0, 50), 99_000, 4, 4),
    ],
)
def test_changelogs_that_go(earliest: int, last: int, keep: Keep, before: int, consumer: int | None, end: int) -> None:
    plan = plan_changelogs(earliest, last, 10, times(), keep, before, consumer)
    assert (plan.begin, plan.end) == (earliest, end)


def test_a_plan_never_takes_what_its_rules_keep() -> None:
    rnd = random.Random(3)
    for _ in range(2000):
        low = rnd.randint(1, 5)
        high = low + rnd.randint(0, 12)
        least = rnd.randint(1, 6)
        keep = Keep(least + rnd.randint(0, 6), least, 0, rnd.choice([1, 3, 50]))
        before, consumer = rnd.randint(0, 20) * AGE, rnd.choice([None, rnd.randint(1, 20)])
        plan = plan_snapshots(low, high, times(), keep, before, consumer)
        for i in plan.ids:
            assert i <= high - least and i < low + keep.limit and (consumer is None or i < consumer)
            assert i <= high - keep.most or (i + 1) * AGE < before
        if plan.end <= min(high - least, low + keep.limit - 1, (consumer or 99) - 1):  # age alone kept the next one
            assert (plan.end + 1) * AGE >= before and plan.end > high - keep.most


def test_options_become_a_retention() -> None:
    plain = retention_of(Options({}, strict=True))
    assert plain.snapshots == plain.changelogs == Keep(2**31 - 1, 10, HOUR, 50)
    assert (plain.decoupled, plain.consumers_hold_snapshots) == (False, True)
    longer = Options({"changelog.time-retained": "2 h", "consumer.changelog-only": "true"}, strict=True)
    assert retention_of(longer).changelogs.time_ms == 2 * HOUR
    assert (retention_of(longer).decoupled, retention_of(longer).consumers_hold_snapshots) == (True, False)
    # a consumer lets snapshots go only where changelogs outlive them
    assert retention_of(Options({"consumer.changelog-only": "true"}, strict=True)).consumers_hold_snapshots
    with pytest.raises(shoal.BadRequest, match="must not be less"):
        retention_of(Options({}, strict=True), retain_max=3, retain_min=4)
    with pytest.raises(shoal.BadRequest, match="not less than 1"):
        retention_of(Options({}, strict=True), retain_min=0)


# ---- against Java ----------------------------------------------------------------------------------------

TRUTH_NAMES = [
    "s1.t0001", "s1.t0009", "s1.t0022", "s1.t0054", "s1.t0069", "s1.t0075", "s2.t0021", "s2.t0024", "s2.t0076",
    "s2.t0089", "s3.t0034", "s3.t0047", "s3.t0059", "s3.t0080", "s4.t0009", "s4.t0025", "s4.t0122", "s4.t0123",
    "s4.t0127", "s5.t0007", "s5.t0013", "s5.t0053", "s5.t0097", "s5.t0110", "s5.t0117",
]  # fmt: skip
# Java does not look at branches: it removes files that a branch needs (changelogs of the snapshot a branch starts at;
# everything once the tag is gone, as in s1.t0009).
FOR_BRANCHES = {"s1.t0001", "s1.t0009", "s5.t0097"}
# A fast-forward left snapshots 1 and 2 behind an EARLIEST hint of 3; Java forgets them for ever.
FAST_FORWARD = "s3.t0080"


def tree(folder: Path) -> set[str]:
    return {os.path.relpath(os.path.join(at, n), folder) for at, _, names in os.walk(folder) for n in names}


def of_branches(table: Table) -> set[str]:
    """Names of all files that the branches of a table refer to."""
    out: set[str] = set()
    for name in refs.branch_names(table.store):
        meta = Metadata(BranchStore(table.store, name), table.metadata.cache)
        for i in meta.snapshot_ids():
            snap = meta.snapshot(i)
            out |= metadata_names(meta, snap) | changelog_names(meta, snap) | set(live_names(meta, snap).to_pylist())
            out |= {n for m in meta.changelog(snap) for n in meta.entries(m).column("file_name").to_pylist()}
    return out


@pytest.fixture(scope="module")
def truth(unpacked: Callable[[str], Path]) -> dict[str, Any]:
    return {t["table"]: t for t in json.loads((unpacked("expire") / "expire" / "truth.json").read_text())}


@pytest.mark.parametrize("name", TRUTH_NAMES)
def test_what_java_removes(name: str, truth: dict[str, Any], unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    java, (db, table) = truth[name], name.split(".")
    source = unpacked("expire") / "expire" / f"{db}.db" / table
    shutil.copytree(source, tmp_path / f"{db}.db" / table)
    opened = shoal.open(str(tmp_path)).table(name)
    opened.clock = ManualClock(java["now"])
    needs = of_branches(opened)
    if "call" in java:
        wanted = expire(opened, **java["call"], dry_run=True)
        assert tree(tmp_path / f"{db}.db" / table) == tree(source)
        assert expire(opened, **java["call"]).files == wanted.files
    for options in java.get("commits", ()):
        newest = opened.metadata.latest_id() or 0
        done = Keeper(opened.with_options(options)).after(Committed((newest,)), 1).upkeep
        assert done is not None and done.failure is None
    left, was = tree(tmp_path / f"{db}.db" / table), tree(source)
    expected = (was - set(java["removed"])) | set(java["made"])
    more = left - expected
    if name in FOR_BRANCHES:
        assert more and {os.path.basename(f) for f in more} <= needs
    elif name != FAST_FORWARD:
        assert not more
    missing = expected - left
    if name == FAST_FORWARD:
        assert "snapshot/snapshot-2" in missing
        assert not {os.path.basename(f) for f in missing} & needs
    else:
        assert not missing
    hint = tmp_path / f"{db}.db" / table / "snapshot" / "EARLIEST"
    assert (hint.read_text() if hint.exists() else None) == java["hint"]


def test_golden_decoupled_changelogs(golden: Callable[[str], Path], tmp_path: Path) -> None:
    source = golden("changelog") / "changelog.db" / "decoupled"
    shutil.copytree(source, tmp_path / "changelog.db" / "decoupled")
    table = shoal.open(str(tmp_path)).table("changelog.decoupled")
    assert table.metadata.snapshot_ids() == [7]
    # Java expired at its last commit: there is nothing left to do
    done = Keeper(table).after(Committed((7,)), 1).upkeep
    assert done is not None and done.expired is not None and done.failure is None
    assert not done.expired.snapshots and not done.expired.changelogs
    assert tree(tmp_path / "changelog.db" / "decoupled") == tree(source)
    whole = [(c.snapshot, c.rows.to_pylist(), c.kinds.to_pylist()) for c in table.follow(start=3, until="latest")]
    assert [i for i, _, _ in whole] == [3, 4, 5, 7]  # 6 is a compaction
    # keeping three: changelogs 3 and 4 go, what follows reads the same
    fewer = table.with_options({"changelog.num-retained.max": 3, "changelog.num-retained.min": 3})
    report = expire(fewer)
    assert (report.snapshots, report.changelogs) == ((), (3, 4))
    assert report.data_files == 2
    again = shoal.open(str(tmp_path)).table("changelog.decoupled")
    assert [(c.snapshot, c.rows.to_pylist(), c.kinds.to_pylist()) for c in again.follow(start=5, until="latest")] == [
        c for c in whole if c[0] >= 5
    ]
    with pytest.raises(shoal.NotFound):
        list(again.follow(start=4, until="latest"))
    assert (tmp_path / "changelog.db" / "decoupled" / "changelog" / "EARLIEST").read_text() == "5"


# ---- what stays readable ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built() -> MemoryStore:
    return build()


def test_tags_and_branches_read_as_before(built: MemoryStore) -> None:
    store = copy(built)
    before = rows(store)
    report = expire(open_table(store), retain_min=2, retain_max=3)
    after = rows(store)
    assert report.snapshots == tuple(range(1, 12)) and set(after) == {k for k in before if k in after}
    assert {"d.t early", "d.t late", "d.t 12", "d.t 13", "d.t$branch_b early"} <= set(after)
    assert all(before[k] == v for k, v in after.items())
    assert store.read("d.db/t/snapshot/EARLIEST") == b"12"


def test_nothing_is_left_over_and_nothing_needed_is_gone(built: MemoryStore) -> None:
    store = copy(built)
    expire(open_table(store), retain_min=1, retain_max=1)
    wanted = set().union(*needed_of(store).values())
    have = {p for p in files(store) if "/manifest/" in p or "/bucket-0/" in p}
    assert wanted == have


def test_a_branch_that_lost_its_tag_keeps_its_files(built: MemoryStore) -> None:
    store = copy(built)
    before = rows(store)
    store.delete("d.db/t/tag/tag-early")
    expire(open_table(store), retain_min=1, retain_max=1)
    after = rows(store)
    branch = {k: v for k, v in before.items() if k.startswith("d.t$branch_b")}
    assert branch and {k: v for k, v in after.items() if k in branch} == branch


def test_a_branch_expires_without_touching_main(built: MemoryStore) -> None:
    store = copy(built)
    before = rows(store)
    table = lake(store, START + 24 * HOUR).table("d.t$branch_b")
    assert expire(table, retain_min=1, retain_max=1).snapshots
    after = rows(store)
    assert all(before[k] == v for k, v in after.items())
    assert {k for k in before if k.startswith("d.t ")} <= set(after)


def test_files_that_a_later_overwrite_added_again_stay(built: MemoryStore) -> None:
    """`rollback_to_as_latest` makes an OVERWRITE snapshot that adds old files again; Java's expiry then deletes them."""
    store = copy(built)
    table = open_table(store)
    meta = table.metadata
    from shoal.format import manifest

    old, newest = meta.snapshot(3), meta.snapshot(13)
    before = table.scan(snapshot=3).to_arrow().to_pylist()
    keep = set(live_names(meta, old).to_pylist()) - set(live_names(meta, newest).to_pylist())
    assert keep
    entries = list(manifest.entries_of(meta.live(old)))
    gone = [e._replace(kind=1) for e in manifest.entries_of(meta.live(newest))]
    from shoal.table.manifest_merge import coded, meta_of

    made = coded([*gone, *entries])
    data = manifest.write_entries([c.data for c in made], "zstd")
    store.put("d.db/t/manifest/manifest-again-0", data)
    again = meta_of("manifest-again-0", len(data), made, table.schema.partition_types)
    listed = manifest.encode_list([again], "zstd")
    store.put("d.db/t/manifest/manifest-list-again-1", listed)
    base = manifest.encode_list(meta.manifests(newest), "zstd")
    store.put("d.db/t/manifest/manifest-list-again-0", base)
    values = {f: getattr(newest, f) for f in newest.__slots__} | {
        "id": 14, "commit_kind": "OVERWRITE", "uuid": "again", "time_ms": newest.time_ms + 1,
        "base_manifest_list": "manifest-list-again-0", "base_manifest_list_size": len(base),
        "delta_manifest_list": "manifest-list-again-1", "delta_manifest_list_size": len(listed),
    }  # fmt: skip
    store.put("d.db/t/snapshot/snapshot-14", Snapshot(**values).encode())
    for retain in (4, 1):  # first with the overwrite among those that stay, then with it as the only one
        expire(open_table(store), retain_min=retain, retain_max=retain)
        assert open_table(store).scan(snapshot=14).to_arrow().to_pylist() == before
    assert keep <= set(added_names(meta, meta.snapshot(14)).to_pylist())


def test_a_consumer_holds_what_it_has_not_read(built: MemoryStore) -> None:
    store = copy(built)
    consumers.save(open_table(store).store, "bi", 5)
    report = expire(open_table(store), retain_min=1, retain_max=1)
    assert report.snapshots == (1, 2, 3, 4) and report.reason == "a consumer has not read snapshot 5"


def test_decoupled_changelogs_without_a_producer(built: MemoryStore) -> None:
    """The level-0 files of old commits are the changelog: they outlive the snapshots and go with the changelogs."""
    options: dict[str, object] = {
        "snapshot.num-retained.min": 2, "changelog.num-retained.max": 9, "changelog.num-retained.min": 9
    }  # fmt: skip
    store = copy(built)
    whole = changes(open_table(store, options), 5)
    assert [i for i, _ in whole] == [5, 6, 7, 8, 9, 10, 11, 12, 13] or len(whole) > 4
    report = expire(open_table(store, options), retain_min=2, retain_max=2)
    assert report.snapshots == tuple(range(1, 12)) and report.changelogs == (1, 2, 3, 4)
    left = sorted(f.path.rsplit("/", 1)[1] for f in store.list("d.db/t/changelog"))
    assert left == sorted(["EARLIEST", "LATEST", *(f"changelog-{i}" for i in range(5, 12))])
    assert (store.read("d.db/t/changelog/EARLIEST"), store.read("d.db/t/changelog/LATEST")) == (b"5", b"11")
    assert changes(open_table(store, options), 5) == whole


def changes(table: Table, start: int) -> list[tuple[int, list[Any]]]:
    return [(c.snapshot, c.to_batch().to_pylist()) for c in table.follow(start=start, until="latest")]


def test_write_only_tables_are_left_alone(built: MemoryStore) -> None:
    store = copy(built)
    before = files(store)
    assert Keeper(open_table(store)).after(Committed((13,)), 1) == Committed((13,))
    assert files(store) == before


def test_upkeep_runs_where_the_option_says(built: MemoryStore) -> None:
    store = copy(built)
    options: dict[str, object] = {
        "write-only": False, "snapshot.num-retained.min": 1, "snapshot.num-retained.max": 3,
        "snapshot.expire.execution-mode": "async",
    }  # fmt: skip
    scheduler = ManualScheduler()
    keeper = Keeper(open_table(store, options), scheduler)
    assert keeper.after(Committed((13,)), 1).upkeep is None and "d.db/t/snapshot/snapshot-1" in files(store)
    scheduler.run_pending()
    assert "d.db/t/snapshot/snapshot-1" not in files(store)
    done = keeper.after(Committed(), 2).upkeep
    assert done is not None and done.expired is not None and done.expired.snapshots == tuple(range(1, 13))


def test_the_hint_is_written_when_nothing_goes(built: MemoryStore) -> None:
    store = copy(built)
    store.delete("d.db/t/snapshot/EARLIEST")
    report = expire(open_table(store), retain_min=50, retain_max=50)
    assert str(report) == "d.t: nothing to expire, the newest 50 are kept"
    assert store.read("d.db/t/snapshot/EARLIEST") == b"1"


def test_idle_consumers_are_forgotten_by_the_stores_clock() -> None:
    clock = ManualClock(START)
    store = MemoryStore(clock=clock)
    lake(store).create_table(
        "d.t", SCHEMA_ONE, primary_key=["k"], options={"bucket": 1, "consumer.expiration-time": "1 h"}
    )
    table = open_table(store, now=START)
    consumers.save(table.store, "dead", 1)
    clock.sleep(7200)
    consumers.save(table.store, "alive", 1)
    store.put("d.db/t/snapshot/LATEST", b"1")
    # a machine a day ahead forgets the dead one and no other; one a day behind forgets nobody
    assert expire_consumers(open_table(store, now=START - 24 * HOUR)) == ()
    assert expire_consumers(open_table(store, now=START + 48 * HOUR), dry_run=True) == ("dead",)
    assert expire_consumers(open_table(store, now=START + 48 * HOUR)) == ("dead",)
    assert consumers.all_progress(table.store) == {"alive": 1}


def test_a_tag_of_yesterday_still_counts(built: MemoryStore) -> None:
    store = copy(built)
    tag(store, "third", 3)
    write(store, "d.t", 10, 11)
    before = rows(store)
    for least in (9, 5, 3, 1):  # bit by bit, as commits do it
        expire(open_table(store), retain_min=least, retain_max=least)
    after = rows(store)
    assert "d.t third" in after and all(before[k] == v for k, v in after.items())
