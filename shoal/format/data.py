# SPDX-License-Identifier: Apache-2.0
"""Data files: Parquet to and from Arrow batches, with the column bounds that manifests keep.

Agrees with: ParquetFileFormat, KeyValue.schema (2.0.0). Invariant: a file is matched to the table by the field ids
of the schema it was written with, never by today's names; what comes out has exactly the columns asked for, in
Arrow types of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.format.data_writer import ColumnBounds, Written, pieces
from shoal.format.int96 import WIDTH
from shoal.format.int96_writer import Int96Sink, encode_leaves, has_int96, is_int96, leaves
from shoal.format.parquet_options import ParquetOptions
from shoal.format.types import DataType, Field, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shoal.store.base import Sink

# Rows of a Parquet row group: a reader that merges many files holds a page of each column, and a point lookup
# decodes one row group, so groups stay well below Parquet's usual million rows.
ROW_GROUP_ROWS = 131_072
# Bytes of rows in memory that make a row group or stripe whole, however few they are.
GROUP_BYTES = 64 << 20
_DICTIONARY_ROWS = 512
# Bytes read at a time from each column chunk.
READ_BUFFER = 1 << 16


def format_of(file_name: str) -> str:
    """`parquet`, `orc` or `avro`: what follows the last dot (a codec suffix may stand before it)."""
    return file_name.rsplit(".", 1)[-1].lower() if "." in file_name else ""


# ---- writing ---------------------------------------------------------------------------------------------


class ParquetWriter:
    """Writes batches of `fields` into `sink`; `close` gives what the footer knows. Not for several threads."""

    def __init__(
        self,
        sink: Sink | pa.NativeFile,
        fields: Sequence[Field],
        *,
        options: ParquetOptions | None = None,
        schema: pa.Schema | None = None,
        most_bytes: int = GROUP_BYTES,
    ) -> None:
        """`most_bytes` of rows in memory make a row group whole."""
        self._most_bytes = min(most_bytes, GROUP_BYTES)
        self._options = options or ParquetOptions()
        self._fields = fields
        self._sink = sink
        self._rows = 0
        self._group = ROW_GROUP_ROWS
        self._group_bytes = self._options.group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._share = 1.0
        """Bytes in the file for a byte in memory, as of the last row group."""
        self._nan: set[str] = set()
        self._floats = [f.name for f in fields if f.type.root in ("FLOAT", "DOUBLE")]
        self.schema = schema or parquet_schema(fields)
        # INT96 has no statistics in a footer: Java keeps null counts of such columns
        self._nulls = {f.name: 0 for f in fields if is_int96(f.type)}
        self._leaves = leaves(fields)
        int96 = [path for path, t in self._leaves.items() if is_int96(t)]
        self._int96 = Int96Sink(sink, int96) if int96 else None
        self._writer: pq.ParquetWriter | None = None

    @property
    def size(self) -> int:
        return int(self._sink.tell() + self._waiting_bytes * self._share)

    def settle(self) -> None:
        self._flush()

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        if self._group_bytes is not None and batch.num_rows:
            # the rows that the asked size holds, measured on the first ones
            rows = self._group_bytes * batch.num_rows // max(1, batch.nbytes)
            self._group, self._group_bytes = min(max(rows, 1_024), 1 << 20), None
        for name in self._floats:
            if name not in self._nan and pc.any(pc.is_nan(batch.column(name))).as_py():
                self._nan.add(name)
        for name in self._nulls:
            self._nulls[name] += batch.column(name).null_count
        for part in pieces(batch, self._most_bytes, self._waiting_bytes):
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            if self._waiting_rows >= self._group or self._waiting_bytes >= self._most_bytes:
                self._flush()

    def _opened(self, dictionary: bool = True) -> pq.ParquetWriter:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            o = self._options
            sink: Any = self._sink
            bounded: bool | list[str] = True
            if self._int96 is not None:
                sink = pa.PythonFile(self._int96, "w")
                bounded = [path for path, t in self._leaves.items() if not is_int96(t)]
            self._writer = pq.ParquetWriter(
                sink,
                self.schema,
                compression=o.compression(self.schema),
                compression_level=o.levels(self.schema),
                use_dictionary=dictionary and o.dictionaries(self.schema),
                data_page_size=o.page_bytes,
                dictionary_pagesize_limit=o.dictionary_bytes,
                data_page_version="2.0" if o.version_2_pages else "1.0",
                store_schema=False,
                store_decimal_as_integer=True,
                write_time_adjusted_to_utc=True,
                write_statistics=bounded,
            )
        return self._writer

    def _flush(self, *, last: bool = False) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        # a file of a few rows gets smaller and is written twice as fast without dictionary pages
        writer = self._opened(dictionary=not (last and self._waiting_rows < _DICTIONARY_ROWS))
        table = pa.Table.from_batches(self._waiting)
        if table.schema != self.schema:
            columns = [_as_written(c, f.type, t) for c, f, t in zip(table.columns, self._fields, self.schema.types)]
            table = pa.Table.from_arrays(columns, schema=self.schema)
        before = int(self._sink.tell())
        writer.write_table(table, row_group_size=self._group)
        self._share = (int(self._sink.tell()) - before) / max(1, self._waiting_bytes)
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> Written:
        self._flush(last=True)
        writer = self._opened()
        if self._int96 is not None:
            self._int96.hold_footer()
        writer.close()
        if self._int96 is not None:
            self._int96.finish()
        size = int(self._sink.tell())
        bounds = footer_bounds(writer.writer.metadata, self._fields, self._nan)
        return Written(self._rows, size, bounds | {c: ColumnBounds(None, None, n) for c, n in self._nulls.items()})


def parquet_schema(fields: Sequence[Field]) -> pa.Schema:
    """The Arrow schema that a file of these columns is written with: names, types, Paimon's field ids."""
    import pyarrow as pa

    return pa.schema([_parquet_field(f) for f in fields])


