# SPDX-License-Identifier: Apache-2.0
"""Who still needs a file: a table's tags, its branches (and main, seen from a branch), and where its snapshots end.

Agrees with: HintFileUtils, ExpireSnapshotsImpl.collectTaggedSnapshots, FileDeletionBase.manifestSkippingSet (2.0.0);
branches are looked at here and not by Java. Invariant: what cannot be read is an error, never "nobody"; a listing is
believed only when single look-ups, a second listing and earlier listings agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.errors import Conflict, Corrupt, NotFound, ShoalError, StorageFailed
from shoal.format import paths
from shoal.format.snapshot import Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.store.base import Store
from shoal.store.branch import BranchStore
from shoal.table import history, refs
from shoal.table.expire import Quiet
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.store.cache import Cache
    from shoal.table.table import Table

_THREADS = 16


@dataclass
class Memory:
    """What earlier looks at a table showed, so that a listing that shrinks is noticed and little is read twice."""

    names: dict[str, set[str]] = field(default_factory=dict)  # folder -> names seen in it
    lines: dict[str, dict[int, Snapshot]] = field(default_factory=dict)  # uri -> snapshots by id
    quiet: dict[str, Quiet] = field(default_factory=dict)  # uri -> when to look again
    tags: dict[str, TagTimes] = field(default_factory=dict)  # uri -> when tags were looked at, and when they go


@dataclass(frozen=True, slots=True)
class TagTimes:
    """A look at a table's tags: when it was, and the local time at which each tag goes (None: never)."""

    looked_ms: int
    read_ms: int
    ends: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """Files that must stay: metadata files by name, data files as arrays of names."""

    names: frozenset[str]
    data: tuple[pa.Array, ...]

    def held(self, wanted: Sequence[str]) -> set[str]:
        """Which of these data files somebody needs."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not wanted or not self.data:
            return set()
        asked = pa.array(wanted, pa.string())
        return {n for d in self.data for n in d.filter(pc.is_in(d, asked)).to_pylist()}


class Moved(Conflict):
    """The table changed while it was looked at; looking again tells whether that is so."""


def memory_of(cache: Cache, uri: str) -> Memory:
    """The memory of the table at `uri`, kept beside its metadata."""
    return cache.get((uri, "what expiry has seen"), lambda: (Memory(), 1000))


# ---- the line of snapshots -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Snapshots, or decoupled changelogs. Only snapshots must follow each other without a gap."""

    folder: str
    path: Callable[[int], str]
    name: str
    gaps: bool


SNAPSHOTS = Kind(paths.SNAPSHOT, paths.snapshot, "snapshot", False)
CHANGELOGS = Kind(paths.CHANGELOG, history.changelog_path, "changelog", True)


def span(meta: Metadata, kind: Kind = SNAPSHOTS, listed: bool = False) -> tuple[int, int] | None:
    """Oldest and newest id; None when there is none. `listed` looks at the folder in any case."""

    def there(i: int) -> bool:
        return meta.exists(kind.path(i))

    low, high = hint(meta, f"{kind.folder}/EARLIEST"), hint(meta, f"{kind.folder}/LATEST")
    low = low if low is not None and there(low) else None
    high = high if high and there(high) else None
    if low is None or high is None or listed or there(high + 1):
        ids = history.changelog_ids(meta) if kind.gaps else meta.snapshot_ids()
        _agree(meta, kind, [low, high, *ids[:1], *ids[-1:]], ids, low)
        if not ids:
            return None
        low, high = ids[0] if low is None else low, ids[-1]
        if ids[0] > 1 and there(ids[0] - 1):
            raise _short(meta.store, kind.folder, f"{kind.name}-{ids[0] - 1}")
    while there(high + 1):  # committed since
        high += 1
    while low > 1 and there(low - 1):  # a fast-forward brings the hint of its branch
        low -= 1
    if low > high:
        raise Moved(f"{meta.store.uri}: the oldest {kind.name} {low} is newer than the newest, {high}")
    return low, high


def _agree(meta: Metadata, kind: Kind, known: Sequence[int | None], ids: Sequence[int], low: int | None) -> None:
    """What is known must be listed, what is listed must be there, and between the oldest and the newest all of it.

    What lies before the gap that an EARLIEST hint `low` skips is no part of the history any more.
    """
    listed = set(ids)
    between = set(range(ids[0] if low is None else low, ids[-1])) - listed if ids else set()
    for i in sorted({i for i in known if i is not None} | between):
        there = meta.exists(kind.path(i))
        if there and i not in listed:
            raise _short(meta.store, kind.folder, f"{kind.name}-{i}")
        if not there and i in listed:
            raise Moved(f"{meta.store.uri}: {kind.name} {i} is listed and is not there")
        if not there and i in between and not kind.gaps:
            raise _missing(meta, i, ids[0], ids[-1])


