# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows have their columns in several files: as Java reads them, and layouts that Java's tests draw."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kinds_truth import java_columns, java_rows, same_rows

import shoal
from shoal.errors import Corrupt
from shoal.format.blob import PLACEHOLDER, Descriptor, decode_descriptor, encode_file, is_descriptor
from shoal.format.datafile import DataFile, Stats
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field
from shoal.lsm.row_ranges import anchor
from shoal.store.memory import MemoryStore
from shoal.table.data_evolution import Files, batches, group_bounds, groups, sources, span

Golden = Callable[[str], Path]


@pytest.mark.parametrize(
    ("table", "dump"),
    [
        ("de_part", "de_part"),
        ("de_part", "de_part.row_tracking"),
        ("de_part", "de_part.extra"),
        ("de_compacted", "de_compacted.row_tracking"),
        ("blob_two", "blob_two"),
        ("blob_two", "blob_two.only_b"),
        ("blob_nested", "blob_nested"),
        ("blob_updated", "blob_updated"),
        ("blob_updated", "blob_updated.tracked"),
    ],
)
def test_rows_are_those_that_java_reads(golden: Golden, table: str, dump: str) -> None:
    folder = golden("kinds")
    found = shoal.open(folder).table(f"kinds.{table}").scan(columns=java_columns(folder, dump)).to_arrow()
    mine, java = same_rows(found, java_rows(folder, dump))
    assert mine == java


def test_deleted_rows_were_there_before(golden: Golden) -> None:
    folder = golden("kinds")
    found = shoal.open(folder).table("kinds.blob_updated").scan(snapshot=3).to_arrow()
    mine, java = same_rows(found, java_rows(folder, "blob_updated.before"))
    assert mine == java
    assert found.num_rows == 10


def test_vector_columns_with_and_without_files_of_their_own(golden: Golden) -> None:
    folder = golden("kinds")
    for name in ("vector_plain", "vector_store"):
        found = shoal.open(folder).table(f"kinds.{name}").scan().to_arrow()
        assert found.schema.field("e").type == pa.list_(pa.field("element", pa.float32()), 3)
        assert found.sort_by("id").to_pylist() == java_rows(folder, name)


def test_descriptors_name_the_place_of_each_blob(golden: Golden) -> None:
    folder = golden("kinds")
    table = shoal.open(folder).table("kinds.blob_two").with_options({"blob-as-descriptor": "true"})
    java = {r["id"]: r for r in java_rows(folder, "blob_two.descriptors")}
    for row in table.scan().to_arrow().to_pylist():
        for column in ("a", "b"):
            theirs = java[row["id"]][column]
            if theirs is None:
                assert row[column] is None
                continue
            mine, other = decode_descriptor(row[column], "mine"), decode_descriptor(bytes.fromhex(theirs), "java")
            assert mine.uri.startswith(f"file:{folder}/kinds.db/blob_two/bucket-0/data-")
            assert (Path(mine.uri).name, mine.offset, mine.length) == (Path(other.uri).name, other.offset, other.length)
            data = Path(mine.uri.removeprefix("file:")).read_bytes()
            assert data[mine.offset - 4 : mine.offset] == bytes.fromhex("cf114e58")


@pytest.mark.parametrize("name", ["blob_descriptor", "blob_pk"])
def test_descriptors_in_a_data_file_are_followed(golden: Golden, tmp_path: Path, name: str) -> None:
    """The golden descriptors point to where Java ran: here the same ones point into the copy.

    Java keeps blobs of primary-key tables in `.managed.blob` files, and descriptors of them in the data files.
    """
    folder = golden("kinds")
    table = shutil.copytree(folder / "kinds.db" / name, tmp_path / "kinds.db" / name)
    shutil.copy(folder / "kinds.db" / "outside.bin", tmp_path / "kinds.db" / "outside.bin")
    column = "d" if name == "blob_descriptor" else "b"
    for file in (table / "bucket-0").glob("*.parquet"):
        data = pq.read_table(file)
        if column not in data.column_names:
            continue
        old = [None if v is None else decode_descriptor(v, "d") for v in data.column(column).to_pylist()]
        new = [
            None if d is None else replace(d, uri=f"file:{tmp_path}/{d.uri[d.uri.index('kinds.db') :]}") for d in old
        ]
        moved = pa.array([None if d is None else d.encode() for d in new], pa.binary())
        pq.write_table(data.set_column(data.column_names.index(column), column, moved), file)
    opened = shoal.open(tmp_path).table(f"kinds.{name}")
    mine, java = same_rows(opened.scan().to_arrow(), java_rows(folder, name))
    assert mine == java
    value = {"blob_descriptor": "323334", "blob_pk": "4f4e45"}[name]
    assert opened.scan(where=f"{column} = X'{value}'", columns=["id"]).to_arrow().to_pylist() == [{"id": 1}]
    raw = opened.with_options({"blob-as-descriptor": "true"}).scan(columns=[column], where="id = 1").to_arrow()
    assert is_descriptor(raw.column(column)[0].as_py())


