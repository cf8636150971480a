# SPDX-License-Identifier: Apache-2.0
"""The debt of the golden tables: equal to Java's numbers, to the files on disk, and to a replay without shoal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

import independent_count as independent
import pytest
from toy import File, Toy

from shoal.doctor.debt import TOP, VERSION, debt, measure
from shoal.doctor.physical import physical
from shoal.doctor.take import take, take_named
from shoal.doctor.window import Count, Window
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata

# From Java's $files (level: files, bytes, rows), $snapshots (by kind), $manifests and $buckets (files, bytes).
JAVA = {
    "ckpt_1s": {
        "levels": {2: (1, 1472, 5), 3: (1, 1565, 9), 4: (3, 4637, 25), 5: (4, 9843, 400)},
        "snapshots": {"APPEND": 41, "COMPACT": 40},
        "manifests": (22, 54699),
        "buckets": {0: (1, 2544), 1: (4, 7029), 2: (2, 3994), 3: (2, 3950)},
    },
    "ckpt_3s": {
        "levels": {4: (2, 3497, 39), 5: (4, 9830, 400)},
        "snapshots": {"APPEND": 15, "COMPACT": 14},
        "manifests": (28, 69301),
        "buckets": {0: (1, 2544), 1: (1, 2417), 2: (2, 4205), 3: (2, 4161)},
    },
    "ckpt_6s": {
        "levels": {3: (2, 3497, 39), 4: (4, 7718, 132), 5: (4, 9647, 400)},
        "snapshots": {"APPEND": 7, "COMPACT": 7},
        "manifests": (15, 36410),
        "buckets": {0: (2, 4395), 1: (2, 4225), 2: (3, 6095), 3: (3, 6147)},
    },
    "ckpt_1s_append": {
        "levels": {0: (12, 15150, 1200)},
        "snapshots": {"APPEND": 41, "COMPACT": 3},
        "manifests": (14, 30991),
        "buckets": {0: (12, 15150)},
    },
}


def test_live_files_equal_javas_tables(table: Path, metadata: Metadata) -> None:
    taken = take(metadata)
    found, java = debt(taken), JAVA[table.name]
    assert found.live is not None and found.buckets is not None
    assert {k: (c.files, c.bytes, c.rows) for k, c in found.live.levels.items()} == java["levels"]
    assert found.snapshots == java["snapshots"]
    # Java's table shows the changelog manifests of the newest snapshot too.
    manifests = found.live.metadata["manifest"] + taken.steps[-1].wrote["changelog-manifest"]
    assert (manifests.files, manifests.bytes) == java["manifests"]
    assert {b.bucket: (b.files, b.bytes) for b in found.buckets.top} == java["buckets"]


def test_files_made_are_the_files_on_disk_while_nothing_expired(table: Path, metadata: Metadata) -> None:
    found, disk = measure(metadata), independent.on_disk(table)
    assert found.complete and found.live is not None and found.retained is not None
    made = {k: c.files for k, c in found.made.items()}
    assert made["level0"] + made["compacted"] == disk["data"]
    for kind in ("changelog", "manifest", "manifest_list", "snapshot"):
        assert made[kind] == disk[kind], kind
    assert made["sidecar"] == made["index_manifest"] == 0
    assert found.made["level0"].bytes + found.made["compacted"].bytes == independent.bytes_on_disk(table, "data-")
    assert found.made["changelog"].bytes == independent.bytes_on_disk(table, "changelog-")
    assert found.made["manifest_list"].bytes == independent.bytes_on_disk(table, "manifest-list-")
    assert found.made["snapshot"].bytes == independent.bytes_on_disk(table, "snapshot-")


@pytest.mark.parametrize("expire", [0, 9, 10])
def test_live_and_retained_are_the_files_on_disk(debt_db: Path, own_table: Path, expire: int) -> None:
    """Also after an expiry as Java does it: files removed in snapshots up to the new earliest one are deleted."""
    _expire(own_table, expire)
    found, disk = measure(Metadata(LocalStore(own_table), Cache())), independent.on_disk(own_table)
    assert found.complete and found.live is not None and found.retained is not None and found.first == expire + 1
    assert found.live.data.files + found.retained["data"].files == disk["data"]
    assert found.retained["changelog"].files == disk["changelog"]
    for kind in ("manifest", "manifest_list", "snapshot"):
        assert found.live.metadata[kind].files + found.retained[kind].files == disk[kind], kind
    sizes = found.live.data.bytes + found.retained["data"].bytes
    assert sizes == independent.bytes_on_disk(own_table, "data-")


def _expire(table: Path, count: int) -> None:
    """Delete the `count` oldest snapshots and what only they hold."""
    if not count:
        return
    snaps = independent.snapshots(table)
    kept = snaps[count:]
    lists = {s.get(f"{p}ManifestList") for s in kept for p in ("base", "delta", "changelog")} - {None}
    named = lists | {m["_FILE_NAME"] for n in lists for m in independent.avro(table / "manifest" / n)}
    gone: set[str] = set()
    for snap in snaps[1 : count + 1]:
        delta = independent.entries(table, snap, "delta")
        added = {e["_FILE"]["_FILE_NAME"] for e in delta if e["_KIND"] == 0}
        gone |= {e["_FILE"]["_FILE_NAME"] for e in delta if e["_KIND"] == 1} - added
    for snap in snaps[:count]:
        gone |= {e["_FILE"]["_FILE_NAME"] for e in independent.entries(table, snap, "changelog")}
        gone.add(f"snapshot-{snap['id']}")
    gone |= {p.name for p in (table / "manifest").iterdir()} - named
    for path in list(table.rglob("*")):
        if path.name in gone:
            path.unlink()


def test_write_amplification_and_flush_size_equal_a_recount(table: Path, metadata: Metadata) -> None:
    found, wanted = measure(metadata), independent.per_snapshot(table)
    sizes = [size for w in wanted for size in w["flush_sizes"]]
    flushed, rewritten = sum(sizes), sum(w["rewrite_bytes"] for w in wanted)
    assert found.write_amplification == pytest.approx((flushed + rewritten) / flushed)
    assert found.flush_file_bytes == median(sizes)
    assert found.upgraded.files == sum(w["upgrade"] for w in wanted)
    assert found.removed.files == sum(w["removal"] for w in wanted)


def test_buckets_over_time_equal_a_replay(table: Path, metadata: Metadata) -> None:
    found, wanted = measure(metadata), independent.per_snapshot(table)
    assert found.buckets is not None and found.live is not None
    for b in found.buckets.top:
        files = [sum(n for (bucket, _), n in w["live"].items() if bucket == b.bucket) for w in wanted]
        runs = [independent.runs(w["live"], b.bucket) for w in wanted]
        assert (b.mean_files, b.max_files) == (pytest.approx(sum(files) / len(files)), max(files))
        assert (b.mean_runs, b.max_runs, b.runs) == (pytest.approx(sum(runs) / len(runs)), max(runs), runs[-1])
    live = [sum(w["live"].values()) for w in wanted]
    assert found.live.mean_files == pytest.approx(sum(live) / len(live)) and found.live.max_files == max(live)


@pytest.mark.parametrize(("name", "commits", "interval"), [("ckpt_1s", 41, 1), ("ckpt_3s", 15, 3), ("ckpt_6s", 7, 6)])
def test_the_checkpoint_interval_is_the_clock_that_java_ran_with(
    debt_db: Path, name: str, commits: int, interval: int
) -> None:
    found = measure(Metadata(LocalStore(debt_db / name), Cache()))
    assert found.commits == commits
    assert found.interval_s == pytest.approx(interval, rel=0.01)
    assert found.commits_per_minute == pytest.approx(60 / interval, rel=0.08)
    assert found.files_per_minute is not None and found.covered_minutes is not None
    assert found.files_per_minute * found.covered_minutes == pytest.approx(found.files_made.files)


def test_a_listing_counts_the_same_files_by_name(table: Path, metadata: Metadata) -> None:
    window, files = take_named(metadata)
    found, disk = debt(window), independent.on_disk(table)
    store = CountingStore(LocalStore(table))
    listed, known = physical(store), physical(store, window.schema, files)
    assert store.mutations == 0
    assert listed.kinds["data"].files == disk["data"] and listed.files.files == sum(disk.values())
    assert known.kinds["data"] == Count()
    for kind in ("level0", "compacted", "changelog", "manifest", "manifest_list"):
        made = found.made[kind]
        assert (known.kinds[kind].files, known.kinds[kind].bytes) == (made.files, made.bytes), kind
    assert known.kinds["schema"].files == 1 and known.kinds["hint"].files == 2 and known.kinds["other"].files == 0


def test_the_read_only_table_directory_is_enough(own_table: Path) -> None:
    for path in [own_table, *own_table.rglob("*")]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    try:
        before = {p: p.stat().st_mtime_ns for p in own_table.rglob("*")}
        assert measure(Metadata(LocalStore(own_table), Cache())).identity.holds
        assert {p: p.stat().st_mtime_ns for p in own_table.rglob("*")} == before
    finally:
        for path in [own_table, *own_table.rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)


def test_a_window_that_misses_retained_snapshots_has_no_retained_count(debt_db: Path) -> None:
    found = measure(Metadata(LocalStore(debt_db / "ckpt_1s"), Cache()), since=60)
    assert found.retained is None and found.live is not None and found.live.data.files == 9
    assert found.buckets is not None and found.buckets.count == 4
    assert found.first == 61 and found.identity.holds


def test_the_dict_is_json_with_a_version_and_stable_keys(metadata: Metadata) -> None:
    out = json.loads(json.dumps(measure(metadata).to_dict()))
    assert out["version"] == VERSION
    assert list(out) == [
        "version", "table", "window", "snapshots", "commits", "checkpoint_interval_s", "made", "upgraded", "removed",
        "live", "retained", "files_per_minute", "files_per_commit", "commits_per_minute", "active_buckets_per_commit",
        "flush_files_per_active_bucket", "buckets", "flush_bytes", "rewrite_bytes", "write_amplification",
        "flush_file_bytes_median", "identity", "gaps", "limits", "requests", "bytes_read",
    ]  # fmt: skip
    assert out["identity"]["holds"] is True
    assert out["made"]["total"]["files"] == sum(c["files"] for k, c in out["made"].items() if k != "total")


def synthetic(buckets: int, level0: int, options: dict[str, str] | None = None) -> Window:
    """A window of `level0` commits, each with one new file in each of `buckets` buckets."""
    toy = Toy(options)
    for i in range(level0):
        toy.commit(*[("flush", File(b, 1000)) for b in range(buckets)], at=10_000 * i)
    return toy.window()


def test_runs_climb_in_a_table_that_nobody_compacts() -> None:
    found = debt(synthetic(buckets=30, level0=9))
    assert found.buckets is not None
    assert (found.buckets.count, found.buckets.at_trigger, found.buckets.at_stop) == (30, 30, 30)
    assert found.buckets.mean_runs == pytest.approx(5.0) and found.buckets.max_runs == 9
    assert len(found.buckets.top) == TOP and found.buckets.excess == 30 * 8
    assert found.active_buckets == 30 and found.files_per_active_bucket == 1
    assert found.interval_s == 10 and found.commits_per_minute == pytest.approx(6)
