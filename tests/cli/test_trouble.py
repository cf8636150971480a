# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in practice: one clear line with a hint, the right exit code, nothing half-written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal

Run = Callable[..., Any]


@pytest.fixture
def own(warehouse: str, tmp_path: Path) -> Path:
    """A copy of the warehouse that a test may damage."""
    return Path(shutil.copytree(warehouse, tmp_path / "own"))


def complains(ran: Any, code: int, *words: str) -> None:
    lines = ran.err.splitlines()
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert len(lines) == 2 and lines[0].startswith("shoal: error: ") and lines[1].startswith("hint: "), ran.err
    for word in words:
        assert word in ran.err, (word, ran.err)


def test_a_wrong_warehouse(run: Run, tmp_path: Path) -> None:
    complains(run("table", "list", "-w", str(tmp_path / "nowhere")), 2, "no warehouse", "nowhere", "SH-NOT-FOUND")


def test_a_missing_table(run: Run, warehouse: str) -> None:
    complains(run("table", "show", "shop.order", "-w", warehouse), 2, "no table 'shop.order'", "orders")
    complains(run("sql", "SELECT * FROM shop.order", "-w", warehouse), 2, "unknown table", "orders")


def test_a_misspelt_option(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"id": 1}\n')
    line = ("job", "run", "-w", str(tmp_path / "w"), "--from", str(source), "--into", "d.t", "--primary-key", "id")
    ran = run(*line, "--option", "bukcet=2")
    complains(ran, 2, "no option 'bukcet'", "did you mean 'bucket'?")
    assert not list(tmp_path.glob("w/**/schema-*"))


def test_bad_sql(run: Run, warehouse: str) -> None:
    complains(run("sql", "SELECT idd FROM shop.orders", "-w", warehouse), 2, "idd", "SH-BAD-REQUEST")
    complains(run("sql", "SELECT FROM WHERE", "-w", warehouse), 2, "line 1", "SH-BAD-REQUEST")


def newest_manifest(warehouse: Path) -> Path:
    table = shoal.open(str(warehouse)).table("shop.orders")
    snap = table.metadata.latest()
    assert snap is not None
    return warehouse / "shop.db/orders/manifest" / table.metadata.manifests(snap)[-1].file_name


def test_a_truncated_manifest(run: Run, own: Path) -> None:
    path = newest_manifest(own)
    path.write_bytes(path.read_bytes()[:-20])
    complains(run("sql", "SELECT count(*) FROM shop.orders", "-w", str(own)), 4, path.name, "SH-CORRUPT")
    complains(run("table", "files", "shop.orders", "-w", str(own)), 4, path.name)


def test_a_damaged_data_file(run: Run, own: Path) -> None:
    path = next((own / "shop.db/orders").glob("dt=*/bucket-0/data-*.parquet"))
    path.write_bytes(path.read_bytes()[:200] + b"\0" * 100 + path.read_bytes()[300:-4] + b"XXXX")
    for output in ("table", "jsonl"):
        ran = run("sql", "SELECT sum(total) FROM shop.orders", "-w", str(own), "-o", output)
        complains(ran, 4, path.name, "SH-CORRUPT")


def test_a_full_disk(run: Run, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listing() -> list[str]:
        return sorted(str(p) for p in own.rglob("*"))

    before, write = listing(), os.write
    left = 3000

    def full(fd: int, data: bytes) -> int:
        nonlocal left
        if fd > 2 and len(data) > left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= len(data) if fd > 2 else 0
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    ran = run("compact", "run", "shop.orders", "--full", "-w", str(own))
    complains(ran, 3, "no space left", "free disk space", "SH-STORAGE")
    assert listing() == before
