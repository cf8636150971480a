# SPDX-License-Identifier: Apache-2.0
"""Rows in, staged files out, snapshots on `commit`.

Rows are checked (`rows`), get their kind (`row_kinds`) and wait in a columnar buffer (`write_buffer`, `append_buffer`);
a flush routes them to buckets, gives them sequence numbers in order of arrival and writes one level-0 run a bucket.
Agrees with: AbstractFileStoreWrite, TableWriteImpl, StreamTableWrite (2.0.0). Invariant: nothing is visible before
`commit`; a checkpoint id that this commit user has committed is never committed again; files that are not committed are
deleted on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from shoal.clock import Scheduler
from shoal.errors import BadRequest, CommitUnknown, Conflict, ShoalError
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.lsm import java_order
from shoal.table.append_buffer import AppendBuffer
from shoal.table.blob_writer import check_blobs
from shoal.table.bucket_writer import (
    AnyBucketWriter,
    compact_for_commit,
    drain_all,
)
from shoal.table.buckets import Group, Router, router_of
from shoal.table.clustered_compact import clustered_order
from shoal.table.commit import Commit
from shoal.table.compact import Compacted
from shoal.table.full_compaction import FullCompactions
from shoal.table.local_merge import LocalMerge
from shoal.table.new_files import new_uuid
from shoal.table.open_buckets import OpenBuckets
from shoal.table.precommit import check_precommit
from shoal.table.row_kinds import DELETE, INSERT, TEXTS, UPDATE_AFTER, RowKinds, kind_array
from shoal.table.rows import batches_of, conform
from shoal.table.staged import Committed, Staged
from shoal.table.stored_lookups import check_lookups
from shoal.table.table_metrics import BucketSizes
from shoal.table.upkeep import Keeper
from shoal.table.write_buffer import KeyedBuffer
from shoal.table.writer_state import WriterState

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_KIND_COLUMN = "_VALUE_KIND"


class Write:
    """A writer for one commit user. Not for several threads.

    >>> with table.write(commit_user="ingest-1") as w:   # doctest: +SKIP
    ...     w.upsert(batch)
    ...     w.commit(checkpoint=42)
    """

    def __init__(
        self,
        table: Table,
        commit_user: str | None = None,
        *,
        ignore_previous: bool = False,
        router: Router | None = None,
        scheduler: Scheduler | None = None,
        threads: int = 1,
    ) -> None:
        """`ignore_previous`: the rows replace what is there, so nothing of it is read (an overwrite).

        `router` places the rows, where it is not for the table's options to say. Compactions run on `scheduler`, the
        table's unless given; so many `threads` of it share the memory.
        """
        check_blobs(table)
        check_precommit(table)
        if not table.options.write_only:
            check_lookups(table)
        if table.clustered and not table.options.write_only:
            clustered_order(table)  # what cannot be compacted is told before there are rows
        prefix = table.options.commit_user_prefix
        self.table = table
        self.commit_user = commit_user or (f"{prefix}_" if prefix else "") + new_uuid(table)
        self._named = commit_user is not None
        self._commit = Commit(table, self.commit_user, table.rng)
        self._scheduler: Scheduler = table.new_scheduler() if scheduler is None else scheduler
        self._budget = table.budget()
        self._compaction_budget = self._budget if threads <= 1 else self._budget.share(threads)
        self._kinds = RowKinds(table)
        batch = not self._named
        self._router = router or router_of(table, self._commit, self._budget, overwrite=ignore_previous, batch=batch)
        buffer = KeyedBuffer if table.primary_key else AppendBuffer
        self._buffer = buffer(table, self._router, self._budget, self)
        size = table.options.local_merge_buffer_size
        merges = bool(table.primary_key) and size is not None
        self._local = LocalMerge(table, size, self._buffer.add) if merges and size is not None else None
        self._open = OpenBuckets(table, self._commit, overwrites=ignore_previous)
        self._lost = False  # a commit failed, and nobody has written its rows again
        self._last_identifier: int | None = None
        self._looked_back = False
        self._unclear: tuple[Staged, int] | None = None
        self._full = FullCompactions(table, commit_user)
        self._closed = False
        self._empty_too = table.options.ignore_empty_commit is False
        self.keeper = Keeper(table, self._scheduler)
        self.compacted: list[tuple[bytes, int, Compacted]] = []
        """What the compactions did that entered the last commit or `prepare`, by partition and bucket."""
        self.metrics = table.metrics
        self.metrics.compaction.watch(self)
        self.metrics.writer_buffer.watch(self)

    @property
    def committer(self) -> Commit:
        """What makes this writer's snapshots."""
        return self._commit

    # ---- what is measured

    def bucket_sizes(self) -> Iterator[BucketSizes]:
        """Sizes of the buckets that this writer compacts."""
        return (s for w in self._open.writers if (s := w.sizes) is not None)

    @property
    def bucket_count(self) -> int:
        return len(self._open)

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.waiting.bytes

    @property
    def buffer_size(self) -> int:
        return self._buffer.waiting.limit

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
        self._need_key("delete", "table.delete(where) finds the rows by a condition")
        self._add(data, DELETE)

    def write(self, data: Any, kinds: pa.Array | Sequence[int] | Sequence[str] | str | None = None) -> None:
        """Rows with their kinds: one a row, as 0 +I, 1 -U, 2 +U, 3 -D or as these texts, or the name of their column.

        Without `kinds`, the table's `rowkind.field` says, else a column `_VALUE_KIND` of the data, else all are +I.
        """
        array = None if kinds is None or isinstance(kinds, str) else kind_array(kinds, self.table.name)
        named = kinds if isinstance(kinds, str) else _KIND_COLUMN if kinds is None else None
        at = 0
        for batch in batches_of(data, self.table.name):
            if array is not None:
                self._add(batch, array.slice(at, batch.num_rows))
            else:
                self._add(*self._kind_column(batch, named, needed=kinds is not None))
            at += batch.num_rows
        if array is not None and at != len(array):
            raise BadRequest(f"{self.table.name}: {at} rows and {len(array)} kinds")

    def _kind_column(
        self, batch: pa.RecordBatch, name: str | None, *, needed: bool
    ) -> tuple[pa.RecordBatch, int | pa.Array]:
        at = -1 if name is None else batch.schema.get_field_index(name)
        if at < 0:
            if needed:
                raise BadRequest(f"{self.table.name}: the data has no column '{name}' with row kinds")
            return batch, INSERT
        kinds = kind_array(batch.column(at), self.table.name)
        return (batch if name in self.table.schema.names else batch.remove_column(at)), kinds

    def _need_key(self, verb: str, hint: str) -> None:
        if not self.table.primary_key:
            raise BadRequest(f"{self.table.name} has no primary key: {verb} needs one", hint=hint)

    def _add(self, data: Any, kind: int | pa.Array) -> None:
        if self._closed:
            raise BadRequest(f"{self.table.name}: this writer is closed", hint="open a new one with table.write()")
        table = self.table
        needed = table.primary_key if isinstance(kind, int) and kind == DELETE else None
        for batch in batches_of(data, table.name):
            if not batch.num_rows:
                continue
            rows = conform(self._with_kind_field(batch, kind), table.schema, table.name, needed)
            rows = self._kinds.applied(rows, kind)
            if rows.num_rows:
                self._lost = False
                self._local.add(rows) if self._local else self._buffer.add(rows)

    def replay(self, rows: pa.RecordBatch, kinds: pa.Array) -> None:
        """Rows as files hold them, a kind for each: they were checked when they came."""
        rows = self._kinds.applied(rows, kinds)
        if rows.num_rows:
            self._lost = False
            self._buffer.add(rows)

    def _with_kind_field(self, batch: pa.RecordBatch, kind: int | pa.Array) -> pa.RecordBatch:
        """A verb says the kind where the table's `rowkind.field` is left out; where it is given, it decides."""
        import pyarrow as pa

        field = self._kinds.field
        if field is None or field in batch.schema.names:
            return batch
        kinds = pa.array(np.full(batch.num_rows, kind, np.int8)) if isinstance(kind, int) else kind
        return batch.append_column(field, pa.array(TEXTS, pa.string()).take(kinds))

    # ---- flush

    def flush(self) -> None:
        """Write the buffered rows to files. Called by itself when the buffer is full and at every commit."""
        if self._local is not None:
            self._local.flush()
        self._buffer.flush()

    def writer(self, group: Group) -> AnyBucketWriter:
        """The writer of a bucket, made from what the table holds."""
        return self._open.writer(group)

    def look(self) -> None:
        """Before the first rows of a checkpoint are placed: whether others have written since the last."""
        if self._open.look():
            self._router.forget()

    def look_again(self) -> None:
        """Others have changed buckets: they are read again before they are written again."""
        self._open.look_again()

    def brake(self, writer: AnyBucketWriter) -> None:
        """Hold a flush while the bucket has too many runs."""
        writer.brake(self._scheduler, at_commit=False)

    # ---- commit

    def commit(
        self,
        checkpoint: int | None = None,
        *,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
        compact: Literal["minor", "full"] | None = None,
        wait: bool = False,
        force_snapshot: bool = False,
    ) -> Committed:
        """Make everything written so far visible.

        `checkpoint` ids of a commit user ascend; committing one again is a no-op (`replayed`). Without one this is a
        batch commit, which also waits for the compaction it causes. `watermark` is in epoch milliseconds, `properties`
        go into the snapshot, `compact` and `wait` are those of `prepare`. `force_snapshot` makes a snapshot even where
        nothing changed.

        An error before the snapshot is made (a data file that cannot be written) leaves all rows with this writer:
        commit again. One while it is made (`Conflict`, `StorageFailed`) leaves none: write the rows again; a commit
        without them is refused. The error's hint says which. `CommitUnknown` asks for the same commit again.
        """
        if self._unclear is not None:
            return self._again(checkpoint)
        if checkpoint is not None and self._is_replay(checkpoint):
            self._drop()
            return Committed(replayed=True)
        if self._lost:
            raise BadRequest(
                f"{self.table.name}: the last commit failed, its rows are gone from this writer, nothing was written "
                "since",
                hint="write everything since the last good commit again, then commit",
            )
        full = self._full.due(checkpoint)
        try:
            staged = self._prepare("every" if full else compact, wait or checkpoint is None, watermark, properties)
        except ShoalError as err:
            err.hint = err.hint or "the rows are still with this writer: commit again"
            raise
        identifier = BATCH_IDENTIFIER if checkpoint is None else checkpoint
        try:
            forced = force_snapshot or self._forced(identifier)
            committed = self._commit.commit(staged, identifier, force_snapshot=forced)
        except CommitUnknown:
            self._unclear = (staged, identifier)
            raise
        except ShoalError as err:
            self._forget()
            self._lost = bool(staged.changes)
            err.hint = err.hint or "nothing was committed: write everything since the last good commit again"
            raise
        self._after(committed, checkpoint)
        committed = self._compacted_again(staged, committed, identifier)
        return self.keeper.after(committed, identifier)

    def _compacted_again(self, staged: Staged, committed: Committed, identifier: int) -> Committed:
        """Where rows show once they are compacted, a compaction that met a conflict is planned again, and waited for.

        Java fails the job instead, and the rows show after the next write to their bucket.
        """
        o = self.table.options
        if committed.compaction_conflict is None or not (o.needs_lookup and bool(o.get("lookup-wait"))):
            return committed
        asked = {(c.partition, c.bucket): "minor" for c in staged.changes}
        try:
            for place in asked:
                group = self._open.group_of(*place)
                if group is not None:
                    self._open.found(group)
            writers = self._open.writers
            compact_for_commit(writers, self._scheduler, self._compaction_budget, asked=asked)
            drained = tuple(drain_all(writers))
            again = Staged(drained, self._open.base, staged.watermark, staged.properties)
            made = self._commit.commit(again, identifier) if drained else Committed()
        except CommitUnknown:
            self._unclear = (again, identifier)
            raise
        except Conflict as err:
            self._forget()
            return replace(committed, compaction_conflict=err.message)
        except ShoalError:
            self._forget()
            raise
        if made.snapshots:
            self._open.base = made.snapshots[-1]
        return replace(committed, snapshots=(*committed.snapshots, *made.snapshots), compaction_conflict=None)

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
        self._full.committed(self._open.take_touched(), full=compacted)
        self._router.committed()
        if checkpoint is not None and committed.snapshots:
            self._last_identifier, self._looked_back = checkpoint, True
        if committed.compaction_conflict is not None:
            self._forget()
        elif self._open.committed(committed.snapshots[-1] if committed.snapshots else None):
            self._router.forget()

    def prepare(
        self,
        checkpoint: int | None = None,
        *,
        compact: Literal["minor", "full"] | None = None,
        wait: bool = False,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Staged:
        """Flush, collect finished compactions, start the next ones; what is to be committed, as a value.

        For a committer elsewhere, which commits it as `checkpoint`. With `wait`, compactions started here are waited
        for; `compact` starts one in every bucket written since the last checkpoint, and waits.
        """
        full = checkpoint is not None and self._full.due(checkpoint)
        staged = self._prepare("every" if full else compact, wait, watermark, properties)
        self._full.committed(self._open.take_touched(), full=full)
        self._open.hand_out(staged.changes, checkpoint)
        self._router.committed()  # as far as this writer knows: its next index files build on these
        if self._named:
            self._open.let_go()
        return staged

    def _prepare(
        self,
        compact: Literal["minor", "full", "every"] | None,
        wait: bool,
        watermark: int | None,
        properties: Mapping[str, str] | None,
    ) -> Staged:
        """`every`: in full, those too that were written at earlier checkpoints and not compacted since."""
        self.flush()
        self._open.add_indexes(self._router.staged())
        how: Literal["minor", "full"] = "minor" if compact == "minor" else "full"
        asked = {} if compact is None else dict.fromkeys(self._open.touched, how)
        if compact == "every":
            for place in self._full.places() - set(asked):
                group = self._open.group_of(*place)
                if group is not None:
                    self._open.found(group)
                    asked[place] = how
        writers = self._open.writers
        compact_for_commit(writers, self._scheduler, self._compaction_budget, wait=wait, asked=asked)
        self.compacted = [(w.partition, w.bucket, c) for w in writers for c in w.compactions]
        drained = drain_all(writers)
        # readers come to partitions in the order of the manifest: rows of a key that moved between two, in Java's
        order = {p: i for i, p in enumerate(java_order.of_rows(list(dict.fromkeys(c.partition for c in drained))))}
        drained.sort(key=lambda c: (order[c.partition], c.bucket))
        return Staged(tuple(drained), self._open.base, watermark, dict(properties or {}), self._router.placed())

    def state(self, *, wait: bool = False) -> WriterState:
        """What this writer knows, for a successor's `restore`. Call it after `prepare`; this writer must stop then.

        Rows that are buffered become files first, which are in the state. With `wait`, running compactions are waited
        for; without, their work is lost, never their rows.
        """
        self.flush()
        self._open.add_indexes(self._router.staged())
        self._router.committed()
        return self._open.state(self._scheduler, wait=wait)

    def restore(self, state: WriterState) -> None:
        """Go on where the writer of `state` stopped. Checkpoints that it prepared are to be committed first."""
        if self._open or self._buffer:
            raise BadRequest(f"{self.table.name}: this writer has written already", hint="restore a new one")
        self._open.restore(state)

    def abort(self, *staged: Staged) -> None:
        """Delete the files of prepared values that will not be committed."""
        for s in staged:
            self._commit.abort(s)

    def last_checkpoint(self) -> int | None:
        """The newest checkpoint id that this commit user has committed."""
        if not self._looked_back:
            self._looked_back = True
            self._last_identifier = self._commit.last_identifier() if self._named else None
        return self._last_identifier

    def _is_replay(self, checkpoint: int) -> bool:
        last = self.last_checkpoint()
        return last is not None and last != BATCH_IDENTIFIER and checkpoint <= last

    def _forget(self) -> None:
        """Staged files are gone with a failed commit; start from what the table holds now."""
        self._router.forget()
        self._open.forget(self._scheduler)

    def _drop(self) -> None:
        """Forget rows and files that were written for nothing."""
        self._clear()
        self._forget()

    def _clear(self) -> None:
        if self._local is not None:
            self._local.clear()
        self._buffer.clear()

    # ---- end

    def close(self) -> None:
        """Delete what was not committed and free the writer's threads."""
        if self._closed:
            return
        self._closed = True
        self.metrics.compaction.leave(self)
        self.metrics.writer_buffer.leave(self)
        try:
            self._clear()
            if self._unclear is None:
                self._open.abandon(self._scheduler)
        finally:
            self._router.close()
            self._scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
