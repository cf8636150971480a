# SPDX-License-Identifier: Apache-2.0
"""The one merge: sorted runs in, one row per key out. Reads, compactions and the write buffer all use it.

Block by block: every run is topped up to a share of the budget, the block is cut at the smallest key that some run
has not passed yet, so all versions of a key are in one block, and one vectorised pass orders and folds it.
More large runs than `_ONE_PASS` are first laid together in groups, on disk. Agrees with: SortMergeReader, MergeSorter,
ReducerMergeFunctionWrapper, DeduplicateMergeFunction (2.0.0). Invariant: the versions of
a key meet in the order of their sequence (fields, then number); a key with a single version passes as it is; nothing
about values drops a version before this point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from shoal.budget import Budget, give_back
from shoal.lsm.keys import Array, column_words, integers, last_by_key, last_rows, stable_order
from shoal.lsm.picking import picked

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lsm.versions import Engine

SEQUENCE, KIND, LEVEL = "_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3

# Part of the budget that loaded rows may take: folding a block copies it, and decoders hold pages of their own.
_LOADED_SHARE = 0.1
_BATCH_ROWS = (512, 65_536)
# Runs merged at once, where they are large: each holds decoders and a share of the budget.
_ONE_PASS = 50
# Budgets up to this large load less than 2 GB at once.
_ONE_ARRAY = 8 << 30
# Rows of a batch that is put aside, about: one of every group is in memory when they are merged.
_SPILLED_ROWS = (64, 8_192)
# Rows folded at once. More do not fit the CPU's cache; fewer cost more calls than they are worth.
_BLOCK_ROWS = 131_072

T = TypeVar("T", covariant=True)
Open = Callable[[int], "Iterator[pa.RecordBatch]"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How versions of a key become one row. Without an `engine` the last one counts, `ignore_delete` or not."""

    keys: tuple[str, ...]
    sequence_fields: tuple[str, ...] = ()
    sequence_ascending: bool = True
    ignore_delete: bool = False
    engine: Engine | None = None
    lookup: bool = False
    """Compactions look up: of a key's rows above level 0 the one of the least level counts, it holds the others."""

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Value columns that runs must have, so that `columns` can be told."""
        more = self.engine.needs(columns) if self.engine else columns
        return tuple(dict.fromkeys((*columns, *more, *self.keys, *self.sequence_fields)))


@dataclass(frozen=True, slots=True)
class RunInput:
    """A sorted run: `open(rows)` gives its batches of at most `rows` rows, ascending by key.

    `row_bytes` estimates a decoded row; `sequences` are the run's least and greatest sequence number, `rows` its rows.
    `unique` says that it holds each key once.
    """

    open: Open
    row_bytes: float
    sequences: tuple[int, int]
    rows: int = 0
    unique: bool = True

    @property
    def bytes(self) -> float:
        return self.row_bytes * self.rows


def needs_sequence(ranges: Sequence[tuple[int, int]], rules: Rules) -> bool:
    """Whether rows must be ordered by sequence: runs overlap in it, or sequence fields decide before it."""
    if rules.sequence_fields:
        return True
    ordered = sorted(ranges)
    return any(a[1] >= b[0] for a, b in pairwise(ordered))


def merge_runs(
    runs: Sequence[RunInput], rules: Rules, columns: Sequence[str], budget: Budget, *, drop_deletes: bool, ordered: bool
) -> Iterator[pa.RecordBatch]:
    """Merged rows with `columns`, in batches.

    Batches of the runs must hold `rules.needs(columns)`, the row kind (unless no file holds a retraction), the sequence
    number where `needs_sequence` says so, and the level where `rules.lookup` does. `ordered` gives ascending keys;
    without it rows of a block come in the order of their runs, which saves a copy.
    """
    sequenced = needs_sequence([r.sequences for r in runs], rules)
    fold = _Fold(
        rules, tuple(columns), sequenced, drop_deletes, ordered, fits=budget.total <= _ONE_ARRAY
    )  # fmt: skip
    yield from merge_blocks(runs, rules, fold, budget)


def order_runs(runs: Sequence[RunInput], rules: Rules, budget: Budget) -> Iterator[pa.RecordBatch]:
    """All rows of the runs by key, the versions of a key in their order; a batch holds all versions of its keys."""
    sequenced = needs_sequence([r.sequences for r in runs], rules)
    fold = _Fold(rules, (), sequenced, drop_deletes=False, ordered=True, together=True)
    yield from merge_blocks(runs, rules, fold, budget)


class BlockFold(Protocol[T]):
    """What becomes of a block: rows of all versions of its keys, laid end to end, the oldest run first."""

    def one(self, part: pa.RecordBatch) -> T:
        """A block of one run, which holds each key once."""

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[T]: ...


def merge_blocks(runs: Sequence[RunInput], rules: Rules, fold: BlockFold[T], budget: Budget) -> Iterator[T]:
    """What `fold` makes of each block of the runs, ascending by key."""
    _keep_freed_memory()
    by_age = sorted(runs, key=lambda r: r.sequences)
    if len(runs) <= _ONE_PASS or sum(r.bytes for r in runs) <= budget.total * _LOADED_SHARE:
        yield from _merge(by_age, rules, fold, budget)
        return
    from shoal.lsm.spill import Spill

    sequenced = needs_sequence([r.sequences for r in runs], rules)
    groups = [by_age[i : i + _ONE_PASS] for i in range(0, len(by_age), _ONE_PASS)]
    fitting = budget.total * _LOADED_SHARE / len(groups) / max(r.row_bytes for r in runs)
    most = int(min(_SPILLED_ROWS[1], max(_SPILLED_ROWS[0], fitting)))
    together = _Fold(rules, (), sequenced, drop_deletes=False, ordered=True, together=True, most=most)

    with Spill() as spill:
        laid = [
            RunInput(
                spill.keep(_merge(g, rules, together, budget)),
                max(r.row_bytes for r in g),
                (g[0].sequences[0], max(r.sequences[1] for r in g)),
                sum(r.rows for r in g),
                unique=False,
            )
            for g in groups
        ]
        yield from _merge(laid, rules, fold, budget)


@dataclass(frozen=True, slots=True)
class _Fold:
    """What becomes of a block.

    `together` only puts its rows in order, every version of a key with its columns, about `most` rows a batch.
    """

    rules: Rules
    columns: tuple[str, ...]
    sequenced: bool
    drop_deletes: bool
    ordered: bool
    together: bool = False
    most: int = _SPILLED_ROWS[1]
    fits: bool = True
    """A column of a block fits one Arrow array, whose strings hold 2 GB at most."""

    def one(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """A block of one run, which holds each key once."""
        if self.together:
            return part
        return _without_deletes(part, self.columns) if self.drop_deletes else part.select(list(self.columns))

    def __call__(self, parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        words = key_words(parts, self.rules.keys)
        if self._last_stays:
            yield from self._chosen(parts, np.flatnonzero(last_rows(words)))
            return
        order, first = sequenced_order(parts, words, self.rules) if self.sequenced else stable_order(words)
        if self.together:
            table, index = pa.Table.from_batches(parts), _indices(order)
            columns = [picked(c.combine_chunks(), order, index) for c in table.columns]
            give_back()
            yield from _cut_between_keys(pa.Table.from_arrays(columns, schema=table.schema), first, self.most)
        elif self.rules.engine is not None:
            yield from self._by_engine(self.rules.engine, parts, order, first)
        else:
            yield from self._last(parts, order, first)

    @property
    def _last_stays(self) -> bool:
        """Whether the last row of a key in the order of the runs is its result, and rows may come in any order."""
        rules = self.rules
        return not (self.together or self.ordered or self.sequenced or rules.engine or rules.ignore_delete)

    def _chosen(self, parts: list[pa.RecordBatch], rows: Array) -> Iterator[pa.RecordBatch]:
        """The rows in this order, less deletes."""
        import pyarrow as pa

        kinds = kinds_of(parts)
        if self.drop_deletes and kinds is not None and kinds.any():
            kept = kinds[rows]
            rows = rows[(kept == INSERT) | (kept == UPDATE_AFTER)]
        if not len(rows):
            return
        names = list(self.columns)
        table = pa.Table.from_batches([p.select(names) for p in parts])
        if not self.fits and not self.ordered:
            keep = np.zeros(table.num_rows, bool)
            keep[rows] = True
            yield from table.filter(pa.array(keep)).to_batches()
            return
        # column by column: each is copied while it lies in the cache, and parts are many, where a call costs as much
        # as thousands of rows
        index = _indices(rows)
        yield pa.RecordBatch.from_arrays([picked(c.combine_chunks(), rows, index) for c in table.columns], names)

    def _by_engine(
        self, engine: Engine, parts: list[pa.RecordBatch], order: Array, first: Array
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from shoal.lsm.versions import Versions

        table = pa.Table.from_batches(parts)
        single = None
        if self.rules.lookup:
            order, first, single = without_looked_up(table.column(LEVEL).to_numpy(), order, first)
        values = [c for c in self.columns if c not in (SEQUENCE, KIND)]
        folded = engine.fold(Versions(table, order, first, kinds_of(parts), single=single), values)
        columns = dict(zip(values, folded.columns))
        if KIND in self.columns:
            columns[KIND] = pa.array(folded.kinds, pa.int8())
        if SEQUENCE in self.columns:
            columns[SEQUENCE] = table.column(SEQUENCE).combine_chunks().take(_indices(folded.rows))
        out = pa.RecordBatch.from_arrays([columns[c] for c in self.columns], list(self.columns))
        if self.drop_deletes:
            alive = (folded.kinds == INSERT) | (folded.kinds == UPDATE_AFTER)
            out = out if alive.all() else out.filter(pa.array(alive))
        yield out

    def _last(self, parts: list[pa.RecordBatch], order: Array, first: Array) -> Iterator[pa.RecordBatch]:
        rows = winners(order, first, kinds_of(parts), self.rules)
        if not self.ordered:
            keep = np.zeros(len(order), bool)
            keep[rows] = True
            rows = np.flatnonzero(keep)
        yield from self._chosen(parts, rows)


def without_looked_up(levels: Array, order: Array, first: Array) -> tuple[Array, Array, Array | None]:
    """The versions less those above level 0 that a later compaction has looked up. Agrees with: LookupMergeFunction.

    Last, which keys had one version all along, if some lost versions: the others are merged even with one left.
    """
    here = levels[order]
    high = np.where(here > 0, here, np.iinfo(here.dtype).max)
    starts = np.flatnonzero(first)
    least = np.minimum.reduceat(high, starts)
    counts = np.diff(np.append(starts, len(order)))
    keep = (here <= 0) | (here == np.repeat(least, counts))
    if keep.all():
        return order, first, None
    group = (np.cumsum(first) - 1)[keep]
    left = np.empty(len(group), bool)
    left[0] = True
    np.not_equal(group[1:], group[:-1], out=left[1:])
    return order[keep], left, counts == 1


def _cut_between_keys(table: pa.Table, first: Array, most: int) -> Iterator[pa.RecordBatch]:
    """The ordered rows in batches that hold all versions of their keys: a stream of them may be cut after any."""
    begins = np.flatnonzero(first)
    at = np.searchsorted(begins, np.arange(0, len(first), most))
    cuts = np.unique(np.append(begins[at[at < len(begins)]], len(first)))
    for a, b in pairwise(cuts.tolist()):
        yield from table.slice(a, b - a).combine_chunks().to_batches()


def _merge(by_age: Sequence[RunInput], rules: Rules, fold: BlockFold[T], budget: Budget) -> Iterator[T]:
    """Runs, oldest first, block by block."""
    runs = by_age
    share = int(budget.total * _LOADED_SHARE / max(1, len(runs)))
    widest = max((r.row_bytes for r in runs), default=1.0)
    rows = int(min(_BATCH_ROWS[1], max(_BATCH_ROWS[0], share / widest)))
    unique = all(r.unique for r in runs)
    streams = [_Stream(r.open(rows), rules.keys, share, budget) for r in by_age]
    try:
        while True:
            live = [s for s in streams if s.fill()]
            if not live:
                return
            step = max(1, _BLOCK_ROWS // len(live))
            cut = min((k for s in live if (k := s.limit(step)) is not None), default=None)
            parts = [b for s in live for b in s.take_upto(cut)]
            if not parts:
                continue
            if len(live) == 1 and unique:
                yield from map(fold.one, parts)
            else:
                yield from fold(parts)
            del parts
    finally:
        for s in streams:
            s.close()


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep up to 32 MB that are freed, once for the process.

    Glibc otherwise gives the end of its heap back after almost every array of a block, and the kernel clears each page
    anew for the next one: a quarter of the time of a merge. It does so less after a large array is freed, which is all
    that happens here: `mallopt(3)`, M_MMAP_THRESHOLD. Nothing is touched, and who has set the limits himself keeps
    them.
    """
    np.empty(16 << 20, np.uint8)


