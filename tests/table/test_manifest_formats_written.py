# SPDX-License-Identifier: Apache-2.0
"""Tables whose `manifest.format` is ORC or Parquet: every metadata file that shoal writes is of that format.

Java goes by the option and cannot read anything else. That it reads these files, commits on top of them and merges
them was tried with Java 2.0.0 (five tables, zstd, zlib and snappy).
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import shoal
from shoal.catalog.filesystem import Lake
from shoal.store.memory import MemoryStore

MAGIC = {"avro": b"Obj\x01", "orc": b"ORC", "parquet": b"PAR1"}
SCHEMA = pa.schema([("k", pa.int64()), ("dt", pa.string())])


@pytest.mark.parametrize(
    ("form", "codec"),
    [("avro", "xz"), ("orc", "zstd"), ("orc", "lz4"), ("parquet", "zstd"), ("PARQUET", "gzip"), ("parquet", "none")],
)
def test_every_manifest_has_the_tables_format(form: str, codec: str) -> None:
    store = MemoryStore()
    options = {
        "bucket": "2", "write-only": "true", "manifest.format": form, "manifest.compression": codec,
        "manifest.merge-min-count": "3", "manifest.target-file-size": "1 kb",
    }  # fmt: skip
    lake = Lake(store)
    table = lake.create_table("d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"], options=options)
    with table.write() as w:
        for i in range(8):
            w.upsert(pa.table({"k": [i, i + 1], "dt": ["a", "b"]}, SCHEMA))
            w.commit(checkpoint=i)
    table.maintain.compact(full=True)
    files = {f.path: store.read(f.path) for f in store.list("d.db/t/manifest/")}
    assert len(files) > 16
    wrong = [p for p, data in files.items() if not data.startswith(MAGIC[form.lower()])]
    assert not wrong, "the functions of format/manifest.py take options.manifest_format"
    again = Lake(store).table("d.t")
    rows = again.scan().to_arrow().sort_by([("dt", "ascending"), ("k", "ascending")])
    assert rows["k"].to_pylist() == [*range(8), *range(1, 9)]


@pytest.mark.parametrize(("form", "codec"), [("orc", "gzip"), ("parquet", "brotli"), ("avro", "lz4"), ("json", "zstd")])
def test_what_cannot_be_written_is_refused_before_any_file(form: str, codec: str) -> None:
    store = MemoryStore()
    options = {"bucket": "1", "manifest.format": form, "manifest.compression": codec}
    with pytest.raises(shoal.ShoalError, match=r"manifest\.(format|compression)"):
        table = Lake(store).create_table("d.t", SCHEMA, options={**options, "bucket-key": "k"})
        with table.write() as w:
            w.append(pa.table({"k": [1], "dt": ["a"]}, SCHEMA))
            w.commit(checkpoint=1)
    assert not [f.path for f in store.list("") if "/schema/" not in f.path]
