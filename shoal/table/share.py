# SPDX-License-Identifier: Apache-2.0
"""Which files belong to one of several readers of a table.

Agrees with: SnapshotReaderImpl.withShard (2.0.0). Invariant: every file belongs to exactly one of the readers 0 to n-1,
whatever snapshot it comes from; all changes of a key go to the same reader, since a key stays in its bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table


class Share:
    """A list of buckets, or the tuple (index, of): one of `of` equal readers. None takes everything."""

    def __init__(self, buckets: Sequence[int] | tuple[int, int] | None) -> None:
        self._buckets = buckets
        if isinstance(buckets, tuple) and (len(buckets) != 2 or not 0 <= buckets[0] < buckets[1]):
            raise BadRequest(
                f"buckets={buckets} is no share", hint="(0, 3) is the first of three readers; a list names buckets"
            )

    def of(self, table: Table, entries: pa.Table) -> pa.Table:
        """The entries that belong to this reader."""
        import numpy as np
        import pyarrow as pa

        if self._buckets is None or not entries.num_rows:
            return entries
        buckets = entries.column("bucket").to_numpy()
        if not isinstance(self._buckets, tuple):
            return entries.filter(pa.array(np.isin(buckets, list(self._buckets))))
        index, of = self._buckets
        if not table.primary_key and table.options.bucket == -1:
            # one bucket holds all rows of such a table, in any order: files are shared out by their names, as in Java
            names = entries.column("file_name").to_pylist()
            return entries.filter(pa.array([abs(_java_hash(n)) % of == index for n in names]))
        return entries.filter(pa.array(buckets % of == index))


def _java_hash(text: str) -> int:
    h = 0
    for c in text:
        h = (31 * h + ord(c)) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h
