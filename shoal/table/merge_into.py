# SPDX-License-Identifier: Apache-2.0
"""`table.merge(source, on=...)`: rows of a source meet those of the table by key; clauses say what becomes of each.

Agrees with: MergeIntoPaimonTable, MergeIntoProcessor (2.0.0). Invariant: the first clause whose condition is true
counts; a row of the table that several source rows match is refused, as it would be anybody's guess which of them
counts; everything is one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadRequest, near
from shoal.options import check
from shoal.table.assignments import Compute, Mask, assigned, check_columns, holds, inputs_of
from shoal.table.delete import refuse_engine
from shoal.table.row_changes import ALONE, By, Change, Changed, Decision, change_rows
from shoal.table.row_tracking import ROW_ID
from shoal.table.rows import batches_of
from shoal.table.update import places_rows, refuse_update

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table
    from shoal.table.write import Write

On = str | Sequence[str] | Mapping[str, str]
Places = NDArray[np.int64]

# How a clause's expressions name the columns of the source; columns of the table go by their own names.
SOURCE = "source."
_INSERT, _UPDATE, _DELETE = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Clause:
    """What becomes of rows that a condition is true for: new column values, or (`values` None) they go."""

    values: Mapping[str, Any] | None
    condition: pc.Expression | Compute | None = None


@dataclass(frozen=True, slots=True)
class Clauses:
    """All clauses, in the order in which they are asked."""

    matched: tuple[Clause, ...] = ()
    not_matched: tuple[Clause, ...] = ()
    not_matched_by_source: tuple[Clause, ...] = ()


def merge(
    table: Table,
    source: Any,
    on: On,
    *,
    when_matched_update: Mapping[str, Any] | bool | None = None,
    when_matched_delete: pc.Expression | Compute | bool | None = None,
    when_not_matched_insert: Mapping[str, Any] | bool | None = None,
    when_not_matched_by_source_update: Mapping[str, Any] | None = None,
    when_not_matched_by_source_delete: pc.Expression | Compute | bool | None = None,
    by: By = ALONE,
) -> Changed:
    """Merge with one clause of each kind; deletes are asked before updates. See `merge_clauses` for more of them."""
    rows = _source(table, source)
    common = [n for n in rows.column_names if n in table.schema.names]
    keys = set(_pairs(table, rows, on))

    def values(given: Mapping[str, Any] | bool, leave: set[str]) -> Mapping[str, Any]:
        import pyarrow.compute as pc

        return given if isinstance(given, Mapping) else {n: pc.field(SOURCE + n) for n in common if n not in leave}

    def deletes(given: pc.Expression | Compute | bool | None) -> list[Clause]:
        if given is None or given is False:
            return []
        return [Clause(None, None if given is True else given)]

    def sets(given: Mapping[str, Any] | bool | None, leave: set[str]) -> list[Clause]:
        return [] if given is None or given is False else [Clause(values(given, leave))]

    clauses = Clauses(
        (*deletes(when_matched_delete), *sets(when_matched_update, keys)),
        tuple(sets(when_not_matched_insert, set())),
        (*deletes(when_not_matched_by_source_delete), *sets(when_not_matched_by_source_update, set())),
    )
    return merge_clauses(table, rows, on, clauses, by)


def merge_clauses(table: Table, source: Any, on: On, clauses: Clauses, by: By = ALONE) -> Changed:
    """Merge by clauses. `on` names the key columns: of both sides, or those of the table with the source's.

    A row-tracking table may be matched by `_ROW_ID`.
    """
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    rows = _source(table, source)
    pairs = _pairs(table, rows, on)
    _check(table, clauses)
    joined = _Joined(table, rows, pairs, clauses)
    if table.primary_key:
        return _by_key(table, joined, by)
    change = joined.change

    def insert(w: Write) -> int:
        new = joined.inserts()
        if new.num_rows:
            w.append(new)
        return int(new.num_rows)

    if not (clauses.matched or clauses.not_matched_by_source):
        joined.look_up()  # nothing of the table changes: its rows only say which source rows are new
        change = Change((), lambda batch: np.zeros(batch.num_rows, np.bool_), drops=False)
    return change_rows(table, joined.scan, change, "MERGE", insert, by)


def _source(table: Table, source: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(source, pa.Table):
        return source
    batches = list(batches_of(source, table.name))
    if not batches:
        raise BadRequest(f"{table.name}: the source of the merge has no rows and no columns")
    return pa.Table.from_batches(batches)


def _pairs(table: Table, source: pa.Table, on: On) -> dict[str, str]:
    """Key columns: the table's name, and the source's."""
    pairs = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {n: n for n in on}
    if not pairs:
        raise BadRequest(f"{table.name}: MERGE needs columns to match by", hint="e.g. on='id'")
    for mine, theirs in pairs.items():
        mine_too = [*table.schema.names, *([ROW_ID.name] if table.options.row_tracking else ())]
        for name, names, where in ((mine, mine_too, table.name), (theirs, source.column_names, "the source")):
            if name not in names:
                raise BadRequest(f"{where} has no column '{name}' to match by", hint=near(name, names))
    return pairs


def _check(table: Table, clauses: Clauses) -> None:
    every = (*clauses.matched, *clauses.not_matched, *clauses.not_matched_by_source)
    if not every:
        raise BadRequest(f"{table.name}: MERGE says nothing to do", hint="e.g. when_matched_update=True")
    for kind in (clauses.matched, clauses.not_matched, clauses.not_matched_by_source):
        if any(c.condition is None for c in kind[:-1]):
            raise BadRequest(
                f"{table.name}: a clause of MERGE without condition leaves nothing for those after it",
                hint="give the earlier clause a condition",
            )
    for c in every:
        if c.values is not None:
            check_columns(table, c.values, "MERGE")
    if any(c.values is None for c in clauses.not_matched):
        raise BadRequest(f"{table.name}: rows that are not matched can be inserted, not deleted")
    if table.primary_key:
        for c in (*clauses.matched, *clauses.not_matched_by_source):
            if c.values is None:
                refuse_engine(table)
            else:
                refuse_update(table, c.values)


class _Joined:
    """The source by key, and what the clauses make of rows that meet it."""

    def __init__(self, table: Table, source: pa.Table, pairs: Mapping[str, str], clauses: Clauses) -> None:
        self.table = table
        self.scan = table.scan()
        self.clauses = clauses
        self.source = source.combine_chunks()
        self._pairs = pairs
        self._index = _KeyIndex(table, self.source, pairs)
        self._met = np.zeros(source.num_rows, np.bool_)
        every = (*clauses.matched, *clauses.not_matched_by_source)
        self._updates = [c.values for c in every if c.values is not None]
        named = {n for u in self._updates for n in u}
        self._writes = [n for n in table.schema.names if n in named]

    @property
    def change(self) -> Change:
        """What becomes of the table's rows."""
        table = self.table
        every = (*self.clauses.matched, *self.clauses.not_matched_by_source)
        wide = table.data_evolution
        reads: list[str] = []
        if wide:
            values = [v for u in self._updates for v in u.values()]
            # a clause that does not set what another one sets gives the old value
            partly = [n for n in self._writes if not all(n in u for u in self._updates)]
            reads = [*inputs_of(table, [*values, *(c.condition for c in every)], self._beside), *partly]
        return Change(
            self.probe_columns, self.touched, self.decide, moves=any(places_rows(table, u) for u in self._updates),
            reads=reads, writes=self._writes if wide else (), drops=any(c.values is None for c in every),
        )  # fmt: skip

    @property
    def _beside(self) -> pa.Schema:
        """The columns of the source as expressions name them."""
        import pyarrow as pa

        return pa.schema([pa.field(SOURCE + f.name, f.type) for f in self.source.schema])

    @property
    def probe_columns(self) -> list[str]:
        """Columns of the table that tell which rows are touched: keys, and whatever conditions look at."""
        every = (*self.clauses.matched, *self.clauses.not_matched_by_source)
        looked_at = inputs_of(self.table, [c.condition for c in every], self._beside)
        return list(dict.fromkeys((*looked_at, *self._pairs)))

    def meet(self, rows: pa.RecordBatch) -> Places:
        """The source row of each row of the table, or -1. Several for one are a fault where matches do anything."""
        at, many = self._index.find(rows)
        if self.clauses.matched and many.any():
            import pyarrow as pa

            first = rows.select(list(self._pairs)).filter(pa.array(many)).slice(0, 1).to_pylist()[0]
            raise BadRequest(
                f"{self.table.name}: several source rows match the row with {first}",
                hint="leave one row for each key in the source",
            )
        # all rows of a key were met, not only the one found
        self._met |= self._index.same_key(at[at >= 0])
        return at

    def both(self, rows: pa.RecordBatch, at: Places) -> pa.RecordBatch:
        """Rows of the table beside their source rows; nulls where there is none."""
        import pyarrow as pa

        taken = self.source.take(pa.array(at, mask=at < 0)).combine_chunks()
        columns = [c.chunk(0) if c.num_chunks else pa.nulls(len(at), c.type) for c in taken.columns]
        names = [*rows.schema.names, *(SOURCE + n for n in taken.column_names)]
        return pa.RecordBatch.from_arrays([*rows.columns, *columns], names=names)

    def _chosen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[Clause, Mask]]]:
        """(rows beside their source rows, which of them each clause takes)."""
        at = self.meet(rows)
        both = self.both(rows, at)
        out = []
        for kind, free in ((self.clauses.matched, at >= 0), (self.clauses.not_matched_by_source, at < 0)):
            for c in kind:
                taken = free & holds(c.condition, both)
                free = free & ~taken
                out.append((c, taken))
        return both, out

    def touched(self, rows: pa.RecordBatch) -> Mask:
        mask = np.zeros(rows.num_rows, np.bool_)
        for _, taken in self._chosen(rows)[1]:
            mask |= taken
        return mask

    def decide(self, rows: pa.RecordBatch) -> Decision:
        """What becomes of rows of the table."""
        import pyarrow as pa

        both, chosen = self._chosen(rows)
        n = rows.num_rows
        drop, change = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        parts, places = [], []
        for c, taken in chosen:
            if c.values is None:
                drop |= taken
            elif taken.any():
                change |= taken
                only = self._writes if self.table.data_evolution else None
                parts.append(assigned(self.table, c.values, both.filter(pa.array(taken)), only=only))
                places.append(np.flatnonzero(taken))
        if not parts:
            return Decision(drop, change)
        order = np.argsort(np.concatenate(places), kind="stable")
        changed = pa.Table.from_batches(parts).take(pa.array(order)).combine_chunks().to_batches()[0]
        return Decision(drop, change, changed)

    def look_up(self) -> None:
        """See which source rows the table has, without changing anything."""
        for rows in self.table.scan(columns=list(self._pairs)).to_batches():
            self.meet(rows)

    def inserts(self) -> pa.Table:
        """Rows of the source that no row of the table met, as the insert clauses make them."""
        import pyarrow as pa

        fields = [pa.field(SOURCE + f.name, f.type) for f in self.source.schema]
        new = pa.Table.from_arrays(self.source.columns, schema=pa.schema(fields)).filter(pa.array(~self._met))
        parts = []
        for rows in new.combine_chunks().to_batches():
            free = np.ones(rows.num_rows, np.bool_)
            for c in self.clauses.not_matched:
                taken = free & holds(c.condition, rows)
                free &= ~taken
                if taken.any():
                    assert c.values is not None
                    parts.append(assigned(self.table, c.values, rows.filter(pa.array(taken)), keep=False))
        return pa.Table.from_batches(parts) if parts else self.table.arrow_schema.empty_table()


