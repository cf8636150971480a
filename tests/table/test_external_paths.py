# SPDX-License-Identifier: Apache-2.0
"""Files outside the table's folder: golden tables whose data and index files are moved, and their metadata with them.

tests/interop/test_external_paths.py has the same from Java itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal.errors import BadRequest, Corrupt
from shoal.format.datafile import Entry
from shoal.format.manifest import decode_entries, decode_list, encode_entries, encode_list, entries_of, write_entries
from shoal.store.memory import MemoryStore
from shoal.store.uri import open_store
from shoal.table.external_paths import Places

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def move(table: Path, place: Callable[[Path, int], tuple[str, Path]]) -> int:
    """Move each data file to where `place(file, number)` says: (its URI, its path here). Returns how many moved."""
    new: dict[str, str] = {}
    for i, file in enumerate(sorted(table.glob("**/bucket-*/data-*"))):
        if not file.name.endswith(".index"):
            uri, target = place(file, i)
            target.parent.mkdir(parents=True, exist_ok=True)
            for f in file.parent.glob(f"{file.name}*"):
                f.rename(target.parent / f.name)
            new[file.name] = uri
    for manifest in (table / "manifest").glob("manifest-*"):
        if "list" not in manifest.name:
            entries = entries_of(decode_entries(manifest.read_bytes(), manifest.name))
            moved = [Entry(*e[:4], e.file._replace(external_path=new.get(e.file.file_name))) for e in entries]
            manifest.write_bytes(write_entries(encode_entries(moved), "zstd"))
    record_sizes(table)
    return len(new)


def record_sizes(table: Path) -> None:
    """Lists and snapshots say how large the files they name are."""
    folder = table / "manifest"
    for file in folder.glob("manifest-list-*"):
        metas = decode_list(file.read_bytes(), file.name)
        now = [replace(m, file_size=(folder / m.file_name).stat().st_size) for m in metas]
        file.write_bytes(encode_list(now, "zstd"))
    for file in (table / "snapshot").glob("snapshot-*"):
        snapshot = json.loads(file.read_text())
        for kind in ("base", "delta", "changelog"):
            if name := snapshot.get(f"{kind}ManifestList"):
                snapshot[f"{kind}ManifestListSize"] = (folder / name).stat().st_size
        file.write_text(json.dumps(snapshot))


def copied(golden: Golden, tmp_path: Path, name: str) -> Path:
    database, table = name.split(".")
    source = golden(database) / f"{database}.db" / table
    return Path(shutil.copytree(source, tmp_path / "warehouse" / f"{database}.db" / table))


@pytest.mark.parametrize(
    "name", ["bucket_modes.pk_fixed_4_part", "bucket_modes.ap_unaware_part", "dv.pk_dv_part", "dv.ap_dv"]
)
@pytest.mark.parametrize("every", [1, 2])
def test_moved_files_are_found(golden: Golden, expected: Expected, tmp_path: Path, name: str, every: int) -> None:
    table = copied(golden, tmp_path, name)

    def place(file: Path, number: int) -> tuple[str, Path]:
        if number % every:
            return "", file  # stays
        target = tmp_path / "outside" / f"disk {number % 2}" / "0101" / file.name
        return f"file:{target}", target

    def or_stay(file: Path, number: int) -> tuple[str, Path]:
        uri, target = place(file, number)
        return (uri or None), target  # type: ignore[return-value]

    assert move(table, or_stay) > 1
    found = shoal.open(tmp_path / "warehouse").table(name).scan().to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset(expected(name)[1], found.schema)


def test_a_moved_file_that_is_gone_is_named(golden: Golden, tmp_path: Path) -> None:
    table = copied(golden, tmp_path, "bucket_modes.ap_unaware_part")
    move(table, lambda f, _: (f"file:{tmp_path}/outside/{f.name}", tmp_path / "outside" / f.name))
    shutil.rmtree(tmp_path / "outside")
    with pytest.raises(Corrupt, match=r"data-.* is missing although a snapshot refers to it"):
        shoal.open(tmp_path / "warehouse").table("bucket_modes.ap_unaware_part").scan().to_arrow()


def test_where_files_lie() -> None:
    own = MemoryStore("own")
    places = Places(own)
    assert places.locate("bucket-0/", "f.orc") == (own, "bucket-0/f.orc")
    store, path = places.locate("bucket-0/", "f.orc", "memory:elsewhere/f.orc")
    assert store is open_store("memory:elsewhere") and path == "f.orc"
    assert places.locate("bucket-1/", "g.orc", "memory:elsewhere/g.orc")[0] is store
    assert places.locate("", "", "memory:own/bucket-2/h.blob") == (own, "bucket-2/h.blob")
    # what belongs to a data file lies beside it
    assert places.beside("bucket-0/", "f.orc.index", "memory:elsewhere/f.orc") == (store, "f.orc.index")
    assert places.beside("bucket-0/", "f.orc.index") == (own, "bucket-0/f.orc.index")


@pytest.mark.parametrize(("path", "kind"), [("f.orc", Corrupt), ("s3:///", Corrupt), ("ftp://h/x/f.orc", BadRequest)])
def test_an_external_path_that_names_no_file(path: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Places(MemoryStore("own")).locate("bucket-0/", "f.orc", path)
