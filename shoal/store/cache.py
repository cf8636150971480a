# SPDX-License-Identifier: Apache-2.0
"""A bounded cache of decoded metadata files, which never change once written.

Invariant: the sizes of what is kept add up to at most `max_bytes`; the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


CACHE_BYTES = 128 << 20


class Cache:
    """Values by key, with their sizes in bytes; safe to use from several threads."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._items: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str], load: Callable[[], tuple[T, int]]) -> T:
        """The value of `key`; `load` gives it and its size when it is not here."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
                value: T = found[0]
                return value
        value, size = load()
        self.put(key, value, size)
        return value

    def holds(self, key: tuple[str, str]) -> bool:
        with self._lock:
            return key in self._items

    def put(self, key: tuple[str, str], value: object, size: int) -> None:
        if size > self.max_bytes:
            return
        with self._lock:
            old = self._items.pop(key, None)
            self.bytes += size - (old[1] if old else 0)
            self._items[key] = (value, size)
            while self.bytes > self.max_bytes:
                _, (_, gone) = self._items.popitem(last=False)
                self.bytes -= gone

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self.bytes = 0
