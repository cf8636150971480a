# SPDX-License-Identifier: Apache-2.0
"""Rows merged by key before they go to their buckets, with `local-merge-buffer-size`.

Java does this in front of a shuffle, against keys that are written again and again: the versions of a key that are in
the buffer become one before anything knows a bucket or a sequence number. Here it spares the sort and the disk of the
same rows. Agrees with: LocalMergeOperator, SortBufferLocalMerger (2.0.0), the `input` changelog included, which gets
the merged rows. Invariant: rows leave no later than the next flush, a key at most once each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.lsm.merge import SEQUENCE, merge_unsorted

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class LocalMerge:
    def __init__(self, table: Table, size: int, into: Callable[[pa.RecordBatch], None]) -> None:
        # partition columns count: rows of all partitions lie side by side here
        self._rules = replace(table.rules, keys=table.primary_key, lookup=False)
        self._budget = table.budget()
        self._size = min(size, self._budget.total // 4)
        self._into = into
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._size:
            self.flush()

    def flush(self) -> None:
        """Hand the merged rows on."""
        import pyarrow as pa

        if not self._batches:
            return
        rows = pa.Table.from_batches(self._batches).combine_chunks()
        rows = rows.append_column(SEQUENCE, pa.array(np.arange(rows.num_rows)))
        merged = list(merge_unsorted(rows, self._rules))
        self.clear()
        for batch in merged:
            self._into(batch.drop_columns([SEQUENCE]))

    def clear(self) -> None:
        self._batches, self._bytes = [], 0
