# SPDX-License-Identifier: Apache-2.0
"""A store that fails, stalls or dies at the n-th call, for crash tests and for showing what a crash does.

Invariants: the same plan and the same calls give the same fault; after a death nothing changes any more,
whoever still holds the store or one of its sinks (calls raise `Died`, writes into open sinks go nowhere).
Calls run one at a time, so no call is half-way when the store dies.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, get_args

from shoal.clock import Clock, SystemClock
from shoal.errors import BadRequest, ShoalError, StorageFailed, near
from shoal.store.base import FileInfo, Sink, Store
from shoal.store.wrappers import MUTATING, READING

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

Action = Literal["fail", "fail_after", "die", "die_after", "stall"]


class Died(BaseException):
    """The process is gone, as far as the store can tell. Not an `Exception`, so no handler goes on after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the calls `at`, `at + 1` ... (`times` of them, counted from 1).

    Counted are the calls of `kind` (any call that changes files when None; a sink counts when it closes) whose
    path contains `path`. `fail`: nothing happened, `StorageFailed`. `fail_after`: it happened, `StorageFailed`.
    `die`: nothing happened, `Died`. `die_after`: it happened, `Died`. `stall`: it happens `seconds` later.
    """

    action: Action
    at: int = 1
    kind: str | None = None
    path: str = ""
    times: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for value, known in ((self.action, get_args(Action)), (self.kind or "put", MUTATING + READING)):
            if value not in known:
                raise BadRequest(f"no fault '{value}'", hint=near(value, known) or f"one of {', '.join(known)}")

    def counts(self, kind: str, path: str) -> bool:
        return (kind in MUTATING if self.kind is None else kind == self.kind) and self.path in path


class FaultyStore:
    """`inner`, with the faults of `plan`.

    A sink that dies leaves a file cut short when `partial`, as a local disk does, or none, as S3 does.
    """

    def __init__(
        self, inner: Store, plan: Fault | Iterable[Fault] = (), *, clock: Clock | None = None, partial: bool = True
    ) -> None:
        self.inner = inner
        self.plan = (plan,) if isinstance(plan, Fault) else tuple(plan)
        self.calls: Counter[str] = Counter()
        self.dead = False
        self.partial = partial
        self.lock = threading.RLock()
        self._clock = clock or SystemClock()
        self._seen = [0] * len(self.plan)

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def mutations(self) -> int:
        """Calls so far that change files; a sink counts when it closes."""
        return sum(self.calls[kind] for kind in MUTATING)

    def check_alive(self) -> None:
        if self.dead:
            raise Died(f"{self.uri} is used after its death")

    def call(self, kind: str, path: str, do: Callable[[], T], instead: Callable[[bool], None] | None = None) -> T:
        """Run `do` as the plan wants. `instead` cleans up when it is not run; it learns whether that is a death."""
        with self.lock:
            self.check_alive()
            fault = self._due(kind, path)
            if fault is None:
                return do()
            if fault.action != "stall":
                self._strike(fault.action, f"{kind} {path}", do, instead)
        self._clock.sleep(fault.seconds)
        with self.lock:
            self.check_alive()
            return do()

    def _due(self, kind: str, path: str) -> Fault | None:
        self.calls[kind] += 1
        due = None
        for index, fault in enumerate(self.plan):
            if fault.counts(kind, path):
                self._seen[index] += 1
                if due is None and fault.at <= self._seen[index] < fault.at + fault.times:
                    due = fault
        return due

    def _strike(
        self, action: Action, what: str, do: Callable[[], object], instead: Callable[[bool], None] | None
    ) -> NoReturn:
        dies = action in ("die", "die_after")
        if action in ("fail_after", "die_after"):
            with contextlib.suppress(ShoalError):  # the caller never hears how it ended
                do()
        elif instead is not None:
            instead(dies)
        if dies:
            self.dead = True
            raise Died(f"died {'after' if action == 'die_after' else 'before'} {what}")
        raise StorageFailed(f"planned failure of {what}", hint="a test asked for it")

    def read(self, path: str) -> bytes:
        return self.call("read", path, lambda: self.inner.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.call("read_range", path, lambda: self.inner.read_range(path, start, length))

    def open(self, path: str) -> pa.NativeFile:
        return self.call("open", path, lambda: self.inner.open(path))

    def size(self, path: str) -> int:
        return self.call("size", path, lambda: self.inner.size(path))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return self.call("list", prefix, lambda: self.inner.list(prefix))

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        return self.call("list_dir", prefix, lambda: self.inner.list_dir(prefix))

    def create(self, path: str, data: bytes) -> bool:
        return self.call("create", path, lambda: self.inner.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        return self.call("put", path, lambda: self.inner.put(path, data))

    def sink(self, path: str) -> Sink:
        with self.lock:
            self.check_alive()
            return _FaultySink(self, path, self.inner.sink(path))

    def delete(self, path: str) -> None:
        return self.call("delete", path, lambda: self.inner.delete(path))


class _FaultySink:
    """Holds the last write back, so that a death at `close` can cut the file short."""

    def __init__(self, store: FaultyStore, path: str, inner: Sink) -> None:
        self.closed = False
        self._store = store
        self._path = path
        self._inner = inner
        self._tail = b""

    def write(self, data: bytes | memoryview, /) -> int:
        with self._store.lock:
            # The dead write nothing. No `Died` here: a Parquet writer that is let go still writes its footer.
            if not self._store.dead:
                try:
                    self._inner.write(self._tail)
                finally:
                    self.closed = self._inner.closed
                self._tail = bytes(data)
            return memoryview(data).nbytes

    def tell(self) -> int:
        return self._inner.tell() + len(self._tail)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        with self._store.lock:
            if self.closed:
                return
            self._store.check_alive()
        try:
            self._store.call("sink", self._path, self._finish, self._drop)
        finally:
            self.closed = True

    def _finish(self) -> None:
        self._inner.write(self._tail)
        self._inner.close()

    def _drop(self, dies: bool) -> None:
        if dies and self._store.partial:
            self._inner.write(self._tail[: len(self._tail) // 2])
            self._inner.close()
        else:
            self._inner.abort()

    def abort(self) -> None:
        with self._store.lock:
            self._store.check_alive()
            self.closed = True
            self._tail = b""
            self._inner.abort()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return False
