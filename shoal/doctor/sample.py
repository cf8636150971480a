# SPDX-License-Identifier: Apache-2.0
"""What happened to a table, snapshot by snapshot: the doctor's only view of it.

A sample walks snapshots and reads, for each, its JSON, its three manifest lists, and the manifests of the delta and
the changelog; never the base manifests, so its cost follows the new snapshots and not the live files. Every entry
gets one class: `flush` (a writer's new file), `rewrite` (a compaction's new file), `upgrade` (a level change, nothing
written), `removal`, `changelog`.

Invariants: nothing is ever written (the store is wrapped read-only); a file that vanished while it was read is a
`Gap`, not an error; the live files that the manifest lists add up to are checked at each snapshot against the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import Corrupt, NotFound, ShoalError
from shoal.format import paths
from shoal.format.compacted_changelog import elsewhere
from shoal.format.datafile import COMPACT, DELETE
from shoal.format.manifest import ManifestMeta
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.store.wrappers import CountingStore, ReadOnlyStore
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG = "flush", "rewrite", "upgrade", "removal", "changelog"

# The metadata objects one commit writes. "merged-manifest" is a base manifest that the commit rewrote.
MANIFEST_LISTS = ("base-list", "delta-list", "changelog-list")
MANIFESTS = ("delta-manifest", "merged-manifest", "changelog-manifest")
METADATA = ("snapshot", *MANIFEST_LISTS, *MANIFESTS, "index-manifest")


@dataclass(frozen=True, slots=True)
class Count:
    """Files with their bytes, and the rows in them where they hold rows."""

    files: int = 0
    bytes: int = 0
    rows: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.files + other.files, self.bytes + other.bytes, self.rows + other.rows)

    def __sub__(self, other: Count) -> Count:
        return Count(self.files - other.files, self.bytes - other.bytes, self.rows - other.rows)

    def to_dict(self) -> dict[str, int]:
        return {"files": self.files, "bytes": self.bytes, "rows": self.rows}


NOTHING = Count()


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled snapshot: the metadata files it wrote, and the live data files after it, counted twice."""

    snapshot: Snapshot
    wrote: Mapping[str, Count]  # one key per word of METADATA
    manifests: Count  # base and delta manifests: what a reader of this snapshot opens
    live_listed: int  # added - deleted over the rows of base and delta list
    live_replayed: int  # the step before, plus and minus this delta's entries

    @property
    def holds(self) -> bool:
        """Whether both counts agree."""
        return self.live_listed == self.live_replayed


