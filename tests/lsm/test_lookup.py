# SPDX-License-Identifier: Apache-2.0
"""Keys looked for in files laid down on local disk, against Python's own search."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.format.types import parse
from shoal.lsm.keys import column_words, less, rows_of
from shoal.lsm.lookup import LookupFile, Probes

_RNG = random.Random(11)


def _text(alphabet: str, most: int, least: int = 0) -> str:
    return "".join(_RNG.choice(alphabet) for _ in range(_RNG.randint(least, most)))


# by name: the types of the key columns, and a key at random
KEYS: dict[str, tuple[list[str], Any]] = {
    "whole numbers": (["BIGINT"], lambda: (_RNG.randint(-5_000, 5_000),)),
    "texts as wide as a word": (["STRING"], lambda: (_text("ab", 8, 8),)),
    "texts of sixteen bytes": (["STRING"], lambda: (_text("0123456789abcdef", 16, 16),)),
    "short texts of all lengths": (["STRING"], lambda: (_text("a\0b", 9),)),
    "one long beginning": (["STRING"], lambda: ("customer/of/the/east/" + _text("01", 12),)),
    "texts beyond what words hold": (["STRING"], lambda: ("x" * 250 + _text("01", 14),)),
    "bytes": (["BYTES"], lambda: (_text("\0\1", 10).encode(),)),
    "a text and a number": (["STRING", "INT"], lambda: (_text("ab", 5, 5), _RNG.randint(-40, 40))),
    "a number and texts": (["INT", "STRING", "STRING"], lambda: (_RNG.randint(0, 3), _text("ab", 3), _text("ab", 4))),
    "numbers": (["INT", "BIGINT"], lambda: (_RNG.randint(-9, 9), _RNG.randint(-(10**6), 10**6))),
    "decimals and days": (["DECIMAL(20, 2)", "DATE"], lambda: (_RNG.randint(-400, 400), _RNG.randint(0, 20))),
}


def _columns(keys: list[tuple[Any, ...]], types: list[str]) -> pa.RecordBatch:
    arrays = []
    for i, t in enumerate(types):
        values = [k[i] for k in keys]
        if t.startswith("DECIMAL"):
            arrays.append(pa.array(values, pa.int64()).cast(pa.decimal128(38, 0)).cast(pa.decimal128(20, 2)))
        else:
            arrow = {"BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(), "BYTES": pa.binary()}
            arrays.append(pa.array(values, pa.int32()).cast(pa.date32()) if t == "DATE" else pa.array(values, arrow[t]))
    return pa.RecordBatch.from_arrays(arrays, [f"k{i}" for i in range(len(types))])


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_found_at_its_row_and_no_other_is(name: str) -> None:
    types, key = KEYS[name]
    known = sorted({key() for _ in range(3_000)}, key=_order)
    there = [k for k in known if _RNG.random() < 0.6]
    asked = [k for k in known if _RNG.random() < 0.5]
    if "STRING" in types[0]:  # longer than all that are there
        asked = sorted([*asked, *((k[0] + "!" * 300, *k[1:]) for k in known[::50])], key=_order)

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, len(there), 700):
            rows = _columns(there[at : at + 700], types)
            yield rows.append_column("v", pa.array(range(at, at + rows.num_rows), pa.int64()))

    file = LookupFile(batches(), [f"k{i}" for i in range(len(types))])
    probes = Probes(_columns(asked, types), [parse(t) for t in types])
    low, high = len(asked) // 7, len(asked) - len(asked) // 9
    hits = file.find(probes, low, high)

    row = {k: i for i, k in enumerate(there)}
    wanted = [(i, row[k]) for i, k in enumerate(asked) if low <= i < high and k in row]
    assert wanted
    assert sorted(zip(hits.probes.tolist(), hits.positions.tolist())) == wanted
    values = [v for b in hits.rows() for v in b.column("v").to_pylist()]
    assert values == hits.positions.tolist()
    assert max(b.num_rows for b in file.batches(300)) <= 300
    assert pa.Table.from_batches(file.batches(300)).column("v").to_pylist() == list(range(len(there)))


def test_an_unordered_stretch_is_searched_too() -> None:
    keys = ["b", "a", "d", "c"]
    rows = pa.RecordBatch.from_arrays([pa.array(keys)], ["k0"])
    probes = Probes(pa.RecordBatch.from_arrays([pa.array(["a", "b", "bb", "d"])], ["k0"]), [parse("STRING")])
    hits = LookupFile(iter([rows]), ["k0"]).find(probes, 0, 4)
    assert sorted(zip(hits.probes.tolist(), hits.positions.tolist())) == [(0, 1), (1, 0), (3, 2)]


def test_rows_of_words_are_those_of_a_plain_search() -> None:
    rng = np.random.default_rng(3)
    table = np.unique(rng.integers(0, 6, (300, 3)).astype(np.uint64), axis=0)
    wanted = rng.integers(0, 7, (500, 3)).astype(np.uint64)
    row, there = rows_of(list(table.T), list(wanted.T))
    place = {tuple(k): i for i, k in enumerate(table.tolist())}
    assert there.tolist() == [tuple(k) in place for k in wanted.tolist()]
    assert [r for r, t in zip(row.tolist(), there) if t] == [
        place[tuple(k)] for k in wanted.tolist() if tuple(k) in place
    ]
    a, b = column_words(pa.array(["a", "ab", "b"])), column_words(pa.array(["ab", "ab", "a"]))
    assert less(a, b).tolist() == [True, False, False]


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.encode() if isinstance(v, str) else v for v in key)
