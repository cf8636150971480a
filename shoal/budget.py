# SPDX-License-Identifier: Apache-2.0
"""A memory budget that is counted: whoever holds Arrow data says how much.

Invariant: `used` is the sum of what is reserved and not yet released. The budget refuses nothing by itself: the write
buffer flushes at a share of `total`, and the merge loads no more than a share of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_BYTES = 256 << 20


class Budget:
    """`total` bytes shared by everything that was given this object; safe to use from several threads."""

    def __init__(self, total: int = DEFAULT_BYTES) -> None:
        self.total = total
        self.used = 0
        self.peak = 0
        self._lock = threading.Lock()

    def reserve(self, size: int) -> None:
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)

    def release(self, size: int) -> None:
        with self._lock:
            self.used -= size

    def share(self, parts: int) -> Budget:
        """A budget of an equal part, for one of `parts` workers."""
        return Budget(max(1 << 20, self.total // max(1, parts)))


def give_back() -> None:
    """Let Arrow's allocator give freed memory back to the system.

    It keeps what each kind of work left in it, so that one after the other costs the sum of their peaks: 100 MB where
    2 MB are in use. A call costs a few per cent of the decoding of a batch, so it stands between blocks of rows.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def settled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each once what its making left behind has been given back."""
    for batch in batches:
        give_back()
        yield batch
