# SPDX-License-Identifier: Apache-2.0
"""Rows in, staged files out, snapshots on `commit`.

Rows wait in a columnar buffer; a flush routes them to buckets, gives them sequence numbers in order of arrival, keeps
the last version of each key and writes one level-0 file a bucket. Agrees with: AbstractFileStoreWrite, MergeTreeWriter,
StreamTableWrite (2.0.0). Invariant: nothing is visible before `commit`; a checkpoint id that this commit user has
committed is never committed again; files that are not committed are deleted on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shoal.clock import Scheduler
from shoal.errors import BadRequest, CommitUnknown, ShoalError
from shoal.format.datafile import DataFile
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.lsm.keys import column_words, last_by_key
from shoal.lsm.merge import DELETE, INSERT, KIND, SEQUENCE, UPDATE_AFTER, UPDATE_BEFORE, merge_unsorted
from shoal.table.bucket_writer import AnyBucketWriter, bucket_writer_of, check_bucket_count, compact_for_commit
from shoal.table.buckets import UNAWARE, Group, router_of
from shoal.table.commit import Commit
from shoal.table.full_compaction import FullCompactions
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.partition_time import check_partition, strict_time_of
from shoal.table.postpone_write import postponed_batches, postponed_files, writing
from shoal.table.postponed import POSTPONED
from shoal.table.rows import BATCH_ROWS, batches_of, conform
from shoal.table.staged import Committed, Staged
from shoal.table.upkeep import Keeper

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_Job = tuple[AnyBucketWriter, Group, int]  # a bucket, its rows, their first sequence number
_Flush = Callable[[_Job], list[DataFile]]

# A flush holds the buffer, the rows of the buckets it encodes, and Parquet pages.
_BUFFER_SHARE = 0.4
# Below this many rows, threads cost more than they give.
_PARALLEL_ROWS = 100_000


class Write:
    """A writer for one commit user. Not for several threads.

    >>> with table.write(commit_user="ingest-1") as w:   # doctest: +SKIP
    ...     w.upsert(batch)
    ...     w.commit(checkpoint=42)
    """

    def __init__(self, table: Table, commit_user: str | None = None, *, ignore_previous: bool = False) -> None:
        """`ignore_previous`: the rows replace what is there, so nothing of it is read (an overwrite)."""
        prefix = table.options.commit_user_prefix
        self.table = table
        self.commit_user = commit_user or (f"{prefix}_" if prefix else "") + new_uuid(table)
        self._named = commit_user is not None
        self._ignore_previous = ignore_previous
        self._commit = Commit(table, self.commit_user, table.rng)
        self._scheduler: Scheduler = table.new_scheduler()
        self._budget = table.budget()
        batch = not self._named
        self._router = router_of(table, self._commit, self._budget, overwrite=ignore_previous, batch=batch)
        limit = min(table.options.write_buffer_size, int(self._budget.total * _BUFFER_SHARE))
        self._buffer_limit = limit
        self._buffer: list[pa.RecordBatch] = []
        self._buffered = 0
        self._routed: tuple[pa.Table, list[Group], int] | None = None
        self._writers: dict[tuple[bytes, int], AnyBucketWriter] = {}
        self._live: pa.Table | None = None
        self._index_manifest: str | None = None
        self._base = 0
        self._sequences: dict[tuple[bytes, int], int] = {}
        self._last_identifier: int | None = None
        self._looked_back = False
        self._unclear: tuple[Staged, int] | None = None
        self._files = NewFiles(table)
        self._late_files = postponed_files(table, self.commit_user) if table.options.bucket == POSTPONED else None
        self._full = FullCompactions(table, commit_user)
        self._touched: set[tuple[bytes, int]] = set()  # buckets with rows of this checkpoint
        self._closed = False
        self._empty_too = table.options.ignore_empty_commit is False
        self._strict_time = strict_time_of(table)
        self.keeper = Keeper(table, self._scheduler)

    @property
    def committer(self) -> Commit:
        """What makes this writer's snapshots."""
        return self._commit

    # ---- rows

    def upsert(self, data: Any) -> None:
        """Insert rows or replace those with the same primary key (kind +U)."""
        self._need_key("upsert", "use append()")
        self._add(data, UPDATE_AFTER)

    def append(self, data: Any) -> None:
        """Add rows (kind +I). On a primary-key table the caller says that the keys are new."""
        self._add(data, INSERT)

    def delete(self, data: Any) -> None:
        """Delete by primary key (kind -D); other columns may be left out."""
        self._need_key("delete", "delete from append tables is not supported yet")
        self._add(data, DELETE)

    def write(self, data: Any, kinds: pa.Array | Sequence[int]) -> None:
        """Rows with their kinds: 0 +I, 1 -U, 2 +U, 3 -D, one a row."""
        import pyarrow as pa

        array = kinds if isinstance(kinds, pa.Array) else pa.array(kinds, pa.int8())
        at = 0
        for batch in batches_of(data, self.table.name):
            self._add(batch, array.slice(at, batch.num_rows))
            at += batch.num_rows
        if at != len(array):
            raise BadRequest(f"{self.table.name}: {at} rows and {len(array)} kinds")

    def _need_key(self, verb: str, hint: str) -> None:
        if not self.table.primary_key:
            raise BadRequest(f"{self.table.name} has no primary key: {verb} needs one", hint=hint)

    def _add(self, data: Any, kind: int | pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._closed:
            raise BadRequest(f"{self.table.name}: this writer is closed", hint="open a new one with table.write()")
        table = self.table
        for batch in batches_of(data, table.name):
            if not batch.num_rows:
                continue
            needed = table.primary_key if isinstance(kind, int) and kind == DELETE else None
            if not isinstance(kind, int):
                kinds = kind.cast(pa.int8())
                if kinds.null_count or not pc.all(pc.is_in(kinds, pa.array([0, 1, 2, 3], pa.int8()))).as_py():
                    raise BadRequest(f"{table.name}: a row kind is not one of 0 +I, 1 -U, 2 +U, 3 -D")
                retract = pc.is_in(kinds, pa.array([UPDATE_BEFORE, DELETE], pa.int8()))
                if not table.primary_key and pc.any(retract).as_py():
                    raise BadRequest(f"{table.name} has no primary key: it takes no -U or -D rows")
            else:
                kinds = pa.array(np.full(batch.num_rows, kind, np.int8))
                retract = None
            rows = conform(batch, table.schema, table.name, needed)
            if table.primary_key:
                rows = rows.append_column(KIND, kinds)
                if table.options.ignore_delete:
                    if retract is None and kind == DELETE:
                        continue
                    if retract is not None:
                        rows = rows.filter(pc.invert(retract))
            self._buffer.append(rows)
            size = rows.nbytes
            self._buffered += size
            self._budget.reserve(size)
            if self._buffered >= self._buffer_limit:
                self.flush()

    # ---- flush

    def flush(self) -> None:
        """Write the buffered rows to files. Called by itself when the buffer is full and at every commit."""
        import pyarrow as pa

        if self._routed is None:
            if not self._buffer:
                return
            arrived = pa.Table.from_batches(self._buffer).combine_chunks()
            # after a failure the rows are still here for another try, placed as they are: a key moves once
            self._routed = (*self._router.route(arrived), self._buffered)
            self._buffer, self._buffered = [], 0
        rows, groups, size = self._routed
        writers = [self._writer(g) for g in groups]
        for w in writers:
            w.brake(self._scheduler, at_commit=False)
        words = None
        if self.table.primary_key and not self.table.rules.sequence_fields:
            words = [w for k in self.table.schema.trimmed_keys for w in column_words(rows.column(k).combine_chunks())]
        bytes_a_row = max(1.0, size / max(1, rows.num_rows))
        jobs = [(w, g, w.take_sequences(len(g.rows))) for w, g in zip(writers, groups)]

        def one(job: _Job) -> list[DataFile]:
            writer, group, first = job
            batches = self._batches(rows, group, first, words)
            return writer.flush(batches, first, int(bytes_a_row * len(group.rows)))

        done = self._each(one, jobs, parallel=rows.num_rows >= _PARALLEL_ROWS)
        self._routed = None
        self._budget.release(size)
        self._touched.update((w.partition, w.bucket) for w in writers)
        for (writer, _, _), files in zip(jobs, done):
            writer.add(files)
        self.flush()  # what came after a failure

    def _each(self, one: _Flush, jobs: Sequence[_Job], *, parallel: bool) -> list[list[DataFile]]:
        """Flush every bucket; when one fails, delete the files of the others."""
        done: dict[int, list[DataFile]] = {}

        def go(i: int) -> None:
            done[i] = one(jobs[i])

        try:
            if parallel and len(jobs) > 1:
                with ThreadPoolExecutor(min(len(jobs), _cores())) as pool:
                    list(pool.map(go, range(len(jobs))))
            else:
                for i in range(len(jobs)):
                    go(i)
        except ShoalError:
            for i, files in done.items():
                for f in files:
                    jobs[i][0].at.spec.remove(f)
            raise
        return [done[i] for i in range(len(jobs))]

    def _batches(self, rows: pa.Table, group: Group, first: int, words: list[Any] | None) -> list[pa.RecordBatch]:
        """The rows of one bucket as they are written: for keyed tables sorted, the last version of each key."""
        import pyarrow as pa

        if group.bucket == POSTPONED:
            return list(postponed_batches(self.table, rows, group))
        if not self.table.primary_key:
            part = rows if len(group.rows) == rows.num_rows else rows.take(pa.array(group.rows))
            return part.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        if words is not None:
            whole = len(group.rows) == rows.num_rows
            local = last_by_key(words if whole else [w[group.rows] for w in words])
            part = rows.take(pa.array(local if whole else group.rows[local]))
            part = part.append_column(SEQUENCE, pa.array(first + local))
        else:
            part = rows.take(pa.array(group.rows))
            part = part.append_column(SEQUENCE, pa.array(np.arange(first, first + len(group.rows))))
            part = merge_unsorted(part, self.table.rules)
        return part.to_batches(max_chunksize=BATCH_ROWS)

    def _writer(self, group: Group) -> AnyBucketWriter:
        key = (group.partition, group.bucket)
        found = self._writers.get(key)
        if found is None:
            if self._strict_time is not None:
                check_partition(self.table, self._strict_time, group.partition)
            live, newest = self._restore(group)
            files = self._late_files if group.bucket == POSTPONED and self._late_files else self._files
            spec = files.spec(group.partition, group.bucket)
            first = max(self._sequences.get(key, 0), newest + 1)
            indexes = self._indexes(*key)
            found = bucket_writer_of(
                writing(self.table), *key, group.total_buckets, spec, live, first, indexes,
                overwrites=self._ignore_previous,
            )  # fmt: skip
            self._writers[key] = found
        return found

    def _group_of(self, partition: bytes, bucket: int) -> Group | None:
        """A bucket that has files, as a group without rows; None when another writer emptied it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        live = self.table.metadata.live(self._commit.refresh())
        there = pc.and_(
            pc.equal(live.column("partition"), pa.scalar(partition, pa.binary())),
            pc.equal(live.column("bucket"), bucket),
        )
        counts = live.filter(there).column("total_buckets")
        return Group(partition, bucket, np.empty(0, np.int64), counts[0].as_py()) if len(counts) else None

    def _indexes(self, partition: bytes, bucket: int) -> list[IndexEntry]:
        """The index files of a bucket where its writer needs them, in the snapshot of `_restore`."""
        if self._index_manifest is None or not self.table.options.deletion_vectors:
            return []
        entries = self.table.metadata.index_entries(self._index_manifest)
        return [e for e in entries if (e.partition, e.bucket) == (partition, bucket)]

    def _restore(self, group: Group) -> tuple[list[DataFile], int]:
        """(live files of a bucket, its newest sequence number or -1).

        Append tables without buckets look at nothing, writers that do not compact only at the number.
        """
        if self._ignore_previous or group.bucket == POSTPONED:
            return [], -1
        if not self.table.primary_key and group.total_buckets == UNAWARE:
            return [], -1
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._live is None:
            newest = self._commit.refresh()
            self._live = self.table.metadata.live(newest)
            self._index_manifest = newest.index_manifest if newest else None
            if not self._writers:
                self._base = newest.id if newest else 0
        narrow = self._live.select(["partition", "bucket", "total_buckets", "max_sequence"])
        in_partition = pc.equal(narrow.column("partition"), pa.scalar(group.partition, pa.binary()))
        there = {n for n in pc.unique(narrow.filter(in_partition).column("total_buckets")).to_pylist() if n > 0}
        check_bucket_count(self.table, group.total_buckets, there)
        here = pc.and_(in_partition, pc.equal(narrow.column("bucket"), group.bucket))
        newest = pc.max(narrow.filter(here).column("max_sequence")).as_py()
        if newest is None or self.table.options.write_only:
            return [], -1 if newest is None else newest
        return [e.file for e in entries_of(self._live.filter(here))], newest

    # ---- commit

    def commit(
        self,
        checkpoint: int | None = None,
        *,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Committed:
        """Make everything written so far visible.

        `checkpoint` ids of a commit user ascend; committing one again is a no-op (`replayed`). Without one this is a
        batch commit, which also waits for the compaction it causes. `watermark` is in epoch milliseconds, `properties`
        go into the snapshot.
        """
        if self._unclear is not None:
            return self._again(checkpoint)
        if checkpoint is not None and self._is_replay(checkpoint):
            self._drop()
            return Committed(replayed=True)
        full = self._full.due(checkpoint)
        staged = self.prepare(
            wait=checkpoint is None, compact="full" if full else None, watermark=watermark, properties=properties
        )
        identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
        try:
            committed = self._commit.commit(staged, identifier, force_snapshot=self._forced(identifier))
        except CommitUnknown:
            self._unclear = (staged, identifier)
            raise
        except ShoalError:
            self._forget()
            raise
        self._after(committed, checkpoint)
        return self.keeper.after(committed, identifier)

    def _forced(self, identifier: int) -> bool:
        """Whether a commit without changes makes a snapshot all the same."""
        return self._empty_too or self.keeper.wants_snapshot(identifier, self._commit.refresh)

    def _again(self, checkpoint: int | None) -> Committed:
        """The outcome of the last commit is unclear: settle that one before anything else."""
        assert self._unclear is not None
        staged, identifier = self._unclear
        if identifier != (BATCH_IDENTIFIER if checkpoint is None else checkpoint):
            raise BadRequest(
                f"{self.table.name}: the outcome of checkpoint {identifier} is still unclear",
                hint="commit that checkpoint again first",
            )
        committed = self._commit.commit(staged, identifier, force_snapshot=self._forced(identifier))
        self._unclear = None
        self._after(committed, checkpoint)
        return self.keeper.after(committed, identifier)

    def _after(self, committed: Committed, checkpoint: int | None) -> None:
        compacted = self._full.due(checkpoint) and committed.compaction_conflict is None
        self._full.committed(self._touched, full=compacted)
        self._touched = set()
        self._router.committed()
        if checkpoint is not None and committed.snapshots:
            self._last_identifier, self._looked_back = checkpoint, True
        if committed.compaction_conflict is not None:
            self._forget()
        elif self._commit.foreign_snapshot > self._base or any(w.stale for w in self._writers.values()):
            self._reload_later()
        elif committed.snapshots:
            self._base = committed.snapshots[-1]

    def prepare(
        self,
        *,
        wait: bool = False,
        compact: str | None = None,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Staged:
        """Flush, collect finished compactions, start the next ones; what is to be committed, as a value.

        With `wait`, compactions started here are waited for. `compact` (`minor` or `full`) compacts the buckets that
        got rows, and waits for it.
        """
        self.flush()
        for place, (new, deleted) in self._router.staged().items():
            self._writers[place].add((), (), new, deleted)
        asked = {} if compact is None else dict.fromkeys(self._touched, compact)
        if compact == "full":
            for place in self._full.places() - set(asked):
                group = self._group_of(*place)
                if group is not None:
                    self._writer(group)
                    asked[place] = compact
        writers = list(self._writers.values())
        compact_for_commit(writers, self._scheduler, self._budget, wait=wait, asked=asked)
        drained = [c for w in writers if (c := w.drain()) is not None]
        return Staged(tuple(drained), self._base, watermark, dict(properties or {}))

    def last_checkpoint(self) -> int | None:
        """The newest checkpoint id that this commit user has committed."""
        if not self._looked_back:
            self._looked_back = True
            self._last_identifier = self._commit.last_identifier() if self._named else None
        return self._last_identifier

    def _is_replay(self, checkpoint: int) -> bool:
        last = self.last_checkpoint()
        return last is not None and last != BATCH_IDENTIFIER and checkpoint <= last

    def _reload_later(self) -> None:
        """Another writer has committed: buckets are read again before they are written again."""
        self._router.forget()
        kept = {}
        for key, w in self._writers.items():
            self._sequences[key] = w.next_sequence
            if w.busy:
                w.stale = True
                kept[key] = w
        self._writers = kept
        self._live = None
        if not kept:
            latest = self._commit.refresh()
            self._base = latest.id if latest else 0

    def _forget(self) -> None:
        """Staged files are gone with a failed commit; start from what the table holds now."""
        self._router.forget()
        for key, w in self._writers.items():
            w.abandon(self._scheduler)
            self._sequences[key] = w.next_sequence
        self._writers = {}
        self._touched = set()
        self._live = None
        latest = self._commit.refresh()
        self._base = latest.id if latest else 0

    def _drop(self) -> None:
        """Forget rows and files that were written for nothing."""
        self._buffer = []
        self._budget.release(self._buffered + (self._routed[2] if self._routed else 0))
        self._buffered, self._routed = 0, None
        self._forget()

    # ---- end

    def close(self) -> None:
        """Delete what was not committed and free the writer's threads."""
        if self._closed:
            return
        self._closed = True
        self._buffer = []
        try:
            if self._unclear is None:
                for w in self._writers.values():
                    w.abandon(self._scheduler)
        finally:
            self._router.close()
            self._scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cores() -> int:
    import os

    return os.cpu_count() or 1