@pytest.mark.parametrize(("where", "files"), [("w = 444", 3), ("w = 40", 4), ("extra = 222", 4), ("name = 'c'", 1)])
def test_a_filter_drops_groups_by_the_newest_bounds(golden: Golden, where: str, files: int) -> None:
    """w = 40 was row 4 before an update made 444 of it: its group goes, though an old file of it still holds 40."""
    folder = golden("kinds")
    scan = shoal.open(folder).table("kinds.de_part").scan(where=where)
    assert scan.explain().files == files
    column, value = where.split(" = ")
    wanted = [r for r in java_rows(folder, "de_part") if str(r[column]) == value.strip("'")]
    mine, java = same_rows(scan.to_arrow(), wanted)
    assert mine == java


# ---- a model of the layout -------------------------------------------------------------------------------

ID, S, B = (
    Field(0, "id", DataType("INT")),
    Field(1, "s", DataType("VARCHAR", length=9)),
    Field(2, "b", DataType("BLOB")),
)
SCHEMA = Schema(0, (ID, S, B), 2, (), (), {})


def file(name: str, first: int | None, rows: int, sequence: int, columns: Sequence[str] | None) -> DataFile:
    cols = None if columns is None else tuple(columns)
    return DataFile(
        name, 1, rows, b"", b"", Stats(), Stats(), sequence, sequence, 0, 0, first_row_id=first, write_cols=cols,
        value_stats_cols=(),
    )  # fmt: skip


class Folder:
    """Files in memory: blob files as bytes, others as rows."""

    def __init__(self) -> None:
        self.store = MemoryStore("test-data-evolution")
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.files: list[DataFile] = []
        self.batch = 3

    def normal(self, first: int, sequence: int, columns: Sequence[str], rows: list[dict[str, object]]) -> DataFile:
        made = file(f"data-{len(self.files)}.parquet", first, len(rows), sequence, columns)
        self.rows[made.file_name] = rows
        self.files.append(made)
        return made

    def blob(self, first: int, sequence: int, values: Sequence[str | None]) -> DataFile:
        """`.` is a placeholder."""
        made = file(f"data-{len(self.files)}.blob", first, len(values), sequence, ["b"])
        data = [PLACEHOLDER if v == "." else None if v is None else v.encode() for v in values]
        self.store.put(made.file_name, encode_file(data))
        self.files.append(made)
        return made

    def read(self, columns: Sequence[str], deleted: object = None, rows: int = 4) -> list[dict[str, object]]:
        files = Files(self._open, lambda f: (self.store, f.file_name), lambda _: SCHEMA)
        fields = [SCHEMA.field(c) for c in columns]
        out: list[dict[str, object]] = []
        for group in groups(self.files):
            for batch in batches(group, fields, files, rows=rows, deleted=deleted):  # type: ignore[arg-type]
                assert 0 < batch.num_rows <= rows
                out += batch.to_pylist()
        return out

    def _open(self, f: DataFile, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        types = {"id": pa.int32(), "s": pa.string(), "b": pa.binary()}
        schema = pa.schema([(x.name, types[x.name]) for x in fields])
        rows = self.rows[f.file_name]
        for at in range(0, len(rows), self.batch):
            yield pa.RecordBatch.from_pylist(rows[at : at + self.batch], schema=schema)


def test_blob_versions_as_java_draws_them() -> None:
    """The layout in the comment of BlobSequenceGroupRecordReader, scaled down as in BlobUpdateTest."""
    f = Folder()
    f.normal(0, 1, ["id"], [{"id": i} for i in range(10)])
    f.blob(0, 1, ["b0", "b1", "b2"])
    f.blob(3, 1, ["b3", "b4"])
    f.blob(0, 2, ["u20", "."])
    f.blob(2, 2, [".", "u23"])
    f.blob(4, 2, ["u24"])
    f.blob(5, 3, ["b5", "b6", "b7", "b8", "b9"])
    f.blob(5, 4, [".", "u46", "."])
    f.blob(8, 4, ["u48", "."])
    f.blob(0, 6, [".", "u61", *["."] * 7, "u69"])
    expected = [b"u20", b"u61", b"b2", b"u23", b"u24", b"b5", b"u46", b"b7", b"u48", b"u69"]
    assert f.read(["b", "id"]) == [{"b": b, "id": i} for i, b in enumerate(expected)]


class EveryThird:
    """A deletion vector of rows 0, 3, 6, ..."""

    def keep(self, start: int, count: int) -> np.ndarray:
        return np.arange(start, start + count) % 3 != 0


def test_the_newest_file_of_each_column_wins_and_deleted_rows_go_everywhere() -> None:
    f = Folder()
    for sequence, columns, text in ((2, ["s"], "new"), (1, ["id", "s"], "old"), (3, ["id"], "none")):
        f.normal(7, sequence, columns, [{"id": 10 * sequence + i, "s": f"{text}{i}"} for i in range(8)])
    f.blob(7, 1, [None if i == 4 else str(i) for i in range(8)])
    assert [x.max_sequence for x in groups(f.files)[0]] == [3, 2, 1, 1]
    everything = [{"id": 30 + i, "s": f"new{i}", "b": None if i == 4 else str(i).encode()} for i in range(8)]
    assert f.read(["id", "s", "b"]) == everything
    for rows in (1, 2, 5, 100):
        assert f.read(["id", "s", "b"], EveryThird(), rows) == [r for i, r in enumerate(everything) if i % 3]
    oldest = anchor(groups(f.files)[0])
    assert oldest is not None and oldest.max_sequence == 1 and oldest.file_name.endswith("parquet")


def test_groups_are_ranges_of_row_ids() -> None:
    f = [file("b", 5, 5, 1, None), file("c", 10, 2, 1, None), file("a", 0, 5, 1, None), file("d", 5, 5, 2, ["s"])]
    assert [[x.file_name for x in g] for g in groups(f)] == [["a"], ["d", "b"], ["c"]]
    assert [span(g) for g in groups(f)] == [(0, 5), (5, 5), (10, 2)]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([file("a", 0, 5, 1, None), file("b", 3, 5, 2, ["s"])], "overlap in row ids"),
        ([file("a", None, 5, 1, None)], "has no first row id"),
    ],
)
def test_ranges_that_cannot_be_are_named(files: list[DataFile], says: str) -> None:
    with pytest.raises(Corrupt, match=says):
        groups(files)


