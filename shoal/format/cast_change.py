# SPDX-License-Identifier: Apache-2.0
"""What every cast of a column needs: the two types, the name to complain about, and Arrow arrays as numpy and back.

Agrees with: CastExecutor (2.0.0). Invariant: a null stays a null, and what lies in the slot of a null is never parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest
from shoal.format.types import DataType, to_arrow

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Array = npt.NDArray[Any]

_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Change:
    """A column of a file that was written as `source` and is read as `target`.

    `zone` is where a TIMESTAMP_LTZ is local; Java takes the zone of its process.
    """

    source: DataType
    target: DataType
    column: str
    zone: str = "UTC"

    @property
    def arrow(self) -> pa.DataType:
        return to_arrow(self.target)

    def refuse(self, value: object, why: str = "") -> BadRequest:
        """The error for a value that has no counterpart in the new type; Java fails to read it too."""
        text = repr(value)
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
        return BadRequest(
            f"column '{self.column}': the value {text} of type {self.source} cannot be read as {self.target}"
            + (f": {why}" if why else ""),
            hint=f"files from before the type change hold it: read an older snapshot, or change the column back to "
            f"{self.source.with_nullable(True)}, correct the value and change the type again",
        )


Cast = Callable[["pa.Array", Change], "pa.Array"]


def nulls_of(a: pa.Array) -> Array | None:
    """Where `a` is null; None when it is nowhere."""
    mask: Array = a.is_null().to_numpy(zero_copy_only=False)
    return mask if a.null_count else None


def values_of(a: pa.Array) -> Array:
    """Numbers, booleans, dates and times of a column as numpy; 0 where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date32(a.type) or pa.types.is_time32(a.type):
        a = a.view(pa.int32())
    elif pa.types.is_timestamp(a.type):
        a = a.view(pa.int64())
    if a.null_count:
        a = pc.fill_null(a, False if pa.types.is_boolean(a.type) else 0)
    values: Array = a.to_numpy(zero_copy_only=False)
    return values


def array_of(values: Array, like: pa.Array, target: pa.DataType) -> pa.Array:
    """Numbers as a column of an Arrow type of the same width, null where `like` is."""
    import pyarrow as pa

    made = pa.array(values, mask=nulls_of(like))
    return made if made.type == target else made.view(target)


def words_of(a: pa.Array) -> Array:
    """The unscaled numbers of decimals as rows of 64-bit words, lowest first; anything where it is null."""
    count = a.type.byte_width // 8
    every: Array = np.frombuffer(a.buffers()[1] or b"", np.int64)
    return every[a.offset * count : (a.offset + len(a)) * count].reshape(-1, count)


def decimals_of(words: Array, like: pa.Array, target: pa.DataType) -> pa.Array:
    """The inverse of `words_of`, null where `like` is."""
    import pyarrow as pa

    nulls = nulls_of(like)
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    data = pa.py_buffer(np.ascontiguousarray(words, np.int64))
    return pa.Array.from_buffers(target, len(words), [valid, data])


def by_value(a: pa.Array, parse: Callable[[Any], Any], target: pa.DataType) -> pa.Array:
    """`parse` of each distinct value, for texts that Arrow cannot read as Java does."""
    import pyarrow as pa

    coded = a.dictionary_encode()
    # one by one, but each distinct value once
    made = [parse(v) for v in coded.dictionary.to_pylist()]
    return pa.array(made, target).take(coded.indices)