@dataclass(frozen=True, slots=True)
class Gap:
    """Snapshots that could not be seen. `missing`: a file is gone although its snapshot has not expired."""

    first: int
    last: int
    kind: Literal["expired", "missing"]
    what: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Consecutive snapshots of one table, oldest first, and every file entry of their deltas and changelogs.

    `entries` has one row per entry: snapshot, class, change (+1, -1), partition, bucket, level, file_name, file_size,
    row_count, extras (files that belong to the data file). An upgrade has two rows, one per level.
    """

    uri: str
    schema: Schema | None  # the newest one: its options are what the next writer uses
    since: int | None
    earliest: int | None
    steps: tuple[Step, ...]
    entries: pa.Table
    gaps: tuple[Gap, ...]
    inherited: Mapping[str, Count]  # manifests that the steps name but that were written before them
    requests: int
    bytes_read: int

    @property
    def newest(self) -> Snapshot | None:
        return self.steps[-1].snapshot if self.steps else None

    @property
    def complete(self) -> bool:
        """Whether every retained snapshot is here."""
        first = self.steps[0].snapshot.id if self.steps else None
        return first == self.earliest and not self.gaps

    @property
    def broken(self) -> tuple[Step, ...]:
        """Steps whose manifest lists and entries disagree on the live files."""
        return tuple(step for step in self.steps if not step.holds)

    def flows(self) -> pa.Table:
        """Files, bytes and rows by snapshot, class, partition, bucket, level. An upgrade counts at its new level."""
        import pyarrow.compute as pc

        left = pc.and_(pc.equal(self.entries.column("class"), UPGRADE), pc.equal(self.entries.column("change"), -1))
        keys = ["snapshot", "class", "partition", "bucket", "level"]
        table = self.entries.filter(pc.invert(left)).group_by(keys, use_threads=False)
        sums = table.aggregate([("files", "sum"), ("file_size", "sum"), ("row_count", "sum")])
        return sums.rename_columns([*keys, "files", "bytes", "rows"])


def sample(metadata: Metadata, *, since: int | None = None) -> Sample:
    """Read the snapshots after `since`, or all retained ones."""
    counted = CountingStore(ReadOnlyStore(metadata.store))
    reader = Metadata(counted, metadata.cache)
    earliest, latest = reader.earliest_id(), reader.latest_id()
    walk = _Walk(reader)
    if earliest is not None and latest is not None:
        first = earliest if since is None else max(since + 1, earliest)
        if since is not None and since + 1 < earliest:
            walk.lost.append((since + 1, earliest - 1, "expired before it was sampled"))
        if first > earliest:
            walk.stand_on(first - 1)
        for snapshot_id in range(first, latest + 1):
            walk.visit(snapshot_id)
    now = reader.earliest_id() if walk.lost else earliest
    gaps = tuple(Gap(a, b, "expired" if now is None or b < now else "missing", why) for a, b, why in walk.lost)
    return Sample(
        metadata.store.uri, _newest_schema(reader), since, earliest, tuple(walk.steps), _table(walk.tables), gaps,
        walk.inherited, counted.calls.total(), counted.bytes_read,
    )  # fmt: skip


def live_entries(metadata: Metadata, taken: Sample) -> pa.Table | None:
    """The live entries of the newest sampled snapshot; None when a manifest of it is gone. Costs O(live files)."""
    try:
        return Metadata(ReadOnlyStore(metadata.store), metadata.cache).live(taken.newest)
    except ShoalError as err:
        if not _vanished(err):
            raise
        return None


def _newest_schema(reader: Metadata) -> Schema | None:
    newest = reader.latest_schema_id()
    return None if newest is None else reader.schema(newest)


def _vanished(err: ShoalError) -> bool:
    """A missing file, met directly or by `Metadata`, which calls a missing manifest `Corrupt`."""
    return isinstance(err, NotFound) or (isinstance(err, Corrupt) and isinstance(err.__cause__, NotFound))


class _Walk:
    """The walk over snapshots: what it has seen so far, and what it could not see."""

    def __init__(self, reader: Metadata) -> None:
        self.reader = reader
        self.steps: list[Step] = []
        self.tables: list[pa.Table] = []
        self.lost: list[tuple[int, int, str]] = []
        self.inherited: dict[str, Count] = {}
        self._seen: set[str] = set()  # manifests and index manifests that are not new any more
        self._at: int | None = None  # the snapshot before this one, when it was seen
        self._live = 0

    def stand_on(self, snapshot_id: int) -> None:
        """Learn which manifests are old from the snapshot before the first one, if it is still there."""
        try:
            snap = self.reader.snapshot(snapshot_id)
            metas = self.reader.manifests(snap)
        except ShoalError as err:
            if not _vanished(err):
                raise
            return
        self._seen.update(m.file_name for m in metas)
        self._seen.update([snap.index_manifest] if snap.index_manifest else [])
        self._live, self._at = _net(metas), snapshot_id

    def visit(self, snapshot_id: int) -> None:
        try:
            data = self.reader.store.read(paths.snapshot(snapshot_id))
            snap = decode_snapshot(data, f"{self.reader.store.uri}/{paths.snapshot(snapshot_id)}")
            self._read(snap, len(data))
        except ShoalError as err:
            if not _vanished(err):
                raise
            self.lost.append((snapshot_id, snapshot_id, err.message))
            self._at = None

    def _read(self, snap: Snapshot, size: int) -> None:
        reader = self.reader
        base = reader.base(snap)
        delta = reader.delta(snap)
        changelog = reader.changelog(snap)
        wrote = {
            "snapshot": Count(1, size),
            "base-list": self._file(snap.base_manifest_list, snap.base_manifest_list_size),
            "delta-list": self._file(snap.delta_manifest_list, snap.delta_manifest_list_size),
            "changelog-list": self._file(snap.changelog_manifest_list, snap.changelog_manifest_list_size),
            "delta-manifest": _total(delta),
            "changelog-manifest": _total(changelog),
        }
        # Without the snapshot before, a base manifest may be of any age, unless there was no table before.
        known = self._at == snap.id - 1 or not base
        fresh = {"merged-manifest": _total([m for m in base if m.file_name not in self._seen])}
        index = snap.index_manifest
        fresh["index-manifest"] = NOTHING if index in self._seen else self._file(index, None)
        wrote |= fresh if known else dict.fromkeys(fresh, NOTHING)
        entries = [_classified(snap, [reader.entries(m) for m in delta], is_changelog=False)]
        entries.append(_classified(snap, [reader.entries(m) for m in changelog], is_changelog=True))

        # Nothing below reads, so a vanished file leaves the walk as it was.
        if not known:
            self.inherited = {k: self.inherited.get(k, NOTHING) + c for k, c in fresh.items()}
        before = self._live if self._at == snap.id - 1 else _net(base)
        listed = _net((*base, *delta))
        self._live = listed  # a step that does not hold must not spoil the ones after it
        self._at = snap.id
        self._seen.update(m.file_name for m in (*base, *delta))
        self._seen.update([index] if index else [])
        self.tables += entries
        self.steps.append(Step(snap, wrote, _total((*base, *delta)), listed, before + _balance(entries[0])))

    def _file(self, name: str | None, size: int | None) -> Count:
        """One file of the manifest folder; its size is asked for when the snapshot does not say it."""
        if name is None:
            return NOTHING
        return Count(1, self.reader.store.size(paths.manifest(name)) if size is None else size)


def _total(metas: tuple[ManifestMeta, ...] | list[ManifestMeta]) -> Count:
    return Count(len(metas), sum(m.file_size for m in metas))


def _net(metas: tuple[ManifestMeta, ...]) -> int:
    return sum(m.added - m.deleted for m in metas)


def _balance(entries: pa.Table) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(entries.column("change"), min_count=0).as_py())


def _fields() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([
        ("snapshot", pa.int64()), ("class", pa.string()), ("change", pa.int8()), ("partition", pa.binary()),
        ("bucket", pa.int32()), ("level", pa.int32()), ("file_name", pa.string()), ("file_size", pa.int64()),
        ("row_count", pa.int64()), ("extras", pa.int32()), ("files", pa.int8()),
    ])  # fmt: skip


def _table(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables) if tables else _fields().empty_table()


def _classified(snap: Snapshot, batches: list[pa.RecordBatch], *, is_changelog: bool) -> pa.Table:
    """The entries of one delta or one changelog, each with its class."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batches:
        return _fields().empty_table()
    table = pa.Table.from_batches(batches)
    names = table.column("file_name")
    gone = pc.equal(table.column("kind"), DELETE)
    if is_changelog:
        classes = pa.repeat(CHANGELOG, table.num_rows)
    else:
        added, removed = names.filter(pc.invert(gone)), names.filter(gone)
        moved = pc.and_(pc.is_in(names, added.combine_chunks()), pc.is_in(names, removed.combine_chunks()))
        # Files written before `_FILE_SOURCE` existed: who adds above level 0, or in a COMPACT commit, compacted.
        guess = True if snap.commit_kind == "COMPACT" else pc.greater(table.column("level"), 0)
        compacted = pc.coalesce(pc.equal(table.column("file_source"), COMPACT), guess)
        classes = pc.if_else(moved, UPGRADE, pc.if_else(gone, REMOVAL, pc.if_else(compacted, REWRITE, FLUSH)))
    columns = {
        "snapshot": pa.repeat(snap.id, table.num_rows),
        "class": classes,
        "change": pc.if_else(gone, -1, 1),
        "extras": pc.coalesce(pc.list_value_length(table.column("extra_files")), 0),
        # a file that changelog files share counts once
        "files": pc.if_else(elsewhere(names), 0, 1) if is_changelog else pa.repeat(1, table.num_rows),
    }
    fields = _fields()
    return pa.table([columns[n] if n in columns else table.column(n) for n in fields.names], fields.names).cast(fields)
