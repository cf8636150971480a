"""Statements that Java ran, done here: the same snapshots, counts, identifiers, operations and row ids.

`data/commit_sequences.json` is what Java 2.0.0 left; `commit_truth.py` says how it was made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.table.commit import Commit
from shoal.table.table import Table
from tests.table.commit_truth import TABLES, sequence
from tests.table.commits import table

TRUTH = json.loads((Path(__file__).parent / "data" / "commit_sequences.json").read_text())


def write(t: Table, *rows: tuple[Any, ...]) -> None:
    with t.write() as w:
        (w.upsert if t.primary_key else w.append)(batch(rows))
        w.commit()


def batch(rows: tuple[tuple[Any, ...], ...]) -> pa.Table:
    p, k, v = ([r[i] for r in rows] for i in range(3))
    return pa.table({"p": pa.array(p, pa.string()), "k": pa.array(k, pa.int32()), "v": pa.array(v, pa.int64())})


def keyed() -> Table:
    t = table()
    write(t, ("a", 1, 1), ("a", 2, 2), ("b", 1, 1))
    t.overwrite(batch((("a", 7, 7), ("c", 1, 1))))
    t.overwrite(batch((("b", 5, 5),)), {"p": "b"})
    t.drop_partitions([{"p": "a"}])
    t.maintain.compact_manifest()
    t.truncate()
    return t


def fixed() -> Table:
    t = table(keyed=False, dynamic_partition_overwrite="false")
    write(t, ("a", 1, 1), ("b", 1, 1), (None, 3, 3))
    t.overwrite(batch(()), {"p": "a"})
    t.overwrite(batch((("b", 5, 5),)), {"p": "b"})
    t.drop_partitions([{"p": "__DEFAULT_PARTITION__"}])
    t.overwrite(batch((("z", 1, 1),)))
    return t


def tracked() -> Table:
    t = table(keyed=False, parts=False, row_tracking__enabled="true")
    write(t, ("x", 1, 1), ("x", 2, 2), ("x", 3, 3))
    write(t, ("x", 4, 4), ("x", 5, 5))
    t.overwrite(batch((("x", 6, 6),)))
    write(t, ("x", 7, 7))
    ids = t.scan(columns=["k", "_ROW_ID", "_SEQUENCE_NUMBER"]).to_arrow().to_pylist()
    assert sorted(tuple(r.values()) for r in ids) == [(6, 5, 3), (7, 6, 4)]
    return t


def ordered() -> Table:
    t = table(parts=False, write_only="true", sequence__snapshot_ordering="true")
    write(t, ("x", 1, 1), ("x", 2, 2))
    write(t, ("x", 1, 10))
    assert sorted(t.scan(columns=["k", "v"]).to_arrow().column("v").to_pylist()) == [2, 10]
    return t


def looked() -> Table:
    plain = table(parts=False, write_only="true")
    options = {**plain.schema.options, "write.sequence-number-init-mode": "snapshot"}
    t = plain.with_schema(replace(plain.schema, options=options))
    for rows in ((("x", 1, 1), ("x", 2, 2)), (("x", 1, 10),)):
        with plain.write() as w:
            w.upsert(batch(rows))
            Commit(t, "x").commit(w.prepare(), BATCH_IDENTIFIER)
    return t


MAKE: dict[str, Callable[[], Table]] = {f.__name__: f for f in (keyed, fixed, tracked, ordered, looked)}


@pytest.mark.parametrize("name", TABLES)
def test_the_snapshots_are_java_s(name: str) -> None:
    made = sequence(MAKE[name]())
    assert [s["kind"] for s in made] == [s["kind"] for s in TRUTH[name]]
    for number, (ours, java) in enumerate(zip(made, TRUTH[name], strict=True), 1):
        assert ours == java, f"snapshot {number} of {name}"
