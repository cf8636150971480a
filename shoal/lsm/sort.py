# SPDX-License-Identifier: Apache-2.0
"""Rows in the order of some columns, or along a curve through them, however many there are.

Rows are read twice where a curve needs to know their bounds (only the columns of the order the first time), sorted a
part of the budget at a time, put aside on disk and merged with the merge of `lsm/merge.py`. Agrees with: Sorter,
OrderSorter, ZorderSorter, HibertSorter, BinaryExternalSortBuffer (2.0.0). Invariant: the same rows come out, rows of
equal keys in the order in which they came; no more than the budget is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shoal.budget import Budget, settled
from shoal.errors import BadRequest
from shoal.lsm.curves import HILBERT, ORDER, Curve, measured
from shoal.lsm.keys import Array, column_words, stable_order
from shoal.lsm.merge import Open, Rules, RunInput, order_runs
from shoal.lsm.picking import picked, picked_across
from shoal.lsm.spill import Kept, Shelf

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.types import DataType, Field

KEY = "_SORT_KEY"
Read = Callable[[Sequence[str] | None], "Iterator[pa.RecordBatch]"]
"""Reads all rows, with these columns alone where some are named. Called again it gives the same rows."""

PASSES = 3
"""How often a row is handled: read, read back from disk, given out."""

# Rows sorted at once take this part of the budget with what sorting lays beside them: the columns of the order again as
# parts of a key, as key and as words, and for every row its number, its place and its rank.
_SHARE = 0.3
_KEY_COPIES = 3
_PLACE_BYTES = 100
_MOST = 1 << 30
# A merge is given that part of the budget: it counts what it has loaded, and beside that lie a copy in order, what was
# read back from disk, and what the writer of a file holds.
_MERGE_PARTS = 2
# Rows of a batch that is put aside; a merge holds one batch of each run.
_SPILLED_ROWS = (64, 8_192)
_SPILLED_SHARE = 0.1 / 50 / _MERGE_PARTS
_ROWS = 65_536
# What a column adds to the key of a row, about.
_KEY_BYTES = 24
_SORTABLE = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIME", "TIMESTAMP",
    "TIMESTAMP_LTZ", "CHAR", "VARCHAR", "BINARY", "VARBINARY",
)  # fmt: skip


def sortable(t: DataType) -> bool:
    """Whether values of this type have an order here."""
    return t.root in _SORTABLE


@dataclass(frozen=True, slots=True)
class SortOrder:
    """By the columns one after the other (`order`), or along a curve, which sees `width` bytes of a text.

    `spill` is the codec, and its level, of rows that are put aside while they are sorted.
    """

    strategy: str
    columns: tuple[str, ...]
    width: int = 8
    spill: tuple[str | None, int | None] = (None, None)

    def __str__(self) -> str:
        return f"{self.strategy} of {', '.join(self.columns)}"

    def check(self, table: str, fields: Sequence[Field]) -> None:
        """`BadRequest` unless the columns are there and have an order."""
        types = {f.name: f.type for f in fields}
        if not self.columns:
            raise BadRequest(f"{table}: no columns to sort by", hint="name at least one")
        if self.strategy == HILBERT and len(self.columns) < 2:
            raise BadRequest(
                f"{table}: a Hilbert curve goes through two columns or more, not one", hint="use order or zorder"
            )
        for i, c in enumerate(self.columns):
            if c not in types:
                raise BadRequest(f"{table}: there is no column '{c}' to sort by", hint=f"it has {', '.join(types)}")
            if not sortable(types[c]):
                raise BadRequest(f"{table}: column '{c}' ({types[c]}) has no order to sort by")
            if c in self.columns[:i]:
                raise BadRequest(f"{table}: column '{c}' is named twice in the order")


def sorted_rows(
    read: Read, order: SortOrder, budget: Budget, again: Callable[[int], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows that `read` gives, in the order. `again` is told how many are read back from disk, as they are."""
    curve = None
    if order.strategy != ORDER:
        looked_at = settled(read(order.columns))
        curve = Curve.through(order.strategy, measured(looked_at, order.columns), order.width)
    limit = min(_MOST, int(budget.total * _SHARE))
    shelf = Shelf(*order.spill)
    try:
        runs: list[Kept] = []
        waiting: list[pa.RecordBatch] = []
        size = count = 0
        for batch in settled(read(None)):
            if not batch.num_rows:
                continue
            waiting.append(batch)
            here = batch.nbytes + _KEY_COPIES * batch.select(list(order.columns)).nbytes
            here += _PLACE_BYTES * batch.num_rows
            size += here
            budget.reserve(here)
            if size >= limit:
                budget.release(size)
                runs.append(shelf.put(_sorted(waiting, order, curve, count, budget)))
                count += runs[-1].rows
                waiting, size = [], 0
        budget.release(size)
        if waiting and not runs:
            yield from (b.drop_columns([KEY]) for b in _sorted(waiting, order, curve, count, budget, _ROWS))
            return
        if waiting:
            # put aside too: in memory it would lie beside the merge all the time
            runs.append(shelf.put(_sorted(waiting, order, curve, count, budget)))
            waiting = []
        inputs = [RunInput(_told(k.open, again), k.bytes / max(1, k.rows), (i, i), k.rows) for i, k in enumerate(runs)]
        for batch in order_runs(inputs, Rules((KEY,)), budget.share(_MERGE_PARTS)):
            yield batch.drop_columns([KEY])
    finally:
        shelf.close()