def _missing(meta: Metadata, snapshot_id: int, low: int, high: int) -> Corrupt:
    return Corrupt(
        f"snapshot {snapshot_id} of {meta.store.uri} is missing between {low} and {high}",
        hint="see whether somebody removed it; CALL sys.repair_earliest_snapshot accepts the gap",
    )


def _short(store: Store, folder: str, name: str) -> StorageFailed:
    return StorageFailed(
        f"the listing of {store.uri}/{folder} leaves out {name}, which is there",
        hint="the store's listings cannot be trusted now; run it again later",
    )


def hint(meta: Metadata, path: str) -> int | None:
    """The id that a hint file holds."""
    try:
        text = meta.store.read(path).strip()
    except NotFound:
        return None
    return int(text) if text.isdigit() else None


def line(meta: Metadata, low: int, high: int, memory: Memory, kind: Kind = SNAPSHOTS) -> dict[int, Snapshot]:
    """All of the span, by id. What was read before is not read again unless the newest of it is another now."""
    kept = memory.lines.setdefault(f"{meta.store.uri}/{kind.folder}", {})
    newest = max((i for i in kept if i <= high), default=None)
    if any(i > high for i in kept) or (
        newest is not None and newest >= low and read(meta, newest, kind) != kept[newest]
    ):
        kept.clear()  # rolled back since
    missing = [i for i in range(low, high + 1) if i not in kept]
    if len(missing) > _THREADS:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(lambda i: read(meta, i, kind), missing))
    else:
        found = [read(meta, i, kind) for i in missing]
    for i, snap in zip(missing, found):
        if snap is None and not kind.gaps:
            if not (meta.exists(kind.path(low)) and meta.exists(kind.path(high))):
                raise Moved(f"{meta.store.uri}: snapshots were removed while they were read")
            raise _missing(meta, i, low, high)
        if snap is not None and snap.id != i:
            raise Corrupt(f"{meta.store.uri}/{kind.path(i)} holds snapshot {snap.id}")
    kept.update((i, s) for i, s in zip(missing, found) if s is not None)
    for i in [i for i in kept if i < low]:
        del kept[i]
    return dict(sorted(kept.items()))


def read(meta: Metadata, snapshot_id: int, kind: Kind = SNAPSHOTS) -> Snapshot | None:
    """One of them, or None."""
    path = kind.path(snapshot_id)
    try:
        data = meta.store.read(path)
    except NotFound:
        return None
    return decode_snapshot(data, f"{meta.store.uri}/{path}")


# ---- listings that are believed --------------------------------------------------------------------------


def names_in(store: Store, folder: str, prefix: str, memory: Memory, folders: bool = False) -> list[str]:
    """Names directly in a folder, by two different listings that must agree with each other and with earlier ones."""
    first = {n for n in store.list_dir(folder)[0 if folders else 1] if n.startswith(prefix)}
    second = set()
    for info in store.list(folder):
        name, deeper, _ = info.path.removeprefix(f"{folder}/").partition("/")
        if name.startswith(prefix) and bool(deeper) == folders:
            second.add(name)
    seen = memory.names.setdefault(f"{store.uri}/{folder}", set())
    seen |= first | second
    for name in sorted(first ^ second):
        # a folder without files is a folder to one listing only
        if name in second or not folders or store.list_dir(f"{folder}/{name}") != ([], []):
            raise Moved(f"two listings of {store.uri}/{folder} do not agree about {name}")
    for name in sorted(seen - first):
        if folders and _second_look(store, f"{folder}/{name}"):
            raise _short(store, folder, name)
        if not folders and _exists(store, f"{folder}/{name}"):
            raise _short(store, folder, name)
    seen.clear()
    seen.update(first)
    return sorted(first & second if folders else first)


def _second_look(store: Store, folder: str) -> bool:
    """Whether a folder that is no longer listed still holds a schema or a hint, which are found without a listing."""
    return any(_exists(store, f"{folder}/{p}") for p in (paths.schema(0), paths.LATEST, paths.EARLIEST))


def _exists(store: Store, path: str) -> bool:
    try:
        store.size(path)
    except NotFound:
        return False
    return True


# ---- what others need ------------------------------------------------------------------------------------


def guard(table: Table, own: Mapping[int, Snapshot], end: int, memory: Memory) -> Guard:
    """What the tags of this table and every other branch need. `own` are its snapshots, those below `end` go."""
    names: set[str] = set()
    data: list[pa.Array] = []
    meta = table.metadata
    for snap in _tagged(meta, memory):
        # a tag of a snapshot that stays needs nothing more than that does
        if snap.id < end or own.get(snap.id) != snap:
            names |= metadata_names(meta, snap)
            data.append(live_names(meta, snap))
    for other in _others(table, memory):
        for found, files in _needs(other, memory):
            names |= found
            data.append(files)
    return Guard(frozenset(names), tuple(data))


