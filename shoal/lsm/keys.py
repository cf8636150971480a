# SPDX-License-Identifier: Apache-2.0
"""Keys as unsigned words: the order of Paimon's keys, computed on whole columns.

A column becomes words whose unsigned order, compared left to right, is the column's key order (integers by value,
strings and binaries by unsigned bytes, doubles in Java's total order). Invariant: equal words mean equal keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Unsupported
from shoal.format.hashing import byte_buffers, padded_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]
U64 = np.uint64
_SIGN = U64(1 << 63)
# Strings above this many bytes are ranked by Arrow instead of being padded out to words.
_WIDE = 256
# Runs up to which numpy's merge sort is fastest.
_MANY_RUNS = 4
# Odd factors that spread words over a table of slots, one for each round.
_SPREAD = (U64(0x9E3779B97F4A7C15), U64(0xD6E8FEB86659FD93))


def column_words(column: pa.Array, *, nullable: bool = False) -> list[Array]:
    """Words of one column, most significant first. With `nullable`, nulls sort first."""
    import pyarrow as pa

    t = column.type
    if pa.types.is_dictionary(t):
        column = column.dictionary_decode()
        t = column.type
    nulls = None
    if column.null_count:
        if not nullable:
            raise Unsupported("a null in a key column")
        nulls = column.is_null().to_numpy(zero_copy_only=False)
    words = _words(column, t)
    if nulls is not None:
        words = [np.where(nulls, U64(0), w) for w in words]
        return [(~nulls).astype(U64), *words]
    return words


def _words(column: pa.Array, t: pa.DataType) -> list[Array]:
    import pyarrow as pa

    p = pa.types
    if p.is_string(t) or p.is_binary(t):
        return _byte_words(column)
    if p.is_boolean(t):
        return [column.fill_null(False).to_numpy(zero_copy_only=False).astype(U64)]
    n = len(column)
    raw = column.buffers()[1]
    if p.is_decimal128(t):
        pair = np.frombuffer(raw, U64).reshape(-1, 2)[column.offset : column.offset + n]
        if t.precision <= 18:
            return [np.ascontiguousarray(pair[:, 0]) ^ _SIGN]
        return [np.ascontiguousarray(pair[:, 1]) ^ _SIGN, np.ascontiguousarray(pair[:, 0])]
    if p.is_floating(t):
        return [_float_word(column)]
    if p.is_integer(t) or p.is_date(t) or p.is_time(t) or p.is_timestamp(t):
        v = np.frombuffer(raw, np.dtype(f"i{t.bit_width // 8}"))[column.offset : column.offset + n]
        return [v.astype(np.int64).view(U64) ^ _SIGN]
    raise Unsupported(f"a column of Arrow type {t} cannot be a key")


def _float_word(column: pa.Array) -> Array:
    """Java's Double.compare: -0.0 below 0.0, every NaN equal and above infinity."""
    width = column.type.bit_width // 8
    v = np.frombuffer(column.buffers()[1], np.dtype(f"f{width}"))[column.offset : column.offset + len(column)]
    v = np.where(np.isnan(v), np.nan, v).astype(np.float64)
    bits = v.view(U64)
    return np.where(bits >> U64(63) != 0, ~bits, bits | _SIGN)


