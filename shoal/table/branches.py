# SPDX-License-Identifier: Apache-2.0
"""Making, renaming, deleting and fast-forwarding branches.

Agrees with: FileSystemBranchManager, BranchManager, AbstractFileStoreTable.deleteBranch (2.0.0). A branch is several
files and a store has no rename, so a branch that is being made, moved or deleted holds the file `UNFINISHED`. While it
does, `unfinished` is true, the branch counts as absent, and the same call goes on where it was cut off. Invariant: one
call (the file's creation or deletion) makes a branch appear or vanish, and what Java finds after is what Java makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, NotFound, near
from shoal.format import paths
from shoal.store.base import Store
from shoal.table.metadata import Metadata
from shoal.table.refs import MAIN, branch, branch_folders, branch_names, branch_of, decode_tag, root_of, tag, tag_path

if TYPE_CHECKING:
    from shoal.table.table import Table

UNFINISHED = "UNFINISHED"
_MAKING, _GOING, _MOVED = b"being made", b"being deleted", b"renamed from "
# What a fast-forward carries over.
_CARRIED = (paths.SCHEMA, paths.SNAPSHOT, paths.TAG)


# ---- which branches there are ----------------------------------------------------------------------------


def unfinished(root: Store, name: str) -> bool:
    """Whether the branch is half made, half moved or half deleted, so that it must not be read."""
    state = _state(root, name)
    if state is None:
        return False
    # a rename is done as soon as the old branch is marked or gone
    old = state.removeprefix(_MOVED).decode() if state.startswith(_MOVED) else None
    return old is None or _whole(root, old)


def _state(root: Store, name: str) -> bytes | None:
    try:
        return root.read(f"{_folder(name)}/{UNFINISHED}")
    except NotFound:
        return None


def _whole(root: Store, name: str) -> bool:
    return bool(_files(root, name)) and _state(root, name) is None


def _exists(root: Store, name: str) -> bool:
    return bool(_files(root, name)) and not unfinished(root, name)


def _folder(name: str) -> str:
    return f"{paths.BRANCH}/branch-{name}"


def _files(root: Store, name: str) -> list[str]:
    """Paths inside the branch's folder, in order; the mark of unfinished work is not one of them."""
    start = len(_folder(name)) + 1
    return sorted((p for i in root.list(_folder(name)) if (p := i.path[start:]) != UNFINISHED), key=_in_order)


def _in_order(path: str) -> tuple[str, int, str]:
    """Folder by folder, ids ascending: what is half copied or half deleted has no gap, which expiry would refuse."""
    return path.rpartition("/")[0], len(path), path


# ---- verbs -----------------------------------------------------------------------------------------------


def create_branch(table: Table, name: str, *, tag: str | None = None, ignore_if_exists: bool = False) -> Table:
    """A branch with this table's schemas and no rows, or with the snapshot that a tag names."""
    root = root_of(table.store)
    _check_name(name)
    if _exists(root, name):
        if ignore_if_exists:
            return branch(table, name)
        raise BadRequest(f"{table.name}: branch '{name}' already exists", hint="take another name, or delete it first")
    wanted = _first_files(table, tag)
    _replace(root, name, wanted, _MAKING)
    root.delete(f"{_folder(name)}/{UNFINISHED}")
    table.metadata.cache.clear()  # a branch of this name may have been here before, with other schemas
    return branch(table, name)


def delete_branch(table: Table, name: str) -> None:
    """Delete a branch: its schemas, snapshots and tags. Data files stay until orphan cleaning finds no use for them."""
    root = root_of(table.store)
    _check_plain(name)
    _check_free(table, name)
    if name == MAIN:
        raise BadRequest(f"{table.name}: the main branch cannot be deleted", hint="drop the table instead")
    if not _files(root, name) and _state(root, name) is None:  # what a cut-off call left can be deleted
        raise _missing(table, name)
    _remove(root, name)
    table.metadata.cache.clear()


def rename_branch(table: Table, name: str, new: str) -> Table:
    """Give a branch another name."""
    root = root_of(table.store)
    if name == MAIN:
        raise BadRequest(f"{table.name}: the main branch cannot be renamed", hint="create a branch instead")
    _check_plain(name)
    _check_plain(new)
    moved = _MOVED + name.encode()
    if _state(root, new) == moved and not unfinished(root, new):
        _finish_rename(root, name, new)  # it was cut off after the switch
    else:
        if not _exists(root, name):
            raise _missing(table, name)
        if _exists(root, new):
            raise BadRequest(f"{table.name}: branch '{new}' already exists", hint="take another name, or delete it")
        _check_name(new)
        folder = _folder(name)
        _replace(root, new, {p: root.read(f"{folder}/{p}") for p in _files(root, name)}, moved)
        root.put(f"{folder}/{UNFINISHED}", _GOING)  # the switch
        _finish_rename(root, name, new)
    table.metadata.cache.clear()
    return branch(table, new)


def _finish_rename(root: Store, name: str, new: str) -> None:
    _remove(root, name)
    root.delete(f"{_folder(new)}/{UNFINISHED}")


