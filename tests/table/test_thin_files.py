# SPDX-License-Identifier: Apache-2.0
"""Data files of primary-key tables without `_KEY_` columns: Java's thin mode, and files of other writers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal.errors import Corrupt

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def data_files(table: Path) -> list[Path]:
    return sorted(table.glob("**/bucket-*/*.parquet"))


def rewrite(file: Path, gone: str) -> None:
    """The same rows without the columns whose names begin so; the size in the metadata is not looked at."""
    found = pq.read_table(file)
    kept = [n for n in found.column_names if not n.startswith(gone)]
    assert len(kept) < len(found.column_names)
    pq.write_table(found.select(kept), file)


def copied(golden: Golden, tmp_path: Path, name: str) -> Path:
    database, table = name.split(".")
    return Path(shutil.copytree(golden(database) / f"{database}.db" / table, tmp_path / f"{database}.db" / table))


def test_a_thin_table_reads_as_java_reads_it(golden: Golden, expected: Expected) -> None:
    folder = golden("formats")
    for file in data_files(folder / "formats.db" / "pk_thin_mode"):
        assert not [n for n in pq.read_schema(file).names if n.startswith("_KEY_")]
    found = shoal.open(folder).table("formats.pk_thin_mode").scan().to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset(expected("formats.pk_thin_mode")[1], found.schema)


@pytest.mark.parametrize("name", ["formats.pk_thin_off", "engines.dd_plain", "bucket_modes.pk_fixed_4_part"])
@pytest.mark.parametrize("every", [1, 2])
def test_files_with_and_without_keys_lie_side_by_side(
    golden: Golden, expected: Expected, tmp_path: Path, name: str, every: int
) -> None:
    for file in data_files(copied(golden, tmp_path, name))[::every]:
        rewrite(file, "_KEY_")
    found = shoal.open(tmp_path).table(name).scan().to_arrow()
    assert multiset(rows_of(found), found.schema) == multiset(expected(name)[1], found.schema)
    assert found.num_rows > 0


@pytest.mark.parametrize(
    ("table", "gone"), [("engines.dd_plain", "_VALUE_KIND"), ("engines.dd_seq", "_SEQUENCE_NUMBER")]
)
def test_rows_without_sequence_number_or_kind_are_never_lost_in_silence(
    golden: Golden, tmp_path: Path, table: str, gone: str
) -> None:
    for file in data_files(copied(golden, tmp_path, table)):
        rewrite(file, gone)
    with pytest.raises(Corrupt, match=rf"\.parquet.*{gone}"):
        shoal.open(tmp_path).table(table).scan().to_arrow()
