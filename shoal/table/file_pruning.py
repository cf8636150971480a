# SPDX-License-Identifier: Apache-2.0
"""What a filter lets a reader leave out inside the files of a scan: whole files by their index, row groups by bounds.

Agrees with: FileIndexEvaluator, ParquetReaderFactory's row group filter (2.0.0). Invariant: where versions of a key are
merged only conditions on key columns count, since they hold for all versions alike; a column whose type has changed
since the file was written counts nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.errors import Corrupt, NotFound
from shoal.format.bounds import keep_bounds
from shoal.format.data_reader import Groups
from shoal.format.datafile import DataFile
from shoal.format.predicate import TRUE, Node, columns, project, rename
from shoal.format.types import DataType

if TYPE_CHECKING:
    from shoal.format.parquet_reader import ParquetReader
    from shoal.table.table import Table

INDEX_SUFFIX = ".index"


class FilePruning:
    """One filter over the files of one table; `merged` where versions of a key are merged after it."""

    def __init__(self, table: Table, node: Node, *, merged: bool) -> None:
        self._table = table
        # partition values come from the partition, not from the file, and have dropped what they can before
        schema = table.schema
        names = schema.trimmed_keys if merged else [n for n in schema.names if n not in schema.partition_keys]
        self._node = project(node, names)
        self._by_schema: dict[int, tuple[Node, Mapping[str, DataType]]] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to leave out by."""
        return self._node == TRUE

    def _of(self, file: DataFile) -> tuple[Node, Mapping[str, DataType]]:
        """(the filter by the file's own names, the types of its columns that count)."""
        found = self._by_schema.get(file.schema_id)
        if found is None:
            today = {f.id: f for f in self._table.schema.fields}
            written = self._table.file_schema(file.schema_id).fields
            same = [f for f in written if f.id in today and today[f.id].type.same_as(f.type)]
            names = {today[f.id].name: f.name for f in same}
            node = rename(project(self._node, names), names)
            found = self._by_schema[file.schema_id] = (node, {f.name: f.type for f in same})
        return found

    def skips(self, partition: bytes, bucket: int, file: DataFile) -> bool:
        """Whether the file's index shows that no row of it can match."""
        embedded = file.embedded_index
        beside = next((n for n in file.extra_files if n.endswith(INDEX_SUFFIX)), None)
        node, types = self._of(file)
        if node == TRUE or (embedded is None and beside is None) or not self._table.options.file_index_read:
            return False
        from shoal.format.file_index import keep

        path = file.file_name
        if embedded is None:
            assert beside is not None
            store, path = self._table.beside(partition, bucket, file, beside)
            try:
                embedded = store.read(path)
            except NotFound as err:
                raise Corrupt(
                    f"{path} is missing although a snapshot refers to it",
                    hint="set file-index.read.enabled to false to read without it",
                ) from err
        return not keep(embedded, node, types, file.row_count, path)

    def groups(self, file: DataFile) -> Groups | None:
        """Which row groups of a Parquet file may hold a match."""
        node, types = self._of(file)
        names = sorted(columns(node) & types.keys())
        if node == TRUE or not names:
            return None
        padded = [n for n in names if types[n].root == "CHAR"]

        def choose(reader: ParquetReader) -> Sequence[int] | None:
            starts = reader.group_starts
            kept = [
                g
                for g in range(reader.groups)
                if keep_bounds(node, reader.group_bounds(g, names), starts[g + 1] - starts[g], padded)
            ]
            return None if len(kept) == reader.groups else kept

        return choose
