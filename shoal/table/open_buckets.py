# SPDX-License-Identifier: Apache-2.0
"""The buckets that a writer has open: what it knows of each, and when it must look again.

A bucket's writer is made from one snapshot, and kept from checkpoint to checkpoint. Before the first rows of a
checkpoint get their sequence numbers, one look at the newest snapshot tells whether others have written: rows that come
now are newer than theirs, whatever numbers those have. Agrees with: AbstractFileStoreWrite (2.0.0), but that Java looks
at a bucket once, so that rows written after another job's overwrite may count as older than its rows. Invariant: `base`
is a snapshot that the levels of no open bucket are newer than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.clock import Scheduler
from shoal.errors import BadRequest, NotFound
from shoal.format.datafile import DataFile
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.table.bucket_writer import AnyBucketWriter, abandon_all, bucket_writer_of, check_bucket_count
from shoal.table.buckets import UNAWARE, Group, Place
from shoal.table.commit import Commit
from shoal.table.new_files import NewFiles
from shoal.table.partition_time import check_partition, strict_time_of
from shoal.table.postpone_write import postponed_files, writing
from shoal.table.postponed import POSTPONED
from shoal.table.row_ids import MAX_SEQUENCE
from shoal.table.staged import BucketChanges
from shoal.table.writer_state import BucketState, WriterState

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

# Snapshots of others beyond which nobody asks what they hold.
_MANY = 100


@dataclass(frozen=True, slots=True)
class _Found:
    """What snapshots hold: rows of others, anything of others, checkpoints of this commit user up to `mine`."""

    rows: bool
    others: bool
    mine: int


class OpenBuckets:
    """The bucket writers of one `Write`. With `overwrites`, nothing of what is there counts."""

    def __init__(self, table: Table, commit: Commit, *, overwrites: bool = False) -> None:
        self._table = table
        self._commit = commit
        self._overwrites = overwrites
        self._strict_time = strict_time_of(table)
        self._files = NewFiles(table)
        self._late_files = postponed_files(table, commit.user) if table.options.bucket == POSTPONED else None
        self._writers: dict[Place, AnyBucketWriter] = {}
        self._behind: set[Place] = set()  # writers whose buckets others have written to
        self._modified: dict[Place, int] = {}
        self._sequences: dict[Place, int] = {}  # of buckets that were open
        self._live: pa.Table | None = None
        self._index_manifest: str | None = None
        self._seen = 0  # the snapshot up to which others' rows are known, or marked as `behind`
        self._prepares = False  # others commit what this one writes
        self._handed_out: int | None = None  # the last checkpoint whose files may not be committed yet
        self.base = 0
        """The snapshot that compactions are planned on."""
        self.touched: set[Place] = set()
        """Buckets that got rows since the last checkpoint."""

    def __bool__(self) -> bool:
        return bool(self._writers)

    def __len__(self) -> int:
        return len(self._writers)

    @property
    def writers(self) -> list[AnyBucketWriter]:
        return list(self._writers.values())

    # ---- opening

    def writer(self, group: Group) -> AnyBucketWriter:
        """The writer of a bucket that gets rows."""
        self.touched.add((group.partition, group.bucket))
        return self.found(group)

    def found(self, group: Group) -> AnyBucketWriter:
        """The writer of a bucket, made from what the table holds where it is not open."""
        place = (group.partition, group.bucket)
        found = self._writers.get(place)
        if found is None:
            if self._strict_time is not None:
                check_partition(self._table, self._strict_time, group.partition)
            live, newest = self._restored(group)
            first = max(self._sequences.get(place, 0), newest + 1)
            found = self._writers[place] = self._made(group, live, first, self._indexes(*place))
        elif place in self._behind:
            # the rows that come now are newer than what others have put there
            found.next_sequence = max(found.next_sequence, self._restored(group)[1] + 1)
            self._behind.discard(place)
        return found

    def group_of(self, partition: bytes, bucket: int) -> Group | None:
        """A bucket that has files, as a group without rows; None when another writer emptied it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        live = self._table.metadata.live(self._commit.refresh())
        there = pc.and_(
            pc.equal(live.column("partition"), pa.scalar(partition, pa.binary())),
            pc.equal(live.column("bucket"), bucket),
        )
        counts = live.filter(there).column("total_buckets")
        return Group(partition, bucket, np.empty(0, np.int64), counts[0].as_py()) if len(counts) else None

    def _made(
        self, group: Group, live: Sequence[DataFile], first: int, indexes: Sequence[IndexEntry]
    ) -> AnyBucketWriter:
        late = self._late_files if group.bucket == POSTPONED else None
        spec = (late or self._files).spec(group.partition, group.bucket)
        return bucket_writer_of(
            writing(self._table), group.partition, group.bucket, group.total_buckets, spec, live, first, indexes,
            overwrites=self._overwrites,
        )  # fmt: skip

    def _indexes(self, partition: bytes, bucket: int) -> list[IndexEntry]:
        """The index files of a bucket where its writer needs them, in the snapshot of `_restored`."""
        if self._index_manifest is None or not self._table.options.deletion_vectors:
            return []
        entries = self._table.metadata.index_entries(self._index_manifest)
        return [e for e in entries if (e.partition, e.bucket) == (partition, bucket)]

    def _restored(self, group: Group) -> tuple[list[DataFile], int]:
        """(live files of a bucket, its newest sequence number or -1).

        Append tables without buckets look at nothing, writers that do not compact only at the number, and not even
        there where a property of the snapshot has it.
        """
        table, o = self._table, self._table.options
        if self._overwrites or group.bucket == POSTPONED:
            return [], -1
        if not table.primary_key and group.total_buckets == UNAWARE:
            return [], -1
        import pyarrow as pa
        import pyarrow.compute as pc

        recorded = None
        if o.sequences_from_snapshot and table.primary_key:
            latest = self._commit.refresh()
            held = None if latest is None else (latest.properties or {}).get(MAX_SEQUENCE)
            recorded = None if held is None else int(held)
            if o.write_only and (latest is None or recorded is not None):
                if not self._writers:
                    self.base = self._seen = latest.id if latest else 0
                return [], -1 if recorded is None else recorded
        if self._live is None:
            newest = self._commit.refresh()
            self._live = table.metadata.live(newest)
            self._index_manifest = newest.index_manifest if newest else None
            if not self._writers:
                self.base = self._seen = newest.id if newest else 0
        narrow = self._live.select(["partition", "bucket", "total_buckets", "max_sequence"])
        in_partition = pc.equal(narrow.column("partition"), pa.scalar(group.partition, pa.binary()))
        there = {n for n in pc.unique(narrow.filter(in_partition).column("total_buckets")).to_pylist() if n > 0}
        check_bucket_count(table, group.total_buckets, there)
        here = pc.and_(in_partition, pc.equal(narrow.column("bucket"), group.bucket))
        found = pc.max(narrow.filter(here).column("max_sequence")).as_py()
        if found is None:
            return [], -1 if recorded is None else recorded
        number = found if recorded is None else max(found, recorded)
        if o.write_only:
            # rows that nobody orders are numbered from 0 by every writer
            return [], number if table.primary_key or o.bucket_append_ordered else -1
        return [e.file for e in entries_of(self._live.filter(here))], number

    # ---- what others do

    def look(self) -> bool:
        """Before rows get their numbers: others may have written since. Whether all buckets are to be read again.

        The first rows of a checkpoint alone ask; what happens after that is for the commit to see.
        """
        unaware = not self._table.primary_key and self._table.options.bucket == UNAWARE
        if self._overwrites or unaware or self.touched or not self._writers:
            return False
        newest = self._commit.refresh()
        last, seen = 0 if newest is None else newest.id, self._seen
        stale = self._handed_out is None and any(w.stale for w in self._writers.values())
        if last == seen:
            return stale and self.look_again()
        found = self._since(last, newest)
        if self._handed_out is not None and found.mine >= self._handed_out:
            self._handed_out = None
        self._seen = last
        if self._table.options.write_only or (not found.others and self.base == seen):
            # nothing is known of files here, or all that came is this writer's own
            self.base = last
        # where others commit what this one wrote, no commit of its own tells of their compactions
        return (found.rows or stale or (found.others and self._prepares)) and self.look_again()

    def _since(self, last: int, newest: Snapshot | None) -> _Found:
        """What came after `_seen`."""
        everything = _Found(True, True, -1)
        if newest is None or last < self._seen or last - self._seen > _MANY:
            return everything
        rows = others = False
        mine = -1
        for i in range(self._seen + 1, last + 1):
            try:
                snap = newest if i == last else self._table.metadata.snapshot(i)
            except NotFound:
                return everything
            if snap.commit_user == self._commit.user:
                mine = max(mine, snap.commit_identifier)
            else:
                others = True
                rows |= snap.commit_kind != "COMPACT"
        return _Found(rows, others, mine)

    def look_again(self) -> bool:
        """Others have changed buckets: they are read again before they are written again. Whether all will be.

        One with work under way only numbers its next rows anew. So does each where files wait for a committer
        elsewhere: the table does not show those yet.
        """
        self._live = None
        if self._handed_out is not None:
            self._behind = set(self._writers)
            return False
        kept = {}
        for place, w in self._writers.items():
            self._sequences[place] = w.next_sequence
            if w.busy:
                w.stale = True
                kept[place] = w
        self._writers, self._behind = kept, set(kept)
        latest = self._commit.refresh()
        self._seen = latest.id if latest else 0
        if not kept:
            self.base = self._seen
        return True

    # ---- checkpoints

    def take_touched(self) -> set[Place]:
        """The buckets that got rows; the next checkpoint starts."""
        found, self.touched = self.touched, set()
        return found

    def add_indexes(self, staged: Mapping[Place, tuple[Sequence[IndexEntry], Sequence[IndexEntry]]]) -> None:
        """Stage index files with the rows of their buckets: (new, deleted)."""
        for place, (new, deleted) in staged.items():
            self._writers[place].add((), (), new, deleted)

    def hand_out(self, changes: Sequence[BucketChanges], checkpoint: int | None) -> None:
        """What was staged goes to a committer elsewhere."""
        self._prepares = True
        self._live = None
        if changes:
            self._handed_out = BATCH_IDENTIFIER if checkpoint is None else checkpoint
        if checkpoint is not None:
            self._modified.update({(c.partition, c.bucket): checkpoint for c in changes})

    def committed(self, snapshot: int | None) -> bool:
        """What was staged is committed, the last of it as `snapshot`. Whether buckets are to be read again."""
        self._handed_out = None
        if self._commit.foreign_snapshot > self.base or any(w.stale for w in self._writers.values()):
            return self.look_again()
        if snapshot is not None:
            self.base = self._seen = snapshot
        return False

    def let_go(self) -> None:
        """Close writers of buckets that rest: all that they staged is committed, and no compaction runs."""
        if not self._modified:
            return
        done = self._commit.last_identifier()
        for place, w in list(self._writers.items()):
            if not w.busy and done is not None and self._modified.get(place, done) < done:
                self._sequences[place] = w.next_sequence
                del self._writers[place], self._modified[place]

    def forget(self, scheduler: Scheduler) -> None:
        """Staged files are gone with a failed commit; start from what the table holds now."""
        writers, self._writers, self._behind = self._writers, {}, set()
        self._sequences |= {place: w.next_sequence for place, w in writers.items()}
        self.touched = set()
        self._live = None
        self._handed_out = None
        abandon_all(writers.values(), scheduler)
        latest = self._commit.refresh()
        self.base = self._seen = latest.id if latest else 0

    def abandon(self, scheduler: Scheduler) -> None:
        """Delete what was not committed."""
        abandon_all(self._writers.values(), scheduler)

    # ---- from writer to writer

    def state(self, scheduler: Scheduler, *, wait: bool) -> WriterState:
        """What is known of the buckets, for a successor's `restore`."""
        buckets = []
        for place, w in self._writers.items():
            w.wait(scheduler) if wait else w.collect()
            pending = w.drain()
            if pending is not None:
                w.restage(pending)
            modified = self._modified.get(place)
            buckets.append(BucketState(*place, w.total_buckets, w.next_sequence, w.files, pending, modified))
        return WriterState(self._commit.user, self.base, tuple(buckets))

    def restore(self, state: WriterState) -> None:
        """Go on where `state` stopped."""
        if state.commit_user != self._commit.user:
            raise BadRequest(
                f"{self._table.name}: the state is of commit user '{state.commit_user}', this is '{self._commit.user}'",
                hint="open the writer with that commit user",
            )
        latest = self._commit.refresh()
        name = latest.index_manifest if latest else None
        held = self._table.metadata.index_entries(name) if name else []
        for b in state.buckets:
            place = (b.partition, b.bucket)
            indexes = [e for e in held if (e.partition, e.bucket) == place]
            if b.pending is not None and b.pending.compact_new_indexes:
                indexes = list(b.pending.compact_new_indexes)
            group = Group(*place, np.empty(0, np.int64), b.total_buckets)
            w = self._made(group, b.files, b.next_sequence, indexes)
            if b.pending is not None:
                w.restage(b.pending)
            self._writers[place] = w
            if b.modified is not None:
                self._modified[place] = b.modified
        self.base = self._seen = state.base_snapshot
        self._prepares = True
