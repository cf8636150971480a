# SPDX-License-Identifier: Apache-2.0
"""Everything that the snapshots, tags and changelogs of a table and of its branches refer to, file by file."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.compacted_changelog import slice_of
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.store.base import Store
from shoal.table import history, refs
from shoal.table.table import Table

Files = dict[str, int | None]
"""Sizes by path; None where no metadata tells the size."""


def cold(store: Store, name: str = "d.t") -> Table:
    """The table as a process that knows nothing of it opens it."""
    return Lake(store, clock=ManualClock(), scheduler=ManualScheduler).table(name)


def named(table: Table, snapshots: int = 0, changelogs: int = 0, silent: Collection[int] = ()) -> Files:
    """Paths below the table's folder, with their sizes; reads every metadata file on the way.

    With numbers, only what so many newest snapshots and changelogs need: an expiry may be under way. `silent` are
    snapshots that came back from a tag, which keeps rows and no changes; so is the first one of a branch.
    """
    found: Files = {}
    branches = [(refs.branch(table, name), f"branch/branch-{name}/") for name in refs.branch_names(table.store)]
    for t, at in [(table, ""), *branches]:
        meta = t.metadata
        for i in meta.snapshot_ids()[-snapshots:]:
            found[f"{at}snapshot/snapshot-{i}"] = None
            first = bool(at) and i == meta.snapshot_ids()[0]
            _of(t, meta.snapshot(i), found, rows=True, changes=not first and i not in silent)
        newest = meta.latest_id() or 0
        for i in [i for i in history.changelog_ids(meta) if not changelogs or i > newest - changelogs]:
            found[f"{at}changelog/changelog-{i}"] = None
            snap = history.History(meta, decoupled=True).find(i)
            assert snap is not None
            _of(t, snap, found, rows=False, changes=True)
        for tag in refs.tags(meta):
            found[f"{at}tag/tag-{tag.name}"] = None
            _of(t, tag.snapshot, found, rows=True, changes=False)
    return found


def _of(t: Table, snap: Snapshot, found: Files, *, rows: bool, changes: bool) -> None:
    meta = t.metadata
    lists = []
    if rows:
        lists += [
            (snap.base_manifest_list, snap.base_manifest_list_size, meta.base(snap)),
            (snap.delta_manifest_list, snap.delta_manifest_list_size, meta.delta(snap)),
        ]
    if changes and snap.changelog_manifest_list is not None:
        lists.append((snap.changelog_manifest_list, snap.changelog_manifest_list_size, meta.changelog(snap)))
    for name, size, metas in lists:
        found[f"manifest/{name}"] = size
        for m in metas:
            found[f"manifest/{m.file_name}"] = m.file_size
    entries = entries_of(meta.live(snap)) if rows else []
    if changes and snap.changelog_manifest_list is not None:
        entries += entries_of(history.changelog_entries(meta, snap))
    for e in entries:
        _, path = t.file_at(e.partition, e.bucket, e.file)
        part = slice_of(e.file.file_name)
        found[path] = e.file.file_size if part is None else max(found.get(path) or 0, part.offset + part.length)
        for extra in e.file.extra_files:
            found[t.beside(e.partition, e.bucket, e.file, extra)[1]] = None
    if rows and snap.index_manifest is not None:
        found[f"manifest/{snap.index_manifest}"] = None
        for i in meta.index_entries(snap.index_manifest):
            found[t.index_at(i.partition, i.bucket, i.file_name, i.external_path)[1]] = i.file_size
    if rows and snap.statistics is not None:
        found[f"statistics/{snap.statistics}"] = None


def there(table: Table) -> Files:
    return {f.path: f.size for f in table.store.list("")}


def missing(table: Table, snapshots: int = 0, changelogs: int = 0, silent: Collection[int] = ()) -> Iterator[str]:
    """Files that are referred to and are not there, or are not what was written."""
    have = there(table)
    for path, size in named(table, snapshots, changelogs, silent).items():
        if path not in have:
            yield f"{path} is gone"
        elif size is not None and have[path] != size:
            yield f"{path} has {have[path]} bytes of {size}"


def left_over(table: Table) -> list[str]:
    """Files that nothing refers to, but for schemas, hints and marks."""
    known = named(table)
    return sorted(
        path
        for path in there(table)
        if path not in known
        and not path.rpartition("/")[2].startswith(("schema-", "EARLIEST", "LATEST"))
        and not path.startswith("consumer/")
    )
