# SPDX-License-Identifier: Apache-2.0
"""How far a compaction job is: what has been read of the files that it takes.

Readers report each batch, so progress moves inside a bucket too; rows that are sorted count as often as they are
handled (`Pass`). Where nobody listens nothing is counted. Invariant:
what is done only grows and ends at what was planned; whoever listens is called in the thread that began the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.format.datafile import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.budget import Budget
    from shoal.lsm.sort import Read, SortOrder


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: buckets (or groups of files), files and bytes, and seconds since it began."""

    tasks: int
    tasks_done: int
    files: int
    files_done: int
    bytes: int
    bytes_done: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the bytes done; None before there are any."""
        if not self.bytes_done:
            return None
        return self.seconds * (self.bytes - self.bytes_done) / self.bytes_done


Tell = Callable[[Progress], None]


class Meter:
    """Counts for one job. `tasks` are the files that each of them takes, whose rows are handled `passes` times."""

    def __init__(
        self, tasks: Sequence[Sequence[DataFile]], monotonic: Callable[[], float], tell: Tell | None, passes: int = 1
    ) -> None:
        self._tasks, self._passes = tasks, passes
        self._left = {f.file_name: f.row_count * passes for files in tasks for f in files}
        self._monotonic, self._started = monotonic, monotonic()
        self._tell, self._thread = tell, threading.get_ident()
        self._files, self._bytes = len(self._left), sum(f.file_size for files in tasks for f in files)
        self._tasks_done = self._files_done = self._bytes_done = 0
        self._lock = threading.Lock()

    @property
    def listening(self) -> Meter | None:
        """For readers; None where nobody listens, so that they count nothing."""
        return None if self._tell is None else self

    def read(self, file: DataFile, rows: int) -> None:
        """So many more rows of a file have gone through a pass. Files that are not of the job do not count."""
        with self._lock:
            left = self._left.get(file.file_name, 0)
            if not left:
                return
            now = self._left[file.file_name] = max(0, left - rows)
            self._bytes_done += self._bytes_of(file, left) - self._bytes_of(file, now)
            self._files_done += not now
        self.told()

    def ended(self, task: int) -> None:
        """A task is done: its files count in full, also those that only moved up and were never read."""
        with self._lock:
            for f in self._tasks[task]:
                left = self._left.pop(f.file_name, None)
                if left is not None and (left or not f.row_count):
                    self._bytes_done += self._bytes_of(f, left)
                    self._files_done += 1
            self._tasks_done += 1

    def told(self) -> None:
        """Tell how far it is, in the job's own thread; other threads only count."""
        if self._tell is not None and threading.get_ident() == self._thread:
            self._tell(
                Progress(
                    len(self._tasks), self._tasks_done, self._files, self._files_done, self._bytes, self._bytes_done,
                    self._monotonic() - self._started,
                )
            )  # fmt: skip

    def _bytes_of(self, file: DataFile, rows: int) -> int:
        """What so many rows of a file take of it, all passes being its size."""
        every = file.row_count * self._passes
        return file.file_size * rows // every if every else file.file_size


class Pass:
    """Another pass of the rows of some files, in an order of their own: they count for one file after the other."""

    def __init__(self, meter: Meter, files: Sequence[DataFile]) -> None:
        self._meter = meter
        self._files = [(f, f.row_count) for f in reversed(files)]

    def __call__(self, rows: int) -> None:
        """So many more rows have gone through it."""
        while rows and self._files:
            file, left = self._files.pop()
            here = min(rows, left)
            if here < left:
                self._files.append((file, left - here))
            rows -= here
            self._meter.read(file, here)


def in_order(
    read: Read, order: SortOrder, budget: Budget, meter: Meter | None, files: Sequence[DataFile]
) -> Iterator[pa.RecordBatch]:
    """The rows that `read` gives of the files, sorted; the meter, of `PASSES` passes, hears of each of them.

    A first look at the columns of the order does not count, but is told, so as not to look like a job that hangs.
    """
    from shoal.lsm.sort import sorted_rows

    if meter is None:
        yield from sorted_rows(read, order, budget)
        return

    def told(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in read(columns):
            if columns is not None:
                meter.told()
            yield batch

    out = Pass(meter, files)
    for batch in sorted_rows(told, order, budget, Pass(meter, files)):
        yield batch
        out(batch.num_rows)
