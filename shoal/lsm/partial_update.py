# SPDX-License-Identifier: Apache-2.0
"""The merge engine `partial-update`: values that are not null overwrite, sequence groups keep their own order.

Agrees with: PartialUpdateMergeFunction (2.0.0), its projection included: a group counts only where one of its columns
is read. Invariant: all columns of a group share one `Steps`: which versions are newer, which came too late, which are
taken back, computed once for all keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.errors import BadRequest, Unsupported, near
from shoal.format.schema import Schema
from shoal.lsm.aggregates import Aggregate, last_non_null, newest, numbers, plain_value
from shoal.lsm.aggregation import aggregate_of, check_functions, function_of, refuse_nulls
from shoal.lsm.keys import column_words, stable_order
from shoal.lsm.versions import (
    ADD,
    DELETE,
    INSERT,
    OLDER,
    OLDER_RETRACT,
    RESET,
    RESET_RETRACT,
    RETRACT,
    SKIP,
    Array,
    Folded,
    Steps,
    Versions,
    taken,
    validity,
)
from shoal.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_ON_DELETE = "partial-update.remove-record-on-delete"
_ON_GROUP = "partial-update.remove-record-on-sequence-group"


@dataclass(frozen=True)
class Group:
    """Columns that follow the order of their own sequence columns."""

    option: str
    sequence: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.sequence, *self.columns)


@dataclass(frozen=True)
class _Ranked:
    """A group's sequence in a block: where it stands at each position, 0 where all its columns are null."""

    group: Group
    level: Array


