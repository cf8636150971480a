# SPDX-License-Identifier: Apache-2.0
"""What a compaction makes of a block when it also tells what changed: the merged rows, and changelog rows.

Three folds for `merge_blocks`: `LookupFold` finds the row that level 0 replaces among the merged files or, by lookup,
above the output level; `FirstRowFold` only asks whether a key is there already; `FullFold` compares the highest level
with the result. Agrees with: LookupChangelogMergeFunctionWrapper, LookupMergeFunction, FirstRowMergeFunctionWrapper,
FullChangelogMergeFunctionWrapper (2.0.0). Invariant: a changelog row of kind -U or -D is the row as it was, sequence
number included; keys without a level-0 version change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from shoal.lsm.equality import equal_values
from shoal.lsm.keys import Array, less, stable_order
from shoal.lsm.merge import (
    DELETE,
    INSERT,
    KIND,
    LEVEL,
    SEQUENCE,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Rules,
    key_words,
    kinds_of,
    sequenced_order,
    winners,
    without_looked_up,
)
from shoal.lsm.picking import picked
from shoal.lsm.versions import Versions

if TYPE_CHECKING:
    import pyarrow as pa


class Found(NamedTuple):
    """What a lookup found. `probes` are the keys (their places in the question, in any order) that have an old row."""

    probes: Array
    rows: pa.Table | None
    """The old rows, with the columns of the block, aligned with `probes`; None where only their places count."""


class Lookup(Protocol):
    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows that these keys (ascending, each once) have in the levels above the output."""


class Merged(NamedTuple):
    """A block's result: rows of the table's columns, sequence number and kind; and what changed, in that form.

    `rows` is None where only changes were asked for.
    """

    rows: pa.RecordBatch | None
    changelog: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class Changes:
    """How a changelog is made. `compare` are the columns that make a change; None: every rewritten row is one."""

    compare: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    """Versions of the keys of a block, and for each key whether it has a level-0 row and which row is older."""

    versions: Versions
    level0: Array
    old: Array
    """Table row of the version that was there before; -1 where there was none."""


@dataclass(frozen=True, slots=True)
class LookupFold:
    """Level 0 goes up: the newest compacted version of each key counts, among the merged files or above them.

    `changes` None writes no changelog. Blocks hold the value columns, sequence number, kind and level. Without `keep`
    only the changelog is made.
    """

    rules: Rules
    columns: tuple[str, ...]
    lookup: Lookup
    changes: Changes | None
    sequenced: bool
    drop_deletes: bool
    keep: bool = True

    def one(self, part: pa.RecordBatch) -> Merged:
        import pyarrow as pa

        return self._merged(pa.Table.from_batches([part]), *_order_of_one(part, self.rules))

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[Merged]:
        import pyarrow as pa

        words = key_words(parts, self.rules.keys)
        order, first = sequenced_order(parts, words, self.rules) if self.sequenced else stable_order(words)
        yield self._merged(pa.Table.from_batches(parts), order, first)

    def _merged(self, table: pa.Table, order: Array, first: Array) -> Merged:
        block = self._block(table, order, first)
        result = _Result(block.versions, self.rules, self.columns)
        changelog = None
        if self.changes is not None:
            changelog = changed_rows(result, block.level0, block.old, self.changes.compare)
        return Merged(result.rows(self.drop_deletes) if self.keep else None, changelog)

    def _block(self, table: pa.Table, order: Array, first: Array) -> _Block:
        import pyarrow as pa

        levels = table.column(LEVEL).to_numpy()
        asked = np.flatnonzero(~np.logical_or.reduceat(levels[order] > 0, np.flatnonzero(first)))
        if len(asked):
            keys = table.select(list(self.rules.keys)).take(pa.array(order[first][asked]))
            found = self.lookup.find(keys.combine_chunks().to_batches()[0])
            if len(found.probes) and found.rows is not None:
                rows = found.rows.select(table.schema.names).cast(table.schema)
                table, order, first = self._with_found(table, order, first, asked[found.probes], rows)
                levels = table.column(LEVEL).to_numpy()
        order, first, _ = without_looked_up(levels, order, first)
        table = table.combine_chunks()  # columns are picked from twice: for the result and for what was before
        versions = Versions(table, order, first, kinds_of([table]), lone_pass=False)
        here, starts = levels[order], versions.starts
        old = np.maximum.reduceat(np.where(here > 0, order, -1), starts)
        return _Block(versions, np.logical_or.reduceat(here == 0, starts), old)

    def _with_found(
        self, table: pa.Table, order: Array, first: Array, keys: Array, found: pa.Table
    ) -> tuple[pa.Table, Array, Array]:
        """The block with the rows that were looked up, one for each of `keys`, which are numbers of the block's keys.

        They come first, unless their sequence says otherwise: of equal ones Java takes the looked-up row as the newer.
        """
        import pyarrow as pa

        at = np.flatnonzero(first)[keys]
        old, oldest = found.column(SEQUENCE).to_numpy(), table.column(SEQUENCE).to_numpy()[order[at]]
        if not self.rules.sequence_fields and (old < oldest).all():
            by_key = np.argsort(at)
            at, count = at[by_key], len(at)
            first = np.insert(first, at, True)
            first[at + np.arange(1, count + 1)] = False
            return pa.concat_tables([found, table]), np.insert(order + count, at, by_key), first
        table = pa.concat_tables([table, found])
        return table, *sequenced_order([table], key_words([table], self.rules.keys), self.rules)


