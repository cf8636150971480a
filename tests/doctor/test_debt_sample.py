# SPDX-License-Identifier: Apache-2.0
"""A sample sees what Java's own count and a count without shoal see, changes nothing, and survives expiry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import independent_count as independent
import pytest

from shoal.doctor.sample import (
    CHANGELOG,
    FLUSH,
    REMOVAL,
    REWRITE,
    UPGRADE,
    Count,
    Sample,
    live_entries,
    sample,
)
from shoal.errors import Corrupt
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata


def reader(table: Path) -> Metadata:
    return Metadata(LocalStore(table), Cache())


def classes(taken: Sample, snapshot: int) -> Counter[str]:
    flows = taken.flows().to_pylist()
    out: Counter[str] = Counter()
    for f in flows:
        if f["snapshot"] == snapshot:
            out[f["class"]] += f["files"]
    return out


def test_every_snapshot_has_the_classes_of_an_independent_count(table: Path, metadata: Metadata) -> None:
    taken = sample(metadata)
    wanted = independent.per_snapshot(table)
    assert [s.snapshot.id for s in taken.steps] == [w["id"] for w in wanted]
    for step, want in zip(taken.steps, wanted):
        seen = classes(taken, step.snapshot.id)
        for cls in (FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG):
            assert seen[cls] == want[cls], (step.snapshot.id, cls)
        assert step.live_listed == sum(want["live"].values())


def test_identity_holds_at_every_snapshot(metadata: Metadata) -> None:
    taken = sample(metadata)
    assert taken.steps and not taken.broken and not taken.gaps and taken.complete
    live = live_entries(metadata, taken)
    assert live is not None and live.num_rows == taken.steps[-1].live_listed


def test_metadata_files_of_each_snapshot_have_their_size_on_disk(table: Path, metadata: Metadata) -> None:
    taken = sample(metadata)
    for step in taken.steps:
        snap = step.snapshot
        lists = [snap.base_manifest_list, snap.delta_manifest_list, snap.changelog_manifest_list]
        written = sum((step.wrote[k] for k in ("base-list", "delta-list", "changelog-list")), Count())
        names = [n for n in lists if n]
        assert written == Count(len(names), sum((table / "manifest" / n).stat().st_size for n in names))
        assert step.wrote["snapshot"].bytes == (table / "snapshot" / f"snapshot-{snap.id}").stat().st_size


def test_a_sample_since_sees_only_later_snapshots_and_knows_the_manifests_before(debt_db: Path) -> None:
    whole, late = sample(reader(debt_db / "ckpt_1s")), sample(reader(debt_db / "ckpt_1s"), since=60)
    assert [s.snapshot.id for s in late.steps] == list(range(61, 82))
    assert late.steps == whole.steps[60:]
    assert not late.complete and not late.inherited
    assert not sample(reader(debt_db / "ckpt_1s"), since=81).steps


def test_no_store_call_changes_anything(table: Path) -> None:
    store = CountingStore(LocalStore(table))
    metadata = Metadata(store, Cache())
    taken = sample(metadata)
    live_entries(metadata, taken)
    assert store.mutations == 0
    assert taken.requests > 0 and taken.bytes_read > 0


def test_an_empty_table_is_an_empty_sample() -> None:
    taken = sample(Metadata(MemoryStore("empty"), Cache()))
    assert taken.newest is None and not taken.steps and not taken.gaps and taken.complete
    assert taken.flows().num_rows == 0


def test_snapshots_that_expired_before_the_sample_are_a_gap(own_table: Path) -> None:
    for i in range(1, 11):
        (own_table / "snapshot" / f"snapshot-{i}").unlink()
    taken = sample(reader(own_table), since=5)
    assert [(g.first, g.last, g.kind) for g in taken.gaps] == [(6, 10, "expired")]
    assert taken.steps[0].snapshot.id == 11 and not taken.complete and not taken.broken


def test_old_manifests_of_the_first_snapshot_are_inherited_not_made(own_table: Path) -> None:
    for i in range(1, 11):
        (own_table / "snapshot" / f"snapshot-{i}").unlink()
    taken = sample(reader(own_table))
    assert taken.complete
    assert taken.steps[0].wrote["merged-manifest"] == Count()
    assert taken.inherited["merged-manifest"].files == taken.steps[0].manifests.files - 1


class Expiring(CountingStore):
    """A store whose earliest snapshots expire while the walk reads the third."""

    def __init__(self, table: Path) -> None:
        super().__init__(LocalStore(table))
        self.table = table

    def read(self, path: str) -> bytes:
        if path == "snapshot/snapshot-3" and (self.table / path).exists():
            for i in range(1, 6):
                (self.table / "snapshot" / f"snapshot-{i}").unlink()
        return super().read(path)


def test_snapshots_that_expire_during_the_walk_are_gaps(own_table: Path) -> None:
    taken = sample(Metadata(Expiring(own_table), Cache()))
    assert [(g.first, g.kind) for g in taken.gaps] == [(3, "expired"), (4, "expired"), (5, "expired")]
    assert [s.snapshot.id for s in taken.steps] == [1, 2, *range(6, 30)]
    assert not taken.broken


def test_a_vanished_manifest_of_a_retained_snapshot_is_a_missing_gap(own_table: Path) -> None:
    snap = independent.snapshots(own_table)[7]
    name = independent.avro(own_table / "manifest" / snap["deltaManifestList"])[0]["_FILE_NAME"]
    (own_table / "manifest" / name).unlink()
    metadata = reader(own_table)
    taken = sample(metadata)
    assert [(g.first, g.kind) for g in taken.gaps] == [(8, "missing")]
    assert name in taken.gaps[0].what
    assert len(taken.steps) == 28 and not taken.broken
    assert live_entries(metadata, taken) is None  # the newest snapshot still needs it


def test_a_damaged_manifest_is_corrupt(own_table: Path) -> None:
    snap = independent.snapshots(own_table)[7]
    name = independent.avro(own_table / "manifest" / snap["deltaManifestList"])[0]["_FILE_NAME"]
    path = own_table / "manifest" / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Corrupt, match=name):
        sample(reader(own_table))


def test_manifest_lists_that_do_not_add_up_are_named(own_table: Path) -> None:
    from shoal.format.manifest import decode_list, encode_list

    snap = independent.snapshots(own_table)[9]
    path = own_table / "manifest" / snap["baseManifestList"]
    path.write_bytes(encode_list(decode_list(path.read_bytes(), "list")[1:], "zstd"))
    taken = sample(reader(own_table))
    # snapshot 10 lost the base's first manifest, snapshot 11 has it back
    assert [s.snapshot.id for s in taken.broken] == [10, 11]
