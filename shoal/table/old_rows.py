# SPDX-License-Identifier: Apache-2.0
"""The rows that a bucket held before: found by key in the levels above a compaction's output.

Agrees with: LookupLevels, LookupUtils (2.0.0). Invariant: of a key the row on the lowest of these levels counts, rows
that a deletion vector marks or that have expired are not there. Where Java keeps a lookup file from before a row was
marked, it finds that row again; here it is gone, as it is for a writer that has just started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from shoal.format.datafile import DataFile
from shoal.format.deletion_vectors import DeletionVector
from shoal.format.row import arrow_column, decode
from shoal.format.schema import LEVEL
from shoal.format.types import Field, arrow_field
from shoal.lsm.changelog import Found
from shoal.lsm.keys import Array
from shoal.lsm.levels import Levels, Run
from shoal.lsm.lookup import Hits, LookupFile, LookupFiles, Probes
from shoal.lsm.merge import comparable
from shoal.table.record_expire import RecordExpire
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lsm.rolling import FileSpec
    from shoal.table.table import Table

# Rows of a stretch of a lookup file. A key is looked for in one stretch.
_ROWS = 262_144


class OldRows:
    """One compaction's view of the levels above its output. `marks` are the rows it found, by file."""

    def __init__(
        self,
        table: Table,
        partition: bytes,
        bucket: int,
        spec: FileSpec,
        levels: Levels,
        output_level: int,
        *,
        vectors: Mapping[str, DeletionVector] | None,
        values: bool,
        expire: RecordExpire | None,
    ) -> None:
        self._runs = [run for run in levels.upper if run.level > output_level]
        self._cache: LookupFiles[LookupFile] = table.lookup_files
        self._table = table
        self._values = values
        self._expire = expire
        self._vectors = vectors or {}
        self._marking = vectors is not None
        schema = table.schema
        keys = tuple(schema.field(n) for n in schema.trimmed_keys)
        fields: tuple[Field, ...] = (*schema.fields, *SYSTEM_FIELDS) if values else keys
        if expire is not None and not values:
            fields = (*keys, *(f for f in (schema.field(expire.column),) if f not in keys))
        self._files = BucketFiles(table, partition, bucket, fields, recent=spec.recent)
        # a least key has the blanks of its row as written; ORC keeps none of them, so the file may hold a lesser one
        self._short_keys = any(t.root == "CHAR" for t in schema.key_types)
        self.marks: dict[str, list[Array]] = {}

    def find(self, keys: pa.RecordBatch) -> Found:
        import pyarrow as pa

        places: list[Array] = []
        rows: list[pa.Table] = []
        left = np.arange(keys.num_rows)  # places of the keys that no level had yet
        for run in self._runs:
            if not len(left):
                break
            asked = keys if len(left) == keys.num_rows else keys.take(pa.array(left))
            hit = np.zeros(len(left), bool)
            for here, batch in self._in_run(run, Probes(asked, self._table.schema.key_types)):
                hit[here] = True
                places.append(left[here])
                if batch is not None:
                    rows.append(batch)
            left = left[~hit]
        if not places:
            return Found(np.zeros(0, np.int64), None)
        return Found(np.concatenate(places), pa.concat_tables(rows) if rows else None)

    def _in_run(self, run: Run, probes: Probes) -> Iterator[tuple[Array, pa.Table | None]]:
        """What the files of a level hold of the keys."""
        at = 0
        for file in run.files:
            if not self._short_keys:
                at = probes.before(self._key(file.min_key), at)
            if at >= len(probes):
                return
            end = probes.upto(self._key(file.max_key), at)
            if end > at:
                hits = self._alive(file, self._opened(file).find(probes, at, end))
                if len(hits.probes):
                    yield hits.probes, self._rows(file, hits)
            at = end

    def _key(self, data: bytes) -> tuple[object, ...]:
        """A file's least or greatest key in the form in which probes compare."""
        types = self._table.schema.key_types
        return tuple(comparable(arrow_column([v], t), 0) for v, t in zip(decode(types, data), types))

    def _opened(self, file: DataFile) -> LookupFile:
        keys = self._table.schema.trimmed_keys
        return self._cache.get(file.file_name, lambda: LookupFile(self._files.batches((file,), _ROWS), keys))

    def _alive(self, file: DataFile, hits: Hits) -> Hits:
        vector = self._vectors.get(file.file_name)
        if vector is not None and hits.parts:
            hits = hits.only(~vector.contains(hits.positions))
        if self._expire is not None and hits.parts:
            import pyarrow as pa

            rows = pa.Table.from_batches(hits.rows())
            hits = hits.only(self._expire.keeps(rows.column(self._expire.column).combine_chunks()))
        return hits

    def _rows(self, file: DataFile, hits: Hits) -> pa.Table | None:
        import pyarrow as pa

        if self._marking:
            self.marks.setdefault(file.file_name, []).append(hits.positions)
        if not self._values:
            return None
        rows = pa.Table.from_batches(hits.rows())
        return rows.append_column(arrow_field(LEVEL), pa.repeat(pa.scalar(file.level, pa.int32()), rows.num_rows))
