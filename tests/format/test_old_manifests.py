# SPDX-License-Identifier: Apache-2.0
"""Tables with the metadata of older Paimon versions: golden tables whose files are written again in the old layouts."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fastavro
import fastavro._read
import pyarrow as pa
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal.errors import Corrupt
from shoal.format.manifest import decode_entries, decode_list

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def _zstd_block(file: io.BytesIO) -> io.BytesIO:
    """A block of a container, for which fastavro itself would need another package."""
    size = shift = 0
    while True:
        b = file.read(1)[0]
        size |= (b & 127) << shift
        shift += 7
        if b < 128:
            break
    data = file.read((size >> 1) ^ -(size & 1))
    return io.BytesIO(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())


fastavro._read.BLOCK_READERS["zstandard"] = _zstd_block

# Fields of a file's metadata that a version did not have yet.
NEW_IN_1_X = {"_FIRST_ROW_ID", "_WRITE_COLS"}
NEW_IN_1_2 = {"_EXTERNAL_PATH", *NEW_IN_1_X}
NEW_IN_1_0 = {"_VALUE_STATS_COLS", *NEW_IN_1_2}
NEW_IN_0_9 = {"_FILE_SOURCE", *NEW_IN_1_0}
NEW_IN_0_8 = {"_DELETE_ROW_COUNT", "_EMBEDDED_FILE_INDEX", *NEW_IN_0_9}
VERSIONS = {"0.7": NEW_IN_0_8, "0.8": NEW_IN_0_9, "0.9": NEW_IN_1_0, "1.0": NEW_IN_1_2, "1.2": NEW_IN_1_X}
NEW_IN_LISTS = {"_MIN_BUCKET", "_MAX_BUCKET", "_MIN_LEVEL", "_MAX_LEVEL", "_MIN_ROW_ID", "_MAX_ROW_ID"}
NEW_IN_SNAPSHOTS = (
    "uuid", "baseManifestListSize", "deltaManifestListSize", "changelogManifestListSize", "nextRowId", "operation",
)  # fmt: skip


def without(schema: dict[str, Any], gone: Iterable[str]) -> dict[str, Any]:
    """An Avro record without some fields, in nested records too."""
    fields = []
    for f in schema["fields"]:
        if f["name"] in gone:
            continue
        inner = f["type"]
        fields.append({**f, "type": without(inner, gone)} if isinstance(inner, dict) and "fields" in inner else f)
    return {**schema, "fields": fields}


def rewritten(
    data: bytes, gone: Iterable[str], codec: str, change: Callable[[dict[str, Any]], None] | None = None
) -> bytes:
    reader = fastavro.reader(io.BytesIO(data))
    records = list(reader)
    for r in records:
        if change is not None:
            change(r)
    schema = json.loads(json.dumps(reader.writer_schema))
    out = io.BytesIO()
    fastavro.writer(out, without(_plain(schema), gone), records, codec=codec)
    return out.getvalue()


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what fastavro adds to a schema that it has parsed."""
    return {k: v for k, v in schema.items() if not k.startswith("__")}


def downgrade(table: Path, version: str, codec: str = "null") -> None:
    """Write the table's metadata as this version did."""
    gone, folder = VERSIONS[version], table / "manifest"
    for f in folder.glob("manifest-*"):
        if not f.name.startswith("manifest-list"):
            f.write_bytes(rewritten(f.read_bytes(), gone, codec))

    def sized(record: dict[str, Any]) -> None:
        record["_FILE_SIZE"] = (folder / record["_FILE_NAME"]).stat().st_size

    for f in folder.glob("manifest-list-*"):
        f.write_bytes(rewritten(f.read_bytes(), NEW_IN_LISTS if version < "1.2" else (), codec, sized))
    for f in (table / "snapshot").glob("snapshot-*"):
        raw = json.loads(f.read_text())
        for name in NEW_IN_SNAPSHOTS:
            raw.pop(name, None)
        raw["logOffsets"] = {}
        if version < "0.8":
            raw.pop("version")
        f.write_text(json.dumps(raw))


TABLES = ("bucket_modes.pk_fixed_4", "bucket_modes.ap_unaware_part", "engines.dd_plain", "formats.pk_thin_off")


@pytest.fixture
def copied(golden: Golden, tmp_path: Path) -> Callable[[str], Path]:
    """`copied("db.t")`: the folder of a golden table, alone in a warehouse of its own."""

    def copy(name: str) -> Path:
        database, table = name.split(".")
        return Path(shutil.copytree(golden(database) / f"{database}.db" / table, tmp_path / f"{database}.db" / table))

    return copy


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_an_older_version_reads_the_same(
    copied: Callable[[str], Path], expected: Expected, tmp_path: Path, name: str, version: str
) -> None:
    downgrade(copied(name), version, "deflate" if version == "0.8" else "null")
    found = shoal.open(tmp_path).table(name).scan().to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset(expected(name)[1], found.schema)
    assert found.num_rows > 0