def _told(open_: Open, again: Callable[[int], None] | None) -> Open:
    """The same, telling of each batch."""
    if again is None:
        return open_

    def opened(rows: int) -> Iterator[pa.RecordBatch]:
        for batch in open_(rows):
            again(batch.num_rows)
            yield batch

    return opened


def merged_rows(runs: Sequence[RunInput], order: SortOrder, budget: Budget) -> Iterator[pa.RecordBatch]:
    """All rows of runs that lie in the order of the columns each, in that order; of equal rows those of an earlier run
    come first."""
    assert order.strategy == ORDER, "only the values of the columns tell where a row of one run goes in another"
    inputs = []
    before = 0
    for i, run in enumerate(runs):
        opened = partial(_keyed, run.open, order, before)
        inputs.append(RunInput(opened, run.row_bytes + _KEY_BYTES * len(order.columns), (i, i), run.rows))
        before += run.rows
    for batch in order_runs(inputs, Rules((KEY,)), budget.share(_MERGE_PARTS)):
        yield batch.drop_columns([KEY])


def _keyed(open_run: Open, order: SortOrder, before: int, rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in open_run(rows):
        numbers = np.arange(before, before + batch.num_rows, dtype=np.uint64)
        before += batch.num_rows
        key = _key([batch.column(c) for c in order.columns], None, numbers)
        yield batch.append_column(pa.field(KEY, pa.binary(), False), key)


def _sorted(
    batches: Sequence[pa.RecordBatch], order: SortOrder, curve: Curve | None, before: int, budget: Budget,
    rows: int | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows in order with their keys, in batches. `before` rows came before them."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    columns = [table.column(c).combine_chunks() for c in order.columns]
    key = _key(columns, curve, np.arange(before, before + table.num_rows, dtype=np.uint64))
    places, _ = stable_order(column_words(key))
    if rows is None:
        fitting = budget.total * _SPILLED_SHARE / max(1.0, table.nbytes / table.num_rows)
        rows = int(min(_SPILLED_ROWS[1], max(_SPILLED_ROWS[0], fitting)))
    schema = table.schema.append(pa.field(KEY, pa.binary(), False))
    for a, b in pairwise([*range(0, table.num_rows, rows), table.num_rows]):
        # what a table's own take would do is lay whole columns end to end, for each of the batches anew
        part = picked_across(batches, places[a:b])
        yield pa.RecordBatch.from_arrays([*part.columns, picked(key, places[a:b])], schema=schema)


def _key(columns: Sequence[pa.Array], curve: Curve | None, numbers: Array) -> pa.Array:
    """Bytes whose order is that of the rows; the row's number comes last, so no two are equal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last = _bytes_of([numbers])
    if curve is not None:
        return _binary(np.concatenate([curve.keys(columns), last], axis=1))
    parts: list[pa.Array] = []
    fixed: list[Array] = []
    for c in columns:
        fixed.append(c.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)[:, None])
        if pa.types.is_string(c.type) or pa.types.is_binary(c.type):
            parts += [_binary(np.concatenate(fixed, axis=1)), _ended(c.cast(pa.binary()).fill_null(b""))]
            fixed = []
        else:
            words = column_words(c, nullable=True)
            fixed.append(_bytes_of(words[1:] if c.null_count else words))
    tail = _binary(np.concatenate([*fixed, last], axis=1))
    return pc.binary_join_element_wise(*parts, tail, b"") if parts else tail


def _ended(texts: pa.Array) -> pa.Array:
    """Texts with an end that sorts before everything else, which no text holds."""
    import pyarrow.compute as pc

    escaped = pc.replace_substring(texts, pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(escaped, b"\x00\x00", b"")


def _bytes_of(words: Sequence[Array]) -> Array:
    return np.concatenate([w.astype(">u8").view(np.uint8).reshape(-1, 8) for w in words], axis=1)


def _binary(rows: Array) -> pa.Array:
    import pyarrow as pa

    n, width = rows.shape
    offsets = np.arange(0, (n + 1) * width, max(1, width), dtype=np.int32)[: n + 1]
    data = np.ascontiguousarray(rows)
    return pa.BinaryArray.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
