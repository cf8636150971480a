# SPDX-License-Identifier: Apache-2.0
"""Where new data files come to lie: in the table's folder, or in one of its external folders.

Agrees with: AbstractFileStore.createExternalPaths, ExternalPathProvider and its kinds (2.0.0). Invariant: which folder
was chosen is in the file's metadata only; readers never ask these options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, cast

from shoal.errors import BadRequest

if TYPE_CHECKING:
    from shoal.options import Options
    from shoal.store.base import Store
    from shoal.table.external_paths import Places

_KEY = "data-file.external-paths"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
# Of the hash of a name, so many bits become folders, four and then eight to a name.
_ENTROPY_BITS = 20


class Placement:
    """Gives new files a place each, for one writer."""

    def __init__(self, store: Store, places: Places, options: Options, rng: Random) -> None:
        self._store = store
        self._places = places
        self._choose = chooser(options, rng)

    def place(self, folder: str, name: str) -> tuple[Store, str, str | None]:
        """(store, path in it, external path) of a file in a bucket's folder, relative to the table."""
        if self._choose is None:
            return self._store, folder + name, None
        external = self._choose(folder, name)
        return *self._places.locate(folder, name, external), external


def chooser(options: Options, rng: Random) -> Callable[[str, str], str] | None:
    """From a bucket's folder and a file name to the file's external path; None where files stay in the table."""
    given = cast("str | None", options.get(_KEY))
    strategy = cast(str, options.get(f"{_KEY}.strategy"))
    if not given or strategy == "none":
        return None
    roots = external_roots(given, strategy, cast("str | None", options.get(f"{_KEY}.specific-fs")))
    weights = options.get(f"{_KEY}.weights")
    if strategy == "weight-robin" and len(roots) > 1 and weights:
        return _weighted(roots, [int(w) for w in cast(str, weights).split(",")], rng)
    at = rng.randrange(len(roots))

    def next_root() -> str:
        nonlocal at
        at = (at + 1) % len(roots)
        return roots[at]

    if strategy == "entropy-inject":
        return lambda folder, name: f"{next_root()}/{folder}{entropy(name)}/{name}"
    return lambda folder, name: f"{next_root()}/{folder}{name}"


def _weighted(roots: Sequence[str], weights: Sequence[int], rng: Random) -> Callable[[str, str], str]:
    if len(weights) != len(roots):
        raise BadRequest(f"'{_KEY}.weights' has {len(weights)} numbers for {len(roots)} paths")
    ends = list(accumulate(weights))

    def choose(folder: str, name: str) -> str:
        at = rng.random() * ends[-1]
        return f"{next(r for r, end in zip(roots, ends) if end > at)}/{folder}{name}"

    return choose


def external_roots(given: str, strategy: str, only: str | None) -> list[str]:
    """The external folders, as Java spells them: `file:/a/b`, `s3://bucket/a`."""
    out = []
    for text in given.split(","):
        root = text.strip()
        scheme = _SCHEME.match(root)
        if scheme is None:
            raise BadRequest(f"'{_KEY}': '{root}' has no scheme", hint="write it as file:/dir or s3://bucket/dir")
        if strategy == "specific-fs":
            if only is None:
                raise BadRequest(f"'{_KEY}.strategy' = 'specific-fs' needs '{_KEY}.specific-fs'")
            if scheme[1].lower() != only.lower():
                continue
        rest = re.sub("/{2,}", "/", root[scheme.end() :]).rstrip("/")
        # without a host behind the slashes, Java leaves them out
        out.append(f"{scheme[1]}:{rest}" if rest.startswith("/") or not scheme[2] else f"{scheme[1]}://{rest}")
    if not out:
        raise BadRequest(f"'{_KEY}' = '{given}' is of no use: no path has the scheme '{only}'")
    return out


def entropy(name: str) -> str:
    """Folders that spread names evenly: the last twenty bits of a hash as `0101/1100/0011/11110000`."""
    bits = f"{murmur3(name.encode(), 0) | 0x80000000:032b}"[-_ENTROPY_BITS:]
    return "/".join((bits[0:4], bits[4:8], bits[8:12], bits[12:]))


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3 of 32 bits, of a name: rows are hashed by `format.hashing`, whole columns at a time."""
    h, mask = seed, 0xFFFFFFFF
    for at in range(0, len(data), 4):
        part = data[at : at + 4]
        k = int.from_bytes(part, "little") * 0xCC9E2D51 & mask
        h ^= ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
        if len(part) == 4:
            h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor & mask
    return h ^ h >> 16
