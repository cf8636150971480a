# SPDX-License-Identifier: Apache-2.0
"""A table's changes as they are committed: a full state first where the mode says so, then snapshot after snapshot.

Agrees with: DataTableStreamScan, NextSnapshotFetcher, the Continuous starting scanners, DeltaFollowUpScanner,
ChangelogFollowUpScanner, BoundedChecker (2.0.0). Invariant: snapshots are read in order and each once; one that expired
before it was read, or that a rollback took back after it was, is an error and never a gap. A consumer's progress moves
past a snapshot only when the caller has come back for more after its last batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from shoal.errors import BadRequest, Corrupt, NotFound, Unsupported
from shoal.format.datafile import DELETE as DELETE_ENTRY
from shoal.format.snapshot import Snapshot
from shoal.lsm.merge import DELETE
from shoal.table import consumers
from shoal.table.history import History, changelog_entries, decoupled, delta_entries, in_file_order, of_kind
from shoal.table.partition_choice import chosen_now, only
from shoal.table.postponed import refuse as refuse_postponed
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.share import Share
from shoal.table.stream_start import Position, Start, expired
from shoal.table.travel import branches_of_chain, on_branch

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

# Every so many looks in vain, the reader asks whether what it waits for can still come.
_RANGE_CHECK = 16
# Waits are cut in pieces, so that closing a reader from another thread ends it soon.
_NAP_SECONDS = 0.2
# A reader that waits writes its progress anew, so that it does not look idle to expiry.
_ALIVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of one snapshot in the order of the files, with the kind of each: 0 +I, 1 -U, 2 +U, 3 -D.

    `full` marks the state a reader starts with, `last` the last batch of a snapshot.
    """

    snapshot: int
    rows: pa.RecordBatch
    kinds: pa.Array
    full: bool = False
    last: bool = True
    watermark: int | None = None

    def __len__(self) -> int:
        return self.rows.num_rows

    def to_batch(self) -> pa.RecordBatch:
        """The rows with a leading string column `rowkind`, as `$audit_log` shows them."""
        import pyarrow as pa

        names = pa.array(["+I", "-U", "+U", "-D"]).take(self.kinds)
        return self.rows.add_column(0, pa.field("rowkind", pa.string(), False), names)


