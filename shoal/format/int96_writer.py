# SPDX-License-Identifier: Apache-2.0
"""INT96 timestamps written to Parquet, exactly: the nanoseconds of a day and the Julian day.

pyarrow makes INT96 from 64-bit nanoseconds only, which end in 2262, and then of every timestamp of the file. So such
columns are written as what they also are, twelve plain bytes, and the footer is changed before it reaches the file: it
calls them INT96, as Java's does. Agrees with: ParquetRowDataWriter.TimestampInt96Writer (2.0.0), except that the
nanoseconds of a day are never negative. Invariant: no value wraps around; other columns keep their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format import thrift
from shoal.format.instants import Array, parts
from shoal.format.int96 import (
    COLUMNS,
    EPOCH,
    FIXED,
    INT96,
    MAGIC,
    META,
    META_TYPE,
    ROW_GROUPS,
    SCHEMA,
    SECONDS_OF_DAY,
    TYPE,
    TYPE_LENGTH,
    WIDTH,
)  # fmt: skip
from shoal.format.shape import map_parts
from shoal.format.types import DataType, Field

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.store.base import Sink


def is_int96(t: DataType) -> bool:
    """Whether Paimon stores this type as INT96: a timestamp of more than six digits."""
    return t.is_timestamp and (t.precision or 0) > 6


def has_int96(t: DataType) -> bool:
    """The same for the leaves of a type."""
    inner = (t.element, t.key, t.value, *(f.type for f in t.fields))
    return is_int96(t) or any(has_int96(i) for i in inner if i is not None)


def encode(a: pa.Array) -> pa.Array:
    """Timestamps, or decimal seconds, as the twelve bytes of INT96."""
    import pyarrow as pa

    seconds, nanos = parts(a)
    day = seconds // SECONDS_OF_DAY
    of_day = (seconds - day * SECONDS_OF_DAY) * 1_000_000_000 + nanos
    out: Array = np.empty((len(a), WIDTH), np.uint8)
    out[:, :8] = of_day.astype("<i8").view(np.uint8).reshape(-1, 8)
    out[:, 8:] = (day + EPOCH).astype("<i4").view(np.uint8).reshape(-1, 4)
    valid = a.is_valid().buffers()[1] if a.null_count else None
    return pa.Array.from_buffers(pa.binary(WIDTH), len(a), [valid, pa.py_buffer(out)])


def encode_leaves(a: pa.Array, t: DataType, target: pa.DataType) -> pa.Array:
    """A column of type `t` with such leaves as `encode` makes them; `target` is its Arrow type in the file."""
    import pyarrow as pa

    if is_int96(t):
        return encode(a)
    if not has_int96(t):
        return a if a.type == target else a.cast(target)
    nulls = a.is_null() if a.null_count else None
    if t.root == "ROW":
        members = [encode_leaves(a.field(i), f.type, target.field(i).type) for i, f in enumerate(t.fields)]
        return pa.StructArray.from_arrays(members, fields=list(target), mask=nulls)
    raw = a.offsets.to_numpy()
    offsets, start, count = pa.array(raw - raw[0]), int(raw[0]), int(raw[-1] - raw[0])
    if t.root == "ARRAY":
        assert t.element is not None
        values = encode_leaves(a.values.slice(start, count), t.element, target.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=nulls)
    key, value = map_parts(t)
    keys = encode_leaves(a.keys.slice(start, count), key, target.key_type)
    items = encode_leaves(a.items.slice(start, count), value, target.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=nulls)


def leaves(fields: Sequence[Field]) -> dict[str, DataType]:
    """The leaves of these columns by their Parquet paths."""
    return {path: t for f in fields for path, t in _leaves(f.name, f.type)}


def _leaves(at: str, t: DataType) -> Iterator[tuple[str, DataType]]:
    if t.root == "ROW":
        for f in t.fields:
            yield from _leaves(f"{at}.{f.name}", f.type)
    elif t.root == "ARRAY":
        assert t.element is not None
        yield from _leaves(f"{at}.list.element", t.element)
    elif t.root in ("MAP", "MULTISET"):
        for name, inner in zip(("key", "value"), map_parts(t)):
            yield from _leaves(f"{at}.key_value.{name}", inner)
    else:
        yield at, t


class Int96Sink:
    """What pyarrow writes to: everything passes on to `sink`, but the footer, held back from `hold_footer` on.

    `finish` writes it with the columns of `paths` called INT96.
    """

    closed = False

    def __init__(self, sink: Sink | pa.NativeFile, paths: Collection[str]) -> None:
        self._sink = sink
        self._paths = paths
        self._held: bytearray | None = None
        self._at = 0

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        n = memoryview(data).nbytes
        if self._held is None:
            self._sink.write(data)
        else:
            self._held += data
        self._at += n
        return n

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass  # the sink belongs to who made it

    def hold_footer(self) -> None:
        self._held = bytearray()

    def finish(self) -> None:
        """Write the end of the file."""
        assert self._held is not None
        held = bytes(self._held)
        length = int.from_bytes(held[-8:-4], "little")
        raw = held[-8 - length : -8]
        footer, _ = thrift.read_struct(raw, 0)
        changed = thrift.write_struct(_declared_int96(footer, self._paths))
        self._sink.write(held[: -8 - length] + changed + len(changed).to_bytes(4, "little") + MAGIC)
        self._at += len(changed) - length


def _declared_int96(footer: thrift.Struct, paths: Collection[str]) -> thrift.Struct:
    for element in footer[SCHEMA].value.items:
        if element.get(TYPE) == thrift.i32(FIXED) and element.get(TYPE_LENGTH) == thrift.i32(WIDTH):
            element[TYPE] = thrift.i32(INT96)
            element.pop(TYPE_LENGTH)
    for group in footer[ROW_GROUPS].value.items:
        for chunk in group[COLUMNS].value.items:
            meta = chunk[META].value
            if b".".join(meta[3].value.items).decode() in paths:
                meta[META_TYPE] = thrift.i32(INT96)
    return footer
