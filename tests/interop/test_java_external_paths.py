# SPDX-License-Identifier: Apache-2.0
"""Java writes files outside the table's folder, with file indexes and deletion vectors; shoal finds them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle_values import multiset, rows_of

import shoal

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def written(java: Callable[[Path, list[str]], list[Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("external")
    disks = ",".join(f"file:{base}/{d}" for d in ("a", "b"))
    common = f"'data-file.external-paths'='{disks}','data-file.external-paths.strategy'="
    results = java(
        base / "warehouse",
        [
            "CREATE DATABASE x",
            "CREATE TABLE x.append (id INT, v STRING, p STRING) PARTITIONED BY (p) WITH ('bucket'='-1',"
            f"{common}'round-robin','file-index.bloom-filter.columns'='id','file-index.in-manifest-threshold'='1 b')",
            "INSERT INTO x.append VALUES (1,'a','x'),(2,'b','y')",
            "INSERT INTO x.append VALUES (3,'c','x'),(4,'d','y')",
            "CREATE TABLE x.pk (id INT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket'='2',"
            f"{common}'entropy-inject','deletion-vectors.enabled'='true','index-file-in-data-file-dir'='true')",
            "INSERT INTO x.pk VALUES (1,'a'),(2,'b'),(3,'c')",
            "INSERT INTO x.pk VALUES (2,'B'),(4,'d')",
            "DELETE FROM x.pk WHERE id = 1",
            "SELECT * FROM x.append",
            "SELECT * FROM x.pk",
        ],
    )
    return {"warehouse": base / "warehouse", "append": results[-2].rows, "pk": results[-1].rows}


@pytest.mark.parametrize("name", ["append", "pk"])
def test_rows_in_files_outside(written: dict[str, Any], name: str) -> None:
    table = shoal.open(written["warehouse"]).table(f"x.{name}")
    assert not list((written["warehouse"] / "x.db" / name).glob("**/*.parquet"))
    found = table.scan().to_arrow()
    assert found.num_rows > 2
    assert multiset(rows_of(found), found.schema) == multiset(written[name], found.schema)
    one = table.scan(where="id = 4").to_arrow()
    assert one.column("v").to_pylist() == ["d"]
