# SPDX-License-Identifier: Apache-2.0
"""Which partition and bucket a row belongs to, for whole tables of rows at once.

Agrees with: FixedBucketRowKeyExtractor, UnawareBucketRowKeyExtractor (2.0.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Unsupported
from shoal.format.datafile import EMPTY_ROW
from shoal.format.hashing import buckets
from shoal.format.row import encode, stored_values

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

Rows = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one bucket: their numbers, ascending. `partition` is a BinaryRow with arity prefix."""

    partition: bytes
    bucket: int
    rows: Rows


def total_buckets(table: Table) -> int:
    """What new files record as `_TOTAL_BUCKETS`; `Unsupported` for modes that are not written yet."""
    count = table.options.bucket
    if count > 0:
        return count
    if table.schema.primary_keys:
        raise Unsupported(
            f"{table.name}: writing primary-key tables with bucket = {count} is not supported yet",
            hint="create the table with a fixed number of buckets, e.g. bucket = 4",
        )
    return -1


def route(table: Table, rows: pa.Table) -> list[Group]:
    """The rows by partition and bucket; rows of a group stay in order of arrival."""
    n = rows.num_rows
    partitions, codes = _partitions(table, rows)
    count = total_buckets(table)
    if count > 0:
        schema = table.schema
        fields = [schema.field(k) for k in table.bucket_key]
        columns = [rows.column(f.name).combine_chunks() for f in fields]
        bucket = buckets(columns, [f.type for f in fields], count, table.options.bucket_function)
    else:
        count, bucket = 1, np.zeros(n, np.int32)
    combined = codes * count + bucket
    groups = len(partitions) * count
    small = combined.astype(np.uint8 if groups <= 256 else np.uint16 if groups <= 65_536 else np.int64)
    order = np.argsort(small, kind="stable")
    present, starts = np.unique(small[order], return_index=True)
    ends = np.append(starts[1:], n)
    return [Group(partitions[int(c) // count], int(c) % count, order[a:b]) for c, a, b in zip(present, starts, ends)]


def _partitions(table: Table, rows: pa.Table) -> tuple[list[bytes], Rows]:
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
