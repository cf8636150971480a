# SPDX-License-Identifier: Apache-2.0
"""What a merge engine gets and gives, and what each version of a key does to a column.

`Versions` is a block of rows in merge order; `Steps` is the same seen from one column: the versions in order, cut into
keys, each with what it does (add to the value, take it back, replace the row). Columns that share their steps share
the arrays. Agrees with: MergeFunction, ReducerMergeFunctionWrapper (2.0.0). Invariant: a key with one version is never
merged: its only step is `RESET`, which takes the row as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.lsm.picking import picked
from shoal.lsm.picking import validity as validity

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3

# Versions of a key up to which a pass for each of them is worth it.
_FEW = 64

# What a version does to the value of a column so far.
ADD = 0  # aggregate it: agg(value, input)
OLDER = 1  # aggregate it as a version that came too late: aggReversed(value, input)
RETRACT = 2  # take it back
OLDER_RETRACT = 3  # take it back, with an older sequence: plain columns do not look at it
SKIP = 4
RESET = 5  # the row becomes this version; what aggregates remember besides the value stays
RESET_RETRACT = 6  # a retraction that meets an empty row: the row becomes this version, then it is taken back


@dataclass(frozen=True)
class Versions:
    """One block: all versions of its keys."""

    table: pa.Table
    """Rows of the runs laid end to end, in chunks. A column is put together when it is asked for: that is a copy."""
    order: Array
    """Permutation: key ascending, then version ascending (sequence fields, sequence number)."""
    first: Array
    """Aligned with `order`: the first version of a key."""
    kinds: Array | None
    """Row kinds, aligned with the rows of the table; None: all +I."""
    lone_pass: bool = True
    """A key with one version passes as it is. Not where compactions look up (LookupChangelogMergeFunctionWrapper)."""
    single: Array | None = None
    """Which keys had one version before others were left out, where some were: only those pass as they are."""

    @cached_property
    def starts(self) -> Array:
        return np.flatnonzero(self.first)

    @cached_property
    def ends(self) -> Array:
        """Position of the last version of each key."""
        return self.plain.ends

    @cached_property
    def lone(self) -> Array | None:
        """Which keys have one version; None when no key has."""
        if not self.lone_pass:
            return None
        alone: Array = self.starts == np.append(self.starts[1:], len(self.order)) - 1
        if self.single is not None:
            alone &= self.single
        return alone if alone.any() else None

    @cached_property
    def retracts(self) -> Array | None:
        """Which positions are -U or -D; None when none is."""
        if self.ordered_kinds is None:
            return None
        back = (self.ordered_kinds == UPDATE_BEFORE) | (self.ordered_kinds == DELETE)
        return back if back.any() else None

    @cached_property
    def ordered_kinds(self) -> Array | None:
        if self.kinds is None or not self.kinds.any():
            return None
        kinds: Array = self.kinds[self.order]
        return kinds

    @cached_property
    def plain(self) -> Steps:
        """Every version adds."""
        ops = None
        if not self.lone_pass or self.single is not None:
            ops = np.zeros(len(self.order), np.int8)
            if self.lone is not None:
                ops[self.starts[self.lone]] = RESET
        return Steps(self.order, self.starts, len(self.starts), ops)

    def own_kinds(self, kinds: Array) -> Array:
        """`kinds` of the keys, but a key with one version keeps the kind it has."""
        if self.lone is None or self.ordered_kinds is None:
            return kinds
        return np.where(self.lone, self.ordered_kinds[self.starts], kinds).astype(np.int8)

    def column(self, name: str) -> pa.Array:
        return whole(self.table.column(name))


@dataclass(frozen=True)
class Folded:
    """The surviving rows, in key order."""

    columns: list[pa.Array]
    kinds: Array
    """Kind of each row: 0 +I, 1 -U, 2 +U, 3 -D. Retractions are still there, the caller drops them."""
    rows: Array
    """Table row whose key and sequence number the result carries: the newest version that counts."""


class Engine(Protocol):
    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Columns that must be in the table to produce `columns`."""

    def fold(self, versions: Versions, columns: Sequence[str]) -> Folded: ...


