# SPDX-License-Identifier: Apache-2.0
"""A small warehouse made through the public API, and `shoal` as a function of its line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.cli.main import main

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.float64()), ("dt", pa.string())])


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOAL_WAREHOUSE", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """shop.orders (keyed, partitioned, 1 full compaction behind it), shop.items (append, empty), hr.staff."""
    folder = str(tmp_path_factory.mktemp("lake") / "warehouse")
    lake = shoal.open(folder)
    orders = lake.create_table(
        "shop.orders", SCHEMA, primary_key=["dt", "id"], partition_by=["dt"], options={"bucket": 1, "write-only": True}
    )
    for i in range(3):
        with orders.write(commit_user="ingest") as writer:
            days = ["2026-11-01"] * 1000 + ["2026-11-02"] * 1000
            writer.upsert(pa.table({"id": range(i * 500, i * 500 + 2000), "total": [1.5 * i] * 2000, "dt": days}))
            writer.commit(checkpoint=i)
    lake.create_table("shop.items", pa.schema([("name", pa.string())]))
    lake.create_table("hr.staff", SCHEMA, primary_key=["id"], options={"bucket": 1}, comment="who works here")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a line through `main`, in this process."""

    def call(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(argv)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def shell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a line in a process of its own; keywords go to `subprocess.run`."""

    def call(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60, **more}
        return subprocess.run([sys.executable, "-m", "shoal.cli", *argv], **pipes)

    return call
