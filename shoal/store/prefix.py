# SPDX-License-Identifier: Apache-2.0
"""A folder of a store, as a store of its own: how a table sees its part of the warehouse."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.store.base import FileInfo, Sink, Store

if TYPE_CHECKING:
    import pyarrow as pa


class PrefixStore:
    """The files below `prefix` of `inner`, by paths relative to it."""

    def __init__(self, inner: Store, prefix: str) -> None:
        self.inner = inner
        self.prefix = prefix.strip("/")
        self._at = self.prefix + "/"

    @property
    def uri(self) -> str:
        return f"{self.inner.uri.rstrip('/')}/{self.prefix}"

    def read(self, path: str) -> bytes:
        return self.inner.read(self._at + path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.read_range(self._at + path, start, length)

    def open(self, path: str) -> pa.NativeFile:
        return self.inner.open(self._at + path)

    def size(self, path: str) -> int:
        return self.inner.size(self._at + path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        cut = len(self._at)
        for info in self.inner.list(self._at + prefix if prefix else self.prefix):
            yield replace(info, path=info.path[cut:])

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        return self.inner.list_dir(self._at + prefix if prefix else self.prefix)

    def create(self, path: str, data: bytes) -> bool:
        return self.inner.create(self._at + path, data)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(self._at + path, data)

    def sink(self, path: str) -> Sink:
        return self.inner.sink(self._at + path)

    def delete(self, path: str) -> None:
        self.inner.delete(self._at + path)
