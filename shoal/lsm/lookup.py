# SPDX-License-Identifier: Apache-2.0
"""The rows of sorted data files by key: decoded once, kept on local disk, asked for many keys at once.

A compaction that makes a changelog asks the files above its output level for the old rows of its keys, at every
checkpoint, and those files seldom change. So each is laid down uncompressed in a file without a name that is mapped
into memory, and the words of its keys in another one: a question halves its way through these, touching only the pages
of the keys it is about. Agrees with: LookupLevels, LookupFile (2.0.0), which keep sorted stores of their own.
Invariant: rows keep their position in the data file; nothing stays behind on disk when the process ends; what is kept
stays below `max_bytes`, the files least recently asked go first.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from shoal.errors import StorageFailed
from shoal.format.hashing import row_hashes
from shoal.format.types import DataType
from shoal.lsm.keys import Array, KeyShape, column_words, integers, less, rows_of
from shoal.lsm.merge import comparable
from shoal.lsm.picking import picked

if TYPE_CHECKING:
    import pyarrow as pa

_Key = tuple[Any, ...]


class Probes:
    """Keys that are looked for: ascending, each once."""

    def __init__(self, keys: pa.RecordBatch, types: Sequence[DataType]) -> None:
        self.keys = keys
        self.types = types
        self._hashes: Array | None = None
        self._words: dict[KeyShape, tuple[list[Array], Array | None]] = {}

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def at(self, i: int) -> _Key:
        return _key_at(self.keys, i)

    def before(self, key: _Key, start: int) -> int:
        """The first place from `start` on whose key is not less."""
        low, high = start, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.at(middle) < key else (low, middle)
        return low

    def upto(self, key: _Key, start: int) -> int:
        """The first place from `start` on whose key is greater."""
        low, high = start, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.at(middle) <= key else (low, middle)
        return low

    @property
    def hashes(self) -> Array:
        if self._hashes is None:
            self._hashes = row_hashes(self.keys.columns, self.types)
        return self._hashes

    def words(self, shape: KeyShape) -> tuple[list[Array], Array | None]:
        """The keys as words of this shape, and which of them it can hold; None when all."""
        found = self._words.get(shape)
        if found is None:
            found = self._words[shape] = shape.words(self.keys.columns)
        return found


def _key_at(keys: pa.RecordBatch, i: int) -> _Key:
    return tuple(comparable(c, i) for c in keys.columns)


class _Segment:
    """A stretch of a file's rows, and the way from a key to its row.

    `words` are those of its keys, ascending. Without them (long or unordered keys) a key is found by its hash.
    """

    def __init__(self, rows: pa.RecordBatch, keys: Sequence[str], start: int, words: _Words | None) -> None:
        self.rows = rows
        self.start = start
        self._keys = rows.select(list(keys))
        self.least = _key_at(self._keys, 0)
        self._words = words
        self._index: tuple[Array, Array] | None = None

    def find(self, probes: Probes, low: int, high: int) -> tuple[Array, Array]:
        """(places of the keys from `low` to `high` that are here, their rows in this stretch)."""
        here = integers(self._keys.column(0)) if self._keys.num_columns == 1 else None
        if here is not None:
            wanted = integers(probes.keys.column(0).slice(low, high - low))
            assert wanted is not None
            at = np.searchsorted(here, wanted)
            at[at == len(here)] = 0
            hit = np.flatnonzero(here[at] == wanted)
            return hit + low, at[hit]
        if self._words is None:
            return self._by_hash(probes, low, high)
        words, fits = probes.words(self._words.shape)
        mine, asked = self._words.words, [w[low:high] for w in words]
        row, there = rows_of(mine, asked)
        hit = np.flatnonzero(there if fits is None else there & fits[low:high])
        return hit + low, row[hit]

    def _by_hash(self, probes: Probes, low: int, high: int) -> tuple[Array, Array]:
        if self._index is None:
            hashes = row_hashes(self._keys.columns, probes.types)
            order = np.argsort(hashes, kind="stable")
            self._index = hashes[order], order
        hashes, order = self._index
        wanted = probes.hashes[low:high]
        first, last = np.searchsorted(hashes, wanted), np.searchsorted(hashes, wanted, "right")
        counts = last - first
        probe = np.repeat(np.arange(len(wanted)), counts)
        within = np.arange(len(probe)) - np.repeat(np.cumsum(counts) - counts, counts)
        row = order[first[probe] + within]
        same = np.ones(len(row), bool)
        for mine, theirs in zip(self._keys.columns, probes.keys.columns):
            same &= _equal_keys(mine, row, theirs, probe + low)
        return probe[same] + low, row[same]


def _equal_keys(a: pa.Array, left: Array, b: pa.Array, right: Array) -> Array:
    """Pairwise equality as the order of keys has it."""
    import pyarrow as pa

    n = len(left)
    both = pa.concat_arrays([picked(a, left), picked(b, right)])
    same = np.ones(n, bool)
    for w in column_words(both):
        same &= w[:n] == w[n:]
    return same


@dataclass(frozen=True, slots=True)
class _Words:
    """The keys of a stretch as words, each ascending in the order of all of them."""

    shape: KeyShape
    words: list[Array]


class _WordFile:
    """Words of the keys of one stretch after the other, in a file without a name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stretches: list[tuple[KeyShape, int, int] | None] = []

    def add(self, keys: pa.RecordBatch) -> None:
        """Nothing is kept of whole numbers, which are searched where they lie, nor of what words cannot find."""
        shape = None
        if keys.num_columns > 1 or integers(keys.column(0)) is None:
            shape = KeyShape.of(keys.columns)
        words = [] if shape is None else [w for c in keys.columns for w in column_words(c)]
        if shape is None or not less([w[:-1] for w in words], [w[1:] for w in words]).all():
            self._stretches.append(None)
            return
        for w in words:
            self._file.write(np.ascontiguousarray(w).data)
        self._stretches.append((shape, len(words), keys.num_rows))

    def mapped(self) -> tuple[int, list[_Words | None]]:
        """Bytes of the file, and what it holds of each stretch."""
        self._file.flush()
        size = self._file.tell()
        data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        out: list[_Words | None] = []
        at = 0
        for stretch in self._stretches:
            if stretch is None:
                out.append(None)
                continue
            shape, count, rows = stretch
            table = np.frombuffer(data, np.uint64, count * rows, at).reshape(count, rows)
            at += table.nbytes
            out.append(_Words(shape, list(table)))
        return size, out


