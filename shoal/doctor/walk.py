# SPDX-License-Identifier: Apache-2.0
"""The walk over snapshots: for each its JSON, its manifest lists, and the manifests of delta and changelog.

Base manifests are never read, so the cost follows the new snapshots and not the live files; the manifests of many
snapshots are decoded together. Every entry gets one class: `flush` (a writer's new file), `rewrite` (a compaction's
new file), `upgrade` (a level change, nothing written), `removal`, `changelog`.

Invariants: a file that vanished while it was read is a lost snapshot, not an error, and leaves the walk as it was;
the live files that the manifest lists add up to are checked at each snapshot against the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.window import CHANGELOG, FLUSH, NOTHING, REMOVAL, REWRITE, UPGRADE, Count
from shoal.errors import Corrupt, NotFound, ShoalError
from shoal.format import manifest, paths
from shoal.format.compacted_changelog import elsewhere
from shoal.format.datafile import COMPACT, DELETE
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

# Manifests that are decoded together: bounded by bytes and by number.
_TOGETHER_BYTES, _TOGETHER = 4 << 20, 512
_TAKEN = (
    "kind", "partition", "bucket", "total_buckets", "level", "file_name", "file_size", "row_count",
    "delete_row_count", "min_sequence", "max_sequence", "extra_files", "file_source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled snapshot: the metadata files it wrote, and the live data files after it, counted twice."""

    snapshot: Snapshot
    wrote: Mapping[str, Count]  # one key per word of METADATA
    manifests: Count  # base and delta manifests: what a reader of this snapshot opens
    live_listed: int  # added - deleted over the rows of base and delta list
    live_replayed: int  # the step before, plus and minus this delta's entries
    listed_entries: int = 0  # rows of base and delta manifests
    listed_deletes: int = 0  # of these, DELETE rows
    follows: bool = True  # the snapshot before was seen too, or there was none

    @property
    def holds(self) -> bool:
        """Whether both counts agree."""
        return self.live_listed == self.live_replayed


def vanished(err: ShoalError) -> bool:
    """A missing file, met directly or by `Metadata`, which calls a missing manifest `Corrupt`."""
    return isinstance(err, NotFound) or (isinstance(err, Corrupt) and isinstance(err.__cause__, NotFound))


class Walk:
    """What a walk has seen so far, and what it could not see. `finish` gives the steps and their entries."""

    def __init__(self, reader: Metadata) -> None:
        self.reader = reader
        self.lost: list[tuple[int, int, str]] = []
        self.inherited: dict[str, Count] = {}
        self._drafts: list[tuple[Step, int]] = []  # with the live files before it
        self._pending: list[tuple[int, bool, str, bytes]] = []
        self._pending_bytes = 0
        self._tables: list[pa.Table] = []
        self._seen: set[str] = set()  # manifests and index manifests that are not new any more
        self._at: int | None = None  # the snapshot before this one, when it was seen
        self._live = 0

    def read(self, snapshot_id: int) -> tuple[Snapshot, int] | None:
        """A snapshot and the size of its file; None when it is not there."""
        path = paths.snapshot(snapshot_id)
        try:
            data = self.reader.store.read(path)
        except NotFound:
            return None
        return decode_snapshot(data, f"{self.reader.store.uri}/{path}"), len(data)

    def stand_on(self, snap: Snapshot) -> None:
        """Learn which manifests are old from the snapshot before the first one, if its lists are still there."""
        try:
            metas = self.reader.manifests(snap)
        except ShoalError as err:
            if not vanished(err):
                raise
            return
        self._seen.update(m.file_name for m in metas)
        self._seen.update([snap.index_manifest] if snap.index_manifest else [])
        self._live, self._at = _net(metas), snap.id

    def visit(self, snapshot_id: int) -> bool:
        """See one snapshot; False when the file itself is not there, which is no loss yet."""
        found = self.read(snapshot_id)
        if found is None:
            self._at = None
            return False
        try:
            self._see(*found)
        except ShoalError as err:
            if not vanished(err):
                raise
            self.lost.append((snapshot_id, snapshot_id, err.message))
            self._at = None
        return True

    def _see(self, snap: Snapshot, size: int) -> None:
        reader = self.reader
        base, delta, changelog = reader.base(snap), reader.delta(snap), reader.changelog(snap)
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
        pending = []
        for metas, is_changelog in ((delta, False), (changelog, True)):
            for m in metas:
                path = paths.manifest(m.file_name)
                pending.append((snap.id, is_changelog, f"{reader.store.uri}/{path}", reader.read(path, m.file_size)))

        # Nothing below reads, so a vanished file leaves the walk as it was.
        if not known:
            self.inherited = {k: self.inherited.get(k, NOTHING) + c for k, c in fresh.items()}
        metas = (*base, *delta)
        before = self._live if self._at == snap.id - 1 else _net(base)
        self._live = _net(metas)  # a step that does not hold must not spoil the ones after it
        self._at = snap.id
        self._seen.update(m.file_name for m in metas)
        self._seen.update([index] if index else [])
        deletes = sum(m.deleted for m in metas)
        step = Step(snap, wrote, _total(metas), self._live, 0, self._live + 2 * deletes, deletes, known)
        self._drafts.append((step, before))
        self._pending += pending
        self._pending_bytes += sum(len(data) for *_, data in pending)
        if self._pending_bytes >= _TOGETHER_BYTES or len(self._pending) >= _TOGETHER:
            self._decode()

    def _file(self, name: str | None, size: int | None) -> Count:
        """One file of the manifest folder; its size is asked for when the snapshot does not say it."""
        if name is None:
            return NOTHING
        return Count(1, self.reader.store.size(paths.manifest(name)) if size is None else size)

    def _decode(self) -> None:
        """The entries of the manifests that wait, with the snapshot they belong to."""
        import numpy as np
        import pyarrow as pa

        if not self._pending:
            return
        whole, each = manifest.decode_many([(data, path) for _, _, path, data in self._pending])
        counts = [b.num_rows for b in each]
        table = pa.Table.from_batches([b.select(list(_TAKEN)) for b in whole])
        ids = np.repeat(np.array([p[0] for p in self._pending], np.int64), counts)
        logs = np.repeat(np.array([p[1] for p in self._pending], np.bool_), counts)
        table = table.append_column("snapshot", pa.array(ids)).append_column("is_changelog", pa.array(logs))
        self._tables.append(table)
        self._pending, self._pending_bytes = [], 0

    def finish(self) -> tuple[tuple[Step, ...], pa.Table]:
        """The steps, oldest first, and every entry of their deltas and changelogs, each with its class."""
        import numpy as np
        import pyarrow as pa

        self._decode()
        ids = np.array([s.snapshot.id for s, _ in self._drafts], np.int64)
        compacts = np.array([s.snapshot.commit_kind == "COMPACT" for s, _ in self._drafts], np.bool_)
        entries = entry_fields().empty_table()
        if self._tables:
            entries = _classified(pa.concat_tables(self._tables), ids, compacts)
        moves = entries.filter(pa.compute.not_equal(entries.column("class"), CHANGELOG))
        change = np.asarray(moves.column("change").to_numpy(), np.int64)
        balance = np.bincount(np.searchsorted(ids, moves.column("snapshot").to_numpy()), change, len(ids))
        steps = []
        for (step, before), net in zip(self._drafts, balance.astype(np.int64).tolist()):
            steps.append(
                Step(
                    step.snapshot, step.wrote, step.manifests, step.live_listed, before + net, step.listed_entries,
                    step.listed_deletes, step.follows,
                )
            )  # fmt: skip
        return tuple(steps), entries


