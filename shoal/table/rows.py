# SPDX-License-Identifier: Apache-2.0
"""What users hand in, as batches of the table's own columns, checked before anything is written.

Invariant: what leaves here has exactly the table's columns in their order and types, no null where none may be, and
no value that a file could not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import BadRequest, near
from shoal.format.cast import default_value
from shoal.format.schema import Schema
from shoal.format.types import Field, arrow_field
from shoal.table.fitting import fitted

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of a batch inside the engine: what fits a CPU cache and a fair part of any budget.
BATCH_ROWS = 65_536


def batches_of(data: Any, table: str) -> Iterator[pa.RecordBatch]:
    """Anything tabular as Arrow batches: Arrow, Polars, pandas, DuckDB, or a list of dicts."""
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        yield from _split(data)
    elif isinstance(data, pa.Table):
        for b in data.to_batches(max_chunksize=BATCH_ROWS):
            yield b
    elif isinstance(data, pa.RecordBatchReader):
        for b in data:
            yield from _split(b)
    elif hasattr(data, "__arrow_c_stream__"):
        for b in pa.RecordBatchReader.from_stream(data):
            yield from _split(b)
    elif isinstance(data, list):
        if any(not isinstance(r, dict) for r in data):
            raise BadRequest(f"{table}: rows must be dicts", hint='e.g. [{"id": 1, "name": "a"}]')
        try:
            yield from pa.Table.from_pylist(data).to_batches(max_chunksize=BATCH_ROWS)
        except (pa.ArrowException, OverflowError) as err:
            raise BadRequest(f"{table}: rows do not make a table ({err})") from err
    elif type(data).__module__.split(".")[0] == "pandas":
        yield from pa.Table.from_pandas(data, preserve_index=False).to_batches(max_chunksize=BATCH_ROWS)
    else:
        raise BadRequest(
            f"{table}: cannot write a {type(data).__name__}",
            hint="give an Arrow table or batch, a Polars or pandas frame, or a list of dicts",
        )


def unnamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of files as writers hold them: columns without field ids, any of which may be null."""
    import pyarrow as pa

    schema = pa.schema([pa.field(f.name, f.type) for f in batch.schema])
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)


def conform(batch: pa.RecordBatch, schema: Schema, table: str, needed: Sequence[str] | None = None) -> pa.RecordBatch:
    """The batch with the table's columns; `BadRequest` names the column and the first value that is wrong.

    Columns may come in any order and may be left out where null is allowed. With `needed`, only those columns must be
    there and hold values (deletes by key).
    """
    import pyarrow as pa

    known = set(schema.names)
    for name in batch.schema.names:
        if name not in known:
            raise BadRequest(
                f"{table} has no column '{name}'", hint=near(name, schema.names) or f"it has {', '.join(schema.names)}"
            )
    if len(set(batch.schema.names)) < len(batch.schema.names):
        raise BadRequest(f"{table}: a column is given twice")
    arrays, fields = [], []
    for f in schema.fields:
        target = arrow_field(f)
        strict = not f.type.nullable or f.name in schema.primary_keys
        if needed is not None and f.name not in needed:
            strict = False
        at = batch.schema.get_field_index(f.name)
        if at < 0:
            if f.default is not None:
                array = pa.repeat(_default(f, table), batch.num_rows)
            elif strict:
                raise BadRequest(f"{table}: column '{f.name}' is missing and may not be null")
            else:
                array = pa.nulls(batch.num_rows, target.type)
        else:
            array = fitted(batch.column(at), target, f.type, table)
            if strict and array.null_count:
                # before the default: Java fills in only what may be null
                raise BadRequest(
                    f"{table}: column '{f.name}' holds a null and may not (row {_first_null(array)} of the batch)",
                    hint="primary-key and NOT NULL columns need a value",
                )
            if f.default is not None and array.null_count:
                array = array.fill_null(_default(f, table))
        arrays.append(array)
        fields.append(pa.field(f.name, target.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _default(f: Field, table: str) -> pa.Scalar:
    try:
        return default_value(f.default or "", f.type, f.name)[0]
    except BadRequest as err:
        raise BadRequest(
            f"{table}: the default '{f.default}' of column '{f.name}' is no {f.type}", hint="alter the column's default"
        ) from err


def _first_null(array: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.index(array.is_null(), True).as_py())
