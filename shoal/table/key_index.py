# SPDX-License-Identifier: Apache-2.0
"""Where every key of a table lives: 128-bit fingerprints of keys to one number each, in memory and, beyond it, on disk.

Sorted runs, the newest first: one in memory, others in files without a name that the operating system pages in. A batch
is looked up with sorted needles, so that a run is passed over once. A `KeyFile` is such a run for one data file.
Invariant: a key has the number that was put last; memory stays within `limit`, files are gone when the index is,
whatever ends the process.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shoal.budget import Budget
from shoal.errors import Corrupt, StorageFailed
from shoal.format.hashing import byte_buffers, padded_bytes
from shoal.lsm.keys import column_words

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]
U64 = np.uint64

ABSENT = -1
_ENTRY = 24  # bytes
_MOST_RUNS = 6
# Rows fingerprinted at a time, and bytes of padded text that this may take.
_ROWS, _TEXT = 65_536, 16 << 20
# Entries merged at a time.
_SLICE = 1 << 20
_SEEDS = (U64(0x243F6A8885A308D3), U64(0x13198A2E03707344))
_FACTORS = (
    (U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)),
    (U64(0xFF51AFD7ED558CCD), U64(0xC4CEB9FE1A85EC53)),
)


# ---- fingerprints


@dataclass(frozen=True, slots=True)
class Keys:
    """Fingerprints of keys: two independent 64-bit hashes. That two keys share both is less likely than a bad disk."""

    high: Array
    low: Array

    def __len__(self) -> int:
        return len(self.high)

    def take(self, at: Array | slice) -> Keys:
        return Keys(self.high[at], self.low[at])

    @property
    def nbytes(self) -> int:
        return self.high.nbytes + self.low.nbytes

    def order(self) -> Array:
        """Sorted; equal keys in order of arrival."""
        order = np.argsort(self.high, kind="stable")
        high, low = self.high[order], self.low[order]
        if np.any((high[1:] == high[:-1]) & (low[1:] != low[:-1])):
            order = np.lexsort((self.low, self.high))
        return order

    def starts(self) -> Array:
        """Of sorted keys: whether each is another one than the one before it."""
        if not len(self):
            return np.zeros(0, bool)
        return np.append(True, (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1]))


def fingerprints(columns: Sequence[pa.Array]) -> Keys:
    """Of each row of key columns. The same whatever batch the row comes in."""
    n = len(columns[0])
    high, low = np.empty(n, U64), np.empty(n, U64)
    step = max(1, min(_ROWS, _TEXT // max(1, *map(_width, columns))))
    for start in range(0, n, step):
        lanes = [np.full(min(step, n - start), seed, U64) for seed in _SEEDS]
        for column in columns:
            for word, some in _words(column.slice(start, step)):
                for i, (first, second) in enumerate(_FACTORS):
                    mixed = _mix(lanes[i] ^ word, first, second)
                    lanes[i] = mixed if some is None else np.where(some, mixed, lanes[i])
        high[start : start + step], low[start : start + step] = lanes
    return Keys(high, low)


def _mix(h: Array, first: U64, second: U64) -> Array:
    h = h + U64(0x9E3779B97F4A7C15)
    h ^= h >> U64(30)
    h *= first
    h ^= h >> U64(27)
    h *= second
    h ^= h >> U64(31)
    return h


def _text(column: pa.Array) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_binary(column.type))


def _width(column: pa.Array) -> int:
    return int(np.diff(byte_buffers(column)[0]).max(initial=0)) if _text(column) else 8


def _words(column: pa.Array) -> Iterator[tuple[Array, Array | None]]:
    """(a word of each row, which rows have it, None for all). Texts by their bytes and length, not by their padding."""
    if not _text(column):
        for word in column_words(column):
            yield word, None
        return
    count = (_width(column) + 7) // 8
    padded, lengths = padded_bytes(column, 8 * count)
    words = np.ascontiguousarray(padded).view(U64) if count else np.zeros((len(column), 0), U64)
    for i in range(count):
        yield words[:, i], lengths > 8 * i
    yield lengths.astype(U64), None


# ---- the index


@dataclass(frozen=True, slots=True)
class _Run:
    """Sorted distinct keys and their numbers, in memory or mapped from a file."""

    keys: Keys
    values: Array
    file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Keys) -> tuple[Array, Array]:
        """(which of sorted `keys` are here, their numbers)."""
        at = np.searchsorted(self.keys.high, keys.high)
        there = np.minimum(at, len(self) - 1)
        close = self.keys.high[there] == keys.high
        found = close & (self.keys.low[there] == keys.low)
        missed = np.flatnonzero(close & ~found)
        while len(missed):  # as good as never: another key with the same first hash
            there[missed] += 1
            missed = missed[there[missed] < len(self)]
            missed = missed[self.keys.high[there[missed]] == keys.high[missed]]
            hit = self.keys.low[there[missed]] == keys.low[missed]
            found[missed[hit]] = True
            missed = missed[~hit]
        return found, self.values[there[found]]

    def part(self, low: U64, high: U64 | None) -> tuple[Keys, Array]:
        """The entries whose first hash lies in [low, high)."""
        a = int(np.searchsorted(self.keys.high, low))
        b = len(self) if high is None else int(np.searchsorted(self.keys.high, high))
        return Keys(np.array(self.keys.high[a:b]), np.array(self.keys.low[a:b])), np.array(self.values[a:b])


class KeyIndex:
    """Keys to numbers >= 0. Counts its memory in `budget`, of which it takes `limit` bytes at most."""

    def __init__(self, budget: Budget, limit: int) -> None:
        self._budget = budget
        self._limit = max(limit, _ENTRY * 1024)
        self._memory: list[_Run] = []  # newest first, each much larger than the one before it
        self._disk: list[_Run] = []  # newest first
        self._counted = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return _ENTRY * sum(map(len, self._memory))

    @property
    def runs(self) -> int:
        """Runs on disk."""
        return len(self._disk)

    def find(self, keys: Keys) -> Array:
        """The numbers of sorted keys, `ABSENT` where there is none."""
        return _find((*self._memory, *self._disk), keys)

    def put(self, keys: Keys, values: Array) -> None:
        """Set the numbers of sorted, distinct keys."""
        if not len(keys):
            return
        self._memory.insert(0, _Run(keys, values))
        while len(self._memory) > 1 and 8 * len(self._memory[0]) > len(self._memory[1]):
            self._memory[:2] = [_newest(self._memory[:2])[0]]
        if self.nbytes > self._limit:
            self._spill()
            if len(self._disk) > _MOST_RUNS:
                self.settle()
        self._count()

    def load(self, batches: Iterable[tuple[Keys, Array]]) -> int:
        """Fill an empty index with keys that come once each, in any order; how many came again all the same."""
        twice = 0
        waiting: list[_Run] = []
        size = 0
        for keys, values in batches:
            waiting.append(_Run(keys, values))
            size += _ENTRY * len(keys)
            if 2 * size > self._limit:  # sorting copies it
                twice += self._take(waiting)
                self._spill()
                waiting, size = [], 0
                if len(self._disk) > _MOST_RUNS:
                    twice += self.settle()
        if waiting:
            twice += self._take(waiting)
            twice += int((_find(self._disk, self._memory[0].keys) != ABSENT).sum())
        return twice + self.settle()

    def _take(self, runs: list[_Run]) -> int:
        run, twice = _newest(runs, whole=True)
        self._memory = [run]
        self._count()
        return twice

    def _count(self) -> None:
        self._budget.reserve(self.nbytes - self._counted)
        self._counted = self.nbytes

    def _spill(self) -> None:
        run = _newest(self._memory)[0]
        self._disk.insert(0, _on_disk(len(run), iter([(run.keys, run.values)])))
        self._memory = []
        self._count()

    def settle(self) -> int:
        """Merge the runs on disk into one; how many entries were replaced by newer ones."""
        if len(self._disk) < 2:
            return 0
        whole = sum(map(len, self._disk))
        replaced = 0

        def slices() -> Iterator[tuple[Keys, Array]]:
            nonlocal replaced
            # fingerprints are spread evenly, so even cuts give even slices
            count = max(1, whole // _SLICE)
            cuts = [U64((i << 64) // count) for i in range(count)]
            for low, high in zip(cuts, [*cuts[1:], None]):
                merged, gone = _newest([_Run(*run.part(low, high)) for run in self._disk])
                replaced += gone
                yield merged.keys, merged.values

        merged = _on_disk(whole, slices())
        for run in self._disk:
            _close(run)
        self._disk = [merged]
        return replaced

    def sealed(self) -> _Run | None:
        """All of it as one run on disk, for somebody else to hold; this index is empty then."""
        if self._memory:
            self._spill()
        self.settle()
        run, self._disk = (self._disk[0] if self._disk else None), []
        return run

    def close(self) -> None:
        """Free memory and disk."""
        for run in self._disk:
            _close(run)
        self._memory, self._disk = [], []
        self._count()


class KeyFile:
    """Where each key of one data file is in it, whatever order its rows are in. Files never change, so this neither."""

    def __init__(self, batches: Iterable[tuple[Keys, Array]], budget: Budget, limit: int, name: str) -> None:
        """`batches` are keys with their rows' positions, in any order. `Corrupt` where a key of file `name` is there
        twice."""
        index = KeyIndex(budget, limit)
        try:
            twice = index.load(batches)
            if twice:
                raise Corrupt(
                    f"{name}: {twice} keys are in the file more than once",
                    hint="a compaction writes each key once; two writers may have compacted the bucket",
                )
            self._run = index.sealed()
        finally:
            index.close()
        if self._run is not None:
            _close(self._run)  # the mapping stays until nobody looks at it

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return 0 if self._run is None else _ENTRY * len(self._run)

    def find(self, keys: Keys) -> Array:
        """The positions of sorted keys, `ABSENT` where one is not in the file."""
        if self._run is None:
            return _find((), keys)
        found = _find((self._run,), keys)
        # pages that were looked at would stay with this process, as many as the file has; the system keeps them anyway
        for part in (self._run.keys.high, self._run.keys.low, self._run.values):
            mapped = part.base
            if isinstance(mapped, mmap.mmap):
                mapped.madvise(mmap.MADV_DONTNEED)
        return found


def _find(runs: Sequence[_Run], keys: Keys) -> Array:
    out = np.full(len(keys), ABSENT, np.int64)
    left = np.arange(len(keys))
    for run in runs:
        found, values = run.find(keys.take(left))
        out[left[found]] = values
        left = left[~found]
        if not len(left):
            break
    return out


def _newest(runs: Sequence[_Run], *, whole: bool = False) -> tuple[_Run, int]:
    """The runs, newest first, as one; and how many entries a newer one replaced. `whole`: they are not sorted yet."""
    if len(runs) == 1 and not whole:
        return runs[0], 0
    keys = Keys(np.concatenate([r.keys.high for r in runs]), np.concatenate([r.keys.low for r in runs]))
    values = np.concatenate([r.values for r in runs])
    order = keys.order()
    keys = keys.take(order)
    first = keys.starts()
    return _Run(keys.take(first), values[order][first]), len(keys) - int(first.sum())


def _on_disk(room: int, slices: Iterator[tuple[Keys, Array]]) -> _Run:
    """A run of at most `room` entries, written slice by slice: all first hashes, all second ones, all numbers."""
    try:
        file = tempfile.TemporaryFile(prefix="shoal-keys-")  # noqa: SIM115 - closed with the run
        at = 0
        for keys, values in slices:
            for section, part in enumerate((keys.high, keys.low, values)):
                file.seek(8 * (section * room + at))
                file.write(np.ascontiguousarray(part).view(np.uint8).data)
            at += len(keys)
        file.truncate(_ENTRY * room)
        file.flush()
        high, low = (np.memmap(file, U64, "r", 8 * s * room, (at,)) for s in (0, 1))
        values = np.memmap(file, np.int64, "r", 16 * room, (at,))
    except OSError as err:
        raise StorageFailed(
            f"cannot put the key index aside in {tempfile.gettempdir()}: {err}",
            hint="keys are looked up there; set TMPDIR to a larger disk",
        ) from err
    return _Run(Keys(high, low), values, file)


def _close(run: _Run) -> None:
    if run.file is not None:
        run.file.close()
