# SPDX-License-Identifier: Apache-2.0
"""What each row that is written does: +I inserts, -U takes an older row back, +U replaces it, -D deletes it.

A kind comes from the table's `rowkind.field`, else from the caller: one for all rows, one a row (numbers or the texts
`+I -U +U -D`), or the name of a column that holds them. Then `ignore-delete` and `ignore-update-before` leave rows out,
and what is left must suit the table. Agrees with: RowKindGenerator, RowKindFilter, TableWriteImpl, AppendOnlyWriter
(2.0.0), in this order. Invariant: a row that is left out takes no sequence number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest
from shoal.lsm.merge import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

TEXTS = ("+I", "-U", "+U", "-D")
RETRACTIONS = (UPDATE_BEFORE, DELETE)

Kinds = int | str | Sequence[int] | Sequence[str]


class RowKinds:
    """The kinds of one table's rows."""

    def __init__(self, table: Table) -> None:
        o = table.options
        self._name = table.name
        self._keyed = bool(table.primary_key)
        self._ignored = RETRACTIONS if o.ignore_delete else (UPDATE_BEFORE,) if o.ignore_update_before else ()
        self.field = o.rowkind_field
        if self.field is not None:
            if self.field not in table.schema.names:
                raise BadRequest(f"{table.name}: rowkind.field '{self.field}' is not a column")
            t = table.schema.field(self.field).type
            if t.root not in ("CHAR", "VARCHAR"):
                raise BadRequest(
                    f"{table.name}: rowkind.field '{self.field}' is {t}", hint="a row kind is a text: +I, -U, +U or -D"
                )

    def applied(self, rows: pa.RecordBatch, given: int | pa.Array) -> pa.RecordBatch:
        """The rows that count, with their kinds as column `_VALUE_KIND` where the table has a key."""
        import pyarrow as pa

        kinds = given if self.field is None else self._of_field(rows.column(self.field))
        if isinstance(kinds, int):
            return self._all_of(rows, kinds)
        values = kinds.to_numpy()
        if self._ignored and np.isin(values, self._ignored).any():
            keep = ~np.isin(values, self._ignored)
            rows, values = rows.filter(pa.array(keep)), values[keep]
        if not self._keyed:
            self._refuse(values)
            return rows
        return rows.append_column(KIND, pa.array(values, pa.int8()))

    def _all_of(self, rows: pa.RecordBatch, kind: int) -> pa.RecordBatch:
        import pyarrow as pa

        if kind in self._ignored:
            return (
                rows.slice(0, 0) if not self._keyed else rows.slice(0, 0).append_column(KIND, pa.array([], pa.int8()))
            )
        if self._keyed:
            return rows.append_column(KIND, pa.array(np.full(rows.num_rows, kind, np.int8)))
        if rows.num_rows:
            self._refuse(np.array([kind]))
        return rows

    def _refuse(self, values: np.ndarray) -> None:
        back = np.isin(values, RETRACTIONS)
        if back.any():
            kind = TEXTS[int(values[np.argmax(back)])]
            raise BadRequest(
                f"{self._name} has no primary key: it takes no -U or -D rows, and one is {kind}",
                hint="set 'ignore-delete' = 'true' to leave such rows out",
            )

    def _of_field(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            raise BadRequest(
                f"{self._name}: column '{self.field}' holds a null", hint="it is the row's kind: +I, -U, +U or -D"
            )
        return of_texts(column, f"{self._name}: column '{self.field}'")


def kind_array(kinds: pa.Array | Sequence[int] | Sequence[str], table: str) -> pa.Array:
    """Kinds given one a row as numbers; `BadRequest` names the first that is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        array = kinds if isinstance(kinds, pa.Array | pa.ChunkedArray) else pa.array(kinds)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        texts = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        array = array.cast(pa.string() if texts else pa.int8())
    except pa.ArrowException as err:
        raise BadRequest(
            f"{table}: these are no row kinds ({err})", hint="use 0 +I, 1 -U, 2 +U, 3 -D, or the texts"
        ) from err
    if texts:
        return of_texts(array, f"{table}: a row kind")
    if array.null_count or not pc.all(pc.is_in(array, pa.array([0, 1, 2, 3], pa.int8())), min_count=0).as_py():
        raise BadRequest(f"{table}: a row kind is not one of 0 +I, 1 -U, 2 +U, 3 -D")
    return array


def of_texts(column: pa.Array, what: str) -> pa.Array:
    """`+I -U +U -D`, in either case, as numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(pc.utf8_upper(column), pa.array(TEXTS, pa.string()))
    if found.null_count:
        wrong = column.filter(found.is_null())[0].as_py()
        raise BadRequest(f"{what} is {wrong!r}", hint="a row kind is one of +I, -U, +U, -D")
    return found.cast(pa.int8())


__all__ = ["DELETE", "INSERT", "TEXTS", "UPDATE_AFTER", "UPDATE_BEFORE", "RowKinds", "kind_array", "of_texts"]
