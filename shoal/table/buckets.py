# SPDX-License-Identifier: Apache-2.0
"""Which partition and bucket a row belongs to, for whole tables of rows at once.

A `Router` answers it for one writer; what kind a table needs is decided here once. Agrees with: KeyAndBucketExtractor,
FixedBucketRowKeyExtractor, AppendTableRowKeyExtractor, BucketMode (2.0.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.budget import Budget
from shoal.format.datafile import EMPTY_ROW
from shoal.format.hashing import buckets
from shoal.format.index_manifest import IndexEntry
from shoal.format.row import encode, stored_values
from shoal.format.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.placed_keys import PlacedKeys
    from shoal.table.table import Table

Rows = np.ndarray[Any, np.dtype[Any]]
Place = tuple[bytes, int]  # partition, bucket
Indexes = tuple[IndexEntry, ...]

UNAWARE = -1


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one bucket: their numbers, ascending. `partition` is a BinaryRow with arity prefix.

    `total_buckets` is what the bucket's files record: the number of buckets of the partition, negative where the table
    has no fixed number.
    """

    partition: bytes
    bucket: int
    rows: Rows
    total_buckets: int


class Newest(Protocol):
    """Where a router learns what the table holds now, and whose commits are its own: `Commit`."""

    user: str

    def refresh(self) -> Snapshot | None: ...


class Router(Protocol):
    """Places the rows of one writer. Keyed tables carry the column `_VALUE_KIND` along."""

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        """(the rows, their groups). Rows may be added, changed or left out where a key changes its partition."""
        ...

    def moved(self) -> bool:
        """Whether `route` has found, since this was asked last, that others have placed keys.

        Buckets then hold other rows than their writers know of, with other sequence numbers.
        """
        ...

    def staged(self) -> Mapping[Place, tuple[Indexes, Indexes]]:
        """Index entries (new, deleted) that the checkpoint being prepared commits; new files are the caller's now."""
        ...

    def placed(self) -> PlacedKeys | None:
        """What the rows of the checkpoint that `staged` was called for were placed by; None where any writer agrees."""
        ...

    def committed(self) -> None:
        """What `staged` gave last is committed."""
        ...

    def forget(self) -> None:
        """A commit failed, or others have written: what the table holds is read again."""
        ...

    def close(self) -> None:
        """Free memory and disk."""
        ...


def router_of(table: Table, newest: Newest, budget: Budget, *, overwrite: bool = False, batch: bool = False) -> Router:
    """The router that the table's bucket mode needs.

    `overwrite`: the rows replace what is there. `batch`: they are not a stream of checkpoints, and need not be
    postponed.
    """
    count = table.options.bucket
    if count > 0:
        return FixedRouter(table, count)
    if not table.primary_key:
        return UnawareRouter(table)
    if count == UNAWARE:
        if set(table.schema.partition_keys) <= set(table.schema.primary_keys):
            from shoal.table.dynamic_buckets import DynamicRouter

            return DynamicRouter(table, newest, overwrite=overwrite)
        from shoal.table.cross_partition import CrossPartitionRouter

        return CrossPartitionRouter(table, newest, budget, overwrite=overwrite)
    from shoal.table.postpone_write import PostponeRouter, RealBucketRouter, into_real_buckets

    if into_real_buckets(table, batch=batch):
        return RealBucketRouter(table, newest, overwrite=overwrite)
    return PostponeRouter(table)


class Memoryless:
    """A router that has nothing to commit besides rows."""

    def moved(self) -> bool:
        return False

    def staged(self) -> Mapping[Place, tuple[Indexes, Indexes]]:
        return {}

    def placed(self) -> PlacedKeys | None:
        return None

    def committed(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


class FixedRouter(Memoryless):
    """A bucket by the hash of the bucket key."""

    def __init__(self, table: Table, count: int) -> None:
        self._table = table
        self._count = count

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        partitions, codes = partitions_of(self._table, rows)
        bucket = fixed_buckets(self._table, rows, self._count)
        return rows, groups_of(partitions, codes, bucket, [self._count] * len(partitions))


class UnawareRouter(FixedRouter):
    """Append tables without buckets: everything lies in bucket 0."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, UNAWARE)

    def route(self, rows: pa.Table) -> tuple[pa.Table, list[Group]]:
        partitions, codes = partitions_of(self._table, rows)
        return rows, groups_of(partitions, codes, np.zeros(rows.num_rows, np.int32), [UNAWARE] * len(partitions))


def fixed_buckets(table: Table, rows: pa.Table, count: int | Rows) -> Rows:
    """The bucket of each row among `count`, which may differ from row to row."""
    fields = [table.schema.field(k) for k in table.bucket_key]
    columns = [rows.column(f.name).combine_chunks() for f in fields]
    return buckets(columns, [f.type for f in fields], count, table.options.bucket_function)


def groups_of(partitions: list[bytes], codes: Rows, bucket: Rows, totals: list[int]) -> list[Group]:
    """Rows by (partition, bucket); rows of a group stay in order of arrival. `totals` is by partition."""
    n = len(codes)
    if not n:
        return []
    low = int(bucket.min())
    width = int(bucket.max()) - low + 1
    combined = codes * width + (bucket - low)
    count = len(partitions) * width
    small = combined.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65_536 else np.int64)
    order = np.argsort(small, kind="stable")
    present, starts = np.unique(small[order], return_index=True)
    ends = np.append(starts[1:], n)
    return [
        Group(partitions[int(c) // width], int(c) % width + low, order[a:b], totals[int(c) // width])
        for c, a, b in zip(present, starts, ends)
    ]


def partitions_of(table: Table, rows: pa.Table) -> tuple[list[bytes], Rows]:
    """(distinct partition rows, the index of each row's partition)."""
    fields = table.schema.partition_fields
    n = rows.num_rows
    if not fields:
        return [EMPTY_ROW], np.zeros(n, np.int64)
    combined = np.zeros(n, np.int64)
    dictionaries = []
    for f in fields:
        encoded = rows.column(f.name).combine_chunks().dictionary_encode(null_encoding="encode")
        values = stored_values(encoded.dictionary, f.type)
        dictionaries.append(values)
        combined = combined * len(values) + encoded.indices.to_numpy()
    present, codes = np.unique(combined, return_inverse=True)
    out = []
    for c in present.tolist():
        values = []
        for d in reversed(dictionaries):
            c, i = divmod(c, len(d))
            values.append(d[i])
        out.append(encode(table.schema.partition_types, values[::-1]))
    return out, codes
