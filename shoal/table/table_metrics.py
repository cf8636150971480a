# SPDX-License-Identifier: Apache-2.0
"""`table.metrics`: commits, compactions, scans and write buffers of one table, under Paimon's names.

Agrees with: CommitMetrics, CommitStats, CompactionMetrics, CompactTimer, ScanMetrics, WriterBufferMetric (2.0.0).
Invariant: all that work on a table through one registry share its metrics; times are milliseconds, sizes bytes; what is
reported costs a few additions, what can be asked (files at level 0, bytes that wait) is asked when it is read.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.clock import Clock, Scheduler
from shoal.format.datafile import ADD, Entry
from shoal.metrics import Group, Number, Registry
from shoal.table.staged import Content

if TYPE_CHECKING:
    from shoal.table.compact import Compacted

_BUSY_MS = 60_000
_WINDOW = 100


# ---- commits


class CommitStats(NamedTuple):
    """What one commit did. Duration in milliseconds; `snapshot` is the last that this writer made, -1 for none."""

    duration: int = 0
    attempts: int = 0
    snapshots: int = 0
    snapshot: int = -1
    partitions: int = 0
    buckets: int = 0
    appended: int = 0
    added: int = 0
    deleted: int = 0
    compacted: int = 0
    changelog_appended: int = 0
    changelog_compacted: int = 0
    rows_appended: int = 0
    rows_compacted: int = 0
    changelog_rows_appended: int = 0
    changelog_rows_compacted: int = 0
    compaction_input: int = 0
    compaction_output: int = 0

    def of(self, appended: Content, compacted: Content) -> CommitStats:
        """With what the two snapshots of a commit add and remove."""
        new, merged = appended.entries, compacted.entries
        places = {(e.partition, e.bucket) for part in (new, merged) for e in part}
        adds = sum(e.kind == ADD for e in new)
        outputs = [e.file.file_size for e in merged if e.kind == ADD]
        return self._replace(
            partitions=len({p for p, _ in places}),
            buckets=len(places),
            appended=len(new),
            added=adds + len(outputs),
            deleted=len(new) - adds + len(merged) - len(outputs),
            compacted=len(merged),
            changelog_appended=len(appended.changelog),
            changelog_compacted=len(compacted.changelog),
            rows_appended=_rows(new),
            rows_compacted=_rows(merged),
            changelog_rows_appended=_rows(appended.changelog),
            changelog_rows_compacted=_rows(compacted.changelog),
            compaction_input=sum(e.file.file_size for e in merged if e.kind != ADD),
            compaction_output=sum(outputs),
        )


def _rows(entries: Iterable[Entry]) -> int:
    return sum(e.file.row_count for e in entries)


_COMMIT = (
    ("lastCommitDuration", "duration", "Milliseconds that the last commit took."),
    ("lastCommitAttempts", "attempts", "Attempts that the snapshots of the last commit took."),
    ("lastGeneratedSnapshots", "snapshots", "Snapshots that the last commit made."),
    ("lastCommittedSnapshotId", "snapshot", "The last snapshot that the last committer made, -1 for none."),
    ("lastPartitionsWritten", "partitions", "Partitions with files in the last commit."),
    ("lastBucketsWritten", "buckets", "Buckets with files in the last commit."),
    ("lastTableFilesAdded", "added", "Data files that the last commit added, compactions included."),
    ("lastTableFilesDeleted", "deleted", "Data files that the last commit removed, compactions included."),
    ("lastTableFilesAppended", "appended", "Data files that rows of the last commit added or removed."),
    ("lastTableFilesCommitCompacted", "compacted", "Data files that compactions of the last commit added or removed."),
    ("lastChangelogFilesAppended", "changelog_appended", "Changelog files that writers made for the last commit."),
    ("lastChangelogFileCommitCompacted", "changelog_compacted", "Changelog files that its compactions made."),
    ("lastDeltaRecordsAppended", "rows_appended", "Rows of the files under lastTableFilesAppended."),
    ("lastChangelogRecordsAppended", "changelog_rows_appended", "Rows of the files under lastChangelogFilesAppended."),
    ("lastDeltaRecordsCommitCompacted", "rows_compacted", "Rows of the files under lastTableFilesCommitCompacted."),
    (
        "lastChangelogRecordsCommitCompacted",
        "changelog_rows_compacted",
        "Rows of the files under lastChangelogFileCommitCompacted.",
    ),
    ("lastCompactionInputFileSize", "compaction_input", "Bytes of the files that its compactions removed."),
    ("lastCompactionOutputFileSize", "compaction_output", "Bytes of the files that its compactions added."),
)


class CommitMetrics:
    """The last commit, and how long commits take."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.last = CommitStats()
        for name, field, text in _COMMIT:
            group.gauge(name, text, self._reader(field))
        self._durations = group.histogram("commitDuration", "Milliseconds of the last 100 commits.", _WINDOW)

    def _reader(self, field: str) -> Callable[[], Number]:
        return lambda: int(getattr(self.last, field))

    def report(self, stats: CommitStats) -> None:
        self.last = stats
        self._durations.update(stats.duration)


