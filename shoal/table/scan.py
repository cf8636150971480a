# SPDX-License-Identifier: Apache-2.0
"""From a snapshot to the files a query must open, and from there to Arrow.

Agrees with: KeyValueFileStoreScan, AppendOnlyFileStoreScan, AbstractBatchTableScan (2.0.0). Invariant: partition,
bucket and key bounds may drop files of a primary-key table; value bounds drop single files only where files hold each
key once, whole buckets where no file of the bucket can match; the filter itself is applied exactly, on merged rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, near
from shoal.format.schema import VALUE_KIND
from shoal.format.snapshot import Snapshot
from shoal.format.types import Field, arrow_schema
from shoal.table.deletions import Deletions
from shoal.table.file_pruning import FilePruning
from shoal.table.frames import Frames
from shoal.table.partition_choice import PartitionChoice, choice_of, only, partitions_of, visible
from shoal.table.postponed import check as check_postponed
from shoal.table.postponed import configured as merges_postponed
from shoal.table.pruning import Pruning
from shoal.table.selected import Selected
from shoal.table.split import Plan as Plan
from shoal.table.split import Split as Split
from shoal.table.table_metrics import ScanStats

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.explain import Explained
    from shoal.table.progress import Meter
    from shoal.table.table import Table


class Scan(Frames):
    """A query over one snapshot. Nothing is read before one of the `to_` methods is called.

    `kinds` puts the row kind of every row in front, as the int8 column `_VALUE_KIND`. `meter` is told of what is read.
    """

    def __init__(
        self,
        table: Table,
        *,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        snapshot: Snapshot | None = None,
        selected: Selected | None = None,
        kinds: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.table = table
        self.meter = meter
        names = table.schema.names
        self.columns = tuple(names if columns is None else columns)
        for c in self.columns:
            if c not in table.readable:
                raise BadRequest(
                    f"{table.name} has no column '{c}'", hint=near(c, names) or f"it has {', '.join(names)}"
                )
        if limit is not None and limit < 0:
            raise BadRequest(f"limit {limit} is negative")
        self.limit = limit
        self.kinds = kinds
        self._at = snapshot
        self.selected = selected
        self.where = self._expression(where)
        self.where_columns = self._where_columns()

    def again(self, where: str | pc.Expression | None, columns: Sequence[str] | None = None) -> Scan:
        """The same snapshot and files with another filter and other columns, whoever has committed meanwhile."""
        return Scan(
            self.table, where=where, columns=columns, limit=self.limit, snapshot=self.snapshot, selected=self.selected,
            kinds=self.kinds, meter=self.meter,
        )  # fmt: skip

    def _expression(self, where: str | pc.Expression | None) -> pc.Expression | None:
        if isinstance(where, str):
            from shoal.table.where import parse, wide_paths

            return parse(where, self.table.readable_schema, wide_paths(self.table.readable.values()))
        return where

    def _where_columns(self) -> list[str]:
        if self.where is None:
            return []
        from shoal.table.where import columns_of

        return columns_of(self.where, self.table.readable_schema)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        fields = [self.table.readable[c] for c in self.columns]
        return arrow_schema([VALUE_KIND, *fields] if self.kinds else fields)

    # ---- plan

    @cached_property
    def snapshot(self) -> Snapshot | None:
        if self.selected is not None:
            return self.selected.snapshot
        return self.table.metadata.latest() if self._at is None else self._at

    @property
    def merge(self) -> bool:
        """Whether the versions of a key become one row."""
        return self.selected is None or self.selected.merge

    @property
    def deletes(self) -> bool:
        """Whether -U and -D rows stay in the result."""
        return self.selected is not None and self.selected.deletes

    def plan(self) -> Plan:
        """The files to open."""
        table, pruning, choice = self.table, self._pruning, self._choice
        started, found = table.clock.monotonic(), None
        if self.selected is None:
            only = None if choice and choice.listing else pruning.partition_filter
            found = table.metadata.planned(self.snapshot, only)
            entries = found.entries
        else:
            entries = self.selected.entries
        dropped: dict[str, int] = {}
        whole = entries.num_rows
        if whole:
            if choice is not None:
                entries = self._chosen(choice, entries, dropped)
            entries = self._visible(entries, dropped)
            entries = pruning.entries(entries, dropped, merged=self.merge and self._overlapping)
            entries = self._first_rows(entries, dropped)
        live = (
            self.selected is None
            and table.options.scan_bucket is None
            and choice is None
            and (self.where is None or pruning.partition_filter is None)
        )
        deletions = self._deletions()
        if found is not None:
            took = int((table.clock.monotonic() - started) * 1000)
            at, kept = self.snapshot.id if self.snapshot else 0, entries.num_rows
            stats = ScanStats(took, at, found.manifests, found.files - kept, kept)
            table.metrics.scan.report(stats, found.missed)
        return Plan(table, self.snapshot, entries, dropped, deletions, self.merge, live)

    @cached_property
    def _pruning(self) -> Pruning:
        return Pruning(self.table, self.where, self.where_columns)

    def file_pruning(self, *, merged: bool) -> FilePruning | None:
        """What the filter lets readers leave out of single files; `merged` where versions of a key are merged."""
        found = self._file_pruning[merged]
        return None if found.idle else found

    @cached_property
    def _file_pruning(self) -> tuple[FilePruning, FilePruning]:
        node = self._pruning.node
        return FilePruning(self.table, node, merged=False), FilePruning(self.table, node, merged=True)

    @property
    def _overlapping(self) -> bool:
        """Whether files of a bucket may hold versions of one key."""
        return bool(self.table.primary_key) and not (self.table.compacted_only and self._least_level)

    @property
    def _choice(self) -> PartitionChoice | None:
        """`scan.partitions`. Whoever selected the files has made the choice already."""
        return choice_of(self.table) if self.selected is None else None

    def _chosen(self, choice: PartitionChoice, entries: pa.Table, dropped: dict[str, int]) -> pa.Table:
        listed = partitions_of(visible(self.table, entries)) if choice.listing else []
        kept = only(entries, choice.among(listed))
        if kept.num_rows < entries.num_rows:
            dropped["scan.partitions"] = entries.num_rows - kept.num_rows
        return kept

    @cached_property
    def merges_postponed(self) -> bool:
        """Whether postponed rows are merged into the buckets they belong to, and files of every level with them."""
        check_postponed(self.table)
        plain = self.selected is not None or self.table.options.scan_mode == "compacted-full"
        return not plain and merges_postponed(self.table)

    def _visible(self, entries: pa.Table, dropped: dict[str, int]) -> pa.Table:
        """Without postponed buckets and, where compaction makes rows visible, without level 0."""
        import pyarrow.compute as pc

        buckets = entries.column("bucket")
        if not entries.num_rows or self.merges_postponed:
            return entries
        if self.merge and self.table.primary_key and pc.min(buckets).as_py() < 0:
            # rows of the postponed bucket (-2) become readable when a compaction moves them into real ones
            entries = _drop(entries, pc.less(buckets, 0), "postponed bucket", dropped)
        only = self.table.options.scan_bucket
        if only is not None:
            entries = _drop(entries, pc.not_equal(entries.column("bucket"), only), "scan.bucket", dropped)
        least = self._least_level
        if least and entries.num_rows:
            fresh = pc.less(entries.column("level"), least)
            entries = _drop(entries, fresh, "level, not compacted yet", dropped)
        return entries

    @property
    def _least_level(self) -> int:
        if self.selected is not None:
            if self.selected.levels is not None:
                return self.selected.levels
            if not self.selected.merge:
                return 0
        if self.merges_postponed or self.table.options.get("batch-scan-mode") != "none":
            return 0
        return 1 if self.table.compacted_only else 0

    def _first_rows(self, entries: pa.Table, dropped: dict[str, int]) -> pa.Table:
        """With a limit and nothing that takes rows away: only as many files as hold that many rows."""
        if self.limit is None or self.where is not None or self.table.primary_key or entries.num_rows < 2:
            return entries
        if self.table.options.deletion_vectors or self.table.data_evolution:
            return entries
        import numpy as np

        order = np.argsort(entries.column("min_sequence").to_numpy(), kind="stable")
        rows = np.cumsum(entries.column("row_count").to_numpy()[order])
        count = int(np.searchsorted(rows, self.limit)) + 1
        if count >= entries.num_rows:
            return entries
        dropped["limit"] = entries.num_rows - count
        return entries.take(np.sort(order[:count]))

    def _deletions(self) -> Mapping[tuple[bytes, int], Deletions]:
        snap = self.snapshot
        if snap is None or snap.index_manifest is None or not self.table.options.deletion_vectors:
            return {}
        return self.table.metadata.deletions(snap.index_manifest)

    def explain(self) -> Explained:
        """Which files are kept and dropped, and how much there is to merge."""
        from shoal.table.explain import explain

        return explain(self.plan(), self.columns, self.where)

    # ---- rows

    @property
    def read_fields(self) -> list[Field]:
        """Columns to read: the wanted ones, and those the filter needs."""
        names = dict.fromkeys((*self.columns, *self.where_columns))
        return [self.table.readable[n] for n in names or (self._cheapest,)]

    @property
    def _cheapest(self) -> str:
        """A column that rows are counted by when none is asked for: one that costs little to read."""
        schema = self.table.schema
        plain = [f.name for f in schema.fields if not (f.type.is_nested or f.type.is_bytes or f.type.root == "BLOB")]
        return next(iter((*schema.partition_keys, *schema.trimmed_keys, *plain, *schema.names)))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, streamed. Memory follows the table's budget, not its size."""
        from shoal.table.read import read

        return read(self, self.plan())


def _drop(entries: pa.Table, condition: pa.ChunkedArray, reason: str, dropped: dict[str, int]) -> pa.Table:
    import pyarrow.compute as pc

    kept = entries.filter(pc.invert(condition))
    if kept.num_rows < entries.num_rows:
        dropped[reason] = entries.num_rows - kept.num_rows
    return kept