def merge_unsorted(table: pa.Table, rules: Rules) -> Iterator[pa.RecordBatch]:
    """One row per key, in key order, of rows in any order; retractions are kept. All their columns, in batches."""
    _keep_freed_memory()
    words = key_words([table], rules.keys)
    if rules.engine is None and not rules.sequence_fields and not rules.ignore_delete:
        yield from table.take(_indices(last_by_key(words))).to_batches(max_chunksize=_BATCH_ROWS[1])
        return
    order, first = sequenced_order([table], words, rules)
    if rules.engine is None:
        rows = winners(order, first, kinds_of([table]), rules)
        yield from table.take(_indices(rows)).to_batches(max_chunksize=_BATCH_ROWS[1])
        return
    for versions, begins in _blocks(table, order, first):
        yield fold_ordered(versions, begins, rules)


def sort_unsorted(table: pa.Table, rules: Rules, rows: int = _BLOCK_ROWS) -> Iterator[pa.RecordBatch]:
    """All rows by key, the versions of a key in their order; a batch holds all versions of its keys, `rows` or so."""
    _keep_freed_memory()
    order, first = sequenced_order([table], key_words([table], rules.keys), rules)
    for versions, begins in _blocks(table, order, first, rows):
        yield from _cut_between_keys(versions, begins, _SPILLED_ROWS[1])


