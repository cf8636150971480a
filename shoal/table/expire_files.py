# SPDX-License-Identifier: Apache-2.0
"""Which files go with snapshots and decoupled changelogs: data, changelog, index, manifests, lists, statistics.

Agrees with: FileDeletionBase, SnapshotDeletion, ChangelogDeletion (2.0.0). Invariant: a data file goes only when a
commit that goes with it deleted it, no later commit added it again, and nobody in the `Guard` needs it. Manifests that
are gone are taken for the work of an expiry that died: it had deleted their data files before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import Corrupt
from shoal.format import paths
from shoal.format.compacted_changelog import slice_of
from shoal.format.datafile import ADD, APPEND, COMPACT
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import Snapshot
from shoal.format.statistics import FOLDER as STATISTICS
from shoal.store.base import Store
from shoal.table.expire import Plan
from shoal.table.expire_guard import Guard, added_names, changelog_names, gone, metadata_names

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.metadata import Metadata
    from shoal.table.table import Table


class File(NamedTuple):
    """One file to delete."""

    store: Store
    path: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Doomed:
    """Files in the order they go, so that what is left after a death can still be found through the lists."""

    data: tuple[File, ...] = ()  # data files with what lies beside them, changelog files
    manifests: tuple[File, ...] = ()  # manifests and index files
    lists: tuple[File, ...] = ()  # manifest lists, index manifests, statistics
    buckets: tuple[tuple[bytes, int], ...] = ()  # partition and bucket of the data files
    resumed: tuple[int, ...] = ()  # ids whose manifests were gone already

    @property
    def files(self) -> tuple[File, ...]:
        return (*self.data, *self.manifests, *self.lists)


def of_snapshots(
    table: Table, line: Mapping[int, Snapshot], plan: Plan, guard: Guard, decoupled: bool, again: Mapping[int, Snapshot]
) -> Doomed:
    """The files that go with the snapshots of `plan`; `again` are later commits that may have added files again."""
    if not plan.ids:
        return Doomed()
    meta, produces = table.metadata, table.options.changelog_producer != "none"
    out = _Collector(table, guard, skip_appended=decoupled and not produces)
    # what a commit deletes is not in the snapshot it makes: files of (begin, end]
    for i in range(plan.begin + 1, plan.end + 1):
        out.delta(line[i], must=i == plan.end)
    out.drop_added(again.values())
    if not decoupled:
        for i in plan.ids:
            out.changelog(line[i])
    out.skip |= metadata_names(meta, line[plan.end]) | changelog_names(meta, line[plan.end])
    for i, snap in line.items():  # an overwrite may go back to these
        if i >= plan.end:
            out.skip |= {n for n in (snap.index_manifest, snap.statistics) if n is not None}
    for snap in again.values():
        out.skip |= metadata_names(meta, snap)
    for i in plan.ids:
        snap = line[i]
        if not decoupled or produces:
            # without a producer the lists are what is left of the changelog
            out.list(snap.base_manifest_list, snap.base_manifest_list_size)
            out.list(snap.delta_manifest_list, snap.delta_manifest_list_size)
        if not decoupled and snap.changelog_manifest_list is not None:
            out.list(snap.changelog_manifest_list, snap.changelog_manifest_list_size)
        out.index(snap)
        out.statistics(snap)
    return out.doomed()


def of_changelogs(
    table: Table, kept: Mapping[int, Snapshot], plan: Plan, guard: Guard, first: Snapshot, again: Mapping[int, Snapshot]
) -> Doomed:
    """The files that go with the changelogs of `plan`; `first` is the oldest snapshot that stays."""
    if not plan.ids:
        return Doomed()
    meta = table.metadata
    out = _Collector(table, guard)
    going = [kept[i] for i in plan.ids if i in kept]
    for snap in going:
        if snap.changelog_manifest_list is None:
            out.delta(snap, must=False)
    out.drop_added(again.values())
    for snap in going:
        out.changelog(snap)
    out.skip |= metadata_names(meta, first) | changelog_names(meta, first)
    end = kept[plan.end]
    for name, size in (
        (end.base_manifest_list, end.base_manifest_list_size), (end.delta_manifest_list, end.delta_manifest_list_size),
        (end.changelog_manifest_list, end.changelog_manifest_list_size),
    ):  # fmt: skip
        # of a snapshot with a producer only the changelog list is left
        out.skip |= {name, *(m.file_name for m in _metas(meta, name, size) or ())} if name else set()
    for snap in going:
        if snap.changelog_manifest_list is not None:
            out.list(snap.changelog_manifest_list, snap.changelog_manifest_list_size)
        else:
            out.list(snap.delta_manifest_list, snap.delta_manifest_list_size)
            out.list(snap.base_manifest_list, snap.base_manifest_list_size)
    return out.doomed()


def overwrites(line: Mapping[int, Snapshot], after: int) -> dict[int, Snapshot]:
    """Commits after `after` that may have added a file again: no other kind gives a deleted name back."""
    return {i: s for i, s in line.items() if i > after and s.commit_kind == "OVERWRITE"}


class _Row(NamedTuple):
    """What is needed of one entry to find its files."""

    partition: bytes
    bucket: int
    name: str
    extra: tuple[str, ...]
    external: str | None
    size: int


class _Collector:
    """Gathers the files of one expiry. `skip` are names of metadata files that stay, or are gathered already."""

    def __init__(self, table: Table, guard: Guard, skip_appended: bool = False) -> None:
        self.table, self.meta, self.guard = table, table.metadata, guard
        self.skip = set(guard.names)
        self._skip_appended = skip_appended
        self._deleted: dict[str, _Row] = {}
        self._changelog: dict[str, _Row] = {}
        self._manifests: list[File] = []
        self._lists: list[File] = []
        self._resumed: list[int] = []

    # ---- data files

    def delta(self, snap: Snapshot, must: bool) -> None:
        """Files that the commit deleted. One that it also added was only moved to another level."""
        metas = _metas(self.meta, snap.delta_manifest_list, snap.delta_manifest_list_size, must)
        tables = None if metas is None else self._entries(metas, must)
        if tables is None:  # half of a commit must not be looked at: a file moved to another level would look deleted
            self._resumed.append(snap.id)
            return
        added: set[str] = set()
        deleted: dict[str, _Row] = {}
        for entries in tables:
            added.update(entries.column("file_name").filter(_is(entries, ADD)).to_pylist())
            for row, source in _rows(entries, added=False):
                if not self._skip_appended or (APPEND if source is None else source) == COMPACT:
                    deleted[row.name] = row
        self._deleted.update((n, r) for n, r in deleted.items() if n not in added)
        for name in added:
            self._deleted.pop(name, None)

    def drop_added(self, snaps: Iterable[Snapshot]) -> None:
        """Later commits that added files again keep them."""
        for snap in snaps:
            try:
                names = added_names(self.meta, snap)
            except Corrupt as err:
                if not gone(err) or self._of_changelog_only(snap):
                    raise
                continue
            for name in names.to_pylist() if self._deleted else ():
                self._deleted.pop(name, None)

    def _of_changelog_only(self, snap: Snapshot) -> bool:
        return self.meta.exists(paths.snapshot(snap.id))

    def changelog(self, snap: Snapshot) -> None:
        """The changelog files that the commit added."""
        if snap.changelog_manifest_list is None:
            return
        for meta in _metas(self.meta, snap.changelog_manifest_list, snap.changelog_manifest_list_size) or ():
            for entries in self._entries([meta], must=False) or ():
                self._changelog.update((r.name, r) for r, _ in _rows(entries, added=True))

    def _entries(self, metas: Iterable[ManifestMeta], must: bool) -> list[pa.RecordBatch] | None:
        try:
            return [self.meta.entries(m) for m in metas]
        except Corrupt as err:
            if must or not gone(err):
                raise
            return None

    # ---- metadata files

    def list(self, name: str, size: int | None) -> None:
        """A manifest list and its manifests."""
        for meta in _metas(self.meta, name, size) or ():
            if self._take(meta.file_name):
                self._manifests.append(File(self.table.store, paths.manifest(meta.file_name), meta.file_size))
        if self._take(name):
            self._lists.append(File(self.table.store, paths.manifest(name), size or 0))

    def index(self, snap: Snapshot) -> None:
        """The index manifest and its index files."""
        name = snap.index_manifest
        if name is None:
            return
        try:
            entries = self.meta.index_entries(name)
        except Corrupt as err:
            if not gone(err):
                raise
            return
        for e in entries:
            if self._take(e.file_name):
                at = self.table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
                self._manifests.append(File(*at, e.file_size))
        if self._take(name):
            self._lists.append(File(self.table.store, paths.manifest(name)))

    def statistics(self, snap: Snapshot) -> None:
        if snap.statistics is not None and self._take(snap.statistics):
            self._lists.append(File(self.table.store, f"{STATISTICS}/{snap.statistics}"))

    def _take(self, name: str) -> bool:
        """Whether a file goes, and is not gathered yet."""
        if name in self.skip:
            return False
        self.skip.add(name)
        return True

    # ---- all of them

    def doomed(self) -> Doomed:
        rows = self._deleted | self._changelog
        held = self.guard.held(list(rows))
        going = [r for n, r in rows.items() if n not in held]
        data = self._shared_once(going, [rows[n] for n in held])
        buckets = dict.fromkeys((r.partition, r.bucket) for r in going)
        return Doomed(
            tuple(data), tuple(self._manifests), tuple(self._lists), tuple(buckets), tuple(sorted(set(self._resumed)))
        )

    def _shared_once(self, going: Iterable[_Row], staying: Iterable[_Row]) -> Iterable[File]:
        """Their files; one that changelog files share goes once, with all of them, and not while one of them stays."""
        kept = {next(self._places(r))[:2] for r in staying if slice_of(r.name) is not None}
        out: dict[tuple[Store, str], int] = {}
        for r in going:
            for store, path, size in self._places(r):
                if (store, path) not in kept:
                    out[store, path] = out.get((store, path), 0) + size
        return (File(*place, size) for place, size in out.items())

    def _places(self, row: _Row) -> Iterator[File]:
        folder, places = self.table.bucket_folder(row.partition, row.bucket), self.table.places
        yield File(*self.table.named_at(row.partition, row.bucket, row.name, row.external), row.size)
        # Java leaves what lies beside a changelog file; there is nothing beside one
        for name in row.extra:
            yield File(*places.beside(folder, name, row.external))


def _metas(meta: Metadata, name: str, size: int | None, must: bool = False) -> tuple[ManifestMeta, ...] | None:
    """The manifests of a list; None when it is gone and need not be there."""
    try:
        return meta.manifest_list(name, size)
    except Corrupt as err:
        if must or not gone(err):
            raise
        return None


def _is(entries: pa.RecordBatch, kind: int) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(entries.column("kind"), kind)


def _rows(entries: pa.RecordBatch, added: bool) -> Iterator[tuple[_Row, int | None]]:
    """(file, file source) of the ADD or of the DELETE entries. By the row: each becomes calls to the store anyway."""
    import pyarrow.compute as pc

    mask = _is(entries, ADD)
    names = ["partition", "bucket", "file_name", "extra_files", "external_path", "file_size", "file_source"]
    chosen = entries.select(names).filter(mask if added else pc.invert(mask))
    for p, b, n, extra, external, size, source in zip(*(column.to_pylist() for column in chosen.columns)):
        yield _Row(p, b, n, () if added else tuple(extra or ()), external, size), source
