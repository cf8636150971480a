# SPDX-License-Identifier: Apache-2.0
"""Where a writer or compactor puts its new files, and what it calls them.

Invariant: names hold a UUID of the writer and a counter, so no two writers ever write one name.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from shoal.format.file_index_writer import IndexWriter, specs
from shoal.lsm.rolling import FileSpec, RecentFiles
from shoal.table.file_forms import FileForms
from shoal.table.placement import Placement

if TYPE_CHECKING:
    from shoal.format.data_writer import FileForm
    from shoal.format.types import Field
    from shoal.options import Options
    from shoal.table.table import Table


def new_uuid(table: Table) -> str:
    """A random UUID from the table's source of randomness."""
    return str(uuid.UUID(int=table.rng.getrandbits(128), version=4))


class NewFiles:
    """Specs for the files of one writer, bucket by bucket. `options` stand in for the table's."""

    def __init__(self, table: Table, options: Options | None = None) -> None:
        self._table = table
        self._options = options or table.options
        self._uuid = new_uuid(table)
        self._counter = itertools.count()
        self._forms = FileForms(table.schema, self._options, table.memory)
        self.recent = RecentFiles(table.memory // 16)
        self._indexed = bool(specs(table.schema.fields, self._options.raw))
        self._placement = Placement(table.store, table.places, self._options, table.rng)

    def spec(self, partition: bytes, bucket: int) -> FileSpec:
        t, o = self._table, self._options
        folder = t.bucket_folder(partition, bucket)
        return FileSpec(
            store=t.store,
            folder=folder,
            place=partial(self._placement.place, folder),
            find=partial(t.places.locate, folder),
            next_name=self._next_name,
            schema=t.schema,
            form=self._forms.of,
            target_size=o.target_file_size(bool(t.primary_key)),
            target_rows=o.target_file_rows,
            stats_dense=o.stats_dense_store,
            now=t.local_now_ms,
            recent=self.recent,
            indexes=self._indexes if self._indexed else None,
            index_in_manifest=cast(int, o.get("file-index.in-manifest-threshold")),
        )

    def _indexes(self, fields: Sequence[Field]) -> IndexWriter:
        return IndexWriter(fields, self._options.raw)

    def _next_name(self, form: FileForm) -> str:
        return f"{form.prefix}{self._uuid}-{next(self._counter)}{form.suffix}"