def _as_written(column: pa.ChunkedArray, t: DataType, target: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    if has_int96(t):
        return pa.chunked_array([encode_leaves(c, t, target) for c in column.chunks], target)
    return column if column.type == target else column.cast(target)


def _parquet_field(f: Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(
        f.name, _with_ids(to_arrow(f.type), f.type, f.id, 1), f.type.nullable, {b"PARQUET:field_id": str(f.id).encode()}
    )


def _with_ids(arrow: pa.DataType, t: DataType, field_id: int, depth: int) -> pa.DataType:
    """Nested types with Paimon's element ids (see data-files in the format notes)."""
    import pyarrow as pa

    def ids(i: int) -> dict[bytes, bytes]:
        return {b"PARQUET:field_id": str(i).encode()}

    if t.root == "ROW":
        return pa.struct([_parquet_field(f) for f in t.fields])
    if t.root == "VARIANT":
        return pa.struct([pa.field(f.name, f.type, False, ids(i)) for i, f in enumerate(arrow)])
    if t.root == "ARRAY":
        assert t.element is not None
        inner = _with_ids(to_arrow(t.element), t.element, field_id, depth + 1)
        return pa.list_(pa.field("element", inner, t.element.nullable, ids(536870911 + field_id * 1024 + depth)))
    if t.root in ("MAP", "MULTISET"):
        key = t.key or t.element
        assert key is not None
        value = t.value or DataType("INT", False)
        inner = _with_ids(to_arrow(value), value, field_id, depth + 1)
        return pa.map_(
            pa.field("key", to_arrow(key), False, ids(536870911 - field_id * 1024 - depth)),
            pa.field("value", inner, value.nullable, ids(536870911 + field_id * 1024 + depth)),
        )
    if is_int96(t):
        return pa.binary(WIDTH)
    if (t.root == "TIMESTAMP" and t.precision == 0) or (t.root == "TIMESTAMP_LTZ" and t.precision == 0):
        return pa.timestamp("ms", arrow.tz)
    return arrow


def footer_bounds(footer: pq.FileMetaData, fields: Sequence[Field], with_nan: set[str]) -> dict[str, ColumnBounds]:
    """Bounds of the scalar columns over all row groups; none where the footer has none or NaN would lie outside."""
    import numpy as np

    index = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    out: dict[str, ColumnBounds] = {}
    groups = [footer.row_group(g) for g in range(footer.num_row_groups)]
    for f in fields:
        if f.type.is_nested or f.name not in index:
            continue
        i = index[f.name]
        low: Any = None
        high: Any = None
        nulls: int | None = 0
        bounded = f.name not in with_nan
        for g in groups:
            column = g.column(i)
            stats = column.statistics
            if stats is None or not stats.has_null_count:
                # INT96 has no statistics: the null count is values short of rows, which the footer does not tell
                nulls, bounded = None, False
                break
            if nulls is not None:
                nulls += stats.null_count
            if stats.has_min_max:
                a, b = (
                    _stored(stats.min_raw, f.type, column.physical_type),
                    _stored(stats.max_raw, f.type, column.physical_type),
                )
                low = a if low is None or a < low else low
                high = b if high is None or b > high else high
            elif stats.null_count < g.num_rows:
                bounded = False
        if not bounded:
            low = high = None
        if isinstance(low, float) and f.type.root == "FLOAT":
            low, high = float(np.float32(low)), float(np.float32(high))
        out[f.name] = ColumnBounds(low, high, nulls)
    return out


def _stored(raw: Any, t: DataType, physical: str) -> Any:
    """A raw footer value in the stored form of `format.row`."""
    if t.root == "DECIMAL":
        return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    if t.is_timestamp:
        return int(raw) * (1_000_000 if (t.precision or 0) <= 3 else 1_000)
    if t.root == "BOOLEAN":
        return bool(raw)
    if t.is_bytes:
        return bytes(raw)
    if t.root in ("FLOAT", "DOUBLE"):
        return float(raw)
    return int(raw)