def merge_ordered(batch: pa.RecordBatch, rules: Rules) -> pa.RecordBatch:
    """One row per key of a batch that `sort_unsorted` or `order_runs` gave."""
    import pyarrow as pa

    words = key_words([batch], rules.keys)
    first = np.ones(batch.num_rows, bool)
    if batch.num_rows:
        np.logical_or.reduce([w[1:] != w[:-1] for w in words], out=first[1:])
    table = pa.Table.from_batches([batch])
    if rules.engine is not None:
        return fold_ordered(table, first, rules)
    rows = winners(np.arange(batch.num_rows), first, kinds_of([batch]), rules)
    return batch.take(_indices(rows))


def fold_ordered(table: pa.Table, first: Array, rules: Rules) -> pa.RecordBatch:
    """Rows that lie in merge order as the engine folds them, all their columns; retractions are kept."""
    parts, names = table.to_batches(), tuple(table.schema.names)
    fold = _Fold(replace(rules, lookup=False), names, sequenced=True, drop_deletes=False, ordered=True)
    assert rules.engine is not None
    (out,) = fold._by_engine(rules.engine, parts, np.arange(table.num_rows), first)
    return out


def _blocks(table: pa.Table, order: Array, first: Array, rows: int = _BLOCK_ROWS) -> Iterator[tuple[pa.Table, Array]]:
    """The rows in this order, whole keys at a time, and which of them begin a key."""
    begins = np.flatnonzero(first)
    at = np.searchsorted(begins, np.arange(0, len(first), rows))
    cuts = np.unique(np.append(begins[at[at < len(begins)]], len(first)))
    for a, b in pairwise(cuts.tolist()):
        yield table.take(_indices(order[a:b])).combine_chunks(), first[a:b]


