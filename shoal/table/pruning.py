# SPDX-License-Identifier: Apache-2.0
"""Which manifests, buckets and files a filter lets a scan leave out.

Agrees with: KeyValueFileStoreScan.filterByStats, filterWholeBucketByStats, BucketSelectConverter (2.0.0).
Invariant: nothing is left out that could change a row of the result. Dropping a newer version of a key by its values
would bring an older one back, so value bounds count for a whole bucket or where files hold each key once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format.bounds import keep_bounds, keep_many
from shoal.format.manifest import ManifestMeta, entries_of
from shoal.format.predicate import Node, project
from shoal.format.row import arrow_column, decode
from shoal.format.stats import file_bounds
from shoal.format.types import Field, to_arrow
from shoal.table.data_evolution import keep_entries
from shoal.table.entry_bounds import Bounds, key_bounds, value_bounds
from shoal.table.file_pruning import FilePruning
from shoal.table.metadata import PartitionFilter
from shoal.table.partition_pruning import keep_partitions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

Mask = np.ndarray[Any, np.dtype[np.bool_]]

# Keys of a filter that are hashed to find their buckets; with more, most buckets are wanted anyway.
_MOST_KEYS = 10_000
# Engines whose result rows are rows of the files: no other value can come out.
_WHOLE_ROWS = ("deduplicate", "first-row")


class Pruning:
    """What one filter says about one table. Without a filter it keeps everything."""

    def __init__(self, table: Table, where: pc.Expression | None, columns: Sequence[str]) -> None:
        self._table = table
        self._where = where
        self._columns = columns

    # ---- manifests

    @property
    def partition_filter(self) -> PartitionFilter | None:
        """Which partitions may hold a match; None: no idea."""
        if self._where is None or not self._partition_fields:
            return None
        return PartitionFilter(_name(self._where), self._keep_manifests, _AsMet(self._keep_partitions))

    def _keep_manifests(self, metas: Sequence[ManifestMeta]) -> list[bool]:
        schema = self._table.schema
        node = project(self.node, [f.name for f in self._partition_fields])
        return [
            keep_bounds(
                node,
                file_bounds(schema.partition_fields, m.partition_stats, None, m.file_name),
                m.added + m.deleted,
                self._padded,
            )
            for m in metas
        ]

    # ---- entries

    def entries(self, entries: pa.Table, dropped: dict[str, int], *, merged: bool) -> pa.Table:
        """Entries that may hold a row of the result. `merged`: files of a bucket may hold versions of one key.

        Where postponed rows are to be merged, values tell nothing: one that does not match may win over one that does.
        """
        late = merged and bool((entries.column("bucket").to_numpy() < 0).any())
        for reason, prune in (
            ("partition", self._by_partition),
            ("bucket", self._by_bucket),
            ("key bounds", self._by_keys),
            ("value bounds", None if late else self._by_bucket_values if merged else self._by_values),
            ("file index", self._by_index if not merged else None),
        ):
            if self._where is None or not entries.num_rows or prune is None:
                continue
            keep = prune(entries)
            if keep is not None and not keep.all():
                kept = entries.filter(pa_array(keep))
                dropped[reason] = entries.num_rows - kept.num_rows
                entries = kept
        return entries

    @cached_property
    def _partition_fields(self) -> list[Field]:
        return [f for f in self._table.schema.partition_fields if f.name in self._columns]

    def _by_partition(self, entries: pa.Table) -> Mask | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._partition_fields:
            return None
        encoded = entries.column("partition").combine_chunks().dictionary_encode()
        keep = self._keep_partitions(encoded.dictionary.to_pylist())
        return pc.take(pa.array(keep), encoded.indices).to_numpy(zero_copy_only=False)

    def _keep_partitions(self, partitions: Sequence[bytes]) -> list[bool]:
        assert self._where is not None
        fields = self._table.schema.partition_fields
        types = [f.type for f in fields]
        values = [[arrow_column([v], t)[0] for t, v in zip(types, decode(types, p, "partition"))] for p in partitions]
        return keep_partitions([f.name for f in fields], values, self._where, list(self._table.readable.values()))

    @cached_property
    def node(self) -> Node:
        """The filter as a tree."""
        from shoal.format.predicate import TRUE, of

        return TRUE if self._where is None else of(self._where, self._table.readable_schema)

    def _by_bucket(self, entries: pa.Table) -> Mask | None:
        """Fixed buckets whose number is the hash of a bucket key that the filter allows.

        Partitions have had other numbers of buckets before a rescale: each entry tells its own.
        """
        import pyarrow as pa

        from shoal.format.hashing import buckets
        from shoal.format.predicate import equalities

        table = self._table
        key = table.bucket_key
        if table.options.bucket <= 0 or not key or not set(key) <= set(self._columns):
            return None
        found = equalities(self.node)
        if not all(k in found for k in key) or math.prod(len(found[k]) for k in key) > _MOST_KEYS:
            return None
        fields = [table.schema.field(k) for k in key]
        if any(f.type.wide or f.type.root == "CHAR" for f in fields) or not self._written_as(fields, entries):
            return None  # the bucket was hashed from another form of the value than a filter has
        rows = list(zip(*product(*(found[k] for k in key)))) or [()] * len(key)
        columns = [pa.array(list(c), to_arrow(f.type)) for c, f in zip(rows, fields)]
        totals = entries.column("total_buckets").to_numpy()
        numbers = entries.column("bucket").to_numpy()
        keep: Mask = totals <= 0
        for total in np.unique(totals[totals > 0]).tolist():
            here = buckets(columns, [f.type for f in fields], total, table.options.bucket_function)
            keep |= (totals == total) & np.isin(numbers, here)
        return keep

    def _written_as(self, fields: Sequence[Field], entries: pa.Table) -> bool:
        """Whether every file was written with these types of the columns."""
        import pyarrow.compute as pc

        ids = pc.unique(entries.column("schema_id")).to_pylist()
        types = [{f.id: f.type for f in self._table.file_schema(i).fields} for i in ids]
        return all(f.id in t and t[f.id].same_as(f.type) for t in types for f in fields)

    def _by_keys(self, entries: pa.Table) -> Mask | None:
        names = [k for k in self._table.schema.trimmed_keys if k in self._columns]
        return (
            self._within(project(self.node, names), key_bounds(self._table, entries, names), entries) if names else None
        )

    def _by_values(self, entries: pa.Table) -> Mask | None:
        """Each file by itself."""
        schema = self._table.schema
        if self._table.data_evolution:
            listed = entries_of(entries)
            return np.array(keep_entries(listed, self._table.file_schema, schema, self.node))
        names = [f.name for f in schema.fields if f.name in self._columns and f.name not in schema.partition_keys]
        return self._within(self.node, value_bounds(self._table, entries, names), entries) if names else None

    def _within(self, node: Node, bounds: Bounds, entries: pa.Table) -> Mask:
        rows = entries.column("row_count").to_numpy()
        return keep_many(node, bounds.lows, bounds.highs, bounds.nulls, rows, self._padded)

    @property
    def _padded(self) -> list[str]:
        """Columns whose values may come out of a file with other trailing blanks than its bounds have."""
        return [f.name for f in self._table.schema.fields if f.type.root == "CHAR"]

    def _by_bucket_values(self, entries: pa.Table) -> Mask | None:
        """All files of a bucket, or none: a bucket goes when no file of it can hold a match."""
        if self._table.options.merge_engine not in _WHOLE_ROWS:
            return None
        keep = self._by_values(entries)  # of every file that takes part in the bucket's merges
        if keep is None or keep.all():
            return None
        encoded = entries.column("partition").combine_chunks().dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        buckets = entries.column("bucket").to_numpy()
        code = codes * (int(buckets.max()) + 1) + buckets
        return np.isin(code, np.unique(code[keep]))

    def _by_index(self, entries: pa.Table) -> Mask | None:
        """Files whose index, kept in the manifest, shows that nothing in them matches."""
        embedded = entries.column("embedded_index")
        table = self._table
        if embedded.null_count == len(embedded) or table.data_evolution or not table.options.file_index_read:
            return None
        pruning = FilePruning(table, self.node, merged=False)
        if pruning.idle:
            return None
        return np.array([not pruning.skips(e.partition, e.bucket, e.file) for e in entries_of(entries)])


def _name(where: pc.Expression) -> str | None:
    """A name of the filter, by its whole content: as text, Arrow leaves out the middle of long lists."""
    import hashlib
    import pickle

    import pyarrow as pa

    try:
        return hashlib.sha256(pickle.dumps(where)).hexdigest()
    except (pa.ArrowException, TypeError):
        return None


class _AsMet(dict[bytes, bool]):
    """Answers that are worked out when they are asked for the first time."""

    def __init__(self, keep: Callable[[Sequence[bytes]], list[bool]]) -> None:
        self._keep = keep

    def __missing__(self, partition: bytes) -> bool:
        found = self[partition] = self._keep([partition])[0]
        return found


def pa_array(mask: Mask) -> pa.Array:
    import pyarrow as pa

    return pa.array(mask)