class _KeyIndex:
    """Finds source rows by key: a key is the number of its values among those of the source, one column at a time."""

    def __init__(self, table: Table, source: pa.Table, pairs: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._columns = list(pairs)
        self._steps: list[tuple[pa.Array, NDArray[np.int64]]] = []  # values of a column, numbers of keys up to it
        group = np.zeros(source.num_rows, np.int64)
        for mine, theirs in pairs.items():
            kind = table.readable_schema.field(mine).type
            try:
                column = _one(source.column(theirs).cast(kind))
                values = pc.unique(column.drop_null())
            except pa.ArrowException as err:
                raise BadRequest(
                    f"{table.name}: rows cannot be matched by '{mine}' ({kind})", hint=str(err).splitlines()[0]
                ) from err
            code = _codes(group, column, values)
            numbers = np.unique(code[code >= 0])
            self._steps.append((values, numbers))
            group = _numbers(code, numbers)
        self._group = group  # of each source row, -1 where its key has a null: it equals nothing
        rows = np.flatnonzero(group >= 0)
        present, first, count = np.unique(group[rows], return_index=True, return_counts=True)
        size = int(present[-1]) + 1 if len(present) else 0
        self._first = np.full(size, -1, np.int64)
        self._first[present] = rows[first]
        self._many = np.zeros(size, np.bool_)
        self._many[present] = count > 1

    def find(self, rows: pa.RecordBatch) -> tuple[Places, Mask]:
        """(a source row for each row or -1, whether there are more)."""
        group = np.zeros(rows.num_rows, np.int64)
        for name, (values, numbers) in zip(self._columns, self._steps):
            group = _numbers(_codes(group, rows.column(name), values), numbers)
        at, many = np.full(len(group), -1, np.int64), np.zeros(len(group), np.bool_)
        there = group >= 0
        at[there], many[there] = self._first[group[there]], self._many[group[there]]
        return at, many

    def same_key(self, found: Places) -> Mask:
        """Which source rows have the key of one that was found."""
        met = np.zeros(len(self._first) + 1, np.bool_)
        met[self._group[found]] = True
        met[-1] = False  # where rows with a null in their key point to
        return met[self._group]


def _one(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _codes(group: NDArray[np.int64], column: pa.Array, values: pa.Array) -> NDArray[np.int64]:
    """The group so far and the column's value as one number; -1 where either is unknown."""
    import pyarrow.compute as pc

    at = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where((group >= 0) & (at >= 0), group * max(1, len(values)) + at, -1)


def _numbers(codes: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each code among those known, -1 where it is not there."""
    if not len(known):
        return np.full(len(codes), -1, np.int64)
    at = np.searchsorted(known, codes)
    at[at == len(known)] = 0
    return np.where(known[at] == codes, at, -1)


def _by_key(table: Table, joined: _Joined, by: By) -> Changed:
    """Merge into a table with a primary key: new versions, deletes and new rows, all through one writer."""
    import pyarrow as pa

    commit = by.commit(table)
    deleted = updated = 0
    with table.write() as w:
        for batch in joined.scan.to_batches():
            drop, change, changed = joined.decide(batch)
            if drop.any():
                w.write(batch.filter(pa.array(drop)), [_DELETE] * int(drop.sum()))
            if changed is not None:
                w.write(changed, [_UPDATE] * changed.num_rows)
            deleted += int(drop.sum())
            updated += int(change.sum())
        new = joined.inserts()
        if new.num_rows:
            w.append(new)
        staged = w.prepare(wait=True)
        if not (deleted or updated or new.num_rows):
            return Changed(table.name)
        committed = commit.commit(staged, by.identifier, operation="MERGE")
    return by.finished(table, committed, deleted=deleted, updated=updated, inserted=new.num_rows)
