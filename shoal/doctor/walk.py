# SPDX-License-Identifier: Apache-2.0
"""The walk over snapshots: for each its JSON, its manifest lists, and the manifests of delta and changelog.

Base manifests are never read, so the cost follows the new snapshots and not the live files. Snapshots are taken a span
at a time: a walk that goes on from known manifests reads few of the lists (lists.py), and the manifests of a span are
decoded together. Every entry gets one class: `flush` (a writer's new file), `rewrite` (a compaction's new file),
`upgrade` (a level change, nothing written), `removal`, `changelog`.

Invariants: a file that vanished while it was read is a lost snapshot, not an error, and leaves the walk as it was;
the live files that the manifest lists add up to are checked at each snapshot against the entries, and a manifest that
no list of its snapshot was read for, against the number of records that the snapshot tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.lists import Listed, Metas, each_list, few_lists, vanished
from shoal.doctor.window import CHANGELOG, FLUSH, NOTHING, REMOVAL, REWRITE, UPGRADE, Count
from shoal.errors import NotFound, ShoalError
from shoal.format import manifest, paths
from shoal.format.compacted_changelog import elsewhere
from shoal.format.datafile import COMPACT, DELETE
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

# Snapshots whose lists are looked at together, and bytes of manifests that are decoded together.
_SPAN, _TOGETHER_BYTES = 64, 4 << 20
# What is left to read of a snapshot at most, once its JSON is here: two lists and a manifest; a changelog's list and
# manifest.
_OWED, _OWED_CHANGELOG = 3, 2
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


@dataclass(frozen=True, slots=True)
class _Read:
    """A snapshot with all that was read of it."""

    snapshot: Snapshot
    listed: Listed
    changelog: Metas
    files: Mapping[str, Count]  # its own files by the words of METADATA, and its index manifest, whoever wrote it
    data: tuple[bytes, ...]  # of the manifests of delta and changelog


def _always(requests: int = 1, size: int = 0) -> bool:
    return True


class Walk:
    """What a walk has seen so far, and what it could not see. `finish` gives the steps and their entries.

    `sparing`: lists that a later one tells are not read; else every file that a snapshot names is, but base manifests.
    `can_afford` says whether so many more requests and bytes are allowed; a walk that was `cut` takes no more.
    """

    def __init__(
        self, reader: Metadata, *, sparing: bool = False, can_afford: Callable[[int, int], bool] = _always
    ) -> None:
        self.reader = reader
        self.lost: list[tuple[int, int, str]] = []
        self.inherited: dict[str, Count] = {}
        self.cut = False
        self._sparing, self._can_afford = sparing, can_afford
        self._waiting: list[tuple[Snapshot, int]] = []  # with the sizes of their files
        self._drafts: list[tuple[Step, int]] = []  # with the live files before it
        self._tables: list[pa.Table] = []
        self._seen: set[str] = set()  # manifests and index manifests that are not new any more
        self._sizes: dict[str, int] = {}  # of index manifests, which many snapshots may share
        self._at: int | None = None  # the snapshot before this one, when it was seen
        self._after: Metas = ()  # its manifests
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
        self._live, self._at, self._after = _net(metas), snap.id, metas

    @property
    def owed(self) -> int:
        """Requests at most for the snapshots whose JSON alone was read."""
        return sum(_OWED + _OWED_CHANGELOG * (s.changelog_manifest_list is not None) for s, _ in self._waiting)

    def visit(self, snapshot_id: int) -> bool:
        """See one snapshot; False when the file itself is not there, which is no loss yet."""
        found = self.read(snapshot_id)
        if found is None:
            self.settle()
            self._at = None
            return False
        self._waiting.append(found)
        if len(self._waiting) >= _SPAN:
            self.settle()
        return True

    def settle(self) -> bool:
        """Read what the snapshots that wait have made; False when the allowance ends the walk before the last one."""
        span, self._waiting = self._waiting, []
        if not span or self.cut:
            return not self.cut
        snaps = [s for s, _ in span]
        after = self._after if self._at == snaps[0].id - 1 else None
        listed = few_lists(self.reader, after, snaps) if self._sparing else each_list(self.reader, snaps)
        at, begun = 0, bool(self._drafts or self.lost)
        while at < len(span) and not self.cut:
            reads, end = self._read_some(span, listed, at, begun)
            if self._add(reads):
                at, begun = end, True
            else:  # a delta is not what the later list seemed to say: nothing is taken on trust from here on
                listed[at:], self.cut = each_list(self.reader, snaps[at:]), False
        return not self.cut

    def _read_some(
        self, span: Sequence[tuple[Snapshot, int]], listed: Sequence[Listed | ShoalError], at: int, begun: bool
    ) -> tuple[list[_Read | tuple[int, str]], int]:
        """The manifests of snapshots from `at` on, or why one is lost: so many as are decoded together."""
        out: list[_Read | tuple[int, str]] = []
        total = 0
        while at < len(span) and total < _TOGETHER_BYTES:
            (snap, size), found = span[at], listed[at]
            try:
                if not isinstance(found, Listed):
                    raise found
                changelog = self.reader.changelog(snap)
                metas = (*found.delta, *changelog)
                need = sum(m.file_size for m in metas)
                if begun and not self._can_afford(len(metas), need):
                    self.cut = True
                    break
                data = tuple(self.reader.read(paths.manifest(m.file_name), m.file_size) for m in metas)
                out.append(_Read(snap, found, changelog, self._files(snap, size), data))
                total += need
            except ShoalError as err:
                if not vanished(err):
                    raise
                out.append((snap.id, err.message))
            at, begun = at + 1, True
        return out, at

    def _add(self, reads: Sequence[_Read | tuple[int, str]]) -> bool:
        """Take what was read; False, with nothing taken, when a delta that no list told cannot be the snapshot's."""
        there = [r for r in reads if isinstance(r, _Read)]
        table = self._decoded(there)
        if table is not None:
            if not _told_by_records(there, table):
                return False
            self._tables.append(table)
        for r in reads:
            if isinstance(r, _Read):
                self._see(r)
            else:
                self.lost.append((r[0], r[0], r[1]))
                self._at = None
        return True

    def _see(self, read: _Read) -> None:
        snap, base, delta, changelog = read.snapshot, read.listed.base, read.listed.delta, read.changelog
        wrote = {**read.files, "delta-manifest": _total(delta), "changelog-manifest": _total(changelog)}
        # Without the snapshot before, a base manifest may be of any age, unless there was no table before.
        known = self._at == snap.id - 1 or not base
        index = snap.index_manifest
        fresh = {"merged-manifest": _total([m for m in base if m.file_name not in self._seen])}
        fresh["index-manifest"] = NOTHING if index in self._seen else wrote["index-manifest"]
        wrote |= fresh if known else dict.fromkeys(fresh, NOTHING)
        if not known:
            self.inherited = {k: self.inherited.get(k, NOTHING) + c for k, c in fresh.items()}
        metas = read.listed.after
        before = self._live if self._at == snap.id - 1 else _net(base)
        self._live = _net(metas)  # a step that does not hold must not spoil the ones after it
        self._at, self._after = snap.id, metas
        self._seen.update(m.file_name for m in metas)
        self._seen.update([index] if index else [])
        deletes = sum(m.deleted for m in metas)
        step = Step(snap, wrote, _total(metas), self._live, 0, self._live + 2 * deletes, deletes, known)
        self._drafts.append((step, before))

    def _files(self, snap: Snapshot, size: int) -> dict[str, Count]:
        """The files that a snapshot names, but manifests. Sizes are asked for where it does not say them."""
        index = snap.index_manifest
        return {
            "snapshot": Count(1, size),
            "base-list": self._file(snap.base_manifest_list, snap.base_manifest_list_size),
            "delta-list": self._file(snap.delta_manifest_list, snap.delta_manifest_list_size),
            "changelog-list": self._file(snap.changelog_manifest_list, snap.changelog_manifest_list_size),
            "index-manifest": NOTHING if index in self._seen else self._file(index, self._sizes.get(index or "")),
        }

    def _file(self, name: str | None, size: int | None) -> Count:
        if name is None:
            return NOTHING
        if size is None:
            size = self._sizes[name] = self.reader.store.size(paths.manifest(name))
        return Count(1, size)

    def _decoded(self, reads: Sequence[_Read]) -> pa.Table | None:
        """The entries of manifests that were read, with the snapshot they belong to; None without a manifest."""
        import numpy as np
        import pyarrow as pa

        files, ids, logs = [], [], []
        for r in reads:
            for m, data in zip((*r.listed.delta, *r.changelog), r.data, strict=True):
                files.append((data, f"{self.reader.store.uri}/{paths.manifest(m.file_name)}"))
                ids.append(r.snapshot.id)
            logs += [False] * len(r.listed.delta) + [True] * len(r.changelog)
        if not files:
            return None
        whole, each = manifest.decode_many(files)
        counts = [b.num_rows for b in each]
        table = pa.Table.from_batches([b.select(list(_TAKEN)) for b in whole])
        table = table.append_column("snapshot", pa.array(np.repeat(np.array(ids, np.int64), counts)))
        return table.append_column("is_changelog", pa.array(np.repeat(np.array(logs, np.bool_), counts)))

    def finish(self) -> tuple[tuple[Step, ...], pa.Table]:
        """The steps, oldest first, and every entry of their deltas and changelogs, each with its class."""
        import numpy as np
        import pyarrow as pa

        self.settle()
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


def _told_by_records(reads: Sequence[_Read], table: pa.Table) -> bool:
    """Whether the deltas that no list told add up to the records that their snapshots say they added."""
    import numpy as np
    import pyarrow.compute as pc

    doubtful = [r.snapshot for r in reads if not r.listed.told]
    if not doubtful:
        return True
    delta = table.filter(pc.invert(table.column("is_changelog")))
    rows = delta.column("row_count").to_numpy()
    net = np.where(pc.equal(delta.column("kind"), DELETE).to_numpy(), -rows, rows)
    ids, at = np.unique(delta.column("snapshot").to_numpy(), return_inverse=True)
    sums = np.zeros(len(ids), np.int64)
    np.add.at(sums, at, net)
    added = dict(zip(ids.tolist(), sums.tolist()))
    return all(added.get(s.id) == s.delta_record_count for s in doubtful)


def _total(metas: Metas | list[ManifestMeta]) -> Count:
    return Count(len(metas), sum(m.file_size for m in metas))


def _net(metas: Metas) -> int:
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
