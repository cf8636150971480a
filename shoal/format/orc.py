# SPDX-License-Identifier: Apache-2.0
"""ORC data files to Arrow batches, stripe by stripe.

pyarrow decodes the file; timestamps are decoded once more, exactly (see `orc_timestamps`), and CHAR values come without
their padding blanks, as Java gives them from ORC. Agrees with: OrcReaderFactory, OrcTypeUtil (2.0.0). Invariant: one
stripe is in memory at a time, of the asked columns only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shoal.errors import Corrupt
from shoal.format.orc_check import check_stripe
from shoal.format.orc_tail import (
    LIST,
    MAP,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_INSTANT,
    PlainFile,
    Tail,
    damaged,
    read_tail,
    stripe_footer,
)
from shoal.format.orc_timestamps import StripeTimestamps
from shoal.format.shape import as_stored, checked, map_parts, parts_of, rebuilt
from shoal.format.shared_maps import ARROW_SCHEMA, SharedMap, layouts, schema_of_text
from shoal.format.types import DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa


class OrcReader:
    """One open ORC file of the columns `fields`. Not for several threads.

    `legacy_ltz` is the table's option `orc.timestamp-ltz.legacy.type`: TIMESTAMP_LTZ was written as the wall clock of
    the writer's zone.
    """

    def __init__(self, file: pa.NativeFile, fields: Sequence[Field], path: str, *, legacy_ltz: bool = True) -> None:
        import pyarrow as pa
        from pyarrow import orc

        self._file = file
        self._path = path
        self._legacy = legacy_ltz
        self._fields = {f.name: f for f in fields}
        self._tail = read_tail(file, path)
        if not self._tail.types or self._tail.types[0].kind != STRUCT:
            raise damaged(path, ValueError("its rows are no structs"))
        self._plain = PlainFile(file, self._tail)
        try:
            self._orc = orc.ORCFile(pa.PythonFile(self._plain, mode="r"))
        except (pa.ArrowException, OSError) as err:
            raise damaged(path, err) from err
        self._shared = self._shared_maps(fields)
        self.names: tuple[str, ...] = self._tail.types[0].names
        self.rows: int = self._tail.rows
        self.groups: tuple[int, ...] = tuple(s.rows for s in self._tail.stripes)
        """Rows of each stripe."""

    def batches(
        self, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows of these columns, of all stripes or of `groups`."""
        for number in range(len(self._tail.stripes)) if groups is None else groups:
            batch = self._stripe(number, columns)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def close(self) -> None:
        self._file.close()

    def _stripe(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        import pyarrow as pa

        stripe = self._tail.stripes[number]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), stripe.rows, [None]))
        footer = stripe_footer(self._plain, stripe, self._tail, self._path)
        check_stripe(self._plain, stripe, footer, self._tail, [self._id(name) for name in columns], self._path)
        numbers = [str(self.names.index(name)) for name in columns]
        try:
            batch = self._orc.read_stripe(number, columns=numbers)
        except (pa.ArrowException, OSError, ValueError) as err:
            raise damaged(self._path, err) from err
        if batch.num_rows != stripe.rows:
            raise damaged(self._path, ValueError(f"stripe {number} has {batch.num_rows} rows, not {stripe.rows}"))
        timestamps = StripeTimestamps(self._plain, footer, self._tail, self._path, legacy=self._legacy)
        arrays = [self._column(batch.column(at), self._fields[name], timestamps) for at, name in zip(numbers, columns)]
        self._plain.hold(())
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _shared_maps(self, fields: Sequence[Field]) -> dict[str, SharedMap]:
        if not any(f.type.root == "MAP" for f in fields):
            return {}
        text = dict(self._orc.metadata or {}).get(ARROW_SCHEMA)
        schema = None if text is None else schema_of_text(text)
        return {} if schema is None else layouts(schema, fields, self._path)

    def _id(self, name: str) -> int:
        top = self._tail.types[0]
        if name not in top.names[: len(top.children)]:
            raise Corrupt(
                f"{self._path}: has no column '{name}'", hint="it does not fit the schema it was written with"
            )
        return top.children[top.names.index(name)]

    def _column(self, a: pa.Array, field: Field, timestamps: StripeTimestamps) -> pa.Array:
        shared = self._shared.get(field.name)
        of = field.type if shared is None else shared.stored
        ids = iter(list(_timestamp_ids(self._tail, self._id(field.name), of, self._path)))

        def leaf(values: pa.Array, t: DataType) -> pa.Array:
            if t.is_timestamp:
                return timestamps.column(next(ids), values, t, field.name)
            return _unpadded(checked(as_stored(values, t, self._path, field.name), t, self._path, field.name), t)

        made = rebuilt(a, of, leaf)
        return made if shared is None else shared.restored(made)


def as_read(batch: pa.RecordBatch, fields: Sequence[Field]) -> pa.RecordBatch:
    """The rows of a batch as an ORC file gives them back, which keeps no trailing blanks of CHAR values."""
    for f in fields:
        if _has_char(f.type):
            i = batch.schema.get_field_index(f.name)
            batch = batch.set_column(i, batch.schema.field(i), rebuilt(batch.column(i), f.type, _unpadded))
    return batch


def _unpadded(values: pa.Array, t: DataType) -> pa.Array:
    import pyarrow.compute as pc

    return pc.utf8_rtrim(values, " ") if t.root == "CHAR" else values


def _has_char(t: DataType) -> bool:
    return t.root == "CHAR" or any(_has_char(p) for p in parts_of(t))


def _timestamp_ids(tail: Tail, column: int, t: DataType, path: str) -> Iterator[int]:
    """The file's columns of the timestamps in a type, in the order in which `rebuilt` comes to them."""
    file_type = tail.types[column]
    expected = {"ROW": STRUCT, "ARRAY": LIST, "MAP": MAP, "MULTISET": MAP}.get(t.root)
    if expected is not None and (
        file_type.kind != expected or len(file_type.children) < {LIST: 1, MAP: 2}.get(expected, 0)
    ):
        raise Corrupt(f"{path}: a column is not the {t} that the schema says", hint="the file is damaged")
    if t.is_timestamp != (file_type.kind in (TIMESTAMP, TIMESTAMP_INSTANT)):
        # its seconds must not pass for numbers, nor numbers for seconds
        raise Corrupt(f"{path}: a column is not the {t} that the schema says", hint="the file is damaged")
    if t.is_timestamp:
        yield column
    elif t.root == "ARRAY":
        assert t.element is not None
        yield from _timestamp_ids(tail, file_type.children[0], t.element, path)
    elif t.root in ("MAP", "MULTISET"):
        for child, part in zip(file_type.children, map_parts(t)):
            yield from _timestamp_ids(tail, child, part, path)
    elif t.root == "ROW":
        for f in t.fields:
            if f.name in file_type.names:
                yield from _timestamp_ids(tail, file_type.children[file_type.names.index(f.name)], f.type, path)