# ---- one block -------------------------------------------------------------------------------------------


def winners(order: Array, first: Array, kinds: Array | None, rules: Rules, *, lone_pass: bool = True) -> Array:
    """Row number of the surviving version of each key: the last one, retractions skipped where they are ignored."""
    n = len(order)
    if n == 0:
        return order
    last = np.empty(n, bool)
    last[-1] = True
    last[:-1] = first[1:]
    if not rules.ignore_delete or kinds is None:
        return order[last]
    k = kinds[order]
    counts = (k == INSERT) | (k == UPDATE_AFTER)
    if lone_pass:
        counts |= first & last
    best = np.maximum.reduceat(np.where(counts, np.arange(n), -1), np.flatnonzero(first))
    return order[best[best >= 0]]


def sequenced_order(parts: Sequence[pa.RecordBatch | pa.Table], keys: list[Array], rules: Rules) -> tuple[Array, Array]:
    """Key order, the versions of a key ascending by sequence fields (nulls first in both directions), then number."""
    words = list(keys)
    for name in rules.sequence_fields:
        field = column_words(_whole(parts, name), nullable=True)
        if not rules.sequence_ascending:
            flags = len(field) > 1 and _whole(parts, name).null_count > 0
            # nulls stay lowest: only the words of values turn round
            field = [field[0], *(np.where(field[0] == 0, w, ~w) for w in field[1:])] if flags else [~w for w in field]
        words += field
    words += column_words(_whole(parts, SEQUENCE))
    order, _ = stable_order(words)
    first = np.zeros(len(order), bool)
    if len(order):
        first[0] = True
    for w in keys:
        here = w[order]
        first[1:] |= here[1:] != here[:-1]
    return order, first


