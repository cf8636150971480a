# SPDX-License-Identifier: Apache-2.0
"""The order in which Java walks its hash tables, where that order reaches a file.

Agrees with: java.util.HashMap, String.hashCode, BinaryString.hashCode (2.0.0). Invariant: entries come by slot of the
table's size; within a slot in order of arrival where they were put, and the other way round where computeIfAbsent made
them. (In a table of 64 slots and more, a slot of eight entries becomes a tree, which is not followed: readers look
entries up, so only the bytes would differ.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shoal.format.hashing import SEED, U32, murmur_finish, murmur_mix

Array = np.ndarray[Any, np.dtype[Any]]

_LONG = 8
_TREES_FROM = 64


def put(hashes: Array) -> Array:
    """The order of entries (32-bit hashes in order of arrival) of a table filled by put."""
    h = _spread(hashes)
    return np.argsort(h & (_slots(h, _LONG) - 1), kind="stable")


def computed(hashes: Array, used_later: bool) -> Array:
    """The order of entries of a table filled by computeIfAbsent.

    That puts a new entry in front of its slot, and looks before each call whether to grow: whether it was called after
    the last entry came (`used_later`) can show.
    """
    h = _spread(hashes)
    slots = _slots(h if used_later else h[:-1], _LONG - 1, h)
    return len(h) - 1 - np.argsort((h & (slots - 1))[::-1], kind="stable")


def _spread(hashes: Array) -> Array:
    h = hashes.astype(np.int64) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _slots(counted: Array, long: int, entries: Array | None = None) -> int:
    """How many slots a table has. `counted` are the entries it grew for, `entries` all of them.

    A small table also grows, instead of making a tree, when an entry comes to a slot that holds `long` others.
    """
    slots = 16
    for i in range(len(counted if entries is None else entries)):  # a table of 64 slots does that no more: few entries
        if slots >= _TREES_FROM:
            break
        if entries is not None and i * 4 > slots * 3:
            slots *= 2
        seen = (counted if entries is None else entries)[: i + 1] & (slots - 1)
        if slots < _TREES_FROM and np.count_nonzero(seen[:-1] == seen[-1]) >= long:
            slots *= 2
        if entries is None and (i + 1) * 4 > slots * 3:
            slots *= 2
    while len(counted) * 4 > slots * 3:
        slots *= 2
    return slots


def names_put(given: Iterable[str]) -> list[str]:
    """Distinct names in the order of a HashMap filled by put."""
    found = list(dict.fromkeys(given))
    return [found[i] for i in put(_text_hashes(found))]


def names_computed(calls: Sequence[str]) -> list[str]:
    """The same of one filled by computeIfAbsent, called for each name."""
    found = list(dict.fromkeys(calls))
    return [found[i] for i in computed(_text_hashes(found), bool(found) and calls.index(found[-1]) < len(calls) - 1)]


def _text_hashes(found: Sequence[str]) -> Array:
    return np.array([text_hash(n) for n in found], np.int64)


def text_hash(text: str) -> int:
    """String.hashCode, unsigned."""
    h = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        h = (31 * h + unit) & 0xFFFFFFFF
    return h


def folded(values: Array) -> Array:
    """Long.hashCode."""
    return (values & 0xFFFFFFFF) ^ ((values >> 32) & 0xFFFFFFFF)


def bytes_hashes(data: Array, offsets: Array) -> Array:
    """BinaryString.hashCode of each text: murmur over whole words, then over the bytes left, which are signed."""
    lengths = np.diff(offsets)
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    h = np.full(len(lengths), SEED, U32)
    words = lengths // 4
    for i in range(int(words.max(initial=0))):
        some = np.flatnonzero(words > i)
        at = offsets[some] + 4 * i
        word = sum(padded[at + b].astype(U32) << U32(8 * b) for b in range(4))
        h[some] = murmur_mix(h[some], word)
    for i in range(3):
        some = np.flatnonzero(lengths % 4 > i)
        h[some] = murmur_mix(
            h[some], padded[offsets[some] + 4 * words[some] + i].view(np.int8).astype(np.int32).view(U32)
        )
    return murmur_finish(h, lengths.astype(U32))