def test_a_filter_prunes_old_metadata_and_keeps_every_row(copied: Callable[[str], Path], tmp_path: Path) -> None:
    name = "bucket_modes.pk_fixed_4"
    table = copied(name)
    key = shoal.open(tmp_path).table(name).primary_key[0]
    before = shoal.open(tmp_path).table(name).scan(where=f"{key} < 10").to_arrow().sort_by(key)
    downgrade(table, "0.7")
    assert shoal.open(tmp_path).table(name).scan(where=f"{key} < 10").to_arrow().sort_by(key) == before
    assert before.num_rows > 0


def test_an_unknown_count_of_deletes_means_there_may_be_some(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """Version 0.7 did not count them: the deletes of the golden table must not come out as rows."""
    table = copied("engines.dd_plain")
    downgrade(table, "0.7")
    opened = shoal.open(tmp_path).table("engines.dd_plain")
    files = opened.inspect.files()
    assert set(files.column("deleteRowCount").to_pylist()) == {None}
    assert set(files.column("file_source").to_pylist()) == {None}
    assert opened.scan().to_arrow().num_rows < sum(files.column("record_count").to_pylist())


def test_what_an_old_table_becomes_when_it_is_written(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """The next commit merges old entries into new manifests: what was not there is null, and rows stay."""
    name = "engines.dd_plain"
    downgrade(copied(name), "0.7")
    table = shoal.open(tmp_path).table(name)
    rows = table.scan().to_arrow()
    with table.write("w") as w:
        w.upsert(rows.slice(0, 1))
        w.commit(1)
    again = shoal.open(tmp_path).table(name).scan().to_arrow()
    assert multiset(rows_of(again), again.schema) == multiset(rows_of(rows), rows.schema)


def test_version_1_of_manifests_is_refused(copied: Callable[[str], Path], tmp_path: Path) -> None:
    table = copied("engines.dd_plain")

    def first_version(record: dict[str, Any]) -> None:
        record["_VERSION"] = 1

    for f in (table / "manifest").glob("manifest-*"):
        f.write_bytes(rewritten(f.read_bytes(), (), "null", first_version))
    for f in (table / "snapshot").glob("snapshot-*"):  # old snapshots do not tell how large their lists are
        raw = json.loads(f.read_text())
        f.write_text(json.dumps({k: v for k, v in raw.items() if not k.endswith("ListSize")}))
    with pytest.raises(Corrupt, match=r"manifest-list-.*: manifest version \[1\]"):
        shoal.open(tmp_path).table("engines.dd_plain").scan().to_arrow()
    data = next(f for f in (table / "manifest").glob("manifest-*") if not f.name.startswith("manifest-list"))
    with pytest.raises(Corrupt, match=r"m: manifest version \[1\]") as err:
        decode_entries(data.read_bytes(), "m")
    assert (
        err.value.hint == "version 1 was written before Paimon 0.4; Java does not read it either: write the table again"
    )


def test_a_field_that_every_version_has_must_be_there(copied: Callable[[str], Path]) -> None:
    table = copied("engines.dd_plain")
    data = next(f for f in (table / "manifest").glob("manifest-*") if not f.name.startswith("manifest-list"))
    with pytest.raises(Corrupt, match=r"m: entries have no field _FILE\._ROW_COUNT"):
        decode_entries(rewritten(data.read_bytes(), ["_ROW_COUNT"], "null"), "m")
    names = next(iter((table / "manifest").glob("manifest-list-*"))).read_bytes()
    with pytest.raises(Corrupt, match="l: entries have no field _FILE_NAME"):
        decode_list(rewritten(names, ["_FILE_NAME"], "null"), "l")


@pytest.mark.parametrize(
    ("version", "bucket", "file_format"), [(None, "1", "orc"), (1, "1", "orc"), (2, None, "orc"), (3, None, None)]
)
def test_defaults_of_old_schema_files(
    copied: Callable[[str], Path], tmp_path: Path, version: int | None, bucket: str | None, file_format: str | None
) -> None:
    table = copied("engines.dd_plain")
    for f in (table / "schema").iterdir():
        raw = json.loads(f.read_text())
        raw["options"].pop("bucket", None)
        raw["options"].pop("file.format", None)
        raw.pop("version")
        f.write_text(json.dumps(raw if version is None else {"version": version, **raw}))
    options = shoal.open(tmp_path).table("engines.dd_plain").schema.options
    assert (options.get("bucket"), options.get("file.format")) == (bucket, file_format)