class Follow(Iterator[Changes]):
    """A reader of a table's changes. Iterate over it, or call `poll` from a loop of your own.

    >>> with table.follow(consumer="bi") as changes:   # doctest: +SKIP
    ...     for c in changes:
    ...         print(c.snapshot, c.to_batch())
    """

    def __init__(
        self,
        table: Table,
        *,
        start: int | str | datetime | None = None,
        consumer: str | None = None,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        until: int | str | None = None,
        buckets: Sequence[int] | tuple[int, int] | None = None,
        poll: float | None = None,
    ) -> None:
        o = table.options  # a consumer, a delay: also where the branch is another table
        table = on_branch(table)
        if o.get("stream-scan-mode") != "none":
            raise Unsupported("'stream-scan-mode' is for Paimon's own compaction jobs", hint="leave it out")
        refuse_postponed(table, "streams")
        if branches_of_chain(table) is not None:
            from shoal.table.chain import refuse

            refuse(table, "a stream")
        self.table = table
        self._partitions = chosen_now(table)
        self._columns, self._where = columns, where
        Scan(table, where=where, columns=columns)  # an unknown column is told now, not at the first snapshot
        self._share = Share(buckets)
        self._history = History(table.metadata, decoupled(o))
        self._overwrites = _reads_overwrites(table)
        self._delay_ms = cast("int | None", o.get("streaming.read.snapshot.delay"))
        self._bound = cast("int | None", o.get("scan.bounded.watermark"))
        self._pause = cast(int, o.get("continuous.discovery-interval")) / 1000 if poll is None else poll
        self._lock = threading.Lock()
        self._consumer = consumer or cast("str | None", o.get("consumer-id"))
        self._lazy = o.get("consumer.mode") == "at-least-once"
        saved = None
        if self._consumer is not None:
            saved = consumers.progress(table.store, self._consumer)
        self._saved = saved
        self._saved_at = table.clock.monotonic()
        resumed = None if o.get("consumer.ignore-progress") else saved
        self._start = Start(table, self._history, start, resumed, self._consumer)
        self._until = self._end(until)
        self._next: int | None = None  # the snapshot to look at next
        self._taken: int | None = None  # everything below has been handed out and asked beyond
        self._before: Snapshot | None = None  # the snapshot read last
        self._rows: Iterator[Changes] | None = None
        self._reading: Snapshot | None = None
        self._misses = 0
        self._full = True  # whether the start is still to come
        self._closed = False
        self.ended = False
        self.watermark: int | None = None

    def _end(self, until: int | str | None) -> int | None:
        self._until_today = isinstance(until, str)
        if until is None or isinstance(until, int):
            return until
        if until not in ("latest", "bounded"):
            raise BadRequest(
                f"until='{until}' says no end", hint="give a snapshot id, 'latest' for today's newest, or nothing"
            )
        return self.table.metadata.latest_id() or 0

    # ---- what users call

    @property
    def next_snapshot(self) -> int | None:
        """Where a reader must start to go on after what was taken of this one; None before that is known."""
        return self._taken

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Changes:
        """The next batch of changes. Waits for it, as long as the reader has no end."""
        while True:
            found = self.poll()
            if found is not None:
                return found
            if self.ended:
                raise StopIteration
            self.rest()

    def poll(self) -> Changes | None:
        """The next batch if there is one now. None with `ended` false means: not yet."""
        with self._lock:
            if self._closed:
                self._finish()
            if self.ended:
                return None
            if self._rows is None and self._taken != self._next and not self._full:
                # whoever asks again has taken the last batch
                self._advance_taken(lazily=self._lazy)
            return self._poll()

    def _poll(self) -> Changes | None:
        while True:
            if self._rows is not None:
                found = self._next_rows()
                if found is not None:
                    return found
            if not self._look():
                self._advance_taken(lazily=False)
                if self._closed:
                    self._finish()
                return None

    def rest(self) -> None:
        """Wait for one polling interval, less when the reader is closed meanwhile."""
        left = self._pause
        while left > 0 and not self._closed:
            self.table.clock.sleep(min(left, _NAP_SECONDS))
            left -= _NAP_SECONDS

    def acknowledge(self) -> None:
        """Say that all batches so far are done with, without asking for more: the consumer's progress is written."""
        with self._lock:
            if self._rows is None and not self._full and not self.ended:
                self._advance_taken(lazily=False)

    def close(self) -> None:
        """Stop. The batch handed out last does not count as taken."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._finish()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self) -> None:
        self.ended = True
        rows, self._rows = self._rows, None
        close = getattr(rows, "close", None)
        if close is not None:
            close()

    # ---- progress

    def _advance_taken(self, *, lazily: bool) -> None:
        self._taken = self._next
        if self._consumer is None or self._taken is None or lazily:
            return
        now = self.table.clock.monotonic()
        if self._taken != self._saved or now - self._saved_at >= _ALIVE_SECONDS:
            consumers.save(self.table.store, self._consumer, self._taken)
            self._saved, self._saved_at = self._taken, now

    # ---- the plan

    def _look(self) -> bool:
        """Go to the next snapshot with something to read; False when there is none now, or at the end."""
        if self._full:
            first = self._start.position()
            if first is None:
                self.ended = self._until is not None and self._until < 1
                return False
            self._full = False
            self._next = first.next_id
            if first.snapshot is not None:
                return self._read_full(first)
            self._advance_taken(lazily=False)
            self.ended = self._past_bound(self._history.find(self._next - 1))
        while True:
            assert self._next is not None
            if self.ended or self._closed or (self._until is not None and self._next > self._until):
                self.ended = True
                return False
            snap = self._find(self._next)
            if snap is None:
                return False
            if self._past_bound(snap):
                self.ended = True
                return False
            if self._delay_ms is not None and snap.time_ms > self.table.clock.now_ms() - self._delay_ms:
                return False
            scans = self._scans(snap)
            self._before = snap
            self._next += 1
            if scans:
                self.watermark = snap.watermark
                self._reading, self._rows = snap, _batches(snap, scans, full=False)
                return True

    def _read_full(self, first: Position) -> bool:
        snap = first.snapshot
        assert snap is not None
        if self._until is not None and snap.id > self._until:
            if not self._until_today:
                self.ended = True
                raise BadRequest(
                    f"{self.table.name}: until={self._until} lies before the state of snapshot {snap.id}, which comes "
                    "first",
                    hint="give a later end, or start from an earlier place",
                )
            self._until = snap.id  # committed between opening the reader and its first look
        self._before, self.watermark = snap, snap.watermark
        if self._past_bound(snap):
            self._until = snap.id
        entries = self._share.of(self.table, only(first.entries, self._partitions))
        scans = [(self._scan(s), None) for s in _full_parts(self.table, snap, entries)]
        self._reading, self._rows = snap, _batches(snap, scans, full=True)
        return True

    def _past_bound(self, snap: Snapshot | None) -> bool:
        """Whether `scan.bounded.watermark` ends the stream before this snapshot."""
        return not (self._bound is None or snap is None or snap.watermark is None) and snap.watermark > self._bound

    def _scans(self, snap: Snapshot) -> list[tuple[Scan, int | None]]:
        """What to read of a new snapshot, each with the kind its rows get if it is not their own."""
        table, meta = self.table, self.table.metadata
        keyed = bool(table.primary_key)
        try:
            if snap.commit_kind == "OVERWRITE" and self._overwrites:
                delta = delta_entries(meta, snap)
                if not keyed:
                    return self._raw(of_kind(delta))
                # what the overwrite took away, then what it put there
                return [*self._state(of_kind(delta, DELETE_ENTRY), DELETE), *self._state(of_kind(delta), None)]
            if table.options.changelog_producer == "none":
                return self._raw(of_kind(delta_entries(meta, snap))) if snap.commit_kind == "APPEND" else []
            return self._raw(of_kind(changelog_entries(meta, snap)))
        except (NotFound, Corrupt) as err:
            raise self._gone(snap.id, err) from err

    def _raw(self, entries: pa.Table) -> list[tuple[Scan, int | None]]:
        entries = self._share.of(self.table, only(_readable(self.table, entries), self._partitions))
        if not entries.num_rows:
            return []
        entries = in_file_order(self.table, entries)
        return [(self._scan(Selected(None, entries, merge=False, deletes=True)), None)]

    def _state(self, entries: pa.Table, kind: int | None) -> list[tuple[Scan, int | None]]:
        entries = self._share.of(self.table, only(_readable(self.table, entries), self._partitions))
        return [(self._scan(Selected(None, entries, levels=0)), kind)] if entries.num_rows else []

    def _scan(self, selected: Selected) -> Scan:
        return Scan(self.table, where=self._where, columns=self._columns, selected=selected, kinds=True)

    def _next_rows(self) -> Changes | None:
        assert self._rows is not None and self._reading is not None
        try:
            found = next(self._rows, None)
        except BaseException as err:
            # half of a snapshot is out: going on would repeat or miss rows, so a new reader must start there
            self._finish()
            if isinstance(err, (NotFound, Corrupt)):
                raise self._gone(self._reading.id, err) from err
            raise
        if found is None or found.last:
            self._rows = None
        return found

    # ---- what is there, and what no longer is

    def _find(self, snapshot_id: int) -> Snapshot | None:
        found = self._history.find(snapshot_id)
        if found is None:
            self._misses += 1
            if self._misses % _RANGE_CHECK == 1:
                found = self._check_range(snapshot_id)
        if found is not None:
            self._misses = 0
            self._check_same()
        return found

    def _check_range(self, wanted: int) -> Snapshot | None:
        """Raise when the wanted snapshot can never come. It may have come just now."""
        ids = self.table.metadata.snapshot_ids()
        found = self._history.find(wanted)
        if found is not None:
            return found
        if (not ids and wanted > 1) or (ids and wanted > ids[-1] + 1):
            raise self._rolled_back(wanted)
        earliest = self._history.earliest()
        if earliest is not None and earliest > wanted:
            raise expired(self.table, self._history, wanted, self._consumer)
        return None

    def _check_same(self) -> None:
        """The snapshot read last must be the one that is there now, if it is there at all."""
        if self._before is None:
            return
        now = self._history.find(self._before.id)
        if now is not None and _identity(now) != _identity(self._before):
            raise self._rolled_back(self._before.id + 1)

    def _rolled_back(self, wanted: int) -> NotFound:
        was = (
            f"snapshot {wanted} is far from the newest one"
            if self._before is None
            else f"snapshot {wanted - 1}, which was read already, is not there any more or is another one"
        )
        return NotFound(
            f"{self.table.name}: {was}; the table was rolled back, or made anew",
            hint=f"{self._history.range_text()}; start again with a full read (start='latest-full') or from one of "
            "them" + (f", and reset the consumer '{self._consumer}'" if self._consumer else ""),
        )

    def _gone(self, snapshot_id: int, err: NotFound | Corrupt) -> NotFound | Corrupt:
        """The error for files that vanished: expiry if the snapshot went too, else what the store said."""
        if self._history.find(snapshot_id):
            return err
        return expired(self.table, self._history, snapshot_id, self._consumer)


def _identity(snap: Snapshot) -> tuple[object, ...]:
    return snap.uuid, snap.commit_user, snap.commit_identifier, snap.commit_kind, snap.time_ms


def _reads_overwrites(table: Table) -> bool:
    o = table.options
    if not table.primary_key:
        return bool(o.get("streaming-read-append-overwrite"))
    wanted = bool(o.get("streaming-read-overwrite"))
    if wanted and o.changelog_producer in ("lookup", "full-compaction"):
        raise BadRequest(
            f"'streaming-read-overwrite' with changelog-producer '{o.changelog_producer}' would give changes twice",
            hint="leave one of the two out",
        )
    return wanted


def _readable(table: Table, entries: pa.Table) -> pa.Table:
    """Postponed buckets count only where no producer waits for them to become real ones."""
    import pyarrow.compute as pc

    if not table.primary_key or table.options.changelog_producer == "none":
        return entries
    return entries.filter(pc.greater_equal(entries.column("bucket"), 0))


def _full_parts(table: Table, snap: Snapshot, entries: pa.Table) -> Iterator[Selected]:
    """The state a stream starts with: what its changelog will build on, merged; postponed rows as they lie."""
    import pyarrow.compute as pc

    o = table.options
    least = {"lookup": 1, "full-compaction": o.num_levels - 1}.get(o.changelog_producer, 0)
    postponed = pc.less(entries.column("bucket"), 0)
    keyed = bool(table.primary_key)
    yield Selected(snap, entries.filter(pc.invert(postponed)) if keyed else entries, levels=least)
    if keyed and o.changelog_producer == "none" and pc.any(postponed).as_py():
        yield Selected(None, entries.filter(postponed), merge=False, deletes=True)


def _batches(snap: Snapshot, scans: Sequence[tuple[Scan, int | None]], *, full: bool) -> Iterator[Changes]:
    """The rows of the scans one after the other; the last batch of all says so."""
    import pyarrow as pa

    held: Changes | None = None
    for scan, kind in scans:
        for batch in scan.to_batches():
            if held is not None:
                yield held
            kinds, rows = batch.column(0), batch.select(batch.schema.names[1:])
            if kind is not None:
                kinds = pa.repeat(pa.scalar(kind, pa.int8()), batch.num_rows)
            held = Changes(snap.id, rows, kinds, full, False, snap.watermark)
    if held is not None:
        yield replace(held, last=True)
