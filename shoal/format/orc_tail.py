# SPDX-License-Identifier: Apache-2.0
"""Where things lie in an ORC file: its tail and the footers of its stripes.

pyarrow reads ORC well but for timestamps, which it makes 64-bit nanoseconds (out of range is an error, or wraps
silently in older versions). So it is given another tail, in memory, in which they are what their first stream is:
plain LONG columns, the seconds. The messages are protobuf, read here by a few lines. Invariant: lengths and counts are
checked against the file before anything is allocated for them; damage is `Corrupt` that names the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import Corrupt, Unsupported
from shoal.format.codecs import unpacked
from shoal.format.varint import read_unsigned, unsigned

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"ORC"
# Type kinds.
LONG, LIST, MAP, STRUCT, TIMESTAMP, TIMESTAMP_INSTANT = 4, 10, 11, 12, 9, 18
# The kind of the stream that holds nanoseconds.
SECONDARY = 5
_CODECS = {1: "deflate", 2: "snappy", 4: "lz4", 5: "zstd"}
# A chunk's header has 23 bits for its length.
_MOST_CHUNK = 1 << 23
_MOST_FOOTER = 1 << 26
_PROLEPTIC = 2
_JAVA = 0


@dataclass(frozen=True, slots=True)
class Type:
    """One column of the file's type tree: its kind, the ids below it, and their names when it is a struct."""

    kind: int
    children: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe lies: offset, and the bytes of its indexes, its data and its footer."""

    offset: int
    index: int
    data: int
    footer: int
    rows: int


@dataclass(frozen=True, slots=True)
class StripeFooter:
    """The streams of a stripe by (column, kind) as (offset, length); by column the encoding and the size of its
    dictionary; the writer's zone."""

    streams: dict[tuple[int, int], tuple[int, int]]
    encodings: tuple[tuple[int, int], ...]
    zone: str


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of the file says. `hybrid`: times before 1582-10-15 are in the Julian calendar."""

    types: tuple[Type, ...]
    stripes: tuple[Stripe, ...]
    rows: int
    codec: str | None
    chunk: int
    hybrid: bool
    plain_at: int
    plain: bytes
    """From byte `plain_at` the file may be read as if this stood there: the tail with LONG for timestamps."""


def _fields(b: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protobuf message: ints for varints, bytes for the rest."""
    p, end = 0, len(b)
    while p < end:
        key, p = read_unsigned(b, p)
        kind = key & 7
        if kind == 0:
            value, p = read_unsigned(b, p)
            yield key >> 3, value
            continue
        if kind == 2:
            n, p = read_unsigned(b, p)
        elif kind in (1, 5):
            n = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if p + n > end:
            raise ValueError("a field is longer than its message")
        yield key >> 3, b[p : p + n]
        p += n