@dataclass(frozen=True)
class Steps:
    """The versions of a block as one column sees them."""

    rows: Array
    """Table row of each position."""
    starts: Array
    """Where the versions of a key start; keys without any are left out."""
    size: int
    """Number of keys of the block."""
    ops: Array | None = None
    """What each position does; None: all `ADD`, but keys with one version pass as they are."""
    groups: Array | None = None
    """Which key each start belongs to; None: all of them, in order."""

    @cached_property
    def ends(self) -> Array:
        ends: Array = self.starts + self.counts - 1
        return ends

    @cached_property
    def end_rows(self) -> Array:
        rows: Array = self.rows[self.ends]
        return rows

    @cached_property
    def counts(self) -> Array:
        return np.diff(np.append(self.starts, len(self.rows)))

    def has(self, *ops: int) -> bool:
        return self.ops is not None and any(bool((self.ops == op).any()) for op in ops)

    @cached_property
    def taken_back(self) -> Array | None:
        """Which positions are retractions; None when none is."""
        if self.ops is None:
            return None
        back = self.ops == RETRACT
        return back if back.any() else None

    @cached_property
    def explicit(self) -> Steps:
        """The same with an operation for every position."""
        if self.ops is not None:
            return self
        ops = np.zeros(len(self.rows), np.int8)
        ops[self.starts[self.counts == 1]] = RESET
        return Steps(self.rows, self.starts, self.size, ops, self.groups)

    @cached_property
    def without_retracts(self) -> Steps:
        """For columns that ignore retractions."""
        return self._changed({RETRACT: SKIP, OLDER_RETRACT: SKIP, RESET_RETRACT: RESET})

    @cached_property
    def for_plain(self) -> Steps:
        """For columns without an aggregate: what is older does nothing."""
        return self._changed({OLDER: SKIP, OLDER_RETRACT: SKIP})

    @cached_property
    def for_aggregate(self) -> Steps:
        return self._changed({OLDER_RETRACT: RETRACT})

    def _changed(self, to: dict[int, int]) -> Steps:
        if self.ops is None or not self.has(*to):
            return self
        table = np.arange(7, dtype=np.int8)
        for op, new in to.items():
            table[op] = new
        return Steps(self.rows, self.starts, self.size, table[self.ops], self.groups)

    @cached_property
    def split(self) -> Steps:
        """`RESET_RETRACT` as two positions, `SKIP` left out."""
        if self.ops is None:
            return self
        steps = self
        if self.has(RESET_RETRACT):
            double = self.ops == RESET_RETRACT
            times = 1 + double.astype(np.int64)
            at = np.cumsum(times) - times
            ops = np.repeat(self.ops, times)
            ops[at[double]] = RESET
            ops[at[double] + 1] = RETRACT
            steps = Steps(np.repeat(self.rows, times), at[self.starts], self.size, ops, self.groups)
        assert steps.ops is not None
        return steps.where(steps.ops != SKIP)

    @cached_property
    def current(self) -> Steps:
        """`split`, and only the versions since the last `RESET` of a key: what makes the value, if only it counts."""
        steps = self.split
        if steps.ops is None or not steps.has(RESET) or not len(steps.rows):
            return steps
        at = np.arange(len(steps.rows))
        last = np.maximum.reduceat(np.where(steps.ops == RESET, at, -1), steps.starts)
        return steps.where(at >= np.repeat(last, steps.counts))

    @cached_property
    def pieces(self) -> tuple[Steps, Array]:
        """`split`, with each `RESET` as the start of a key of its own; and the last of those for every key, or -1.

        For functions that refuse values: Java refuses them before a `RESET` too.
        """
        steps = self.split
        begins = steps.starts
        if steps.ops is not None and steps.has(RESET):
            at = steps.ops == RESET
            at[steps.starts] = True
            begins = np.flatnonzero(at)
        last = np.full(self.size, -1, np.int64)
        owners = np.arange(self.size) if steps.groups is None else steps.groups
        last[owners] = np.searchsorted(begins, steps.ends, side="right") - 1
        return Steps(steps.rows, begins, len(begins), steps.ops), last

    def where(self, keep: Array) -> Steps:
        """Only some positions; keys that lose all of them are left out."""
        if keep.all():
            return self
        at = np.flatnonzero(keep)
        ends = np.cumsum(keep, dtype=np.int32)[self.ends]
        starts = np.append(np.zeros(1, np.int32), ends)[:-1]
        some = ends > starts
        groups = np.flatnonzero(some) if self.groups is None else self.groups[some]
        ops = None if self.ops is None else self.ops[at]
        return Steps(self.rows[at], starts[some].astype(np.int64), self.size, ops, groups)

    def only(self, groups: Array) -> Steps:
        """Only some of the starts (a mask over them)."""
        return self.where(np.repeat(groups, self.counts))

    @cached_property
    def ranks(self) -> list[tuple[Array, Array]]:
        """For each version rank but the first: the starts that have one, and where it is. A few passes instead of
        `reduceat`, whose every start costs as much as a dozen rows."""
        out = []
        live, r = np.flatnonzero(self.counts > 1), 1
        while len(live):
            out.append((live, self.starts[live] + r))
            r += 1
            live = live[self.counts[live] > r]
        return out

    @cached_property
    def few(self) -> bool:
        """Whether no key has so many versions that a pass for each rank is slow."""
        return int(self.counts.max(initial=0)) <= _FEW

    def extreme(self, values: Array, best: np.ufunc) -> Array:
        """The greatest or least value of each start (`best` is `np.maximum` or `np.minimum`)."""
        if not self.few:
            of_each: Array = best.reduceat(values, self.starts)
            return of_each
        out: Array = values[self.starts]
        for live, at in self.ranks:
            out[live] = best(out[live], values[at])
        return out

    def total(self, values: Array) -> Array:
        """The sum of each start, of whole numbers that do not outgrow 64 bits."""
        sums = np.cumsum(values, dtype=np.int64)[self.ends]
        sums[1:] -= sums[:-1].copy()
        return sums

    def last_greatest(self, values: Array) -> tuple[Array, Array]:
        """The last position of each start that holds its greatest value, and that value."""
        if not self.few:
            top = np.maximum.reduceat(values, self.starts)
            return self.last(values == np.repeat(top, self.counts)), top
        where, top = self.starts.copy(), values[self.starts]
        for live, at in self.ranks:
            before, here = top[live], values[at]
            reached = here >= before
            where[live] = np.where(reached, at, where[live])
            top[live] = np.where(reached, here, before)
        return where, top

    def last(self, event: Array) -> Array:
        """The last position of each start where `event` holds, -1 where none does."""
        found: Array = np.maximum.reduceat(np.where(event, np.arange(len(event)), -1), self.starts)
        return found

    def spread(self, positions: Array) -> Array:
        """Table rows at these positions, one for every key of the block; -1 where there is none."""
        rows = self.rows[positions]
        none = positions < 0
        if none.any():
            rows[none] = -1
        return self.spread_rows(rows)

    def spread_rows(self, rows: Array) -> Array:
        """One row per start as one per key of the block; -1 for keys without any."""
        if self.groups is None:
            return rows
        out = np.full(self.size, -1, np.int64)
        out[self.groups] = rows
        return out

    @cached_property
    def value_rows(self) -> Array:
        """For each key the row of its newest version, -1 where that was taken back: the same for all such columns."""
        if self.ops is None:
            return self.spread_rows(self.end_rows)
        gives = (self.ops == ADD) | (self.ops == RESET)
        at = self.last(gives | (self.ops == RETRACT) | (self.ops == RESET_RETRACT))
        return self.spread(np.where(gives[at], at, -1))

    @cached_property
    def newest_rows(self) -> Array:
        """For each key the row of its newest version, a retraction or not."""
        if self.ops is None:
            return self.spread_rows(self.end_rows)
        ops = self.ops
        return self.spread(self.last((ops == ADD) | (ops == RETRACT) | (ops == RESET) | (ops == RESET_RETRACT)))

    def spread_values(self, values: pa.Array) -> pa.Array:
        """One value per start as one per key of the block, null for keys without any."""
        if self.groups is None or len(self.groups) == self.size:
            return values
        at = np.full(self.size, -1, np.int64)
        at[self.groups] = np.arange(len(self.groups))
        return taken(values, at)


def whole(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def taken(values: pa.Array, rows: Array) -> pa.Array:
    """`values` at these rows, null for -1."""
    missing = rows < 0
    return picked(values, rows, missing=missing if missing.any() else None)