class LookupFile:
    """The rows of one data file on local disk."""

    def __init__(self, batches: Iterator[pa.RecordBatch], keys: Sequence[str], folder: str | None = None) -> None:
        import pyarrow as pa
        import pyarrow.ipc as ipc

        file = tempfile.TemporaryFile(prefix="shoal-lookup-", dir=folder)  # noqa: SIM115 - the mapping outlives it
        beside = tempfile.TemporaryFile(prefix="shoal-lookup-keys-", dir=folder)  # noqa: SIM115 - likewise
        words = _WordFile(beside)
        writer: Any = None
        try:
            for batch in batches:
                if writer is None:
                    writer = ipc.new_file(pa.PythonFile(file, "w"), batch.schema)
                if batch.num_rows:
                    writer.write_batch(batch)
                    words.add(batch.select(list(keys)))
            if writer is not None:
                writer.close()
            file.flush()
            size, stretches = words.mapped()
            self.bytes: int = file.tell() + size
            self.columns: tuple[str, ...] = ()
            self._segments: list[_Segment] = []
            if writer is not None and file.tell():
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                reader = ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
                self.columns = tuple(reader.schema.names)
                start = 0
                for i in range(reader.num_record_batches):
                    rows = reader.get_batch(i)
                    self._segments.append(_Segment(rows, keys, start, stretches[i]))
                    start += rows.num_rows
        except OSError as err:
            raise StorageFailed(
                f"cannot keep old rows in {folder or tempfile.gettempdir()}: {err}",
                hint="lookups need room there; set TMPDIR to a larger disk",
            ) from err
        finally:
            file.close()
            beside.close()

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows as they lie, `rows` at most at a time; nothing is copied."""
        for s in self._segments:
            for at in range(0, s.rows.num_rows, rows):
                yield s.rows.slice(at, rows)

    def find(self, probes: Probes, low: int, high: int) -> Hits:
        """Where the keys from `low` to `high` are in the file."""
        parts: list[tuple[_Segment, Array, Array]] = []
        at = low
        for s, after in zip(self._segments, [*self._segments[1:], None]):
            end = high if after is None else min(high, probes.before(after.least, at))
            if end > at:
                places, rows = s.find(probes, at, end)
                if len(places):
                    parts.append((s, places, rows))
            at = end
        return Hits(parts)


@dataclass(frozen=True, slots=True)
class Hits:
    """Keys found in one file."""

    parts: list[tuple[_Segment, Array, Array]]

    @property
    def probes(self) -> Array:
        """Places of the keys that were found, ascending."""
        return np.concatenate([p for _, p, _ in self.parts]) if self.parts else np.zeros(0, np.int64)

    @property
    def positions(self) -> Array:
        """Their rows in the data file."""
        found = [rows + s.start for s, _, rows in self.parts]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def rows(self) -> list[pa.RecordBatch]:
        """The rows themselves."""
        import pyarrow as pa

        out = []
        for s, _, rows in self.parts:
            index = pa.array(rows)
            columns = [picked(c, rows, index) for c in s.rows.columns]
            out.append(pa.RecordBatch.from_arrays(columns, schema=s.rows.schema))
        return out

    def only(self, keep: Array) -> Hits:
        """The hits that a mask over `probes` keeps."""
        out, at = [], 0
        for s, places, rows in self.parts:
            mask = keep[at : at + len(rows)]
            at += len(rows)
            if mask.any():
                out.append((s, places[mask], rows[mask]))
        return Hits(out)


class OnDisk(Protocol):
    @property
    def bytes(self) -> int: ...


F = TypeVar("F", bound=OnDisk)


class LookupFiles(Generic[F]):
    """Files that were asked lately, by their data files' names. Used from several threads; a file is made once."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._files: OrderedDict[str, F] = OrderedDict()
        self._lock = threading.Lock()

    def there(self, name: str) -> F | None:
        """The file, where it has been made."""
        with self._lock:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
            return found

    def get(self, name: str, make: Callable[[], F]) -> F:
        found = self.there(name)
        if found is not None:
            return found
        made = make()
        with self._lock:
            if name not in self._files:
                self._files[name] = made
                self._bytes += made.bytes
                while self._max is not None and self._bytes > self._max and len(self._files) > 1:
                    self._bytes -= self._files.popitem(last=False)[1].bytes
        return made

    def drop(self, names: Sequence[str]) -> None:
        """Forget files that no longer belong to a bucket."""
        with self._lock:
            for name in names:
                gone = self._files.pop(name, None)
                if gone is not None:
                    self._bytes -= gone.bytes
