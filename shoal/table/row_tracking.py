# SPDX-License-Identifier: Apache-2.0
"""The id and the sequence number that every row of a row-tracking table has: `_ROW_ID` and `_SEQUENCE_NUMBER`.

Agrees with: SpecialFields, DataFileRecordReader, ColumnarRowIterator.assignRowTracking (2.0.0). Invariant: a value
that a file stores counts (a compaction mixes rows of many commits); otherwise a row's id is the file's first id plus
its position in the file, whatever filters drop, and its sequence number is the file's greatest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.errors import Corrupt
from shoal.format.datafile import DataFile
from shoal.format.schema import SEQUENCE_NUMBER
from shoal.format.types import DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa

ROW_ID = Field(2147483642, "_ROW_ID", DataType("BIGINT", False))
# What a scan may ask of a row-tracking table beside its columns.
TRACKED = (ROW_ID, SEQUENCE_NUMBER)
# What a data file of such a table may store: null where the value follows from the file's metadata.
STORED = tuple(Field(f.id, f.name, f.type.with_nullable(True)) for f in TRACKED)
_STORED = dict(zip((f.id for f in TRACKED), STORED))


def as_stored(fields: Sequence[Field]) -> list[Field]:
    """The same columns, with the tracked ones as a file may hold them: nullable."""
    return [_STORED.get(f.id, f) for f in fields]


def columns(
    file: DataFile, start: int, count: int, row_ids: pa.Array | None = None, sequences: pa.Array | None = None
) -> tuple[pa.Array, pa.Array]:
    """(`_ROW_ID`, `_SEQUENCE_NUMBER`) of `count` rows from position `start` of a file, given what the file stores."""
    return _row_ids(file, start, count, row_ids), _sequences(file, count, sequences)


def fill(batch: pa.RecordBatch, file: DataFile, start: int) -> pa.RecordBatch:
    """The rows of a file from position `start`, with no null in the tracked columns that the batch has."""
    import pyarrow as pa

    for f in TRACKED:
        at = batch.schema.get_field_index(f.name)
        if at < 0:
            continue
        stored = batch.column(at)
        made = _row_ids(file, start, len(stored), stored) if f is ROW_ID else _sequences(file, len(stored), stored)
        batch = batch.set_column(at, pa.field(f.name, pa.int64(), False), made)
    return batch


def _row_ids(file: DataFile, start: int, count: int, stored: pa.Array | None) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if stored is not None and stored.null_count == 0:
        return stored
    if file.first_row_id is None:
        raise Corrupt(
            f"{file.file_name} has no first row id, and rows without one of their own",
            hint="the table tracks rows, but this file was committed by a writer that does not",
        )
    made = pa.array(np.arange(start, start + count, dtype=np.int64) + file.first_row_id)
    return made if stored is None else pc.coalesce(stored, made)


def _sequences(file: DataFile, count: int, stored: pa.Array | None) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if stored is None:
        return pa.array(np.full(count, file.max_sequence, np.int64))
    return stored if stored.null_count == 0 else pc.fill_null(stored, pa.scalar(file.max_sequence, pa.int64()))
