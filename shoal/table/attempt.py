# SPDX-License-Identifier: Apache-2.0
"""The metadata files of a snapshot on its way: manifests, their lists, the index manifest.

A try that lost the race leaves its delta, changelog and index files for the next one, which uses again what still
fits. Agrees with: ManifestFile, ManifestList, CommitCleaner (2.0.0). Invariant: everything written here is either named
by the snapshot that won or deleted by `discard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import StorageFailed
from shoal.format import manifest, paths
from shoal.format.datafile import Entry
from shoal.format.index_manifest import IndexEntry, encode_index_manifest
from shoal.format.manifest import ManifestMeta
from shoal.store.base import add_file
from shoal.table.index_entries import combined
from shoal.table.manifest_merge import Coded, MergeOptions, coded, merge_manifests, meta_of

if TYPE_CHECKING:
    from shoal.table.table import Table

# Encoded entries of small manifests that a committer wrote, kept so that merging them decodes nothing.
_KEPT_ENTRIES = 200_000


class ManifestFiles:
    """Writes a committer's manifests under names of its own, and keeps what the small ones hold."""

    def __init__(self, table: Table, unique: str) -> None:
        self.table = table
        self._store = table.store
        manifest.check(table.options.manifest_compression, table.options.manifest_format)
        self._form = table.options.manifest_compression, table.options.manifest_format
        self._unique = unique
        self._numbers = {kind: count() for kind in ("manifest", "manifest-list", "index-manifest")}
        self._kept: dict[str, list[Coded]] = {}
        self._kept_count = 0

    def name(self, kind: str) -> str:
        return f"{kind}-{self._unique}-{next(self._numbers[kind])}"

    def load(self, meta: ManifestMeta) -> Sequence[Coded]:
        kept = self._kept.get(meta.file_name)
        return coded(manifest.entries_of(self.table.metadata.entries(meta))) if kept is None else kept

    def keep_only(self, names: Iterable[str]) -> None:
        there = set(names)
        for gone in [n for n in self._kept if n not in there]:
            self._kept_count -= len(self._kept.pop(gone))

    def write(self, entries: Sequence[Coded], written: list[str]) -> list[ManifestMeta]:
        """Entries as one manifest, or several of about the target size. Names go to `written` before their files."""
        metas = []
        # 3 is what zstd makes of entries at least; a manifest that comes out small is merged again later
        limit = 3 * self.table.options.manifest_target_size
        start = size = 0
        for i, e in enumerate(entries):
            size += len(e.data)
            if size >= limit or i == len(entries) - 1:
                metas.append(self._manifest(entries[start : i + 1], written))
                start, size = i + 1, 0
        return metas

    def _manifest(self, entries: Sequence[Coded], written: list[str]) -> ManifestMeta:
        name = self.name("manifest")
        data = manifest.write_entries([e.data for e in entries], *self._form)
        self.add(name, data, written)
        if self._kept_count + len(entries) <= _KEPT_ENTRIES:
            self._kept[name] = list(entries)
            self._kept_count += len(entries)
        return meta_of(name, len(data), entries, self.table.schema.partition_types)

    def write_list(self, metas: Sequence[ManifestMeta], written: list[str]) -> Listed:
        name = self.name("manifest-list")
        data = manifest.encode_list(metas, *self._form)
        self.add(name, data, written)
        return Listed(tuple(metas), name, len(data))

    def write_indexes(self, entries: Sequence[IndexEntry], written: list[str]) -> str:
        name = self.name("index-manifest")
        self.add(name, encode_index_manifest(entries, *self._form), written)
        return name

    def add(self, name: str, data: bytes, written: list[str]) -> None:
        written.append(name)
        add_file(self._store, paths.manifest(name), data)

    def delete(self, names: list[str]) -> None:
        """Delete what can be deleted; a file that stays is one for orphan cleaning."""
        for name in names:
            try:
                self._store.delete(paths.manifest(name))
            except StorageFailed:
                pass
        names.clear()


class Listed(NamedTuple):
    """Manifests, and the list file that names them."""

    metas: tuple[ManifestMeta, ...]
    name: str
    size: int


class Attempt:
    """What the tries of one snapshot have written."""

    def __init__(self, files: ManifestFiles) -> None:
        self._files = files
        self._base: list[str] = []
        self._delta: list[str] = []
        self._changelog: list[str] = []
        self._indexes: list[str] = []
        self._delta_entries: tuple[Entry, ...] | None = None
        self._delta_listed: Listed | None = None
        self._changelog_listed: Listed | None = None
        self._indexes_of: tuple[str | None, tuple[IndexEntry, ...]] | None = None

    def base(self, metas: Sequence[ManifestMeta], merge: MergeOptions | None) -> Listed:
        """The list of what was there before, its small manifests merged unless `merge` is None."""
        self.drop_base()
        after = list(metas)
        if merge is not None:
            types = self._files.table.schema.partition_types
            after = merge_manifests(metas, merge, types, self._files.load, lambda e: self._files.write(e, self._base))
        return self._files.write_list(after, self._base)

    def drop_base(self) -> None:
        """Delete the base list and the merged manifests: the next try has another base."""
        self._files.delete(self._base)

    def delta(self, entries: tuple[Entry, ...]) -> Listed:
        if self._delta_listed is None or entries != self._delta_entries:
            self._files.delete(self._delta)
            self._delta_listed = None
            metas = self._files.write(coded(entries), self._delta)
            self._delta_listed, self._delta_entries = self._files.write_list(metas, self._delta), entries
        return self._delta_listed

    def changelog(self, entries: Sequence[Entry]) -> Listed | None:
        """The list of the changelog, which is the same in every try; None when there is none."""
        if entries and self._changelog_listed is None:
            metas = self._files.write(coded(entries), self._changelog)
            self._changelog_listed = self._files.write_list(metas, self._changelog)
        return self._changelog_listed

    def indexes(self, previous: str | None, changes: tuple[IndexEntry, ...], *, by_file: bool) -> str | None:
        """The name of the index manifest: that of before when nothing changed."""
        if not changes:
            self._files.delete(self._indexes)
            return previous
        if self._indexes and self._indexes_of == (previous, changes):
            return self._indexes[0]
        self._files.delete(self._indexes)
        before = self._files.table.metadata.index_entries(previous) if previous is not None else ()
        name = self._files.write_indexes(combined(before, changes, by_file=by_file), self._indexes)
        self._indexes_of = previous, changes
        return name

    def discard(self) -> None:
        """Delete everything: no snapshot will name it."""
        for names in (self._base, self._delta, self._changelog, self._indexes):
            self._files.delete(names)
