# SPDX-License-Identifier: Apache-2.0
"""Java reads what DELETE, UPDATE and MERGE left, before and after it compacts the tables itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import shoal

pytestmark = pytest.mark.java

COLUMNS = pa.schema([("id", pa.int32()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int64())])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"bucket": -1},
    "parts": {"bucket": -1, "parts": ["p"]},
    "buckets": {"bucket": 2, "bucket-key": "id"},
    "marks": {"bucket": -1, "deletion-vectors.enabled": True},
    "marked_buckets": {"bucket": 2, "bucket-key": "id", "deletion-vectors.enabled": True},
    "ids": {"bucket": -1, "row-tracking.enabled": True},
    "wide": {
        "bucket": -1,
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "wide_parts": {
        "bucket": -1,
        "parts": ["p"],
        "row-tracking.enabled": True,
        "data-evolution.enabled": True,
        "deletion-vectors.enabled": True,
    },
    "keyed": {"bucket": 2, "key": ["id"]},
}


def changed(lake: Any, name: str, options: dict[str, Any]) -> Any:
    o = dict(options)
    key, parts = o.pop("key", []), o.pop("parts", [])
    t = lake.create_table(f"d.{name}", COLUMNS, primary_key=key, partition_by=parts, options=o)
    for start in (0, 10, 20):
        rows = [{"id": i, "p": "ab"[i % 2], "v": f"v{i}", "n": i} for i in range(start, start + 10)]
        with t.write() as w:
            w.append(rows)
            w.commit()
    t.delete("v > 'v2' AND n < 25")
    t.update({"n": pc.multiply(pc.field("n"), 10), "v": "new"}, where="id >= 8 AND id < 12")
    source = [{"id": i, "p": "ab"[i % 2], "v": f"m{i}", "n": -i} for i in (1, 10, 50)]
    new = {"v": pc.field("source.v")}
    t.merge(source, on="id", when_matched_update=new, when_not_matched_insert=True,
            when_not_matched_by_source_delete=pc.field("id") == 15)  # fmt: skip
    return t


def test_java_reads_changed_tables_and_compacts_them(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    tables = {name: changed(lake, name, options) for name, options in KINDS.items()}
    tracked = ["SELECT * FROM d.`ids$row_tracking`"]
    reads = [f"SELECT * FROM d.{name}" for name in tables]
    compactions = [f"CALL sys.compact(`table` => 'd.{name}')" for name in tables]
    answers = java(tmp_path, [*reads, *tracked, *compactions, *reads, *tracked])
    ids = ["_ROW_ID", "_SEQUENCE_NUMBER"]
    expected = [t.scan().to_arrow().to_pylist() for t in tables.values()]
    expected.append(tables["ids"].scan(columns=[*COLUMNS.names, *ids]).to_arrow().to_pylist())
    n = len(expected)
    for at in (*range(n), *range(len(answers) - n, len(answers))):
        mine = expected[at % n if at < n else at - len(answers) + n]
        found = answers[at].rows
        assert sorted((sorted(r.items()) for r in found), key=str) == sorted((sorted(r.items()) for r in mine), key=str)