def test_a_missing_or_damaged_blob_file_is_an_error_not_a_null() -> None:
    f = Folder()
    f.normal(0, 1, ["id"], [{"id": i} for i in range(4)])
    f.blob(0, 1, ["x", "y"])
    with pytest.raises(Corrupt, match="no blob file holds 'b' of row 2"):
        f.read(["b"])
    f.blob(2, 1, ["z", "w"])
    assert [r["b"] for r in f.read(["b"])] == [b"x", b"y", b"z", b"w"]
    name = f.files[-1].file_name
    data = bytearray(f.store.read(name))
    data[4] ^= 1
    f.store.put(name, bytes(data))
    with pytest.raises(Corrupt, match=r"data-2\.blob: a blob record is damaged"):
        f.read(["b"])
    assert [r["id"] for r in f.read(["id"])] == [0, 1, 2, 3]


@pytest.mark.parametrize("columns", [None, ["gone"]])
def test_a_blob_file_without_a_column_is_named(columns: list[str] | None) -> None:
    group = (file("data-0.parquet", 0, 1, 1, ["id"]), file("data-1.blob", 0, 1, 1, columns))
    with pytest.raises(Corrupt, match=r"data-1\.blob does not say"):
        sources(group, [B], lambda _: SCHEMA)


def test_a_file_with_fewer_rows_than_its_metadata_says_is_named() -> None:
    f = Folder()
    made = f.normal(0, 1, ["id"], [{"id": i} for i in range(4)])
    f.rows[made.file_name].pop()
    with pytest.raises(Corrupt, match=r"data-0\.parquet holds fewer rows"):
        f.read(["id"])


def test_a_not_null_column_that_no_file_has_is_an_error() -> None:
    f = Folder()
    f.normal(0, 1, ["id"], [{"id": 1}])
    files = Files(f._open, lambda x: (f.store, x.file_name), lambda _: SCHEMA)
    needed = Field(1, "s", DataType("VARCHAR", False, length=9))
    assert f.read(["s"]) == [{"s": None}]
    with pytest.raises(Corrupt, match="'s' is NOT NULL"):
        list(batches(groups(f.files)[0], [needed], files))


def test_bounds_of_a_column_that_only_a_blob_file_has_are_unknown() -> None:
    f = Folder()
    f.normal(0, 1, ["id"], [{"id": 1}])
    f.blob(0, 1, ["x"])
    bounds = group_bounds(groups(f.files)[0], lambda _: SCHEMA, SCHEMA)
    assert "b" not in bounds and bounds["s"].nulls == 1 and bounds["_ROW_ID"].low == 0


def test_a_descriptor_of_the_first_version_is_read() -> None:
    uri = b"file:/x"
    old = b"\1" + len(uri).to_bytes(4, "little") + uri + (7).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert decode_descriptor(old, "v") == Descriptor("file:/x", 7, 9)
    assert decode_descriptor(Descriptor("file:/x", 7, -1).encode(), "v") == Descriptor("file:/x", 7, -1)
