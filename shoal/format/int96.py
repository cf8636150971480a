# SPDX-License-Identifier: Apache-2.0
"""INT96 timestamps of Parquet, exactly: twelve bytes, the nanoseconds of a day and the Julian day.

pyarrow turns them into 64-bit counts before anybody sees them: nanoseconds wrap silently outside 1677 to 2262, and the
negative nanoseconds of a day that Java writes before 1970 are divided as if they were unsigned, which no count tells
from a time 584 years later. So the file's footer is handed to pyarrow with those columns declared as what they also
are, twelve plain bytes.

Agrees with: ParquetDictionary.int96ToTimestamp, ParquetRowDataWriter (2.0.0). Invariant: only the footer changes, in
memory; the bytes of a value decide alone what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt
from shoal.format import thrift
from shoal.format.instants import NANOS, array_of
from shoal.format.shape import as_stored, rebuilt
from shoal.format.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# What Parquet calls 1970-01-01: the Julian day.
EPOCH = 2_440_588
SECONDS_OF_DAY = 86_400
WIDTH = 12
MAGIC = b"PAR1"
# The numbers of parquet.thrift: physical types, and fields of FileMetaData, SchemaElement, RowGroup and ColumnChunk.
INT96, FIXED = 3, 7
SCHEMA, ROW_GROUPS, KEY_VALUES = 2, 4, 5
TYPE, TYPE_LENGTH, CONVERTED, LOGICAL = 1, 2, 6, 10
COLUMNS, META, META_TYPE, META_STATISTICS = 1, 3, 1, 12


def holds(footer: pq.FileMetaData) -> bool:
    """Does the file have an INT96 column?"""
    schema = footer.schema
    return any(schema.column(i).physical_type == "INT96" for i in range(len(schema)))


def raw_footer(file: pa.NativeFile, path: str) -> pq.FileMetaData:
    """The footer of an open Parquet file, its INT96 columns declared as FIXED_LEN_BYTE_ARRAY(12).

    Given to `pq.ParquetFile(file, metadata=...)`, it makes them arrays of twelve bytes, which `decode` takes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = file.size()
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if size < 12 or tail[4:] != MAGIC or length > size - 12:
        raise Corrupt(f"{path}: the Parquet file has no footer", hint="it is damaged or cut off")
    file.seek(size - 8 - length)
    try:
        footer, end = thrift.read_struct(file.read(length), 0)
        if end > length:
            raise IndexError
        raw = thrift.write_struct(_declared_as_bytes(footer))
        whole = MAGIC + raw + len(raw).to_bytes(4, "little") + MAGIC
        return pq.read_metadata(pa.BufferReader(whole))
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, OSError) as err:
        raise Corrupt(f"{path}: the Parquet footer makes no sense", hint="the file is damaged") from err


def _declared_as_bytes(footer: thrift.Struct) -> thrift.Struct:
    # an Arrow schema kept beside Parquet's own would still call the columns timestamps
    footer.pop(KEY_VALUES, None)
    for element in footer[SCHEMA].value.items:
        if element.get(TYPE) == thrift.i32(INT96):
            element[TYPE], element[TYPE_LENGTH] = thrift.i32(FIXED), thrift.i32(WIDTH)
            element.pop(CONVERTED, None)
            element.pop(LOGICAL, None)
    for group in footer[ROW_GROUPS].value.items:
        for chunk in group[COLUMNS].value.items:
            meta = chunk[META].value
            if meta[META_TYPE] == thrift.i32(INT96):
                meta[META_TYPE] = thrift.i32(FIXED)
                meta.pop(META_STATISTICS, None)
    return footer


def decode(a: pa.Array, t: DataType, path: str, column: str) -> pa.Array:
    """A column read with `raw_footer`, in the Arrow type of `t`: its twelve-byte leaves become timestamps.

    Leaves of other types are cast to their column's type. `Unsupported` when a nanosecond column that is not `wide`
    holds a time outside the years 1677 to 2262.
    """
    import pyarrow as pa

    def leaf(values: pa.Array, of: DataType) -> pa.Array:
        if pa.types.is_fixed_size_binary(values.type) and values.type.byte_width == WIDTH and of.is_timestamp:
            return _timestamps(values, of, path, column)
        return as_stored(values, of, path, column)

    return rebuilt(a, t, leaf)


def _timestamps(a: pa.Array, t: DataType, path: str, column: str) -> pa.Array:
    raw = np.frombuffer(a.buffers()[1] or b"", np.uint8)[a.offset * WIDTH : (a.offset + len(a)) * WIDTH]
    value: Any = raw.reshape(len(a), WIDTH)
    of_day = value[:, :8].copy().view("<i8")[:, 0]
    day = value[:, 8:].copy().view("<i4")[:, 0].astype(np.int64) - EPOCH
    # floor division: a negative nanosecond of the day is a time before that day
    seconds = day * SECONDS_OF_DAY + of_day // NANOS
    nulls = np.asarray(a.is_null()) if a.null_count else None
    return array_of(seconds, of_day % NANOS, t, path, column, nulls)
