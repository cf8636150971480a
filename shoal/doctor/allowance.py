# SPDX-License-Identifier: Apache-2.0
"""How much a look may ask of the store: requests, bytes, and requests a second.

Invariant: a look that its allowance cuts ends between two snapshots, never within one, and has seen at least one new
snapshot where there is one; so looking again and again catches up, however small the allowance.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.clock import Clock
from shoal.errors import BadRequest
from shoal.store.base import FileInfo, Store
from shoal.store.wrappers import CountingStore, ReadOnlyStore

if TYPE_CHECKING:
    import pyarrow as pa


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of one look; None is no limit. A look that is `stopped` ends at its next request, with no result."""

    max_requests: int | None = None
    max_bytes: int | None = None
    rps: float | None = None  # requests a second
    stopped: Callable[[], bool] = _never

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_bytes", "rps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadRequest(f"{name} is {value}", hint="give a number above 0, or leave it out for no limit")


FREE = Allowance()


class MeteredStore(CountingStore):
    """A read-only store that counts, keeps to `rps` on the clock, and knows when the allowance is spent."""

    def __init__(self, inner: Store, allowance: Allowance, clock: Clock) -> None:
        super().__init__(ReadOnlyStore(inner))
        self.of = inner
        self.allowance = allowance
        self._clock = clock
        self._next = clock.monotonic()

    @property
    def requests(self) -> int:
        return self.calls.total()

    def can_afford(self, requests: int = 1, size: int = 0) -> bool:
        """Whether so much more is still within the allowance."""
        most, most_bytes = self.allowance.max_requests, self.allowance.max_bytes
        if most is not None and self.requests + requests > most:
            return False
        return most_bytes is None or self.bytes_read + size < most_bytes

    def _pace(self) -> None:
        if self.allowance.stopped():
            raise KeyboardInterrupt
        if self.allowance.rps is None:
            return
        now = self._clock.monotonic()
        if now < self._next:
            self._clock.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.allowance.rps

    def read(self, path: str) -> bytes:
        self._pace()
        return super().read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self._pace()
        return super().read_range(path, start, length)

    def open(self, path: str) -> pa.NativeFile:
        self._pace()
        return super().open(path)

    def size(self, path: str) -> int:
        self._pace()
        return super().size(path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        self._pace()
        return super().list(prefix)

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        self._pace()
        return super().list_dir(prefix)
