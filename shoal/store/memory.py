# SPDX-License-Identifier: Apache-2.0
"""A store in this process's memory, for tests and demonstrations.

Invariant: every change is one assignment under one lock, so a reader sees a file whole or not at all.
Modification times come from the given clock, so that expiry and orphan cleaning can be replayed.
"""

from __future__ import annotations

import builtins
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.clock import Clock, SystemClock
from shoal.errors import NotFound
from shoal.store.base import FileInfo
from shoal.store.paths import checked, folder, hidden

if TYPE_CHECKING:
    import pyarrow as pa


class MemoryStore:
    """Files in a dict. `name` only shows in the URI; `open_store("memory:name")` shares instances by it."""

    def __init__(self, name: str = "", *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._files: dict[str, tuple[bytes, int]] = {}
        self._paths: list[str] = []  # sorted: what is below a folder lies side by side

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def uri(self) -> str:
        return f"memory:{self._name}"

    def read(self, path: str) -> bytes:
        with self._lock:
            found = self._files.get(checked(path))
        if found is None:
            raise NotFound(f"no file {self.uri}/{path}")
        return found[0]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def open(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(self.read(path))

    def size(self, path: str) -> int:
        return len(self.read(path))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return iter([FileInfo(path, len(data), ms) for path, _, data, ms in self._below(folder(prefix))])

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        folders: set[str] = set()
        files: builtins.list[str] = []
        for _, rest, _, _ in self._below(folder(prefix)):
            name, deeper, _ = rest.partition("/")
            if deeper:
                folders.add(name)
            else:
                files.append(name)
        return sorted(folders), sorted(files)

    def _below(self, prefix: str) -> builtins.list[tuple[str, str, bytes, int]]:
        """Path, path relative to the folder, data and time of every file that listings show."""
        start = f"{prefix}/" if prefix else ""
        at = len(start)
        with self._lock:
            paths = self._paths
            if prefix:
                paths = paths[bisect_left(paths, start) : bisect_left(paths, f"{prefix}0")]  # "0" follows "/"
            found = [(p, p[at:], *self._files[p]) for p in paths]
        return [one for one in found if not any(map(hidden, one[1].split("/")))]

    def create(self, path: str, data: bytes) -> bool:
        entry = (bytes(data), self._clock.now_ms())
        with self._lock:
            return self._entered(checked(path), entry) is entry

    def put(self, path: str, data: bytes) -> None:
        entry = (bytes(data), self._clock.now_ms())
        with self._lock:
            self._entered(checked(path), entry)
            self._files[path] = entry

    def _entered(self, path: str, entry: tuple[bytes, int]) -> tuple[bytes, int]:
        """What the path holds: `entry` when it held nothing. Under the lock."""
        found = self._files.setdefault(path, entry)
        if found is entry:
            insort(self._paths, path)
        return found

    def sink(self, path: str) -> MemorySink:
        return MemorySink(self, checked(path))

    def delete(self, path: str) -> None:
        with self._lock:
            if self._files.pop(checked(path), None) is not None:
                del self._paths[bisect_left(self._paths, path)]


class MemorySink:
    """Collects what is written and stores it at `close`; see `base.Sink`."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self.closed = False
        self._store = store
        self._path = path
        self._data = bytearray()
        self._aborted = False

    def write(self, data: bytes | memoryview, /) -> int:
        count = memoryview(data).nbytes
        if self._aborted:  # a Parquet writer that is let go after an abort still writes its footer
            return count
        if self.closed:
            raise ValueError("write to a closed file")
        self._data += data
        return count

    def tell(self) -> int:
        return len(self._data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._store.put(self._path, bytes(self._data))

    def abort(self) -> None:
        if not self.closed:
            self.closed = self._aborted = True
            self._data.clear()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return False