def _byte_words(column: pa.Array) -> list[Array]:
    offsets, _ = byte_buffers(column)
    n = len(column)
    if n == 0:
        return [np.zeros(0, U64)]
    lengths = np.diff(offsets)
    longest = int(lengths.max())
    if longest > _WIDE:
        return [_rank(column)]
    if longest >= 8 and int(lengths.min()) == longest:
        return _fixed_words(column, longest)
    count = max(1, (longest + 7) // 8)
    padded, _ = padded_bytes(column, 8 * count)
    words = np.ascontiguousarray(padded).view(">u8")
    out = [words[:, i].astype(U64) for i in range(count)]  # one pass swaps the bytes and gathers the column
    if int(lengths.min()) != longest:  # the length as last word: "a" sorts before "a\0"
        out.append(lengths.astype(U64))
    return out


def _fixed_words(column: pa.Array, width: int) -> list[Array]:
    """Words of values that are all `width` >= 8 bytes long, read where they lie: no padding, one pass a word."""
    offsets, data = byte_buffers(column)
    n, start = len(column), int(offsets[0])

    def at(offset: int) -> Array:
        there = np.ndarray((n,), ">u8", buffer=data, offset=start + offset, strides=(width,))
        return there.astype(U64)

    words = [at(8 * i) for i in range(width // 8)]
    rest = width % 8
    if rest:
        # the last eight bytes, without those that the word before holds
        words.append(at(width - 8) << U64(64 - 8 * rest))
    return words


@dataclass(frozen=True, slots=True)
class KeyShape:
    """How keys lie in words, so that other ones can be laid down alike. One entry for each key column.

    `counts`: the words of a text or of bytes, None for other columns, whose words are always alike; `lengths`: the
    bytes of all its values, None where they differ and a word more tells them.
    """

    counts: tuple[int | None, ...]
    lengths: tuple[int | None, ...]

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> KeyShape | None:
        """Of the words that `column_words` gives; None where a value is so long that they only rank it."""
        counts: list[int | None] = []
        lengths: list[int | None] = []
        for c in columns:
            if not _is_bytes(c.type):
                counts.append(None)
                lengths.append(None)
                continue
            sizes = np.diff(byte_buffers(c)[0])
            longest = int(sizes.max()) if len(sizes) else 0
            if longest > _WIDE:
                return None
            counts.append(max(1, (longest + 7) // 8))
            lengths.append(longest if len(sizes) and int(sizes.min()) == longest else None)
        return cls(tuple(counts), tuple(lengths))

    def words(self, columns: Sequence[pa.Array]) -> tuple[list[Array], Array | None]:
        """Words of these keys, and which keys the shape can hold (None: all); the words of others are of no meaning."""
        import pyarrow as pa
        import pyarrow.compute as pc

        out: list[Array] = []
        fits: Array | None = None
        for c, count, length in zip(columns, self.counts, self.lengths):
            if count is None:
                out += column_words(c)
                continue
            sizes = np.diff(byte_buffers(c)[0])
            here = sizes <= 8 * count if length is None else sizes == length
            if not here.all():
                fits = here if fits is None else fits & here
                c = pc.if_else(pa.array(here), c, pa.scalar(b"").cast(c.type))
                sizes = np.where(here, sizes, 0)
            padded, _ = padded_bytes(c, 8 * count)
            words = np.ascontiguousarray(padded).view(">u8")
            out += [words[:, i].astype(U64) for i in range(count)]
            if length is None:
                out.append(sizes.astype(U64))
        return out, fits


def less(a: Sequence[Array], b: Sequence[Array]) -> Array:
    """Row by row, whether the words of `a` come before those of `b`."""
    out: Array = a[-1] < b[-1]
    for x, y in zip(reversed(a[:-1]), reversed(b[:-1])):
        out &= x == y
        out |= x < y
    return out


def rows_of(words: Sequence[Array], wanted: Sequence[Array]) -> tuple[Array, Array]:
    """(row, there): for each wanted key the one row, of some in ascending order, that can hold it, and whether it does.

    Most keys are told by their first word. The others halve their stretch of equal first words together.
    """
    here, n = words[0], len(words[0])
    row: Array = np.searchsorted(here, wanted[0])
    row[row == n] = 0
    there = here[row] == wanted[0]
    if len(words) == 1:
        return row, there
    after = row + 1
    after[after == n] = 0
    several = np.flatnonzero(there & (here[after] == wanted[0]))
    if len(several):
        low, rest = row[several], [w[several] for w in wanted[1:]]
        high = np.searchsorted(here, wanted[0][several], "right")
        for _ in range(int((high - low).max()).bit_length()):
            middle = (low + high) >> 1
            before = less([w[np.minimum(middle, n - 1)] for w in words[1:]], rest) & (middle < high)
            low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
        row[several] = np.minimum(low, n - 1)
        there[several] = here[row[several]] == wanted[0][several]  # past the stretch the first word is another one
    for mine, theirs in zip(words[1:], wanted[1:]):
        there &= mine[row] == theirs
    return row, there


def _is_bytes(t: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(t) or pa.types.is_binary(t))


def _rank(column: pa.Array) -> Array:
    """Dense rank of long strings; one word whatever their length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    data = column.fill_null("") if pa.types.is_string(column.type) else column.fill_null(b"")
    ranks: Array = pc.rank(data.cast(pa.binary()), sort_keys="ascending", tiebreaker="dense").to_numpy().astype(U64)
    return ranks


def integers(column: pa.Array) -> Array | None:
    """The values of a column of whole numbers, dates or times as they lie in memory; None for another one."""
    import pyarrow as pa

    p, t = pa.types, column.type
    if not (p.is_integer(t) or p.is_date(t) or p.is_time(t) or p.is_timestamp(t)):
        return None
    v = np.frombuffer(column.buffers()[1], np.dtype(f"i{t.bit_width // 8}"))
    return v[column.offset : column.offset + len(column)]


def pack(words: Sequence[Array]) -> list[tuple[Array, int]]:
    """Fewer, narrower words of the same order, each with its number of bits.

    Drops the bits that a word's rows have in common, in front and behind, and joins neighbours that fit 64 bits. In a
    block, which is a narrow key range, that is often most of them.
    """
    if len(words) == 1:
        return [(words[0], 64)]
    out: list[tuple[Array, int]] = []
    for w in words:
        base = w[0]
        u = w ^ base
        varying = int(np.bitwise_or.reduce(u))
        if not varying:
            continue
        shift = (varying & -varying).bit_length() - 1
        bits = varying.bit_length() - shift
        # back from the difference: what varies keeps its value, what is in common becomes zero
        np.bitwise_xor(u, base & U64(varying), out=u)
        if shift:
            np.right_shift(u, U64(shift), out=u)
        _join(out, u, bits)
    return out or [(np.zeros(len(words[0]), U64), 1)]


def _join(packed: list[tuple[Array, int]], word: Array, bits: int) -> None:
    """Add a word of so many bits, in what is left of the last one where it fits."""
    if packed and packed[-1][1] + bits <= 64:
        previous, width = packed.pop()
        word = (previous << U64(bits)) | word
        bits += width
    packed.append((word, bits))


def stable_order(words: Sequence[Array]) -> tuple[Array, Array]:
    """(order, first): a stable permutation into key order, and which of its rows begin a key.

    For rows that are already sorted runs laid end to end: numpy's stable sort is a merge sort that finds the runs,
    so it merges, n log R. Later words are joined with the rank so far, so that each pass again meets sorted runs.
    """
    n = len(words[0])
    if n == 0:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    packed = _ranked_prefix(pack(words))
    order = _merged(packed[0][0])
    first = _starts(packed[0][0][order])
    for word, bits in packed[1:]:
        here = word[order]
        if not ((~first[1:]) & (here[1:] < here[:-1])).any():
            first[1:] |= here[1:] != here[:-1]
            continue
        rank = (np.cumsum(first) - 1).astype(U64)
        back = np.empty(n, U64)
        back[order] = rank
        for part, width in _fitting(word, bits, 64 - int(rank[-1]).bit_length()):
            key = (back << U64(width)) | part
            order = np.argsort(key, kind="stable")
            first = _starts(key[order])
            back[order] = (np.cumsum(first) - 1).astype(U64)
    return order, first


def _merged(word: Array) -> Array:
    """The stable order of one word.

    Merging many runs costs a mispredicted branch a row and level; so rows are first put into slots by their leading
    bits (numpy sorts 16 bits by counting), which leaves little for the merge sort to do.
    """
    if np.count_nonzero(word[1:] < word[:-1]) < _MANY_RUNS:
        return np.argsort(word, kind="stable")
    least = word.min()
    shift = max(0, int(word.max() - least).bit_length() - 16)
    order = np.argsort(((word - least) >> U64(shift)).astype(np.uint16), kind="stable")
    if not shift:
        return order
    return order[np.argsort(word[order], kind="stable")]


def _ranked_prefix(packed: list[tuple[Array, int]]) -> list[tuple[Array, int]]:
    """The first word as a dense rank, where neighbouring rows share it: `(dt, id)` keys, long common prefixes.

    Sorted runs keep equal first words together, so only the first row of each stretch is sorted; the rank is narrow
    and often fits one word with what follows, which saves a pass over all rows.
    """
    if len(packed) < 2:
        return packed
    word = packed[0][0]
    begins = np.flatnonzero(_starts(word))
    if len(begins) * 3 > len(word):
        return packed
    heads = word[begins]
    order = np.argsort(heads, kind="stable")
    ascending = np.cumsum(_starts(heads[order])) - 1
    rank = np.empty(len(heads), U64)
    rank[order] = ascending
    lengths = np.diff(np.append(begins, len(word)))
    out = [(np.repeat(rank, lengths), max(1, int(ascending[-1]).bit_length()))]
    for w, bits in packed[1:]:
        _join(out, w, bits)
    return out


def _starts(ordered: Array) -> Array:
    first = np.empty(len(ordered), bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def _fitting(word: Array, bits: int, room: int) -> list[tuple[Array, int]]:
    """`word` in pieces of at most `room` bits. A rank of up to 2^32 rows leaves 32 bits of room at least."""
    pieces = []
    while bits > 0:
        width = min(bits, max(16, room - 8))
        bits -= width
        pieces.append(((word >> U64(bits)) & U64((1 << width) - 1), width))
    return pieces


def last_rows(words: Sequence[Array]) -> Array:
    """Which rows are the last of their key, of rows in any order. No row is moved and nothing is sorted.

    Every row writes its number into its key's slot of a table, and the last one stays. Keys that meet another one in
    their slot go another round; the few that are left then are sorted.
    """
    keep = np.zeros(len(words[0]), bool)
    rows: Array | None = None  # None: all
    left = list(words)
    for factor in _SPREAD:
        n = len(left[0])
        if not n:
            return keep
        at = np.arange(n, dtype=np.int32)
        slots, bits = _slots(left, factor)
        table = np.empty(1 << bits, np.int32)
        table[slots] = at
        winner = table[slots]
        same = left[0][winner] == left[0]
        for w in left[1:]:
            same &= w[winner] == w
        if bool((same & (winner < at)).any()):  # numpy does not promise the order in which it writes
            break
        last = same & (winner == at)
        if rows is None:
            keep = last
        else:
            keep[rows] = last
        open_ = np.flatnonzero(~same)
        rows = open_ if rows is None else rows[open_]
        left = [w[open_] for w in left]
    if len(left[0]):
        order, first = stable_order(left)
        last = np.append(first[1:], True)
        keep[order[last] if rows is None else rows[order[last]]] = True
    return keep


def _slots(words: Sequence[Array], factor: np.uint64) -> tuple[Array, int]:
    """Places in a table at least twice as large as there are rows, and the bits of its size."""
    bits = (len(words[0]) - 1).bit_length() + 1
    mixed = words[0] * factor
    for w in words[1:]:
        mixed ^= mixed >> U64(32)
        mixed ^= w
        mixed *= factor
    mixed >>= U64(64 - bits)
    return mixed.view(np.int64), bits


def last_by_key(words: Sequence[Array]) -> Array:
    """Row numbers of the last row of each key, in key order, of rows in any order.

    An unstable (SIMD) sort and the greatest row number per key: no stable sort is needed to keep the last.
    """
    n = len(words[0])
    if n == 0:
        return np.zeros(0, np.int64)
    packed = pack(words)
    order = np.argsort(packed[0][0])
    first = _starts(packed[0][0][order])
    if len(packed) > 1 and not first.all():
        tied = ~first
        tied[:-1] |= ~first[1:]
        rows = np.flatnonzero(tied)
        group = np.cumsum(first)[rows]
        rest = [w[order[rows]] for w, _ in packed[1:]]
        order[rows] = order[rows][np.lexsort((*reversed(rest), group))]
        for w, _ in packed[1:]:
            here = w[order]
            first[1:] |= here[1:] != here[:-1]
    result: Array = np.maximum.reduceat(order, np.flatnonzero(first))
    return result
