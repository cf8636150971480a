# SPDX-License-Identifier: Apache-2.0
"""A branch of a table as a store: its own schemas, snapshots, tags, changelogs and consumers over shared files.

Agrees with: BranchManager.branchPath, FileStorePathFactory (2.0.0). Invariant: manifests, index and data files lie
under the main root whatever branch wrote them; `uri` names the branch, so nothing cached for main is taken for it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.store.base import FileInfo, Sink, Store

if TYPE_CHECKING:
    import pyarrow as pa

# Folders that every branch has for itself.
OWN = frozenset({"schema", "snapshot", "tag", "changelog", "consumer"})


class BranchStore:
    """The table in `root` as the branch `name` sees it."""

    def __init__(self, root: Store, name: str) -> None:
        self.root = root
        self.name = name
        self._at = f"branch/branch-{name}/"

    @property
    def uri(self) -> str:
        return f"{self.root.uri}/branch/branch-{self.name}"

    def _path(self, path: str) -> str:
        return self._at + path if path.partition("/")[0] in OWN else path

    def read(self, path: str) -> bytes:
        return self.root.read(self._path(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.root.read_range(self._path(path), start, length)

    def open(self, path: str) -> pa.NativeFile:
        return self.root.open(self._path(path))

    def size(self, path: str) -> int:
        return self.root.size(self._path(path))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """The branch's own files under their short names, then what is shared; main's own folders are not seen."""
        if prefix:
            mapped = self._path(prefix)
            cut = len(mapped) - len(prefix)
            for info in self.root.list(mapped):
                yield replace(info, path=info.path[cut:])
            return
        for info in self.root.list(""):
            if info.path.startswith(self._at):
                yield replace(info, path=info.path[len(self._at) :])
            elif info.path.partition("/")[0] not in OWN:
                yield info

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        if prefix:
            return self.root.list_dir(self._path(prefix))
        folders, files = self.root.list_dir("")
        own = self.root.list_dir(self._at.rstrip("/"))[0]
        return sorted([*own, *(f for f in folders if f not in OWN)]), files

    def create(self, path: str, data: bytes) -> bool:
        return self.root.create(self._path(path), data)

    def put(self, path: str, data: bytes) -> None:
        self.root.put(self._path(path), data)

    def sink(self, path: str) -> Sink:
        return self.root.sink(self._path(path))

    def delete(self, path: str) -> None:
        self.root.delete(self._path(path))
