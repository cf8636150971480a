# SPDX-License-Identifier: Apache-2.0
"""Where a data file or an index file really is: in the table's folder, or at the external path its metadata names.

Agrees with: DataFilePathFactory.toPath, DataFilePathFactory.toAlignedPath, IndexPathFactory (2.0.0). Invariant: an
external path is a full URI and is taken as it is; files that belong to a data file (`extra_files`) lie beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from shoal.errors import Corrupt
from shoal.store.base import Store
from shoal.store.uri import open_store


class Places:
    """Stores of external folders, opened once each. Shared by the threads of a table's readers."""

    def __init__(self, store: Store, options: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._own = store.uri.rstrip("/") + "/"
        self._options = options
        self._lock = threading.Lock()
        self._opened: dict[str, Store] = {}

    def locate(self, folder: str, name: str, external: str | None = None) -> tuple[Store, str]:
        """(store, path in it) of a file: `folder` + `name` in the table's store, or what its external path says.

        `folder` is relative to the table and ends with a slash.
        """
        if external is None:
            return self._store, folder + name
        if external.startswith(self._own):  # a path into the table itself: its store has the keys
            return self._store, external[len(self._own) :]
        uri, file = _split(external)
        return self._open(uri), file

    def beside(self, folder: str, name: str, external: str | None = None) -> tuple[Store, str]:
        """(store, path in it) of a file that belongs to a data file, such as its `.index`."""
        if external is None:
            return self._store, folder + name
        return self._open(_split(external)[0]), name

    def _open(self, uri: str) -> Store:
        with self._lock:
            store = self._opened.get(uri)
            if store is None:
                store = self._opened[uri] = open_store(uri, self._options)
            return store


def _split(external: str) -> tuple[str, str]:
    """(URI of the folder, file name)."""
    folder, slash, name = external.rpartition("/")
    if not slash or not name or not folder.rstrip("/").partition(":")[2].strip("/"):
        raise Corrupt(
            f"external path '{external}' names no file", hint="it should be a full URI such as s3://b/t/x.orc"
        )
    return folder, name
