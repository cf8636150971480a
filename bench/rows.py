# SPDX-License-Identifier: Apache-2.0
"""Rows made from seeds: nothing is stored, the same seed gives the same rows.

A table of R sorted runs has a key space of half its rows, and each run draws its keys from all of it, so runs overlap
everywhere and a key has two versions on average. Nine value columns of mixed types; one in ten values is null.
Only pyarrow and numpy are needed, since the peers' interpreter runs this too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

KINDS = ("bigint", "string", "composite")
NULLS = 0.1
_VALUES = (
    ("c_int", pa.int32()), ("c_big", pa.int64()), ("c_dbl", pa.float64()), ("c_cat", pa.string()),
    ("c_txt", pa.string()), ("c_dec", pa.decimal128(18, 2)), ("c_ts", pa.timestamp("us")), ("c_flag", pa.bool_()),
    ("g_seq", pa.int64()),
)  # fmt: skip
_KEYS = {
    "bigint": (("k", pa.int64()),),
    "string": (("k", pa.string()),),
    "composite": (("k1", pa.string()), ("k2", pa.int32())),
}
_CATEGORIES = pa.array([f"cat-{i:02d}" for i in range(40)])


def key_names(kind: str) -> list[str]:
    return [name for name, _ in _KEYS[kind]]


def schema(kind: str) -> pa.Schema:
    """Key columns of the kind, then the values."""
    keys = [pa.field(name, t, nullable=False) for name, t in _KEYS[kind]]
    return pa.schema(keys + [pa.field(name, t) for name, t in _VALUES])


def keys(kind: str, ids: np.ndarray) -> list[pa.Array]:
    """Key columns of row identities; the order of keys has nothing to do with the order of identities."""
    if kind == "bigint":
        return [pa.array(_scatter(ids))]
    if kind == "string":
        return [_hex(_scatter(ids), 16)]
    return [_hex(_scatter(ids // 64), 12), pa.array((ids % 64).astype(np.int32))]


def table(kind: str, ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    n = len(ids)

    def integers(high: int, dtype: type = np.int64) -> pa.Array:
        return pa.array(rng.integers(0, high, n, dtype=dtype), mask=rng.random(n) < NULLS)

    cents = np.zeros((n, 2), np.int64)
    cents[:, 0] = rng.integers(0, 10**8, n)
    columns = [
        *keys(kind, ids),
        integers(1 << 20, np.int32),
        integers(1 << 40),
        pa.array(np.round(rng.random(n) * 1000, 3), mask=rng.random(n) < NULLS),
        _CATEGORIES.take(integers(len(_CATEGORIES))),
        _hex(rng.integers(0, 1 << 62, n), 20),
        pa.Array.from_buffers(pa.decimal128(18, 2), n, [None, pa.py_buffer(cents)]),
        pa.array(1_700_000_000_000_000 + rng.integers(0, 10**12, n), pa.timestamp("us")),
        pa.array(rng.random(n) < 0.5),
        integers(1 << 30),
    ]
    return pa.Table.from_arrays(columns, schema=schema(kind))


def runs(kind: str, rows: int, count: int, seed: int = 7) -> Iterator[pa.Table]:
    """`count` unsorted tables of rows / count rows; the keys of one are distinct."""
    rng = np.random.default_rng(seed)
    space, each = max(1, rows // 2), rows // count
    for _ in range(count):
        yield table(kind, rng.permutation(space)[:each], rng)


def upserts(kind: str, rows: int, batch: int = 65_536, seed: int = 7) -> Iterator[pa.RecordBatch]:
    """A stream of small batches whose keys come again and again."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, batch):
        n = min(batch, rows - start)
        yield table(kind, rng.integers(0, max(1, rows // 2), n), rng).to_batches()[0]


def _scatter(ids: np.ndarray) -> np.ndarray:
    """Distinct 63-bit integers for distinct identities (Fibonacci hashing; half of it, so without the sign)."""
    return ((ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)).astype(np.int64)


def _hex(values: np.ndarray, width: int) -> pa.Array:
    """The low `width` hex digits of each value, zero-padded."""
    v, digits = values.astype(np.uint64), np.frombuffer(b"0123456789abcdef", np.uint8)
    out = np.empty((len(v), width), np.uint8)
    for place in range(width):
        shift = np.uint64(min(63, 4 * place))
        out[:, width - 1 - place] = digits[((v >> shift) & np.uint64(15)).astype(np.uint8)] if place < 16 else digits[0]
    offsets = np.arange(0, (len(v) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(v), pa.py_buffer(offsets), pa.py_buffer(out))