def _tagged(meta: Metadata, memory: Memory) -> Iterator[Snapshot]:
    """The snapshots that tags name, each once."""
    seen: set[str] = set()
    for name in names_in(meta.store, paths.TAG, "tag-", memory):
        try:
            found = refs.find_tag(meta, name.removeprefix("tag-"))
        except ShoalError as err:
            raise type(err)(f"tag '{name.removeprefix('tag-')}' cannot be read: {err.message}", hint=err.hint) from err
        if found is None:
            raise Moved(f"{meta.store.uri}/{paths.TAG}/{name} is listed and is not there")
        snap = found.snapshot
        key = f"{snap.base_manifest_list} {snap.delta_manifest_list} {snap.index_manifest} {snap.statistics}"
        if key not in seen:
            seen.add(key)
            yield snap


def _others(table: Table, memory: Memory) -> Iterator[Metadata]:
    """The other branches, and main when the table is a branch."""
    root = refs.root_of(table.store)
    own = refs.branch_of(table)
    if own != refs.MAIN:
        yield Metadata(root, table.metadata.cache)
    for folder in names_in(root, paths.BRANCH, "branch-", memory, folders=True):
        name = folder.removeprefix("branch-")
        if name != own:
            yield Metadata(BranchStore(root, name), table.metadata.cache)


def _needs(meta: Metadata, memory: Memory) -> Iterator[tuple[set[str], pa.Array]]:
    """(names of metadata files, names of data files) that another branch can read."""
    try:
        here = span(meta, listed=True)
        if here is not None:
            before: Snapshot | None = None
            for snap in line(meta, *here, memory).values():
                # what a later snapshot holds is what the first one held and what was added since
                files = live_names(meta, snap) if before is None else added_names(meta, snap)
                yield metadata_names(meta, snap) | changelog_names(meta, snap), files
                if snap.changelog_manifest_list is not None:
                    yield set(), _added(meta, snap, changelog=True)
                before = snap
        for snap in _tagged(meta, memory):
            yield metadata_names(meta, snap), live_names(meta, snap)
        for i in history.changelog_ids(meta):
            yield from _changelog_needs(meta, i)
    except ShoalError as err:
        raise type(err)(f"{meta.store.uri} needs files of this table: {err.message}", hint=err.hint) from err


def _changelog_needs(meta: Metadata, changelog_id: int) -> Iterator[tuple[set[str], pa.Array]]:
    snap = read(meta, changelog_id, CHANGELOGS)
    if snap is None:
        raise Moved(f"{meta.store.uri}/{history.changelog_path(changelog_id)} is listed and is not there")
    if snap.changelog_manifest_list is not None:
        yield changelog_names(meta, snap), _added(meta, snap, changelog=True)
    else:
        try:
            yield {snap.delta_manifest_list, *(m.file_name for m in meta.delta(snap))}, added_names(meta, snap)
        except Corrupt as err:
            if not gone(err):  # a snapshot with a producer leaves only its changelog behind
                raise


def gone(err: ShoalError) -> bool:
    """Whether a file was missing, not damaged."""
    return isinstance(err, NotFound) or isinstance(err.__cause__, NotFound)


# ---- names in a snapshot ---------------------------------------------------------------------------------


def metadata_names(meta: Metadata, snap: Snapshot) -> set[str]:
    """Lists, manifests, index manifest, index files and statistics of a snapshot."""
    names = {snap.base_manifest_list, snap.delta_manifest_list, *(m.file_name for m in meta.manifests(snap))}
    if snap.index_manifest is not None:
        names.add(snap.index_manifest)
        names.update(e.file_name for e in meta.index_entries(snap.index_manifest))
    if snap.statistics is not None:
        names.add(snap.statistics)
    return names


def changelog_names(meta: Metadata, snap: Snapshot) -> set[str]:
    """Changelog list and manifests of a snapshot."""
    if snap.changelog_manifest_list is None:
        return set()
    return {snap.changelog_manifest_list, *(m.file_name for m in meta.changelog(snap))}


def live_names(meta: Metadata, snap: Snapshot) -> pa.Array:
    """Names of a snapshot's live data files."""

    def load() -> tuple[pa.Array, int]:
        names = meta.live_in(meta.manifests(snap)).column("file_name").combine_chunks()
        return names, names.nbytes

    key = f"live names {snap.base_manifest_list} {snap.delta_manifest_list}"
    return meta.cache.get((meta.store.uri, key), load)


def added_names(meta: Metadata, snap: Snapshot) -> pa.Array:
    """Names of the data files that a snapshot's own commit added."""
    return _added(meta, snap, changelog=False)


def _added(meta: Metadata, snap: Snapshot, changelog: bool) -> pa.Array:
    rows = history.changelog_entries(meta, snap) if changelog else history.delta_entries(meta, snap)
    return history.of_kind(rows).column("file_name").combine_chunks()