class PartialUpdate:
    def __init__(self, schema: Schema, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._groups = _groups(schema, options)
        self._of = {name: group for group in self._groups for name in group.members}
        self._ignores = options.ignore_delete
        self._on_delete = bool(options.get(_ON_DELETE))
        self._removing = _removing(self._groups, options)
        self._made: dict[str, Aggregate | None] = {}
        check_functions(schema, options)
        self._check()

    def _check(self) -> None:
        for one, other in (
            (self._ignores and self._on_delete, ("ignore-delete", _ON_DELETE)),
            (self._ignores and self._options.is_set(_ON_GROUP), ("ignore-delete", _ON_GROUP)),
            (self._on_delete and bool(self._groups), ("fields.<columns>.sequence-group", _ON_DELETE)),
        ):
            if one:
                raise BadRequest(f"'{other[0]}' and '{other[1]}' exclude each other", hint="set only one of them")
        for name in self._schema.names:
            self._function(name)

    def _function(self, name: str) -> str | None:
        group = self._of.get(name)
        if name in self._schema.primary_keys or (group is not None and name in group.sequence):
            return None
        function = function_of(name, self._options)
        if function is not None and function != "last_non_null_value" and group is None:
            raise BadRequest(
                f"column '{name}': aggregate function '{function}' needs a sequence group",
                hint="name the column in 'fields.<sequence column>.sequence-group', or leave out its function",
            )
        return function

    def _aggregate(self, name: str) -> Aggregate | None:
        if name not in self._made:
            function = self._function(name)
            self._made[name] = (
                None if function is None else aggregate_of(function, self._schema.field(name), self._options)
            )
        return self._made[name]

    # ---- what is read ------------------------------------------------------------------------------------

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        for name in columns:
            if name in self._schema.names:
                self._aggregate(name)
        return tuple(dict.fromkeys((*columns, *(s for g in self._active(columns) for s in g.sequence))))

    def _active(self, columns: Sequence[str]) -> list[Group]:
        """Groups with a column among those that Java reads: `columns`, and the table's sequence fields.

        And those whose deletions remove rows, which Java forgets when none of their columns is asked for: a projection
        must not bring a removed row back.
        """
        read = {*columns, *self._options.sequence_field, *self._removing}
        return [g for g in self._groups if not read.isdisjoint(g.members)]

    # ---- one block ---------------------------------------------------------------------------------------

    def fold(self, versions: Versions, columns: Sequence[str]) -> Folded:
        groups = [_Ranked(g, _levels(versions, g.sequence)) for g in self._active(columns)]
        outside, by_group, removed = self._steps(versions, groups)
        refuse_nulls(
            versions, self._schema, self.needs(columns), lambda: self._become_rows(versions, outside, bool(groups))
        )
        rows = versions.order[versions.ends]
        if self._ignores and versions.retracts is not None:
            last = outside.last(~versions.retracts)
            rows = np.where(last < 0, rows, versions.order[last])
        out = [self._column(name, versions, outside, by_group, rows) for name in columns]
        return Folded(out, self._kinds(versions, removed), rows)

    def _column(
        self, name: str, versions: Versions, outside: Steps, by_group: Mapping[Group, Steps], rows: Array
    ) -> pa.Array:
        values = versions.column(name)
        if name in self._schema.primary_keys or name not in self._schema.names:
            return taken(values, rows)
        group, aggregate = self._of.get(name), self._aggregate(name)
        if group is None:
            # `last_non_null_value`, the one function allowed here, is what plain columns do; nothing is taken back
            return last_non_null(values, outside)
        steps = by_group[group]
        if name in group.sequence:
            return newest(values, steps)
        return plain_value(values, steps) if aggregate is None else aggregate.apply(values, steps)

    def _kinds(self, versions: Versions, removed: Array | None) -> Array:
        kinds = np.full(len(versions.starts), INSERT, np.int8)
        if versions.retracts is not None:
            kinds[np.logical_and.reduceat(versions.retracts, versions.starts)] = DELETE
        if removed is not None:
            kinds[removed[versions.ends]] = DELETE
        return versions.own_kinds(kinds)

    def _become_rows(self, versions: Versions, outside: Steps, grouped: bool) -> Array:
        """Positions that Java checks for nulls: rows taken as they are, and without groups everything that adds."""
        ops = outside.explicit.ops
        assert ops is not None
        checked: Array = (ops == RESET) | ((ops == ADD) & np.bool_(not grouped))
        return checked if versions.lone is None else checked & np.repeat(~versions.lone, outside.counts)

    # ---- what each version does --------------------------------------------------------------------------

    def _steps(self, versions: Versions, groups: Sequence[_Ranked]) -> tuple[Steps, dict[Group, Steps], Array | None]:
        """Steps of columns outside of groups, of each group's columns, and which versions remove the row."""
        back, kinds = versions.retracts, versions.ordered_kinds
        order, starts, size = versions.order, versions.starts, len(versions.starts)
        if back is None or kinds is None:
            return versions.plain, {g.group: self._inserts(versions, g) for g in groups}, None
        several = np.ones(size, bool) if versions.lone is None else ~versions.lone
        back = back & np.repeat(several, versions.plain.counts)
        if not (self._ignores or self._groups or self._on_delete) and back.any():
            raise BadRequest(
                "merge-engine 'partial-update' takes no row of kind -U or -D, and one is to be merged",
                hint=f"set 'ignore-delete' or '{_ON_DELETE}' to 'true', or give the columns sequence groups",
            )
        fresh = np.zeros(len(order), bool)
        fresh[starts] = back[starts]  # a retraction that meets nothing: the row starts as what is taken back
        ops = np.where(back, SKIP, ADD).astype(np.int8)
        ops[fresh] = RESET
        removed = back & (kinds == DELETE) if self._on_delete else None
        removing = [g for g in groups if not self._removing.isdisjoint(g.group.sequence)]
        if removing:
            removed = self._removed(versions, groups, removing, back & (kinds == DELETE))
        if removed is not None:
            ops[removed] = RESET
        by_group = {
            g.group: Steps(order, starts, size, self._group_ops(versions, g, ops, back, removed)) for g in groups
        }
        if versions.lone is not None:
            ops[starts[versions.lone]] = RESET
        return Steps(order, starts, size, ops), by_group, removed

    def _inserts(self, versions: Versions, ranked: _Ranked) -> Steps:
        """Steps of a group where nothing is taken back. Columns without an aggregate need the newest version only."""
        level, counts = ranked.level, versions.plain.counts
        if all(self._function(c) is None for c in ranked.group.columns):
            at, best = versions.plain.last_greatest(level)
            if not best.all():  # no version with a sequence: no value, but a lone version passes
                some = best > 0
                at = np.where(some if versions.lone is None else some | versions.lone, at, -1)
            some = at >= 0
            groups = None if some.all() else np.flatnonzero(some)
            return Steps(versions.order[at[some]], np.arange(int(some.sum())), len(at), None, groups)
        ops = np.where(_in_time(level, versions.starts, counts), ADD, OLDER).astype(np.int8)
        ops[level == 0] = SKIP
        if versions.lone is not None:
            ops[versions.starts[versions.lone]] = RESET
        if not ops.any():
            return versions.plain
        return Steps(versions.order, versions.starts, len(versions.starts), ops)

    def _group_ops(
        self, versions: Versions, ranked: _Ranked, outside: Array, back: Array, removed: Array | None
    ) -> Array:
        level, starts = ranked.level, versions.starts
        counts = versions.plain.counts
        if removed is not None and removed.any():
            # a removed row starts anew: what came before no longer says what is late
            begins = removed.copy()
            begins[starts] = True
            starts = np.flatnonzero(begins)
            counts = np.diff(np.append(starts, len(level)))
        if self._ignores:
            level = np.where(outside == SKIP, 0, level)
        in_time = _in_time(level, starts, counts)
        ops = np.where(back, np.where(in_time, RETRACT, OLDER_RETRACT), np.where(in_time, ADD, OLDER)).astype(np.int8)
        ops[level == 0] = SKIP
        fresh = outside == RESET
        ops[fresh] = np.where((ops[fresh] == RETRACT) & np.bool_(not self._ignores), RESET_RETRACT, RESET)
        if removed is not None:
            ops[removed] = RESET
        if versions.lone is not None:
            ops[versions.starts[versions.lone]] = RESET
        return ops

    def _removed(
        self, versions: Versions, groups: Sequence[_Ranked], removing: Sequence[_Ranked], deletes: Array
    ) -> Array:
        """Which deletions remove the row: those in time for a group of `remove-record-on-sequence-group`.

        A removal sets back the sequence of every group, which decides on the next one, so keys that hold a deletion
        are followed version by version, all of them at once.
        """
        removed = np.zeros(len(deletes), bool)
        starts, counts = versions.starts, versions.plain.counts
        keys = np.flatnonzero(np.logical_or.reduceat(deletes, starts))
        reached = [np.zeros(len(keys), np.int64) for _ in groups]
        for r in range(int(counts[keys].max(initial=0))):
            live = np.flatnonzero(counts[keys] > r)
            at = starts[keys[live]] + r
            gone = np.zeros(len(live), bool)
            for g, so_far in zip(groups, reached):
                if g in removing:
                    level = g.level[at]
                    gone |= deletes[at] & (level > 0) & (level >= so_far[live])
            for g, so_far in zip(groups, reached):
                level = g.level[at]
                so_far[live] = np.where(gone, level, np.maximum(so_far[live], level))
            removed[at] = gone
        return removed


def _in_time(level: Array, starts: Array, counts: Array) -> Array:
    """Which positions reach the greatest level so far of their key."""
    top = int(level.max(initial=0)) + 1
    if top * len(starts) >= 2**62:  # there are more starts than keys after removals; ranks do as well as values
        level = np.unique(level, return_inverse=True)[1].reshape(-1)
        top = int(level.max(initial=0)) + 1
    lifted = level + np.repeat(np.arange(len(starts)) * top, counts)
    reaches: Array = lifted == np.maximum.accumulate(lifted)
    return reaches


def _levels(versions: Versions, sequence: Sequence[str]) -> Array:
    """The order of a group's sequence values, at each position; 0 where all of them are null."""
    columns = [versions.column(name) for name in sequence]
    if len(columns) == 1:
        quick = _quick_levels(columns[0], versions.order, len(versions.starts))
        if quick is not None:
            return quick
    order, first = stable_order([w for c in columns for w in column_words(c, nullable=True)])
    level = np.empty(len(order), np.int64)
    level[order] = np.cumsum(first)
    empty = np.ones(len(order), bool)
    for c in columns:
        empty &= c.is_null().to_numpy(zero_copy_only=False)
    level[empty] = 0
    ordered: Array = level[versions.order]
    return ordered


def _quick_levels(column: pa.Array, order: Array, keys: int) -> Array | None:
    """Levels of one integer or time column are its values, moved; None where it is another or its range is vast."""
    import pyarrow as pa

    t = column.type
    if not (pa.types.is_integer(t) or pa.types.is_date(t) or pa.types.is_time(t) or pa.types.is_timestamp(t)):
        return None
    v, valid = numbers(column), validity(column)
    if not len(v):
        return np.zeros(0, np.int64)
    least, most = int(v.min()), int(v.max())
    if valid is not None and (most - least + 2) * (keys + 1) >= 2**62:  # what lies under a null may be anything
        seen = v[valid]
        if not len(seen):
            return np.zeros(len(order), np.int64)
        least, most = int(seen.min()), int(seen.max())
    if (most - least + 2) * (keys + 1) >= 2**62 or least == -(2**63):
        return None
    level = v.astype(np.int64)
    level -= least - 1
    if valid is not None:
        level *= valid
    ordered: Array = level[order]
    return ordered


# ---- options ---------------------------------------------------------------------------------------------


def _groups(schema: Schema, options: Options) -> tuple[Group, ...]:
    groups: list[Group] = []
    for key, text in options.raw.items():
        if not (key.startswith("fields.") and key.endswith(".sequence-group")):
            continue
        group = Group(key, _split(key[len("fields.") : -len(".sequence-group")]), _split(text))
        for name in group.members:
            if name not in schema.names:
                hint = near(name, schema.names) or "columns are " + ", ".join(schema.names)
                raise BadRequest(f"'{key}': the table has no column '{name}'", hint=hint)
            if name in schema.primary_keys:
                raise BadRequest(
                    f"'{key}': '{name}' is a key column, which cannot be in a sequence group", hint="leave it out"
                )
        groups.append(Group(key, group.sequence, tuple(c for c in group.columns if c not in group.sequence)))
    seen: dict[str, Group] = {}
    for group in groups:
        for name in group.members:
            other = seen.setdefault(name, group)
            if other is group:
                continue
            if name in group.columns and name in other.columns:
                raise BadRequest(
                    f"column '{name}' is in two sequence groups: '{other.option}' and '{group.option}'",
                    hint="leave it in one",
                )
            # Java takes the groups in the order of a hash table, and with it one of them or an error
            raise Unsupported(
                f"column '{name}' orders one sequence group and is in another: '{other.option}' and '{group.option}'",
                hint="what Paimon does with it hangs on the order of a hash table; leave it in one group",
            )
    return tuple(groups)


def _split(text: str) -> tuple[str, ...]:
    """Java's split: no part after the last comma if it is empty."""
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _removing(groups: Sequence[Group], options: Options) -> frozenset[str]:
    wanted = cast("Sequence[str] | str | None", options.get(_ON_GROUP))
    if wanted is None or not options.is_set(_ON_GROUP):
        return frozenset()
    names = _split(wanted) if isinstance(wanted, str) else tuple(wanted)
    known = {s for g in groups for s in g.sequence}
    for name in names:
        if name not in known:
            hint = near(name, known) or "columns that do are " + (", ".join(sorted(known)) or "none")
            raise BadRequest(f"'{_ON_GROUP}': '{name}' orders no sequence group", hint=hint)
    return frozenset(names)
