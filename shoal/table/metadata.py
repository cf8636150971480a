# SPDX-License-Identifier: Apache-2.0
"""A table's metadata files, read and cached: snapshots, schemas, manifest lists, manifests.

Agrees with: SnapshotManager, SchemaManager, HintFileUtils, FileEntry.mergeEntries (2.0.0). Invariant: files that
never change (schemas, manifests) come from the cache; snapshots are always read, since a rollback may give an id
away again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import Corrupt, NotFound
from shoal.format import manifest, paths, snapshot
from shoal.format.datafile import DELETE
from shoal.format.manifest import ManifestMeta
from shoal.format.schema import Schema
from shoal.format.schema import decode as decode_schema
from shoal.format.snapshot import Snapshot
from shoal.store.base import Store
from shoal.store.cache import Cache
from shoal.table.deletions import Deletion

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.index_manifest import IndexEntry


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """Which partitions are wanted: asked of manifests, by their bounds, and of single partitions.

    `name` is the same for the same filter and for no other; None when there is no such name. Invariant: it answers by
    partition alone, so that an entry and its deletion are kept or left out together.
    """

    name: str | None
    manifests: Callable[[Sequence[ManifestMeta]], Sequence[bool]]
    partitions: Mapping[bytes, bool]


class Live(NamedTuple):
    """The live entries of a snapshot: from so many manifests, of so many files, with so many manifests to read."""

    entries: pa.Table
    manifests: int = 0
    files: int = 0
    missed: int = 0


class Metadata:
    """Reads the metadata of the table whose folder is `store`."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self.store = store
        self.cache = cache
        self._uri = store.uri

    # ---- snapshots

    def latest_id(self) -> int | None:
        """Newest snapshot id, or None. The hint is trusted when the next id does not exist."""
        hint = self.hint(paths.LATEST)
        if hint is not None and hint > 0 and not self.exists(paths.snapshot(hint + 1)):
            return hint
        return max(self.snapshot_ids(), default=None)

    def earliest_id(self) -> int | None:
        """Oldest snapshot id, or None. The hint is trusted when that snapshot exists."""
        hint = self.hint(paths.EARLIEST)
        if hint is not None and self.exists(paths.snapshot(hint)):
            return hint
        return min(self.snapshot_ids(), default=None)

    def snapshot_ids(self) -> list[int]:
        return paths.snapshot_ids(self.store.list_dir(paths.SNAPSHOT)[1])

    def latest(self) -> Snapshot | None:
        """The newest snapshot, or None for an empty table."""
        newest = self.latest_id()
        if newest is None:
            return None
        try:
            return self.snapshot(newest)
        except NotFound:
            # the hint pointed behind a rollback, or expiry ran: ask the folder itself
            newest = max(self.snapshot_ids(), default=None)
            return None if newest is None else self.snapshot(newest)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """A snapshot by id; `NotFound` says which ids there are."""
        path = paths.snapshot(snapshot_id)
        try:
            data = self.store.read(path)
        except NotFound as err:
            ids = self.snapshot_ids()
            have = f"snapshots {ids[0]} to {ids[-1]} are there" if ids else "the table has no snapshot yet"
            raise NotFound(f"snapshot {snapshot_id} of {self._uri} does not exist", hint=have) from err
        return snapshot.decode(data, f"{self._uri}/{path}")

    def exists(self, path: str) -> bool:
        try:
            self.store.size(path)
        except NotFound:
            return False
        return True

    def hint(self, path: str) -> int | None:
        """The id that a hint file tells, which may lag behind; None when it tells none."""
        try:
            text = self.store.read(path)
        except NotFound:
            return None
        return int(text) if text.strip().isdigit() else None

    # ---- schemas

    def schema(self, schema_id: int) -> Schema:
        path = paths.schema(schema_id)

        def load() -> tuple[Schema, int]:
            data = self.store.read(path)
            return decode_schema(data, f"{self._uri}/{path}"), 4 * len(data)

        return self.cache.get((self._uri, path), load)

    def latest_schema_id(self) -> int | None:
        return max(paths.schema_ids(self.store.list_dir(paths.SCHEMA)[1]), default=None)

    # ---- manifests

    def manifest_list(self, name: str, size: int | None = None) -> tuple[ManifestMeta, ...]:
        """The manifests that a list names; `size` is what the snapshot says of its bytes."""
        path = paths.manifest(name)

        def load() -> tuple[tuple[ManifestMeta, ...], int]:
            data = self.read(path, size)
            metas = manifest.decode_list(data, f"{self._uri}/{path}")
            return metas, 400 * len(metas) + 200

        return self.cache.get((self._uri, path), load)

    def manifests(self, snap: Snapshot) -> tuple[ManifestMeta, ...]:
        """Base and delta manifests: together the live files."""
        return (*self.base(snap), *self.delta(snap))

    def base(self, snap: Snapshot) -> tuple[ManifestMeta, ...]:
        return self.manifest_list(snap.base_manifest_list, snap.base_manifest_list_size)

    def delta(self, snap: Snapshot) -> tuple[ManifestMeta, ...]:
        return self.manifest_list(snap.delta_manifest_list, snap.delta_manifest_list_size)

    def changelog(self, snap: Snapshot) -> tuple[ManifestMeta, ...]:
        """Manifests of the snapshot's changelog; none when it has no changelog."""
        name = snap.changelog_manifest_list
        return () if name is None else self.manifest_list(name, snap.changelog_manifest_list_size)

    def entries(self, meta: ManifestMeta) -> pa.RecordBatch:
        """The entry table of one manifest."""
        path = paths.manifest(meta.file_name)

        def load() -> tuple[pa.RecordBatch, int]:
            table = manifest.decode_entries(self.read(path, meta.file_size), f"{self._uri}/{path}")
            return table, _TABLE_BYTES + _ENTRY_BYTES * table.num_rows

        return self.cache.get((self._uri, path), load)

    def read(self, path: str, size: int | None = None) -> bytes:
        """A metadata file that a snapshot refers to. One of another size is damaged: cut between two blocks of records
        it would still decode."""
        try:
            data = self.store.read(path)
        except NotFound as err:
            raise Corrupt(
                f"{self._uri}/{path} is missing although a snapshot refers to it",
                hint="it was deleted by hand or by another tool's expiry; read a newer snapshot",
            ) from err
        if size is not None and len(data) != size:
            raise Corrupt(
                f"{self._uri}/{path} has {len(data):,} bytes where {size:,} were written",
                hint="it is cut off or was overwritten; restore it or read another snapshot",
            )
        return data

    def live(self, snap: Snapshot | None, only: PartitionFilter | None = None) -> pa.Table:
        """The live entries of a snapshot, in one chunk."""
        return self.planned(snap, only).entries

    def planned(self, snap: Snapshot | None, only: PartitionFilter | None = None) -> Live:
        """The live entries of a snapshot, and what it took to know them.

        Where they are not cached, manifests without a wanted partition are not read, and of very many entries only
        those of wanted partitions are decoded.
        """
        if snap is None:
            return Live(live_entries([]))
        missed = 0

        def read(
            metas: Sequence[ManifestMeta], kept: Sequence[ManifestMeta], partitions: Mapping[bytes, bool] | None = None
        ) -> Live:
            nonlocal missed
            tables, missed = self._all_entries(kept, partitions)
            table = live_entries(tables, any(m.deleted for m in kept))
            return Live(table, len(kept), sum(m.added - m.deleted for m in metas))

        # both lists together name a state of the table; the ids of snapshots are given away again after a rollback
        key = (self._uri, f"live {snap.base_manifest_list} {snap.delta_manifest_list}")
        if only is not None and not self.cache.holds(key):
            metas = self.manifests(snap)
            kept = [m for m, wanted in zip(metas, only.manifests(metas)) if wanted]
            if len(kept) < len(metas) or sum(m.added + m.deleted for m in kept) > _MANY:

                def some() -> tuple[Live, int]:
                    found = read(metas, kept, only.partitions)
                    return found, _held(found.entries)

                named = (self._uri, f"{key[1]} {only.name}")
                return (some()[0] if only.name is None else self.cache.get(named, some))._replace(missed=missed)

        def load() -> tuple[Live, int]:
            metas = self.manifests(snap)
            found = read(metas, metas)
            if found.entries.column("kind").num_chunks != 1:
                found = found._replace(entries=found.entries.combine_chunks())
            return found, _held(found.entries)

        return self.cache.get(key, load)._replace(missed=missed)

    def live_in(self, metas: Sequence[ManifestMeta]) -> pa.Table:
        """The live entries that these manifests, whatever lists they are from, add up to."""
        return live_entries(self._all_entries(metas)[0], any(m.deleted for m in metas))

    def deletions(self, name: str) -> dict[tuple[bytes, int], dict[str, Deletion]]:
        """The deletion vectors that an index manifest lists: by partition and bucket, then by data file."""
        path = paths.manifest(name)

        def load() -> tuple[dict[tuple[bytes, int], dict[str, Deletion]], int]:
            out: dict[tuple[bytes, int], dict[str, Deletion]] = {}
            for e in self.index_entries(name):
                if e.index_type != "DELETION_VECTORS":
                    continue
                here = out.setdefault((e.partition, e.bucket), {})
                for r in e.dv_ranges or ():
                    here[r.file_name] = Deletion(e.file_name, e.external_path, r.offset, r.length, r.cardinality)
            return out, 300 * sum(map(len, out.values())) + 200

        return self.cache.get((self._uri, f"deletions {path}"), load)

    def index_entries(self, name: str) -> list[IndexEntry]:
        """The entries of an index manifest."""
        from shoal.format.columnar_manifest import is_avro, table
        from shoal.format.index_manifest import SCHEMA, decode_index_manifest, entries_of

        path = paths.manifest(name)

        def load() -> tuple[list[IndexEntry], int]:
            data, where = self.read(path), f"{self._uri}/{path}"
            if is_avro(data):
                return decode_index_manifest(data, where), 20 * len(data)
            return entries_of(table(data, where, SCHEMA), where), 20 * len(data)

        return self.cache.get((self._uri, f"index {path}"), load)

    def _all_entries(
        self, metas: Sequence[ManifestMeta], partitions: Mapping[bytes, bool] | None = None
    ) -> tuple[list[pa.RecordBatch], int]:
        """(entries of several manifests, in any order; how many manifests were not cached: decoded together)."""
        missing = [m for m in metas if not self.cache.holds((self._uri, paths.manifest(m.file_name)))]
        if sum(m.added + m.deleted for m in missing) <= _MANY:
            partitions = None  # better all of them, and kept
        absent = {m.file_name for m in missing}
        tables = [self.entries(m) for m in metas if m.file_name not in absent]
        for group in self._groups(missing):
            named = [(data, f"{self._uri}/{path}") for path, data in group]
            together, each = manifest.decode_many(named, partitions)
            tables += together
            for (path, _), table in zip(group, each if partitions is None else ()):
                self.cache.put((self._uri, path), table, _TABLE_BYTES + _ENTRY_BYTES * table.num_rows)
        return tables, len(missing)

    def _groups(self, metas: Sequence[ManifestMeta]) -> Iterator[list[tuple[str, bytes]]]:
        """(path, bytes) of manifests, in groups of about `_TOGETHER` bytes."""
        group: list[tuple[str, bytes]] = []
        size = 0
        for meta in metas:
            path = paths.manifest(meta.file_name)
            group.append((path, self.read(path, meta.file_size)))
            size += len(group[-1][1])
            if size >= _TOGETHER:
                yield group
                group, size = [], 0
        if group:
            yield group


