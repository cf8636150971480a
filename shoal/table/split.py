# SPDX-License-Identifier: Apache-2.0
"""What a scan will open: a plan of splits, one for each bucket, and pieces of splits that can be read apart.

Agrees with: MergeTreeSplitGenerator, AppendOnlySplitGenerator, DataSplit.rawConvertible (2.0.0). Invariant: the
splits of a plan hold each live file once; two pieces never share a key, so they can be read by different threads or
machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.errors import Unsupported
from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.lsm.sections import Section, sections
from shoal.table.data_evolution import groups
from shoal.table.deletions import Deletions

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

CLUSTERED = "pk-clustering-override"
_FILE_BYTES = 1_500  # of a decoded file, about


@dataclass(frozen=True)
class Split:
    """The files of one bucket, read together. Decoded when somebody asks: a plan of many splits costs little.

    `merge` False reads rows as they lie in the files, every version of a key.
    """

    table: Table
    partition: bytes
    bucket: int
    entries: pa.Table
    deletions: Deletions = field(default_factory=dict)
    merge: bool = True
    only: tuple[Section, ...] | None = None

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """Append tables: in order of arrival."""
        if self.only is not None:
            return tuple(f for section in self.only for run in section for f in run)
        files = [e.file for e in entries_of(self.entries)]
        if not self.table.primary_key and self.merge:
            files.sort(key=lambda f: (f.min_sequence, f.file_name))
        return tuple(files)

    @property
    def postponed(self) -> bool:
        """Whether this is a whole partition, its postponed rows to be merged into its buckets."""
        return self.merge and self.bucket < 0 and bool(self.table.primary_key)

    @property
    def raw(self) -> bool:
        """Whether the files hold each key once, so that nothing is merged (Java's raw-convertible rule)."""
        if not self.table.primary_key or not self.merge:
            return True
        if self.postponed:
            return False
        if any(f.level == 0 or f.delete_row_count not in (0, None) for f in self.files):
            return False
        return self.table.compacted_only or len({f.level for f in self.files}) == 1

    @property
    def _clustered(self) -> bool:
        """Whether the files are sorted by other columns than the key: each key is in them once, so none need meet."""
        if not self.table.clustered or all(f.level == 0 for f in self.files):
            return False  # new files are sorted by the key still
        if any(f.level == 0 for f in self.files):
            raise Unsupported(
                f"{self.table.name}: new files cannot be merged with files sorted by '{CLUSTERED}' columns",
                hint="compact the table, or read what is compacted (deletion-vectors.merge-on-read = false)",
            )
        return True

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Sections that do not overlap, each as its sorted runs."""
        if self.only is not None:
            return self.only
        if self.table.data_evolution:
            return tuple((group,) for group in groups(self.files))
        if self.raw or self._clustered:
            return tuple(((f,),) for f in self.files)
        if self.postponed:
            return (tuple((f,) for f in self.files),)  # the bounds of postponed files tell nothing
        return tuple(sections(self.files, self.table.bounds))

    @property
    def runs(self) -> int:
        """The most files that a row's key can be in."""
        return max((len(s) for s in self.sections), default=0)

    @property
    def bytes(self) -> int:
        import pyarrow.compute as pc

        return sum(f.file_size for f in self.files) if self.only else pc.sum(self.entries.column("file_size")).as_py()

    def pieces(self) -> list[Split]:
        """The split in parts of about `source.split.target-size`, cut between sections, in order.

        A file counts `source.split.open-file-cost` bytes at least.
        """
        o = self.table.options
        target, cost = o.split_target_size, o.split_open_file_cost
        count = self.entries.num_rows
        if count < 2 or self.postponed or max(self.bytes, count * cost) <= target:
            return [self]
        parts: list[list[Section]] = [[]]
        weight = 0
        for section in self.sections:
            size = sum(max(f.file_size, cost) for run in section for f in run)
            if parts[-1] and weight + size > target:
                parts.append([])
                weight = 0
            parts[-1].append(section)
            weight += size
        return [self] if len(parts) == 1 else [replace(self, only=tuple(p)) for p in parts]


@dataclass(frozen=True)
class Plan:
    """What a scan will open: live entries that survived pruning, and how many were dropped for which reason."""

    table: Table
    snapshot: Snapshot | None
    entries: pa.Table
    dropped: dict[str, int] = field(default_factory=dict)
    deletions: Mapping[tuple[bytes, int], Deletions] = field(default_factory=dict)
    merge: bool = True
    whole: bool = False
    """All live entries of the snapshot, so that the splits are worth keeping."""

    @cached_property
    def splits(self) -> list[Split]:
        """One split a bucket, buckets in order."""
        if not self.whole or self.dropped or self.snapshot is None:
            return list(self._splits())

        def load() -> tuple[list[Split], int]:
            # with the file objects that splits make when they are read
            return list(self._splits()), _FILE_BYTES * self.entries.num_rows

        # a dashboard asks the same snapshot again and again
        meta, snap, table = self.table.metadata, self.snapshot, self.table
        state = f"splits {snap.base_manifest_list} {snap.delta_manifest_list} {table.schema.id}"
        key = f"{state} {snap.index_manifest} {table.wide_timestamps} {sorted(table.schema.options.items())}"
        return meta.cache.get((meta.store.uri, key), load)

    @property
    def pieces(self) -> list[Split]:
        """The splits in parts that can be read side by side, or on different machines."""
        return [p for s in self.splits for p in s.pieces()]

    @property
    def rows(self) -> int:
        """Rows of the files before merging."""
        import pyarrow.compute as pc

        return pc.sum(self.entries.column("row_count")).as_py() or 0

    def _splits(self) -> Iterator[Split]:
        import numpy as np
        import pyarrow as pa

        n = self.entries.num_rows
        if not n:
            return
        encoded = self.entries.column("partition").combine_chunks().dictionary_encode()
        buckets = self.entries.column("bucket").to_numpy()
        if self.merge and self.table.primary_key and int(buckets.min()) < 0:
            # postponed rows may meet any bucket of their partition: it is one split
            places = encoded.indices.to_numpy()
            buckets = np.where(np.isin(places, np.unique(places[buckets < 0])), -2, buckets)
        code = encoded.indices.to_numpy().astype(np.int64) * (int(buckets.max()) + 3) + buckets + 2
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(code[order]) != 0))
        partitions = encoded.dictionary.to_pylist()
        sorted_entries = self.entries.take(pa.array(order))
        for a, b in zip(starts.tolist(), [*starts[1:].tolist(), n]):
            first = int(order[a])
            partition, bucket = partitions[encoded.indices[first].as_py()], int(buckets[first])
            if bucket < 0:
                whole = [d for (p, _), d in self.deletions.items() if p == partition]
                deletions: Deletions = {name: d for bucket_of_it in whole for name, d in bucket_of_it.items()}
            else:
                deletions = self.deletions.get((partition, bucket), {})
            yield Split(self.table, partition, bucket, sorted_entries.slice(a, b - a), deletions, self.merge)


def files_in(splits: Sequence[Split]) -> list[DataFile]:
    return [f for s in splits for f in s.files]
