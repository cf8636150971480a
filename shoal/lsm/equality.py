# SPDX-License-Identifier: Apache-2.0
"""Whether two columns hold the same values, row by row, nested ones too.

Agrees with: RecordEqualiser as EqualiserCodeGenerator makes it (2.0.0). Invariant: nulls equal nulls, floats are equal
by their bits, and the order of a map's entries says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.lsm.keys import Array, column_words

if TYPE_CHECKING:
    import pyarrow as pa


def equal_values(x: pa.Array, y: pa.Array) -> Array:
    """Pairwise equality of two columns of one type: nulls equal nulls, floats equal by their bits."""
    import pyarrow as pa

    p, t, n = pa.types, x.type, len(x)
    there, also = (c.is_valid().to_numpy(zero_copy_only=False) for c in (x, y))
    out = there == also
    if p.is_struct(t):
        inner = np.ones(n, bool)
        for i in range(t.num_fields):
            inner &= equal_values(x.field(i), y.field(i))
    elif p.is_list(t) or p.is_map(t):
        inner = _equal_lists(x, y, there & also)
    elif p.is_floating(t):
        bits = pa.int32() if t.bit_width == 32 else pa.int64()
        inner = _flat_equal(x.view(bits), y.view(bits))
    else:
        inner = _flat_equal(x, y)
    return out & (inner | ~there)


def _flat_equal(x: pa.Array, y: pa.Array) -> Array:
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(x, y), False).to_numpy(zero_copy_only=False)


def _equal_lists(x: pa.Array, y: pa.Array, both: Array) -> Array:
    """Lists and maps: equal lengths first, then the elements of those rows side by side.

    Java compares the bytes of rows, in which the entries of a map have the order that a file or a hash map gave them.
    That order says nothing, so here maps are equal when their entries are.
    """
    import pyarrow as pa

    a, b = (np.asarray(c.offsets.to_numpy()) for c in (x, y))
    lengths = np.diff(a)
    same = both & (lengths == np.diff(b))
    rows = np.flatnonzero(same & (lengths > 0))
    if not len(rows):
        return same
    counts = lengths[rows]
    begins = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(owner)) - begins[owner]
    left, right = a[rows][owner] + within, b[rows][owner] + within
    if pa.types.is_map(x.type):
        left, right = _by_key(x, left, owner), _by_key(y, right, owner)
    equal = np.ones(len(owner), bool)
    for u, v in zip(_elements(x), _elements(y)):
        equal &= equal_values(u.take(pa.array(left)), v.take(pa.array(right)))
    same[rows] = np.logical_and.reduceat(equal, begins)
    return same


def _by_key(column: pa.Array, entries: Array, owner: Array) -> Array:
    """The entries of each map in the order of their keys: the order they are stored in says nothing."""
    import pyarrow as pa

    keys = column.keys.take(pa.array(entries))
    if pa.types.is_nested(keys.type):
        return entries
    words = column_words(keys, nullable=True)
    return entries[np.lexsort((*reversed(words), owner))]


def _elements(column: pa.Array) -> list[pa.Array]:
    """The element arrays that the offsets point into."""
    import pyarrow as pa

    return [column.keys, column.items] if pa.types.is_map(column.type) else [column.values]
