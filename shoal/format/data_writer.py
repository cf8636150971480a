# SPDX-License-Identifier: Apache-2.0
"""What every writer of data files has in common, whatever its format, and how the files of a level are written.

Agrees with: FormatWriter, KeyValueFileWriterFactory.FileWriterContextFactory (2.0.0). Invariant: a writer is handed
batches whose columns are those of its fields, in their order; what `close` tells of a column holds for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.format.row import Value
from shoal.format.types import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.store.base import Sink


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a file's writer or footer knows of one column: stored values (None = no bound) and the null count."""

    low: Value
    high: Value
    nulls: int | None


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file: its rows, bytes, and bounds by column name; a column without any knowledge has none."""

    rows: int
    size: int
    bounds: dict[str, ColumnBounds]


class DataWriter(Protocol):
    """One open file of one format. Not for several threads."""

    @property
    def size(self) -> int:
        """About how many bytes the file would have if it were closed now."""
        ...

    def write(self, batch: pa.RecordBatch) -> None: ...

    def settle(self) -> None:
        """Write out what waits, so that `size` is no estimate any more."""
        ...

    def close(self) -> Written:
        """Finish the file; the sink stays open."""
        ...


def pieces(batch: pa.RecordBatch, most_bytes: int, waiting: int = 0) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about `most_bytes`, the first one less what is `waiting`.

    A merge hands on whole blocks. What is encoded at once must follow the memory, not them.
    """
    size, rows = batch.nbytes, batch.num_rows
    if size + waiting <= most_bytes:
        yield batch
        return
    each = -(-most_bytes * rows // size)
    first = min(each, -(-(most_bytes - waiting) * rows // size))
    yield batch.slice(0, first)
    for at in range(first, rows, each):
        yield batch.slice(at, each)


@dataclass(frozen=True, slots=True)
class FileForm:
    """How the files of one level, or changelog files, are written."""

    format: str
    prefix: str
    """First part of their names."""
    suffix: str
    """Last part of their names, with its dot."""
    fields: tuple[Field, ...]
    """Columns of the file."""
    thin: bool
    """Keys lie in the value columns only."""
    limits: Mapping[str, int | None]
    """By column, how long a bound may be (see `stats.mode_length`)."""
    open: Callable[[Sink | pa.NativeFile], DataWriter]
