# SPDX-License-Identifier: Apache-2.0
"""Which files only a tag still holds, once its snapshot has expired: they go when the tag goes.

Agrees with: TagDeletion, FileDeletionBase, TagManager.doClean (2.0.0). Java keeps what the tag before and the tag or
snapshot after hold. This also keeps what any other tag, the newest snapshot, a snapshot that brought files back
(rollback_to_as_latest), a changelog that outlives its snapshot, or another branch holds. Invariant: everything is read
before anything is deleted, and what cannot be read raises: no file goes on a doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.errors import Corrupt
from shoal.format import manifest, paths
from shoal.format.snapshot import Snapshot
from shoal.store.base import Store
from shoal.store.branch import BranchStore
from shoal.table.expire_guard import CHANGELOGS, Memory, Moved, gone, line, memory_of, names_in, read, span
from shoal.table.history import changelog_ids, delta_entries, of_kind
from shoal.table.metadata import Metadata
from shoal.table.refs import MAIN, Tag, branch_of, find_tag, root_of

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

# The commit users of rollbacks that add a snapshot: their deltas bring back files that an earlier delta deleted.
AS_LATEST = "rollback-to-as-latest-"
_STATISTICS = "statistics"

Place = tuple[Store, str]


@dataclass(frozen=True, slots=True)
class Freed:
    """Files to delete, in this order, and folders that may be empty then."""

    files: tuple[Place, ...] = ()
    folders: tuple[str, ...] = ()

    def delete(self, store: Store) -> None:
        """Delete them. What is left after a failure is named by nobody: orphan cleaning takes it."""
        for at, path in self.files:
            at.delete(path)
        for folder in self.folders:
            store.delete(folder)  # goes only when it is empty


def freed_by(table: Table, tag: Tag) -> Freed:
    """What no one needs when the tag `tag` and no other goes. Nothing while its snapshot or a twin is there."""
    meta = table.metadata
    if meta.exists(paths.snapshot(tag.snapshot.id)):
        return Freed()
    memory = memory_of(meta.cache, root_of(table.store).uri)
    others = [t for t in _tags(meta, memory) if t.name != tag.name]
    if any(t.snapshot.id == tag.snapshot.id for t in others):
        return Freed()
    here = span(meta, listed=True)
    if here is None:
        raise Corrupt(
            f"{table.name}: no snapshot is listed, so nothing tells which files of tag '{tag.name}' are in use",
            hint="restore the snapshot folder, or delete the tag with keep_files=True",
        )
    files, names = meta.live(tag.snapshot), _names(meta, tag.snapshot)
    for at, snap, whole in _in_use(table, [t.snapshot for t in others], here, memory):
        if files.num_rows:
            used = at.live(snap) if whole else of_kind(delta_entries(at, snap))
            files = _without(files, used)
        if names:
            names = {n: p for n, p in names.items() if n not in _names(at, snap)}
    return _placed(table, files, names, tag.snapshot)


# (where, snapshot, all its files or only those it added)
Use = tuple[Metadata, Snapshot, bool]


def _in_use(table: Table, tagged: list[Snapshot], here: tuple[int, int], memory: Memory) -> Iterator[Use]:
    """Snapshots that together hold every file in use."""
    meta = table.metadata
    for snap in tagged:
        yield meta, snap, True
    for i, there in line(meta, *here, memory).items():
        if i in here:
            yield meta, there, True
        elif there.commit_user.startswith(AS_LATEST):
            yield meta, there, False
    yield from _changelogs(meta)
    root, own = root_of(table.store), branch_of(table)
    folders = names_in(root, paths.BRANCH, "branch-", memory, folders=True)
    for name in [MAIN, *(f.removeprefix("branch-") for f in folders)]:
        if name != own:
            yield from _branch(Metadata(root if name == MAIN else BranchStore(root, name), meta.cache), memory)


def _branch(meta: Metadata, memory: Memory) -> Iterator[Use]:
    """Everything that another branch can read."""
    for tag in _tags(meta, memory):
        yield meta, tag.snapshot, True
    here = span(meta, listed=True)
    if here is not None:
        for i, snap in line(meta, *here, memory).items():
            yield meta, snap, i == here[0]
    yield from _changelogs(meta)


def all_tags(table: Table) -> list[Tag]:
    """Every tag of a table, by listings that agree; one that cannot be read raises."""
    return _tags(table.metadata, memory_of(table.metadata.cache, root_of(table.store).uri))


def _tags(meta: Metadata, memory: Memory) -> list[Tag]:
    """Every tag; one that cannot be read, or is listed and not there, stops the deletion."""
    out = []
    for name in names_in(meta.store, paths.TAG, "tag-", memory):
        found = find_tag(meta, name.removeprefix("tag-"))
        if found is None:
            raise Moved(f"{meta.store.uri}/{paths.TAG}/{name} is listed and is not there", hint="run it again")
        out.append(found)
    return out


def _changelogs(meta: Metadata) -> Iterator[Use]:
    """Changelogs that are read from their delta: those without changelog files. Nothing else of them is in use."""
    for i in changelog_ids(meta):
        snap = read(meta, i, CHANGELOGS)
        if snap is None or snap.changelog_manifest_list is not None:
            continue
        try:
            meta.delta(snap)
        except Corrupt as err:
            if gone(err):  # where there are changelog files, a commit without any leaves nothing behind
                continue
            raise
        delta = snap.delta_manifest_list
        yield meta, replace(snap, base_manifest_list=delta, index_manifest=None, statistics=None), False


def _without(files: pa.Table, used: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    names = used.column("file_name").combine_chunks()
    return files.filter(pc.invert(pc.is_in(files.column("file_name"), names)))


def _names(meta: Metadata, snap: Snapshot) -> dict[str, str]:
    """Metadata files of a snapshot by name, with their paths; index files have an empty one, their entry places them.

    Lists and manifests come first, then index files, index manifest, statistics: the order they are deleted in.
    """
    out = {m.file_name: paths.manifest(m.file_name) for m in meta.manifests(snap)}
    for name in (snap.base_manifest_list, snap.delta_manifest_list):
        out[name] = paths.manifest(name)
    if snap.index_manifest is not None:
        out.update((e.file_name, "") for e in meta.index_entries(snap.index_manifest))
        out[snap.index_manifest] = paths.manifest(snap.index_manifest)
    if snap.statistics is not None:
        out[snap.statistics] = f"{_STATISTICS}/{snap.statistics}"
    return out


def _placed(table: Table, files: pa.Table, names: dict[str, str], snap: Snapshot) -> Freed:
    """The files with their places: data files and their indexes, then metadata."""
    out: list[Place] = []
    folders: dict[str, None] = {}
    for e in manifest.entries_of(files):
        out.append(table.file_at(e.partition, e.bucket, e.file))
        out += [table.beside(e.partition, e.bucket, e.file, extra) for extra in e.file.extra_files]
        folders[table.bucket_folder(e.partition, e.bucket).rstrip("/")] = None
    index = {} if snap.index_manifest is None else {
        e.file_name: e for e in table.metadata.index_entries(snap.index_manifest)
    }  # fmt: skip
    for name, path in names.items():
        if path:
            out.append((table.store, path))
        else:
            i = index[name]
            out.append(table.index_at(i.partition, i.bucket, name, i.external_path))
    return Freed(tuple(out), _emptied(table, list(folders)))


def _emptied(table: Table, buckets: list[str]) -> tuple[str, ...]:
    """Bucket folders and the partition folders above them, deepest first; none unless the table wants that."""
    if not table.options.get("snapshot.clean-empty-directories"):
        return ()
    depth = len(table.schema.partition_keys)
    above = {b.rsplit("/", up)[0] for up in range(1, depth + 1) for b in buckets}
    return (*buckets, *sorted(above, key=lambda f: (-f.count("/"), f)))
