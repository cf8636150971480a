# SPDX-License-Identifier: Apache-2.0
"""Blob files: one column of large values, each framed and found through an index of lengths at the end of the file.

Agrees with: BlobFormatReader, BlobFormatWriter, BlobFileMeta, BlobDescriptor, ArrayBlobElementSerializer,
MapBlobElementSerializer (2.0.0). Invariant: only the values that are asked for are read; a record whose frame, length
or checksum is wrong is `Corrupt`, never a wrong value. Layout of a record: magic, value, length of all of it (int64),
CRC-32 of all that; little-endian throughout.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt, NotFound, Unsupported
from shoal.format.types import DataType, to_arrow
from shoal.format.varint import varint

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from shoal.store.base import Store

    Longs = npt.NDArray[np.int64]

# A length in the index that stands for no value: null, or "look in an older file".
NULL, PLACEHOLDER = -1, -2
FRAME = 16
_HEAD, _TAIL = 4, 12
MAGIC = struct.pack("<i", 1481511375)
_ARRAY_MAGIC, _MAP_MAGIC = 1094861634, 0x4D424342
_VERSION = 1
_FOOTER = 5
# Two records this close are read in one go.
_GAP = 1 << 16
_MOST = (1 << 31) - 1


def is_blob_file(name: str) -> bool:
    return name.endswith(".blob")


# ---- the index -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """Where the records of a blob file are: `lengths` with frames, NULL or PLACEHOLDER; `starts` of the frames."""

    lengths: Longs
    starts: Longs

    def __len__(self) -> int:
        return len(self.lengths)


def read_index(store: Store, path: str) -> Index:
    """The index of a blob file; its values are not read."""
    try:
        size = store.size(path)
    except NotFound as err:
        raise Corrupt(
            f"{path} is missing although a snapshot refers to it",
            hint="it was deleted by hand or by another tool's expiry; read a newer snapshot, or leave the column out",
        ) from err
    footer = store.read_range(path, max(0, size - _FOOTER), _FOOTER)
    if len(footer) < _FOOTER:
        raise Corrupt(f"{path}: a blob file of {size} bytes has no footer", hint="it is cut off")
    length, version = struct.unpack("<ib", footer)
    if version != _VERSION:
        raise Unsupported(f"{path}: blob file version {version}", hint=f"version {_VERSION} is read")
    if not 0 <= length <= size - _FOOTER:
        raise Corrupt(f"{path}: an index of {length} bytes in a file of {size}", hint="it is damaged")
    lengths = decode_lengths(store.read_range(path, size - _FOOTER - length, length), path)
    stored = np.maximum(lengths, 0)
    if ((lengths < FRAME) & (lengths != NULL) & (lengths != PLACEHOLDER)).any():
        raise Corrupt(f"{path}: the index holds an impossible length", hint="it is damaged")
    if int(stored.sum()) != size - _FOOTER - length:
        raise Corrupt(f"{path}: the index counts other bytes than the file holds", hint="it is damaged")
    starts = np.cumsum(stored) - stored
    return Index(lengths, starts)


def decode_lengths(data: bytes, path: str) -> Longs:
    """Lengths from their differences, as zigzag varints."""
    if not data:
        return np.zeros(0, np.int64)
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise Corrupt(f"{path}: an index of lengths ends inside a number", hint="it is damaged")
    first = np.append(0, ends[:-1] + 1)
    place = np.arange(len(raw)) - np.repeat(first, ends - first + 1)
    if place.max() > 9:
        raise Corrupt(f"{path}: an index holds a number of more than 64 bits", hint="it is damaged")
    parts = (raw & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    zigzag = np.add.reduceat(parts, first)
    deltas = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)
    return np.cumsum(deltas)


def encode_lengths(lengths: Sequence[int]) -> bytes:
    return b"".join(varint(b - a) for a, b in zip((0, *lengths), lengths))


# ---- values ----------------------------------------------------------------------------------------------


def read_records(store: Store, path: str, starts: Longs, lengths: Longs) -> Iterator[bytes | None]:
    """The payloads of records in ascending places of one file, None where the length says there is none.

    Neighbours come in one read of at most about 64 MB; a payload is a value, so there is a loop over values.
    """
    at = 0
    total = len(starts)
    real = np.flatnonzero(lengths >= 0)
    while at < total:
        if lengths[at] < 0:
            yield None
            at += 1
            continue
        stop = at
        begin = end = int(starts[at])
        for i in real[np.searchsorted(real, at) :].tolist():
            if i > at and (starts[i] - end > _GAP or end - begin > 64 << 20):
                break
            end, stop = int(starts[i] + lengths[i]), i + 1
        data = memoryview(store.read_range(path, begin, end - begin))
        for i in range(at, stop):
            yield None if lengths[i] < 0 else _payload(data, int(starts[i]) - begin, int(lengths[i]), path)
        at = stop


def _payload(data: memoryview, start: int, length: int, path: str) -> bytes:
    record = data[start : start + length]
    good = len(record) == length and record[:_HEAD] == MAGIC
    if good:
        stated, crc = struct.unpack("<qI", record[-_TAIL:])
        found = zlib.crc32(record[:-_TAIL])
        # Java's checksum covers the length too, pypaimon's does not
        good = stated == length and crc in (found, zlib.crc32(record[-_TAIL:-4], found))
    if not good:
        raise Corrupt(f"{path}: a blob record is damaged (magic, length or checksum)", hint="restore the file")
    return bytes(record[_HEAD:-_TAIL])


def value_column(
    payloads: Sequence[bytes | None], t: DataType, path: str, describe: Sequence[tuple[str, int]] | None = None
) -> pa.Array:
    """Values of a BLOB, ARRAY<BLOB> or MAP<X, BLOB> column from the payloads of its records.

    `describe` gives (URI of the file, place of the payload in it) for each: blobs come as descriptors, not bytes.
    """
    import pyarrow as pa

    values: list[Any] = []
    for i, payload in enumerate(payloads):
        if payload is None:
            values.append(None)
        elif t.root == "BLOB":
            values.append(payload if describe is None else Descriptor(*describe[i], len(payload)).encode())
        else:
            where = None if describe is None else describe[i]
            values.append(_array(payload, path, where) if t.root == "ARRAY" else _map(payload, t, path, where))
    try:
        return pa.array(values, to_arrow(t))
    except pa.ArrowException as err:
        raise Unsupported(f"{path}: blobs too large for one batch ({err})", hint=_DESCRIPTORS) from err


_DESCRIPTORS = "set 'blob-as-descriptor' = 'true' to read where blobs are instead of their bytes"


def check_size(length: int, path: str) -> None:
    if length > _MOST:
        raise Unsupported(f"{path}: a blob of {length} bytes does not fit into memory as one value", hint=_DESCRIPTORS)


def _array(payload: bytes, path: str, where: tuple[str, int] | None) -> list[bytes | None]:
    count = _count(payload, _ARRAY_MAGIC, 4, "ARRAY<BLOB>", path)
    (size,) = struct.unpack("<i", payload[-4:])
    return _elements(payload, 9, len(payload) - 4 - size, len(payload) - 4, count, path, where)


def _map(payload: bytes, t: DataType, path: str, where: tuple[str, int] | None) -> list[tuple[Any, bytes | None]]:
    assert t.key is not None
    count = _count(payload, _MAP_MAGIC, 8, "MAP<X, BLOB>", path)
    keys_size, values_size = struct.unpack("<ii", payload[-8:])
    values_at = len(payload) - 8 - values_size
    keys_at = values_at - keys_size
    if not 9 <= keys_at <= values_at <= len(payload) - 8:
        raise _bad(path, "MAP<X, BLOB>")
    lengths = decode_lengths(payload[keys_at:values_at], path)
    data = int(lengths[lengths >= 0].sum())
    raw = _elements(payload, 9, keys_at, values_at, count, path, None, whole=False)
    keys = [None if k is None else _key(k, t.key, path) for k in raw]
    values = _elements(payload, 9 + data, values_at, len(payload) - 8, count, path, where, data_end=keys_at)
    if None in keys:
        raise Unsupported(f"{path}: a MAP<X, BLOB> with a null key", hint="Arrow maps have no null keys")
    last = dict(zip(keys, values))  # of equal keys the last one counts, at the place of the first
    return list(last.items())


def _count(payload: bytes, magic: int, tail: int, what: str, path: str) -> int:
    if len(payload) < 9 + tail:
        raise _bad(path, what)
    found, version, count = struct.unpack("<ibi", payload[:9])
    if found != magic or count < 0:
        raise _bad(path, what)
    if version != _VERSION:
        raise Unsupported(f"{path}: {what} version {version}", hint=f"version {_VERSION} is read")
    return int(count)


def _elements(
    payload: bytes, start: int, index: int, index_end: int, count: int, path: str, where: tuple[str, int] | None,
    *, whole: bool = True, data_end: int | None = None,
) -> list[bytes | None]:  # fmt: skip
    """Elements laid end to end from `start`, their lengths in the index; -1 is null."""
    if not start <= index <= index_end:
        raise _bad(path, "blob collection")
    lengths = decode_lengths(payload[index:index_end], path)
    end = index if data_end is None else data_end
    used = int(lengths[lengths >= 0].sum())
    if len(lengths) != count or (lengths < NULL).any() or start + used > end or (whole and start + used != end):
        raise _bad(path, "blob collection")
    out: list[bytes | None] = []
    for n in lengths.tolist():
        if n < 0:
            out.append(None)
            continue
        out.append(payload[start : start + n] if where is None else Descriptor(where[0], where[1] + start, n).encode())
        start += n
    return out


def _key(raw: bytes, t: DataType, path: str) -> Any:
    if t.root in ("CHAR", "VARCHAR"):
        return raw.decode()
    width = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8}.get(t.root)
    if width != len(raw):
        raise _bad(path, f"key of a MAP<{t}, BLOB>")
    return int.from_bytes(raw, "little", signed=True)


def _bad(path: str, what: str) -> Corrupt:
    return Corrupt(f"{path}: a {what} value is damaged", hint="restore the file")


# ---- writing ---------------------------------------------------------------------------------------------


def record_end(length: int, checksum: int) -> bytes:
    """What follows a value of `length` bytes; `checksum` is the CRC-32 of magic and value."""
    size = struct.pack("<q", FRAME + length)
    return size + struct.pack("<I", zlib.crc32(size, checksum))


def file_end(lengths: Sequence[int]) -> bytes:
    """What ends a file of records with these lengths: its index."""
    index = encode_lengths(lengths)
    return index + struct.pack("<ib", len(index), _VERSION)


def encode_file(values: Sequence[bytes | int | None]) -> bytes:
    """A blob file of BLOB values; None is null, PLACEHOLDER stands for "as in the older file"."""
    out, lengths = bytearray(), []
    for v in values:
        if v is None or isinstance(v, int):
            lengths.append(NULL if v is None else PLACEHOLDER)
            continue
        lengths.append(FRAME + len(v))
        out += MAGIC + v + record_end(len(v), zlib.crc32(MAGIC + v))
    return bytes(out) + file_end(lengths)


# ---- descriptors -----------------------------------------------------------------------------------------

_DESCRIPTOR_MAGIC, _VIEW_MAGIC = 0x424C4F4244455343, 0x424C4F4256494557


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where a blob is: a file by its URI, a place in it, a length (-1: to the end of the file)."""

    uri: str
    offset: int
    length: int

    def encode(self) -> bytes:
        uri = self.uri.encode()
        return struct.pack("<bqi", 2, _DESCRIPTOR_MAGIC, len(uri)) + uri + struct.pack("<qq", self.offset, self.length)


