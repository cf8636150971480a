# SPDX-License-Identifier: Apache-2.0
"""Tables with `sequence.snapshot-ordering`, `pk-clustering-override` and maps in shared columns, as Java reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from options_truth import java, multiset, opened, rows

from shoal.errors import Corrupt, Unsupported
from shoal.format.shared_maps import layouts
from shoal.format.types import DataType, Field

Unpacked = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(unpacked: Unpacked) -> Path:
    return unpacked("options")


def test_rows_of_later_snapshots_win_and_carry_their_number(folder: Path) -> None:
    table = opened(folder, "late.ord")
    assert rows(table) == java(folder, "ord.after")
    audit = rows(table, columns=["_SEQUENCE_NUMBER", "k", "v"])
    assert Counter(r.replace('"rowkind": "+I", ', "") for r in java(folder, "ord.audit_after")) == audit


# deletion vectors, first-row, and a key and a clustering of two columns each
@pytest.mark.parametrize("table", ["dv", "fr", "two"])
def test_files_sorted_by_other_columns_than_the_key(folder: Path, table: str) -> None:
    assert rows(opened(folder, f"cl.{table}")) == java(folder, f"cl.{table}")


@pytest.mark.parametrize(("dump", "where"), [("cl.dv.k", "k = 3"), ("cl.dv.w", "w > 'd'")])
def test_filters_on_such_files(folder: Path, dump: str, where: str) -> None:
    assert rows(opened(folder, "cl.dv"), where=where) == java(folder, dump)


def test_what_needs_the_order_of_keys_is_refused(folder: Path) -> None:
    table = opened(folder, "cl.dv")
    assert next(c.full for c in table.follow(until="latest"))
    with pytest.raises(Unsupported, match="cannot be compared key by key"):
        table.changes(1, 2, mode="diff")
    files = table.scan().plan().splits[0]
    entries = files.entries
    fresh = entries.set_column(
        entries.schema.get_field_index("level"), "level", pa.array([0] + [1] * (entries.num_rows - 1), pa.int32())
    )
    with pytest.raises(Unsupported, match="new files cannot be merged"):
        replace(files, entries=fresh).sections  # noqa: B018


@pytest.mark.parametrize("table", ["pq", "oc", "pk"])  # Parquet, ORC, and a map of rows with a primary key
def test_shared_maps_are_maps_again(folder: Path, table: str) -> None:
    """Keys in shared columns and in the overflow, null maps and values, files of the plain layout beside."""
    assert rows(opened(folder, f"maps.{table}")) == java(folder, f"maps.{table}")


def test_maps_come_out_whatever_the_batches(folder: Path) -> None:
    found = opened(folder, "maps.pq").scan(columns=["m"], where="id = 2").to_arrow()
    assert sorted(found.column("m")[0].as_py()) == [("a", 4), ("c", 3), ("d", 5), ("e", 6), ("f", 7)]
    assert multiset(found.to_pylist()) == multiset([{"m": [("f", 7), ("e", 6), ("d", 5), ("c", 3), ("a", 4)]}])


def _stored(folder: Path) -> tuple[pa.Schema, pa.Array]:
    for path in sorted((folder / "warehouse/maps.db/pq/bucket-0").glob("*.parquet")):
        file = pq.ParquetFile(path)
        if file.metadata.num_rows == 4:
            return file.schema_arrow, file.read(columns=["n"]).column(0).combine_chunks()
    raise AssertionError("no file of four rows")


MAP = Field(2, "n", DataType("MAP", key=DataType("VARCHAR", False), value=DataType("VARCHAR")))


def test_slices_and_hidden_entries(folder: Path) -> None:
    schema, stored = _stored(folder)
    shared = layouts(schema, [MAP], "f")["n"]
    whole = shared.restored(stored).to_pylist()
    assert whole[2] is None
    assert [dict(m) for m in whole if m is not None] == [{"x": "1"}, {"x": "2", "y": None, "z": "3"}, {"x": "7"}]
    for start in range(4):
        assert shared.restored(stored.slice(start, 2)).to_pylist() == whole[start : start + 2]
    assert shared.restored(stored.slice(0, 0)).to_pylist() == []
    # a null row hides what its members hold
    parts = [stored.field(i) for i in range(stored.type.num_fields)]
    hidden = pa.StructArray.from_arrays(parts, fields=list(stored.type), mask=pa.array([False, True, True, False]))
    assert shared.restored(hidden).to_pylist() == [whole[0], None, None, whole[3]]


def test_damaged_metadata_is_told(folder: Path) -> None:
    schema, stored = _stored(folder)
    at = schema.get_field_index("n")
    good = schema.field(at).metadata
    for key, value in (("field-dict", b"{"), ("num-columns", b"many"), ("field-dict-original-size", b"9999999999")):
        bad = {**good, f"paimon.map.shared-shredding.{key}".encode(): value}
        with pytest.raises(Corrupt, match="map column 'n' cannot be read"):
            layouts(schema.set(at, schema.field(at).with_metadata(bad)), [MAP], "f")
    more = {**good, b"paimon.map.shared-shredding.num-columns": b"7"}
    shared = layouts(schema.set(at, schema.field(at).with_metadata(more)), [MAP], "f")["n"]
    with pytest.raises(Corrupt, match="each of 7 columns"):
        shared.restored(stored)
