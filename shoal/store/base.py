# SPDX-License-Identifier: Apache-2.0
"""The Store protocol: what shoal needs of a place that keeps files.

Paths are relative to the store's root, with `/` between parts and no leading slash. Invariants every
store keeps: `create` succeeds for exactly one caller per path, across processes and machines; a file
that `put` or `create` returned from is whole for every later reader; deleting a missing file is no error.

Errors: a missing file is `NotFound`; anything the store refuses (no space, no permission, unreachable)
is `StorageFailed`. A create whose outcome is unknown raises `StorageFailed`; the caller reads back.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.errors import ShoalError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed file. `path` is relative to the store's root, `size` in bytes, `modified_ms` epoch milliseconds."""

    path: str
    size: int
    modified_ms: int


class Sink(Protocol):
    """A file being written: a binary file object (pyarrow writes into it) that appears whole at `close`.

    `abort` drops what was written. A sink left open when the process dies leaves nothing readable at the path,
    or a file that nothing refers to.
    """

    closed: bool

    def write(self, data: bytes | memoryview, /) -> int: ...

    def tell(self) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def readable(self) -> bool: ...

    def writable(self) -> bool: ...

    def seekable(self) -> bool: ...


class Store(Protocol):
    """Files by relative path. See the module for the invariants."""

    @property
    def uri(self) -> str:
        """Where this store's root is, e.g. `file:/data/warehouse` or `s3://bucket/prefix`."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only at the end of the file."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Random access for columnar readers; many threads may not share it."""
        ...

    def size(self, path: str) -> int:
        """Bytes of the file; `NotFound` when it is missing. This is also the existence test."""
        ...

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """Every file below the folder `prefix` (recursively), in no particular order; none when it is missing."""
        ...

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        """Names (not paths) of the folders and of the files directly inside the folder `prefix`; both sorted."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create the file with `data`, all or nothing. False when it already exists, whoever made it."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write the file, replacing what was there; a reader sees the old or the new bytes, never a mix."""
        ...

    def sink(self, path: str) -> Sink:
        """Stream a large file out. Only for names that nobody else writes (they hold a UUID)."""
        ...

    def delete(self, path: str) -> None:
        """Remove the file; a missing one is no error."""
        ...


def add_file(store: Store, path: str, data: bytes | memoryview) -> None:
    """Write a small file under a name that nobody else uses (it holds a UUID): one call, nothing to replace."""
    sink = store.sink(path)
    try:
        sink.write(data)
        sink.close()
    except ShoalError:
        sink.abort()
        with suppress(ShoalError):
            store.delete(path)  # the store may have kept it and lost the answer
        raise


def delete_each(places: Iterable[tuple[Store, str]]) -> None:
    """Delete every file, whatever happens to the others; a failure is raised at the end."""
    with ExitStack() as rest:
        for store, path in places:
            rest.callback(store.delete, path)