def fast_forward(table: Table, name: str) -> None:
    """Let this table become what its branch is: from the branch's first snapshot on, its history replaces this one's.

    Snapshots, schemas and tags of this table from there on go; their data files stay for orphan cleaning. Done in an
    order that lets the newest snapshot change in one step; a cut-off call is done again.
    """
    here = branch_of(table)
    if name in (MAIN, here) or not name.strip():
        raise BadRequest(
            f"{table.name}: cannot fast-forward to '{name}'",
            hint="name a branch other than main and the one you are on",
        )
    source = branch(table, name)
    ids = source.metadata.snapshot_ids()
    if not ids:
        raise BadRequest(
            f"{table.name}: cannot fast-forward to branch '{name}', it has no snapshot", hint="write to it first"
        )
    first, last = ids[0], ids[-1]
    at, old = table.store, table.metadata.snapshot_ids()
    carried = {p: source.store.read(p) for p in _carried(source.store)}
    snapshots = {paths.snapshot(i) for i in ids}
    first_schema = source.metadata.snapshot(first).schema_id
    stale = {paths.schema(i) for i in paths.schema_ids(at.list_dir(paths.SCHEMA)[1]) if i >= first_schema}
    stale |= {tag_path(n) for n, i in _tag_ids(table.metadata).items() if i >= first}
    gone = sorted(i for i in old if i >= first and paths.snapshot(i) not in snapshots)

    for path in sorted(p for p in carried if p.startswith(f"{paths.SCHEMA}/")):
        _put_changed(at, path, carried[path])
    at.delete(paths.LATEST)  # from here on the folder tells which snapshot is newest
    # the branch's newest snapshot first when it is not the older one: that write is the switch. Else the last deletion
    for i in sorted(ids, key=lambda i: (i != last or last < max(old, default=0), i)):
        _put_changed(at, paths.snapshot(i), carried[paths.snapshot(i)])
    for i in gone:
        at.delete(paths.snapshot(i))
    for path in sorted(stale - carried.keys()):
        at.delete(path)
    for path in sorted(carried.keys() - snapshots):
        _put_changed(at, path, carried[path])
    table.metadata.cache.clear()  # schemas of the same id may differ now


# ---- pieces ----------------------------------------------------------------------------------------------


def _carried(store: Store) -> list[str]:
    return [f"{folder}/{name}" for folder in _CARRIED for name in store.list_dir(folder)[1]]


def _tag_ids(meta: Metadata) -> dict[str, int]:
    from shoal.table.refs import tags

    return {t.name: t.snapshot.id for t in tags(meta)}


def _put_changed(store: Store, path: str, data: bytes) -> None:
    try:
        if store.read(path) == data:
            return
    except NotFound:
        pass
    store.put(path, data)


def _first_files(table: Table, from_tag: str | None) -> dict[str, bytes]:
    """What a new branch holds, by path."""
    at = table.store
    if from_tag is None:
        newest = table.metadata.latest_schema_id()
        out: dict[str, bytes] = {}
    else:
        tag(table.metadata, from_tag)  # `NotFound` lists near names
        data = at.read(tag_path(from_tag))
        snap = decode_tag(from_tag, data, tag_path(from_tag)).snapshot
        newest = snap.schema_id
        path = paths.snapshot(snap.id)
        try:
            content = at.read(path)
        except NotFound:
            content = snap.encode()  # it has expired; the tag is all that is left of it
        out = {tag_path(from_tag): data, path: content}
    for i in paths.schema_ids(at.list_dir(paths.SCHEMA)[1]):
        if newest is not None and i <= newest:
            out[paths.schema(i)] = at.read(paths.schema(i))
    return out


def _replace(root: Store, name: str, wanted: Mapping[str, bytes], state: bytes) -> None:
    """Mark the branch as unfinished and let it hold just these files; what a cut-off call left goes."""
    folder = _folder(name)
    for other in branch_folders(root):
        if _state(root, other) == _MOVED + name.encode():  # once it came from a branch of this name
            root.delete(f"{_folder(other)}/{UNFINISHED}")
    root.put(f"{folder}/{UNFINISHED}", state)
    for path in _files(root, name):
        if path not in wanted:
            root.delete(f"{folder}/{path}")
    for path in sorted(wanted, key=_in_order):
        root.put(f"{folder}/{path}", wanted[path])


def _remove(root: Store, name: str) -> None:
    """Delete every file of a branch and the folders they were in; the mark goes last."""
    folder = _folder(name)
    if _state(root, name) != _GOING:
        root.put(f"{folder}/{UNFINISHED}", _GOING)
    files = _files(root, name)
    for path in files:
        root.delete(f"{folder}/{path}")
    inside = {p.rsplit("/", up)[0] for p in files for up in range(1, p.count("/") + 1)}
    for sub in sorted(inside, key=lambda f: -f.count("/")):
        root.delete(f"{folder}/{sub}")
    for sub in root.list_dir(folder)[0]:
        root.delete(f"{folder}/{sub}")  # folders that held nothing
    root.delete(f"{folder}/{UNFINISHED}")
    root.delete(folder)


def _check_name(name: str) -> None:
    if name == MAIN:
        raise BadRequest(f"'{MAIN}' is the default branch and cannot be made", hint="take another name")
    if not name.strip():
        raise BadRequest("a branch's name cannot be blank", hint="give the branch a name")
    _check_plain(name)
    if name.isdigit():
        raise BadRequest(f"a branch cannot have a number as its name, but '{name}' is one", hint="add a letter")


def _check_plain(name: str) -> None:
    """A name is one folder, so that no call reaches into another branch."""
    if any(c in name for c in "/\\\0") or name.startswith("."):
        raise BadRequest(f"'{name}' cannot be a branch name", hint="take a name without slashes")


def _check_free(table: Table, name: str) -> None:
    for key in ("scan.fallback-branch", "scan.primary-branch"):
        if name.strip() and table.options.get(key) == name:
            raise BadRequest(f"{table.name}: branch '{name}' is in use by option {key}", hint=f"unset {key} first")


def _missing(table: Table, name: str) -> NotFound:
    names = branch_names(table.store)
    hint = near(name, names) or (f"branches: {', '.join(names[:20])}" if names else "there are no branches")
    return NotFound(f"{table.name} has no branch '{name}'", hint=hint)