# ---- compactions


class BucketSizes(NamedTuple):
    """A bucket as its writer has it: files at level 0, bytes of all files, and of its last compaction."""

    level0_files: int
    total_size: int
    input_size: int
    output_size: int


class Buckets(Protocol):
    """A writer, or a job, that knows buckets which compact."""

    def bucket_sizes(self) -> Iterable[BucketSizes]: ...


class Job:
    """The buckets of a compaction job, which are remembered until the next job."""

    def __init__(self) -> None:
        self._sizes: list[BucketSizes] = []

    def add(self, sizes: Iterable[BucketSizes]) -> None:
        self._sizes.extend(sizes)

    def bucket_sizes(self) -> Iterable[BucketSizes]:
        return list(self._sizes)


class CompactionMetrics:
    """Compactions that ran, that run and that wait; sizes over the buckets of open writers and of the last job."""

    def __init__(self, group: Group, clock: Clock) -> None:
        self.group = group
        self._clock = clock
        self._writers: weakref.WeakSet[Buckets] = weakref.WeakSet()
        self._job = Job()
        self._busy = _Busy(clock)
        for name, field, text in (
            ("Level0FileCount", "level0_files", "files at level 0 of a bucket"),
            ("CompactionInputSize", "input_size", "bytes that the last compaction of a bucket took"),
            ("CompactionOutputSize", "output_size", "bytes that the last compaction of a bucket left"),
            ("TotalFileSize", "total_size", "bytes of the files of a bucket"),
        ):
            group.gauge(f"max{name}", f"Most {text}, -1 without buckets.", self._over(field, max))
            group.gauge(f"avg{name}", f"Mean {text}, -1 without buckets.", self._over(field, _mean))
        group.gauge("compactionThreadBusy", "Per cent of the last minute, of each thread.", self._busy.percent)
        group.gauge(
            "avgCompactionTime", "Mean milliseconds of the last 100 compactions.", lambda: self._times.mean(0.0)
        )
        self._completed = group.counter("compactionCompletedCount", "Compactions that ended well.")
        self._total = group.counter("compactionTotalCount", "Compactions that were asked for.")
        self._queued = group.counter("compactionQueuedCount", "Compactions that wait or run.", falls=True)
        self._times = group.histogram("compactionTime", "Milliseconds of the last 100 compactions.", _WINDOW, ours=True)
        self._read = group.counter("readBytes", "Bytes of files that compactions read.", ours=True)
        self._written = group.counter("writtenBytes", "Bytes of files that compactions wrote.", ours=True)
        self._fresh = group.counter("freshBytes", "Bytes of inputs that were not on the output level.", ours=True)
        group.gauge(
            "writeAmplification", "writtenBytes for each byte of freshBytes, 0 before any.", self._ratio, ours=True
        )

    def _over(self, field: str, fold: Callable[[list[int]], Number]) -> Callable[[], Number]:
        def read() -> Number:
            found = [getattr(s, field) for w in (*self._writers, self._job) for s in w.bucket_sizes()]
            return fold(found) if found else -1

        return read

    def _ratio(self) -> float:
        return self._written.count / self._fresh.count if self._fresh.count else 0.0

    # ---- who has buckets

    def watch(self, writer: Buckets) -> None:
        """Count the buckets of an open writer."""
        self._writers.add(writer)

    def leave(self, writer: Buckets) -> None:
        self._writers.discard(writer)

    def job(self) -> Job:
        """A new job: the buckets of the last one are forgotten."""
        self._job = Job()
        return self._job

    # ---- compactions

    def submit(self, scheduler: Scheduler, work: Callable[[], Compacted]) -> Future[Compacted]:
        """Hand a compaction to the scheduler, and count it."""

        def counted() -> Compacted:
            try:
                return self.measure(work)
            finally:
                self._queued.dec()

        self._total.inc()
        self._queued.inc()
        future = scheduler.submit(counted)
        future.add_done_callback(lambda f: self._queued.dec() if f.cancelled() else None)
        return future

    def run(self, work: Callable[[], Compacted]) -> Compacted:
        """Carry a compaction out here and now."""
        self._total.inc()
        self._queued.inc()
        try:
            return self.measure(work)
        finally:
            self._queued.dec()

    def measure(self, work: Callable[[], Compacted]) -> Compacted:
        started = self._busy.start()
        try:
            done = work()
        finally:
            took = self._busy.end(started)
        self._completed.inc()
        self._times.update(took)
        self._read.inc(done.bytes_read)
        self._written.inc(done.bytes_written)
        self._fresh.inc(done.fresh_bytes)
        return done


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


