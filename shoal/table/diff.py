# SPDX-License-Identifier: Apache-2.0
"""Two states of a table compared key by key: what a diff read returns.

Both sides of a bucket are merged in key order and joined batch by batch, so memory follows the budget. Files that both
states share are left out before, as Java does. Agrees with: SnapshotReaderImpl.readIncrementalDiff,
IncrementalDiffSplitRead (2.0.0). Invariant: a key gives at most one row: the new one with the kind it is stored with,
or the old one as -D; a key with equal values (floats by their bits) gives none. The filter sees these rows only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Unsupported
from shoal.format.manifest import entries_of
from shoal.format.schema import VALUE_KIND
from shoal.format.snapshot import Snapshot
from shoal.format.types import arrow_schema
from shoal.lsm.equality import equal_values
from shoal.lsm.keys import Array, column_words, stable_order
from shoal.lsm.merge import DELETE, INSERT, KIND, UPDATE_AFTER, comparable, merge_runs
from shoal.lsm.sections import sections
from shoal.table.deletions import Deletions
from shoal.table.partition_choice import choice_of
from shoal.table.pruning import Pruning
from shoal.table.runs import BucketFiles, merged_fields
from shoal.table.scan import Scan
from shoal.table.selected import Selected

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

_Place = tuple[bytes, int]  # partition and bucket


class Diff(Scan):
    """What became of each key between two snapshots, the row kind in front. Without `deletes`, lost keys are silent."""

    def __init__(
        self,
        table: Table,
        before: Snapshot,
        after: Snapshot,
        *,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        deletes: bool = True,
        kinds: bool = True,
    ) -> None:
        import pyarrow as pa

        old, new = changed(*(_real(table.metadata.live(s)) for s in (before, after)))
        if table.clustered:
            raise Unsupported(
                f"{table.name}: files that are not sorted by the key cannot be compared key by key",
                hint="read the changes as they were written: mode='delta'",
            )
        choice = choice_of(table)
        if choice is not None:
            both = pa.concat_tables([old, new])
            old, new = choice.of(old, both), choice.of(new, both)
        chosen = Selected(after, pa.concat_tables([old, new]), deletes=deletes, levels=0)
        super().__init__(table, where=where, columns=columns, limit=limit, selected=chosen, kinds=kinds)
        self._sides = tuple(
            _Side(table, self._pruned(entries), self._vectors(snap)) for entries, snap in ((old, before), (new, after))
        )

    def _pruned(self, entries: pa.Table) -> pa.Table:
        # bounds of other columns tell nothing: one side alone would look like a change
        keys = [c for c in self.where_columns if c in self.table.primary_key]
        return Pruning(self.table, self.where, keys).entries(entries, {}, merged=True)

    def _vectors(self, snap: Snapshot) -> Mapping[_Place, Deletions]:
        if snap.index_manifest is None or not self.table.options.deletion_vectors:
            return {}
        return self.table.metadata.deletions(snap.index_manifest)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, bucket after bucket, ascending by key inside each."""
        left = self.limit
        if left == 0:
            return
        for batch in self._rows():
            part = batch if left is None else batch.slice(0, left)
            left = None if left is None else left - part.num_rows
            yield part
            if left == 0:
                return

    def _rows(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        before, after = self._sides
        names = self.schema.names
        for place in dict.fromkeys((*before.places, *after.places)):
            with closing(before.rows(place, self.deletes)) as old, closing(after.rows(place, self.deletes)) as new:
                for batch in _compared(old, new, self.table.schema.trimmed_keys, self.deletes):
                    rows = pa.Table.from_batches([batch])
                    if self.where is not None:
                        rows = rows.filter(self.where)
                    for part in rows.select(names).combine_chunks().to_batches():
                        if part.num_rows:
                            yield pa.RecordBatch.from_arrays(part.columns, schema=self.schema)


def _real(entries: pa.Table) -> pa.Table:
    """Without postponed buckets: their rows are in no state yet."""
    import pyarrow.compute as pc

    return entries.filter(pc.greater_equal(entries.column("bucket"), 0))


def changed(before: pa.Table, after: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both sides without the files they share at the same place and level."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def identities(t: pa.Table) -> Iterable[tuple[object, ...]]:
        names = ("partition", "bucket", "total_buckets", "level", "file_name")
        return zip(*(t.column(n).to_pylist() for n in names))

    def without(t: pa.Table, rows: pa.Array, gone: set[tuple[object, ...]]) -> pa.Table:
        keep = np.ones(t.num_rows, bool)
        keep[[r for r, i in zip(rows.to_pylist(), identities(t.take(rows))) if i in gone]] = False
        return t.filter(pa.array(keep))

    # names decide most of it; only files of both sides are looked at in full
    in_both = [
        pc.indices_nonzero(pc.is_in(a.column("file_name"), b.column("file_name").combine_chunks()))
        for a, b in ((before, after), (after, before))
    ]
    shared = set(identities(before.take(in_both[0]))) & set(identities(after.take(in_both[1])))
    return without(before, in_both[0], shared), without(after, in_both[1], shared)


@dataclass(frozen=True)
class _Side:
    """One of the two states: its changed files, and the deletion vectors it had."""

    table: Table
    entries: pa.Table
    vectors: Mapping[_Place, Deletions]

    @property
    def places(self) -> list[_Place]:
        e = self.entries
        return list(zip(e.column("partition").to_pylist(), e.column("bucket").to_pylist()))

    def rows(self, place: _Place, deletes: bool) -> Generator[pa.RecordBatch, None, None]:
        """The merged rows of one bucket, all columns and the kind, ascending by key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        e, table, rules = self.entries, self.table, self.table.rules
        # files and engines differ in what they call nullable, and the join lays both sides end to end
        schema = arrow_schema([VALUE_KIND, *table.schema.fields])
        here = pc.and_(pc.equal(e.column("partition"), place[0]), pc.equal(e.column("bucket"), place[1]))
        files = [entry.file for entry in entries_of(e.filter(here))]
        names = [KIND, *table.schema.names]
        for section in sections(files, table.bounds):
            needed = merged_fields(table, table.schema.fields, section, kinds=True)
            files_of = BucketFiles(table, *place, needed, deletions=self.vectors.get(place, {}))
            runs = [files_of.run(run) for run in section]
            half = table.budget().share(2)
            for batch in merge_runs(runs, rules, names, half, drop_deletes=not deletes, ordered=True):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


# ---- the join --------------------------------------------------------------------------------------------


def _compared(
    before: Iterator[pa.RecordBatch], after: Iterator[pa.RecordBatch], keys: Sequence[str], deletes: bool
) -> Iterator[pa.RecordBatch]:
    """Two streams that ascend by key, each key once, cut at the same keys and compared."""
    old, new = _Ahead(before, keys), _Ahead(after, keys)
    while old.fill() | new.fill():
        last = [s.last() for s in (old, new) if s.batch is not None]
        cut = min(last)
        a, b = old.upto(cut), new.upto(cut)
        if a is None:
            rows = b
        elif b is None:
            rows = _lost(a) if deletes else None
        else:
            rows = _differences(a, b, keys, deletes)
        if rows is not None and rows.num_rows:
            yield rows


class _Ahead:
    """One stream and the batch that is being used up."""

    def __init__(self, batches: Iterator[pa.RecordBatch], keys: Sequence[str]) -> None:
        self._batches = batches
        self._keys = keys
        self.batch: pa.RecordBatch | None = None

    def fill(self) -> bool:
        """Load a batch if there is none; false at the end."""
        while self.batch is None or not self.batch.num_rows:
            self.batch = next(self._batches, None)
            if self.batch is None:
                return False
        return True

    def _key(self, row: int) -> tuple[Any, ...]:
        assert self.batch is not None
        return tuple(comparable(self.batch.column(k), row) for k in self._keys)

    def last(self) -> tuple[Any, ...]:
        assert self.batch is not None
        return self._key(self.batch.num_rows - 1)

    def upto(self, cut: tuple[Any, ...]) -> pa.RecordBatch | None:
        """Take the rows with key <= cut; None when there are none."""
        batch = self.batch
        if batch is None:
            return None
        low, high = 0, batch.num_rows
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._key(middle) <= cut else (low, middle)
        self.batch = batch.slice(low)
        return batch.slice(0, low) if low else None


def _lost(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose key is gone, as -D. One that was a deletion already is no loss."""
    import pyarrow as pa

    alive = rows.filter(pa.array(_added(rows)))
    kinds = pa.array(np.full(alive.num_rows, DELETE, np.int8))
    return alive.set_column(alive.schema.get_field_index(KIND), KIND, kinds).cast(rows.schema)


def _added(rows: pa.RecordBatch) -> Array:
    kinds = rows.column(KIND).to_numpy()
    return (kinds == INSERT) | (kinds == UPDATE_AFTER)


def _differences(a: pa.RecordBatch, b: pa.RecordBatch, keys: Sequence[str], deletes: bool) -> pa.RecordBatch:
    """The rows of `b` that are new or other than in `a`, and with `deletes` those of `a` that `b` lacks, by key."""
    import pyarrow as pa

    both = pa.Table.from_batches([a, b]).combine_chunks()
    words = [w for k in keys for w in column_words(both.column(k).combine_chunks())]
    order, first = stable_order(words)
    n = a.num_rows
    # a key is there once a side and the old side comes first: a row that does not open its key is the new one of two
    second = np.flatnonzero(~first)
    old, new = order[second - 1], order[second] - n
    same = equal_rows(a, b, old, new)
    wanted = np.ones(len(order), bool)
    wanted[second - 1] = False  # the old row of a pair
    wanted[second[same]] = False
    lone_old = (order < n) & wanted
    kinds = both.column(KIND).to_numpy().copy()
    added = (kinds == INSERT) | (kinds == UPDATE_AFTER)
    if deletes:
        wanted &= ~lone_old | added[order]
        kinds[order[lone_old]] = DELETE
    else:
        wanted &= ~lone_old & added[order]
    index = both.schema.get_field_index(KIND)
    both = both.set_column(index, both.schema.field(index), pa.array(kinds))
    out: pa.RecordBatch = (
        both.take(pa.array(order[wanted])).combine_chunks().to_batches(max_chunksize=None)[0]
        if (wanted.any())
        else b.slice(0, 0)
    )
    return out


def equal_rows(a: pa.RecordBatch, b: pa.RecordBatch, left: Array, right: Array) -> Array:
    """Whether row `left[i]` of `a` equals row `right[i]` of `b` in every value and in being there or deleted."""
    import pyarrow as pa

    same = _added(a)[left] == _added(b)[right]
    for name in a.schema.names:
        if name == KIND or not same.any():
            continue
        x, y = a.column(name).take(pa.array(left)), b.column(name).take(pa.array(right))
        same &= equal_values(x, y)
    return same