def is_descriptor(value: bytes) -> bool:
    """Whether the bytes of a BLOB column are a descriptor (Java decides the same way)."""
    return len(value) >= 9 and value[0] <= 2 and struct.unpack("<q", value[1:9])[0] == _DESCRIPTOR_MAGIC


def is_view(value: bytes) -> bool:
    """Whether the bytes are a blob view: a reference to a row of another table."""
    return len(value) >= 9 and value[0] == 1 and struct.unpack("<q", value[1:9])[0] == _VIEW_MAGIC


def decode_descriptor(value: bytes, path: str) -> Descriptor:
    """A descriptor of version 1 (without magic) or 2."""
    try:
        version = value[0]
        at = 9 if version > 1 else 1
        if version > 2:
            raise Unsupported(f"{path}: blob descriptor version {version}", hint="versions 1 and 2 are read")
        if version > 1 and not is_descriptor(value):
            raise ValueError
        (n,) = struct.unpack_from("<i", value, at)
        if n < 0:
            raise ValueError
        uri = value[at + 4 : at + 4 + n].decode()
        offset, length = struct.unpack_from("<qq", value, at + 4 + n)
    except (IndexError, struct.error, ValueError) as err:
        raise Corrupt(f"{path}: a blob descriptor is damaged", hint="the value is no descriptor, or cut off") from err
    return Descriptor(uri, offset, length)


def resolve(column: pa.Array, fetch: Callable[[Descriptor], bytes], path: str, *, views: bool = True) -> pa.Array:
    """A BLOB column that lies inline in a data file, with descriptors replaced by the bytes they point to.

    One fetch a value: each may lie in another file of another store. References to rows of other tables stay as they
    are with `views` False.
    """
    import pyarrow as pa

    values = column.to_pylist()
    if not any(v is not None and (is_descriptor(v) or is_view(v)) for v in values):
        return column
    out = []
    for v in values:
        if views and v is not None and is_view(v):
            raise Unsupported(
                f"{path}: a blob view points to a row of another table",
                hint="set 'blob-view.resolve.enabled' = 'false' to read the references themselves",
            )
        out.append(fetch(decode_descriptor(v, path)) if v is not None and is_descriptor(v) else v)
    return pa.array(out, column.type)