def _numbers(value: Any) -> Iterator[int]:
    """The numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    p = 0
    while p < len(value):
        n, p = read_unsigned(value, p)
        yield n


def _message(b: bytes) -> dict[int, Any]:
    """The last value of each field."""
    return dict(_fields(b))


def read_tail(file: pa.NativeFile, path: str) -> Tail:
    """The tail of an open ORC file."""
    size = file.size()
    try:
        if size < len(MAGIC) + 2:
            raise ValueError("it is too short")
        last = read_at(file, max(0, size - 256), min(size, 256), path)
        length = last[-1]
        if length + 1 > len(last):
            raise ValueError("its postscript is longer than the file")
        post = _message(last[-1 - length : -1])
        if post.get(8000) != MAGIC:
            raise ValueError("it does not end as ORC does")
        kind, chunk, footer = post.get(2, 0), post.get(3, 1 << 18), post[1]
        if kind not in (0, *_CODECS):
            raise Unsupported(f"{path}: ORC compression kind {kind} is not known", hint="it may be LZO or Brotli")
        if chunk > _MOST_CHUNK or footer > min(size - length - 1, _MOST_FOOTER):
            raise ValueError("its postscript claims more than the file has")
        codec = _CODECS.get(kind)
        raw = chunks(read_at(file, size - 1 - length - footer, footer, path), codec, chunk, _MOST_FOOTER)
        plain = _plain_tail(raw, last[-1 - length : -1], codec, chunk)
        return _tail(raw, codec, chunk, size, size - 1 - length - footer, plain)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OSError) as err:
        raise damaged(path, err) from err


def _plain_tail(footer: bytes, post: bytes, codec: str | None, chunk: int) -> bytes:
    """Footer, postscript and its length, timestamps declared as LONG, columns named by number, without statistics."""
    out = bytearray()
    top = True
    for number, value in _fields(footer):
        if number == 4:
            parts = [(n, LONG if n == 1 and v in (TIMESTAMP, TIMESTAMP_INSTANT) else v) for n, v in _fields(value)]
            if top:
                # pyarrow takes a dot in a name for a path
                names = map(str, range(len(parts)))
                parts = [(n, next(names).encode() if n == 3 else v) for n, v in parts]
                top = False
            out += _field(4, b"".join(_field(n, v) for n, v in parts))
        elif number != 7:
            out += _field(number, value)
    raw = bytes(out)
    if codec is not None:
        pieces = (raw[at : at + chunk] for at in range(0, len(raw), chunk))
        raw = b"".join((len(piece) << 1 | 1).to_bytes(3, "little") + piece for piece in pieces)
    script = b"".join(_field(n, len(raw) if n == 1 else v) for n, v in _fields(post))
    return raw + script + bytes([len(script)])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message of these fields, in their order."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return unsigned(number << 3) + unsigned(value)
    return unsigned(number << 3 | 2) + unsigned(len(value)) + bytes(value)


class PlainFile(io.RawIOBase):
    """An open file as a binary file object, its tail replaced by `Tail.plain`."""

    def __init__(self, file: pa.NativeFile, tail: Tail) -> None:
        self._file, self._start, self._tail = file, tail.plain_at, tail.plain
        self._size = tail.plain_at + len(tail.plain)
        self._at = 0
        self._held: list[tuple[int, bytes]] = []

    def hold(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Reads these (offset, length) at once, neighbours together, and keeps them until the next call.

        Streams are looked at before pyarrow reads them, and it asks for small pieces.
        """
        self._held = []
        joined: list[list[int]] = []
        for start, length in sorted(r for r in ranges if r[1]):
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], start + length)
            else:
                joined.append([start, start + length])
        for start, end in joined:
            self._file.seek(start)
            self._held.append((start, self._file.read(end - start)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        for start, raw in self._held:
            if start <= self._at and end <= start + len(raw):
                found = raw[self._at - start : end - start]
                self._at = end
                return found
        found = b""
        if self._at < self._start:
            self._file.seek(self._at)
            found = self._file.read(min(end, self._start) - self._at)
        if end > self._start:
            found += self._tail[max(0, self._at - self._start) : end - self._start]
        self._at += len(found)
        return found


def _tail(raw: bytes, codec: str | None, chunk: int, size: int, plain_at: int, plain: bytes) -> Tail:
    types, stripes = [], []
    rows = writer = calendar = 0
    for number, value in _fields(raw):
        if number == 3:
            m = _message(value)
            stripe = Stripe(m.get(1, 0), m.get(2, 0), m.get(3, 0), m.get(4, 0), m.get(5, 0))
            if stripe.offset + stripe.index + stripe.data + stripe.footer > size:
                raise ValueError("a stripe ends beyond the file")
            stripes.append(stripe)
        elif number == 4:
            types.append(_type(value))
        elif number == 6:
            rows = value
        elif number == 9:
            writer = value
        elif number == 11:
            calendar = value
    if sum(s.rows for s in stripes) != rows:
        raise ValueError("its stripes have other row counts than the file")
    if any(c <= i for i, t in enumerate(types) for c in t.children) or sorted(
        c for t in types for c in t.children
    ) != list(range(1, len(types))):
        raise ValueError("its types make no tree")
    return Tail(
        tuple(types), tuple(stripes), rows, codec, chunk, writer == _JAVA and calendar != _PROLEPTIC, plain_at, plain
    )


def _type(b: bytes) -> Type:
    kind = 0
    children: list[int] = []
    names: list[str] = []
    for number, value in _fields(b):
        if number == 1:
            kind = value
        elif number == 2:
            children += _numbers(value)
        elif number == 3:
            names.append(value.decode())
    return Type(kind, tuple(children), tuple(names))


def stripe_footer(file: PlainFile, stripe: Stripe, tail: Tail, path: str) -> StripeFooter:
    """The footer of one stripe."""
    try:
        at = stripe.offset + stripe.index + stripe.data
        raw = chunks(read_at(file, at, stripe.footer, path), tail.codec, tail.chunk, _MOST_FOOTER)
        streams, encodings, zone = {}, [], "UTC"
        start, end = stripe.offset, at
        for number, value in _fields(raw):
            if number == 1:
                m = _message(value)
                length = m.get(3, 0)
                streams[m.get(2, 0), m.get(1, 0)] = start, length
                start += length
            elif number == 2:
                m = _message(value)
                encodings.append((m.get(1, 0), m.get(2, 0)))
            elif number == 3:
                zone = value.decode()
        if start > end:
            raise ValueError("its streams are longer than the stripe")
        return StripeFooter(streams, tuple(encodings), zone)
    except (ValueError, IndexError, TypeError, AttributeError, OSError) as err:
        raise damaged(path, err) from err


def read_at(file: pa.NativeFile | PlainFile, start: int, length: int, path: str) -> bytes:
    """`length` bytes from `start`, all of them."""
    file.seek(start)
    found: bytes = file.read(length)
    if len(found) != length:
        raise Corrupt(f"{path}: the ORC file ends early, at byte {start + len(found)}", hint="it is cut off")
    return found


def most_bytes(file: PlainFile, at: tuple[int, int], tail: Tail, path: str) -> int:
    """The most bytes that the stream at (offset, length) can hold: its chunks' heads tell, without decompressing."""
    start, length = at
    if tail.codec is None:
        return length
    raw = read_at(file, start, length, path)
    p = total = 0
    while p < length:
        head = int.from_bytes(raw[p : p + 3], "little")
        total += head >> 1 if head & 1 else tail.chunk
        p += 3 + (head >> 1)
    return total


def chunks(raw: bytes, codec: str | None, chunk: int, limit: int) -> bytes:
    """A stream without its compression: chunks, each with three bytes of length and whether it is stored plainly."""
    import pyarrow as pa

    if codec is None:
        return raw
    out: list[bytes] = []
    p = total = 0
    while p < len(raw):
        head = int.from_bytes(raw[p : p + 3], "little")
        p += 3
        n = head >> 1
        if p + n > len(raw):
            raise ValueError("a chunk is longer than its stream")
        try:
            part = raw[p : p + n] if head & 1 else unpacked(codec, raw[p : p + n], chunk)
        except pa.ArrowException as err:
            raise ValueError(str(err)) from err
        out.append(part)
        total += len(part)
        if total > limit:
            raise ValueError(f"a stream decompresses to more than {limit} bytes")
        p += n
    return b"".join(out)


def damaged(path: str, err: BaseException) -> Corrupt:
    text = str(err).split("\n")[0][:200]
    return Corrupt(
        f"{path}: the ORC file cannot be read ({text})",
        hint="it is damaged or cut off; restore it or roll back to a snapshot without it",
    )
