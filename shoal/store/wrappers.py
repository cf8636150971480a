# SPDX-License-Identifier: Apache-2.0
"""Stores around a store: one that counts what is asked of it, one that refuses to change anything.

Invariant: apart from that they answer exactly as the store inside does, with the same URI.
"""

from __future__ import annotations

import builtins
import io
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from shoal.errors import BadRequest
from shoal.store.base import FileInfo, Sink, Store

if TYPE_CHECKING:
    import pyarrow as pa

MUTATING = ("create", "put", "sink", "delete")
READING = ("read", "read_range", "open", "size", "list", "list_dir")


class CountingStore:
    """Counts calls by name in `calls`, and bytes in `bytes_read` and `bytes_written` (through open and sink too)."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def mutations(self) -> int:
        """Calls that change files; a sink counts once."""
        return sum(self.calls[kind] for kind in MUTATING)

    def reset(self) -> None:
        """Start counting again from zero."""
        with self._lock:
            self.calls.clear()
            self.bytes_read = self.bytes_written = 0

    def _count(self, kind: str) -> None:
        with self._lock:
            self.calls[kind] += 1

    def add_read(self, count: int) -> None:
        with self._lock:
            self.bytes_read += count

    def add_written(self, count: int) -> None:
        with self._lock:
            self.bytes_written += count

    def read(self, path: str) -> bytes:
        self._count("read")
        data = self.inner.read(path)
        self.add_read(len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self._count("read_range")
        data = self.inner.read_range(path, start, length)
        self.add_read(len(data))
        return data

    def open(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        self._count("open")
        return pa.PythonFile(_CountedFile(self, self.inner.open(path)), mode="r")

    def size(self, path: str) -> int:
        self._count("size")
        return self.inner.size(path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        self._count("list")
        return self.inner.list(prefix)

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        self._count("list_dir")
        return self.inner.list_dir(prefix)

    def create(self, path: str, data: bytes) -> bool:
        self._count("create")
        created = self.inner.create(path, data)
        self.add_written(len(data) if created else 0)
        return created

    def put(self, path: str, data: bytes) -> None:
        self._count("put")
        self.inner.put(path, data)
        self.add_written(len(data))

    def sink(self, path: str) -> Sink:
        self._count("sink")
        return _CountedSink(self, self.inner.sink(path))

    def delete(self, path: str) -> None:
        self._count("delete")
        self.inner.delete(path)


class _CountedFile(io.RawIOBase):
    def __init__(self, store: CountingStore, inner: pa.NativeFile) -> None:
        self._store = store
        self._inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._inner.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._inner.seek(offset, whence))

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = self._inner.read(None if size is None or size < 0 else size)
        self._store.add_read(len(data))
        return data

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


class _CountedSink:
    def __init__(self, store: CountingStore, inner: Sink) -> None:
        self.closed = False
        self._store = store
        self._inner = inner

    def write(self, data: bytes | memoryview, /) -> int:
        try:
            count = self._inner.write(data)
        finally:
            self.closed = self._inner.closed
        self._store.add_written(count)
        return count

    def tell(self) -> int:
        return self._inner.tell()

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self.closed = True
        self._inner.close()

    def abort(self) -> None:
        self.closed = True
        self._inner.abort()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return self._inner.writable()

    def seekable(self) -> bool:
        return False


class ReadOnlyStore:
    """Reads pass through; whatever would change a file is refused."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def uri(self) -> str:
        return self.inner.uri

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.read_range(path, start, length)

    def open(self, path: str) -> pa.NativeFile:
        return self.inner.open(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return self.inner.list(prefix)

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        return self.inner.list_dir(prefix)

    def create(self, path: str, data: bytes) -> bool:
        self._refuse("create", path)

    def put(self, path: str, data: bytes) -> None:
        self._refuse("write", path)

    def sink(self, path: str) -> Sink:
        self._refuse("write", path)

    def delete(self, path: str) -> None:
        self._refuse("delete", path)

    def _refuse(self, verb: str, path: str) -> NoReturn:
        raise BadRequest(
            f"cannot {verb} {self.uri}/{path}: the store was opened read-only",
            hint="open it without read-only to change the table",
        )
