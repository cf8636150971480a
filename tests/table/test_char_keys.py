# SPDX-License-Identifier: Apache-2.0
"""CHAR values shorter than their type in ORC, which keeps no trailing blanks: rows of one key stay one row.

The values are Java's: tables t0013 and t0017 of the oracle's fuzz, seed s12, cut down to the rows that matter. What a
compaction merges must be the same whether the rows come from a file or are still known to the writer.
"""

from __future__ import annotations

import random

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.types import Field, parse
from shoal.store.memory import MemoryStore
from shoal.table.create import schema_of
from shoal.table.table import Table

FIELDS = (
    Field(0, "k", parse("CHAR(4) NOT NULL", "k")),
    Field(1, "v", parse("INT", "v")),
    Field(2, "a", parse({"type": "ARRAY", "element": "CHAR(5)"}, "a")),
)


def a_table(options: dict[str, str]) -> Table:
    lake = Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler, rng=random.Random(3))
    schema = schema_of("d.t", FIELDS, ["k"], [], {"bucket": "1", "file.format": "orc", **options}, None, 0)
    assert lake.store.create("d.db/t/schema/schema-0", schema.encode())
    return lake.table("d.t")


def write(table: Table, checkpoint: int, rows: list[tuple[str, int, list[str]]], *, full: bool = True) -> None:
    with table.write("w") as w:
        columns = zip(("k", "v", "a"), zip(*rows), (pa.string(), pa.int32(), pa.list_(pa.string())))
        w.upsert(pa.table({n: pa.array(c, t) for n, c, t in columns}))
        w.commit(checkpoint=checkpoint, compact="full" if full else None, wait=True)


def rows_of(table: Table) -> list[tuple[object, ...]]:
    return [tuple(r.values()) for r in table.scan().to_arrow().to_pylist()]


def levels_of(table: Table) -> list[int]:
    return sorted(table.inspect.files().column("level").to_pylist())


def test_a_full_compaction_merges_rows_just_written_with_those_of_a_file() -> None:
    table = a_table({"sequence.field": "v"})
    write(table, 1, [("axxx", 1, []), ("k2  ", 25, ["d    "])])
    write(table, 2, [("k2  ", -25, ["e    "]), ("newl", 1, [])])
    assert rows_of(table) == [("axxx", 1, []), ("k2", 25, ["d"]), ("newl", 1, [])]


def test_changelogs_of_another_format_have_what_the_rows_had_in_the_file() -> None:
    table = a_table({"changelog-producer": "full-compaction", "changelog-file.format": "parquet"})
    write(table, 1, [("d   ", 1, ["voj  ", "bxxxx"])])
    newest = table.metadata.latest_id()
    assert newest == 2
    told = table.changes(1, newest, mode="changelog").to_arrow().to_pylist()
    assert [(r["k"], r["a"]) for r in told] == [("d", ["voj", "bxxxx"])]


def test_a_first_row_is_found_in_a_file_whose_least_key_has_blanks() -> None:
    table = a_table({"merge-engine": "first-row"})
    many = [(f"m{i:03}", i, []) for i in range(500)]
    write(table, 1, [("k1  ", 1, []), *many])
    assert levels_of(table) == [5]  # as it was: its least key is 'k1  '
    write(table, 2, [("k1  ", 3, []), ("k2  ", 4, [])], full=False)
    assert levels_of(table) == [4, 5]  # so the first file was asked for its keys, not merged
    assert sorted(rows_of(table), key=str) == [("k1", 1, []), ("k2", 4, []), *many]
