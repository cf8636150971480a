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
from shoal.lsm.keys import Array, stable_order
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
from shoal.lsm.versions import Folded, Versions

if TYPE_CHECKING:
    import pyarrow as pa


class Found(NamedTuple):
    """What a lookup found. `probes` are the keys (their places in the question, ascending) that have an old row."""

    probes: Array
    rows: pa.Table | None
    """The old rows, with the columns of the block, one for each of `probes`; None where only their places count."""


class Lookup(Protocol):
    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows that these keys (ascending, each once) have in the levels above the output."""


class Merged(NamedTuple):
    """A block's result: rows of the table's columns, sequence number and kind; and what changed, in that form."""

    rows: pa.RecordBatch
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

    `changes` None writes no changelog. Blocks hold the value columns, sequence number, kind and level.
    """

    rules: Rules
    columns: tuple[str, ...]
    lookup: Lookup
    changes: Changes | None
    sequenced: bool
    drop_deletes: bool

    def one(self, part: pa.RecordBatch) -> Merged:
        return next(self([part]))

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[Merged]:
        block = self._block(parts)
        folded = folded_rows(block.versions, self.rules, self.columns)
        result = _Result.of(block.versions, folded, self.columns)
        changelog = None
        if self.changes is not None:
            changelog = changed_rows(result, block.versions, block.level0, block.old, self.changes.compare)
        yield Merged(result.rows(self.drop_deletes), changelog)

    def _block(self, parts: list[pa.RecordBatch]) -> _Block:
        import pyarrow as pa

        words = key_words(parts, self.rules.keys)
        order, first = sequenced_order(parts, words, self.rules) if self.sequenced else stable_order(words)
        table = pa.Table.from_batches(parts)
        levels = table.column(LEVEL).to_numpy()
        high = np.logical_or.reduceat(levels[order] > 0, np.flatnonzero(first))
        if not high.all():
            keys = table.select(list(self.rules.keys)).take(pa.array(order[first][~high]))
            found = self.lookup.find(keys.combine_chunks().to_batches()[0]).rows
            if found is not None and found.num_rows:
                table, order, first = self._with_found(table, found.select(table.schema.names).cast(table.schema))
                levels = table.column(LEVEL).to_numpy()
        order, first, _ = without_looked_up(levels, order, first)
        table = table.combine_chunks()  # columns are picked from twice: for the result and for what was before
        versions = Versions(table, order, first, kinds_of([table]), lone_pass=False)
        here, starts = levels[order], versions.starts
        old = np.maximum.reduceat(np.where(here > 0, order, -1), starts)
        return _Block(versions, np.logical_or.reduceat(here == 0, starts), old)

    def _with_found(self, table: pa.Table, found: pa.Table) -> tuple[pa.Table, Array, Array]:
        """The block with the rows that were looked up: in front as the oldest, unless the sequence says otherwise.

        Of equal sequences Java takes the looked-up row as the newer one.
        """
        import pyarrow as pa

        oldest, newest = table.column(SEQUENCE).to_numpy().min(), found.column(SEQUENCE).to_numpy().max()
        if not self.rules.sequence_fields and not self.sequenced and newest < oldest:
            table = pa.concat_tables([found, table])
            return table, *stable_order(key_words([table], self.rules.keys))
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
        result = _Result.of(versions, folded_rows(versions, self.rules, self.columns), self.columns)
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
        result = _Result.of(versions, folded_rows(versions, self.rules, self.columns), self.columns)
        # a key whose only row is on the highest level did not change
        changelog = changed_rows(result, versions, (counts > 1) | (old < 0), old, self.changes.compare)
        yield Merged(result.rows(True), changelog)


def folded_rows(versions: Versions, rules: Rules, columns: Sequence[str]) -> Folded:
    """One row per key, deletes too."""
    if rules.engine is not None:
        return rules.engine.fold(versions, columns)
    rows = winners(versions.order, versions.first, versions.kinds, rules, lone_pass=versions.lone_pass)
    index = _indices(rows)
    kinds = np.zeros(len(rows), np.int8) if versions.kinds is None else versions.kinds[rows]
    return Folded([picked(versions.column(c), rows, index) for c in columns], kinds, rows)


@dataclass(frozen=True, slots=True)
class _Result:
    """The folded rows of a block. `groups`: which of its keys each belongs to; ascending, some may have no row."""

    names: tuple[str, ...]
    columns: list[pa.Array]
    kinds: Array
    groups: Array
    keys: int

    @classmethod
    def of(cls, versions: Versions, folded: Folded, names: tuple[str, ...]) -> _Result:
        starts = versions.starts
        if len(folded.rows) == len(starts):
            groups = np.arange(len(starts))
        else:
            group = np.empty(versions.table.num_rows, np.int64)
            group[versions.order] = np.cumsum(versions.first) - 1
            groups = group[folded.rows]
        sequences = picked(versions.column(SEQUENCE), folded.rows)
        return cls((*names, SEQUENCE, KIND), [*folded.columns, sequences], folded.kinds, groups, len(starts))

    @property
    def adds(self) -> Array:
        return (self.kinds == INSERT) | (self.kinds == UPDATE_AFTER)

    def rows(self, drop_deletes: bool) -> pa.RecordBatch:
        import pyarrow as pa

        out = pa.RecordBatch.from_arrays([*self.columns, pa.array(self.kinds, pa.int8())], list(self.names))
        if not drop_deletes:
            return out
        adds = self.adds
        return out if adds.all() else out.filter(pa.array(adds))


def changed_rows(
    result: _Result, versions: Versions, counts: Array, old: Array, compare: Sequence[str] | None
) -> pa.RecordBatch | None:
    """Changelog rows of the keys that count: +I, -U and +U, -D, ascending by key. None when nothing changed."""
    import pyarrow as pa

    groups, adds = result.groups, result.adds
    before = old[groups]
    if versions.kinds is not None:
        kinds = versions.kinds[before]
        before = np.where((kinds == INSERT) | (kinds == UPDATE_AFTER), before, -1)
    was, counts = before >= 0, counts[groups]
    updated = counts & was & adds
    if compare is not None and updated.any():
        at = np.flatnonzero(updated)
        updated[at] = ~_same(result, versions, at, before[at], compare)
    gone = counts & was & ~adds
    leaves = np.flatnonzero(updated | gone)
    comes = np.flatnonzero(updated | (counts & ~was & adds))
    if not len(leaves) and not len(comes):
        return None
    kinds = np.concatenate([
        np.where(gone[leaves], DELETE, UPDATE_BEFORE), np.where(was[comes], UPDATE_AFTER, INSERT)
    ]).astype(np.int8)  # fmt: skip
    place = np.argsort(np.concatenate([2 * leaves, 2 * comes + 1]), kind="stable")
    rows, index = before[leaves], _indices(comes)
    arrays = []
    for name, column in zip(result.names[:-1], result.columns):
        new = picked(column, comes, index)
        if len(leaves):
            lost = picked(versions.column(name), rows)
            new = picked(pa.concat_arrays([lost, new.cast(lost.type)]), place)
        arrays.append(new)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(kinds[place])], list(result.names))


def _same(result: _Result, versions: Versions, at: Array, old: Array, compare: Sequence[str]) -> Array:
    """Which results equal the row before in all these columns."""
    same = np.ones(len(at), bool)
    index = _indices(at)
    for name in compare:
        new = picked(result.columns[result.names.index(name)], at, index)
        same &= equal_values(picked(versions.column(name), old), new)
        if not same.any():
            break
    return same


def _indices(rows: Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)