# What an entry takes in memory, about; asking Arrow for the bytes of many small slices costs more than decoding them.
_ENTRY_BYTES = 700
# A table of entries takes this much whatever its rows: dozens of columns, nested ones too, each with its arrays.
_TABLE_BYTES = 32 << 10
# Entries that do not fit the cache: a filter by partition then passes over what it does not want, each time anew.
_MANY = 150_000
# Bytes of manifests that are decoded into one set of Arrow buffers.
_TOGETHER = 4 << 20


# Chunks of fewer entries than this are put together first: on them Arrow's calls cost more than what they do.
_SMALL_CHUNK = 1_000
# Of so many entries a set of Python's says sooner than Arrow's dozen of calls which ones are cancelled.
_FEW = 200


def _held(entries: pa.Table) -> int:
    """What live entries take in memory: estimated where Arrow would add up hundreds of buffers of a few bytes."""
    few = entries.num_rows < _SMALL_CHUNK
    return _TABLE_BYTES + (_ENTRY_BYTES * entries.num_rows if few else int(entries.nbytes))


def live_entries(tables: Sequence[pa.RecordBatch], may_delete: bool = True) -> pa.Table:
    """ADD entries that no DELETE cancels, whatever the order of the manifests."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(tables, schema=manifest.entry_schema())
    if len(tables) > 1 and table.num_rows < _SMALL_CHUNK * len(tables):
        table = table.combine_chunks()
    if not may_delete:
        return table
    if table.num_rows <= _FEW:
        kinds = table.column("kind").to_pylist()
        if DELETE not in kinds:
            return table
        identities = list(_identities(table))
        cancels = {i for i, kind in zip(identities, kinds) if kind == DELETE}
        return table.filter(pa.array([i not in cancels for i in identities]))
    is_delete = pc.equal(table.column("kind"), DELETE)
    deletes = pc.indices_nonzero(is_delete)
    if not len(deletes):
        return table
    identity = table.select(_IDENTITY)
    cancelled = identity.take(deletes)
    # only names that occur in a DELETE are compared in full: an upgrade repeats a name at another level
    named = pc.is_in(identity.column("file_name"), cancelled.column("file_name").combine_chunks())
    suspects = pc.indices_nonzero(pc.and_not(named, is_delete))
    dead = set(_identities(cancelled))
    gone = [identity in dead for identity in _identities(identity.take(suspects))]
    keep = np.ones(table.num_rows, bool)
    keep[deletes.to_numpy()] = False
    keep[suspects.to_numpy()[gone]] = False
    return table.filter(pa.array(keep))


_IDENTITY = ("partition", "bucket", "level", "file_name", "extra_files", "embedded_index", "external_path")


def _identities(table: pa.Table) -> Iterable[tuple[object, ...]]:
    columns = [table.column(n).to_pylist() for n in _IDENTITY]
    columns[4] = [tuple(v or ()) for v in columns[4]]
    return zip(*columns)
