# SPDX-License-Identifier: Apache-2.0
"""A look sees what a count without shoal sees, changes nothing, and survives expiry and damage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import independent_count as independent
import pytest
from made_tables import look, reader

from shoal.doctor.take import take, take_named
from shoal.doctor.window import CHANGELOG, FLUSH, REMOVAL, REWRITE, UPGRADE, Count
from shoal.errors import Corrupt
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata


def test_every_file_of_an_independent_count_is_named_with_its_class(table: Path, metadata: Metadata) -> None:
    window, files = take_named(metadata)
    wanted = independent.per_snapshot(table)
    assert [s.id for s in window.steps] == [w["id"] for w in wanted]
    rows = files.to_pylist()
    for step, want, snap in zip(window.steps, wanted, independent.snapshots(table), strict=True):
        here = [r for r in rows if r["snapshot"] == step.id]
        seen = Counter(r["class"] for r in here if (r["class"], r["change"]) != (UPGRADE, -1))
        for cls in (FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG):
            assert seen[cls] == want[cls], (step.id, cls)
        named = independent.entries(table, snap, "delta") + independent.entries(table, snap, "changelog")
        assert sorted(r["file_name"] for r in here) == sorted(e["_FILE"]["_FILE_NAME"] for e in named)
        assert step.live_files == sum(want["live"].values())


def test_a_debt_with_a_listing_walks_the_snapshots_once(debt_db: Path) -> None:
    from shoal.doctor.physical import physical

    store = CountingStore(LocalStore(debt_db / "ckpt_1s"))
    take(Metadata(store, Cache()))
    alone = store.calls.total()
    store = CountingStore(LocalStore(debt_db / "ckpt_1s"))
    window, files = take_named(Metadata(store, Cache()))
    physical(store, window.schema, files)
    assert store.calls.total() == alone + 1 and store.calls["list"] >= 1


def test_identity_holds_at_every_snapshot(metadata: Metadata) -> None:
    window = take(metadata)
    assert window.steps and all(s.identity_holds for s in window.steps) and not window.gaps and window.complete
    assert metadata.live(metadata.latest()).num_rows == window.steps[-1].live_files


def test_metadata_files_of_each_snapshot_have_their_size_on_disk(table: Path, metadata: Metadata) -> None:
    told = {s.id: s for s in take(metadata).steps}
    for snap in independent.snapshots(table):
        step = told[snap["id"]]
        names = [snap.get(f"{kind}ManifestList") for kind in ("base", "delta", "changelog")]
        names = [n for n in names if n]
        written = sum((step.wrote[k] for k in ("base-list", "delta-list", "changelog-list")), Count())
        assert written == Count(len(names), sum((table / "manifest" / n).stat().st_size for n in names))
        assert step.wrote["snapshot"].bytes == (table / "snapshot" / f"snapshot-{step.id}").stat().st_size


def test_a_look_since_an_id_knows_the_manifests_before(debt_db: Path) -> None:
    whole, late = look(reader(debt_db / "ckpt_1s")), look(reader(debt_db / "ckpt_1s"), since=60)
    assert late.steps == whole.steps[60:] and late.steps[0].id == 61
    assert not late.complete and not late.inherited


def test_no_store_call_changes_anything(table: Path) -> None:
    store = CountingStore(LocalStore(table))
    window = take(Metadata(store, Cache()))
    assert store.mutations == 0
    assert window.stock.requests > 0 and window.stock.bytes_read > 0


def test_an_empty_table_names_no_file() -> None:
    window, files = take_named(Metadata(MemoryStore("empty"), Cache()))
    assert not window.steps and not window.gaps and not files.num_rows


def test_snapshots_that_expired_before_a_look_are_a_gap(own_table: Path) -> None:
    for i in range(1, 11):
        (own_table / "snapshot" / f"snapshot-{i}").unlink()
    window = look(reader(own_table), since=5)
    assert [(g.first, g.last, g.kind) for g in window.gaps] == [(6, 10, "expired")]
    assert window.steps[0].id == 11 and all(s.identity_holds for s in window.steps)


def test_old_manifests_of_the_first_snapshot_are_inherited_not_made(own_table: Path) -> None:
    for i in range(1, 11):
        (own_table / "snapshot" / f"snapshot-{i}").unlink()
    window = look(reader(own_table))
    assert window.complete
    assert window.steps[0].wrote["merged-manifest"] == Count()
    assert window.inherited["merged-manifest"].files == window.steps[0].manifests.files - 1


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


def test_snapshots_that_expire_during_the_walk_are_a_gap(own_table: Path) -> None:
    window = look(Metadata(Expiring(own_table), Cache()))
    assert [(g.first, g.last, g.kind) for g in window.gaps] == [(3, 5, "expired")]
    assert [s.id for s in window.steps] == [1, 2, *range(6, 30)]
    assert all(s.identity_holds for s in window.steps)


def test_a_vanished_manifest_of_a_retained_snapshot_is_a_missing_gap(own_table: Path) -> None:
    snap = independent.snapshots(own_table)[7]
    name = independent.avro(own_table / "manifest" / snap["deltaManifestList"])[0]["_FILE_NAME"]
    (own_table / "manifest" / name).unlink()
    window = look(reader(own_table))
    assert [(g.first, g.kind) for g in window.gaps] == [(8, "missing")]
    assert name in window.gaps[0].what
    assert len(window.steps) == 28 and all(s.identity_holds for s in window.steps)
    assert window.start is None and [e.kind for e in window.events] == ["blind"]  # later snapshots still need it


def test_a_damaged_manifest_is_corrupt(own_table: Path) -> None:
    snap = independent.snapshots(own_table)[7]
    name = independent.avro(own_table / "manifest" / snap["deltaManifestList"])[0]["_FILE_NAME"]
    path = own_table / "manifest" / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Corrupt, match=name):
        look(reader(own_table))


def test_manifest_lists_that_do_not_add_up_are_named(own_table: Path) -> None:
    from shoal.format.manifest import decode_list, encode_list

    snap = independent.snapshots(own_table)[9]
    path = own_table / "manifest" / snap["baseManifestList"]
    path.write_bytes(encode_list(decode_list(path.read_bytes(), "list")[1:], "zstd"))
    window = look(reader(own_table))
    # snapshot 10 lost the base's first manifest, snapshot 11 has it back
    assert [s.id for s in window.steps if not s.identity_holds] == [10, 11]