def key_words(parts: Sequence[pa.RecordBatch | pa.Table], keys: Sequence[str]) -> list[Array]:
    return [w for k in keys for w in column_words(_whole(parts, k))]


def _whole(parts: Sequence[pa.RecordBatch | pa.Table], name: str) -> pa.Array:
    import pyarrow as pa

    chunks: list[pa.Array] = []
    for p in parts:
        c = p.column(name)
        chunks += c.chunks if isinstance(c, pa.ChunkedArray) else [c]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def kinds_of(parts: Sequence[pa.RecordBatch | pa.Table]) -> Array | None:
    """Row kinds of the parts; None when they were not read, since no file holds a retraction."""
    if KIND not in parts[0].schema.names:
        return None
    return np.concatenate([p.column(KIND).to_numpy() for p in parts])


def _without_deletes(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = kinds_of([batch])
    batch = batch.select(list(columns))
    if kinds is None or not kinds.any():
        return batch
    return batch.filter(pa.array((kinds == INSERT) | (kinds == UPDATE_AFTER)))


def _indices(rows: Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)


# ---- a run's stream --------------------------------------------------------------------------------------


class _Stream:
    """Loaded batches of one run, topped up on demand."""

    def __init__(self, batches: Iterator[pa.RecordBatch], keys: Sequence[str], share: int, budget: Budget) -> None:
        self._batches = batches
        self._keys = keys
        self._share = share
        self._budget = budget
        self._loaded: list[pa.RecordBatch] = []
        self._bytes = 0
        self._row_bytes = 0.0
        self.ended = False

    def fill(self) -> bool:
        """Top up to the share. Topping up every run before a cut keeps blocks large; false when nothing is left."""
        while not self.ended and self._bytes < self._share:
            batch = next(self._batches, None)
            if batch is None:
                self.ended = True
            elif batch.num_rows:
                size = batch.nbytes
                self._row_bytes = size / batch.num_rows
                self._loaded.append(batch)
                self._count(size)
        return bool(self._loaded)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._budget.reserve(size) if size >= 0 else self._budget.release(-size)

    def limit(self, rows: int) -> tuple[Any, ...] | None:
        """The key that a block may reach as far as this run goes: of its `rows`-th row, or of the last one loaded.

        None when the run ends before.
        """
        for batch in self._loaded:
            if batch.num_rows >= rows:
                return self._key(batch, rows - 1)
            rows -= batch.num_rows
        return None if self.ended else self._key(batch, batch.num_rows - 1)

    def _key(self, batch: pa.RecordBatch, row: int) -> tuple[Any, ...]:
        return tuple(comparable(batch.column(k), row) for k in self._keys)

    def take_upto(self, cut: tuple[Any, ...] | None) -> list[pa.RecordBatch]:
        """The loaded rows with key <= cut (all without a cut), as zero-copy slices."""
        out = []
        while self._loaded:
            batch = self._loaded[0]
            n = batch.num_rows if cut is None else self._upto(batch, cut)
            if n:
                out.append(batch if n == batch.num_rows else batch.slice(0, n))
                self._count(-int(n * self._row_bytes))
            if n < batch.num_rows:
                self._loaded[0] = batch.slice(n)
                break
            self._loaded.pop(0)
        if not self._loaded:
            self._count(-self._bytes)
        return out

    def _upto(self, batch: pa.RecordBatch, cut: tuple[Any, ...]) -> int:
        low, high = 0, batch.num_rows
        if self._key(batch, high - 1) <= cut:
            return high
        column = batch.column(self._keys[0])
        values = integers(column)
        if values is not None:
            here = values.dtype.type(cut[0])
            high = int(np.searchsorted(values, here, "right"))
            if len(cut) == 1:
                return high
            low = int(np.searchsorted(values, here))
        while low < high:
            middle = (low + high) // 2
            if self._key(batch, middle) <= cut:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        self._count(-self._bytes)
        self._loaded = []
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def comparable(column: pa.Array, row: int) -> Any:
    """One key value in a form that Python orders as Paimon does."""
    import pyarrow as pa

    t = column.type
    if pa.types.is_floating(t):
        return int(column_words(column.slice(row, 1))[0][0])
    if pa.types.is_temporal(t):
        return column[row].value
    return column[row].as_py()
