# SPDX-License-Identifier: Apache-2.0
"""`_ROW_ID` and `_SEQUENCE_NUMBER`: from the files' metadata, or from the files where a compaction wrote them down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kinds_truth import java_columns, java_rows, same_rows

import shoal
from shoal.errors import BadRequest, Corrupt
from shoal.format.datafile import DataFile, Stats
from shoal.table.row_tracking import ROW_ID, columns, fill

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


@pytest.mark.parametrize("name", ["rt", "de"])
def test_ids_and_sequence_numbers_are_those_of_java(golden: Golden, expected: Expected, name: str) -> None:
    head, rows = expected(f"tracking.{name}.row_tracking")
    found = shoal.open(golden("tracking")).table(f"tracking.{name}").scan(columns=[c for c, _ in head]).to_arrow()
    mine, java = same_rows(found, rows)
    assert mine == java


def test_a_compaction_keeps_the_ids_of_its_rows(golden: Golden) -> None:
    folder = golden("kinds")
    asked = java_columns(folder, "rt_compacted.row_tracking")
    table = shoal.open(folder).table("kinds.rt_compacted")
    found = table.scan(columns=asked).to_arrow()
    mine, java = same_rows(found, java_rows(folder, "rt_compacted.row_tracking"))
    assert mine == java
    one = table.scan(where="_ROW_ID = 3", columns=["id"]).to_arrow()
    assert one.to_pylist() == [
        {"id": r["id"]} for r in java_rows(folder, "rt_compacted.row_tracking") if r["_ROW_ID"] == 3
    ]


def test_bounds_of_files_that_store_ids_are_those_of_the_columns(golden: Golden) -> None:
    table = shoal.open(golden("kinds")).table("kinds.rt_compacted")
    every = table.scan().to_arrow().to_pylist()
    found = table.scan(where="id > 3").to_arrow().to_pylist()
    assert found == [r for r in every if r["id"] > 3] != []
    assert table.scan(where="id > 99").plan().entries.num_rows == 0


def test_the_columns_are_not_there_without_being_asked_for(golden: Golden) -> None:
    table = shoal.open(golden("tracking")).table("tracking.rt")
    assert table.scan().to_arrow().column_names == ["id", "v"]
    with pytest.raises(BadRequest, match="_ROW_ID"):
        shoal.open(golden("tracking")).table("tracking.de_src").scan(columns=["_ROW_ID"])


def file(first: int | None, sequence: int) -> DataFile:
    return DataFile("f", 1, 9, b"", b"", Stats(), Stats(), 0, sequence, 0, 0, first_row_id=first)


def test_what_a_file_stores_comes_first() -> None:
    stored = pa.array([70, None, 72], pa.int64())
    ids, sequences = columns(file(100, 5), 4, 3, stored, pa.array([None, 2, None], pa.int64()))
    assert ids.to_pylist() == [70, 105, 72]
    assert sequences.to_pylist() == [5, 2, 5]
    assert [c.to_pylist() for c in columns(file(100, 5), 0, 2)] == [[100, 101], [5, 5]]
    # every id is stored: the file needs none of its own
    assert columns(file(None, 5), 0, 1, pa.array([3], pa.int64()))[0].to_pylist() == [3]


def test_a_file_without_a_first_row_id_is_named() -> None:
    batch = pa.record_batch({"a": [1, 2], ROW_ID.name: pa.array([7, None], pa.int64())})
    with pytest.raises(Corrupt, match="f has no first row id"):
        fill(batch, file(None, 5), 0)
    assert fill(batch, file(50, 5), 10).column(ROW_ID.name).to_pylist() == [7, 61]


def test_every_checkpoint_of_a_writer_gives_its_rows_the_number_of_its_snapshot(tmp_path: Path) -> None:
    options = {"bucket": -1, "row-tracking.enabled": True, "target-file-size": "1 kb"}
    t = shoal.open(tmp_path).create_table("d.t", pa.schema([("id", pa.int32())]), options=options)
    with t.write(commit_user="u") as w:
        for i in range(3):
            w.append([{"id": i}])
            w.flush()
            w.append([{"id": 10 + i}])
            w.commit(checkpoint=i)
    found = t.scan(columns=["id", "_ROW_ID", "_SEQUENCE_NUMBER"]).to_arrow().to_pylist()
    assert {r["id"]: r["_SEQUENCE_NUMBER"] for r in found} == {0: 1, 10: 1, 1: 2, 11: 2, 2: 3, 12: 3}
    assert sorted(r["_ROW_ID"] for r in found) == list(range(6))
