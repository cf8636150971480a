# SPDX-License-Identifier: Apache-2.0
"""What UPDATE and MERGE put into columns: values and expressions over the rows they change, whole columns at a time.

Invariant: what comes out has been checked like rows that a user writes: types, NOT NULL, lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadRequest, near
from shoal.table.rows import conform
from shoal.table.where import columns_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.scan import Scan
    from shoal.table.table import Table

Mask = NDArray[np.bool_]
Compute = Callable[["pa.RecordBatch"], "pa.Array"]
"""Values of a column for the rows of a batch, made by whoever knows how: the SQL engine, for one."""


def filtered(table: Table, where: str | pc.Expression | Compute | None) -> tuple[Scan, pc.Expression | Compute | None]:
    """(a scan that may find the rows, the condition that says which they are). Functions do not narrow the scan."""
    if where is None or is_expression(where) or isinstance(where, str):
        scan = table.scan(where)
        return scan, scan.where
    if not callable(where):
        raise BadRequest(f"{table.name}: {where!r} is no condition", hint="give SQL text such as 'id > 5'")
    return table.scan(), where


def is_expression(value: object) -> bool:
    """Whether this is an Arrow expression."""
    import pyarrow.compute as pc

    return isinstance(value, pc.Expression)


def columns_read(table: Table, scan: Scan, only: pc.Expression | Compute | None) -> list[str]:
    """The columns that a condition needs."""
    return scan.where_columns if only is None or is_expression(only) else list(_reads(only, table))


def _reads(compute: object, table: Table) -> Sequence[str]:
    """The columns that a function looks at: any, unless its attribute `reads` says which."""
    return getattr(compute, "reads", table.schema.names)


def check_columns(table: Table, given: Mapping[str, Any], what: str) -> None:
    """`BadRequest` for names that are no columns."""
    names = table.schema.names
    if not given:
        raise BadRequest(f"{table.name}: {what} names no column", hint="e.g. {'price': 5}")
    for name in given:
        if name not in names:
            raise BadRequest(
                f"{table.name} has no column '{name}'", hint=near(name, names) or f"it has {', '.join(names)}"
            )


def value_of(value: object, rows: pa.RecordBatch, column: pa.Field, table: str) -> pa.Array:
    """A value for every row: a constant, an Arrow expression over the columns of `rows`, or what a function makes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if isinstance(value, pc.Expression):
            return evaluate(value, rows)
        if callable(value):
            return value(rows)
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, column.type)
        return pa.repeat(scalar, rows.num_rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
        said = str(err).splitlines()[0]
        raise BadRequest(f"{table}: column '{column.name}' ({column.type}) takes no {value!r}", hint=said) from err


def evaluate(expression: pc.Expression, rows: pa.RecordBatch) -> pa.Array:
    """The values of an Arrow expression for each row."""
    import pyarrow as pa
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    # one thread: rows keep their order
    out = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False).column(0).combine_chunks()
    return out.chunk(0) if isinstance(out, pa.ChunkedArray) else out


def holds(condition: pc.Expression | Compute | None, rows: pa.RecordBatch) -> Mask:
    """Which rows a condition is true for; unknown is not true."""
    import pyarrow.compute as pc

    if condition is None or not rows.num_rows:
        return np.ones(rows.num_rows, np.bool_)
    found = evaluate(condition, rows) if isinstance(condition, pc.Expression) else condition(rows)
    mask: Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return mask


def inputs_of(table: Table, values: Iterable[object], beside: pa.Schema | None = None) -> list[str]:
    """The columns of the table that values and conditions look at; `beside` are columns of something else."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([*table.readable_schema, *(beside or ())])
    found: set[str] = set()
    for value in values:
        if isinstance(value, pc.Expression):
            found.update(columns_of(value.is_valid(), schema))  # a filter, whatever the type of the value
        elif callable(value):
            found.update(_reads(value, table))
    return [n for n in table.readable if n in found]


def assigned(
    table: Table, given: Mapping[str, Any], rows: pa.RecordBatch, keep: bool = True, only: Collection[str] | None = None
) -> pa.RecordBatch:
    """The table's columns of `rows` with the given ones replaced; without `keep`, columns not given are left out.

    With `only`, these columns alone: what comes out has no others.
    """
    import pyarrow as pa

    arrays, names = [], []
    for f in table.arrow_schema:
        if only is not None and f.name not in only:
            continue
        if f.name in given:
            arrays.append(value_of(given[f.name], rows, f, table.name))
        elif keep:
            arrays.append(rows.column(f.name))
        else:
            continue
        names.append(f.name)
    schema = table.schema
    if only is not None:
        schema = replace(schema, fields=tuple(f for f in schema.fields if f.name in only))
    return conform(pa.RecordBatch.from_arrays(arrays, names=names), schema, table.name)
