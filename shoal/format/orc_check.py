# SPDX-License-Identifier: Apache-2.0
"""What must hold in an ORC stripe before pyarrow may decode it.

ORC's C++ reader trusts the lengths of strings and lists: a damaged one ends the process, or asks for all memory. So
the LENGTH streams of the asked columns are decoded here first. Invariant: no length is negative, those of strings do
not add up to more than their bytes can be, nor those of lists to more values than their streams can hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.errors import Unsupported
from shoal.format.orc_integers import runs
from shoal.format.orc_tail import LIST, MAP, PlainFile, Stripe, StripeFooter, Tail, chunks, damaged, most_bytes, read_at

_TEXTS = frozenset({7, 8, 16, 17})
# Stream kinds.
_DATA, _LENGTH, _DICTIONARY, _LAST_OF_DATA = 1, 2, 3, 5
# Encodings: version 1 without and with a dictionary, version 2 likewise.
_OLD, _DIRECT, _WITH_DICTIONARY = (0, 1), 2, 3
# Values that a byte of a stream can stand for: a run of 512 takes two bytes at least, a byte of eight bits a 65th.
_MOST_VALUES = 1024


def check_stripe(
    file: PlainFile, stripe: Stripe, footer: StripeFooter, tail: Tail, columns: Iterable[int], path: str
) -> None:
    """Holds the streams of these top-level columns in `file`; `Corrupt` when a length or row count cannot be."""
    try:
        wanted = [list(_below(tail, column)) for column in columns]
        ids = {c for below in wanted for c in below}
        mine = [at for (column, kind), at in footer.streams.items() if column in ids and kind <= _LAST_OF_DATA]
        file.hold(mine)
        if mine and stripe.rows > sum(most_bytes(file, at, tail, path) for at in mine) * _MOST_VALUES:
            raise ValueError(f"a stripe claims {stripe.rows} rows, which its streams cannot hold")
        for below in wanted:
            for each in below:
                kind = tail.types[each].kind
                if kind in _TEXTS or kind in (LIST, MAP):
                    _check_lengths(file, stripe, footer, tail, each, path)
    except (ValueError, IndexError, OSError) as err:
        raise damaged(path, err) from err


def _below(tail: Tail, column: int) -> Iterator[int]:
    """A column and all columns in it."""
    yield column
    for child in tail.types[column].children:
        yield from _below(tail, child)


def _check_lengths(file: PlainFile, stripe: Stripe, footer: StripeFooter, tail: Tail, column: int, path: str) -> None:
    at = footer.streams.get((column, _LENGTH))
    encoding, dictionary = footer.encodings[column]
    if encoding in _OLD:
        raise Unsupported(f"{path}: its strings are in the encoding of ORC 0.11", hint="compact the table with Java")
    if encoding not in (_DIRECT, _WITH_DICTIONARY):
        raise ValueError(f"column {column} has an encoding that is none: {encoding}")
    if at is None:
        if dictionary:
            raise ValueError(f"column {column} has a dictionary without lengths")
        return
    raw = chunks(read_at(file, *at, path), tail.codec, tail.chunk, most_bytes(file, at, tail, path))
    count = total = 0
    for lengths in runs(raw, signed=False):
        if int(lengths.min()) < 0 or int(lengths.max()) >= 1 << 31:
            raise ValueError(f"column {column} has a length that is none")
        count += len(lengths)
        total += int(lengths.sum())
    if tail.types[column].kind in _TEXTS:
        held = footer.streams.get((column, _DICTIONARY if encoding == _WITH_DICTIONARY else _DATA))
        most = 0 if held is None else most_bytes(file, held, tail, path)
        if encoding == _WITH_DICTIONARY and dictionary > count:
            raise ValueError(f"column {column} has a dictionary of {dictionary} entries and {count} lengths")
    else:
        under = [s for s in footer.streams if s[0] in set(_below(tail, column)) - {column}]
        most = sum(most_bytes(file, footer.streams[s], tail, path) for s in under) * _MOST_VALUES
    if total > most:
        raise ValueError(f"column {column} has lengths of {total} in all, and room for {most}")
