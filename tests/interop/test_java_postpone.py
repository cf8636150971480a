# SPDX-License-Identifier: Apache-2.0
"""Java reads postponed rows that were given their buckets here, postpones more and compacts them; and the other way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal

pytestmark = pytest.mark.java

COLUMNS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
KINDS = {
    "plain": {"postpone.default-bucket-num": "2"},
    "told": {"changelog-producer": "lookup"},
    "marks": {"deletion-vectors.enabled": "true", "postpone.target-row-num-per-bucket": "4"},
}


def rows(answer: Any) -> list[str]:
    return sorted(json.dumps(r, sort_keys=True) for r in answer)


def test_both_give_postponed_rows_their_buckets(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    tables = {}
    for name, options in KINDS.items():
        o = {"bucket": "-2", "postpone.batch-write-fixed-bucket": "false", **options}
        t = tables[name] = lake.create_table(
            f"d.{name}", COLUMNS, primary_key=["p", "k"], partition_by=["p"], options=o
        )
        with t.write(commit_user="stream") as w:
            for at in range(3):
                w.upsert([{"p": "ab"[k % 2], "k": k, "v": at * 100 + k} for k in range(at, 20, at + 1)])
                w.delete([{"p": "ab"[at % 2], "k": at}])
                w.commit(at)
        t.maintain.compact()
        with t.write(commit_user="stream") as w:
            w.upsert([{"p": "a", "k": k, "v": -k} for k in range(0, 20, 4)])
            w.commit(9)
        t.maintain.compact()
    mine = {n: rows(t.scan().to_arrow().to_pylist()) for n, t in tables.items()}
    reads = [f"SELECT * FROM d.{n}" for n in KINDS]
    adds = [f"INSERT INTO d.{n} VALUES ('a', 2, 777), ('b', 1, 778), ('c', 5, 779)" for n in KINDS]
    compactions = [f"CALL sys.compact(`table` => 'd.{n}')" for n in KINDS]
    stream = [
        "SET 'execution.runtime-mode' = 'streaming'",
        "SELECT * FROM d.told /*+ OPTIONS('scan.snapshot-id'='4') */",
    ]
    answers = java(tmp_path, [*reads, *adds, *compactions, *reads, *stream])
    for i, n in enumerate(KINDS):
        assert rows(answers[i].rows) == mine[n], n
    for i, n in enumerate(KINDS):
        theirs = rows(answers[9 + i].rows)
        assert rows(tables[n].scan().to_arrow().to_pylist()) == theirs, n
        kept = {(r["p"], r["k"]): r["v"] for r in map(json.loads, theirs)}
        assert {key: kept[key] for key in (("a", 2), ("b", 1), ("c", 5))} == {
            ("a", 2): 777,
            ("b", 1): 778,
            ("c", 5): 779,
        }
    # what the second compaction of postponed rows told, as Java reads it
    told = [(kind, r["k"], r["v"]) for s, kind, r in answers[-1].changes if s == 6]
    assert sorted(told) == sorted(_expected(tables["told"]))


def _expected(table: Any) -> list[tuple[str, int, int]]:
    before = {r["k"]: r["v"] for r in table.scan(snapshot=4, where="p = 'a'").to_arrow().to_pylist()}
    out = []
    for k in range(0, 20, 4):
        if k in before:
            out += [("-U", k, before[k]), ("+U", k, -k)]
        else:
            out.append(("+I", k, -k))
    return out
