# SPDX-License-Identifier: Apache-2.0
"""Files: read, list, create once, delete. Re-exports only; pyarrow and obstore are imported when first used."""

from shoal.store.base import FileInfo, Sink, Store
from shoal.store.local import LocalStore
from shoal.store.memory import MemoryStore
from shoal.store.uri import open_store

__all__ = ["FileInfo", "LocalStore", "MemoryStore", "Sink", "Store", "open_store"]
