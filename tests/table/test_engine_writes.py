# SPDX-License-Identifier: Apache-2.0
"""Tables of every merge engine written by shoal, held against what Java made of the same rows.

The golden tables hold one file a commit and nothing was compacted: their files are the history. All of it in one commit
must fold to what Java reads, and so must one commit a file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.errors import BadRequest, ShoalError
from shoal.table.table import Table
from shoal.table.write import Write

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]

TABLES = [
    "ag_complex", "ag_default", "ag_listagg", "ag_map_keytime_parquet", "ag_remove", "ag_retract", "ag_scalar",
    "ag_seq", "dd_plain", "dd_seq", "dd_seq_desc", "dd_ignore_delete", "pu_agg", "pu_basic", "pu_default_agg",
    "pu_groups", "pu_groups2", "pu_ignore_delete", "pu_no_delete", "pu_remove", "pu_remove_group", "pu_seq",
]  # fmt: skip


def history(folder: Path) -> list[pa.Table]:
    """The rows of each commit in the order in which they were written."""
    files = [pq.ParquetFile(f).read() for f in folder.glob("bucket-0/*.parquet")]
    ordered = [f.sort_by("_SEQUENCE_NUMBER") for f in files]
    return sorted(ordered, key=lambda f: f.column("_SEQUENCE_NUMBER")[0].as_py())


def empty_copy(source: Path, warehouse: Path, name: str, **options: str) -> Table:
    """A table with the schema of `source` and no rows."""
    target = warehouse / "engines.db" / name
    shutil.copytree(source / "schema", target / "schema")
    file = target / "schema" / "schema-0"
    schema = json.loads(file.read_text())
    schema["options"] |= options
    file.write_text(json.dumps(schema))
    return shoal.open(str(warehouse)).table(f"engines.{name}")


def put(w: Write, rows: pa.Table) -> None:
    values = rows.select([c for c in rows.column_names if not c.startswith("_")])
    w.write(values, rows.column("_VALUE_KIND").combine_chunks())


def contents(table: Table) -> list[str]:
    rows = table.scan().to_arrow()
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize("name", TABLES)
def test_one_commit_folds_as_java_reads_many(name: str, golden: Golden, tmp_path: Path) -> None:
    source = golden("engines") / "engines.db" / name
    java = shoal.open(str(golden("engines"))).table(f"engines.{name}")
    commits = history(source)
    one = empty_copy(source, tmp_path, name, **{"write-only": "true"})
    with one.write() as w:
        for rows in commits:
            put(w, rows)
        w.commit()
    many = empty_copy(source, tmp_path, f"{name}_many", **{"write-only": "true"})
    with many.write() as w:
        for i, rows in enumerate(commits):
            put(w, rows)
            w.commit(checkpoint=i)
    assert contents(many) == contents(java)
    assert contents(one) == contents(java)


def engine(tmp_path: Path, options: dict[str, str], columns: Sequence[tuple[str, pa.DataType]] = ()) -> Table:
    schema = pa.schema([("k", pa.int32()), *(columns or [("v", pa.int32())])])
    lake = shoal.open(str(tmp_path))
    return lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": "1", "write-only": "true", **options})


def raw(table: Table) -> list[tuple[Any, ...]]:
    """Rows of the only file as they lie there: sequence number, kind, values."""
    (file,) = list(Path(table.store.uri.removeprefix("file:")).glob("bucket-0/*.parquet"))
    return [(r["_SEQUENCE_NUMBER"], r["_VALUE_KIND"], r["k"], r["v"]) for r in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        # lone versions keep their kind; folded rows are +I with the newest number that counts
        ({}, [(3, 2, 1, 3), (4, 3, 2, 7), (5, 1, 3, 8)]),
        (
            {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
            [(3, 0, 1, 6), (4, 3, 2, 7), (5, 1, 3, 8)],
        ),
        ({"merge-engine": "partial-update"}, [(3, 0, 1, 3), (4, 3, 2, 7), (5, 1, 3, 8)]),
        ({"merge-engine": "first-row"}, [(0, 2, 1, 1), (4, 3, 2, 7), (5, 1, 3, 8)]),
        ({"ignore-delete": "true"}, [(3, 2, 1, 3)]),
    ],
)
def test_kinds_and_sequence_numbers_of_a_flush(
    tmp_path: Path, options: dict[str, str], kept: list[tuple[int, int, int, int]]
) -> None:
    t = engine(tmp_path, options)
    with t.write() as w:
        w.write(pa.table({"k": [1, 1, 1, 1], "v": [1, None, 2, 3]}, t.arrow_schema), [2, 0, 0, 2])
        w.write(pa.table({"k": [2, 3], "v": [7, 8]}, t.arrow_schema), [3, 1])
        w.commit()
    assert raw(t) == kept


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "max"},
        {"merge-engine": "partial-update"},
        {"merge-engine": "first-row"},
    ],
)
def test_a_retraction_that_the_engine_refuses_leaves_no_file(tmp_path: Path, options: dict[str, str]) -> None:
    t = engine(tmp_path, options)
    with t.write() as w:
        w.write(pa.table({"k": [1, 1], "v": [1, 1]}, t.arrow_schema), [0, 3])
        with pytest.raises(BadRequest):
            w.commit()
    assert t.scan().to_arrow().num_rows == 0
    assert not list(tmp_path.rglob("data-*"))


@pytest.mark.parametrize("name", ["ag_overflow"])
def test_what_java_refuses_to_read_is_refused_when_written(name: str, golden: Golden, tmp_path: Path) -> None:
    source = golden("engines") / "engines.db" / name
    t = empty_copy(source, tmp_path, name, **{"write-only": "true"})
    with t.write() as w:
        for rows in history(source):
            put(w, rows)
        with pytest.raises(ShoalError):
            w.commit()