@dataclass(frozen=True, slots=True)
class FirstRowFold:
    """A key that is there already keeps its row; one that is new is its own changelog."""

    rules: Rules
    columns: tuple[str, ...]
    lookup: Lookup
    changes: Changes | None
    sequenced: bool

    def one(self, part: pa.RecordBatch) -> Merged:
        return next(self([part]))

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[Merged]:
        import pyarrow as pa

        words = key_words(parts, self.rules.keys)
        order, first = sequenced_order(parts, words, self.rules) if self.sequenced else stable_order(words)
        table = pa.Table.from_batches(parts)
        kinds = kinds_of([table])
        versions = Versions(table, order, first, kinds, lone_pass=False)
        result = _Result(versions, self.rules, self.columns)
        high = table.column(LEVEL).to_numpy()[order] > 0
        if versions.retracts is not None:  # ignored rows say nothing
            high &= ~versions.retracts
        there = np.logical_or.reduceat(high, versions.starts)[result.groups]
        rows = result.rows(False)
        new = np.flatnonzero(~there)
        keep = np.ones(len(there), bool)
        if len(new):
            keys = rows.select(list(self.rules.keys)).take(pa.array(new))
            keep[new[self.lookup.find(keys).probes]] = False
        changelog = None
        if self.changes is not None:
            changelog = rows.filter(pa.array(~there & keep))
        yield Merged(rows if keep.all() else rows.filter(pa.array(keep)), changelog)


@dataclass(frozen=True, slots=True)
class FullFold:
    """Everything goes to the highest level: what was there before is what a reader of full compactions knew."""

    rules: Rules
    columns: tuple[str, ...]
    max_level: int
    changes: Changes
    sequenced: bool

    def one(self, part: pa.RecordBatch) -> Merged:
        return next(self([part]))

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[Merged]:
        import pyarrow as pa

        words = key_words(parts, self.rules.keys)
        order, first = sequenced_order(parts, words, self.rules) if self.sequenced else stable_order(words)
        table = pa.Table.from_batches(parts)
        levels = table.column(LEVEL).to_numpy()
        starts = np.flatnonzero(first)
        counts = np.diff(np.append(starts, len(order)))
        old = np.maximum.reduceat(np.where(levels[order] == self.max_level, order, -1), starts)
        single = None
        if self.rules.lookup:
            order, first, single = without_looked_up(levels, order, first)
        versions = Versions(table, order, first, kinds_of([table]), single=single)
        result = _Result(versions, self.rules, self.columns)
        # a key whose only row is on the highest level did not change
        changelog = changed_rows(result, (counts > 1) | (old < 0), old, self.changes.compare)
        yield Merged(result.rows(True), changelog)


def _order_of_one(part: pa.RecordBatch, rules: Rules) -> tuple[Array, Array]:
    """The order of rows of one run, which holds each key once: their own, as a rule."""
    words = key_words([part], rules.keys)
    if less([w[:-1] for w in words], [w[1:] for w in words]).all():
        return np.arange(part.num_rows), np.ones(part.num_rows, bool)
    return stable_order(words)


