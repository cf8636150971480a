# SPDX-License-Identifier: Apache-2.0
"""The merge engine `aggregation`, and which function a column has.

Agrees with: AggregateMergeFunction, FieldAggregatorFactory (2.0.0). Invariant: columns do not see each other; what a
deletion does (`aggregation.remove-record-on-delete`) it does to the whole row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.errors import BadRequest, near
from shoal.format.schema import Schema
from shoal.format.types import Field
from shoal.lsm import aggregates, arithmetic, nested_aggregates, sketches
from shoal.lsm.aggregates import Aggregate
from shoal.lsm.versions import ADD, DELETE, INSERT, RESET, RETRACT, Array, Folded, Steps, Versions, taken
from shoal.options import Options

FUNCTIONS: Mapping[str, type[Aggregate]] = {
    "sum": arithmetic.Sum,
    "product": arithmetic.Product,
    "min": aggregates.Extreme,
    "max": aggregates.Extreme,
    "last_value": aggregates.LastValue,
    "last_non_null_value": aggregates.LastNonNull,
    "first_value": aggregates.FirstValue,
    "first_non_null_value": aggregates.FirstNonNull,
    "first_not_null_value": aggregates.FirstNonNull,  # its name in older versions
    "bool_or": aggregates.Bool,
    "bool_and": aggregates.Bool,
    "listagg": aggregates.ListAgg,
    "collect": nested_aggregates.Collect,
    "merge_map": nested_aggregates.MergeMap,
    "merge_map_with_keytime": nested_aggregates.MergeMapWithKeyTime,
    "nested_update": nested_aggregates.NestedUpdate,
    "nested_partial_update": nested_aggregates.NestedPartialUpdate,
    "rbm32": sketches.Bitmap32,
    "rbm64": sketches.Bitmap64,
    "hll_sketch": sketches.Hll,
    "theta_sketch": sketches.Theta,
    "primary-key": aggregates.KeyValue,
}
_DEFAULT = "fields.default-aggregate-function"
_REMOVE = "aggregation.remove-record-on-delete"


def function_of(column: str, options: Options) -> str | None:
    """The function that the options name for a column."""
    own = options.get(f"fields.{column}.aggregate-function")
    chosen = own if own is not None else options.get(_DEFAULT)
    return None if chosen is None else str(chosen)


def check_functions(schema: Schema, options: Options) -> None:
    """Every function that is named exists, also on columns that no one reads."""
    for name in schema.names:
        function = function_of(name, options)
        if function is not None and function not in FUNCTIONS:
            key = f"fields.{name}.aggregate-function"
            raise BadRequest(
                f"'{key if key in options.raw else _DEFAULT}' = '{function}': no such aggregate function",
                hint=near(function, FUNCTIONS) or "functions are " + ", ".join(FUNCTIONS),
            )


def aggregate_of(function: str, field: Field, options: Options) -> Aggregate:
    """The function on a column; `BadRequest` when the column's type or options do not fit."""
    if options.get(_REMOVE) and options.get(f"fields.{field.name}.ignore-retract"):
        raise BadRequest(
            f"'{_REMOVE}' and 'fields.{field.name}.ignore-retract' exclude each other", hint="set only one of them"
        )
    return FUNCTIONS[function](function, field, options)


def refuse_nulls(versions: Versions, schema: Schema, columns: Sequence[str], become: Callable[[], Array]) -> None:
    """Positions that `become` the value of their key must not hold null where the table says NOT NULL."""
    for name in columns:
        if name not in schema.names or schema.field(name).type.nullable:
            continue
        values = versions.column(name)
        if values.null_count and (~values.is_valid().to_numpy(zero_copy_only=False))[versions.order][become()].any():
            raise BadRequest(
                f"column '{name}': NOT NULL, but a row that is to be merged holds null",
                hint="write the column, or make it nullable",
            )


class Aggregation:
    """One function for each column."""

    def __init__(self, schema: Schema, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._removes = bool(options.get(_REMOVE))
        self._made: dict[str, Aggregate] = {}
        check_functions(schema, options)

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        for name in columns:
            self._aggregate(name)
        return tuple(dict.fromkeys(columns))

    def _aggregate(self, name: str) -> Aggregate | None:
        """None: the column comes from the newest row."""
        if name in self._schema.primary_keys or name not in self._schema.names:
            return None
        if name not in self._made:
            sequenced = name in self._options.sequence_field
            function = "last_value" if sequenced else function_of(name, self._options)
            self._made[name] = aggregate_of(function or "last_non_null_value", self._schema.field(name), self._options)
        return self._made[name]

    def fold(self, versions: Versions, columns: Sequence[str]) -> Folded:
        steps = self._steps(versions, columns)
        newest = versions.order[versions.ends]
        out = []
        for name in columns:
            aggregate, values = self._aggregate(name), versions.column(name)
            out.append(taken(values, newest) if aggregate is None else aggregate.apply(values, steps))
        kinds = np.full(len(newest), INSERT, np.int8)
        if self._removes and versions.ordered_kinds is not None:
            kinds[versions.ordered_kinds[versions.ends] == DELETE] = DELETE
        return Folded(out, versions.own_kinds(kinds), newest)

    def _steps(self, versions: Versions, columns: Sequence[str]) -> Steps:
        back, kinds = versions.retracts, versions.ordered_kinds
        if back is None or kinds is None:
            return versions.plain
        ops = np.where(back, RETRACT, ADD).astype(np.int8)
        if self._removes:
            ops[kinds == DELETE] = RESET
        if versions.lone is not None:
            ops[versions.starts[versions.lone]] = ADD  # not RESET yet: a lone row is not checked
        reset = ops == RESET
        if reset.any():
            refuse_nulls(versions, self._schema, columns, lambda: reset)
        if versions.lone is not None:
            ops[versions.starts[versions.lone]] = RESET
        return Steps(versions.order, versions.starts, len(versions.starts), ops)