def _total(metas: tuple[ManifestMeta, ...] | list[ManifestMeta]) -> Count:
    return Count(len(metas), sum(m.file_size for m in metas))


def _net(metas: tuple[ManifestMeta, ...]) -> int:
    return sum(m.added - m.deleted for m in metas)


def entry_fields() -> pa.Schema:
    """Columns of the entries: one row per manifest entry; an upgrade has two, one per level."""
    import pyarrow as pa

    return pa.schema([
        ("snapshot", pa.int64()), ("class", pa.string()), ("change", pa.int8()), ("partition", pa.binary()),
        ("bucket", pa.int32()), ("level", pa.int32()), ("file_name", pa.string()), ("file_size", pa.int64()),
        ("row_count", pa.int64()), ("extras", pa.int32()), ("total_buckets", pa.int32()),
        ("deleted_rows", pa.int64()), ("min_sequence", pa.int64()), ("max_sequence", pa.int64()), ("files", pa.int8()),
    ])  # fmt: skip


def _classified(table: pa.Table, ids: Any, compacts: Any) -> pa.Table:  # arrays of int64 and of bool
    """The entries of all snapshots together, each with its class."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.combine_chunks()
    gone = pc.equal(table.column("kind"), DELETE).to_numpy()
    logs = table.column("is_changelog").to_numpy()
    at = np.searchsorted(ids, table.column("snapshot").to_numpy())
    names = table.column("file_name").combine_chunks().dictionary_encode()
    key = at * max(len(names.dictionary), 1) + names.indices.to_numpy()
    in_delta = ~logs
    # A name that one delta adds and removes has moved to another level.
    moved = in_delta & np.isin(key, np.intersect1d(key[in_delta & gone], key[in_delta & ~gone]))
    # Files written before `_FILE_SOURCE` existed: who adds above level 0, or in a COMPACT commit, compacted.
    guess = pc.or_(pc.greater(table.column("level"), 0), pa.array(compacts[at]))
    compacted = pc.coalesce(pc.equal(table.column("file_source"), COMPACT), guess).to_numpy()
    words = np.array([FLUSH, REWRITE, REMOVAL, UPGRADE, CHANGELOG], object)
    which = np.where(logs, 4, np.where(moved, 3, np.where(gone, 2, np.where(compacted, 1, 0))))
    columns = {
        "class": pa.DictionaryArray.from_arrays(pa.array(which, pa.int8()), pa.array(words)).cast(pa.string()),
        "change": pa.array(np.where(gone, -1, 1), pa.int8()),
        "extras": pc.coalesce(pc.list_value_length(table.column("extra_files")), 0),
        "deleted_rows": pc.coalesce(table.column("delete_row_count"), 0),
        # a file that changelog files share counts once
        "files": pc.if_else(elsewhere(names.dictionary), 0, 1).take(names.indices),
    }
    fields = entry_fields()
    return pa.table([columns[n] if n in columns else table.column(n) for n in fields.names], fields.names).cast(fields)
