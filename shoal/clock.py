# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: the wall clock, a clock moved by hand, and where background work runs.

Invariant: nothing else in shoal reads the time or waits. Snapshot times, file creation times and
checkpoint intervals all come from the `Clock` that was passed in, so a replay on a `ManualClock`
with a `ManualScheduler` gives the same table every time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, tzinfo
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# A wait is cut into pieces: Python sees Ctrl-C between them.
LOOK_S = 0.1


class Clock(Protocol):
    """Wall time in epoch milliseconds, monotonic seconds, and waiting."""

    zone: tzinfo

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


def local_ms(clock: Clock, epoch_ms: int) -> int:
    """Local wall clock of `epoch_ms` in the clock's zone, as if it were UTC: the form of `_CREATION_TIME`."""
    offset = datetime.fromtimestamp(epoch_ms / 1000, clock.zone).utcoffset()
    return epoch_ms if offset is None else epoch_ms + round(offset.total_seconds() * 1000)


class SystemClock:
    """The machine's own time."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self.zone = zone or datetime.now().astimezone().tzinfo or UTC

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class ManualClock:
    """A clock that stands still until it is moved; `sleep` moves it. Starts at `start_ms` (epoch milliseconds)."""

    def __init__(self, start_ms: int = 1_767_225_600_000, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._ms = float(start_ms)
        self._start = float(start_ms)
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return (self._ms - self._start) / 1000

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._ms += max(0.0, seconds) * 1000


class Scheduler(Protocol):
    """Where work beside the caller runs. Work submitted must not wait for other submitted work."""

    def submit(self, work: Callable[[], T]) -> Future[T]: ...

    def wait(self, future: Future[T]) -> T: ...

    def close(self) -> None: ...


class ManualScheduler:
    """Runs work when told to, in the order of submission, in the caller's thread.

    `run_pending` plays the background between two checkpoints; `wait` runs what is due first.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._queue.append((future, work))
        return future

    def run_pending(self) -> int:
        """Run everything submitted so far; returns how many."""
        n = len(self._queue)
        for _ in range(n):
            self._run(*self._queue.popleft())
        return n

    def wait(self, future: Future[T]) -> T:
        while not future.done() and self._queue:
            self._run(*self._queue.popleft())
        return future.result(timeout=0)

    def close(self) -> None:
        for future, _ in self._queue:
            future.cancel()
        self._queue.clear()

    @staticmethod
    def _run(future: Future[Any], work: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as err:
            future.set_exception(err)
            if not isinstance(err, Exception):
                raise


class ThreadScheduler:
    """Runs work on `threads` background threads."""

    def __init__(self, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._pool.submit(work)

    def wait(self, future: Future[T]) -> T:
        return future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class WatchedThreads(ThreadScheduler):
    """Threads; whoever waits for their work looks around meanwhile, and hears Ctrl-C."""

    def __init__(self, threads: int, look: Callable[[], None]) -> None:
        super().__init__(threads)
        self._look = look

    def wait(self, future: Future[T]) -> T:
        while not future.done():
            wait((future,), timeout=LOOK_S)
            self._look()
        return future.result()