class _Result:
    """The rows that become of a block, one for each key or none, deletes too.

    `rows_at`: the row of the block whose key and sequence number each carries; `groups`: which of the keys it belongs
    to, ascending. Columns are put together when they are asked for: often only the rows that changed are wanted.
    """

    def __init__(self, versions: Versions, rules: Rules, names: tuple[str, ...]) -> None:
        self.versions = versions
        self.names = (*names, SEQUENCE, KIND)
        self._columns: dict[str, pa.Array] = {}
        self._new: frozenset[str] = frozenset()
        if rules.engine is not None:
            folded = rules.engine.fold(versions, names)
            self.rows_at, self.kinds = folded.rows, folded.kinds
            self._columns.update(zip(names, folded.columns))
            self._new = frozenset(names)
        else:
            self.rows_at = winners(
                versions.order, versions.first, versions.kinds, rules, lone_pass=versions.lone_pass
            )  # fmt: skip
            none = np.zeros(len(self.rows_at), np.int8)
            self.kinds = none if versions.kinds is None else versions.kinds[self.rows_at]
        self.groups = self._groups()

    def _groups(self) -> Array:
        versions = self.versions
        if len(self.rows_at) == len(versions.starts):
            return np.arange(len(self.rows_at))
        group = np.empty(versions.table.num_rows, np.int64)
        group[versions.order] = np.cumsum(versions.first) - 1
        return group[self.rows_at]

    @property
    def adds(self) -> Array:
        return (self.kinds == INSERT) | (self.kinds == UPDATE_AFTER)

    def column(self, name: str) -> pa.Array:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = picked(self.versions.column(name), self.rows_at)
        return found

    def is_new(self, name: str) -> bool:
        """Whether a column's values are the engine's; otherwise every row is one of the block."""
        return name in self._new

    def rows(self, drop_deletes: bool) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [self.column(n) for n in self.names[:-1]]
        out = pa.RecordBatch.from_arrays([*columns, pa.array(self.kinds, pa.int8())], list(self.names))
        if not drop_deletes:
            return out
        adds = self.adds
        return out if adds.all() else out.filter(pa.array(adds))


def changed_rows(result: _Result, counts: Array, old: Array, compare: Sequence[str] | None) -> pa.RecordBatch | None:
    """Changelog rows of the keys that count: +I, -U and +U, -D, ascending by key. None when nothing changed."""
    import pyarrow as pa

    groups, adds, versions = result.groups, result.adds, result.versions
    before = old[groups]
    if versions.kinds is not None:
        kinds = versions.kinds[before]
        before = np.where((kinds == INSERT) | (kinds == UPDATE_AFTER), before, -1)
    was, counts = before >= 0, counts[groups]
    updated = counts & was & adds
    if compare is not None and updated.any():
        at = np.flatnonzero(updated)
        updated[at] = ~_same(result, at, before[at], compare)
    gone = counts & was & ~adds
    leaves = np.flatnonzero(updated | gone)
    comes = np.flatnonzero(updated | (counts & ~was & adds))
    if not len(leaves) and not len(comes):
        return None
    kinds = np.concatenate([
        np.where(gone[leaves], DELETE, UPDATE_BEFORE), np.where(was[comes], UPDATE_AFTER, INSERT)
    ]).astype(np.int8)  # fmt: skip
    place = np.argsort(np.concatenate([2 * leaves, 2 * comes + 1]), kind="stable")
    # each column is picked once: from the block, or from the block and the result laid end to end
    lost, size = before[leaves], versions.table.num_rows if len(leaves) else 0
    own = np.concatenate([lost, result.rows_at[comes]])[place]
    new = np.concatenate([lost, comes + size])[place]
    own_index, new_index = _indices(own), _indices(new)
    arrays = []
    for name in result.names[:-1]:
        if not result.is_new(name):
            arrays.append(picked(versions.column(name), own, own_index))
            continue
        values = result.column(name)
        if size:
            old_values = versions.column(name)
            values = pa.concat_arrays([old_values, values.cast(old_values.type)])
        arrays.append(picked(values, new, new_index))
    return pa.RecordBatch.from_arrays([*arrays, pa.array(kinds[place])], list(result.names))


def _same(result: _Result, at: Array, old: Array, compare: Sequence[str]) -> Array:
    """Which results equal the row before in all these columns."""
    same = np.ones(len(at), bool)
    index = _indices(at)
    for name in compare:
        new = picked(result.column(name), at, index)
        same &= equal_values(picked(result.versions.column(name), old), new)
        if not same.any():
            break
    return same


def _indices(rows: Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)