class _Busy:
    """How much of the last minute compactions ran; two at a time count twice."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[int, int] = {}
        self._ended: deque[tuple[int, int]] = deque()
        self._next = 0
        self._lock = threading.Lock()

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def start(self) -> int:
        with self._lock:
            self._next += 1
            self._running[self._next] = self._now()
            return self._next

    def end(self, which: int) -> int:
        """Milliseconds that it took."""
        with self._lock:
            start, now = self._running.pop(which), self._now()
            self._ended.append((start, now))
            self._forget(now)
            return now - start

    def percent(self) -> float:
        with self._lock:
            now = self._now()
            self._forget(now)
            spans = [*self._ended, *((start, now) for start in self._running.values())]
        return 100.0 * sum(end - max(start, now - _BUSY_MS) for start, end in spans) / _BUSY_MS

    def _forget(self, now: int) -> None:
        while self._ended and self._ended[0][1] <= now - _BUSY_MS:
            self._ended.popleft()


# ---- scans


class ScanStats(NamedTuple):
    """What planning one scan did. Duration in milliseconds; `snapshot` 0 for a table without any."""

    duration: int = 0
    snapshot: int = 0
    manifests: int = 0
    skipped: int = 0
    resulted: int = 0


_SCAN = (
    ("lastScanDuration", "duration", "Milliseconds that planning the last scan took."),
    ("lastScannedSnapshotId", "snapshot", "The snapshot of the last scan."),
    ("lastScannedManifests", "manifests", "Manifests that the last scan looked into."),
    ("lastScanSkippedTableFiles", "skipped", "Files of the snapshot that the last scan left out."),
    ("lastScanResultedTableFiles", "resulted", "Files that the last scan kept."),
)


class ScanMetrics:
    """The last scan of a snapshot, and how long planning takes."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.last = ScanStats()
        for name, field, text in _SCAN:
            group.gauge(name, text, self._reader(field))
        self._durations = group.histogram("scanDuration", "Milliseconds of planning the last 100 scans.", _WINDOW)
        self._hits = group.counter("manifestHitCache", "Manifests that scans found in the cache.")
        self._misses = group.counter("manifestMissedCache", "Manifests that scans had to read.")

    def _reader(self, field: str) -> Callable[[], Number]:
        return lambda: int(getattr(self.last, field))

    def report(self, stats: ScanStats, missed: int) -> None:
        """`missed` of the manifests were not in the cache."""
        self.last = stats
        self._durations.update(stats.duration)
        self._hits.inc(stats.manifests - missed)
        self._misses.inc(missed)


# ---- write buffers


class Buffered(Protocol):
    """An open writer: its buckets, and rows that wait in memory."""

    @property
    def bucket_count(self) -> int: ...

    @property
    def buffered_bytes(self) -> int: ...

    @property
    def buffer_size(self) -> int: ...


class WriterBufferMetrics:
    """Rows of open writers that wait in memory."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._writers: weakref.WeakSet[Buffered] = weakref.WeakSet()
        group.gauge("numWriters", "Buckets that open writers write to.", lambda: self._sum("bucket_count"))
        self.preempted = group.counter("bufferPreemptCount", "How often a full buffer was emptied before a commit.")
        group.gauge("usedWriteBufferSizeByte", "Bytes of rows that wait.", lambda: self._sum("buffered_bytes"))
        group.gauge("totalWriteBufferSizeByte", "Bytes that may wait.", lambda: self._sum("buffer_size"))

    def _sum(self, field: str) -> int:
        return sum(getattr(w, field) for w in list(self._writers))

    def watch(self, writer: Buffered) -> None:
        self._writers.add(writer)

    def leave(self, writer: Buffered) -> None:
        self._writers.discard(writer)


# ---- all of a table


class TableMetrics:
    """`table.metrics`: the groups of one table. A group exists from its first use on."""

    def __init__(self, registry: Registry, table: str, clock: Clock) -> None:
        self.registry = registry
        self._table = table
        self._clock = clock

    @cached_property
    def commit(self) -> CommitMetrics:
        return self.registry.of(CommitMetrics, "commit", table=self._table)

    @cached_property
    def compaction(self) -> CompactionMetrics:
        return self.registry.of(lambda g: CompactionMetrics(g, self._clock), "compaction", table=self._table)

    @cached_property
    def scan(self) -> ScanMetrics:
        return self.registry.of(ScanMetrics, "scan", table=self._table)

    @cached_property
    def writer_buffer(self) -> WriterBufferMetrics:
        return self.registry.of(WriterBufferMetrics, "writerBuffer", table=self._table)

    def _groups(self) -> Iterator[Group]:
        return (g for g in self.registry.groups() if g.labels == {"table": self._table})

    def to_dict(self) -> dict[str, dict[str, object]]:
        """{group: {name: value}}; a histogram is a dict of its own."""
        return {g.name: dict(g.values()) for g in self._groups()}

    def __str__(self) -> str:
        width = max((len(n) for g in self._groups() for n in g.metrics), default=0)
        lines = []
        for g in self._groups():
            lines.append(f"{self._table} {g.name}")
            for name, value in g.values().items():
                if isinstance(value, dict):
                    text = ", ".join(f"{n} {v:,g}" for n, v in value.items() if v is not None)
                else:
                    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
                lines.append(f"  {name:{width}}  {text}")
        return "\n".join(lines)
