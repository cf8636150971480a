# SPDX-License-Identifier: Apache-2.0
"""Where a writer or compactor puts its new files, and what it calls them.

Invariant: names hold a UUID of the writer and a counter, so no two writers ever write one name.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from typing import TYPE_CHECKING

from shoal.format.data import parquet_schema
from shoal.lsm.rolling import FileSpec, RecentFiles

if TYPE_CHECKING:
    from shoal.table.table import Table


def new_uuid(table: Table) -> str:
    """A random UUID from the table's source of randomness."""
    return str(uuid.UUID(int=table.rng.getrandbits(128), version=4))


class NewFiles:
    """Specs for the files of one writer, bucket by bucket."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._uuid = new_uuid(table)
        self._counter = itertools.count()
        self._parquet = parquet_schema(table.schema.file_fields)
        self.recent = RecentFiles(table.memory // 16)
        self._stats_mode = functools.cache(table.options.stats_mode)

    def spec(self, partition: bytes, bucket: int) -> FileSpec:
        t, o = self._table, self._table.options
        return FileSpec(
            store=t.store,
            folder=t.bucket_folder(partition, bucket),
            next_name=self._next_name,
            schema=t.schema,
            compression=o.file_compression,
            level=o.zstd_level,
            target_size=o.target_file_size(bool(t.primary_key)),
            stats_mode=self._stats_mode,
            stats_dense=o.stats_dense_store,
            now=t.local_now_ms,
            parquet=self._parquet,
            recent=self.recent,
            block_size=o.file_block_size,
        )

    def _next_name(self) -> str:
        o = self._table.options
        return f"{o.data_file_prefix}{self._uuid}-{next(self._counter)}.{o.file_format}"
